"""What is plain, read many rows at a time: text tables of numbers, JSON lines of numbers. Of all else `text`, and the
reader of JSON lines, have the words."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from calibcli.errors import CalibError
from calibcli.inputs.files.arrays import column_of
from calibcli.inputs.files.source import Source
from calibcli.predictions import Array

LONGEST = 24  # letters of a cell that is no score
BLOCK = 1 << 16  # bytes; what they are as objects stays in the cache
OF_NUMBERS = b"0123456789+-.eE, \t\r"


def table(source: Source, delimiter: str, width: int, groups: Sequence[Sequence[int]]) -> dict[int, Array] | None:
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
    inside = set(chain.from_iterable(groups)) - set(numbers)
    fields = [
        (str(i), "f8", (numbers[i],)) if i in numbers else (str(i), f"S{LONGEST}")
        for i in range(width)
        if i not in inside
    ]
    stream = io.TextIOWrapper(source.reader(), encoding="utf-8-sig", newline="")
    try:
        with warnings.catch_warnings(action="ignore"):  # of a table without rows
            table = np.loadtxt(stream, np.dtype(fields), comments=None, delimiter=delimiter, skiprows=1, ndmin=1)
    except CalibError:
        raise
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


def lines(source: Source, first: Mapping[str, Any]) -> dict[str, Array] | None:
    """Lists as (N, K) float64, whole numbers as (N,) texts; None unless every line is an object like the first row.

    Each has the same keys in the same order, with as many numbers, or one whole number, behind them. Without what
    numbers are made of, all lines are then the same: no text, no `true` and no second member of one name fits in.
    """
    lists = {key: len(value) for key, value in first.items() if isinstance(value, list) and value}
    found: dict[str, list[Any]] = {key: [] for key in first}
    texts: dict[int, str] = {}
    skeleton = None
    try:
        for block in _blocks(source):
            bones = block.translate(None, OF_NUMBERS)
            skeleton = skeleton or bones[: bones.index(b"\n") + 1]
            rows = json.loads("[" + block[:-1].replace(b"\n", b",").decode() + "]")
            if bones != skeleton * len(rows) or {*map(tuple, rows)} != {tuple(first)}:
                return None
            for key, values in found.items():
                cells = [*map(itemgetter(key), rows)]
                if key in lists and set(map(len, cells)) == {lists[key]}:
                    flat = np.fromiter(chain.from_iterable(cells), np.float64, len(cells) * lists[key])
                    values.append(flat.reshape(len(cells), lists[key]))
                elif set(map(type, cells)) == {int}:
                    texts |= {cell: str(cell) for cell in set(cells) - texts.keys()}
                    values += [texts[cell] for cell in cells]
                else:
                    return None
    except CalibError:
        raise
    except (ValueError, OverflowError, TypeError, AttributeError):  # not JSON, or other values
        return None
    return {key: np.concatenate(values) if key in lists else column_of(values) for key, values in found.items()}


def _blocks(source: Source) -> Iterator[bytes]:
    """The file in pieces of whole lines, each with its end."""
    rest = b""
    with source.reader() as file:
        while block := file.read(BLOCK):
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield whole + end
    if rest:
        yield rest + b"\n"
