"""Quantiles, bounds, roots, bins and ties, without SciPy, whose import would double the time to start."""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SMALLEST_P = 1e-300  # so that the logarithm of a p-value is finite
ROOT_2 = math.sqrt(2)
OPENBLAS = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")
LOCK = threading.Lock()
thread_counts: list[int] = []  # for each open block of `one_thread`, the number of threads to restore
TINY = 5e-324  # smallest float64: keeps a logarithm finite where Φ underflows (z² is then larger, and is used)


# Distributions: normal, Student, binomial and beta.


@lru_cache(maxsize=256)
def normal_quantile(level: float) -> float:
    """Compute z with Φ(z) = level: a rational approximation (Hastings 1955), then three steps of Halley's method."""
    p = min(level, 1 - level)
    log_p = math.log(p)
    t = math.sqrt(-2 * log_p)
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    for _ in range(3):
        lacks = (math.erfc(z / ROOT_2) / (2 * p) - 1) * math.exp(log_p + z * z / 2) * math.sqrt(2 * math.pi)
        z += lacks / (1 + z * lacks / 2)
    return z if level > 0.5 else -z if level < 0.5 else 0.0


def normal_share(z: float) -> float:
    """Compute Φ(z), the standard normal distribution function."""
    return math.erfc(-z / ROOT_2) / 2


@lru_cache(maxsize=256)
def student_quantile(level: float, degrees: float) -> float:
    """Compute t with P(T <= t) = level for Student's T; `degrees` may be fractional, and without any t is nan."""
    if not degrees > 0:
        return math.nan
    if math.isinf(degrees):
        return normal_quantile(level)
    if level < 0.5:
        return -student_quantile(1 - level, degrees)
    if level in (0.5, 1.0):
        return 0.0 if level == 0.5 else math.inf
    near, far = beta_quantile(2 * (1 - level), degrees / 2, 0.5)  # 1 / (1 + t² / degrees), and 1 minus that
    return math.sqrt(degrees) * math.sqrt(far / near) if near > 0 else math.inf


def two_sided(t: float, degrees: float = math.inf) -> float:
    """Compute the two-sided p-value P(|T| > t), which is never 0."""
    if not t > 0:
        return 1.0
    if math.isinf(degrees) or math.isinf(t):
        p = math.erfc(t / ROOT_2)
    else:
        square = (t / math.sqrt(degrees)) * (t / math.sqrt(degrees))
        p = beta_tails(1 / (1 + square), square / (1 + square), degrees / 2, 0.5)[0]
    return min(1.0, max(p, SMALLEST_P))


@lru_cache(maxsize=256)
def clopper_pearson(hits: float, n: float, alpha: float) -> tuple[float, float]:
    """Compute exact one-sided bounds of a proportion, each at 1 - alpha (Clopper & Pearson 1934).

    The lower bound is the proportion at which `hits` or more of `n` rows have probability alpha, the upper bound that
    at which `hits` or fewer have. `hits` and `n` need not be whole (effective rows).
    """
    low = 0.0 if hits <= 0 else beta_quantile(alpha, hits, n - hits + 1)[0]
    high = 1.0 if hits >= n else beta_quantile(alpha, n - hits, hits + 1)[1]
    return low, high


def binomial_tail(hits: float, n: float, p: float) -> float:
    """Compute P(X >= hits) for a binomial X of n draws with probability p."""
    return 1.0 if hits <= 0 else beta_tails(p, 1 - p, hits, n - hits + 1)[0]


def beta_tails(x: float, y: float, a: float, b: float) -> tuple[float, float]:
    """Compute P(X <= x) and P(X >= x) of a Beta(a, b); the smaller one has a small relative error.

    By the continued fraction of the tail for which it converges (Lentz's method, Press et al. 2007, 6.4).

    Args:
        y: 1 - x, passed separately so that no digits are lost.
    """
    if x <= 0 or y <= 0:
        return (0.0, 1.0) if x <= 0 else (1.0, 0.0)
    if x * (a + b + 2) <= a + 1:
        lower = _beta_tail(x, y, a, b)
        return lower, 1 - lower
    upper = _beta_tail(y, x, b, a)
    return 1 - upper, upper


