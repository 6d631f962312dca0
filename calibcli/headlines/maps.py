"""Headlines of `calib scale`, `apply` and `fit`: parameters, the changes they make, and what is recommended."""

from __future__ import annotations

import math

from calibcli.core.number_format import count_text, has_interval
from calibcli.core.result import Estimate, Result
from calibcli.core.scope import CHANGE
from calibcli.headlines import (
    count,
    first,
    items,
    listed,
    moved,
    name,
    named,
    sentence,
    sentences,
    side,
    traits,
    upper,
    value,
)

# `calib scale`: the parameters, the changes on rows that were not fitted on, and what is recommended.


@sentence
def scale(result: Result) -> str:
    return sentences(_change(result), _words(result), _ranking(result))


def _parameters(result: Result) -> str:
    """Write the first three parameters of a map, else its name.

    Of the estimates of `calib scale` only parameters have neither scope nor unit: measured numbers have the scope
    "before", "after" or their difference, and gains are in nats.
    """
    parameters = [e for e in result.estimates if not e.scope and e.value is not None and not e.unit]
    return ", ".join(f"{name(e.name)} = {value(e)}" for e in parameters[:3]) or str(result.facts.get("method", ""))


def _change(result: Result) -> str:
    changes = [_from_to(result, "nll"), _from_to(result, "ece")]
    changes = changes if any(changes) else [_from_to(result, "brier_top"), _from_to(result, "brier")]
    harm = ", worse than no map" if any(traits(e.name).proper and side(e) == "above" for e in _losses(result)) else ""
    return ": ".join(filter(None, [_parameters(result) + harm, ", ".join(filter(None, changes))]))


def _from_to(result: Result, metric: str) -> str:
    """Describe a change: `NLL 0.464 → 0.268 (difference -0.196 [-0.541, -0.048] nats)`."""
    change = first(result, metric, CHANGE)
    if change is None:
        return ""
    before, after = (first(result, metric, scope) for scope in ("before", "after"))
    if before is None or after is None:
        return f"{name(metric)} changed by {value(change)}"
    return f"{name(metric)} {moved(before, after)} (difference {value(change)})"


def _losses(result: Result) -> list[Estimate]:
    """Return the differences in what is better low."""
    return [e for e in result.estimates if e.scope == CHANGE and e.better == "lower" and e.value is not None]


def _words(result: Result) -> str:
    """List what is better, worse or not shown to differ, and whether predicted classes changed."""
    losses = _losses(result)
    losses.sort(key=lambda e: traits(e.name).error > 0)  # calibration errors after the proper scores
    changes = {e.name: e for e in losses}
    better = [name(key) for key, e in changes.items() if side(e) == "below"]
    worse = [name(key) for key, e in changes.items() if side(e) == "above"]
    open_ = [name(key) for key, e in changes.items() if side(e) == "open" and has_interval(e)]
    bare = [name(key) for key, e in changes.items() if not has_interval(e)]
    parts = []
    if better:
        parts.append(f"lower {listed(better)}")
    if worse:
        parts.append(f"worse: {listed(worse)}")
    if open_:
        parts.append(f"no difference shown in {listed(open_)}" if better or worse else "no gain shown")
    if bare:
        parts.append(f"no interval for the difference in {listed(bare)}")
    return upper("; ".join(filter(None, [*parts, _classes(result)])))


def _classes(result: Result) -> str:
    accuracy = first(result, "accuracy", CHANGE)
    if result.facts.get("keeps predicted classes"):
        return "predicted classes unchanged"
    if accuracy is None:
        return ""
    if accuracy.reason == "no row changes":
        return "accuracy unchanged"
    if not has_interval(accuracy):
        return f"accuracy changed by {value(accuracy)}, no interval"
    word = {"above": "higher accuracy", "below": "worse: accuracy", "open": "no difference shown in accuracy"}
    return f"{word[side(accuracy)]} ({value(accuracy)})"


def _ranking(result: Result) -> str:
    recommended = result.facts.get("recommended")
    if recommended == "none":
        return "No method is recommended over the scores as they are"
    return f"Recommended by cross-validation: {recommended}" if recommended else ""


# `calib apply`: what was written, by which map, and whether predicted classes changed.


@sentence
def apply(result: Result) -> str:
    n, changed = count(result, "n"), result.facts.get("predicted classes changed")
    where = result.artefacts.get("scores", "")
    text = f"wrote {result.facts.get('written', count_text(n, 'row'))}" + (f", to {where}" if where else "")
    text += f", by the method {result.facts['method']}" if "method" in result.facts else ""
    if not isinstance(changed, int):
        return sentences(upper(text))
    kept = "no predicted class changed" if changed == 0 else f"{changed:,} of {n:,} predicted classes changed"
    return sentences(upper(f"{text}: {kept}"))


# `calib fit`: the losses, before and after a temperature, on rows that were not trained on.


@sentence
def fit(result: Result) -> str:
    losses = [str(run.get("loss", "")) for run in items(result, "runs") if isinstance(run, dict)]
    if len(losses) <= 1:
        return sentences(*(_one(result, loss, "") for loss in losses))
    each = [_one(result, loss, f"{loss} ") for loss in losses] if len(losses) == 2 else []
    return sentences(*each, _best(result, losses)) or sentences(f"{', '.join(losses)}: trained, nothing measured")


def _one(result: Result, loss: str, prefix: str) -> str:
    """Describe one loss: `ce, then T = 1.30 [0.90, 2.00]: NLL 0.300 → 0.280, ECE 0.030 → 0.028`."""
    candidates = first(result, "nll", f"{prefix}before"), first(result, "ece", f"{prefix}before")
    before = [e for e in candidates if e is not None]
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
    """Name the loss with the lowest NLL, after temperature if there is one, and those whose intervals overlap it."""
    when = "after" if any(e.where.phase == "after" for e in result.estimates) else "before"
    by_loss = {loss: e for loss in losses if (e := first(result, "nll", f"{loss} {when}")) is not None}
    if len(by_loss) < 2:
        return ""
    best, least = min(by_loss.items(), key=lambda pair: pair[1].value or 0.0)
    top = math.inf if least.high is None else least.high
    apart = [loss for loss, e in by_loss.items() if loss != best and e.low is not None and e.low > top]
    text = f"Of {len(losses)} losses, one run of each, {best} has the lowest NLL"
    text += " after a temperature" * (when == "after")
    if len(apart) == len(by_loss) - 1:
        next_, second = min(((loss, by_loss[loss]) for loss in apart), key=lambda pair: pair[1].value or 0.0)
        return f"{text}, {value(least)}; the next, {next_}, {value(second)}: the intervals do not overlap"
    others = [loss for loss in by_loss if loss != best and loss not in apart]
    bare = [loss for loss in others if not (has_interval(least) and has_interval(by_loss[loss]))]
    open_ = [loss for loss in others if loss not in bare]
    parts = [f"{text} ({value(least)})"]
    parts += [f"not distinguishable from {listed(open_)}"] if open_ else []
    parts += [f"no interval compares it with {listed(bare)}"] if bare else []
    return "; ".join(parts)
