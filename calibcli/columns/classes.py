"""Per-class bin sums, gathered sparsely."""

from __future__ import annotations

import numpy as np

from calibcli.columns.softmax import Block
from calibcli.columns.table import ClassBins, bin_index
from calibcli.predictions import Array, Floats, Ints


def least(how: ClassBins) -> float:
    """Probabilities below are in the first bin, or count for nothing."""
    return 1 / how.bins if how.threshold <= 0 else min(how.threshold, 1 / how.bins)


class ClassSums:
    """Class table of one span: sparse, as at most M of a row's probabilities lie beyond the first of M bins."""

    def __init__(self, how: ClassBins, k: int) -> None:
        self.how, self.k = how, k
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
            top, confidence, hit: (n,) top class of each row of the span, its probability and 1 where it is the label.
            weights: (n,) or None.
        """
        flat = self._flat(top, confidence)
        if weights is None:
            both = np.bincount(2 * flat + hit, minlength=2 * (self.k * self.width + 1)).reshape(-1, 2)
            count, sum_y = self._shaped(both.sum(axis=1)), self._shaped(both[:, 1])
            sum_p = self._sums(flat, confidence)
        else:
            count, sum_y = self._sums(flat, weights), self._sums(flat, weights * hit)
            sum_p = self._sums(flat, weights * confidence)
        rows, mass = float(count.sum()), self.mass + sum_p.sum(axis=1)
        col, p, w = _joined(self.missed)
        sum_y = sum_y + self._sums(self._flat(col, p), w)
        col, p, w = _joined(self.found)
        flat = self._flat(col, p)
        count = count + self._sums(flat, w)
        sum_p += self._sums(flat, p if w is None else w * p)
        if self.how.threshold <= 0:
            count[:, 0] = rows - count[:, 1:].sum(axis=1)
            sum_p[:, 0] = np.maximum(mass - sum_p[:, 1:].sum(axis=1), 0.0)
        return np.stack([count, sum_p, sum_y])

    def _flat(self, col: Ints, p: Floats) -> Ints:
        """Cell of each probability; those that count for nothing are in one beyond the last."""
        flat = col * self.width
        flat += bin_index(p, self.how.bins, self.how.edges)
        if self.how.threshold > 0:
            flat[p <= self.how.threshold] = self.k * self.width
        return flat

    def _sums(self, flat: Ints, values: Floats | None) -> Floats:
        return self._shaped(np.bincount(flat, values, self.k * self.width + 1))

    def _shaped(self, sums: Array) -> Floats:
        shaped: Floats = sums[:-1].astype(np.float64, copy=False).reshape(self.k, self.width)
        return shaped


def _joined(parts: list[tuple[Ints, Floats, Floats | None]]) -> tuple[Ints, Floats, Floats | None]:
    col, p = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    given = [part[2] for part in parts if part[2] is not None]
    return col, p, np.concatenate(given) if given else None
