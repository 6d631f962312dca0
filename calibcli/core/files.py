"""Files on disk: writing them whole or not at all, never over an input; hashes of inputs."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from calibcli.core.errors import CalibError, InputError, UsageError, WriteError, check_path, printable, refusing

NO_ROOM = {getattr(errno, n) for n in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS") if hasattr(errno, n)}
PROBE = 1 << 20  # bytes that are written to find out whether a disk is full
TICK = 0.012  # seconds: the clock that gives files their times moves on every 1 to 10 ms
YOUNG = 60.0  # seconds for which a temporary file is kept: its process may not have locked it yet


@dataclass
class Guard:
    """The paths that one command or call from Python reads and writes; none may be both.

    Attributes:
        inputs: resolved path of each file or folder that was opened, with the name it was opened by.
        files: the same by device and inode, which recognises hard links.
        outputs: paths that will be written, as the user wrote them.
        own: resolved paths that were written here; reading them, or files in such a folder, does not make them inputs.
        folders: resolved paths of the folders of inputs.
    """

    inputs: dict[str, str] = field(default_factory=dict)
    files: dict[tuple[int, int], str] = field(default_factory=dict)
    outputs: list[Path] = field(default_factory=list)
    own: set[str] = field(default_factory=set)
    folders: dict[str, str] = field(default_factory=dict)

    def record_input(self, name: str) -> None:
        """Record an input.

        Raises:
            UsageError: it is also an output.
        """
        if "\0" in name:  # no file has a NUL in its name
            return
        plain = None
        with contextlib.suppress(OSError):  # not there (yet)
            status = os.lstat(name)
            plain = None if stat.S_ISLNK(status.st_mode) else (status.st_dev, status.st_ino)
        resolved = self._resolved(name, plain is None)
        if self.own and not self.own.isdisjoint((resolved, *map(str, Path(resolved).parents))):
            return
        self.inputs[resolved] = name
        if (identity := plain or _identity(name)) is not None:
            self.files[identity] = name
        for path in self.outputs:
            self.refuse(path)

    def _resolved(self, name: str, linked: bool) -> str:
        """Return the real path; of many files in one folder that of the folder is looked up once."""
        folder, last = os.path.split(name)
        if last in ("", ".", "..") or linked:
            return os.path.realpath(name)
        if folder not in self.folders:
            self.folders[folder] = os.path.realpath(folder)
        return os.path.join(self.folders[folder], last)

    def refuse(self, path: Path) -> None:
        """Refuse an output that would replace an input.

        Raises:
            UsageError: it is an input under any name, or lies in a folder that is one.
        """
        resolved = os.path.realpath(path)
        if resolved in self.own:
            return
        source = self.inputs.get(resolved) or self.files.get(_identity(path) or (0, 0))
        if source is not None:
            raise UsageError(f"'{path}' would replace the input '{source}'", "name another file to write")
        for folder in map(str, Path(resolved).parents):
            if folder in self.inputs and os.path.isdir(folder):
                problem = f"'{path}' lies in the input folder '{self.inputs[folder]}'"
                raise UsageError(problem, "write into another folder")


_GUARDS: ContextVar[tuple[Guard, ...]] = ContextVar("guards", default=())


@contextlib.contextmanager
def guarding() -> Iterator[None]:
    """Refuse, inside the block, to write to a path that was read from (see `reading` and `claim`)."""
    token = _GUARDS.set((*_GUARDS.get(), Guard()))
    try:
        yield
    finally:
        _GUARDS.reset(token)


def reading(*names: str | os.PathLike[str], pipes: bool = False) -> None:
    """Record files or folders as inputs, under the names that the user wrote. Every reader calls this first.

    Args:
        pipes: whether a pipe is read, too: its reader reads it once, from begin to end. Others open a file by its name
            and more than once, so that they would wait for ever.

    Raises:
        InputError: one of them is a pipe, and `pipes` is false.
        UsageError: one of them is also an output.
    """
    for name in names if not pipes else ():
        if is_pipe(name):
            import shlex

            problem = f"{name} is a pipe, and this input is read more than once"
            raise InputError(problem, f"write it to a file first: cat {shlex.quote(str(name))} > FILE")
    for guard in _GUARDS.get():
        for name in names:
            guard.record_input(str(name))


def is_pipe(name: str | os.PathLike[str]) -> bool:
    """Return whether there is a pipe of this name, made by mkfifo or by a shell for `<(command)`."""
    with contextlib.suppress(OSError, ValueError):  # nothing of that name
        return stat.S_ISFIFO(os.stat(name).st_mode)
    return False


def refuse_pointer(head: bytes, name: str | os.PathLike[str]) -> None:
    """Refuse what was fetched in place of a file.

    Raises:
        InputError: the file begins as the pointer that Git LFS leaves, or as a web page.
    """
    start = head.lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        raise InputError(f"{name} is a pointer of Git LFS, not the file itself", "run git lfs pull in its repository")
    if start.startswith((b"<!doctype html", b"<html")):
        raise InputError(f"{name} is a web page, not the file itself", "fetch the file from its address for downloads")


def claim(*paths: str | os.PathLike[str], folder: bool = False) -> None:
    """Check output paths before any work is done, and record them, so that opening one later as an input is refused.

    Args:
        paths: files that will be written.
        folder: whether a path may also be a folder, which will be created.

    Raises:
        UsageError: a path is an input or lies in an input folder, is a folder, lies in none that exists, is written
            twice, or is the root of the file system.
    """
    for path in map(Path, paths):
        if not folder:
            target(path)
        elif os.path.realpath(path) == os.path.realpath(path.anchor or os.sep):
            fix = "name a folder; is the variable that the path begins with empty?"
            raise UsageError(f"'{path}' is the root of the file system", fix)
        refuse_input(path)
        guards = _GUARDS.get()
        if guards and any(_same(path, other) for other in guards[-1].outputs):
            raise UsageError(f"'{path}' is written twice", "name another file")
        for guard in guards:
            guard.outputs.append(path)


def refuse_input(path: Path) -> None:
    """Refuse to write to a path that was read from; called at the moment of writing.

    Raises:
        UsageError: as `Guard.refuse`.
    """
    for guard in _GUARDS.get():
        guard.refuse(path)


def written(*paths: Path) -> None:
    """Record files or folders that the command itself created, so that reading them does not make them inputs."""
    for guard in _GUARDS.get():
        guard.own.update(map(os.path.realpath, paths))


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # not there (yet)
        return None
    return status.st_dev, status.st_ino


def _same(path: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    identity = _identity(path)
    return os.path.realpath(path) == os.path.realpath(other) or (identity is not None and identity == _identity(other))


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`, and rename it to `path` when the block succeeds: no partial file is left.

    Temporary files that killed runs left beside `path` are removed.

    Raises:
        UsageError: the path is an input, a folder or no regular file; its folder does not exist or cannot be written.
        WriteError: the disk is full or read-only; an earlier file at `path` is unchanged.
        InputError: an input of an enclosing `unchanged` changed.
    """
    path = target(path)
    refuse_input(path)
    try:
        with _room(path):
            _sweep(path)
            import tempfile

            handle, name = tempfile.mkstemp(prefix=f".{path.name[:60]}.", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        fix = "name a folder that exists and can be written"
        raise UsageError(f"cannot write {path} ({error.strerror})", fix) from None
    temporary = Path(name)
    written(temporary)
    try:
        _locked(handle)
        with _room(path, temporary):
            yield temporary
            mask = os.umask(0)  # it cannot be read without being set
            os.umask(mask)
            temporary.chmod(0o666 & ~mask)
            refuse_input(path)  # it may have been opened meanwhile
            _compare(_UNCHANGED.get())
            os.replace(temporary, path)
            written(path)
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


def _locked(handle: int) -> bool:
    """Lock a file until it is closed (also by the end of its process); returns whether that succeeded."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):  # Windows; another process has it; a file system without locks
        return False
    return True


@contextlib.contextmanager
def alone(lock: Path, option: str) -> Iterator[None]:
    """Keep a folder for this process inside the block, by a lock file in it.

    Args:
        lock: the file, which is removed at the end.  option: by which the user names the folder.

    Raises:
        UsageError: another process keeps it.
    """
    try:
        import fcntl

        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except (ImportError, OSError):  # no such locks here, or no such folder, which is said where it is made
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"another run writes into {lock.parent} at this moment"
            raise UsageError(problem, f"wait until it has ended, or name another {option} folder") from None
        except OSError:  # a file system without locks
            pass
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Remove temporary files of `path` whose process has ended."""
    of_path = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}{re.escape(path.suffix)}")
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        old = [entry for entry in entries if of_path.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
        for entry in old:
            if time.time() - entry.stat().st_mtime > YOUNG:
                handle = os.open(entry.path, os.O_RDWR)
                try:
                    if _locked(handle):
                        os.unlink(entry.path)
                finally:
                    os.close(handle)


@contextlib.contextmanager
def _room(path: Path, written: Path | None = None) -> Iterator[None]:
    """Raise a `WriteError` for errors of the block which mean a full disk; `written` is the `path` of `no_room`."""
    try:
        yield
    except BaseException as error:
        if (reason := no_room(error, written)) is None:
            raise
        kept = "what was there before is kept" if path.exists() else "nothing half-written is left"
        raise WriteError(f"cannot write {path} ({reason}); {kept}", "free some space, or write elsewhere") from None


class Lines(contextlib.AbstractContextManager["Lines"]):
    """A text file to which whole lines are appended.

    An incomplete last line of an earlier run is cut off, and so is a line for which there is no room.

    Raises:
        WriteError: the disk is full or read-only.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        refuse_input(self.path)
        written(self.path)
        with _room(self.path):
            self._file = open(self.path, "a+b", buffering=0)  # noqa: SIM115 (closed by __exit__)
        end = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, end - PROBE))
        whole = self._file.read().rfind(b"\n") + 1 + max(0, end - PROBE)
        self._file.truncate(whole)

    def write(self, line: str) -> None:
        """Append a line."""
        before, remaining = self._file.seek(0, os.SEEK_END), memoryview(line.encode() + b"\n")
        with _room(self.path):
            try:
                while remaining:
                    remaining = remaining[self._file.write(remaining) or 0 :]
            except OSError:
                self._file.truncate(before)
                raise

    def __exit__(self, *_: object) -> None:
        self._file.close()


def target(path: str | os.PathLike[str]) -> Path:
    """Return `path` if a file can be written there.

    Raises:
        UsageError: it is a folder, a pipe or a device, or its folder does not exist.
    """
    path = Path(path)
    if os.path.isdir(path):
        raise UsageError(f"cannot write {path} (it is a folder)", f"name a file: {path / 'NAME'}")
    if os.path.exists(path) and not os.path.isfile(path):
        fix = "name a file; what goes to stdout can be piped: --format json > PIPE"
        raise UsageError(f"cannot write {path} (it is a pipe or a device, not a file)", fix)
    if not os.path.isdir(path.parent):
        raise UsageError(f"no folder '{path.parent}' to write '{path.name}' into", f"mkdir -p {path.parent}")
    try:
        os.lstat(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL character
        problem = f"cannot write '{printable(path.name, 80)}' ({getattr(error, 'strerror', error)})"
        raise UsageError(problem, "name another file") from None
    return path


def no_room(error: BaseException, path: Path | None = None) -> str | None:
    """Say why nothing more can be written, if `error` means that; None for any other error.

    Args:
        path: of the file that was being written. safetensors and torch raise errors of their own and NumPy only counts
            bytes, so the reason is found by trying to write another megabyte.
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


def known_suffix(path: Path, suffixes: Sequence[str], contents: str) -> Path:
    """Return `path` if it has one of `suffixes`; `contents` names in the error what is to be written.

    Raises:
        UsageError: another suffix.
    """
    if path.suffix not in suffixes:
        raise UsageError(f"cannot write {contents} as '{path.name}'", "use a suffix of: " + " ".join(suffixes))
    return path


def sha256(path: str | os.PathLike[str]) -> str:
    """Compute the hex SHA-256 of an input file, read in blocks.

    Raises:
        InputError: the file cannot be read.
    """
    reading(path)
    with refusing(OSError, lambda e: f"cannot read {path} ({e.strerror})", check_path(path)), open(path, "rb") as file:
        import hashlib

        return hashlib.file_digest(file, "sha256").hexdigest()


class Steady:
    """An open file whose bytes must stay what they were when this was made; call `check` after every read of it.

    What was read before a `check` that passes are then the bytes of one state of the file. A file that is replaced by
    another of its name is steady: what is open is the old one.

    Args:
        descriptor: of the open file.
        name: that an error calls it by.
    """

    def __init__(self, descriptor: int, name: str) -> None:
        self.descriptor, self.name = descriptor, name
        self.status = _settled(lambda: os.fstat(descriptor))

    def check(self) -> None:
        """Refuse the file if it was written to, cut off, touched, or changed and given its old time back.

        Raises:
            InputError: it was.
        """
        now, then = os.fstat(self.descriptor), self.status
        if (now.st_ctime_ns, now.st_mtime_ns, now.st_size) == (then.st_ctime_ns, then.st_mtime_ns, then.st_size):
            return
        written = (now.st_mtime_ns, now.st_size) != (then.st_mtime_ns, then.st_size)
        if written or now.st_nlink == then.st_nlink:
            raise _changed(self.name)
        self.status = now  # it lost its name to a new file, or got a second one


@contextlib.contextmanager
def unchanged(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """Refuse inputs that change while the block opens them by name, perhaps more than once.

    They are compared at the end of the block, and before `atomic` gives a file its name inside it.

    Raises:
        InputError: a file changed or does not exist.
    """
    reading(*paths)
    before = tuple((path, stamp(path, settled=True)) for path in paths)
    token = _UNCHANGED.set((*_UNCHANGED.get(), *before))
    try:
        yield
        _compare(before)
    finally:
        _UNCHANGED.reset(token)


Stamps = tuple[tuple[str | os.PathLike[str], tuple[int, ...]], ...]
_UNCHANGED: ContextVar[Stamps] = ContextVar("unchanged", default=())


def _compare(before: Stamps) -> None:
    for path, state in before:
        if stamp(path) != state:
            raise _changed(str(path))


def stamp(path: str | os.PathLike[str], settled: bool = False) -> tuple[int, ...]:
    """Return numbers that change with the file or its content; `settled`: with whatever is written from now on.

    Raises:
        InputError: the file cannot be read.
    """
    fix = check_path(path)
    with refusing((OSError, ValueError), lambda e: f"cannot read {path} ({getattr(e, 'strerror', e)})", fix):
        status = _settled(lambda: os.stat(path)) if settled else os.stat(path)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _changed(name: str) -> InputError:
    return InputError(f"{name} changed while it was read", "run again when nothing writes to it")


def _settled(ask: Callable[[], os.stat_result]) -> os.stat_result:
    """Return the status of a file, after the clock of its times has moved on: a later change has another time.

    A file without a name is one of our own, to which nobody else writes.
    """
    status = ask()
    age = time.time() - status.st_ctime
    if not 0 <= age < TICK or not status.st_nlink:
        return status
    time.sleep(TICK - age)
    return ask()


def samples() -> Path:
    """Return the folder of the sample data: in the package, or beside it in a clone."""
    here = Path(__file__).parent.parent
    inside = here / "sample_data"
    return inside if inside.is_dir() else here.parent / "sample_data"
