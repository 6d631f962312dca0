"""The difference of two models in one metric, by the method for what the metric is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.columns import Columns
from calibcli.gate import baseline
from calibcli.gate.pairing import Pairing
from calibcli.gate.verdict import at_level
from calibcli.metrics import paired
from calibcli.metrics.paired import Paired
from calibcli.metrics.sample import Sample
from calibcli.numerics import SMALLEST_P, normal_quantile, two_sided
from calibcli.predictions import Predictions
from calibcli.result import Estimate
from calibcli.shelves import Choice

LEVEL = 0.95


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """One model's predictions of the shared rows."""

    name: str
    predictions: Predictions
    columns: Columns
    rows: baseline.Rows
    sample: Sample


@dataclass(frozen=True)
class Difference:
    """A later model (`against`) minus the first in the metric of the estimate."""

    against: str
    estimate: Estimate
    p: float | None = None


def difference(first: Model, second: Model, choice: Choice, own: Sequence[Estimate]) -> Difference:
    """Of one metric on the rows that both models have, by the method for what it is."""
    name = f"{second.name} - {first.name}"
    common: dict[str, Any] = {"name": choice.spec, "scope": name, "unit": own[1].unit, "better": own[1].better}
    if any(e.value is None for e in own) and not choice.traits.get("refitted"):
        return combined(own[0], own[1], name, second.name)
    change = _paired(first, second, choice)
    if change is None:
        return combined(own[0], own[1], name, second.name)
    if isinstance(change, str):
        value = float(own[1].value or 0) - float(own[0].value or 0)
        known = value if math.isfinite(value) and change != paired.SAME else None
        return Difference(second.name, Estimate(**common, value=known, reason=change, n=first.predictions.n))
    estimate = change.estimate(LEVEL, **common, se=change.se, n=first.predictions.n)
    return Difference(second.name, estimate, change.p if change.bounded else None)


def _paired(first: Model, second: Model, choice: Choice) -> Paired | str | None:
    """By the kept rows where a baseline would be compared by them, so that both say the same."""
    p = first.predictions
    every = np.arange(p.n)
    pairing = Pairing(new=every, base=every, how="")
    counts = p.weight_kind == "count"
    if choice.traits.get("refitted"):
        gain = baseline.difference(second.rows, first.rows, pairing, choice.name, p.weights, counts, p.groups)
        return gain if isinstance(gain, str) else gain.paired(LEVEL)
    kept = "kept" in choice.traits
    ends = baseline.reach(second.rows, first.rows, pairing, choice.name) if kept else None
    return paired.difference(first.sample, second.sample, choice, LEVEL, ends)


def combined(a: Estimate, b: Estimate, scope: str, against: str) -> Difference:
    """b - a from their two intervals: each end takes the distances of its two parts in quadrature."""
    common: dict[str, Any] = {"name": b.name, "unit": b.unit, "better": b.better, "n": b.n if a.n == b.n else None}
    common["scope"] = scope if not b.scope else f"{b.scope}, {scope}"
    if a.value is None or b.value is None:
        return Difference(against, Estimate(**common, value=None, reason=a.reason or b.reason or "no value"))
    value = b.value - a.value
    ends = [_ends(e) for e in (a, b)]
    if None in ends:
        reason = a.reason or b.reason or "one of them has no interval"
        return Difference(against, Estimate(**common, value=value, reason=reason))
    (low_a, high_a), (low_b, high_b) = ends  # type: ignore[misc]
    down, up = math.hypot(b.value - low_b, high_a - a.value), math.hypot(high_b - b.value, a.value - low_a)
    estimate = Estimate(
        **common, value=value, low=value - down, high=value + up, level=LEVEL, how="from the intervals of both (MOVER)"
    )
    reach = down if value > 0 else up
    z = normal_quantile((1 + LEVEL) / 2)
    p = 1.0 if value == 0 else SMALLEST_P if reach == 0 else two_sided(abs(value) / reach * z)
    return Difference(against, estimate, p)


def _ends(e: Estimate) -> tuple[float, float] | None:
    """The interval of an estimate with two sides at LEVEL."""
    low, high = at_level(e, (1 - LEVEL) / 2, widen=True)
    return None if low is None or high is None else (low, high)
