"""Bets against a rule (e-processes), and the streams that hold their wealth.

Proofs: docs/statistics/bets.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.core.options import Range
from calibcli.scores.predictions import Floats, Ints

# E-processes: the wealth of bets against a rule, which may be looked at at any time, as often as one likes.
#
# The claim that a mean is at most m is bet against with a factor of 1 + λ(x - m) per row. If the claim is true, the
# factor has mean 1 or less, so the product over rows is an e-process: it ever reaches 1/α with probability at most α
# (Ville 1939), whenever and however often it is looked at (Waudby-Smith & Ramdas 2024). λ lies on a fixed grid, and the
# products of the grid are averaged, as a mean of e-processes is one. All arrays are logarithms of wealth, with any
# dimensions in front.
#
# - A mean has one product per λ.
# - The calibration error Σ_b |d_b|: for fixed signs s, the mean of x = s(b) r, r = p - y, is at most the error. A table
#   (..., B, 2, L) has the wealth of each bin, sign and λ; a set of signs takes one of the two of every bin.
# - Drift: new products start each night, those of night k with a share of the initial wealth, `log_share_starting(k)`.
#   The shares of all nights add up to 1, so the sum is an e-process, and its false alarms over all nights have
#   probability at most α. With equal shares it would be the sum of Shiryaev and Roberts, whose bound grows with the
#   nights (Shin, Ramdas & Rinaldo 2024); here the shares within a year are equal, and those of later years fall.

FRACTIONS = 0.95 * 0.5 ** np.arange(8)
"""Bets λ, as shares of the largest one that cannot lose all wealth."""
LEAST = 1e-3  # smallest distance of a limit from the end of the range of a row, as a share of it; it bounds λ
SHARES = (0.5, 0.2, 0.3)
"""Shares of the wealth on gaps of one sign, on a sign that changes once with confidence, and on signs seen before."""
YEAR = 365  # nights
MEMORY = 0.99  # factor per night on the gaps of earlier nights, whose signs tonight is bet on


def stakes(room: float, width: float) -> Floats:
    """Return the grid of λ, (L,), for rows that lie at most `room` on the losing side, in a range of this width."""
    return np.asarray(FRACTIONS / max(room, LEAST * width))


def log_mean(wealth: Floats, shares: Floats | None = None) -> Floats:
    """Return the logarithm of the mean wealth over the last axis, or of the sum with given shares: (...)."""
    if shares is None:
        shares = np.full(wealth.shape[-1], 1 / wealth.shape[-1])
    parts = wealth + np.log(shares)
    top = np.maximum(parts.max(axis=-1), -1e300)
    return np.asarray(top + np.log(np.exp(parts - top[..., None]).sum(axis=-1)))  # (..., S) over S


def evidence_above(table: Floats, seen: Floats) -> Floats:
    """Return log E (...) against "the error is at most τ", from the wealth (..., B, 2, L) of gains s r - τ.

    Args:
        seen: (..., L) wealth of bets on the signs that earlier nights showed, see `wealth_on_seen_signs`. The other
            sets of signs are fixed in advance, and their wealth does not depend on the order of rows.
    """
    return log_mean(_wealth_by_strategy(table, seen), strategy_shares(table.shape[-3], table.shape[-1]))


def wealth_on_seen_signs(tonight: Floats, gaps: Floats) -> Floats:
    """Return tonight's wealth (..., L) of bets on the signs of the gaps (..., B) of earlier nights."""
    # (..., B, 2, L) tonight: the first of two is a bet on gaps above 0
    return np.asarray(np.where(gaps[..., None] >= 0, tonight[..., 0, :], tonight[..., 1, :]).sum(axis=-2))


def strategy_wealth(tonight: Floats, gaps: Floats) -> Floats:
    """Return tonight's wealth (..., S) of each strategy, for `add_start`."""
    return _wealth_by_strategy(tonight, wealth_on_seen_signs(tonight, gaps))


