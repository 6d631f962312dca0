"""What is kept of the rows that one rule, or one slice of it, was watched on: wealth, sums, and no rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.predictions import Floats, Ints
from calibcli.spec import Range
from calibcli.watch import bets

L = len(bets.FRACTIONS)
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
            for i, stake in enumerate(bets.stakes(room, watched.high - watched.low)):
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
        strategies = len(bets.shares(b, L)) if watched.bins else a * L
        shapes = [(b, a, L)] * 3 + [(L,), (strategies,), (b,), (b, 2), (b, 2)]
        fail, tonight, passed, seen, drift, gaps, sums, late = (np.zeros((*front, *shape)) for shape in shapes)
        return cls(watched, fail, tonight, passed, seen, drift - math.inf, gaps, sums, late)

    def add(self, fail: Floats, passed: Floats, sums: Floats) -> None:
        """Rows of tonight, as `tables` has them."""
        self.tonight, self.passed = self.tonight + fail, self.passed + passed
        self.sums_tonight = self.sums_tonight + sums

    def close(self) -> None:
        """End the night."""
        self.drift, self.night = bets.restarted(self.drift, self.night, self._anew()), self.night + 1
        if self.watched.bins:
            self.seen = self.seen + bets.on_seen(self.tonight, self.gaps)
            self.gaps = bets.MEMORY * self.gaps + self.sums_tonight[..., 1]
        self.fail, self.sums = self.fail + self.tonight, self.sums + self.sums_tonight
        self.tonight, self.sums_tonight = np.zeros_like(self.tonight), np.zeros_like(self.sums_tonight)

    def evidence(self) -> dict[str, Floats]:
        """(...) log E against a rule that is kept (`fail`), against one that is broken (`pass`), and for a night from
        which on it was broken (`drift`).
        """
        table = self.fail + self.tonight
        if self.watched.bins:
            seen = self.seen + bets.on_seen(self.tonight, self.gaps)
            fail, kept = bets.against(table, seen), bets.within(self.passed)
            shares: Floats | None = bets.shares(self.watched.size, L)
        else:
            fail, shares = bets.mixed(_flat(table)), None
            kept = bets.mixed(self.passed[..., 0, :, :]).min(axis=-1)
        began = bets.mixed(bets.restarted(self.drift, self.night, self._anew()), shares)
        drift = np.logaddexp(began, bets.unbegun(self.night))
        return {"fail": fail, "pass": kept, "drift": drift}

    def _anew(self) -> Floats:
        return bets.anew(self.tonight, self.gaps) if self.watched.bins else _flat(self.tonight)

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
