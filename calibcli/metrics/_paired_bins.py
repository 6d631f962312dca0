"""The difference of two binned errors on the same rows, with small bias where the sign of a gap is not sure.

Row i has the weight w_i, W is the sum of the weights, and each of two models has residuals r_i = p_i - y_i.
The bins of both models stand one after another, B in all. Row i has the share h_ib in bin b: 1 in its own bin, unless a
cut between two bins divides the tie of the row. So the gap of bin b is

    d̂_b = Σ_i w_i h_ib r_i / W,    of the population δ_b;    the error of a model is Σ |δ_b| over its bins.

`difference` gives Σ |δ_b| of the second model less that of the first, with an interval; `Gaps` has the theory.
Derivations: docs/statistics/paired-bins.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from calibcli.core.statistics import (
    bisect,
    effective_groups,
    group_places,
    inverted,
    normal_quantile,
    normals,
    student_quantile,
    two_sided,
)
from calibcli.metrics.discrimination import ties
from calibcli.metrics.intervals import FEWEST_GROUPS, WeightedMean
from calibcli.metrics.reliability import BinaryOutcomes, Bins
from calibcli.scores.predictions import Floats, Ints

SIZES = np.array([-1.35, -0.76, 0.65, 2.15, 2.93, 2.96, 2.85, 2.8, 4.0])
"""g(x) at x = 0, 1/2, ..., 4, linear between and x beyond. Let β(μ) = E g(|μ + Z|) - |μ|, the bias at a gap of μ
standard errors. For every μ, |β| <= .165, |β'| <= 1 and Var g <= 2.4."""
SURE = 4.0  # standard errors from which a gap has its sign, so that g(x) = x
BIASED = 0.16  # β(0); elsewhere |β| is at most .164, at μ = .7
UNSURE = 3.0  # standard errors up to which a gap is taken to have that bias; farther out |β| is at most .08
SCALES = (1.0, 4.0, 16.0, 64.0)  # squared sizes of gaps in the priors, in squared standard errors
SMOOTH = 4.0  # bins over which gaps are alike in the smooth priors
JITTER = 1e-5  # variance added to noise of variance 1, so that the Cholesky factor of a singular covariance is there
ROUNDED = 1e-10  # share of the largest variance up to which a variance is rounding
LEAST = 0.1  # smallest factor on a variance that moves with its gap, so that it stays positive
DRAWS = 800
ROUNDING = 1e-9  # share of the total weight that is rounding of sums
TOLERANCE = 1e-9  # relative, of the length of an interval
WIDEST = 1000  # bins of both models whose covariance is taken


