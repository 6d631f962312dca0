"""Statistics of means and shares, with their intervals.

Derivations: docs/statistics/means.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.core.number_format import count_text
from calibcli.core.result import Cell
from calibcli.core.statistics import (
    clopper_pearson,
    effective_groups,
    effective_rows,
    group_places,
    parts,
    student_quantile,
    two_sided,
    unseen_reach,
)
from calibcli.metrics.registry import Interval, Sample, Statistic
from calibcli.scores.predictions import Floats, Ints

IMPOSSIBLE = "a label has probability 0 (--clip bounds it)"
BOUNDLESS = "no upper bound: classes have probability 0, where a label would cost infinitely much (--clip bounds it)"
NO_GROUPS = "rows belong to groups, and this bound is for independent rows (ece has one for groups)"
FEWEST_GROUPS = 10  # effective groups below which no bound keeps its level (simulated: docs/measured/gate.md)
Mask = npt.NDArray[np.bool_]
End = float | Floats
"""Smallest or largest value that a row may have: one number for all rows, or (N,) one of each."""
Ends = tuple[float, float]
"""Smallest and largest value."""


def few_groups(count: int, effective: float) -> str:
    """Say why so few groups give no bound, and what would help."""
    if effective > 0.99 * count:
        return f"{count_text(count, 'group')}, and bounds need {FEWEST_GROUPS}: draw more of them"
    counted = f"{count} groups of these sizes count as {effective:.1f} equal ones, and bounds need {FEWEST_GROUPS}"
    return f"{counted}: draw more of them, or fewer rows of the largest"


def average(values: npt.NDArray[Any], weights: Floats | None) -> float:
    """Return the weighted mean; nan where the weights add up to 0."""
    if weights is None:
        total = np.count_nonzero(values) if values.dtype == bool else float(values.sum())
        return total / len(values) if len(values) else math.nan
    total = float(weights.sum())
    if total <= 0:
        return math.nan
    values = counted(values, weights)
    # Rounding may carry the mean past the largest value: rows that are all correct would then FAIL a minimum of 1.
    return float(np.clip(weights @ values / total, values.min(), values.max()))


def counted(values: npt.NDArray[Any], weights: Floats) -> npt.NDArray[Any]:
    """Replace infinite values of rows without weight by 0, as 0 times infinity is no number; (N,)."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite | (weights > 0), values, 0.0)


@dataclass(frozen=True, eq=False)
class Constant(Statistic):
    """A number whose interval, or the reason why it has none, does not depend on the level."""

    number: float
    fixed: Interval

    @property
    def value(self) -> float:
        return self.number

    def interval(self, level: float) -> Interval:
        return self.fixed


def one_sided(level: float, low: float, high: float, how: str, **more: Any) -> Interval:
    """Make an interval of two bounds that hold at `level` each."""
    return Interval(low=low, high=high, level=1 - 2 * (1 - level), sided="each", how=how, **more)


