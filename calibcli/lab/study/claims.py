"""The kinds of claims of a study, and their verdicts.

Seeds and rows are crossed: every arm has every seed, and all runs are measured on the same rows. The error of a mean
over seeds has two parts: the seeds that were drawn (variance of the paired differences over S) and the rows (the mean
covariance of two seeds in a bootstrap of the rows, since what is a seed's own is in the first part already). Both
count: a verdict is about the recipe and the population, not about these rows.

A verdict is decided in two places. `_decided` compares a p-value with `LEVEL`: of `less`, `tracks`, `preserved`,
`close_to`, `slope` and `depends`, of the y of a pair of `matched` (whose x are near by their intervals), of an arm that
other seeds chose (`_least`), and of all after Holm's correction. `SeedMean.sure` compares an interval with 0, at the
level of one of several tests: of `decreasing`, `crosses` and `interior_minimum` (by `_all_below` and `_each_below`) and
`alike`. `one_curve` compares p-values of several tests with `LEVEL` at each degree. A `check` is no test.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.core.options import Positive, Range
from calibcli.core.registries import Registry, Traits
from calibcli.core.statistics import normal_quantile, root, student_quantile, two_sided
from calibcli.lab.study import _curve, _given
from calibcli.metrics import paired
from calibcli.scores.predictions import Floats, Ints

Word = Literal["holds", "reversed", "undecided", "not comparable", "no verdict", "pass", "fail"]
JUDGED = ("holds", "reversed", "undecided")
LEVEL = 0.95  # of the intervals, and of the verdicts
DRAWS = 1000  # bootstrap draws of the rows: with 200 a half width is uncertain by 5 %
ONE_SIDED = 2 * LEVEL - 1  # level of the interval whose ends are bounds at `LEVEL` each
POWER = 0.8  # with which a difference is said to be shown
EXACT = 8  # arms whose orders are all compared (40,320 of them); of more arms `ORDERS` are drawn
ORDERS = 50_000
MOST_SEEDS = 10_000  # beyond which no number of seeds is suggested
NONE_APART = "the axis separates none"
FEWEST_MOMENTS = 4  # of the log in `tracks`: two changes have the rank correlation 1 or -1, whatever they are
FEWEST_CURVED, MOST_CURVED = 5, 5  # arms of a curve; its highest degree, as more would bend to any arms
UNTESTED = 1e-9  # share of a cause's weight that a curve leaves, below which its offset is not tested
FEWEST_DRAWN = 5  # arms of a `slope` over arms that were drawn: 4 have 24 orders, too few; of several claims one more
FEWEST_GIVEN = 20  # arms of `depends`, whose model has six columns or more
ASKEW = 25  # factor on the p-value of a claim whose seeds may lie askew, see `close_to`


@dataclass(frozen=True)
class MeasuredArm:
    """One metric of one arm.

    Attributes:
        values: (S,) one for each seed.
        draws: (S, B) each of them on each draw of the rows; None where the error over rows is not known.
    """

    values: Floats
    draws: Floats | None = None

    def __sub__(self, other: MeasuredArm) -> MeasuredArm:
        have_draws = self.draws is not None and other.draws is not None
        return MeasuredArm(self.values - other.values, self.draws - other.draws if have_draws else None)  # type: ignore[operator]

    def times(self, factor: float) -> MeasuredArm:
        """Multiply every number."""
        return MeasuredArm(factor * self.values, None if self.draws is None else factor * self.draws)


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds with both of its errors.

    The squares of the two half widths, Student's for the seeds and the normal one for the rows, add up: an interval is
    never shorter than for these rows alone, however few the seeds (Welch's and Satterthwaite's degrees of freedom are a
    guess from as few, and too many: 92 % of 3 seeds cover).

    Attributes:
        seeds, rows: variances of the mean that come from either.
        count: of the seeds, or one more than the degrees of freedom of their variance.
        correlation: whether it is a mean of correlations, which spread less the closer they are to 1.
    """

    value: float
    seeds: float
    rows: float
    count: float
    correlation: bool = False

    @classmethod
    def of(cls, arm: MeasuredArm) -> SeedMean:
        count = len(arm.values)
        seeds = float(arm.values.var(ddof=1)) / count if count > 1 else math.nan
        return cls(float(arm.values.mean()), seeds, 0.0 if arm.draws is None else _shared(arm.draws), count)

    @property
    def error(self) -> float:
        return math.sqrt(self.seeds + self.rows)

    def half(self, level: float = LEVEL, rows: bool = True) -> float:
        """Half the width of the interval at `level`; without `rows`, for these rows alone."""
        return math.sqrt(_square(self.seeds, self.count, self.rows if rows else 0.0, level))

    def interval(self, rows: bool = True) -> tuple[float, float]:
        """The interval at `LEVEL`; without `rows`, for these rows alone. Of one seed it is the value twice."""
        half = self.half(rows=rows) if self.count > 1 else 0.0
        return self.value - half, self.value + half

    def p(self, against: float = 0.0) -> float:
        """Two-sided p-value of the hypothesis that the mean is `against`: that of the interval that just reaches it.

        It is 1 where an error is not known: a draw of the rows may have none that a metric is about.
        """
        if math.isnan(self.error):
            return 1.0
        off = abs(self.value - against)
        if self.error == 0:
            return float(off == 0)
        if self.seeds == 0:
            return two_sided(off / self.error)
        largest = off / math.sqrt(self.seeds)  # Student's t of the seeds, the largest without rows
        if not self.rows or not largest:
            return two_sided(largest, self.count - 1)

        def beyond(t: float) -> float:
            normal = normal_quantile(two_sided(t, self.count - 1) / 2)
            return (t**2 * self.seeds + normal**2 * self.rows) / off**2 - 1

        return two_sided(root(beyond, 0.0, largest), self.count - 1)

    def sure(self, tests: int = 1) -> int:
        """Return the sign of the mean where the interval at `LEVEL` leaves out 0 (Bonferroni over `tests`), else 0."""
        half = self.half(1 - (1 - LEVEL) / tests)
        return int(math.copysign(1, self.value)) if abs(self.value) > half else 0  # 0 for NaN, too

    def shown(self, claims: int = 1) -> float:
        """Return the smallest difference that these seeds and rows show with 80 % power at the level after Holm.

        It is half the width of the interval at the level 1 - α / `claims`, where Holm's correction begins, and half of
        that at 2 x `POWER` - 1: the sum of the two quantiles times the error (Bloom 1995), for seeds and rows apart.
        Correlations spread in proportion to 1 - r² about their mean r; on the scale of Fisher's z (1915) they spread
        alike everywhere, so the sum is taken there.
        """
        shown = self.half(1 - (1 - LEVEL) / max(claims, 1)) + self.half(2 * POWER - 1)
        return math.tanh(shown / (1 - self.value**2)) if self.correlation and abs(self.value) < 1 else shown

    def needed(self) -> tuple[int | None, float | None]:
        """Return the number of seeds that would decide the sign at these values, or else how many times the rows.

        With infinitely many seeds the error is that of the rows: where that alone is too large, more rows are needed.
        """
        square, most = self.value**2, self.rows * student_quantile((1 + LEVEL) / 2, math.inf) ** 2
        if square <= most:
            return None, most / square if square else None

        def decides(count: int) -> bool:
            return _square(self.seeds * self.count / count, count, self.rows, LEVEL) < square

        count = 2 + bisect.bisect_left(range(2, MOST_SEEDS + 1), True, key=decides)
        return (count if count <= MOST_SEEDS else None), None


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim.

    Attributes:
        p: p-value of the hypothesis that must be refuted for the word; corrected for the number of claims by `holm`.
        difference: the one that decides, or the worst of several.
        seeds_needed, rows_times: the number of seeds, or the factor on the rows, that would decide.
        least_p: the smallest p-value that its test can give, one in the number of orders that it compares.
    """

    word: Word
    p: float = 1.0
    difference: SeedMean | None = None
    seeds_needed: int | None = None
    rows_times: float | None = None
    why: str = ""
    least_p: float = 0.0


def less(a: MeasuredArm, b: MeasuredArm) -> ClaimVerdict:
    """Judge the claim a < b."""
    return _signed(SeedMean.of(a - b))


def both(first: ClaimVerdict, second: ClaimVerdict) -> ClaimVerdict:
    """Combine the verdicts of two estimators on the same claim: undecided where they disagree."""
    if first.word == second.word:
        return replace(first, p=max(first.p, second.p))
    return replace(first, word="undecided", p=max(first.p, second.p), why="two estimators of the error disagree")


def preserved(a: MeasuredArm, b: MeasuredArm, margin: float | str) -> ClaimVerdict:
    """Judge the claim |a - b| < margin by two one-sided tests (Schuirmann 1987); a margin of "20%" is that share of b.

    It is reversed where the difference is significantly beyond the margin. Where it is within, and surely not 0, the
    verdict says so.
    """
    verdict = _within(a - b, margin, b)
    mean, base = SeedMean.of(a - b), SeedMean.of(b)
    if verdict.word == "holds" and mean.sure():
        share = abs(mean.value / base.value) if base.sure() else 0.0  # of what may be 0 a share says nothing
        by = f"{share:.0%}" if share >= 0.01 else f"{abs(mean.value):.2g}"
        return replace(verdict, why=f"{'larger' if mean.value > 0 else 'smaller'}, by {by}")
    return verdict


def _within(a: MeasuredArm, margin: float | str, base: MeasuredArm) -> ClaimVerdict:
    """Judge whether a difference is within a margin, which may be a share of the base arm with an error of its own."""
    share, fixed = _parts(margin)
    limit = base.times(math.copysign(share, base.values.mean()))
    difference, above, below = (SeedMean.of(one) for one in (a, a - limit, a - limit.times(-1)))
    tails = [_one_sided(above, fixed, -1), _one_sided(below, -fixed, 1)]
    nearest = above.p(fixed) if above.value > fixed else below.p(-fixed) if below.value < -fixed else 1.0
    within, beyond = ClaimVerdict("holds", max(tails), difference), ClaimVerdict("reversed", nearest, difference)
    said = margin if share else f"{fixed:g}"
    return _decided(within, beyond, why=f"the difference is not shown to be within {said}")


def _parts(margin: float | str) -> tuple[float, float]:
    """Return a margin as a share of something, such as "20%", and as a number of its own; one of them is 0."""
    return (float(margin.removesuffix("%")) / 100, 0.0) if isinstance(margin, str) else (0.0, margin)


def decreasing(levels: Sequence[MeasuredArm]) -> ClaimVerdict:
    """Judge the claim that every step falls (intersection-union test, which needs no correction).

    It is reversed where any step rises significantly.
    """
    verdict = _all_below([SeedMean.of(after - before) for before, after in itertools.pairwise(levels)])
    return verdict if verdict.word != "undecided" else replace(verdict, why="not every step is shown to fall")


def decreasing_along(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm]) -> ClaimVerdict:
    """Judge the claim that y falls with x, which is measured: from group to group of arms.

    The first group are the arms whose x is not surely above the least (Bonferroni over the arms); the next begins with
    the least of the others. It holds where every arm is surely below every arm of the group before, and is reversed
    where all arms of a group are surely above all of the one before.
    """
    left, groups = list(range(len(x))), []
    while left:
        least = _extreme([x[i] for i in left], 1)
        groups.append([i for i in left if SeedMean.of(x[i] - least).sure(len(x) - 1) < 1] or left)
        left = [i for i in left if i not in groups[-1]]
    if len(groups) == 1:
        return ClaimVerdict("no verdict", why=NONE_APART)
    steps = itertools.pairwise(groups)
    return _each_below([[SeedMean.of(y[b] - y[a]) for a in before for b in after] for before, after in steps])


def crosses(first: MeasuredArm, last: MeasuredArm) -> ClaimVerdict:
    """Judge the claim that a difference is below 0 at first and above it at last.

    It is reversed where either is significantly the other way round.
    """
    turned = MeasuredArm(-last.values, None if last.draws is None else -last.draws)
    return _all_below([SeedMean.of(first), SeedMean.of(turned)])


def interior_minimum(levels: Sequence[MeasuredArm]) -> ClaimVerdict:
    """Judge the claim that the least is at neither end.

    The level that is compared with the ends is chosen for each seed on the other seeds.
    """
    if len(levels) < 3:
        return ClaimVerdict("no verdict", why="an interior needs three levels")
    inside = _extreme(levels[1:-1], 1)
    return _least(_all_below([SeedMean.of(inside - levels[0]), SeedMean.of(inside - levels[-1])]), len(levels) - 2)


def _least(verdict: ClaimVerdict, among: int) -> ClaimVerdict:
    """Correct a verdict on the least of several arms: other seeds choose it, but on the rows that judge it.

    The one-sided p, half of this one, is multiplied by the number of arms (Bonferroni).
    """
    if verdict.word != "holds":
        return verdict
    return _decided(replace(verdict, p=max(1.0, among / 2) * verdict.p))


def interior_minimum_along(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm]) -> ClaimVerdict:
    """Judge the claim that y is least in between on an axis x that is measured, too.

    The ends of the axis are chosen for each seed on the other seeds, the least and the largest x. An arm whose x is not
    surely beyond an end belongs to it; the others lie in between, and of these the one with the least y is chosen for
    each seed on the other seeds. It holds where that y is surely below every arm of both ends, and is reversed where it
    is surely above every arm of one of them.
    """
    low, high = (_extreme(x, side) for side in (1, -1))
    ends = [
        [i for i, one in enumerate(x) if SeedMean.of(one - low).sure() < 1],
        [i for i, one in enumerate(x) if SeedMean.of(high - one).sure() < 1],
    ]
    between = [i for i in range(len(x)) if i not in ends[0] + ends[1]]
    if not between:
        return ClaimVerdict("no verdict", why=NONE_APART)
    inside = _extreme([y[i] for i in between], 1)
    verdict = _each_below([[SeedMean.of(inside - y[i]) for i in end] for end in ends])
    return _least(verdict, len(between))


def slope(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm], sign: int, drawn: bool = False) -> ClaimVerdict:
    """Judge the claim that y rises (`sign` 1) or falls (-1) with x over arms that were drawn at random.

    The unit is the arm: the sum of products of x and y over arms is compared with that of every other assignment of the
    y to the arms (Fisher 1935; of more than `EXACT` arms with `ORDERS` random ones, Phipson and Smyth 2010). x is of
    every other seed and y of those between, since what a seed does to both of one run is no association of arms.

    Levels of a ladder are no draws: two curves that have nothing to do with each other are nearly always associated
    along it. Of arms that nobody drew the slope of least squares is described, and nothing is judged.
    """
    u, v = (np.stack([one.values for one in side]) for side in (x, y))
    of_x, of_y = _stacked(x), _stacked(y)
    slopes = MeasuredArm(_slopes(u, v), None if of_x is None or of_y is None else _slopes(of_x, of_y))
    if not drawn:
        return ClaimVerdict(
            "no verdict", difference=SeedMean.of(slopes), why="a slope of these arms, which nobody drew"
        )
    if len(x) < FEWEST_DRAWN:
        return ClaimVerdict("no verdict", why=f"a slope needs {FEWEST_DRAWN} arms that were drawn")
    if not (np.isfinite(u).all() and np.isfinite(v).all()):
        return ClaimVerdict("undecided", why="a run lacks one of these numbers")
    mean = SeedMean.of(slopes.times(-sign))
    rises, p = _permuted(u, v)
    verdict = ClaimVerdict("holds" if rises == sign else "reversed", p, mean, least_p=1 / len(_orders(len(x))))
    return _decided(verdict, why=f"{len(x)} arms do not show it")


@functools.lru_cache(maxsize=2)
def _orders(arms: int) -> Ints:
    """Return all orders of the arms, or `ORDERS` random ones; the first is their own."""
    if arms <= EXACT:
        return np.array(list(itertools.permutations(range(arms))))
    orders = np.random.default_rng(0).random((ORDERS, arms)).argsort(axis=1)
    orders[0] = np.arange(arms)
    return orders


def _permuted(x: Floats, y: Floats) -> tuple[int, float]:
    """Return the sign of the association of x and y (A, S) over arms, and its two-sided p-value by permutation."""
    arms, (u, v) = len(x), (side.mean(axis=1) for side in (x[:, ::2], y[:, 1::2]))
    products = np.outer(u - u.mean(), v - v.mean())
    sums = products[np.arange(arms), _orders(arms)].sum(axis=1)
    return int(np.sign(sums[0])), float((np.abs(sums) >= abs(sums[0]) * (1 - 1e-9)).mean())


def depends(numbers: Sequence[Sequence[MeasuredArm]], on: str) -> ClaimVerdict:
    """Judge the claim that the last number of arms depends on the last but one, `on`, given the first and the others.

    See `_given.GivenNumbers`. It is never reversed: that nothing depends on a number is not shown.
    """
    values = np.stack([[arm.values for arm in arms] for arms in numbers])  # (P, A, S)
    draws = [_stacked(one) for one in numbers]
    if not all(np.isfinite(one).all() for one in (values, *draws) if one is not None):
        return ClaimVerdict("undecided", why="a run, or a draw of its rows, lacks one of these numbers")
    arms = values.shape[1]
    if arms < FEWEST_GIVEN:
        return ClaimVerdict("no verdict", why=f"this needs {FEWEST_GIVEN} arms that were drawn")
    if values.shape[2] < 2:
        return ClaimVerdict("no verdict", why="one seed does not tell the errors of these numbers")
    given = _given.GivenNumbers.of(values, draws)
    p, slope, correlation = given.depends(_orders(arms))
    logged = "ln " * given.logs[-2]
    why = f"{slope:+.2g} for a unit of {logged}{on}, partial correlation {correlation:+.2f}"
    return _decided(ClaimVerdict("holds", p, why=why), why=f"{why}; {arms} arms do not show it")


Cause = tuple[MeasuredArm, MeasuredArm]
"""What a cause does to x and to y, see `contrast`."""


def contrast(levels: Sequence[MeasuredArm], base: int) -> MeasuredArm:
    """Return what a step of a dose does: the slope of least squares in the rank of the dose, in which `base` has 0."""
    rank = np.arange(len(levels)) - base
    weights = (rank - rank.mean()) / ((rank - rank.mean()) ** 2).sum()
    return _combined(levels, weights)


def alike(causes: Mapping[str, Cause], factor: float = 2.0) -> ClaimVerdict:
    """Judge the claim that y changes alike with x, whatever causes the change of x. Ours.

    The slopes Y / X of two causes are equal if and only if Ȳ_j X̄_k - Ȳ_k X̄_j = 0, which divides by no X that may be 0:
    a cause that does not move x stays in the test. The jackknife's pseudo-values over seeds (Tukey 1958), on every draw
    of the rows, have both errors. It holds where every X is surely off 0 and all slopes are surely within `factor` of
    each other (intersection-union), and is else reversed where a pair surely differs (Bonferroni over pairs).
    """
    of_x = {name: SeedMean.of(x) for name, (x, _) in causes.items()}
    still = [name for name, mean in of_x.items() if not mean.sure()]
    if not still:
        side = np.sign(sum(mean.sure() * float(causes[name][1].values.mean()) for name, mean in of_x.items()))
        steeper = [
            SeedMean.of(_crossed(causes[j], causes[k], factor).times(side * of_x[j].sure() * of_x[k].sure()))
            for j, k in itertools.permutations(causes, 2)
        ]
        if all(mean.sure() < 0 for mean in steeper):
            return ClaimVerdict("holds", max(mean.p() for mean in (*steeper, *of_x.values())))
    pairs = {(j, k): SeedMean.of(_crossed(causes[j], causes[k], 1.0)) for j, k in itertools.combinations(causes, 2)}
    differing = {pair: len(pairs) * mean.p() for pair, mean in pairs.items() if mean.sure(len(pairs))}
    if differing:
        j, k = min(differing, key=lambda pair: differing[pair])
        why = f"the slopes of {j} and {k} differ; {len(differing)} of {len(pairs)} pairs do"
        return ClaimVerdict("reversed", differing[j, k], why=why)
    unknown = f"{still[0]} is not shown to move it, and" if still else ""
    return ClaimVerdict("undecided", why=f"{unknown} no two slopes are shown to differ".strip())


def one_curve(
    x: Sequence[MeasuredArm],
    y: Sequence[MeasuredArm],
    causes: Mapping[str, Sequence[int]],
    margin: float | str = "20%",
    miss: float = 0.0,
) -> ClaimVerdict:
    """Judge the claim that a polynomial of ln x passes through all arms, whatever caused their x. Ours.

    It may have any degree up to `MOST_CURVED`, or fewer where arms are few. The offset of a cause is by how much its
    arms, marked by d, lie off a curve of that degree that has the same shape for all: d'My / d'Md, see `_curve`. It is
    reversed where at every degree the offsets are surely not all 0; its p is the largest of all degrees, and the cause
    that is named has there the largest offset for its error. It holds where at the first degree that is not
    refuted all offsets are surely within the margin, a number or a share of the range of y ("20%").

    Args:
        causes: indices of the arms of each cause; a base arm, if there is one, has none.
        miss: by how many standard errors (SE) of its y, beside those of the others, the curve may miss each arm. Misses
            make an offset of Σ |c| SE at most, with c the weights of its sum. The claim is then reversed where an
            offset is surely larger, tested for each cause by itself (Bonferroni): the directions are not known.
    """
    most = min(MOST_CURVED, (len(x) - 1) // 2 - 1)
    if most < 1:
        return ClaimVerdict("no verdict", why=f"a curve needs {FEWEST_CURVED} arms")
    of_x, of_y = (np.stack([one.values for one in side]) for side in (x, y))
    if not (np.isfinite(of_x).all() and np.isfinite(of_y).all()):
        return ClaimVerdict("undecided", why="a run lacks one of these numbers")
    if of_x.mean(axis=1).min() <= 0 or not np.ptp(of_x.mean(axis=1)):
        return ClaimVerdict("no verdict", why="a curve of ln x needs an x above 0 that differs between arms")
    points = _curve.Points.of(of_x, of_y, _stacked([*x, *y]))
    if not (np.isfinite(points.rows).all() and points.errors[:2].any(axis=0).all()):
        return ClaimVerdict("undecided", why="the error of an arm is not known")
    worst, se = ClaimVerdict("reversed", 0.0), np.sqrt(points.errors[1])
    for degree in range(1, most + 1):
        curve, weights = points.curve(degree), {}
        for cause, arms in causes.items():
            marked = curve.leaves @ np.isin(np.arange(len(x)), arms)
            if marked[[*arms]].sum() > UNTESTED * (1 / curve.v[[*arms]]).sum():
                weights[cause] = marked / marked[[*arms]].sum()
        offsets = {cause: SeedMean(*points.combined(-curve.slope * c, c)) for cause, c in weights.items()}
        by_misses = {cause: miss * float(np.abs(c) @ se) for cause, c in weights.items()}
        if miss:
            p = min((len(offsets) * _beyond(one, by_misses[cause]) for cause, one in offsets.items()), default=1.0)
        else:
            p = points.together(curve.slope, np.stack([*weights.values()])) if weights else 1.0
        if p >= worst.p and weights:
            off = max(offsets, key=lambda cause: (abs(offsets[cause].value) - by_misses[cause]) / offsets[cause].error)
            by = f"{offsets[off].value:+.2g} ± {offsets[off].half():.2g}"
            misses = f", more than the {by_misses[off]:.2g} that misses of {miss:g} SE make" if miss else ""
            why = f"{off} is off by {by}{misses}, also from the nearest curve, of degree {degree}"
            worst = ClaimVerdict("reversed", p, offsets[off], why=why)
        if p >= 1 - LEVEL:
            break
    else:
        return worst
    share, fixed = _parts(margin)
    span = np.zeros(len(x))
    span[[of_y.mean(axis=1).argmax(), of_y.mean(axis=1).argmin()]] = share, -share
    beyond = dict.fromkeys(causes, 1.0)
    for cause, c in weights.items():
        above, below = (SeedMean(*points.combined(-curve.slope * c, c - side * span)) for side in (1, -1))
        beyond[cause] = max(_one_sided(above, fixed, -1), _one_sided(below, -fixed, 1))
    cause = max(beyond, key=lambda one: beyond[one])
    fits = f"a curve of degree {degree} is not refuted"
    verdict = ClaimVerdict("holds", beyond[cause], offsets.get(cause), why=f"{fits}; {cause} is furthest off")
    return _decided(verdict, why=f"{fits}, and {cause} is not shown to be within {margin} of it")


def tracks(x: Sequence[MeasuredArm], y: Sequence[MeasuredArm], own: bool = False) -> ClaimVerdict:
    """Judge the claim that y goes up and down with x along training: both of one arm, at each of M moments. Ours.

    The unit is the run: its number is Spearman's rank correlation of the M - 1 changes of y with those of x, and it
    holds where the mean of all runs is surely above 0. All runs go through the same phases, which alone make
    correlations. With `own` it therefore holds where the changes of y follow those of x in the same run more closely
    than those of other runs: the mean is compared with that of every other assignment of the x to the y (as `slope`),
    and what is shown is by how much it is above the mean of all pairs of different runs.
    """
    if len(x) < FEWEST_MOMENTS:
        return ClaimVerdict("no verdict", why=f"it takes {FEWEST_MOMENTS} moments of the log")
    of_x, of_y = (np.diff(np.stack([one.values for one in side]), axis=0).T for side in (x, y))  # (S, M - 1)
    if not (np.isfinite(of_x).all() and np.isfinite(of_y).all()):
        return ClaimVerdict("undecided", why="a run lacks one of these numbers")
    pairs = _ranked(of_y) @ _ranked(of_x).T  # (S, S): of each run's y with each run's x
    alone, count = pairs.diagonal(), len(pairs)
    if not own:
        mean = replace(SeedMean.of(MeasuredArm(alone)), correlation=True)
        return _decided(ClaimVerdict("holds" if mean.value > 0 else "reversed", mean.p(), mean))
    if count < FEWEST_DRAWN:
        return ClaimVerdict("no verdict", why=f"telling runs apart takes {FEWEST_DRAWN} seeds")
    others = (pairs.sum(axis=0) + pairs.sum(axis=1) - 2 * alone) / (2 * (count - 1))
    mean = replace(SeedMean.of(MeasuredArm(alone - others)), correlation=True)
    sums = pairs[np.arange(count), _orders(count)].sum(axis=1)
    off = np.abs(sums - pairs.mean() * count)
    p = float((off >= off[0] * (1 - 1e-9)).mean())
    why = f"{count} seeds do not tell a run's own from that of others"
    verdict = ClaimVerdict("holds" if mean.value > 0 else "reversed", p, mean, least_p=1 / len(_orders(count)))
    return _decided(verdict, why=why)


def _ranked(values: Floats) -> Floats:
    """Return the ranks of each row (S, N), centred and of length 1; equal values share their mean rank."""
    less, equal = (f(values[:, :, None], values[:, None, :]).sum(axis=2) for f in (np.greater, np.equal))  # (S, N, N)
    off = less + equal / 2 - values.shape[1] / 2
    return np.asarray(off / np.maximum(np.linalg.norm(off, axis=1, keepdims=True), 1e-300))


def _crossed(j: Cause, k: Cause, factor: float) -> MeasuredArm:
    """Return the pseudo-values of Ȳ_j X̄_k - factor Ȳ_k X̄_j."""

    def pseudo(x_j: Floats, y_j: Floats, x_k: Floats, y_k: Floats) -> Floats:
        def difference(means: Sequence[Floats]) -> Floats:
            return means[1] * means[2] - factor * means[3] * means[0]

        parts, count = (x_j, y_j, x_k, y_k), len(x_j)
        whole = difference([one.mean(axis=0) for one in parts])
        without = difference([(one.sum(axis=0) - one) / (count - 1) for one in parts])
        return count * whole - (count - 1) * without

    draws = [one.draws for one in (*j, *k) if one.draws is not None]
    return MeasuredArm(pseudo(*(one.values for one in (*j, *k))), pseudo(*draws) if len(draws) == 4 else None)


def matched(
    base: MeasuredArm,
    pairs: Mapping[str, Cause],
    within: float = 0.15,
    margin: float | str = 0.005,
    base_y: MeasuredArm | None = None,
) -> ClaimVerdict:
    """Judge the claim that arms with the same x have the same y, whatever caused x.

    It is about the pairs whose x surely differ by less than the share `within` of the base arm's x. As `preserved`, it
    holds where the y of all of them are surely within the margin. It is reversed where those of a pair surely are not
    while its x are within that share (Bonferroni over all pairs whose x may be). A margin of 0 would not do: a y that
    follows x alone differs by what is left of x.

    Args:
        base: x of the base arm.  pairs: the differences of x and of y, by the names of the two arms.  base_y: y of
            the base arm, of which a margin of "20%" is a share.
    """
    reach = base.times(within)
    near: dict[str, tuple[tuple[SeedMean, SeedMean], ClaimVerdict]] = {}
    possible = 0
    for name, (x, y) in pairs.items():
        above, below = ends = SeedMean.of(x - reach), SeedMean.of(x - reach.times(-1))
        possible += above.sure() < 1 and below.sure() > -1  # they are not surely further apart
        if above.value < -above.half(ONE_SIDED) and below.value > below.half(ONE_SIDED):
            near[name] = ends, _within(y, margin, base_y or y)
    if not near:
        return ClaimVerdict("no verdict", why=f"no pair is shown to be within {within:.0%}")
    beyond: dict[str, float] = {}
    for name, ((above, below), of_y) in near.items():
        if of_y.word == "reversed":
            p = possible * max(_one_sided(above, 0, -1), _one_sided(below, 0, 1), of_y.p)
            beyond |= {name: p} if _decided(replace(of_y, p=p)).word == "reversed" else {}
    if beyond:
        first = min(beyond, key=lambda name: beyond[name])
        why = f"{first} differ; {len(beyond)} of {len(near)} pairs"
        return ClaimVerdict("reversed", beyond[first], near[first][1].difference, why=why)
    verdicts = [verdict for _, verdict in near.values()]
    worst = max((one.difference for one in verdicts if one.difference), key=lambda d: abs(d.value))
    if all(one.word == "holds" for one in verdicts):
        return ClaimVerdict("holds", max(one.p for one in verdicts), worst, why=f"{len(near)} pairs")
    why = f"not all of {len(near)} pairs are shown to be within {margin}"
    return ClaimVerdict("undecided", 1.0, worst, why=why)


def close_to(a: MeasuredArm, low: float, high: float) -> ClaimVerdict:
    """Judge the claim that the mean lies in [low, high]; reversed where it significantly does not.

    This is no difference of two arms: its seeds may have a skewed distribution, as squares of normal numbers have (a
    NLL around its least). A nominal interval of 95 % misses the mean of three to ten of those in 18 % of cases;
    therefore the p-value is multiplied by `ASKEW`.
    """
    mean = SeedMean.of(a)
    p = max(min(1.0, ASKEW * mean.p(end)) for end in (low, high))
    return _decided(ClaimVerdict("holds" if low < mean.value < high else "reversed", p, mean))


def check(a: MeasuredArm, b: MeasuredArm, side: str = "same", within: float = 1e-6) -> ClaimVerdict:
    """Judge whether a is the same as b in every seed but for rounding, or on one side of it: pass or fail."""
    off = (a - b).values
    reach = within * np.abs(b.values)
    kept = {"same": np.abs(off) <= reach, "above": off > reach, "below": off < -reach}[side]
    seeds = f"{int(kept.sum())} of {len(kept)} seeds"
    why = f"{seeds}; furthest apart by {np.abs(off).max():.2g}" if side == "same" else seeds
    return ClaimVerdict("pass" if kept.all() else "fail", why=why)


def count(verdicts: Mapping[str, ClaimVerdict]) -> int:
    """Return how many verdicts share the level of a study."""
    return sum(verdict.word in JUDGED for verdict in verdicts.values())


def holm(verdicts: Mapping[str, ClaimVerdict]) -> dict[str, ClaimVerdict]:
    """Correct the p-values of a study's verdicts for their number (Holm 1979)."""
    judged = [key for key, v in verdicts.items() if v.word in JUDGED]
    decisive = [verdicts[key].word != "undecided" for key in judged]
    of_all = paired.holm([verdicts[key].p for key in judged]).tolist()
    # For the decided ones, an undecided claim counts as the last, even if its own p-value is small and something else
    # is in the way, such as two estimators that disagree: it must not make their correction milder.
    last = paired.holm([verdicts[key].p if decided else 1.0 for key, decided in zip(judged, decisive, strict=True)])
    kept = dict(verdicts)
    for key, decided, p, own in zip(judged, decisive, last.tolist(), of_all, strict=True):
        kept[key] = replace(verdicts[key], p=p if decided else own)
        if decided:
            kept[key] = _decided(kept[key], why=f"not after correction for {len(judged)} claims")
    return kept


