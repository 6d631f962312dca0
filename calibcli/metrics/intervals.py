"""Intervals of means and shares, and the form in which every metric's interval is asked for and given."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.metrics.sample import Of, Sample, average
from calibcli.predictions import Floats, Ints
from calibcli.result import Cell
from calibcli.spec import Choice

IMPOSSIBLE = "a label has probability 0 (--clip bounds it)"
Mask = npt.NDArray[np.bool_]


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


@dataclass(frozen=True)
class Ask:
    """A metric's value whose uncertainty is wanted at `level`."""

    sample: Sample
    choice: Choice
    value: float
    level: float
    seed: int

    @property
    def alpha(self) -> float:
        """Error probability of a one-sided bound; two of them make an interval of level 1 - 2 alpha."""
        return 1 - self.level

    @property
    def z(self) -> float:
        """Two-sided normal quantile."""
        return NormalDist().inv_cdf((1 + self.level) / 2)


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
        w, groups = sample.weights, sample.columns.groups
        if mask is not None:
            values, w = values[mask], None if w is None else w[mask]
            groups = None if groups is None else groups[mask]
        return cls(values, w, sample.counts, groups, sample.columns.condensed > 0)

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
        return self.total**2 / float(self.weights @ self.weights)

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the variance: independent units less one."""
        return (len(np.unique(self.groups)) if self.groups is not None else self.effective) - 1

    def mean(self) -> float:
        return average(self.values, self.weights)

    def se(self) -> float:
        """Standard error of the weighted mean; from group sums where rows belong together."""
        units = self.degrees + 1
        if units < 2 or self.total <= 0:
            return math.nan
        centred = self.values - self.mean()
        if self.groups is not None:
            share = 1.0 if self.weights is None else self.weights
            _, member = np.unique(self.groups, return_inverse=True)
            u: npt.NDArray[Any] = np.bincount(member, share * centred)
        elif self.weights is None:
            u = centred
        else:
            u = centred * (np.sqrt(self.weights) if self.counts else self.weights)
        return math.sqrt(float(u @ u) * units / (units - 1)) / self.total

    def design(self) -> float:
        """Effective number of independent rows for a share: Kish, and fewer where groups share their outcome."""
        if self.groups is None:
            return self.effective
        p, se = self.mean(), self.se()
        return max(1.0, p * (1 - p) / se**2) if se > 0 else float(self.degrees + 1)


def percent(level: float) -> str:
    """0.95 as `95 %`."""
    return f"{100 * level:.4g} %"


def wilson(p: float, n: float, z: float) -> tuple[float, float]:
    """Score interval of a share p of n rows (Wilson 1927)."""
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(p * (1 - p), 0) / n + z * z / (4 * n * n))
    return (0.0 if p <= 0 else max(0.0, centre - half)), (1.0 if p >= 1 else min(1.0, centre + half))


def student(level: float, degrees: float) -> float:
    """Two-sided quantile of Student's t; nan without a degree of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + level) / 2)) if degrees > 0 else math.nan


def share_interval(ask: Ask) -> Interval:
    """Wilson's interval for a metric that is a share of rows."""
    values, mask = ask.choice.traits["rows"](ask.sample, **ask.choice.options)
    rows = Rows.of(ask.sample, values, mask)
    if rows.total <= 0:
        return Interval(reason=ask.choice.traits.get("empty", "no rows"), n=rows.n)
    n = rows.design()
    low, high = wilson(ask.value, n, ask.z)
    how = "Wilson interval" + (f" at {n:.0f} effective rows" if round(n) != rows.n else "")
    return Interval(low=low, high=high, level=ask.level, how=how, n=rows.n, se=rows.se())


