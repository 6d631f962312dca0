"""Fresh models from an architecture spec (built in, torchvision, timm or the user's own), and the metadata of our
checkpoints.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from calibcli.core import validation
from calibcli.core.errors import InputError, UsageError, did_you_mean, nearest, printable, refusing
from calibcli.core.files import atomic, known_suffix
from calibcli.core.options import Range, Seed, Share, exclusive, normal
from calibcli.networks.architectures import ARCHITECTURES
from calibcli.networks.checkpoint import processor
from calibcli.networks.checkpoint.processor import LibraryModel
from calibcli.networks.dataset.library_preparation import PicturePreparation, Preparation
from calibcli.networks.user_code import FAILURES, NAMES_CODE, from_file, from_module

# Models of torchvision and timm: built by name, with the preprocessing that these libraries publish for their weights.

ZOOS = ("torchvision", "timm")
WEIGHTS = "weights"  # option that names the weights whose preprocessing is used; nothing is downloaded
MIRRORED = ("googlenet", "inception_v3")  # torchvision sets transform_input=True for its own weights of these


def parsed(spec: str) -> tuple[str, str, str] | None:
    """Split `timm:NAME,key=value` or `timm.NAME:key=value` into library, model and options; None for another spec."""
    name, _, remaining = spec.partition(":")
    zoo, _, model = name.partition(".")
    if zoo not in ZOOS:
        return None
    if model:
        return zoo, model, remaining
    model, _, options = remaining.partition(",")
    return zoo, model, options


def find(library: str, name: str, *, explicit: bool) -> Callable[..., Any] | None:
    """Return a function that builds a model of `library`; None if it has no such model or is not installed.

    Raises:
        UsageError, InputError: instead of None, if `explicit`: the user named the library.
    """
    try:
        zoo = importlib.import_module(f"{library}.models" if library == "torchvision" else library)
    except (ImportError, RuntimeError, OSError) as error:
        if explicit and isinstance(error, ModuleNotFoundError) and error.name == library:
            raise UsageError(f"{library} is not installed", f"pip install {library}") from None
        if explicit:
            problem = f"{library} cannot be imported ({str(error)[:200]})"
            raise InputError(problem, "install the version made for this torch") from None
        return None
    model_names: list[str] = zoo.list_models()
    if (name.partition(".")[0] if library == "timm" else name) not in model_names:  # timm: resnet50.a1_in1k
        if explicit:
            raise UsageError(f"{library} has no model '{name}'", did_you_mean(name, model_names[:2000]))
        return None
    if library == "torchvision":

        def of_torchvision(*, num_classes: int | None = None, weights: Any = None, **options: Any) -> Any:
            return zoo.get_model(name, **options, **_given(num_classes=num_classes))

        return of_torchvision

    def of_timm(*, num_classes: int | None = None, in_chans: int | None = None, **options: Any) -> Any:
        return zoo.create_model(name, **options, **_given(num_classes=num_classes, in_chans=in_chans))

    return of_timm


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def published(spec: str, model: nn.Module, source: str) -> LibraryModel | None:
    """Return what the library of this spec publishes for it; None for a model of no such library.

    Args:
        source: the checkpoint; if it has the name of a file of torchvision, this tells which weights they are.
    """
    config = getattr(model, "pretrained_cfg", None)
    if isinstance(config, Mapping) and "mean" in config:
        return of_timm(dict(config), f"timm's pretrained_cfg of {config.get('architecture') or spec}")
    parts = parsed(spec) or ("torchvision", *spec.partition(":")[::2])
    if parts[0] != "torchvision" or not type(model).__module__.startswith("torchvision."):
        return None
    return _of_torchvision(parts[1], parts[2], source)


def of_folder(config: Mapping[str, Any]) -> LibraryModel:
    """Read the `config.json` of a folder that timm wrote, with or without a separate `pretrained_cfg`.

    Raises:
        UsageError, InputError: timm is not installed, or has no such model.
    """
    name, classes = str(config["architecture"]), config.get("num_classes")
    published: dict[str, Any] = dict(config.get("pretrained_cfg") or config)
    args = {**dict(config.get("model_args") or {}), **_given(num_classes=classes)}
    maker = find("timm", name, explicit=True)

    def make() -> nn.Module:
        with refusing(FAILURES, lambda e: f"timm does not make '{name}' ({str(e)[:120]})", "check its config.json"):
            return maker(**args, pretrained_cfg=published)  # type: ignore[misc, no-any-return]  # explicit

    names = config.get("label_names") or published.get("label_names")
    labels = list(map(str, names)) if isinstance(names, list) and names else None
    spec = f"timm:{name}" + (f",num_classes={classes}" if classes else "")
    if isinstance(args.get("in_chans"), int):
        published["input_size"] = [args["in_chans"], *(published.get("input_size") or [3, 224, 224])[1:]]
    return LibraryModel(spec, labels, of_timm(published, "config.json", of_weights=False).preparation, make=make)


def of_timm(config: Mapping[str, Any], name: str, *, of_weights: bool = True) -> LibraryModel:
    """Return the evaluation transform that timm makes from a `pretrained_cfg`."""
    preprocess = processor.checked(processor.of_timm, config, Path(name))

    def pictures() -> PicturePreparation:
        with refusing((ImportError, RuntimeError), "timm's transforms cannot be imported", "pip install timm"):
            from timm.data import create_transform, resolve_data_config
        data_config = resolve_data_config(pretrained_cfg=dict(config))
        fix = "pass --resize, --crop"
        with refusing(FAILURES, lambda e: f"timm makes no transform of {name} ({str(e)[:80]})", fix):
            transform = create_transform(**data_config)
        mode = "L" if data_config["input_size"][0] == 1 else "RGB"
        return PicturePreparation("timm.data.create_transform", _array(transform), mode, steps=str(name))

    return LibraryModel(preparation=Preparation(pictures=pictures, of_weights=of_weights), preprocess=preprocess)


def _of_torchvision(name: str, options: str, source: str) -> LibraryModel | None:
    from torchvision import models

    try:
        available = list(models.get_model_weights(name))
    except ValueError:
        return None
    asked = next((part.partition("=")[2] for part in options.split(",") if part.startswith(f"{WEIGHTS}=")), "")
    by_name = {one.name: one for one in available}
    if asked and asked not in by_name and asked != "DEFAULT":
        raise UsageError(f"torchvision has no weights '{asked}' of {name}", did_you_mean(asked, ["DEFAULT", *by_name]))
    default = models.get_model_weights(name).DEFAULT
    by_file = {Path(one.url).name: one for one in available}
    chosen = by_name.get(asked) or by_file.get(Path(source).name) or default
    transform = chosen.transforms()
    description = f"{chosen} of torchvision"
    preprocess = {
        "scale": 1 / 255, "mean": list(transform.mean), "std": list(transform.std), "size": list(transform.resize_size),
        "crop": 2 * list(transform.crop_size), "resample": transform.interpolation.value, "middle": "round",
        "only": "bytes", "source": description,
    }  # fmt: skip
    notes = []
    others = [one.name for one in available if _sizes(one) != _sizes(chosen)]
    if others and not asked and Path(source).name not in by_file:
        notes.append(f"pictures are prepared as for {chosen.name}: {name} has other sizes for {', '.join(others)} "
                     f"(--arch torchvision:{name},{WEIGHTS}={others[0]})")  # fmt: skip
    if name in MIRRORED and "transform_input" not in options:
        notes.append(f"torchvision's own weights of {name} take --arch torchvision:{name},transform_input=True")
    make = functools.partial(PicturePreparation, "the preset of torchvision", _array(transform), steps=description)
    return LibraryModel(preparation=Preparation(pictures=make, of_weights=True), notes=notes, preprocess=preprocess)


def _sizes(weights: Any) -> tuple[Any, ...]:
    transform = weights.transforms()
    return transform.resize_size, transform.crop_size, transform.interpolation, transform.mean, transform.std


def _array(transform: Callable[[Any], Any]) -> Callable[[Any], NDArray[np.float32]]:
    return lambda picture: np.asarray(transform(picture), np.float32)


# Fresh models from an architecture spec: built in, the user's own factory, torchvision or timm.

SYNONYMS = {"classes": ("num_classes", "n_classes", "num_labels"), "channels": ("in_chans", "in_channels")}


def is_built_in(spec: str) -> bool:
    """Whether the spec names one of our own architectures (metadata may name no others)."""
    return normal(spec.partition(":")[0]) in ARCHITECTURES


def canonical(spec: str) -> str:
    """Return the canonical spec of a built-in architecture, and any other spec unchanged."""
    return ARCHITECTURES.choose(spec).spec if is_built_in(spec) else spec


def sized(spec: str, sizes: Mapping[str, int]) -> str:
    """Add `classes` and `channels` to a spec; that of the user's own factory is unchanged."""
    if is_built_in(spec):
        return ARCHITECTURES.choose(spec, **sizes).spec
    if ":" in spec and parsed(spec) is None and "=" not in spec.partition(":")[2].partition(",")[0]:
        return spec
    names = {"classes": "num_classes", "channels": "in_chans"}
    return spec + (",:"[":" not in spec]) + ",".join(f"{names[option]}={n}" for option, n in sizes.items())


