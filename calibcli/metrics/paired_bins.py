"""The difference of two binned errors on the same rows, with small bias where the sign of a gap is not sure."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from calibcli.core.statistics import (
    TIE,
    bisect,
    effective_groups,
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
"""g(x) at x = 0, 1/2, ..., 4, linear between and x beyond: |E g(μ + Z) - |μ|| <= .17 and Var g <= 2.4 for every μ."""
SURE = 4.0  # standard errors from which a gap has its sign
BIASED = 0.16  # largest bias of a gap, in standard errors
UNSURE = 3.0  # standard errors up to which a gap may have that bias
SCALES = (1.0, 4.0, 16.0, 64.0)  # squared sizes of gaps in the priors, in squared standard errors
SMOOTH = 4.0  # bins over which gaps are alike in the smooth priors
ROUNDED = 1e-10  # share of the largest variance up to which a variance is rounding
LEAST = 0.1  # smallest factor on a variance that moves with its gap, so that it stays positive
DRAWS = 800
NEAR = 1e-9  # share of the total weight that is rounding of sums
WIDEST = 1000  # bins of both models whose covariance is taken


class Gaps(NamedTuple):
    """Signed gaps of the bins of the first model, then of the second, with their joint covariance.

    Attributes:
        d: (B,) gaps.  sigma: (B,) standard errors.  weight: (B,).  model: (B,) -1 (first) or 1.  covariance: (B, B).
        skewness: (B,) of the gaps.  groups: harmonic mean over bins of their effective groups.
        beside: entry of the second model that is paired with each of the first; None: that of the same bin.
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
        """Return (...,) Σ σ g(|d|/σ) of the second model less that of the first, of (..., B) gaps.

        With the noise in them σ² is what rows with that noise would show, σ² (1 + skewness · noise / σ) to first order:
        the rows that move a gap also move its standard error (Johnson 1978), as σ̂² has covariance Σ r³ with d̂ = Σ r.
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

        For paired bins it is that of the half sums and the differences of the gaps: similar models differ little.
        """
        first, every = self.model < 0, np.eye(len(self.d))
        parts, back, weights = (every[first], every[~first]), every, (self.weight[first], self.weight[~first])
        if self.paired:
            at, beside = self._pairs
            one, two = every[at], every[beside]
            parts, back = ((one + two) / 2, two - one), np.hstack([(one + two).T, (two - one).T / 2])
            weights = (self.weight[at] + self.weight[beside],) * 2
        floor = ROUNDED * float(np.diag(self.covariance).max(initial=0.0))
        means = [
            _expected(part @ self.d, part @ self.covariance @ part.T, weight, floor)
            for part, weight in zip(parts, weights, strict=True)
        ]
        return np.asarray(back @ np.concatenate(means))

    @property
    def spread(self) -> tuple[float, float]:
        """Variance of `difference` at the expected gaps, and its degrees of freedom relative to those of one sum.

        A share l of the variance V is that of one sum over rows or groups, linear in the noise of the gaps, and has
        the degrees ν of one. The rest is of k = (tr C)² / tr C² gaps apart, each with ν of its own: by Satterthwaite
        (1946) V has ν / (l² + (1 - l)² / k).
        """
        values, vectors = np.linalg.eigh(self.covariance)
        whole = float(np.maximum(values, 0).sum())
        at = values > ROUNDED * whole
        z = normals((DRAWS, len(self.d)), 0)
        noise = z @ (vectors * np.sqrt(np.maximum(values, 0))).T
        draws = self.difference(self.expected + noise, noise)
        variance = float(draws.var())
        if variance == 0:
            return 0.0, 1.0
        slopes = (draws - draws.mean()) @ z[:, at] / DRAWS
        linear = min(1.0, float(slopes @ slopes) / variance)
        return variance, 1 / (linear**2 + (1 - linear) ** 2 * float(values @ values) / whole**2)

    @property
    def bias(self) -> float:
        """Bound of the bias of all unsure gaps together, were all of one sign.

        That of one gap is at most BIASED standard errors. It changes by at most as much as the gap does (the slope at
        0), so that the gaps of a bin of both models, which are near each other, have nearly the same bias.
        """
        size = np.abs(self.d)
        unsure = np.where(size < UNSURE * self.sigma, BIASED * self.sigma, 0.0)
        if not self.paired:
            return float(unsure.sum())
        one, two = self._pairs
        apart = np.abs(self.d[two] - self.d[one]) + BIASED * np.abs(self.sigma[two] - self.sigma[one])
        return float(np.minimum(unsure[one] + unsure[two], apart).sum())

    @property
    def _pairs(self) -> tuple[Ints, Ints]:
        """Entries of the first model, and those of the second paired with them."""
        at = np.arange(len(self.d) // 2)
        return at, at + len(at) if self.beside is None else self.beside

    def apart(self, alpha: float, undrawn: float) -> float:
        """Bound Σ |second gap - first gap| over bins at 1 - alpha from above; the difference cannot exceed it.

        The sum is that of the differences with their true signs, and no signs vary more than Σ |covariance|. Rows that
        were not drawn, a share `undrawn`, may add as much.
        """
        if not self.paired:
            return math.inf
        one, two = self._pairs
        change = np.eye(len(self.d))[two] - np.eye(len(self.d))[one]
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
        """Return the chance that the estimate is farther than this from the truth, at its largest bias."""
        if self.error == 0:
            return float(distance < self.bias)
        return sum(_tail((distance + sign * self.bias) / self.error, self.degrees) for sign in (-1, 1))

    def half(self, alpha: float) -> float:
        """Return half the width of the interval at 1 - alpha: for bias and for rows not drawn, added as squares."""
        far = self.bias + self.error * student_quantile(1 - alpha / 2, self.degrees)
        near = bisect(lambda distance: self.beyond(distance) - alpha, 0.0, far, 40, NEAR)[1]
        return math.hypot(near, self.undrawn(alpha / 2))

    def undrawn(self, tail: float) -> float:
        """Return the share of the population that is in none of the rows with this probability."""
        return -math.log(tail) * self.largest_share

    def p_value(self, alpha: float) -> float:
        """Return the alpha at which the interval ends at 0; below the one given exactly if that interval omits 0."""
        distance = abs(self.centre)

        def reaches(alpha: float) -> float:
            remaining = distance**2 - self.undrawn(alpha / 2) ** 2
            return 1.0 if remaining <= 0 else self.beyond(math.sqrt(remaining)) - alpha

        return inverted(reaches, alpha)


def _tail(t: float, degrees: float) -> float:
    """Return P(T > t)."""
    return two_sided(t, degrees) / 2 if t > 0 else 1 - two_sided(-t, degrees) / 2


def difference(
    views: tuple[BinaryOutcomes, BinaryOutcomes], tables: tuple[Bins, Bins], level: float
) -> tuple[float, float, float, float] | str:
    """Return value, interval and p-value of Σ|d| of the second model less that of the first, or why there is none.

    There is none where bins hold few groups: g is a function of |d̂|/σ̂, and a σ̂ from e groups is off by (2/e)^½ of
    itself. (With 2 to 3 groups in a bin a calibrated model's gap is one standard error by definition.)

    Σ|d̂| is too large by up to .8 standard errors a bin where a model is calibrated, by less where it is nearly so, and
    the gaps do not tell which of these holds. So a gap enters as σ g(|d̂|/σ), g the function whose worst bias over all d
    is least for its variance (|.| has a corner, so no function has none: Cai and Low 2011; here piecewise linear).

    The variance V depends on the gaps: where those of both models have one sign, the noise that they share cancels, and
    where the signs differ it adds up. Around d̂ itself it is wrong (the signs there are blurred by noise once more), by
    .75 to 1.4 times in standard errors. It is that of normal draws around gaps with the noise shrunk out of them (the
    parametric bootstrap, with empirical Bayes: Efron and Morris 1973), jointly for both models. What is left of the
    bias is of one sign where the models are apart in one direction, so that the interval is as wide as it must be for
    its bound (Armstrong and Kolesár 2018), and at least as wide as rows that were not drawn require.

    The difference is at most Σ|d_2 - d_1|, which is known well where models differ by little, however large the noise
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
    known = BoundedEstimate(
        float(gaps.difference(gaps.d)), math.sqrt(variance), (rows.units - 1) * times, gaps.bias, rows.largest_share
    )
    half = known.half(1 - level)
    low, high = known.centre - half, known.centre + half
    tail = (1 - level) / 10
    most = gaps.apart(tail, known.undrawn(tail))
    if low < most and high > -most:
        low, high = max(low, -most), min(high, most)
    value = min(max(float(np.abs(gaps.d) @ gaps.model), low), high)
    return value, low, high, known.p_value(1 - level)


def _expected(d: Floats, covariance: Floats, weight: Floats, floor: float) -> Floats:
    """Return the (B,) posterior mean of δ in gaps d = δ + noise, over priors weighed by their likelihood.

    δ is 0, or normal: independent from bin to bin, or like a smooth curve (a Gaussian process over the bins), each of
    several sizes; in standard errors as the root of the bin's weight, which is a bias of about the same size in all.
    Gaps whose variance is below `floor` are left as they are.
    """
    spread = np.sqrt(np.maximum(np.diag(covariance), 0))
    at = np.flatnonzero(spread**2 > floor)
    if not len(at):
        return d
    s, w = spread[at], weight[at]
    t, noise = d[at] / s, covariance[np.ix_(at, at)] / np.outer(s, s)
    size = np.sqrt(w * w.sum() / (w @ w))
    shapes = np.stack([np.eye(len(at)), np.exp(-(((at[:, None] - at) / SMOOTH) ** 2) / 2)]) * np.outer(size, size)
    priors = np.concatenate([0 * shapes[:1], *(scale * shapes for scale in SCALES)])
    share = np.append(2.0, np.ones(len(priors) - 1))  # the same for each size: of size 0 there is one prior
    total = priors + noise + 1e-5 * np.eye(len(at))
    root = np.linalg.cholesky(total)
    whitened = np.linalg.solve(root, np.broadcast_to(t[:, None], (len(total), len(t), 1)))[..., 0]
    fit = np.log(share) - (whitened**2).sum(axis=1) / 2 - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    chance = np.exp(fit - fit.max())
    means = priors @ np.linalg.solve(np.swapaxes(root, 1, 2), whitened[..., None])
    expected = d.copy()
    expected[at] = s * (chance / chance.sum() @ means[..., 0])
    return expected


class BinMembership(NamedTuple):
    """(N,) cell of each row, and (cells, B) share of each cell in each bin; most cells lie in one bin."""

    cell: Ints
    share: Floats

    @classmethod
    def of(cls, view: BinaryOutcomes, table: Bins) -> BinMembership:
        """Assign rows to bins; in bins of equal mass a tie that a cut divides is a cell of its own."""
        bins = len(table.weight)
        if table.index is not None:
            return cls(table.index.astype(np.int64), np.eye(bins))
        cuts = np.append(0.0, np.cumsum(table.weight)) * view.total
        if table.method == "mukhoti":
            return cls(np.searchsorted(table.upper[:-1], view.p - TIE, side="left"), np.eye(bins))
        if table.method == "split":
            order, tie = view.stable_order, np.arange(view.n)
        else:
            order, tie = view.once(ties)[:2]
        mass = np.bincount(tie, None if view.weights is None else view.weights[order])
        last = np.cumsum(mass)
        within = NEAR * view.total
        first_bin = np.searchsorted(cuts[1:-1], last - mass + within, side="right")
        last_bin = np.maximum(np.searchsorted(cuts[1:-1], last - within, side="left"), first_bin)
        divided = np.flatnonzero(last_bin > first_bin)
        ends, starts = last[divided, None], (last - mass)[divided, None]
        overlap = np.maximum(np.minimum(ends, cuts[1:]) - np.maximum(starts, cuts[:-1]), 0) / mass[divided, None]
        cells = first_bin.astype(np.int64)
        cells[divided] = bins + np.arange(len(divided))
        cell = np.empty(view.n, np.int64)
        cell[order] = cells[tie]
        return cls(cell, np.vstack([np.eye(bins), overlap]))

    def sums(self, values: Floats, power: int = 1) -> Floats:
        """Return (B,) sums of values of the rows, times a power of the share of their cell in the bin."""
        return np.bincount(self.cell, values, len(self.share)) @ self.share**power

    def by_group(self, member: Ints, values: Floats, groups: int) -> Floats:
        """Return (G, B) sums over the rows of each group."""
        return _summed(member, self.cell, values, groups, len(self.share)) @ self.share

    def crossed(self, other: BinMembership, values: Floats) -> Floats:
        """Return (B, B') sums over the rows of each pair of bins."""
        sums = _summed(self.cell, other.cell, values, len(self.share), len(other.share))
        return np.asarray(self.share.T @ sums @ other.share)


def _matched(members: tuple[BinMembership, BinMembership], weights: Floats) -> Ints:
    """Match each bin of the first model with one of the second that shares most rows, every bin once; (B,).

    In models that differ by little, all rows of one confidence may lie on different sides of an edge.
    """
    shared = members[0].crossed(members[1], weights)
    near = np.abs(np.subtract.outer(np.arange(len(shared)), np.arange(len(shared[0])))) * NEAR * weights.sum()
    beside, taken = np.full(len(shared), -1), set[int]()
    # the pair that shares most first; any assignment gives a valid bound, and scipy.optimize takes .3 s to import
    for pair in np.argsort((near - shared).ravel(), kind="stable").tolist():
        row, column = divmod(pair, len(shared[0]))
        if beside[row] < 0 and column not in taken:
            beside[row] = column
            taken.add(column)
    return beside


def _gaps(views: tuple[BinaryOutcomes, BinaryOutcomes], tables: tuple[Bins, Bins]) -> Gaps:
    """Compute the gaps with their covariance over rows, or over groups by the jackknife."""
    base = views[0]
    one, two = (BinMembership.of(v, t) for v, t in zip(views, tables, strict=True))
    w = np.ones(base.n) if base.weights is None else base.weights
    both = one, two
    d, weight = (np.concatenate([getattr(t, name) for t in tables]) for name in ("weighted_gap", "weight"))
    size = [len(t.weight) for t in tables]
    model = np.repeat([-1.0, 1.0], size)
    parts = [w * v.residual for v in views]
    units = None
    if base.groups is not None:
        rows = WeightedMean(base.p, base.weights, base.counts, base.groups)
        member = np.unique(base.groups, return_inverse=True)[1]
        count = len(rows.shares)
        u = np.hstack([m.by_group(member, part, count) for m, part in zip(both, parts, strict=True)])
        u = (u / base.total - rows.shares[:, None] * d) / np.maximum(1 - rows.shares, 1e-9)[:, None]
        covariance, third = u.T @ u * (count - 1) / count, (u**3).sum(axis=0)
        units = np.hstack([m.by_group(member, w, count) for m in both])
    else:
        other = [v.residual if base.counts else part for v, part in zip(views, parts, strict=True)]
        covariance = np.block([[both[a].crossed(both[b], parts[a] * other[b]) for b in (0, 1)] for a in (0, 1)])
        heavy = [part if base.counts else w * part for part in parts]  # about d: Σ w² (r - d)(r' - d')
        mean = np.concatenate([m.sums(part) for m, part in zip(both, heavy, strict=True)])
        crossed = np.outer(mean, d) / base.total**2
        covariance = covariance / base.total**2 - crossed - crossed.T + np.outer(d, d) / base.effective
        cubes = [(w if base.counts else w**3) * v.residual**3 for v in views]
        third = np.concatenate([m.sums(c, 3) for m, c in zip(both, cubes, strict=True)])
        third = third / base.total**3
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0))
    cube = sigma**3  # may underflow to 0 where sigma is tiny
    skewness = np.divide(third, cube, out=np.zeros_like(third), where=cube > 0)
    beside = size[0] + _matched(both, w) if size[0] == size[1] else None
    return Gaps(d, sigma, weight, model, covariance, skewness, _groups_per_bin(units, sigma), beside)


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
