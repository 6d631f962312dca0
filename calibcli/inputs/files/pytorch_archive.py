"""PyTorch files as far as they are read without PyTorch: which program one is, checksums, what its pickle names."""

from __future__ import annotations

import contextlib
import pickle
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator

from calibcli.errors import refusing
from calibcli.inputs.files import pickles
from calibcli.inputs.files.formats.numpy import distinct_members, stored_part
from calibcli.inputs.files.source import Source

SUFFIXES = (".pt", ".pth")
UNREADABLE = (
    *(pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, AttributeError, TypeError, OSError),
    *(AssertionError, NotImplementedError, RecursionError, ArithmeticError, MemoryError, struct.error),
)


def program(names: Collection[str]) -> str:
    """The program of torch that a zip archive of files of these names is: TorchScript, torch.export, or ""."""
    tails = {name.partition("/")[2] for name in names} | set(names)
    if "constants.pkl" in tails or any(tail.startswith("code/") for tail in tails):
        return "TorchScript"
    exported = tails & {"archive_format", "serialized_exported_program.json"}
    return "torch.export" if exported or any(t.startswith("models/") and not t.endswith(".npy") for t in tails) else ""


def note_checksums(source: Source) -> int:
    """Note what `source.sha256()` is to check, which torch does not; the bytes that the file takes when unpacked.

    Raises:
        InputError: damaged, or two members have one name.
    """
    if source.pread(min(2, source.size), 0) != b"PK":
        return source.size
    with _zip(source) as archive:
        members = archive.infolist()
        distinct_members(members, source)
        for member in members:
            if member.compress_type == zipfile.ZIP_STORED and member.CRC:  # torch can be told to write none
                stored_part(source, member, member.filename)
        return sum(member.file_size for member in members)


def named(source: Source) -> set[str]:
    """What the pickle in a .pt file names, after a look at how much work it asks for.

    Raises:
        InputError: too much, or the file is damaged.
    """
    if source.pread(min(2, source.size), 0) != b"PK":
        return pickles.names(source.reader(), source.name)
    with _zip(source) as archive:
        found: set[str] = set()
        for member in archive.infolist():
            if member.filename.endswith(".pkl"):
                with archive.open(member) as file:
                    if not member.CRC:
                        file._expected_crc = None  # type: ignore[attr-defined]
                    found |= pickles.names(file, source.name)
        return found


@contextlib.contextmanager
def _zip(source: Source) -> Iterator[zipfile.ZipFile]:
    errors = (*UNREADABLE, zipfile.BadZipFile, zlib.error)
    damaged = refusing(errors, lambda error: f"{source.name} is damaged ({str(error)[:80]})", "save it again")
    with damaged, zipfile.ZipFile(source.reader()) as archive:
        yield archive
