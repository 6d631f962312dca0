"""What is lost by acting where a probability reaches a cutoff, and the calibration error over all intervals: no bins.

Proofs of the bounds: docs/statistics/cutoffs.md.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from calibcli.core.number_format import number, percent
from calibcli.core.result import Cell
from calibcli.core.statistics import (
    TIE,
    group_places,
    normal_quantile,
    normals,
    odds,
    quantile,
    student_quantile,
    unseen_reach,
)
from calibcli.metrics._histogram_error import PlacedRows
from calibcli.metrics.corp import Isotonic, pool
from calibcli.metrics.intervals import WeightedMean, one_sided
from calibcli.metrics.registry import METRICS, UNIT, Interval, Of, Sample, Statistic
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.metrics.smooth_ece import Noises
from calibcli.scores.histogram import CELLS, STEPS
from calibcli.scores.predictions import Floats, Ints

# Both numbers are maxima over pairs of cutoffs of the mean of a function that is 0 but between the two.

LEAST_LEVEL = 0.6  # bounds at a lower level are those at this one
PENALTIES = np.geomspace(0.5, 16, 7)  # of the mean square, as multiples of the best one where that is 1
MOST_PENALTY = 0.9  # below 1, so that the best cutoff is one of a regression
FEW_PAIRS = 18  # of 3 levels, up to which a bound for all pairs on all rows is no wider than one on half of the rows
GROUP_CELLS, GROUP_DRAWS = 64, 2_000  # runs of levels in which sums of groups are taken; simulations of their noise


PROMISE = (
    "Whoever acts where the stated probability reaches their break-even point loses at most {limit} per row against "
    "the best other cutoff (unit: gain of a right action plus cost of a wrong one)"
)


class Pair(NamedTuple):
    """The cutoffs of a maximum: to act on the levels from `chosen` on, in place of those from `stated` on at payoff t.

    Attributes:
        gain: what that gains, less the penalty.  t: the break-even point.
    """

    gain: float
    chosen: int
    stated: int
    t: float

    @property
    def sign(self) -> int:
        """Whether rows between the cutoffs are added to those acted on (1) or taken from them (-1)."""
        return 1 if self.chosen < self.stated else -1

    @property
    def between(self) -> slice:
        """The levels between the two cutoffs."""
        return slice(min(self.chosen, self.stated), max(self.chosen, self.stated))


@dataclass(frozen=True, eq=False)
class Levels:
    """The distinct probabilities of some outcomes, rising: of ties by their odds, or of cells of confidence.

    Attributes:
        p: (T,) probability.  weight: (T,) share of the rows.  hits: (T,) weighted hits.
    """

    p: Floats
    weight: Floats
    hits: Floats

    @classmethod
    def of(cls, sample: Sample, of: Of) -> Levels:
        """Take ties of rows; of condensed rows cells, at whose edges sums are exact."""
        if not sample.columns.condensed:
            fit = sample.view(of).memoized(Isotonic.of)
            return cls(fit.p, fit.weight, fit.hits)
        placed = sample.memoized(PlacedRows, of)
        view = placed.view
        columns = (view.hit, view.p, view.complement)
        hits, p, complement = (np.bincount(placed.cell, view.shares * v).astype(np.float64) for v in columns)
        order = np.argsort(odds(p, complement))
        weight = placed.mass.astype(np.float64)
        return cls((p / weight)[order], weight[order], hits[order])

    @cached_property
    def blocks(self) -> tuple[Ints, Floats]:
        """(B + 1,) first level of each block of the isotonic regression of the outcomes, and T; (B,) its values."""
        some = np.flatnonzero(self.weight > 0)  # half of the rows may have none of a level
        blocks = pool(self.weight[some], self.hits[some])
        return np.append(some[blocks.start], len(self.p)), blocks.value

    @cached_property
    def below(self) -> tuple[Floats, Floats, Floats]:
        """(T + 1,) running sums, from 0, of weights, weighted hits and weighted gaps p - y."""
        columns = self.weight, self.hits, self.weight * self.p - self.hits
        weight, hits, gap = (np.append(0.0, np.cumsum(column)) for column in columns)
        return weight, hits, gap

    def best(self, penalty: float = 0.0) -> Pair:
        """Find the largest mean f + penalty · mean f² over cutoffs s and t, f = (y - t)(1{p >= s} - 1{p >= t}).

        Between two levels the mean of f is linear in t, so that the best t is at a level, which is acted on, or just
        above it. There f + penalty f² = ± (a y - b) between the cutoffs, and of all s that is largest where the
        regression of the outcomes reaches b / a. With the sign of the other side of t the sum is smaller than with its
        own, so that the larger one of both signs counts.
        """
        (n, hits, _), (start, values), t, size, found = self.below, self.blocks, self.p, len(self.p), []
        for sign in (1, -1) if penalty else (1,):
            a, b = 1 + sign * penalty * (1 - 2 * t), t - sign * penalty * t * t
            chosen = start[np.searchsorted(values, b / a)]  # (T,)
            at_chosen = a * hits[chosen] - b * n[chosen]
            for above in (0, 1):
                gain = a * hits[above : size + above] - b * n[above : size + above] - at_chosen
                k = int(gain.argmax())
                found.append(Pair(float(gain[k]), int(chosen[k]), k + above, float(t[k])))
        return max(found)

    @property
    def worst(self) -> tuple[float, slice]:
        """The largest |mean of (p - y) 1{p in I}| over intervals I, and the levels of the narrowest of these."""
        gap = self.below[2]
        lowest, highest = gap <= gap.min() + TIE, gap >= gap.max() - TIE
        before, after = (lowest, highest) if gap.argmin() < gap.argmax() else (highest, lowest)
        end = int(after.nonzero()[0][after.nonzero()[0] >= before.argmax()][0])
        return float(np.ptp(gap)), slice(int(before[: end + 1].nonzero()[0][-1]), end)


@dataclass(frozen=True, eq=False)
class CutoffStatistic(Statistic):
    """A maximum over pairs of cutoffs, with its bounds."""

    view: BinaryOutcomes
    levels: Levels

    @classmethod
    def of_counts(cls, p: Floats, rows: Ints, hits: Ints, seed: int) -> Self:
        """Make that of independent rows from their number (T,) and that of hits (T,) at rising probabilities p (T,)."""
        some = np.flatnonzero(rows)
        p, rows, hits = p[some], rows[some], hits[some]
        twice, counts = np.tile(p, 2), np.concatenate([hits, rows - hits]).astype(np.float64)
        view = BinaryOutcomes(twice, 1 - twice, np.arange(2 * len(p)) < len(p), counts, True, None, seed=seed)
        return cls(view, Levels(p, rows / rows.sum(), hits / rows.sum()))

    def upper(self, alpha: float) -> float:
        """Return the upper bound, which holds with probability 1 - alpha."""
        raise NotImplementedError

    def lower(self, alpha: float) -> float:
        """Return the lower bound, which holds with probability 1 - alpha."""
        raise NotImplementedError

    def described(self) -> tuple[str, dict[str, Cell]]:
        """Say where the maximum is, and return that as fields."""
        raise NotImplementedError

    @cached_property
    def rows(self) -> WeightedMean:
        return WeightedMean(self.view.hit, self.view.weights, self.view.counts, self.view.groups)

    def z(self, alpha: float) -> float:
        """Return the quantile of 1 - alpha: normal, or Student's for groups."""
        level = max(1 - alpha, LEAST_LEVEL)
        return normal_quantile(level) if self.view.groups is None else student_quantile(level, self.rows.units - 1)

    @property
    def largest_moves(self) -> tuple[float, float]:
        """How far a row (or group) that was drawn, and one that was not, may move a mean of the rows."""
        share = self.rows.largest_share
        return self.view.largest_moves if self.view.groups is None else (share, share)

    def interval(self, level: float) -> Interval:
        where, detail = self.described()
        if self.rows.lacking:
            return Interval(reason=self.rows.lacking, how=where, detail=detail)
        null: dict[str, float] = {}
        if self.view.groups is None:
            draws = self.calibrated()
            null = {"null": float(draws.mean()), "null_high": quantile(draws, 0.95)}
        low, high = max(0.0, min(self.lower(1 - level), self.value)), min(1.0, self.upper(1 - level))
        how = f"{where}; one-sided bounds, each {percent(level)}{self.rows.clustered}"
        return one_sided(level, low, high, how, **null, detail=detail)

    @property
    def beyond_chance(self) -> float:
        """The value less what chance gives a calibrated model on average, at least 0."""
        return max(self.value - float(self.calibrated().mean()), 0.0)

    def calibrated(self) -> Floats:
        """Return (DRAWS,) simulated values of a calibrated model."""
        return self.view.memoized(_calibrated, type(self))