def strategy_shares(bins: int, count: int) -> Floats:
    """Return the share of the wealth (S,) of each strategy of `strategy_wealth`, for B bins."""
    parts = zip(SHARES, (2, 2 * max(bins - 1, 1), 1), strict=True)
    return np.concatenate([np.full(n * count, share / (n * count)) for share, n in parts])


def _wealth_by_strategy(table: Floats, seen: Floats) -> Floats:
    """Return the wealth (..., S) of each set of signs: all equal, those that change once, and those seen before."""
    sums = np.cumsum(table, axis=-3)  # (..., B, 2, L) over bins up to each
    total = sums[..., -1, :, :]  # (..., 2, L)
    turned = total[..., None, :, :]  # (..., 1, 2, L)
    if table.shape[-3] > 1:
        below = sums[..., :-1, :, :]  # (..., B - 1, 2, L)
        turned = below + (turned - below)[..., ::-1, :]  # one sign below, the other above
    parts = [total, turned, seen]
    front = table.shape[:-3]
    return np.concatenate([p.reshape(*front, -1) for p in parts], axis=-1)


def evidence_below(table: Floats) -> Floats:
    """Return log E (...) against "the error is at least τ", from the wealth (..., B, 2, L) of gains τ - s r.

    Under the claim some signs s have mean s r >= τ. The least wealth over all 2^B sets of signs is at most theirs, and
    is found bin by bin.
    """
    return log_mean(table.min(axis=-2).sum(axis=-2))


def log_share_starting(night: int) -> float:
    """Return the logarithm of the share of wealth on a drift from this night on.

    Year y has 1 / (y (y + 1)), the first a half, in equal parts for its nights.
    """
    year = (night - 1) // YEAR + 1
    return -math.log(YEAR * year * (year + 1))


def log_share_unstarted(night: int) -> float:
    """Return the logarithm of the wealth kept for drifts from later nights on, of this year and all later ones."""
    year, day = divmod(night - 1, YEAR)
    return math.log(1 / (year + 1) - (day + 1) * math.exp(log_share_starting(night)))


def add_start(level: Floats, night: int, tonight: Floats) -> Floats:
    """Return the wealth (..., S) summed over starts, after a night.

    It is the sum over earlier starts (-inf before the first) plus this night's share, times tonight's wealth.
    """
    return np.logaddexp(level, log_share_starting(night)) + tonight


# A stream keeps wealth and sums of the rows of one rule and slice, and no rows.

L = len(FRACTIONS)
Side = Literal["max", "min", "zero"]


@dataclass(frozen=True, kw_only=True)
class WatchedRule:
    """A rule that is watched.

    Attributes:
        rule: its text, `ece <= 0.03`.  metric: canonical spec.
        side, limit: as in `gate.judging.LimitRule`.
        low, high: range of the value of a row.
        bins: number of bins of a binned calibration error; 0 for a mean over rows.
        by, values: column whose values are watched, each with its own stream, and those values.
        since: for each value, the number of the update, of those that brought new values, which it came with, from 1;
            empty where the values were fixed when the watch began. See `family`.
        baseline: whether rows are differences to a baseline.
        kind: what the number measures, in words.  unit, better: traits of the metric.
    """

    rule: str
    metric: str
    side: Side
    limit: float
    low: float
    high: float
    bins: Annotated[int, Range(0, 1000)] = 0
    by: str = ""
    values: Sequence[str] = ()
    since: Sequence[Annotated[int, Range(1)]] = ()
    baseline: bool = False
    kind: str = ""
    unit: str = ""
    better: str = ""

    @property
    def size(self) -> int:
        """Number of cells that rows are sorted into."""
        return max(self.bins, 1)

    def family(self, value: str = "") -> int:
        """Return the factor by which the stream of a value needs more evidence than 1 / α for an alarm.

        Values that were fixed when the watch began, n of them, have α / n each. Else those that came with the k-th
        update which brought new ones, n of them, have α / (k (k + 1) n) each, where k is 1 on the first night: a half
        of α, then a sixth, a twelfth, ... All shares together are at most Σ_k α / (k (k + 1)) = α. They depend on the
        column alone, never on outcomes. So given the column they are constants, a stream is an e-process from its
        first row on, which exceeds 1 / share with a probability of at most its share (Ville 1939), and any of them
        does so with a probability of at most α, over all looks together, however many values come.
        """
        if not self.by:
            return 1
        if not self.since:
            return max(len(self.values), 1)
        k = self.since[list(self.values).index(value)] if value in self.values else max(self.since)
        return k * (k + 1) * max(list(self.since).count(k), 1)

    def widened(self, values: Sequence[str]) -> WatchedRule:
        """Return the rule with values that an update brought."""
        came = [max(self.since, default=0) + 1] * len(values)
        return replace(self, values=[*self.values, *values], since=[*self.since, *came])

    @property
    def claims(self) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """(sign, limit) of the gains sign * (x - limit) against "the rule is kept", and against "it is broken"."""
        m = self.limit
        if self.bins:  # of both signs s: s r - m, and m - s r
            return [(1, m), (-1, -m)], [(-1, m), (1, -m)]
        fails = {"max": [(1, m)], "min": [(-1, m)], "zero": [(1, m), (-1, -m)]}[self.side]
        return fails, [(-sign, limit) for sign, limit in fails]

    @property
    def alternatives(self) -> int:
        return len(self.claims[0])


