"""Columns as codes, and the conditions that a rule may be made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.columns.parts import coded
from calibcli.gate.conditions import Condition, numbers
from calibcli.numbers import exact
from calibcli.predictions import Floats, Ints

PARTS = 5  # of a column of numbers
VALUES = 50  # of a column of texts, the most frequent
SAMPLE = 10_000  # rows that show whether a number is one of few
DISTINCT = 12  # numbers of which each is a value of its own, up to here


@dataclass(frozen=True, eq=False)
class Column:
    """One column.

    Attributes:
        codes: (N,) of its cells.
        literals: conditions, each of one or two parts (a number in a range has two).
        cells: (literals, cells) 1 where the cell is in the literal.
    """

    name: str
    codes: Ints
    literals: Sequence[tuple[Condition, ...]]
    cells: Floats

    def holds(self, literal: int, rows: Any) -> npt.NDArray[np.bool_]:
        """Whether it does, of some rows."""
        return np.asarray(self.cells[literal][self.codes[rows]] > 0)


def columns_of(
    columns: Mapping[str, npt.NDArray[Any]], search: npt.NDArray[np.bool_], least: int
) -> tuple[list[Column], list[str]]:
    """Columns that can be searched, and remarks on what was left out.

    Args:
        search: (N,) the half that is searched: cuts and frequent values are chosen there.
        least: rows of the half that a literal needs.
    """
    found, notes = [], []
    for name, values in columns.items():
        one = _column(name, np.asarray(values), search, least)
        if isinstance(one, str):
            notes.append(one)
        else:
            found.append(one)
    return found, notes


def _column(name: str, values: npt.NDArray[Any], search: npt.NDArray[np.bool_], least: int) -> Column | str:
    if values.dtype.kind in "fiu" and len(np.unique(values[:SAMPLE])) > DISTINCT:
        return _cut(name, values.astype(np.float64), search, least)
    known, codes = coded(values if values.dtype.kind in "fiu" else values.astype(str, copy=False))
    given = numbers(values) if len(known) > DISTINCT else None
    if given is not None:
        return _cut(name, given, search, least)
    known = [str(value) for value in known]
    sizes = np.bincount(codes[search], minlength=len(known))
    frequent = np.argsort(-sizes, kind="stable")[:VALUES]
    frequent = frequent[(sizes[frequent] >= least) & (sizes[frequent] < search.sum())]
    if not len(frequent):
        return f"'{name}' has {len(known):,} values, and none is of {least} rows or more but not of all: left out"
    place = np.full(len(known), len(frequent))
    place[frequent] = np.arange(len(frequent))
    literals = [(Condition(name, "=", known[i]),) for i in frequent]
    return Column(name, place[codes], literals, np.eye(len(frequent), len(frequent) + 1))


def _cut(name: str, values: Floats, search: npt.NDArray[np.bool_], least: int) -> Column | str:
    """Ranges between quantiles of the half that is searched, and everything below or above one."""
    there = values[search & np.isfinite(values)]
    cuts = np.unique(np.quantile(there, np.arange(1, PARTS) / PARTS, method="lower")) if len(there) else np.empty(0)
    short = np.unique([float(f"{cut:.6g}") for cut in cuts])  # as it is written, and read again
    cuts = short if len(short) == len(cuts) else cuts
    cuts = cuts[cuts < there.max()] if len(there) else cuts
    if not len(cuts):
        return f"'{name}' is a number that hardly differs between rows: left out"
    cells = len(cuts) + 1
    codes = np.where(np.isnan(values), cells, np.searchsorted(cuts, values, side="left"))
    rows = np.bincount(codes[search], minlength=cells + 1)
    literals, masks = list[tuple[Condition, ...]](), []
    for low in range(cells):
        for high in range(low, cells):
            if (low > 0 and high < cells - 1 and high > low) or (low == 0 and high == cells - 1):
                continue  # a range in the middle is one part; all of it is no condition
            above = (Condition(name, ">", exact(cuts[low - 1])),) if low else ()
            below = (Condition(name, "<=", exact(cuts[high])),) if high < cells - 1 else ()
            mask = (np.arange(cells + 1) >= low) & (np.arange(cells + 1) <= high)
            if rows[mask].sum() >= least:
                literals.append((*above, *below))
                masks.append(mask.astype(float))
    if not literals:
        return f"'{name}' has no range of {least} rows: left out"
    return Column(name, codes, literals, np.array(masks))
