"""Formats: each is one reader `Source -> Contents` and one line in READERS."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from calibcli.errors import InputError, UsageError, printable
from calibcli.inputs import foreign, keys
from calibcli.inputs.arrays import Contents
from calibcli.inputs.source import Source

NAME = 100  # longest name of an array that is shown whole
READERS = {
    "npz": "npz:read_npz",
    "npy": "npz:read_npy",
    "csv": "text:read_csv",
    "tsv": "text:read_tsv",
    "jsonl": "jsonl:read_jsonl",
    "safetensors": "tensors:read_safetensors",
    "parquet": "parquet:read_parquet",
    "pt": "pt:read_pt",
    "pth": "pt:read_pt",
}
Paths = str | Path | Sequence[str | Path]


def open_all(path: Paths, shards: bool) -> list[Source]:
    """The files, opened.

    Raises:
        InputError: several files without `shards`.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise UsageError("no input file", "name a file with scores and labels, or - for stdin")
    if len(paths) > 1 and not shards:
        raise InputError(
            f"{len(paths)} files: parts of one data set, or several models?",
            "parts: --shards; models: calib compare " + " ".join(str(p) for p in paths[:3]),
        )
    return [Source(p) for p in paths]


def load_any(source: Source) -> Contents:
    """The arrays of a file by the reader of its format."""
    module, _, function = READERS[source.format()].partition(":")
    read: Callable[[Source], Contents] = getattr(importlib.import_module(f"calibcli.inputs.{module}"), function)
    with warnings.catch_warnings(action="ignore"):  # what NumPy and torch say about odd headers is no result
        contents = read(source)
    if all(name.isprintable() and len(name) <= NAME for name in contents.arrays):
        return contents
    arrays = {printable(name.replace("\n", "?"), NAME): array for name, array in contents.arrays.items()}
    if len(arrays) < len(contents.arrays):
        raise InputError(f"{source.name} holds arrays whose names begin alike", f"give them names below {NAME} letters")
    return dataclasses.replace(contents, arrays=arrays)


def load(source: Source) -> Contents:
    """As `load_any`, for files of recorded outputs.

    Raises:
        InputError: it is something else of calib's or of a model's.
    """
    found = foreign.before_reading(source)
    if found is None:
        contents = load_any(source)
        found = None if keys.candidates(contents) else foreign.after_reading(contents, source)
        if found is None:
            return contents
    raise found.refusal(source.name)
