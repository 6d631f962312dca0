"""Image folders: one folder per class. Images are decoded when their rows are read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError, refusing
from calibcli.networks.dataset._arrays import DatasetArrays
from calibcli.networks.dataset.rows import AS_IT_IS, Resize
from calibcli.scores.files.roles import SPLITS

PIXELS = 178_956_970  # of one picture at most: twice the number at which Pillow warns
SPLIT_NAMES = {name for names in SPLITS.values() for name in names}
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
PILLOW = re.compile(r"PIL\b")  # modules whose warnings about a picture are not shown
DEEP = ("I", "F")  # also `I;16`: modes with more than 8 bits per channel, which Pillow would clip at 255


@dataclass(frozen=True)
class EncodedPicture:
    """A picture stored in a row of a table, in the bytes of an image format."""

    name: str
    data: bytes

    def __str__(self) -> str:
        return self.name

    def open(self, mode: str) -> IO[bytes]:
        return io.BytesIO(self.data)


Place = Path | zipfile.Path | EncodedPicture


@dataclass(frozen=True)
class Pictures:
    """Picture files of one size (after resizing), read as bytes (N, height, width[, 3])."""

    paths: Sequence[Place]
    shape: tuple[int, ...]
    resize: Resize = AS_IT_IS

    dtype = np.dtype(np.uint8)

    def resized(self, resize: Resize) -> Pictures:
        n, height, width, *channels = self.shape
        return replace(self, resize=resize, shape=(n, *resize.shape(height, width), *channels))

    def name(self, row: int) -> str:
        return str(self.paths[row])

    def picture(self, row: int, mode: str, upright: bool) -> Any:
        with opened(self.paths[row]) as picture:
            from PIL import ImageOps

            return (ImageOps.exif_transpose(picture) if upright else picture).convert(mode)

    def in_channels(self, channels: int) -> Pictures:
        """Read pictures in grey (1 channel) or in colour (3); with another number they are read as they are."""
        if channels not in (1, 3):
            return self
        return replace(self, shape=(*self.shape[:3], *((3,) if channels == 3 else ())))

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        paths = self.paths[start:stop]
        out = np.empty((len(paths), *self.shape[1:]), np.uint8)
        for i, path in enumerate(paths):
            picture = self.resize(decode(path, grey=len(self.shape) == 3))
            if picture.shape != out.shape[1:]:
                size, first = picture.shape[:2], self.shape[1:3]
                problem = f"{path} is {size[1]}x{size[0]}, {self.paths[0].name} is {first[1]}x{first[0]}"
                raise InputError(problem, "pass the size that the model takes, such as --size 224")
            out[i] = picture
        return out


@contextlib.contextmanager
def opened(path: Place) -> Iterator[Any]:
    """Open a picture with Pillow.

    Raises:
        InputError: Pillow is missing, or the file is not a picture of at most 8 bits per channel.
    """
    with refusing(ImportError, f"{path} is a picture, and Pillow is not installed", "pip install pillow"):
        from PIL import Image
    errors = (OSError, ValueError, SyntaxError, EOFError, zipfile.BadZipFile, zlib.error, Image.DecompressionBombError)
    if not warnings.filters or warnings.filters[0][3] != PILLOW:  # of the process: threads decode pictures too
        warnings.filterwarnings("ignore", module=PILLOW.pattern)
    with (
        refusing(errors, lambda error: f"{path} cannot be read as a picture ({error})", "replace or remove it"),
        path.open("rb") as file,
        Image.open(file) as picture,
    ):
        if picture.width * picture.height > PIXELS:
            raise ValueError(f"{picture.width}x{picture.height}")
        if picture.mode.startswith(DEEP):
            raise ValueError(f"mode {picture.mode}: more than 8 bits for a pixel")
        yield picture


def decode(path: Place, *, grey: bool | None = None) -> NDArray[np.uint8]:
    """Decode a picture to bytes, (height, width) if grey, else (height, width, 3); `grey=None` keeps what the file has.

    Raises:
        InputError: as `opened`.
    """
    with opened(path) as picture:
        if grey is None:
            grey = picture.mode in ("1", "L")
        return np.asarray(picture.convert("L" if grey else "RGB"))


def read(root: Path, split: str) -> DatasetArrays:
    """Read the pictures of `root/CLASS/...` (or `root/SPLIT/CLASS/...`), with classes in alphabetical order.

    Raises:
        InputError: there are no pictures in folders of classes.
    """
    if split:
        root = root / split
        if not root.is_dir():
            raise InputError(f"no folder {root}", "name a split that is there, after #")
    with refusing(OSError, lambda error: f"cannot read {error.filename} ({error.strerror})", "check the path"):
        folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
        members = [_pictures(folder) for folder in folders]
        _refuse_odd(root, folders, members)
    paths = [path for files in members for path in files]
    labels = np.repeat(np.arange(len(folders)), [len(files) for files in members])
    pictures = Pictures(paths, (len(paths), *decode(paths[0]).shape))
    ids = np.array([path.relative_to(root).as_posix() for path in paths])
    classes = [folder.name for folder in folders]
    note = f"{len(paths)} pictures of {len(folders)} classes; the fingerprint is that of their names and sizes"
    return DatasetArrays({"": pictures}, labels, fingerprint(paths, root), ids, classes, [note])


def fingerprint(paths: Sequence[Any], root: Path) -> str:
    """Hash the names and sizes of files in a folder."""
    listing = "".join(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n" for path in paths)
    return hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()


def _pictures(folder: Path) -> list[Path]:
    """List the pictures of a class: in its folder, and in its subfolder `images` (as in Tiny ImageNet)."""
    inner = folder / "images"
    places = (folder, inner) if inner.is_dir() else (folder,)
    return sorted(p for place in places for p in place.iterdir() if p.suffix.lower() in SUFFIXES)


def _refuse_odd(root: Path, folders: list[Path], members: list[list[Path]]) -> None:
    """Refuse folders that do not hold one folder per class.

    Raises:
        InputError: classes are listed in a file, the folders are splits, or hold no pictures, or only one class.
    """
    annotations = sorted(root.glob("*annotations*.txt"))
    if annotations:
        problem = f"{root} lists the classes of its pictures in {annotations[0].name}, which calib does not read"
        raise InputError(problem, "move every picture into a folder named after its class")
    nested = [f.name for f in folders if any(p.is_dir() and p.name != "images" for p in f.iterdir())]
    parts = [f.name for f in folders if f.name.lower() in SPLIT_NAMES]
    if (not any(members) and nested) or (folders and len(parts) == len(folders) > 1):
        problem = f"{root} has no folders of pictures by class"
        raise InputError(problem, f"choose a split: {root}#{(nested or parts)[-1]}")
    if not any(members):
        raise InputError(f"{root} has no folders of pictures", "put pictures into one folder per class")
    filled = [folder.name for folder, files in zip(folders, members) if files]
    if len(filled) == 1:
        problem = f"{root} has pictures in one folder only, '{filled[0]}'"
        raise InputError(problem, "put pictures into one folder per class")