def _decided(*verdicts: ClaimVerdict, why: str = "") -> ClaimVerdict:
    """Return the first verdict whose hypothesis is refuted at `LEVEL`; else the first of all, undecided."""
    refuted = [verdict for verdict in verdicts if verdict.p < 1 - LEVEL]
    return refuted[0] if refuted else replace(verdicts[0], word="undecided", why=why)


def _signed(mean: SeedMean) -> ClaimVerdict:
    verdict = _decided(ClaimVerdict("holds" if mean.value < 0 else "reversed", mean.p(), mean))
    return verdict if verdict.word != "undecided" else ClaimVerdict("undecided", verdict.p, mean, *mean.needed())


def _all_below(means: Sequence[SeedMean]) -> ClaimVerdict:
    """Judge the claim that all are below 0 (intersection-union); reversed where any is significantly above."""
    worst = max(means, key=lambda one: one.value / one.error if one.error else one.value)
    if all(one.sure() < 0 for one in means):
        return ClaimVerdict("holds", max(one.p() for one in means), worst)
    above = [one for one in means if one.sure(len(means)) > 0]
    if above:
        worst = min(above, key=lambda one: one.p())
        return ClaimVerdict("reversed", len(means) * worst.p(), worst)
    return ClaimVerdict("undecided", 1.0, worst, *(worst.needed() if worst.value < 0 else (None, None)))


