"""How well a score tells the rows of one sample from those of another: precision and recall, and false positives.

Beside the AUROC (`discrimination.Concordance`), for rows of the distribution (hits) against others (misses).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from calibcli.metrics.discrimination import TwoSamples, variance
from calibcli.metrics.intervals import Interval, share_bounds
from calibcli.numerics import student_quantile
from calibcli.predictions import Floats

KEPT = 0.95  # share of hits that the threshold keeps
SLACK = 1e-12  # of sums of weights


@dataclass(frozen=True, eq=False)
class AveragePrecision(TwoSamples):
    """Σ (recall_t - recall_{t-1}) precision_t over falling thresholds, hits and misses as frequent as in these samples.

    The interval is that of the logit (Boyd et al. 2013), its error from the influence of every row,
    and reaches at least as far as hits below all others, or misses above all, in a share that no row shows.
    """

    @cached_property
    def _above(self) -> tuple[Floats, Floats, Floats]:
        """(T,) hits and misses at least as high as this tie, and the precision there."""
        hits, misses = (np.cumsum(part[::-1])[::-1] for part in (self.ties.hits, self.ties.misses))
        return hits, misses, precision(hits, misses)

    @cached_property
    def value(self) -> float:
        if min(self._sums) <= 0:
            return math.nan
        return float(self.ties.hits @ self._above[2]) / self._sums[0]

    @property
    def chance(self) -> float:
        """The share of hits, which a score that tells nothing has."""
        return self._sums[0] / sum(self._sums)

    @property
    def parts(self) -> tuple[Floats, Floats]:
        t, (all_hits, all_misses), (hits, misses, own) = self.ties, self._sums, self._above
        share, other = t.hits / all_hits, t.misses / all_misses
        both = np.maximum(hits + misses, np.finfo(np.float64).tiny)
        of_hit = own + np.cumsum(share * all_hits * misses / both / both)
        of_miss = -np.cumsum(share * all_misses * hits / both / both)
        return of_hit - share @ of_hit, of_miss - other @ of_miss

    def missing(self, tail: float) -> tuple[float, float]:
        """As many hits below, or misses above all rows, as may stay unseen with this probability; or the reverse."""
        t, (all_hits, all_misses), (hits, misses, _) = self.ties, self._sums, self._above
        below, above = (min(1.0, -math.log(tail) * side.unseen) for side in self.sides)
        pushed = precision(hits, all_misses * above + misses * (1 - above))
        worst = min(self.value + below * (self.chance - self.value), float(t.hits @ pushed) / all_hits)
        return max(self.value - worst, 0.0), (1 - self.value) * max(below, above)

    def interval(self, level: float) -> Interval:
        if self.lacking:
            return Interval(reason=self.lacking)
        m, n = (side.units for side in self.sides)
        value, tail = self.value, (1 - level) / 2
        spread = math.sqrt(variance(self.view, self.influence))
        low = high = value
        if 0 < value < 1:
            odds = value / (1 - value)
            far = math.exp(min(student_quantile(1 - tail, m + n - 2) * spread / (value * (1 - value)), 700.0))
            low, high = odds / far / (1 + odds / far), odds * far / (1 + odds * far)
        below, above = self.missing(tail)
        low, high = min(low, value - below), max(high, value + above)
        how = f"influence of each row, logit, unseen rows{self.clustered}"
        return Interval(low=low, high=high, level=level, se=spread, how=how)


def precision(hits: Floats, misses: Floats) -> Floats:
    both = hits + misses
    return np.divide(hits, both, out=np.zeros_like(both), where=both > 0)


@dataclass(frozen=True, eq=False)
class FalsePositives(TwoSamples):
    """Share of the misses at the highest threshold that at least 95 % of the hits reach.

    Two things are uncertain: the share of misses at a threshold (Clopper and Pearson's bounds of independent rows) and
    the threshold (those at which 95 % is among the bounds of the share of hits). Their distances from the estimate are
    added as squares (Zou and Donner 2008).
    """

    @cached_property
    def _rates(self) -> tuple[Floats, Floats]:
        """(T,) shares of hits and misses that reach this tie."""
        kept, passed = (
            np.cumsum(part[::-1])[::-1] / total
            for part, total in zip((self.ties.hits, self.ties.misses), self._sums, strict=True)
        )
        return kept, passed

    @cached_property
    def tie(self) -> int:
        """The threshold, as one of the ties."""
        return int(np.count_nonzero(self._rates[0] >= KEPT - SLACK)) - 1

    @cached_property
    def value(self) -> float:
        return float(self._rates[1][self.tie]) if min(self._sums) > 0 else math.nan

    def _bounds(self, side: int, tie: int, tail: float) -> tuple[float, float]:
        """Of the share of hits (0) or misses (1) that reach a tie, where nothing is `lacking`."""
        reached = (self._row_ties >= tie)[self.view.hit if side == 0 else ~self.view.hit]
        bounds = share_bounds(replace(self.sides[side], values=reached), tail)
        assert bounds is not None
        return bounds

    @cached_property
    def _row_ties(self) -> Floats:
        return self.row_order(self.ties.tie.astype(np.float64))

    def _last(self, end: int, tail: float) -> int:
        """The last tie whose bound of the share of hits is above 95 %: the lower one (0), or the upper one (1); -1."""
        ties = range(len(self._rates[0]))
        return bisect_left(ties, True, key=lambda tie: self._bounds(0, tie, tail)[end] <= KEPT) - 1

    def interval(self, level: float) -> Interval:
        if self.lacking:
            return Interval(reason=self.lacking)
        tail, value = (1 - level) / 2, self.value
        bounds, passed = self._bounds(1, self.tie, tail), np.append(self._rates[1], 0.0)
        # a threshold between two ties keeps what reaches the upper one
        most, least = float(passed[self._last(0, tail) + 1]), float(passed[self._last(1, tail)])
        low = value - math.hypot(value - bounds[0], max(value - least, 0.0))
        high = value + math.hypot(bounds[1] - value, max(most - value, 0.0))
        how = "bounds of the share and of the threshold, added as squares"
        return Interval(low=max(low, 0.0), high=min(high, 1.0), level=level, how=how)
