"""The difference of two binned errors on the same rows: gaps whose sign is not sure enter with little bias."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from calibcli.metrics.intervals import FEWEST_GROUPS, Rows
from calibcli.metrics.reliability import Bins
from calibcli.metrics.sample import BinaryOutcomes
from calibcli.numerics import effective_groups, normals, student_quantile, two_sided
from calibcli.predictions import Floats, Ints

SIZES = np.array([-1.35, -0.76, 0.65, 2.15, 2.93, 2.96, 2.85, 2.8, 4.0])
"""g(x) at x = 0, 1/2, ..., 4, linear between and x beyond: |E g(μ + Z) - |μ|| <= .17 and Var g <= 2.4 for every μ."""
SURE = 4.0  # standard errors from which a gap has its sign
BIASED = 0.16  # bias of a gap, in standard errors: the most
STEEP = 0.6  # and how fast it changes: from .15 at μ = 0 to -.15 at μ = 1/2
UNSURE = 3.0  # standard errors up to which a gap has it
SCALES = (1.0, 4.0, 16.0, 64.0)  # squared sizes that gaps may have, in squared standard errors
SMOOTH = 4.0  # bins over which gaps are alike, where they are alike at all
NOTHING = 1e-10  # of the largest variance: rounding
LEAST = 0.1  # of a variance that moves with its gap: it stays positive
DRAWS = 800
WIDEST = 1000  # bins of both models whose covariance is taken


class Gaps(NamedTuple):
    """(B,) signed gaps of the first model's bins, then the second's; standard errors; weights; -1 or 1; (B, B).

    Also (B,) skewness of the gaps, and harmonic mean over bins of their effective groups.
    """

    d: Floats
    sigma: Floats
    weight: Floats
    model: Floats
    covariance: Floats
    skewness: Floats | float = 0.0
    groups: float = math.inf

    def difference(self, d: Floats, noise: Floats | None = None) -> Floats:
        """(...,) Σ σ g(|d|/σ) of the second model less that of the first, of (..., B) gaps.

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
        """Whether each bin of the first model has one of the second beside it."""
        return float(self.model.sum()) == 0

    @property
    def expected(self) -> Floats:
        """(B,) what the gaps are expected to be, given those seen: see `_expected`.

        Of two models the half sums and the differences of the gaps of each bin: models that are alike differ little.
        """
        first, every = self.model < 0, np.eye(len(self.d))
        parts, back, weights = (every[first], every[~first]), every, (self.weight[first], self.weight[~first])
        if self.paired:
            one, two = parts
            parts, back = ((one + two) / 2, two - one), np.hstack([(one + two).T, (two - one).T / 2])
            weights = (weights[0] + weights[1],) * 2
        floor = NOTHING * float(np.diag(self.covariance).max(initial=0.0))
        found = [
            _expected(part @ self.d, part @ self.covariance @ part.T, weight, floor)
            for part, weight in zip(parts, weights, strict=True)
        ]
        return np.asarray(back @ np.concatenate(found))

    @property
    def spread(self) -> tuple[float, float]:
        """Variance of `difference`, were the gaps the expected ones; and its degrees of freedom over those of one sum.

        Of the variance V a share l is that of one sum over rows or groups, linear in the gaps' noise, and has the
        degrees ν of one. The rest is of k = (tr C)² / tr C² gaps apart, each with ν of its own: by Satterthwaite
        (1946) V has ν / (l² + (1 - l)² / k).
        """
        values, vectors = np.linalg.eigh(self.covariance)
        whole = float(np.maximum(values, 0).sum())
        at = values > NOTHING * whole
        z = normals((DRAWS, len(self.d)), 0)
        noise = z @ (vectors * np.sqrt(np.maximum(values, 0))).T
        found = self.difference(self.expected + noise, noise)
        variance = float(found.var())
        if variance == 0:
            return 0.0, 1.0
        slopes = (found - found.mean()) @ z[:, at] / DRAWS
        linear = min(1.0, float(slopes @ slopes) / variance)
        return variance, 1 / (linear**2 + (1 - linear) ** 2 * float(values @ values) / whole**2)

    @property
    def bias(self) -> float:
        """How large the bias of both models' unsure gaps may be together."""
        size = np.abs(self.d)
        unsure = np.where(size < UNSURE * self.sigma, BIASED * self.sigma, 0.0)
        if not self.paired:
            return float(unsure.sum())
        half = len(size) // 2
        return float(np.minimum(unsure[:half] + unsure[half:], STEEP * np.abs(size[half:] - size[:half])).sum())


