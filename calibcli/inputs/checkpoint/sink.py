"""Logits written block by block, so that memory does not grow with the data set."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import UsageError
from calibcli.files import atomic

SUFFIXES = (".npz", ".safetensors", ".npy")
NAMES = {"<f4": "F32", "<i8": "I64", "<i4": "I32"}
Write = Callable[[NDArray[np.float32]], None]


def known_suffix(path: Path) -> Path:
    """`path`, if logits can be written to it.

    Raises:
        UsageError: another suffix.
    """
    if path.suffix not in SUFFIXES:
        raise UsageError(f"cannot write logits as '{path.name}'", "use a suffix of: " + " ".join(SUFFIXES))
    return path


def paths(path: Path) -> list[Path]:
    """The files that logits are written to: of .npy, the labels lie beside it."""
    return [path, path.with_suffix(".labels.npy")] if path.suffix == ".npy" else [path]


@contextlib.contextmanager
def writing(
    path: Path, shape: tuple[int, int], arrays: Mapping[str, NDArray[Any]]
) -> Iterator[tuple[Write, list[Path]]]:
    """A function that takes the next block of logits (float32) and the paths that will be written.

    Args:
        shape: (N, K) of the logits.  arrays: `labels`, and what else belongs to the rows.
    """
    with contextlib.ExitStack() as stack:
        temporary = stack.enter_context(atomic(path))
        if path.suffix == ".npz":
            archive = stack.enter_context(zipfile.ZipFile(temporary, "w", allowZip64=True))
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
            file: IO[bytes] = stack.enter_context(archive.open("logits.npy", "w", force_zip64=True))
            _npy_header(file, shape)
        elif path.suffix == ".npy":
            with atomic(paths(path)[1]) as labels:
                np.save(labels, arrays["labels"])
            file = stack.enter_context(temporary.open("wb"))
            _npy_header(file, shape)
        else:
            file = stack.enter_context(temporary.open("wb"))
            _safetensors_header(file, shape, arrays)
        yield lambda block: _put(file, block), paths(path)


def _put(file: IO[bytes], block: NDArray[np.float32]) -> None:
    file.write(np.ascontiguousarray(block, "<f4").tobytes())


def _npy_header(file: IO[bytes], shape: tuple[int, int]) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _safetensors_header(file: IO[bytes], shape: tuple[int, int], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Header and the number arrays, then room for the logits; names of ids and classes go into the metadata."""
    header: dict[str, Any] = {}
    texts = {k: json.dumps(v.tolist()) for k, v in arrays.items() if v.dtype.str not in NAMES}
    if texts:
        header["__metadata__"] = texts
    body = b""
    for name, array in arrays.items():
        if name not in texts:
            data = array.tobytes()
            offsets = [len(body), len(body) + len(data)]
            header[name] = {"dtype": NAMES[array.dtype.str], "shape": list(array.shape), "data_offsets": offsets}
            body += data
    end = len(body) + 4 * shape[0] * shape[1]
    header["logits"] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(body), end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text + body)
