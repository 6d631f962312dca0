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

# Resize pictures as image processors do: with Pillow, then crop the centre.

RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # in Pillow's order
LARGEST = 10_000  # pixels of a side


@dataclass(frozen=True)
class Resize:
    """Resizing and cropping of a picture of bytes, (h, w) or (h, w, channels).

    Attributes:
        size: `(s,)`: the shorter side becomes s, the longer int(s long / short); `(h, w)`: exactly that; (): unchanged.
        crop: the centre (h, w) that is then kept, padded with zeros if the picture is smaller; (): no crop.
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
            size = "x".join(map(str, self.size)) if len(self.size) == 2 else f"{self.size[0]} (shorter side)"
            steps.append(f"resized to {size}, {self.resample}")
        if self.crop:
            steps.append("the middle {}x{}".format(*self.crop))
        return ", ".join(steps)

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the result for a picture of this size."""
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

            flat = picture[:, :, 0] if picture.shape[2:] == (1,) else picture  # (height, width) or (height, width, C)
            resampled = Image.fromarray(flat).resize((width, height), RESAMPLE.index(self.resample))
            picture = np.asarray(resampled).reshape(height, width, *picture.shape[2:])  # with the 1 channel again
        if not self.crop:
            return picture
        height, width = self.crop
        missing = [max(0, want - have) for want, have in zip(self.crop, picture.shape)]
        if any(missing):
            around = [(m - m // 2, m // 2) for m in missing]
            picture = np.pad(picture, [*around, *[(0, 0)] * (picture.ndim - 2)])
        margins = [(have - want) / 2 for have, want in zip(picture.shape, self.crop)]
        top, left = (round(r) if self.middle == "round" else math.floor(r) for r in margins)
        return picture[top : top + height, left : left + width]


AS_IT_IS = Resize()


def resized(array: Named, resize: Resize, channels_first: bool) -> Converted:
    """Wrap an array of pictures of bytes, (N, h, w[, channels]) or (N, channels, h, w), to be resized when read."""
    _, *shape = array.shape
    height_axis = 1 if channels_first else 0
    tail = (*shape[:height_axis], *resize.shape(shape[height_axis], shape[height_axis + 1]), *shape[height_axis + 2 :])

    def read(block: NDArray[np.uint8]) -> NDArray[np.uint8]:
        out = np.empty((len(block), *tail), np.uint8)
        for i, picture in enumerate(np.moveaxis(block, 1, -1) if channels_first else block):  # (height, width, ...)
            small = resize(np.ascontiguousarray(picture))
            out[i] = np.moveaxis(small, -1, 0) if channels_first else small  # (channels, height, width)
        return out

    return Converted(array, read, tail, np.dtype(np.uint8))


def needs_pillow(subject: str) -> None:
    """Check that Pillow is installed.

    Raises:
        InputError: it is not.
    """
    with refusing(ImportError, f"{subject} are to be resized, and Pillow is not installed", "pip install pillow"):
        import PIL  # noqa: F401


def size_option(text: str) -> Resize:
    """Parse a size: `224` (shorter side 224, then the centre 224x224), `256/224`, `224x192` (exactly) or `none`.

    Raises:
        UsageError: it is none of these.
    """
    fix = "224, 256/224 (shorter side, then middle), 224x192 or none"
    if re.fullmatch(r"\s*\d+/\d+\s*", text, re.ASCII):
        (short,), (middle,) = (_resized_numbers(part, "size", fix) for part in text.split("/"))
        return Resize(size=(short,), crop=(middle, middle))
    size = _resized_numbers(text, "size", fix)
    return Resize(size=size, crop=2 * size if len(size) == 1 else ())


def sizing(options: DatasetOptions) -> list[str]:
    """List the options about the size of pictures that were given."""
    return [name for name in ("size", "resize", "crop", "interpolation") if getattr(options, name) is not None]


def sized(options: DatasetOptions, base: Resize) -> Resize:
    """Override the resizing `base` of a checkpoint by the options of the user.

    Args:
        options: size: see `size_option`.  resize: `256` (shorter side), `224x192` or `none`.  crop: of the centre,
            likewise.  interpolation: one of `RESAMPLE`.

    Raises:
        UsageError: an option is not a size or an interpolation, or options contradict each other.
    """
    if options.size is not None and (options.resize is not None or options.crop is not None):
        raise UsageError("--size together with --resize or --crop", "leave --size out: it stands for both")
    resize = base
    if options.size is not None:
        resize = replace(size_option(options.size), resample=base.resample, middle=base.middle)
    if options.resize is not None:
        resize = replace(resize, size=_resized_numbers(options.resize, "resize", "256 (shorter side), 224x192 or none"))
    if options.crop is not None:
        crop = _resized_numbers(options.crop, "crop", "224, 224x192 or none")
        resize = replace(resize, crop=2 * crop if len(crop) == 1 else crop)
    if options.interpolation is not None:
        if options.interpolation not in RESAMPLE:
            fix = f"choose from: {', '.join(RESAMPLE)}"
            raise UsageError(f"--interpolation {options.interpolation[:20]} is not a choice", fix)
        resize = replace(resize, resample=options.interpolation)
    return resize


def _resized_numbers(text: str, option: str, fix: str) -> tuple[int, ...]:
    """Parse `224` or `224x192`; () for `none`."""
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text.strip().lower())
    numbers = tuple(int(n) for n in match.groups() if n) if match else ()
    if text.strip().lower() != "none" and not (numbers and all(0 < n <= LARGEST for n in numbers)):
        raise UsageError(f"--{option} {text[:40]} is no size", f"pass {fix}")
    return numbers


# Preprocessing: how stored rows become model inputs.


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of stored rows: channels first, times `scale`, minus `mean`, divided by `std`.

    Attributes:
        layout: `NHWC` or `NCHW` images, `flat` rows (anything is flattened), or "" (unchanged).
        scale: factor on the stored numbers (1/255 for bytes).
        mean, std: per channel (per feature for flat rows), or of length 1; empty for none.
        resize: of pictures of bytes, before the other steps.
    """

    layout: str = ""
    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    resize: Resize = AS_IT_IS

    def as_dict(self) -> dict[str, Any]:
        """The `preprocess` object of a checkpoint's metadata."""
        fields = {"layout": self.layout, "scale": self.scale, "mean": list(self.mean), "std": list(self.std)}
        if self.resize:
            fields |= {"size": list(self.resize.size), "crop": list(self.resize.crop)}
            fields |= {"resample": self.resize.resample, "middle": self.resize.middle}
        return fields

    def __str__(self) -> str:
        """`resized to 224x224, bilinear; times 1/255; mean 0.5; std 0.5`."""
        factor = {1.0: "", 1 / 255: "times 1/255"}.get(self.scale, f"times {self.scale:.6g}")
        numbers = [f"{name} {', '.join(f'{v:.6g}' for v in values)}" for name, values in
                   (("mean", self.mean), ("std", self.std)) if values]  # fmt: skip
        return "; ".join(filter(None, (str(self.resize), factor, *numbers)))

    def __call__(self, x: Tensor) -> Tensor:
        """Preprocess rows (n, ...) of a float dtype."""
        if self.layout == "flat":
            x = x.flatten(1)
        elif self.layout and x.ndim == 3:
            x = x.unsqueeze(1)
        elif self.layout == "NHWC":
            x = x.permute(0, 3, 1, 2).contiguous()  # (n, channels, height, width)
        if self.scale != 1.0:
            x = x * self.scale
        for numbers, apply in ((self.mean, torch.sub), (self.std, torch.div)):
            if numbers:
                x = apply(x, torch.tensor(numbers, dtype=x.dtype, device=x.device).view(-1, *[1] * (x.ndim - 2)))
        return x


def numbers(value: str | float | Sequence[float] | None, option: str) -> tuple[float, ...]:
    """Parse `0.5,0.5,0.5`, a number or a sequence to a tuple.

    Raises:
        UsageError: it is not a list of finite numbers.
    """
    if value is None:
        return ()
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, Sequence) else (value,)
    try:
        values = tuple(real(part) if isinstance(part, str) else float(part) for part in parts)
    except (ValueError, OverflowError):
        values = (math.nan,)
    if not all(map(math.isfinite, values)):
        raise UsageError(f"--{option} {value} is not a list of numbers", f"pass --{option} 0.5,0.5,0.5")
    return values