def _each_below(sides: Sequence[Sequence[SeedMean]]) -> ClaimVerdict:
    """Judge the claim that all are below 0; reversed where all of one side are surely above (Bonferroni over sides)."""
    verdict = _all_below([mean for side in sides for mean in side])
    if verdict.word == "holds":
        return verdict
    above = [max(side, key=lambda one: one.p()) for side in sides if all(one.sure(len(sides)) > 0 for one in side)]
    if above:
        worst = min(above, key=lambda one: one.p())
        return ClaimVerdict("reversed", len(sides) * worst.p(), worst)
    return ClaimVerdict("undecided", 1.0, verdict.difference, verdict.seeds_needed, verdict.rows_times)


def _one_sided(mean: SeedMean, limit: float, side: int) -> float:
    """Compute p of the hypothesis that the mean is not beyond `limit` towards `side` (1: above)."""
    half = mean.p(limit) / 2
    return half if side * (mean.value - limit) > 0 else 1 - half


def _beyond(mean: SeedMean, limit: float) -> float:
    """Compute p of the hypothesis that the mean is between -`limit` and `limit`; at 0 it is the two-sided one."""
    size = replace(mean, value=abs(mean.value))
    return _one_sided(size, limit, 1) + _one_sided(size, -limit, 1)


def _square(seeds: float, count: float, rows: float, level: float) -> float:
    """Compute the square of half the width of an interval."""
    student, normal = (student_quantile((1 + level) / 2, degrees) for degrees in (count - 1, math.inf))
    return student**2 * seeds + normal**2 * rows


