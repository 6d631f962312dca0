"""SmoothECE as the package `relplot` 1.0 computes it, whose numbers are those that papers print: on a mesh.

The values at 200 equally spaced t (10/σ of them if that is more) of the smoothed residuals r_σ and of the smoothed
density f_σ, both convolved on a grid, give Σ_t |r_σ(t)| / Σ_t (f_σ(t) + 1e-4). Both ends of the mesh count in full,
which moves the number where many confidences are near 1; σ* is found to 2^-10 by bisection.
"""

from __future__ import annotations

import math

import numpy as np

from calibcli.metrics.sample import BinaryOutcomes
from calibcli.numerics import bisect
from calibcli.predictions import Floats

LEAST = 1e-3  # bandwidth
HALVINGS = 10
POINTS = 200
STEP = 1 << 18  # rows spread at once
EMPTY = 1e-4  # added to the density, which is a sum over rows, not their mean


class Mesh:
    """Rows of a view, to be smoothed on a mesh at any σ."""

    def __init__(self, view: BinaryOutcomes) -> None:
        rows = view.total if view.counts else view.n  # sampling weights: as many rows as there are
        self.p = view.p
        self.weight = view.shares * rows
        self.residual = self.weight * view.residual

    def ece(self, sigma: float) -> float:
        """Mean of |r_σ| over the mesh, weighted by density."""
        grid = (max(2000, round(20 / sigma)) // 2) + 1
        t = np.linspace(0, 1, max(round(10 / sigma), POINTS))
        kernel = np.exp(-((np.linspace(0, 1, grid) - 0.5) ** 2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
        residual, density = (_smooth(self.p, values, kernel, t) for values in (self.residual, self.weight))
        return float(np.abs(residual).sum() / (density + EMPTY).sum())

    @property
    def fixed_point(self) -> tuple[float, float]:
        """(value at σ*, σ*), σ* the largest multiple of 2^-10 that bisection found below its own value."""

        def enough(sigma: float) -> bool:
            return sigma < LEAST or sigma < self.ece(sigma)

        sigma = 1.0 if enough(1.0) else bisect(enough, 0.0, 1.0, HALVINGS)[1]
        return self.ece(sigma), sigma


def spread(p: Floats, values: Floats, cells: int) -> Floats:
    """Values shared between the two nearest of `cells` + 1 grid points, in proportion."""
    grid = np.zeros(cells + 1)
    for start in range(0, len(p), STEP):
        x, here = p[start : start + STEP] * cells, values[start : start + STEP]
        left = np.minimum(x.astype(np.int64), cells - 1)
        x -= left
        x *= here
        grid += np.bincount(left + 1, x, cells + 1)
        grid += np.bincount(left, np.subtract(here, x, out=x), cells + 1)
    return grid


def _smooth(p: Floats, values: Floats, kernel: Floats, t: Floats) -> Floats:
    """Values spread linearly over a grid, convolved with the kernel, the ends reflecting, and read at t."""
    size = len(kernel)
    grid = spread(p, values, size - 1)
    whole = np.concatenate([grid[:0:-1], grid, grid[-2::-1]])
    smooth = np.convolve(whole, kernel, "valid")[size // 2 : size // 2 + size]
    return np.interp(t * (size - 1), np.arange(size), smooth)
