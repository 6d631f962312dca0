"""The blocked pass, in threads, in an order that does not depend on them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.columns.condense import NAMES, Cells
from calibcli.columns.row_statistics import ClassBins, ClassSums, ClassTable, Columns, least
from calibcli.columns.softmax import Block, Buffer
from calibcli.errors import InputError
from calibcli.predictions import Floats, Ints, Predictions, chunk_rows, read

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
    work = _Work(predictions, class_bins, n * k <= SMALL, None if cells else (out, predicted))
    totals = [np.zeros((3, k, b.bins + (b.edges == "torchmetrics"))) for b in class_bins]
    for done, part in enumerate(_in_order(work, spans, threads), 1):
        if cells:
            cells.add(part.out, part.predicted, part.labels)
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
    """Works on one span of rows; its columns are written to `into`, or else kept in the part."""

    predictions: Predictions
    class_bins: Sequence[ClassBins]
    wide: bool
    into: tuple[Mapping[str, Floats], Ints] | None

    def __call__(self, span: tuple[int, int]) -> _Part:
        here = slice(*span)
        scores = read(self.predictions.scores, *span)
        if self.wide:
            scores = scores.astype(np.float64, copy=False)
        n, k = scores.shape
        labels = np.asarray(self.predictions.labels[here], dtype=np.int64)
        given = self.predictions.weights
        weights = None if given is None else given[here]
        sums = [ClassSums(b, k) for b in self.class_bins]
        buffer = Buffer(n, k, scores.dtype, min(map(least, self.class_bins), default=0.0))
        if self.into is None:
            out, predicted = {name: np.empty(n) for name in NAMES}, np.empty(n, dtype=np.int64)
        else:
            out, predicted = {name: column[here] for name, column in self.into[0].items()}, self.into[1][here]
        masked = self.predictions.kind == "logits"  # a probability of 0 is a claim, a logit of -inf a class left out
        for first in range(0, n, buffer.height):
            part = slice(first, first + buffer.height)
            w = None if weights is None else weights[part]
            block = Block(
                scores[part], labels[part], buffer, {name: column[part] for name, column in out.items()}, w, masked
            )
            predicted[part] = block.top
            for table in sums:
                table.add(block, w)
        if k == 2:
            out["brier"] *= 0.5
        tables = []
        if sums:
            hit = (predicted == labels).astype(np.int64)
            tables = [table.total(predicted, out["confidence"], hit, weights) for table in sums]
        if self.predictions.predicted is not None:
            predicted[:] = self.predictions.predicted[here]
        return _Part(out, predicted, labels, tables)
