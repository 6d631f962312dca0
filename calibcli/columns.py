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
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.predictions import Array, Floats, Ints, Predictions, chunk_rows, read

Edges = Literal["right", "left", "torchmetrics"]
BLOCK_BYTES = 1 << 18  # scores worked on at once: they and their exponentials stay in the second-level cache
SMALL = 1 << 22  # up to here float32 scores are widened: full accuracy where time does not matter
Progress = Callable[[float, str], None]


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
        weights = None if self.predictions.weights is None else self.predictions.weights[start:stop]
        rows = max(1, BLOCK_BYTES // (scores.shape[1] * scores.itemsize))
        sums = [_ClassSums(b, scores.shape[1]) for b in self.class_bins]
        for first in range(0, len(scores), rows):
            part = slice(first, first + rows)
            where = slice(start + first, start + first + len(scores[part]))
            block = _Softmax(scores[part], labels[part])
            for name, column in self.out.items():
                column[where] = getattr(block, name)
            self.predicted[where] = block.top
            for table in sums:
                table.add(block, None if weights is None else weights[part])
        return [table.total() for table in sums]


class _Softmax:
    """Softmax of a block with the top class taken out: `others` (n, K) is exp(z - z_top), 0 at the top class."""

    def __init__(self, z: Array, labels: Ints) -> None:
        self.labels = labels
        self.rows = np.arange(len(z))
        self.top = z.argmax(axis=1)
        z_top = z[self.rows, self.top]
        with np.errstate(invalid="ignore", under="ignore"):
            d = z - z_top[:, None]
            e = np.exp(d)
            at_label = e[self.rows, labels].astype(np.float64)
            e[self.rows, self.top] = 0
            self.others = e
            r = e.sum(axis=1, dtype=np.float64)
            squares = np.einsum("ij,ij->i", e, e).astype(np.float64)
            first = np.einsum("ij,ij->i", e, np.maximum(d, np.asarray(-1e4, d.dtype))).astype(np.float64)
        self.confidence = 1 / (1 + r)
        self.rest = r * self.confidence
        log_sum = np.log1p(r)
        hit = self.top == labels
        self.nll = log_sum + np.where(hit, 0.0, z_top.astype(np.float64) - z[self.rows, labels].astype(np.float64))
        self.p_label = at_label * self.confidence
        c2 = self.confidence**2
        self.brier = np.where(hit, self.rest**2 + squares * c2, (1 + squares) * c2 - 2 * self.p_label + 1)
        self.entropy = log_sum - first * self.confidence


class _ClassSums:
    """Class table of one span: sparse, as at most M of a row's probabilities lie beyond the first of M bins."""

    def __init__(self, how: ClassBins, k: int) -> None:
        self.how, self.k = how, k
        self.width = how.bins + (how.edges == "torchmetrics")
        self.sums = np.zeros((3, k * self.width))
        self.mass = np.zeros(k)
        self.rows = 0.0

    def add(self, block: _Softmax, weights: Floats | None) -> None:
        how, conf = self.how, block.confidence
        w = np.ones(len(conf)) if weights is None else weights
        wc = w * conf
        least = 1 / how.bins if how.threshold <= 0 else min(how.threshold, 1 / how.bins)
        limit = least * (1 - 1e-5) / conf  # a little below, so that rounding loses no candidate
        row, col = np.nonzero(block.others >= limit[:, None].astype(block.others.dtype))
        p = np.concatenate([block.others[row, col] * conf[row], conf])
        row, col = np.concatenate([row, block.rows]), np.concatenate([col, block.top])
        index = bin_index(p, how.bins, how.edges)
        keep = p > how.threshold if how.threshold > 0 else index > 0
        flat = (col * self.width + index)[keep]
        size = self.k * self.width
        self.sums[0] += np.bincount(flat, w[row[keep]], size)
        self.sums[1] += np.bincount(flat, (w[row] * p)[keep], size)
        index = bin_index(block.p_label, how.bins, how.edges)
        keep = block.p_label > how.threshold if how.threshold > 0 else np.ones(len(index), bool)
        self.sums[2] += np.bincount((block.labels * self.width + index)[keep], w[keep], size)
        self.mass += wc.astype(block.others.dtype) @ block.others
        self.mass += np.bincount(block.top, wc, self.k)
        self.rows += float(w.sum())

    def total(self) -> Floats:
        """(3, K, bins); the first bin holds what the others leave."""
        sums = self.sums.reshape(3, self.k, self.width)
        if self.how.threshold <= 0:
            sums[0, :, 0] = self.rows - sums[0, :, 1:].sum(axis=1)
            sums[1, :, 0] = np.maximum(self.mass - sums[1, :, 1:].sum(axis=1), 0.0)
        return sums
