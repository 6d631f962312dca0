"""Confirm on one half of the rows the rules that were found on the other: p-values, and what can be detected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.core.statistics import log_sigmoid, normal_quantile, normal_share, root, score_bound, two_sided
from calibcli.metrics.intervals import WeightedMean, average
from calibcli.scores.predictions import Floats, Ints

SMALLEST = 30  # rows, or groups, of the confirming half below which nothing is confirmed
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ConfirmedRule:
    """A rule measured on the rows that confirm it.

    Attributes:
        n: number of rows.  value: mean gap, or error.  low, high: 1 - alpha interval.  p: p-value.
        others: gap, or error, of the other rows.  all_rows: n with the rows that stronger rules select.
        adjusted: p-value adjusted for all rules.  reason: why there is no p-value.
    """

    n: int
    value: float
    low: float
    high: float
    p: float
    adjusted: float = 1.0
    reason: str = ""
    others: float | None = None
    all_rows: int = 0


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Rows with the value that is tested: p - y, with p (N,); or with p None whether the prediction is wrong."""

    rows: WeightedMean
    p: Floats | None

    @property
    def outcomes(self) -> Floats:
        """Outcomes (N,), 0 or 1 but for rounding."""
        return self.rows.values if self.p is None else self.p - self.rows.values

    def test(self, inside: Ints, outside: Ints, alpha: float) -> ConfirmedRule:
        """Test a gap against 0 and against that of the other rows, or an error against that of the other rows."""
        mean = self.rows.at(inside)
        if len(inside) < SMALLEST or mean.lacking or mean.units < SMALLEST:
            reason = mean.lacking or f"fewer than {SMALLEST} rows or groups on this half"
            return ConfirmedRule(len(inside), mean.value if len(inside) else math.nan, -1.0, 1.0, 1.0, reason=reason)
        low, high = mean.bounds(alpha / 2, 0.0 if self.p is None else -1.0, 1.0)
        others = self.rows.at(outside)
        if self.p is None:
            p = self._p_more_errors(mean, others)
        else:
            p_own, p_others = self.p[inside], self.p[outside]
            p = max(self._p_gap(mean, p_own), self._p_further_from_zero(mean, others, p_own, p_others))
        return ConfirmedRule(len(inside), mean.value, low, high, p, others=others.value)

    @staticmethod
    def _p_gap(mean: WeightedMean, p: Floats) -> float:
        """Return the p-value of the gap.

        It is the larger one of two tests: that each row is calibrated, and that the mean gap is 0, as rows may be
        calibrated together without each being so.
        """
        if not mean.binomial:
            return mean.p_value(-1.0, 1.0)
        hits = float(p.sum() - mean.values.sum()) if mean.weights is None else float(mean.weights @ (p - mean.values))
        of_spread = two_sided(abs(mean.value) / mean.se, mean.units - 1) if mean.se > 0 else 0.0
        return max(chance(p, round(hits), mean.weights if mean.counts else None), of_spread)

    @staticmethod
    def _p_further_from_zero(mean: WeightedMean, others: WeightedMean, p_own: Floats, p_others: Floats) -> float:
        """Return the two-sided p-value that the gap is no further from 0 than that of the other rows; 1 if it is not.

        For independent rows it uses the larger of two variances: that of the rows, and that of outcomes with
        probability p minus the common gap, which is not 0 for rows without an error. Else it uses the score form.
        """
        if not len(p_others):
            return 0.0
        difference = mean.value - others.value
        if difference * mean.value <= 0 or others.lacking:
            return 1.0
        degrees = min(mean.units, others.units) - 1
        variance = mean.se**2 + others.se**2
        if not (mean.binomial and others.binomial):
            up, down = (mean.value + 1, 1 - others.value) if difference > 0 else (1 - mean.value, others.value + 1)
            variance += (mean.largest_share * up + others.largest_share * down) * abs(difference)
            return two_sided(abs(difference) / math.sqrt(variance), degrees)
        sizes = mean.effective, others.effective
        common = (mean.value * sizes[0] + others.value * sizes[1]) / sum(sizes)
        expected = 0.0
        for rows, stated, size in ((mean, p_own, sizes[0]), (others, p_others, sizes[1])):
            q = np.clip(stated - common, 0.0, 1.0)
            expected += average(q * (1 - q), rows.weights) / size
        return two_sided(abs(difference) / math.sqrt(max(variance, expected, 1e-300)), degrees)

    @staticmethod
    def _p_more_errors(mean: WeightedMean, others: WeightedMean) -> float:
        """Return the one-sided p-value: Fisher's exact test for independent rows, else the score form."""
        if mean.binomial and others.binomial and not mean.counts:
            hits = round(mean.value * mean.n)
            return fisher(hits, mean.n, hits + round(others.value * others.n), mean.n + others.n)
        difference = mean.value - others.value
        if difference <= 0:
            return 1.0
        reach = mean.largest_share * mean.value + others.largest_share * (1 - others.value)
        variance = mean.se**2 + others.se**2 + reach * difference
        return two_sided(difference / math.sqrt(variance), min(mean.units, others.units) - 1) / 2


