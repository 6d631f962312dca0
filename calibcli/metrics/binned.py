"""Binned calibration errors: ECE and its kin, norms of the signed gaps of a reliability table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.core.number_format import percent
from calibcli.core.options import BINS, Count, Range
from calibcli.core.statistics import TIE, normal_quantile, normals, parts, quantile, root, tie_ends, unseen_reach
from calibcli.metrics._histogram_error import Bound, PlacedRows, of_root
from calibcli.metrics.binned_bounds import table_bounds
from calibcli.metrics.intervals import NO_GROUPS, Constant, one_sided
from calibcli.metrics.registry import METRICS, SIGNED, UNIT, Interval, Of, Sample, Statistic
from calibcli.metrics.reliability import DRAWS, BinaryOutcomes, Bins, Equal, Hits
from calibcli.scores.columns import ClassBins, ClassTable, Edges
from calibcli.scores.predictions import Floats, Ints

# Norms of signed gaps. Each takes the table and, optionally, other weighted gaps d: (..., B), one row per simulation.
#
# A norm of gaps is biased upwards, most where the model is calibrated, and its distribution there is not that of its
# resamples: a percentile bootstrap interval misses the truth every time. One-sided bounds hold: above from the true
# signs of the gaps, below from the triangle inequality.

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
    enough = (effective := bins.effective) >= 2 - 1e-9
    gap = (bins.weighted_gap if d is None else d) * bins.inverse
    accuracy = bins.confidence - gap
    chance = accuracy * (1 - accuracy) / np.where(enough, effective - 1, 1)
    return np.asarray(((gap * gap - chance) * np.where(enough, bins.weight, 0)).sum(axis=-1))


SURE = 2.0  # standard deviations, beyond those of the bound, from which the sign of a gap is known
STEEPEST = 4 / 3  # the most that 4 p (1 - p) + (c - p)² can be
TIES = "no bound: method={} divides ties between bins, which biases it (method=whole does not)"


@dataclass(frozen=True, eq=False)
class GapNorm(Statistic):
    """A norm of the signed gaps of a table, with one-sided bounds.

    Upper: the norm is a sum s·d of signed gaps, so it exceeds its estimate by at most s·(d - d̂), s the true signs.
    Lower: the estimate exceeds it by at most the norm of d̂ - d. Both as in `binned_bounds`, with this norm.
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
        """Fields of the interval: mean and 95 % quantile under calibration (of independent rows), and the bins."""
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
        """(DRAWS, B) normal noise of the gaps, as large as seen or as under calibration, whichever is larger."""
        table = self.table
        scale = np.sqrt(np.maximum(table.gap_variance, table.null_variance))
        return normals((DRAWS, len(scale)), table.seed) * scale

    def _upper(self, level: float) -> float:
        """Return the upper bound: the score form, of a norm that is a sum of signed gaps or of a squared length."""
        z, (drawn, undrawn) = normal_quantile(level), self.view.largest_moves
        if self.norm is l2:
            reach = unseen_reach(z, square_variance(self.table), STEEPEST * drawn, STEEPEST * undrawn)
            return math.sqrt(self.value**2 + reach)
        variance = float((self._slope(z) * self.table.gap_variance).sum())
        # rows not drawn may lie in any bin, of either sign
        return self.value + unseen_reach(z, variance, drawn, undrawn)

    def _slope(self, z: float) -> Floats:
        """Return the squared weight of each gap in a norm that is a sum, 0 for gaps that surely have the other sign.

        A sign is not sure while the score bound of the gap, which allows for rows not drawn, reaches 0.
        """
        table = self.table
        if self.norm is l1:
            return np.ones_like(table.weight)
        gaps = table.weighted_gap * (-1 if self.norm is under else 1)
        steps = self.view.largest_moves
        reach = np.array([d + unseen_reach(SURE + z, v, *steps) for d, v in zip(gaps, table.gap_variance, strict=True)])
        return np.where(reach >= 0, table.confidence**2 if self.norm is over_by_confidence else 1.0, 0.0)

    def _lower(self, level: float) -> float:
        """Return the lower bound, by the triangle inequality.

        The l1 norm takes the better of two bounds, which together err with probability alpha (a fifth and four fifths
        of it). The other one is of s·d for signs that change at most once from bin to bin, all of which are below the
        norm: their maximum has much less noise than the norm. The l2 norm has a bound of its own, `lower_square`.
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
    """The l1 norm with the bounds that gates use: see `calibcli.metrics.binned_bounds`."""

    def interval(self, level: float) -> Interval:
        bounds = table_bounds(self.view, self.table, alpha=1 - level)
        null = {"null": bounds.floor, "null_high": bounds.null_high, "detail": self.detail}
        if bounds.reason:
            return Interval(reason=bounds.reason, **null)  # type: ignore[arg-type]
        how = f"one-sided {bounds.method} bounds, each {percent(level)}; simulated null quantile"
        return one_sided(level, bounds.lower, bounds.upper, how, **null)


class Unbounded(GapNorm):
    """The largest gap, which has no bound, only its level under calibration."""

    def interval(self, level: float) -> Interval:
        reason = "no bound: the largest gap may be in a bin with few rows, or in an empty one (ece has one)"
        return Interval(reason=reason, how="null level: simulated", **self.null)


@dataclass(frozen=True, eq=False)
class DebiasedSquare(GapNorm):
    """The squared l2 norm less its expected noise, which is negative where gaps are smaller than chance makes them.

    Upper: the score form, with the noise of true gaps (`square_variance`) and that of gaps of 0, 2 Σ w² v², v the
    variance of a bin's gap (Bröcker 2012). Lower: that of the squared length of the gaps.
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
        moved = self._cut_noise()
        still = float(((np.maximum(table.gap_variance, table.null_variance) * table.inverse) ** 2).sum())
        variance = square_variance(table) + float(np.var(moved @ (2 * table.gap))) + 2 * still
        drawn, undrawn = (STEEPEST * step for step in self.view.largest_moves)
        low = min(value, lower_square(table, self.noise + moved, level))
        high = max(0.0, value + unseen_reach(normal_quantile(level), variance, drawn, undrawn))
        how = f"one-sided bounds, each {percent(level)}, of the squared length of the gaps; simulated null quantile"
        return one_sided(level, low, high, how, se=math.sqrt(variance), **null)

    @property
    def _cuts_ties(self) -> bool:
        whole = self.view.mass_bins(len(self.table.weight), "whole")
        return not np.allclose(self.table.weight, whole.weight, atol=1e-9)

    def _cut_noise(self) -> Floats:
        """Simulate (DRAWS, B) noise of the gaps from the cuts between bins of equal mass, which the rows place.

        A cut at the share q moves as the empirical share of rows below it, a Brownian bridge of variance q (1 - q) / n,
        and carries with it rows whose mean residual is that of the rows it passes.
        """
        table, n, total = self.table, self.view.effective, self.view.total
        q = np.cumsum(table.weight)[:-1]
        reach = np.maximum(np.sqrt(np.maximum(q * (1 - q), 0) / n), 1 / n)
        low, high = (np.clip(q + sign * reach, 0, 1) for sign in (-1, 1))
        # no cut lies between tied rows, so that their order does not matter
        below, above = (self.view.ranked.residuals_before(total * end) / total for end in (low, high))
        passed = (above - below) / (high - low)
        bins = len(table.weight)
        bridge = (np.arange(bins)[:, None] < np.arange(1, bins)) - q  # (B, B - 1) at each cut, of a step in each bin
        moved = np.diff(np.pad(bridge * passed, ((0, 0), (1, 1))), axis=1)
        return np.asarray(normals((DRAWS, bins), table.seed + 1) @ (np.sqrt(table.weight / n)[:, None] * moved))


