"""Choose the inputs, labels, ids and class names among the arrays of a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError, did_you_mean
from calibcli.core.number_format import count_text
from calibcli.core.options import normal, real
from calibcli.scores.files.arrays import EncodedPictures, FileContents, Memory, read_all
from calibcli.scores.files.roles import CLASSES, IDS, INPUTS, LABELS, PAIRS, SPLITS, TABLE_LABELS, TEXTS, TOKENS
from calibcli.scores.files.text_tables import floats_of_text
from calibcli.scores.predictions import Named
from calibcli.scores.reading_options import IGNORED

WORDS = "UST"
"""Kinds of dtypes that hold texts: of fixed length, of bytes, and of any length."""


@dataclass
class DatasetArrays:
    """The arrays of a data set as they are stored.

    Attributes:
        inputs: by name; one named "" is passed to the model by position.  labels: as stored.
        integral: the inputs are tokens, which stay integers.  words: what the tokens stand for, if known.
        published: name of the data set, where its files are those that its authors published, or "".
    """

    inputs: Mapping[str, Named]
    labels: NDArray[Any]
    sha256: str
    ids: NDArray[Any] | None = None
    classes: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    integral: bool = False
    words: Sequence[str] = ()
    published: str = ""


@dataclass(frozen=True)
class ArrayRequest:
    """A request for the arrays of a source: its name, split, names of inputs and labels, and the sha256 of its file.

    `next_token`: the labels of a language model are its tokens, where there are no others.
    """

    source: str
    split: str = ""
    inputs: str | None = None
    labels: str | None = None
    sha256: str = ""
    next_token: bool = False


def _label(arrays: Mapping[str, Named], names: Sequence[str], request: ArrayRequest) -> str:
    """Return the name of the labels; "" where there are none and the tokens are their own."""
    if request.next_token and not request.labels and not _candidates(arrays, names, request.split):
        return ""
    return request.labels or _one(arrays, names, request, "labels")


def pick(arrays: Mapping[str, Named], request: ArrayRequest) -> DatasetArrays:
    """Choose inputs, labels, ids and class names among the arrays of a file.

    Raises:
        InputError: no candidate, or several.
    """
    inputs, integral = _inputs(arrays, request)
    label = _label(arrays, LABELS.names, request)
    ids = _candidates(arrays, IDS.all, request.split)
    classes = _candidates(arrays, CLASSES.names, request.split) or _candidates(arrays, CLASSES.names, "")
    names = _all(arrays[classes[0]]) if classes else None
    row_ids = _all(arrays[ids[0]]) if ids else None
    named = [str(n) for n in names] if names is not None and names.ndim == 1 else None
    rows = next(iter(inputs.values())).shape[:1]
    labels = _all(_named(arrays, label, request)) if label else np.zeros(rows, np.int64)
    return DatasetArrays(inputs, labels, request.sha256, row_ids, named, integral=integral)


def _beside(contents: FileContents, request: ArrayRequest, ids: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the columns with labels and ids of a table, and the fields of `DatasetArrays` from them."""
    label = _label(contents.arrays, TABLE_LABELS, request)
    reserved = [label, *[name for name in _candidates(contents.arrays, ids, "") if name != label][:1]]
    rows = next(iter(contents.arrays.values())).shape[:1]
    labels = _all(_named(contents.arrays, label, request)) if label else np.zeros(rows, np.int64)
    fields: dict[str, Any] = {"labels": labels, "sha256": request.sha256}
    fields["ids"] = _all(contents.arrays[reserved[1]]).astype(str) if reserved[1:] else None
    fields["classes"] = list(contents.classes[label]) if label in contents.classes else None
    return reserved, fields


def pick_columns(contents: FileContents, request: ArrayRequest) -> DatasetArrays:
    """Choose the inputs of a table: its column of images, or features (N, D) float64 in the order of the columns; also
    labels with class names if the table has them, and ids if a column has that name.

    Raises:
        InputError: no label column, or a cell that is not a finite number.
    """
    columns, (reserved, stored) = contents.arrays, _beside(contents, request, IDS.all)
    features = request.inputs.split(",") if request.inputs else [name for name in columns if name not in reserved]
    pictures = [name for name in features if isinstance(_named(columns, name, request), EncodedPictures)]
    if len(pictures) > 1:
        problem = f"{request.source}: {' and '.join(pictures)} are pictures"
        raise InputError(problem, f"choose one: --inputs {pictures[0]}")
    if pictures:
        notes = [f"pictures in '{pictures[0]}', labels in '{reserved[0]}'"]
        return DatasetArrays(inputs={"": columns[pictures[0]]}, notes=notes, **stored)
    values = np.empty((len(stored["labels"]), len(features)))
    for i, name in enumerate(features):
        column = _all(columns[name])
        values[:, i] = floats_of_text(column, name, request.source) if column.dtype.kind == "O" else column
        odd = np.flatnonzero(~np.isfinite(values[:, i]))
        if len(odd):
            problem = f"row {odd[0]} of column '{name}' in {request.source} is not finite"
            raise InputError(problem, "fill or drop such rows")
    notes = [f"{len(features)} feature columns, labels in '{reserved[0]}'"]
    return DatasetArrays(inputs={"": Memory(values)}, notes=notes, **stored)


