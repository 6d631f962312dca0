"""Quantiles, bounds, roots, bins and ranks, each defined once. Without SciPy, which loads as long as NumPy does."""

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
SMALLEST_P = 1e-300
ROOT_2 = math.sqrt(2)
OPENBLAS = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads")
LOCK, held = threading.Lock(), list[int]()  # of each block of `one_thread`: the threads before the first of them
TINY = 5e-324  # where Φ is 0 in float64, z² is the larger of the two


def normal_quantile(level: float) -> float:
    """z with Φ(z) = level, from a rational start (Hastings 1955) by three of Halley's steps."""
    p = min(level, 1 - level)
    log_p = math.log(p)
    t = math.sqrt(-2 * log_p)
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    for _ in range(3):
        lacks = (math.erfc(z / ROOT_2) / (2 * p) - 1) * math.exp(log_p + z * z / 2) * math.sqrt(2 * math.pi)
        z += lacks / (1 + z * lacks / 2)
    return z if level > 0.5 else -z if level < 0.5 else 0.0


def normal_share(z: float) -> float:
    """Φ(z)."""
    return math.erfc(-z / ROOT_2) / 2


@lru_cache(maxsize=256)
def student_quantile(level: float, degrees: float) -> float:
    """t with P(T <= t) = level, T Student's with any positive (also fractional) degrees of freedom; nan without."""
    if not degrees > 0:
        return math.nan
    if math.isinf(degrees):
        return normal_quantile(level)
    if level < 0.5:
        return -student_quantile(1 - level, degrees)
    if level in (0.5, 1.0):
        return 0.0 if level == 0.5 else math.inf
    near, far = beta_quantile(2 * (1 - level), degrees / 2, 0.5)  # 1 / (1 + t² / degrees), and what it lacks
    return math.sqrt(degrees) * math.sqrt(far / near) if near > 0 else math.inf


def two_sided(t: float, degrees: float = math.inf) -> float:
    """P(|T| > t), never 0."""
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
    """One-sided bounds, each at 1 - alpha, of a share of which `hits` of `n` rows are (Clopper & Pearson 1934).

    The share at which that many hits, or more (lower) or fewer (upper), have probability alpha: exact, so never wrong
    more often. `hits` and `n` need not be whole (effective rows).
    """
    low = 0.0 if hits <= 0 else beta_quantile(alpha, hits, n - hits + 1)[0]
    high = 1.0 if hits >= n else beta_quantile(alpha, n - hits, hits + 1)[1]
    return low, high


def binomial_tail(hits: float, n: float, p: float) -> float:
    """P(X >= hits), X of n draws that each hit with chance p."""
    return 1.0 if hits <= 0 else beta_tails(p, 1 - p, hits, n - hits + 1)[0]


def beta_tails(x: float, y: float, a: float, b: float) -> tuple[float, float]:
    """P(X <= x) and P(X >= x) of a Beta(a, b); y = 1 - x, with all its digits. The smaller has a small relative error.

    By the continued fraction of the side that converges (Lentz's method, Press et al. 2007, 6.4).
    """
    if x <= 0 or y <= 0:
        return (0.0, 1.0) if x <= 0 else (1.0, 0.0)
    if x * (a + b + 2) <= a + 1:
        lower = _beta_tail(x, y, a, b)
        return lower, 1 - lower
    upper = _beta_tail(y, x, b, a)
    return 1 - upper, upper


def _beta_tail(x: float, y: float, a: float, b: float) -> float:
    """P(X <= x), X of a Beta(a, b) whose mean is not far below x."""
    tiny, c, total = 1e-300, 1.0, a + b
    d = 1 / ((1 - total * x / (a + 1)) or tiny)
    fraction = d
    for m in range(1, 1_000_000):  # about the root of the larger of a and b are needed
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
    """x^a y^b / B(a, b), y = 1 - x, by what it lacks of its largest, so that no digits go (Loader 2000)."""
    lacks = _deviance(a, x, a + b) + _deviance(b, y, a + b) - _stirling(a + b) + _stirling(a) + _stirling(b)
    return math.exp(-lacks) * math.sqrt(a / (a + b) * b / (2 * math.pi))


def _deviance(a: float, x: float, n: float) -> float:
    """a log(a / v) + v - a, v = n x."""
    t = (a - n * x) / (a + n * x)
    if abs(t) > 0.1:
        return a * (math.log(a) - math.log(n) - math.log(x)) + n * x - a
    terms = (2 * a * t ** (2 * j + 1) / (2 * j + 1) for j in range(1, 9))
    return (a - n * x) * t + math.fsum(terms)


def _stirling(z: float) -> float:
    """log Γ(z) less Stirling's (z - 1/2) log z - z + log(2π) / 2."""
    if z < 16:
        return math.lgamma(z) - ((z - 0.5) * math.log(z) - z + math.log(2 * math.pi) / 2)
    s = 1 / (z * z)
    return (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s / 1188)))) / z


