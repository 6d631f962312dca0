"""NumPy archives. Uncompressed arrays are read at their offset, compressed ones decoded within a limit; no pickles."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Contents, InFile, Lazy, Named
from calibcli.inputs.files.formats.npy import enough, header
from calibcli.inputs.files.source import Source, Stored, memory_limit
from calibcli.predictions import Array

SUFFIXES = (".npz",)
MEMBERS = 10_000


def signature(head: bytes, size: int) -> bool:
    """A zip archive, or an empty one."""
    return head.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def read(source: Source) -> Contents:
    """Every array of the archive.

    Raises:
        InputError: not an archive, damaged, arrays that need a pickle, or larger than memory when decoded.
    """
    damaged = InputError(f"{source.name} is not a readable npz archive", "write it again with np.savez")
    try:
        archive = zipfile.ZipFile(source.reader())
        members = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error, IndexError, OverflowError):
        raise damaged from None
    if len(members) > MEMBERS:
        raise InputError(f"{source.name} holds {len(members)} arrays", "save the scores and labels alone")
    distinct_members(members, source)
    arrays: dict[str, Named] = {}
    packed = False
    for member in members:
        if not member.filename.endswith(".npy"):
            continue
        name = member.filename.removesuffix(".npy")
        try:
            arrays[name] = _member(source, archive, member, name)
        except (
            *(zipfile.BadZipFile, zlib.error, EOFError, OSError, struct.error, RuntimeError),
            *(NotImplementedError, ValueError, IndexError, OverflowError),
        ) as error:
            raise InputError(f"array '{name}' in {source.name} cannot be read ({error})", damaged.fix) from None
        packed |= isinstance(arrays[name], Lazy)
    if not arrays:
        raise InputError(f"{source.name} is a zip archive with no arrays in it", damaged.fix)
    return Contents("npz, compressed" if packed else "npz", arrays)


def distinct_members(members: Sequence[zipfile.ZipInfo], source: Source) -> None:
    """Refuse a zip archive in which a name stands for two members: which one is meant, no reader agrees on.

    Raises:
        InputError: there are two.
    """
    name, count = Counter(member.filename for member in members).most_common(1)[0] if members else ("", 0)
    if count > 1:
        shown = name.removesuffix(".npy")[:40]
        raise InputError(f"{source.name} holds {count} members named '{shown}'", "write it again, each array once")


def stored_part(source: Source, member: zipfile.ZipInfo, name: str) -> int:
    """Offset of the bytes of an uncompressed member, which are noted to be checked against their CRC-32.

    Raises:
        ValueError: the archive gives it two lengths.  InputError: the file ends before.
    """
    if member.compress_size != member.file_size:
        raise ValueError("it has two lengths")
    names, extra = struct.unpack("<HH", source.pread(30, member.header_offset)[26:30])
    start: int = member.header_offset + 30 + names + extra
    if start + member.file_size > source.size:
        raise ValueError("it is cut off")
    source.stored.append(Stored(start, start + member.file_size, member.CRC, name))
    return start


def _member(source: Source, archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Named:
    with archive.open(member) as file:
        shape, fortran, dtype = header(file, name, source.name)
        start = file.tell()
    enough(member.file_size - start, shape, dtype, name, source.name)
    if member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1:
        begin = stored_part(source, member, name) + start
        enough(source.size - begin, shape, dtype, name, source.name)
        return InFile(source, begin, shape, dtype, fortran)
    return Lazy(shape, dtype.newbyteorder("="), lambda: _decode(source, archive, member, name))


def _decode(source: Source, archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Array:
    """Decompress one array; never more bytes than its header declares."""
    limit = memory_limit()
    if member.file_size > limit:
        raise InputError(
            f"array '{name}' in {source.name} is compressed and takes {member.file_size / 1e9:.3g} GB "
            f"when decoded, more than the {limit / 1e9:.3g} GB allowed here",
            "save it with np.savez (uncompressed): then it is read piece by piece",
        )
    try:
        with archive.open(member) as file:
            shape, fortran, dtype = header(file, name, source.name)
            array = np.empty(math.prod(shape), dtype)
            view = array.view(np.uint8).data
            done = 0
            while done < len(view):
                part = file.read(min(1 << 20, len(view) - done))
                if not part:
                    raise EOFError("it ends too early")
                view[done : done + len(part)] = part
                done += len(part)
            while file.read(1 << 20):  # to its end, where its checksum is compared
                pass
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"array '{name}' in {source.name} cannot be decompressed ({error})", "write it again with np.savez"
        ) from None
    return array.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="), copy=False)
