"""One pass over the scores: everything that a metric needs to know about a row, and about a class.

The softmax of a row is written with its top class taken out, p_top = 1 / (1 + R) with R the sum of exp(z_j - z_top)
over the other classes, so that 1 - p, the NLL and the entropy of a saturated row keep all their digits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.predictions import Array, Floats, Ints, Predictions, chunk_rows, read

Edges = Literal["right", "left", "torchmetrics"]
BLOCK_BYTES = 1 << 19  # scores worked on at once: they and their exponentials stay in the second-level cache
NARROW = 32  # classes
SAFE = 30.0  # exp(z)^2 summed over classes stays within float32 for |z_top| up to here
SMALL = 1 << 22  # up to here float32 scores are widened: full accuracy where time does not matter
Progress = Callable[[float, str], None]
_Sparse = tuple[Ints, Floats, Floats | None]  # class, probability, weight


@dataclass(frozen=True)
class ClassBins:
    """How class probabilities are binned; see `bin_index` for `edges`. Only p > `threshold` count."""

    bins: int = 15
    edges: Edges = "right"
    threshold: float = 0.0


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Sums over rows per class and bin: (K, bins) weights, weighted probabilities and weighted hits.

    `edges=torchmetrics` has one bin more than `bins`.
    """

    count: Floats
    sum_p: Floats
    sum_y: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class Columns:
    """Per-row numbers, each (N,).

    Attributes:
        confidence: probability of the top class.  rest: 1 - confidence, with all its digits.
        correct: bool, whether the predicted class is the label.  predicted: int64.
        nll: -log p_y in nats, inf where p_y = 0.  brier: sum over classes of (p_k - 1[k=y])^2.
        entropy: of p, in nats.
        labels, weights, groups, slices: as in `Predictions`.
        classes: class tables by how they are binned.
        k: number of classes.
    """

    confidence: Floats
    rest: Floats
    correct: npt.NDArray[np.bool_]
    predicted: Ints
    nll: Floats
    brier: Floats
    entropy: Floats
    labels: Ints
    k: int
    weights: Floats | None = None
    weight_kind: str = "sampling"
    groups: Ints | None = None
    slices: Mapping[str, Array] = field(default_factory=dict)
    classes: Mapping[ClassBins, ClassTable] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.confidence)

    @cached_property
    def p_true(self) -> Floats:
        """Probability of the label."""
        return np.exp(-self.nll)

    @cached_property
    def brier_top(self) -> Floats:
        """(confidence - correct)^2."""
        return np.where(self.correct, self.rest, self.confidence) ** 2

    @cached_property
    def positive(self) -> Floats:
        """P(y = 1); binary problems only."""
        if self.k != 2:
            raise ValueError(f"positive is defined for 2 classes, these are {self.k}")
        return np.where(self.predicted == 1, self.confidence, self.rest)

    @cached_property
    def log_odds(self) -> Floats:
        """log(confidence / (1 - confidence)), at most that of the smallest positive number."""
        return np.log(self.confidence) - np.log(np.maximum(self.rest, np.finfo(np.float64).tiny))

    def take(self, rows: Array) -> Columns:
        """The given rows (indices or mask); without class tables, which are sums over all rows."""
        picked: dict[str, Any] = {
            name: value[rows]
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray) and name in self.__dataclass_fields__
        }
        slices = {name: column[rows] for name, column in self.slices.items()}
        return Columns(**picked, k=self.k, weight_kind=self.weight_kind, slices=slices)


def bin_index(values: Floats, bins: int, edges: Edges = "right") -> Ints:
    """Bin of each value in [0, 1], equal width, computed in float64.

    `right`: ((b-1)/M, b/M], 0 in the first (Guo 2017). `left`: [(b-1)/M, b/M), 1 in the last. `torchmetrics`: as
    `left`, with a bin of its own for values of exactly 1.
    """
    scaled = np.asarray(values, dtype=np.float64) * bins
    if edges == "right":
        np.ceil(scaled, out=scaled)
        scaled -= 1
    index = scaled.astype(np.int64)  # truncates towards zero: the floor of what is >= 0
    return np.clip(index, 0, bins if edges == "torchmetrics" else bins - 1, out=index)


