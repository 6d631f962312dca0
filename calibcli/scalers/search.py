"""The best temperature of a grid, with every point either evaluated or excluded by a bound; and roots in a bracket.

ECE(T) >= |mean confidence(T) - accuracy| for any binning of all rows, and the confidence of every row falls with T, so
the mean confidences at evaluated temperatures bound those between and beyond them, and with them the ECE there. Of two
classes the ECE is the event's, whose mean probability need not fall with T: every point is evaluated.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.links.moments import Array, shift, weighted
from calibcli.metrics.gap_norms import l1
from calibcli.metrics.sample import BinaryOutcomes
from calibcli.predictions import Predictions
from calibcli.scalers.objectives import block_source, brier, nll
from calibcli.scalers.subsets import raw_argmax, sample

SLACK = 1e-12  # rounding of sums over rows
LABELS = {"nll": "NLL", "ece": "ECE", "adaece": "adaptive ECE", "brier": "Brier score"}
"""Objectives as titles have them."""
ROUGH = 1e-5  # error of a mean confidence from float32, with room to spare


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
    source = block_source(predictions)
    function = nll if objective == "nll" else (lambda s, b: brier(s, b)[0])
    values = [function(source, 1 / t) for t in grid]
    at = int(np.argmin(values))
    return Found(float(grid[at]), values[at], (float(grid[at]), float(grid[at])), len(grid))


def _best_ece(predictions: Predictions, grid: Array, objective: str, bins: int) -> Found:
    w = predictions.weights
    accuracy = float(np.average(raw_argmax(predictions) == predictions.labels, weights=w))
    error = Error(predictions, objective, bins)
    values: dict[int, float] = {}
    means: dict[int, tuple[float, float]] = {}  # grid point to bounds of the mean confidence
    spread: dict[int, float] = {}
    following: int | None = _guess(predictions, grid, accuracy)
    while following is not None:
        if values and following not in means and predictions.k > 2:  # a cheap bound may spare the evaluation
            mean = float(np.average(confidence(predictions, grid[following], np.float32), weights=w))
            means[following] = (mean - ROUGH, mean + ROUGH)
        else:
            c = confidence(predictions, grid[following])
            values[following], spread[following] = error(c), null_deviation(c, w)
            mean = float(np.average(c, weights=w))
            means[following] = (mean, mean)
        best = min(values, key=lambda i: (values[i], i))
        limit = values[best] + spread[best] + SLACK  # the plateau is wanted too
        low = np.zeros(len(grid)) if predictions.k == 2 else _lower_bounds(means, len(grid), accuracy)
        left = [i for i in range(len(grid)) if i not in values and low[i] <= limit]
        following = min(left, key=lambda i: (abs(i - best), i), default=None)
    near = [i for i in values if values[i] <= values[best] + spread[best]]
    return Found(float(grid[best]), values[best], (float(grid[min(near)]), float(grid[max(near)])), len(values))


def _guess(predictions: Predictions, grid: Array, accuracy: float) -> int:
    """Grid point where the mean confidence of some rows is closest to the accuracy, by bisection."""
    few = sample(predictions, 2000)

    def excess(i: int) -> float:
        return float(np.average(confidence(few, grid[i]), weights=few.weights)) - accuracy

    low = bisect_left(range(len(grid) - 1), True, key=lambda i: excess(i) <= 0)
    return low - 1 if low and excess(low - 1) < -excess(low) else low


def _lower_bounds(means: dict[int, tuple[float, float]], size: int, accuracy: float) -> Array:
    """|mean confidence - accuracy| is at least this at each grid point, by monotony between the measured ones."""
    known = sorted(means)
    index = np.arange(size)
    left = np.searchsorted(known, index, side="right") - 1
    right = np.searchsorted(known, index, side="left")
    least, most = np.array([means[i] for i in known]).T
    highest = np.where(left >= 0, most[np.maximum(left, 0)], 1.0)  # of a smaller T
    lowest = np.where(right < len(known), least[np.minimum(right, len(known) - 1)], 0.0)
    return np.maximum(np.maximum(lowest - accuracy, accuracy - highest), 0.0)


def confidence(predictions: Predictions, temperature: float, dtype: Any = np.float64) -> Array:
    """(N,) top probability of softmax(z / T), with the exponentials in `dtype` (float32: within 1e-5)."""
    out, start = np.empty(predictions.n, dtype), 0
    beta = dtype(1 / temperature)
    for z, y, _ in weighted(block_source(predictions)):
        d, _, axis = shift(z, y, dtype)
        d *= beta
        np.exp(d, out=d)
        d.sum(axis=axis, out=out[start : start + len(z)])
        start += len(z)
    return np.asarray(1 / out)


class Error:
    """ECE or adaptive ECE of rows as a function of their confidences: the one that `metrics` prints, of two classes of
    the event.
    """

    def __init__(self, predictions: Predictions, objective: str, bins: int) -> None:
        self.objective, self.bins = objective, bins
        self.weights, self.counts = predictions.weights, predictions.weight_kind == "count"
        top, two = raw_argmax(predictions), predictions.k == 2
        self.flip = top == 0 if two else None
        self.hit = np.asarray(predictions.labels == (1 if two else top))

    def __call__(self, confidence: Array) -> float:
        p, rest = confidence, 1 - confidence
        if self.flip is not None:
            p, rest = np.where(self.flip, rest, p), np.where(self.flip, p, rest)
        view = BinaryOutcomes(p, rest, self.hit, self.weights, self.counts, None, values_only=True)
        wide = self.objective == "ece"
        return float(l1(view.width_bins(self.bins, "right") if wide else view.mass_bins(self.bins, "split-merge")))


def null_deviation(c: Array, w: Array | None) -> float:
    """Standard deviation of the ECE of a calibrated model with these confidences: sqrt((1 - 2/π) Σ_b var_b)."""
    weight = 1.0 if w is None else w
    total = len(c) if w is None else w.sum()
    return math.sqrt((1 - 2 / math.pi) * float(np.sum(weight * weight * c * (1 - c)))) / float(total)
