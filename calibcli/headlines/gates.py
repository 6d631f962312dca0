"""Headlines of `calib check` and `calib plan`: the verdict, its reason, and what to do if it is undecided.

The reason is the message of a check, which `judge` in `gate/judging` writes.
"""

from __future__ import annotations

from collections import Counter

from calibcli.core import number_format
from calibcli.core.number_format import count_text, number
from calibcli.core.result import VERDICTS, WORST_FIRST, Check, Estimate, Result
from calibcli.headlines import count, listed, sentence, sentences, traits, upper

NO_RULE = "(none)"  # the rule of a check that could not run at all


@sentence
def check(result: Result) -> str:
    if result.deciding is None:
        return ""
    verdict, fatal = result.deciding
    deciding = [c for c in result.checks if (c.outcome, c.fatal) == result.deciding]
    others = [c for c in result.checks if (c.outcome, c.fatal) != result.deciding]
    warned = [c for c in others if c.outcome != "pass" and not c.fatal]
    left = Counter(c.outcome for c in others if c.outcome == "pass" or c.fatal)
    counts = [f"{left[o]} {VERDICTS[o]}" for o in WORST_FIRST if o in left]
    warnings = [f"{VERDICTS[c.outcome]} (a warning, which fails no run): {_numbers(c)}{_why(c)}" for c in warned[:1]]
    if len(warned) > 1:
        warnings.append(count_text(len(warned) - 1, "more warning"))
    if verdict == "pass":
        every = not others
        many = {1: "", 2: "both rules hold, " if every else "2 rules hold, "}
        count = many.get(len(deciding), f"{'all ' * every}{len(deciding)} rules hold, ")
        return sentences(f"PASS: {count}{listed(map(_numbers, deciding), 2)}{_sure(deciding)}", *warnings)
    excused = " (fails the run)" * (verdict == "not_run") if fatal else " (a warning, which fails no run)"
    verdict_text = f"{VERDICTS[verdict]}{excused}: {_numbers(deciding[0])}{_why(deciding[0])}"
    more = [f"{len(deciding) - 1} more {VERDICTS[verdict]}"] if len(deciding) > 1 else []
    return sentences(verdict_text, ", ".join(more + counts), _advice(deciding[0]), *warnings)


def _numbers(check: Check) -> str:
    """Format the rule with its numbers: `ece <= 0.06 at 0.0263 [0.0010, 0.0400]`."""
    scope = f" ({check.scope})" if check.scope else ""
    rule = check.rule if check.rule != NO_RULE else ""
    e = check.estimate
    if e is None or e.value is None:
        return f"{rule}{scope}"
    shown = number_format.shown(e, check.limit)
    return f"{rule}{scope} at {' '.join(filter(None, [shown.value, shown.interval]))}"


def _sure(checks: list[Check]) -> str:
    levels = {(1 + c.estimate.level) / 2 for c in checks if c.estimate is not None and c.estimate.level is not None}
    each = "each " if len(checks) > 1 else ""
    return f" ({each}with {number_format.percent(min(levels))} confidence)" if levels else ""


def _why(check: Check) -> str:
    if check.outcome == "fail":
        level = check.estimate.detail.get("fail_level") if check.estimate is not None else None
        sure = f" (with {number_format.percent(level)} confidence)" if isinstance(level, float) else _sure([check])
        return f", {check.message.removeprefix('surely ')}{sure}" if check.message else ""
    if check.outcome == "inconclusive":
        level = "" if check.estimate is None else number_format.level([check.estimate])
        level = f" ({level})" if level else ""
        return f", with the limit between its bounds{level}" if check.n_needed else f", {check.message}"
    return f": {check.message}" if check.message and check.rule != NO_RULE else check.message


def _advice(check: Check) -> str:
    """Say what would decide an inconclusive rule, or let it pass."""
    if check.outcome != "inconclusive":
        return ""
    e = check.estimate
    if not check.n_needed:
        warn = ", or --on-inconclusive warn" if check.fatal else ""
        return f"What is left: another limit (calib plan --from FILE){warn}"
    rows = number_format.rows_needed(check.n_needed, *((None,) if e is None else (e.n, e.groups_of(check.n_needed))))
    done = [f"{rows} would decide it if the value stays"]
    if e is not None and traits(e.name).table_bounds and "score" in e.how and "sharp" not in e.how:
        done.append("sharper bounds may (--bounds sharp)")
    done.append("see calib plan --from FILE")
    if check.fatal:
        done.append("--on-inconclusive warn lets it through")
    return upper("; ".join(done))


# `calib init`: what is pinned, and the rules.


