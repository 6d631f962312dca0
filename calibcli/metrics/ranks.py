"""Groups of rows by rank without sorting all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from calibcli.predictions import Floats, Ints

FEW = 1 << 14  # rows up to which all are sorted
CHUNK = 1 << 15  # rows whose numbers stay in the cache
BINADES, BITS = 40, 10  # a cell is one of 2^10 steps of 1 - p within a factor of two
LAST = BINADES << BITS
TIE = 1e-12  # confidences that differ by less are the same: softmax of classes in another order differs by an ulp


def groups_by_rank(p: Floats, first: Ints) -> tuple[Ints, Ints, Ints]:
    """Rows counted by p into fine cells; only those of cells that a cut divides are sorted.

    Args:
        p: (n,) in [0, 1].
        first: (M + 1,) ranks where groups begin, from 0 to n.

    Returns:
        (n,) group of each row; the rows around the cuts in order of p, with all that are tied there; their ranks.
    """
    n = len(p)
    if n <= FEW:
        rows = np.argsort(p)
        ranks = np.arange(n)
        group = np.empty(n, np.int64)
    else:
        cells = np.empty(n, np.uint16)
        for start in range(0, n, CHUNK):
            part = slice(start, start + CHUNK)
            cells[part] = _cells(1 - p[part])
        count = np.zeros(LAST + 1, np.int64)
        for start in range(0, n, 8 * CHUNK):
            count += np.bincount(cells[start : start + 8 * CHUNK], minlength=LAST + 1)
        end = np.cumsum(count)
        cut = np.searchsorted(end, first[1:-1], side="right")
        of_cell = np.searchsorted(cut, np.arange(LAST + 1), side="left")
        cut = np.unique(cut)
        lowest = (((LAST - cut + _SHIFT) << (52 - BITS)).view(np.float64)) * (cut < LAST)
        highest = ((LAST - cut + 1 + _SHIFT) << (52 - BITS)).view(np.float64)
        for start, stop in zip(_cells(highest + TIE), _cells(np.maximum(lowest - TIE, 0)), strict=True):
            of_cell[max(start, 0) : stop + 1] = len(first)
        cut = np.flatnonzero(of_cell == len(first))
        group = of_cell[cells]
        rows = np.flatnonzero(group == len(first))
        rows = rows[np.argsort(p[rows])]
        ranks = np.arange(len(rows)) + np.repeat(end[cut] - np.cumsum(count[cut]), count[cut])
    group[rows] = np.searchsorted(first, ranks, side="right") - 1
    return group, rows, ranks


_SHIFT = (1023 << BITS) - LAST


def _cells(rest: Floats) -> Ints:
    """Cell of each 1 - p by exponent and upper digits: fine where p is near 1, and rising with p."""
    bits = rest.view(np.int64) >> (52 - BITS)
    bits -= _SHIFT
    cells: Ints = LAST - np.maximum(bits, 0, out=bits)
    return cells


def ties(ordered: Floats, values: Floats) -> Iterator[slice]:
    """Where in increasing numbers those that are within TIE of these values are; no number twice."""
    stop = 0
    for value in np.unique(values):
        low, high = np.searchsorted(ordered, [value - TIE, value + TIE])
        start, stop = max(int(low), stop), max(int(high), stop)
        if stop > start:
            yield slice(start, stop)
