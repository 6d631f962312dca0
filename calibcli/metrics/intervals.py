"""What a metric returns: a statistic, with its interval. Intervals of means and shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.metrics.sample import Sample
from calibcli.numerics import (
    clopper_pearson,
    effective_groups,
    effective_rows,
    parts,
    score_bound,
    student_quantile,
    two_sided,
)
from calibcli.predictions import Floats, Ints
from calibcli.result import Cell

IMPOSSIBLE = "a label has probability 0 (--clip bounds it)"
BOUNDLESS = "no upper bound: classes have probability 0, where a label would cost infinitely much (--clip bounds it)"
NO_GROUPS = "rows belong to groups, and this bound is for independent rows (ece has one for groups)"
FEWEST_GROUPS = 10  # effective groups below which no bound keeps its level (simulated: docs/measured/gate.md)
Mask = npt.NDArray[np.bool_]


def few_groups(count: int, effective: float) -> str:
    """Why there is no bound, and what would help."""
    if effective > 0.99 * count:
        return f"{count} group{'s' * (count != 1)}, and bounds need {FEWEST_GROUPS}: draw more of them"
    counted = f"{count} groups of these sizes count as {effective:.1f} equal ones, and bounds need {FEWEST_GROUPS}"
    return f"{counted}: draw more of them, or fewer rows of the largest"


def average(values: npt.NDArray[Any], weights: Floats | None) -> float:
    """Weighted mean; nan where no weight is left."""
    if weights is None:
        total = np.count_nonzero(values) if values.dtype == bool else float(values.sum())
        return total / len(values) if len(values) else math.nan
    total = float(weights.sum())
    return float(weights @ counted(values, weights)) / total if total > 0 else math.nan


def counted(values: npt.NDArray[Any], weights: Floats) -> npt.NDArray[Any]:
    """(N,) values, of which those without weight are finite: none is counted, as 0 times infinity is no number."""
    known = np.isfinite(values)
    return values if known.all() else np.where(known | (weights > 0), values, 0.0)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The uncertainty of an estimate; fields as in `Estimate`."""

    low: float | None = None
    high: float | None = None
    level: float | None = None
    sided: Literal["two", "lower", "upper", "each"] = "two"
    how: str = ""
    reason: str = ""
    se: float | None = None
    null: float | None = None
    null_high: float | None = None
    n: int | None = None
    detail: Mapping[str, Cell] = field(default_factory=dict)


class Statistic:
    """What a metric returns: a number that knows its uncertainty. What is costly waits until it is asked for."""

    @property
    def value(self) -> float:
        """The number; nan where it is not defined."""
        raise NotImplementedError

    def interval(self, level: float) -> Interval:
        """Its uncertainty, one-sided bounds at `level` each; or why it has none."""
        raise NotImplementedError

    def __float__(self) -> float:
        return float(self.value)


@dataclass(frozen=True, eq=False)
class Bare(Statistic):
    """A number whose interval, or why it has none, depends on no level."""

    number: float
    said: Interval

    @property
    def value(self) -> float:
        return self.number

    def interval(self, level: float) -> Interval:
        return self.said


def one_sided(level: float, low: float, high: float, how: str, **more: Any) -> Interval:
    """Two bounds that hold at `level` each."""
    return Interval(low=low, high=high, level=1 - 2 * (1 - level), sided="each", how=how, **more)


