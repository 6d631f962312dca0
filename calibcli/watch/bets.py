"""Bets against a rule (e-processes), and what is kept of the rows that each rule was watched on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.core.options import Range
from calibcli.scores.predictions import Floats, Ints

# E-processes: the wealth of bets against a rule, of which a look at any time, and as often as one likes, is honest.
#
# Who claims that a mean is at most m may be bet against with 1 + λ(x - m) per row, which grows in no mean if that is
# true. The product over rows is an e-process: that it ever reaches 1/α has probability α at the most (Ville 1939), so
# it
# may be looked at after every row, for ever (Waudby-Smith & Ramdas 2024). λ lies on a fixed grid whose products are
# mixed
# equally: a mean of e-processes is one. All arrays are logarithms of wealth, with any dimensions in front.
#
# - A mean: one product per λ.
# - The calibration error Σ_b |d_b|: for fixed signs s the mean of x = s(b) r, r = p - y, is at most the error. A
# table
#   (..., B, 2, L) has the wealth of each bin, sign and λ; a set of signs takes one of the two of every bin.
# - Drift: products that begin anew each night, those of night k with a share of the first wealth, `begun(k)`. The
# shares
#   of all nights add up to 1, so the sum is an e-process of its own: in all nights together it reaches 1/α with
#   probability α at the most. With equal shares it would be the sum of Shiryaev and Roberts, whose bound grows with
# the
#   nights (Shin, Ramdas & Rinaldo 2024); here the shares of a year are equal, and those of later years fall.

FRACTIONS = 0.95 * 0.5 ** np.arange(8)
"""Bets, as shares of the largest that cannot lose everything."""
LEAST = 1e-3  # of the range of a row: the least distance that a limit is taken to have from its end
SHARES = (0.5, 0.2, 0.3)
"""Of the wealth: on gaps of one sign, on a sign that changes once from low to high confidence, on those seen before."""
YEAR = 365  # nights
MEMORY = 0.99  # per night, of the gaps whose signs tonight is bet on


def stakes(room: float, width: float) -> Floats:
    """(L,) λ of the grid, of rows that may lie `room` on the losing side of the limit, in a range of this width."""
    return np.asarray(FRACTIONS / max(room, LEAST * width))


def mixed(wealth: Floats, shares: Floats | None = None) -> Floats:
    """(...) logarithm of the mean over the last axis, or of the sum with these shares."""
    if shares is None:
        shares = np.full(wealth.shape[-1], 1 / wealth.shape[-1])
    parts = wealth + np.log(shares)
    top = np.maximum(parts.max(axis=-1), -1e300)
    return np.asarray(top + np.log(np.exp(parts - top[..., None]).sum(axis=-1)))


def against(table: Floats, seen: Floats) -> Floats:
    """(...) log E against "the error is at most τ", of the wealth (..., B, 2, L) of gains s r - τ.

    Args:
        seen: (..., L) wealth of bets on the signs that earlier nights showed, see `on_seen`; the other signs are fixed
            in advance, and their wealth is that of all rows in any order.
    """
    return mixed(_strategies(table, seen), strategy_shares(table.shape[-3], table.shape[-1]))


def on_seen(tonight: Floats, gaps: Floats) -> Floats:
    """(..., L) wealth of tonight's (..., B, 2, L) on the signs of the gaps (..., B) of earlier nights."""
    return np.asarray(np.where(gaps[..., None] >= 0, tonight[..., 0, :], tonight[..., 1, :]).sum(axis=-2))


def anew(tonight: Floats, gaps: Floats) -> Floats:
    """(..., S) wealth of what is bet on tonight, for `restarted`."""
    return _strategies(tonight, on_seen(tonight, gaps))


def strategy_shares(bins: int, count: int) -> Floats:
    """(S,) shares of the wealth of B bins that go to each strategy of `anew`."""
    parts = zip(SHARES, (2, 2 * max(bins - 1, 1), 1), strict=True)
    return np.concatenate([np.full(n * count, share / (n * count)) for share, n in parts])


