"""One-sided bounds of the ECE of the population, from n rows: what PASS and FAIL of a gate on ECE need.

Row i has the residual r_i = p_i - y_i and the share w_i of the weight (1/n without weights). In bin b the gap of the
population is d_b = E[r 1_b], which the rows estimate by d̂_b = Σ w_i r_i over the rows of the bin. Let s_b be the sign
of d_b. Then

    ECE = Σ |d_b| = s·d,    its estimate E = Σ |d̂_b|,    unit = Σ w_i² = 1 / n_eff,
    spread_b = Σ w_i² r_i² over the bin: the variance of d̂_b about 0, a little more than that about d_b.

- Plain upper bound: ECE = s·d <= E + s·(d - d̂), the noise of one mean, with what rows not drawn may cost.
- Plain lower bound: E - ECE <= Σ|d̂_b - d_b|, whose quantile is that of normal bins.
- Sharp bounds, for independent rows: from the worst case that the data leave open (`sharp_upper`), and from signs that
  the rows themselves predict (`signed`). The plain ones assume all signs known above, and all gaps 0 below.

Proofs: docs/statistics/binned-bounds.md.
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
    group_places,
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
LEAST_Z = 0.994  # the smallest z that has a sharp upper bound: that of alpha = .16, rounded down

DUAL_SCALES = (0.6, 0.7, 0.8, 0.9, 1.0)
"""Values of s in √V <= V/(2s) + s/2, as shares of the largest √V. It is an equality at s = √V, and √V is between
(1 - 2/π)^½ = .603 of the largest (all gaps 0) and all of it (all gaps large). Any s gives a bound."""
MULTIPLIERS = np.linspace(0, 1, 21)
"""(M,) values of ν, the slopes of the lines; beyond 1 there is no minimum over x, as f(x) - x is bounded."""


def sharp_upper(
    value: float, plain: float, d: Floats, spread: Floats, fourth: Floats, unit: float, alpha: float
) -> float:
    """Return the largest ECE that E does not contradict at level alpha.

    With normal bins, d̂_b = d_b + σ_b Z_b, so that a bin adds σ_b |x_b + Z_b| to E, where x_b = |d_b| / σ_b. Let f(x)
    and v(x) be the mean and the variance of |x + Z|. Then E has the mean μ = Σ σ_b f(x_b) and the variance
    V = Σ σ_b² v(x_b), to which one is added for rows that were not drawn. Where z >= 1, its α quantile is at least
    μ - z √V: sums of |x + Z| are skewed to the right, by κ, which moves the quantile by √V (z² - 1) κ / 6. Where z < 1
    (alpha > .16) that is a move to the left. The plain bound, which needs no such quantile, is returned there.

    An ECE of τ is contradicted when E is below that quantile for every way to spread τ over the bins. So the bound is
    the largest τ with min {μ(d) - z √V(d) : Σ|d_b| = τ} <= E. `_quantile` bounds that minimum from below by a maximum
    of rising lines in τ, and the crossing of E with these lines is at or above the one that is sought.

    E is raised to `_usual_low` first, which can only raise the bound: chance may make the E of a calibrated model so
    low that it would contradict every τ, and the bound would then be 0. The bound may be below E, which is too large
    where many gaps are small.

    Args:
        value: E.  plain: the plain upper bound, which is returned where this one is larger, where no bin has enough
            rows for it, and where alpha is above .16.
        d: (B,) signed gaps d̂.
        spread: (B,) Σ w² r², the variance of d̂ about 0.
        fourth: (B,) Σ w⁴ r⁴, the sampling variance of `spread`.
        unit: Σ w² = 1 / n_eff.  alpha: error probability, at most 1/2.
    """
    z = normal_quantile(1 - alpha)
    least = _known_deviation(d, spread, fourth, unit)
    if z < LEAST_Z or not least.any():
        return plain
    # (plain - E)² = z² (Σ spread + the variance that stands for rows that were not drawn, in no bin in particular)
    undrawn_variance = max(((plain - value) / z) ** 2 - float(spread.sum()), 0.0)
    raised = max(value, _usual_low(least))
    return min(plain, _quantile(least, spread, undrawn_variance, z).reaching(raised))


def sharp_largest(
    limit: float, length: float, d: Floats, spread: Floats, fourth: Floats, unit: float, alpha: float
) -> float:
    """Return the largest E whose upper bound by `sharp_upper` is at most `limit`: what a plan calls a PASS.

    That bound is the smaller of two. The plain one is E + length, so it allows E <= limit - length. The sharp one is at
    most `limit` for E up to the height of the lines at τ = limit, provided that E is not raised to more than that: if
    `_usual_low` is higher, no E has a sharp bound within the limit.

    Args:
        length: distance of the plain bound from E.  Others as for `sharp_upper`.
    """
    z = normal_quantile(1 - alpha)
    least = _known_deviation(d, spread, fourth, unit)
    if z < LEAST_Z or not least.any():
        return limit - length
    undrawn_variance = max((length / z) ** 2 - float(spread.sum()), 0.0)
    height = _quantile(least, spread, undrawn_variance, z).at(limit)
    return max(limit - length, height if height >= _usual_low(least) else -math.inf)


def _known_deviation(d: Floats, spread: Floats, fourth: Floats, unit: float) -> Floats:
    """Return (B,) lower bounds of σ_b, the standard deviation of d̂_b about its mean; 0 where rows are too few.

    σ_b² = spread_b - CAUTION · (standard error of spread_b) - d̂_b² unit: the last term turns the second moment about 0
    into one about the mean. spread² / fourth = (Σ w²r²)² / Σ w⁴r⁴ is the number of rows of equal w²r² that would
    measure the variance as well; below EVENTS of them it is not relied on.
    """
    enough = np.divide(spread**2, fourth, out=np.zeros_like(spread), where=fourth > 0) >= EVENTS
    return np.sqrt(np.where(enough, np.maximum(spread - CAUTION * np.sqrt(fourth) - d**2 * unit, 0), 0))


def _usual_low(least: Floats) -> float:
    """Return the mean of E for a perfectly calibrated model, less one standard deviation; five of six such are above.

    Σ σ_b |Z_b| has the mean (2/π)^½ Σ σ_b and the variance (1 - 2/π) Σ σ_b². A lower E is no evidence of being better
    than perfect. One standard deviation is a choice: any floor keeps the level, a higher one makes bounds longer.
    """
    return _mean_norm(least) - math.sqrt((1 - 2 / math.pi) * float(least @ least))


def _mean_norm(deviations: Floats) -> float:
    """Return the mean of ‖G‖₁ for normal numbers G with these deviations about 0: (2/π)^½ Σ σ_b."""
    return math.sqrt(2 / math.pi) * float(deviations.sum())


class _Lines(NamedTuple):
    """A lower bound of the α quantile of E over all gaps with Σ|d_b| = τ: as a function of τ the maximum of lines.

    Attributes:
        duals: (S, M) values at τ = 0 of lines whose slopes are MULTIPLIERS, a row for each of DUAL_SCALES.
        whole: that of a line of slope 1 that holds whatever the gaps.
    """

    duals: Floats
    whole: float

    def at(self, tau: float) -> float:
        """Return the bound at τ."""
        return max(float((self.duals + MULTIPLIERS * tau).max()), self.whole + tau)

    def reaching(self, value: float) -> float:
        """Return the largest τ where the bound is at most `value`; 0 where it never is.

        A line c + ν τ is at most `value` up to τ = (value - c) / ν. One of slope 0 always is, or never.
        """
        if self.duals[:, 0].max() > value:
            return 0.0
        return max(0.0, min(value - self.whole, float(((value - self.duals[:, 1:]) / MULTIPLIERS[1:]).min())))


def _quantile(least: Floats, spread: Floats, undrawn_variance: float, z: float) -> _Lines:
    """Bound min {μ(d) - z √V(d) : Σ|d_b| = τ} of `sharp_upper` from below, by lines in τ (Lagrange duality).

    As √V <= V/(2s) + s/2 for every s > 0, and a minimum under Σ|d_b| = τ is at least ν τ plus the minimum over all d of
    the same less ν Σ|d_b|, each s and ν give a line, in which each bin has a minimum of its own over x:

        line(τ) = ν τ + Σ_b min_x [σ f(x) - z/(2s) σ² v(x) - ν σ x] - z/2 (remainder / s + s)

    σ_b is between least_b and spread_b^½. Mean and variance rise with it, so the mean is taken at `least`, and the
    variance at `spread`: with x = |d| / least, at x least / spread^½. A bin without a known deviation has at least the
    mean |d_b| >= ν |d_b|; its variance is in `remainder`. On the grid of x, .1 apart, a minimum is too high by at most
    .1² / 8 · max f'' = .001 σ. The line of slope 1, E >= τ - z S with S² = Σ spread + undrawn, holds whatever the gaps,
    as E >= s·d̂. Proof: docs/statistics/binned-bounds.md.
    """
    x, mean, variance, products = _folded()  # (X,), (X,), (X,), (X, 1, M)
    largest = math.sqrt(float(spread.sum()) + undrawn_variance)
    reliable = least > 0
    remainder = float(spread[~reliable].sum()) + undrawn_variance
    low, high = least[reliable], spread[reliable]  # (K,) of the K bins with a known deviation
    variances = high * np.interp(x[:, None] * (low / np.sqrt(high)), x, variance)  # (X, K)
    slopes = low.astype(np.float32)[:, None] * products  # (X, K, M) ν σ x; float32 takes half the time
    duals = np.empty((len(DUAL_SCALES), len(MULTIPLIERS)))
    for row, scale in enumerate(DUAL_SCALES):
        s = scale * largest
        of_bins = (low * mean[:, None] - z / 2 / s * variances).astype(np.float32)  # (X, K)
        smallest = (of_bins[:, :, None] - slopes).min(axis=0)  # (X, K, M) -> (K, M)
        duals[row] = smallest.sum(axis=0, dtype=np.float64) - z / 2 * (remainder / s + s)
    return _Lines(duals, -z * largest)


@lru_cache(maxsize=1)
def _folded() -> tuple[Floats, Floats, Floats, npt.NDArray[np.float32]]:
    """Tabulate the folded normal |x + Z|: (X,) x, (X,) its mean f, (X,) its variance v, and (X, 1, M) the products x ν.

    f(x) = 2 φ(x) + x (2 Φ(x) - 1), where 2 Φ(x) - 1 = erf(x / √2), and v(x) = 1 + x² - f(x)². The last x stands for
    infinity: from 4 on f(x) = x and v(x) = 1 but for 2e-4, so that nothing changes in between.
    """
    x = np.append(np.linspace(0, 4, 41), 60.0)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    mean = 2 * density + x * np.array([math.erf(v / math.sqrt(2)) for v in x])
    products = (x[:, None] * MULTIPLIERS)[:, None].astype(np.float32)
    return x, mean, np.maximum(1 + x * x - mean**2, 0), products


def signed(d: Floats, variance: Floats, alpha: float) -> Floats:
    """Return a lower bound of the ECE by signs that are fixed before a row is looked at: whatever they are, s·d <= ECE.

    For such signs Σ w_i s_i r_i is below the ECE in expectation and has at most the variance Σ_b variance_b. Three
    choices of signs are tried, each with a third of alpha, and the best one is taken:

    - 1 and 2: the same sign for every row, + or -, which together give |Σ d̂_b|;
    - 3: for each row the sign of the sum of the earlier rows of its bin. Averaged over all orders of the rows, which
      keeps the expectation and does not raise the variance, a bin of many rows gives

          |d̂| - σ M(|d̂| / σ),   M(x) = Φ(-x) / φ(x) (Mills' ratio).

      For the sum W of the rows in order is a Brownian bridge from 0 to x = d̂/σ, and ∫ sign(W) dW = |W_1| - L with L
      its local time at 0 (Tanaka). P(L > l | W_1 = x) = exp(-(l² + 2 l |x|) / 2), whose integral over l is M(|x|).

    Args:
        d: (..., B) signed gaps d̂.  variance: (..., B) of d̂, σ².  alpha: error probability.

    Returns:
        (...,) bounds, which may be negative.
    """
    sigma = np.sqrt(variance)
    x = np.divide(np.abs(d), sigma, out=np.zeros_like(d), where=sigma > 0)
    foretold = (np.abs(d) - sigma * _mills(x)).sum(axis=-1)
    same = np.abs(d.sum(axis=-1))
    lower = np.maximum(same, foretold) - normal_quantile(1 - alpha / 3) * np.sqrt(variance.sum(axis=-1))
    return np.asarray(lower)


MILLS_END, MILLS_STEPS = 8, 500  # end of the table of Mills' ratio, and its steps to 1


def _mills(x: Floats) -> Floats:
    """Return Φ(-x) / φ(x) for x >= 0, to 1e-6: interpolated, beyond 8 by its series 1/x - 1/x³ + 3/x⁵ - 15/x⁷ + ..."""
    values = _mills_grid()
    place = np.minimum(x, MILLS_END) * MILLS_STEPS
    below = np.minimum(place.astype(np.intp), MILLS_END * MILLS_STEPS - 1)
    ratio = np.asarray(values[below] + (place - below) * (values[below + 1] - values[below]))
    beyond = x >= MILLS_END
    far = 1 / x[beyond]
    ratio[beyond] = far * (1 - far**2 * (1 - far**2 * (3 - far**2 * (15 - 105 * far**2))))
    return ratio


@lru_cache(maxsize=1)
def _mills_grid() -> Floats:
    """Tabulate Φ(-x) / φ(x) at 0, 1/500, ..., 8."""
    grid = np.linspace(0, MILLS_END, MILLS_END * MILLS_STEPS + 1)
    tail = np.array([math.erfc(x / math.sqrt(2)) / 2 for x in grid])
    return np.asarray(tail * np.exp(grid**2 / 2) * math.sqrt(2 * math.pi))


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
        view: probabilities and hits.  table: their equal-width bins, whose `weighted_gap` is d̂, (B,), and
            `gap_variance` Σ w² r², (B,); `null_variance` is Σ w² p (1 - p), the variance of d̂ under calibration.
        alpha: error probability of each bound.
        family: number of claims made together; the lower bound holds at 1 - alpha / family.
        method: `sharp` (see above; without groups), or `score`.
    """
    d = table.weighted_gap
    value = float(np.abs(d).sum())
    error = alpha / family  # of the lower bound
    level = 1 - error
    inside = max(level, 0.5 + 1e-6)  # for the ratio of two quantiles, which are both 0 at 1/2
    if view.groups is None:
        count, effective = None, math.inf
        covariance = table.gap_variance  # (B,): a row lies in one bin, so that Σ w² r r' is 0 between bins
        largest_moves = view.largest_moves  # of E, by one row that was drawn and by one that was not
        z, z_lower = normal_quantile(1 - alpha), normal_quantile(inside)
    else:
        covariance, sizes = _grouped(view, view.groups, table)  # (B, B), and (G,) shares of the groups
        count, effective = len(sizes), effective_groups(sizes)
        # A group may be wrong as a whole. One that was drawn moves E at the rate Σ c³ / Σ c² of `unseen_reach`, c = its
        # share, which is put at Σ share², the share of the group of the average row. One that was not may be the
        # largest.
        largest_moves = float(sizes @ sizes), float(sizes.max())
        degrees = max(effective, FEWEST_GROUPS) - 1  # below that there are no bounds, only the level if calibrated
        z, z_lower = student_quantile(1 - alpha, degrees), student_quantile(inside, degrees)
        method = "score"

    # Σ |covariance| is the largest variance of s·d̂ over all choices of signs s
    upper = min(1.0, value + unseen_reach(z, float(np.abs(covariance).sum()), *largest_moves))

    # Rows that look too good by chance show too little noise. A calibrated model has that of its confidences.
    lacking = np.maximum(table.null_variance - variances(covariance), 0)
    noise = covariance + (lacking if view.groups is None else np.diag(lacking))
    null_noise = table.null_variance if view.groups is None else noise
    null_high = norm_quantile(null_noise, NULL, table.seed)

    if method == "sharp":
        assert table.index is not None
        # (B,) Σ w⁴ r⁴; the 4 is the power of the shares, counts are numbers of rows and enter once
        fourth = view.sums(table.index, len(d), lambda part: np.square(np.square(view.residual[part])), 4)
        upper = sharp_upper(value, upper, d, table.gap_variance, fourth, float(table.weight_variance.sum()), alpha)
        lower = float(signed(d, noise, error * (1 - WHOLE)))
        whole_level = 1 - error * WHOLE
        # The plain bound is E less a quantile that costs a simulation. That quantile is no smaller than `null_high`,
        # which is one at a lower level and of no larger variances. So where E - null_high does not exceed the bound by
        # signs, the plain bound does not either, and is not computed.
        if whole_level < NULL or value - null_high > max(lower, 0.0):
            lower = max(lower, value - norm_quantile(noise, whole_level, table.seed))
    else:
        # a normal quantile, lengthened as Student's t is for groups
        lower = value - norm_quantile(noise, level, table.seed) * z_lower / normal_quantile(inside)

    reason = few_groups(count, effective) if count and effective < FEWEST_GROUPS else ""
    return Bounds(
        value=value,
        lower=0.0 if reason else max(0.0, lower),
        upper=1.0 if reason else upper,
        reason=reason,
        floor=_mean_norm(np.sqrt(variances(null_noise))),
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
    """Return the covariance (B, B) of d̂ from signed group sums, and the share (G,) of each group in the weight.

    The rows of a group may all be wrong together, so groups are the independent draws. With u_gb = Σ w_i r_i over the
    rows of group g in bin b, d̂_b = Σ_g u_gb, and the covariance is G / (G - 1) Σ_g u_gb u_gc. As for rows, it is about
    0, not about the mean. So it is not too small even without the factor, which belongs to sums about the mean and
    lengthens the bounds by 5 % at 10 groups.
    """
    from scipy.sparse import coo_array

    labels, member = group_places(groups)
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
    """Return a quantile of ‖G‖₁ = Σ|G_b|, G ~ N(0, covariance): simulated, far in the tail its concentration bound.

    That is Borell's inequality. As a function of the draws behind G the norm changes at most σ times as fast as they,
    where σ² = max_s Var(s·G) over all signs s. So it is beyond its median + z σ with at most the probability of a
    normal number beyond z. Here σ² is bounded by Σ |covariance|.

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
            draws = normals((DRAWS, bins), seed).reshape(-1, DRAWS // 20, bins)  # (20, DRAWS / 20, B)
            norms = np.concatenate([np.abs(part) @ deviations for part in draws])
    else:
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))  # (B, B), root root' = covariance
        norms = np.abs(normals((DRAWS, len(variance)), seed) @ root.T).sum(axis=1)
    if (1 - level) * DRAWS >= FEWEST_BEYOND:
        return unit * quantile(norms, level)
    steepest = math.sqrt(float(np.abs(covariance).sum()))
    return unit * quantile(norms, 0.5) + steepest * normal_quantile(level)
