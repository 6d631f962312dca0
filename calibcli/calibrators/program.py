"""The operations that calibration maps are written in, and how NumPy runs them.

A map is a function `(o, parameters, z) -> log-probabilities (n, K)` of its parameters and of logits `z` (n, K),
written once, in its method's file, with the operations `o`. NumPy runs it here; `calibcli.ship` writes it as ONNX, as
PyTorch, and as programs in Python, JavaScript and C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.scores.likelihood import log_both, log_softmax

Array = NDArray[np.float64]
Parameters = dict[str, NDArray[Any]]
FAR = 1e30
"""Stands for infinity where infinity minus infinity would give NaN."""


class Operations:
    """Operations on values that also know + - * / and < > <=, with each other and with floats.

    A value is (n, K), or (n, 1) where it holds one number for each row. Reductions are over the last axis, which stays
    as one column. Methods with a body define their operation by others; a backend that has a faster or more exact way
    overrides them.

    Attributes:
        classes: K.
        eps: relative rounding error of the backend's numbers.
    """

    classes: int
    eps: float

    exp: Any
    log: Any
    log1p: Any
    abs: Any
    least: Any  # of two values
    most: Any
    where: Any  # (condition, if so, if not)
    number: Any  # truth values, or indices, as floats
    max: Any
    min: Any
    sum: Any
    argmax: Any  # the first of the largest
    column: Any  # (x, k): (n, 1) of (n, K)
    join: Any  # columns side by side

    # used by `read` and `is_top` alone; integers are indices
    same: Any
    index: Any
    take: Any  # (table, index): entries along the first axis
    deep: Any  # (n, K, 1) of (n, K)
    flat: Any  # (n, K) of (n, K, 1)

    def const(self, array: Any, whole: bool = False) -> Any:
        """Return a constant: a parameter, or an array made of parameters; `whole`: of integers."""
        raise NotImplementedError

    def neg_inf(self) -> Any:
        """Return minus infinity. It is computed, as readers take an infinite constant for a damaged file."""
        return self.log(self.const(0.0))

    def log_softmax(self, z: Any) -> Any:
        d = z - self.max(z)
        return d - self.log(self.sum(self.exp(d)))

    def normalised(self, z: Any) -> Any:
        """Normalise scores to log-probabilities; the last step of a map.

        A backend that returns logits may leave this step out, so a map may not use it in between.
        """
        return self.log_softmax(z)

    def softmax(self, z: Any) -> Any:
        e = self.exp(z - self.max(z))
        return e / self.sum(e)

    def linear(self, weight: NDArray[Any], x: Any) -> Any:
        """Return W x of each row, with W of shape (K, K), (K,) or ()."""
        return x @ self.const(weight.T) if weight.ndim == 2 else x * self.const(weight)

    def is_top(self, z: Any) -> Any:
        """Return whether each class is the predicted one, (n, K): the first of the largest."""
        return self.same(self.const(np.arange(self.classes), whole=True), self.argmax(z))

    def log_both(self, z: Any) -> tuple[Any, Any]:
        """Return ln p and ln(1 - p) of every class; neither loses digits where p is near 0 or 1."""
        d = z - self.max(z)
        top = self.is_top(d)
        others = self.where(top, self.neg_inf(), d)
        second = self.most(self.max(others), -FAR)
        odds = second + self.log(self.sum(self.exp(others - second)))  # of all others against the top
        total = self.log1p(self.exp(odds))
        log_p = d - total
        few = self.log1p(0.0 - self.least(self.exp(log_p), 0.75))  # only the top class can exceed 1/2
        return log_p, self.where(top, odds - total, few)

    def log_odds(self, z: Any) -> Any:
        """Return ln p / (1 - p) of every class, between -700 and 700."""
        log_p, log_rest = self.log_both(z)
        return self.bounded(log_p - log_rest)

    def bounded(self, odds: Any) -> Any:
        """Clip log-odds to [-700, 700], where e^x is still a float."""
        return self.most(self.least(odds, 700.0), -700.0)

    def of_two(self, odds: Any) -> Any:
        """Return log-probabilities (n, 2), from the log-odds (n, 1) of the second of two classes."""
        return self.normalised(self.join(odds * -0.5, odds * 0.5))

    def log_sigmoid(self, m: Any) -> Any:
        return self.least(m, 0.0) - self.log1p(self.exp(0.0 - self.abs(m)))

    def read(self, parameters: Parameters, x: Any, steps: bool, at: Any = None) -> Any:
        """Evaluate the curves whose knots are the parameters `x`, `y` and `knots`.

        Args:
            x: (n, C), each column for a curve of its own; (n, 1) with `at`.
            steps: whether a curve is y[b] in (x[b], x[b + 1]], else linear between knots. Beyond the outermost knots
                both are constant.
            at: (n, 1) index of the curve for each row.
        """
        curves = unpacked(parameters)
        width = max(len(row) for row, _ in curves)

        def table(rows: list[Array], fill: float) -> Array:
            return np.stack([np.concatenate([row, np.full(width - len(row), fill)]) for row in rows])

        xs, ys = ([curve[i] for curve in curves] for i in (0, 1))
        edges: Any = self.const(table(xs, FAR))
        start: Any = self.const(np.arange(len(curves), dtype=np.float64) * width)
        if at is not None:
            edges, start = self.take(edges, at), self.number(at) * float(width)
        deep = self.deep(x)
        below = self.flat(self.sum(self.number(edges < deep if steps else edges <= deep))) - 1.0
        knot = self.index(self.most(below, 0.0) + start)
        y = self.take(self.const(table(ys, 0.0).ravel()), knot)
        if steps:
            return y
        slopes = [np.append(np.diff(b) / np.diff(a), 0.0) for a, b in curves]
        knot_x = self.take(self.const(table(xs, 0.0).ravel()), knot)
        return y + self.take(self.const(table(slopes, 0.0).ravel()), knot) * self.most(x - knot_x, 0.0)


class NumPy(Operations):
    """The operations on float64 arrays. Exports are compared with their results."""

    eps = float(np.finfo(np.float64).eps)
    exp, log, log1p, abs = np.exp, np.log, np.log1p, np.abs
    least, most, where = np.minimum, np.maximum, staticmethod(np.where)
    max, min, sum = (staticmethod(partial(f, axis=-1, keepdims=True)) for f in (np.max, np.min, np.sum))
    argmax = staticmethod(partial(np.argmax, axis=-1, keepdims=True))

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def log_softmax(self, z: Array) -> Array:
        return log_softmax(z)

    def log_both(self, z: Array) -> tuple[Array, Array]:
        return log_both(z)

    def const(self, array: Any, whole: bool = False) -> Any:
        return array

    def neg_inf(self) -> Any:
        return -np.inf

    def number(self, condition: Any) -> Array:
        return np.asarray(condition, np.float64)

    def column(self, x: Array, k: int) -> Array:
        return x[:, k : k + 1]

    def join(self, *columns: Array) -> Array:
        return np.concatenate(columns, axis=1)

    def of_two(self, odds: Array) -> Any:
        return self.log_sigmoid(np.concatenate([-odds, odds], axis=1))

    def is_top(self, z: Array) -> NDArray[np.bool_]:
        top = np.zeros(z.shape, bool)
        np.put_along_axis(top, z.argmax(axis=-1, keepdims=True), True, axis=-1)
        return top

    def read(self, parameters: Parameters, x: Array, steps: bool, at: NDArray[Any] | None = None) -> Array:
        """Find each row's knot by bisection; the general definition compares every row with every knot."""
        curves, evaluate = unpacked(parameters), in_bins if steps else np.interp
        if at is None:
            return np.stack([evaluate(x[:, c], *curve) for c, curve in enumerate(curves)], axis=1)
        out = np.empty_like(x)
        for c in np.unique(at):
            out[at == c] = evaluate(x[at == c], *curves[c])
        return out


