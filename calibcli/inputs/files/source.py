"""A file to read from: opened once, read at offsets (never mapped), so that all formats can be read piece by piece."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
import stat
import sys
import tempfile
import threading
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from calibcli.errors import InputError

MEMORY = 8 << 30  # most bytes that what must be decoded (compressed, text) may take in memory
COPY = 1 << 20


def memory_limit() -> int:
    """Bytes that decoded contents may take: half of the memory of this machine or container, at most MEMORY."""
    present = [2 * MEMORY]
    with contextlib.suppress(AttributeError, ValueError, OSError):
        present.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(ValueError, OSError):  # "max": no limit
            present.append(int(Path(path).read_text()))
    return min(present) // 2


def is_pickle(head: bytes) -> bool:
    """Whether a file starts as pickles do: the opcode PROTO, a protocol from 2 to 5, and another opcode."""
    if len(head) < 3 or head[0] != 0x80 or head[1] not in range(2, 6):
        return False
    from pickletools import opcodes

    return chr(head[2]) in {opcode.code for opcode in opcodes}


@dataclass(frozen=True)
class Stored:
    """Bytes start..stop of a file, whose CRC-32 the file itself tells."""

    start: int
    stop: int
    crc: int
    name: str


class Source:
    """An open file. Pipes and stdin (`-`) are first copied to an unnamed temporary file, so that all can be read twice.

    Args:
        path: file name, or `-` for stdin.

    Raises:
        InputError: missing, a folder, not readable, or empty.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.digest = ""
        self.stored: list[Stored] = []
        self.name = "stdin" if self.path == "-" else self.path
        try:
            self.file: IO[bytes] = _spool(sys.stdin.buffer) if self.path == "-" else open(self.path, "rb")  # noqa: SIM115
            mode = os.fstat(self.file.fileno()).st_mode
            if stat.S_ISCHR(mode):  # a terminal, /dev/zero: without an end
                raise OSError("it is a device")
            if not stat.S_ISREG(mode):
                self.file = _spool(self.file)
        except (OSError, ValueError, AttributeError) as error:  # a NUL in the name; a closed stdin
            raise InputError(f"cannot read {self.name} ({_reason(error)})", "check the path") from None
        self.size = os.fstat(self.file.fileno()).st_size
        if self.size == 0:
            raise InputError(f"{self.name} is empty", "was it written to the end?")

    @property
    def stem(self) -> str:
        return Path(self.path).stem

    def pread(self, size: int, offset: int) -> bytes:
        """Exactly `size` bytes at `offset`.

        Raises:
            InputError: the file ends before.
        """
        parts, handle = [], self.file.fileno()
        while size > 0:
            part = os.pread(handle, min(size, 1 << 30), offset)
            if not part:
                raise InputError(f"{self.name} ends too early", "it is truncated: write or copy it again")
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def reader(self) -> io.BufferedReader:
        """A file object of its own from the start."""
        return io.BufferedReader(_At(self))

    def sha256(self, stop: threading.Event | None = None) -> str:
        """Hex digest of all bytes of the open file, taken once, while the parts `stored` are checked; "" when stopped.

        Raises:
            InputError: a part has another CRC-32 than the file says, or two parts overlap.
        """
        if not self.digest:
            digest, crc = hashlib.sha256(), 0
            waiting = sorted(self.stored, key=lambda part: (part.start, part.stop), reverse=True)
            for later, part in itertools.pairwise(waiting):
                if part.stop > later.start:
                    raise self._damaged(part)
            for offset in range(0, self.size, COPY):
                if stop is not None and stop.is_set():
                    return ""
                block = memoryview(self.pread(min(COPY, self.size - offset), offset))
                digest.update(block)
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
            self.digest = digest.hexdigest()
        return self.digest

    def entry(self) -> dict[str, str]:
        """Path and digest, for the provenance of a result."""
        return {"path": self.path, "sha256": self.sha256()}

    def read(self) -> bytes:
        """All bytes of a small file (a result, a configuration), once; its digest is that of these very bytes.

        Raises:
            InputError: more than memory takes.
        """
        if self.size > memory_limit() // 4:
            raise InputError(f"{self.name} has {self.size / 1e9:.3g} GB", "is it the right file?")
        data = self.pread(self.size, 0)
        self.digest = hashlib.sha256(data).hexdigest()
        self.file.close()
        return data

    def _damaged(self, part: Stored) -> InputError:
        return InputError(
            f"'{part.name}' in {self.name} is damaged: its bytes do not have the checksum that the file gives",
            "copy or save the file again",
        )


class Digests:
    """Fingerprints of files, taken by a thread while other work goes on; given up when that work fails."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.stop = threading.Event()
        self.pool = ThreadPoolExecutor(1)
        self.found = [(source.path, self.pool.submit(source.sha256, self.stop)) for source in sources]

    def __enter__(self) -> Digests:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self.pool.shutdown()

    def files(self) -> list[dict[str, str]]:
        """Path and digest of each file, when all are done."""
        return [{"path": path, "sha256": digest.result()} for path, digest in self.found]


class Twice(Exception):
    """A JSON object has two members of one name."""


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` of `json.loads`, which alone keeps the last of two members of one name.

    Raises:
        Twice: there are two.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise Twice(next(name for name in names if names.count(name) > 1))
    return found


class _At(io.RawIOBase):
    """A raw file object over a Source with a position of its own."""

    def __init__(self, source: Source) -> None:
        self.source, self.at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = max(0, offset + (0, self.at, self.source.size)[whence])
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = os.pread(self.source.file.fileno(), len(buffer), self.at)
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)


def _spool(stream: IO[bytes]) -> IO[bytes]:
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    while block := stream.read(COPY):
        copy.write(block)
    copy.flush()
    return copy


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