def fisher(hits: int, n: int, marked: int, total: int) -> float:
    """Return P(X >= hits), with X the marked rows among n drawn from `total`, of which `marked` are (Fisher 1935)."""
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
    """Return the two-sided p-value of `hits` successes, where row i succeeds with probability p_i (n,).

    The tail of the sum is a saddlepoint approximation with the correction for integers (Lugannani & Rice 1980; Daniels
    1987), which stays accurate where nearly every p is 0 or 1.
    """
    w = np.ones(len(p)) if weights is None else weights
    return min(1.0, 2 * min(_tail(p, hits, w), _tail(1 - p, float(w.sum()) - hits, w)))


def _tail(p: Floats, hits: float, w: Floats) -> float:
    """Return P(X >= hits)."""
    hits -= float(w[p >= 1].sum())
    free = (p > 0) & (p < 1)
    p, w = p[free], w[free]
    if hits <= 0 or hits > w.sum() + 1e-9:
        return 1.0 if hits <= 0 else 0.0
    if hits > w.sum() - 1 + 1e-9:
        return math.exp(float(w @ np.log(p)))
    corrected, odds = hits - 0.5, np.log(p / (1 - p))
    t = root(lambda t: float(w @ np.exp(log_sigmoid(odds + t))) - corrected, -800.0, 800.0)
    if abs(t) < 1e-5:  # at the mean the formula below is 0 / 0
        return 0.5
    log_mgf = float(w @ np.logaddexp(np.log1p(-p), np.log(p) + t))
    signed_root = math.copysign(math.sqrt(max(2 * (t * corrected - log_mgf), 0.0)), t)
    variance = float(w @ np.exp(log_sigmoid(odds + t) + log_sigmoid(-odds - t)))
    slope = 2 * math.sinh(t / 2) * math.sqrt(variance) if abs(t) < 700 else math.inf
    density = math.exp(-signed_root * signed_root / 2) / math.sqrt(2 * math.pi)
    return min(max(normal_share(-signed_root) + density * (1 / slope - 1 / signed_root), 0.0), 1.0)


def halves(n: int, groups: Any, seed: int) -> Mask:
    """Choose the half that is searched, (N,), at random; groups stay together."""
    rng = np.random.default_rng([seed, 20])  # 20 keeps these numbers apart from other uses of the seed
    names, member = (range(n), slice(None)) if groups is None else np.unique(groups, return_inverse=True)
    chosen = np.zeros(len(names), bool)
    chosen[rng.permutation(len(names))[: len(names) // 2]] = True
    return np.asarray(chosen[member])


def detectable(variance: float, rows: float, candidates: int, tests: int, alpha: float) -> float:
    """Return the gap that would have been found with a probability of about 80 %.

    It is among the strongest on the searched half, and is confirmed on the other, with a probability of 90 % each.
    """
    spare = normal_quantile(0.9)
    to_be_searched = math.sqrt(2 * math.log(max(candidates, 2))) + spare  # the largest z of so many true rules
    z = max(to_be_searched, normal_quantile(1 - alpha / (2 * tests)) + spare)
    return score_bound(0.0, z, 1 / rows, variance / rows)
