"""The best temperature of a grid, with every point either evaluated or excluded by a bound; and roots in a bracket.

ECE(T) >= |mean confidence(T) - accuracy| for any binning of all rows, and the confidence of every row falls with T, so
the mean confidences at evaluated temperatures bound those between and beyond them, and with them the ECE there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibcli.links.moments import Array, chunks, shift
from calibcli.predictions import Predictions
from calibcli.scalers.rows import raw_argmax, sample

SLACK = 1e-12  # rounding of sums over rows


@dataclass(frozen=True)
class Found:
    """The best grid point.

    Attributes:
        temperature: the smallest T of the smallest objective.  value: the objective there.
        plateau: smallest and largest T within one null standard deviation of it.
        evaluated: number of grid points at which the objective was computed.
    """

    temperature: float
    value: float
    plateau: tuple[float, float]
    evaluated: int


def best_temperature(predictions: Predictions, grid: Array, objective: str, bins: int = 15) -> Found:
    """Minimise `nll`, `brier`, `ece` or `adaece` over an increasing grid of temperatures.

    Args:
        predictions: labelled scores.
        grid: (G,) increasing temperatures > 0.
        objective: what to minimise; ties go to the smallest temperature.
        bins: of ece (equal width, (lo, hi]) and adaece (equal mass, equal confidences share their accuracy).
    """
    if objective in ("ece", "adaece"):
        return _best_ece(predictions, grid, objective, bins)
    from calibcli.scalers.temperature import _brier, block_source, nll

    source = block_source(predictions)
    function = nll if objective == "nll" else (lambda s, b: _brier(s, b)[0])
    values = [function(source, 1 / t) for t in grid]
    at = int(np.argmin(values))
    return Found(float(grid[at]), values[at], (float(grid[at]), float(grid[at])), len(grid))


def _best_ece(predictions: Predictions, grid: Array, objective: str, bins: int) -> Found:
    hit = (raw_argmax(predictions) == predictions.labels).astype(np.float64)
    w = predictions.weights
    accuracy = float(np.average(hit, weights=w))
    error = ece if objective == "ece" else adaece
    values: dict[int, float] = {}
    means: dict[int, float] = {}
    slack_of: dict[int, float] = {}

    def measure(i: int) -> None:
        c = confidence(predictions, grid[i])
        values[i], means[i] = error(c, hit, w, bins), float(np.average(c, weights=w))
        slack_of[i] = null_deviation(c, w, bins)

    few = sample(predictions, 2000)
    guesses = [abs(float(np.average(confidence(few, t), weights=few.weights)) - accuracy) for t in grid]
    following: int | None = int(np.argmin(guesses))
    while following is not None:
        measure(following)
        best = min(values, key=lambda i: (values[i], i))
        limit = values[best] + slack_of[best] + SLACK  # the plateau is wanted too
        low = _lower_bounds(means, len(grid), accuracy)
        open_points = [i for i in range(len(grid)) if i not in values and low[i] <= limit]
        following = min(open_points, key=lambda i: (abs(i - best), i), default=None)
    near = [i for i in values if values[i] <= values[best] + slack_of[best]]
    return Found(float(grid[best]), values[best], (float(grid[min(near)]), float(grid[max(near)])), len(values))


def _lower_bounds(means: dict[int, float], size: int, accuracy: float) -> Array:
    """|mean confidence - accuracy| is at least this at each grid point, by monotony between the measured ones."""
    known = sorted(means)
    index = np.arange(size)
    left = np.searchsorted(known, index, side="right") - 1
    right = np.searchsorted(known, index, side="left")
    values = np.array([means[i] for i in known])
    highest = np.where(left >= 0, values[np.maximum(left, 0)], 1.0)  # of a smaller T
    lowest = np.where(right < len(known), values[np.minimum(right, len(known) - 1)], 0.0)
    return np.maximum(np.maximum(lowest - accuracy, accuracy - highest), 0.0)


def confidence(predictions: Predictions, temperature: float) -> Array:
    """(N,) top probability of softmax(z / T)."""
    out = np.empty(predictions.n)
    for start, block in predictions.blocks():
        for z, y, _ in chunks((block, predictions.labels[start : start + len(block)], None)):
            d, _, axis = shift(z, y, np.float64)
            d *= 1 / temperature
            np.exp(d, out=d)
            out[start : start + len(z)] = d.sum(axis=axis)
            start += len(z)
    result: Array = 1 / out
    return result


def ece(c: Array, hit: Array, w: Array | None, bins: int) -> float:
    """Equal-width ECE, bins (lo, hi]."""
    index = np.clip(np.ceil(c * bins).astype(np.int64) - 1, 0, bins - 1)
    gap = (c - hit) if w is None else w * (c - hit)
    total = len(c) if w is None else w.sum()
    return float(np.abs(np.bincount(index, gap, bins)).sum() / total)


def adaece(c: Array, hit: Array, w: Array | None, bins: int) -> float:
    """Equal-mass ECE: sorted rows cut into `bins` parts; rows of equal confidence share their accuracy."""
    order = np.argsort(c, kind="stable")
    c, hit = c[order], hit[order]
    weight = np.ones(len(c)) if w is None else w[order]
    first = np.flatnonzero(np.append(True, c[1:] != c[:-1]))
    if len(first) < len(c):
        sizes = np.diff(np.append(first, len(c)))
        hit = np.repeat(np.add.reduceat(weight * hit, first) / np.add.reduceat(weight, first), sizes)
    position = np.append(0.0, np.cumsum(weight))
    gaps = np.append(0.0, np.cumsum(weight * (c - hit)))
    n = len(c)
    if w is None:
        large = n % bins
        cuts = np.append(np.arange(large + 1) * (n // bins + 1), large + np.arange(large + 1, bins + 1) * (n // bins))
    else:
        cuts = np.linspace(0, position[-1], bins + 1)
    return float(np.abs(np.diff(np.interp(cuts, position, gaps))).sum() / position[-1])


def null_deviation(c: Array, w: Array | None, bins: int) -> float:
    """Standard deviation of the ECE of a calibrated model with these confidences: sqrt((1 - 2/π) Σ_b var_b)."""
    weight = 1.0 if w is None else w
    total = len(c) if w is None else w.sum()
    return math.sqrt((1 - 2 / math.pi) * float(np.sum(weight * weight * c * (1 - c)))) / float(total)


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
