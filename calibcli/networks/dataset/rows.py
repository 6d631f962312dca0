"""The rows of a data set, read and preprocessed batch by batch as the model takes them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibcli.core.errors import InputError, UsageError, nearest, refusing
from calibcli.core.options import real
from calibcli.scores.files.arrays import Converted
from calibcli.scores.predictions import Named, gather
from calibcli.scores.reading_options import DatasetOptions

# Pictures brought to the size that a model takes, as image processors do it: resized by Pillow, then cropped.

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
        (short,), (middle,) = (_resized_numbers(part, "size", fix) for part in text.split("/"))
        return Resize(size=(short,), crop=(middle, middle))
    size = _resized_numbers(text, "size", fix)
    return Resize(size=size, crop=2 * size if len(size) == 1 else ())


def sizing(said: DatasetOptions) -> list[str]:
    """The options that were given of how pictures come to their size."""
    return [name for name in ("size", "resize", "crop", "interpolation") if getattr(said, name) is not None]


def sized(said: DatasetOptions, base: Resize) -> Resize:
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
        made = replace(made, size=_resized_numbers(said.resize, "resize", "256 (shorter side), 224x192 or none"))
    if said.crop is not None:
        crop = _resized_numbers(said.crop, "crop", "224, 224x192 or none")
        made = replace(made, crop=2 * crop if len(crop) == 1 else crop)
    if said.interpolation is not None:
        if said.interpolation not in RESAMPLE:
            fix = f"choose from: {', '.join(RESAMPLE)}"
            raise UsageError(f"--interpolation {said.interpolation[:20]} is not a choice", fix)
        made = replace(made, resample=said.interpolation)
    return made


def _resized_numbers(text: str, option: str, fix: str) -> tuple[int, ...]:
    """`224` or `224x192`; none of `none`."""
    found = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text.strip().lower())
    numbers = tuple(int(n) for n in found.groups() if n) if found else ()
    if text.strip().lower() != "none" and not (numbers and all(0 < n <= LARGEST for n in numbers)):
        raise UsageError(f"--{option} {text[:40]} is no size", f"pass {fix}")
    return numbers


# How stored rows become model inputs.


@dataclass(frozen=True)
class Preprocess:
    """How stored rows become model inputs: to channels first, times `scale`, minus `mean`, over `std`.

    Attributes:
        layout: `NHWC` or `NCHW` images, `flat` rows (anything is flattened), or "" (as they are).
        scale: factor on the stored numbers (1/255 for bytes).
        mean, std: per channel (per feature for flat rows), or of length 1; empty for none.
        resize: of pictures of bytes, before all that.
    """

    layout: str = ""
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    resize: Resize = AS_IT_IS

    def as_dict(self) -> dict[str, Any]:
        """The `preprocess` object of a checkpoint's metadata."""
        found = {"layout": self.layout, "scale": self.scale, "mean": list(self.mean), "std": list(self.std)}
        if self.resize:
            found |= {"size": list(self.resize.size), "crop": list(self.resize.crop)}
            found |= {"resample": self.resize.resample, "middle": self.resize.middle}
        return found

    def __str__(self) -> str:
        """`resized to 224x224, bilinear; times 1/255; mean 0.5; std 0.5`."""
        factor = {1.0: "", 1 / 255: "times 1/255"}.get(self.scale, f"times {self.scale:.6g}")
        numbers = [f"{name} {', '.join(f'{v:.6g}' for v in values)}" for name, values in
                   (("mean", self.mean), ("std", self.std)) if values]  # fmt: skip
        return "; ".join(filter(None, (str(self.resize), factor, *numbers)))

    def __call__(self, x: Tensor) -> Tensor:
        """(n, ...) of a float dtype, as the model takes it."""
        if self.layout == "flat":
            x = x.flatten(1)
        elif self.layout and x.ndim == 3:
            x = x.unsqueeze(1)
        elif self.layout == "NHWC":
            x = x.permute(0, 3, 1, 2).contiguous()
        if self.scale != 1.0:
            x = x * self.scale
        for numbers, apply in ((self.mean, torch.sub), (self.std, torch.div)):
            if numbers:
                x = apply(x, torch.tensor(numbers, dtype=x.dtype, device=x.device).view(-1, *[1] * (x.ndim - 2)))
        return x


