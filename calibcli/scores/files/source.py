"""A file to read from: opened once, read at offsets (never mapped), so that all formats can be read piece by piece.

Each format is one file of `formats/`, or of a package that `extensions` has, found by its name, which is its suffix. It
has

    SUFFIXES = (".npz",)                          of its files
    read(source) -> FileContents                  its arrays by name, each read only when it is needed

and may have

    read(source, grouped=True)                    of a table: else every column by itself, as a data set has them
    signature(head, size) -> bool                 whether a file of `size` bytes with these first ones is one of its own
    guess(head) -> bool                           the same for formats without a magic number: asked last
    BY_SUFFIX = True                              its files are recognised by their suffix alone

and imports what is heavy inside `read`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import io
import itertools
import os
import pkgutil
import re
import stat
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import cast

from calibcli.core import extensions
from calibcli.core.errors import CalibError, InputError, check_path
from calibcli.core.files import Steady, reading, refuse_pointer
from calibcli.core.memory import memory_limit
from calibcli.scores.files import formats, locations
from calibcli.scores.files.pickles import is_pickle
from calibcli.scores.reading_options import ReaderOptions

TEXT = 6  # bytes in memory for a byte of text, at least: what a compressed file may unpack to
COPY = 1 << 20
PIECE = 1 << 30  # bytes asked for at once: systems give no more than 2 GB
FORMATS = dict(  # by name, the module that reads it
    sorted(
        (file.name, f"{package.__name__}.{file.name}")
        for package in (formats, *extensions.format_packages())
        for file in pkgutil.iter_modules(package.__path__)
    )
)
PACKAGED: dict[str, str] = {}
"""The installed package of each format that is not one of calib."""
OTHERS = {
    b"\x1f\x8b": ("compressed with gzip, twice or more", "unpack it first"),
    b"\x89HDF": ("an HDF5 file", "save the arrays with np.savez"),
    **dict.fromkeys(
        (b"RDX2\n", b"RDX3\n"),
        (
            "a file of data of R",
            """Rscript -e 'e <- new.env(); load("{file}", e); for (n in ls(e)) """
            """write.csv(e[[n]], paste0(n, ".csv"), row.names = FALSE)' writes each to a file of its own""",
        ),
    ),
    b"X\n\x00\x00\x00": (
        "an object of R",
        """Rscript -e 'write.csv(readRDS("{file}"), "{file}.csv", row.names = FALSE)'""",
    ),
}
"""First bytes of files of other kinds: what they are, and what to do with one, `{file}`."""
ARFF = (
    "an ARFF file",
    "write its rows as CSV, below the names of its attributes: "
    "(grep -i ^@attribute {file} | awk '{{print $2}}' | paste -sd, ; sed '1,/^@data/Id' {file}) > {file}.csv",
)
TAR = ("a tar archive, but not of a data set that calib knows", "unpack it, and name the folder or the file in it")
PIECEWISE = "save the scores as .npy or uncompressed .npz: these are read piece by piece"
TOO_MANY = "allow more open files (ulimit -n), or measure the parts one after the other: calib metrics --partial FILE"
PICKLE = ("a pickle, which is code; it was not opened", "save arrays: np.savez(path, logits=..., labels=...)")


_granted = 0  # bytes that may be decoded before the limit is asked for again


def refuse_large(size: int, what: str, fix: str = PIECEWISE) -> None:
    """Refuse what needs more memory than is allowed; `what` names it with its size.

    The limit costs more than a small file, so it is asked for again once a hundredth of it has been granted.

    Raises:
        InputError: `size` bytes are more than `memory_limit`.
    """
    global _granted
    if size > _granted:
        limit = memory_limit()
        if size > limit:
            raise InputError(f"{what}, more than the {limit / 1e9:.3g} GB allowed here", fix)
        _granted = limit // 100
    _granted -= size


@dataclass(frozen=True)
class StoredBytes:
    """Bytes start..stop of a file, with the CRC-32 that the file records for them."""

    start: int
    stop: int
    crc: int
    name: str


