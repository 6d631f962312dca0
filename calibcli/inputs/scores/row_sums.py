"""What the sums of rows say: probabilities, their logarithms, or shares of another whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from calibcli.columns.softmax import Piece
from calibcli.inputs.scores.mistakes import Spot

UNIT_LOW, UNIT_HIGH = -1e-6, 1 + 1e-3  # probabilities lie here, rounding allowed for
Row = Callable[[int], int]


@dataclass
class Unit:
    """Rows as probabilities.

    Attributes:
        tolerance: of their sums.  outside: rows with a value outside [0, 1].
        off: rows in [0, 1] whose sum is not one, `off_sum` that of the first.  empty: rows of zeros.
        worst: largest |sum - 1| seen in a row within [0, 1].
        squashed: whether every probability lies where softmax of probabilities puts it.
        spread: largest range of scores within a block.
    """

    k: int
    tolerance: float
    outside: int = 0
    off: Spot = field(default_factory=Spot)
    off_sum: float = math.nan
    empty: Spot = field(default_factory=Spot)
    worst: float = 0.0
    squashed: bool = True
    spread: float = 0.0

    @property
    def others(self) -> int:
        return self.outside + self.off.count

    @property
    def softmaxed_twice(self) -> tuple[float, float]:
        """Softmax of numbers in [0, 1] gives e^a / sum e^b, which lies in [1 / (e + K - 1), e / (e + K - 1)]."""
        return 1 / (math.e + self.k - 1), math.e / (math.e + self.k - 1)

    def add(self, rows: Piece, low: float, high: float, row: Row) -> None:
        inside = np.ones(len(rows), bool)
        if low < UNIT_LOW or high > UNIT_HIGH:
            inside = (rows.least >= UNIT_LOW) & (rows.top <= UNIT_HIGH)
            self.outside += int((~inside).sum())
        sums = rows.sums
        gap = np.abs(sums - 1)
        off = np.flatnonzero(inside & (gap > self.tolerance))
        if len(off) and not self.off.count:
            self.off_sum = float(sums[off[0]])
        self.off.add(off, row)
        self.empty.add(np.flatnonzero(inside & (sums <= 0)), row)
        if inside.any():
            self.worst = max(self.worst, float(gap[inside].max()))
        (least, most), slack = self.softmaxed_twice, 1e-6 + self.tolerance * 0.01
        self.squashed &= low >= least - slack and high <= most + slack
        self.spread = max(self.spread, high - low)


@dataclass
class Logs:
    """Rows as log-probabilities: whether one lies above 0, or has a |logsumexp| beyond the tolerance."""

    tolerance: float
    possible: bool = True

    def add(self, rows: Piece, high: float) -> None:
        if high > 0:
            self.possible = False
            return
        self.possible = bool((np.abs(rows.log_sums) <= self.tolerance).all())


@dataclass
class Whole:
    """Rows that share out another whole than one: not negative, and of one sum, as percents and votes are.

    Attributes:
        rounding: of a sum.  low, high: smallest and largest sum.  lost: whether there is no such whole.
    """

    rounding: float
    low: float = math.inf
    high: float = -math.inf

    lost: bool = False
    total: float = 0.0
    rows: int = 0

    def add(self, rows: Piece, low: float) -> None:
        self.lost = low < 0
        if not self.lost:
            sums = rows.sums
            self.total, self.rows = self.total + float(sums.sum()), self.rows + len(sums)
            self.low, self.high = min(self.low, float(sums.min())), max(self.high, float(sums.max()))
            self.lost = not self.high - self.low <= 2 * max(min(self.rounding, 0.05 * self.high), 0.005 * self.high)

    @property
    def found(self) -> float:
        """The whole, 0 where there is none."""
        mean = self.total / self.rows if self.high > 1.5 and not self.lost else 0.0
        return float(round(mean)) if abs(mean - round(mean)) <= 0.005 * mean else mean
