"""`site=A & age<=30`: rows by conditions on their columns, where a gate's `by` names no column of that name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.columns.parts import coded
from calibcli.errors import UsageError

Op = Literal["=", "<=", ">"]
TEXT = r'"(?:[^"\\]|\\.)*"'
PLAIN = r"[^\s=<>&\"\\]+"
ONE = re.compile(rf"\s*({TEXT}|{PLAIN})\s*(<=|>|=)\s*({TEXT}|{PLAIN})\s*(&|$)")


@dataclass(frozen=True)
class Condition:
    """A column, and what its value is held against: a text (=), or a number (<=, >)."""

    column: str
    op: Op
    value: str

    def __str__(self) -> str:
        return f"{_quoted(self.column)}{self.op}{_quoted(self.value)}"

    def holds(self, column: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """(N,) of the rows' values; one that is no number is on neither side of a number.

        Raises:
            UsageError: a number is asked for, and the column has none.
        """
        if self.op == "=":
            return np.asarray(column.astype(str, copy=False) == self.value)
        values = numbers(column)
        if values is None or (at := numbers(np.array([self.value]))) is None:
            raise UsageError(f"'{self}' asks for numbers, and '{self.column}' has others", "write COLUMN=VALUE")
        return np.asarray(values <= at[0] if self.op == "<=" else values > at[0])


def parsed(text: str) -> list[Condition]:
    """The conditions of a rule; none where the text is not one.

    >>> [str(c) for c in parsed('site=A & "heart rate"<=60')]
    ['site=A', '"heart rate"<=60']
    """
    found, at = [], 0
    while match := ONE.match(text, at):
        column, op, value, more = match.groups()
        found.append(Condition(_plain(column), op, _plain(value)))  # type: ignore[arg-type]
        at = match.end()
        if not more:
            return found
    return []


def text_of(conditions: Sequence[Condition]) -> str:
    """What `parsed` reads."""
    return " & ".join(map(str, conditions))


def rows_of(conditions: Sequence[Condition], columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_] | str:
    """(N,) whether all of them hold; or the first column that is not there."""
    missing = next((c.column for c in conditions if c.column not in columns), None)
    if missing is not None:
        return missing
    return np.asarray(np.logical_and.reduce([c.holds(np.asarray(columns[c.column])) for c in conditions]))


def numbers(column: npt.NDArray[Any]) -> npt.NDArray[np.float64] | None:
    """(N,) values as numbers, nan where there is none (`nan` or empty); None where a text is something else."""
    if column.dtype.kind in "fiu":
        return column.astype(np.float64)
    known, codes = coded(column.astype(str, copy=False))
    try:
        values = [
            float("nan") if text.strip().lower() in ("", "nan", "none", "null") else float(text) for text in known
        ]
    except ValueError:
        return None
    return np.array(values)[codes]


def _quoted(text: str) -> str:
    if re.fullmatch(PLAIN, text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
