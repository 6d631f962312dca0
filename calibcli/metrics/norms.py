"""Norms of the signed gaps of a reliability table.

Each takes the table and, optionally, other gaps d in place of its own: (..., B), one row per simulation.
"""

from __future__ import annotations

import numpy as np

from calibcli.metrics.reliability import Bins
from calibcli.predictions import Floats


def l1(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ |d_b|."""
    return np.asarray(np.abs(bins.d if d is None else d).sum(axis=-1))


def over(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ max(d_b, 0)."""
    return np.asarray(np.maximum(bins.d if d is None else d, 0).sum(axis=-1))


def under(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ max(-d_b, 0)."""
    return np.asarray(np.maximum(-(bins.d if d is None else d), 0).sum(axis=-1))


def over_by_confidence(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ conf_b max(d_b, 0)."""
    return np.asarray((bins.confidence * np.maximum(bins.d if d is None else d, 0)).sum(axis=-1))


def l2(bins: Bins, d: Floats | None = None) -> Floats:
    """(Σ d_b² / w_b)^½, which is (Σ w_b gap_b²)^½."""
    inverse = np.divide(1, bins.weight, out=np.zeros_like(bins.weight), where=bins.filled)
    return np.asarray(np.sqrt(((bins.d if d is None else d) ** 2 * inverse).sum(axis=-1)))


def largest(bins: Bins, d: Floats | None = None) -> Floats:
    """max |d_b| / w_b over filled bins."""
    inverse = np.divide(1, bins.weight, out=np.zeros_like(bins.weight), where=bins.filled)
    return np.asarray((np.abs(bins.d if d is None else d) * inverse).max(axis=-1))


def debiased(bins: Bins, d: Floats | None = None) -> Floats:
    """Σ w_b [gap_b² - acc_b (1 - acc_b) / (n_b - 1)] over bins with n_b >= 2 (effective) rows."""
    enough = bins.effective >= 2 - 1e-9
    inverse = np.divide(1, bins.weight, out=np.zeros_like(bins.weight), where=bins.filled)
    gap = (bins.d if d is None else d) * inverse
    accuracy = bins.confidence - gap
    chance = accuracy * (1 - accuracy) / np.where(enough, bins.effective - 1, 1)
    return np.asarray(np.where(enough, bins.weight * (gap**2 - chance), 0).sum(axis=-1))
