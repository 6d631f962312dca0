"""The difference of two binned errors on the same rows: bias of each taken out, and what of it is not known added."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from calibcli.metrics.intervals import Rows
from calibcli.metrics.reliability import Bins
from calibcli.metrics.sample import View
from calibcli.numerics import student_quantile, two_sided

Floats = npt.NDArray[np.float64]
CALIBRATED = (
    25.0  # prior weight of a gap of 0, other gaps of the grid having 1 each, at which coverage is right by simulation
)
DOUBT = 1.1 / 1.959964  # standard error per unit of bias taken out
FARTHEST = 8.0  # standard errors beyond which a gap brings no bias


def difference(views: tuple[View, View], tables: tuple[Bins, Bins], level: float) -> tuple[float, float, float, float]:
    """Value, interval and p-value of Σ|d| of the second model less that of the first.

    Σ|d̂| = mean(s r), s the sign of the row's bin: the difference is a mean over rows of s₂ r₂ - s₁ r₁, in which what
    the models share cancels, and has its standard error (that of resampling rows or groups; s counts for less where the
    sign is not sure).
    It is biased by Σ σ (E|x + Z| - x), x = |d|/σ, most where a model is calibrated. Each bin's bias is taken out at its
    posterior mean (x = 0 or anything up to 8), and as much of it enters the error: where both models are
    calibrated or both are far from it, the biases are known; between, they are not.
    """
    first, error_first, bias_first = _signed(views[0], tables[0])
    second, error_second, bias_second = _signed(views[1], tables[1])
    base = views[0]
    rows = Rows(second - first, base.weights, base.counts, base.groups)
    value = error_second - error_first
    design = 1.0
    if base.groups is not None:
        alone = Rows(rows.values, base.weights, base.counts, None).se
        design = rows.se / alone if alone > 0 else 1.0
    bias_first, bias_second = design * bias_first, design * bias_second
    centre = value - (bias_second - bias_first)
    error = math.hypot(rows.se, DOUBT * math.hypot(bias_first, bias_second))
    half = student_quantile((1 + level) / 2, rows.units - 1) * error
    p = 1.0 if value * centre <= 0 or error == 0 else two_sided(abs(centre) / error, rows.units - 1)
    return value, min(value, centre - half), max(value, centre + half), p


def _signed(view: View, table: Bins) -> tuple[Floats, float, float]:
    """(N,) s r of each row, Σ|d̂|, and how much of that is bias."""
    index = np.searchsorted(table.upper[:-1], view.p - 1e-12, side="left")
    sigma = np.sqrt(np.maximum(table.spread - table.d**2 / table.total, 0))
    used = sigma > 0
    x = np.minimum(np.abs(table.d[used]) / sigma[used], FARTHEST)
    sign = np.sign(table.d)
    folded = _folded(x)
    sign[used] *= np.sqrt(1 + x * x - folded * folded)  # |x + Z| varies less than Z where its sign is not sure
    return sign[index] * view.residual, float(np.abs(table.d).sum()), float(sigma[used] @ _bias(x))


def _folded(x: Floats) -> Floats:
    """E|x + Z|."""
    tilt = np.array([math.erf(g / math.sqrt(2)) for g in x])
    return np.asarray(math.sqrt(2 / math.pi) * np.exp(-(x**2) / 2) + x * tilt)


def _bias(x: Floats) -> Floats:
    """Posterior mean of E|g + Z| - g given |g + Z| = x."""
    gaps, weight, excess = _prior()
    likely = weight * (np.exp(-((x[:, None] - gaps) ** 2) / 2) + np.exp(-((x[:, None] + gaps) ** 2) / 2))
    mean: Floats = likely @ excess / likely.sum(axis=1)
    return mean


@lru_cache(maxsize=1)
def _prior() -> tuple[Floats, Floats, Floats]:
    """Gaps in standard errors, their prior weights, and the bias that each brings."""
    gaps = np.append(np.arange(0, 4, 0.2), np.arange(4, FARTHEST, 0.5))
    weight = np.ones_like(gaps)
    weight[0] = CALIBRATED
    return gaps, weight, _folded(gaps) - gaps
