"""Populations of 60,000 rows with which intervals are known to have failed: logits and labels; bounds of arrays."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from _populations import drawn, ece_bounds, softmax, values

__all__ = ["broken_class", "drawn", "ece_bounds", "saturated", "softmax", "values", "votes"]


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
