"""Of `calib scale`: the parameters, what they change on rows they were not fitted on, and what is recommended."""

from __future__ import annotations

from calibcli.headline import first, listed, moved, name, side, told, traits, upper, value
from calibcli.result import CHANGE, Estimate, Result


def say(result: Result) -> str:
    return told(_change(result), _words(result), _ranking(result))


def _parameters(result: Result) -> str:
    found = [e for e in result.estimates if not e.scope and e.value is not None and not e.unit]
    return ", ".join(f"{name(e.name)} = {value(e)}" for e in found[:3]) or str(result.facts.get("method", ""))


def _change(result: Result) -> str:
    said = [_from_to(result, "nll"), _from_to(result, "ece")]
    said = said if any(said) else [_from_to(result, "brier_top"), _from_to(result, "brier")]
    return ": ".join(filter(None, [_parameters(result), ", ".join(filter(None, said))]))


def _of(result: Result, metric: str) -> Estimate | None:
    return first(result, metric, CHANGE)


def _from_to(result: Result, metric: str) -> str:
    """`NLL 0.464 → 0.268 (difference -0.196 [-0.541, -0.048] nats)`."""
    change = _of(result, metric)
    if change is None:
        return ""
    before, after = (first(result, metric, scope) for scope in ("before", "after"))
    if before is None or after is None:
        return f"{name(metric)} changed by {value(change)}"
    return f"{name(metric)} {moved(before, after)} (difference {value(change)})"


def _words(result: Result) -> str:
    """What is better, worse, or not told apart; and the predicted classes."""
    losses = [e for e in result.estimates if e.scope == CHANGE and e.better == "lower" and e.value is not None]
    losses.sort(key=lambda e: "error" in traits(e.name))  # calibration errors after the proper scores
    changes = {e.name: e for e in losses}
    better = [name(key) for key, e in changes.items() if side(e) == "below"]
    worse = [name(key) for key, e in changes.items() if side(e) == "above"]
    open_ = [name(key) for key, e in changes.items() if side(e) == "open"]
    said = []
    if better:
        said.append(f"lower {listed(better)}")
    if worse:
        said.append(f"worse: {listed(worse)}")
    if open_:
        said.append(f"no difference shown in {listed(open_)}" if better or worse else "no gain shown")
    return upper("; ".join(filter(None, [*said, _classes(result)])))


def _classes(result: Result) -> str:
    accuracy = _of(result, "accuracy")
    if result.facts.get("keeps predicted classes"):
        return "predicted classes unchanged"
    if accuracy is None:
        return ""
    if accuracy.reason == "no row changes":
        return "accuracy unchanged"
    word = {"above": "higher accuracy", "below": "worse: accuracy", "open": "no difference shown in accuracy"}
    return f"{word[side(accuracy)]} ({value(accuracy)})"


def _ranking(result: Result) -> str:
    recommended = result.facts.get("recommended")
    if not recommended:
        return ""
    if recommended == "none":
        return "No method is recommended over the scores as they are"
    return f"Recommended: {recommended}"
