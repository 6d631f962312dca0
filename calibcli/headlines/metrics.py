"""Headlines of `calib metrics`, `ood` and `compare`: miscalibration, its direction, and differences that are shown."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from calibcli.core import number_format
from calibcli.core.problem import EVENT_SHARE
from calibcli.core.result import Estimate, Result
from calibcli.core.scope import MEAN_OF_TASKS, Scope
from calibcli.headlines import (
    base,
    beyond_chance,
    count,
    error,
    first,
    listed,
    name,
    named,
    numbers_alone,
    sentence,
    sentences,
    side,
    traits,
    upper,
    value,
)

# `calib metrics`: whether miscalibration is shown and in which direction, the gain of a temperature, and the slices.

MOST_SENTENCES = 3
MOST_JUDGED = 2
FEW = 200  # rows, as in a gate: below, the sentence says how few there are
OF_TOP = "confidence_gap:of=top"
UNRELATED = "Labels and predictions are unrelated, as if their rows had different orders: no number is the model's"
SIGNS = "undecided, with signs of miscalibration"  # if the interval and the null level disagree


@sentence
def metrics(result: Result) -> str:
    if result.predicted.unrelated:  # then no error is one of the model's calibration
        return sentences(*filter(None, [UNRELATED, upper(_broken(result))]))
    if judge := str(result.facts.get("judge", "")):
        means = [e for e in result.estimates if e.detail.get("worth_labels")]
        if not means:
            return sentences(numbers_alone(result))
        gap, shown = direction(result), means[:MOST_JUDGED]
        parts = [f"{gap}: {named(e)}" for e in means if gap and e.name == "confidence_gap"]
        parts += [_judged(e) for e in shown if e.name != "confidence_gap" or not parts]
        return sentences(*map(upper, parts), _worth(shown, judge))
    stated = _stated(result)
    first_two = [stated, _calibration(result, bool(stated))]
    if not _shown(result):  # then what is stated proves nothing
        first_two.reverse()
    parts = [_broken(result), *first_two, _gain(result) if error(result) else "", _parts(result)]
    parts = [upper(one) for one in parts if one]
    while len(parts) > MOST_SENTENCES:
        parts[:2] = ["; ".join(parts[:2])]
    return sentences(*parts) if parts else sentences(numbers_alone(result))


def _judged(mean: Estimate) -> str:
    """Say what labels and verdicts together give, beside what each of them says alone."""
    labels, judge = (number_format.number(float(mean.detail[name] or 0), 3) for name in ("labels_alone", "judge_alone"))
    return f"{named(mean)}, where the labels alone say {labels} and the judge alone {judge}"


def _worth(means: Sequence[Estimate], judge: str) -> str:
    """Say how many labels and verdicts there are, and how many labels would have the same standard errors."""
    detail = means[0].detail
    labels, verdicts = int(detail["labels"] or 0), int(detail["verdicts"] or 0)
    worth = [int(e.detail["worth_labels"] or 0) for e in means]
    both = f"{number_format.count_text(labels, 'label')} and {verdicts:,} verdicts of '{judge}'"
    each = listed(f"{one:,} for {name(e.name)}" for one, e in zip(worth, means, strict=True))
    noise = "" if min(worth) >= labels else " (fewer, as the judge adds noise)"
    return f"{both} have the standard error of this many labels alone: {each}{noise}"


def _broken(result: Result) -> str:
    """Warn of results worse than guessing, which mean wrong labels or scores."""
    problem = result.predicted
    if problem.classes < 2:
        return ""
    accuracy, nll = first(result, "accuracy"), first(result, "nll")
    # differs from 1 / classes if rows have fewer choices
    chance = problem.guess_accuracy or 1 / problem.classes
    if accuracy is not None and side(accuracy, chance) == "below":
        shown = number_format.number(chance, 3)
        return f"accuracy {value(accuracy)} is below that of a guess ({shown}): check labels and order of the classes"
    even = problem.guess_nll or math.log(problem.classes)
    if nll is not None and side(nll, even) == "above":
        return f"NLL {value(nll)} is worse than that of a guess ({number_format.number(even, 3)})"
    return ""


def direction(result: Result, scope: str = "") -> str:
    """Name the direction of miscalibration that the interval of the gap shows, such as `overconfident`; else ""."""
    gap = first(result, "confidence_gap", scope)
    where = side(gap)
    if where == "open":
        return ""
    event = result.predicted.event
    if not event or result.predicted.kind == "confidence" or (gap is not None and "of=top" in gap.name):
        return {"above": "overconfident", "below": "underconfident"}[where]
    return f"P({event}) too {'high' if where == 'above' else 'low'}"


def _stated(result: Result) -> str:
    """Say of two classes in plain words what is stated and what is seen, of the event and of the predictions.

    `P(y = 1) too low by 3.4 points [1.3, 5.5] (30.0 % stated on average, 33.4 % seen)`

    The gap of the predictions accuses nobody by itself: with one more look at 5 %, up to twice as many calibrated
    models would be accused.
    """
    event, share = result.predicted.event, result.facts.get(EVENT_SHARE)
    of_event, of_top, accuracy = (result.get(name) for name in ("confidence_gap", OF_TOP, "accuracy"))
    parts = []
    if event and isinstance(share, float) and of_event is not None and of_event.value is not None:
        parts.append(_points(of_event, f"P({event}) too high", f"P({event}) too low", f"P({event})", share))
    if parts and of_top is not None and accuracy is not None and None not in (of_top.value, accuracy.value):
        words = "predictions overconfident", "predictions underconfident", "predictions"
        parts.append(_points(of_top, *words, accuracy.value or 0.0, "right", _shown(result)))
    return "; ".join(parts)


def _shown(result: Result) -> bool:
    """Whether a direction is shown, or the calibration error beyond chance."""
    e = error(result)
    return bool(direction(result)) or (e is not None and side(e) == "above" and beyond_chance(e))


def _points(
    gap: Estimate, above: str, below: str, neither: str, seen: float, verb: str = "seen", judged: bool = True
) -> str:
    """Say on which side of 0 a gap is and by how many percentage points, with what is stated and what is seen."""
    low, high = (None if end is None else 100 * end for end in (gap.low, gap.high))
    points = dataclasses.replace(gap, value=100 * (gap.value or 0.0), low=low, high=high)
    stated = f"{100 * (seen + (gap.value or 0.0)):.1f} % stated on average, {100 * seen:.1f} % {verb}"
    where = side(gap) if judged else "open"
    if where == "open":
        return f"{neither}: {stated}"
    size = points if where == "above" else _negated(points)
    return f"{above if where == 'above' else below} by {value(size)} points ({stated})"


def _negated(e: Estimate) -> Estimate:
    low, high = (None if end is None else -end for end in (e.high, e.low))
    return dataclasses.replace(e, value=-(e.value or 0.0), low=low, high=high)


def _calibration(result: Result, direction_stated: bool = False) -> str:
    """Say whether the calibration error is shown; `direction_stated`: another sentence has the direction."""
    e, gap, tendency = error(result), first(result, "confidence_gap"), direction(result)
    ground = "" if gap is None or not tendency else named(gap)
    direction_stated = direction_stated and bool(tendency)
    if not tendency:
        tendency, ground = _otherwise(result)
    if e is None:
        return ": ".join(filter(None, [tendency, ground]))
    null = e.null_high
    chance = "" if null is None else _chance(e, null)
    beyond, above = beyond_chance(e), side(e) == "above"
    if tendency and chance and not beyond:
        doubt = f"though {named(e)} alone is within chance (up to {chance}, 95 %)"
        if direction_stated:
            return f"that is one measure taken alone: {doubt.removeprefix('though ')}"
        return ", ".join([f"{tendency} by one measure taken alone: {ground}" if ground else tendency, doubt])
    if tendency or (above and (beyond or not chance)):
        slope = f" ({ground})" if ground.startswith("slope") else ""
        text = named(e) if direction_stated else f"{tendency or 'miscalibrated'}{slope}: {named(e)}"
        return f"{text} where a calibrated model would show at most {chance} (95 %)" if chance else text
    if above:
        return f"{SIGNS}: {named(e)} leaves out 0, though chance gives a calibrated model up to {chance} (95 %)"
    if beyond and not number_format.has_interval(e):
        return f"beyond chance: {named(e)} where a calibrated model would show at most {chance} (95 %); no interval"
    if beyond:
        doubt = f"is more than a calibrated model would show ({chance}, 95 %), though its interval holds 0"
        return f"{SIGNS}: {named(e)} {doubt}"
    if not chance and not any(number_format.has_interval(one) for one in (e, gap) if one is not None):
        return f"{named(e)}, without an interval"
    text = f"no miscalibration shown: {named(e)}"
    text += f", which chance gives a calibrated model too (up to {chance}, 95 %)" if chance else ""
    if e.n is not None and e.n < FEW:
        text += f"; only {number_format.count_text(e.n, 'row')}"
    return text


def _chance(error: Estimate, null: float) -> str:
    """Format the null level as the table does, with more digits if it would be printed as 0."""
    if not number_format.has_interval(error):
        return number_format.number(null, 3)
    shown = number_format.shown(error).null.partition("≤ ")[2].rstrip(")")
    return shown if shown.strip("0.") or null == 0 else number_format.number(null, 2)


def _otherwise(result: Result) -> tuple[str, str]:
    """Find another sign of miscalibration: the slope of the log-odds, with its number, or the gain of a temperature."""
    slope = first(result, "cox_slope")
    where = side(slope, 1.0)
    if slope is not None and where != "open":
        word = {"below": "extreme", "above": "moderate"}[where]
        return f"miscalibrated, probabilities too {word}", f"slope {value(slope)}"
    if side(first(result, "temperature_gain")) == "above":
        return "miscalibrated, as a temperature would save something", ""
    return "", ""


def _gain(result: Result) -> str:
    gain = first(result, "temperature_gain")
    if gain is None:
        return ""
    if side(gain) == "above":
        return f"a temperature would save {value(gain)} a row"
    if gain.high is None:
        return ""
    return f"no gain from a temperature shown (at most {number_format.number(gain.high, 2)} nats a row, 95 %)"


def _parts(result: Result) -> str:
    """Count slices or labels shown to be miscalibrated, each by itself, without a correction for their number."""
    texts, of_column = [], dict[str, list[str]]()
    for scope, estimates in result.by_scope.items():
        for column in [*estimates[0].where.parts][:1]:
            of_column.setdefault(column, []).append(scope)
    for column, scopes in of_column.items():
        of_scope = {s: [e for e in (error(result, s), first(result, "confidence_gap", s)) if e] for s in scopes}
        unknown = [s for s in scopes if error(result, s) and not any(map(number_format.has_interval, of_scope[s]))]
        measured = [s for s in scopes if s not in unknown and (error(result, s) or direction(result, s))]
        shown = [s for s in measured if _miscalibrated(result, s)]
        errors = {s: error(result, s) for s in shown}
        worst = sorted(shown, key=lambda s: abs(e.value or 0.0) if (e := errors[s]) else 0.0, reverse=True)
        each = listed((f"{s} ({_one(result, s)})" for s in worst), 2)
        noun, suffix = ("label", "") if column == "label" else ("value", f" of {column}")
        if shown:
            level = number_format.level(e for s in shown[:2] if (e := errors[s]) is not None)
            judged = "each judged by itself" + (f", {level} end" if level.endswith("each") else "")
            own_text = number_format.count_text(len(measured), noun)
            texts.append(f"{len(shown)} of {own_text}{suffix} shown to be miscalibrated, {judged}: {each}")
        elif measured:
            texts.append(f"no {noun}{suffix} shown to be miscalibrated (of {len(measured)})")
        elif unknown:
            texts.append(f"no interval for any {noun}{suffix}")
    mean = error(result, MEAN_OF_TASKS)
    if mean is not None:
        bare = "" if number_format.has_interval(mean) else " (no interval)"
        texts.insert(0, f"mean over tasks: {named(mean)}{bare}")
    return "; ".join(texts)


def _miscalibrated(result: Result, scope: str) -> bool:
    e = error(result, scope)
    beyond = e is not None and (e.null_high is None or beyond_chance(e))
    return bool(direction(result, scope)) or (side(e) == "above" and beyond)


def _one(result: Result, scope: str) -> str:
    e, tendency = error(result, scope), direction(result, scope)
    shown = "" if e is None else f"{name(e.name)} {' '.join(number_format.shown(e)[:2])}".rstrip()
    return ", ".join(filter(None, [tendency, shown]))


# `calib ood`: how well the first score separates the rows, what passes, and which differences are shown.

SCORE = "score"
KEPT = 0.95  # share of rows inside that pass at the threshold of FPR95


@sentence
def ood(result: Result) -> str:
    aurocs = [e for e in result.estimates if e.name == "auroc" and SCORE in e.where.parts and e.value is not None]
    if not aurocs:
        return ""
    first = aurocs[0]  # not the best: the interval of a winner chosen on these rows would be too optimistic
    passed = result.get(("fpr95", first.scope))
    outside = result.facts.get("outside", "outside")
    passing = f"; {value(passed)} of {outside} pass where 95 % of the rows inside do" if passed is not None else ""
    if passed is not None and passed.low is not None and passed.high is not None and passed.low <= KEPT <= passed.high:
        passing += ", which is not shown to differ"
    open_ = "is not shown to tell rows inside from rows outside"
    word = {
        "above": "tells rows inside from rows outside",
        "below": "is larger outside than inside",
        "open": open_ if number_format.has_interval(first) else "has no interval",
    }[side(first, 0.5)]
    text = upper(f"{first.where.within(SCORE)} {word}: AUROC {value(first)}{passing}")
    tested = all("model" not in e.where.parts for e in aurocs)  # with one model, each score is compared with the first
    return sentences(text, _largest(first, aurocs, tested), _differences(result))


def _largest(first: Estimate, aurocs: list[Estimate], tested: bool) -> str:
    """Name the score with the largest AUROC if its interval lies above the first's and no difference was tested."""
    best = max(aurocs, key=lambda e: e.value or 0.0)
    if tested or first.high is None or side(best, first.high) != "above":
        return ""
    score = " of ".join(best.where.parts.values())
    return upper(f"{score} has the largest AUROC of {len(aurocs)}, {value(best)}: the intervals do not overlap")


