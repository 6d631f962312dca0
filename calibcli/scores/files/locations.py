"""Find and open files by pattern, folder or address, and unpack compressed ones piece by piece within a limit."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import re
import stat
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from calibcli.core.errors import InputError, printable, refusing
from calibcli.core.files import Steady, is_pipe, reading

# Unpacking of gzip, bzip2, xz and Zstandard, piece by piece and never beyond a limit.

PIECE = 1 << 20  # bytes of output at once, at most
FEED = 1 << 16  # bytes of input at once
SMALL = 1 << 10  # input at once if nothing bounds the output: at most 32 MB, as 4 bytes may be a block of 128 kB
WINDOW = 27  # largest window of Zstandard, as a power of two; also what its own programs allow
MAGIC = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
}
STARTS = tuple(MAGIC)
BLOCK = bytes.fromhex("314159265359")  # follows `BZh9`, which text may begin with
PATIENCE = 2.0  # seconds after which it is said that a pipe is waited for
OTHER_FILES = 256  # that a process has open beside its inputs: libraries, pipes, outputs
FEW_FILES = 32  # that every shell allows beside those: 256 in all at the least
SUFFIXES = (".gz", ".bz2", ".xz", ".zst")


def compression_of(head: bytes) -> str:
    """Return how bytes are compressed, judged by the first ten; "" if they are not."""
    kind = next((kind for magic, kind in MAGIC.items() if head.startswith(magic)), "")
    return "" if kind == "bzip2" and head[4:10] != BLOCK else kind


class Opened(io.FileIO):
    """A file to read from, closed when nothing refers to it any more: without a warning, also out of a cycle."""

    def __del__(self) -> None:
        self.close()


def _unnamed(pieces: Iterable[bytes]) -> Opened:
    """Write an unnamed temporary file, which can be read twice."""
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.writelines(pieces)
        file.flush()
        return Opened(os.dup(file.fileno()))


@contextlib.contextmanager
def waiting_said(path: str) -> Iterator[None]:
    """Say on stderr that a pipe is waited for, if what is read from it in the block takes longer than a moment."""
    if not is_pipe(path):
        yield
        return
    text = f"waiting for {printable(path)}, which is a pipe: until something writes to it, and closes it\n"
    timer = threading.Timer(PATIENCE, lambda: print(text, end="", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def copy_of_pipe(stream: IO[bytes]) -> Opened:
    """Copy a pipe, or a file that stands for stdin (`< scores.csv`), to an unnamed temporary file.

    Raises:
        InputError: that file changed meanwhile.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # not a file of the system's
            if stat.S_ISREG(os.fstat(number := stream.fileno()).st_mode):
                stack.callback(Steady(number, "stdin").check)
        return _unnamed(iter(lambda: stream.read(PIECE) or b"", b""))


def unpack_to_file(file: IO[bytes], kind: str, most: int, name: str) -> tuple[Opened, str]:
    """Unpack a compressed file to an unnamed temporary file; also return the sha256 of the compressed bytes.

    Raises:
        InputError: damaged, cut off, or more than `most` bytes.
    """
    digest, offset = hashlib.sha256(), 0

    def feed() -> Iterator[bytes]:
        nonlocal offset
        while block := os.pread(file.fileno(), FEED, offset):
            offset += len(block)
            digest.update(block)
            yield block

    return _unnamed(unpacked(feed(), kind, most, name)), digest.hexdigest()


def unpacked(feed: Iterator[bytes], kind: str, most: int, name: str) -> Iterator[bytes]:
    """Yield the unpacked bytes. Several streams one after the other count as one, as for every unpacker.

    Raises:
        InputError: damaged, cut off, or more than `most` bytes.
    """
    make, errors = _unpacker(kind, name)
    total, unpacker, waiting = 0, None, b""
    with refusing(
        (*errors, EOFError, OSError, ValueError, MemoryError),
        lambda e: f"{name} is damaged or cut off: it cannot be unpacked ({kind}: {str(e)[:80]})",
        "copy or write it again",
    ):
        for block in feed:
            waiting += block
            while waiting or not (unpacker is None or unpacker.needs_input):
                if unpacker is None:
                    waiting = waiting.lstrip(b"\0") if total else waiting  # padding between and after streams
                    if not waiting:
                        break
                    unpacker = make()
                piece, waiting = unpacker.decompress(waiting, PIECE), b""
                total += len(piece)
                if total > most:
                    problem = f"{name} unpacks to more than {most / 1e9:.3g} GB"
                    raise InputError(problem, "unpack it, and save the scores as .npy")
                if piece:
                    yield piece
                if unpacker.eof:
                    waiting, unpacker = unpacker.unused_data, None
        if unpacker is not None:
            raise EOFError("it ends too early")


