"""Candidate rules: conditions on columns, and every rule of up to three conditions, ranked on one half."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.core import extensions
from calibcli.core.errors import UsageError
from calibcli.core.number_format import count_text, exact
from calibcli.core.options import normal
from calibcli.gate.config import Condition, numbers
from calibcli.scores import array_names, recorded_outputs
from calibcli.scores.columns import coded
from calibcli.scores.files.roles import IDS, OF_CLASS, RECORDED
from calibcli.scores.predictions import Floats, Ints, Progress
from calibcli.scores.reading_options import Reading
from calibcli.scores.recorded_outputs import Paths

# Columns are coded, and a condition is a set of codes.

Codes = npt.NDArray[np.uint8]
PARTS = 5  # parts of equal size that a column of numbers is cut into
VALUES = 50  # most values of a column of texts, the most frequent ones
SAMPLE = 10_000  # rows in which the distinct numbers of a column are counted
DISTINCT = 12  # a column with at most so many distinct numbers is treated as categories


@dataclass(frozen=True, eq=False)
class CodedColumn:
    """A column as codes, with the conditions that a rule may put on it.

    Attributes:
        codes: (N,) cell of each row, uint8.
        literals: conditions, each of one or two parts (a range of numbers has two).
        cells: (literals, cells) 1 where the condition holds in the cell.
    """

    name: str
    codes: Codes
    literals: Sequence[tuple[Condition, ...]]
    cells: Floats

    def holds(self, literal: int, rows: Any) -> npt.NDArray[np.bool_]:
        """Return in which of some rows a condition holds."""
        return np.asarray(self.cells[literal][self.codes[rows]] > 0)


def columns_of(
    columns: Mapping[str, npt.NDArray[Any]], search: npt.NDArray[np.bool_], least: int
) -> tuple[list[CodedColumn], list[str]]:
    """Code the columns that can be searched; and return notes on those that were left out.

    Args:
        columns: (N,) values by name.
        search: (N,) whether a row is in the half that is searched, where cuts and frequent values are chosen.
        least: smallest number of its rows for a condition.
    """
    each = [_column(name, np.asarray(columns[name]), search, least) for name in extensions.with_progress([*columns])]
    return [one for one in each if isinstance(one, CodedColumn)], [one for one in each if isinstance(one, str)]


def _column(name: str, values: npt.NDArray[Any], search: npt.NDArray[np.bool_], least: int) -> CodedColumn | str:
    if values.dtype.kind in "fiu" and len(np.unique(values[:SAMPLE])) > DISTINCT:
        return _numeric_column(name, values.astype(np.float64), search, least)
    if values.dtype.kind == "f":  # here every NaN is the same
        floats, codes = np.unique(values, return_inverse=True)
        uniques = floats.tolist()
    else:
        uniques, codes = coded(values if values.dtype.kind in "iu" else values.astype(str, copy=False))
    given = numbers(values) if len(uniques) > DISTINCT else None
    if given is not None:
        return _numeric_column(name, given, search, least)
    uniques = [str(value) for value in uniques]
    as_numbers = numbers(np.array(uniques))
    if as_numbers is not None and np.isnan(as_numbers).any():  # in whatever spelling, there is no value
        none = np.isnan(as_numbers)
        uniques = [value for value, missing in zip(uniques, none, strict=True) if not missing] + [""]
        codes = np.where(none, len(uniques) - 1, np.cumsum(~none) - 1)[codes]
    sizes = np.bincount(codes[search], minlength=len(uniques))
    frequent = np.argsort(-sizes, kind="stable")[:VALUES]
    frequent = frequent[(sizes[frequent] >= least) & (sizes[frequent] < search.sum())]
    if not len(frequent):
        values_text = count_text(len(uniques), "value")
        return f"'{name}' is left out: it has {values_text}, none with {least} rows or more but not all"
    place = np.full(len(uniques), len(frequent), np.uint8)
    place[frequent] = np.arange(len(frequent))
    literals = [(Condition(name, "=", uniques[i]),) for i in frequent]
    return CodedColumn(name, place[codes], literals, np.eye(len(frequent), len(frequent) + 1))


def _numeric_column(name: str, values: Floats, search: npt.NDArray[np.bool_], least: int) -> CodedColumn | str:
    """Code a column of numbers. Conditions are ranges between quantiles of the searched half, open ones included, and
    that there is no value.
    """
    searched, cuts = values[search & np.isfinite(values)], np.empty(0)
    if len(searched):
        cuts = np.unique(np.quantile(searched, np.arange(1, PARTS) / PARTS, method="lower"))
        # rounded as it is printed, so that the printed rule selects the same rows
        short = np.unique([float(f"{cut:.6g}") for cut in cuts])
        cuts = short if len(short) == len(cuts) else cuts
        cuts = cuts[cuts < searched.max()]
    missing = int(np.isnan(values[search]).sum()) >= least
    if not len(cuts) and not missing:
        return f"'{name}' is left out: its numbers hardly differ between rows"
    cells = len(cuts) + 1
    codes = np.where(np.isnan(values), cells, np.searchsorted(cuts, values, side="left"))
    rows = np.bincount(codes[search], minlength=cells + 1)
    literals, masks = list[tuple[Condition, ...]](), []
    for low in range(cells):
        for high in range(low, cells):
            if (low > 0 and high < cells - 1 and high > low) or (low == 0 and high == cells - 1):
                continue  # between two cuts only single parts are conditions; the whole range is none
            above = (Condition(name, ">", exact(cuts[low - 1])),) if low else ()
            below = (Condition(name, "<=", exact(cuts[high])),) if high < cells - 1 else ()
            mask = (np.arange(cells + 2) >= low) & (np.arange(cells + 2) <= high)
            if rows[mask[: cells + 1]].sum() >= least:
                literals.append((*above, *below))
                masks.append(mask.astype(float))
    if missing:
        literals.append((Condition(name, "=", ""),))
        masks.append((np.arange(cells + 2) == cells).astype(float))
    if not literals:
        return f"'{name}' is left out: it has no range of {least} rows"
    return CodedColumn(name, codes.astype(np.uint8), literals, np.array(masks))


# Columns of a file that may be searched.

KNOWN = {*IDS.names, *(name for role in RECORDED for name in role.all)}


def others(path: Paths, reading: Reading) -> list[str]:
    """Return names of the columns of a file that are neither scores, labels, verdicts, ids nor weights.

    They are in the file's order, and hold a text or number for each row.

    Raises:
        InputError: the file is refused.
    """
    paths = [Path(path)] if isinstance(path, str | Path) else list(path)
    sources = recorded_outputs.open_all(paths, reading)
    contents = recorded_outputs.load(sources[0])
    # where an array of the first file may be the scores, that file is enough; else columns are, which are found by the
    # labels of all files
    every = [contents] if array_names.candidates(contents) else recorded_outputs.load_all(sources, reading)
    options = (reading.scores, reading.labels, reading.ids, reading.weights, reading.group, reading.confidence)
    fixed = (reading.correct, reading.predicted, contents.scores, contents.labels, contents.ids, contents.groups)
    named = {*filter(None, (*options, *fixed)), *contents.kinds, *(array_names.score_columns(every) or [()])[0]}
    rows = max((array.shape[0] for array in contents.arrays.values() if array.shape), default=0)
    return [
        name
        for name, array in contents.arrays.items()
        if name not in named
        and normal(name) not in KNOWN
        and not OF_CLASS.match(name)
        and array.shape == (rows,)
        and np.dtype(array.dtype).kind in "USOiufbT"
    ]


# Every rule of one or two conditions is ranked on the searched half.

MOST = 2_000  # the strongest rules, in which those that explain something of their own are looked for
WIDE = 256  # cells of a block of columns
PIECE = 1 << 14  # rows whose 0/1 matrices are in memory at once
ROUNDED = 0.01  # more of a z than float32 rounds away
SAME = 2.0  # standard errors within which the gap of a pair equals that of one of its conditions
OWN = 2.0  # standard errors that a rule must show on the rows of no stronger rule, beside half of its gap
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CandidateRule:
    """A rule: (column, literal) of each condition, with its z statistic on the searched half."""

    parts: tuple[tuple[int, int], ...]
    z: float = field(compare=False, default=0.0)

    def conditions(self, columns: Sequence[CodedColumn]) -> list[Condition]:
        """Return the conditions in the order of the columns."""
        return [one for column, literal in self.parts for one in columns[column].literals[literal]]

    def holds(self, columns: Sequence[CodedColumn], rows: Any) -> Mask:
        """Return which of some rows the rule selects."""
        return np.asarray(np.logical_and.reduce([columns[c].holds(literal, rows) for c, literal in self.parts]))


@dataclass(frozen=True, eq=False)
class Evidence:
    """Evidence of each row, from which the strength of rules is computed.

    Attributes:
        value: (N,) weighted values w x, with x of mean 0 where nothing is wrong.  variance: (N,) that of w x then.
        signed: whether both directions are wrong, and rules are compared with the other rows, too.
        weight: (N,) w, or None for 1.  total: sums of weight, value and variance over the searched rows.
    """

    value: Floats
    variance: Floats
    signed: bool = True
    weight: Floats | None = None
    total: tuple[float, float, float] | None = None

    def over(self, rows: npt.NDArray[np.int64]) -> Evidence:
        """Return the same evidence with the totals of the searched rows."""
        return replace(self, total=self.sums(rows))

    def sums(self, rows: Any) -> tuple[float, float, float]:
        """Return the sums of weight, value and variance over some rows."""
        weight = np.ones(len(self.value))[rows] if self.weight is None else self.weight[rows]
        return float(weight.sum()), float(self.value[rows].sum()), float(self.variance[rows].sum())

    def z(self, rows: Any) -> float:
        """Return the strength of some rows."""
        return float(self.strength(*(np.float64(part) for part in self.sums(rows))))

    def strength(self, weight: Any, value: Any, variance: Any) -> Any:
        """Compute strengths from sums over the rows of rules: the mean over its standard error.

        For a gap it is the smaller of this and the same for the difference from the other rows, and 0 where the two
        have different signs, as a gap that all rows share is no slice.
        """
        z = np.divide(value, np.sqrt(variance), out=np.zeros_like(value), where=variance > 1e-12)
        if not self.signed:
            return z
        if self.total is None:
            return np.abs(z)
        others = [total - own for total, own in zip(self.total, (weight, value, variance), strict=True)]
        mass, other_mass = (np.where(m > 0, m, np.inf) for m in (weight, others[0]))  # empty: the mean is 0
        difference = value / mass - others[1] / other_mass
        spread = variance / mass**2 + others[2] / other_mass**2
        z_others = np.divide(difference, np.sqrt(np.abs(spread)), out=np.zeros_like(difference), where=spread > 1e-300)
        return np.where(z * z_others > 0, np.minimum(np.abs(z), np.abs(z_others)), 0.0)


def ranked(
    columns: Sequence[CodedColumn],
    evidence: Evidence,
    rows: npt.NDArray[np.int64],
    least: int,
    depth: int,
    progress: Progress | None = None,
) -> tuple[list[CandidateRule], int]:
    """Rank the rules with at least `least` rows, the strongest first; and return how many there are.

    A table of the sums in all cells of a pair of columns, multiplied by the 0/1 matrices of their literals from both
    sides, gives the sums of every rule of the pair. Products of matrices in float32 say which pairs have one of the
    strongest rules, and the tables of these are made in float64.
    """
    codes = np.stack([column.codes[rows] for column in columns])
    weights = [None, evidence.value[rows], evidence.variance[rows]]
    weights += [evidence.weight[rows]] if evidence.signed and evidence.weight is not None else []

    def strengths(sums: Sequence[Floats]) -> Floats:
        """Return z of rules from their number of rows, value, variance, and weight if there are weights."""
        n, value, variance = sums[:3]
        z = evidence.strength(sums[-1] if len(sums) > 3 else n, value, variance)
        return np.where((n >= least) & (n <= len(rows) - least), z, -np.inf)

    sets: dict[tuple[int, ...], Ints] = {(i,): np.arange(len(one.literals)) for i, one in enumerate(columns)}
    pairs, count = _strongest_pairs(columns, codes, weights, strengths, progress) if depth > 1 else ({}, 0)
    sets |= pairs
    z = [np.empty(0)]
    for chosen in extensions.with_progress([*sets], lambda chosen: "the strongest rules", progress):
        places = sets[chosen]
        every = strengths(_sums(columns, codes, chosen, weights)).ravel()
        count += int((every > -np.inf).sum()) if len(chosen) == 1 else 0
        z.append(every[places])
    strength = np.concatenate(z)
    rules = [(chosen, int(at)) for chosen, places in sets.items() for at in places]
    order = np.argsort(-strength, kind="stable")[:MOST]
    return [CandidateRule(_parts(columns, *rules[i]), float(strength[i])) for i in order if strength[i] > 0], count


@dataclass(frozen=True, eq=False)
class _Block:
    """Columns that are multiplied at once.

    Attributes:
        column, cell: (cells,) the column of each cell, and its code.
        holds: (literals, cells) 1 where a literal holds in a cell.
        literal: (literals, 2) the column of each literal, and its place in the column.
    """

    column: Ints
    cell: Ints
    holds: Floats
    literal: Ints

    @classmethod
    def make(cls, columns: Sequence[CodedColumn], chosen: Sequence[int]) -> _Block:
        # the last cell of a column is that of rows in which none of its conditions holds
        cells = [columns[i].cells[:, :-1] for i in chosen]
        literals, wide = (np.cumsum([0, *(one.shape[axis] for one in cells)]) for axis in (0, 1))
        holds = np.zeros((literals[-1], wide[-1]))
        for position, table in enumerate(cells):
            holds[literals[position] : literals[position + 1], wide[position] : wide[position + 1]] = table
        literal_places = [(i, place) for i, one in zip(chosen, cells, strict=True) for place in range(len(one))]
        cell = [(i, code) for i, one in zip(chosen, cells, strict=True) for code in range(one.shape[1])]
        column, code_of = np.array(cell).T
        return cls(column, code_of, holds, np.array(literal_places))

    def matrix(self, codes: Codes) -> npt.NDArray[np.float32]:
        """Return (cells, rows) 1 where a row lies in a cell."""
        return np.asarray(codes[self.column] == self.cell[:, None].astype(codes.dtype), np.float32)


def _strongest_pairs(
    columns: Sequence[CodedColumn],
    codes: Codes,
    weights: Sequence[Floats | None],
    strengths: Callable[[Sequence[Floats]], Floats],
    progress: Progress | None,
) -> tuple[dict[tuple[int, ...], Ints], int]:
    """Return pairs of columns with the places of their rules that may be among the strongest, and the number of rules.

    Memory does not grow with the number of pairs.
    """
    ends = np.cumsum([column.cells.shape[1] for column in columns])
    chosen = (list(group) for _, group in itertools.groupby(range(len(columns)), lambda i: ends[i] // WIDE))
    blocks = [_Block.make(columns, some) for some in chosen]
    block_pairs = list(itertools.combinations_with_replacement(blocks, 2))
    best, count, floor = np.empty((5, 0)), 0, 0.0  # z, and column and place of both conditions
    for first, other in extensions.with_progress(block_pairs, lambda pair: "pairs of conditions", progress):
        z = strengths([first.holds @ sums @ other.holds.T for sums in _products(codes, weights, first, other)])
        # two conditions on one column; or a pair the other way round
        z[first.literal[:, :1] >= other.literal[:, 0]] = -np.inf
        count += int((z > -np.inf).sum())
        above = np.nonzero(z > floor)
        best = np.hstack([best, [z[above], *first.literal[above[0]].T, *other.literal[above[1]].T]])
        if best.shape[1] > MOST:
            best = best[:, np.argsort(-best[0], kind="stable")[: 2 * MOST]]
            floor = (1 - ROUNDED) * best[0, MOST - 1]
            best = best[:, best[0] >= floor]
    i, p, j, q = best[1:].astype(np.int64)
    place = p * np.array([len(column.literals) for column in columns])[j] + q
    pairs: dict[tuple[int, ...], list[int]] = {}
    for k in np.lexsort((place, j, i)):
        pairs.setdefault((int(i[k]), int(j[k])), []).append(place[k])
    return {pair: np.array(places) for pair, places in pairs.items()}, count


def _products(codes: Codes, weights: Sequence[Floats | None], first: _Block, other: _Block) -> Floats:
    """Sum each of the weights (None: 1) over the rows of each pair of cells: (weights, cells, cells).

    The counts are exact, as a piece of rows has fewer than 2**24.
    """
    sums = np.zeros((len(weights), len(first.cell), len(other.cell)))  # (weights, cells, cells)
    # float32 ends at 3e38
    scales = [1.0 if weight is None else float(np.abs(weight).max()) or 1.0 for weight in weights]
    for start in range(0, codes.shape[1], PIECE):
        piece = slice(start, start + PIECE)
        left, right = first.matrix(codes[:, piece]), other.matrix(codes[:, piece])
        for total, weight, scale in zip(sums, weights, scales, strict=True):
            weighted = left if weight is None else left * (weight[piece] / scale).astype(np.float32)
            total += scale * (weighted @ right.T).astype(np.float64)
    return sums


def _sums(
    columns: Sequence[CodedColumn], codes: Codes, chosen: tuple[int, ...], weights: Sequence[Floats | None]
) -> list[Floats]:
    """Sum each of the weights (None: 1) over the rows of each rule: (literals, literals) for two columns."""
    sizes = [columns[i].cells.shape[1] for i in chosen]
    cell = codes[chosen[0]].astype(np.intp)
    if len(chosen) == 2:
        cell = cell * sizes[1] + codes[chosen[1]]
    tables = (np.bincount(cell, weight, math.prod(sizes)).reshape(sizes) for weight in weights)
    sums = (columns[chosen[0]].cells @ table for table in tables)
    return [one if len(chosen) == 1 else one @ columns[chosen[1]].cells.T for one in sums]


def _parts(columns: Sequence[CodedColumn], chosen: tuple[int, ...], index: int) -> tuple[tuple[int, int], ...]:
    places = np.unravel_index(index, [len(columns[i].literals) for i in chosen])
    return tuple((i, int(place)) for i, place in zip(chosen, places, strict=True))


def distinct(
    rules: Sequence[CandidateRule],
    columns: Sequence[CodedColumn],
    evidence: Evidence,
    rows: npt.NDArray[np.int64],
    most: int,
) -> list[CandidateRule]:
    """Select the strongest rules that explain something of their own, each as short as it can be.

    A pair is shortened to one condition where the rows that the other excludes have the same gap. A rule is dropped
    where its rows outside of stronger rules show little.
    """
    kept: list[CandidateRule] = []
    covered, remaining = np.zeros(len(rows), bool), evidence
    for rule in extensions.with_progress(rules, lambda rule: "leaving out what others explain"):
        inside = rule.holds(columns, rows)
        if kept and not _adds_evidence(evidence, remaining, rows[inside], rows[inside & ~covered]):
            continue
        rule = _shortest(rule, columns, evidence, rows, inside)
        if rule in kept:
            continue
        kept.append(rule)
        covered |= rule.holds(columns, rows)
        remaining = evidence.over(rows[~covered]) if evidence.signed else evidence
        if len(kept) == most:
            break
    return kept


def _adds_evidence(
    evidence: Evidence, remaining: Evidence, rows: npt.NDArray[np.int64], added: npt.NDArray[np.int64]
) -> bool:
    """Return whether a rule's rows outside of stronger rules show at least half of its gap, and significantly."""
    if not len(added) or remaining.z(added) < OWN:
        return False
    beyond = _gap(evidence, added)[0] - _shared(remaining)
    return bool(beyond / (_gap(evidence, rows)[0] - _shared(evidence)) >= 0.5)


