"""Calibration of every class's probability: the class-wise error, its upper bound and its null level."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.columns import ClassBins, Edges
from calibcli.metrics.binned_intervals import NO_GROUPS
from calibcli.metrics.intervals import Ask, Interval
from calibcli.metrics.sample import METRICS, UNIT, Sample
from calibcli.numerics import normal_quantile, score_bound
from calibcli.predictions import Floats
from calibcli.spec import Count, Range


def class_bins(k: int, *, bins: Count = 15, edges: Edges = "right", threshold: float = 0.0) -> ClassBins:
    """The class table that `classwise_ece` reads."""
    return ClassBins(bins, edges, threshold if threshold >= 0 else 1 / k)


def per_class(sample: Sample, *, norm: str = "l1", **options: object) -> Floats:
    """(K,) calibration error of each class's probability."""
    table = sample.columns.classes[class_bins(sample.columns.k, **options)]  # type: ignore[arg-type]
    total = sample.top.total
    gap = np.abs(table.sum_p - table.sum_y)
    if norm == "l1":
        return np.asarray(gap.sum(axis=1) / total)
    square = np.divide(gap**2, table.count, out=np.zeros_like(gap), where=table.count > 0)
    return np.asarray(np.sqrt(square.sum(axis=1) / total))


def classwise(ask: Ask) -> Interval:
    """Upper bound only, by the signs as for the ECE: Σ_k s_k (p_k - y_k) of a row is at most 2 (1 - p_y) in size.

    Below, the triangle inequality over K x bins cells is too wide to be of use, and none is given.
    """
    options, columns = dict(ask.choice.options), ask.sample.columns
    norm = options.pop("norm")
    table = columns.classes[class_bins(columns.k, **options)]
    view = ask.sample.top
    null, null_high = _classwise_null(table, view.total, view.total / view.effective, str(norm))
    worst = per_class(ask.sample, norm=norm, **options)
    detail = {"worst_class": int(worst.argmax()), "worst_value": float(worst.max())}
    if norm == "l2" or columns.groups is not None:
        why = NO_GROUPS if columns.groups is not None else "no bound: the largest gaps may be in cells with few rows"
        return Interval(reason=why, null=null, null_high=null_high, detail=detail)
    share = view.share()
    square = share * (1 / view.total if view.counts else share)
    rest = 2 * -np.expm1(-columns.nll) / columns.k
    unseen, spread = 2 / columns.k / view.effective, float(np.sum(square * rest**2))
    return Interval(
        high=min(1.0, score_bound(ask.value, normal_quantile(ask.level), unseen, spread)),
        level=ask.level,
        sided="upper",
        how="one-sided upper bound; null level: expected absolute deviation of a binomial per cell",
        reason="no lower bound: K x bins cells make it too wide to use",
        null=null,
        null_high=null_high,
        detail=detail,
    )


def _classwise_null(table: Any, total: float, design: float, norm: str) -> tuple[float, float]:
    """Mean and 95 % quantile under perfect calibration: cells as independent binomials, their sum as normal."""
    k = len(table.count)
    used = table.count > 0
    n = table.count[used] / design
    p = np.clip(table.sum_p[used] / table.count[used], 0, 1)
    if norm == "l2":
        variance = p * (1 - p) / (total / design * k)
        return math.sqrt(float(variance.sum())), math.sqrt(
            float(variance.sum()) + 1.645 * float(np.sqrt(2 * variance @ variance))
        )
    mean = mean_absolute_deviation(n, p)
    variance = np.maximum(n * p * (1 - p) - mean**2, 0)
    scale = design / (total * k)
    return float(mean.sum()) * scale, float(mean.sum() + 1.645 * math.sqrt(variance.sum())) * scale


def mean_absolute_deviation(n: Floats, p: Floats) -> Floats:
    """E|X - n p| of a binomial: 2 e^{-λ} λ (no success drawn, λ = -n log(1-p)) while n p < 1, else near-normal.

    Uses De Moivre's 2 (1-p)^{n-m} p^{m+1} (m+1) C(n, m+1), m = floor(n p), for small means, where it is a few terms.
    """
    mean = n * p
    q = 1 - p
    swap = p > 0.5
    small, rare = np.where(swap, n * q, mean), np.where(swap, q, p)
    normal = np.sqrt(2 / math.pi * small * (1 - rare)) * (1 - 1 / (12 * np.maximum(small * (1 - rare), 1)))
    exact = normal.copy()
    few = small < 20
    x, r, size = small[few], rare[few], n[few]
    m = np.floor(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_choose = np.zeros_like(x)
        for j in range(1, int(m.max()) + 2 if len(m) else 1):
            log_choose += np.where(j <= m + 1, np.log(np.maximum(size - j + 1, 1e-300)) - math.log(j), 0)
        value = 2 * np.exp((size - m) * np.log1p(-r) + (m + 1) * np.log(r) + np.log(m + 1) + log_choose)
    exact[few] = np.where((r > 0) & (size >= m + 1), value, 0)
    return np.asarray(exact)


@METRICS.add(values=UNIT, better="lower", unit="probability", class_bins=class_bins, interval=classwise)
def classwise_ece(
    sample: Sample,
    *,
    bins: Count = 15,
    edges: Edges = "right",
    threshold: Annotated[float, Range(-1, 1)] = 0.0,
    norm: Literal["l1", "l2"] = "l1",
) -> float:
    """Mean over classes of the ECE of p_k (Kull 2019; `norm=l2`: marginal calibration error, Kumar 2019).

    `threshold`: only p_k above it count; -1 stands for 1/K ("SCE-t", Nixon 2019). Bins are equal-width on p_k.
    """
    each = per_class(sample, bins=bins, edges=edges, threshold=threshold, norm=norm)
    return float(each.mean()) if norm == "l1" else float(np.sqrt((each**2).mean()))
