"""Images and texts prepared by a model's own library, as arrays whose rows are prepared when they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError, refusing
from calibcli.networks.dataset._folder import Pictures
from calibcli.networks.user_code import FAILURES
from calibcli.scores.predictions import Named


@dataclass(frozen=True)
class PicturePreparation:
    """A library's preparation of one picture.

    Attributes:
        name: of the preparation, in words.  steps: what it does, in words, if known.
        make: maps a Pillow picture to floats (channels, height, width).
        mode: of the picture that it takes, `RGB` or `L`.
        upright: pictures are first rotated as their EXIF orientation says.
    """

    name: str
    make: Callable[[Any], NDArray[np.float32]]
    mode: str = "RGB"
    upright: bool = False
    steps: str = ""


@dataclass(frozen=True)
class TextPreparation:
    """A library's preparation of texts.

    Attributes:
        name: of the preparation, in words.
        encode: maps texts, and second texts or None, to lists of numbers by the name of the model's input, truncated
            or not.
        longest: most tokens that the model takes, None for any number.
        pad: the padding value, by name of the input; `settle` chooses that of the tokens.
        empty: tokens that stand for no word: special tokens, and the one for unknown words.
        settle: sets and returns the model's padding token, given all tokens that occur and the last one of every row.
        left: rows are padded on the left.
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
    """How a model's own library prepares rows. Each part is loaded when rows need it.

    Attributes:
        pictures, texts: functions that load the parts, or None.
        of_weights: the preparation belongs to published weights, which the model may not have: a mean or std of the
            user replaces it.
        next_token: the model predicts the next token, which is the label where there is no other.
    """

    pictures: Callable[[], PicturePreparation] | None = None
    texts: Callable[[], TextPreparation] | None = None
    of_weights: bool = False
    next_token: bool = False


@dataclass(frozen=True)
class ArrayPictures:
    """An array of pictures, bytes (N, h, w), (N, h, w, channels) or (N, channels, h, w), opened one by one."""

    array: Named
    channels_first: bool
    source: str

    def name(self, row: int) -> str:
        return f"row {row} of {self.source}"

    def picture(self, row: int, mode: str, upright: bool) -> Any:
        from PIL import Image

        block = self.array.read(row, row + 1)[0]
        block = np.moveaxis(block, 0, -1) if self.channels_first else block  # (height, width) or (height, width, C)
        block = block[:, :, 0] if block.shape[2:] == (1,) else block  # (height, width) of a single channel
        return Image.fromarray(np.ascontiguousarray(block)).convert(mode)


Opened = Pictures | ArrayPictures
"""Pictures that can be opened one by one, each as a Pillow picture."""


@dataclass(frozen=True)
class Prepared:
    """Pictures as floats (N, channels, height, width), prepared when their rows are read."""

    pictures: Opened
    how: PicturePreparation
    shape: tuple[int, ...]

    dtype = np.dtype(np.float32)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        stop = min(stop, self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), np.float32)
        for i in range(len(out)):
            row = one(self.pictures, start + i, self.how)
            if row.shape != out.shape[1:]:
                name, first = self.pictures.name(start + i), "x".join(map(str, self.shape[1:]))
                problem = f"{name} becomes {'x'.join(map(str, row.shape))}, the first picture {first}"
                raise InputError(problem, "bring them to one size, such as --resize 256 --crop 224")
            out[i] = row
        return out


def one(pictures: Opened, row: int, library: PicturePreparation) -> NDArray[np.float32]:
    """Prepare one picture with the library.

    Raises:
        InputError: the library fails, or does not return an image.
    """
    fix = "prepare the pictures yourself: pass floating-point arrays (N, channels, height, width)"
    with refusing(FAILURES, lambda e: f"{pictures.name(row)}: {library.name} fails ({str(e)[:120]})", fix):
        image = np.asarray(library.make(pictures.picture(row, library.mode, library.upright)), np.float32)
    if image.ndim != 3:
        raise InputError(f"{library.name} makes arrays of shape {image.shape} of a picture, not of images", fix)
    return image


@dataclass(frozen=True)
class Tokens:
    """Token sequences of different lengths, padded when they are read: (N, longest) int64."""

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
AT_ONCE = 1000  # texts of one call of the tokenizer


def tokens(
    tokenizer: TextPreparation, texts: Sequence[str], second: Sequence[str] | None, source: str
) -> tuple[dict[str, Named], list[str]]:
    """Tokenize texts to the arrays that the model takes by name; also return notes.

    Texts that are too long for the model are truncated by the library.

    Raises:
        InputError: the tokenizer fails or knows no word of any text, or texts differ in length and the model has no
            mask.
    """
    parts: dict[str, list[NDArray[np.int32]]] = {}
    lengths: list[int] = []
    long = 0
    with refusing(FAILURES, lambda e: f"{tokenizer.name} fails on {source} ({str(e)[:120]})", "check its files"):
        for start in range(0, len(texts), AT_ONCE):
            rows = slice(start, start + AT_ONCE)
            block, other = texts[rows], None if second is None else second[rows]
            encoded = {name: list(values) for name, values in tokenizer.encode(block, other, False).items()}
            longest = tokenizer.longest or max(map(len, encoded["input_ids"]))
            over = [i for i, ids in enumerate(encoded["input_ids"]) if len(ids) > longest]
            if over:
                long += len(over)
                first, others = [block[i] for i in over], None if other is None else [other[i] for i in over]
                for name, values in tokenizer.encode(first, others, True).items():
                    for i, ids in zip(over, values):
                        encoded[name][i] = ids
            lengths += [len(ids) for ids in encoded["input_ids"]]
            for name, values in encoded.items():
                parts.setdefault(name, []).append(np.fromiter((v for ids in values for v in ids), np.int32))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    if not min(lengths):
        problem = f"{source}: {tokenizer.name} finds no token in row {lengths.index(0)}"
        raise InputError(problem, "leave out rows without text")
    used = np.unique(np.concatenate(parts["input_ids"]))
    if tokenizer.empty.issuperset(used.tolist()):
        problem = f"{tokenizer.name} knows no word of the {len(texts):,} texts of {source}"
        raise InputError(f"{problem}: its vocabulary is missing, or another", VOCABULARY)
    if "attention_mask" not in parts and len(set(lengths)) > 1:
        problem = f"the model takes no attention mask, and the texts of {source} differ in length"
        raise InputError(problem, "pass input_ids of rows of one length, as arrays")
    flat = {name: np.concatenate(values) for name, values in parts.items()}
    fill = {**tokenizer.pad, "input_ids": tokenizer.settle(used, flat["input_ids"][starts[1:] - 1])}
    notes = [f"texts as tokens of {tokenizer.name}, {min(lengths)} to {max(lengths)} in a row"]
    if long:
        most = f"the {tokenizer.longest} tokens of the model"
        notes.append(f"{long:,} of {len(texts):,} texts have more than {most}: cut off")
    return {name: Tokens(values, starts, fill.get(name, 0), tokenizer.left) for name, values in flat.items()}, notes