def square_variance(table: Bins) -> float:
    """Return the variance of a lower bound of the estimate of Σ w gap².

    With g the true gaps, Σ ŵ ĝ² is at least the mean over rows of 2 g r - g², whose expectation is Σ w g² and whose
    variance, given the bin, is g² (4 E r² - 3 g²) at most: g² times what is never above 4/3 (`STEEPEST`).
    """
    rows = table.weight_variance
    mean_square = np.divide(table.gap_variance, rows, out=np.zeros_like(rows), where=table.filled)
    return float((rows * table.gap**2 * np.maximum(4 * mean_square - 3 * table.gap**2, 0)).sum())


def lower_square(table: Bins, noise: Floats, level: float) -> float:
    """Find the smallest squared size t² of gaps in the direction u of the estimates that these do not refute.

    ‖t u + noise‖² = t² + 2 t u·noise + ‖noise‖²: where gaps are large only the noise along them counts, where there are
    none all of it does. Its quantile rises with t, whatever the direction (Anderson 1955). Below 0 where even gaps of 0
    are not refuted: by how much.
    """
    square = float(l2(table)) ** 2
    across, along = noise**2 @ table.inverse, noise @ table.gap

    def excess(t: float) -> float:
        """Excess of the quantile over the estimate for gaps of size t, in units of the estimated size."""
        return quantile(t * t * square + 2 * t * along + across, level) - square

    least = excess(0.0)
    return -least if least >= 0 else square * root(lambda t: excess(t) / square, 0.0, 1.0, 1e-10) ** 2


