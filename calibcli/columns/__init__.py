"""One pass over the scores: everything that a metric needs to know about a row, and about a class.

Scores are read in blocks, in threads, in an order that does not depend on them; class sums are gathered sparsely.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from calibcli.columns.condense import NAMES, Cells
from calibcli.columns.softmax import Block, Buffer
from calibcli.columns.tensors import TensorBlock, TensorScores
from calibcli.errors import InputError
from calibcli.numerics import DOUBLE, SINGLE, bin_index
from calibcli.predictions import Array, Floats, Ints, Predictions, Progress, chunk_rows, read
from calibcli.spec import Edges

__all__ = ["MANY", "SMALL", "ClassBins", "ClassTable", "Columns", "Edges", "bin_index", "columns", "into_cells"]
SMALL = 1 << 22  # up to here float32 scores are widened: full accuracy where time does not matter
MANY = 5_000_000  # rows, whose columns take less than 1 GB; beyond, they are condensed to a fine histogram


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
        nll: -log p_y in nats, inf where p_y = 0.  most: -log of the smallest probability of the row, what its worst
            label would cost; -inf logits, which mask a class, are left out.
        brier: sum over classes of (p_k - 1[k=y])^2, halved for two: (P(y = 1) - y)^2.
        entropy: of p, in nats.
        labels, weights, groups: as in `Predictions`.
        classes: class tables by how they are binned.  k: number of classes.  top_only: as in `Predictions`.
        condensed: 0, or the number of rows that these weighted rows stand for (see `condense`).
        place, by_predicted: their cell, and sums by class (see `Cells`).  precision: relative, of probabilities.
    """

    confidence: Floats
    rest: Floats
    correct: npt.NDArray[np.bool_]
    predicted: Ints
    nll: Floats
    most: Floats
    brier: Floats
    entropy: Floats
    labels: Ints
    k: int
    top_only: bool = False
    weights: Floats | None = None
    weight_kind: str = "sampling"
    groups: Ints | None = None
    classes: Mapping[ClassBins, ClassTable] = field(default_factory=dict)
    condensed: int = 0
    place: Ints | None = None
    by_predicted: Floats | None = None
    precision: float = DOUBLE

    @property
    def n(self) -> int:
        return len(self.confidence)

    @property
    def floor(self) -> float:
        """What a confidence is at least: 1/k where it is the largest of k."""
        return 0.0 if self.top_only else 1 / self.k

    @cached_property
    def p_true(self) -> Floats:
        """Probability of the label."""
        return np.exp(-self.nll)

    @cached_property
    def positive(self) -> Floats:
        """P(y = 1); binary problems only."""
        if self.k != 2:
            raise ValueError(f"positive is defined for 2 classes, these are {self.k}")
        return np.where(self.predicted == 1, self.confidence, self.rest)

    def take(self, rows: Array) -> Columns:
        """The given rows (indices or mask); without class tables, which are sums over all rows."""
        picked: dict[str, Any] = {
            name: value[rows] if len(value) else value
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray) and name in self.__dataclass_fields__
        }
        rest: dict[str, Any] = {"k": self.k, "top_only": self.top_only, "precision": self.precision}
        return Columns(**picked, **rest, weight_kind=self.weight_kind)


def columns(
    predictions: Predictions,
    *,
    class_bins: Sequence[ClassBins] = (ClassBins(),),
    names: Sequence[str] = NAMES,
    threads: int | None = 1,
    progress: Progress | None = None,
    double: bool = False,
) -> Columns:
    """The blocked pass: every per-row number and every class table in one reading of the scores.

    Args:
        predictions: what to measure.
        class_bins: class tables to fill on the way (none: leave them out).
        names: columns to fill, the first 2, 5 or all of `NAMES`; the others are left empty.
        threads: worker threads; None for one per processor. The result does not depend on it.
        progress: called with (fraction done, text).
        double: in double precision however many the scores are.
    """
    n, k = (predictions := predictions.plain).scores.shape
    cells = Cells(k, predictions.top_only) if n > MANY else None
    if cells and (predictions.weights is not None or predictions.groups is not None or predictions.slices):
        problem = f"weights, groups and slices need their rows in memory, and {n} are more than {MANY}"
        raise InputError(problem, "measure the shards or slices one by one")
    rows = 0 if cells else n
    out: dict[str, Any] = {name: np.empty(rows) for name in names}
    predicted = np.empty(rows, dtype=np.int64)
    work = _Work(predictions, class_bins, double or n * k <= SMALL, None if cells else (out, predicted))
    classes = _read(work, cells, threads, progress)
    if cells:
        return Columns(**cells.columns(), classes=classes, precision=work.precision)
    return Columns(
        **{name: out.get(name, np.empty(0)) for name in NAMES},
        precision=work.precision,
        predicted=predicted,
        correct=predicted == predictions.labels,
        labels=predictions.labels,
        k=k,
        top_only=predictions.top_only,
        weights=predictions.weights,
        weight_kind=predictions.weight_kind,
        groups=predictions.groups,
        classes=classes,
    )


