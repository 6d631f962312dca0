"""Columns of rows that hold lists and objects: values by their path, and lists that are the scores of classes.

What a list is follows from its values: numbers alone are one row of scores; pairs of a text and a number, in objects
or in lists, are scores by class; so are two lists of equal length in one object, of names and of numbers.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from calibcli.core.errors import InputError
from calibcli.scores.files.arrays import FileContents, Lazy, Memory, column_of
from calibcli.scores.files.evals.answers import filled, width_of
from calibcli.scores.files.roles import LABELS, SCORES
from calibcli.scores.files.text_tables import decimals_of, is_number
from calibcli.scores.predictions import Array, Named

HEAD = 1000  # rows that are looked at
SUM = 0.02  # error of a sum of rounded probabilities
DEPTH, COLUMNS = 8, 500  # limits of what is inside objects: levels, and number of columns
LETTERS = 10_000  # longest text of a cell
PRINTED = re.compile(r"^(?:\w+\()?\s*\[([^\[\]{}'\"]*)\]")
"""A list as NumPy and PyTorch print it: `[0.7 0.2]`, `tensor([0.7, 0.2])`."""
MAY_OPEN = re.compile(r"^\s*(?:\w+\()?\s*[\[{]")
EVERY_CLASS = "write a score for every class in every row"


@dataclass
class CellColumns:
    """Columns as they are collected.

    Attributes:
        where: name of the file.  arrays, classes, decimals, members, ragged, notes: as in `FileContents`.
        inside: names of columns that lie within an object.  names: lists of names by path, one for each row.
        partial: lists of scores that do not name the same classes in every row, with what is wrong.
    """

    where: str
    arrays: dict[str, Named] = field(default_factory=dict)
    classes: dict[str, list[str]] = field(default_factory=dict)
    decimals: dict[str, int] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    ragged: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    inside: set[str] = field(default_factory=set)
    names: dict[str, list[list[Any]]] = field(default_factory=dict)
    numbers: dict[str, list[list[Any]]] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, cells: list[Any], depth: int = DEPTH) -> None:
        """Add a column by its cells: None, texts, numbers, lists or objects, one for each row."""
        if depth < DEPTH:
            self.inside.add(path)
        cells = _unwrapped(cells)
        kinds = set(map(type, cells))
        if kinds == {list} and any(cells):
            self._lists(path, cells)
        elif dict in kinds and kinds <= {dict, type(None)} and depth and len(self.arrays) < COLUMNS:
            self._objects(path, cells, depth)
        elif list in kinds:
            self._text_or_refusal(path, cells)
        else:
            self._texts(path, cells)

    def _objects(self, path: str, cells: list[Any], depth: int) -> None:
        if all(_by_class(cell) for cell in cells) and (path in SCORES or all(map(_are_shares, cells[:HEAD]))):
            if all(cell.keys() == cells[0].keys() for cell in cells):
                self.classes[path] = list(map(str, cells[0]))
                self.members[path] = [f"{path}.{name}" for name in cells[0]]
                self._numbers(path, [list(cell.values()) for cell in _same_order(cells)])
                return
            if path in SCORES:
                row = next(i for i, cell in enumerate(cells) if cell.keys() != cells[0].keys())
                odd = str(next(iter(cells[row].keys() ^ cells[0].keys())))[:40]
                problem = f"'{path}' in row {row} of {self.where} does not name the classes of row 0 ('{odd}')"
                raise InputError(problem, EVERY_CLASS)
        paths = {str(key): key for cell in cells if cell for key in cell}
        for name, key in paths.items():
            self.add(f"{path}.{name}", [(cell or {}).get(key) for cell in cells], depth - 1)

    def _lists(self, path: str, cells: list[list[Any]]) -> None:
        """Add lists: of numbers, of names, or of pairs of both."""
        kinds = {type(value) for cell in cells for value in cell}
        if kinds <= {int, float}:
            self.numbers[path] = cells
            self.arrays[path] = Memory(column_of([]))  # its place; see `finished`
        elif kinds <= {str}:
            self.names[path] = cells
            self._texts(path, cells)
        elif pairs := _pairs(cells):
            names, scores = pairs
            self._ranked(path, names, scores, "")
        else:
            self._text_or_refusal(path, cells)

    def _ranked(self, path: str, names: list[list[Any]], scores: list[list[Any]], by: str) -> None:
        """Add lists of scores in the order of the classes that lists of names give."""
        first = names[0]
        classes = {str(name) for name in first}
        odd = next((i for i, row in enumerate(names) if {*map(str, row)} != classes), None)
        if odd is not None:
            self.partial[path] = f"'{path}' in row {odd} of {self.where} does not name the classes of row 0"
            self._texts(path, scores)
            return
        same = all(row == first for row in names)
        order = [str(name) for name in first] if same else sorted(classes, key=_key)
        place = {name: i for i, name in enumerate(order)}
        out: list[list[Any]] = []
        for row, values in zip(names, scores, strict=True):
            line: list[Any] = [math.nan] * len(order)
            for name, value in zip(row, values, strict=True):
                line[place[str(name)]] = value
            out.append(line)
        self.classes[path] = order
        if by or not same:
            source = f"'{by}'" if by else "their names"
            self.notes.append(f"'{path}' is in the order of the classes by {source}")
        self._numbers(path, out)

    def _numbers(self, path: str, rows: list[list[Any]]) -> None:
        """Add rows of numbers, padded where they differ in length."""
        try:
            table, uneven = padded(rows)
            if uneven:
                self.notes.append(_choices(path, [len(row) for row in rows], self.where))
                self.ragged.add(path)
        except InputError:
            if path in SCORES or path in LABELS:
                raise
            self._texts(path, rows)
            return
        except (ValueError, TypeError, OverflowError):
            self._text_or_refusal(path, rows)
            return
        self.arrays[path] = Memory(table)
        self.decimals[path] = max((decimals_of(repr(value)) for row in rows[:HEAD] for value in row), default=0)

    def _text_or_refusal(self, path: str, cells: list[Any]) -> None:
        """Add what is no table of numbers as texts; refuse it where the name says that it is.

        Raises:
            InputError: scores or labels by name that are lists in some rows, of other things than numbers.
        """
        if path in SCORES or path in LABELS:
            row = next((i for i, cell in enumerate(cells) if not isinstance(cell, list)), None)
            if row is not None:
                problem = f"'{path}' in row {row} of {self.where} is {str(cells[row])[:30]}, not a list"
                raise InputError(problem, "write a list")
            problem = f"'{path}' in {self.where} holds lists that are not numbers"
            raise InputError(problem, "write one object per row, with its K scores as a list of numbers")
        self._texts(path, cells)

    def _texts(self, path: str, cells: list[Any]) -> None:
        absent = "" if path in self.inside else "null"
        self.arrays[path] = Memory(column_of([text_of(cell, absent) for cell in cells]))

    def finished(self) -> None:
        """Decide what lists of numbers are: scores of the classes that a list beside them names, or rows of numbers."""
        self.names |= {path: rows for path, rows in self.numbers.items() if _are_codes(rows)}
        for path, rows in self.numbers.items():
            beside = [
                other
                for other, names in self.names.items()
                if other != path and _parent(other) == _parent(path) and _name_each(names, rows)
            ]
            alike = len(beside) == 1 and path not in self.names and len(rows[0]) > 1
            if alike and (_same_names(self.names[beside[0]]) or _descend(rows)):
                self._ranked(path, self.names[beside[0]], rows, beside[0])
                self.arrays.pop(beside[0], None)
            else:
                self._numbers(path, rows)


def of_rows(rows: Iterable[Mapping[str, Any]], form: str, where: str) -> FileContents:
    """Return the columns of rows of JSON.

    Raises:
        InputError: a row lacks scores, or a list or object of the first one; scores or labels that are not numbers.
            Other values that some rows lack are a column with gaps.
    """
    every = list(rows)
    for count, row in enumerate(every):
        for key, cell in every[0].items():
            if key not in row and (isinstance(cell, list | dict) or key in SCORES):
                raise InputError(f"row {count} of {where} has no '{key}'", "write the same keys in every row")
    later = (key for row in every for key, cell in row.items() if not (cell is None or isinstance(cell, list | dict)))
    keys = dict.fromkeys([*every[0], *later])
    return of_columns({key: [row.get(key) for row in every] for key in keys}, form, where)


def of_columns(cells: Mapping[str, list[Any]], form: str, where: str) -> FileContents:
    """Return the arrays that columns of cells hold: texts, numbers, lists or objects, one for each row."""
    columns = CellColumns(where)
    for name, values in cells.items():
        columns.add(name, values)
    columns.finished()
    lacking = None
    if columns.partial and not any(len(array.shape) == 2 for array in columns.arrays.values()):
        lacking = (next(iter(columns.partial.values())), EVERY_CLASS)
    return FileContents(
        form,
        columns.arrays,
        decimals=columns.decimals,
        ragged=frozenset(columns.ragged),
        classes=columns.classes,
        members=columns.members,
        notes=columns.notes,
        inside=frozenset(columns.inside),
        lacking=lacking,
        table=True,
    )


def opened(contents: FileContents, where: str) -> FileContents:
    """Return a table with the lists and objects that stand in its cells of text as arrays and columns of their own."""
    cells_by_name = {name: cells for name, array in contents.arrays.items() if (cells := _open_cells(array))}
    if not cells_by_name:
        return contents
    inner = of_columns(cells_by_name, contents.format, where)
    arrays: dict[str, Named] = {}
    for name, array in contents.arrays.items():
        inner_arrays = {
            n: a for n, a in inner.arrays.items() if name in cells_by_name and (n == name or n.startswith(f"{name}."))
        }
        arrays |= inner_arrays if name in cells_by_name else {name: array}
    return replace(
        contents,
        arrays=arrays,
        decimals={**contents.decimals, **inner.decimals},
        ragged=contents.ragged | inner.ragged,
        classes={**contents.classes, **inner.classes},
        members={**contents.members, **inner.members},
        notes=[*contents.notes, *inner.notes],
        inside=contents.inside | inner.inside,
        lacking=contents.lacking or inner.lacking,
        read_alike=None,
    )


def _open_cells(array: Named) -> list[Any]:
    """Return the lists or objects that the cells of a column are, or the texts of; [] if one is something else."""
    if array.dtype.kind != "O" or array.shape[1:] != () or isinstance(array, Lazy):
        return []
    first = array.read(0, 1).tolist()
    if not first or not (isinstance(first[0], list | dict) or MAY_OPEN.match(str(first[0]))):
        return []
    out = []
    for cell in array.read(0, array.shape[0]).tolist():
        value = _parsed(cell) if isinstance(cell, str) else cell
        if not isinstance(value, list | dict):
            return []
        out.append(value)
    return out


def _parsed(text: str) -> Any:
    """Return the list or object that a text is: JSON, a literal of Python, or a list of numbers as it is printed; None
    for other texts.
    """
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    if match := PRINTED.match(text.strip()):
        with contextlib.suppress(ValueError):
            return [float(number) for number in re.split(r"[,;\s]+", match[1].strip()) if number]
    if len(text) <= LETTERS:
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return ast.literal_eval(text.strip())
    return None


def text_of(cell: Any, absent: str = "null") -> str:
    """Return a cell as text."""
    return cell if isinstance(cell, str) else absent if cell is None else json.dumps(cell)[:LETTERS]


def padded(rows: list[list[Any]]) -> tuple[Array, bool]:
    """Return (N, K) float64 from lists of numbers, and whether they were padded: with 0 if all lie in [0, 1], else
    -inf.

    Raises:
        ValueError, TypeError, OverflowError: not numbers, or a few long rows among many short ones.
    """
    width = width_of(rows)
    if width is None:
        raise ValueError("rows too uneven to pad")
    if not set(map(type, (v for row in rows for v in row))) <= {int, float}:  # text, true, null
        raise TypeError("not a number")
    uneven = any(len(row) < width for row in rows)
    unit = uneven and all(0 <= v <= 1 for row in rows for v in row)
    return filled(rows, width, 0.0 if unit else -math.inf), uneven


def _choices(key: str, lengths: list[int], where: str) -> str:
    """Return a note on rows of different lengths.

    Raises:
        InputError: most rows have one length, so that another length is a mistake: it would mask a class in all rows.
    """
    usual, count = Counter(lengths).most_common(1)[0]
    if 2 * count > len(lengths):
        odd = next(i for i, length in enumerate(lengths) if length != usual)
        raise InputError(
            f"row {odd} of {where} has {lengths[odd]} numbers in '{key}', {count:,} of {len(lengths):,} rows "
            f"have {usual}",
            "write as many in every row: 0 (probabilities) or -Infinity (logits) for a choice that is not there",
        )
    return f"{min(lengths)} to {max(lengths)} numbers per row in '{key}': the others have probability 0"


def _unwrapped(cells: list[Any]) -> list[Any]:
    """Return what is inside lists that hold one list or object in every row."""
    while cells and all(isinstance(c, list) and len(c) == 1 and isinstance(c[0], list | dict) for c in cells):
        cells = [cell[0] for cell in cells]
    return cells


def _by_class(cell: Any) -> bool:
    """Return whether an object has several members, all of them numbers."""
    return isinstance(cell, dict) and len(cell) > 1 and set(map(type, cell.values())) <= {int, float}


def _are_shares(cell: Mapping[str, float]) -> bool:
    return all(0 <= value <= 1 for value in cell.values()) and abs(sum(cell.values()) - 1) <= SUM


def _same_order(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [cell if [*cell] == [*cells[0]] else {key: cell[key] for key in cells[0]} for cell in cells]


def _pairs(cells: list[list[Any]]) -> tuple[list[list[Any]], list[list[Any]]] | None:
    """Return the names and the numbers of lists of pairs, each an object or a list with one text, different from those
    of the other pairs, and one number; None for other lists.
    """
    items = [dict(enumerate(v)) if isinstance(v, list) else v for v in cells[0]]
    if (
        not items
        or not all(isinstance(item, dict) for item in items)
        or any(i.keys() != items[0].keys() for i in items)
    ):
        return None
    texts = [key for key in items[0] if all(isinstance(item[key], str) for item in items)]
    numbers = [key for key in items[0] if all(type(item[key]) in (int, float) for item in items)]
    texts = [key for key in texts if len({item[key] for item in items}) == len(items)]
    if len(texts) != 1 or len(numbers) != 1:
        return None
    try:
        names = [[item[texts[0]] for item in cell] for cell in cells]
        scores = [[item[numbers[0]] for item in cell] for cell in cells]
    except (KeyError, IndexError, TypeError):
        return None
    distinct = all(len({*row}) == len(row) for row in names if all(isinstance(name, str) for name in row))
    plain = {type(v) for row in scores for v in row} <= {int, float} and {type(v) for row in names for v in row} <= {
        str
    }
    return (names, scores) if distinct and plain else None


def _are_codes(rows: list[list[Any]]) -> bool:
    """Return whether every row has the same whole numbers, each once, in orders that differ."""
    first = sorted(rows[0])
    whole = len(first) > 1 and all(type(value) is int for value in first) and len({*first}) == len(first)
    return whole and any(row != rows[0] for row in rows) and all(sorted(row) == first for row in rows)


def may_be_codes(row: Mapping[str, Any]) -> bool:
    """Return whether a list of a row may number the classes of the numbers in another one."""
    lists = {key: value for key, value in row.items() if isinstance(value, list) and len(value) > 1}
    whole = [len(value) for value in lists.values() if set(map(type, value)) == {int} and len({*value}) == len(value)]
    return any(sum(len(value) == length for value in lists.values()) > 1 for length in whole)


def _name_each(names: Sequence[Sequence[Any]], rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether each row has a name for each of its numbers, all different."""
    return all(len(a) == len(b) == len({*a}) for a, b in zip(names, rows, strict=True))


