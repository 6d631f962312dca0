"""Pictures brought to the size that a model takes, as image processors do it: resized by Pillow, then cropped."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import UsageError, refusing
from calibcli.inputs.files.arrays import Converted
from calibcli.inputs.opening import Rows
from calibcli.predictions import Named

RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # in Pillow's order
LARGEST = 10_000


@dataclass(frozen=True)
class Resize:
    """What is done to a picture of bytes, (h, w) or (h, w, channels).

    Attributes:
        size: `(s,)`: the shorter side becomes s, the longer int(s long / short); `(h, w)`: just that; (): as it is.
        crop: then the middle (h, w), filled up with zeros where the picture is smaller; (): all of it.
        resample: one of `RESAMPLE`.
        middle: how half a pixel is rounded: `floor` (Hugging Face), or `round`, to even (torchvision, timm).
    """

    size: tuple[int, ...] = ()
    crop: tuple[int, ...] = ()
    resample: str = "bilinear"
    middle: str = "floor"

    def __bool__(self) -> bool:
        return bool(self.size or self.crop)

    def __str__(self) -> str:
        steps = []
        if self.size:
            what = "x".join(map(str, self.size)) if len(self.size) == 2 else f"{self.size[0]} (shorter side)"
            steps.append(f"resized to {what}, {self.resample}")
        if self.crop:
            steps.append("the middle {}x{}".format(*self.crop))
        return ", ".join(steps)

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what becomes of a picture."""
        return (self.crop[0], self.crop[1]) if self.crop else self._resized(height, width)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        if len(self.size) != 1:
            return (self.size[0], self.size[1]) if self.size else (height, width)
        short, long = self.size[0], int(self.size[0] * max(height, width) / min(height, width))
        return (short, long) if height <= width else (long, short)

    def __call__(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        height, width = self._resized(*picture.shape[:2])
        if (height, width) != picture.shape[:2]:
            from PIL import Image

            flat = picture[:, :, 0] if picture.shape[2:] == (1,) else picture
            made = Image.fromarray(flat).resize((width, height), RESAMPLE.index(self.resample))
            picture = np.asarray(made).reshape(height, width, *picture.shape[2:])
        return self._middle(picture, *self.crop) if self.crop else picture

    def _middle(self, picture: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
        missing = [max(0, want - have) for want, have in zip((height, width), picture.shape)]
        if any(missing):
            around = [(m - m // 2, m // 2) for m in missing]
            picture = np.pad(picture, [*around, *[(0, 0)] * (picture.ndim - 2)])
        rest = [(have - want) / 2 for have, want in zip(picture.shape, (height, width))]
        top, left = (round(r) if self.middle == "round" else math.floor(r) for r in rest)
        return picture[top : top + height, left : left + width]


AS_IT_IS = Resize()


def resized(array: Named, resize: Resize, channels_first: bool) -> Converted:
    """An array of pictures of bytes, (N, h, w), (N, h, w, channels) or (N, channels, h, w), resized when read."""
    _, *rest = array.shape
    at = 1 if channels_first else 0
    tail = (*rest[:at], *resize.shape(rest[at], rest[at + 1]), *rest[at + 2 :])

    def read(block: NDArray[np.uint8]) -> NDArray[np.uint8]:
        out = np.empty((len(block), *tail), np.uint8)
        for i, picture in enumerate(np.moveaxis(block, 1, -1) if channels_first else block):
            made = resize(np.ascontiguousarray(picture))
            out[i] = np.moveaxis(made, -1, 0) if channels_first else made
        return out

    return Converted(array, read, tail, np.dtype(np.uint8))


def needs_pillow(what: str) -> None:
    """Raises:
    InputError: Pillow is not installed.
    """
    with refusing(ImportError, f"{what} are to be resized, and Pillow is not installed", "pip install pillow"):
        import PIL  # noqa: F401


def size_option(text: str) -> Resize:
    """`224`: the shorter side to 224, then the middle 224x224; `256/224`; `224x192`: just that; `none`.

    Raises:
        UsageError: none of these.
    """
    fix = "224, 256/224 (shorter side, then middle), 224x192 or none"
    if re.fullmatch(r"\s*\d+/\d+\s*", text, re.ASCII):
        (short,), (middle,) = (_numbers(part, "size", fix) for part in text.split("/"))
        return Resize(size=(short,), crop=(middle, middle))
    size = _numbers(text, "size", fix)
    return Resize(size=size, crop=2 * size if len(size) == 1 else ())


def sizing(said: Rows) -> list[str]:
    """The options that were given of how pictures come to their size."""
    return [name for name in ("size", "resize", "crop", "interpolation") if getattr(said, name) is not None]


def sized(said: Rows, base: Resize) -> Resize:
    """`base`, but for what the user said, which comes before what a checkpoint says.

    Args:
        said: size: see `size_option`.  resize: `256` (shorter side), `224x192` or `none`.  crop: of the middle,
            likewise.  interpolation: one of `RESAMPLE`.

    Raises:
        UsageError: no size, no way to interpolate, or two ways to say one thing.
    """
    if said.size is not None and (said.resize is not None or said.crop is not None):
        raise UsageError("--size together with --resize or --crop", "leave --size out: it stands for both")
    made = base
    if said.size is not None:
        made = replace(size_option(said.size), resample=base.resample, middle=base.middle)
    if said.resize is not None:
        made = replace(made, size=_numbers(said.resize, "resize", "256 (shorter side), 224x192 or none"))
    if said.crop is not None:
        crop = _numbers(said.crop, "crop", "224, 224x192 or none")
        made = replace(made, crop=2 * crop if len(crop) == 1 else crop)
    if said.interpolation is not None:
        if said.interpolation not in RESAMPLE:
            fix = f"choose from: {', '.join(RESAMPLE)}"
            raise UsageError(f"--interpolation {said.interpolation[:20]} is not a choice", fix)
        made = replace(made, resample=said.interpolation)
    return made


def _numbers(text: str, option: str, fix: str) -> tuple[int, ...]:
    """`224` or `224x192`; none of `none`."""
    found = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text.strip().lower())
    numbers = tuple(int(n) for n in found.groups() if n) if found else ()
    if text.strip().lower() != "none" and not (numbers and all(0 < n <= LARGEST for n in numbers)):
        raise UsageError(f"--{option} {text[:40]} is no size", f"pass {fix}")
    return numbers