def _strategies(table: Floats, seen: Floats) -> Floats:
    """(..., S): all + and all -, signs that change once between bins, both ways, and those seen."""
    sums = np.cumsum(table, axis=-3)
    total = sums[..., -1, :, :]
    turned = total[..., None, :, :]
    if table.shape[-3] > 1:
        below = sums[..., :-1, :, :]
        turned = below + (turned - below)[..., ::-1, :]
    parts = [total, turned, seen]
    front = table.shape[:-3]
    return np.concatenate([p.reshape(*front, -1) for p in parts], axis=-1)


def within(table: Floats) -> Floats:
    """(...) log E against "the error is at least τ", of the wealth (..., B, 2, L) of gains τ - s r.

    There are signs s with mean s r >= τ, and the least wealth over all 2^B sets of them is no more than theirs; it
    falls apart into bins.
    """
    return mixed(table.min(axis=-2).sum(axis=-2))


def begun(night: int) -> float:
    """Logarithm of the share of the wealth that is bet on a drift from this night on: year y has 1 / (y (y + 1)),
    the first a half, and its nights equal parts.
    """
    year = (night - 1) // YEAR + 1
    return -math.log(YEAR * year * (year + 1))


def unbegun(night: int) -> float:
    """Logarithm of the wealth that is kept for drifts from later nights on: of this year, and of all later."""
    year, day = divmod(night - 1, YEAR)
    return math.log(1 / (year + 1) - (day + 1) * math.exp(begun(night)))


def restarted(level: Floats, night: int, tonight: Floats) -> Floats:
    """(..., S) the sum over starts after a night: that of earlier nights (-inf before the first) and this one's share,
    times tonight's wealth.
    """
    return np.logaddexp(level, begun(night)) + tonight


# What is kept of the rows that one rule, or one slice of it, was watched on: wealth, sums, and no rows.


L = len(FRACTIONS)
Side = Literal["max", "min", "zero"]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A rule as it is watched.

    Attributes:
        rule: its text, `ece <= 0.03`.  metric: canonical spec.
        side, limit: as of `gate.limits.Rule`.
        low, high: what a row may be.
        bins: of a binned calibration error; 0 of a mean over rows.
        by, values: column whose values are watched, each with a stream of its own, and those values.
        baseline: rows are differences to a baseline.
        kind: what the number is of, for the reader.
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
    baseline: bool = False
    kind: str = ""
    unit: str = ""
    better: str = ""

    @property
    def size(self) -> int:
        """Cells that rows are sorted into."""
        return max(self.bins, 1)

    @property
    def family(self) -> int:
        """Streams that are judged together."""
        return max(len(self.values), 1) if self.by else 1

    @property
    def claims(self) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """(sign, limit) of the gains sign x (x - limit) against the claim that the rule is kept, and that it is not."""
        m = self.limit
        if self.bins:  # of both signs s: s r - m, and m - s r
            return [(1, m), (-1, -m)], [(-1, m), (1, -m)]
        fails = {"max": [(1, m)], "min": [(-1, m)], "zero": [(1, m), (-1, -m)]}[self.side]
        return fails, [(-sign, at) for sign, at in fails]

    @property
    def alternatives(self) -> int:
        return len(self.claims[0])


def tables(watched: Watched, cell: Ints, value: Floats, weight: Floats | None, cells: int) -> tuple[Floats, Floats]:
    """(cells, A, L) log wealth of rows against the claims that the rule is kept, and that it is broken.

    Args:
        cell: (n,) where each row counts.  value: (n,).  weight: (n,) rows that each stands for, or None.
    """
    found = []
    for claims in watched.claims:
        table = np.empty((cells, len(claims), L))
        for a, (sign, at) in enumerate(claims):
            room = at - watched.low if sign > 0 else watched.high - at
            gain = sign * (value - at)
            for i, stake in enumerate(stakes(room, watched.high - watched.low)):
                wealth = np.log1p(stake * gain)
                table[:, a, i] = np.bincount(cell, wealth if weight is None else weight * wealth, cells)
        found.append(table)
    return found[0], found[1]


