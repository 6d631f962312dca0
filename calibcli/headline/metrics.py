"""Of `calib metrics`: whether miscalibration is shown and which way, what a temperature would save, and the parts."""

from __future__ import annotations

import math

from calibcli import numbers
from calibcli.headline import count, counted, first, listed, named, numbers_alone, side, told, upper, value
from calibcli.result import Estimate, Result

ERRORS = ("ece", "smece", "adaece", "ece_l2", "classwise_ece", "ece2_debiased")
MOST_SENTENCES = 3
FEW = 200  # rows, as of a gate, below which it is said how few they are
MEAN = "mean of tasks"


def say(result: Result) -> str:
    said = [_broken(result), _calibration(result), _gain(result) if _error(result) else "", _parts(result)]
    said = [upper(one) for one in said if one]
    if len(said) > MOST_SENTENCES:
        said[:2] = ["; ".join(said[:2])]
    return told(*said) if said else told(numbers_alone(result))


def _error(result: Result, scope: str = "") -> Estimate | None:
    return first(result, ERRORS, scope)


def _broken(result: Result) -> str:
    """What points to labels or scores that are not what they are taken for."""
    classes = count(result, "classes")
    if classes < 2:
        return ""
    accuracy, nll = first(result, ["accuracy"]), first(result, ["nll"])
    if accuracy is not None and side(accuracy, 1 / classes) == "below":
        chance = numbers.number(1 / classes, 3)
        return f"accuracy {value(accuracy)} is below that of a guess ({chance}): check labels and order of the classes"
    if nll is not None and side(nll, math.log(classes)) == "above":
        return f"NLL {value(nll)} is worse than that of a guess ({numbers.number(math.log(classes), 3)})"
    return ""


def direction(result: Result, scope: str = "") -> str:
    """`overconfident`, where the interval of the gap says so; else ""."""
    gap = first(result, ["confidence_gap"], scope)
    where = side(gap)
    if where == "open":
        return ""
    event = result.facts.get("event")
    if event is None or result.facts.get("kind") == "confidence" or (gap is not None and "of=top" in gap.name):
        return {"above": "overconfident", "below": "underconfident"}[where]
    return f"P({event}) too {'high' if where == 'above' else 'low'}"


def _calibration(result: Result) -> str:
    error, gap, way = _error(result), first(result, ["confidence_gap"]), direction(result)
    if error is None:
        return f"{way}: {named(gap)}" if gap is not None and way else ""
    null = error.null_high
    chance = "" if null is None else _chance(error, null)
    beyond = null is not None and error.value is not None and error.value > null
    if not way and side(error) == "above":
        way = "miscalibrated" + _bend(result)
    if way and not chance:
        return f"{way}: {named(error)}"
    if way and beyond:
        return f"{way}: {named(error)} where a calibrated model would show at most {chance} (95 %)"
    if way and gap is not None and side(gap) != "open":
        return f"{way}: {named(gap)}, though {named(error)} alone is within chance (up to {chance}, 95 %)"
    if way:
        rest = f"leaves out 0, though chance gives a calibrated model up to {chance} (95 %)"
        return f"{way}, barely: {named(error)} {rest}"
    if beyond and error.low is None:
        return f"{named(error)} is more than a calibrated model would show ({chance}, 95 %)"
    if beyond:
        rest = f"is more than a calibrated model would show ({chance}, 95 %), but its bounds do not exclude it"
        return f"undecided: {named(error)} {rest}"
    said = f"no miscalibration shown: {named(error)}"
    said += f", which chance gives a calibrated model too (up to {chance}, 95 %)" if chance else ""
    if error.n is not None and error.n < FEW:
        said += f"; only {counted(error.n, 'row')}"
    return said


def _chance(error: Estimate, null: float) -> str:
    """The level of a calibrated model as the table has it, with more digits where those would be none."""
    shown = numbers.shown(error).null.partition("≤ ")[2].rstrip(")")
    return shown if shown.strip("0.") or null == 0 else numbers.number(null, 2)


def _bend(result: Result) -> str:
    """Which way the slope of the log-odds says."""
    where = side(first(result, ["cox_slope"]), 1.0)
    return {"below": ", probabilities too extreme", "above": ", probabilities too moderate", "open": ""}[where]


def _gain(result: Result) -> str:
    gain = first(result, ["temperature_gain"])
    if gain is None:
        return ""
    if side(gain) == "above":
        return f"a temperature would save {value(gain)} a row"
    if gain.high is None:
        return ""
    return f"no gain from a temperature shown (at most {numbers.number(gain.high, 2)} nats a row)"


def _parts(result: Result) -> str:
    """Slices or labels that are shown to be miscalibrated, each taken alone."""
    scopes = list(dict.fromkeys(e.scope for e in result.estimates if e.scope and "=" in e.scope))
    said = []
    for column in dict.fromkeys(scope.partition("=")[0] for scope in scopes):
        own = [s for s in scopes if s.startswith(f"{column}=") and (_error(result, s) or direction(result, s))]
        shown = [s for s in own if direction(result, s) or side(_error(result, s)) == "above"]
        worst = sorted(shown, key=lambda s: _size(result, s), reverse=True)
        each = listed((f"{s.partition('=')[2]} ({_one(result, s)})" for s in worst), 2)
        of = f"of {counted(len(own), 'label')}" if column == "label" else f"of {counted(len(own), 'value')} of {column}"
        if own and shown:
            said.append(f"{of}, miscalibrated if taken alone: {each}")
        elif own:
            said.append(f"{of}, none shown to be miscalibrated")
    mean = _error(result, MEAN)
    if mean is not None:
        said.insert(0, f"mean over tasks: {named(mean)}")
    return "; ".join(said)


def _size(result: Result, scope: str) -> float:
    error = _error(result, scope)
    return abs(error.value or 0.0) if error is not None else 0.0


def _one(result: Result, scope: str) -> str:
    error, way = _error(result, scope), direction(result, scope)
    return ", ".join(filter(None, [way, "" if error is None else named(error)]))