class _Deflate:
    """Gives zlib the interface of the other unpackers."""

    def __init__(self, wbits: int) -> None:
        self.inner, self.eof, self.needs_input, self.unused_data = zlib.decompressobj(wbits), False, True, b""

    def decompress(self, data: bytes, most: int) -> bytes:
        piece = self.inner.decompress(self.inner.unconsumed_tail + data, most)
        self.eof, self.unused_data = self.inner.eof, self.inner.unused_data
        self.needs_input = not self.inner.unconsumed_tail and len(piece) < most
        return piece


class _Zstandard:
    """Gives the package `zstandard` the interface of the other unpackers. It does not bound its output, so little goes
    in.
    """

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
    """Return a function that makes an unpacker, and the exceptions that it may raise.

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
        f"{name} is compressed with Zstandard, which no installed package reads",
        "pip install zstandard, or unpack it",
    ):
        import zstandard
    return lambda: _Zstandard(zstandard), (zstandard.ZstdError,)


# Patterns, folders of parts, and addresses (`file://`, `s3://`, `gs://`), which pyarrow's file systems open.
#
# Remote files are copied to an unnamed temporary file when they are opened, as every format is read at offsets.


FSSPEC = {"hf": "fsspec huggingface_hub", "az": "fsspec adlfs"}  # schemes that fsspec opens, with the packages for it
SCHEMES = ("file", "s3", "gs", "gcs", "hdfs", "abfs", "abfss", *FSSPEC)
ADDRESS = re.compile(rf"({'|'.join(SCHEMES)}):/+(.*)", re.DOTALL)  # a `Path` keeps one slash of two
RETRIES = 1  # seconds for which pyarrow retries an address at Google that does not answer
STATE, PARTS = "state.json", "dataset_dict.json"  # in folders that `save_to_disk` writes: of one data set, of several
PATTERN = re.compile(r"[*?\[]")


def remote(path: str | Path) -> bool:
    """Return whether this is an address that the local file system cannot open."""
    address = ADDRESS.fullmatch(str(path))
    return address is not None and address[1] != "file"


def expand(path: str | Path, suffixes: Sequence[str]) -> list[str | Path]:
    """Return the files that a path stands for: itself, the matches of a pattern, or the parts in a folder.

    Args:
        suffixes: of files that may be parts. Names that begin with `_` or `.` are none, as for other engines.

    Raises:
        InputError: there are none, or parts of several formats; the address cannot be reached.
    """
    if remote(path):
        return [*_remote(path, suffixes)]
    address = ADDRESS.fullmatch(str(path))
    if address is not None:
        from urllib.parse import unquote

        path = "/" + unquote(address[2])
    if os.path.isdir(path):
        reading(path)
        names = [os.path.join(folder, name) for folder, _, files in os.walk(path) for name in files]
        return [*_parts(str(path), names, suffixes)]
    if PATTERN.search(str(path)) and not os.path.lexists(path):
        import glob

        with refusing((OSError, ValueError), lambda e: f"cannot read {path} ({e})", "check the pattern"):
            matches = [name for name in sorted(glob.glob(str(path), recursive=True)) if os.path.isfile(name)]
        if not matches:
            raise InputError(f"no file matches {path}", "check the pattern")
        return [*matches]
    return [path]


def parts_of_saved(folder: Path) -> list[Path]:
    """Return the parts of a data set that Hugging Face's `save_to_disk` wrote, as its state file names them.

    Raises:
        InputError: none in the folder, a part that is named twice, or rows that are kept as indices.
    """
    fix = "save the data set again: save_to_disk"
    with refusing((OSError, ValueError, RecursionError), f"{folder / STATE} is not JSON", fix):
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    listed = state.get("_data_files") if isinstance(state, dict) else None
    names = [part.get("filename") for part in listed if isinstance(part, dict)] if isinstance(listed, list) else []
    plain = [name for name in names if isinstance(name, str) and name == Path(name).name]
    if not names or len(plain) < len(names):
        raise InputError(f"{folder / STATE} names no parts in its folder", fix)
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{folder / STATE} names the part '{twice}' twice, whose rows would count twice", fix)
    if state.get("_indices_data_files"):
        raise InputError(f"{folder} is a selection of rows kept as indices", "save it again after flatten_indices()")
    return [folder / name for name in plain]


def open_binary(path: str) -> Opened:
    """Open a file, stdin (`-`) or an address for reading.

    Raises:
        OSError: as `open`.
    """
    if not (path == "-" or remote(path)) or os.path.isfile(path):
        return Opened(path)
    if path == "-":
        return copy_of_pipe(sys.stdin.buffer)
    system, name, _ = _system(path)
    with system.open_input_stream(name, compression=None) as stream:
        return copy_of_pipe(stream)


def allow_open(files: int) -> None:
    """Let this process hold so many files open, as far as its hard limit goes: most shells begin with 1,024."""
    if files <= FEW_FILES:
        return
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * files + OTHER_FILES  # a compressed file and what it holds
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft != resource.RLIM_INFINITY and wanted > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _parts(folder: str, names: Iterable[str], suffixes: Sequence[str]) -> list[str]:
    inside = {name: PurePosixPath(name[len(folder) :].lstrip("/")) for name in names}
    seen = sorted(name for name, part in inside.items() if not any(piece[:1] in "._" for piece in part.parts))
    kinds = {name: suffix(name) for name in seen}
    kept = [name for name in seen if kinds[name] in suffixes]
    if not kept:
        fix = f"name a file, or a folder of parts: {', '.join(suffixes[:4])}, ..."
        raise InputError(f"{folder} is a folder without recorded outputs", fix)
    count = Counter(kinds[name] for name in kept)
    several = sorted(count)
    if len(several) > 1:
        fix = f"choose with a pattern: '{folder.rstrip('/')}/*{max(several, key=count.__getitem__)}'"
        raise InputError(f"{folder} holds files of several formats: {', '.join(several)}", fix)
    return kept


def suffix(name: str) -> str:
    """Return the suffix of a name in lower case; that of a compressed file is the one before `.gz`."""
    path = PurePosixPath(name.lower())
    return path.with_suffix("").suffix if path.suffix in SUFFIXES else path.suffix


def _system(path: str | Path) -> tuple[Any, str, str]:
    """Return the file system of an address, the name in it, and a template that turns names into addresses."""
    address = ADDRESS.fullmatch(str(path))
    assert address is not None
    name, _, options = address[2].partition("?")
    where, more = f"{address[1]}://", f"?{options}" if options else ""
    # the place of the bucket alone is parsed: names may hold what an address must not
    bucket, _, key = name.partition("/")
    if address[1] in ("gs", "gcs") and "retry_limit_seconds" not in options:  # else it tries for minutes, silently
        more = f"{more}{'&' if more else '?'}retry_limit_seconds={RETRIES}"
    system, base = _from_uri(f"{where}{bucket}/{more}")
    return system, f"{base.rstrip('/')}/{key}".rstrip("/"), f"{where}{{}}{more}"


def _from_uri(address: str) -> tuple[Any, str]:
    with refusing(ImportError, f"{address} needs pyarrow", "pip install pyarrow, or copy the files here"):
        from pyarrow import fs
    scheme, _, name = address.partition("://")
    if scheme in FSSPEC:
        with refusing(ImportError, f"{address} needs fsspec", f"pip install {FSSPEC[scheme]}, or copy the files here"):
            import fsspec

            return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme))), name.partition("?")[0]
    system: tuple[Any, str] = fs.FileSystem.from_uri(address)
    return system


def _expression(pattern: str) -> str:
    """Translate a `glob` pattern to a regular expression: `*` stays within a folder, `**/` is any number of folders."""
    parts = re.split(r"(\*\*/|\*|\[[^]]+\])", pattern)
    translations = {"**/": "(?:.*/)?", "*": "[^/]*"}
    return "".join(translations.get(part, part if part.startswith("[") else re.escape(part)) for part in parts)


def _remote(path: str | Path, suffixes: Sequence[str]) -> list[str]:
    fix = "check the address, and the credentials that pyarrow finds (AWS_..., GOOGLE_...)"
    with refusing((OSError, ValueError), lambda e: f"cannot reach {path} ({str(e)[:200]})", fix):
        system, name, address = _system(path)
        from pyarrow import fs

        plain = PATTERN.search(name) is None
        if plain and system.get_file_info(name).type == fs.FileType.File:
            return [address.format(name)]
        folder = name if plain else name[: PATTERN.search(name).start()].rpartition("/")[0]  # type: ignore[union-attr]
        listed = system.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        names = sorted(info.path for info in listed if info.type == fs.FileType.File)
        if not name.startswith("/"):  # some file systems list the names below a bucket as if from a root
            names = [one.lstrip("/") for one in names]
    if plain:
        return [address.format(part) for part in _parts(folder, names, suffixes)]
    alike = re.compile(_expression(name), re.DOTALL)
    matches = [address.format(one) for one in names if alike.fullmatch(one)]
    if not matches:
        raise InputError(f"no file matches {path}", "check the pattern")
    return matches