class Taking(Protocol):
    """Such as `Cells`."""

    def add(self, out: Mapping[str, Floats], predicted: Ints, labels: Ints) -> None: ...


def into_cells(
    predictions: Predictions,
    cells: Taking,
    class_bins: Sequence[ClassBins],
    threads: int | None,
    progress: Progress | None,
) -> dict[ClassBins, ClassTable]:
    """The blocked pass in double precision, whose rows go into `cells` however few they are; its class tables."""
    return _read(_Work(predictions, class_bins, True, None), cells, threads, progress)


def _read(
    work: _Work, cells: Taking | None, threads: int | None, progress: Progress | None
) -> dict[ClassBins, ClassTable]:
    scores, n, k = work.predictions.scores, work.predictions.n, work.predictions.k
    step = scores.height if isinstance(scores, TensorScores) else chunk_rows(scores)
    spans = [(start, min(start + step, n)) for start in range(0, n, step)]
    totals = [np.zeros((3, k, b.bins + (b.edges == "torchmetrics"))) for b in work.class_bins]
    for done, part in enumerate(_in_order(work, spans, threads), 1):
        if cells:
            cells.add(part.out, part.predicted, part.labels)
        for total, table in zip(totals, part.tables, strict=True):
            total += table
        if progress:
            progress(done / len(spans), "reading scores")
    return {b: ClassTable(*total) for b, total in zip(work.class_bins, totals, strict=True)}


def _in_order(work: _Work, spans: Sequence[tuple[int, int]], threads: int | None) -> Iterable[_Part]:
    """Parts in the order of the spans whatever the number of threads: totals are reproducible."""
    count = min(threads or os.cpu_count() or 1, len(spans))
    if count <= 1:
        yield from map(work, spans)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as pool:
        under_way = [pool.submit(work, span) for span in spans[: 4 * count]]  # bounded, as a part may be large
        for i in range(len(spans)):
            yield under_way.pop(0).result()
            under_way += [pool.submit(work, span) for span in spans[i + 4 * count :][:1]]


@dataclass(frozen=True, eq=False)
class _Part:
    """What one span of rows gave."""

    out: Mapping[str, Floats]
    predicted: Ints
    labels: Ints
    tables: Sequence[Floats]


@dataclass(frozen=True, eq=False)
class _Work:
    """Works on one span of rows; its columns are written to `into`, or else kept in the part."""

    predictions: Predictions
    class_bins: Sequence[ClassBins]
    wide: bool
    into: tuple[Mapping[str, Floats], Ints] | None

    @property
    def precision(self) -> float:
        return DOUBLE if self.wide or self.predictions.scores.dtype.itemsize > 4 else SINGLE

    def __call__(self, span: tuple[int, int]) -> _Part:
        here, held = slice(*span), self.predictions.scores
        dtype = np.dtype(np.float64 if self.precision == DOUBLE else np.float32)
        scores: Any
        if on_device := isinstance(held, TensorScores):
            scores = held.part(here, self.wide)
        else:
            scores = read(held, *span).astype(dtype, copy=False)
        n, k = scores.shape
        labels = np.asarray(self.predictions.labels[here], dtype=np.int64)
        given: Sequence[Any] = (self.predictions.weights, getattr(held, "best", None))
        weights, best = (None if one is None else one[here] for one in given)
        sums = [ClassSums(b, k, self.precision) for b in self.class_bins]
        buffer = Buffer(0 if on_device else n, k, dtype, min(map(least, self.class_bins), default=0.0))
        if self.into is None:
            out, predicted = {name: np.empty(n) for name in NAMES}, np.empty(n, dtype=np.int64)
        else:
            out, predicted = {name: column[here] for name, column in self.into[0].items()}, self.into[1][here]
        masked = self.predictions.kind == "logits"  # a probability of 0 is a claim, a logit of -inf a class left out
        kind, height = (TensorBlock, n) if on_device else (Block, buffer.height)
        for first in range(0, n, height):
            part = slice(first, first + height)
            w, top = (None if one is None else one[part] for one in (weights, best))
            columns_here = {name: column[part] for name, column in out.items()}
            block = kind(scores[part], labels[part], buffer, columns_here, w, masked, top)
            predicted[part] = block.top
            for table in sums:
                table.add(block, w)
        if k == 2 and "brier" in out:
            out["brier"] *= 0.5
        tables = []
        if sums:
            hit = (predicted == labels).astype(np.int64)
            tables = [table.total(predicted, out["confidence"], hit, weights) for table in sums]
        if self.predictions.top_only:
            low = predicted == 0
            out["confidence"][low], out["rest"][low] = out["rest"][low], out["confidence"][low]
            predicted[:] = 1
        elif self.predictions.predicted is not None:
            predicted[:] = self.predictions.predicted[here]
        return _Part(out, predicted, labels, tables)