@dataclass(frozen=True)
class Rows:
    """The rows a mean is over: values (n,), weights or None, groups or None."""

    values: npt.NDArray[Any]
    weights: Floats | None
    counts: bool
    groups: Ints | None
    condensed: bool = False  # weights are numbers of rows

    @classmethod
    def of(cls, sample: Sample, values: npt.NDArray[Any], mask: Mask | None = None) -> Rows:
        w = sample.weights
        values = values if w is None else counted(values, w)
        every = cls(values, w, sample.counts, sample.columns.groups, sample.columns.condensed > 0)
        return every if mask is None else every.at(mask)

    def at(self, rows: Mask | Ints) -> Rows:
        """Some of them."""
        weights = None if self.weights is None else self.weights[rows]
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, values=self.values[rows], weights=weights, groups=groups)

    @property
    def n(self) -> int:
        """Rows of the file."""
        return round(self.total) if self.condensed else len(self.values)

    @cached_property
    def total(self) -> float:
        return float(len(self.values) if self.weights is None else self.weights.sum())

    @cached_property
    def effective(self) -> float:
        """(Σw)²/Σw², or the sum of counts."""
        if self.weights is None or self.counts or self.total <= 0:
            return self.total
        return effective_rows(self.weights)

    @cached_property
    def _member(self) -> tuple[int, Ints]:
        assert self.groups is not None
        names, member = np.unique(self.groups, return_inverse=True)
        return len(names), member

    @cached_property
    def shares(self) -> Floats:
        """Share of the total weight that each group has."""
        return np.bincount(self._member[1], self.weights) / self.total

    @cached_property
    def units(self) -> float:
        """Independent draws: effective rows, or groups of equal size that measure a spread as well as these."""
        return self.effective if self.groups is None else effective_groups(self.shares)

    @property
    def unseen(self) -> float:
        """Σ share², the variance of the mean that one row (or group) of size 1 which was not seen would bring.

        Under uneven sampling weights the largest share, as rows that were not seen may be the heavy ones.
        """
        if self.groups is not None:
            return float(self.shares @ self.shares)
        if self.weights is None or self.counts:
            return 1 / self.effective
        return float(self.weights.max()) / self.total

    @cached_property
    def value(self) -> float:
        return average(self.values, self.weights)

    @cached_property
    def se(self) -> float:
        """Standard error of the weighted mean; where rows belong together by leaving out one group at a time.

        Jackknife over groups: (G - 1)/G Σ (θ_g - θ)² with θ_g - θ = -u_g / (1 - share_g), u_g the group's part of
        Σ w (x - mean) / Σ w. Large groups pull the mean towards them, which sums of squares alone do not see.
        """
        if self.total <= 0:
            return math.nan
        if self.groups is not None:
            count, member = self._member
            if count < 2:
                return math.nan
            centred = self.values - self.value
            u: npt.NDArray[Any] = np.bincount(member, centred if self.weights is None else self.weights * centred)
            left = np.maximum(1 - self.shares, 1e-9)
            return math.sqrt(float(np.sum((u / left) ** 2)) * (count - 1) / count) / self.total
        if self.effective < 1 + 1e-9:
            return math.nan
        square = 0.0
        for part in parts(len(self.values)):
            u = self.values[part] - self.value
            if self.weights is not None:
                u *= np.sqrt(self.weights[part]) if self.counts else self.weights[part]
            square += float(u @ u)
        return math.sqrt(square * self.effective / (self.effective - 1)) / self.total

    @property
    def lacking(self) -> str:
        """Why there is no bound, or ""."""
        if self.groups is not None and self._member[0] < 2:
            return "one group has no spread"
        if not math.isfinite(self.se):
            return "one row has no spread"
        if self.groups is not None and self.units < FEWEST_GROUPS:
            return few_groups(self._member[0], self.units)
        return ""

    @property
    def binomial(self) -> bool:
        """Whether a share of these rows is that of independent draws: no groups, weights equal or counts."""
        return self.groups is None and (self.weights is None or self.counts or float(np.ptp(self.weights)) == 0)

    @property
    def clustered(self) -> str:
        """How groups entered, for the reader."""
        return "" if self.groups is None else f", jackknife over groups ({self.units:.1f} effective)"

    def bounds(self, alpha: float, low: float, high: float) -> tuple[float, float]:
        """One-sided bounds of the mean, each at 1 - alpha, of values that may lie anywhere in [low, high].

        The score form (see `numerics.score_bound`) with Student's t: a share of rows (or of groups, all of whose rows
        agree) that happened not to be seen may lie at the other end.
        """
        t = student_quantile(1 - alpha, self.units - 1)
        spread, value = self.se**2, self.value
        low, high = min(low, value), max(high, value)
        above = score_bound(0.0, t, self.unseen * max(high - value, 0.0), spread)
        below = score_bound(0.0, t, self.unseen * max(value - low, 0.0), spread)
        return max(value - below, low), min(value + above, high)

    def p_value(self, low: float, high: float, share: float = 1.0) -> float:
        """Two-sided p-value of `share` times the mean = 0: twice the alpha at which the bound of `bounds` is 0.

        (Where alpha is above .03, there a little smaller than that: z² is used for -ln alpha.)
        """
        value = self.value * share
        if value == 0:
            return 1.0
        reach = max(self.value - low, 0.0) if value > 0 else max(high - self.value, 0.0)
        variance = self.se**2 + self.unseen * reach * abs(value)
        return two_sided(abs(value) / math.sqrt(variance), self.units - 1)


