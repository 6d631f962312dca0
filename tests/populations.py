"""Populations of 60,000 rows with which intervals are known to have failed: logits and labels; bounds of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibcli.metrics.bounds import Bounds, table_bounds
from calibcli.metrics.reliability import BinaryOutcomes


def softmax(z: Any) -> Any:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def drawn(p: Any, rng: np.random.Generator) -> Any:
    return np.minimum((p.cumsum(1) < rng.random((len(p), 1))).sum(1), p.shape[1] - 1)


def saturated(k: int, wrong: float, n: int = 60_000) -> tuple[Any, Any]:
    """99 % of rows above .9999, of which a share is wrong."""
    rng = np.random.default_rng([k, 7])
    c = np.where(rng.random(n) < 0.01, rng.uniform(0.5, 1, n), 1 - 1e-4 * rng.random(n))
    p = np.concatenate([c[:, None], rng.dirichlet(np.full(k - 1, 0.3), n) * (1 - c)[:, None]], axis=1)
    y = np.where(rng.random(n) < np.where(c < 0.9999, 1 - c, wrong), rng.integers(1, k, n), 0)
    return np.log(np.maximum(p, 1e-15)), y


def broken_class(k: int, n: int = 60_000) -> tuple[Any, Any]:
    """A calibrated model but for 1.5 % of rows, whose label is the least likely."""
    rng = np.random.default_rng([k, 8])
    z = rng.standard_normal((n, k)) * 6
    y = np.where(rng.random(n) < 0.015, z.argmin(1), drawn(softmax(z), rng))
    return z, y


def votes(k: int, n: int = 60_000) -> tuple[Any, Any]:
    """Shares of five votes, zeros clipped."""
    rng = np.random.default_rng([k, 9])
    p = softmax(rng.standard_normal((n, k)) * 3)
    found = sum(np.eye(k)[drawn(p, rng)] for _ in range(5))
    return np.log(np.maximum(found / 5, 1e-15)), drawn(p, rng)


def ece_bounds(
    confidence: Any,
    correct: Any,
    *,
    bins: int = 15,
    weights: Any = None,
    weight_kind: str = "sampling",
    groups: Any = None,
    seed: int = 0,
    **how: Any,
) -> Bounds:
    """Bounds of the ECE from (N,) confidences and hits; `how` as of `table_bounds`."""
    c, w = np.asarray(confidence, dtype=np.float64), None if weights is None else np.asarray(weights, dtype=np.float64)
    member = None if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    view = BinaryOutcomes(c, 1 - c, np.asarray(correct) > 0, w, weight_kind == "count", member, seed=seed)
    return table_bounds(view, view.width_bins(bins, "right"), **how)