def numbers(value: str | float | Sequence[float] | None, option: str) -> tuple[float, ...]:
    """`0.5,0.5,0.5`, a number or a sequence as a tuple.

    Raises:
        UsageError: not numbers.
    """
    if value is None:
        return ()
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else (value,)
    try:
        found = tuple(real(part) if isinstance(part, str) else float(part) for part in parts)
    except (ValueError, OverflowError):
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise UsageError(f"--{option} {value} is not a list of numbers", f"pass --{option} 0.5,0.5,0.5")
    return found


def for_array(
    shape: tuple[int, ...], kind: np.dtype[Any], given: Mapping[str, Any] | None, said: DatasetOptions, source: str
) -> tuple[Preprocess, list[str]]:
    """The preprocessing of an array of this shape (N, ...) and dtype: options, else the checkpoint's, else by type.

    The checkpoint's may be for bytes `only`, and have a `source` of its own, such as preprocessor_config.json.

    Raises:
        UsageError: an option that is wrong in itself.
        InputError: it does not fit the array.
    """
    given = given or {}
    notes: list[str] = []
    chosen = said.layout or str(given.get("layout") or "")
    if chosen.upper() in ("NHWC", "NCHW"):
        chosen = chosen.upper()
    elif chosen not in ("", "flat"):
        raise UsageError(f"unknown layout '{chosen}'", "choose from: NHWC, NCHW, flat")
    images = kind == np.uint8 and len(shape) in (3, 4)
    if given.get("only") == "bytes" and not images:
        if kind.kind == "f" and len(shape) == 4:
            notes.append(f"floating-point pictures are taken as prepared: {given['source']} is for bytes")
        given = {}
    if images and not chosen:
        chosen = guess_layout(shape, source)
        notes.append(f"images read as {chosen}")
    scale = float(given["scale"]) if given.get("scale") is not None else 1 / 255 if images else 1.0
    means = numbers(said.mean if said.mean is not None else given.get("mean"), "mean")
    stds = numbers(said.std if said.std is not None else given.get("std"), "std")
    if images and not means and "mean" not in given:
        notes.append("bytes were scaled to [0, 1] only; pass --mean and --std if the model was trained with them")
    if images and scale <= 1 / 255 and any(abs(m) > 1 for m in means):
        problem = f"--mean {','.join(f'{m:g}' for m in means)} is outside [0, 1], to which bytes are scaled"
        raise UsageError(problem, "divide --mean and --std by 255")
    if any(s <= 0 for s in stds):
        raise UsageError(f"--std {','.join(map(str, stds))} has a value that is not positive", "pass positive numbers")
    resize = _resize(given, said, images, source)
    width = int(np.prod(shape[1:])) if chosen == "flat" else _channels(shape, chosen)
    for name, values in (("mean", means), ("std", stds)):
        if len(values) not in (0, 1, width):
            what = "features" if chosen == "flat" else "channels"
            raise InputError(f"{source} has {width} {what}, --{name} has {len(values)} numbers", f"pass {width} or 1")
    if chosen in ("NHWC", "NCHW") and len(shape) not in (3, 4):
        raise InputError(f"{source} holds rows of shape {shape[1:]}, not {chosen} images", "leave --layout out")
    made = Preprocess(chosen, scale, means, stds, resize)
    if images and given.get("source"):
        notes.append(f"pictures as in {given['source']} (options come before it): {made}")
    return made, notes


