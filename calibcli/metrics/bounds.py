"""One-sided bounds for the binned calibration error: what a gate may claim about the population from n rows.

With r = p - y per row, d_b = mean(r in bin b) and s the true signs of d: ECE = s·d. The estimate is E = Σ|d̂_b|.

- Upper: ECE = s·d <= E + s·(d - d̂), and the variance of s·d̂ is at most E[r²]/n: `numerics.score_bound`, whose unseen
  term counts errors that happened not to be seen, without which a saturated model with no error among its rows gets an
  interval of length nearly 0.
- Lower: E - ECE <= ‖d̂ - d‖₁ (triangle inequality), whose quantile is that of normal bins with variance
  max(mean r² 1_b, mean p(1-p) 1_b)/n.

`method=sharp` has shorter ones for independent rows: see `calibcli.metrics.sharp`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibcli.columns import Edges, bin_index
from calibcli.errors import UsageError
from calibcli.metrics import sharp
from calibcli.metrics.intervals import FEWEST_GROUPS
from calibcli.metrics.sample import View
from calibcli.numerics import effective_groups, normal_quantile, score_bound, student_quantile

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
        reason: why there are none (then 0 and 1, which hold for any model), or "".
        floor: the E to expect of a perfectly calibrated model with these confidences.
        null_high: 95 % quantile of E under perfect calibration (normal bins).
        n: rows (the sum of the weights when they are counts).
        n_eff: (Σw)²/Σw²; equal to n without sampling weights.
        groups: number of groups that rows were clustered in, or None.  effective: see `numerics.effective_groups`.
        alpha, family: as passed.  method: the one used.
    """

    value: float
    lower: float
    upper: float
    reason: str
    floor: float
    null_high: float
    n: int
    n_eff: float
    groups: int | None
    effective: float
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
    method: Method = "sharp",
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
            Variances then come from signed group sums per bin, and quantiles from Student's t with G_eff - 1 degrees;
            below 10 effective groups there are no bounds.
        method: `sharp` (see `calibcli.metrics.sharp`; without groups), or `score`.
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
    if w is not None and (w.shape != c.shape or not w.sum() > 0):
        raise UsageError(f"weights have shape {w.shape} and sum {w.sum():g}", "pass one non-negative weight per row")
    member = None
    if groups is not None:
        labels, member = np.unique(np.asarray(groups), return_inverse=True)
        if len(member) != len(c) or len(labels) < 2:
            problem = f"{len(labels)} group(s) over {len(member)} rows"
            raise UsageError(problem, "pass a group label per row, at least two groups")
    view = View(c, 1 - c, y > 0, w, weight_kind == "count", member)
    return view_bounds(view, bins=bins, edges=edges, alpha=alpha, family=family, method=method, seed=seed)


def view_bounds(
    view: View,
    *,
    bins: int = 15,
    edges: Edges = "right",
    alpha: float = 0.05,
    family: int = 1,
    method: Method = "sharp",
    seed: int = 0,
) -> Bounds:
    """As `ece_bounds`, of the table that the metric `ece` reads."""
    table = view.width_bins(bins, edges)
    d, null, value = table.d, table.null, float(np.abs(table.d).sum())
    level, count, effective = 1 - alpha / family, None, math.inf
    if view.groups is None:
        covariance, unseen = np.diag(table.spread), float(table.square.sum())
        z, z_lower = normal_quantile(1 - alpha), normal_quantile(level)
    else:
        covariance, sizes = _grouped(view, view.groups, bin_index(view.p, bins, edges), len(d))
        count, effective, unseen = len(sizes), effective_groups(sizes), float(sizes @ sizes)
        z, z_lower = (student_quantile(at, max(effective - 1, 1e-3)) for at in (1 - alpha, level))
    # the largest variance of s·d̂ over every choice of signs s
    upper = min(1.0, score_bound(value, z, unseen, float(np.abs(covariance).sum())))
    deficit = np.maximum(null - np.diag(covariance), 0)
    whole = norm_quantile(covariance + np.diag(deficit), level, seed) * z_lower / normal_quantile(level)
    lower = value - whole
    used: Method = "score" if view.groups is not None else method
    if used == "sharp":
        fourth = view.sums(bin_index(view.p, bins, edges), len(d), view.residual**4, 4)
        upper = sharp.upper(value, upper, d, table.spread, fourth, unseen, alpha)
        variance = np.maximum(table.spread, null)
        whole = norm_quantile(np.diag(variance), 1 - alpha / family * sharp.WHOLE, seed)
        lower = max(value - whole, float(sharp.signed(d, variance, alpha / family * (1 - sharp.WHOLE))))
    reason = ""
    if effective < FEWEST_GROUPS:
        reason = f"{count} groups count as {effective:.1f} of equal size, too few for a bound ({FEWEST_GROUPS})"
    return Bounds(
        value=value,
        lower=0.0 if reason else max(0.0, lower),
        upper=1.0 if reason else upper,
        reason=reason,
        floor=math.sqrt(2 / math.pi) * float(np.sqrt(null).sum()),
        null_high=norm_quantile(np.diag(null), 0.95, seed),
        n=round(view.total) if view.counts else view.n,
        n_eff=view.effective,
        groups=count,
        effective=effective,
        alpha=alpha,
        family=family,
        method=used,
    )


def _grouped(view: View, groups: Any, index: NDArray[np.intp], width: int) -> tuple[Floats, Floats]:
    """Covariance of d̂ from signed group sums (B, B), and the share of each group (G,).

    The sum of the squared shares is the variance that one unseen group of errors would bring if its rows go wrong
    together.
    """
    from scipy.sparse import coo_array

    labels, member = np.unique(groups, return_inverse=True)
    count = len(labels)
    share = np.broadcast_to(view.share(), view.p.shape)
    sums = coo_array((share * view.residual, (member, index)), shape=(count, width)).tocsr()
    covariance = (sums.T @ sums).toarray() * (count / max(count - 1, 1))
    return covariance, np.bincount(member, weights=share).astype(np.float64)


def norm_quantile(covariance: Floats, level: float, seed: int) -> float:
    """Quantile of ‖G‖₁, G ~ N(0, covariance): simulated, or its concentration bound far in the tail."""
    variance = np.diag(covariance)
    if not variance.any():
        return 0.0
    if np.array_equal(covariance, np.diag(variance)):
        used = variance > 0
        if used.sum() == 1:  # |N(0, σ²)|: exact
            return math.sqrt(variance.sum()) * normal_quantile((1 + level) / 2)
        norms = _sizes(len(variance), seed) @ np.sqrt(variance)
    else:
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))
        norms = np.abs(_draws(len(variance), seed) @ root.T).sum(axis=1)
    if (1 - level) * DRAWS >= FEWEST_BEYOND:
        return float(np.quantile(norms, level))
    # Borell's inequality: the norm is Lipschitz in the draws with constant max_s sd(s·G)
    steepest = math.sqrt(float(np.abs(covariance).sum()))
    return float(np.median(norms)) + steepest * normal_quantile(level)


@lru_cache(maxsize=8)
def _draws(width: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal((DRAWS, width))


@lru_cache(maxsize=8)
def _sizes(width: int, seed: int) -> Floats:
    return np.abs(_draws(width, seed))