class Gaps(NamedTuple):
    """Signed gaps of the bins of the first model, then of the second, with their joint covariance.

    Σ|d̂_b| is too large where gaps are not larger than their noise, as E|μ + Z| > |μ|. So each gap enters as
    σ g(|d̂|/σ), with a function g whose bias β is small for every μ (see `SIZES`). What remains of the bias is bounded
    by `bias`, the variance of the difference is `spread`, and `apart` bounds the difference in another way.

    Attributes:
        d: (B,) gaps d̂.  sigma: (B,) their standard errors.  weight: (B,) share of the rows.
        model: (B,) -1 (first) or 1 (second).  covariance: (B, B).
        skewness: (B,) Σ c³ / σ³, c what each row (or group) adds to the gap.
        groups: harmonic mean over bins of their effective groups.
        beside: (B / 2,) entry of the second model that is paired with each of the first; None: that of the same bin.
    """

    d: Floats
    sigma: Floats
    weight: Floats
    model: Floats
    covariance: Floats
    skewness: Floats | float = 0.0
    groups: float = math.inf
    beside: Ints | None = None

    def difference(self, d: Floats, noise: Floats | None = None) -> Floats:
        """Return (...,) Σ σ g(|d|/σ) of the second model less that of the first, of (..., B) gaps d.

        `noise`, (..., B), is the part of simulated d that is noise; then σ² is what rows with that noise would show,
        σ² (1 + skewness · noise / σ) to first order. For the rows that move a gap also move its standard error (Johnson
        1978): d̂ = Σ c and σ̂² = Σ c² have the covariance Σ c³, so σ̂² rises by Σ c³ / σ² for each unit of noise.
        """
        scale = np.where(self.sigma > 0, self.sigma, 1.0)
        sigma = self.sigma
        if noise is not None:
            sigma = sigma * np.sqrt(np.maximum(1 + self.skewness * noise / scale, LEAST))
            scale = np.where(self.sigma > 0, sigma, 1.0)
        x = np.abs(d) / scale
        sizes = np.where(x < SURE, np.interp(x, np.arange(len(SIZES)) / 2, SIZES), x) * sigma
        return np.asarray(np.where(self.sigma > 0, sizes, np.abs(d)) @ self.model)

    @property
    def paired(self) -> bool:
        """Whether each bin of the first model is paired with one of the second."""
        return float(self.model.sum()) == 0

    @property
    def expected(self) -> Floats:
        """(B,) posterior mean of the gaps: see `_expected`.

        For paired bins the posterior is that of the half sums h = (d_1 + d_2) / 2 and of the differences e = d_2 - d_1,
        each with a prior of its own, as similar models differ little. Then d_1 = h - e / 2 and d_2 = h + e / 2.
        """
        first, every = self.model < 0, np.eye(len(self.d))
        parts, back = (every[first], every[~first]), every  # matrices: gaps to each part, and both parts to gaps
        weights = self.weight[first], self.weight[~first]
        if self.paired:
            left, right = self._pairs
            sums, changes = every[left] + every[right], every[right] - every[left]  # (B / 2, B) each
            parts, back = (sums / 2, changes), np.hstack([sums.T, changes.T / 2])
            weights = (self.weight[left] + self.weight[right],) * 2
        floor = ROUNDED * float(np.diag(self.covariance).max(initial=0.0))
        means = [
            _expected(part @ self.d, part @ self.covariance @ part.T, weight, floor)
            for part, weight in zip(parts, weights, strict=True)
        ]
        return np.asarray(back @ np.concatenate(means))

    @property
    def spread(self) -> tuple[float, float]:
        """Variance of `difference` at the expected gaps, and its degrees of freedom relative to those of one sum.

        The variance V is that of draws: the expected gaps plus noise C^½ Z, C the covariance and Z standard normal.

        A share l of V is linear in Z. It is the variance of one sum over rows or groups, estimated with the degrees of
        freedom ν of one sum. The rest, (1 - l) V, comes from gaps whose signs are open, k = (tr C)² / tr C² independent
        ones in effect, each with ν degrees of its own. A sum of estimated variances V_j, with ν_j degrees each, has
        (Σ V_j)² / Σ (V_j² / ν_j) degrees (Satterthwaite 1946). Here that is ν / (l² + (1 - l)² / k).
        """
        values, vectors = np.linalg.eigh(self.covariance)
        whole = float(np.maximum(values, 0).sum())  # tr C
        drawn = values > ROUNDED * whole
        z = normals((DRAWS, len(self.d)), 0)
        noise = z @ (vectors * np.sqrt(np.maximum(values, 0))).T  # (DRAWS, B)
        draws = self.difference(self.expected + noise, noise)
        variance = float(draws.var())
        if variance == 0:
            return 0.0, 1.0
        slopes = (draws - draws.mean()) @ z[:, drawn] / DRAWS  # of the regression of the draws on Z
        linear = min(1.0, float(slopes @ slopes) / variance)
        return variance, 1 / (linear**2 + (1 - linear) ** 2 * float(values @ values) / whole**2)

    @property
    def bias(self) -> float:
        """Bound of the bias of all unsure gaps together, were all of one sign.

        The bias of one gap, σ β(|δ|/σ), is at most BIASED σ, and that of a bin in both models BIASED (σ_1 + σ_2).
        Where the two gaps are near each other, so are their biases, and the difference loses most of them. For gaps
        near 0 the bias changes by at most 1 for each unit of δ, the slope of β at 0, and by β(0) for each unit of σ.
        So the two biases differ by at most

            |d_2 - d_1| + BIASED |σ_2 - σ_1|,

        and the smaller of both bounds counts. From |δ| = σ/2 on the change with δ is at most .34 (at
        1.35 σ), so that the factor 1 of |d_2 - d_1| is more than enough there. The change with σ is up to .7, at
        |δ| = 3 σ, and for it BIASED is a rule of thumb.
        """
        size = np.abs(self.d)
        unsure = np.where(size < UNSURE * self.sigma, BIASED * self.sigma, 0.0)
        if not self.paired:
            return float(unsure.sum())
        left, right = self._pairs
        apart = np.abs(self.d[right] - self.d[left]) + BIASED * np.abs(self.sigma[right] - self.sigma[left])
        return float(np.minimum(unsure[left] + unsure[right], apart).sum())

    @property
    def _pairs(self) -> tuple[Ints, Ints]:
        """(B / 2,) entries of the first model, and those of the second paired with them."""
        first = np.arange(len(self.d) // 2)
        return first, first + len(first) if self.beside is None else self.beside

    def apart(self, alpha: float, undrawn: float) -> float:
        """Bound Σ |δ_2 - δ_1| over bins at 1 - alpha from above; the difference of the errors cannot exceed it.

        With s the true signs of δ_2 - δ_1 the sum is s·(δ_2 - δ_1) <= Σ|d̂_2 - d̂_1| + s·noise, and no signs give a
        larger variance than Σ |covariance|. Rows that were not drawn, a share `undrawn` of the population, may add as
        much. That is added as a square, as in `BoundedEstimate.half`.
        """
        if not self.paired:
            return math.inf
        left, right = self._pairs
        change = np.eye(len(self.d))[right] - np.eye(len(self.d))[left]  # (B / 2, B), gaps to d_2 - d_1
        noise = math.sqrt(float(np.abs(change @ self.covariance @ change.T).sum()))
        return float(np.abs(change @ self.d).sum()) + math.hypot(normal_quantile(1 - alpha) * noise, undrawn)


class BoundedEstimate(NamedTuple):
    """An estimate with its standard error, Student's degrees of freedom and a bound of its bias.

    `largest_share`: of the total weight, that of one row or group, see `WeightedMean.largest_share`.
    """

    centre: float
    error: float
    degrees: float
    bias: float
    largest_share: float

    def beyond(self, distance: float) -> float:
        """Return the chance that the estimate is farther than this from the truth, at its largest bias.

        With b the bias and T Student's t that is P(T > (distance - b) / error) + P(T > (distance + b) / error).
        """
        if self.error == 0:
            return float(distance < self.bias)
        return sum(_tail((distance + sign * self.bias) / self.error, self.degrees) for sign in (-1, 1))

    def half(self, alpha: float) -> float:
        """Return half the width of the interval at 1 - alpha: for noise and bias, and for rows not drawn, as squares.

        The first is the distance that `beyond` gives the chance alpha; bias + error · t is never too short for it. The
        second is `undrawn`. That the noise is at its quantile while a kind of rows is missing is rarer than either, so
        that less than the sum is enough. Adding squares errs in at most 5.0 % where each part alone errs in 5 %
        (simulated; see `core.statistics.unseen_reach`).
        """
        far = self.bias + self.error * student_quantile(1 - alpha / 2, self.degrees)
        near = bisect(lambda distance: self.beyond(distance) - alpha, 0.0, far, 40, TOLERANCE)[1]  # the end above
        return math.hypot(near, self.undrawn(alpha / 2))

    def undrawn(self, tail: float) -> float:
        """Return the share of the population that is in none of the rows with this probability.

        A share h is in none of n equal rows with probability (1 - h)^n = tail at h = -ln(tail) / n.
        """
        return -math.log(tail) * self.largest_share

    def p_value(self, alpha: float) -> float:
        """Return the alpha at which the interval ends at 0; below the one given exactly if that interval omits 0.

        The interval at `tried` contains 0 if half(tried) >= |centre|, which is beyond((centre² - undrawn²)^½) >= tried.
        `inverted` finds where that changes: it takes a function of the alpha tried that is positive while 0 is inside.
        """
        distance = abs(self.centre)

        def contains_zero(tried: float) -> float:
            remaining = distance**2 - self.undrawn(tried / 2) ** 2
            return 1.0 if remaining <= 0 else self.beyond(math.sqrt(remaining)) - tried

        return inverted(contains_zero, alpha)


def _tail(t: float, degrees: float) -> float:
    """Return P(T > t)."""
    return two_sided(t, degrees) / 2 if t > 0 else 1 - two_sided(-t, degrees) / 2


def difference(
    views: tuple[BinaryOutcomes, BinaryOutcomes], tables: tuple[Bins, Bins], level: float
) -> tuple[float, float, float, float] | str:
    """Return value, interval and p-value of Σ|δ| of the second model less that of the first, or why there is none.

    There is none where bins hold few groups: g is a function of |d̂|/σ̂, and a σ̂ from e groups is off by (2/e)^½ of
    itself. (With 2 to 3 groups in a bin a calibrated model's gap is one standard error by definition.)

    Σ|d̂| is too large by up to .8 standard errors a bin where a model is calibrated, by less where it is nearly so, and
    the gaps do not tell which of these holds. So a gap enters as σ g(|d̂|/σ), g the function whose worst bias over all δ
    is least for its variance (|.| has a corner, so no function has none: Cai and Low 2011; here piecewise linear).

    The variance V depends on the gaps: where those of both models have one sign, the noise that they share cancels, and
    where the signs differ it adds up. Around d̂ itself it is wrong (the signs there are blurred by noise once more), by
    .75 to 1.4 times in standard errors. It is that of normal draws around gaps with the noise shrunk out of them (the
    parametric bootstrap, with empirical Bayes: Efron and Morris 1973), jointly for both models. What is left of the
    bias is of one sign where the models are apart in one direction, so that the interval is as wide as it must be for
    its bound (Armstrong and Kolesár 2018), and at least as wide as rows that were not drawn require.

    The difference is at most Σ|δ_2 - δ_1|, which is known well where models differ by little, however large the noise
    that they share. The interval is cut to an upper bound of it, which fails a tenth as often as the interval may.
    Where Σ|d̂| is so biased that its difference lies outside, the value is the nearer end.
    """
    gaps = _gaps(views, tables)
    if gaps.groups < FEWEST_GROUPS:
        few = f"the bins hold {gaps.groups:.1f} effective groups each"
        return f"{few}, and the spread of a gap needs {FEWEST_GROUPS}: fewer bins hold more of them"
    base = views[0]
    rows = WeightedMean(base.p, base.weights, base.counts, base.groups)
    variance, times = gaps.spread
    estimate = BoundedEstimate(
        float(gaps.difference(gaps.d)), math.sqrt(variance), (rows.units - 1) * times, gaps.bias, rows.largest_share
    )
    half = estimate.half(1 - level)
    low, high = estimate.centre - half, estimate.centre + half
    tail = (1 - level) / 10
    most = gaps.apart(tail, estimate.undrawn(tail))
    if low < most and high > -most:
        low, high = max(low, -most), min(high, most)
    value = min(max(float(np.abs(gaps.d) @ gaps.model), low), high)
    return value, low, high, estimate.p_value(1 - level)


def _expected(d: Floats, covariance: Floats, weight: Floats, floor: float) -> Floats:
    """Return the (B,) posterior mean of δ in gaps d = δ + noise, over priors weighed by their likelihood.

    In standard errors, t = d / s, the noise is normal with the correlation R, and δ / s is normal with the covariance
    P, for one of these priors:

        P_bc = 0,
        P_bc = scale · size_b² where b = c, else 0: independent from bin to bin,
        P_bc = scale · size_b size_c exp(-(b - c)² / (2 SMOOTH²)): like a smooth curve (a Gaussian process),

    the last two for each scale in SCALES. `size` is the root of the bin's weight. It gives each bin a bias of about the
    same size in probability: s grows as the root of the weight, so that δ grows as the weight.

    Each prior has the posterior mean P (P + R)⁻¹ t and the likelihood N(t; 0, P + R). With P + R = L L' and v = L⁻¹ t
    the logarithm of that is -v·v / 2 - Σ log L_bb, and the mean is P L'⁻¹ v. The means are averaged with these
    likelihoods. P = 0 counts twice, as each scale has two priors.

    Gaps whose variance is below `floor` are left as they are.
    """
    spread = np.sqrt(np.maximum(np.diag(covariance), 0))
    noisy = np.flatnonzero(spread**2 > floor)
    if not len(noisy):
        return d
    s, w = spread[noisy], weight[noisy]
    t, correlation = d[noisy] / s, covariance[np.ix_(noisy, noisy)] / np.outer(s, s)
    size = np.sqrt(w * w.sum() / (w @ w))
    alone = np.eye(len(noisy)) * np.outer(size, size)
    smooth = np.exp(-(((noisy[:, None] - noisy) / SMOOTH) ** 2) / 2) * np.outer(size, size)
    priors = [0 * alone]
    for scale in SCALES:
        priors += [scale * alone, scale * smooth]
    log_evidence, means = np.empty(len(priors)), np.empty((len(priors), len(noisy)))
    for number, prior in enumerate(priors):
        root = np.linalg.cholesky(prior + correlation + JITTER * np.eye(len(noisy)))
        whitened = np.linalg.solve(root, t[:, None])  # (n, 1)
        log_share = math.log(2.0) if number == 0 else 0.0
        log_evidence[number] = log_share - (whitened[:, 0] ** 2).sum() / 2 - np.log(np.diag(root)).sum()
        means[number] = (prior @ np.linalg.solve(root.T, whitened))[:, 0]
    chance = np.exp(log_evidence - log_evidence.max())
    expected = d.copy()
    expected[noisy] = s * (chance / chance.sum() @ means)
    return expected


class BinMembership(NamedTuple):
    """Which bins the rows are in, by cells of rows that are divided alike.

    Attributes:
        cell: (N,) cell of each row.
        share: (cells, B) share of each cell in each bin. The first B cells are the bins themselves, row b being 1 in
            bin b. Further cells are ties that a cut divides, and rows that are in no bin, for which the row is 0.
    """

    cell: Ints
    share: Floats

    @classmethod
    def of(cls, view: BinaryOutcomes, table: Bins) -> BinMembership:
        """Assign rows to the bins of a table of theirs; B here counts the bins of one model.

        A table of equal width knows the bin of each row (`index`). One of equal mass was made by `method`: `mukhoti`,
        with bins (lower, upper], of which the first omits rows at its lower end; `split`, which cuts the rows in a
        stable order, each a tie of its own; or one in which equal rows are a tie (`split-merge`, `whole`).
        """
        bins = len(table.weight)
        if table.index is not None:
            return cls(table.index.astype(np.int64), np.eye(bins))
        if table.method == "mukhoti":
            edges = np.append(table.lower[:1], table.upper)  # (B + 1,)
            above = np.minimum(np.searchsorted(edges, view.p, side="left"), bins)  # 0: in no bin; b: in bin b - 1
            return cls(np.where(above > 0, above - 1, bins), np.vstack([np.eye(bins), np.zeros(bins)]))
        if table.method == "split":
            order, tie = view.stable_order, np.arange(view.n)
        else:
            order, tie = view.memoized(ties)[:2]  # (N,) rows by rising odds, and the number of the tie of each of these
        cuts = np.append(0.0, np.cumsum(table.weight)) * view.total  # (B + 1,) weight of the rows before each bin
        mass = np.bincount(tie, None if view.weights is None else view.weights[order])  # (T,) weight of each tie
        last = np.cumsum(mass)  # weight of the rows up to the end of each tie
        within = ROUNDING * view.total
        first_bin = np.searchsorted(cuts[1:-1], last - mass + within, side="right")
        last_bin = np.maximum(np.searchsorted(cuts[1:-1], last - within, side="left"), first_bin)
        divided = np.flatnonzero(last_bin > first_bin)
        ends, starts = last[divided, None], (last - mass)[divided, None]
        overlap = np.maximum(np.minimum(ends, cuts[1:]) - np.maximum(starts, cuts[:-1]), 0) / mass[divided, None]
        cells = first_bin.astype(np.int64)  # (T,)
        cells[divided] = bins + np.arange(len(divided))
        cell = np.empty(view.n, np.int64)
        cell[order] = cells[tie]
        return cls(cell, np.vstack([np.eye(bins), overlap]))

    def sums(self, values: Floats, power: int = 1) -> Floats:
        """Return (B,) Σ_i h_ib^power values_i, h_ib the share of row i in bin b."""
        return np.bincount(self.cell, values, len(self.share)) @ self.share**power

    def by_group(self, member: Ints, values: Floats, groups: int) -> Floats:
        """Return (G, B) Σ_i h_ib values_i over the rows of each group."""
        return _summed(member, self.cell, values, groups, len(self.share)) @ self.share

    def crossed(self, other: BinMembership, values: Floats) -> Floats:
        """Return (B, B') Σ_i h_ib h'_ic values_i, of each pair of a bin here and a bin there."""
        sums = _summed(self.cell, other.cell, values, len(self.share), len(other.share))
        return np.asarray(self.share.T @ sums @ other.share)


def _matched(members: tuple[BinMembership, BinMembership], weights: Floats) -> Ints:
    """Match each bin of the first model with one of the second that shares most rows, every bin once; (B,).

    In models that differ by little, all rows of one confidence may lie on different sides of an edge. Between bins that
    share as many rows, the nearer number wins.
    """
    shared = members[0].crossed(members[1], weights)
    distance = np.abs(np.subtract.outer(np.arange(len(shared)), np.arange(len(shared[0]))))
    far = distance * ROUNDING * weights.sum()  # too little to count but where as many rows are shared
    beside, taken = np.full(len(shared), -1), set[int]()
    # the pair that shares most first; any assignment gives a valid bound, and scipy.optimize takes .3 s to import
    for pair in np.argsort((far - shared).ravel(), kind="stable").tolist():
        row, column = divmod(pair, len(shared[0]))
        if beside[row] < 0 and column not in taken:
            beside[row] = column
            taken.add(column)
    return beside


def _gaps(views: tuple[BinaryOutcomes, BinaryOutcomes], tables: tuple[Bins, Bins]) -> Gaps:
    """Compute the gaps of both models with their joint covariance, over rows or, where there are groups, over these."""
    base = views[0]
    members = BinMembership.of(views[0], tables[0]), BinMembership.of(views[1], tables[1])
    w = np.ones(base.n) if base.weights is None else base.weights
    d = np.concatenate([table.weighted_gap for table in tables])
    weight = np.concatenate([table.weight for table in tables])
    sizes = [len(table.weight) for table in tables]
    units = None
    if base.groups is None:
        covariance, third = _over_rows(views, members, w, d)
    else:
        covariance, third, units = _over_groups(views, members, w, d)
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0))
    cube = sigma**3  # may underflow to 0 where sigma is tiny
    skewness = np.divide(third, cube, out=np.zeros_like(third), where=cube > 0)
    beside = sizes[0] + _matched(members, w) if sizes[0] == sizes[1] else None
    model = np.repeat([-1.0, 1.0], sizes)
    return Gaps(d, sigma, weight, model, covariance, skewness, _groups_per_bin(units, sigma), beside)