def _resize(given: Mapping[str, Any], said: DatasetOptions, images: bool, source: str) -> Resize:
    """Of the options, else of the checkpoint; nothing for what are no pictures of bytes."""
    if (asked := sizing(said)) and not images:
        raise UsageError(f"--{asked[0]} is for pictures of bytes, {source} holds others", "leave it out")
    if not images:
        return AS_IT_IS
    if given.get("not_done"):
        raise InputError(
            f"{given['source']} asks for {', '.join(given['not_done'])}, which calib does not do",
            "prepare the pictures yourself: pass floating-point arrays (N, channels, height, width)",
        )
    resample, middle = str(given.get("resample") or "bilinear"), str(given.get("middle") or "floor")
    if resample not in RESAMPLE:
        raise InputError(f"{source}: resample '{resample[:20]}' is unknown", f"one of {', '.join(RESAMPLE)}")
    about = {} if said.size is not None else given
    size, crop = (tuple(int(n) for n in about.get(key) or ()) for key in ("size", "crop"))
    if len(size) > 2 or len(crop) not in (0, 2) or not all(0 < n <= LARGEST for n in (*size, *crop)):
        raise InputError(f"{source}: pictures to size {list(size)}, crop {list(crop)}", "pass --size")
    return sized(said, Resize(size, crop, resample, middle))


def _channels(shape: tuple[int, ...], layout: str) -> int:
    if len(shape) == 3 and layout:
        return 1
    return shape[3] if layout == "NHWC" and len(shape) == 4 else shape[1] if len(shape) > 1 else 1


def guess_layout(shape: tuple[int, ...], source: str) -> str:
    if len(shape) == 3:
        return "NCHW"
    first, last = shape[1] in (1, 3, 4), shape[3] in (1, 3, 4)
    if first == last:
        raise InputError(f"{source}: images of shape {shape[1:]} could be NHWC or NCHW", "pass --layout NHWC or NCHW")
    return "NHWC" if last else "NCHW"


# The data set itself: labels in memory, inputs read and preprocessed batch by batch.


Inputs = Tensor | dict[str, Tensor]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Rows of inputs with labels.

    Attributes:
        inputs: stored arrays by name; one named "" is passed to the model by position, others by name.
        labels: (N,) int64.  ids: (N,) strings or integers, or None.  classes: names, or None.
        preprocess: applied to the first input, unless it holds tokens.
        source: what was asked for.  sha256: of the file (of a folder: of its listing).
        notes: what was recognised, one sentence each.
        rows: indices into the stored arrays, (N,).  integral: integers stay integers (tokens, masks).
        words: what tokens stand for, where that is known.
        prepared: what a library makes of the rows before the model gets them, for a result; {}: `preprocess` says it.
    """

    inputs: Mapping[str, Named]
    labels: Index
    preprocess: Preprocess
    source: str
    sha256: str
    rows: Index
    ids: NDArray[Any] | None = None
    classes: list[str] | None = None
    notes: list[str] = field(default_factory=list)
    integral: bool = False
    words: Sequence[str] = ()
    prepared: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row as the model gets it (of the first input, where there are several)."""
        if not len(self):
            return ()
        inputs, _ = self.batch([0])
        return tuple((inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))).shape[1:])

    def batch(
        self,
        rows: Sequence[int] | NDArray[Any] | slice,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> tuple[Inputs, Tensor]:
        """Rows of this data set, preprocessed, on a device.

        Returns:
            inputs: a tensor, or tensors by name; bytes and floats in `dtype`, tokens int64, masks as stored.
            labels: (n,) int64.
        """
        index = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows, np.int64)
        stored = self.rows[index]
        labels = torch.from_numpy(self.labels[index]).to(device)
        tensors = {
            name: self._tensor(gather(array, stored), number == 0, device, dtype)
            for number, (name, array) in enumerate(self.inputs.items())
        }
        return tensors.get("", tensors), labels

    def _tensor(self, array: NDArray[Any], first: bool, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        kind = array.dtype.kind
        if kind == "b" or (self.integral and kind in "ui" and array.dtype != np.uint8):
            return torch.from_numpy(array if kind == "b" else array.astype(np.int64)).to(device)
        if kind in "ui" and array.dtype != np.uint8:
            array = array.astype(np.float64)
        # bytes travel to the device as bytes
        found = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False)).to(device)
        if not first and kind in "ui":
            return found.long()
        return self.preprocess(found.to(dtype)) if first else found.to(dtype)

    def select(self, rows: Sequence[int] | NDArray[Any] | slice) -> Dataset:
        """The data set of these rows, in this order."""
        index = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows, np.int64)
        ids = None if self.ids is None else self.ids[index]
        return replace(self, labels=self.labels[index], rows=self.rows[index], ids=ids, notes=list(self.notes))