def _one_change(d: Floats) -> Floats:
    """Return the maximum of s·d over signs s that change at most once from bin to bin."""
    running = np.cumsum(d, axis=-1)
    return np.asarray(np.abs(2 * running - running[..., -1:]).max(axis=-1))


# The metrics. With w_b the share of rows in bin b, gap_b = mean confidence minus accuracy and d_b = w_b gap_b, each is
# a function of the reliability table alone. Empty bins count for nothing. For two classes the probability is that of
# the event, class 1, and `accuracy` its frequency; `of=top` measures the predicted class instead, which folds P(event)
# at one half.

_error = partial(METRICS.add, values=UNIT, better="lower", unit="probability")


def _signed(times_rho: float, times_mass: float = 0.0, root: bool = False) -> Bound:
    """Make the merge bound of an error over equal-width bins that changes by so many ρ and μ, or whose square does."""

    def bound(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
        rho, mass = placed.cut_by_width(options["bins"])
        change = float(times_rho * rho.sum() + times_mass * mass.sum())
        return of_root(change, value) if root else min(change, 1.0)

    return bound


def _largest(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change of the largest gap: that of a bin changes by the share of its weight that comes or goes."""
    bins = options["bins"]
    mass = placed.cut_by_width(bins)[1]
    moved = np.append(mass, 0.0) + np.append(0.0, mass)
    left = placed.view.width_bins(bins, options["edges"]).weight[:bins] - moved
    change = np.where(left > 0, 2 * moved / np.maximum(left, 1e-300), 1.0)
    return min(float(np.where(moved > 0, change, 0.0).max()), 1.0)


def _equal_mass(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    return min(2 * placed.cut_by_mass(options["bins"])[0], 1.0)


def _debiased(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change of the squares and of the noise subtracted, which is at most 1 / 2N in each bin."""
    bins = options["bins"]
    rho, mass = placed.cut_by_mass(bins)
    return min(4 * rho + 2 * mass, 2.0) + (bins / (2 * placed.view.total) if mass > 0 else 0.0)


@_error(
    condensed=_signed(2.0),
    label="ECE",
    called=("expected_calibration_error", "calibration_error", "calibration_error_l1", "l1_calibration_error"),
    table_bounds=True,
    gaps="both_signs",
    debiased="ece2_debiased",
    error=1,
    named=2,
    first_screen="slices too",
)
def ece(sample: Sample, *, bins: Count = BINS, edges: Edges = "right", of: Of = "auto") -> GapNorm:
    """Expected calibration error, Σ_b |d_b| over equal-width bins (Naeini et al. 2015; Guo et al. 2017).

    `edges`: `right` (lo, hi] with 0 in the first; `left` [lo, hi) with 1 in the last; `torchmetrics` as `left` with
    one bin more that holds exactly 1.

    >>> round(calibcli.measure(logits, labels, "ece:bins=10")["ece"].value, 4)
    0.0646
    """
    return Ece(sample.view(of), sample.view(of).width_bins(bins, edges), l1)


@_error(condensed=_largest, gaps="largest", compared=False)
def mce(sample: Sample, *, bins: Count = BINS, edges: Edges = "right", of: Of = "auto") -> GapNorm:
    """Maximum calibration error, max_b |gap_b| over filled equal-width bins (Naeini et al. 2015).

    >>> round(calibcli.measure(logits, labels, "mce")["mce"].value, 4)
    0.4406
    """
    return Unbounded(sample.view(of), sample.view(of).width_bins(bins, edges), largest)


@_error(condensed=_signed(4.0, 2.0, root=True), gaps="both_signs", error=4)
def ece_l2(sample: Sample, *, bins: Count = BINS, edges: Edges = "right", of: Of = "auto") -> GapNorm:
    """Root mean square calibration error, (Σ_b w_b gap_b²)^½ over equal-width bins.

    The norm is that of Kumar et al. (2019), who take bins of equal mass.

    >>> round(calibcli.measure(logits, labels, "ece_l2")["ece_l2"].value, 4)
    0.0949
    """
    return GapNorm(sample.view(of), sample.view(of).width_bins(bins, edges), l2)


@_error(condensed=_signed(2.0), gaps="one_sign", papers=True)
def oce(sample: Sample, *, bins: Count = BINS, edges: Edges = "right", of: Of = "auto") -> GapNorm:
    """Overconfident part of the ECE, Σ_b max(d_b, 0); `oce` + `uce` = `ece`.

    Ours: the terms of the ECE by the sign of their gaps.

    >>> round(calibcli.measure(logits, labels, "oce")["oce"].value, 4)
    0.0646
    """
    return GapNorm(sample.view(of), sample.view(of).width_bins(bins, edges), over)


@_error(
    narrowed=lambda k, options: Range(0, 1 if k in (None, 2) else 1 - 1 / k),
    condensed=_signed(2.0),
    gaps="one_sign",
    papers=True,
)
def uce(sample: Sample, *, bins: Count = BINS, edges: Edges = "right", of: Of = "auto") -> GapNorm:
    """Underconfident part of the ECE, Σ_b max(-d_b, 0).

    Ours: the terms of the ECE by the sign of their gaps.

    >>> round(calibcli.measure(logits, labels, "uce")["uce"].value, 4)
    0.0
    """
    return GapNorm(sample.view(of), sample.view(of).width_bins(bins, edges), under)


@_error(condensed=_signed(2.0, 4.0), gaps="one_sign", papers=True)
def overconfidence_error(sample: Sample, *, bins: Count = BINS, edges: Edges = "right", of: Of = "auto") -> GapNorm:
    """Overconfidence error, Σ_b conf_b max(d_b, 0) (Thulasidasan et al. 2019).

    >>> round(calibcli.measure(logits, labels, "overconfidence_error")["overconfidence_error"].value, 4)
    0.0595
    """
    return GapNorm(sample.view(of), sample.view(of).width_bins(bins, edges), over_by_confidence)


@_error(
    condensed=_equal_mass,
    label="AdaECE",
    gaps="both_signs",
    debiased="ece2_debiased",
    error=3,
    called=("ace", "adaptive_calibration_error", "adaptive_ece"),
)
def adaece(sample: Sample, *, bins: Count = BINS, method: Equal = "split-merge", of: Of = "auto") -> GapNorm:
    """Adaptive ECE, Σ_b |d_b| over bins of equal mass (Nguyen & O'Connor 2015; Mukhoti et al. 2020).

    `method`: `split` cuts the rows sorted by confidence into groups whose sizes differ by at most 1, ties by row order;
    `split-merge` as `split`, but rows of equal confidence share their accuracy, so that row order does not matter;
    `mukhoti` the released code of that paper: interpolated edges, bins (lo, hi], which drops the smallest confidence;
    `whole` as `split`, but all rows of equal confidence go to the bin that their middle falls in.

    >>> round(calibcli.measure(logits, labels, "adaece:bins=10")["adaece"].value, 4)
    0.0646
    """
    return GapNorm(sample.view(of), sample.view(of).mass_bins(bins, method), l1)


@METRICS.add(
    values=SIGNED,
    better="lower",
    unit="",
    condensed=_debiased,
    gaps="squares",
    label="debiased squared ECE",
    error=6,
)
def ece2_debiased(sample: Sample, *, bins: Count = BINS, method: Equal = "whole", of: Of = "auto") -> GapNorm:
    """Debiased squared calibration error, Σ_b w_b [gap_b² - acc_b (1 - acc_b) / (n_b - 1)] (Bröcker 2012).

    Over equal-mass bins with n_b >= 2 (Kumar et al. 2019); it is negative where the gaps are smaller than chance makes
    them. Each bin's own noise is subtracted, so bins must not share rows: `whole` keeps ties in one bin, `split` cuts
    them by row order; `split-merge` and `mukhoti` (see `adaece`) are biased where ties meet a cut, and then have no
    bounds.

    >>> round(calibcli.measure(logits, labels, "ece2_debiased")["ece2_debiased"].value, 4)
    0.0116
    """
    return DebiasedSquare(sample.view(of), sample.view(of).mass_bins(bins, method), debiased, method)


@METRICS.add(values=UNIT, better="lower", unit="probability")
def ece_sweep(sample: Sample, *, of: Of = "auto") -> Constant:
    """ECE with the most equal-mass bins whose accuracies still rise with confidence (Roelofs et al. 2022).

    Rows of equal confidence share their accuracy, so that row order does not matter.

    >>> round(calibcli.measure(logits, labels, "ece_sweep")["ece_sweep"].value, 4)
    0.0646
    """
    view = sample.view(of)
    order = view.stable_order
    w = np.ones(view.n) if view.weights is None else view.weights[order]
    weighted = w > 0
    w, order = w[weighted], order[weighted]
    position = np.append(0.0, np.cumsum(w))
    p = np.append(0.0, np.cumsum(w * view.p[order]))
    accuracy = _shared(tie_ends(view.p[order], view.complement[order]), view.hit[order], w)
    hit = np.append(0.0, np.cumsum(w * accuracy))
    most = round(view.total) if view.counts else len(w)
    below_earlier = np.maximum.accumulate(accuracy) > accuracy + TIE
    above_later = np.minimum.accumulate(accuracy[::-1])[::-1] < accuracy - TIE
    first, last = int(above_later.argmax()), len(w) - int(below_earlier[::-1].argmax())
    if not below_earlier.any():
        bins = most  # no row is above one of larger accuracy
    else:
        for bins in range(2, most + 1):  # below `first` and above `last` accuracies only rise
            low, high = (_bin_at(view, float(position[end]), bins) for end in (first, last))
            edges = view.cut(np.arange(low - 2, high + 4).clip(0, bins), bins)
            edges = edges[np.append(True, np.diff(edges) > 0)]
            if np.any(np.diff(np.diff(np.interp(edges, position, hit)) / np.diff(edges)) < -TIE):
                bins -= 1
                break
    cuts = position if bins == most and (view.counts or view.weights is None) else view.cuts(bins)
    best = np.abs(np.diff(np.interp(cuts, position, p) - np.interp(cuts, position, hit))).sum()
    reason = "no bound: the number of bins is chosen on these rows (ece and adaece have one)"
    return Constant(float(best) / view.total, Interval(reason=reason))


def _shared(ends: Ints, hit: Hits, w: Floats) -> Floats:
    """Return (n,) outcomes by rank, those of ties as their mean, so that row order does not matter."""
    if len(ends) > len(hit):
        return hit.astype(np.float64)
    mean = np.add.reduceat(w * hit, ends[:-1]) / np.add.reduceat(w, ends[:-1])
    return np.repeat(mean, np.diff(ends))


def _bin_at(view: BinaryOutcomes, position: float, bins: int) -> int:
    """Return the bin between `view.cuts` that a position lies in."""
    if view.weights is not None and not view.counts:
        return int(position / view.total * bins)
    size, extra = divmod(round(view.total), bins)
    beyond = position - extra * (size + 1)
    return int(position // (size + 1) if beyond < 0 else extra + beyond // size)


def class_bins(
    k: int, *, bins: int = BINS, edges: Edges = "right", threshold: float = 0.0, norm: str = "l1"
) -> ClassBins:
    """Return the class table that `classwise_ece` reads, whatever its norm."""
    return ClassBins(bins, edges, threshold if threshold >= 0 else 1 / k)


def _of_classes(k: int | None, options: Mapping[str, Any]) -> Range:
    """Narrow the range for k classes, as Σ_k |p_k - y_k| and its squares are at most 2."""
    return Range(0, math.sqrt(2 / k) if options["norm"] == "l2" else 2 / k) if k else UNIT


@_error(
    narrowed=_of_classes,
    reads=("confidence", "rest", "nll"),
    class_bins=class_bins,
    gaps="of_classes",
    label="classwise ECE",
    error=5,
)
def classwise_ece(
    sample: Sample,
    *,
    bins: Count = BINS,
    edges: Edges = "right",
    threshold: Annotated[float, Range(-1, 1)] = 0.0,
    norm: Literal["l1", "l2"] = "l1",
) -> Statistic:
    """Mean over classes of the ECE of p_k (Kull et al. 2019; `norm=l2`: marginal calibration error, Kumar et al. 2019).

    `threshold`: only p_k above it count; -1 stands for 1/K ("SCE-t", Nixon et al. 2019). Bins are equal-width on p_k.

    >>> round(calibcli.measure(logits, labels, "classwise_ece")["classwise_ece"].value, 4)
    0.0154
    """
    table = class_bins(sample.columns.k, bins=bins, edges=edges, threshold=threshold, norm=norm)
    return Classwise(sample, table, norm)


@dataclass(frozen=True, eq=False)
class Classwise(Statistic):
    """The mean over classes of their ECE, with an upper bound: Σ_k s_k (p_k - y_k) of a row is at most 2 (1 - p_y).

    There is no lower bound: the triangle inequality over K x bins cells is too wide to be of use.
    """

    sample: Sample
    bins: ClassBins
    norm: Literal["l1", "l2"]

    @property
    def table(self) -> ClassTable:
        return self.sample.columns.classes[self.bins]

    @cached_property
    def each(self) -> Floats:
        """(K,) calibration error of each class's probability."""
        table, total = self.table, self.sample.top.total
        gap = np.abs(table.sum_p - table.sum_y)
        if self.norm == "l1":
            return np.asarray(gap.sum(axis=1) / total)
        square = np.divide(gap**2, table.count, out=np.zeros_like(gap), where=table.count > 0)
        return np.asarray(np.sqrt(square.sum(axis=1) / total))

    @property
    def value(self) -> float:
        return float(self.each.mean()) if self.norm == "l1" else float(np.sqrt((self.each**2).mean()))

    def interval(self, level: float) -> Interval:
        columns, view = self.sample.columns, self.sample.top
        worst = float(self.each.max())  # the two of a binary problem differ by rounding alone: report the first
        detail = {"worst_class": int((self.each >= worst * (1 - 1e-9)).argmax()), "worst_value": worst}
        if columns.groups is not None:
            return Interval(reason=NO_GROUPS, detail=detail)
        null, null_high = self._null()
        common: dict[str, Any] = {"null": null, "null_high": null_high, "detail": detail}
        if self.norm == "l2":
            return Interval(reason="no bound: the largest gaps may be in cells with few rows", **common)
        (drawn, undrawn), variance = (2 / columns.k * step for step in view.largest_moves), 0.0
        for part in parts(view.n):
            share, moves = view.shares[part], np.expm1(-columns.nll[part]) * 2 / columns.k
            variance += float((share * moves * (1 / view.total if view.counts else share)) @ moves)
        return Interval(
            high=min(1.0, self.value + unseen_reach(normal_quantile(level), variance, drawn, undrawn)),
            level=level,
            sided="upper",
            how="one-sided upper bound; null level: expected absolute deviation of a binomial per cell",
            reason="no lower bound: K x bins cells make it too wide to use",
            **common,
        )

    def _null(self) -> tuple[float, float]:
        """Return mean and 95 % quantile under perfect calibration: independent binomial cells, a normal sum."""
        n, p, mean = calibrated_cells(self.table, self.sample.top)
        scale = 1 / (self.sample.top.effective * len(n))
        if self.norm == "l2":
            variance = p * (1 - p) * scale
            total = float(variance.sum())
            return math.sqrt(total), math.sqrt(total + 1.645 * math.sqrt(2 * float((variance**2).sum())))
        variance = np.maximum(n * p * (1 - p) - mean**2, 0)
        return float(mean.sum()) * scale, float(mean.sum() + 1.645 * math.sqrt(variance.sum())) * scale


def calibrated_cells(table: ClassTable, view: BinaryOutcomes) -> tuple[Floats, Floats, Floats]:
    """Return (K, bins) effective rows, mean probability, and expected deviation of hits of a calibrated model."""
    n = table.count / (view.total / view.effective)
    p = np.clip(np.divide(table.sum_p, table.count, out=np.zeros_like(n), where=n > 0), 0, 1)
    return n, p, mean_absolute_deviation(n.ravel(), p.ravel()).reshape(n.shape)


def mean_absolute_deviation(n: Floats, p: Floats) -> Floats:
    """Return E|X - n p| of a binomial: 2 e^{-λ} λ (no success drawn, λ = -n log(1-p)) while n p < 1, else near-normal.

    Uses De Moivre's 2 (1-p)^{n-m} p^{m+1} (m+1) C(n, m+1), m = floor(n p), for small means, where it is a few terms.
    """
    deviation = np.zeros(len(n))
    filled = np.flatnonzero((n > 0) & (p > 0))  # most cells of many classes are empty
    n, p = n[filled], p[filled]
    mean = n * p
    q = 1 - p
    swap = p > 0.5
    small, rare = np.where(swap, n * q, mean), np.where(swap, q, p)
    mean_deviation = np.sqrt(2 / math.pi * small * (1 - rare)) * (1 - 1 / (12 * np.maximum(small * (1 - rare), 1)))
    few = (small < 20) & (small > 0)
    x, r, size = small[few], rare[few], n[few]
    m = np.floor(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_choose = np.zeros_like(x)
        for j in range(1, int(m.max()) + 2 if len(m) else 1):
            more = np.flatnonzero(j <= m + 1)
            log_choose[more] += np.log(np.maximum(size[more] - j + 1, 1e-300)) - math.log(j)
        value = 2 * np.exp((size - m) * np.log1p(-r) + (m + 1) * np.log(r) + np.log(m + 1) + log_choose)
    mean_deviation[few] = np.where((r > 0) & (size >= m + 1), value, 0)
    deviation[filled] = mean_deviation
    return deviation
