"""Models of torchvision and timm, by name, and the preprocessing that they publish with their weights."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from calibcli.errors import InputError, UsageError, did_you_mean, refusing
from calibcli.inputs.checkpoint import processor
from calibcli.inputs.checkpoint.processor import Known
from calibcli.inputs.code import FAILURES
from calibcli.inputs.dataset.prepared import ForPictures, Preparation

ZOOS = ("torchvision", "timm")
WEIGHTS = "weights"  # an option of torchvision's names: whose preprocessing, nothing is fetched
MIRRORED = ("googlenet", "inception_v3")  # torchvision builds these in another way for its own weights


def parsed(spec: str) -> tuple[str, str, str] | None:
    """Library, model and options of `timm:NAME,key=value` or `timm.NAME:key=value`; None of another spec."""
    name, _, rest = spec.partition(":")
    zoo, _, model = name.partition(".")
    if zoo not in ZOOS:
        return None
    if model:
        return zoo, model, rest
    model, _, options = rest.partition(",")
    return zoo, model, options


def find(library: str, name: str, *, explicit: bool) -> Callable[..., Any] | None:
    """The maker of a model of `library`; None where it has none of that name, or is not installed.

    Raises:
        UsageError, InputError: instead of None, where the library was named.
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
    known: list[str] = zoo.list_models()
    if (name.partition(".")[0] if library == "timm" else name) not in known:  # timm: resnet50.a1_in1k
        if explicit:
            raise UsageError(f"{library} has no model '{name}'", did_you_mean(name, known[:2000]))
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


def published(spec: str, model: nn.Module, source: str) -> Known | None:
    """What the library of this spec publishes for it; None of a model that is of no such library.

    Args:
        source: the checkpoint, whose name may be that of a file of torchvision.
    """
    config = getattr(model, "pretrained_cfg", None)
    if isinstance(config, Mapping) and "mean" in config:
        return of_timm(dict(config), f"timm's pretrained_cfg of {config.get('architecture') or spec}")
    known = parsed(spec) or ("torchvision", *spec.partition(":")[::2])
    if known[0] != "torchvision" or not type(model).__module__.startswith("torchvision."):
        return None
    return _of_torchvision(known[1], known[2], source)


def of_folder(config: Mapping[str, Any]) -> Known:
    """A model of a folder that timm wrote, by its `config.json`, in one piece or with the `pretrained_cfg` apart.

    Raises:
        UsageError, InputError: timm is not installed, or has no such model.
    """
    name, classes = str(config["architecture"]), config.get("num_classes")
    published: dict[str, Any] = dict(config.get("pretrained_cfg") or config)
    args = {**dict(config.get("model_args") or {}), **_given(num_classes=classes)}
    made = find("timm", name, explicit=True)

    def make() -> nn.Module:
        with refusing(FAILURES, lambda e: f"timm does not make '{name}' ({str(e)[:120]})", "check its config.json"):
            return made(**args, pretrained_cfg=published)  # type: ignore[misc, no-any-return]  # explicit

    names = config.get("label_names") or published.get("label_names")
    labels = list(map(str, names)) if isinstance(names, list) and names else None
    spec = f"timm:{name}" + (f",num_classes={classes}" if classes else "")
    if isinstance(args.get("in_chans"), int):
        published["input_size"] = [args["in_chans"], *(published.get("input_size") or [3, 224, 224])[1:]]
    return Known(spec, labels, of_timm(published, "config.json", of_weights=False).own, make=make)


def of_timm(config: Mapping[str, Any], name: str, *, of_weights: bool = True) -> Known:
    """The transform that timm makes of a `pretrained_cfg` for evaluation."""
    preprocess = processor.checked(processor.of_timm, config, Path(name))

    def pictures() -> ForPictures:
        with refusing((ImportError, RuntimeError), "timm's transforms cannot be imported", "pip install timm"):
            from timm.data import create_transform, resolve_data_config
        about = resolve_data_config(pretrained_cfg=dict(config))
        with refusing(
            FAILURES, lambda e: f"timm makes no transform of {name} ({str(e)[:80]})", "pass --resize, --crop"
        ):
            transform = create_transform(**about)
        grey = about["input_size"][0] == 1
        return ForPictures("timm.data.create_transform", _array(transform), "L" if grey else "RGB", steps=str(name))

    return Known(own=Preparation(pictures=pictures, of_weights=of_weights), preprocess=preprocess)


def _of_torchvision(name: str, options: str, source: str) -> Known | None:
    from torchvision import models

    try:
        known = list(models.get_model_weights(name))
    except ValueError:
        return None
    asked = next((part.partition("=")[2] for part in options.split(",") if part.startswith(f"{WEIGHTS}=")), "")
    by_name = {one.name: one for one in known}
    if asked and asked not in by_name and asked != "DEFAULT":
        raise UsageError(f"torchvision has no weights '{asked}' of {name}", did_you_mean(asked, ["DEFAULT", *by_name]))
    default = models.get_model_weights(name).DEFAULT
    by_file = {Path(one.url).name: one for one in known}
    chosen = by_name.get(asked) or by_file.get(Path(source).name) or default
    transform = chosen.transforms()
    said = f"{chosen} of torchvision"
    preprocess = {
        "scale": 1 / 255, "mean": list(transform.mean), "std": list(transform.std), "size": list(transform.resize_size),
        "crop": 2 * list(transform.crop_size), "resample": transform.interpolation.value, "middle": "round",
        "only": "bytes", "source": said,
    }  # fmt: skip
    notes = []
    others = [one.name for one in known if _sizes(one) != _sizes(chosen)]
    if others and not asked and Path(source).name not in by_file:
        notes.append(f"pictures are prepared as for {chosen.name}: {name} has other sizes for {', '.join(others)} "
                     f"(--arch torchvision:{name},{WEIGHTS}={others[0]})")  # fmt: skip
    if name in MIRRORED and "transform_input" not in options:
        notes.append(f"torchvision's own weights of {name} take --arch torchvision:{name},transform_input=True")
    make = functools.partial(ForPictures, "the preset of torchvision", _array(transform), steps=said)
    return Known(own=Preparation(pictures=make, of_weights=True), notes=notes, preprocess=preprocess)


def _sizes(weights: Any) -> tuple[Any, ...]:
    made = weights.transforms()
    return made.resize_size, made.crop_size, made.interpolation, made.mean, made.std


def _array(transform: Callable[[Any], Any]) -> Callable[[Any], NDArray[np.float32]]:
    return lambda picture: np.asarray(transform(picture), np.float32)
