"""Tables whose score columns are named after classes: `cat_prob, dog_prob`, `class_0, class_1`, `benign, malignant`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Contents, Memory, texts_of, whole
from calibcli.inputs.files.roles import ABOUT_SCORES, IDS, OF_CLASS, PREFIXES, ROW_NUMBERS
from calibcli.inputs.files.text import decimals_of, floats_of_text, is_number
from calibcli.inputs.scores import keys
from calibcli.predictions import Array
from calibcli.spec import normal

NUMBERED = re.compile(r"^(.*?)(\d{1,7})(.*)$")
Group = tuple[Sequence[str], Sequence[str], str]
"""Columns, the classes that they are of, and what their names have in common."""


def grouped(contents: Contents, wanted: str | None, where: str) -> Contents:
    """The table with its score columns as one array, where they can be told; else as it was.

    Args:
        wanted: `--scores`: several columns by comma are the scores in this order.

    Raises:
        InputError: a column that was asked for is not there, or holds no numbers.
    """
    if wanted and "," in wanted and wanted not in contents.arrays:
        columns = [keys.named(contents, name.strip(), "--scores", where) for name in wanted.split(",")]
        if len(set(columns)) < len(columns):
            raise InputError(f"--scores {wanted} names a column twice", "name every class once, in order")
        return _joined(contents, (columns, _stripped(columns), ""), where, wanted)
    if wanted or not contents.table:
        return contents
    label = one[0] if len(one := keys.labelling(contents.arrays)) == 1 else ""
    known = (label, *(name for name in contents.arrays if name in IDS or name in ROW_NUMBERS))
    own = [name for name, array in contents.arrays.items() if name not in known and array.shape[1:] == ()]
    of_labels = _label_names(contents, label)
    group = _by_labels(own, of_labels, contents) or _numbered(own) or _named(own, of_labels)
    return contents if group is None else _joined(contents, group, where)


def _label_names(contents: Contents, label: str) -> list[str]:
    """The labels that are names, each once."""
    if not label or contents.arrays[label].dtype.kind not in "USO":
        return []
    found = sorted({str(text).strip() for text in texts_of(whole(contents.arrays[label]))} - {""})
    return [] if len(found) > 10_000 or all(is_number(text) for text in found) else found


def _by_labels(own: Sequence[str], labels: Sequence[str], contents: Contents) -> Group | None:
    """Columns named as the labels, alone or all with the same words before or behind.

    Where they have the names alone, no other column may hold numbers: a class that no label names would be lost.
    """
    if len(labels) < 2:
        return None
    around = {(m[0], m[2]) for column in own if (m := column.partition(labels[0]))[1]}
    for before, after in sorted(around, key=lambda words: (len(words[0] + words[1]), words)):
        if not {f"{before}{label}{after}" for label in labels} <= set(own):
            continue
        found = [c for c in own if c.startswith(before) and c.endswith(after) and len(c) > len(before + after)]
        names = [c[len(before) : len(c) - len(after)] for c in found]
        if not before + after:
            found = names = [c for c in own if c in labels]
        if before + after or not _numeric(contents, set(own) - set(found)):
            return found, names, before + after
    return None


def _numeric(contents: Contents, columns: set[str]) -> bool:
    """Whether any of these columns begins with a number."""
    return any(is_number(str(contents.arrays[c].read(0, 1)[0])) for c in columns if contents.arrays[c].shape[0])


def _numbered(own: Sequence[str]) -> Group | None:
    """Columns numbered 0 .. K-1 or 1 .. K, with a word for scores beside the number, or with the numbers alone."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for column in own:
        if parts := NUMBERED.match(column):
            found.setdefault((parts[1], parts[3]), {})[int(parts[2])] = column
    for (before, after), columns in found.items():
        words = set(re.split(r"[^a-z]+", f"{before} {after}".lower())) - {""}
        numbers = sorted(columns)
        from_zero = numbers == list(range(len(numbers)))
        if len(numbers) > 1 and from_zero and (words & ABOUT_SCORES if words else len(columns) == len(own)):
            return [columns[k] for k in numbers], [str(k) for k in numbers], before + after
    return None


def _named(own: Sequence[str], labels: Sequence[str]) -> Group | None:
    """Columns `p_benign, p_malignant` beside labels that are numbers."""
    pairs = [(m[1].lower(), m[2], c) for c in own if keys.carried(c) and (m := OF_CLASS.match(c))]
    if labels or len(pairs) < 2 or len({prefix for prefix, *_ in pairs}) > 1:
        return None
    return [c for *_, c in pairs], [name for _, name, _ in pairs], pairs[0][0]


def _joined(contents: Contents, group: Group, where: str, name: str = "") -> Contents:
    columns, names, common = group
    cells = [whole(contents.arrays[name]) for name in columns]
    block = np.column_stack([_numbers(column, name, where) for name, column in zip(columns, cells)])
    name = name or ", ".join(columns)
    prefix = normal(common).strip("_").replace("__", "_")
    texts = [str(cell) for column in cells if column.dtype.kind in "USO" for cell in column[:1000].tolist()]
    return replace(
        contents,
        arrays={name: Memory(block), **{n: a for n, a in contents.arrays.items() if n not in columns}},
        kinds={**contents.kinds, name: PREFIXES.get(prefix, "")},
        decimals={**contents.decimals, name: max(map(decimals_of, texts))} if texts else contents.decimals,
        classes={**contents.classes, **({} if all(map(is_number, names)) else {name: list(names)})},
        scores=name,
    )


def _numbers(column: Array, name: str, where: str) -> Array:
    if column.ndim != 1:
        raise InputError(f"'{name}' in {where} is not one column", "name columns of one number each")
    return floats_of_text(column, name, where) if column.dtype.kind in "USO" else column


def _stripped(columns: Sequence[str]) -> list[str]:
    """What the names do not have in common, at word boundaries: `cat`, `dog` of `cat_prob`, `dog_prob`."""
    words = [re.split(r"(?<=[_.\- ])|(?=[_.\- ])", column) for column in columns]
    while len({w[0] for w in words}) == 1 and min(map(len, words)) > 1:
        words = [w[1:] for w in words]
    while len({w[-1] for w in words}) == 1 and min(map(len, words)) > 1:
        words = [w[:-1] for w in words]
    return ["".join(w).strip("_.- ") or column for w, column in zip(words, columns)]