def for_array(
    shape: tuple[int, ...], kind: np.dtype[Any], stored: Mapping[str, Any] | None, options: DatasetOptions, source: str
) -> tuple[Preprocess, list[str]]:
    """Choose the preprocessing of an array of this shape (N, ...) and dtype: by options, the checkpoint, or the dtype.

    That of the checkpoint may be for bytes `only`, and name its `source`, such as preprocessor_config.json.

    Raises:
        UsageError: an option is invalid.
        InputError: the preprocessing does not fit the array.
    """
    stored = stored or {}
    notes: list[str] = []
    chosen = options.layout or str(stored.get("layout") or "")
    if chosen.upper() in ("NHWC", "NCHW"):
        chosen = chosen.upper()
    elif chosen not in ("", "flat"):
        raise UsageError(f"unknown layout '{chosen}'", "choose from: NHWC, NCHW, flat")
    images = kind == np.uint8 and len(shape) in (3, 4)
    if stored.get("only") == "bytes" and not images:
        if kind.kind == "f" and len(shape) == 4:
            notes.append(f"floating-point pictures are assumed to be prepared: {stored['source']} is for bytes")
        stored = {}
    if images and not chosen:
        chosen = guess_layout(shape, source)
        notes.append(f"images read as {chosen}")
    scale = float(stored["scale"]) if stored.get("scale") is not None else 1 / 255 if images else 1.0
    means = numbers(options.mean if options.mean is not None else stored.get("mean"), "mean")
    stds = numbers(options.std if options.std is not None else stored.get("std"), "std")
    if images and not means and "mean" not in stored:
        notes.append("bytes were scaled to [0, 1] only; pass --mean and --std if the model was trained with them")
    if images and scale <= 1 / 255 and any(abs(m) > 1 for m in means):
        problem = f"--mean {','.join(f'{m:g}' for m in means)} is outside [0, 1], to which bytes are scaled"
        raise UsageError(problem, "divide --mean and --std by 255")
    if any(s <= 0 for s in stds):
        raise UsageError(f"--std {','.join(map(str, stds))} has a value that is not positive", "pass positive numbers")
    resize = _resize(stored, options, images, source)
    width = int(np.prod(shape[1:])) if chosen == "flat" else _channels(shape, chosen)
    for name, values in (("mean", means), ("std", stds)):
        if len(values) not in (0, 1, width):
            axis = "features" if chosen == "flat" else "channels"
            raise InputError(f"{source} has {width} {axis}, --{name} has {len(values)} numbers", f"pass {width} or 1")
    if chosen in ("NHWC", "NCHW") and len(shape) not in (3, 4):
        raise InputError(f"{source} holds rows of shape {shape[1:]}, not {chosen} images", "leave --layout out")
    preprocess = Preprocess(chosen, scale, means, stds, resize)
    if images and stored.get("source"):
        notes.append(f"pictures as in {stored['source']} (options come before it): {preprocess}")
    return preprocess, notes