@lru_cache(maxsize=256)
def beta_quantile(p: float, a: float, b: float) -> tuple[float, float]:
    """x with P(X <= x) = p, X of a Beta(a, b), and 1 - x, each with all its digits.

    By Newton's steps on the logarithm of the smaller tail in the logarithm of x, or of 1 - x where that is smaller,
    kept in a bracket.
    """
    if p <= 0 or p >= 1:
        return (0.0, 1.0) if p <= 0 else (1.0, 0.0)
    mirrored = beta_tails(0.5, 0.5, a, b)[0] < p
    small, large = (b, a) if mirrored else (a, b)  # of the side whose x is at most 1/2
    side = int((p > 0.5) != mirrored)  # of x, the tail that is given: the lower or the upper one
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


def rows_at_once(z: float) -> float:
    """-ln α, with Φ(z) = 1 - α, and at least z²: how many rows may have stayed undrawn together.

    A share h of the population is in none of n rows with probability (1 - h)^n, which is α at h = -ln α / n; that is
    more than z² / n, the h at which the normal approximation stops, where α is below .03 or so.
    """
    return max(z * z, -math.log(max(normal_share(-z), TINY)))


def score_bound(value: float, z: float, unit: float, spread: float) -> float:
    """value + h with h² = z² spread + a h: an upper bound at which the variance is larger than at the estimate.

    The variance of a mean of rows that are 0 or `unit` grows with the mean, by `unit` h over a distance h (Wilson
    1927). a = max(z², -ln α) unit: see `rows_at_once`.
    """
    a = unit * rows_at_once(z)
    return value + (a + math.sqrt(a * a + 4 * z * z * spread)) / 2


def unseen_reach(z: float, spread: float, seen: float, unseen: float) -> float:
    """How far beyond its estimate the upper bound of a mean lies: h = max(h₁, h₂), with a = max(z², -ln α),

        h₁² = z² spread + a seen h₁         rows that were drawn too seldom,
        h₂³ = (z √spread)³ + (a unseen)³    rows that were not drawn at all.

    Ours. With c_i what row i adds to the estimate beyond the mean, `spread` is Σ c² and `seen` is Σ c³ / Σ c²: among
    the distributions that put other weights exp(s c) on the same rows, the variance grows with the mean at that rate,
    so h₁ is the score form (Wilson 1927, whose Σ c³ / Σ c² is (1 - 2p) / n). But rows of a kind that none of the file
    shows are in none of those distributions. -ln α of them may be missing, each of which moves the mean by at most
    `unseen`; that all of them are missing and the noise of the other rows hides it too is rarer than α, so that less
    than the sum of both is needed. Their cubes add up: over all mixtures of noise and of rows that are one size and
    seldom, this errs in at most 5.1 % at α = .05 (as squares in 5.0 %, the larger of both in 5.7 %), and in 5.8 % where
    a kind of rows is expected in 3 of the file and may lack altogether. What rows would cost is in the file even where
    it has not happened: `unseen` is what the dearest of them would add. Where all rows are of one size, `seen` is
    `unseen` and h₁ the larger.

    Args:
        z: Φ(z) = 1 - α, or Student's quantile.
        spread: variance of the estimate.
        seen: Σ c³ / Σ c², at least 0; of lower bounds its negative.
        unseen: the most that one row (or group of rows) may add to the estimate.
    """
    noise, missing = z * math.sqrt(spread), rows_at_once(z) * unseen
    return max(score_bound(0.0, z, seen, spread), math.cbrt(noise**3 + missing**3))


def skewed_reach(z: float, spread: float, skew: float) -> float:
    """How far beyond its estimate a bound of a sum of skewed contributions lies: at least so far by what was drawn.

    Towards the side where contributions are few and large (`skew` > 0) the score form, as in `unseen_reach`. On the
    other side z √spread + skew (z² - 1) / 3: of a count x, x - z √x + (z² - 1) / 3 is the series of Clopper and
    Pearson's bound. The score form, x - z √x + z² / 2, is too near and fails in up to 11 % where 1.8 are expected.

    Args:
        skew: Σ c³ / Σ c², its sign that of the side: positive where the few large ones lie beyond the bound.
    """
    return score_bound(0.0, z, skew, spread) if skew > 0 else z * math.sqrt(spread) + skew * (z * z - 1) / 3


def quantile(values: Floats, level: float) -> float:
    """`np.quantile` of (n,) finite numbers, in a fraction of its time where they are few."""
    at = level * (len(values) - 1)
    low = int(at)
    part = np.partition(values, low)
    above = float(part[low + 1 :].min()) if at > low else 0.0
    between = at > low and above != part[low]  # which infinite numbers are not
    return float(part[low] + (at - low) * (above - part[low])) if between else float(part[low])


