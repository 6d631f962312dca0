"""NumPy arrays, alone (.npy) or in an archive (.npz): read at their offset, compressed ones decoded within a limit.

The header of an array is a Python literal, never executed; pickles are refused (NEP 1, Kern 2007).

>>> np.savez(folder / "scores.npz", logits=logits, labels=labels)
>>> calibcli.read(folder / "scores.npz").logits.shape
(997, 10)
"""

from __future__ import annotations

import ast
import io
import math
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from calibcli.core.errors import InputError, refusing
from calibcli.scores.files.arrays import FileContents, InFile, Lazy, known_dtype, known_shape
from calibcli.scores.files.source import Source, StoredBytes, refuse_large
from calibcli.scores.predictions import Array, Named

SUFFIXES = (".npz", ".npy")
HEADER = 10_000  # longest array header that is parsed
MEMBERS = 10_000
Header = tuple[tuple[int, ...], bool, np.dtype[Any]]
AGAIN = "write it again with np.savez"
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError, LookupError,
           OverflowError)  # fmt: skip
BROKEN = (ValueError, TypeError, SyntaxError, LookupError, MemoryError, RecursionError, AttributeError, OverflowError,
          EOFError)  # fmt: skip


def signature(head: bytes, size: int) -> bool:
    """Return whether this is a zip archive, an empty one, or an array."""
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06", npy_format.MAGIC_PREFIX))


def read(source: Source) -> FileContents:
    """Read every array of an archive. A single array is named after the file, and its labels come from `--labels`.

    Raises:
        InputError: damaged, arrays that need a pickle, or larger than memory when decoded.
    """
    head = source.pread(min(source.size, 6), 0)
    if head.startswith(b"PK") or not (head == npy_format.MAGIC_PREFIX or source.path.endswith(".npy")):
        return _archive(source)
    file = source.reader()
    shape, fortran, dtype = header(file, source.stem, source.name)
    offset = file.tell()
    refuse_truncated(source.size - offset, shape, dtype, source.stem, source.name)
    return FileContents("npy", {source.stem: InFile(source, offset, shape, dtype, fortran)}, scores=source.stem)


def _archive(source: Source) -> FileContents:
    with refusing(DAMAGED, f"{source.name} is not a readable npz archive", AGAIN):
        archive = zipfile.ZipFile(source.reader())
        members = archive.infolist()
    if len(members) > MEMBERS:
        raise InputError(f"{source.name} holds {len(members)} arrays", "save the scores and labels alone")
    distinct_members(members, source)
    arrays: dict[str, Named] = {}
    packed = False
    for member in members:
        if not member.filename.endswith(".npy"):
            continue
        name = member.filename.removesuffix(".npy")
        with refusing(DAMAGED, partial("array '{}' in {} cannot be read ({})".format, name, source.name), AGAIN):
            arrays[name] = _member(source, archive, member, name)
        packed |= isinstance(arrays[name], Lazy)
    if not arrays:
        if any(member.filename.startswith("xl/") for member in members):
            raise InputError(f"{source.name} is a workbook of Excel", "save the sheet as CSV, and pass that file")
        fix = AGAIN if source.plain.suffix == ".npz" else "unpack it, and name the folder or the file in it"
        raise InputError(f"{source.name} is a zip archive without arrays", fix)
    return FileContents("npz, compressed" if packed else "npz", arrays)


def distinct_members(members: Sequence[zipfile.ZipInfo], source: Source) -> None:
    """Refuse a zip archive in which two members have the same name, as readers do not agree on which one is meant.

    Raises:
        InputError: there are two.
    """
    name, count = Counter(member.filename for member in members).most_common(1)[0] if members else ("", 0)
    if count > 1:
        shown = name.removesuffix(".npy")[:40]
        raise InputError(f"{source.name} holds {count} members named '{shown}'", "write each array once")