def _shared(evidence: Evidence) -> float:
    """Return the gap of all rows together."""
    return evidence.total[1] / evidence.total[0] if evidence.signed and evidence.total is not None else 0.0


def _shortest(
    rule: CandidateRule, columns: Sequence[CodedColumn], evidence: Evidence, rows: npt.NDArray[np.int64], inside: Mask
) -> CandidateRule:
    for part in rule.parts if len(rule.parts) > 1 else ():
        shorter = CandidateRule((part,), rule.z)
        outside = shorter.holds(columns, rows) & ~inside
        if not outside.any():
            return shorter
        gaps, spreads = zip(*(_gap(evidence, rows[some]) for some in (inside, outside)), strict=True)
        if abs(gaps[0] - gaps[1]) < SAME * np.sqrt(sum(spreads)):
            return shorter
    return rule


def _gap(evidence: Evidence, rows: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return the weighted mean of some rows, and its variance."""
    weight, value, variance = evidence.sums(rows)
    return value / weight, variance / weight**2


# Rules of three conditions come from the pruned search of sliceline.

KEPT = 50  # rules that it returns in each direction
SIZE = 0.99  # α of its score; at 0.9 a rule of one row in 27 needs four times the average error to score at all


def search_with_sliceline(
    columns: Sequence[CodedColumn], evidence: Evidence, rows: npt.NDArray[np.int64], least: int
) -> list[CandidateRule]:
    """Return sliceline's best rules of up to three conditions in each direction (Sagadeeva & Boehm 2021).

    It knows single cells of columns only, no ranges over several.

    Raises:
        UsageError: sliceline is not installed.
    """
    try:
        from sliceline.slicefinder import Slicefinder
    except ImportError:
        problem = "rules of three conditions need sliceline, which is not installed"
        raise UsageError(problem, "pip install sliceline scikit-learn, or leave --depth out") from None
    codes = np.column_stack([column.codes[rows] for column in columns])
    rules: dict[CandidateRule, None] = {}
    for sign in (1.0, -1.0) if evidence.signed else (1.0,):
        errors = np.maximum(sign * evidence.value[rows], 0.0)
        finder = Slicefinder(alpha=SIZE, k=KEPT, max_l=3, min_sup=least, verbose=False)
        finder.fit(codes, errors)
        for top_slice in finder.top_slices_:
            rule = _rule(columns, top_slice)
            if rule is not None:
                inside = rule.holds(columns, rows)
                rules[CandidateRule(rule.parts, evidence.z(rows[inside]))] = None
    return list(rules)


def _rule(columns: Sequence[CodedColumn], cells: Any) -> CandidateRule | None:
    """Make a rule of one cell per column (None: any); None where a cell is no condition of ours."""
    parts = []
    for i, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        if cell is None:
            continue
        alone = np.zeros(column.cells.shape[1])
        alone[int(cell)] = 1
        literal = np.flatnonzero((column.cells == alone).all(axis=1))
        if not len(literal):
            return None
        parts.append((i, int(literal[0])))
    return CandidateRule(tuple(parts)) if parts else None
