"""Whether what was found on one half holds on the other: p-values of the score form, and Holm's correction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.core.statistics import log_sigmoid, normal_quantile, normal_share, root, two_sided
from calibcli.metrics.intervals import WeightedMean, average
from calibcli.scores.predictions import Floats, Ints

SMALLEST = 30  # rows (or groups) of the other half below which nothing is confirmed
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ConfirmedRule:
    """A rule on the rows that confirm it.

    Attributes:
        n: rows.  value: mean gap, or error.  low, high: 1 - alpha interval.  p: that chance shows as much.
        rest: gap, or error, of the rows that it is compared with.  of: its rows, with those that stronger rules hold.
        adjusted: p for all rules together.  reason: why there is no p.
    """

    n: int
    value: float
    low: float
    high: float
    p: float
    adjusted: float = 1.0
    reason: str = ""
    rest: float | None = None
    of: int = 0


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Rows with what is asked of them: p - y with p, (N,); or, with p None, whether the prediction is wrong."""

    rows: WeightedMean
    p: Floats | None

    @property
    def outcomes(self) -> Floats:
        """(N,) 0 or 1, but for rounding."""
        return self.rows.values if self.p is None else self.p - self.rows.values

    def test(self, inside: Ints, outside: Ints, alpha: float) -> ConfirmedRule:
        """A gap against 0, and against that of the other rows; an error against that of the other rows."""
        here = self.rows.at(inside)
        if len(inside) < SMALLEST or here.lacking or here.units < SMALLEST:
            reason = here.lacking or f"fewer than {SMALLEST} rows or groups on this half"
            return ConfirmedRule(len(inside), here.value if len(inside) else math.nan, -1.0, 1.0, 1.0, reason=reason)
        low, high = here.bounds(alpha / 2, 0.0 if self.p is None else -1.0, 1.0)
        rest = self.rows.at(outside)
        if self.p is not None:
            p = max(self._gap(here, self.p[inside]), self._further(here, rest, self.p[inside], self.p[outside]))
            return ConfirmedRule(len(inside), here.value, low, high, p, rest=rest.value)
        return ConfirmedRule(len(inside), here.value, low, high, self._more_wrong(here, rest), rest=rest.value)

    @staticmethod
    def _gap(here: WeightedMean, p: Floats) -> float:
        """That calibrated rows have this gap, and, as they need not be calibrated one by one, that their mean is 0."""
        if not here.binomial:
            return here.p_value(-1.0, 1.0)
        hits = float(p.sum() - here.values.sum()) if here.weights is None else float(here.weights @ (p - here.values))
        of_spread = two_sided(abs(here.value) / here.se, here.units - 1) if here.se > 0 else 0.0
        return max(chance(p, round(hits), here.weights if here.counts else None), of_spread)

    @staticmethod
    def _further(here: WeightedMean, rest: WeightedMean, p: Floats, other: Floats) -> float:
        """Two-sided: that the gap lies no further from 0 than that of the other rows; 1 where it does not.

        Of independent rows the larger p-value of two tests: by the spread that the rows show, and by that of outcomes
        that come true with p less the common gap, which rows without an error have, too. Else the score form.
        """
        if not len(other):
            return 0.0
        apart = here.value - rest.value
        if apart * here.value <= 0 or rest.lacking:
            return 1.0
        degrees = min(here.units, rest.units) - 1
        spread = here.se**2 + rest.se**2
        if not (here.binomial and rest.binomial):
            up, down = (here.value + 1, 1 - rest.value) if apart > 0 else (1 - here.value, rest.value + 1)
            spread += (here.largest_share * up + rest.largest_share * down) * abs(apart)
            return two_sided(abs(apart) / math.sqrt(spread), degrees)
        sizes = here.effective, rest.effective
        common = (here.value * sizes[0] + rest.value * sizes[1]) / sum(sizes)
        expected = 0.0
        for rows, said, size in ((here, p, sizes[0]), (rest, other, sizes[1])):
            q = np.clip(said - common, 0.0, 1.0)
            expected += average(q * (1 - q), rows.weights) / size
        return two_sided(abs(apart) / math.sqrt(max(spread, expected, 1e-300)), degrees)

    @staticmethod
    def _more_wrong(here: WeightedMean, rest: WeightedMean) -> float:
        """One-sided: Fisher's exact test of independent rows, else the score form of the difference."""
        if here.binomial and rest.binomial and not here.counts:
            hits = round(here.value * here.n)
            return fisher(hits, here.n, hits + round(rest.value * rest.n), here.n + rest.n)
        difference = here.value - rest.value
        if difference <= 0:
            return 1.0
        reach = here.largest_share * here.value + rest.largest_share * (1 - rest.value)
        variance = here.se**2 + rest.se**2 + reach * difference
        return two_sided(difference / math.sqrt(variance), min(here.units, rest.units) - 1) / 2