class Source:
    """An open file. Pipes and stdin (`-`) are first copied to an unnamed temporary file, so that they can be read
    twice.

    So is what a compressed file (.gz, .bz2, .xz, .zst) holds: names and digests are those of the compressed one.
    Every read is followed by a look at the times and size of the file: what all passes read, and the digest, are of one
    content.

    Args:
        path: file name, or `-` for stdin.
        trust: whether code in the file may run; None where no option allows it, so that no message advises it.
        options: for the readers of evaluations and of tables without a header.
        update: the file is read only to be updated, so that it does not count as an input.

    Raises:
        InputError: missing, a folder, not readable, empty, or changed while it is unpacked; as `pread`, in all methods.
    """

    def __init__(
        self, path: str | Path, trust: bool | None = None, options: ReaderOptions | None = None, update: bool = False
    ) -> None:
        self.path, self.trust, self.options = str(path), trust, options or ReaderOptions()
        self.digest = self.digest_packed = self.folder = ""  # `folder`: of the data set that this file is a part of
        self.stored: list[StoredBytes] = []
        self.name = "stdin" if self.path == "-" else self.path
        try:
            if not update and self.path != "-":
                reading(self.path, pipes=True)
            with locations.waiting_said(self.path):  # says after some seconds that a pipe is waited for
                self.file = locations.open_binary(self.path)
                mode = os.fstat(self.file.fileno()).st_mode
                if stat.S_ISCHR(mode):  # a terminal, /dev/zero: without an end
                    raise OSError("it is a device")
                if not stat.S_ISREG(mode):
                    self.file = locations.copy_of_pipe(self.file)
            self.steady = Steady(self.file.fileno(), self.name)
            self.size = self.steady.status.st_size
        except CalibError:
            raise
        except (OSError, ValueError, AttributeError) as error:  # a NUL in the name; a closed stdin
            problem = f"cannot read {self.name} ({getattr(error, 'strerror', None) or error})"
            many = getattr(error, "errno", None) == errno.EMFILE
            raise InputError(problem, TOO_MANY if many else check_path(self.path)) from None
        if self.size == 0:
            raise InputError(f"{self.name} is empty", "is the file truncated?")
        head = os.pread(self.file.fileno(), 64, 0)
        # refused: what Git LFS leaves in place of a file, or a web page. `STARTS`: the first bytes of compressed files
        refuse_pointer(head, self.name)
        if head.startswith(locations.STARTS) and (kind := locations.compression_of(head)):
            most = memory_limit() // TEXT
            packed = self.file
            try:
                self.file, self.digest_packed = locations.unpack_to_file(packed, kind, most, self.name)
            finally:
                self.steady.check()
            self.steady = Steady(self.file.fileno(), self.name)
            self.size = self.steady.status.st_size
            if self.size == 0:
                raise InputError(f"{self.name} holds nothing", "is the file truncated?")

    @cached_property
    def plain(self) -> Path:
        """The path without the suffix of a compressed file."""
        path = Path(self.path)
        return path.with_suffix("") if self.digest_packed and path.suffix.lower() in locations.SUFFIXES else path

    @property
    def stem(self) -> str:
        return self.plain.stem

    def pread(self, size: int, offset: int) -> bytes:
        """Return exactly `size` bytes at `offset`.

        Raises:
            InputError: the file ends before, or has changed since it was opened.
        """
        data = os.pread(self.file.fileno(), min(size, PIECE), offset)
        self.steady.check()
        if len(data) == size:
            return data
        whole = bytearray(size)
        self.pread_into(memoryview(whole), offset)
        return bytes(whole)

    def pread_into(self, memory: memoryview, offset: int) -> None:
        """Fill `memory` with the bytes at `offset`."""
        while len(memory):
            size = os.preadv(self.file.fileno(), [memory[:PIECE]], offset)
            self.steady.check()
            if not size:
                raise InputError(f"{self.name} ends too early", "it is truncated: write or copy it again")
            memory, offset = memory[size:], offset + size

    def reader(self) -> io.BufferedReader:
        """Return a new file object, positioned at the start."""
        return io.BufferedReader(_At(self))

    def sha256(self, stop: threading.Event | None = None, hashed: bool = True) -> str:
        """Compute the hex digest of all bytes once, and check the parts in `stored`; "" if stopped or not `hashed`.

        Raises:
            InputError: a part has another CRC-32 than the file says, or two parts overlap.
        """
        if not self.digest:
            digest, crc, memory = hashlib.sha256(), 0, memoryview(bytearray(min(COPY, self.size)))
            waiting = sorted(self.stored, key=lambda part: (part.start, part.stop), reverse=True)
            for later, part in itertools.pairwise(waiting):
                if part.stop > later.start:
                    raise self._damaged(part)
            for offset in range(0, self.size if hashed or waiting else 0, COPY):
                if stop is not None and stop.is_set():
                    return ""
                self.pread_into(block := memory[: self.size - offset], offset)
                digest.update(block if hashed else b"")
                end = offset + len(block)
                while waiting and waiting[-1].start < end:
                    part = waiting[-1]
                    crc = zlib.crc32(block[max(part.start - offset, 0) : part.stop - offset], crc)
                    if part.stop > end:
                        break
                    if crc != part.crc:
                        raise self._damaged(part)
                    waiting.pop()
                    crc = 0
            self.stored = []  # a file is read once, also for many labels whose digest is not asked for
            self.digest = self.digest_packed or (digest.hexdigest() if hashed else "")
        return self.digest

    def entry(self) -> dict[str, str]:
        """Return path and digest, for the provenance of a result."""
        return {"path": self.path, "sha256": self.sha256()}

    def read(self) -> bytes:
        """Return all bytes of a small file (a result, a configuration), once; the digest is that of these very bytes.

        Raises:
            InputError: more than memory takes.
        """
        if self.size > memory_limit() // 4:
            raise InputError(f"{self.name} has {self.size / 1e9:.3g} GB", "is it the right file?")
        data = self.pread(self.size, 0)
        self.digest = self.digest_packed or hashlib.sha256(data).hexdigest()
        self.file.close()
        return data

    def _damaged(self, part: StoredBytes) -> InputError:
        problem = f"'{part.name}' in {self.name} is damaged: its bytes do not have the checksum that the file gives"
        return InputError(problem, "copy or save the file again")