def mean_interval(ask: Ask) -> Interval:
    """Student's t for a mean over rows."""
    values, mask = ask.choice.traits["rows"](ask.sample, **ask.choice.options)
    rows = Rows.of(ask.sample, values, mask)
    if rows.total <= 0:
        return Interval(reason=ask.choice.traits.get("empty", "no rows"), n=rows.n)
    if not math.isfinite(ask.value):
        return Interval(reason=IMPOSSIBLE, n=rows.n)
    se = rows.se()
    if not math.isfinite(se):
        return Interval(reason=_why_no_se(rows), n=rows.n)
    half = student(ask.level, rows.degrees) * se
    low, high = ask.value - half, ask.value + half
    if ask.choice.traits.get("positive", True):
        low = max(low, 0.0)
    how = "Student's t" + (", clustered by group" if rows.groups is not None else "")
    return Interval(low=low, high=high, level=ask.level, how=how, n=rows.n, se=se)


def outcome_interval(ask: Ask) -> Interval:
    """A mean whose value depends on whether the row is right: rows that are wrong are few and weigh much.

    The mean is (1 - e) m_right + e m_wrong. Wilson's interval for the share e of wrong rows and Student's t for the two
    means are combined as Zou & Donner (2008): each end takes the distances of its three parts in quadrature. A plain t
    interval is too short on the side of errors that happened not to be drawn.
    """
    values, _ = ask.choice.traits["rows"](ask.sample, **ask.choice.options)
    all_rows = Rows.of(ask.sample, values)
    if not math.isfinite(ask.value):
        return Interval(reason=IMPOSSIBLE, n=all_rows.n)
    if all_rows.groups is not None:
        return mean_interval(ask)
    if all_rows.n < 2:
        return Interval(reason="one row has no spread", n=all_rows.n)
    w = all_rows.weights
    parts = [
        Rows(values.take(rows), None if w is None else w.take(rows), all_rows.counts, None)
        for rows in _right_and_wrong(ask.sample, ask.choice.options.get("of", "top"))
    ]
    effective = all_rows.effective
    wrong = parts[1].total / all_rows.total
    low_e, high_e = wilson(wrong, effective, ask.z)
    means: list[float] = []
    below = above = 0.0
    for part, share, if_none in zip(parts, (1 - wrong, wrong), _if_none(ask), strict=True):
        if part.effective < 2:
            if if_none is None:
                what = "wrong" if part is parts[1] else "right"
                return Interval(reason=f"fewer than 2 rows are {what}: their mean is unknown", n=all_rows.n)
            means.append(part.mean() if part.total > 0 else if_none)
            continue
        means.append(part.mean())
        half = share * student(ask.level, part.degrees) * part.se()
        below, above = below + half**2, above + half**2
    step = means[1] - means[0]
    down, up = (wrong - low_e) * step, (high_e - wrong) * step
    if step < 0:
        down, up = -up, -down
    low = ask.value - math.sqrt(below + down**2)
    high = ask.value + math.sqrt(above + up**2)
    if ask.choice.traits.get("positive", True):
        low = max(low, 0.0)
    how = "Wilson on the share of errors, t within right and wrong rows, combined (MOVER)"
    return Interval(low=low, high=high, level=ask.level, how=how, n=all_rows.n, se=all_rows.se())


def _right_and_wrong(sample: Sample, of: Of) -> tuple[Ints, Ints]:
    """The rows that are right, and those that are wrong (where the metric is of the event: those with and without)."""
    key = ("right", of)
    if key not in sample.memo:
        hit = sample.view(of).hit
        sample.memo[key] = np.flatnonzero(hit), np.flatnonzero(~hit)
    found: tuple[Ints, Ints] = sample.memo[key]
    return found


def _if_none(ask: Ask) -> tuple[float | None, float | None]:
    """What a right and a wrong row contribute where fewer than two were seen; None where that is not known."""
    bound = ask.choice.traits.get("if_none")
    return bound(ask.sample, **ask.choice.options) if bound else (None, None)


def _why_no_se(rows: Rows) -> str:
    return "one group has no spread" if rows.groups is not None else "one row has no spread"
