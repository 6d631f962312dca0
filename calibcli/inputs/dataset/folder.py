"""Image folders: one folder per class, pictures in it, decoded when their rows are asked for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError
from calibcli.inputs.dataset.keys import Found

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}


@dataclass(frozen=True)
class Pictures:
    """Files of pictures of one size, as bytes (N, height, width[, 3])."""

    paths: list[Path]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8)

    def read(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        out = np.empty((len(rows), *self.shape[1:]), np.uint8)
        for i, row in enumerate(rows.tolist()):
            picture = decode(self.paths[row], grey=len(self.shape) == 3)
            if picture.shape != out.shape[1:]:
                size, first = picture.shape[:2], self.shape[1:3]
                problem = f"{self.paths[row]} is {size[1]}x{size[0]}, {self.paths[0].name} is {first[1]}x{first[0]}"
                raise InputError(problem, "resize all pictures to the size that the model takes")
            out[i] = picture
        return out


def decode(path: Path, *, grey: bool | None = None) -> NDArray[np.uint8]:
    """A picture's bytes, (height, width) when grey, else (height, width, 3); `grey=None` asks the picture.

    Raises:
        InputError: Pillow is missing, or the file is no picture.
    """
    try:
        from PIL import Image
    except ImportError:
        raise InputError(f"{path} is a picture, and Pillow is not installed", "pip install pillow") from None
    try:
        with Image.open(path) as picture:
            if grey is None:
                grey = picture.mode in ("1", "L")
            return np.asarray(picture.convert("L" if grey else "RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{path} cannot be read as a picture ({error})", "replace or remove it") from None


def read(root: Path, split: str) -> Found:
    """The pictures of `root/CLASS/...` (of `root/SPLIT/CLASS/...`), classes in alphabetical order.

    Raises:
        InputError: no pictures in folders of classes.
    """
    if split:
        root = root / split
        if not root.is_dir():
            raise InputError(f"no folder {root}", "name a split that is there, after #")
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    members = [sorted(p for p in folder.iterdir() if p.suffix.lower() in SUFFIXES) for folder in folders]
    if not any(members):
        nested = [f.name for f in folders if any(p.is_dir() for p in f.iterdir())]
        fix = f"choose a split: {root}#{nested[-1]}" if nested else "put pictures into one folder per class"
        raise InputError(f"{root} has no folders of pictures", fix)
    paths = [path for files in members for path in files]
    labels = np.repeat(np.arange(len(folders)), [len(files) for files in members])
    names = [path.relative_to(root).as_posix() for path in paths]
    listing = "".join(f"{name} {path.stat().st_size}\n" for name, path in zip(names, paths))
    return Found(
        inputs={"": Pictures(paths, (len(paths), *decode(paths[0]).shape))},
        labels=labels,
        sha256=hashlib.sha256(listing.encode()).hexdigest(),
        ids=np.array(names),
        classes=[folder.name for folder in folders],
        notes=[f"{len(paths)} pictures of {len(folders)} classes; the fingerprint is that of their names and sizes"],
    )