class Digests(contextlib.AbstractContextManager["Digests"]):
    """Computes the digests of files in a thread while other work goes on, and gives up when that work fails.

    Arrays, which are no file, get a path without a digest, and so does every file if `hashed` is False.
    """

    def __init__(self, sources: Sequence[Source], hashed: bool = True) -> None:
        self.sources, self.hashed, self.stop = sources, hashed, threading.Event()
        self.entries: list[dict[str, str]] = []
        self.failed: BaseException | None = None
        self.thread: threading.Thread | None = None
        if hashed and any(isinstance(source, Source) for source in sources):
            self.thread = threading.Thread(target=self._work)
            self.thread.start()
        else:
            self._work()

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self._end()

    def _end(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def _work(self) -> None:
        try:
            for source in self.sources:
                digest = source.sha256(self.stop, self.hashed) if isinstance(source, Source) else ""
                self.entries.append({"path": source.path, **({"sha256": digest} if digest else {})})
        except BaseException as error:  # raised where the digests are asked for
            self.failed = error

    def files(self) -> list[dict[str, str]]:
        """Return path and digest of each file, once all are done."""
        self._end()
        if self.failed is not None:
            raise self.failed
        return self.entries


def fingerprint(files: Sequence[Mapping[str, str]]) -> str:
    """Return one digest of several files; "" if none of them has one."""
    joined = "".join(file.get("sha256", "") for file in files)
    return joined if len(joined) <= 64 else hashlib.sha256(joined.encode()).hexdigest()


class _At(io.RawIOBase):
    """A raw file object over a Source, with a position of its own."""

    def __init__(self, source: Source) -> None:
        self.source, self.at, self.furthest = source, 0, 0

    def readable(self) -> bool:
        return True

    seekable = readable

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = max(0, offset + (0, self.at, self.source.size)[whence])
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        size = os.preadv(self.source.file.fileno(), [buffer], self.at)
        self.source.steady.check()
        start, self.at = self.at, self.at + size
        if start <= self.furthest < self.at:  # the end of a zip file is read first, which says nothing of what is left
            self.furthest = self.at
            extensions.tell(self.at / self.source.size, f"reading {self.source.name}")
        return size


def load_packaged() -> None:
    """Add the formats of installed packages, each a module; where a file is not recognised, and for lists.

    Raises:
        UsageError: a package does not import.
    """
    for name, package, load in extensions.packaged("format"):
        if name not in FORMATS:
            FORMATS[name], PACKAGED[name] = load().__name__, package
            by_suffix.cache_clear()


@cache
def module(name: str) -> ModuleType:
    """Import the module of the format `name`."""
    return importlib.import_module(FORMATS[name])


def suffixes(name: str) -> tuple[str, ...]:
    """Return the suffixes of files of the format `name`."""
    return cast(tuple[str, ...], module(name).SUFFIXES)


@cache
def by_suffix(suffix: str) -> str:
    """Return the format of files with this suffix, or "". A format of that name is tried first, then `numpy`."""
    likely = [*(name for name in FORMATS if f".{name}" == suffix), "numpy"]
    return next((name for name in (*likely, *FORMATS) if suffix in suffixes(name)), "")


def format_of(source: Source) -> str:
    """Recognise the format of a file, by the first bytes where they tell, else by suffix.

    Raises:
        InputError: none that is known.
    """
    head = source.pread(min(source.size, 512), 0)
    for first_try in (True, False):
        expected = by_suffix(source.plain.suffix.lower())
        if expected and _is(expected, head, source.size):
            return expected
        for name in FORMATS:
            if not getattr(module(name), "BY_SUFFIX", False) and _is(name, head, source.size):
                return name
        if expected and getattr(module(expected), "BY_SUFFIX", False):
            return expected
        if expected or not first_try:
            break
        load_packaged()  # of a suffix, and of first bytes, that calib does not know
    other = next((description for magic, description in OTHERS.items() if head.startswith(magic)), None)
    other = TAR if head[257:262] == b"ustar" else other
    other = ARFF if re.search(rb"^\s*@relation\s", head, re.IGNORECASE | re.MULTILINE) else other
    if other or is_pickle(head):
        what, fix = other or PICKLE
        raise InputError(f"{source.name} is {what}", fix.format(file=source.name))
    guesses = (name for name in FORMATS if hasattr(module(name), "guess") and module(name).guess(head))
    if recognised := expected or next(guesses, ""):
        return recognised
    *most, last = (suffixes(name)[0] for name in FORMATS)
    raise InputError(f"the format of {source.name} is not recognised", f"pass {', '.join(most)} or {last}")


def _is(name: str, head: bytes, size: int) -> bool:
    tells = getattr(module(name), "signature", None)
    return tells is not None and tells(head, size)