def _shared(draws: Floats) -> float:
    """Compute the mean covariance of two different seeds from (S, B) draws of the rows; for one seed its variance."""
    count, of_mean = len(draws), float(draws.mean(axis=0).var())
    if count == 1:
        return of_mean
    return float(np.maximum(0.0, (count * of_mean - float(draws.var(axis=1).mean())) / (count - 1)))  # NaN stays


def _stacked(levels: Sequence[MeasuredArm]) -> Floats | None:
    """Stack the draws of all arms, (A, S, B), where all have them."""
    draws = [one.draws for one in levels if one.draws is not None]
    return np.stack(draws) if len(draws) == len(levels) else None


def _combined(levels: Sequence[MeasuredArm], weights: Floats) -> MeasuredArm:
    """Return a weighted sum of arms."""
    draws = _stacked(levels)
    values = np.tensordot(weights, np.stack([one.values for one in levels]), 1)  # (A,) (A, S)
    return MeasuredArm(values, None if draws is None else np.tensordot(weights, draws, 1))  # (A, S, B)


def _extreme(levels: Sequence[MeasuredArm], side: int) -> MeasuredArm:
    """Return for each seed the arm that is the least (`side` 1) or the largest (-1) on the other seeds."""
    values = np.stack([one.values for one in levels])
    others = values.sum(axis=1, keepdims=True) - values
    chosen, seeds = (side * others).argmin(axis=0), np.arange(values.shape[1])
    draws = _stacked(levels)
    return MeasuredArm(values[chosen, seeds], None if draws is None else draws[chosen, seeds])


