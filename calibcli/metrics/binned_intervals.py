"""Bounds for binned calibration errors. A norm of gaps is biased upwards, most where the model is calibrated, and its
distribution there is not that of its resamples: a percentile bootstrap interval misses the truth every time. What
holds: one-sided bounds from the true signs (above) and from the triangle inequality (below).
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from calibcli.metrics.bounds import ece_bounds
from calibcli.metrics.intervals import Ask, Interval, percent
from calibcli.metrics.norms import one, over, over_by_confidence, two, under
from calibcli.metrics.sample import Bins
from calibcli.metrics.smooth import solve
from calibcli.predictions import Floats

DRAWS = 2_000
SURE = 4.0  # standard deviations beyond which the sign of a gap is known
NO_GROUPS = "rows belong to groups, and this bound is for independent rows (ece has one for groups)"


def _table(ask: Ask) -> Bins:
    table: Bins = ask.choice.traits["table"](ask.sample, **ask.choice.options)
    return table


def gate(ask: Ask) -> Interval:
    """The bounds that gates use: see `calibcli.metrics.bounds`."""
    options = ask.choice.options
    view = ask.sample.view(options["of"])
    if view.groups is not None and len(np.unique(view.groups)) < 2:
        return Interval(reason="one group has no spread", detail=_detail(ask, _table(ask)))
    found = ece_bounds(
        view.p,
        view.hit,
        bins=options["bins"],
        edges=options["edges"],
        alpha=ask.alpha,
        weights=view.weights,
        weight_kind="count" if view.counts else "sampling",
        groups=view.groups,
        seed=ask.seed,
    )
    table = _table(ask)
    return Interval(
        low=found.lower,
        high=found.upper,
        level=1 - 2 * ask.alpha,
        sided="each",
        how=f"one-sided bounds, each {percent(ask.level)}; simulated null quantile",
        null=found.floor,
        null_high=found.null_high,
        detail=_detail(ask, table),
    )


def signed(ask: Ask) -> Interval:
    """Upper: the norm is a sum s·d of signed gaps, so it exceeds its estimate by at most s·(d - d̂), s the true signs.
    Lower: the estimate exceeds it by at most the norm of d̂ - d. Both as for the ECE, with this norm.
    """
    table, norm = _table(ask), ask.choice.traits["norm"]
    draws = null_draws(ask, table)
    null: dict[str, Any] = {
        "null": float(draws.mean()),
        "null_high": float(np.quantile(draws, 0.95)),
        "detail": _detail(ask, table),
    }
    if ask.sample.columns.groups is not None:
        return Interval(reason=NO_GROUPS, **null)
    z = NormalDist().inv_cdf(ask.level)
    slope = _steepness(table, norm)
    a = z * z * float((slope * table.square).sum())
    b = z * z * float((slope * table.spread).sum())
    noise = normals(len(table.d), ask.seed) * np.sqrt(np.maximum(table.spread, table.null))
    return Interval(
        low=_lower(ask, table, norm, noise),
        high=min(1.0, ask.value + (a + math.sqrt(a * a + 4 * b)) / 2),
        level=1 - 2 * ask.alpha,
        sided="each",
        how=f"one-sided bounds, each {percent(ask.level)}; simulated null level",
        **null,
    )


def _lower(ask: Ask, table: Bins, norm: Any, noise: Floats) -> float:
    """The triangle inequality; for the l1 norm the better of two bounds, which together err with probability alpha (a
    fifth and four fifths of it), the other from s·d for signs that change at most once from bin to bin, all of which
    are below the norm: the noise of their maximum is much less than that of a norm. The l2 norm has its own.
    """
    if norm is two:
        return _lower_two(table, noise, ask.level)
    if norm is not one:
        return max(0.0, ask.value - float(np.quantile(norm(table, noise), ask.level)))
    whole = ask.value - float(np.quantile(norm(table, noise), 1 - ask.alpha / 5))
    part = float(_one_change(table.d) - np.quantile(_one_change(noise), 1 - ask.alpha * 4 / 5))
    return max(0.0, whole, part)


def _lower_two(table: Bins, noise: Floats, level: float) -> float:
    """Smallest size t of gaps in the direction u of the estimated ones that the estimate does not refute.

    ‖t u + noise‖² = t² + 2 t u·noise + ‖noise‖²: where gaps are large only the noise along them counts, where there are
    none all of it does. Its quantile rises with t, whatever the direction (Anderson 1955).
    """
    inverse = np.divide(1, table.weight, out=np.zeros_like(table.weight), where=table.filled)
    size = float(two(table))
    if size == 0:
        return 0.0
    along, across = noise @ (table.d * inverse) / size, noise**2 @ inverse
    return solve(lambda t: size**2 - float(np.quantile(t * t + 2 * t * along + across, level)), 0.0, size)


def _one_change(d: Floats) -> Floats:
    """max of s·d over signs s that change at most once."""
    running = np.cumsum(d, axis=-1)
    return np.asarray(np.abs(2 * running - running[..., -1:]).max(axis=-1))


def _steepness(table: Bins, norm: Any) -> Floats:
    """Squared weight of each gap in the norm, seen as a linear function of the gaps near the estimate."""
    if norm in (over, under, over_by_confidence):
        sign = -1 if norm is under else 1
        plausible = sign * table.d > -SURE * np.sqrt(table.spread)  # bins that may count at all
        weight = table.confidence**2 if norm is over_by_confidence else np.ones_like(table.d)
        return np.where(plausible, weight, 0.0)
    if norm is two:
        size = float(two(table))
        weight = np.where(table.filled, table.weight, 1)
        if size == 0:
            return np.where(table.filled, 1 / weight, 0).astype(np.float64)
        return np.asarray((table.d / weight / size) ** 2)
    return np.ones_like(table.d)


def debiased_square(ask: Ask) -> Interval:
    """Inverts |T - θ| <= z sd(θ) with Var(T) = 4 v θ + 2 Σ w_b² v_b², v_b the variance of gap b (Bröcker 2012).

    The first term is the noise of gaps that are there, the second of gaps that are not; v is the average of v_b by
    w_b² gap_b² over w_b gap_b².
    """
    table = _table(ask)
    null = float(np.quantile(null_draws(ask, table), 0.95))
    detail = {**_detail(ask, table), "root": math.sqrt(max(ask.value, 0.0))}
    if ask.sample.columns.groups is not None:
        return Interval(reason=NO_GROUPS, null=0.0, null_high=null, detail=detail)
    enough = table.effective >= 2
    if not enough.any():
        return Interval(reason="no bin has 2 rows", detail=detail)
    n = np.where(enough, table.effective, 2)
    mean_square = np.divide(table.spread, table.square, out=np.zeros_like(table.spread), where=table.filled)
    v = np.where(enough, np.maximum(mean_square - table.gap**2, 0) / (n - 1), 0)
    v = np.maximum(v, np.where(enough, 1 / (4 * n * n), 0))  # a bin without errors is not a bin without noise
    square = table.weight * np.maximum(table.gap**2 - v, 0)
    mean_v = float((square * table.weight * v).sum() / square.sum()) if square.sum() > 0 else 0.0
    fixed = 2 * float((table.weight**2 * v**2).sum())
    z, t = ask.z, ask.value
    centre = t + 2 * z * z * mean_v
    half = z * math.sqrt(max(4 * mean_v * t + 4 * z * z * mean_v**2 + fixed, 0.0))
    return Interval(
        low=min(ask.value, max(0.0, centre - half)),  # the parameter is >= 0, its estimate need not be
        high=max(0.0, centre + half),
        level=ask.level,
        how="score interval (variance of the debiased square under each value)",
        se=math.sqrt(max(4 * mean_v * max(t, 0.0) + fixed, 0.0)),
        null=0.0,
        null_high=null,
        detail=detail,
    )


NO_BOUND = {
    "mce": "no bound: the largest gap may be in a bin with few rows, or in an empty one",
    "ece_sweep": "no bound: the number of bins is chosen on these rows",
}


def no_interval(ask: Ask) -> Interval:
    """No interval keeps its level; the null level is given where there is a table."""
    reason = NO_BOUND[ask.choice.name]
    if "table" not in ask.choice.traits:
        return Interval(reason=reason)
    table = _table(ask)
    draws = null_draws(ask, table)
    return Interval(
        reason=reason,
        null=float(draws.mean()),
        null_high=float(np.quantile(draws, 0.95)),
        how="null level: simulated",
        detail=_detail(ask, table),
    )


def classwise(ask: Ask) -> Interval:
    """Upper bound only, by the signs as for the ECE: Σ_k s_k (p_k - y_k) of a row is at most 2 (1 - p_y) in size.

    Below, the triangle inequality over K x bins cells is too wide to be of use, and none is given.
    """
    from calibcli.metrics.binned import class_bins, per_class

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
    z2 = NormalDist().inv_cdf(ask.level) ** 2
    b = z2 * float(np.sum(square * rest**2))
    a = z2 * 2 / columns.k / view.effective
    return Interval(
        high=min(1.0, ask.value + (a + math.sqrt(a * a + 4 * b)) / 2),
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


@lru_cache(maxsize=8)
def normals(width: int, seed: int) -> Floats:
    """(DRAWS, width) standard normal draws."""
    return np.random.default_rng(seed).standard_normal((DRAWS, width))


def null_draws(ask: Ask, table: Bins) -> Floats:
    """(DRAWS,) values of the norm for a perfectly calibrated model with these confidences.

    Hits of a bin are binomial with its mean confidence and effective rows.
    """
    key = ("null", id(table))
    if key not in ask.sample.memo:  # metrics of one table share its draws
        rng = np.random.default_rng([ask.seed, len(table.d)])
        n = np.maximum(np.round(table.effective), 0).astype(np.int64)
        p = np.clip(table.confidence, 0, 1)
        hits = rng.binomial(n, p, size=(DRAWS, len(n)))
        ask.sample.memo[key] = np.where(n > 0, table.weight * (p - hits / np.maximum(n, 1)), 0.0)
    draws: Floats = ask.choice.traits["norm"](table, ask.sample.memo[key])
    return draws


def _detail(ask: Ask, table: Bins) -> dict[str, Any]:
    rows = table.rows[table.filled]
    detail: dict[str, Any] = {"filled_bins": len(rows), "fewest_rows": int(rows.min())}
    if ask.sample.weights is not None:
        detail["n_eff"] = table.total
    return detail