def _beta_tail(x: float, y: float, a: float, b: float) -> float:
    """Compute P(X <= x) of a Beta(a, b) whose mean is not far below x."""
    tiny, c, total = 1e-300, 1.0, a + b
    d = 1 / ((1 - total * x / (a + 1)) or tiny)
    fraction = d
    for m in range(1, 1_000_000):  # about sqrt(max(a, b)) steps are needed
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (total + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + term * d) or tiny)
            c = (1 + term / c) or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return _beta_density(x, y, a, b) * fraction / a


def _beta_density(x: float, y: float, a: float, b: float) -> float:
    """Compute x^a y^b / B(a, b), y = 1 - x, from the deviance, so that no digits are lost (Loader 2000)."""
    deviance = _deviance(a, x, a + b) + _deviance(b, y, a + b) - _stirling(a + b) + _stirling(a) + _stirling(b)
    return math.exp(-deviance) * math.sqrt(a / (a + b) * b / (2 * math.pi))


def _deviance(a: float, x: float, n: float) -> float:
    """Compute a log(a / v) + v - a with v = n x, by a series where the terms nearly cancel."""
    t = (a - n * x) / (a + n * x)
    if abs(t) > 0.1:
        return a * (math.log(a) - math.log(n) - math.log(x)) + n * x - a
    terms = (2 * a * t ** (2 * j + 1) / (2 * j + 1) for j in range(1, 9))
    return (a - n * x) * t + math.fsum(terms)


def _stirling(z: float) -> float:
    """Compute the error of Stirling's formula: log Γ(z) - ((z - 1/2) log z - z + log(2π) / 2)."""
    if z < 16:
        return math.lgamma(z) - ((z - 0.5) * math.log(z) - z + math.log(2 * math.pi) / 2)
    s = 1 / (z * z)
    return (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s / 1188)))) / z


@lru_cache(maxsize=256)
def beta_quantile(p: float, a: float, b: float) -> tuple[float, float]:
    """Compute x with P(X <= x) = p for a Beta(a, b), and 1 - x, each to full precision.

    By Newton's method for the logarithm of the smaller tail as a function of log x, or of log(1 - x) if 1 - x is
    smaller, kept inside a bracket.
    """
    if p <= 0 or p >= 1:
        return (0.0, 1.0) if p <= 0 else (1.0, 0.0)
    mirrored = beta_tails(0.5, 0.5, a, b)[0] < p
    small, large = (b, a) if mirrored else (a, b)  # mirrored, so that the x that is sought is at most 1/2
    side = int((p > 0.5) != mirrored)  # the tail of x that is given: 0 the lower, 1 the upper one
    wanted = math.log(min(p, 1 - p))
    low, high = math.log(5e-324), math.log(0.5)
    u = min(high, math.log(small / (small + large)))
    for _ in range(200):
        x, y = math.exp(u), -math.expm1(u)
        tail = beta_tails(x, y, small, large)[side]
        lacks = wanted - math.log(tail) if tail > 0 else math.inf
        low, high = (u, high) if (lacks > 0) != bool(side) else (low, u)
        density = _beta_density(x, y, small, large)  # 0 far below the mean
        step = lacks * tail * y / density * (-1 if side else 1) if tail * density > 0 else math.inf
        near = abs(step) <= 4e-16 * max(1.0, abs(u))
        after = u + step if near or low < u + step < high else (low + high) / 2
        if near or after in (low, high):
            break
        u = after
    x, y = math.exp(after), -math.expm1(after)
    return (y, x) if mirrored else (x, y)


# Weighted means, and one-sided bounds of means.


def effective_rows(weights: Floats) -> float:
    """Compute (Σw)²/Σw²: the number of equally weighted rows whose mean has the same variance."""
    return float(weights.sum() ** 2 / (weights @ weights))


def squares(weights: Floats, counts: bool) -> Floats:
    """Return the (N,) weights of the rows' variances in that of a weighted sum: w², or w of rows that count w times."""
    return weights if counts else weights * weights


def weighted_mean(values: Floats, weights: Floats | None = None) -> tuple[float, float]:
    """Compute Σ w x / Σ w and its standard error for fixed weights, (Σ w² (x - mean)²)^½ / Σ w."""
    w = np.ones(len(values)) if weights is None else weights
    mean = float(np.average(values, weights=w))
    return mean, math.sqrt(float(np.sum((w * (values - mean)) ** 2))) / float(w.sum())


