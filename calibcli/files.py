"""Files on disk: written whole or not at all, and fingerprinted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from calibcli.errors import InputError, UsageError


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
    for path in map(Path, targets):
        if not path.parent.is_dir():
            raise UsageError(f"no folder '{path.parent}' to write '{path.name}' into", f"mkdir -p {path.parent}")
        if path.is_dir():
            raise UsageError(f"'{path}' is a folder", "name a file")
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
        UsageError: the folder does not exist or cannot be written.
    """
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({error.strerror})", "name a folder that exists and can be written"
        ) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def sha256(path: str | os.PathLike[str]) -> str:
    """Hex digest of the file's bytes, read in 1 MiB blocks.

    Raises:
        InputError: the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror})", "check the path") from None
    return digest.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
