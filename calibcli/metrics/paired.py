"""Paired differences of two models on the same rows, with intervals; McNemar's exact test and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibcli.core.registries import Choice
from calibcli.core.result import Cell, Estimate, Table
from calibcli.core.scope import CHANGED, Scope
from calibcli.core.statistics import (
    SMALLEST_P,
    binomial_tail,
    clopper_pearson,
    inverted,
    normal_quantile,
    student_quantile,
    unseen_reach,
)
from calibcli.metrics import _paired_bins as paired_bins
from calibcli.metrics.binned import GapNorm, l1
from calibcli.metrics.discrimination import RankFunctional, skew, variance
from calibcli.metrics.intervals import BOUNDLESS, IMPOSSIBLE, End, Ends, MeanOf, WeightedMean
from calibcli.metrics.registry import METRICS, MetricTraits, Sample, Statistic, known
from calibcli.scores.predictions import Floats

NAMES = ("nll", "ece", "brier", "accuracy")
SAME = "no row changes"
PLAIN = "plain difference"
ROUNDING = 1e-12  # standard error of a difference of functionals of ranks that is rounding


class Paired(NamedTuple):
    """A difference with its interval, p-value, method and, where it has one, standard error.

    `plain` is the difference of the two numbers where that lies outside the interval, so that it is not `value`.
    """

    value: float
    low: float
    high: float
    p: float
    how: str
    se: float | None = None
    plain: float | None = None

    @property
    def bounded(self) -> bool:
        """Whether both ends are finite."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def estimate(self, level: float, **common: Any) -> Estimate:
        """Make the estimate that a result shows."""
        ends = {"low": self.low, "high": self.high, "level": level} if self.bounded else {"reason": BOUNDLESS}
        detail: dict[str, Cell] = {} if self.plain is None else {PLAIN: self.plain}
        return Estimate(**common, **ends, value=self.value, how=f"paired: {self.how}", detail=detail)


@dataclass(frozen=True, eq=False, kw_only=True)
class MeanDifference:
    """The mean of the differences by row.

    Attributes:
        mean: over the rows.
        low, high: range of the difference of a row: one for all rows, or (n,) for each.
        lost: how much the mean may be too high, and too low, because each model's temperature was fitted.
    """

    mean: WeightedMean
    low: End
    high: End
    lost: Ends = (0.0, 0.0)

    def bounds(self, alpha: float) -> Ends:
        """Return one-sided bounds, each at 1 - alpha; rows that were not drawn may be at the ends of the range."""
        low, high = self.mean.bounds(alpha, self.low, self.high)
        return low - self.lost[0], high + self.lost[1]

    def p_value(self) -> float:
        """Return the two-sided p-value of no difference."""
        value = self.mean.value
        certain = max(abs(value) - self.lost[0 if value > 0 else 1], 0.0)
        return self.mean.p_value(self.low, self.high, certain / abs(value) if value else 1.0)

    def paired(self, level: float) -> Paired:
        """Return the difference with its two-sided interval."""
        low, high = self.bounds((1 - level) / 2)
        how = f"mean of differences by row, score form{self.mean.clustered}"
        return Paired(self.mean.value, low, high, self.p_value(), how, self.mean.se)


def differences(before: Sample, after: Sample, *, level: float = 0.95, where: Scope = CHANGED) -> list[Estimate]:
    """Compare two samples of the same rows in `nll`, `ece`, `brier` and `accuracy`: `after` minus `before`."""
    estimates = []
    for name in known(NAMES, before.columns.top_only):
        choice = METRICS.choose(name)
        has = choice.traits
        common: dict[str, Any] = {"name": name, "unit": has.unit, "better": has.better, "n": before.n, **where.fields}
        change = SAME if _same(choice(before), choice(after)) else difference(before, after, choice, level)
        if isinstance(change, Paired):
            estimates.append(change.estimate(level, **common))
            continue
        value = float(choice(after)) - float(choice(before))
        estimates.append(Estimate(**common, value=value if math.isfinite(value) else None, reason=change or ""))
    return estimates


def worse(changes: Sequence[Estimate]) -> list[Estimate]:
    """Return the differences whose whole interval lies on the worse side of zero."""
    return [
        e
        for e in changes
        if e.low is not None and e.high is not None and (e.low > 0 if e.better == "lower" else e.high < 0)
    ]