@lru_cache(maxsize=16)
def normals(shape: tuple[int, ...], seed: int) -> Floats:
    """Standard normal draws of this shape, drawn once."""
    return np.random.default_rng(seed).standard_normal(shape)


def scrambled(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64 finaliser: a fixed permutation that looks random, so that no period of the rows matters."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


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


def inverted(reaches: Callable[[float], float], alpha: float) -> float:
    """p-value of an interval: the alpha at which it ends at the value that is tested.

    Args:
        reaches: positive for an alpha whose interval holds that value; it falls.
        alpha: that of an interval that was shown; the p-value lies on the same side of it.
    """
    inside = reaches(alpha) > 0
    ends = (math.log(alpha), 0.0) if inside else (math.log(SMALLEST_P), math.log(alpha))
    low, high = bisect(lambda log_alpha: reaches(math.exp(log_alpha)), *ends, 40)
    return max(math.exp(high), alpha) if inside else math.exp(low)


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
    scaled = np.asarray(values, dtype=np.float64) * (bins * (1 - precision if edges == "right" else 1 + precision))
    narrow = scaled.astype(np.int32)  # truncates: the floor of what is >= 0; half as wide is several times as fast
    np.minimum(narrow, bins - 1, out=narrow)
    np.maximum(narrow, 0, out=narrow)
    index: Ints = narrow.astype(np.int64)
    if edges == "torchmetrics":
        index[values >= 1] = bins
    return index


def top_of(z: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(N,) largest of each row of (N, K): `z.max(axis=1)`, which takes two to three times as long."""
    return np.asarray(np.maximum.reduceat(z.reshape(-1), np.arange(0, z.size, z.shape[1])))


CHUNK = 1 << 15  # rows whose numbers stay in the cache


def parts(n: int) -> Iterator[slice]:
    """Of n rows, some at a time: what is worked out of them stays in the cache, and takes no memory to speak of."""
    return (slice(start, start + CHUNK) for start in range(0, n, CHUNK))


TIE = 1e-12  # what probabilities differ by that are the same: softmax of classes in another order differs by an ulp
HIGHEST = 1e300  # odds


def odds(p: Floats, complement: Floats) -> Floats:
    """p / (1 - p), which keeps the digits of both; finite."""
    with np.errstate(divide="ignore", over="ignore"):
        found: Floats = np.divide(p, complement)
    return np.minimum(found, HIGHEST, out=found)


def tie_ends(p: Floats, complement: Floats) -> Ints:
    """Where, among n rows by rising odds, those of other odds begin: from 0 to n.

    The one rule for ties: odds that differ by rounding from those of the row before (by 4 TIE of them, which is TIE of
    the probability at 1/2) are the same. Probabilities near 0 and 1 keep all their digits.
    """
    begins = np.ones(len(p) + 1, np.bool_)
    for part in parts(len(p) - 1):
        rows = slice(part.start, part.stop + 1)
        own = odds(p[rows], complement[rows])
        begins[1:-1][part] = own[1:] > own[:-1] * (1 + 4 * TIE)
    return np.flatnonzero(begins) if len(p) else np.zeros(1, np.int64)


def counted(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Ints]:
    """Different numbers, rising, and how often each is there. (`np.unique` loads numpy.ma: 7 % of a start.)"""
    ordered = np.sort(values, axis=None)
    at = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return ordered[at], np.diff(np.append(at, len(ordered)))


def quantiles(values: Floats, chances: Sequence[float]) -> list[Floats]:
    """Along the first axis, between the two next to it in proportion (as `np.quantile`, which asks `np.unique`)."""
    ordered, last = np.sort(values, axis=0), len(values) - 1
    found = []
    for chance in chances:
        low = min(int(chance * last), max(last - 1, 0))
        found.append(ordered[low] + (chance * last - low) * (ordered[min(low + 1, last)] - ordered[low]))
    return found


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """NumPy's OpenBLAS held to one thread, while any of these blocks runs.

    A product of some rows with a vector is over before the threads woken for it have begun: they cost as much processor
    time as all the rest, and two threads of ours that ask for them at once wait ten times as long.
    """
    found = _blas()
    if found is None:
        yield
        return
    get, put = found
    with LOCK:
        held.append(held[0] if held else get())
        put(1)
    try:
        yield
    finally:
        with LOCK:
            before = held.pop()
            if not held:
                put(before)


@cache
def _blas() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """What tells the number of threads, and what sets it."""
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]  # and what it has loaded
    except (AttributeError, OSError):
        return None
    for name in OPENBLAS:
        get, put = (getattr(library, name.format(word), None) for word in ("get", "set"))
        if get is not None and put is not None:
            return get, put
    return None
