"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), the python and the binary version."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError, refusing
from calibcli.inputs.dataset.downloads.members import MOST, Members
from calibcli.inputs.dataset.keys import Found
from calibcli.inputs.files import pickles
from calibcli.inputs.files.pytorch_archive import UNREADABLE

PIXELS = 3 * 32 * 32  # planes of red, green and blue, row by row
BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
PYTHON = {  # what tells the version, its splits, and where class names are
    "batches.meta": {"train": BATCHES, "test": ["test_batch"]},
    "meta": {"train": ["train"], "test": ["test"]},
}
BINARY = {
    "batches.meta.txt": {"train": [f"{name}.bin" for name in BATCHES], "test": ["test_batch.bin"]},
    "fine_label_names.txt": {"train": ["train.bin"], "test": ["test.bin"]},
}
VERSIONS = {**PYTHON, **BINARY}
ALLOWED = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")} | {
    (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
}
"""What a batch is made of; anything else is refused, and nothing is called but these."""


def splits(there: Members) -> list[str]:
    """`train` and `test`, or the one of which all batches lie there; [] of another data set."""
    meta = _version(there)
    return [] if not meta else [name for name, files in VERSIONS[meta].items() if set(files) <= {*there.paths}]


def read(there: Members, split: str) -> Found:
    """The pictures of a split, (N, 3, 32, 32) bytes. `test:coarse` takes the 20 superclasses of CIFAR-100.

    Raises:
        InputError: no such split, damaged files, or a pickle of anything but arrays, texts and numbers.
    """
    meta = _version(there)
    asked, _, level = split.partition(":")
    name = there.split(asked, splits(there))
    hundred = meta in ("meta", "fine_label_names.txt")
    if level not in ("", "fine", "coarse") or (level and not hundred):
        fix = f"choose {there.path}#{name}:coarse or #{name}" if hundred else f"choose {there.path}#{name}"
        raise InputError(f"{there.path} has no labels '{level}'", fix)
    names = VERSIONS[meta][name]
    extra = [meta] if level != "coarse" or meta == "meta" else ["coarse_label_names.txt"]
    extra = [one for one in extra if one in there.paths]
    data = there.read([*names, *extra])
    key = f"{level or 'fine'}_labels" if hundred else "labels"
    if meta in PYTHON:
        parts = [_batch(data[batch], key, f"{batch} of {there.path}") for batch in names]
        about = _unpickled(data[meta], f"{meta} of {there.path}")
        told = about.get(f"{key[:-1]}_names".encode())
        classes = [_text(one) for one in told] if isinstance(told, list) else []
    else:
        width = 2 if hundred else 1
        at = 0 if level == "coarse" or not hundred else 1
        parts = [_records(data[batch], width, at, f"{batch} of {there.path}") for batch in names]
        classes = [line.strip() for one in extra for line in _text(data[one]).splitlines() if line.strip()]
    pixels = np.concatenate([part[0] for part in parts]) if len(parts) > 1 else parts[0][0]
    labels = np.concatenate([part[1] for part in parts])
    note = f"{'CIFAR-100' if hundred else 'CIFAR-10'}, {name}: {len(pixels):,} pictures"
    made = there.found(name, data, names, pixels.reshape(-1, 3, 32, 32), labels, note)
    return replace(made, classes=classes or None)


def _version(there: Members) -> str:
    found = (meta for meta, files in VERSIONS.items() if meta in there.paths)
    return next((m for m in found if any(set(f) <= {*there.paths} for f in VERSIONS[m].values())), "")


class _Plain(pickle.Unpickler):
    """Arrays, texts, numbers and their containers."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _unpickled(data: bytes, where: str) -> dict[Any, Any]:
    named = pickles.names(io.BytesIO(data), where, most=MOST)
    allowed = {f"{module}.{name}" for module, name in ALLOWED}
    odd = sorted(name for name in named - allowed if not name.startswith(pickles.STACKED))  # those: `find_class`
    if odd:
        raise InputError(f"{where} would run code: it names {odd[0]}", "download the archive again, from its authors")
    with refusing(
        (*UNREADABLE, ImportError),
        lambda error: f"{where} is no batch of CIFAR ({str(error)[:80]})",
        "download it again",
    ):
        found = _Plain(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(found, dict):
            raise TypeError("no dictionary")
    return {key.encode() if isinstance(key, str) else key: value for key, value in found.items()}


def _batch(data: bytes, key: str, where: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    found = _unpickled(data, where)
    pixels, labels = found.get(b"data"), found.get(key.encode())
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise InputError(f"{where} does not hold data (N, {PIXELS})", "download it again")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise InputError(f"{where} does not hold a list {key}", "download it again")
    if len(labels) != len(pixels):
        raise InputError(f"{where} holds {len(pixels)} pictures and {len(labels)} labels", "download it again")
    return pixels, np.array(labels, np.int64)


def _records(data: bytes, width: int, at: int, where: str) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    if not data or len(data) % (width + PIXELS):
        problem = f"{where} is {len(data):,} bytes long, no multiple of {width + PIXELS:,}"
        raise InputError(problem, "download it again")
    rows = np.frombuffer(data, np.uint8).reshape(-1, width + PIXELS)
    return rows[:, width:], rows[:, at].astype(np.int64)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