def _calibrated(view: BinaryOutcomes, kind: type[CutoffStatistic]) -> Floats:
    cells = view.memoized(Isotonic.of).cells
    drawn = (Levels(cells.p, cells.weight, cells.weight * share) for share in cells.drawn[0])
    return np.array([kind(view, levels).value for levels in drawn])


class CutoffError(CutoffStatistic):
    """The largest gap over intervals.

    Upper: in the worst interval of the population the number is one mean, so that the estimate, a maximum over all
    intervals, falls short by no more than the noise of that mean. Lower: the estimate exceeds the truth by at most the
    range of the noise of running sums, that of a Brownian motion, which exceeds x of its deviations with a probability
    of at most 8 Φ(-x) (Feller 1951). Of T levels there are T (T + 1) / 2 intervals, each with two sides.
    """

    @property
    def value(self) -> float:
        return self.levels.worst[0]

    def described(self) -> tuple[str, dict[str, Cell]]:
        inside = self.levels.worst[1]
        p, weight, hits = (column[inside] for column in (self.levels.p, self.levels.weight, self.levels.hits))
        if not len(p):
            return "no gap in any interval", {}
        share = float(weight.sum())
        detail: dict[str, Cell] = {"from": float(p[0]), "to": float(p[-1]), "share": share}
        detail |= {"stated": float(weight @ p) / share, "came_true": float(hits.sum()) / share}
        first, last, _, stated, came = (number(float(value)) for value in detail.values())  # type: ignore[arg-type]
        return f"worst from {first} to {last}: stated {stated}, came true {came}", detail

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Variance of the noisiest interval, and the larger one of it and that of a calibrated model."""
        if self.view.groups is None:
            noise = self.view.memoized(Noises)
            return noise.variance, max(noise.variance, float(noise.null.scale @ noise.null.scale))
        variance = self.covariance.diagonal()
        return (float((variance[:, None] + variance - 2 * self.covariance).max()),) * 2

    def upper(self, alpha: float) -> float:
        return self.value + unseen_reach(self.z(alpha), self.spread[0], *self.largest_moves)

    def lower(self, alpha: float) -> float:
        """Return the lower bound; in groups, whose noise is no Brownian motion, also by simulated ranges."""
        sides = min(8, len(self.levels.p) * (len(self.levels.p) + 1))
        reach = self.z(alpha / sides) * math.sqrt(self.spread[1])
        if self.view.groups is not None:
            values, vectors = np.linalg.eigh(self.covariance)
            root = vectors * np.sqrt(np.maximum(values, 0))  # (C + 1, C + 1)
            ranges = np.ptp(normals((GROUP_DRAWS, len(root)), self.view.seed) @ root.T, axis=1)
            longer = self.z(alpha) / normal_quantile(max(1 - alpha, LEAST_LEVEL))  # as Student's t is
            reach = max(reach, quantile(ranges, 1 - alpha) * longer)
        return self.value - reach

    @cached_property
    def covariance(self) -> Floats:
        """(C + 1, C + 1) covariance of the running sums of gaps at the edges of C runs of levels, rows in groups."""
        from scipy.sparse import coo_array

        view, fit = self.view, self.view.memoized(Isotonic.of)
        run = np.minimum(self.levels.below[0][:-1] * GROUP_CELLS, GROUP_CELLS - 1).astype(np.int64)
        assert view.groups is not None
        names, member = group_places(view.groups)
        order, count = fit.order, len(names)
        places = member[order], np.repeat(run, np.diff(fit.ends))
        sums = coo_array(((view.shares * view.residual)[order], places), shape=(count, GROUP_CELLS)).tocsr()
        below = np.tril(np.ones((GROUP_CELLS + 1, GROUP_CELLS)), -1)  # sums of the runs before each edge
        return np.asarray(below @ (sums.T @ sums).toarray() @ below.T * (count / max(count - 1, 1)))


class CutoffLoss(CutoffStatistic):
    """The largest loss by a cutoff.

    Upper: with the best pair of cutoffs of the population, f is a fixed function, whose mean is at most the estimate.
    So the truth is at most M = max over pairs of mean f + z √(unit · mean f²), unit the largest share of a row, but for
    rows that were not drawn. As z √(unit q) <= λ q + z² unit / (4 λ), each λ gives a bound of M by `Levels.best`.

    Lower: a pair that is chosen on half of the rows has, on the other half, a mean of f with bounds of its own, which
    exceeds the truth in expectation nowhere. Both halves choose, at α / 2 each. Which half a row is in is drawn. T
    levels have 2 T² pairs: where these are few, each has a bound on all rows, at α / 2 T².
    """

    @cached_property
    def value(self) -> float:
        return max(self.levels.best().gain, 0.0)

    def described(self) -> tuple[str, dict[str, Cell]]:
        pair, size = self.levels.best(), len(self.levels.p)
        if not pair.gain > 0:
            return "no other cutoff is better", {}
        better = float(self.levels.p[pair.chosen]) if pair.chosen < size else None
        text = "never acting" if better is None else f"acting from {number(better)}"
        return f"worst at break-even point {number(pair.t)}: {text} is better", {"break_even": pair.t, "better": better}

    def upper(self, alpha: float) -> float:
        z, (drawn, unit) = self.z(alpha), self.largest_moves
        penalties = [k for k in (PENALTIES * z * math.sqrt(unit) / 2).tolist() if k < MOST_PENALTY]
        most = min((self.levels.best(k).gain + z * z * unit / (4 * k) for k in penalties), default=1.0)
        return self.value + unseen_reach(z, (max(most - self.value, 0.0) / z) ** 2, drawn, unit)

    def lower(self, alpha: float) -> float:
        """Return the lower bound: of a pair chosen on the other half; of few levels, of all pairs at once."""
        tail = alpha / 2
        if self.view.groups is not None or not (self.view.weights is None or self.view.counts):
            both = self._halves_of_rows()
        elif (pairs := 2 * len(self.levels.p) ** 2) <= FEW_PAIRS:
            both, tail = [self._counted(*self._counts)] * 2, alpha / pairs
        else:
            both = self._halves_of_counts()
        means = [mean(chosen.best()) for (chosen, _), (_, mean) in zip(both, both[::-1], strict=True)]
        return max([0.0, *(mean.bounds(tail, -1.0, 1.0)[0] for mean in means if not mean.lacking)])

    @property
    def _counts(self) -> tuple[Ints, Ints]:
        """(T,) numbers of hits and of misses of independent rows of equal weight, or counts."""
        sums = self.levels.hits, self.levels.weight
        hits, rows = (np.rint(self.view.total * column).astype(np.int64) for column in sums)
        return hits, np.maximum(rows - hits, 0)

    def _counted(self, hits: Ints, misses: Ints) -> Half:
        def mean(pair: Pair) -> WeightedMean:
            h, m = hits[pair.between].sum(), misses[pair.between].sum()
            values = pair.sign * np.array([1 - pair.t, -pair.t, 0.0])
            return WeightedMean(values, np.array([h, m, hits.sum() + misses.sum() - h - m], np.float64), True, None)

        return Levels(self.levels.p, (hits + misses).astype(np.float64), hits.astype(np.float64)), mean

    def _halves_of_counts(self) -> list[Half]:
        """Divide the rows of each level and outcome by coins, which depend on the numbers of rows alone."""
        hits, misses = self._counts
        rng = np.random.default_rng([self.view.seed, zlib.crc32(hits.tobytes())])
        first = rng.binomial(hits, 0.5), rng.binomial(misses, 0.5)
        return [self._counted(*first), self._counted(hits - first[0], misses - first[1])]

    def _halves_of_rows(self) -> list[Half]:
        """Divide groups by their number, or else weighted rows by coins that do not depend on their order."""
        view, fit = self.view, self.view.memoized(Isotonic.of)
        order, size = fit.order, len(self.levels.p)
        share, hit, level = view.shares[order], view.hit[order], np.repeat(np.arange(size), np.diff(fit.ends))
        groups = None if view.groups is None else group_places(view.groups[order])[1]
        if groups is not None:
            side = groups % 2
        else:
            alike, side = np.lexsort((hit, share, view.p[order])), np.empty(len(order), np.int64)
            rng = np.random.default_rng([view.seed, zlib.crc32(hit[alike].tobytes())])
            side[alike] = rng.integers(0, 2, len(order))

        def half(rows: Ints) -> Half:
            def mean(pair: Pair) -> WeightedMean:
                inside = (level[rows] >= pair.between.start) & (level[rows] < pair.between.stop)
                values = pair.sign * (hit[rows] - pair.t) * inside
                of_rows = None if view.weights is None else view.weights[order[rows]]
                return WeightedMean(values, of_rows, view.counts, None if groups is None else groups[rows])

            weight, hits = (np.bincount(level[rows], v[rows], size).astype(np.float64) for v in (share, share * hit))
            return Levels(self.levels.p, weight, hits), mean

        return [half(np.flatnonzero(side == one)) for one in (0, 1)]


Half = tuple[Levels, Callable[[Pair], WeightedMean]]
"""The levels of half of the rows, and the mean of f, by a pair of cutoffs, on that half."""


# What merging rows of a cell may change. A cell of one probability is a level of the rows, and changes nothing.


def _mixed(placed: PlacedRows) -> tuple[Floats, Floats, Floats, Floats]:
    """Return (cells,) misses and hits as shares of the rows, 0 in cells of one probability, and what each costs there.

    The cost of a miss is its p at most, that of a hit 1 - p, both at the ends of the cell.
    """
    view, columns, size = placed.view, placed.sample.columns, len(placed.mass)
    place = odds(view.p, view.complement)
    least, most = np.full(size, np.inf), np.zeros(size)
    np.minimum.at(least, placed.cell, place)
    np.maximum.at(most, placed.cell, place)
    mixed = most > least * (1 + 4 * TIE)
    hits = np.bincount(placed.cell, view.shares * view.hit, size).astype(np.float64)
    reach = np.minimum(1 / CELLS, (2 ** (1 / STEPS) - 1) * columns.rest)  # from a row to the end of its cell
    p, complement = (np.full(size, 0.0) for _ in range(2))
    np.maximum.at(p, placed.cell, view.p + reach)
    np.maximum.at(complement, placed.cell, view.complement + reach)
    return np.maximum(placed.mass - hits, 0.0) * mixed, hits * mixed, p, complement


def _error_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging: running sums are exact at the edges of cells.

    Inside a cell with the gaps M = Σ s p of misses and H = Σ s (1 - p) of hits the sum is at most M above the one end
    and H above the other, so at most min(M, H) above both, or below both. An interval has two ends.
    """
    misses, hits, p, complement = _mixed(placed)
    return min(2 * float(np.minimum(misses * p, hits * complement).max()), 1.0)