def _resize(stored: Mapping[str, Any], options: DatasetOptions, images: bool, source: str) -> Resize:
    """Choose the resizing from options or the checkpoint; only pictures of bytes are resized."""
    if (asked := sizing(options)) and not images:
        raise UsageError(f"--{asked[0]} is for pictures of bytes, {source} holds others", "leave it out")
    if not images:
        return AS_IT_IS
    if stored.get("not_done"):
        fix = "prepare the pictures yourself: pass floating-point arrays (N, channels, height, width)"
        raise InputError(f"{stored['source']} asks for {', '.join(stored['not_done'])}, which calib does not do", fix)
    resample, middle = str(stored.get("resample") or "bilinear"), str(stored.get("middle") or "floor")
    if resample not in RESAMPLE:
        raise InputError(f"{source}: resample '{resample[:20]}' is unknown", f"one of {', '.join(RESAMPLE)}")
    sizes = {} if options.size is not None else stored
    size, crop = (tuple(int(n) for n in sizes.get(key) or ()) for key in ("size", "crop"))
    if len(size) > 2 or len(crop) not in (0, 2) or not all(0 < n <= LARGEST for n in (*size, *crop)):
        raise InputError(f"{source}: pictures to size {list(size)}, crop {list(crop)}", "pass --size")
    return sized(options, Resize(size, crop, resample, middle))


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


# The data set: labels are in memory, inputs are read and preprocessed batch by batch.