def effective_groups(sizes: npt.ArrayLike) -> float:
    """Compute (Σ m²)² / Σ m⁴: the number of equal groups that would measure a variance as well as groups of sizes m.

    The sum of a group varies at most as its size, so its square enters the variance with m², and the error of the
    variance with m⁴ (Satterthwaite 1946).
    """
    m = np.asarray(sizes, dtype=np.float64)
    top = float(np.abs(m).max(initial=0.0))
    if top == 0:
        return 0.0
    return effective_rows((m / top) ** 2)  # divided by the largest, so that nothing overflows


@lru_cache(maxsize=256)
def rows_at_once(z: float) -> float:
    """Compute max(z², -ln α), with Φ(z) = 1 - α: how many rows of one kind a sample may lack by chance.

    A share h of the population is in none of n rows with probability (1 - h)^n, which is α at h = -ln α / n. For α
    above about .03 that is more than z² / n, the share at which the normal approximation stops; below, z² / n is more.
    """
    return max(z * z, -math.log(max(normal_share(-z), TINY)))


def score_bound(value: float, z: float, unit: float, spread: float) -> float:
    """Compute the upper bound value + h with h² = z² spread + a h, where a = max(z², -ln α) unit (`rows_at_once`).

    The score form (Wilson 1927): the variance is taken at the bound, not at the estimate. For rows that are 0 or `unit`
    the variance of the mean grows with the mean, by `unit` h over a distance h.
    """
    a = unit * rows_at_once(z)
    return value + (a + math.sqrt(a * a + 4 * z * z * spread)) / 2


def unseen_reach(z: float, spread: float, seen: float, unseen: float) -> float:
    """Compute how far the upper bound of a mean lies from the estimate: h = max(h₁, h₂), with a = max(z², -ln α),

        h₁² = z² spread + a seen h₁         rows that were drawn too seldom,
        h₂³ = (z √spread)³ + (a unseen)³    rows that were not drawn at all.

    Ours; derived in docs/statistics/means.md. Let c_i be what row i adds to the estimate beyond the mean; then `spread`
    is Σ c² and `seen` is Σ c³ / Σ c². Among the distributions that reweight the same rows by exp(s c), the variance
    grows with the mean at the rate `seen`, so h₁ is the score form (Wilson 1927, whose Σ c³ / Σ c² is (1 - 2p) / n).
    Kinds of rows that are not in the file are in none of these, which is why h₂ is needed: -ln α rows of such a kind
    may be missing, each worth at most `unseen`, the cost of the dearest row of the file. That all of them are missing
    and noise hides it as well is rarer than α, so cubes are added: over all mixtures of noise and rare rows of one size
    this errs in at most 5.03 % at α = .05 (squares: 5.0 %, the larger of both: 5.9 %), and in 5.0 % if 3 rows of a kind
    are expected (`test_bounds_of_rare_rows`). If all rows have one size, `seen` equals `unseen` and h₁ is the larger.

    Args:
        z: Φ(z) = 1 - α, or Student's quantile.
        spread: variance of the estimate.
        seen: Σ c³ / Σ c², at least 0; for lower bounds its negative.
        unseen: the most that one row (or group of rows) may add to the estimate.
    """
    noise, missing = z * math.sqrt(spread), rows_at_once(z) * unseen
    less, more = sorted((noise, missing))
    combined = more * math.cbrt(1 + (less / more) ** 3) if 0 < more < math.inf else more  # a cube may overflow
    return max(score_bound(0.0, z, seen, spread), combined)


def skewed_reach(z: float, spread: float, skew: float) -> float:
    """Compute how far a bound of a sum of skewed contributions lies from the estimate, as far as drawn rows tell.

    On the side of few large contributions (`skew` > 0) it is the score form, as in `unseen_reach`. On the other side
    it is z √spread + skew (z² - 1) / 3: for a count x, x - z √x + (z² - 1) / 3 is the series of Clopper and Pearson's
    bound. There the score form, x - z √x + z² / 2, is too close and fails in up to 11 % where 1.8 are expected.

    Args:
        skew: Σ c³ / Σ c², with the sign of the side: positive if the few large contributions lie towards the bound.
    """
    return score_bound(0.0, z, skew, spread) if skew > 0 else z * math.sqrt(spread) + skew * (z * z - 1) / 3


