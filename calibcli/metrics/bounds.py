"""One-sided bounds for the binned calibration error: what a gate may claim about the population from n rows.

With r = c - y per row, d_b = mean(r in bin b) and s the true signs of d: ECE = s·d. The estimate is E = Σ|d̂_b|.

- Upper: ECE = s·d <= E + s·(d - d̂), and the variance of s·d̂ is at most E[r²]/n. The bound solves
  h² = z²/n (mean(r²) + h), a score form: the h inside counts errors that happened not to be seen, without which a
  saturated model with no error among its rows gets an interval of length nearly 0.
- Lower: E - ECE <= ‖d̂ - d‖₁ (triangle inequality), whose quantile is that of normal bins with variance
  max(mean r² 1_b, mean c(1-c) 1_b)/n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibcli.columns import Edges, bin_index
from calibcli.errors import UsageError
from calibcli.metrics import sharp

DRAWS = 20_000
FEWEST_BEYOND = 50  # draws beyond a quantile below which the simulated quantile is replaced by its analytic bound
WeightKind = Literal["sampling", "count"]
Method = Literal["score", "sharp"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The plug-in ECE and its one-sided bounds.

    Attributes:
        value: E, the binned calibration error of these rows.
        lower, upper: each holds with probability 1 - alpha (lower: 1 - alpha / family).
        floor: the E to expect of a perfectly calibrated model with these confidences.
        null_high: 95 % quantile of E under perfect calibration (normal bins).
        n: rows (the sum of the weights when they are counts).
        n_eff: (Σw)²/Σw²; equal to n without sampling weights.
        groups: number of groups that rows were clustered in, or None.
        alpha, family: as passed.  method: the one used.
    """

    value: float
    lower: float
    upper: float
    floor: float
    null_high: float
    n: int
    n_eff: float
    groups: int | None
    alpha: float
    family: int
    method: Method


def ece_bounds(
    confidence: Any,
    correct: Any,
    *,
    bins: int = 15,
    edges: Edges = "right",
    alpha: float = 0.05,
    family: int = 1,
    weights: Any = None,
    weight_kind: WeightKind = "sampling",
    groups: Any = None,
    method: Method = "score",
    seed: int = 0,
) -> Bounds:
    """ECE of fixed equal-width bins with one-sided bounds for its population value.

    Args:
        confidence: (N,) float in [0, 1].
        correct: (N,) 0/1 (or bool).
        bins, edges: see `bin_index`.
        alpha: error probability of each bound.
        family: number of claims made together; the lower bound holds at 1 - alpha / family.
        weights: (N,) non-negative, or None.
        weight_kind: `sampling` (importance: n_eff = (Σw)²/Σw²) or `count` (row i stands for w_i rows).
        groups: (N,) labels of rows that belong together (patients, documents), or None for independent rows.
            Variances then come from signed group sums per bin, and quantiles from Student's t with G - 1 degrees.
        method: `score`, or `sharp` (see `calibcli.metrics.sharp`) where rows are independent and alpha / family is
            not so small that its quantile cannot be simulated.
        seed: seed of the 20,000 normal draws of the lower bound.

    Raises:
        UsageError: no rows, lengths that differ, alpha outside (0, .5], all weights 0, or a single group.
    """
    c = np.asarray(confidence, dtype=np.float64)
    y = np.asarray(correct, dtype=np.float64)
    if c.shape != y.shape or c.ndim != 1 or c.size == 0:
        raise UsageError(f"confidence has shape {c.shape}, correct {y.shape}", "pass two arrays of the same length")
    if not 0 < alpha <= 0.5:
        raise UsageError(f"alpha is {alpha}", "pass an error probability in (0, 0.5]")
    w = None if weights is None else np.asarray(weights, dtype=np.float64)
    total = float(c.size if w is None else w.sum())
    if w is not None and (w.shape != c.shape or total <= 0):
        raise UsageError(f"weights have shape {w.shape} and sum {total:g}", "pass one non-negative weight per row")
    counts = weight_kind == "count"
    width = bins + 1 if edges == "torchmetrics" else bins
    index = bin_index(c, bins, edges)
    share = 1 / total if w is None else w / total  # a number where rows are equal
    r = c - y
    signed = share * r
    d: Floats = np.bincount(index, weights=signed, minlength=width).astype(np.float64)
    value = float(np.abs(d).sum())

    # a row that stands for w rows adds w r²/n², one with importance w adds (w r)²/n²
    square = share / total if counts else share * share
    null = np.bincount(index, weights=square * (c * (1 - c)), minlength=width)
    count: int | None = None
    if groups is None:
        spread = np.bincount(index, weights=square * (r * r), minlength=width)
        covariance: Floats = np.diag(spread)
        unseen = float(square * c.size if w is None else np.sum(square))
        quantile = NormalDist().inv_cdf
    else:
        covariance, unseen, count = _grouped(groups, index, signed, np.broadcast_to(share, c.shape), width)
        quantile = _student(count)
    z = quantile(1 - alpha)
    a = z * z * unseen
    b = z * z * float(np.abs(covariance).sum())  # the largest variance of s·d̂ over every choice of signs s
    upper = min(1.0, value + (a + math.sqrt(a * a + 4 * b)) / 2)

    level = 1 - alpha / family
    deficit = np.maximum(null - np.diag(covariance), 0)
    noise = norm_quantile(covariance + np.diag(deficit), level, seed)
    if groups is not None:
        noise *= quantile(level) / NormalDist().inv_cdf(level)
    lower = max(0.0, value - noise)
    if method == "sharp" and groups is None:
        variance: Floats = np.diag(covariance)
        each = (square * r * r) ** 2 / (np.maximum(w, 1) if counts and w is not None else 1)
        fourth = np.bincount(index, weights=each, minlength=width).astype(np.float64)
        upper = sharp.upper(value, upper, d, variance, fourth, unseen, alpha)
        if (1 - level) * DRAWS >= FEWEST_BEYOND:
            lower = sharp.lower(value, d, np.maximum(variance, null), _draws(width, seed), 1 - level)
    return Bounds(
        value=value,
        lower=lower,
        upper=upper,
        floor=math.sqrt(2 / math.pi) * float(np.sqrt(null).sum()),
        null_high=norm_quantile(np.diag(null), 0.95, seed),
        n=round(total) if counts else c.size,
        n_eff=total if counts or w is None else 1 / float(np.sum(share * share)),
        groups=count,
        alpha=alpha,
        family=family,
        method="score" if groups is not None else method,
    )