def difference(
    views: tuple[BinaryOutcomes, BinaryOutcomes], tables: tuple[Bins, Bins], level: float
) -> tuple[float, float, float, float] | str | None:
    """Value, interval and p-value of Σ|d| of the second model less that of the first; None: gaps without spread.

    Groups that meet in few bins say why there is none: g is of |d̂|/σ̂, and a σ̂ from e groups is off by (2/e)^½ of
    itself. (With 2 to 3 groups in a bin a calibrated model's gap is one standard error by definition.)

    Σ|d̂| is too large by up to .8 standard errors a bin where a model is calibrated, by less where it is nearly so, and
    which of them it is the gaps do not tell. So a gap enters as σ g(|d̂|/σ), g the function whose worst bias over all d
    is least for its variance (|.| has a corner, so no function has none: Cai and Low 2011; here piecewise linear).

    The variance V depends on the gaps: where both models' are of one sign, what their noise shares cancels, and where
    the signs differ it adds up. Around d̂ itself it is wrong (the signs there are blurred by noise once more), by .75 to
    1.4 times in standard errors. It is that of normal draws around gaps with the noise shrunk out of them (the
    parametric bootstrap, with empirical Bayes: Efron and Morris 1973), jointly for both models. What is left of the
    bias, at most b, has variance b²/3, that of a number anywhere within ± b (JCGM 100:2008, 4.3.7): the biases of bins
    are of either sign, and cancel between models that are alike, where b is small as gaps and biases move together.

    The interval is Student's with (V + b²/3)^½. Where Σ|d̂| is so biased that its difference lies outside, the value is
    the nearer end.
    """
    gaps = _gaps(views, tables)
    if gaps.groups < FEWEST_GROUPS:
        return (
            f"the bins hold {gaps.groups:.1f} effective groups each, and the spread of a gap needs {FEWEST_GROUPS}: "
            "fewer bins hold more of them"
        )
    variance, times = gaps.spread
    error = math.sqrt(variance + gaps.bias**2 / 3)
    if error == 0:
        return None
    centre, base = float(gaps.difference(gaps.d)), views[0]
    degrees = (Rows(base.p, base.weights, base.counts, base.groups).units - 1) * times
    half = error * student_quantile((1 + level) / 2, degrees)
    low, high = centre - half, centre + half
    value = min(max(float(np.abs(gaps.d) @ gaps.model), low), high)
    return value, low, high, two_sided(abs(centre) / error, degrees)


def _expected(d: Floats, covariance: Floats, weight: Floats, floor: float) -> Floats:
    """(B,) posterior mean of gaps d = δ + noise, over priors weighed by how likely each makes d.

    δ is 0, or normal: independent from bin to bin, or like a smooth curve (a Gaussian process over the bins), each of
    several sizes; in standard errors as the root of the bin's weight, which is a bias of about the same size in all.
    Gaps whose variance is below `floor` are as they are.
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
    share = np.append(2.0, np.ones(len(priors) - 1))  # of each size the same
    total = priors + noise + 1e-5 * np.eye(len(at))
    root = np.linalg.cholesky(total)
    rest = np.linalg.solve(root, np.broadcast_to(t[:, None], (len(total), len(t), 1)))[..., 0]
    fit = np.log(share) - (rest**2).sum(axis=1) / 2 - np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
    chance = np.exp(fit - fit.max())
    means = priors @ np.linalg.solve(np.swapaxes(root, 1, 2), rest[..., None])
    found = d.copy()
    found[at] = s * (chance / chance.sum() @ means[..., 0])
    return found


def _gaps(views: tuple[BinaryOutcomes, BinaryOutcomes], tables: tuple[Bins, Bins]) -> Gaps:
    """Gaps with the covariance that rows, or groups by jackknife, give them."""
    base = views[0]
    index = [
        np.searchsorted(t.upper[:-1], v.p - 1e-12, side="left") if t.index is None else t.index.astype(np.int64)
        for v, t in zip(views, tables, strict=True)
    ]
    d = np.concatenate([t.weighted_gap for t in tables])
    size = [len(t.weight) for t in tables]
    model = np.repeat([-1.0, 1.0], size)
    w = np.ones(base.n) if base.weights is None else base.weights
    parts = [w * v.residual for v in views]
    units = None
    if base.groups is not None:
        rows = Rows(base.p, base.weights, base.counts, base.groups)
        member = np.unique(base.groups, return_inverse=True)[1]
        count = len(rows.shares)
        u = np.hstack([_summed(member, i, part, count, m) for i, part, m in zip(index, parts, size, strict=True)])
        u = (u / base.total - rows.shares[:, None] * d) / np.maximum(1 - rows.shares, 1e-9)[:, None]
        covariance, third = u.T @ u * (count - 1) / count, (u**3).sum(axis=0)
        units = np.hstack([_summed(member, i, w, count, m) for i, m in zip(index, size, strict=True)])
    else:
        other = [v.residual if base.counts else part for v, part in zip(views, parts, strict=True)]
        covariance = np.block(
            [[_summed(index[a], index[b], parts[a] * other[b], size[a], size[b]) for b in (0, 1)] for a in (0, 1)]
        )
        heavy = [part if base.counts else w * part for part in parts]  # about d: Σ w² (r - d)(r' - d')
        mean = np.concatenate([np.bincount(i, part, m) for i, part, m in zip(index, heavy, size, strict=True)])
        crossed = np.outer(mean, d) / base.total**2
        covariance = covariance / base.total**2 - crossed - crossed.T + np.outer(d, d) / base.effective
        cubes = [(w if base.counts else w**3) * v.residual**3 for v in views]
        third = np.concatenate([np.bincount(i, c, m) for i, c, m in zip(index, cubes, size, strict=True)])
        third = third / base.total**3
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0))
    weight = np.concatenate([t.weight for t in tables])
    cube = sigma**3  # 0 too where sigma is not, but is as good as that
    skewness = np.divide(third, cube, out=np.zeros_like(third), where=cube > 0)
    return Gaps(d, sigma, weight, model, covariance, skewness, _in_a_bin(units, sigma))


def _in_a_bin(held: Floats | None, sigma: Floats) -> float:
    """Effective groups of a bin, from (G, B) what each group has in each: the harmonic mean, bins weighed by σ.

    A gap's bias grows with σ / groups, and biases add up.
    """
    if held is None or not sigma.any():
        return math.inf
    groups = np.array([effective_groups(bin_) for bin_ in held.T])
    return float(sigma.sum() / np.sum(sigma / np.maximum(groups, 1)))


def _summed(i: Ints, j: Ints, values: Floats, rows: int, columns: int) -> Floats:
    """(rows, columns) sums of the values of each pair of indices."""
    sums = np.bincount(i * columns + j, values, rows * columns)
    return np.asarray(sums, np.float64).reshape(rows, columns)