def columns(
    predictions: Predictions,
    *,
    class_bins: Sequence[ClassBins] = (ClassBins(),),
    threads: int | None = 1,
    progress: Progress | None = None,
) -> Columns:
    """The blocked pass: every per-row number and every class table in one reading of the scores.

    Args:
        predictions: what to measure.
        class_bins: class tables to fill on the way (none: leave them out).
        threads: worker threads; None for one per processor. The result does not depend on it.
        progress: called with (fraction done, text).
    """
    n, k = predictions.n, predictions.k
    step = chunk_rows(predictions.scores)
    out = {name: np.empty(n) for name in ("confidence", "rest", "nll", "brier", "entropy")}
    predicted = np.empty(n, dtype=np.int64)
    work = _Work(predictions, out, predicted, class_bins, wide=n * k <= SMALL)
    starts = range(0, n, step)
    totals = [np.zeros((3, k, b.bins + (b.edges == "torchmetrics"))) for b in class_bins]
    for done, sums in enumerate(_in_order(work, [(s, min(s + step, n)) for s in starts], threads), 1):
        for total, part in zip(totals, sums, strict=True):
            total += part
        if progress:
            progress(done / len(starts), "reading scores")
    if predictions.predicted is not None:
        predicted = predictions.predicted
    return Columns(
        **out,
        predicted=predicted,
        correct=predicted == predictions.labels,
        labels=predictions.labels,
        k=k,
        weights=predictions.weights,
        weight_kind=predictions.weight_kind,
        groups=predictions.groups,
        slices=predictions.slices,
        classes={b: ClassTable(*total) for b, total in zip(class_bins, totals, strict=True)},
    )


def _in_order(work: _Work, spans: Sequence[tuple[int, int]], threads: int | None) -> Iterable[list[Floats]]:
    """Sums of each span, in the order of the spans whatever the number of threads: the total is reproducible."""
    count = min(threads or os.cpu_count() or 1, len(spans))
    if count <= 1:
        yield from map(work, spans)
        return
    with ThreadPoolExecutor(count) as pool:
        for first in range(0, len(spans), 4 * count):  # bounded: results of a span are K x bins
            yield from pool.map(work, spans[first : first + 4 * count])