def pick_texts(contents: FileContents, request: ArrayRequest) -> DatasetArrays | None:
    """Choose one or two columns of texts, for a model with a tokenizer; None if there are none.

    Raises:
        InputError: several columns could be the text, or there are no labels.
    """
    arrays = contents.arrays
    words = {name: array for name, array in arrays.items() if array.dtype.kind in "OU"}
    texts = [name for name, array in words.items() if not isinstance(array, EncodedPictures)]
    if not texts or (_candidates(arrays, ("input_ids",), request.split) and not request.inputs):
        return None
    reserved, stored = _beside(contents, request, (*IDS.all, "idx"))  # GLUE; beside numbers it may be a feature
    texts = [name for name in texts if name not in reserved]
    chosen = request.inputs.split(",") if request.inputs else _texts(arrays, texts, request.split)
    if not chosen:
        return None
    fix = f"name the text with --inputs, or a first and a second one with a comma: --inputs {','.join(texts[:2])}"
    for name in chosen:
        if name not in texts:
            fix = fix if name in arrays else did_you_mean(name, texts)
            raise InputError(f"'{name}' of {request.source} is no text", fix)
    if len(chosen) > 2:
        raise InputError(f"{request.source}: {', '.join(chosen[:6])} are texts", fix)
    columns = {name: Memory(_all(arrays[name]).astype(object)) for name in chosen}
    notes = [f"text in {' and '.join(map(repr, chosen))}" + f", labels in '{reserved[0]}'" * bool(reserved[0])]
    empty = sum(not str(text).strip() for text in columns[chosen[0]].array)
    notes += [f"{empty:,} of the texts are empty"] * bool(empty)
    return DatasetArrays(inputs=columns, notes=notes, **stored)


def _texts(arrays: Mapping[str, Named], texts: list[str], split: str) -> list[str]:
    """Choose columns of texts: a known pair, else one with a known name, else all."""
    for pair in PAIRS:
        columns = [_candidates(arrays, (name,), split) for name in pair]
        if all(columns) and all(one[0] in texts for one in columns):
            return [one[0] for one in columns]
    recognised = [name for name in _candidates(arrays, TEXTS.names, split) if name in texts]
    return recognised[:1] or texts


def of_positions(stored: DatasetArrays, source: str, ignored: int | None) -> NDArray[np.int64] | None:
    """Return labels of positions, (N, T) or (N, H, W), with IGNORED for those that are not counted; None where each row
    has one label, also as one-hot rows.

    Raises:
        InputError: they are not whole numbers, negative ones are left, or none is counted.
    """
    labels, first = stored.labels, next(iter(stored.inputs.values()))
    if labels.ndim == 4 and labels.shape[1] == 1:
        labels = labels[:, 0]  # (N, 1, H, W) -> (N, H, W)
    if labels.ndim < 2 or labels.ndim > 3 or labels.dtype.kind not in "iufb":
        return None
    if labels.ndim == 2:
        if labels.shape != tuple(first.shape[:2]) or labels.shape[1] < 2:
            return None
        if first.dtype.kind == "f" and len(first.shape) == 2 and bool((labels.sum(1) == 1).all()):
            return None  # one-hot rows beside as many features
    numbers = labels.astype(np.int64)
    if not np.array_equal(numbers, labels):
        raise InputError(f"{source}: labels of positions are not whole numbers", "number the classes 0 to K-1")
    if ignored is not None:
        numbers[numbers == ignored] = IGNORED
    wrong = np.argwhere((numbers < 0) & (numbers != IGNORED))
    if len(wrong):
        value = int(numbers[tuple(wrong[0])])
        raise InputError(f"{source}: label {value} in row {wrong[0][0]} is no class", f"--ignore-label {value}")
    return numbers


