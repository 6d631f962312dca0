"""What a data frame says beside its numbers: the names of its columns, and the index of its rows.

Frames of pandas, polars and pyarrow are known by their attributes, so that none of these is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from calibcli.core.errors import InputError
from calibcli.core.number_format import first_few
from calibcli.scores._positive_class import plain_order
from calibcli.scores.array_names import class_names_of, groups_of, label_names
from calibcli.scores.files.arrays import FileContents, Memory
from calibcli.scores.files.roles import PREFIXES
from calibcli.scores.files.text_tables import is_number
from calibcli.scores.predictions import Array


def names_of(given: Any) -> list[str]:
    """Return the names of the columns of a data frame, [] of anything else."""
    listed = getattr(given, "column_names", None)  # of pyarrow, where `columns` are the data
    columns = listed if isinstance(listed, list) else getattr(given, "columns", None)
    return [] if columns is None or callable(columns) else [str(name) for name in columns]


def name_of(given: Any) -> str:
    """Return the name of a single column: of a series, or of a frame of one column; "" if there is none."""
    names = names_of(given)
    name = names[0] if len(names) == 1 else getattr(given, "name", None)
    return name if not names[1:] and isinstance(name, str) and name.isprintable() else ""


# The order of the rows.


def refuse_other_order(given: Mapping[str, Any]) -> None:
    """Refuse arrays whose indices name the same rows in different orders.

    Rows are paired by position, as everywhere in NumPy and scikit-learn. Where two indices have the same values in
    another order, the rows belong together by index or by position, and nothing says which. So they do where at least
    half of the values are the same, unless one index is 0 .. n-1, which pandas gives to rows that have no names.

    Args:
        given: what was passed, by its name in errors; what has no index is not looked at.

    Raises:
        InputError: two of them differ so.
    """
    indexed = {name: index for name, one in given.items() if (index := _index(one)) is not None}
    for (first, a), (other, b) in combinations(indexed.items(), 2):
        if _moved(a, b):
            row = int((a.astype(str) != b.astype(str)).argmax())
            raise InputError(
                f"{other} and {first} have their rows in different orders by their index: row {row} is "
                f"{str(b[row])[:40]} in {other}, {str(a[row])[:40]} in {first}",
                f"if rows belong together by index: {other}.loc[{first}.index]; by position: {other}.to_numpy()",
            )


def _index(given: Any) -> Array | None:
    index = getattr(given, "index", None)  # a method of lists and texts
    if index is None or callable(index) or isinstance(given, Mapping):
        return None
    values = np.asarray(index)
    return values if values.ndim == 1 else None


def _moved(a: Array, b: Array) -> bool:
    if len(a) != len(b) or np.array_equal(a, b):
        return False
    if "O" in (a.dtype.kind, b.dtype.kind) or a.dtype.kind != b.dtype.kind:
        a, b = a.astype(str), b.astype(str)
    if np.array_equal(np.sort(a), np.sort(b)):
        return not np.array_equal(a, b)
    places = np.arange(len(a)).astype(a.dtype if a.dtype.kind in "US" else np.int64)
    unnamed = any(np.array_equal(one, places) for one in (a, b))
    return not unnamed and bool(2 * np.count_nonzero(np.isin(a, b)) >= len(a))


# The order of the columns.


@dataclass(frozen=True)
class ClassColumns:
    """The classes that the columns of a data frame are of.

    Attributes:
        order: of the columns, by class.  names: of the classes in this order, None where they are 0 .. K-1.
        kind: of the scores, as the names claim it, or "".
        notes: what a user should be told.
    """

    order: Sequence[int]
    names: list[str] | None = None
    kind: str = ""
    notes: Sequence[str] = ()

    @property
    def moved(self) -> bool:
        """Whether the columns are read in another order than they are in."""
        return list(self.order) != list(range(len(self.order)))


def class_columns(names: Sequence[str], scores: Array, labels: Array | None) -> ClassColumns:
    """Read the names of two or more columns as those of a table in a file are read: see `array_names.groups_of`.

    Columns that are numbered 0 .. K-1 are put in this order. Other names are those of the classes, in their order.

    Args:
        names: of all columns.  scores: (N, K).  labels: (N,), or None where there are none.

    Raises:
        InputError: some names are those of classes and others are not; or the names do not tell the order that labels
            0 .. K-1 count in.
    """
    plain, pass_array = ClassColumns(range(len(names))), "scores.to_numpy(), if they are in the order of the classes"
    if len(set(names)) < len(names):  # such names tell nothing
        return plain
    table = FileContents("arrays", {name: Memory(scores[:, i]) for i, name in enumerate(names)}, table=True)
    texts = labels.astype(str) if labels is not None and labels.dtype.kind == "b" else labels
    if groups := groups_of(names, [] if texts is None else label_names([Memory(texts)]), table):
        columns, classes, common = groups[0]
        if left := [name for name in names if name not in columns]:
            problem = f"columns {first_few(columns, 4)} are scores of classes by their names, {first_few(left, 4)} not"
            raise InputError(problem, f"leave the others out, scores[{list(columns)}]; or pass {pass_array}")
        order = [names.index(column) for column in columns]
        numbered = all(map(is_number, classes))
        moved = f"columns {first_few(names, 4)} are taken in the order {first_few(columns, 4)}"
        notes = [moved] if order != sorted(order) else []
        kind = PREFIXES.get(common.lower().strip("_ .-").replace("__", "_"), "")
        return ClassColumns(order, None if numbered else list(classes), kind, notes)
    if all(map(is_number, names)):
        numbers = [float(name) for name in names]
        seen = {*np.unique(texts).tolist()} if texts is not None and texts.dtype.kind in "iuf" else set()
        if seen and seen <= {*numbers}:
            return ClassColumns(plain.order, list(names))
        if numbers == sorted(numbers) and not seen & {*numbers}:
            return plain
        problem = f"columns {first_few(names, 4)} are numbers that are not 0 .. K-1, and do not name all labels either"
        raise InputError(problem, f"name each column after its class; or pass {pass_array}")
    classes = class_names_of(names)
    usual = plain_order(classes) if len(classes) == 2 else None
    if usual and usual != classes and texts is not None and texts.dtype.kind not in "USOb":
        problem = f"the columns are {names[0]} and {names[1]}, and labels 0 and 1 do not say which of them 1 is"
        turned = f"scores[[{names[1]!r}, {names[0]!r}]], if 1 is {classes[0]}"
        raise InputError(problem, f"pass {turned}; scores.to_numpy(), if 1 is {classes[1]}")
    return ClassColumns(plain.order, classes)


def refuse_moved_columns(names: Sequence[str], classes: Sequence[str] | None) -> None:
    """Refuse columns of a data frame in another order than a map, which was fitted on `classes`, takes them in.

    Raises:
        InputError: the names are those of the fit in another order, are other ones, or are numbers that do not ascend.
    """
    here = class_names_of(names)
    if len(names) < 2 or len(set(here)) < len(here):
        return
    if all(map(is_number, here)) and not (classes and sorted(here) == sorted(classes)):  # the names of no classes
        classes = sorted(here, key=float)
    if classes is None or here == list(classes) or (len(here) == len(classes) == 2 and here[1] == classes[1]):
        return
    problem = f"columns {first_few(names, 4)}: the calibrator takes {first_few(classes, 4)}, in this order"
    if sorted(here) != sorted(classes):
        raise InputError(problem, "pass columns of the classes of the fit; scores.to_numpy(), if only the names differ")
    raise InputError(problem, f"pass scores[{[names[here.index(name)] for name in classes]}]")


def in_order(columns: Array, names: Sequence[str], wanted: Sequence[str]) -> Array:
    """Put columns of labels, one for each class, in the order of the score columns of the same names.

    Raises:
        InputError: no score column has these names, and they are numbers that do not ascend.
    """
    if names and sorted(names) == sorted(wanted) and len(set(names)) == len(names):
        return columns[:, [names.index(name) for name in wanted]]
    refuse_moved_columns(names, None)
    return columns
