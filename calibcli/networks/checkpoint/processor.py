"""Image preprocessing from a model's folder: Hugging Face's image processors and timm's pretrained_cfg.

It is translated into the `preprocess` of our own metadata, with `only = "bytes"` (floating-point arrays are assumed to
be prepared) and `source`. Steps that we do not support are listed, and images are then refused.
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
# By the name of the image processor, for files that do not say it: those whose `size` is the shorter side, and those
# that resize bicubically.
SHORTEST = ("CLIP", "ConvNext", "Bit", "MobileNet", "MobileViT", "PoolFormer", "Levit", "EfficientFormer")
BICUBIC = ("CLIP", "DeiT", "Beit", "Bit", "Levit", "PoolFormer", "EfficientFormer")
SIGNS = {"image_mean", "size", "do_rescale", "do_resize", "image_processor_type"}
NOT_DONE = ("do_flip_channel_order", "rescale_offset", "include_top", "do_pad", "do_grayscale")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
LEVIT = 256 / 224  # resized size by cropped size, fixed in its image processor
LONGEST = 1 << 20  # bytes of a configuration; larger files are not configurations


@dataclass(frozen=True)
class LibraryModel:
    """A model of a library. Fields that the library says nothing about have their defaults.

    Attributes:
        architecture: in words.  classes: names of its labels.  preparation: of rows, by the library.  notes: remarks.
        preprocess: as in our metadata, for images of bytes.
        model: with its weights.  make: builds it without weights.
    """

    architecture: str = ""
    classes: list[str] | None = None
    preparation: Preparation = field(default_factory=Preparation)
    notes: list[str] = field(default_factory=list)
    preprocess: dict[str, Any] = field(default_factory=dict)
    model: nn.Module = field(default_factory=nn.Module)
    make: Callable[[], nn.Module] | None = None


def of_folder(folder: Path) -> dict[str, Any]:
    """Read the `preprocess` of a folder, {} if it says nothing about images.

    Raises:
        InputError: the file exists and is not understood.
    """
    path, config = _found(folder)
    if config:
        return checked(_hugging_face, config, path)
    config = timm_config(folder)
    return checked(of_timm, config.get("pretrained_cfg", config), folder / "config.json") if config else {}


def description(folder: Path) -> Mapping[str, Any]:
    """Return the configuration of a folder's image processor, {} if it has none."""
    return _found(folder)[1]