def _slopes(x: Floats, y: Floats) -> Floats:
    """Compute least squares slopes (S, ...) over arms (A, S, ...)."""
    centred = x - x.mean(axis=0)
    return np.asarray((centred * (y - y.mean(axis=0))).sum(axis=0) / np.maximum((centred**2).sum(axis=0), 1e-300))


def number(value: Any) -> float:
    """Convert a value of the log to a float; nan where it is missing."""
    return float(value) if isinstance(value, int | float) else np.nan


# The kinds of claims: what a recipe writes of each, and how it is judged.

Share = Annotated[float, Range(0, 1, open_low=True)]
Margin = Positive | str
"""A number, or a share of something as a text, "20%"."""
Factor = Annotated[float, Range(1, open_low=True)]
Misses = Annotated[float, Range(0, 10)]
Percent = Annotated[int, Range(1, 100)]


@dataclass(frozen=True, kw_only=True)
class ClaimTraits(Traits):
    """What a kind of claim says of itself."""

    difference: bool = False
    """It is about a difference from 0, of which the report says what could have been shown."""
    measured_axis: bool = False
    """Its axis may be a measured number; the reader of recipes then takes all arms that were trained."""
    fewest: int = 2
    """The fewest arms along its axis, or of its causes, that the reader of recipes takes."""
    fewest_drawn: int = 0
    """The same if the recipe says that they were drawn; it takes one more for several claims."""
    every_arm: bool = False
    """It is about all arms that were trained."""
    exact: bool = False
    """It is about every seed by itself, and passes or fails: no error, no correction, no part of the headline."""
    moments: tuple[str, ...] = ()
    """Keys that say at which moments of the log its metric is read, which name the numbers to compare."""


