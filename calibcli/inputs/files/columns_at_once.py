"""Text tables of plain numbers, read by NumPy's own parser; what it does not read is left to `text`, which explains."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Sequence

import numpy as np

from calibcli.inputs.files.arrays import column_of
from calibcli.inputs.files.source import Source
from calibcli.predictions import Array

LONGEST = 24  # letters of a cell that is no score


def read(source: Source, delimiter: str, width: int, groups: Sequence[Sequence[int]]) -> dict[int, Array] | None:
    """Columns of all rows after the header; None where a cell is quoted, missing, long or no number, or a row is odd.

    Args:
        width: number of columns.
        groups: those that are numbers, side by side; the others are text.

    Returns:
        By first column: each group, (N, columns) float64, and each column of text, (N,) objects.
    """
    numbers = {columns[0]: len(columns) for columns in groups}
    if any(list(columns) != list(range(columns[0], columns[0] + len(columns))) for columns in groups):
        return None
    inside = set(itertools.chain.from_iterable(groups)) - set(numbers)
    fields = [
        (str(i), "f8", (numbers[i],)) if i in numbers else (str(i), f"S{LONGEST}")
        for i in range(width)
        if i not in inside
    ]
    stream = io.TextIOWrapper(source.reader(), encoding="utf-8-sig", newline="")
    try:
        with warnings.catch_warnings(action="ignore"):  # of a table without rows
            table = np.loadtxt(stream, np.dtype(fields), comments=None, delimiter=delimiter, skiprows=1, ndmin=1)
    except (ValueError, OSError):
        return None
    found: dict[int, Array] = {}
    for name, kind, *_ in fields:
        column = np.ascontiguousarray(table[name])
        found[int(name)] = column
        if kind != "f8":
            letters = column.view(np.uint8).reshape(-1, LONGEST)
            if letters[:, -1].any() or (letters == ord('"')).any():
                return None
            cells = column.tolist()
            texts = {cell: cell.decode("latin-1") for cell in set(cells)}
            found[int(name)] = column_of([texts[cell] for cell in cells])
    return found
