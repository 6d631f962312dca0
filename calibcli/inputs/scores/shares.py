"""Shares of a hundred, or of another whole than one: percents and votes, which would pass for logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibcli.columns.softmax import Piece
from calibcli.errors import InputError

FEWEST = 10  # rows
PERCENT = 20.0  # log-odds none of which is negative, and which are wrong once in 1e8, end below


@dataclass
class Whole:
    """Rows that share out another whole than one: not negative, and of one sum, as percents and votes are.

    Attributes:
        rounding: of a sum.  low, high: smallest and largest sum.  lost: whether there is no such whole.
        varied: whether there are scores between the smallest and the largest, unlike those of two fixed logits.
    """

    rounding: float
    low: float = math.inf
    high: float = -math.inf

    lost: bool = False
    total: float = 0.0
    rows: int = 0
    varied: bool = False

    def add(self, rows: Piece) -> None:
        """Rows of which none is negative."""
        sums, z = rows.sums, rows.z
        self.varied = self.varied or bool(((z > z.min()) & (z < z.max())).any())
        self.total, self.rows = self.total + float(sums.sum()), self.rows + len(sums)
        self.low, self.high = min(self.low, float(sums.min())), max(self.high, float(sums.max()))
        self.lost = not self.high - self.low <= 2 * max(min(self.rounding, 0.05 * self.high), 0.005 * self.high)

    @property
    def found(self) -> float:
        """The whole, 0 where there is none."""
        mean = self.total / self.rows if self.high > 1.5 and self.varied and not self.lost else 0.0
        return float(round(mean)) if abs(mean - round(mean)) <= 0.005 * mean else mean


def refuse_shares(whole: Whole, k: int, n: int, low: float, high: float, name: str) -> None:
    """Refuse n rows of k scores from `low` to `high` that look like shares.

    Raises:
        InputError: of rows that differ, none is negative, their sums are one number, and some score is below half of
            an equal share, as those of logits with a large offset are not; of one column, the largest is more than any
            log-odds would be where none is negative.
    """
    one = whole.found if k > 1 else 100.0 * (PERCENT < high <= 100 and low >= 0)
    if not one or n < FEWEST or low == high or (k > 1 and low >= one / (2 * k)):
        return
    rows = f"its rows sum to {one:.3g}" if k > 1 else f"goes to {high:.4g}"
    problem = f"'{name}' is nowhere negative and {rows}: shares of {one:.3g}, not logits?"
    raise InputError(problem, f"divide by {one:.3g}; if these are logits: --kind logits")
