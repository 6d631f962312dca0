"""One-sided bounds of the ECE of the population, from n rows: what PASS and FAIL of a gate on ECE need.

With r = p - y per row, d_b = mean(r in bin b) and s the true signs of d: ECE = s·d. The estimate is E = Σ|d̂_b|.

- Upper: ECE = s·d <= E + s·(d - d̂), and the variance of s·d̂ is at most E[r²]/n. `core.statistics.unseen_reach` also
  allows for errors of rows that were not drawn: without that a saturated model with no error among its rows would get
  an interval of length nearly 0.
- Lower: E - ECE <= ‖d̂ - d‖₁ (triangle inequality), whose quantile is that of normal bins with variance
  max(mean r² 1_b, mean p(1-p) 1_b)/n.

`method=sharp` has shorter bounds for independent rows. The plain bounds assume the worst case: above, that the sign of
every bin is known (E then has no upward bias, although it has one wherever a gap is small beside its noise); below,
that every bin is calibrated (E then has all of that bias, although it has none where a gap is clearly there). The sharp
bounds use, above, the worst case that the data leave open, and below, signs that the rows themselves predict. With
normal bins, d̂_b = d_b + σ_b Z_b and x_b = |d_b|/σ_b, a bin adds σ_b |x_b + Z_b| to the estimate E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from calibcli.core.statistics import (
    effective_groups,
    normal_quantile,
    normals,
    quantile,
    student_quantile,
    unseen_reach,
)
from calibcli.metrics.intervals import FEWEST_GROUPS, few_groups
from calibcli.metrics.reliability import BinaryOutcomes, Bins
from calibcli.scores.predictions import Floats

EVENTS = 10.0  # effective rows behind the variance of a bin, below which its bias is not relied on
CAUTION = 1.0  # standard errors by which the variance of a bin is lowered before its bias is relied on
WHOLE = 0.2  # share of alpha for the plain lower bound; the rest is for that by signs
NEAR = np.array([0.6, 0.7, 0.8, 0.9, 1.0])[:, None]  # s of the duals, as shares of the largest √V
MULTIPLIERS = np.linspace(0, 1, 21)  # values of ν


def sharp_upper(
    value: float, plain: float, d: Floats, spread: Floats, fourth: Floats, unit: float, alpha: float
) -> float:
    """Return the largest ECE that E does not contradict at level alpha.

    An ECE of τ is contradicted when E is below the α quantile of E for every way to spread τ over the bins. That
    quantile is at least min_d [μ(d) - z √V(d)], μ = Σ σ f(x), V = Σ σ² v(x), f and v mean and variance of |x + Z|
    (sums of |x + Z| are skewed to the right, so the normal quantile is too low). The minimum is bounded from below by
    duality: √V <= V/(2s) + s/2 for every s makes it separable, a multiplier ν takes care of Σ|d_b| = τ.

    Args:
        value: E.  plain: the plain bound, never exceeded.
        d: (B,) signed gaps.
        spread: (B,) Σ (r_i/n)², the variance of d̂_b about 0.  fourth: (B,) Σ (r_i/n)⁴, its sampling error squared.
        unit: 1 / n_eff.
    """
    z = normal_quantile(1 - alpha)
    least = _known_deviation(d, spread, fourth, unit)
    # the variance that the plain bound adds for rows that were not drawn, in no bin in particular
    undrawn_variance = max(((plain - value) / z) ** 2 - float(spread.sum()), 0.0)
    value = max(value, _usual_low(least))
    return min(plain, _quantile(least, spread, undrawn_variance, z).reaching(value)) if least.any() else plain


def sharp_largest(
    limit: float, length: float, d: Floats, spread: Floats, fourth: Floats, unit: float, alpha: float
) -> float:
    """Return the largest E whose upper bound is at most `limit`.

    Args:
        length: distance of the plain bound from E.  Others as for `sharp_upper`.
    """
    z = normal_quantile(1 - alpha)
    least = _known_deviation(d, spread, fourth, unit)
    undrawn_variance = max((length / z) ** 2 - float(spread.sum()), 0.0)
    most = _quantile(least, spread, undrawn_variance, z).at(limit) if least.any() else 0.0
    return max(limit - length, most if most >= _usual_low(least) else -math.inf)


def _known_deviation(d: Floats, spread: Floats, fourth: Floats, unit: float) -> Floats:
    """Bound the standard deviation of each gap about its mean from below: less its error; 0 where rows are too few."""
    known = np.divide(spread**2, fourth, out=np.zeros_like(spread), where=fourth > 0) >= EVENTS
    return np.sqrt(np.where(known, np.maximum(spread - CAUTION * np.sqrt(fourth) - d**2 * unit, 0), 0))


def _usual_low(least: Floats) -> float:
    """Return an E that nearly no model is below: a lower one is no evidence of being better than perfect."""
    return _mean_norm(least) - math.sqrt((1 - 2 / math.pi) * float(least @ least))


def _mean_norm(deviations: Floats) -> float:
    """Return the mean of ‖G‖₁ for normal numbers G with these deviations about 0."""
    return math.sqrt(2 / math.pi) * float(deviations.sum())


class _Lines(NamedTuple):
    """A lower bound of the α quantile of E over all gaps with Σ|d_b| = τ: as a function of τ the maximum of lines.

    Attributes:
        duals: (len(NEAR), len(MULTIPLIERS)) values at τ = 0 of lines with the slopes MULTIPLIERS.
        whole: that of the line with slope 1 that holds whatever the gaps.
    """

    duals: Floats
    whole: float

    def at(self, tau: float) -> float:
        """Return the bound at τ."""
        return max(float((self.duals + MULTIPLIERS * tau).max()), self.whole + tau)

    def reaching(self, value: float) -> float:
        """Return the largest τ where the bound is at most `value`; 0 where it never is."""
        if self.duals[:, 0].max() > value:
            return 0.0
        return max(0.0, min(value - self.whole, float(((value - self.duals[:, 1:]) / MULTIPLIERS[1:]).min())))


def _quantile(least: Floats, spread: Floats, undrawn_variance: float, z: float) -> _Lines:
    """Compute the duals, and the line that holds whatever the gaps: E is at least τ - z s."""
    x, mean, variance, products = _folded()
    s, on = math.sqrt(float(spread.sum()) + undrawn_variance), least > 0
    rest, size, spread = float(spread[~on].sum()) + undrawn_variance, least[on], spread[on]
    variances = spread * np.interp(x[:, None] * (size / np.sqrt(spread)), x, variance)
    shares = NEAR * s  # the s of each dual; in (s, x, B, ν) a minimum over x is vectorised, in float32 twice as well
    of_gaps = (size * mean[:, None] - (z / 2 / shares)[..., None] * variances).astype(np.float32)
    terms = of_gaps[..., None] - size.astype(np.float32)[:, None] * products
    return _Lines(terms.min(axis=1).sum(axis=1, dtype=np.float64) - z / 2 * (rest / shares + shares), -z * s)


@lru_cache(maxsize=1)
def _folded() -> tuple[Floats, Floats, Floats, npt.NDArray[np.float32]]:
    """Tabulate mean and variance of |x + Z| at some x, of which the last stands for infinity, and (x, 1, ν) of x ν."""
    x = np.append(np.linspace(0, 4, 41), 60.0)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    mean = 2 * density + x * np.array([math.erf(v / math.sqrt(2)) for v in x])
    products = (x[:, None] * MULTIPLIERS)[:, None].astype(np.float32)
    return x, mean, np.maximum(1 + x * x - mean**2, 0), products


def signed(d: Floats, variance: Floats, alpha: float) -> Floats:
    """Return a lower bound by signs that are fixed before a row is looked at: whatever they are, s·d <= ECE.

    Three claims, each with a third of alpha: the same sign for every row, |Σ d̂_b|, with both signs; and the sign of the
    sum of the earlier rows of the bin. In the last Σ_i s_i r_i is a sum whose expectation, row by row, is at most the
    ECE and whose variance is at most that of Σ d̂. Averaged over all orders of the rows it is, for a bin of many,

        |d̂| - σ M(|d̂| / σ),   M(x) = Φ(-x) / φ(x) (Mills' ratio):

    the sum W of the rows in order is a Brownian bridge to d̂/σ, ∫ sign(W) dW = |W_1| - L with L its local time at 0
    (Tanaka), and P(L > l | W_1 = x) = exp(-(l² + 2 l |x|) / 2). So no order has to be drawn.

    Args:
        d: (..., B) signed gaps.  variance: (..., B) of d̂.  alpha: error probability.
    """
    sigma = np.sqrt(variance)
    x = np.divide(np.abs(d), sigma, out=np.zeros_like(d), where=sigma > 0)
    foretold = (np.abs(d) - sigma * _mills(x)).sum(axis=-1)
    same = np.abs(d.sum(axis=-1))
    lower = np.maximum(same, foretold) - normal_quantile(1 - alpha / 3) * np.sqrt(variance.sum(axis=-1))
    return np.asarray(lower)


def _mills(x: Floats) -> Floats:
    """Return Φ(-x) / φ(x) for x >= 0, to 1e-6: interpolated, beyond 8 by its series."""
    values, at = _mills_grid(), np.minimum(x, 8) * 500
    below = np.minimum(at.astype(np.intp), 3999)
    near = np.asarray(values[below] + (at - below) * (values[below + 1] - values[below]))
    beyond = x >= 8
    far = 1 / x[beyond]
    near[beyond] = far * (1 - far**2 * (1 - far**2 * (3 - far**2 * (15 - 105 * far**2))))
    return near


@lru_cache(maxsize=1)
def _mills_grid() -> Floats:
    """Tabulate Φ(-x) / φ(x) at 0, 1/500, ..., 8."""
    grid = np.linspace(0, 8, 4001)
    half = np.array([math.erfc(x / math.sqrt(2)) / 2 for x in grid])
    return np.asarray(half * np.exp(grid**2 / 2) * math.sqrt(2 * math.pi))


NULL = 0.95  # level of the quantile under calibration
DRAWS = 20_000
FEW_BINS = 32  # up to which the sizes of the draws are kept, 2.5 MB at the most for each number of bins
FEWEST_BEYOND = 50  # draws beyond a quantile below which the simulated quantile is replaced by its analytic bound
Method = Literal["score", "sharp"]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The plug-in ECE and its one-sided bounds.

    Attributes:
        value: E, the binned calibration error of these rows.
        lower, upper: each holds with probability 1 - alpha (lower: 1 - alpha / family).
        reason: why there are no bounds (they are then 0 and 1, which hold for any model), or "".
        floor: the E to expect of a perfectly calibrated model with these confidences.
        null_high: quantile of E at NULL, 95 %, under perfect calibration (normal bins).
        n: rows (the sum of the weights when they are counts).
        n_eff: (Σw)²/Σw²; equal to n without sampling weights.
        groups: number of groups of the rows, or None.  effective: see `core.statistics.effective_groups`.
        alpha, family: as passed.  method: the one used.
    """

    value: float
    lower: float
    upper: float
    reason: str
    floor: float
    null_high: float
    n: int
    n_eff: float
    groups: int | None
    effective: float
    alpha: float
    family: int
    method: Method


def table_bounds(
    view: BinaryOutcomes, table: Bins, *, alpha: float = 0.05, family: int = 1, method: Method = "sharp"
) -> Bounds:
    """Return the ECE of a table of equal-width bins, with one-sided bounds of its population value.

    For rows in groups, variances come from signed group sums per bin, and quantiles from Student's t with G_eff - 1
    degrees; below 10 effective groups there are no bounds.

    Args:
        view: probabilities and hits.  table: their equal-width bins.
        alpha: error probability of each bound.
        family: number of claims made together; the lower bound holds at 1 - alpha / family.
        method: `sharp` (see above; without groups), or `score`.
    """
    d, null, value = table.weighted_gap, table.null_variance, float(np.abs(table.weighted_gap).sum())
    level, count, effective = 1 - alpha / family, None, math.inf
    if view.groups is None:
        covariance, steps = table.gap_variance, view.steps
        z, z_lower = normal_quantile(1 - alpha), normal_quantile(level)
    else:
        covariance, sizes = _grouped(view, view.groups, table)
        count, effective = len(sizes), effective_groups(sizes)
        steps = float(sizes @ sizes), float(sizes.max())
        degrees = max(effective, FEWEST_GROUPS) - 1  # below that there are no bounds, only the level if calibrated
        z, z_lower = (student_quantile(at, degrees) for at in (1 - alpha, level))
        method = "score"
    # the largest variance of s·d̂ over every choice of signs s
    upper = min(1.0, value + unseen_reach(z, float(np.abs(covariance).sum()), *steps))
    more = np.maximum(null - variances(covariance), 0)
    calibrated = covariance + (more if view.groups is None else np.diag(more))
    free = null if view.groups is None else calibrated  # variances, or covariance, of the gaps of a calibrated model
    null_high = norm_quantile(free, NULL, table.seed)
    if method == "sharp":
        assert table.index is not None
        residual = view.residual
        fourth = view.sums(table.index, len(d), lambda part: np.square(np.square(residual[part])), 4)
        upper = sharp_upper(value, upper, d, table.gap_variance, fourth, float(table.weight_variance.sum()), alpha)
        lower, of_whole = float(signed(d, calibrated, alpha / family * (1 - WHOLE))), 1 - alpha / family * WHOLE
        # no variance is below that under calibration: where its quantile is too far already, this one is
        if of_whole < NULL or value - null_high > max(lower, 0.0):
            lower = max(lower, value - norm_quantile(calibrated, of_whole, table.seed))
    else:
        lower = value - norm_quantile(calibrated, level, table.seed) * z_lower / normal_quantile(level)
    spread = np.sqrt(variances(free))
    reason = few_groups(count, effective) if count and effective < FEWEST_GROUPS else ""
    return Bounds(
        value=value,
        lower=0.0 if reason else max(0.0, lower),
        upper=1.0 if reason else upper,
        reason=reason,
        floor=_mean_norm(spread),
        null_high=null_high,
        n=round(view.total) if view.counts else view.n,
        n_eff=view.effective,
        groups=count,
        effective=effective,
        alpha=alpha,
        family=family,
        method=method,
    )


def _grouped(view: BinaryOutcomes, groups: Any, table: Bins) -> tuple[Floats, Floats]:
    """Return the covariance (B, B) of d̂ from signed group sums, and the share (G,) of each group.

    The rows of a group may all be wrong together. So one group that was drawn moves a sum by the sum of the squared
    shares, the mean share of the group of a row, and one that was not by the largest share.
    """
    from scipy.sparse import coo_array

    labels, member = np.unique(groups, return_inverse=True)
    count, bins = len(labels), len(table.weight)
    sums = coo_array((view.shares * view.residual, (member, table.index)), shape=(count, bins)).tocsr()
    covariance = (sums.T @ sums).toarray() * (count / max(count - 1, 1))
    return covariance, np.bincount(member, weights=view.shares).astype(np.float64)


def variances(covariance: Floats) -> Floats:
    """Return the (B,) variances of a covariance (B, B), or of independent numbers, which is given by its variances."""
    return covariance if covariance.ndim == 1 else np.diag(covariance)


@lru_cache(maxsize=16)
def _sizes(bins: int, seed: int) -> npt.NDArray[np.float32]:
    """Return (bins, DRAWS) absolute values of `normals`, bin by bin and in float32, whose rounding is a hundred
    thousandth of the error of a simulated quantile: so a product with them takes a quarter of the time.
    """
    return np.ascontiguousarray(np.abs(normals((DRAWS, bins), seed)).T.astype(np.float32))


def norm_quantile(covariance: Floats, level: float, seed: int) -> float:
    """Return a quantile of ‖G‖₁, G ~ N(0, covariance): simulated, far in the tail its concentration bound.

    Args:
        covariance: (B, B), or (B,) variances of independent numbers.
    """
    variance, unit = variances(covariance), 1.0
    if not variance.any():
        return 0.0
    if covariance.ndim == 1 or np.array_equal(covariance, np.diag(variance)):
        if np.count_nonzero(variance) == 1:  # |N(0, σ²)|: exact
            return math.sqrt(variance.sum()) * normal_quantile((1 + level) / 2)
        bins, deviations = len(variance), np.sqrt(variance)
        if bins <= FEW_BINS:
            filled, unit = np.flatnonzero(variance), float(deviations.max())  # so that nothing underflows in float32
            used = slice(filled[0], filled[-1] + 1)
            norms = (deviations[used] / unit).astype(np.float32) @ _sizes(bins, seed)[used]
        else:  # some draws at a time: a copy of all would be as large as they are
            draws = normals((DRAWS, bins), seed).reshape(-1, DRAWS // 20, bins)
            norms = np.concatenate([np.abs(part) @ deviations for part in draws])
    else:
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))
        norms = np.abs(normals((DRAWS, len(variance)), seed) @ root.T).sum(axis=1)
    if (1 - level) * DRAWS >= FEWEST_BEYOND:
        return unit * quantile(norms, level)
    # Borell's inequality: the norm is Lipschitz in the draws with constant max_s sd(s·G)
    steepest = math.sqrt(float(np.abs(covariance).sum()))
    return unit * quantile(norms, 0.5) + steepest * normal_quantile(level)