def _same_names(names: Sequence[Sequence[Any]]) -> bool:
    first = {*names[0]}
    return all({*row} == first for row in names)


def _descend(rows: Sequence[Sequence[float]]) -> bool:
    """Return whether the numbers of every row fall, as those of the best few classes do."""
    return all(a >= b for row in rows for a, b in itertools.pairwise(row))


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _key(name: str) -> tuple[float, str]:
    return (float(name) if is_number(name) else math.inf, name)


# Rows in one document of JSON.


def rows_in(value: Any, where: str) -> list[dict[str, Any]] | None:
    """Return the rows that a document of JSON holds: the longest list of objects in it, at any depth; else an object of
    objects with the same keys, or of lists of one length. None if it holds none of these.

    Raises:
        InputError: two lists of objects are the longest.
    """
    lists = sorted(_object_lists(value, "", DEPTH), key=lambda one: -len(one[1]))
    if lists:
        if len(lists) > 1 and len(lists[0][1]) == len(lists[1][1]):
            problem = f"{where} holds two lists of {len(lists[0][1]):,} objects, '{lists[0][0]}' and '{lists[1][0]}'"
            raise InputError(problem, "write the rows of one of them, one JSON object per line")
        return lists[0][1]
    if not isinstance(value, dict) or len(value) < 2:
        return None
    inner = [*value.values()]
    if all(isinstance(one, list) for one in inner) and len({len(one) for one in inner}) == 1 and inner[0]:
        return [dict(zip(value, cells)) for cells in zip(*inner)]
    if all(isinstance(one, dict) and one.keys() == inner[0].keys() for one in inner) and inner[0]:
        if len(inner[0]) > len(inner):  # columns of cells by row, as pandas writes them
            return [{name: column[row] for name, column in value.items()} for row in inner[0]]
        return inner
    return None


def _object_lists(value: Any, path: str, depth: int) -> list[tuple[str, list[dict[str, Any]]]]:
    if isinstance(value, list):
        return [(path, value)] if value and all(isinstance(one, dict) for one in value) else []
    if not isinstance(value, dict) or not depth:
        return []
    return [one for key, inner in value.items() for one in _object_lists(inner, f"{path}.{key}".strip("."), depth - 1)]