KINDS = Registry("kind of claim", ClaimTraits)
"""Judges of claims; their options are the keys in a recipe."""


@dataclass(frozen=True)
class ClaimedArms:
    """What was measured on one network, as the judge of a claim asks for it.

    Attributes:
        measured: by arm and number.
        names: of the arms that the claim is about, in the order of its axis.
        levels: names of the arms on each axis that arms are written with, in its order.
        estimator: the name of the estimator that judges, by the name of the metric.
    """

    measured: Mapping[str, Mapping[str, MeasuredArm]]
    names: Sequence[str]
    levels: Mapping[str, Sequence[str]]
    estimator: Callable[[str], str] = str

    def __call__(self, name: str, metric: str) -> MeasuredArm:
        """Return the metric of an arm, by the estimator that judges."""
        return self.measured[name][self.estimator(metric)]

    def along(self, metric: str) -> list[MeasuredArm]:
        """Return the metric of all arms of the claim."""
        return [self(name, metric) for name in self.names]

    def axis(self, number: str) -> list[MeasuredArm]:
        """Return what the metric is set against, which is judged by no second estimator."""
        return [self.measured[name][number] for name in self.names]

    def moments(self, metric: str, name: str, first: int, last: int) -> set[int]:
        """Return the moments of the log at which the metric of an arm was measured, in percent."""
        return {moment for moment in range(first, last + 1) if at_moment(metric, moment) in self.measured[name]}

    def effects(self, metric: str, against: str, causes: Sequence[str], base: str) -> dict[str, Cause]:
        """Return what each cause does to x and to y."""

        def contrasts(names: Sequence[str]) -> Cause:
            x, y = [self.measured[name][against] for name in names], [self(name, metric) for name in names]
            zero = names.index(base) if base else 0
            return contrast(x, zero), contrast(y, zero)

        return {cause: contrasts(self.levels[cause]) for cause in causes}