def to_labels(stored: DatasetArrays, source: str) -> tuple[NDArray[np.int64], list[str] | None, list[str]]:
    """Convert labels to (N,) int64; also return class names and notes.

    (N, 1) is squeezed; one-hot rows and whole floats are converted. Texts that are not numbers are numbered in the
    order of the class names, or alphabetically if there are none.

    Raises:
        InputError: labels are not whole numbers, are negative, are missing, or have another shape.
    """
    notes: list[str] = []
    labels, classes = stored.labels, stored.classes
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    words = labels.dtype.kind in WORDS
    if labels.ndim == 2 and not words and bool((((labels == 0) | (labels == 1)).all(1) & (labels.sum(1) == 1)).all()):
        labels = labels.argmax(1)
        notes.append("one-hot labels were converted to class numbers")
    if labels.ndim != 1:
        raise InputError(f"{source}: labels have shape {labels.shape}", "pass one class number per row")
    if words or labels.dtype.kind == "O":
        texts = [_text(label).strip() for label in labels]
        if "" in texts:
            row, rows = texts.index(""), count_text(texts.count(""), "such row")
            raise InputError(f"{source}: row {row} has no label ({rows})", "leave out rows without a class")
        try:
            labels = np.array([real(text) for text in texts])
        except ValueError:
            if not set(texts) <= set(classes or ()):
                classes = sorted(set(texts))
            order = {name: code for code, name in enumerate(classes or ())}
            labels = np.array([order[text] for text in texts])
    if labels.dtype.kind not in "iubf":
        raise InputError(f"{source}: labels are {labels.dtype}, not numbers", "number the classes 0 to K-1")
    if not len(labels):
        raise InputError(f"{source} has no rows", "pass at least one row")
    with np.errstate(invalid="ignore"):  # NaN becomes an arbitrary number, which the comparison below finds
        numbers = labels.astype(np.int64)
    wrong = np.flatnonzero((numbers != labels) | (numbers < 0))
    if len(wrong):
        problem = f"{source}: label {labels[wrong[0]]} in row {wrong[0]} is not a class number ({len(wrong)} such rows)"
        raise InputError(problem, "number the classes 0 to K-1, and leave out rows without a class")
    return numbers, classes, notes


def _text(label: Any) -> str:
    """Return a label as text, "" where there is none: None, or NaN among texts."""
    if isinstance(label, bytes):
        return label.decode("utf-8", "backslashreplace")
    missing = label is None or (isinstance(label, float) and math.isnan(label))
    return "" if missing else str(label)


def _inputs(arrays: Mapping[str, Named], request: ArrayRequest) -> tuple[dict[str, Named], bool]:
    """Choose the inputs by name ("" if they are passed by position), and tell whether they are tokens.

    Tokens stay integers; other integers become floats. Several named inputs are taken for those of a model of texts.
    """
    key = request.inputs
    if key and "," in key:
        return {k: _named(arrays, k, request) for k in key.split(",")}, True
    if key:
        return {"": _named(arrays, key, request)}, "token" in key or key in TOKENS
    tokens = {name: matches[0] for name in TOKENS if (matches := _candidates(arrays, (name,), request.split))}
    if "input_ids" in tokens:
        return {name: arrays[k] for name, k in tokens.items()}, True
    name = _one(arrays, INPUTS.names, request, "inputs")
    return {"": arrays[name]}, "tokens" in name


def _all(array: Named) -> NDArray[Any]:
    return read_all(array) if array.shape else np.asarray([])  # a single number is no value for each row


def _named(arrays: Mapping[str, Named], key: str, request: ArrayRequest) -> Named:
    if key not in arrays:
        raise InputError(f"{request.source} has no array '{key}'", did_you_mean(key, arrays))
    return arrays[key]


def splits_of(arrays: Mapping[str, Named]) -> list[str]:
    """List which of train, validation and test have their own inputs and labels."""
    needed = LABELS.names, INPUTS.names
    return [split for split in SPLITS if all(_candidates(arrays, names, split) for names in needed)]


def _candidates(arrays: Mapping[str, Named], names: Sequence[str], split: str) -> list[str]:
    if split:
        words = next((w for w in SPLITS.values() if split in w), (split,))
        names = [form for n in names for w in words for form in (f"{w}_{n}", f"{n}_{w}")]
    spelled = {normal(name): name for name in reversed(list(arrays))}
    return list(dict.fromkeys(name if name in arrays else spelled[name] for name in names if name in spelled))


def _one(arrays: Mapping[str, Named], names: Sequence[str], request: ArrayRequest, role: str) -> str:
    source, split = request.source, request.split
    matches = _candidates(arrays, names, split)
    if len(matches) == 1:
        return matches[0]
    fix = f"it holds: {', '.join(arrays)}; name one with --{role}"
    if matches:
        raise InputError(f"{source}: {' and '.join(matches)} could both be the {role}", fix)
    splits = [s for s in SPLITS if _candidates(arrays, names, s)]
    if splits and not split:
        raise InputError(f"{source} holds the splits {', '.join(splits)}", f"choose one: {source}#{splits[-1]}")
    raise InputError(f"{source} has no {role}" + (f" of the split '{split}'" if split else ""), fix)