@dataclass(frozen=True, eq=False)
class _Work:
    """Fills the rows of one span and returns its class sums."""

    predictions: Predictions
    out: Mapping[str, Floats]
    predicted: Ints
    class_bins: Sequence[ClassBins]
    wide: bool

    def __call__(self, span: tuple[int, int]) -> list[Floats]:
        start, stop = span
        scores = read(self.predictions.scores, start, stop)
        if self.wide:
            scores = scores.astype(np.float64, copy=False)
        labels = self.predictions.labels[start:stop]
        given = self.predictions.weights
        weights = None if given is None else given[start:stop]
        rows = max(1, BLOCK_BYTES // (scores.shape[1] * scores.itemsize))
        sums = [_ClassSums(b, scores.shape[1]) for b in self.class_bins]
        buffer = _Buffer(min(rows, len(scores)), scores.shape[1], scores.dtype)
        for first in range(0, len(scores), rows):
            part = slice(first, first + rows)
            where = slice(start + first, start + first + len(scores[part]))
            block = _Rows(scores[part], labels[part], buffer)
            for name, column in self.out.items():
                column[where] = getattr(block, name)
            self.predicted[where] = block.top
            for table in sums:
                table.add(block, None if weights is None else weights[part])
        return [table.total() for table in sums]


class _Rows:
    """Softmax of a block, top class taken out: `others` is exp(z_j - z_top) over j, and 0 at the top class.

    Up to NARROW classes it is worked on class by class, beyond that row by row, whichever keeps the long axis inside.
    """

    def __init__(self, z: Array, labels: Ints, buffer: _Buffer) -> None:
        n, k = z.shape
        self.n, self.labels, self.narrow, self.buffer = n, labels, k <= NARROW, buffer
        self.rows = buffer.rows[:n]
        with np.errstate(invalid="ignore", under="ignore", divide="ignore"):
            r, squares, first, at_label, gap = (self._narrow if self.narrow else self._wide)(z)
            if not np.isfinite(first.sum()):  # 0 * -inf of a class with probability 0
                d = np.maximum(z - z.max(axis=1, keepdims=True), np.asarray(-1e4, z.dtype))
                others = self.others.T if self.narrow else self.others
                first = np.einsum("ij,ij->i", others, d).astype(np.float64) * self.scale
            self.confidence = 1 / (1 + r)
            self.rest = r * self.confidence
            self.p_label = at_label * self.confidence
            log_sum = np.log1p(r)
            self.nll = log_sum + gap
            self.entropy = log_sum - first * self.confidence
            squares *= self.confidence**2
            miss = np.flatnonzero(self.top != labels)
            self.brier = squares + self.rest**2
            self.brier[miss] = (squares + self.confidence**2 - 2 * self.p_label + 1)[miss]

    def _wide(self, z: Array) -> tuple[Floats, ...]:
        n, k = z.shape
        e = self.others = self.buffer.scores[: n * k].reshape(n, k)
        flat, here = e.reshape(-1), self.rows * k
        self.top = z.argmax(axis=1)
        at_top, at_label = here + self.top, here + self.labels
        z_flat = z.reshape(-1)
        z_top = z_flat[at_top]
        gap = z_top.astype(np.float64) - z_flat[at_label]
        if z_top.min() >= -SAFE and z_top.max() <= SAFE:
            shift, d = z_top.astype(np.float64), z  # exp(z) itself cannot overflow: spare the subtraction
        else:
            shift, d = np.zeros(n), z - z_top[:, None]
        np.exp(d, out=e)
        self.scale = 1 / flat[at_top].astype(np.float64)
        label = flat[at_label] * self.scale
        flat[at_top] = 0
        r = (e @ self.buffer.ones) * self.scale
        return r, np.vecdot(e, e) * self.scale**2, np.vecdot(e, d) * self.scale - shift * r, label, gap

    def _narrow(self, z: Array) -> tuple[Floats, ...]:
        n, k = z.shape
        d = np.array(z.T, order="C", copy=True)
        e = self.others = self.buffer.scores[: n * k].reshape(k, n)
        z_top = d.max(axis=0)
        at_top = np.flatnonzero(np.equal(d, z_top, out=self.buffer.mask[: n * k].reshape(k, n)))
        self.top = np.empty(n, dtype=np.int64)
        for c, (first_, last) in reversed(list(enumerate(_spans(at_top, k, n)))):
            self.top[at_top[first_:last] - c * n] = c  # of equal scores the lowest class is written last
        at_label = self.labels * n + self.rows
        d -= z_top
        gap = -d.reshape(-1)[at_label].astype(np.float64)
        np.exp(d, out=e)
        flat = e.reshape(-1)
        label = flat[at_label].astype(np.float64)
        flat[self.top * n + self.rows] = 0
        self.scale = np.ones(1)
        r = e.sum(axis=0).astype(np.float64)
        d *= e
        first = d.sum(axis=0).astype(np.float64)
        np.multiply(e, e, out=d)
        return r, d.sum(axis=0).astype(np.float64), first, label, gap

    def beyond(self, least: float) -> tuple[Ints, Ints, Floats]:
        """(row, class, probability) of all probabilities of about `least` and more, top classes excluded."""
        size, wide = self.others.size, self.confidence * self.scale
        limit = (least * (1 - 1e-5) / wide).astype(self.others.dtype)
        mask = self.buffer.mask[:size].reshape(self.others.shape)
        np.greater_equal(self.others, limit if self.narrow else limit[:, None], out=mask)
        found = np.flatnonzero(mask)
        k = self.others.shape[0 if self.narrow else 1]
        if self.narrow:
            spans = _spans(found, k, self.n)
            col = np.repeat(np.arange(k), [last - first for first, last in spans])
            row = found - col * self.n
        else:
            row = found // k
            col = found - row * k
        return row, col, self.others.reshape(-1)[found] * wide[row]

    def mass(self, weights: Floats | None) -> Floats:
        """(K,) weighted sum of the probabilities of each class, top classes excluded."""
        w = self.confidence * self.scale
        w = (w if weights is None else w * weights).astype(self.others.dtype)
        total: Floats = self.others @ w if self.narrow else w @ self.others
        return total


def _spans(found: Ints, k: int, n: int) -> list[tuple[int, int]]:
    """Where the sorted flat indices into (k, n) of each of the k rows begin and end."""
    edges = np.searchsorted(found, np.arange(k + 1) * n).tolist()
    return list(pairwise(edges))


class _Buffer:
    """Memory that the blocks of one span reuse."""

    def __init__(self, rows: int, k: int, dtype: np.dtype[Any]) -> None:
        self.scores = np.empty(rows * k, dtype)
        self.mask = np.empty(rows * k, np.bool_)
        self.ones = np.ones(k, dtype)
        self.rows = np.arange(rows)


class _ClassSums:
    """Class table of one span: sparse, as at most M of a row's probabilities lie beyond the first of M bins."""

    def __init__(self, how: ClassBins, k: int) -> None:
        self.how, self.k = how, k
        self.width = how.bins + (how.edges == "torchmetrics")
        self.mass = np.zeros(k)
        self.found: list[_Sparse] = []
        self.labels: list[_Sparse] = []

    def add(self, block: _Rows, weights: Floats | None) -> None:
        least = 1 / self.how.bins if self.how.threshold <= 0 else min(self.how.threshold, 1 / self.how.bins)
        row, col, p = block.beyond(least)
        self.found.append((col, p, None if weights is None else weights[row]))
        self.found.append((block.top, block.confidence, weights))
        self.labels.append((block.labels, block.p_label, weights))
        self.mass += block.mass(weights)

    def _table(self, parts: list[_Sparse], sums: bool = True) -> tuple[Array, Array]:
        """(K, bins) sums of weights and, if asked for, of weighted probabilities."""
        col, p = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        given = [part[2] for part in parts if part[2] is not None]
        weight = np.concatenate(given) if given else None
        if self.how.threshold > 0:
            keep = p > self.how.threshold
            col, p, weight = col[keep], p[keep], None if weight is None else weight[keep]
        flat = col * self.width
        flat += bin_index(p, self.how.bins, self.how.edges)
        size, shape = self.k * self.width, (self.k, self.width)
        count = np.bincount(flat, weight, size).reshape(shape)
        if not sums:
            return count, count
        return count, np.bincount(flat, p if weight is None else p * weight, size).reshape(shape)

    def total(self) -> Floats:
        """(3, K, bins). Without a threshold the first bin holds what the others leave."""
        count, sum_p = self._table(self.found)
        count = count.astype(np.float64)
        if self.how.threshold <= 0:
            rows = 0.0
            for top, confidence, weight in self.found[1::2]:
                rows += len(top) if weight is None else float(weight.sum())
                self.mass += np.bincount(top, confidence if weight is None else weight * confidence, self.k)
            count[:, 0] = rows - count[:, 1:].sum(axis=1)
            sum_p[:, 0] = np.maximum(self.mass - sum_p[:, 1:].sum(axis=1), 0.0)
        return np.stack([count, sum_p, self._table(self.labels, sums=False)[0]])
