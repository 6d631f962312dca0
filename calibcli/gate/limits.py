"""What a gate's rule means: which side of which limit, among the values of its metric, and which end is better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from calibcli.errors import UsageError
from calibcli.gate import baseline
from calibcli.gate.config import Gate
from calibcli.gate.verdict import SIDES, Side, rule
from calibcli.metrics import METRICS
from calibcli.result import Check, Outcome
from calibcli.spec import Range

OTHERS = {**dict.fromkeys(("temperature", "grad_norm", "trace_ggn"), Range(0)), "negative_fraction": Range(0, 1)}
"""What numbers that are on no shelf of metrics can be."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A gate with the side and the limit that it means; of a baseline, those of the difference."""

    gate: Gate
    side: Side
    limit: float

    @property
    def text(self) -> str:
        metric = self.gate.metric
        return rule(f"{metric} - baseline" if self.gate.baseline else metric, self.side, self.limit)

    def error(self, alpha: float, family: int) -> float:
        """What each bound that FAIL needs may err by: half where a number may be too far from 0 on either side."""
        return alpha / family / (2 if self.side == "zero" else 1)

    def check(self, outcome: Outcome, message: str, excused: bool = False, **fields: Any) -> Check:
        """A verdict of this rule; `excused` says that it does not fail the run though nothing was judged."""
        gate = self.gate
        warns = excused or (outcome == "inconclusive" and gate.on_inconclusive == "warn")
        fields |= {"limit": self.limit, "fatal": not warns, "file": gate.file, "line": gate.line}
        return Check(rule=self.text, outcome=outcome, message=message, **fields)


def resolved(gate: Gate, better: str, k: int | None = None) -> Rule:
    """What a gate asks for.

    Args:
        gate: with one of limit, max, min; or a margin.
        better: which end of its metric is.
        k: number of classes, where it is known.

    Raises:
        UsageError: the metric has no direction; or the limit is beyond its values, bounds its better side, or is one
            that every model keeps.
    """
    values = possible(gate.metric, k)
    if gate.baseline:
        return _margin(gate, better, values)
    side: Side = "min" if gate.min is not None or (gate.limit is not None and better == "higher") else "max"
    limit = next(v for v in (gate.max, gate.min, gate.limit) if v is not None)
    text = rule(gate.metric, side, limit)
    if not values.low <= limit <= values.high:
        fix = _percent(limit, values.high) or f"write a limit that is {values}"
        raise UsageError(f"{gate.at}{text}: {gate.name} never lies there: it is {values}", fix)
    if {"max": "higher", "min": "lower"}[side] == better:
        other, good = ("min", "high") if side == "max" else ("max", "low")
        problem = f"{gate.at}{text} limits the better side of {gate.name}: {gate.name} is better {good}"
        raise UsageError(problem, f"write --{other} {gate.metric}={limit:g}, or {other} = {limit:g}")
    if gate.limit is not None and better not in SIDES:
        raise UsageError(f"{gate.at}neither end of {gate.metric} is better", "write max or min instead of limit")
    if better == "zero" and side == "max":  # as far below 0 is as bad
        if gate.limit is not None and limit < 0:
            raise UsageError(f"{gate.at}limit {limit:g} for a distance from 0", "write a limit that is positive")
        side, limit = "zero", abs(limit)
    ends = {"max": values.high, "min": values.low, "zero": max(-values.low, values.high)}
    if limit == ends[side] or (side == "zero" and limit > ends[side]):
        fix = f"write a limit {'above' if side == 'min' else 'below'} {limit:.6g}"
        raise UsageError(f"{gate.at}{text} cannot fail: {gate.name} is {values}", fix)
    return Rule(gate=gate, side=side, limit=limit)


def _margin(gate: Gate, better: str, values: Range) -> Rule:
    baseline.known(gate)
    margin, width = gate.margin or 0.0, values.high - values.low
    if not -width <= margin < width:
        what = "cannot fail" if margin == width else "is out of reach"
        problem = f"{gate.at}margin {margin:g} {what}: no two values of {gate.name} are further apart than {width:g}"
        raise UsageError(problem, _percent(margin, width) or f"write a margin of less than {width:g}")
    if better == "higher":
        return Rule(gate=gate, side="min", limit=0.0 - margin)  # -0.0 would be shown
    return Rule(gate=gate, side="max", limit=margin)


def possible(metric: str, k: int | None = None) -> Range:
    """What a metric can be, of `k` classes where that is known."""
    name = metric.partition(":")[0]
    if name not in METRICS:
        return OTHERS.get(name, Range())
    try:
        choice = METRICS.choose(metric)
    except UsageError:  # of options that no metric has: what it is with its own
        choice = METRICS.choose(name)
    narrowed = choice.traits.get("narrowed")
    values: Range = narrowed(k, choice.options) if narrowed else choice.traits["values"]
    return values


def _percent(number: float, most: float) -> str:
    """What a number above 1 most likely means where shares are asked for."""
    return f"{number:g} % is {number / 100:g}" if math.isfinite(most) and 1 < abs(number) <= 100 else ""
