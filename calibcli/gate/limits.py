"""Limits that mean something: within what the metric can be, and on the side where it gets worse."""

from __future__ import annotations

import math

from calibcli.errors import UsageError
from calibcli.gate.config import Gate
from calibcli.gate.sources import at
from calibcli.gate.verdict import rule
from calibcli.metrics import METRICS
from calibcli.spec import Range

OTHERS = {
    "temperature": Range(0),
    "grad_norm": Range(0),
    "trace_ggn": Range(0),
    "density": Range(0, 1),
}
"""What numbers that are on no shelf of metrics can be."""


def check(gate: Gate, better: str) -> None:
    """Refuse a limit that no model, or every model, would keep.

    Args:
        gate: with one of limit, max, min; or a margin.
        better: which end of its metric is.

    Raises:
        UsageError: the limit is beyond the metric's values, or bounds its better side.
    """
    name = gate.metric.partition(":")[0]
    values: Range = METRICS.entries[name].traits["values"] if name in METRICS else OTHERS.get(name, Range())
    if gate.baseline:
        width = values.high - values.low
        if gate.margin is not None and not abs(gate.margin) <= width:
            raise UsageError(
                f"{at(gate)}margin {gate.margin:g}: no two values of {name} are further apart than {width:g}",
                _percent(gate.margin, width) or f"write a margin of at most {width:g}",
            )
        return
    side = "min" if gate.min is not None or (gate.limit is not None and better == "higher") else "max"
    limit = next(v for v in (gate.max, gate.min, gate.limit) if v is not None)
    text = rule(gate.metric, "max" if side == "max" else "min", limit)
    if not values.low <= limit <= values.high:
        fix = _percent(limit, values.high) or f"write a limit that is {values}"
        raise UsageError(f"{at(gate)}{text}: {name} is never there, it is {values}", fix)
    if {"max": "higher", "min": "lower"}[side] == better:
        other = "min" if side == "max" else "max"
        good = "high" if side == "max" else "low"
        raise UsageError(
            f"{at(gate)}{text} asks for a bad {name}: {name} is better {good}",
            f"write --{other} {gate.metric}={limit:g}, or {other} = {limit:g}",
        )


def _percent(number: float, most: float) -> str:
    """What a number above 1 most likely means where shares are asked for."""
    if math.isfinite(most) and 1 < abs(number) <= 100:
        return f"{number:g} % is {number / 100:g}"
    return ""
