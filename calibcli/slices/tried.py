"""Every rule of one or two conditions, ranked on the half that is searched."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    """What rows show: the value whose mean is 0 where nothing is wrong, and its variance there; (N,) each."""

    value: Floats
    variance: Floats
    signed: bool = True  # whether both directions are wrong

    def z(self, rows: Any) -> float:
        """Σ value over its standard error."""
        total, spread = float(self.value[rows].sum()), float(self.variance[rows].sum())
        z = total / np.sqrt(spread) if spread > 0 else 0.0
        return abs(z) if self.signed else z


def ranked(
    columns: Sequence[Column], evidence: Evidence, rows: npt.NDArray[np.int64], least: int, depth: int
) -> tuple[list[Rule], int]:
    """Rules with `least` rows or more by what they show, the strongest first; and how many there are.

    A table of each pair of columns has the sums of all its cells, and with the 0/1 matrices of their literals on both
    sides those of every rule of the pair.
    """
    value, variance = evidence.value[rows], evidence.variance[rows]
    codes = [column.codes[rows] for column in columns]
    found: list[tuple[Floats, npt.NDArray[np.int64], tuple[int, ...]]] = []
    sets = [c for size in range(1, depth + 1) for c in itertools.combinations(range(len(columns)), size)]
    count = 0
    for chosen in sets:
        n, total, spread = (_sums(columns, codes, chosen, weights) for weights in (None, value, variance))
        z = np.divide(total, np.sqrt(spread), out=np.zeros_like(total), where=spread > 1e-12)
        z = np.abs(z) if evidence.signed else z
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
        if kept and not _own(evidence, rows[held], rows[held & ~covered]):
            continue
        rule = _shortest(rule, columns, evidence, rows, held)
        if rule in kept:
            continue
        kept.append(rule)
        covered |= rule.holds(columns, rows)
        if len(kept) == most:
            break
    return kept


def _own(evidence: Evidence, whole: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]) -> bool:
    """Whether the rows that no rule before it has show what all of them do."""
    if not len(rest) or evidence.z(rest) < OWN:
        return False
    return bool(_gap(evidence, rest)[0] / _gap(evidence, whole)[0] >= 0.5)


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