def _differences(result: Result) -> str:
    """List differences in AUROC that hold after Holm's correction and whose own interval excludes zero."""
    verdicts = _verdicts(result)
    changes = [e for e in result.estimates if e.name == "auroc" and (e.name, e.scope) in verdicts]
    changes = [e for e in changes if number_format.has_interval(e)]
    if not changes:
        return ""
    real = [e for e in changes if verdicts[e.name, e.scope] in ("better", "worse") and side(e) != "open"]
    if not real:
        return f"No difference shown in AUROC ({listed((f'{e.scope} {value(e)}' for e in changes), 2)})"
    real.sort(key=lambda e: -abs(e.value or 0.0))
    return f"Differences in AUROC: {listed((f'{e.scope} {value(e)}' for e in real), 2)}"


# `calib compare`: which model is better in what, by how much, and what is undecided.

SHOWN = 2  # differences with their numbers
OTHERS = ("lambda_max", "trace")  # named before metrics without a trait `named`
LAST = 100  # above every place in the trait `named`


@sentence
def compare(result: Result) -> str:
    """List the differences that hold after Holm's correction and whose own interval excludes zero."""
    verdicts = _verdicts(result)
    scopes = result.by_scope
    texts = [_one_difference(result, scope, verdicts) for scope in scopes]
    if len(texts) > 3:
        real = [s for s, own in scopes.items() if any(_holds(e, verdicts) for e in own)]
        summary = f"Differences are shown in {len(real)} of {len(scopes)} comparisons"
        return sentences(*texts[:2], summary)
    return sentences(*texts)


