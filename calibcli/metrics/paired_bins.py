"""The difference of two binned errors on the same rows: gaps whose sign is not sure enter with little bias."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from calibcli.metrics.intervals import Rows
from calibcli.metrics.reliability import BinaryOutcomes, Bins
from calibcli.numerics import SMALLEST_P, bisect, normals
from calibcli.predictions import Floats, Ints

SIZES = np.array([-1.35, -0.76, 0.65, 2.15, 2.93, 2.96, 2.85, 2.8, 4.0])
"""g(x) at x = 0, 1/2, ..., 4, linear between and x beyond: |E g(μ + Z) - |μ|| <= .17 and Var g <= 2.4 for every μ."""
SURE = 4.0  # standard errors from which a gap has its sign
BIASED = 0.16  # bias allowed for per gap, in standard errors: the most
MOVED = 0.15  # and per difference of the two gaps of a bin
DRAWS = 400
FEWEST = 0.2  # share of V₁ that the variance keeps
WIDEST = 1000  # bins of both models whose covariance is taken


class Gaps(NamedTuple):
    """(B,) signed gaps of the first model's bins, then the second's; standard errors; -1 or 1 for the model; (B, B)."""

    d: Floats
    sigma: Floats
    model: Floats
    covariance: Floats

    def difference(self, d: Floats) -> Floats:
        """(...,) Σ σ g(|d|/σ) of the second model less that of the first, of (..., B) gaps."""
        x = np.abs(d) / np.where(self.sigma > 0, self.sigma, 1)
        sizes = np.where(x < SURE, np.interp(x, np.arange(len(SIZES)) / 2, SIZES), x) * self.sigma
        return np.asarray(np.where(self.sigma > 0, sizes, np.abs(d)) @ self.model)

    @property
    def variance(self) -> float:
        """2 V₁ - V₂ of `difference`."""
        values, vectors = np.linalg.eigh(self.covariance)
        around = normals((3, DRAWS, len(self.d)), 0) @ (vectors * np.sqrt(np.maximum(values, 0))).T
        one, two, three = around
        first = [self.difference(self.d + z) for z in around]
        second = [self.difference(self.d + z) for z in (one + two, one + three, two + three)]
        once = sum(float(((first[i] - first[j]) ** 2).mean()) for i, j in ((0, 1), (0, 2), (1, 2))) / 6
        twice = sum(float(((second[i] - second[j]) ** 2).mean()) for i, j in ((0, 1), (0, 2), (1, 2))) / 6
        return max(2 * once - twice, FEWEST * once)

    @property
    def bias(self) -> float:
        """How much of the bias of both models' unsure gaps the interval allows for."""
        unsure = np.where(np.abs(self.d) < SURE * self.sigma, BIASED * self.sigma, 0.0)
        first, second = self.model < 0, self.model > 0
        if first.sum() != second.sum():
            return float(unsure.sum())
        return float(np.minimum(unsure[first] + unsure[second], MOVED * np.abs(self.d[second] - self.d[first])).sum())


def difference(
    views: tuple[BinaryOutcomes, BinaryOutcomes], tables: tuple[Bins, Bins], level: float
) -> tuple[float, float, float, float] | None:
    """Value, interval and p-value of Σ|d| of the second model less that of the first; None: gaps without spread.

    Σ|d̂| is too large by up to .8 standard errors a bin where a model is calibrated, by less where it is nearly so, and
    which of them it is the gaps do not tell. So a gap enters as σ g(|d̂|/σ), g the function whose worst bias over all d
    is least for its variance (|.| has a corner, so no function has none: Cai and Low 2011; here piecewise linear).
    The variance V is that over normal draws around d̂ of both models' gaps together, so that what they share cancels.
    It depends on signs that are not sure: draws see them blurred once, draws around draws twice, and 2 V₁ - V₂ takes
    the blur out to first order. The interval is the shortest about its centre that holds the level whatever the bias
    up to a bound (Armstrong and Kolesár 2018), and reaches to the plain difference where that lies outside.
    """
    gaps = _gaps(views, tables)
    error = math.sqrt(gaps.variance)
    if error == 0:
        return None
    value, centre = float(np.abs(gaps.d) @ gaps.model), float(gaps.difference(gaps.d))
    base = views[0]
    bias, degrees = round(gaps.bias / error, 6), Rows(base.p, base.weights, base.counts, base.groups).units - 1
    half = error * bisect(lambda t: _p_value(t, bias, degrees) - (1 - level), 0.0, 1e6, 80)[1]
    p = 1.0 if value * centre <= 0 else _p_value(abs(centre) / error, bias, degrees)
    return value, min(value, centre - half), max(value, centre + half), p


def _p_value(t: float, bias: float, degrees: float) -> float:
    """P(|T + bias| > t), T Student's: the largest for a bias of up to that."""
    from scipy.special import stdtr

    return min(1.0, max(float(stdtr(degrees, bias - t) + stdtr(degrees, -bias - t)), SMALLEST_P))


def _gaps(views: tuple[BinaryOutcomes, BinaryOutcomes], tables: tuple[Bins, Bins]) -> Gaps:
    """Gaps with the covariance that rows, or groups by jackknife, give them."""
    base = views[0]
    index = [np.searchsorted(t.upper[:-1], v.p - 1e-12, side="left") for v, t in zip(views, tables, strict=True)]
    d = np.concatenate([t.weighted_gap for t in tables])
    size = [len(t.weight) for t in tables]
    model = np.repeat([-1.0, 1.0], size)
    w = np.ones(base.n) if base.weights is None else base.weights
    parts = [w * v.residual for v in views]
    if base.groups is not None:
        rows = Rows(base.p, base.weights, base.counts, base.groups)
        member = np.unique(base.groups, return_inverse=True)[1]
        count = len(rows.shares)
        u = np.hstack([_summed(member, i, part, count, m) for i, part, m in zip(index, parts, size, strict=True)])
        u = (u / base.total - rows.shares[:, None] * d) / np.maximum(1 - rows.shares, 1e-9)[:, None]
        covariance = u.T @ u * (count - 1) / count
    else:
        other = [v.residual if base.counts else part for v, part in zip(views, parts, strict=True)]
        covariance = np.block(
            [[_summed(index[a], index[b], parts[a] * other[b], size[a], size[b]) for b in (0, 1)] for a in (0, 1)]
        )
        covariance = covariance / base.total**2 - np.outer(d, d) / base.effective
    sigma = np.sqrt(np.maximum(np.diag(covariance), 0))
    return Gaps(d, sigma, model, covariance)


def _summed(i: Ints, j: Ints, values: Floats, rows: int, columns: int) -> Floats:
    """(rows, columns) sums of the values of each pair of indices."""
    sums = np.bincount(i * columns + j, values, rows * columns)
    return np.asarray(sums, np.float64).reshape(rows, columns)