def _loss_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging h hits and m misses of a cell.

    A payoff t inside a cell divides its rows, which moves the sum by at most (1 - t) h or t m, and no more than that is
    gained or lost by moving t to the next cell. A cutoff inside gains most with its misses below its hits: at most the
    smaller of (1 - t) h and t m, which are equal at t = h / (h + m).
    """
    misses, hits, p, complement = _mixed(placed)
    rows = np.maximum(misses + hits, 1e-300)
    inside = float(np.maximum(hits * complement, misses * p).max())
    return min(inside + float((hits * misses / rows).max()), 1.0)


@METRICS.add(
    values=UNIT, better="lower", unit="probability", compared=False, simulated=True, condensed=_error_condensed
)
def cutoff_error(sample: Sample, *, of: Of = "auto") -> CutoffError:
    """Largest calibration error of an interval, max over I of |mean (p - y) 1[p in I]| (Rossellini et al. 2025).

    No bins. The details name the interval, with the mean probability in it and the share that came true.

    >>> round(calibcli.measure(logits, labels, "cutoff_error")["cutoff_error"].value, 4)
    0.0646
    """
    return CutoffError(sample.view(of), Levels.of(sample, of))


@METRICS.add(values=UNIT, better="lower", compared=False, simulated=True, condensed=_loss_condensed, promise=PROMISE)
def cutoff_loss(sample: Sample, *, of: Of = "auto") -> CutoffLoss:
    """Loss of acting where p reaches the break-even point, against the best other cutoff (Gopalan et al. 2025).

    max over cutoffs s and t of mean (y - t)(1[p >= s] - 1[p >= t]): acting earns 1 - t if the event comes and -t if
    not, so that its unit is the gain of a right action plus the cost of a wrong one. At most `cutoff_error`, and 0 only
    if calibrated.

    >>> round(calibcli.measure(logits, labels, "cutoff_loss")["cutoff_loss"].value, 4)
    0.028
    """
    return CutoffLoss(sample.view(of), Levels.of(sample, of))