def _grouped(
    groups: Any, index: NDArray[np.intp], signed: Floats, share: Floats, width: int
) -> tuple[Floats, float, int]:
    """Covariance of d̂ from signed group sums (B, B), Σ_g (share of g)², and the number of groups.

    The second is the variance that one unseen group of errors would bring if its rows go wrong together.
    """
    from scipy.sparse import coo_array

    labels, member = np.unique(np.asarray(groups), return_inverse=True)
    count = len(labels)
    if len(member) != len(index) or count < 2:
        raise UsageError(f"{count} group(s) over {len(member)} rows", "pass a group label per row, at least two groups")
    sums = coo_array((signed, (member, index)), shape=(count, width)).tocsr()
    covariance = (sums.T @ sums).toarray() * (count / (count - 1))
    weight = np.bincount(member, weights=share)
    return covariance, float((weight * weight).sum()), count


def _student(count: int) -> Any:
    from scipy.special import stdtrit

    return lambda level: float(stdtrit(count - 1, level))


def norm_quantile(covariance: Floats, level: float, seed: int) -> float:
    """Quantile of ‖G‖₁, G ~ N(0, covariance): simulated, or its concentration bound far in the tail."""
    variance = np.diag(covariance)
    if not variance.any():
        return 0.0
    if np.array_equal(covariance, np.diag(variance)):
        used = variance > 0
        if used.sum() == 1:  # |N(0, σ²)|: exact
            return math.sqrt(variance.sum()) * NormalDist().inv_cdf((1 + level) / 2)
        norms = _sizes(len(variance), seed) @ np.sqrt(variance)
    else:
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))
        norms = np.abs(_draws(len(variance), seed) @ root.T).sum(axis=1)
    if (1 - level) * DRAWS >= FEWEST_BEYOND:
        return float(np.quantile(norms, level))
    # Borell's inequality: the norm is Lipschitz in the draws with constant max_s sd(s·G)
    steepest = math.sqrt(float(np.abs(covariance).sum()))
    return float(np.median(norms)) + steepest * NormalDist().inv_cdf(level)


@lru_cache(maxsize=8)
def _draws(width: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((DRAWS, width))


@lru_cache(maxsize=8)
def _sizes(width: int, seed: int) -> Floats:
    return np.abs(_draws(width, seed))
