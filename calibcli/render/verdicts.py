"""The verdict of a check as one sentence, for formats that have no columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibcli import numbers
from calibcli.render import stream
from calibcli.result import VERDICTS, WORST_FIRST, Check, Outcome


def title(check: Check, words: Mapping[Outcome, str] = VERDICTS) -> str:
    """`ece <= 0.03 (site=A): FAIL`."""
    scope = f" ({check.scope})" if check.scope else ""
    return stream.clean(f"{check.rule_shown}{scope}: {words[check.outcome]}")


def sentence(check: Check) -> str:
    """Value, bounds, limit, null level, n and reason; digits are kept until no number contradicts the verdict."""
    parts = []
    e = check.estimate
    if e is not None and e.value is not None:
        value, interval, null = numbers.shown(e, check.limit)
        level = "" if e.level is None else f" (each {numbers.percent((1 + e.level) / 2)})"
        level = f" ({numbers.level([e])})" if "fail_level" in e.detail else level
        parts.append(f"{e.name} {value}" + (f", bounds {interval}{level}" if interval else ""))
        if check.limit is not None:
            parts.append(f"limit {numbers.exact(check.limit)}")
        if null:
            parts.append(f"{null} if calibrated")
        if e.n is not None:
            parts.append(f"n = {e.n}")
    text = ", ".join(parts)
    if check.message:
        text += (": " if text else "") + check.message
    return stream.clean(text or VERDICTS[check.outcome].lower())


def troubled(checks: Sequence[Check]) -> list[Check]:
    """Checks that did not pass, the worst first: those that fail the run, then FAIL, NOT RUN, INCONCLUSIVE."""
    found = [c for c in checks if c.outcome != "pass"]
    return sorted(found, key=lambda c: (not c.fatal, WORST_FIRST.index(c.outcome)))