def least(how: ClassBins) -> float:
    """Probabilities below are in the first bin, or count for nothing."""
    return 1 / how.bins if how.threshold <= 0 else min(how.threshold, 1 / how.bins)


class ClassSums:
    """Class table of one span: sparse, as at most M of a row's probabilities lie beyond the first of M bins."""

    def __init__(self, how: ClassBins, k: int, precision: float) -> None:
        self.how, self.k, self.precision = how, k, precision
        self.width = how.bins + (how.edges == "torchmetrics")
        self.mass = np.zeros(k)
        self.found: list[tuple[Ints, Floats, Floats | None]] = []
        self.missed: list[tuple[Ints, Floats, Floats | None]] = []

    def add(self, block: Block, weights: Floats | None) -> None:
        """What the block lists, and its labels that are not the top class."""
        for row, col, p in block.found:
            self.found.append((col, p, None if weights is None else weights[row]))
        miss = block.miss
        self.missed.append((block.labels[miss], block.p_label, None if weights is None else weights[miss]))
        self.mass += block.mass

    def total(self, top: Ints, confidence: Floats, hit: Ints, weights: Floats | None) -> Floats:
        """(3, K, bins) sums of weights, probabilities and hits. Without a threshold the first bin holds what the others
        leave.

        Args:
            top, confidence, hit, weights: (n,) of the span; the top class, its probability, 1 where it is the label.
        """
        flat = self._flat(top, confidence)
        if weights is None:
            both = np.bincount(2 * flat + hit, minlength=2 * (self.k * self.width + 1)).reshape(-1, 2)
            count, sum_y = self._shaped(both[:, 0] + both[:, 1]), self._shaped(both[:, 1])
            sum_p = self._sums(flat, confidence)
        else:
            count, sum_y = self._sums(flat, weights), self._sums(flat, weights * hit)
            sum_p = self._sums(flat, weights * confidence)
        each = np.ones(self.width)
        rows, mass = float(count.sum()), self.mass + sum_p @ each
        col, p, w = _joined(self.missed)
        sum_y = sum_y + self._sums(self._flat(col, p), w)
        col, p, w = _joined(self.found)
        flat = self._flat(col, p)
        count = count + self._sums(flat, w)
        sum_p += self._sums(flat, p if w is None else w * p)
        if self.how.threshold <= 0:
            count[:, 0] = rows - count[:, 1:] @ each[1:]
            sum_p[:, 0] = np.maximum(mass - sum_p[:, 1:] @ each[1:], 0.0)
        return np.stack([count, sum_p, sum_y])

    def _flat(self, col: Ints, p: Floats) -> Ints:
        """Cell of each probability; those that count for nothing are in one beyond the last."""
        flat = col * self.width
        flat += bin_index(p, self.how.bins, self.how.edges, self.precision)
        if self.how.threshold > 0:
            flat[p <= self.how.threshold] = self.k * self.width
        return flat

    def _sums(self, flat: Ints, values: Floats | None) -> Floats:
        return self._shaped(np.bincount(flat, values, self.k * self.width + 1))

    def _shaped(self, sums: Array) -> Floats:
        return np.asarray(sums[:-1], np.float64).reshape(self.k, self.width)


def _joined(parts: list[tuple[Ints, Floats, Floats | None]]) -> tuple[Ints, Floats, Floats | None]:
    col, p = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    given = [part[2] for part in parts if part[2] is not None]
    return col, p, np.concatenate(given) if given else None