Inputs = Tensor | dict[str, Tensor]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Rows of inputs with labels.

    Attributes:
        inputs: stored arrays by name; one named "" is passed to the model by position, others by name.
        labels: (N,) int64, or of every position (N, T) or (N, H, W), IGNORED where one is not counted.
        ids: (N,) strings or integers, or None.  classes: names, or None.
        preprocess: applied to the first input, unless it holds tokens.
        source: as the user named it.  sha256: of the file (for a folder, of its listing).
        notes: what was recognised, one sentence each.
        rows: indices into the stored arrays, (N,).  integral: integers stay integers (tokens, masks).
        words: what tokens stand for, if known.  published: name of a published data set in its own files, or "".
        prepared: facts for a result about the library that prepares the rows; {} if `preprocess` does it.
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
    published: str = ""
    prepared: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def inside(self) -> tuple[int, ...]:
        """Shape of the positions of a row that have labels of their own; () where a row has one label."""
        return self.labels.shape[1:]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one row as the model gets it (of the first input, if there are several)."""
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
        """Read rows of this data set, preprocess them, and move them to a device.

        Returns:
            inputs: a tensor, or tensors by name; bytes and floats in `dtype`, tokens int64, masks as stored.
            labels: (n,) int64.
        """
        index = self._index(rows)
        stored = self.rows[index]
        labels = torch.from_numpy(self.labels[index]).to(device)
        tensors = {
            name: self._tensor(gather(array, stored), number == 0, device, dtype)
            for number, (name, array) in enumerate(self.inputs.items())
        }
        return tensors.get("", tensors), labels

    def _index(self, rows: Sequence[int] | NDArray[Any] | slice) -> Index:
        """Return the places of rows; those of a slice take no longer where there are many others."""
        return np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows, np.int64)

    def _tensor(self, array: NDArray[Any], first: bool, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        kind = array.dtype.kind
        if kind == "b" or (self.integral and kind in "ui" and array.dtype != np.uint8):
            return torch.from_numpy(array if kind == "b" else array.astype(np.int64)).to(device)
        if kind in "ui" and array.dtype != np.uint8:
            array = array.astype(np.float64)
        # bytes are copied to the device before they are converted: a quarter of the traffic
        tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False)).to(device)
        if not first and kind in "ui":
            return tensor.long()
        return self.preprocess(tensor.to(dtype)) if first else tensor.to(dtype)

    def select(self, rows: Sequence[int] | NDArray[Any] | slice) -> Dataset:
        """Return the data set of these rows, in this order."""
        index = self._index(rows)
        ids = None if self.ids is None else self.ids[index]
        return replace(self, labels=self.labels[index], rows=self.rows[index], ids=ids, notes=list(self.notes))


def used_columns(inputs: Inputs) -> slice | None:
    """Return the columns of tokens from the first to the last that is not masked in every row; None for all."""
    mask = inputs.get("attention_mask") if isinstance(inputs, dict) else None
    if mask is None or mask.ndim != 2:
        return None
    used = (mask != 0).any(0).nonzero()
    return slice(int(used[0]), int(used[-1]) + 1) if len(used) else None


def tight(inputs: Inputs) -> Inputs:
    """Drop the columns of tokens, at either end, that are masked in every row, which most models do not look at."""
    columns = used_columns(inputs)
    if columns is None or isinstance(inputs, Tensor):
        return inputs
    mask = inputs["attention_mask"]
    return {name: t[:, columns] if t.shape == mask.shape else t for name, t in inputs.items()}


def in_order(data: Dataset, classes: Sequence[str] | None) -> Dataset:
    """Renumber the labels in the order of `classes`, if both name their classes, and take over these names.

    Names are compared without case if that still tells the classes apart. Names that are numbers, or `LABEL_0`, ... as
    in models of Hugging Face, are the numbers of the classes unless `classes` has such a name.

    Raises:
        InputError: a class of the data set is not among `classes`.
    """
    numbers = _numbers(data.classes or (), classes)
    if numbers is not None and numbers != list(range(len(numbers))):
        note = f"names of classes, such as '{(data.classes or [''])[-1]}', are their numbers"
        labels = _renumbered(data.labels, np.array(numbers, np.int64))
        return in_order(replace(data, labels=labels, classes=None, notes=[*data.notes, note]), classes)
    if numbers is not None:
        data = replace(data, classes=None)
    if classes is None or list(classes) == data.classes:
        return data
    if data.classes is None:
        return replace(data, classes=list(classes))
    index = {name: i for i, name in enumerate(classes)}
    if not set(data.classes) <= set(index):
        folded = {name.strip().casefold(): i for i, name in enumerate(classes)}
        if len(folded) == len(classes) == len(index):
            index = {n: folded[n.strip().casefold()] for n in data.classes if n.strip().casefold() in folded}
    unknown = [name for name in data.classes if name not in index]
    if unknown:
        problem = f"{data.source} has the class '{unknown[0]}', which the model does not know"
        near = nearest(unknown[0], classes)
        fix = f"did you mean '{near}'?" if near else f"the model's are {', '.join(classes[:8])}"[:200]
        raise InputError(problem, f"{fix}; name the classes so, or by their numbers")
    order = np.array([index[name] for name in data.classes], np.int64)
    note = "classes were reordered by name, as in the checkpoint"
    return replace(data, labels=_renumbered(data.labels, order), classes=list(classes), notes=[*data.notes, note])


def _renumbered(labels: Index, order: Index) -> Index:
    """Return the new numbers of classes, `order[label]`; positions that are not counted keep theirs, below 0."""
    return np.where(labels < 0, labels, order[np.maximum(labels, 0)])


def _numbers(names: Sequence[str], classes: Sequence[str] | None) -> list[int] | None:
    """Read class names as numbers; None if they are names. Folders with numbers as names keep their alphabetical order,
    as in torchvision, unless the model names its classes."""
    matches = [re.fullmatch(r"(LABEL_)?(\d{1,9})", name) for name in names]
    if not matches or not all(matches) or (classes is not None and set(names) & set(classes)):
        return None
    numbers = [int(one[2]) for one in matches if one]
    labelled = all(one[1] for one in matches if one)
    if len(set(numbers)) < len(numbers) or (max(numbers) >= len(classes) if classes is not None else not labelled):
        return None
    return numbers