def data_offset(source: Source, member: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member begin, behind its own header with the name and extra fields."""
    name, extra = struct.unpack("<HH", source.pread(30, member.header_offset)[26:30])
    return int(member.header_offset + 30 + name + extra)


def stored_part(source: Source, member: zipfile.ZipInfo, name: str) -> int:
    """Return the offset of an uncompressed member, and note that its bytes are to be checked against their CRC-32.

    Raises:
        ValueError: the archive gives it two lengths.  InputError: the file ends before.
    """
    if member.compress_size != member.file_size:
        raise ValueError("it has two lengths")
    start = data_offset(source, member)
    if start + member.file_size > source.size:
        raise ValueError("it is truncated")
    source.stored.append(StoredBytes(start, start + member.file_size, member.CRC, name))
    return start


def _member(source: Source, archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Named:
    with archive.open(member) as file:
        shape, fortran, dtype = header(file, name, source.name)
        start = file.tell()
    refuse_truncated(member.file_size - start, shape, dtype, name, source.name)
    if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
        begin = stored_part(source, member, name) + start
        refuse_truncated(source.size - begin, shape, dtype, name, source.name)
        return InFile(source, begin, shape, dtype, fortran)
    return Lazy(shape, dtype.newbyteorder("="), lambda: _decode(source, archive, member, name))


def _decode(source: Source, archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Array:
    """Decompress one array, never more bytes than its header declares."""
    here = f"array '{name}' in {source.name}"
    fix = "save it with np.savez (uncompressed): then it is read piece by piece"
    refuse_large(member.file_size, f"{here} is compressed and takes {member.file_size / 1e9:.3g} GB when decoded", fix)
    damaged = refusing(DAMAGED, lambda error: f"{here} cannot be decompressed ({error})", AGAIN)
    with damaged, archive.open(member) as file:
        shape, fortran, dtype = header(file, name, source.name)
        array = np.empty(math.prod(shape), dtype)
        view, done = array.view(np.uint8).data, 0
        while done < len(view):
            part = _exactly(file, min(1 << 20, len(view) - done))
            view[done : done + len(part)] = part
            done += len(part)
        while file.read(1 << 20):  # to its end, where its checksum is compared
            pass
    return array.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="), copy=False)


def header(file: IO[bytes] | io.BufferedReader, name: str, where: str) -> Header:
    """Parse shape, order and dtype at the start of an array: a magic number, a length, a Python literal (never
    executed).
    """
    with refusing(
        BROKEN,
        lambda e: f"array '{name}' in {where} has a broken header ({next(iter(str(e).splitlines()), '')[:80]})",
        "write the file again",
    ):
        magic = _exactly(file, 8)
        if magic[:6] != npy_format.MAGIC_PREFIX or magic[6] not in (1, 2, 3):
            raise ValueError("it does not start like one")
        (length,) = struct.unpack("<H", _exactly(file, 2)) if magic[6] == 1 else struct.unpack("<I", _exactly(file, 4))
        if length > HEADER:
            raise ValueError(f"{length:,} bytes long")
        fields = ast.literal_eval(_exactly(file, length).decode("utf-8" if magic[6] == 3 else "latin-1").strip())
        shape, fortran = fields["shape"], fields["fortran_order"]
        dtype = npy_format.descr_to_dtype(fields["descr"])
        if not isinstance(shape, tuple) or not all(type(s) is int and s >= 0 for s in shape):
            raise ValueError("shape")
        if not isinstance(fortran, bool):
            raise ValueError("order")
        shape = known_shape(shape, name, where)
    known_dtype(dtype, name, where)
    if dtype.itemsize == 0:
        raise InputError(f"array '{name}' in {where} has dtype {dtype}", "write the file again")
    return shape, fortran, dtype


def _exactly(file: IO[bytes] | io.BufferedReader, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise EOFError("it ends too early")
    return data


def refuse_truncated(present: int, shape: tuple[int, ...], dtype: np.dtype[Any], name: str, where: str) -> None:
    """Refuse an array that is cut off."""
    wanted = math.prod(shape) * dtype.itemsize
    if present < wanted:
        problem = f"array '{name}' in {where} has shape {shape} but only {max(present, 0):,} of its {wanted:,} bytes"
        raise InputError(problem, "the file is truncated: write or copy it again")
