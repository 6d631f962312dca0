"""The difference of two models in one metric, by the method for what the metric is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.columns import Columns
from calibcli.gate import baseline
from calibcli.gate.baseline import Pairing
from calibcli.gate.verdict import at_level
from calibcli.metrics import paired_bins
from calibcli.metrics.intervals import BOUNDLESS, Rows
from calibcli.metrics.norms import one
from calibcli.metrics.paired import mcnemar
from calibcli.metrics.sample import Sample
from calibcli.numerics import SMALLEST_P, normal_quantile, two_sided
from calibcli.predictions import Predictions
from calibcli.result import Estimate
from calibcli.spec import Choice

LEVEL = 0.95


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """One model's predictions of the shared rows."""

    name: str
    predictions: Predictions
    columns: Columns
    rows: baseline.Rows

    @property
    def sample(self) -> Sample:
        return Sample.of(self.columns, self.predictions)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A later model minus the first in one metric."""

    metric: str
    against: str
    estimate: Estimate
    p: float | None


def difference(first: Model, second: Model, choice: Choice, own: Sequence[Estimate]) -> Difference:
    """Of one metric on the rows that both models have, by the method for what it is."""
    name = f"{second.name} - {first.name}"
    common: dict[str, Any] = {"name": choice.spec, "of": name, "unit": own[1].unit, "better": own[1].better}
    if any(e.value is None for e in own) and choice.name != "recal_gain":
        return combined(own[0], own[1], name, second.name)
    found = _exact(first, second, choice) or _binned(first, second, choice) or _mean(first, second, choice)
    if found is None:
        return combined(own[0], own[1], name, second.name)
    if isinstance(found, str):
        estimate = Estimate(**common, value=None, reason=found, n=first.predictions.n)
        return Difference(metric=choice.spec, against=second.name, estimate=estimate, p=None)
    value, low, high, se, p, how = found
    finite = math.isfinite(low) and math.isfinite(high)
    estimate = Estimate(
        **common,
        value=value,
        low=low if finite else None,
        high=high if finite else None,
        level=LEVEL if finite else None,
        how=f"paired: {how}",
        reason="" if finite else BOUNDLESS,
        se=se,
        n=first.predictions.n,
    )
    return Difference(metric=choice.spec, against=second.name, estimate=estimate, p=p if finite else None)


Found = tuple[float, float, float, float | None, float, str]
"""Value, interval, standard error, p-value and how."""


def _exact(first: Model, second: Model, choice: Choice) -> Found | None:
    """Accuracy of independent rows."""
    p = first.predictions
    if choice.name != "accuracy" or p.groups is not None or (p.weights is not None and p.weight_kind != "count"):
        return None
    w = np.ones(p.n) if p.weights is None else p.weights
    gained, lost = (
        round(float(w @ (a.columns.correct & ~b.columns.correct))) for a, b in ((second, first), (first, second))
    )
    total = round(float(w.sum()))
    low, high, value = mcnemar(gained, lost, total, LEVEL)
    how = "McNemar's exact test and the interval that it inverts to"
    return (gained - lost) / total, low, high, None, value, how


def _binned(first: Model, second: Model, choice: Choice) -> Found | str | None:
    """Sums of absolute gaps over bins."""
    if choice.traits.get("norm") is not one or "table" not in choice.traits:
        return None
    samples = first.sample, second.sample
    views = samples[0].view(choice.options["of"]), samples[1].view(choice.options["of"])
    if views[0].groups is not None and (why := Rows(views[0].p, None, False, views[0].groups).lacking):
        return why
    tables = tuple(choice.traits["table"](sample, **choice.options) for sample in samples)
    value, low, high, p = paired_bins.difference(views, (tables[0], tables[1]), LEVEL)
    return value, low, high, None, p, "differences by row of the signed gaps, the bias of each model taken out"


def _mean(first: Model, second: Model, choice: Choice) -> Found | str | None:
    """Means over all rows: the score form for the differences by row."""
    p, tail = first.predictions, (1 - LEVEL) / 2
    counts = p.weight_kind == "count"
    every = np.arange(p.n)
    pairing = Pairing(new=every, base=every, how="")
    if choice.name == "recal_gain":
        found = baseline.difference(second.rows, first.rows, pairing, "recal_gain", p.weights, counts, p.groups)
        if isinstance(found, str):
            return found
    else:
        parts = [choice.traits["rows"](m.sample, **choice.options) for m in (first, second)] if _rowwise(choice) else []
        if not parts or any(mask is not None for _, mask in parts):
            return None
        (a, _), (b, _) = parts
        mean = Rows(np.asarray(b, np.float64) - np.asarray(a, np.float64), p.weights, counts, p.groups)
        if mean.lacking:
            return mean.lacking
        if choice.name in baseline.METRICS:
            low, high = baseline.reach(second.rows, first.rows, pairing, choice.name)
        else:
            ranges = [choice.traits["range"](m.sample) for m in (first, second)]
            low, high = ranges[1][0] - ranges[0][1], ranges[1][1] - ranges[0][0]
        found = baseline.Difference(mean=mean, low=low, high=high)
    low, high = found.bounds(tail)
    mean = found.mean
    return mean.value, low, high, mean.se, found.p_value(), f"mean of differences by row, score form{mean.clustered}"


def _rowwise(choice: Choice) -> bool:
    return "rows" in choice.traits and "range" in choice.traits


def combined(a: Estimate, b: Estimate, of: str, against: str) -> Difference:
    """b - a from their two intervals: each end takes the distances of its two parts in quadrature."""
    common: dict[str, Any] = {"name": b.name, "unit": b.unit, "better": b.better, "n": b.n if a.n == b.n else None}
    common["of"] = of if not b.of else f"{b.of}, {of}"
    if a.value is None or b.value is None:
        estimate = Estimate(**common, value=None, reason=a.reason or b.reason or "no value")
        return Difference(metric=b.name, against=against, estimate=estimate, p=None)
    value = b.value - a.value
    ends = [_ends(e) for e in (a, b)]
    if None in ends:
        reason = a.reason or b.reason or "one of them has no interval"
        estimate = Estimate(**common, value=value, reason=reason)
        return Difference(metric=b.name, against=against, estimate=estimate, p=None)
    (low_a, high_a), (low_b, high_b) = ends  # type: ignore[misc]
    down, up = math.hypot(b.value - low_b, high_a - a.value), math.hypot(high_b - b.value, a.value - low_a)
    estimate = Estimate(
        **common, value=value, low=value - down, high=value + up, level=LEVEL, how="from the intervals of both (MOVER)"
    )
    reach = down if value > 0 else up
    z = normal_quantile((1 + LEVEL) / 2)
    p = 1.0 if value == 0 else SMALLEST_P if reach == 0 else two_sided(abs(value) / reach * z)
    return Difference(metric=b.name, against=against, estimate=estimate, p=p)


def _ends(e: Estimate) -> tuple[float, float] | None:
    """The interval of an estimate with two sides at LEVEL."""
    low, high = at_level(e, (1 - LEVEL) / 2)
    return None if low is None or high is None else (low, high)
