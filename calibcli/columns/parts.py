"""Parts of the rows, such as the values of a column: which rows they are, and what is read of them together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from calibcli.columns import SMALL, Columns, columns
from calibcli.columns.condense import NAMES
from calibcli.numerics import CHUNK, DOUBLE
from calibcli.predictions import NEAR, Array, ArrayScores, Ints, PickedScores, Predictions, gather

ROWS = 1_000_000  # whose columns are worked out together
HELD = 1 << 27  # bytes of scores of parts that are in memory at once


def rows_by(values: Array) -> dict[Any, Ints]:
    """The rows of each value, ascending; the values in their order.

    >>> rows_by(np.array(["b", "a", "b"]))
    {'a': array([1]), 'b': array([0, 2])}
    """
    known, codes = coded(values)
    order = np.argsort(codes.astype(np.min_scalar_type(len(known))), kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(codes))[:-1])
    return {value: rows[code] for value, code in sorted(zip(known, range(len(known))))}


def coded(values: Array) -> tuple[list[Any], Ints]:
    """The values as they first come, and (N,) which of them each row has; in a tenth of the time of `np.unique`.

    >>> coded(np.array(["b", "a", "b"]))
    (['b', 'a'], array([0, 1, 0]))
    """
    codes, known = np.empty(len(values), np.int64), dict[Any, int]()
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK].tolist()
        codes[start : start + CHUNK] = [known.setdefault(value, len(known)) for value in part]
    return [*known], codes


def columns_by(
    whole: Predictions, measured: Columns, parts: Sequence[Ints], threads: int | None = 1
) -> Iterator[Columns]:
    """Columns of each part, without class tables: as precise as if it were all there is.

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
            names = [name for name in NAMES if len(getattr(measured, name))]
            fine = columns(some, class_bins=(), names=names, threads=threads, double=True)
        yield fine.take(np.searchsorted(again, rows))


class Gathered:
    """Predictions of parts of the rows, with their scores in memory.

    As many parts as fit are read in one go, since each reading may take as long as one of all rows. A part that alone
    is too large stays where it is, and is read piece by piece.
    """

    def __init__(self, whole: Predictions, parts: Sequence[Ints]) -> None:
        self.whole, self.parts = whole, parts
        self.ready: dict[int, Predictions] = {}
        self.most = HELD // (whole.k * whole.scores.dtype.itemsize)

    def take(self, i: int) -> Predictions:
        """Those of a part, to be used before others are asked for: their scores come to lie in the same memory."""
        if i not in self.ready:
            self._read(i)
        return self.ready[i]

    def _read(self, first: int) -> None:
        whole, scores, rows = self.whole, self.whole.scores, self.parts[first]
        if isinstance(scores, ArrayScores):
            self.ready = {first: whole.take(rows)}
        elif len(rows) > self.most:
            self.ready = {first: whole.with_rows(rows, PickedScores(scores, rows))}
        else:
            together = self.parts[first : first + _fit(self.parts[first:], self.most)]
            index = np.concatenate(together)
            blocks = np.split(
                gather(scores, index, NEAR, self.memory), np.cumsum([len(part) for part in together])[:-1]
            )
            self.ready = {
                first + i: whole.with_rows(part, ArrayScores(block))
                for i, (part, block) in enumerate(zip(together, blocks, strict=True))
            }

    @cached_property
    def memory(self) -> Array:
        """Written to by each reading: what was worked out from a part may keep it longer than it is needed."""
        rows = min(self.most, sum(len(part) for part in self.parts))
        return np.empty((rows, self.whole.k), self.whole.scores.dtype)


def _fit(parts: Sequence[Ints], most: int) -> int:
    """How many of the first parts have no more than `most` rows together; at least one."""
    return max(1, int(np.searchsorted(np.cumsum([len(rows) for rows in parts]), most, side="right")))