# Quantiles, random numbers and roots.


def quantile(values: npt.NDArray[np.floating[Any]], level: float) -> float:
    """Compute `np.quantile` of (n,) numbers, in a fraction of its time for short arrays."""
    rank = level * (len(values) - 1)
    low = int(rank)
    part = values.copy()
    part.partition(low)
    value = float(part[low])
    above = float(part[low + 1 :].min()) if rank > low else value
    return value if above == value else value + (rank - low) * (above - value)  # infinite ones allow no interpolation


def normals(shape: tuple[int, ...], seed: int | tuple[int, ...]) -> Floats:
    """Draw standard normal numbers of this shape, which must not be written to.

    The numbers of a seed are one row, whose beginning every shape takes: they are drawn once for all shapes.
    """
    size, kept = math.prod(shape), _drawn(seed)
    [row] = kept  # another thread may replace it meanwhile
    if row.size < size:  # more than a second, larger shape needs, so that many shapes draw few times
        row = kept[0] = np.random.default_rng(seed).standard_normal(max(size, 2 * row.size))
    return row[:size].reshape(shape)


@lru_cache(maxsize=16)
def _drawn(seed: int | tuple[int, ...]) -> list[Floats]:
    """Return the numbers of a seed that were drawn so far."""
    return [np.empty(0)]


class Binomials:
    """Independent binomials, of which whole rows are drawn: exactly, and many times as fast as by `Generator.binomial`.

    That prepares its sampler for every draw where n and p are arrays. Here the distribution functions are tabulated
    once: from the ratios of neighbouring probabilities, as far about the mode as they matter in float64, and inverted
    on a grid of [0, 1]. A uniform number whose interval of the grid has one outcome is looked up, another one is
    searched for. Tables wider than `WIDEST` cost more than draws do, and are left to `Generator.binomial`.

    Args:
        n: (B,) whole numbers from 0.  p: (B,) in [0, 1].
    """

    WIDEST = 2_000  # outcomes of one binomial

    def __init__(self, n: Ints, p: Floats) -> None:
        self.n, self.p = n, p
        reach = 20 + int(10 * np.sqrt(n * p * (1 - p)).max(initial=0.0))  # outcomes beyond it have less than 2^-53
        self.width = 2 * reach + 1
        if self.width > self.WIDEST:
            return
        size, q, mode, steps = len(n), 1 - p, np.minimum(np.floor((n + 1) * p), n), np.arange(reach)
        up, down = mode[:, None] + steps, mode[:, None] - steps
        tops = np.maximum(n[:, None] - up, 0) * p[:, None], np.maximum(down, 0) * q[:, None]
        bottoms = (up + 1) * q[:, None], (n[:, None] - down + 1) * p[:, None]
        above, below = (
            np.cumprod(np.divide(top, bottom, out=np.zeros_like(up), where=bottom > 0), axis=1)
            for top, bottom in zip(tops, bottoms, strict=True)
        )
        chances = np.cumsum(np.concatenate([below[:, ::-1], np.ones((size, 1)), above], axis=1), axis=1)
        chances /= chances[:, -1:]
        which, least = np.arange(size), mode - reach  # least outcome of a table, which may be below 0
        self.grid = grid = 1 << min(max(17 - size.bit_length(), 6), 11)  # small enough for the cache
        position = chances * grid + (which * (grid + 1))[:, None]
        inside = np.floor(position).astype(np.intp).ravel()
        passed = np.bincount(np.ceil(position).astype(np.intp).ravel(), minlength=size * (grid + 1))
        table = np.cumsum(passed.reshape(size, grid + 1), axis=1) + least[:, None]
        table.ravel()[inside] = np.nan  # an outcome ends in this interval
        self.table, self.chances = table[:, :grid].ravel(), (chances + which[:, None]).ravel()
        self.start, self.first = which * float(grid), least - which * self.width

    def draw(self, draws: int, rng: np.random.Generator) -> Floats:
        """Draw (draws, B) whole numbers, as float64."""
        if self.width > self.WIDEST:
            return rng.binomial(self.n, self.p, size=(draws, len(self.n))).astype(np.float64)
        uniform = rng.random((draws, len(self.n)))
        hits: Floats = self.table.take((uniform * self.grid + self.start).astype(np.intp))
        unknown = np.flatnonzero(np.isnan(hits))
        which = unknown % len(self.n)
        index = np.searchsorted(self.chances, uniform.ravel()[unknown] + which, side="right")
        hits.ravel()[unknown] = index + self.first[which]
        return hits