def at_moment(metric: str, percent: int) -> str:
    """Name a number of the log at a moment, in percent of the epochs."""
    return f"{metric} at {percent}%"


@KINDS.add("less", difference=True)
def _less(arms: ClaimedArms, *, metric: str, a: str, b: str, than: str = "") -> ClaimVerdict:
    """The interval of a - b is below 0; `than` names the metric of b if it differs from that of a.

    Student's t of paired seeds, with the error over rows (Student 1908).

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> less(one, two).word
    'holds'
    """
    return less(arms(a, metric), arms(b, than or metric))


@KINDS.add("crosses", difference=True, moments=("first", "last"))
def _crosses(arms: ClaimedArms, *, metric: str, a: str, b: str, first: Percent, last: Percent) -> ClaimVerdict:
    """a is surely below b at the first moment of the log, and surely above it at the last.

    The intersection of both (Berger 1982).

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> crosses(one - two, two - one).word
    'holds'
    """
    begun, ended = (arms(a, name) - arms(b, name) for name in (at_moment(metric, first), at_moment(metric, last)))
    return crosses(begun, ended)


@KINDS.add("tracks", difference=True, moments=("first", "last"))
def _tracks(
    arms: ClaimedArms, *, metric: str, against: str, a: str, first: Percent, last: Percent, own: bool = False
) -> ClaimVerdict:
    """From moment to moment of the log the metric of a surely changes with `against`; `own`: with that of its own run.

    Ours: the mean over runs of the rank correlation of changes (Spearman 1904).

    >>> up, down, top = (MeasuredArm(np.array([x, x + 0.01])) for x in (1.0, 0.0, 3.0))
    >>> tracks([down, up, down, top], [down, top, up, top]).word
    'holds'
    """
    moments = sorted({first, last} | arms.moments(metric, a, first, last))
    x, y = ([arms.measured[a][at_moment(number, moment)] for moment in moments] for number in (against, metric))
    return tracks(x, y, own)