def _over_rows(
    views: tuple[BinaryOutcomes, BinaryOutcomes], members: tuple[BinMembership, BinMembership], w: Floats, d: Floats
) -> tuple[Floats, Floats]:
    """Return the covariance (B, B) of the gaps of independent rows, and (B,) Σ c³, c what a row adds to a gap.

    With x_ib = h_ib r_i, d̂_b = Σ w_i x_ib / W is a ratio of two sums over the rows, and so row i adds to its error
    c_ib = w_i (x_ib - d_b) / W. The covariance is Σ_i c_ib c_ic, which is multiplied out, as most x are 0:

        C_bc = Σ (w/W)² x_b x_c - m_b d_c - d_b m_c + d_b d_c Σ (w/W)²,   m_b = Σ (w/W)² x_b,   Σ (w/W)² = 1 / n_eff.

    Weights that are counts stand for w rows with the share 1/W each: w² becomes w, and w³ too.

    Σ c³ is taken about 0, without d. That changes the skewness by 3 d / (n σ), which is little: d / σ is the gap in
    standard errors.
    """
    base, counts = views[0], views[0].counts
    weighted = [w * view.residual for view in views]
    other = [view.residual if counts else part for view, part in zip(views, weighted, strict=True)]
    # (B, B) Σ w² x_b x_c, in 2 by 2 blocks for the two models; `crossed` multiplies by both h
    squares = np.block([[members[a].crossed(members[b], weighted[a] * other[b]) for b in (0, 1)] for a in (0, 1)])
    twice_weighted = [part if counts else w * part for part in weighted]
    mean = np.concatenate([member.sums(part) for member, part in zip(members, twice_weighted, strict=True)])
    crossed = np.outer(mean, d) / base.total**2  # m_b d_c
    covariance = squares / base.total**2 - crossed - crossed.T + np.outer(d, d) / base.effective
    cubes = [(w if counts else w**3) * view.residual**3 for view in views]
    third = np.concatenate([member.sums(cube, 3) for member, cube in zip(members, cubes, strict=True)])
    return covariance, third / base.total**3


