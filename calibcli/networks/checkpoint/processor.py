"""How a model's folder says that pictures become its inputs: Hugging Face's image processors and timm's pretrained_cfg.

What is read is turned into the `preprocess` of our own metadata, with `only = "bytes"` (floating-point arrays are taken
to be prepared) and `source`. What an image processor asks for and we do not do is listed, and refused on pictures.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from calibcli.core.errors import InputError, refusing
from calibcli.networks.dataset import Preprocess
from calibcli.networks.dataset.library_preparation import Preparation
from calibcli.networks.dataset.rows import RESAMPLE, Resize
from calibcli.networks.user_code import FAILURES

FILES = ("preprocessor_config.json", "processor_config.json")
SHORTEST = ("CLIP", "ConvNext", "Bit", "MobileNet", "MobileViT", "PoolFormer", "Levit", "EfficientFormer")
BICUBIC = ("CLIP", "DeiT", "Beit", "Bit", "Levit", "PoolFormer", "EfficientFormer")
SIGNS = {"image_mean", "size", "do_rescale", "do_resize", "image_processor_type"}
NOT_DONE = ("do_flip_channel_order", "rescale_offset", "include_top", "do_pad", "do_grayscale")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
LEVIT = 256 / 224
LONGEST = 1 << 20


@dataclass(frozen=True)
class LibraryModel:
    """A model of a library: each where the library says so.

    Attributes:
        architecture: in words.  classes: names of its labels.  own: how the library prepares rows.  notes: remarks.
        preprocess: as in our metadata, for pictures of bytes.
        model: with its weights.  make: makes it without.
    """

    architecture: str = ""
    classes: list[str] | None = None
    own: Preparation = field(default_factory=Preparation)
    notes: list[str] = field(default_factory=list)
    preprocess: dict[str, Any] = field(default_factory=dict)
    model: nn.Module = field(default_factory=nn.Module)
    make: Callable[[], nn.Module] | None = None


def of_folder(folder: Path) -> dict[str, Any]:
    """`preprocess` of a folder, or {} where it says nothing about pictures.

    Raises:
        InputError: the file is there and is not understood.
    """
    path, about = _found(folder)
    if about:
        return checked(_hugging_face, about, path)
    about = timm_config(folder)
    return checked(of_timm, about.get("pretrained_cfg", about), folder / "config.json") if about else {}


def description(folder: Path) -> Mapping[str, Any]:
    """What a folder says of its image processor, {} where it has none."""
    return _found(folder)[1]


def _found(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    for name in FILES:
        about = read_json(folder / name)
        about = about.get("image_processor", about)
        if isinstance(about, Mapping) and "sampling_rate" not in about and SIGNS & set(about):
            return folder / name, about
    return folder, {}


def words(about: Mapping[str, Any]) -> str:
    """The steps of an image processor in words; what is not understood is left to its name."""
    try:
        return steps(checked(_hugging_face, about, Path()))
    except InputError:
        return "as it is configured"


def steps(found: Mapping[str, Any]) -> str:
    """A `preprocess` in words."""
    made = Preprocess(scale=found["scale"], mean=tuple(found["mean"]), std=tuple(found["std"]), resize=resize(found))
    return "; ".join([str(made), *found.get("not_done", ())])


def resize(found: Mapping[str, Any]) -> Resize:
    """Of a `preprocess`."""
    return Resize(tuple(found.get("size", ())), tuple(found.get("crop", ())), found.get("resample", "bilinear"))


def timm_config(folder: Path) -> dict[str, Any]:
    """`config.json` of a folder that timm wrote, or {}."""
    about = read_json(folder / "config.json")
    ours = isinstance(about.get("architecture"), str) and ("pretrained_cfg" in about or "input_size" in about)
    if ours:
        refuse_code(folder / "config.json", about)
    return about if ours else {}


def of_timm(about: Mapping[str, Any]) -> dict[str, Any]:
    """As `timm.data.create_transform` makes it for evaluation: size / crop_pct, then the middle; its defaults."""
    mean, std = (_numbers(about.get(key) or default) for key, default in (("mean", MEAN), ("std", STD)))
    found: dict[str, Any] = {"scale": 1 / 255, "mean": mean, "std": std}
    _, height, width = about.get("input_size") or (3, 224, 224)
    share, mode = float(about.get("crop_pct") or 0.875), about.get("crop_mode") or "center"
    size = [math.floor(height / share), math.floor(width / share)]
    if mode == "border" or (mode == "center" and height != width):
        return {**found, "not_done": [f"crop_mode={mode} of {height}x{width}"]}
    resample = str(about.get("interpolation") or "bicubic")
    resample = resample if resample in RESAMPLE else "bilinear"  # "random": while training
    return {
        **found,
        "size": size[:1] if mode == "center" else size,
        "crop": [height, width],
        "resample": resample,
        "middle": "round",
    }


def _hugging_face(about: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(about.get("image_processor_type") or about.get("feature_extractor_type") or "")
    found: dict[str, Any] = {"mean": [], "std": [], "not_done": [key for key in NOT_DONE if about.get(key) is True]}
    found["scale"] = float(about.get("rescale_factor", 1 / 255)) if about.get("do_rescale", True) else 1.0
    if about.get("do_normalize", "image_mean" in about):
        found |= {"mean": _numbers(about["image_mean"]), "std": _numbers(about["image_std"])}
    if about.get("do_resize", "size" in about):
        size = about["size"]
        if isinstance(size, Mapping):
            size = [size["shortest_edge"]] if size.get("shortest_edge") else [size["height"], size["width"]]
        elif isinstance(size, int):
            size = [size] if kind.startswith(SHORTEST) else [size, size]
        share = about.get("crop_pct")
        if kind.startswith("ConvNext") and len(size) == 1:
            share = share or 224 / 256
            found["crop"] = [size[0], size[0]] if size[0] < 384 else []
            size = [int(size[0] / share)] if size[0] < 384 else [size[0], size[0]]
        elif kind.startswith("Levit") and len(size) == 1:
            size = [int(LEVIT * size[0])]
        elif share and len(size) == 1:
            size = [int(size[0] / share)]
        resample = about.get("resample")
        found |= {
            "size": size,
            "resample": RESAMPLE[(3 if kind.startswith(BICUBIC) else 2) if resample is None else resample],
        }
    if about.get("do_center_crop", False):
        crop = about.get("crop_size", about.get("size"))
        found["crop"] = [crop["height"], crop["width"]] if isinstance(crop, Mapping) else [crop, crop]
    return found


def checked(read: Any, about: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What `read` makes of it, with its source, after a look at every number."""
    fix = "check it, or remove it and pass --mean, --std and --size"
    with refusing(FAILURES, lambda error: f"{path} is not understood ({str(error)[:60]})", fix):
        found: dict[str, Any] = read(about)
        sizes = [*found.get("size", ()), *found.get("crop", ())]
        if not all(type(n) is int and 0 < n <= 10_000 for n in sizes):
            raise ValueError("size")
        if not all(math.isfinite(v) for v in (found["scale"], *found["mean"], *found["std"])):
            raise ValueError("mean or std")
    return {**found, "only": "bytes", "source": path.name}


def _numbers(value: Any) -> list[float]:
    return [float(v) for v in value] if isinstance(value, list | tuple) else [float(value)]


FETCHED = {"pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}


def refuse_code(path: Path, about: Any) -> None:
    """Refuse a description that would have a library fetch weights, unpickle a file or run code that lies elsewhere.

    Raises:
        InputError: arguments of timm's `create_model` that name files, or an implementation of attention from a hub.
    """
    if isinstance(about, list):
        for value in about:
            refuse_code(path, value)
    if not isinstance(about, Mapping):
        return
    args = about.get("model_args")
    named = sorted(FETCHED & set(args)) if isinstance(args, Mapping) else []
    named += [key for key, value in about.items() if "implementation" in str(key) and "/" in str(value)]
    if named:
        problem = f"{path} names what lies elsewhere: {', '.join(named)}"
        raise InputError(
            problem, "nothing was fetched or run; remove it, or load the model in code of yours: --arch-file"
        )
    for value in about.values():
        refuse_code(path, value)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a small file, {} where there is none."""
    try:
        if path.stat().st_size > LONGEST:
            return {}
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({str(error)[:80]})", "write it again") from None
    return found if isinstance(found, dict) else {}
