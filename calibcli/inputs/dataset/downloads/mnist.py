"""MNIST and what copies its files (Fashion-MNIST, KMNIST): idx files, compressed or not (LeCun et al. 1998)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError
from calibcli.inputs.dataset.downloads.members import Members
from calibcli.inputs.dataset.keys import Found

PREFIXES = {"train": "train", "test": "t10k"}
NAMES = [("-images-idx3-ubyte", "-labels-idx1-ubyte"), ("-images.idx3-ubyte", "-labels.idx1-ubyte")]


def splits(there: Members) -> list[str]:
    """Splits whose pictures and labels lie there; of a single file, its own."""
    return [name for name in PREFIXES if _pair(there, name)]


def read(there: Members, split: str) -> Found:
    """The pictures of a split, (N, rows, columns) bytes.

    Raises:
        InputError: no such split, or files that are no idx arrays of bytes.
    """
    name = there.split(split, splits(there))
    pair = _pair(there, name)
    data = there.read(pair)
    pictures, labels = (_array(data[one], f"{one} of {there.path}") for one in pair)
    if pictures.ndim != 3 or labels.ndim != 1 or len(pictures) != len(labels):
        problem = f"{there.path}: pictures {pictures.shape} and labels {labels.shape} do not belong together"
        raise InputError(problem, "download both again")
    note = f"idx files, {name}: {len(labels):,} pictures of {pictures.shape[1]}x{pictures.shape[2]}"
    return there.found(name, data, pair, pictures, labels.astype(np.int64), note)


def _pair(there: Members, split: str) -> list[str]:
    """Names of the pictures and the labels of a split."""
    if there.kind == "file" and not there.path.name.startswith(f"{PREFIXES[split]}-"):
        return []
    for images, labels in NAMES:
        for end in ("", ".gz"):
            pair = [f"{PREFIXES[split]}{part}{end}" for part in (images, labels)]
            if set(pair) <= there.paths.keys():
                return pair
    return []


def _array(data: bytes, where: str) -> NDArray[np.uint8]:
    """An idx file: two zeros, the type (8: bytes), the number of dimensions, each as four bytes, the numbers."""
    if len(data) < 4 or data[:3] != b"\0\0\x08" or not 1 <= data[3] <= 3 or len(data) < 4 + 4 * data[3]:
        raise InputError(f"{where} is no idx file of bytes", "download it again")
    shape = tuple(int(size) for size in np.frombuffer(data[4 : 4 + 4 * data[3]], ">u4"))
    start = 4 + 4 * data[3]
    if len(data) - start != math.prod(shape):
        problem = f"{where} declares {' x '.join(map(str, shape))} bytes and holds {max(len(data) - start, 0):,}"
        raise InputError(problem, "download it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