def _over_groups(
    views: tuple[BinaryOutcomes, BinaryOutcomes], members: tuple[BinMembership, BinMembership], w: Floats, d: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the covariance (B, B) of the gaps by the jackknife over groups, (B,) Σ c³, and (G, B) weight in each bin.

    Group g has the share a_g of the weight and, summed over its rows, the part u_gb = Σ w x_b / W - a_g d_b of the
    error of d̂_b. Without the group d̂_b would be less by c_gb = u_gb / (1 - a_g), and the covariance is
    (G - 1) / G Σ_g c_gb c_gc.
    """
    base = views[0]
    assert base.groups is not None
    rows = WeightedMean(base.p, base.weights, base.counts, base.groups)
    member = group_places(base.groups)[1]
    count = len(rows.shares)
    sums = np.hstack([m.by_group(member, w * v.residual, count) for m, v in zip(members, views, strict=True)])
    c = (sums / base.total - rows.shares[:, None] * d) / np.maximum(1 - rows.shares, 1e-9)[:, None]  # (G, B)
    covariance, third = c.T @ c * (count - 1) / count, (c**3).sum(axis=0)
    return covariance, third, np.hstack([m.by_group(member, w, count) for m in members])


def _groups_per_bin(weights: Floats | None, sigma: Floats) -> float:
    """Return the harmonic mean of the effective groups of a bin, bins weighed by σ, from (G, B) weights.

    A gap's bias grows with σ / groups, and biases add up.
    """
    if weights is None or not sigma.any():
        return math.inf
    groups = np.array([effective_groups(bin_) for bin_ in weights.T])
    return float(sigma.sum() / np.sum(sigma / np.maximum(groups, 1)))


def _summed(i: Ints, j: Ints, values: Floats, rows: int, columns: int) -> Floats:
    """Return (rows, columns) sums of the values of each pair of indices."""
    sums = np.bincount(i * columns + j, values, rows * columns)
    return np.asarray(sums, np.float64).reshape(rows, columns)
