"""Quantiles, bounds, roots, bins and ranks, each defined once. SciPy loads only where it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SMALLEST_P = 1e-300
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


def two_sided(t: float, degrees: float = math.inf) -> float:
    """P(|T| > t), never 0."""
    from scipy.special import ndtr, stdtr

    p = 2 * float(ndtr(-t) if math.isinf(degrees) else stdtr(degrees, -t))
    return min(1.0, max(p, SMALLEST_P))


def clopper_pearson(hits: float, n: float, alpha: float) -> tuple[float, float]:
    """One-sided bounds, each at 1 - alpha, of a share of which `hits` of `n` rows are (Clopper & Pearson 1934).

    The share at which that many hits, or more (lower) or fewer (upper), have probability alpha: exact, so never wrong
    more often. `hits` and `n` need not be whole (effective rows).
    """
    from scipy.special import betaincinv

    low = 0.0 if hits <= 0 else float(betaincinv(hits, n - hits + 1, alpha))
    high = 1.0 if hits >= n else float(betaincinv(hits + 1, n - hits, 1 - alpha))
    return low, high


def effective_rows(weights: Floats) -> float:
    """(Σw)²/Σw²: how many rows of equal weight have a mean that varies as much."""
    return float(weights.sum() ** 2 / (weights @ weights))


def weighted_mean(values: Floats, weights: Floats | None = None) -> tuple[float, float]:
    """Σ w x / Σ w, and its standard error, (Σ w² (x - mean)²)^½ / Σ w, where the weights are taken as they are."""
    w = np.ones(len(values)) if weights is None else weights
    mean = float(np.average(values, weights=w))
    return mean, math.sqrt(float(np.sum((w * (values - mean)) ** 2))) / float(w.sum())


def effective_groups(sizes: npt.ArrayLike) -> float:
    """(Σ m²)² / Σ m⁴: how many groups of equal size would measure a spread as well as these, of sizes (weights) m.

    A group's sum varies as its size at the most, so its square enters the variance with m² and the error of the
    variance with m⁴ (Satterthwaite 1946).
    """
    m = np.asarray(sizes, dtype=np.float64)
    top = float(np.abs(m).max(initial=0.0))
    if top == 0:
        return 0.0
    return effective_rows((m / top) ** 2)  # no overflow


def score_bound(value: float, z: float, unseen: float, spread: float) -> float:
    """value + h with h² = z² spread + a h: an upper bound that counts errors that no row happened to show.

    The variance at the bound is that of what was seen (`spread`, of the estimate) and of one error of size 1 in a share
    h of rows (`unseen` = 1 / n, or Σ share²). Without the second a model with no error among its rows has a bound of
    length nearly 0. a = max(z², -ln α) unseen, with Φ(z) = 1 - α: where nothing was seen, a share h stays unseen with
    probability (1 - h)^n, which is α at -ln α / n, not at z² / n.
    """
    a = unseen * max(z * z, -math.log(max(normal_share(-z), TINY)))
    return value + (a + math.sqrt(a * a + 4 * z * z * spread)) / 2


def quantile(values: Floats, level: float) -> float:
    """`np.quantile` of (n,) finite numbers, in a fraction of its time where they are few."""
    at = level * (len(values) - 1)
    low = int(at)
    part = np.partition(values, low)
    above = float(part[low + 1 :].min()) if at > low else 0.0
    return float(part[low] + (at - low) * (above - part[low]))


@lru_cache(maxsize=16)
def normals(shape: tuple[int, ...], seed: int) -> Floats:
    """Standard normal draws of this shape, drawn once."""
    return np.random.default_rng(seed).standard_normal(shape)


def log_sigmoid(m: Floats) -> Floats:
    """log(1 / (1 + exp(-m))), where that is 0 or -∞ in float64 too."""
    result: Floats = np.minimum(m, 0) - np.log1p(np.exp(-np.abs(m)))
    return result


def bisect(
    function: Callable[[float], float], low: float, high: float, halvings: int = 14, tolerance: float = 0.0
) -> tuple[float, float]:
    """Bracket of the root in [low, high] of a function that falls: positive at its lower end, not at its upper one.

    As narrow as `halvings` make it, `tolerance` times its upper end, or two neighbours in float64. The end that no step
    moved is not evaluated: it is that of [low, high] where the function has one sign throughout.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
        if high - low < tolerance * high:
            break
    return low, high


def root(function: Callable[[float], float], low: float, high: float, tolerance: float = 1e-13) -> float:
    """Root of an increasing function in [low, high] by secants kept inside the bracket (Illinois)."""
    f_low, f_high = function(low), function(high)
    if f_low >= 0:
        return low
    if f_high <= 0:
        return high
    side, x = 0, math.inf
    for _ in range(200):
        previous = x
        x = high - f_high * (high - low) / (f_high - f_low)
        if not low < x < high:
            x = 0.5 * (low + high)
        f = function(x)
        if f == 0 or min(high - low, abs(x - previous)) <= tolerance * max(1.0, abs(x)):
            return x
        if f > 0:
            high, f_high = x, f
            f_low = f_low / 2 if side == 1 else f_low
            side = 1
        else:
            low, f_low = x, f
            f_high = f_high / 2 if side == -1 else f_high
            side = -1
    return 0.5 * (low + high)


DOUBLE, SINGLE = 1e-12, 2e-6  # relative errors of probabilities by a pass in float64 and in float32


def bin_index(values: Floats, bins: int, edges: str = "right", precision: float = DOUBLE) -> Ints:
    """Bin of each value in [0, 1], equal width, computed in float64.

    `right`: ((b-1)/M, b/M], 0 in the first (Guo 2017). `left`: [(b-1)/M, b/M), 1 in the last. `torchmetrics`: as
    `left`, with a bin of its own for values of exactly 1. A value within `precision` of an inner edge, relative to it,
    is on it: 0.75 given as a probability stays there though its logarithm and the softmax round it.
    """
    scaled = np.asarray(values, dtype=np.float64) * bins
    if edges == "right":
        scaled *= 1 - precision
        np.ceil(scaled, out=scaled)
        scaled -= 1
    else:
        scaled *= 1 + precision
    narrow = scaled.astype(np.int32)  # truncates: the floor of what is >= 0; half as wide is several times as fast
    np.minimum(narrow, bins - 1, out=narrow)
    np.maximum(narrow, 0, out=narrow)
    index: Ints = narrow.astype(np.int64)
    if edges == "torchmetrics":
        index[values >= 1] = bins
    return index


CHUNK = 1 << 15  # rows whose numbers stay in the cache
TIE = 1e-12  # confidences that differ by less are the same: softmax of classes in another order differs by an ulp


def ties(ordered: Floats, values: Floats) -> Iterator[slice]:
    """Where in increasing numbers those that are within TIE of these values are; no number twice."""
    stop = 0
    for value in np.unique(values):
        low, high = np.searchsorted(ordered, [value - TIE, value + TIE])
        start, stop = max(int(low), stop), max(int(high), stop)
        if stop > start:
            yield slice(start, stop)
