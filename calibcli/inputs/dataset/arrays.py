"""Arrays in files, opened without reading them: rows come from disk when asked for.

Uncompressed .npz, .npy and .safetensors are read row by row, so that resident memory stays small; compressed .npz
and .pt files are held in memory. Nothing here unpickles objects.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError

Array = NDArray[Any]
SUFFIXES = (".npz", ".npy", ".safetensors", ".pt", ".pth")
SAFETENSORS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U8": "u1", "BOOL": "?", "U16": "<u2", "U32": "<u4", "U64": "<u8",
}  # fmt: skip


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
class OnDisk:
    """A C-ordered array at an offset of a file; `bfloat16` is widened to float32 as it is read."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    bfloat16: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.bfloat16 else self.stored

    def read(self, rows: NDArray[np.int64]) -> Array:
        """Rows in the order asked for: one read per run of consecutive rows."""
        out = np.empty((len(rows), *self.shape[1:]), self.stored)
        size = self.stored.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        view = memoryview(cast(Any, out.reshape(-1).view(np.uint8)))
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        starts = np.concatenate([[0], breaks]) if len(rows) else breaks
        ends = np.append(breaks, len(rows))
        with self.path.open("rb", buffering=0) as file:
            for start, end in zip(starts.tolist(), ends.tolist()):
                file.seek(self.offset + int(rows[start]) * size)
                self._fill(file, view[start * size : end * size])
        return (out.astype(np.uint32) << 16).view(np.float32) if self.bfloat16 else out

    def _fill(self, file: FileIO, view: memoryview) -> None:
        done = 0
        while done < len(view):
            got = file.readinto(view[done:])
            if not got:
                raise InputError(f"{self.path} ends early", "the file changed or is truncated: fetch it again")
            done += got


def open_arrays(path: Path, *, trust: bool = False) -> dict[str, Rows]:
    """The arrays of a file by name (a .npy has one, named "").

    Raises:
        InputError: unreadable, damaged, or holding Python objects.
    """
    try:
        if path.suffix == ".npz":
            return _npz(path)
        if path.suffix == ".npy":
            return {"": _npy(path)}
        if path.suffix == ".safetensors":
            return _safetensors(path)
        return _pt(path, trust)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror or error})", "check the path") from None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, RuntimeError) as error:
        raise InputError(f"{path} is damaged or not what its suffix says ({error})", "write it again") from None


def _npz(path: Path) -> dict[str, Rows]:
    found: dict[str, Rows] = {}
    with zipfile.ZipFile(path) as file, path.open("rb") as raw:
        for info in file.infolist():
            name = info.filename.removesuffix(".npy")
            if info.compress_type == zipfile.ZIP_STORED:
                # the local header's name and extra field may differ in length from the directory's
                raw.seek(info.header_offset + 26)
                skip = int.from_bytes(raw.read(2), "little") + int.from_bytes(raw.read(2), "little")
                found[name] = _header(path, raw, info.header_offset + 30 + skip, f"{path.name}[{name}]")
            else:
                with file.open(info) as member:
                    array = np.lib.format.read_array(member, allow_pickle=False)
                found[name] = Held(array)
    return found


def _npy(path: Path) -> Rows:
    with path.open("rb") as raw:
        return _header(path, raw, 0, path.name)


def _header(path: Path, raw: Any, start: int, name: str) -> Rows:
    raw.seek(start)
    version = np.lib.format.read_magic(raw)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(raw)
    if dtype.hasobject:
        raise InputError(f"{name} holds Python objects, which are pickles", "save plain number or string arrays")
    if fortran and len(shape) > 1:
        raw.seek(start)
        return Held(np.lib.format.read_array(raw, allow_pickle=False))
    if raw.tell() + dtype.itemsize * int(np.prod(shape, dtype=np.int64)) > path.stat().st_size:
        raise InputError(f"{name} is cut short", "the file is truncated: fetch it again")
    return OnDisk(path, raw.tell(), shape, dtype)


def _safetensors(path: Path) -> dict[str, Rows]:
    size = path.stat().st_size
    with path.open("rb") as raw:
        length = int.from_bytes(raw.read(8), "little")
        if length > min(size, 1 << 27):
            raise ValueError("no safetensors header")
        header = json.loads(raw.read(length))
    found: dict[str, Rows] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        stored = np.dtype(SAFETENSORS[entry["dtype"]])
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if end - begin != stored.itemsize * int(np.prod(shape, dtype=np.int64)) or 8 + length + end > size:
            raise ValueError(f"'{name}' is cut short")
        found[name] = OnDisk(path, 8 + length + begin, shape, stored, entry["dtype"] == "BF16")
    return found


def _pt(path: Path, trust: bool) -> dict[str, Rows]:
    """Tensors of a .pt file: a dict by name, or a tuple (inputs, labels)."""
    import pickle

    import torch

    try:
        tree: Any = torch.load(path, map_location="cpu", weights_only=not trust)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path} holds pickled Python objects; nothing was executed",
            "save a dict of tensors {'images': ..., 'labels': ...}, or pass --trust if you trust the file",
        ) from None
    except (RuntimeError, AttributeError, TypeError) as error:
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