@dataclass(eq=False)
class Stream:
    """Of one rule and slice. Arrays may have any dimensions (...) in front.

    Attributes:
        fail: (..., B, A, L) log wealth against "the rule is kept", without tonight's.  tonight: tonight's.
        passed: (..., B, A, L) against "the rule is broken".
        seen: (..., L) of bets on the signs that earlier nights showed.  drift: (..., S) sums over starts.
        gaps: (..., B) Σ r of earlier nights, those long ago for less.
        sums: (..., B, 2) Σ w, Σ w x.  sums_tonight: of tonight.  night: its number, from 1.
    """

    watched: Watched
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
    def begin(cls, watched: Watched, *front: int) -> Stream:
        """Without rows."""
        b, a = watched.size, watched.alternatives
        strategies = len(strategy_shares(b, L)) if watched.bins else a * L
        shapes = [(b, a, L)] * 3 + [(L,), (strategies,), (b,), (b, 2), (b, 2)]
        fail, tonight, passed, seen, drift, gaps, sums, late = (np.zeros((*front, *shape)) for shape in shapes)
        return cls(watched, fail, tonight, passed, seen, drift - math.inf, gaps, sums, late)

    def add(self, fail: Floats, passed: Floats, sums: Floats) -> None:
        """Rows of tonight, as `tables` has them."""
        self.tonight, self.passed = self.tonight + fail, self.passed + passed
        self.sums_tonight = self.sums_tonight + sums

    def close(self) -> None:
        """End the night."""
        self.drift, self.night = restarted(self.drift, self.night, self._anew()), self.night + 1
        if self.watched.bins:
            self.seen = self.seen + on_seen(self.tonight, self.gaps)
            self.gaps = MEMORY * self.gaps + self.sums_tonight[..., 1]
        self.fail, self.sums = self.fail + self.tonight, self.sums + self.sums_tonight
        self.tonight, self.sums_tonight = np.zeros_like(self.tonight), np.zeros_like(self.sums_tonight)

    def evidence(self) -> dict[str, Floats]:
        """(...) log E against a rule that is kept (`fail`), against one that is broken (`pass`), and for a night from
        which on it was broken (`drift`).
        """
        table = self.fail + self.tonight
        if self.watched.bins:
            seen = self.seen + on_seen(self.tonight, self.gaps)
            fail, kept = against(table, seen), within(self.passed)
            shares: Floats | None = strategy_shares(self.watched.size, L)
        else:
            fail, shares = mixed(_flat(table)), None
            kept = mixed(self.passed[..., 0, :, :]).min(axis=-1)
        began = mixed(restarted(self.drift, self.night, self._anew()), shares)
        drift = np.logaddexp(began, unbegun(self.night))
        return {"fail": fail, "pass": kept, "drift": drift}

    def _anew(self) -> Floats:
        return anew(self.tonight, self.gaps) if self.watched.bins else _flat(self.tonight)

    @property
    def rows(self) -> float:
        """Independent rows, or groups."""
        return float((self.sums + self.sums_tonight)[..., 0].sum())

    def value(self, tonight: bool = False) -> float:
        """The metric on all rows, or on tonight's; nan without rows."""
        sums = self.sums_tonight if tonight else self.sums + self.sums_tonight
        weight, total = sums[:, 0].sum(), sums[:, 1]
        return float((np.abs(total) if self.watched.bins else total).sum() / weight) if weight > 0 else math.nan

    def arrays(self) -> dict[str, Floats]:
        """By name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, np.ndarray)}


def _flat(table: Floats) -> Floats:
    """(..., A L) of a mean's (..., 1, A, L)."""
    return table.reshape(*table.shape[:-3], -1)


def thresholds(watched: Watched, alpha: float, per_year: float) -> dict[str, float]:
    """log E at which each claim is made: of slices, what is wrong shares the error probability, as in a gate."""
    return {
        "fail": math.log(watched.family / alpha),
        "pass": math.log(1 / alpha),
        "drift": math.log(watched.family / per_year),
    }


def joined(one: Stream, other: Stream) -> Stream:
    """Both streams' rows, of the same night: wealth of independent rows multiplies, and sums add.

    Where both have earlier nights, an e-process of drift each, the mean of the two is one.
    """
    found: dict[str, Any] = {name: value + other.arrays()[name] for name, value in one.arrays().items()}
    old = [s for s in (one, other) if np.isfinite(s.drift).any()]
    found["drift"] = old[0].drift if len(old) == 1 else np.logaddexp(one.drift, other.drift) - math.log(2)
    return Stream(one.watched, **found, night=max(one.night, other.night), crossed={**other.crossed, **one.crossed})
