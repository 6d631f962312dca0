"""Formats: each is one reader `Source -> Contents` and one line in READERS."""

from __future__ import annotations

import dataclasses
import importlib
import warnings
from collections.abc import Callable

from calibcli.errors import InputError, printable
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.source import Source

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


def load_any(source: Source) -> Contents:
    """The arrays of a file by the reader of its format."""
    module, _, function = READERS[source.format()].partition(":")
    read: Callable[[Source], Contents] = getattr(importlib.import_module(f"calibcli.inputs.files.{module}"), function)
    with warnings.catch_warnings(action="ignore"):  # what NumPy and torch say about odd headers is no result
        contents = read(source)
    if all(name.isprintable() and len(name) <= NAME for name in contents.arrays):
        return contents
    arrays = {printable(name.replace("\n", "?"), NAME): array for name, array in contents.arrays.items()}
    if len(arrays) < len(contents.arrays):
        raise InputError(f"{source.name} holds arrays whose names begin alike", f"give them names below {NAME} letters")
    return dataclasses.replace(contents, arrays=arrays)
