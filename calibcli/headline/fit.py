"""Of `calib fit`: the losses, before and after a temperature, on rows that were not trained on."""

from __future__ import annotations

import math

from calibcli.headline import first, items, listed, moved, name, named, told, value
from calibcli.result import CHANGE, Result


def say(result: Result) -> str:
    losses = [str(run.get("loss", "")) for run in items(result, "runs") if isinstance(run, dict)]
    if len(losses) <= 1:
        return told(*(_one(result, loss, "") for loss in losses))
    each = [_one(result, loss, f"{loss} ") for loss in losses] if len(losses) == 2 else []
    return told(*each, _best(result, losses)) or told(f"{', '.join(losses)}: trained, nothing measured")


def _one(result: Result, loss: str, prefix: str) -> str:
    """`ce, then T = 1.30 [0.90, 2.00]: NLL 0.300 → 0.280, ECE 0.030 → 0.028`."""
    before = [
        e for e in (first(result, "nll", f"{prefix}before"), first(result, "ece", f"{prefix}before")) if e is not None
    ]
    t = first(result, "temperature", prefix.strip())
    if not before:
        return f"{loss}: trained, nothing measured"
    if t is None:
        return f"{loss}: {', '.join(map(named, before))}"
    after = [first(result, e.name, f"{prefix}after") for e in before]
    changes = [first(result, e.name, f"{prefix}{CHANGE}") for e in before]
    pairs = [
        f"{name(a.name)} {moved(a, b)}" + (f" (difference {value(change)})" if change and not prefix else "")
        for a, b, change in zip(before, after, changes, strict=True)
        if b is not None
    ]
    return f"{loss}, then T = {value(t)}: {', '.join(pairs)}"


def _best(result: Result, losses: list[str]) -> str:
    """The loss with the lowest NLL after temperature, and whether the intervals of the others meet its own."""
    when = "after" if any(e.scope.endswith(" after") for e in result.estimates) else "before"
    found = {loss: e for loss in losses if (e := first(result, "nll", f"{loss} {when}")) is not None}
    if len(found) < 2:
        return ""
    best, least = min(found.items(), key=lambda pair: pair[1].value or 0.0)
    top = math.inf if least.high is None else least.high
    apart = [loss for loss, e in found.items() if loss != best and e.low is not None and e.low > top]
    said = f"Of {len(losses)} losses, one run of each, {best} has the lowest NLL"
    said += " after a temperature" * (when == "after")
    if len(apart) == len(found) - 1:
        next_, second = min(((loss, found[loss]) for loss in apart), key=lambda pair: pair[1].value or 0.0)
        return f"{said}, {value(least)}; the next, {next_}, {value(second)}: intervals that do not meet"
    others = [loss for loss in found if loss != best and loss not in apart]
    return f"{said} ({value(least)}); not told apart from {listed(others)}"