def _found(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    for name in FILES:
        config = read_json(folder / name)
        config = config.get("image_processor", config)
        if isinstance(config, Mapping) and "sampling_rate" not in config and SIGNS & set(config):
            return folder / name, config
    return folder, {}


def words(config: Mapping[str, Any]) -> str:
    """Describe the steps of an image processor in words, as far as they are understood."""
    try:
        return steps(checked(_hugging_face, config, Path()))
    except InputError:
        return "as it is configured"


def steps(preprocess: Mapping[str, Any]) -> str:
    """Describe a `preprocess` in words."""
    size, crop, mean, std = (tuple(preprocess.get(key, ())) for key in ("size", "crop", "mean", "std"))
    resize = Resize(size, crop, preprocess.get("resample", "bilinear"))
    transform = Preprocess(scale=preprocess["scale"], mean=mean, std=std, resize=resize)
    return "; ".join([str(transform), *preprocess.get("not_done", ())])


def timm_config(folder: Path) -> dict[str, Any]:
    """Read the `config.json` of a folder that timm wrote, else {}."""
    config = read_json(folder / "config.json")
    ours = isinstance(config.get("architecture"), str) and ("pretrained_cfg" in config or "input_size" in config)
    if ours:
        refuse_code(folder / "config.json", config)
    return config if ours else {}


def of_timm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate a `pretrained_cfg` as `timm.data.create_transform` does for evaluation: resize to size / crop_pct, then
    crop the centre; with the defaults of timm."""
    mean, std = (_numbers(config.get(key) or default) for key, default in (("mean", MEAN), ("std", STD)))
    preprocess: dict[str, Any] = {"scale": 1 / 255, "mean": mean, "std": std}
    _, height, width = config.get("input_size") or (3, 224, 224)
    share, mode = float(config.get("crop_pct") or 0.875), config.get("crop_mode") or "center"
    size = [math.floor(height / share), math.floor(width / share)]
    if mode == "border" or (mode == "center" and height != width):
        return {**preprocess, "not_done": [f"crop_mode={mode} of {height}x{width}"]}
    resample = str(config.get("interpolation") or "bicubic")
    resample = resample if resample in RESAMPLE else "bilinear"  # "random" is for training
    preprocess |= {"size": size[:1] if mode == "center" else size, "crop": [height, width]}
    return {**preprocess, "resample": resample, "middle": "round"}


def _hugging_face(config: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")
    not_done = [key for key in NOT_DONE if config.get(key) is True]
    scale = float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
    preprocess: dict[str, Any] = {"mean": [], "std": [], "not_done": not_done, "scale": scale}
    if config.get("do_normalize", "image_mean" in config):
        preprocess |= {"mean": _numbers(config["image_mean"]), "std": _numbers(config["image_std"])}
    if config.get("do_resize", "size" in config):
        size = config["size"]
        if isinstance(size, Mapping):
            size = [size["shortest_edge"]] if size.get("shortest_edge") else [size["height"], size["width"]]
        elif isinstance(size, int):
            size = [size] if kind.startswith(SHORTEST) else [size, size]
        share = config.get("crop_pct")
        if kind.startswith("ConvNext") and len(size) == 1:
            share = share or 224 / 256
            preprocess["crop"] = [size[0], size[0]] if size[0] < 384 else []
            size = [int(size[0] / share)] if size[0] < 384 else [size[0], size[0]]
        elif kind.startswith("Levit") and len(size) == 1:
            size = [int(LEVIT * size[0])]
        elif share and len(size) == 1:
            size = [int(size[0] / share)]
        resample, usual = config.get("resample"), 3 if kind.startswith(BICUBIC) else 2
        preprocess |= {"size": size, "resample": RESAMPLE[usual if resample is None else resample]}
    if config.get("do_center_crop", False):
        crop = config.get("crop_size", config.get("size"))
        preprocess["crop"] = [crop["height"], crop["width"]] if isinstance(crop, Mapping) else [crop, crop]
    return preprocess


def checked(read: Any, config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Translate a configuration with `read`, check every number, and add the source."""
    fix = "check it, or remove it and pass --mean, --std and --size"
    with refusing(FAILURES, lambda error: f"{path} is not understood ({str(error)[:60]})", fix):
        preprocess: dict[str, Any] = read(config)
        sizes = [*preprocess.get("size", ()), *preprocess.get("crop", ())]
        if not all(type(n) is int and 0 < n <= 10_000 for n in sizes):
            raise ValueError("size")
        if not all(math.isfinite(v) for v in (preprocess["scale"], *preprocess["mean"], *preprocess["std"])):
            raise ValueError("mean or std")
    return {**preprocess, "only": "bytes", "source": path.name}


def _numbers(value: Any) -> list[float]:
    return [float(v) for v in value] if isinstance(value, list | tuple) else [float(value)]


FETCHED = {"pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"}


def refuse_code(path: Path, config: Any) -> None:
    """Refuse a configuration that would make a library download weights, unpickle a file or run code from elsewhere.

    Raises:
        InputError: arguments of timm's `create_model` that name files, or an implementation of attention from a hub.
    """
    if isinstance(config, list):
        for value in config:
            refuse_code(path, value)
    if not isinstance(config, Mapping):
        return
    args = config.get("model_args")
    named = sorted(FETCHED & set(args)) if isinstance(args, Mapping) else []
    named += [key for key, value in config.items() if "implementation" in str(key) and "/" in str(value)]
    if named:
        problem = f"{path} names files or code outside its folder: {', '.join(named)}"
        fix = "nothing was fetched or run; remove it, or load the model in code of yours: --arch-file"
        raise InputError(problem, fix)
    for value in config.values():
        refuse_code(path, value)


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a small file, {} if there is none."""
    try:
        if path.stat().st_size > LONGEST:
            return {}
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({str(error)[:80]})", "write it again") from None
    return content if isinstance(content, dict) else {}
