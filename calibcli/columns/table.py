"""What one pass over the scores leaves behind: per-row numbers and per-class sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

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
