"""The files in a folder, a tar or a zip archive, by name, and the bytes of single files."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError, refusing
from calibcli.networks.dataset._arrays import DatasetArrays
from calibcli.scores.files.arrays import DOWNLOADED, TARS, Memory
from calibcli.scores.files.roles import SPLITS
from calibcli.scores.files.source import Source
from calibcli.scores.predictions import Ints

MOST = 2 << 30  # bytes of a tar archive once unpacked; the published ones are a tenth of that
DAMAGED = (OSError, EOFError, ValueError, KeyError, NotImplementedError, RuntimeError, tarfile.TarError,
           zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, struct.error)  # fmt: skip


@dataclass(frozen=True)
class MembersByName:
    """Files by their name (the last part of their path).

    Attributes:
        path: folder, archive, or single file.
        kind: `folder`, `tar`, `zip` or `file`.
        paths: paths inside the archive or folder, by name; of several files of one name the first.
        every: of a tar archive, the paths of all files.
    """

    path: Path
    kind: str
    paths: dict[str, str]
    every: tuple[str, ...] = ()

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Read the bytes of members, in one pass.

        Raises:
            InputError: the archive is damaged, or a member is too large.
        """
        wanted = {self.paths[name]: name for name in names}
        with damaged(self.path):
            if self.kind == "tar":
                return {wanted[n]: _bounded(io.BytesIO(data), n) for n, data in _tar(self.path, set(wanted))}
            return {name: _bounded(self.open(name), self.paths[name]) for name in names}

    def open(self, name: str) -> IO[bytes]:
        """Open a member of a folder or of a zip archive, or the file itself."""
        if self.kind == "zip":
            return zipfile.Path(self.path, self.paths[name]).open("rb")
        return ((self.path if self.kind == "folder" else self.path.parent) / self.paths[name]).open("rb")

    def of_pictures(
        self, split: str, data: dict[str, bytes], names: Sequence[str], pictures: NDArray[Any], labels: Ints, note: str
    ) -> DatasetArrays:
        """Return the arrays of the pictures of a split, with ids SPLIT/NUMBER and the sha256 of the members `names`."""
        ids = np.array([f"{split}/{i}" for i in range(len(labels))])
        return DatasetArrays({"": Memory(pictures)}, labels, self.sha256(names, data), ids, notes=[note])

    def sha256(self, names: Sequence[str], data: dict[str, bytes]) -> str:
        """Hash the archive or file; of a folder, the files that were read."""
        if self.kind in ("tar", "zip"):
            return Source(self.path).sha256()
        digest = hashlib.sha256()
        for name in names:
            digest.update(data[name])
        return digest.hexdigest()

    def split(self, asked: str, splits: Sequence[str]) -> str:
        """Return the requested split as the data set calls it.

        Raises:
            InputError: none was requested and there are several, or there is no such split.
        """
        words = next((words for words in SPLITS.values() if asked.lower() in words), (asked.lower(),))
        matches = [name for name in splits if name in words]
        if matches:
            return matches[0]
        if not asked and len(splits) == 1:
            return splits[0]
        problem = f"has no split '{asked}'" if asked else f"holds the splits {', '.join(splits)}"
        raise InputError(f"{self.path} {problem}", f"choose one: {self.path}#{splits[-1]}")


def damaged(path: Path) -> contextlib.AbstractContextManager[None]:
    """Refuse a file that cannot be read inside the block."""
    return refusing(DAMAGED, lambda error: f"{path} is damaged ({str(error)[:80]})", "download it again")


def listed(path: Path) -> MembersByName | None:
    """List a folder or archive; for a single file, itself and the files beside it. None if it cannot be listed.

    Raises:
        InputError: the archive is damaged, or unpacks to more than `MOST`.
    """
    name = path.name.lower() if path.is_file() else ""
    if name.endswith(TARS):
        with damaged(path):
            every = tuple(member for member, _ in _tar(path, set()))
            return MembersByName(path, "tar", _first(every), every)
    with contextlib.suppress(*DAMAGED):
        if path.is_dir():
            return MembersByName(path, "folder", {p.name: p.name for p in path.iterdir()})
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                files = [one.filename for one in archive.infolist() if not one.is_dir()]
            return MembersByName(path, "zip", _first(files))
        if name.endswith(DOWNLOADED):
            beside = {p.name: p.name for p in path.parent.iterdir() if p.is_file()}
            return MembersByName(path, "file", {path.name: path.name, **beside})
    return None


def contents(path: Path) -> dict[str, bytes]:
    """Read the bytes of every file of a tar archive, by its path.

    Raises:
        InputError: it is damaged, or unpacks to more than `MOST`.
    """
    with damaged(path):
        return dict(_tar(path, {name for name, _ in _tar(path, set())}))


def _first(paths: Sequence[str]) -> dict[str, str]:
    return {PurePosixPath(path).name: path for path in reversed(paths)}


def _tar(path: Path, wanted: set[str]) -> list[tuple[str, bytes]]:
    """List the regular files of an archive, with the bytes of those wanted, in one pass."""
    files, total = [], 0
    with tarfile.open(path, "r|*") as archive:
        for member in archive:
            total += member.size
            if total > MOST:
                raise InputError(f"{path} unpacks to more than {MOST >> 30} GB", "unpack it, and name the folder")
            if not member.isreg() or (wanted and member.name not in wanted):
                continue
            stream = archive.extractfile(member) if member.name in wanted else None
            files.append((member.name, stream.read(MOST) if stream else b""))
            if wanted and len(files) == len(wanted):
                break
    return files


def _bounded(stream: IO[bytes], name: str) -> bytes:
    with stream:
        head = stream.read(2)
        packed = head == b"\x1f\x8b"
        data = head + stream.read(MOST)
    if packed:
        with gzip.open(io.BytesIO(data)) as unpacked:
            data = unpacked.read(MOST)
    if len(data) >= MOST:
        raise ValueError(f"{name} is longer than {MOST >> 30} GB")
    return data
