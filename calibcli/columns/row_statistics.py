"""What one pass over the scores leaves behind: per-row numbers, and per-class sums gathered sparsely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.columns.softmax import Block
from calibcli.predictions import Array, Floats, Ints

Edges = Literal["right", "left", "torchmetrics"]


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
        labels, weights, groups, slices: as in `Predictions`.
        classes: class tables by how they are binned.
        k: number of classes.
        condensed: 0, or the number of rows that these weighted rows stand for (see `condense`).
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
    weights: Floats | None = None
    weight_kind: str = "sampling"
    groups: Ints | None = None
    slices: Mapping[str, Array] = field(default_factory=dict)
    classes: Mapping[ClassBins, ClassTable] = field(default_factory=dict)
    condensed: int = 0

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
    `left`, with a bin of its own for values of exactly 1. A value within 1e-12 of an inner edge is on it: 0.75 given as
    a probability stays there though its logarithm and the softmax round it.
    """
    scaled = np.asarray(values, dtype=np.float64) * bins
    if edges == "right":
        scaled -= 1e-12
        np.ceil(scaled, out=scaled)
        scaled -= 1
    else:
        scaled += 1e-12
    narrow = scaled.astype(np.int32)  # truncates: the floor of what is >= 0; half as wide is several times as fast
    np.minimum(narrow, bins - 1, out=narrow)
    np.maximum(narrow, 0, out=narrow)
    index: Ints = narrow.astype(np.int64)
    if edges == "torchmetrics":
        index[values >= 1] = bins
    return index


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
