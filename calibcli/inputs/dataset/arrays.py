"""Arrays in files, opened without reading them: rows come from disk when asked for.

Uncompressed .npz, .npy and .safetensors are read row by row, so that resident memory stays small; compressed .npz and
.pt files are held in memory. Nothing here unpickles objects.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import InFile, Named
from calibcli.inputs.files.formats import npy, npz, safetensors
from calibcli.inputs.files.source import Source

Array = NDArray[Any]
READERS = {".npz": npz.read, ".npy": npy.read, ".safetensors": safetensors.read}
SUFFIXES = (*READERS, ".pt", ".pth")


class Rows(Protocol):
    """Rows of one array: its shape (N, ...), dtype, and a reader."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def read(self, rows: NDArray[np.int64]) -> Array: ...


@dataclass(frozen=True)
class Held:
    """An array in memory."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def read(self, rows: NDArray[np.int64]) -> Array:
        found: Array = self.array[rows]
        return found


@dataclass(frozen=True)
class Runs:
    """An array that is read from start to stop, for rows in any order: one read per run of consecutive rows."""

    array: Named

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def read(self, rows: NDArray[np.int64]) -> Array:
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        ends = [*(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)] if len(rows) else []
        start = 0
        for end in ends:
            first = int(rows[start])
            out[start:end] = self.array.read(first, first + end - start)
            start = end
        return out


def open_arrays(path: Path, *, trust: bool = False) -> tuple[dict[str, Rows], Source]:
    """The arrays of a file by name, and the open file, which they are read from.

    Raises:
        InputError: unreadable, damaged, or holding Python objects.
    """
    source = Source(path)
    if path.suffix not in READERS:
        return _pt(source, trust), source
    found = READERS[path.suffix](source).arrays
    return {name: _rows(array) for name, array in found.items()}, source


def _rows(array: Named) -> Rows:
    # stored column after column, single rows would take a read for each column
    whole = isinstance(array, InFile) and array.fortran and len(array.shape) > 1
    return Held(array.read(0, array.shape[0])) if whole else Runs(array)


def _pt(source: Source, trust: bool) -> dict[str, Rows]:
    """Tensors of a .pt file: a dict by name, or a tuple (inputs, labels)."""
    import pickle

    import torch

    from calibcli.inputs.files import pickles
    from calibcli.inputs.files.formats import pt

    path = source.path
    code = InputError(
        f"{path} holds pickled Python objects; nothing was executed",
        "save a dict of tensors {'images': ..., 'labels': ...}, or pass --trust if you trust the file",
    )
    if not trust and not pickles.plain(pt.named(source)):
        raise code
    try:
        with source.reader() as file, warnings.catch_warnings(action="ignore"):
            tree: Any = torch.load(file, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError:
        raise code from None
    except pt.UNREADABLE as error:
        raise InputError(f"{path} is damaged ({str(error)[:200]})", "write it again") from None
    if hasattr(tree, "tensors"):
        tree = tree.tensors
    if isinstance(tree, tuple | list) and len(tree) == 2:
        tree = {"inputs": tree[0], "labels": tree[1]}
    if isinstance(tree, torch.Tensor):
        tree = {"": tree}
    if not isinstance(tree, dict):
        raise InputError(f"{path} holds {type(tree).__name__}, not arrays", "save {'images': ..., 'labels': ...}")
    found: dict[str, Rows] = {}
    for name, value in tree.items():
        if isinstance(value, torch.Tensor):
            found[str(name)] = Held((value.float() if value.dtype == torch.bfloat16 else value).detach().numpy())
        elif isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            found[str(name)] = Held(np.array(value))
    return found