def build(spec: str | None, arch_file: str | None = None, **defaults: Any) -> nn.Module:
    """Build a fresh model.

    Args:
        spec: `name:key=value,...` of a built-in architecture; `module:factory` (with `,key=value` after it);
            `torchvision:NAME,key=value` or `timm:NAME,key=value` (also `timm.NAME:key=value`); a bare name is looked
            up in that order.
        arch_file: `net.py:factory`, in place of `spec`.
        defaults: options such as `classes`, `channels`, `inputs`, used if the spec does not set them and the factory
            has an option of that name.

    Raises:
        UsageError: no such architecture, option, module or factory.
        InputError: the factory failed, or did not return a `torch.nn.Module`.
    """
    exclusive(arch=spec is not None, arch_file=arch_file is not None)
    if arch_file is not None:
        named = ".py:" in arch_file and not arch_file.endswith(".py")
        name, _, options = arch_file.rpartition(":") if named else (arch_file, "", "")
        factory, _, options = options.partition(",")
        return _call(from_file(Path(name), factory), options, defaults, arch_file)
    if spec is None:
        raise UsageError("no architecture was named", "pass --arch NAME:key=value, or --arch module:factory")
    if is_built_in(spec):
        choice = ARCHITECTURES.choose(spec, **defaults)
        return _module(choice(), spec)
    name, _, remaining = spec.partition(":")
    zoo = parsed(spec)
    if zoo is not None and zoo[1]:
        maker = find(*zoo[:2], explicit=True)
        return _call(maker, zoo[2], defaults, spec)  # type: ignore[arg-type]  # explicit: found, or refused
    first = remaining.partition(",")[0]
    if remaining and "=" not in first:
        return _call(from_module(name, first), remaining.partition(",")[2], defaults, spec)
    return _call(_of_a_zoo(name), remaining, defaults, spec)