def outside(changes: Sequence[Estimate]) -> list[str]:
    """Write a note on each difference that is not that of the two numbers, as that lies outside the interval."""
    return [
        f"{e.name}, {e.scope}: the numbers differ by {e.detail[PLAIN]:.4f}, outside of the interval, as chance makes "
        "|gaps| of a calibrated model too large; the nearer end stands for it"
        for e in changes
        if PLAIN in e.detail
    ]


def difference(
    before: Sample, after: Sample, choice: Choice[MetricTraits], level: float, ends: tuple[End, End] | None = None
) -> Paired | str | None:
    """Compare two samples of the same rows in a metric, `after` minus `before`; or return why there is no difference.

    Sums of absolute gaps over bins: differences of signed gaps. Functionals of ranks: differences of influences, which
    is DeLong's test. Accuracy of independent rows: McNemar. Other means over all rows: the score form, each row's
    difference within `ends` (None: what the ranges of the metric allow). Returns None for metrics of other kinds.
    """
    if before.few_carry:
        return before.few_carry
    statistics = choice(before), choice(after)
    if all(isinstance(one, GapNorm) and one.norm is l1 for one in statistics):
        return _binned(*statistics, level)
    if all(isinstance(one, RankFunctional) for one in statistics):
        return ranked(*statistics, level)
    change = _change(*statistics)
    if change is None:
        return None
    rows = WeightedMean.of(before, change)
    if choice.traits.rows == "zero_one" and rows.groups is None and (rows.weights is None or rows.counts):
        w = np.ones(rows.n) if rows.weights is None else rows.weights
        gained, lost = round(float(w @ (change > 0))), round(float(w @ (change < 0)))
        low, up, p = mcnemar(gained, lost, round(rows.total), level)
        value = (gained - lost) / round(rows.total)
        return Paired(value, low, up, p, "McNemar's exact test and the interval that it inverts to")
    if not np.isfinite(change).all():
        return IMPOSSIBLE
    if rows.lacking:
        return rows.lacking
    least, most = ends or _ends(before, after, choice)
    return MeanDifference(mean=rows, low=least, high=most).paired(level)


def _change(before: Statistic, after: Statistic) -> Floats | None:
    """Return (N,) differences by row; None where the metric is not a mean over all rows."""
    if not (isinstance(before, MeanOf) and isinstance(after, MeanOf)) or before.mask is not None:
        return None
    a, b = (np.asarray(one.values, np.float64) for one in (before, after))
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, b - a)


def _same(before: Statistic, after: Statistic) -> bool:
    """Return whether the metric is the same for every row."""
    if isinstance(before, GapNorm) and isinstance(after, GapNorm):
        a, b = before.view, after.view
        return np.array_equal(a.p, b.p) and np.array_equal(a.hit, b.hit)
    change = _change(before, after)
    return change is not None and not change.any()