def _verdicts(result: Result) -> dict[tuple[str, str], str]:
    tables = [t for t in result.tables if t.name == "differences"]
    return {(str(row[0]), str(row[1])): str(row[-1]) for t in tables for row in t.rows if len(row) > 2}


def _holds(e: Estimate, verdicts: dict[tuple[str, str], str]) -> bool:
    return verdicts.get((e.name, e.scope), "") not in ("", "not shown", "unknown") and side(e) != "open"


def _one_difference(result: Result, scope: str, verdicts: dict[tuple[str, str], str]) -> str:
    differences = result.by_scope[scope]
    subject = _subject(differences[0].where)
    # a different saving by a temperature makes no model better
    differences = sorted([e for e in differences if traits(e.name).rows != "cross_fitted"] or differences, key=_place)
    real = [e for e in differences if _holds(e, verdicts)]
    better = [e for e in real if (side(e) == "below") == (e.better == "lower") and e.better in ("lower", "higher")]
    worse = [e for e in real if e not in better and e.better in ("lower", "higher")]
    alone = [e for e in differences if e not in real and side(e) != "open"]
    many = f"only taken alone, not as one of {count(result, 'comparisons')} comparisons: {_with_numbers(alone)}"
    many = many if alone else ""
    known = [e for e in differences if number_format.has_interval(e)]
    if not known:
        valued = [e for e in differences if e.value is not None]
        numbers = f" ({listed(map(named, valued[:SHOWN]))})" if valued else ""
        return f"{subject}: no difference has an interval{numbers}"
    if not real:
        near = f" ({listed(map(named, known[:SHOWN]))})" if side(known[0]) == "open" else ""
        return "; ".join(filter(None, [f"{subject}: no difference shown{near}", many]))
    directions = (("better", better), ("worse", worse))
    parts = [f"{word} in {_with_numbers(estimates)}" for word, estimates in directions if estimates]
    if not parts:
        parts = [f"another {_with_numbers(real)}"]
    undecided = [e for e in differences if e in known and e not in [*real, *alone]]
    open_ = [e for e in undecided if e.better in ("lower", "higher")]
    parts += [many] if many else []
    parts += [f"no difference shown in {listed((name(e.name) for e in open_), 2)}"] if open_ else []
    return f"{subject}: {'; '.join(parts)}"


def _place(e: Estimate) -> int:
    """Order differences: by the trait `named` of metrics, then the curvature, then all others."""
    name = base(e.name)
    return LAST + OTHERS.index(name) if name in OTHERS else traits(name).named or LAST + len(OTHERS)


def _with_numbers(estimates: list[Estimate]) -> str:
    """List differences, the first with numbers: `NLL -0.494 [-0.585, -0.419] nats, ECE ... and 3 more`."""
    return listed([*map(named, estimates[:SHOWN]), *(name(e.name) for e in estimates[SHOWN:])], SHOWN)


def _subject(where: Scope) -> str:
    """Write the scope `b - a` as `b against a`."""
    scope = where.compared(where.model, where.against)
    if scope is None or not where.model:
        return str(where)
    return ", ".join([*([] if scope.whole else [str(scope)]), f"{where.model} against {where.against}"])