def check(spec: str) -> str:
    """Refuse a name that `build` would refuse, without building the network or loading code of the user.

    Returns:
        The spec with all its options, of which those that the data decide are placeholders: equal for equal networks.

    Raises:
        UsageError: no such architecture, or option of one that is built in.
    """
    if is_built_in(spec):
        return ARCHITECTURES.choose(spec, inputs=1, channels=1, classes=2).spec
    if parsed(spec) is None and not NAMES_CODE.fullmatch(spec.partition(",")[0]):
        _of_a_zoo(spec.partition(":")[0])
    return spec


def _of_a_zoo(name: str) -> Callable[..., Any]:
    for library in ZOOS:
        factory = find(library, name, explicit=False)
        if factory is not None:
            return factory
    names = [entry.name for entry in ARCHITECTURES]
    fix = did_you_mean(normal(name), names) if nearest(normal(name), names) else f"built in: {', '.join(names)}"
    raise UsageError(f"unknown architecture '{name}'", f"{fix}; or pass --arch module:factory")


def _call(factory: Callable[..., Any], options: str, defaults: Mapping[str, Any], spec: str) -> nn.Module:
    given, fix = dict(_option(part, spec) for part in filter(None, options.split(","))), "correct its options"
    with refusing(FAILURES, lambda e: f"the factory of '{spec}' failed: {type(e).__name__}: {e}", fix):
        accepted = inspect.signature(factory).parameters
        for key, value in defaults.items():
            names = (key, *SYNONYMS.get(key, ()))
            for name in names:
                if value is not None and name in accepted and not any(n in given for n in names):
                    given[name] = value
        return _module(factory(**given), spec)


def _option(part: str, spec: str) -> tuple[str, Any]:
    key, eq, text = part.partition("=")
    if not eq:
        raise UsageError(f"option '{part}' of '{spec}' has no value", f"write {part}=VALUE")
    try:
        if re.search(r"\d_\d", text):  # Python reads 1_0 as 10
            raise ValueError
        return key.strip(), ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return key.strip(), text.strip()


def _module(model: Any, spec: str) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise InputError(f"'{spec}' returned {type(model).__name__}, not a torch.nn.Module", "return the model itself")
    return model


# Our own checkpoints, and their metadata: a JSON object under the key "calib".
#
#     {"schema": 1,
#      "architecture": "mlp:inputs=64,hidden=128/128,classes=10",           built-in architectures only
#      "preprocess": {"layout": "flat", "scale": 0.0625, "mean": [0.3], "std": [0.4]},
#      "classes": ["0", "1", ...],
#      "data": {"train": "digits.npz#train", "validation": "digits.npz#val", "test": "digits.npz#test"},   relative
#      "training": {...}, "data_sha256": "...",
#      "split": {"how": "stratified", "seed": 0, "share": 0.1, ...},       of "train", if validation rows came from it
#      "folded": {"calibrator": "temperature", "temperature": 2.8, "date": "2026-11-22", "rows": 997, ...}}
#
# All fields but `schema` may be missing. A file can name data and built-in architectures, never code.