def tight(inputs: Inputs) -> Inputs:
    """Named tokens without the columns that no row's mask lets through, at either end: what those hold is not seen."""
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    if isinstance(inputs, Tensor) or mask is None or mask.ndim != 2:
        return inputs
    used = (mask != 0).any(0).nonzero()
    if not len(used):
        return inputs
    columns = slice(int(used[0]), int(used[-1]) + 1)
    return {name: t[:, columns] if t.shape == mask.shape else t for name, t in inputs.items()}


def in_order(data: Dataset, classes: Sequence[str] | None) -> Dataset:
    """The data set with its labels numbered as in `classes`, where both name their classes; the names are taken over.

    Names are the same in any case of their letters where that tells the classes apart. Numbers that are nobody's name
    are those of the classes; so are `LABEL_0`, ..., with which Hugging Face's models number theirs.

    Raises:
        InputError: a class of the data set is not among them.
    """
    numbers = _numbers(data.classes or (), classes)
    if numbers is not None and numbers != list(range(len(numbers))):
        note = f"names of classes, such as '{(data.classes or [''])[-1]}', are their numbers"
        made = replace(data, labels=np.array(numbers, np.int64)[data.labels], classes=None, notes=[*data.notes, note])
        return in_order(made, classes)
    if numbers is not None:
        data = replace(data, classes=None)
    if classes is None or list(classes) == data.classes:
        return data
    if data.classes is None:
        return replace(data, classes=list(classes))
    known = {name: i for i, name in enumerate(classes)}
    if not set(data.classes) <= set(known):
        folded = {name.strip().casefold(): i for i, name in enumerate(classes)}
        if len(folded) == len(classes) == len(known):
            known = {n: folded[n.strip().casefold()] for n in data.classes if n.strip().casefold() in folded}
    unknown = [name for name in data.classes if name not in known]
    if unknown:
        problem = f"{data.source} has the class '{unknown[0]}', which the model does not know"
        near = nearest(unknown[0], classes)
        fix = f"did you mean '{near}'?" if near else f"the model's are {', '.join(classes[:8])}"[:200]
        raise InputError(problem, f"{fix}; name the classes so, or by their numbers")
    order = np.array([known[name] for name in data.classes], np.int64)
    note = "classes were put in the order of the checkpoint, by name"
    return replace(data, labels=order[data.labels], classes=list(classes), notes=[*data.notes, note])


def _numbers(names: Sequence[str], classes: Sequence[str] | None) -> list[int] | None:
    """The numbers that names of classes are, None where they are names. In a folder of folders that are numbers, the
    order is that of the alphabet, as torchvision has it, unless the model says what its classes are called."""
    found = [re.fullmatch(r"(LABEL_)?(\d{1,9})", name) for name in names]
    if not found or not all(found) or (classes is not None and set(names) & set(classes)):
        return None
    numbers = [int(one[2]) for one in found if one]
    labelled = all(one[1] for one in found if one)
    if len(set(numbers)) < len(numbers) or (max(numbers) >= len(classes) if classes is not None else not labelled):
        return None
    return numbers
