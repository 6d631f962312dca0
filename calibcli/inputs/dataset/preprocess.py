"""How stored rows become model inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibcli.errors import InputError, UsageError
from calibcli.inputs.dataset.resize import AS_IT_IS, LARGEST, RESAMPLE, Resize, sized, sizing
from calibcli.inputs.opening import Rows
from calibcli.spec import real


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
    shape: tuple[int, ...], kind: np.dtype[Any], given: Mapping[str, Any] | None, said: Rows, source: str
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


def _resize(given: Mapping[str, Any], said: Rows, images: bool, source: str) -> Resize:
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
