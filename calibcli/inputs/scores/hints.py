"""What to say where nothing in a file has a known name: the options that would read it, and none of its values."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.roles import LABELS, OUTCOMES, PREDICTED
from calibcli.inputs.files.text import is_number
from calibcli.predictions import Array, Named
from calibcli.spec import normal

ROWS, SHOWN = 1000, 6
TWO = ({"0", "1"}, *map(set, OUTCOMES))
PERCENT = ("conf", "confidence", "percent", "%", "certainty", "sure")
"""Words of which a column's name has one where it is a confidence out of a hundred."""


def way(contents: Contents, no_probability: str) -> str:
    """Return how the file can be read.

    Args:
        no_probability: what to do where no array holds scores.
    """
    cells = {name: _cells(array) for name, array in contents.arrays.items() if _is_column(array)}
    wide = [name for name, a in contents.arrays.items() if len(a.shape) == 2 and a.shape[1] > 1 and a.dtype.kind == "f"]
    fractions = [name for name, column in cells.items() if _are_shares(column)]
    label = _label(cells, contents.arrays[wide[0]].shape[1] if wide else len(fractions))
    said = f" --labels {shlex.quote(label)}" if label else ""
    by_label = [name for name in cells if label and name in set(cells[label])]
    predicted = next((n for n in cells if n in PREDICTED and n not in (label, *fractions)), "")
    shares = [name for name in fractions if name != label]
    if wide:
        return f"choose them: --scores {shlex.quote(wide[0])}{said}; or name them logits or probs"
    if len(by_label) > 1:
        return f"choose them: --scores {shlex.quote(','.join(by_label))}{said}; or name them logits or probs"
    percent = [name for name, column in cells.items() if name not in (label, predicted) and _are_percents(name, column)]
    if predicted and label and (shares or percent):
        one, scale = (shares[0], "") if shares else (percent[0], " --confidence-scale percent")
        way = f"--confidence {shlex.quote(one)}{scale}{said}"
        return f"a confidence beside the predicted class '{predicted}': {way}"
    if shares:
        way = f"--scores {shlex.quote(','.join(shares[:SHOWN]))}{said}"
        return f"choose them: {way}; or name them logits or probs"
    return f"if one of these holds scores: --scores KEY; else {no_probability}"


def is_numeric(array: Named) -> bool:
    """Whether it holds numbers, or texts that are."""
    if array.dtype.kind not in "USO":
        return True
    cells = array.read(0, ROWS).reshape(-1).tolist() if array.shape[0] else []
    return bool(cells) and all(is_number(str(cell).strip()) for cell in cells)


def _is_column(array: Named) -> bool:
    return len(array.shape) in (1, 2) and array.shape[0] > 0 and array.shape[1:] in ((), (1,))


def _cells(array: Named) -> list[str]:
    """The first rows of a column, as texts; whole numbers without a point."""
    values: Array = array.read(0, ROWS).reshape(-1)
    texts = [str(cell).strip() for cell in values.tolist()]
    return [text.removesuffix(".0") for text in texts]


def _label(cells: dict[str, list[str]], k: int) -> str:
    """Return the column of labels, "" where none looks like it: one with a label's name, else one that holds names of
    columns, else numbers of the k classes, else one of two outcomes, else the last of two whole numbers or names.
    """
    for known in (LABELS.names, LABELS.weak):
        if named := [name for name in cells if normal(name) in known]:
            return named[0]
    for name, column in cells.items():
        if len(set(column) & set(cells)) > 1:  # the names of columns
            return name
    if k > 1 and (numbers := _classes(cells, k)):
        return numbers
    free = {name: set(column) for name, column in cells.items() if name not in PREDICTED}
    outcomes = [name for name, values in free.items() if {v.lower() for v in values} in TWO]
    two = [name for name, values in free.items() if len(values) == 2 and not _fractions(values)]
    return (outcomes or two or [""])[-1]


def _classes(cells: dict[str, list[str]], k: int) -> str:
    """Return the last column that holds numbers of k classes alone, "" where none does."""
    numbers = {str(i) for i in range(k)}
    return next((name for name in reversed(cells) if set(cells[name]) <= numbers), "")


def _fractions(values: Sequence[str] | set[str]) -> bool:
    """Whether any of these is a number that is not whole."""
    return any(is_number(v) and float(v) != np.floor(float(v)) for v in values)


def _are_shares(column: Sequence[str]) -> bool:
    """Whether these are numbers in [0, 1], not all of them whole; `63.4%` is one."""
    bare = [cell.removesuffix("%") for cell in column]
    if not all(map(is_number, bare)):
        return False
    values = np.array([float(b) / (100 if b != c else 1) for b, c in zip(bare, column, strict=True)])
    return bool(((values >= 0) & (values <= 1)).all()) and not np.array_equal(values, np.floor(values))


def _are_percents(name: str, column: Sequence[str]) -> bool:
    """Whether these are numbers in [0, 100] under a name that says that they are a confidence."""
    if not (any(word in name.lower() for word in PERCENT) and all(map(is_number, column))):
        return False
    values = np.array([float(cell) for cell in column])
    return bool(((values >= 0) & (values <= 100)).all())