@KINDS.add("preserved")
def _preserved(arms: ClaimedArms, *, metric: str, a: str, b: str, margin: Margin = 0.005) -> ClaimVerdict:
    """a and b are surely within the margin of each other, a number or a share of b ("20%").

    Two one-sided tests (Schuirmann 1987).

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> preserved(one, one, 0.005).word
    'holds'
    """
    return preserved(arms(a, metric), arms(b, metric), margin)


@KINDS.add("decreasing", difference=True, measured_axis=True)
def _decreasing(arms: ClaimedArms, *, metric: str, along: str) -> ClaimVerdict:
    """Every step along the axis surely falls; the axis may be a number that is measured.

    The intersection of all steps (Berger 1982).

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> decreasing([two, one]).word
    'holds'
    """
    levels = arms.along(metric)
    return decreasing(levels) if along in arms.levels else decreasing_along(arms.axis(along), levels)


@KINDS.add("interior_minimum", difference=True, measured_axis=True, fewest=3)
def _interior_minimum(arms: ClaimedArms, *, metric: str, along: str) -> ClaimVerdict:
    """Both ends are surely above a level in between; the axis may be a number that is measured.

    Ours: that level is chosen for each seed on the other seeds.

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> interior_minimum([two, one, two]).word
    'holds'
    """
    levels = arms.along(metric)
    return interior_minimum(levels) if along in arms.levels else interior_minimum_along(arms.axis(along), levels)


@KINDS.add("slope", fewest_drawn=FEWEST_DRAWN)
def _slope(
    arms: ClaimedArms, *, metric: str, against: str, along: str, sign: Literal["+", "-"] = "+", drawn: str = ""
) -> ClaimVerdict:
    """The metric surely rises (`+`) or falls with `against` over arms that were `drawn` at random.

    All assignments of the metric to the arms (Fisher 1935); of arms that nobody drew the slope is described.

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> slope([one, two], [one, two], 1).word
    'no verdict'
    """
    return slope(arms.axis(against), arms.along(metric), -1 if sign == "-" else 1, bool(drawn))


@KINDS.add("depends", fewest_drawn=FEWEST_GIVEN, every_arm=True)
def _depends(
    arms: ClaimedArms, *, metric: str, on: str, against: str, drawn: str, beside: Sequence[str] = ()
) -> ClaimVerdict:
    """Given `against` and what is `beside`, the metric surely depends `on` a number, over arms that were `drawn`.

    Permuted residuals of a quartic in ln `against` (Freedman and Lane 1983), calibrated for its errors.

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> depends([[one, two], [two, one], [one, two]], "error").word
    'no verdict'
    """
    return depends([*map(arms.axis, (against, *beside, on)), arms.along(metric)], on)


@KINDS.add("one_curve", fewest=FEWEST_CURVED)
def _one_curve(
    arms: ClaimedArms,
    *,
    metric: str,
    against: str,
    causes: Sequence[str],
    base: str = "",
    margin: Margin = "20%",
    miss: Misses = 0.0,
) -> ClaimVerdict:
    """Some polynomial of ln `against` passes through all arms, or misses each by `miss` SE; `margin`: or a share.

    Ours: errors on both axes (York 1966), the kindest degree up to 5, and one offset of each cause.

    >>> x, y = ([MeasuredArm(f(i) * np.array([1.0, 1.01, 0.99])) for i in (1, 2, 3, 4, 5)] for f in (np.exp, float))
    >>> one_curve(x, y, {"lr": [1, 2], "batch_size": [3, 4]}).word
    'holds'
    """
    members = {cause: [arms.names.index(name) for name in arms.levels[cause] if name != base] for cause in causes}
    return one_curve(arms.axis(against), arms.along(metric), members, margin, miss)


@KINDS.add("alike")
def _alike(
    arms: ClaimedArms, *, metric: str, against: str, causes: Sequence[str], base: str, factor: Factor = 2.0
) -> ClaimVerdict:
    """For every cause, the slope of the metric against `against` is surely the same within a `factor`.

    Ours: slopes of any two causes, compared without a division.

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> alike({"lr": (one, one), "batch_size": (two, two)}).word
    'holds'
    """
    return alike(arms.effects(metric, against, causes, base), factor)


@KINDS.add("matched")
def _matched(
    arms: ClaimedArms,
    *,
    metric: str,
    against: str,
    causes: Sequence[str],
    base: str,
    margin: Margin = 0.005,
    within: Share = 0.15,
) -> ClaimVerdict:
    """Two arms of different causes with surely almost the same `against` have the same metric within the margin.

    Ours: near is `within` a share of the base arm's, as is a margin of "20%".

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> matched(two, {"a and b": (one - one, one - one)}).word
    'holds'
    """
    x = {name: arms.measured[name][against] for name in arms.names}
    pairs = {
        f"{a} and {b}": (x[a] - x[b], arms(a, metric) - arms(b, metric))
        for one, other in itertools.combinations(causes, 2)
        for a, b in itertools.product(arms.levels[one], arms.levels[other])
        if base not in (a, b)
    }
    return matched(x[base], pairs, within, margin, arms(base, metric))


@KINDS.add("close_to")
def _close_to(arms: ClaimedArms, *, metric: str, a: str, low: float, high: float) -> ClaimVerdict:
    """The mean is surely between low and high.

    Ours: p is multiplied by 25, as seeds may be skewed about the mean.

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> close_to(one, 0.0, 9.0).word
    'undecided'
    """
    return close_to(arms(a, metric), low, high)


@KINDS.add("check", exact=True)
def _check(
    arms: ClaimedArms,
    *,
    metric: str,
    a: str,
    b: str,
    side: Literal["same", "above", "below"] = "same",
    within: Share = 1e-6,
) -> ClaimVerdict:
    """In every seed a is the same as b but for rounding (`within` a share of b), or else on that side of it.

    Ours: no test, as of an identity nothing is estimated.

    >>> one, two = (MeasuredArm(level + np.array([0.0, 0.1, -0.1])) for level in (1.0, 2.0))
    >>> check(one, one).word, check(one, two, "above").word
    ('pass', 'fail')
    """
    return check(arms(a, metric), arms(b, metric), side, within)