def in_bins(p: Array, x: Array, y: Array) -> Array:
    """Return the value of the bin (x[b], x[b + 1]] that p falls in; the outer bins extend to infinity."""
    return np.asarray(y[np.clip(np.searchsorted(x, p, side="left") - 1, 0, len(y) - 1)])


def unpacked(parameters: Parameters) -> list[tuple[Array, Array]]:
    """Split the flat arrays in which parameters hold the knots of all curves into (x, y) of each curve."""
    cuts = np.cumsum(parameters["knots"].astype(np.int64))[:-1]
    return list(zip(np.split(parameters["x"], cuts), np.split(parameters["y"], cuts), strict=True))


Map = Callable[[Any, Parameters, Any], Any]


def run(o: Operations, program: Map, parameters: Parameters, z: Any) -> Any:
    """Run a map on scores (n, K), which are prepared as those of its fit were.

    Args:
        parameters: those of the map. `cut`, of every map: the probability that smaller ones are raised to, where `z`
            are logarithms of probabilities; `mask`: the depth below the largest score of a row from which on a score
            stands for a class that was left out (`scores.masks`).
    """
    if "mask" in parameters:
        z = o.where(o.max(z) - z < float(parameters["mask"]), z, o.neg_inf())
    if "cut" in parameters:
        z = o.most(z, math.log(float(parameters["cut"])))
    return program(o, parameters, z)


def apply(program: Map, parameters: Parameters, logits: Array) -> Array:
    """Run a map in NumPy: log-probabilities (n, K) float64."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # in branches of `where` that are not taken
        return np.asarray(run(NumPy(logits.shape[1]), program, parameters, logits))
