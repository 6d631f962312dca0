"""Quantiles and bounds that several rooms take: each number has one definition. SciPy loads only where it is used."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
TINY = 5e-324  # where Φ is 0 in float64, z² is the larger of the two


def normal_quantile(level: float) -> float:
    """z with Φ(z) = level."""
    return NormalDist().inv_cdf(level)


def normal_share(z: float) -> float:
    """Φ(z)."""
    return NormalDist().cdf(z)


@lru_cache(maxsize=256)
def student_quantile(level: float, degrees: float) -> float:
    """t with P(T <= t) = level, T Student's with any positive (also fractional) degrees of freedom; nan without."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, level)) if degrees > 0 else math.nan


def clopper_pearson(hits: float, n: float, alpha: float) -> tuple[float, float]:
    """One-sided bounds, each at 1 - alpha, of a share of which `hits` of `n` rows are (Clopper & Pearson 1934).

    The share at which that many hits, or more (lower) or fewer (upper), have probability alpha: exact, so never wrong
    more often. `hits` and `n` need not be whole (effective rows).
    """
    from scipy.special import betaincinv

    low = 0.0 if hits <= 0 else float(betaincinv(hits, n - hits + 1, alpha))
    high = 1.0 if hits >= n else float(betaincinv(hits + 1, n - hits, 1 - alpha))
    return low, high


def effective_groups(sizes: npt.ArrayLike) -> float:
    """(Σ m²)² / Σ m⁴: how many groups of equal size would measure a spread as well as these, of sizes (weights) m.

    A group's sum varies as its size at the most, so its square enters the variance with m² and the error of the
    variance with m⁴ (Satterthwaite 1946).
    """
    m = np.asarray(sizes, dtype=np.float64)
    top = float(np.abs(m).max(initial=0.0))
    if top == 0:
        return 0.0
    square = (m / top) ** 2  # no overflow
    return float(square.sum() ** 2 / (square @ square))


def score_bound(value: float, z: float, unseen: float, spread: float) -> float:
    """value + h with h² = z² spread + a h: an upper bound that counts errors that no row happened to show.

    The variance at the bound is that of what was seen (`spread`, of the estimate) and of one error of size 1 in a share
    h of rows (`unseen` = 1 / n, or Σ share²). Without the second a model with no error among its rows has a bound of
    length nearly 0. a = max(z², -ln α) unseen, with Φ(z) = 1 - α: where nothing was seen, a share h stays unseen with
    probability (1 - h)^n, which is α at -ln α / n, not at z² / n.
    """
    a = unseen * max(z * z, -math.log(max(normal_share(-z), TINY)))
    return value + (a + math.sqrt(a * a + 4 * z * z * spread)) / 2