@dataclass(frozen=True)
class WeightedMean:
    """A weighted mean over rows, with its standard error, skewness and bounds.

    Attributes:
        values: (n,).  weights: (n,) or None.  groups: (n,) or None.
        counts: whether weights are frequencies.
        condensed: whether rows are cells of a histogram, whose weights are numbers of rows.
    """

    values: npt.NDArray[Any]
    weights: Floats | None
    counts: bool
    groups: Ints | None
    condensed: bool = False

    @classmethod
    def of(cls, sample: Sample, values: npt.NDArray[Any], mask: Mask | None = None) -> WeightedMean:
        """Take weights and groups from a sample; `mask` chooses rows."""
        w = sample.weights
        values = values if w is None else counted(values, w)
        every = cls(values, w, sample.counts, sample.columns.groups, sample.columns.condensed > 0)
        return every if mask is None else every.at(mask)

    def at(self, rows: Mask | Ints) -> WeightedMean:
        """Return the mean over some of the rows."""
        weights = None if self.weights is None else self.weights[rows]
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, values=self.values[rows], weights=weights, groups=groups)

    @property
    def n(self) -> int:
        """Number of rows of the file."""
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
        names, member = group_places(self.groups)
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
    def largest_share(self) -> float:
        """The largest share of the total weight that one row (or group) has: what a row not drawn may have had."""
        return self.largest_contribution(1.0)

    def largest_contribution(self, cost: float | Floats, every: WeightedMean | None = None) -> float:
        """Return the most that one row may add to the mean: its share times its cost; of groups summed over the rows.

        Args:
            cost: how far above the mean a row that was not drawn may be; an array has one for each row of `every`.
            every: all rows of the file, where this mean is over some of them, for which `cost` is known too.
        """
        if not isinstance(cost, np.ndarray):
            if self.groups is not None:
                return float(self.shares.max()) * cost
            heaviest = 1.0 if self.weights is None or self.counts else float(self.weights.max())
            return heaviest / self.total * cost
        every = self if every is None else every
        if self.groups is not None:
            return self._dearest_group(cost, every)
        if every.weights is None:
            return float(cost.max()) / self.total
        cost = cost[every.weights > 0]
        return float((cost if self.counts else cost * every.weights[every.weights > 0]).max()) / self.total

    def _dearest_group(self, cost: Floats, every: WeightedMean) -> float:
        """Return the largest product of a group's share of these rows and the mean cost of its rows in the file."""
        assert self.groups is not None
        assert every.groups is not None
        names, member = group_places(every.groups)
        w = np.ones(len(cost)) if every.weights is None else every.weights
        size = np.bincount(member, w)
        mean = np.bincount(member, w * counted(cost, w)) / np.where(size > 0, size, 1.0)
        here, some = np.searchsorted(names, group_places(self.groups)[0]), self.shares > 0
        return float((self.shares[some] * mean[here][some]).max())

    @cached_property
    def value(self) -> float:
        return average(self.values, self.weights)

    @cached_property
    def _powers(self) -> tuple[float, float]:
        """Σ c² and Σ c³, where c is what a row (or group) adds to the deviation of the mean.

        For groups by the jackknife: without group g the mean is less by c_g = u_g / (1 - share_g), u_g the part of the
        group in Σ w (x - mean) / Σ w. Large groups pull the mean towards them, which sums of squares alone do not see.
        """
        if self.groups is not None:
            centred = self.values - self.value
            u = np.bincount(self._member[1], centred if self.weights is None else self.weights * centred)
            c: npt.NDArray[Any] = u / np.maximum(1 - self.shares, 1e-9) / self.total
            return float(c @ c), float(c**2 @ c)
        square = cube = 0.0
        for part in parts(len(self.values)):
            c = (self.values[part] - self.value) / self.total
            w = None if self.weights is None else self.weights[part]
            if w is not None and not self.counts:
                c = c * w
            times = c * c if w is None or not self.counts else c * c * w
            square += float(times.sum())
            cube += float(times @ c)
        return square, cube

    @cached_property
    def skew(self) -> float:
        """Σ c³ / Σ c²: the rate at which the variance of the mean grows with the mean; 0 where nothing varies."""
        square, cube = self._powers
        return cube / square if square > 0 else 0.0

    @cached_property
    def se(self) -> float:
        """Standard error of the weighted mean; of groups the root of the jackknife's variance, (G - 1) / G Σ c²."""
        if self.total <= 0:
            return math.nan
        if self.groups is not None:
            count = self._member[0]
            return math.nan if count < 2 else math.sqrt(self._powers[0] * (count - 1) / count)
        if self.effective < 1 + 1e-9:
            return math.nan
        return math.sqrt(self._powers[0] * self.effective / (self.effective - 1))

    @property
    def lacking(self) -> str:
        """Reason why there is no bound, or ""."""
        if self.groups is not None and self._member[0] < 2:
            return "one group has no spread"
        if not math.isfinite(self.se):
            return "one row has no spread"
        if self.groups is not None and self.units < FEWEST_GROUPS:
            return few_groups(self._member[0], self.units)
        return ""

    @property
    def binomial(self) -> bool:
        """Whether a share of these rows is binomial: independent rows of equal weight, or counts."""
        return self.groups is None and (self.weights is None or self.counts or float(np.ptp(self.weights)) == 0)

    @property
    def clustered(self) -> str:
        """Addition to `how` that says how groups were used; "" without groups."""
        return "" if self.groups is None else f", jackknife over groups ({self.units:.1f} effective)"

    def exact_bounds(self, alpha: float) -> Ends:
        """Return one-sided bounds of a `binomial` share, each at 1 - alpha (Clopper and Pearson)."""
        return clopper_pearson(self.value * self.effective, self.effective, alpha)

    def bounds(self, alpha: float, low: End, high: End, every: WeightedMean | None = None) -> Ends:
        """Return one-sided bounds of the mean, each at 1 - alpha, by `core.statistics.unseen_reach` with Student's t.

        Args:
            low, high: smallest and largest value of a row; arrays have one for each row of `every`, as in
                `largest_contribution`.
        """
        value, (below, above) = self.value, self.reaches(alpha, low, high, every)
        return max(value - below, min(float(np.min(low)), value)), min(value + above, max(float(np.max(high)), value))

    def reaches(self, alpha: float, low: End, high: End, every: WeightedMean | None = None) -> Ends:
        """Return how far below and above the mean its bounds lie, of rows with the ends of `bounds`."""
        value = self.value
        return self.bound_distances(
            alpha, self.largest_contribution(value - low, every), self.largest_contribution(high - value, every)
        )

    def bound_distances(self, alpha: float, down: float, up: float) -> tuple[float, float]:
        """Return how far below and above the mean its bounds lie; `down`, `up`: the most that one row moves it so."""
        t, variance = student_quantile(1 - alpha, self.units - 1), self.se**2
        below = unseen_reach(t, variance, max(-self.skew, 0.0), max(down, 0.0))
        return below, unseen_reach(t, variance, max(self.skew, 0.0), max(up, 0.0))

    def p_value(self, low: End, high: End, share: float = 1.0) -> float:
        """Return the two-sided p-value of `share` times the mean = 0: twice the alpha at which a bound is 0.

        Where alpha is above .03 it is a little smaller than that, as z² is used for -ln alpha.
        """
        distance = abs(self.value * share)
        if distance == 0:
            return 1.0
        sign = -1 if self.value > 0 else 1  # towards 0
        growth = max(sign * self.skew, 0.0)
        undrawn = max(self.largest_contribution(self.value - low if sign < 0 else high - self.value), 0.0)
        # the z at which the one and the other distance of `unseen_reach` are this distance
        z_drawn = distance / math.sqrt(self.se**2 + growth * distance)
        cube = self.se**3
        z_undrawn = math.cbrt(2 * distance**3 / (cube + math.sqrt(cube**2 + 4 * (distance * undrawn) ** 3)))
        return two_sided(min(z_drawn, z_undrawn), self.units - 1)