def fisher(hits: int, n: int, marked: int, total: int) -> float:
    """P(X >= hits), X marked rows among n that are drawn of `total`, `marked` of which are (Fisher 1935)."""
    most = min(n, marked)
    log_p = _log_choose(marked, hits) + _log_choose(total - marked, n - hits) - _log_choose(total, n)
    term, tail = 1.0, 0.0
    for x in range(hits, most + 1):
        tail += term
        term *= (marked - x) / (x + 1) * (n - x) / (total - marked - n + x + 1)
        if term < 1e-17 * tail:
            break
    return min(1.0, math.exp(log_p + math.log(tail)))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def chance(p: Floats, hits: float, weights: Floats | None = None) -> float:
    """Two-sided: that rows which come true with their own probabilities p (n,) have so many hits, or so few.

    The sum's tail by its saddlepoint, with the correction of whole numbers (Lugannani & Rice 1980; Daniels 1987), which
    stays right where nearly every p is 0 or 1.
    """
    w = np.ones(len(p)) if weights is None else weights
    return min(1.0, 2 * min(_tail(p, hits, w), _tail(1 - p, float(w.sum()) - hits, w)))


def _tail(p: Floats, hits: float, w: Floats) -> float:
    """P(X >= hits)."""
    hits -= float(w[p >= 1].sum())
    free = (p > 0) & (p < 1)
    p, w = p[free], w[free]
    if hits <= 0 or hits > w.sum() + 1e-9:
        return 1.0 if hits <= 0 else 0.0
    if hits > w.sum() - 1 + 1e-9:
        return math.exp(float(w @ np.log(p)))
    at, odds = hits - 0.5, np.log(p / (1 - p))
    t = root(lambda t: float(w @ np.exp(log_sigmoid(odds + t))) - at, -800.0, 800.0)
    if abs(t) < 1e-5:
        return 0.5
    log_mgf = float(w @ np.logaddexp(np.log1p(-p), np.log(p) + t))
    size = math.copysign(math.sqrt(max(2 * (t * at - log_mgf), 0.0)), t)
    power = float(w @ np.exp(log_sigmoid(odds + t) + log_sigmoid(-odds - t)))
    slope = 2 * math.sinh(t / 2) * math.sqrt(power) if abs(t) < 700 else math.inf
    density = math.exp(-size * size / 2) / math.sqrt(2 * math.pi)
    return min(max(normal_share(-size) + density * (1 / slope - 1 / size), 0.0), 1.0)


def halves(n: int, groups: Any, seed: int) -> Mask:
    """(N,) whether a row is searched: half of them at random; groups stay together."""
    rng = np.random.default_rng([seed, 20])
    names, member = (range(n), slice(None)) if groups is None else np.unique(groups, return_inverse=True)
    chosen = np.zeros(len(names), bool)
    chosen[rng.permutation(len(names))[: len(names) // 2]] = True
    return np.asarray(chosen[member])


def detectable(variance: float, rows: float, candidates: int, tests: int, alpha: float) -> float:
    """The gap that would have been found with a chance of about 80 %: among the strongest on the searched half, and
    confirmed on the other, each with 90 %.
    """
    spare = normal_quantile(0.9)
    among = math.sqrt(2 * math.log(max(candidates, 2))) + spare
    z = max(among, normal_quantile(1 - alpha / (2 * tests)) + spare)
    unseen = z * z / rows  # as `numerics.score_bound` adds
    return (unseen + math.sqrt(unseen * unseen + 4 * z * z * variance / rows)) / 2
