"""Files on disk: written whole or not at all, and fingerprinted."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from calibcli.errors import CalibError, InputError, UsageError, WriteError, refusing

NO_ROOM = {getattr(errno, n) for n in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS") if hasattr(errno, n)}
PROBE = 1 << 20  # bytes that a medium with room takes


def may_write(targets: Iterable[str | os.PathLike[str]], inputs: Iterable[str | os.PathLike[str] | None] = ()) -> None:
    """Refuse, before any work, paths that cannot or must not be written; nothing else decides that.

    Args:
        targets: files that a command is asked to write.
        inputs: what it reads: files, folders, or names with more behind them (`digits.npz#test`, `net.py:factory`).

    Raises:
        UsageError: a target is an input under any name (link, hard link), lies in a folder that is an input, is a
            folder itself or has none, or is written twice.
    """
    read = [name for text in inputs if text is not None and str(text) != "-" for name in _meant(str(text))]
    written: list[Path] = []
    for path in map(target, targets):
        for source in read:
            if _same(path, source):
                raise UsageError(f"'{path}' would replace the input '{source}'", "name another file to write")
            if os.path.isdir(source) and Path(os.path.realpath(source)) in Path(os.path.realpath(path)).parents:
                raise UsageError(f"'{path}' lies in the input folder '{source}'", "write into another folder")
        if any(_same(path, other) for other in written):
            raise UsageError(f"'{path}' is written twice", "name another file")
        written.append(path)


def _meant(text: str) -> list[str]:
    """The files or folders that an input's name may mean: itself, and without `#part` or, of code, `:factory`."""
    code = text.rpartition(":")[0]
    return [*filter(None, dict.fromkeys((text, text.partition("#")[0], code if code.endswith(".py") else "")))]


def _same(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):  # one of them is not there (yet)
        return False


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well, so a killed run leaves no half file.

    Raises:
        UsageError: the folder does not exist or cannot be written, or the path is a folder.
        WriteError: no room; what stood at `path` before still does.
    """
    path = target(path)
    try:
        with _room(path):
            import tempfile

            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        fix = "name a folder that exists and can be written"
        raise UsageError(f"cannot write {path} ({error.strerror})", fix) from None
    os.close(handle)
    temporary = Path(name)
    try:
        with _room(path, temporary):
            yield temporary
            temporary.chmod(0o666 & ~_umask())
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _room(path: Path, written: Path | None = None) -> Iterator[None]:
    """Errors of the block that mean that `path` has no room, by that name; `written` as in `no_room`."""
    try:
        yield
    except BaseException as error:
        if (reason := no_room(error, written)) is None:
            raise
        kept = "what was there before is kept" if path.exists() else "nothing half-written is left"
        raise WriteError(f"cannot write {path} ({reason}); {kept}", "free some space, or write elsewhere") from None


class Lines(contextlib.AbstractContextManager["Lines"]):
    """A text file that grows by whole lines; one that finds no room is taken back, a torn last one is cut off.

    Raises:
        WriteError: no room.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with _room(self.path):
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 (closed by __exit__)
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, end - PROBE))
        whole = self._file.read().rfind(b"\n") + 1 + max(0, end - PROBE)
        self._file.truncate(whole)

    def write(self, line: str) -> None:
        """Append a line."""
        before, rest = self._file.seek(0, os.SEEK_END), memoryview(line.encode() + b"\n")
        with _room(self.path):
            try:
                while rest:
                    rest = rest[self._file.write(rest) or 0 :]
            except OSError:
                self._file.truncate(before)
                raise

    def __exit__(self, *_: object) -> None:
        self._file.close()


def target(path: str | os.PathLike[str]) -> Path:
    """`path`, if a file can stand there.

    Raises:
        UsageError: it is a folder, or its folder does not exist.
    """
    path = Path(path)
    if os.path.isdir(path):
        raise UsageError(f"cannot write {path} (it is a folder)", f"name a file: {path / 'NAME'}")
    if not os.path.isdir(path.parent):
        raise UsageError(f"no folder '{path.parent}' to write '{path.name}' into", f"mkdir -p {path.parent}")
    return path


def no_room(error: BaseException, path: Path | None = None) -> str | None:
    """Why nothing more can be written, where that is what `error` says; None for any other error.

    Args:
        path: of the file that was being written. Libraries hide the reason (safetensors and torch raise errors of their
            own, NumPy counts bytes): a megabyte more there tells.
    """
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return str(error.strerror).lower()
    if path is None or isinstance(error, CalibError) or not isinstance(error, Exception):
        return None
    try:
        with open(path, "ab") as file:
            file.write(bytes(PROBE))
    except OSError as probed:
        return no_room(probed)
    return None


def known_suffix(path: Path, suffixes: Sequence[str], what: str) -> Path:
    """`path`, if `what` can be written to a file of its suffix.

    Raises:
        UsageError: another suffix.
    """
    if path.suffix not in suffixes:
        raise UsageError(f"cannot write {what} as '{path.name}'", "use a suffix of: " + " ".join(suffixes))
    return path


def sha256(path: str | os.PathLike[str]) -> str:
    """Hex digest of the file's bytes, read in blocks.

    Raises:
        InputError: the file cannot be read.
    """
    with refusing(OSError, lambda e: f"cannot read {path} ({e.strerror})", "check the path"), open(path, "rb") as file:
        import hashlib

        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def unchanged(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """Refuse files that are replaced or written to while the block reads them by name, more than once.

    Raises:
        InputError: one was, or is not there.
    """
    before = [_state(path) for path in paths]
    yield
    for path, state in zip(paths, before):
        if _state(path) != state:
            raise InputError(f"{path} changed while it was read", "run again when nothing writes to it")


def _state(path: str | os.PathLike[str]) -> tuple[int, ...]:
    fix = "check the path"
    with refusing((OSError, ValueError), lambda e: f"cannot read {path} ({getattr(e, 'strerror', e)})", fix):
        found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def samples() -> Path:
    """Where the sample data lie: in the package, or beside it in a clone."""
    here = Path(__file__).parent
    inside = here / "sample_data"
    return inside if inside.is_dir() else here.parent / "sample_data"
