"""A data set from where it lies: which arrays are inputs, which are labels, and how bytes become numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.errors import InputError, UsageError, refusing
from calibcli.inputs.code import FAILURES, NAMES_CODE, from_module
from calibcli.inputs.dataset import downloads, folder, user_code
from calibcli.inputs.dataset.keys import Found, pick, pick_columns, splits_of, to_labels
from calibcli.inputs.dataset.preprocess import Preprocess, for_array
from calibcli.inputs.dataset.resize import Resized, needs_pillow
from calibcli.inputs.dataset.rows import Dataset
from calibcli.inputs.files.arrays import InFile, Memory, whole
from calibcli.inputs.files.names import parted
from calibcli.inputs.files.source import Source, load_any
from calibcli.predictions import Named

MEMORY = "(memory)"


def load(
    source: Any,
    *,
    preprocess: Mapping[str, Any] | None = None,
    mean: str | Sequence[float] | None = None,
    std: str | Sequence[float] | None = None,
    layout: str | None = None,
    size: str | None = None,
    inputs: str | None = None,
    labels: str | None = None,
    subset: int | None = None,
    split_seed: int | None = None,
    trust: bool = False,
) -> Dataset:
    """A data set.

    Args:
        source: `.npz .npy .safetensors .pt` arrays (`file.npz#test` takes the arrays of one split), an image folder,
            `.csv`/`.tsv`, or `module:function` that returns a data set; or what such a function returns.
        preprocess: a checkpoint's `preprocess`; the options below come before it.
        mean, std: per channel.  layout: `NHWC`, `NCHW` or `flat`.  size: of pictures, see `resize.size_option`.
        inputs: name of the array with the inputs; several, by comma, go to the model by name.
        labels: name of the array or column with the labels; of a `.npy`, the file that holds them.
        subset: that many rows drawn without replacement with `split_seed`, in their order.
        trust: allow `.pt` files that hold pickled objects.

    Raises:
        InputError: unreadable, ambiguous, rows that do not agree, labels that are not classes.
    """
    name = str(source) if isinstance(source, str | Path) else MEMORY
    if name is MEMORY:
        found = source if isinstance(source, Dataset) else user_code.read(source, name, inputs, labels)
    else:
        found = _read(name, inputs, labels, trust)
    if isinstance(found, Dataset):
        return _subset(found, subset, split_seed or 0)
    y, classes, notes = to_labels(found, name)
    for key, array in found.inputs.items():
        if array.shape[:1] != y.shape:
            rows = array.shape[0] if array.shape else 0
            raise InputError(f"{name}: {rows} rows of {key or 'inputs'}, {len(y)} labels", "give every row one label")
        if len(array.shape) < 2:
            raise InputError(f"{name}: {key or 'inputs'} have shape {array.shape}", "pass rows of features or images")
        if array.dtype.kind not in "fuib":
            raise InputError(f"{name}: {key or 'inputs'} are {array.dtype}, not numbers", "pass an array of numbers")
    first = next(iter(found.inputs.values()))
    applied, remarks = for_array(
        first.shape, first.dtype, preprocess, mean=mean, std=std, layout=layout, size=size, source=name
    )
    data = Dataset(
        inputs=_resized(found.inputs, applied, name),
        labels=y,
        preprocess=applied,
        source=name,
        sha256=found.sha256,
        rows=np.arange(len(y)),
        ids=found.ids if found.ids is not None and len(found.ids) == len(y) else None,
        classes=classes,
        notes=[*found.notes, *notes, *remarks],
        integral=found.integral,
    )
    return _subset(data, subset, split_seed or 0)


def _resized(inputs: Mapping[str, Named], applied: Preprocess, source: str) -> Mapping[str, Named]:
    """The first input in the size that the model takes; an array that has it already is left alone."""
    name, first = next(iter(inputs.items()))
    if not applied.resize:
        return inputs
    if isinstance(first, folder.Pictures):
        return {**inputs, name: first.resized(applied.resize)}
    made = Resized(first, applied.resize, applied.layout == "NCHW" and len(first.shape) == 4)
    if made.shape == first.shape:
        return inputs
    needs_pillow(f"pictures of {source}")
    return {**inputs, name: made}


def _read(name: str, inputs_key: str | None, labels_key: str | None, trust: bool) -> Found | Dataset:
    path, split = parted(name)
    published = downloads.read(path, split)
    if published is not None:
        if labels_key or inputs_key:
            raise UsageError(f"{name} is a published data set: its inputs and labels are known", "name neither")
        return published
    if os.path.isdir(path):
        if labels_key:
            raise UsageError(f"--labels names an array or a column, {name} is a folder", "leave it out")
        return folder.read(path, split)
    if not os.path.lexists(path):
        if not NAMES_CODE.fullmatch(name):
            raise InputError(f"no data set {path}", "pass a file, an image folder, or module:function")
        with refusing(
            FAILURES, lambda error: f"{name} failed ({type(error).__name__}: {error})", "correct the function"
        ):
            made = from_module(*name.split(":"))()
        return made if isinstance(made, Dataset) else user_code.read(made, name, inputs_key, labels_key)
    source = Source(path, trust)
    contents = load_any(source, columns=True)
    if contents.table:
        return pick_columns(contents.arrays, name, split, labels_key, source.sha256())
    arrays = _by_rows(contents.arrays)
    if contents.format == "npy":  # labels lie in a file of their own
        labels = Path(labels_key) if labels_key else path.with_suffix(".labels.npy")
        if not labels.exists():
            raise InputError(f"{path} has no labels", f"pass --labels LABELS.npy, or put them into {labels}")
        arrays = dict(zip(("inputs", "labels"), (*arrays.values(), *load_any(Source(labels)).arrays.values())))
        labels_key = None
    return pick(arrays, name, split, inputs_key, labels_key, source.sha256())


def _by_rows(arrays: Mapping[str, Named]) -> Mapping[str, Named]:
    """The arrays of a file as rows are read: those stored column after column would take a read for each column."""
    if list(arrays) == ["item0", "item1"]:  # torch.save((inputs, labels))
        arrays = dict(zip(("inputs", "labels"), arrays.values()))
    by_columns = {n: a for n, a in arrays.items() if isinstance(a, InFile) and a.fortran and len(a.shape) > 1}
    return {**arrays, **{name: Memory(whole(array)) for name, array in by_columns.items()}}


def splits(source: str | Path, *, trust: bool = False) -> list[str]:
    """Which of train, validation and test an arrays file holds side by side (`x_train`, `y_test`, ...)."""
    published = downloads.of(Path(source))
    if published is not None:
        return published[2]
    return splits_of(load_any(Source(source, trust), columns=True).arrays) if os.path.isfile(source) else []


def _subset(data: Dataset, subset: int | None, seed: int) -> Dataset:
    if subset is None or subset == len(data):
        return data
    if subset > len(data):
        note = f"all {len(data)} rows are used: the subset asked for is {subset}"
        return replace(data, notes=[*data.notes, note])
    rows = np.sort(np.random.default_rng(seed).choice(len(data), subset, replace=False))
    note = f"{subset} of {len(data)} rows, drawn with split seed {seed}"
    return replace(data.select(rows), notes=[*data.notes, note])
