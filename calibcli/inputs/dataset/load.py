"""A data set from where it lies: which arrays are inputs, which are labels, and how bytes become numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError, did_you_mean
from calibcli.files import sha256
from calibcli.inputs.dataset.arrays import Rows, open_arrays
from calibcli.inputs.dataset.rows import Dataset, for_array

INPUTS = ("images", "x", "inputs", "data", "features", "pixel_values", "tokens")
LABELS = ("labels", "y", "label", "targets", "target", "y_true")
IDS = ("ids", "id", "index")
CLASSES = ("classes", "class_names", "label_names")
NAMED = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
SPLITS = {
    "train": ("train", "training", "tr"),
    "validation": ("validation", "val", "valid", "dev"),
    "test": ("test", "te", "eval"),
}
ARRAY_SUFFIXES = (".npz", ".npy", ".safetensors", ".pt", ".pth")


def load(
    source: str | Path,
    *,
    preprocess: Mapping[str, Any] | None = None,
    mean: str | Sequence[float] | None = None,
    std: str | Sequence[float] | None = None,
    layout: str | None = None,
    inputs_key: str | None = None,
    labels_key: str | None = None,
    subset: int | None = None,
    seed: int = 0,
    trust: bool = False,
    label_column: str | None = None,
) -> Dataset:
    """A data set.

    Args:
        source: `.npz .npy .safetensors .pt` arrays (`file.npz#test` takes the arrays of one split), an image folder,
            `.csv`/`.tsv`, or `module:function` that returns a data set.
        preprocess: a checkpoint's `preprocess`; the options below come before it.
        mean, std: per channel.  layout: `NHWC`, `NCHW` or `flat`.
        inputs_key, labels_key: names of the arrays.  label_column: of a CSV.
        subset: that many rows drawn without replacement with `seed`, in their order.
        trust: allow `.pt` files that hold pickled objects.

    Raises:
        InputError: unreadable, ambiguous, rows that do not agree, labels that are not classes.
    """
    name = str(source)
    path, split = _split(name)
    if not path.exists():
        raise InputError(f"no data set {path}", "pass a file, an image folder, or module:function")
    arrays = open_arrays(path, trust=trust)
    inputs, labels, ids, classes = pick(arrays, name, split, inputs_key, labels_key)
    target, notes = to_labels(labels, name)
    first = next(iter(inputs.values()))
    for key, array in inputs.items():
        if len(array.shape) < 2 and not key:
            raise InputError(f"{name}: the inputs have shape {array.shape}", "pass rows of features or images")
        if array.shape[0] != len(target):
            problem = f"{name}: {array.shape[0]} rows of {key or 'inputs'} but {len(target)} labels"
            raise InputError(problem, "give every row its label")
    applied, remarks = for_array(first.shape, first.dtype, preprocess, mean=mean, std=std, layout=layout, source=name)
    found = Dataset(
        inputs=inputs,
        labels=target,
        preprocess=applied,
        source=name,
        sha256=sha256(path),
        rows=np.arange(len(target)),
        ids=ids,
        classes=classes,
        notes=notes + remarks,
    )
    return _subset(found, subset, seed)


def _split(name: str) -> tuple[Path, str]:
    stem, _, split = name.rpartition("#")
    return (Path(stem), split) if stem and not Path(name).exists() else (Path(name), "")


def _subset(data: Dataset, subset: int | None, seed: int) -> Dataset:
    if subset is None:
        return data
    if subset >= len(data):
        note = f"all {len(data)} rows are used: the subset asked for is {subset}"
        return replace(data, notes=[*data.notes, note])
    rows = np.sort(np.random.default_rng(seed).choice(len(data), subset, replace=False))
    note = f"{subset} of {len(data)} rows, drawn with seed {seed}"
    return replace(data.select(rows), notes=[*data.notes, note])


def pick(
    arrays: Mapping[str, Rows], source: str, split: str, inputs_key: str | None, labels_key: str | None
) -> tuple[dict[str, Rows], NDArray[Any], NDArray[Any] | None, list[str] | None]:
    """Inputs by name, labels, ids and class names among a file's arrays.

    Raises:
        InputError: none, or several candidates.
    """
    fix = f"it holds: {', '.join(arrays)}; name them with --inputs-key and --labels-key"
    if inputs_key:
        inputs = {"" if "," not in inputs_key else k: _named(arrays, k, source) for k in inputs_key.split(",")}
    elif "input_ids" in arrays and not split:
        inputs = {k: arrays[k] for k in NAMED if k in arrays}
    else:
        inputs = {"": arrays[_one(arrays, INPUTS, split, source, "inputs", fix)]}
    labels = (
        _named(arrays, labels_key, source) if labels_key else arrays[_one(arrays, LABELS, split, source, "labels", fix)]
    )
    ids = _candidates(arrays, IDS, split)
    classes = (
        _candidates(arrays, CLASSES, "")
        if not split
        else _candidates(arrays, CLASSES, split) or _candidates(arrays, CLASSES, "")
    )
    names = _all(arrays[classes[0]]) if classes else None
    return (
        inputs,
        _all(labels),
        _all(arrays[ids[0]]) if ids else None,
        [str(n) for n in names] if names is not None and names.ndim == 1 else None,
    )


def _all(rows: Rows) -> NDArray[Any]:
    return rows.read(np.arange(rows.shape[0])) if rows.shape else np.asarray([])


def _named(arrays: Mapping[str, Rows], key: str, source: str) -> Rows:
    if key not in arrays:
        raise InputError(f"{source} has no array '{key}'", did_you_mean(key, arrays))
    return arrays[key]


def _candidates(arrays: Mapping[str, Rows], names: Sequence[str], split: str) -> list[str]:
    if not split:
        return [n for n in names if n in arrays]
    words = next((w for w in SPLITS.values() if split in w), (split,))
    wanted = [form for n in names for w in words for form in (f"{w}_{n}", f"{n}_{w}")]
    return [n for n in dict.fromkeys(wanted) if n in arrays]


def _one(arrays: Mapping[str, Rows], names: Sequence[str], split: str, source: str, what: str, fix: str) -> str:
    found = _candidates(arrays, names, split)
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{source}: {' and '.join(found)} could both be the {what}", fix)
    splits = [s for s in SPLITS if _candidates(arrays, names, s)]
    if splits and not split:
        raise InputError(f"{source} holds the splits {', '.join(splits)}", f"choose one: {source}#{splits[-1]}")
    raise InputError(f"{source} has no {what}" + (f" of the split '{split}'" if split else ""), fix)


def to_labels(labels: NDArray[Any], source: str) -> tuple[NDArray[np.int64], list[str]]:
    """Labels as (N,) int64: (N, 1) squeezed, one-hot rows converted, whole floats accepted.

    Raises:
        InputError: not whole numbers, negative, or of another shape.
    """
    notes: list[str] = []
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and bool((((labels == 0) | (labels == 1)).all(1) & (labels.sum(1) == 1)).all()):
        labels = labels.argmax(1)
        notes.append("one-hot labels were converted to class numbers")
    if labels.ndim != 1:
        raise InputError(f"{source}: labels have shape {labels.shape}", "pass one class number per row")
    if labels.dtype.kind not in "iubf":
        raise InputError(f"{source}: labels are {labels.dtype}, not numbers", "number the classes 0 to K-1")
    if not len(labels):
        raise InputError(f"{source} has no rows", "pass at least one row")
    whole = labels.astype(np.int64)
    wrong = np.flatnonzero((whole != labels) | (whole < 0))
    if len(wrong):
        raise InputError(
            f"{source}: label {labels[wrong[0]]} in row {wrong[0]} is not a class number ({len(wrong)} such rows)",
            "number the classes 0 to K-1, and leave out rows without a class",
        )
    return whole, notes
