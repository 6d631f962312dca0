"""Safetensors, read at their offsets: an 8-byte length, a JSON header, the bytes. bfloat16 is widened by hand.

The format is that of Hugging Face (2022).

>>> import safetensors.numpy
>>> safetensors.numpy.save_file({"logits": logits, "labels": labels}, folder / "scores.safetensors")
>>> calibcli.read(folder / "scores.safetensors").logits.shape
(997, 10)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.core.errors import InputError, refusing
from calibcli.scores.files.arrays import FileContents, InFile, Memory, column_of, known_shape
from calibcli.scores.files.roles import CLASSES, IDS
from calibcli.scores.files.source import Source
from calibcli.scores.files.text_tables import json_of, parsed
from calibcli.scores.predictions import Named

SUFFIXES = (".safetensors",)
HEADER = 100_000_000  # longest header the format allows
WIDTHS = {"8": 1, "16": 2, "32": 4, "64": 8}  # bytes
FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}  # as PyTorch has them
DTYPES = {
    **{f"{kind}{bits}": f"<{kind.lower()}{size}" for kind in "IU" for bits, size in WIDTHS.items()},
    **{f"F{bits}": f"<f{size}" for bits, size in WIDTHS.items() if size > 1},
    **{"BF16": "<u2", "BOOL": "?"},
}


def signature(head: bytes, size: int) -> bool:
    """Return whether the file begins with 8 bytes that hold the length of a JSON object, and with that object."""
    return head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= size - 8


def read(source: Source) -> FileContents:
    """Read the header; tensors are read when needed. Lists in the metadata named ids or classes become arrays too.

    Raises:
        InputError: not safetensors, damaged, or a tensor of a type that NumPy cannot hold.
    """
    header, start = _header(source)
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict):
        raise _broken(source, "its metadata is not an object")
    arrays: dict[str, Named] = {name: _tensor(source, name, entry, start) for name, entry in header.items()}
    for name, text in metadata.items():
        if (name in CLASSES or name in IDS) and name not in arrays and isinstance(text, str):
            names = parsed(text)
            if isinstance(names, list) and names and all(isinstance(v, str | int) for v in names):
                arrays[name] = Memory(column_of(list(map(str, names))))
    return FileContents("safetensors", arrays, metadata={str(k): str(v) for k, v in metadata.items()})


def described(path: Path) -> list[Mapping[str, Any]]:
    """Return `dtype` and `shape` of each tensor, as the header has them.

    Raises:
        InputError: as `read`.
    """
    source = Source(path)
    entries = [entry for name, entry in _header(source)[0].items() if name != "__metadata__"]
    if not all(isinstance(entry, dict) and {"dtype", "shape"} <= entry.keys() for entry in entries):
        raise _broken(source, "a tensor has no dtype and shape")
    return entries


def _header(source: Source) -> tuple[dict[str, Any], int]:
    if source.size < 10:
        raise _broken(source, "it is too short")
    length = int.from_bytes(source.pread(8, 0), "little")
    if length > min(HEADER, source.size - 8):
        raise _broken(source, f"its header claims to have {length:,} bytes")
    broken = _broken(source, "its header is not JSON")
    with refusing((ValueError, RecursionError), broken.problem, broken.fix):
        header = json_of(source.pread(length, 8), source.name)
    if not isinstance(header, dict):
        raise _broken(source, "its header is not an object")
    return header, 8 + length


def _tensor(source: Source, name: str, entry: Any, start: int) -> Named:
    try:
        kind, shape, (first, last) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise _broken(source, f"tensor '{name[:40]}' has no dtype, shape and offsets") from None
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in (*shape, first, last))
    if not whole or not isinstance(kind, str):
        raise _broken(source, f"tensor '{name[:40]}' has a shape or offset that is not a number")
    if kind not in DTYPES:
        raise InputError(f"tensor '{name[:40]}' in {source.name} has dtype {kind[:10]}", "save it as float32")
    stored, shape = np.dtype(DTYPES[kind]), known_shape(shape, name, source.name)
    if last - first != math.prod(shape) * stored.itemsize or start + last > source.size:
        raise _broken(source, f"tensor '{name[:40]}' {shape} does not fit its {last - first:,} bytes")
    return InFile(source, start + first, shape, stored, bfloat16=kind == "BF16")


def _broken(source: Source, why: str) -> InputError:
    return InputError(f"{source.name} is not a readable safetensors file: {why}", "save or copy it again")
