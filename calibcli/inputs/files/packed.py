"""Compressed bytes (gzip, bzip2, xz, Zstandard), unpacked piece by piece and never beyond a limit."""

from __future__ import annotations

import functools
import hashlib
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from calibcli.errors import InputError, refusing

PIECE = 1 << 20  # most that comes out at once
FEED = 1 << 16  # what goes in at once
SMALL = 1 << 10  # the same where nothing bounds what comes out: at most 32 MB of it, a block of 128 kB for 4 bytes
WINDOW = 27  # largest window of Zstandard, as a power of two; also what its own programs allow
MAGIC = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
STARTS = tuple(MAGIC)
BLOCK = bytes.fromhex("314159265359")  # follows `BZh9`, which text may begin with
SUFFIXES = (".gz", ".bz2", ".xz", ".zst")


def kind_of(head: bytes) -> str:
    """How bytes are compressed, by the first ten; "" if they are not."""
    kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), "")
    return "" if kind == "bzip2" and head[4:10] != BLOCK else kind


def copied(stream: IO[bytes]) -> IO[bytes]:
    """A pipe as an unnamed temporary file, which can be read twice."""
    import shutil
    import tempfile

    copy = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(stream, copy, PIECE)
    copy.flush()
    return copy


def spooled(file: IO[bytes], kind: str, most: int, name: str) -> tuple[IO[bytes], str]:
    """An unnamed temporary file with what a compressed one holds, and the sha256 of the compressed bytes.

    Raises:
        InputError: damaged, cut off, or more than `most` bytes.
    """
    import tempfile

    out = tempfile.TemporaryFile()  # noqa: SIM115
    digest, at = hashlib.sha256(), 0

    def feed() -> Iterator[bytes]:
        nonlocal at
        while block := os.pread(file.fileno(), FEED, at):
            at += len(block)
            digest.update(block)
            yield block

    for piece in pieces(feed(), kind, most, name):
        out.write(piece)
    out.flush()
    return out, digest.hexdigest()


def pieces(feed: Iterator[bytes], kind: str, most: int, name: str) -> Iterator[bytes]:
    """What compressed bytes hold. Several streams one after the other are one, as for every unpacker.

    Raises:
        InputError: damaged, cut off, or more than `most` bytes.
    """
    make, errors = _unpacker(kind, name)
    total, unpacker, rest = 0, None, b""
    with refusing(
        (*errors, EOFError, OSError, ValueError, MemoryError),
        lambda e: f"{name} is damaged or cut off: it cannot be unpacked ({kind}: {str(e)[:80]})",
        "copy or write it again",
    ):
        for block in feed:
            rest += block
            while rest or not (unpacker is None or unpacker.needs_input):
                if unpacker is None:
                    rest = rest.lstrip(b"\0") if total else rest  # padding between and after streams
                    if not rest:
                        break
                    unpacker = make()
                piece, rest = unpacker.decompress(rest, PIECE), b""
                total += len(piece)
                if total > most:
                    problem = f"{name} unpacks to more than {most / 1e9:.3g} GB"
                    raise InputError(problem, "unpack it, and save the scores as .npy")
                if piece:
                    yield piece
                if unpacker.eof:
                    rest, unpacker = unpacker.unused_data, None
        if unpacker is not None:
            raise EOFError("it ends too early")


class _Deflate:
    """zlib with the interface of the other unpackers."""

    def __init__(self, wbits: int) -> None:
        self.inner, self.eof, self.needs_input, self.unused_data = zlib.decompressobj(wbits), False, True, b""

    def decompress(self, data: bytes, most: int) -> bytes:
        piece = self.inner.decompress(self.inner.unconsumed_tail + data, most)
        self.eof, self.unused_data = self.inner.eof, self.inner.unused_data
        self.needs_input = not self.inner.unconsumed_tail and len(piece) < most
        return piece


class _Zstandard:
    """The package `zstandard` with the interface of the other unpackers; it bounds no output, so little goes in."""

    def __init__(self, module: Any) -> None:
        self.inner = module.ZstdDecompressor(max_window_size=1 << WINDOW).decompressobj()
        self.eof, self.needs_input, self.unused_data, self.tail = False, True, b"", b""

    def decompress(self, data: bytes, most: int) -> bytes:
        data = self.tail + data
        piece: bytes = self.inner.decompress(data[:SMALL])
        self.eof, self.tail = self.inner.eof, data[SMALL:]
        if self.eof:
            self.unused_data = self.inner.unused_data + self.tail
        self.needs_input = not self.tail
        return piece


def _unpacker(kind: str, name: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """What makes an unpacker, and what it may raise.

    Raises:
        InputError: Zstandard, and nothing installed reads it.
    """
    if kind == "bzip2":
        import bz2

        return bz2.BZ2Decompressor, ()
    if kind == "xz":
        import lzma

        return lambda: lzma.LZMADecompressor(memlimit=1 << 28), (lzma.LZMAError,)
    if kind != "zstd":
        return lambda: _Deflate(31 if kind == "gzip" else -15), (zlib.error,)
    for module in ("compression.zstd", "backports.zstd"):  # the first is Python's own from 3.14 on
        try:
            zstd = __import__(module, fromlist=["zstd"])
        except ImportError:
            continue
        options = {zstd.DecompressionParameter.window_log_max: WINDOW}
        return functools.partial(zstd.ZstdDecompressor, options=options), (zstd.ZstdError,)
    with refusing(
        ImportError,
        f"{name} is compressed with Zstandard, which nothing installed here reads",
        "pip install 'calibcli[evals]' (the package zstandard), or unpack it",
    ):
        import zstandard
    return lambda: _Zstandard(zstandard), (zstandard.ZstdError,)