KEY = "calib"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """How validation rows were drawn from the training data and removed from it; see `training.split`."""

    how: Literal["stratified", "mukhoti"]
    seed: Seed
    share: Share
    held_out: int = 0
    of: int = 0
    rows_sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The metadata of a checkpoint."""

    architecture: str | None = None
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    classes: Sequence[str] | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    data_sha256: str = ""
    split: HeldOut | None = None
    folded: Mapping[str, Any] = field(default_factory=dict)


def folded(metadata: Mapping[str, Any]) -> str:
    """Describe the calibrator that is folded into the last layer, from a checkpoint or its logits; "" if there is none.

    >>> folded({"folded": {"calibrator": "temperature", "temperature": 2.813, "date": "2026-11-22", "rows": 997}})
    'temperature (T = 2.813; 2026-11-22, fitted on 997 rows) is folded into the last layer already'
    """
    calibrator = metadata.get("folded") or {}
    if not calibrator:
        return ""
    t = calibrator.get("temperature")
    parts = [f"T = {t:.4g}"] if isinstance(t, int | float) else []
    parts.append(f"{str(calibrator.get('date', ''))[:10]}, fitted on {calibrator.get('rows', '?')} rows")
    return printable(f"{calibrator.get('calibrator')} ({'; '.join(parts)}) is folded into the last layer already", 200)


def parse(text: str | Mapping[str, Any], source: str) -> dict[str, Any]:
    """Parse metadata from JSON text, or take the object itself, and check it.

    Raises:
        InputError: not JSON, a newer schema, a field of the wrong type, an architecture that is not built in, or an
            absolute data path.
    """
    fix = "pass --arch and --data on the command line and save the checkpoint again"
    with refusing((ValueError, RecursionError), f"{source}: its calib metadata is not JSON", fix):
        metadata = json.loads(text) if isinstance(text, str) else dict(text)
    if not isinstance(metadata, dict):
        raise InputError(f"{source}: its calib metadata is not an object", fix)
    if metadata.get("schema") != SCHEMA:
        problem = f"{source}: its metadata has schema {metadata.get('schema')}, this version reads {SCHEMA}"
        raise InputError(problem, "upgrade calibcli, or save the checkpoint again")
    validation.read(metadata, Fields, source, fix)
    for name, value in metadata.get("preprocess", {}).items():
        whole = isinstance(value, list) and all(_number(v) for v in value)
        words = name in ("layout", "resample", "middle")
        plain = isinstance(value, str) if words else _number(value)
        if not (whole if name in ("mean", "std", "size", "crop") else plain):
            raise InputError(f"{source}: metadata preprocess '{name}' is {reprlib.repr(value)}", fix)
    architecture = metadata.get("architecture")
    if architecture is not None and not is_built_in(architecture):
        problem = f"{source}: its metadata names the architecture '{architecture}', which is not built in"
        raise InputError(problem, f"nothing was imported; if you trust it, pass --arch {architecture}")
    for role, path in metadata.get("data", {}).items():
        if os.path.isabs(path) or not path or set(path) & set(":\0"):
            raise InputError(f"{source}: metadata names the {role} data '{path}', not a relative path", fix)
    return metadata


def _number(value: Any) -> bool:
    """Whether the value is a finite number (a bool is none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value in Range(-1e9, 1e9)


def resolve(metadata: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Resolve the data paths, by role, against the checkpoint's folder."""
    return {role: os.path.normpath(folder.resolve() / path) for role, path in metadata.get("data", {}).items()}


def save(path: str | Path, model: nn.Module, metadata: Mapping[str, Any]) -> None:
    """Write a model's parameters and buffers with its metadata, whole or not at all.

    `.safetensors` holds the metadata as JSON under the key "calib"; `.pt` and `.pth` hold
    `{"state_dict": ..., "calib": {...}}`, which `torch.load(..., weights_only=True)` reads.

    Args:
        metadata: see `Fields`; `schema` is added.

    Raises:
        UsageError: another suffix, or a folder that cannot be written.
        InputError: metadata that `load` would refuse.
    """
    path = known_suffix(Path(path), (".safetensors", ".pt", ".pth"), "a checkpoint")
    checked = parse({"schema": SCHEMA, **json.loads(json.dumps(metadata))}, str(path))
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    if path.suffix == ".safetensors":
        # safetensors refuses tensors that share memory (tied weights): write each of them
        with atomic(path) as temporary:
            save_file({k: v.clone() for k, v in state.items()}, temporary, {KEY: json.dumps(checked)})
    else:
        # an open file, not a path: torch would write the temporary name into the archive
        with atomic(path) as temporary, Path(temporary).open("wb") as file:
            torch.save({"state_dict": state, KEY: checked}, file)
