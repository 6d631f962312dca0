"""Files on disk: written whole or not at all, and fingerprinted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from calibcli.errors import InputError, UsageError


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
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path} ({getattr(error, 'strerror', error)})", "check the path") from None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
