"""Compute every number per row that metrics need, in one blocked pass over the scores; also for subsets of the rows."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from calibcli.core import extensions
from calibcli.core.errors import InputError, UsageError
from calibcli.core.options import Edges
from calibcli.core.statistics import CHUNK, DOUBLE, SINGLE, bin_index, one_thread
from calibcli.scores.histogram import (
    CONFIDENCE,
    NAMES,
    ClassBins,
    ClassSums,
    ClassTable,
    ColumnName,
    HistogramCells,
    least_listed,
)
from calibcli.scores.predictions import (
    NEAR,
    OUTCOMES,
    Array,
    ArrayScores,
    Floats,
    Ints,
    PickedScores,
    Predictions,
    Progress,
    TopOnly,
    chunk_rows,
    gather,
    read,
    reusing,
)
from calibcli.scores.softmax import Buffer, DeviceScores, SoftmaxBlock

__all__ = ["MANY", "SMALL", "ClassBins", "ClassTable", "Columns", "Edges", "bin_index", "columns", "into_cells"]
SMALL = 1 << 22  # scores up to which float32 is widened: full accuracy where time does not matter
MANY = 5_000_000  # rows up to which columns are kept (less than 1 GB); more rows are compressed to a fine histogram
FEW = 64  # rows of a span at least, as the K x bins sums of each span cost as much as some rows of K scores


@dataclass(frozen=True, eq=False, kw_only=True)
class Columns:
    """Numbers per row, each (N,), from which every metric is computed; to read one that was not computed raises.

    Attributes:
        numbers: those of `NAMES` that were computed, which are properties here.
        correct: bool, whether the predicted class is the label.  predicted: int64.
        labels, weights, groups: as in `Predictions`.
        classes: class tables by how they are binned.  k: number of classes.  top_only: as in `Predictions`.
        condensed: 0, or the number of rows that these weighted rows stand for (see `histogram`).
        place, by_predicted: their cells, and sums by class, as in `HistogramCells`.
        precision: relative, of probabilities.
    """

    numbers: Mapping[str, Floats]
    correct: npt.NDArray[np.bool_]
    predicted: Ints
    labels: Ints
    k: int
    top_only: TopOnly = False
    weights: Floats | None = None
    weight_kind: str = "sampling"
    groups: Ints | None = None
    classes: Mapping[ClassBins, ClassTable] = field(default_factory=dict)
    condensed: int = 0
    place: Ints | None = None
    by_predicted: Floats | None = None
    precision: float = DOUBLE

    def has(self, name: ColumnName) -> bool:
        """Return whether this column was computed."""
        return name in self.numbers

    def _computed(self, name: ColumnName) -> Floats:
        if self.top_only == "outcomes":
            raise UsageError(f"this {OUTCOMES[0]}", OUTCOMES[1])
        if name not in self.numbers:
            raise LookupError(f"column {name} was not computed: the traits of the metric must say that it is read")
        return self.numbers[name]

    @property
    def confidence(self) -> Floats:
        """Probability of the top class."""
        return self._computed("confidence")

    @property
    def rest(self) -> Floats:
        """1 - confidence, with all its digits."""
        return self._computed("rest")

    @property
    def nll(self) -> Floats:
        """-log p_y in nats, inf where p_y = 0."""
        return self._computed("nll")

    @property
    def most(self) -> Floats:
        """-log of the smallest probability of the row, what its worst label would cost; -inf logits, which mask a
        class, are left out.
        """
        return self._computed("most")

    @property
    def brier(self) -> Floats:
        """Sum over classes of (p_k - 1[k=y])^2, halved for two: (P(y = 1) - y)^2."""
        return self._computed("brier")

    @property
    def entropy(self) -> Floats:
        """Entropy of p, in nats."""
        return self._computed("entropy")

    @property
    def n(self) -> int:
        return len(self.labels)

    @property
    def floor(self) -> float:
        """The smallest possible confidence: 1/k where it is the largest of k probabilities."""
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
        """Return the given rows (indices or mask), without class tables, which are sums over all rows.

        Not of condensed columns, whose rows stand for many and whose `by_predicted` is a sum over all.
        """
        picked: dict[str, Any] = {
            name: value[rows]
            for name, value in vars(self).items()
            if isinstance(value, np.ndarray) and name in self.__dataclass_fields__
        }
        numbers = {name: value[rows] for name, value in self.numbers.items()}
        constants: dict[str, Any] = {"k": self.k, "top_only": self.top_only, "precision": self.precision}
        return Columns(numbers=numbers, **picked, **constants, weight_kind=self.weight_kind)


def columns(
    predictions: Predictions,
    *,
    class_bins: Sequence[ClassBins] = (ClassBins(),),
    names: Sequence[ColumnName] = NAMES,
    threads: int | None = 1,
    progress: Progress | None = None,
    double: bool = False,
) -> Columns:
    """Compute every number per row and every class table in one pass over the scores, block by block.

    Args:
        predictions: what to measure.
        class_bins: class tables to fill on the way (none: leave them out).
        names: columns to fill, the first 2, 5 or all of `NAMES`, or none, which leaves `predicted` and `correct`; to
            read another one raises. Confidences alone, class tables and scores on a device have the first 2 at least.
        threads: worker threads; None for one per processor. The result does not depend on it.
        progress: called with (fraction done, text).
        double: in double precision however many the scores are.
    """
    n, k = (predictions := predictions.plain).scores.shape
    if predictions.top_only == "outcomes":
        return _outcomes(predictions)
    cells = HistogramCells(k, predictions.top_only) if n > MANY else None
    if cells and (predictions.weights is not None or predictions.groups is not None or predictions.slices):
        problem = f"weights, groups and slices need their rows in memory, and {n} are more than {MANY}"
        raise InputError(problem, "measure the shards or slices one by one")
    rows, device = 0 if cells else n, isinstance(predictions.scores, DeviceScores)
    names = names or (CONFIDENCE if predictions.top_only or class_bins or device else ())
    out: dict[str, Floats] = {name: np.empty(rows) for name in names}
    predicted = np.empty(rows, dtype=np.int64)
    work = _SpanWork(predictions, class_bins, double or n * k <= SMALL, None if cells else (out, predicted))
    classes = _read(work, cells, threads, progress)
    if cells:
        return Columns(**cells.columns(), classes=classes, precision=work.precision)
    return Columns(
        numbers=out,
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


def _outcomes(p: Predictions) -> Columns:
    """Return the columns of rows of which only the outcome is known."""
    more: dict[str, Any] = {"weights": p.weights, "weight_kind": p.weight_kind, "groups": p.groups}
    right = np.asarray(p.labels[:]) == 1
    return Columns(
        numbers={}, correct=right, predicted=np.ones(p.n, np.int64), labels=p.labels, k=2, top_only=p.top_only, **more
    )


class AcceptsRows(Protocol):
    """Accepts the numbers of rows span by span, as `HistogramCells` does."""

    def add(self, out: Mapping[str, Floats], predicted: Ints, labels: Ints) -> None: ...


def into_cells(
    predictions: Predictions,
    cells: AcceptsRows,
    class_bins: Sequence[ClassBins],
    threads: int | None,
    progress: Progress | None,
) -> dict[ClassBins, ClassTable]:
    """Run the blocked pass in double precision, put all rows into `cells` however few they are, and return its class
    tables.
    """
    predictions.refuse_outcomes("a part that is merged later")
    return _read(_SpanWork(predictions, class_bins, True, None), cells, threads, progress)


def _read(
    work: _SpanWork, cells: AcceptsRows | None, threads: int | None, progress: Progress | None
) -> dict[ClassBins, ClassTable]:
    n, k, step = work.predictions.n, work.predictions.k, work.step
    # the rows of a span are so many that its sums by class take little time beside them, and a multiple of `step`
    size = -(-max(step, FEW, min(8 * k, n // 16)) // step) * step
    spans = [(start, min(start + size, n)) for start in range(0, n, size)]
    tell = progress or extensions.tell
    totals = [np.zeros((3, k, b.width)) for b in work.class_bins]  # the three arrays of a `ClassTable`
    with one_thread():
        for done, part in enumerate(_in_order(work, spans, threads), 1):
            if cells:
                cells.add(part.out, part.predicted, part.labels)
            for total, table in zip(totals, part.tables, strict=True):
                total += table
            tell(done / len(spans), "reading scores")
    return {b: ClassTable(*total) for b, total in zip(work.class_bins, totals, strict=True)}


def _in_order(work: _SpanWork, spans: Sequence[tuple[int, int]], threads: int | None) -> Iterable[_Part]:
    """Yield the parts in the order of the spans, whatever the number of threads, so that totals are reproducible."""
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
    """The numbers of one span of rows."""

    out: Mapping[str, Floats]
    predicted: Ints
    labels: Ints
    tables: Sequence[Floats]


@dataclass(frozen=True, eq=False)
class _SpanWork:
    """Computes one span of rows: their columns, predicted classes and class tables.

    Attributes:
        class_bins: how the class tables are binned, each by one.
        wide: whether scores are computed in double precision, also where they are stored in single.
        into: the columns by name and the predicted classes of all rows, (N,) each, which a span writes its rows into;
            without it a part gets arrays of its own.
        thread: holds `memory`.
    """

    predictions: Predictions
    class_bins: Sequence[ClassBins]
    wide: bool
    into: tuple[Mapping[str, Floats], Ints] | None
    thread: threading.local = field(default_factory=threading.local)

    @property
    def precision(self) -> float:
        return DOUBLE if self.wide or self.predictions.scores.dtype.itemsize > 4 else SINGLE

    @property
    def step(self) -> int:
        """Rows that are read at once."""
        scores = self.predictions.scores
        return scores.height if isinstance(scores, DeviceScores) else chunk_rows(scores)

    @property
    def memory(self) -> tuple[Any, Buffer]:
        """Memory of this thread (for reading scores, and for blocks), because fresh memory takes longer than the
        computation in it.
        """
        if not hasattr(self.thread, "memory"):
            scores, n, k = self.predictions.scores, self.predictions.n, self.predictions.k
            rows = 0 if isinstance(scores, DeviceScores) else min(n, self.step)
            dtype = np.dtype(np.float64 if self.precision == DOUBLE else np.float32)
            # blocks list probabilities from here on: smaller ones are in the first bin of every class table
            least = min(map(least_listed, self.class_bins), default=0.0)
            self.thread.memory = reusing(scores), Buffer(rows, k, dtype, least)
        return cast(tuple[Any, Buffer], self.thread.memory)

    def _scores(self, start: int, stop: int) -> Iterator[tuple[slice, Any]]:
        """Yield the blocks of a span: their rows, counted from its start, and their scores (rows, K).

        As many rows as `step` are read at once; each block of them is no larger than the buffer, so that it stays in
        the cache.
        """
        source, buffer = self.memory
        for read_from in range(start, stop, self.step):
            read_to = min(read_from + self.step, stop)
            before = read_from - start  # rows of the span before these
            if isinstance(source, DeviceScores):
                yield slice(before, read_to - start), source.part(slice(read_from, read_to), self.wide)
                continue
            scores = read(source, read_from, read_to)
            if not buffer.narrow:  # narrow ones are converted when they are sorted by class
                scores = scores.astype(buffer.dtype, copy=False)
            for first in range(0, read_to - read_from, buffer.height):
                block = scores[first : first + buffer.height]
                yield slice(before + first, before + first + len(block)), block

    def __call__(self, span: tuple[int, int]) -> _Part:
        """Compute the rows from span[0] up to span[1], block by block.

        A block (`SoftmaxBlock`) writes the numbers of its rows into the columns that it is given, and has their top
        class; each `ClassSums` adds the block's probabilities to its table. What holds for all rows follows at the end:
        the Brier score of two classes is halved; where one probability alone is known, it is that of class 1, however
        small, and class 1 is the predicted one; and a predicted class that was recorded replaces the top class.
        """
        predictions, rows = self.predictions, slice(*span)
        source, n, k = predictions.scores, span[1] - span[0], predictions.k
        block_of = source.block if isinstance(source, DeviceScores) else SoftmaxBlock
        buffer = self.memory[1]
        labels = np.asarray(predictions.labels[rows], dtype=np.int64)
        weights = None if predictions.weights is None else predictions.weights[rows]
        # class of the largest and the smallest score of each row, where a scan of all rows has found them
        extremes = [values[rows] for values in getattr(source, "ends", None) or ()]
        if self.into is None:
            out: dict[str, Floats] = {name: np.empty(n) for name in NAMES}
            predicted = np.empty(n, dtype=np.int64)
        else:
            columns_of_all, predicted_of_all = self.into
            out, predicted = {name: column[rows] for name, column in columns_of_all.items()}, predicted_of_all[rows]
        sums = [ClassSums(b, k, self.precision) for b in self.class_bins]
        masked = predictions.kind == "logits"  # a probability of 0 is a claim, a logit of -inf a class left out

        for part, scores in self._scores(*span):
            weights_here = None if weights is None else weights[part]
            extremes_here = [values[part] for values in extremes]
            out_here = {name: column[part] for name, column in out.items()}  # views, which the block fills
            block = block_of(scores, labels[part], buffer, out_here, weights_here, masked, extremes_here)
            predicted[part] = block.top
            for table in sums:
                table.add(block, weights_here)

        if k == 2 and "brier" in out:
            out["brier"] *= 0.5
        tables = []
        if sums:
            hit = predicted == labels
            tables = [table.total(predicted, out["confidence"], hit, weights) for table in sums]  # (3, K, bins) each
        if predictions.top_only:
            low = predicted == 0
            out["confidence"][low], out["rest"][low] = out["rest"][low], out["confidence"][low]
            predicted[:] = 1
        elif predictions.predicted is not None:
            predicted[:] = predictions.predicted[rows]
        return _Part(out, predicted, labels, tables)


# Subsets of the rows, such as those of each value of a column.


ROWS = 1_000_000  # rows of subsets whose columns are computed together
HELD = 1 << 27  # bytes of scores of subsets that are in memory at once


def rows_by(values: Array) -> dict[Any, Ints]:
    """Return the rows of each value in ascending order; the values are sorted.

    >>> rows_by(np.array(["b", "a", "b"]))
    {'a': array([1]), 'b': array([0, 2])}
    """
    distinct, codes = coded(values)
    order = np.argsort(codes.astype(np.min_scalar_type(len(distinct))), kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(codes))[:-1])
    return {value: rows[code] for value, code in sorted(zip(distinct, range(len(distinct))))}


def coded(values: Array) -> tuple[list[Any], Ints]:
    """Return the values in order of appearance, and the code (N,) of each row, in a tenth of the time of `np.unique`.

    >>> coded(np.array(["b", "a", "b"]))
    (['b', 'a'], array([0, 1, 0]))
    """
    codes, code_of = np.empty(len(values), np.int64), dict[Any, int]()
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK].tolist()
        codes[start : start + CHUNK] = [code_of.setdefault(value, len(code_of)) for value in part]
    return [*code_of], codes


def columns_by(
    whole: Predictions, measured: Columns, parts: Sequence[Ints], threads: int | None = 1
) -> Iterator[Columns]:
    """Yield the columns of each part, without class tables, as precise as if the part were the whole data set.

    Args:
        whole, measured: all rows, and their columns. Where these are in single precision, parts of few scores are
            read again, many parts at a time.
    """
    few = [measured.precision > DOUBLE and len(rows) * whole.k <= SMALL for rows in parts]
    end = 0
    for i, rows in enumerate(parts):
        if not few[i]:
            yield measured.take(rows)
            continue
        if i >= end:
            end = i + _fit(parts[i:], ROWS)
            again = np.sort(np.concatenate([parts[j] for j in range(i, end) if few[j]]))
            some = whole if len(again) == whole.n else whole.with_rows(again, PickedScores(whole.scores, again))
            names = [name for name in NAMES if measured.has(name)]
            fine = columns(some, class_bins=(), names=names, threads=threads, double=True)
        yield fine.take(np.searchsorted(again, rows))


class GatheredParts:
    """Predictions of parts of the rows, with their scores in memory.

    As many parts as fit are read in one go, since each reading may take as long as one of all rows. A part that alone
    is too large stays where it is, and is read piece by piece.
    """

    def __init__(self, whole: Predictions, parts: Sequence[Ints]) -> None:
        self.whole, self.parts = whole, parts
        self.ready: dict[int, Predictions] = {}
        self.most = HELD // (whole.k * whole.scores.dtype.itemsize)

    def take(self, i: int) -> Predictions:
        """Return the predictions of part `i`. Use them before asking for the next, which may overwrite their scores."""
        if i in self.ready:
            return self.ready[i]
        whole, scores, rows = self.whole, self.whole.scores, self.parts[i]
        if isinstance(scores, ArrayScores):
            self.ready = {i: whole.take(rows)}
        elif len(rows) > self.most:
            self.ready = {i: whole.with_rows(rows, PickedScores(scores, rows))}
        else:
            together = self.parts[i : i + _fit(self.parts[i:], self.most)]
            # rows that lie fewer than NEAR bytes apart are read together with what is between them
            gathered = gather(scores, np.concatenate(together), NEAR, self.memory)
            blocks = np.split(gathered, np.cumsum([len(part) for part in together])[:-1])
            read_parts = (
                whole.with_rows(part, ArrayScores(block)) for part, block in zip(together, blocks, strict=True)
            )
            self.ready = dict(enumerate(read_parts, i))
        return self.ready[i]

    @cached_property
    def memory(self) -> Array:
        """Memory that each reading overwrites: what was computed from a part may keep it alive longer than it is
        needed.
        """
        rows = min(self.most, sum(len(part) for part in self.parts))
        return np.empty((rows, self.whole.k), self.whole.scores.dtype)


def _fit(parts: Sequence[Ints], most: int) -> int:
    """Return how many of the first parts have no more than `most` rows together, at least one."""
    return max(1, int(np.searchsorted(np.cumsum([len(rows) for rows in parts]), most, side="right")))