def scrambled(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Permute 64-bit numbers as the finaliser of SplitMix64 does: pseudorandom, whatever the pattern of the input."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def log_sigmoid(m: Floats) -> Floats:
    """Compute log(1 / (1 + exp(-m))), accurate also where the sigmoid rounds to 0 or 1."""
    result: Floats = np.minimum(m, 0) - np.log1p(np.exp(-np.abs(m)))
    return result


def bisect(
    function: Callable[[float], float], low: float, high: float, halvings: int = 14, tolerance: float = 0.0
) -> tuple[float, float]:
    """Bracket the root of a decreasing function in [low, high]: it is positive at the lower end, not at the upper.

    Stops after `halvings` steps, or when the bracket is narrower than `tolerance` times its upper end or has no float64
    inside. The given ends are not evaluated: if the function has one sign throughout, one of them is returned.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
        if high - low < tolerance * high:
            break
    return low, high


def inverted(reaches: Callable[[float], float], alpha: float) -> float:
    """Compute the p-value of an interval: the alpha at which the interval ends at the tested value.

    Args:
        reaches: a decreasing function of alpha, positive if the interval at alpha contains the tested value.
        alpha: that of the interval shown to the user; the p-value lies on the same side of it.
    """
    inside = reaches(alpha) > 0
    ends = (math.log(alpha), 0.0) if inside else (math.log(SMALLEST_P), math.log(alpha))
    low, high = bisect(lambda log_alpha: reaches(math.exp(log_alpha)), *ends, 40)
    return max(math.exp(high), alpha) if inside else math.exp(low)


def root(function: Callable[[float], float], low: float, high: float, tolerance: float = 1e-13) -> float:
    """Find the root of an increasing function in [low, high] by bracketed secants (Anderson & Björck 1973).

    The last step, no longer than `tolerance` times the larger of 1 and |x|, is taken without asking for its value.
    """
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
        if min(high - low, abs(x - previous)) <= tolerance * max(1.0, abs(x)):
            return x
        f = function(x)
        if f == 0:
            return x
        if f > 0:
            f_low *= _kept(f / f_high) if side == 1 else 1.0
            high, f_high, side = x, f, 1
        else:
            f_high *= _kept(f / f_low) if side == -1 else 1.0
            low, f_low, side = x, f, -1
    return 0.5 * (low + high)


def _kept(ratio: float) -> float:
    """Return what is kept of the value at the end of a bracket that stayed, from those at the one that moved."""
    return max(1 - ratio, 0.1) if ratio < 1 else 0.5


# Numbers of many rows: bins, maxima, ties, counts.

DOUBLE, SINGLE = 1e-12, 2e-6  # relative errors of probabilities computed in float64 and in float32


def bin_index(values: Floats, bins: int, edges: str = "right", precision: float = DOUBLE) -> Ints:
    """Assign each value in [0, 1] to a bin of equal width.

    `right`: ((b-1)/M, b/M], 0 in the first (Guo 2017). `left`: [(b-1)/M, b/M), 1 in the last. `torchmetrics`: as
    `left`, with an additional bin for values of exactly 1. A value within a relative `precision` of an inner edge
    counts as on it: a probability of 0.75 stays there although taking its logarithm and the softmax rounds it.
    """
    scaled = np.asarray(values, dtype=np.float64) * (bins * (1 - precision if edges == "right" else 1 + precision))
    narrow = scaled.astype(np.int32)  # truncation is the floor of numbers >= 0; int32 is several times as fast
    np.minimum(narrow, bins - 1, out=narrow)
    np.maximum(narrow, 0, out=narrow)
    index: Ints = narrow.astype(np.int64)
    if edges == "torchmetrics":
        index[values >= 1] = bins
    return index


def top_of(z: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the (N,) row maxima of (N, K), as `z.max(axis=1)` does in two to three times the time."""
    return np.asarray(np.maximum.reduceat(z.reshape(-1), np.arange(0, z.size, z.shape[1])))


MOST_GROUPS = 1 << 16  # codes of groups that are counted, beside two for each row
CHUNK = 1 << 15  # rows: a column of so many float64 numbers stays in the cache


def parts(n: int) -> Iterator[slice]:
    """Yield slices of `CHUNK` of n rows, so that intermediate arrays are small and stay in the cache."""
    return (slice(start, start + CHUNK) for start in range(0, n, CHUNK))


TIE = 1e-12  # largest difference of equal probabilities: a softmax of reordered classes differs by an ulp
HIGHEST = 1e300  # odds of probability 1, finite so that they can be multiplied


def odds(p: Floats, complement: Floats) -> Floats:
    """Compute the odds p / (1 - p), finite; `complement` is 1 - p with all its digits."""
    with np.errstate(divide="ignore", over="ignore"):
        ratio: Floats = np.divide(p, complement)
    return np.minimum(ratio, HIGHEST, out=ratio)


def tie_ends(p: Floats, complement: Floats) -> Ints:
    """Find where runs of tied rows begin among n rows sorted by rising odds; the last entry is n.

    The one rule for ties: odds within a relative 4 TIE of those of the row before, which is TIE in the probability at
    1/2, are equal up to rounding. By odds, probabilities near 0 and 1 keep all their digits.
    """
    begins = np.ones(len(p) + 1, np.bool_)
    for part in parts(len(p) - 1):
        rows = slice(part.start, part.stop + 1)
        row_odds = odds(p[rows], complement[rows])
        begins[1:-1][part] = row_odds[1:] > row_odds[:-1] * (1 + 4 * TIE)
    return np.flatnonzero(begins) if len(p) else np.zeros(1, np.int64)


def group_places(groups: Ints) -> tuple[Ints, Ints]:
    """Return the groups that have rows, in rising order, and the place among them of each row's, (N,).

    Numbers from 0, as groups are coded where they are read, are counted; only others are sorted, in ten times the time.

    >>> group_places(np.array([4, 0, 4]))
    (array([0, 4]), array([1, 0, 1]))
    """
    if len(groups) and groups.min() >= 0 and groups.max() < 2 * len(groups) + MOST_GROUPS:
        present = np.bincount(groups) > 0
        return np.flatnonzero(present), (np.cumsum(present) - 1)[groups]
    return np.unique(groups, return_inverse=True)


def counted(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Ints]:
    """Return the distinct numbers in rising order with their counts. (`np.unique` loads numpy.ma: 7 % of a start.)"""
    ordered = np.sort(values, axis=None)
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return ordered[starts], np.diff(np.append(starts, len(ordered)))


def quantiles(values: Floats, chances: Sequence[float]) -> list[Floats]:
    """Compute quantiles along the first axis by linear interpolation (`np.quantile` needs the slow `np.unique`)."""
    ordered, last = np.sort(values, axis=0), len(values) - 1
    results = []
    for chance in chances:
        low = min(int(chance * last), max(last - 1, 0))
        results.append(ordered[low] + (chance * last - low) * (ordered[min(low + 1, last)] - ordered[low]))
    return results


# Threads of BLAS.


class one_thread(contextlib.ContextDecorator):
    """Limit NumPy's OpenBLAS to one thread while any such block, or function that it decorates, runs.

    A product of a few rows with a vector is done before the threads woken for it start. They cost as much processor
    time as everything else, and two of our threads that wake them at once wait ten times as long. Other BLAS libraries
    (MKL, BLIS, Accelerate) are left alone.
    """

    def __enter__(self) -> None:
        if functions := _blas():
            get, put = functions
            with LOCK:
                thread_counts.append(thread_counts[0] if thread_counts else get())
                put(1)

    def __exit__(self, *error: object) -> None:
        if functions := _blas():
            with LOCK:
                before = thread_counts.pop()
                if not thread_counts:
                    functions[1](before)


@cache
def _blas() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Find the functions of OpenBLAS that get and set its number of threads; None for another library."""
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]  # and what it has loaded
    except (AttributeError, OSError):
        return None
    for name in OPENBLAS:
        get, put = (getattr(library, name.format(word), None) for word in ("get", "set"))
        if get is not None and put is not None:
            return get, put
    return None