@dataclass(frozen=True, eq=False)
class MeanOf(Statistic):
    """The mean of a column; two models are compared in it by the differences of their rows.

    Attributes:
        values: (N,).  mask: the rows that the mean is over, or None for all.
        ends: smallest and largest value of a row: numbers, or (N,) for each row, also for those that the mask leaves
            out; a function of the sample where they are costly.
        share: whether it is a share of the rows, whose interval is exact (Clopper and Pearson) for independent rows.
        empty: reason why there is no value where the mask leaves no row.
    """

    sample: Sample
    values: npt.NDArray[Any]
    mask: Mask | None = None
    ends: tuple[End, End] | Callable[[Sample], tuple[End, End]] = (0.0, 1.0)
    share: bool = False
    empty: str = "no rows"

    @cached_property
    def rows(self) -> WeightedMean:
        return WeightedMean.of(self.sample, self.values, self.mask)

    @property
    def value(self) -> float:
        return self.rows.value

    @property
    def range(self) -> tuple[End, End]:
        """Smallest and largest value of a row."""
        return self.sample.memoized(self.ends) if callable(self.ends) else self.ends

    def interval(self, level: float) -> Interval:
        """Return a two-sided interval: the score form, or that of Clopper and Pearson for shares."""
        rows, tail = self.rows, (1 - level) / 2
        if rows.total <= 0:
            return Interval(reason=self.empty, n=rows.n)
        if self.share and rows.binomial:
            low, up = rows.exact_bounds(tail)
            how = "Clopper-Pearson interval"
            if round(rows.effective) != rows.n:
                how += f" at {rows.effective:.0f} effective rows"
            se = rows.se if math.isfinite(rows.se) else None
            return Interval(low=low, high=up, level=level, how=how, n=rows.n, se=se)
        if not math.isfinite(self.value) or rows.lacking:
            return Interval(reason=rows.lacking if math.isfinite(self.value) else IMPOSSIBLE, n=rows.n)
        least, most = self.range
        every = None if self.mask is None else WeightedMean.of(self.sample, self.values)
        low, up = rows.bounds(tail, least, most, every)
        detail: dict[str, Cell] = {} if rows.groups is None else {"effective_groups": round(rows.units, 1)}
        how = f"score form, t, unseen rows up to {np.max(most):.3g}{rows.clustered}"
        ends = {"low": low, "reason": BOUNDLESS} if math.isinf(up) else {"low": low, "high": up}
        return Interval(**ends, level=level, how=how, n=rows.n, se=rows.se, detail=detail)


def share_bounds(rows: WeightedMean, alpha: float) -> Ends | None:
    """Return one-sided bounds of a share, each at 1 - alpha; None where there are none.

    For rates of errors; metrics that are shares of rows go through `MeanOf`. Bounds are exact for independent rows of
    equal weight, else those of any mean: weights may depend on the outcome, which a binomial at the effective rows
    would ignore.
    """
    if rows.binomial:
        return rows.exact_bounds(alpha)
    return None if rows.lacking else rows.bounds(alpha, 0.0, 1.0)