@sentence
def init(result: Result) -> str:
    proposed = next((table for table in result.tables if table.name == "rules"), None)
    rows = [] if proposed is None else proposed.rows
    rules = [f"{row[0]} {'<=' if row[1] == 'max' else '>='} {row[2]}" for row in rows if len(row) > 2]
    written = result.artefacts.get("configuration", "calib.toml")
    kept = proposed is not None and proposed.title.endswith("not written")
    text = f"{written} pins how the file was read" + ("; its rules are as they were" if kept else "")
    bounds = f"the bounds of {result.facts['limits of']}" if "limits of" in result.facts else "today's bounds"
    doubts = [note.partition(":")[0] for note in result.notes if "surely miscalibrated" in note]
    doubtful = f"{doubts[0]}, which such limits accept" if doubts and not kept else ""
    ruled = text if kept or not rules else f"{text}, and has rules at {bounds}: {', '.join(rules)}"
    return sentences(ruled, upper(doubtful))


# `calib threshold`: from which score on to act, on how many rows, and what is promised of them.

PROMISES = {
    "risk": "at most {} of them wrong",
    "precision": "at least {} of them {}",
    "fpr": "at most {} of the rows that are not {} are accepted",
}


@sentence
def threshold(result: Result) -> str:
    decision = result.facts.get("decision")
    if not isinstance(decision, dict) or decision.get("of") not in PROMISES:
        return ""
    every = [[e for e in result.estimates if e.name == name] for name in ("threshold", "accepted", decision["of"])]
    found = [one for one in zip(*every, strict=False) if one[0].value is not None]
    score = f"P({decision['name']})" if decision.get("name") else "confidence"
    promise = PROMISES[decision["of"]].format(number_format.percent(decision.get("limit")), decision.get("name"))
    sure = f"with {number_format.percent(1 - decision.get('alpha', 0.05))} confidence"
    none = [e for e in every[0] if e.value is None]
    if not found:
        open_ = any(check.outcome == "inconclusive" for check in result.checks)
        text = "Undecided, no threshold so far: no" if open_ else "No threshold: no"
        text += f" {score} is shown" if open_ else f" {score}"
        text += f" from which on {promise.replace('of them', 'of the accepted rows are')}, {sure}"
        wanted = "inconclusive" if open_ else "fail"
        why = [e.reason for e, check in zip(none, result.checks, strict=False) if check.outcome == wanted]
        return sentences(text, upper(why[0].removeprefix("no threshold: ")) if why else "")
    taus = [number_format.exact(tau.value or 0) for tau, *_ in found]
    if not decision.get("by"):
        _, share, seen = found[0]
        seen_text = f"{100 * (seen.value or 0):.1f} % seen"
        return sentences(f"Accept at {score} >= {taus[0]}: {_share(share)}; {promise} ({seen_text}), {sure}")
    parts = [f"{tau} in {share.scope} ({_share(share)})" for tau, (_, share, _) in zip(taus, found, strict=True)]
    accept = f"Accept at {score} >= {listed(parts)}; {promise} in each of them, {sure} in all together"
    return sentences(accept, (none and f"Accept nothing in {listed(e.scope for e in none)}") or "")


def _share(e: Estimate) -> str:
    """Format a share of the rows as `87.4 % of rows [85.2, 89.4]`."""
    interval = "" if e.low is None or e.high is None else f" [{100 * e.low:.1f}, {100 * e.high:.1f}]"
    return f"{100 * (e.value or 0):.1f} % of rows{interval}"


# `calib plan`: the rows that all gates together need, and the gate that needs most.


@sentence
def plan(result: Result) -> str:
    sizes = [e for e in result.estimates if e.name == "n"]
    unreachable = [e for e in sizes if e.value is None]
    reachable = [e for e in sizes if e.value is not None]
    if unreachable:
        none = f"No number of rows up to 10⁹ is enough for {listed(map(_what_plan_needs, unreachable))}"
        possible = (f"for {_what_plan_needs(e)}: {count_text(int(e.value or 0), 'row')} in all" for e in reachable[:2])
        return sentences(none, upper("; ".join(possible)))
    if not reachable:
        return ""
    most = max(reachable, key=lambda e: e.value or 0.0)
    needed = max(int(most.value or 0), count(result, "min_n"))
    others = f", the one of {len(reachable)} gates that asks for most" if len(reachable) > 1 else ""
    return sentences(f"Plan {count_text(needed, 'row')} in all: {_what_plan_needs(most)}{others}")


def _what_plan_needs(e: Estimate) -> str:
    """Describe what a number of rows is for: `ece <= 0.02 (PASS with a chance of 80 % if ece truly is 0)`."""
    truth = e.detail.get("truth")
    assumed = f" if {e.where.subject.partition(' ')[0]} truly is {number(truth)}" if isinstance(truth, float) else ""
    return f"{e.scope} ({e.how.partition(';')[0]}{assumed})"
