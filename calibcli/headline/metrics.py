"""Of `calib metrics`: whether miscalibration is shown and which way, what a temperature would save, and the parts."""

from __future__ import annotations

import math

from calibcli import numbers
from calibcli.headline import (
    beyond_chance,
    count,
    counted,
    error,
    first,
    listed,
    name,
    named,
    numbers_alone,
    side,
    told,
    upper,
    value,
)
from calibcli.result import Estimate, Result

MOST_SENTENCES = 3
FEW = 200  # rows, as of a gate, below which it is said how few they are
MEAN = "mean of tasks"
SIGNS = "undecided, with signs of miscalibration"  # where the interval and chance disagree


def say(result: Result) -> str:
    said = [_broken(result), _calibration(result), _gain(result) if error(result) else "", _parts(result)]
    said = [upper(one) for one in said if one]
    if len(said) > MOST_SENTENCES:
        said[:2] = ["; ".join(said[:2])]
    return told(*said) if said else told(numbers_alone(result))


def _broken(result: Result) -> str:
    """What points to labels or scores that are not what they are taken for."""
    classes = count(result, "classes")
    if classes < 2:
        return ""
    accuracy, nll = first(result, "accuracy"), first(result, "nll")
    chance = float(result.facts.get("guess_accuracy", 1 / classes))  # of rows with fewer choices than classes
    if accuracy is not None and side(accuracy, chance) == "below":
        shown = numbers.number(chance, 3)
        return f"accuracy {value(accuracy)} is below that of a guess ({shown}): check labels and order of the classes"
    even = float(result.facts.get("guess_nll", math.log(classes)))
    if nll is not None and side(nll, even) == "above":
        return f"NLL {value(nll)} is worse than that of a guess ({numbers.number(even, 3)})"
    return ""


def direction(result: Result, scope: str = "") -> str:
    """`overconfident`, where the interval of the gap says so; else ""."""
    gap = first(result, "confidence_gap", scope)
    where = side(gap)
    if where == "open":
        return ""
    event = result.facts.get("event")
    if event is None or result.facts.get("kind") == "confidence" or (gap is not None and "of=top" in gap.name):
        return {"above": "overconfident", "below": "underconfident"}[where]
    return f"P({event}) too {'high' if where == 'above' else 'low'}"


def _calibration(result: Result) -> str:
    e, gap, way = error(result), first(result, "confidence_gap"), direction(result)
    ground = "" if gap is None or not way else named(gap)
    if not way:
        way, ground = _otherwise(result)
    if e is None:
        return ": ".join(filter(None, [way, ground]))
    null = e.null_high
    chance = "" if null is None else _chance(e, null)
    beyond, above = beyond_chance(e), side(e) == "above"
    if way and chance and not beyond:
        rest = f"though {named(e)} alone is within chance (up to {chance}, 95 %)"
        return ", ".join([f"{way} by one measure taken alone: {ground}" if ground else way, rest])
    if way or (above and (beyond or not chance)):
        own = f" ({ground})" if ground.startswith("slope") else ""
        said = f"{way or 'miscalibrated'}{own}: {named(e)}"
        return f"{said} where a calibrated model would show at most {chance} (95 %)" if chance else said
    if above:
        return f"{SIGNS}: {named(e)} leaves out 0, though chance gives a calibrated model up to {chance} (95 %)"
    if beyond and not numbers.has_interval(e):
        return f"beyond chance: {named(e)} where a calibrated model would show at most {chance} (95 %); no interval"
    if beyond:
        rest = f"is more than a calibrated model would show ({chance}, 95 %), though its interval holds 0"
        return f"{SIGNS}: {named(e)} {rest}"
    said = f"no miscalibration shown: {named(e)}"
    said += f", which chance gives a calibrated model too (up to {chance}, 95 %)" if chance else ""
    if e.n is not None and e.n < FEW:
        said += f"; only {counted(e.n, 'row')}"
    return said


def _chance(error: Estimate, null: float) -> str:
    """The level of a calibrated model as the table has it, with more digits where those would be none."""
    if not numbers.has_interval(error):
        return numbers.number(null, 3)
    shown = numbers.shown(error).null.partition("≤ ")[2].rstrip(")")
    return shown if shown.strip("0.") or null == 0 else numbers.number(null, 2)


def _otherwise(result: Result) -> tuple[str, str]:
    """What shows miscalibration without a gap: a slope of the log-odds, with its number, or a temperature's gain."""
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
    return f"no gain from a temperature shown (at most {numbers.number(gain.high, 2)} nats a row, 95 %)"


def _parts(result: Result) -> str:
    """Slices or labels that are shown to be miscalibrated, each by itself: no correction for how many there are."""
    scopes = list(dict.fromkeys(e.scope for e in result.estimates if e.scope and "=" in e.scope))
    said = []
    for column in dict.fromkeys(scope.partition("=")[0] for scope in scopes):
        own = [s for s in scopes if s.startswith(f"{column}=") and (error(result, s) or direction(result, s))]
        shown = [s for s in own if _miscalibrated(result, s)]
        worst = sorted(shown, key=lambda s: _size(result, s), reverse=True)
        each = listed((f"{s} ({_one(result, s)})" for s in worst), 2)
        noun, of = ("label", "") if column == "label" else ("value", f" of {column}")
        if shown:
            level = numbers.level(e for s in shown[:2] if (e := error(result, s)) is not None)
            judged = "each judged by itself" + (f", {level} end" if level.endswith("each") else "")
            said.append(f"{len(shown)} of {counted(len(own), noun)}{of} shown to be miscalibrated, {judged}: {each}")
        elif own:
            said.append(f"no {noun}{of} shown to be miscalibrated (of {len(own)})")
    mean = error(result, MEAN)
    if mean is not None:
        bare = "" if numbers.has_interval(mean) else " (no interval)"
        said.insert(0, f"mean over tasks: {named(mean)}{bare}")
    return "; ".join(said)


def _miscalibrated(result: Result, scope: str) -> bool:
    e = error(result, scope)
    beyond = e is not None and (e.null_high is None or beyond_chance(e))
    return bool(direction(result, scope)) or (side(e) == "above" and beyond)


def _size(result: Result, scope: str) -> float:
    e = error(result, scope)
    return abs(e.value or 0.0) if e is not None else 0.0


def _one(result: Result, scope: str) -> str:
    e, way = error(result, scope), direction(result, scope)
    shown = "" if e is None else f"{name(e.name)} {' '.join(numbers.shown(e)[:2])}".rstrip()
    return ", ".join(filter(None, [way, shown]))
