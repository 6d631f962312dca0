"""One NumPy array, read at its offset; its header is a Python literal, never executed, and pickles are refused."""

from __future__ import annotations

import ast
import io
import math
import struct
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Contents, InFile, known_dtype, known_shape
from calibcli.inputs.files.source import Source

SUFFIXES = (".npy",)
HEADER = 10_000  # longest array header that is parsed
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]


def signature(head: bytes, size: int) -> bool:
    """The magic number."""
    return head.startswith(npy_format.MAGIC_PREFIX)


def read(source: Source) -> Contents:
    """One array, named after the file; its labels come from `--labels`."""
    file = source.reader()
    shape, fortran, dtype = header(file, source.stem, source.name)
    offset = file.tell()
    enough(source.size - offset, shape, dtype, source.stem, source.name)
    return Contents("npy", {source.stem: InFile(source, offset, shape, dtype, fortran)}, scores=source.stem)


def header(file: IO[bytes] | io.BufferedReader, name: str, where: str) -> Header:
    """Shape, order and dtype from the start of an array: magic number, length, a Python literal (never executed)."""
    try:
        magic = _exactly(file, 8)
        if magic[:6] != npy_format.MAGIC_PREFIX or magic[6] not in (1, 2, 3):
            raise ValueError("it does not start like one")
        (length,) = struct.unpack("<H", _exactly(file, 2)) if magic[6] == 1 else struct.unpack("<I", _exactly(file, 4))
        if length > HEADER:
            raise ValueError(f"{length:,} bytes long")
        about = ast.literal_eval(_exactly(file, length).decode("utf-8" if magic[6] == 3 else "latin-1").strip())
        shape, fortran = about["shape"], about["fortran_order"]
        dtype = npy_format.descr_to_dtype(about["descr"])
        if not isinstance(shape, tuple) or not all(type(s) is int and s >= 0 for s in shape):
            raise ValueError("shape")
        if not isinstance(fortran, bool):
            raise ValueError("order")
        shape = known_shape(shape, name, where)
    except (
        *(ValueError, TypeError, SyntaxError, LookupError, MemoryError, RecursionError, AttributeError),
        *(OverflowError, EOFError),
    ) as error:
        text = str(error).split("\n")[0][:80]
        raise InputError(f"array '{name}' in {where} has a broken header ({text})", "write the file again") from None
    known_dtype(dtype, name, where)
    if dtype.itemsize == 0:
        raise InputError(f"array '{name}' in {where} has dtype {dtype}", "write the file again")
    return shape, fortran, dtype


def _exactly(file: IO[bytes] | io.BufferedReader, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError("it ends too early")
    return data


def enough(present: int, shape: tuple[int, ...], dtype: np.dtype[Any], name: str, where: str) -> None:
    """Refuse an array whose bytes are not all there."""
    wanted = math.prod(shape) * dtype.itemsize
    if present < wanted:
        raise InputError(
            f"array '{name}' in {where} has shape {shape} but only {max(present, 0):,} of its {wanted:,} bytes",
            "the file is truncated: write or copy it again",
        )