def difference_range(before: tuple[Floats, Floats], after: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    """Return (n,) how far below and above 0 the difference of each row may be, from the ranges of both models.

    A regression in a few rows is easily not drawn, but the scores tell what it may cost: the worst label of the one
    model less the best of the other. The largest difference for the same label is not enough: where the models agree on
    every row it is 0, and a regression in .2 % of rows then passes half the time.
    """
    return after[0] - before[1], after[1] - before[0]


def _ends(before: Sample, after: Sample, choice: Choice[MetricTraits]) -> tuple[End, End]:
    if choice.traits.rows == "log_loss":
        a, b = ((-np.log(sample.columns.confidence), sample.columns.most) for sample in (before, after))
        return difference_range(a, b)
    (low_before, high_before), (low_after, high_after) = (choice(sample).range for sample in (before, after))
    return low_after - high_before, high_after - low_before


def _binned(before: GapNorm, after: GapNorm, level: float) -> Paired | str | None:
    view = before.view
    lacking = WeightedMean(view.p, view.weights, view.counts, view.groups).lacking
    if lacking:
        return lacking
    if len(before.table.weight) + len(after.table.weight) > paired_bins.WIDEST:
        return None
    same = _same(before, after)
    values = None if same else paired_bins.difference((view, after.view), (before.table, after.table), level)
    if values is None or isinstance(values, str):
        return values or SAME
    plain = after.value - before.value
    outside = None if values[1] <= plain <= values[2] else plain
    return Paired(*values, "joint spread of the gaps, centred whatever their signs", plain=outside)


def ranked(before: RankFunctional, after: RankFunctional, level: float) -> Paired | str:
    """Compare two functionals of ranks by the differences of the influences of rows or groups (DeLong et al. 1988).

    Each side has the length of `core.statistics.unseen_reach`: skewed differences are few rows that weigh much, and
    either model may rank rows wrong of a kind that was not drawn (`RankFunctional.missing`).
    """
    lacking = before.lacking or after.lacking
    if lacking:
        return lacking
    value, degrees = after.value - before.value, before.rows.units - 1
    change = after.influence - before.influence
    spread, third = variance(before.view, change), skew(before.view, change)
    if math.sqrt(spread) <= ROUNDING and before.influence.any():
        return SAME

    def reach(alpha: float, up: bool) -> float:
        t = student_quantile(1 - alpha / 2, degrees)
        missing = max(after.missing(alpha / 2)[up], before.missing(alpha / 2)[not up])
        return unseen_reach(t, spread, max(third if up else -third, 0.0), missing / -math.log(alpha / 2))

    low, high = value - reach(1 - level, False), value + reach(1 - level, True)
    p = inverted(lambda alpha: reach(alpha, value < 0) - abs(value), 1 - level)
    clustered = before.rows.clustered.replace("jackknife over", "sums over")
    how = f"differences of the influences of rows (DeLong), unseen rows{clustered}"
    return Paired(value, max(low, -1.0), min(high, 1.0), p, how, math.sqrt(spread))


def mcnemar(gained: int, lost: int, n: int, level: float) -> tuple[float, float, float]:
    """Return interval and p-value of (gained - lost) / n, where two models differ in gained + lost of n rows.

    p: exact, two-sided: each of the rows that differ is gained with chance 1/2 (McNemar 1947; binomial). The interval:
    Clopper and Pearson's for that chance θ, times the share δ of rows that differ, the difference being (2θ - 1) δ. As
    the sign of an end is that of its 2θ - 1, the interval leaves out 0 exactly if p < 1 - level. δ is taken at its
    bound on the far side, at the level z tan(φ/2), sin φ = 2θ - 1, which adds the two distances as their squares.
    """
    differ = gained + lost
    p = 1.0 if differ == 0 else min(1.0, max(2 * binomial_tail(max(gained, lost), differ, 0.5), SMALLEST_P))
    tail = (1 - level) / 2
    chance = clopper_pearson(gained, differ, tail) if differ else (0.0, 1.0)
    z = normal_quantile(1 - tail)

    def end(theta: float, upper: bool) -> float:
        s = 2 * theta - 1
        spent = 0.5 * math.erfc(z * math.tan(math.asin(s) / 2) * (1 if s > 0 else -1) / math.sqrt(2))
        bounds = clopper_pearson(differ, n, spent)
        return s * bounds[int((s > 0) == upper)]

    value = (gained - lost) / n
    return min(value, end(chance[0], False)), max(value, end(chance[1], True)), p


def shown(differences: Sequence[tuple[Estimate, float | None]], alpha: float, how: str = "") -> Table:
    """Tabulate which differences are significant after Holm's correction, and whether they are for the better.

    Args:
        differences: each with its p-value, or None.  how: name of the tests.
    """
    p_values = [p for _, p in differences if p is not None]
    adjusted, rows = iter(holm(p_values).tolist()), list[list[Any]]()
    for e, p in differences:
        corrected = None if p is None else next(adjusted)
        verdict = "unknown" if corrected is None else "real" if corrected <= alpha else "not shown"
        if verdict == "real" and e.better in ("lower", "higher") and e.value is not None:
            verdict = "better" if (e.value < 0) == (e.better == "lower") else "worse"
        rows.append([e.name, e.scope, p, corrected, verdict])
    title = f"Which differences are real ({how}Holm, {len(p_values)} comparisons, family-wise error {alpha:g})"
    heads = ["metric", "difference", "p", "p (Holm)", "verdict"]
    return Table(name="differences", title=title, columns=heads, rows=rows)


def holm(p_values: Any) -> Floats:
    """Adjust p-values by Holm's step-down method (1979): rejecting those <= α keeps the family-wise error at α."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
