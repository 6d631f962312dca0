"""The blocked pass, in threads, in an order that does not depend on them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.columns.classes import ClassSums
from calibcli.columns.condense import NAMES, Cells
from calibcli.columns.softmax import Block, Buffer
from calibcli.columns.table import ClassBins, ClassTable, Columns
from calibcli.errors import InputError
from calibcli.predictions import Floats, Ints, Predictions, chunk_rows, read

BLOCK_BYTES = 1 << 19  # scores worked on at once: they and their exponentials stay in the second-level cache
SMALL = 1 << 22  # up to here float32 scores are widened: full accuracy where time does not matter
MANY = 10_000_000  # rows; beyond, columns are condensed to a fine histogram
Progress = Callable[[float, str], None]


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
    spans = [(start, min(start + step, n)) for start in range(0, n, step)]
    cells = Cells(k) if n > MANY else None
    if cells and (predictions.weights is not None or predictions.groups is not None or predictions.slices):
        problem = f"weights, groups and slices need their rows in memory, and {n} are more than {MANY}"
        raise InputError(problem, "measure the shards or slices one by one")
    rows = 0 if cells else n
    out: dict[str, Any] = {name: np.empty(rows) for name in NAMES}
    predicted = np.empty(rows, dtype=np.int64)
    work = _Work(predictions, class_bins, wide=n * k <= SMALL)
    totals = [np.zeros((3, k, b.bins + (b.edges == "torchmetrics"))) for b in class_bins]
    for done, (span, part) in enumerate(zip(spans, _in_order(work, spans, threads), strict=True), 1):
        if cells:
            cells.add(part.out, part.predicted, part.labels)
        else:
            for name, column in part.out.items():
                out[name][slice(*span)] = column
            predicted[slice(*span)] = part.predicted
        for total, table in zip(totals, part.tables, strict=True):
            total += table
        if progress:
            progress(done / len(spans), "reading scores")
    classes = {b: ClassTable(*total) for b, total in zip(class_bins, totals, strict=True)}
    if cells:
        return dataclasses.replace(cells.columns(), classes=classes)
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
        classes=classes,
    )


def _in_order(work: _Work, spans: Sequence[tuple[int, int]], threads: int | None) -> Iterable[_Part]:
    """Parts in the order of the spans whatever the number of threads: totals are reproducible."""
    count = min(threads or os.cpu_count() or 1, len(spans))
    if count <= 1:
        yield from map(work, spans)
        return
    with ThreadPoolExecutor(count) as pool:
        for first in range(0, len(spans), 4 * count):  # bounded, as a part may be large
            yield from pool.map(work, spans[first : first + 4 * count])


@dataclass(frozen=True, eq=False)
class _Part:
    """What one span of rows gave."""

    out: Mapping[str, Floats]
    predicted: Ints
    labels: Ints
    tables: Sequence[Floats]


@dataclass(frozen=True, eq=False)
class _Work:
    """Works on one span of rows."""

    predictions: Predictions
    class_bins: Sequence[ClassBins]
    wide: bool

    def __call__(self, span: tuple[int, int]) -> _Part:
        start, stop = span
        scores = read(self.predictions.scores, start, stop)
        if self.wide:
            scores = scores.astype(np.float64, copy=False)
        labels = np.asarray(self.predictions.labels[start:stop], dtype=np.int64)
        given = self.predictions.weights
        weights = None if given is None else given[start:stop]
        rows = max(1, BLOCK_BYTES // (scores.shape[1] * scores.itemsize))
        sums = [ClassSums(b, scores.shape[1]) for b in self.class_bins]
        buffer = Buffer(min(rows, len(scores)), scores.shape[1], scores.dtype)
        out = {name: np.empty(stop - start) for name in NAMES}
        predicted = np.empty(stop - start, dtype=np.int64)
        for first in range(0, len(scores), rows):
            part = slice(first, first + rows)
            block = Block(scores[part], labels[part], buffer)
            for name, column in out.items():
                column[part] = getattr(block, name)
            predicted[part] = block.top
            for table in sums:
                table.add(block, None if weights is None else weights[part])
        if self.predictions.predicted is not None:
            predicted = self.predictions.predicted[start:stop]
        return _Part(out, predicted, labels, [table.total() for table in sums])
