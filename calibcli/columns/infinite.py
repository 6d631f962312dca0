"""Rows with infinite scores: -inf masks a class."""

from __future__ import annotations

import numpy as np

from calibcli.predictions import Array, Floats, Ints


def first_moment(z: Array, top: Ints) -> Floats:
    """(n,) Σ p (z - z_top); 0 for a class with probability 0."""
    d = (z - np.take_along_axis(z, top[:, None], axis=1)).astype(np.float64)
    e = np.exp(d)
    moment: Floats = np.einsum("ij,ij->i", e, np.maximum(d, -1e4)) / e.sum(axis=1)
    return moment


def deepest(z: Array) -> Floats:
    """(n,) the largest score minus the smallest that is finite."""
    there = np.isfinite(z)
    found: Floats = np.where(there, z, -np.inf).max(axis=1) - np.where(there, z, np.inf).min(axis=1)
    return found
