"""Bounds for binned calibration errors. A norm of gaps is biased upwards, most where the model is calibrated, and its
distribution there is not that of its resamples: a percentile bootstrap interval misses the truth every time. What
holds: one-sided bounds from the true signs (above) and from the triangle inequality (below).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from calibcli.metrics.bounds import view_bounds
from calibcli.metrics.intervals import Ask, Interval, percent
from calibcli.metrics.norms import l1, l2, over_by_confidence, under
from calibcli.metrics.ranks import TIE
from calibcli.metrics.reliability import Bins
from calibcli.numerics import bisect, normal_quantile, score_bound
from calibcli.predictions import Floats

DRAWS = 2_000
SURE = 2.0  # standard deviations, beyond those of the bound, from which the sign of a gap is known
STEEPEST = 4 / 3  # the most that 4 p (1 - p) + (c - p)² can be
TIES = "no bound: method={} divides ties between bins, which biases it (method=whole does not)"
NO_GROUPS = "rows belong to groups, and this bound is for independent rows (ece has one for groups)"


def _table(ask: Ask) -> Bins:
    table: Bins = ask.choice.traits["table"](ask.sample, **ask.choice.options)
    return table


def gate(ask: Ask) -> Interval:
    """The bounds that gates use: see `calibcli.metrics.bounds`."""
    options = ask.choice.options
    view = ask.sample.view(options["of"])
    how = {"bins": options["bins"], "edges": options["edges"], "alpha": ask.alpha, "seed": ask.seed}
    bounds = view_bounds(view, **how)
    null: dict[str, Any] = {
        "null": bounds.floor,
        "null_high": bounds.null_high,
        "detail": _detail(ask, _table(ask)),
    }
    if bounds.reason:
        return Interval(reason=bounds.reason, **null)
    return Interval(
        low=bounds.lower,
        high=bounds.upper,
        level=1 - 2 * ask.alpha,
        sided="each",
        how=f"one-sided {bounds.method} bounds, each {percent(ask.level)}; simulated null quantile",
        **null,
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
    noise = normals(len(table.d), ask.seed) * np.sqrt(np.maximum(table.spread, table.null))
    return Interval(
        low=_lower(ask, table, norm, noise),
        high=min(1.0, _upper(table, norm, ask.value, normal_quantile(ask.level))),
        level=1 - 2 * ask.alpha,
        sided="each",
        how=f"one-sided bounds, each {percent(ask.level)}; simulated null level",
        **null,
    )


def _upper(table: Bins, norm: Any, value: float, z: float) -> float:
    """The score form: of the norm where it is a sum s·d of signed gaps, of its square where it is a length."""
    if norm is l2:
        return math.sqrt(score_bound(value**2, z, STEEPEST * float(table.square.sum()), square_spread(table)))
    spread = float((_slope(table, norm, z) * table.spread).sum())
    return score_bound(value, z, float(table.square.sum()), spread)  # rows not seen may lie in any bin, of either sign


def square_spread(table: Bins) -> float:
    """Variance of the estimate of Σ w gap², seen from below.

    With g the true gaps, Σ ŵ ĝ² is at least the mean over rows of 2 g r - g², whose expectation is Σ w g² and whose
    variance, given the bin, is g² (4 E r² - 3 g²) at most: g² times what is never above 4/3 (`STEEPEST`).
    """
    mean_square = np.divide(table.spread, table.square, out=np.zeros_like(table.spread), where=table.filled)
    each = table.gap**2 * np.maximum(4 * mean_square - 3 * table.gap**2, 0)
    return float((table.square * each).sum())


def _lower(ask: Ask, table: Bins, norm: Any, noise: Floats) -> float:
    """The triangle inequality; for the l1 norm the better of two bounds, which together err with probability alpha (a
    fifth and four fifths of it), the other from s·d for signs that change at most once from bin to bin, all of which
    are below the norm: the noise of their maximum is much less than that of a norm. The l2 norm has its own.
    """
    if norm is l2:
        return _lower_l2(table, noise, ask.level)
    if norm is not l1:
        return max(0.0, ask.value - float(np.quantile(norm(table, noise), ask.level)))
    whole = ask.value - float(np.quantile(norm(table, noise), 1 - ask.alpha / 5))
    part = float(_one_change(table.d) - np.quantile(_one_change(noise), 1 - ask.alpha * 4 / 5))
    return max(0.0, whole, part)


def _lower_l2(table: Bins, noise: Floats, level: float) -> float:
    """The root of `lower_square`, of the size of the gaps."""
    return math.sqrt(max(lower_square(table, noise, level), 0.0))


def lower_square(table: Bins, noise: Floats, level: float) -> float:
    """Smallest squared size t² of gaps in the direction u of the estimated ones that the estimate does not refute.

    ‖t u + noise‖² = t² + 2 t u·noise + ‖noise‖²: where gaps are large only the noise along them counts, where there are
    none all of it does. Its quantile rises with t, whatever the direction (Anderson 1955). Below 0 where even gaps of 0
    are not refuted: by how much.
    """
    inverse = np.divide(1, table.weight, out=np.zeros_like(table.weight), where=table.filled)
    square = float(l2(table)) ** 2
    across = noise**2 @ inverse
    spare = square - float(np.quantile(across, level))
    if spare <= 0:
        return spare
    along = noise @ (table.d * inverse) / math.sqrt(square)

    def refuted(t: float) -> float:
        return square - float(np.quantile(t * t + 2 * t * along + across, level))

    return bisect(refuted, 0.0, math.sqrt(square))[0] ** 2


def _one_change(d: Floats) -> Floats:
    """max of s·d over signs s that change at most once."""
    running = np.cumsum(d, axis=-1)
    return np.asarray(np.abs(2 * running - running[..., -1:]).max(axis=-1))


def _slope(table: Bins, norm: Any, z: float) -> Floats:
    """Squared weight of each gap in a norm that is a sum of them, 0 for gaps that surely have the other sign.

    Not surely while the score bound of the gap, with its unseen term, reaches 0.
    """
    if norm is l1:
        return np.ones_like(table.d)
    sign = -1 if norm is under else 1
    unseen = float(table.square.sum())
    reach = np.array([score_bound(v, SURE + z, unseen, s) for v, s in zip(sign * table.d, table.spread, strict=True)])
    return np.where(reach >= 0, table.confidence**2 if norm is over_by_confidence else 1.0, 0.0)


def debiased_square(ask: Ask) -> Interval:
    """Upper: the score form, with the noise of gaps that are there (`square_spread`) and that of gaps that are not,
    2 Σ w² v², v the variance of a bin's gap (Bröcker 2012). Lower: that of the squared length of the gaps.
    """
    table = _table(ask)
    null = float(np.quantile(null_draws(ask, table), 0.95))
    detail = {**_detail(ask, table), "root": math.sqrt(max(ask.value, 0.0))}
    if ask.sample.columns.groups is not None:
        return Interval(reason=NO_GROUPS, null=0.0, null_high=null, detail=detail)
    method, whole = ask.choice.options["method"], _whole(ask)
    if method == "mukhoti" or (method == "split-merge" and not np.allclose(table.weight, whole.weight, atol=1e-9)):
        return Interval(reason=TIES.format(method), null=0.0, null_high=null, detail=detail)
    enough = table.effective >= 2
    if not enough.any():
        return Interval(reason="no bin has 2 rows", detail=detail)
    inverse = np.divide(1, table.weight, out=np.zeros_like(table.weight), where=table.filled)
    variance = np.maximum(table.spread, table.null)
    noise, moved = normals(len(table.d), ask.seed) * np.sqrt(variance), _moved(ask, table)
    noise += moved
    still = 2 * float(((variance * inverse) ** 2).sum())
    unseen = STEEPEST * float(table.square.sum())
    moving = square_spread(table) + float(np.var(moved @ (2 * table.gap)))
    return Interval(
        low=min(ask.value, lower_square(table, noise, ask.level)),
        high=max(0.0, score_bound(ask.value, normal_quantile(ask.level), unseen, moving + still)),
        level=1 - 2 * ask.alpha,
        sided="each",
        how=f"one-sided bounds, each {percent(ask.level)}, of the squared length of the gaps; simulated null quantile",
        se=math.sqrt(moving + still),
        null=0.0,
        null_high=null,
        detail=detail,
    )


def _whole(ask: Ask) -> Bins:
    """The table with ties kept whole; another one where ties meet a cut."""
    return ask.sample.view(ask.choice.options["of"]).mass_bins(ask.choice.options["bins"], "whole")


def _moved(ask: Ask, table: Bins) -> Floats:
    """(DRAWS, B) noise of the gaps from where the rows put the cuts between bins of equal mass.

    A cut at the share q moves as the empirical share of rows below it, a Brownian bridge of variance q (1 - q) / n,
    and carries with it rows whose mean residual is that of the rows it passes.
    """
    view = ask.sample.view(ask.choice.options["of"])
    n, share = view.effective, np.broadcast_to(view.share(), (view.n,))[view.order]
    last = np.append(np.diff(view.p[view.order]) > TIE, True)  # of rows that are tied: their order must not matter
    below = np.append(0.0, np.cumsum(share)[last])
    sums = np.append(0.0, np.cumsum(share * view.residual[view.order])[last])
    q = np.cumsum(table.weight)[:-1]
    reach = np.maximum(np.sqrt(np.maximum(q * (1 - q), 0) / n), 1 / n)
    ends = [np.clip(q + sign * reach, 0, 1) for sign in (-1, 1)]
    passed = np.subtract(*(np.interp(end, below, sums) for end in reversed(ends))) / (ends[1] - ends[0])
    steps = normals(len(table.d), ask.seed + 1) * np.sqrt(table.weight / n)
    bridge = np.cumsum(steps, axis=1)[:, :-1] - steps.sum(axis=1, keepdims=True) * q
    return np.diff(np.pad(bridge * passed, ((0, 0), (1, 1))), axis=1)


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
