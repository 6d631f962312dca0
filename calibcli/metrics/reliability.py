"""A reliability table, of which binned errors are functions; and groups of rows by rank without sorting all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

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


T = TypeVar("T")
DRAWS = 2_000


class Once:
    """Keeps what was worked out from it."""

    def once(self, function: Callable[..., T], *arguments: Any) -> T:
        """`function(self, *arguments)`, called the first time only."""
        kept: dict[Any, T] = self.__dict__.setdefault("_kept", {})
        key = (function, *arguments)
        if key not in kept:
            kept[key] = function(self, *arguments)
        return kept[key]


@dataclass(frozen=True, eq=False)
class Bins:
    """A reliability table: one entry per bin, in shares of the total weight.

    Attributes:
        lower, upper: edges of the bins.
        rows: number of rows.
        weight: Σw / W.  p: Σ w p / W.  hit: Σ w y / W.  weighted_gap: d = Σ w (p - y) / W, the signed gap times the
            weight.
        weight_variance: variance of `weight` when rows are drawn: Σ w² / W² (Σ w / W² for counts).
        gap_variance: the same of d, about 0.
        null_variance: the same of d under perfect calibration, given the confidences.
        total: rows behind the shares (sum of the weights where they are counts).
        seed: of what is simulated.
        index: (N,) bin of each row, of equal-width bins.
    """

    lower: Floats
    upper: Floats
    rows: Ints
    weight: Floats
    p: Floats
    hit: Floats
    weighted_gap: Floats
    weight_variance: Floats
    gap_variance: Floats
    null_variance: Floats
    total: float
    seed: int = 0
    index: npt.NDArray[np.integer] | None = None

    @cached_property
    def gap(self) -> Floats:
        """Mean confidence minus accuracy per bin, 0 where empty."""
        return self.weighted_gap * self.inverse

    @cached_property
    def inverse(self) -> Floats:
        """1 / weight, 0 where empty."""
        return _ratio(np.ones_like(self.weight), self.weight)

    @property
    def confidence(self) -> Floats:
        return _ratio(self.p, self.weight)

    @property
    def accuracy(self) -> Floats:
        return _ratio(self.hit, self.weight)

    @property
    def effective(self) -> Floats:
        """Effective rows per bin: (Σw)²/Σw²."""
        return _ratio(self.weight**2, self.weight_variance)

    @property
    def filled(self) -> npt.NDArray[np.bool_]:
        return self.weight > 0

    def simulated(self, draws: int, rng: np.random.Generator) -> Floats:
        """(draws, B) weighted gaps of a calibrated model: binomial hits, from mean confidence and effective rows."""
        n = np.maximum(np.round(self.effective), 0).astype(np.int64)
        p = self.confidence
        hits = rng.binomial(n, np.clip(p, 0, 1), size=(draws, len(n)))
        return np.where(n > 0, self.weight * (p - hits / np.maximum(n, 1)), 0.0)

    @cached_property
    def null_gaps(self) -> Floats:
        """(DRAWS, B) weighted gaps of a calibrated model: metrics of one table share them."""
        return self.simulated(DRAWS, np.random.default_rng([self.seed, len(self.weight)]))


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
