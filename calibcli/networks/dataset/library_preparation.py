"""Pictures and texts as a model's own library prepares them: what it makes of a row, and the arrays of such rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError, refusing
from calibcli.networks.dataset.folder import Pictures
from calibcli.networks.user_code import FAILURES
from calibcli.scores.predictions import Named


@dataclass(frozen=True)
class ForPictures:
    """What a library makes of one picture.

    Attributes:
        name: of it, in words.  steps: what it does, in words, where that is known.
        make: a Pillow picture to floats (channels, height, width).
        mode: of the picture that it takes, `RGB` or `L`.
        upright: pictures are turned first as their EXIF orientation says.
    """

    name: str
    make: Callable[[Any], NDArray[np.float32]]
    mode: str = "RGB"
    upright: bool = False
    steps: str = ""


@dataclass(frozen=True)
class ForTexts:
    """What a library makes of texts.

    Attributes:
        name: of it, in words.
        encode: texts, and second texts or None, to lists of numbers by the name that the model knows them by, cut off
            or not.
        longest: tokens that the model takes, None for any number.
        pad: what shorter rows are filled up with, by name; `settle` chooses the token where there is none.
        empty: tokens that stand for no word: special ones, and the one for what is unknown.
        settle: tells the model which token fills up; called with all tokens that occur, and the last of every row.
        left: rows are filled up on the left.
    """

    name: str
    encode: Callable[[Sequence[str], Sequence[str] | None, bool], Mapping[str, list[list[int]]]]
    longest: int | None
    pad: Mapping[str, int]
    settle: Callable[[NDArray[Any], NDArray[Any]], int]
    left: bool = False
    empty: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Preparation:
    """How a model's own library prepares rows; each part is made when rows need it.

    Attributes:
        pictures, texts: make the parts that there are.
        of_weights: it is that of published weights, which the model need not be: a mean of the user's replaces it.
    """

    pictures: Callable[[], ForPictures] | None = None
    texts: Callable[[], ForTexts] | None = None
    of_weights: bool = False


@dataclass(frozen=True)
class PicturesOfArray:
    """An array of pictures of bytes, (N, h, w), (N, h, w, channels) or (N, channels, h, w), opened one by one."""

    array: Named
    channels_first: bool
    source: str

    def name(self, row: int) -> str:
        return f"row {row} of {self.source}"

    def picture(self, row: int, mode: str, upright: bool) -> Any:
        from PIL import Image

        block = self.array.read(row, row + 1)[0]
        block = np.moveaxis(block, 0, -1) if self.channels_first else block
        block = block[:, :, 0] if block.shape[2:] == (1,) else block
        return Image.fromarray(np.ascontiguousarray(block)).convert(mode)


Opened = Pictures | PicturesOfArray
"""Pictures that can be opened one by one, each as a Pillow picture."""


@dataclass(frozen=True)
class Prepared:
    """Pictures as floats (N, channels, height, width), prepared when their rows are asked for."""

    pictures: Opened
    how: ForPictures
    shape: tuple[int, ...]

    dtype = np.dtype(np.float32)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        stop = min(stop, self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), np.float32)
        for i in range(len(out)):
            made = one(self.pictures, start + i, self.how)
            if made.shape != out.shape[1:]:
                name, first = self.pictures.name(start + i), "x".join(map(str, self.shape[1:]))
                problem = f"{name} becomes {'x'.join(map(str, made.shape))}, the first picture {first}"
                raise InputError(problem, "bring them to one size, such as --resize 256 --crop 224")
            out[i] = made
        return out


def one(pictures: Opened, row: int, how: ForPictures) -> NDArray[np.float32]:
    """A row as the library makes it.

    Raises:
        InputError: it makes nothing of it.
    """
    fix = "prepare the pictures yourself: pass floating-point arrays (N, channels, height, width)"
    with refusing(FAILURES, lambda e: f"{pictures.name(row)}: {how.name} fails ({str(e)[:120]})", fix):
        made = np.asarray(how.make(pictures.picture(row, how.mode, how.upright)), np.float32)
    if made.ndim != 3:
        raise InputError(f"{how.name} makes arrays of shape {made.shape} of a picture, not of images", fix)
    return made


@dataclass(frozen=True)
class Tokens:
    """Rows of whole numbers that differ in length, filled up when they are read: (N, longest) int64."""

    flat: NDArray[np.int32]
    starts: NDArray[np.int64]
    fill: int
    left: bool
    width: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", int(np.diff(self.starts).max()))

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.starts) - 1, self.width

    dtype = np.dtype(np.int64)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        stop = min(stop, self.shape[0])
        out = np.full((max(0, stop - start), self.width), self.fill, np.int64)
        for i in range(len(out)):
            row = self.flat[self.starts[start + i] : self.starts[start + i + 1]]
            out[i, self.width - len(row) if self.left else 0 :][: len(row)] = row
        return out


VOCABULARY = "put its vocabulary into the model's folder: AutoTokenizer.save_pretrained(FOLDER), or git lfs pull"
AT_ONCE = 1000  # texts that are encoded together


def tokens(
    how: ForTexts, texts: Sequence[str], second: Sequence[str] | None, source: str
) -> tuple[dict[str, Named], list[str]]:
    """Texts as the arrays that the model takes by name, and remarks.

    Texts longer than the model takes are cut off, as the library cuts them.

    Raises:
        InputError: the tokenizer fails, knows no word of any text, or the model has no mask for texts that differ in
            length.
    """
    parts: dict[str, list[NDArray[np.int32]]] = {}
    lengths: list[int] = []
    long = 0
    with refusing(FAILURES, lambda e: f"{how.name} fails on {source} ({str(e)[:120]})", "check its files"):
        for start in range(0, len(texts), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            block, other = texts[rows], None if second is None else second[rows]
            found = {name: list(values) for name, values in how.encode(block, other, False).items()}
            over = [i for i, ids in enumerate(found["input_ids"]) if how.longest and len(ids) > how.longest]
            if over:
                long += len(over)
                cut = how.encode([block[i] for i in over], None if other is None else [other[i] for i in over], True)
                for name, values in cut.items():
                    for i, ids in zip(over, values):
                        found[name][i] = ids
            lengths += [len(ids) for ids in found["input_ids"]]
            for name, values in found.items():
                parts.setdefault(name, []).append(np.fromiter((v for ids in values for v in ids), np.int32))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    if not min(lengths):
        raise InputError(
            f"{source}: {how.name} makes no token of row {lengths.index(0)}", "leave out rows without text"
        )
    used = np.unique(np.concatenate(parts["input_ids"]))
    if how.empty.issuperset(used.tolist()):
        raise InputError(
            f"{how.name} knows no word of the {len(texts):,} texts of {source}: its vocabulary is missing, or another",
            VOCABULARY,
        )
    if "attention_mask" not in parts and len(set(lengths)) > 1:
        problem = f"the model takes no attention mask, and the texts of {source} differ in length"
        raise InputError(problem, "pass input_ids of rows of one length, as arrays")
    flat = {name: np.concatenate(values) for name, values in parts.items()}
    fill = {**how.pad, "input_ids": how.settle(used, flat["input_ids"][starts[1:] - 1])}
    notes = [f"texts as tokens of {how.name}, {min(lengths)} to {max(lengths)} in a row"]
    if long:
        notes.append(f"{long:,} of {len(texts):,} texts have more than the {how.longest} tokens of the model: cut off")
    return {name: Tokens(values, starts, fill.get(name, 0), how.left) for name, values in flat.items()}, notes