def percent(level: float) -> str:
    """0.95 as `95 %`."""
    return f"{100 * level:.4g} %"


Ends = tuple[float, float]


@dataclass(frozen=True, eq=False)
class MeanOf(Statistic):
    """The mean of a column: its value, its interval and, as differences by row, that of two models.

    Attributes:
        values: (N,).  mask: the rows that the mean is over, or None for all.
        ends: what a row may have at the least and at the most, where that is costly as a function of the sample.
        share: whether it is a share of the rows, whose interval is exact (Clopper and Pearson) for independent rows.
        empty: why there is no value where the mask leaves no row.
    """

    sample: Sample
    values: npt.NDArray[Any]
    mask: Mask | None = None
    ends: Ends | Callable[[Sample], Ends] = (0.0, 1.0)
    share: bool = False
    empty: str = "no rows"

    @cached_property
    def rows(self) -> Rows:
        return Rows.of(self.sample, self.values, self.mask)

    @property
    def value(self) -> float:
        return self.rows.value

    @property
    def range(self) -> Ends:
        """What a row may have at the least and at the most."""
        return self.sample.once(self.ends) if callable(self.ends) else self.ends

    def interval(self, level: float) -> Interval:
        """Two-sided: the score form, or Clopper and Pearson's."""
        rows, tail = self.rows, (1 - level) / 2
        if rows.total <= 0:
            return Interval(reason=self.empty, n=rows.n)
        if self.share and rows.binomial:
            how = "Clopper-Pearson interval"
            if round(rows.effective) != rows.n:
                how += f" at {rows.effective:.0f} effective rows"
            low, high = clopper_pearson(self.value * rows.effective, rows.effective, tail)
            se = rows.se if math.isfinite(rows.se) else None
            return Interval(low=low, high=high, level=level, how=how, n=rows.n, se=se)
        if not math.isfinite(self.value) or rows.lacking:
            return Interval(reason=rows.lacking if math.isfinite(self.value) else IMPOSSIBLE, n=rows.n)
        least, most = self.range
        low, up = rows.bounds(tail, least, most)
        detail: dict[str, Cell] = {} if rows.groups is None else {"effective_groups": round(rows.units, 1)}
        how = f"score form, t, unseen rows up to {most:.3g}{rows.clustered}"
        ends = {"low": low, "reason": BOUNDLESS} if math.isinf(most) else {"low": low, "high": up}
        return Interval(**ends, level=level, how=how, n=rows.n, se=rows.se, detail=detail)


def share_bounds(rows: Rows, alpha: float) -> Ends | None:
    """One-sided bounds of a share, each at 1 - alpha: exact for independent rows of equal weight, else as of any mean
    (weights may go with the outcome, which a binomial at the effective rows does not see); None where there are none.
    """
    if rows.binomial:
        return clopper_pearson(rows.value * rows.effective, rows.effective, alpha)
    return None if rows.lacking else rows.bounds(alpha, 0.0, 1.0)
