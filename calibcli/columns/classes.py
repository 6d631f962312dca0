"""Per-class bin sums, gathered sparsely."""

from __future__ import annotations

import numpy as np

from calibcli.columns.softmax import Block
from calibcli.columns.table import ClassBins, bin_index
from calibcli.predictions import Array, Floats, Ints

Sparse = tuple[Ints, Floats, Floats | None]  # class, probability, weight


class ClassSums:
    """Class table of one span: sparse, as at most M of a row's probabilities lie beyond the first of M bins."""

    def __init__(self, how: ClassBins, k: int) -> None:
        self.how, self.k = how, k
        self.width = how.bins + (how.edges == "torchmetrics")
        self.mass = np.zeros(k)
        self.found: list[Sparse] = []
        self.labels: list[Sparse] = []

    def add(self, block: Block, weights: Floats | None) -> None:
        least = 1 / self.how.bins if self.how.threshold <= 0 else min(self.how.threshold, 1 / self.how.bins)
        row, col, p = block.beyond(least)
        self.found.append((col, p, None if weights is None else weights[row]))
        self.found.append((block.top, block.confidence, weights))
        self.labels.append((block.labels, block.p_label, weights))
        self.mass += block.mass(weights)

    def _table(self, parts: list[Sparse], sums: bool = True) -> tuple[Array, Array]:
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
