"""Every rule of one or two conditions, ranked on the half that is searched."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.gate.conditions import Condition
from calibcli.predictions import Floats
from calibcli.slices.literals import Column

MOST = 2_000  # of the ranking, that are looked at for what is not explained by others
SAME = 2.0  # standard errors within which the gap of a pair is that of one of its conditions
OWN = 2.0  # standard errors that the rows of a rule outside those before it must show, and half of its gap
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """(column, literal) of each of its conditions, with its rank statistic on the searched half."""

    parts: tuple[tuple[int, int], ...]
    z: float = field(compare=False, default=0.0)

    def conditions(self, columns: Sequence[Column]) -> list[Condition]:
        """In the order of the columns."""
        return [one for column, literal in self.parts for one in columns[column].literals[literal]]

    def holds(self, columns: Sequence[Column], rows: Any) -> Mask:
        """Which of some rows it is of."""
        return np.asarray(np.logical_and.reduce([columns[c].holds(literal, rows) for c, literal in self.parts]))


@dataclass(frozen=True, eq=False)
class Evidence:
    """What rows show.

    Attributes:
        value: (N,) times its weight, whose mean is 0 where nothing is wrong.  variance: (N,) of it there.
        signed: whether both directions are wrong, and rules are compared with the other rows, too.
        weight: (N,).  total: the sums of weight, value and variance over the rows that are searched.
    """

    value: Floats
    variance: Floats
    signed: bool = True
    weight: Floats | None = None
    total: tuple[float, float, float] | None = None

    def over(self, rows: npt.NDArray[np.int64]) -> Evidence:
        """With the totals of the rows that are searched."""
        return replace(self, total=self._sums(rows))

    def _sums(self, rows: Any) -> tuple[float, float, float]:
        weight = np.ones(len(self.value))[rows] if self.weight is None else self.weight[rows]
        return float(weight.sum()), float(self.value[rows].sum()), float(self.variance[rows].sum())

    def z(self, rows: Any) -> float:
        """The strength of some rows."""
        return float(self.strength(*(np.float64(part) for part in self._sums(rows))))

    def strength(self, weight: Any, value: Any, variance: Any) -> Any:
        """The mean over its standard error, from sums over the rows of rules; of a gap the smaller of this and that of
        the difference from the other rows, 0 where the two have different signs: what all rows share is no slice.
        """
        z = np.divide(value, np.sqrt(variance), out=np.zeros_like(value), where=variance > 1e-12)
        if not self.signed:
            return z
        if self.total is None:
            return np.abs(z)
        others = [all_rows - here for all_rows, here in zip(self.total, (weight, value, variance), strict=True)]
        here, there = (np.where(mass > 0, mass, np.inf) for mass in (weight, others[0]))
        apart, spread = value / here - others[1] / there, variance / here**2 + others[2] / there**2
        against = np.divide(apart, np.sqrt(np.abs(spread)), out=np.zeros_like(apart), where=spread > 1e-300)
        return np.where(z * against > 0, np.minimum(np.abs(z), np.abs(against)), 0.0)


def ranked(
    columns: Sequence[Column], evidence: Evidence, rows: npt.NDArray[np.int64], least: int, depth: int
) -> tuple[list[Rule], int]:
    """Rules with `least` rows or more by what they show, the strongest first; and how many there are.

    A table of each pair of columns has the sums of all its cells, and with the 0/1 matrices of their literals on both
    sides those of every rule of the pair.
    """
    value, variance = evidence.value[rows], evidence.variance[rows]
    weight = None if evidence.weight is None else evidence.weight[rows]
    codes = [column.codes[rows] for column in columns]
    found: list[tuple[Floats, npt.NDArray[np.int64], tuple[int, ...]]] = []
    sets = [c for size in range(1, depth + 1) for c in itertools.combinations(range(len(columns)), size)]
    count = 0
    for chosen in sets:
        n, total, spread = (_sums(columns, codes, chosen, weights) for weights in (None, value, variance))
        mass = n if weight is None else _sums(columns, codes, chosen, weight)
        z = evidence.strength(mass, total, spread)
        enough = (n >= least) & (n <= len(rows) - least)
        count += int(enough.sum())
        z = np.where(enough, z, -1.0)
        best = np.argsort(-z, kind="stable", axis=None)[:MOST]
        found.append((z.ravel()[best], best, chosen))
    flat = [
        (float(z), chosen, int(at))
        for strengths, places, chosen in found
        for z, at in zip(strengths, places, strict=True)
        if z > 0
    ]
    flat.sort(key=lambda entry: -entry[0])
    return [Rule(_parts(columns, chosen, at), z) for z, chosen, at in flat[:MOST]], count


def _sums(columns: Sequence[Column], codes: Sequence[Any], chosen: tuple[int, ...], weights: Floats | None) -> Floats:
    """(literals, literals of the second) sums over rows; (literals,) of one column."""
    sizes = [columns[i].cells.shape[1] for i in chosen]
    cell = codes[chosen[0]] if len(chosen) == 1 else codes[chosen[0]] * sizes[1] + codes[chosen[1]]
    table = np.bincount(cell, weights, int(np.prod(sizes))).reshape(sizes)
    for axis, i in enumerate(chosen):
        table = np.moveaxis(np.tensordot(columns[i].cells, table, axes=(1, axis)), 0, axis)
    return np.asarray(table, dtype=np.float64)


def _parts(columns: Sequence[Column], chosen: tuple[int, ...], at: int) -> tuple[tuple[int, int], ...]:
    places = np.unravel_index(at, [len(columns[i].literals) for i in chosen])
    return tuple((i, int(place)) for i, place in zip(chosen, places, strict=True))


def distinct(
    rules: Sequence[Rule], columns: Sequence[Column], evidence: Evidence, rows: npt.NDArray[np.int64], most: int
) -> list[Rule]:
    """The strongest rules that say something of their own, each as short as it can be.

    Of a pair of conditions one alone is taken where the rows that the other leaves out have the same gap. A rule whose
    rows outside those before it show little is one of them in other words.
    """
    kept: list[Rule] = []
    covered = np.zeros(len(rows), bool)
    for rule in rules:
        held = rule.holds(columns, rows)
        left = evidence.over(rows[~covered]) if evidence.signed else evidence
        if kept and not _own(evidence, left, rows[held], rows[held & ~covered]):
            continue
        rule = _shortest(rule, columns, evidence, rows, held)
        if rule in kept:
            continue
        kept.append(rule)
        covered |= rule.holds(columns, rows)
        if len(kept) == most:
            break
    return kept


def _own(evidence: Evidence, left: Evidence, whole: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]) -> bool:
    """Whether the rows that no rule before it has show what all of them do, among the rows that are left, too."""
    if not len(rest) or left.z(rest) < OWN:
        return False
    beyond = _gap(evidence, rest)[0] - _shared(left)
    return bool(beyond / (_gap(evidence, whole)[0] - _shared(evidence)) >= 0.5)


def _shared(evidence: Evidence) -> float:
    """The gap that all rows have."""
    return evidence.total[1] / evidence.total[0] if evidence.signed and evidence.total is not None else 0.0


def _shortest(
    rule: Rule, columns: Sequence[Column], evidence: Evidence, rows: npt.NDArray[np.int64], held: Mask
) -> Rule:
    for part in rule.parts if len(rule.parts) > 1 else ():
        one = Rule((part,), rule.z)
        rest = one.holds(columns, rows) & ~held
        if not rest.any():
            return one
        gaps, spreads = zip(*(_gap(evidence, rows[some]) for some in (held, rest)), strict=True)
        if abs(gaps[0] - gaps[1]) < SAME * np.sqrt(sum(spreads)):
            return one
    return rule


def _gap(evidence: Evidence, rows: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Mean and its variance."""
    return float(evidence.value[rows].mean()), float(evidence.variance[rows].sum()) / len(rows) ** 2
