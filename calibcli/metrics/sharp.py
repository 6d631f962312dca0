"""Sharper one-sided bounds for the binned calibration error of independent rows.

The plain bounds take the worst case: above, that every bin's sign is known (E then carries no upward bias, although it
does wherever a gap is small beside its noise); below, that every bin is calibrated (E then carries all of that bias,
although it does not where a gap is surely there). These take, above, the worst case that the data leave open, and
below, signs that the rows themselves foretell.

With normal bins, d̂_b = d_b + σ_b Z_b and x_b = |d_b|/σ_b, a bin adds σ_b |x_b + Z_b| to the estimate E.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from calibcli.numerics import bisect, normal_quantile

Floats = npt.NDArray[np.float64]
EVENTS = 10.0  # effective rows behind a bin's variance, below which its bias is not counted on
CAUTION = 1.0  # standard errors by which a bin's variance is lowered before its bias is counted on
WHOLE = 0.2  # of alpha, spent below on the plain bound; the rest on signs
STEPS = 16
NEAR = (0.6, 0.7, 0.8, 0.9, 1.0)


def upper(value: float, plain: float, d: Floats, spread: Floats, fourth: Floats, unit: float, alpha: float) -> float:
    """The largest ECE that E does not contradict at level alpha.

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
    least = _surely(d, spread, fourth, unit)
    # what the plain bound adds to the variance for errors that were not seen, in no bin in particular
    unseen = max(((plain - value) / z) ** 2 - float(spread.sum()), 0.0)
    value = max(value, _usual(least))
    if not least.any() or _quantile(plain, least, spread, unseen, z) < value:
        return plain
    return bisect(lambda size: value - _quantile(size, least, spread, unseen, z), 0.0, plain, STEPS)[1]


def largest(limit: float, length: float, d: Floats, spread: Floats, fourth: Floats, unit: float, alpha: float) -> float:
    """The largest E whose upper bound is at most `limit`; `length`: of the plain bound beyond E, else as `upper`."""
    z = normal_quantile(1 - alpha)
    least = _surely(d, spread, fourth, unit)
    most = _quantile(limit, least, spread, max((length / z) ** 2 - float(spread.sum()), 0.0), z) if least.any() else 0.0
    return max(limit - length, most if most >= _usual(least) else -math.inf)


def _surely(d: Floats, spread: Floats, fourth: Floats, unit: float) -> Floats:
    """Standard deviation of each bin's gap about its mean, less its own sampling error; 0 where too little is known."""
    known = np.divide(spread**2, fourth, out=np.zeros_like(spread), where=fourth > 0) >= EVENTS
    return np.sqrt(np.where(known, np.maximum(spread - CAUTION * np.sqrt(fourth) - d**2 * unit, 0), 0))


def _usual(least: Floats) -> float:
    """An E lower than nearly any model shows is not taken as evidence of being better than perfect."""
    return math.sqrt(2 / math.pi) * float(least.sum()) - math.sqrt((1 - 2 / math.pi) * float(least @ least))


def _quantile(tau: float, least: Floats, spread: Floats, unseen: float, z: float) -> float:
    """A lower bound on the α quantile of E over all gaps with Σ|d_b| = tau."""
    x, mean, variance = _folded()
    s = math.sqrt(float(spread.sum()) + unseen)
    on = least > 0
    size = least[on, None]
    rest = float(spread[~on].sum()) + unseen
    gaps, means = size * x, size * mean
    ratio = np.sqrt(spread[on, None]) / size
    variances = spread[on, None] * np.interp(x / ratio, x, variance)
    best = tau - z * s
    for near in NEAR:
        base = means - z / (2 * near * s) * variances
        dual = (base[None] - MULTIPLIERS[:, None, None] * gaps[None]).min(axis=2).sum(axis=1) + MULTIPLIERS * tau
        best = max(best, float(dual.max()) - z * rest / (2 * near * s) - z * near * s / 2)
    return best


MULTIPLIERS = np.linspace(0, 1, 21)


@lru_cache(maxsize=1)
def _folded() -> tuple[Floats, Floats, Floats]:
    """x, mean and variance of |x + Z|; the last x stands for infinity."""
    x = np.append(np.linspace(0, 4, 41), 60.0)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    mean = 2 * density + x * np.array([math.erf(v / math.sqrt(2)) for v in x])
    return x, mean, np.maximum(1 + x * x - mean**2, 0)


def signed(d: Floats, variance: Floats, alpha: float) -> Floats:
    """A lower bound from signs that are fixed before a row is looked at: whatever they are, s·d <= ECE.

    Two choices, a third of alpha for each of three claims. The same sign for every row: |Σ d̂_b|, both signs. And the
    sign of what the earlier rows of the bin add up to: Σ_i s_i r_i is then a sum whose expectation, row by row, is at
    most the ECE and whose variance at most that of Σ d̂. Averaged over all orders of the rows it is, for a bin of many,

        |d̂| - σ M(|d̂| / σ),   M(x) = Φ(-x) / φ(x) (Mills' ratio):

    the sum W of the rows in order is a Brownian bridge to d̂/σ, ∫ sign(W) dW = |W_1| - L with L its local time at 0
    (Tanaka), and P(L > l | W_1 = x) = exp(-(l² + 2 l |x|) / 2). No order has to be drawn, and none matters.

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
    """Φ(-x) / φ(x) for x >= 0, to 1e-6: interpolated; beyond 8 its series."""
    grid, values = _mills_grid()
    far = 1 / np.maximum(x, grid[-1])
    return np.asarray(
        np.where(
            x < grid[-1],
            np.interp(x, grid, values),
            far * (1 - far**2 * (1 - far**2 * (3 - far**2 * (15 - 105 * far**2)))),
        )
    )


@lru_cache(maxsize=1)
def _mills_grid() -> tuple[Floats, Floats]:
    grid = np.linspace(0, 8, 4001)
    half = np.array([math.erfc(x / math.sqrt(2)) / 2 for x in grid])
    return grid, half * np.exp(grid**2 / 2) * math.sqrt(2 * math.pi)
