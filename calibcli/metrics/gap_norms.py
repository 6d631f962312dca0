"""Norms of the signed gaps of a reliability table, and the statistics that they are.

A norm takes the table and, optionally, other weighted gaps d in place of its own: (..., B), one row per simulation.

A norm of gaps is biased upwards, most where the model is calibrated, and its distribution there is not that of its
resamples: a percentile bootstrap interval misses the truth every time. What holds: one-sided bounds from the true signs
(above) and from the triangle inequality (below).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.metrics.bounds import table_bounds
from calibcli.metrics.intervals import NO_GROUPS, Interval, Statistic, one_sided, percent
from calibcli.metrics.reliability import DRAWS, Bins, Equal
from calibcli.metrics.sample import BinaryOutcomes
from calibcli.numerics import normal_quantile, normals, quantile, root, unseen_reach
from calibcli.predictions import Floats

Norm = Callable[..., Floats]


def l1(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ |d_b|."""
    return np.asarray(np.abs(bins.weighted_gap if d is None else d).sum(axis=-1))


def over(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ max(d_b, 0)."""
    return np.asarray(np.maximum(bins.weighted_gap if d is None else d, 0).sum(axis=-1))


def under(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ max(-d_b, 0)."""
    return over(bins, -(bins.weighted_gap if d is None else d))


def over_by_confidence(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ conf_b max(d_b, 0)."""
    return over(bins, bins.confidence * (bins.weighted_gap if d is None else d))


def l2(bins: Bins, d: Floats | None = None) -> Floats:
    """(Σ d_b² / w_b)^½, which is (Σ w_b gap_b²)^½."""
    return np.asarray(np.sqrt(((bins.weighted_gap if d is None else d) ** 2 * bins.inverse).sum(axis=-1)))


def largest(bins: Bins, d: Floats | None = None) -> Floats:
    """max |d_b| / w_b over filled bins."""
    return np.asarray((np.abs(bins.weighted_gap if d is None else d) * bins.inverse).max(axis=-1))


def debiased(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ w_b [gap_b² - acc_b (1 - acc_b) / (n_b - 1)] over bins with n_b >= 2 (effective) rows."""
    enough = bins.effective >= 2 - 1e-9
    gap = (bins.weighted_gap if d is None else d) * bins.inverse
    accuracy = bins.confidence - gap
    chance = accuracy * (1 - accuracy) / np.where(enough, bins.effective - 1, 1)
    return np.asarray(np.where(enough, bins.weight * (gap**2 - chance), 0).sum(axis=-1))


SURE = 2.0  # standard deviations, beyond those of the bound, from which the sign of a gap is known
STEEPEST = 4 / 3  # the most that 4 p (1 - p) + (c - p)² can be
TIES = "no bound: method={} divides ties between bins, which biases it (method=whole does not)"


@dataclass(frozen=True, eq=False)
class GapNorm(Statistic):
    """A norm of the signed gaps of a table.

    Upper: the norm is a sum s·d of signed gaps, so it exceeds its estimate by at most s·(d - d̂), s the true signs.
    Lower: the estimate exceeds it by at most the norm of d̂ - d. Both as for the ECE, with this norm.
    """

    view: BinaryOutcomes
    table: Bins
    norm: Norm

    @property
    def value(self) -> float:
        return float(self.norm(self.table))

    def interval(self, level: float) -> Interval:
        if self.view.groups is not None:
            return Interval(reason=NO_GROUPS, **self.null)
        how = f"one-sided bounds, each {percent(level)}; simulated null level"
        return one_sided(level, self._lower(level), min(1.0, self._upper(level)), how, **self.null)

    @property
    def null(self) -> dict[str, Any]:
        """What the norm of a calibrated model is, of independent rows, and of how many bins."""
        if self.view.groups is not None:
            return {"detail": self.detail}
        draws = self.norm(self.table, self.table.null_gaps)
        return {"null": float(draws.mean()), "null_high": quantile(draws, 0.95), "detail": self.detail}

    @property
    def detail(self) -> dict[str, Any]:
        table = self.table
        rows = (np.round(table.weight * self.view.total) if self.view.counts else table.rows)[table.filled]
        weighted = {} if self.view.weights is None else {"n_eff": self.table.total}
        return {"filled_bins": len(rows), "fewest_rows": int(rows.min()), **weighted}

    @property
    def noise(self) -> Floats:
        """(DRAWS, B) normal noise of the gaps."""
        table = self.table
        scale = np.sqrt(np.maximum(table.gap_variance, table.null_variance))
        return normals((DRAWS, len(scale)), table.seed) * scale

    def _upper(self, level: float) -> float:
        """The score form: of the norm where it is a sum s·d of signed gaps, of its square where it is a length."""
        z, (seen, unseen) = normal_quantile(level), self.view.steps
        if self.norm is l2:
            reach = unseen_reach(z, square_variance(self.table), STEEPEST * seen, STEEPEST * unseen)
            return math.sqrt(self.value**2 + reach)
        variance = float((self._slope(z) * self.table.gap_variance).sum())
        return self.value + unseen_reach(z, variance, seen, unseen)  # rows not drawn may lie in any bin, of either sign

    def _slope(self, z: float) -> Floats:
        """Squared weight of each gap in a norm that is a sum of them, 0 for gaps that surely have the other sign.

        Not surely while the score bound of the gap, with its unseen term, reaches 0.
        """
        table = self.table
        if self.norm is l1:
            return np.ones_like(table.weight)
        gaps = table.weighted_gap * (-1 if self.norm is under else 1)
        steps = self.view.steps
        reach = np.array([d + unseen_reach(SURE + z, v, *steps) for d, v in zip(gaps, table.gap_variance, strict=True)])
        return np.where(reach >= 0, table.confidence**2 if self.norm is over_by_confidence else 1.0, 0.0)

    def _lower(self, level: float) -> float:
        """The triangle inequality; for the l1 norm the better of two bounds, which together err with probability alpha
        (a fifth and four fifths of it), the other from s·d for signs that change at most once from bin to bin, all of
        which are below the norm: the noise of their maximum is much less than that of a norm. The l2 norm has its own.
        """
        table, noise, alpha = self.table, self.noise, 1 - level
        if self.norm is l2:
            return math.sqrt(max(lower_square(table, noise, level), 0.0))
        if self.norm is not l1:
            return max(0.0, self.value - quantile(self.norm(table, noise), level))
        whole = self.value - quantile(l1(table, noise), 1 - alpha / 5)
        part = float(_one_change(table.weighted_gap) - quantile(_one_change(noise), 1 - alpha * 4 / 5))
        return max(0.0, whole, part)


class Ece(GapNorm):
    """With the bounds that gates use: see `calibcli.metrics.bounds`."""

    def interval(self, level: float) -> Interval:
        bounds = table_bounds(self.view, self.table, alpha=1 - level)
        null = {"null": bounds.floor, "null_high": bounds.null_high, "detail": self.detail}
        if bounds.reason:
            return Interval(reason=bounds.reason, **null)  # type: ignore[arg-type]
        how = f"one-sided {bounds.method} bounds, each {percent(level)}; simulated null quantile"
        return one_sided(level, bounds.lower, bounds.upper, how, **null)


class Unbounded(GapNorm):
    """With its null level alone."""

    def interval(self, level: float) -> Interval:
        reason = "no bound: the largest gap may be in a bin with few rows, or in an empty one (ece has one)"
        return Interval(reason=reason, how="null level: simulated", **self.null)


@dataclass(frozen=True, eq=False)
class DebiasedSquare(GapNorm):
    """Upper: the score form, with the noise of gaps that are there (`square_variance`) and that of gaps that are not,
    2 Σ w² v², v the variance of a bin's gap (Bröcker 2012). Lower: that of the squared length of the gaps.
    """

    method: Equal

    def interval(self, level: float) -> Interval:
        table, value = self.table, self.value
        detail = {**self.detail, "root": math.sqrt(max(value, 0.0))}
        if self.view.groups is not None:
            return Interval(reason=NO_GROUPS, detail=detail)
        null = {"null": 0.0, "null_high": self.null["null_high"], "detail": detail}
        if self.method == "mukhoti" or (self.method == "split-merge" and self._cuts_ties):
            return Interval(reason=TIES.format(self.method), **null)
        if not (table.effective >= 2).any():
            return Interval(reason="no bin has 2 rows", detail=detail)
        moved = self._moved()
        still = float(((np.maximum(table.gap_variance, table.null_variance) * table.inverse) ** 2).sum())
        variance = square_variance(table) + float(np.var(moved @ (2 * table.gap))) + 2 * still
        seen, unseen = (STEEPEST * step for step in self.view.steps)
        low = min(value, lower_square(table, self.noise + moved, level))
        high = max(0.0, value + unseen_reach(normal_quantile(level), variance, seen, unseen))
        how = f"one-sided bounds, each {percent(level)}, of the squared length of the gaps; simulated null quantile"
        return one_sided(level, low, high, how, se=math.sqrt(variance), **null)

    @property
    def _cuts_ties(self) -> bool:
        whole = self.view.mass_bins(len(self.table.weight), "whole")
        return not np.allclose(self.table.weight, whole.weight, atol=1e-9)

    def _moved(self) -> Floats:
        """(DRAWS, B) noise of the gaps from where the rows put the cuts between bins of equal mass.

        A cut at the share q moves as the empirical share of rows below it, a Brownian bridge of variance q (1 - q) / n,
        and carries with it rows whose mean residual is that of the rows it passes.
        """
        table, n, total = self.table, self.view.effective, self.view.total
        q = np.cumsum(table.weight)[:-1]
        reach = np.maximum(np.sqrt(np.maximum(q * (1 - q), 0) / n), 1 / n)
        low, high = (np.clip(q + sign * reach, 0, 1) for sign in (-1, 1))
        # between tied rows there is no place: their order must not matter
        below, above = (self.view.ranked.residuals_before(total * end) / total for end in (low, high))
        passed = (above - below) / (high - low)
        steps = normals((DRAWS, len(table.weight)), table.seed + 1) * np.sqrt(table.weight / n)
        bridge = np.cumsum(steps, axis=1)[:, :-1] - steps.sum(axis=1, keepdims=True) * q
        return np.diff(np.pad(bridge * passed, ((0, 0), (1, 1))), axis=1)


def square_variance(table: Bins) -> float:
    """Variance of the estimate of Σ w gap², seen from below.

    With g the true gaps, Σ ŵ ĝ² is at least the mean over rows of 2 g r - g², whose expectation is Σ w g² and whose
    variance, given the bin, is g² (4 E r² - 3 g²) at most: g² times what is never above 4/3 (`STEEPEST`).
    """
    rows = table.weight_variance
    mean_square = np.divide(table.gap_variance, rows, out=np.zeros_like(rows), where=table.filled)
    return float((rows * table.gap**2 * np.maximum(4 * mean_square - 3 * table.gap**2, 0)).sum())


def lower_square(table: Bins, noise: Floats, level: float) -> float:
    """Smallest squared size t² of gaps in the direction u of the estimated ones that the estimate does not refute.

    ‖t u + noise‖² = t² + 2 t u·noise + ‖noise‖²: where gaps are large only the noise along them counts, where there are
    none all of it does. Its quantile rises with t, whatever the direction (Anderson 1955). Below 0 where even gaps of 0
    are not refuted: by how much.
    """
    square = float(l2(table)) ** 2
    across, along = noise**2 @ table.inverse, noise @ table.gap

    def spared(t: float) -> float:
        """Of t in units of the estimated size."""
        return quantile(t * t * square + 2 * t * along + across, level) - square

    least = spared(0.0)
    return -least if least >= 0 else square * root(lambda t: spared(t) / square, 0.0, 1.0, 1e-10) ** 2


def _one_change(d: Floats) -> Floats:
    """max of s·d over signs s that change at most once."""
    running = np.cumsum(d, axis=-1)
    return np.asarray(np.abs(2 * running - running[..., -1:]).max(axis=-1))