def tables(
    watched: WatchedRule, cell: Ints, value: Floats, weight: Floats | None, cells: int, high: Floats | None = None
) -> tuple[Floats, Floats]:
    """Compute the log wealth (cells, A, L) of rows against "the rule is kept", and against "the rule is broken".

    Args:
        cell: (n,) cell of each row.  value: (n,).  weight: (n,) number of rows that each one counts for, or None.
        high: (n,) where the values lie between `value` and `high`: each bet gets the least wealth that they may give.
    """
    wealths = []
    for claims in watched.claims:
        table = np.empty((cells, len(claims), L))
        for a, (sign, claimed) in enumerate(claims):
            room = claimed - watched.low if sign > 0 else watched.high - claimed
            gain = sign * ((value if sign > 0 or high is None else high) - claimed)
            for i, stake in enumerate(stakes(room, watched.high - watched.low)):
                wealth = np.log1p(stake * gain)
                table[:, a, i] = np.bincount(cell, wealth if weight is None else weight * wealth, cells)
        wealths.append(table)
    return wealths[0], wealths[1]


@dataclass(eq=False)
class Stream:
    """The evidence on one rule and slice. Arrays may have any dimensions (...) in front.

    Attributes:
        fail: (..., B, A, L) log wealth against "the rule is kept", before tonight.  tonight: that of tonight.
        passed: (..., B, A, L) log wealth against "the rule is broken".
        seen: (..., L) log wealth of bets on the signs that earlier nights showed.  drift: (..., S) sums over starts.
        gaps: (..., B) Σ r of earlier nights, discounted with time.
        sums: (..., B, 2) Σ w, Σ w x before tonight.  sums_tonight: those of tonight.  night: its number, from 1.
        crossed: by claim, the first night on which it was decided.
    """

    watched: WatchedRule
    fail: Floats
    tonight: Floats
    passed: Floats
    seen: Floats
    drift: Floats
    gaps: Floats
    sums: Floats
    sums_tonight: Floats
    night: int = 1
    crossed: dict[str, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, watched: WatchedRule, *front: int) -> Stream:
        """Start a stream without rows."""
        b, a = watched.size, watched.alternatives
        strategies = len(strategy_shares(b, L)) if watched.bins else a * L
        shapes = [(b, a, L)] * 3 + [(L,), (strategies,), (b,), (b, 2), (b, 2)]
        fail, tonight, passed, seen, drift, gaps, sums, late = (np.zeros((*front, *shape)) for shape in shapes)
        return cls(watched, fail, tonight, passed, seen, drift - math.inf, gaps, sums, late)

    def add(self, fail: Floats, passed: Floats, sums: Floats) -> None:
        """Add rows of tonight, in the form of `tables`."""
        self.tonight, self.passed = self.tonight + fail, self.passed + passed
        self.sums_tonight = self.sums_tonight + sums

    def close(self) -> None:
        """End the night."""
        self.drift, self.night = add_start(self.drift, self.night, self._strategy_wealth()), self.night + 1
        if self.watched.bins:
            self.seen = self.seen + wealth_on_seen_signs(self.tonight, self.gaps)
            self.gaps = MEMORY * self.gaps + self.sums_tonight[..., 1]  # Σ w x of (..., B, 2)
        self.fail, self.sums = self.fail + self.tonight, self.sums + self.sums_tonight
        self.tonight, self.sums_tonight = np.zeros_like(self.tonight), np.zeros_like(self.sums_tonight)

    def log_evidence(self) -> dict[str, Floats]:
        """Return log E (...) against three claims.

        `fail` is against "the rule is kept", `pass` against "it is broken", `drift` against "it is kept on every
        night".
        """
        table = self.fail + self.tonight
        if self.watched.bins:
            seen = self.seen + wealth_on_seen_signs(self.tonight, self.gaps)
            fail, passing = evidence_above(table, seen), evidence_below(self.passed)
            shares: Floats | None = strategy_shares(self.watched.size, L)
        else:
            fail, shares = log_mean(_alternatives_together(table)), None
            passing = log_mean(self.passed[..., 0, :, :]).min(axis=-1)  # of (..., 1, A, L): over L, then A
        began = log_mean(add_start(self.drift, self.night, self._strategy_wealth()), shares)
        drift = np.logaddexp(began, log_share_unstarted(self.night))
        return {"fail": fail, "pass": passing, "drift": drift}

    def _strategy_wealth(self) -> Floats:
        return strategy_wealth(self.tonight, self.gaps) if self.watched.bins else _alternatives_together(self.tonight)

    @property
    def rows(self) -> float:
        """Number of independent rows, or groups."""
        return float((self.sums + self.sums_tonight)[..., 0].sum())

    def value(self, tonight: bool = False) -> float:
        """Return the metric on all rows, or on those of tonight; nan without rows."""
        sums = self.sums_tonight if tonight else self.sums + self.sums_tonight
        weight, total = sums[:, 0].sum(), sums[:, 1]
        return float((np.abs(total) if self.watched.bins else total).sum() / weight) if weight > 0 else math.nan

    def arrays(self) -> dict[str, Floats]:
        """Return the arrays by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}


def _alternatives_together(table: Floats) -> Floats:
    """Reshape the wealth (..., 1, A, L) of a mean to (..., A L)."""
    return table.reshape(*table.shape[:-3], -1)  # (..., A L)


def thresholds(watched: WatchedRule, alpha: float, per_year: float, value: str = "") -> dict[str, float]:
    """Return the log E at which each claim is made; alarms on slices share the error probability, as in a gate.

    `per_year` bounds the chance of a false alarm of drift in all years together, and so in each: E of a drift is the
    mean over its starts, in whatever year, and reaches 1 / per_year with at most this chance while the rule is kept.
    """
    family = watched.family(value)
    return {
        "fail": math.log(family / alpha),
        "pass": math.log(1 / alpha),
        "drift": math.log(family / per_year),
    }


def joined(stream: Stream, other: Stream) -> Stream:
    """Merge the rows of two streams in the same night: wealth of independent rows multiplies, and sums add.

    Where both have earlier nights, each has its own e-process of drift, and the mean of the two is one.
    """
    arrays: dict[str, Any] = {name: value + other.arrays()[name] for name, value in stream.arrays().items()}
    old = [s for s in (stream, other) if np.isfinite(s.drift).any()]
    arrays["drift"] = old[0].drift if len(old) == 1 else np.logaddexp(stream.drift, other.drift) - math.log(2)
    return Stream(
        stream.watched, **arrays, night=max(stream.night, other.night), crossed={**other.crossed, **stream.crossed}
    )
