"""Fresh models from an architecture spec: built in, the user's own factory, torchvision or timm."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from calibcli.architectures import ARCHITECTURES
from calibcli.errors import InputError, UsageError, did_you_mean, nearest, refusing
from calibcli.inputs.checkpoint import zoos
from calibcli.inputs.code import FAILURES, NAMES_CODE, from_file, from_module
from calibcli.spec import normal

SYNONYMS = {"classes": ("num_classes", "n_classes", "num_labels"), "channels": ("in_chans", "in_channels")}


def is_built_in(spec: str) -> bool:
    """Whether the spec names one of the package's own architectures (nothing else may stand in metadata)."""
    return normal(spec.partition(":")[0]) in ARCHITECTURES


def canonical(spec: str) -> str:
    """The canonical spec of a built-in architecture; any other spec as it is."""
    return ARCHITECTURES.choose(spec).spec if is_built_in(spec) else spec


def sized(spec: str, sizes: Mapping[str, int]) -> str:
    """The spec with `classes` and `channels` in it; that of the user's own factory as it is."""
    if is_built_in(spec):
        return ARCHITECTURES.choose(spec, **sizes).spec
    if ":" in spec and zoos.parsed(spec) is None and "=" not in spec.partition(":")[2].partition(",")[0]:
        return spec
    names = {"classes": "num_classes", "channels": "in_chans"}
    return spec + (",:"[":" not in spec]) + ",".join(f"{names[what]}={n}" for what, n in sizes.items())


def build(spec: str | None, arch_file: str | None = None, **defaults: Any) -> nn.Module:
    """A fresh model.

    Args:
        spec: `name:key=value,...` of a built-in architecture; `module:factory` (with `,key=value` after it);
            `torchvision:NAME,key=value` or `timm:NAME,key=value` (also `timm.NAME:key=value`); a bare name is looked
            up in that order.
        arch_file: `net.py:factory`, in place of `spec`.
        defaults: options such as `classes`, `channels`, `inputs`, used where the spec is silent and the factory
            has an option of that name.

    Raises:
        UsageError: no such architecture, option, module or factory.
        InputError: the factory failed, or did not return a `torch.nn.Module`.
    """
    if arch_file is not None:
        if spec is not None:
            raise UsageError("both --arch and --arch-file were given", "pass one of them")
        named = ".py:" in arch_file and not arch_file.endswith(".py")
        name, _, options = arch_file.rpartition(":") if named else (arch_file, "", "")
        factory, _, options = options.partition(",")
        return _call(from_file(Path(name), factory), options, defaults, arch_file)
    if spec is None:
        raise UsageError("no architecture was named", "pass --arch NAME:key=value, or --arch module:factory")
    if is_built_in(spec):
        choice = ARCHITECTURES.choose(spec, **defaults)
        return _module(choice(), spec)
    name, _, rest = spec.partition(":")
    zoo = zoos.parsed(spec)
    if zoo is not None and zoo[1]:
        made = zoos.find(*zoo[:2], explicit=True)
        return _call(made, zoo[2], defaults, spec)  # type: ignore[arg-type]  # explicit: found, or refused
    first = rest.partition(",")[0]
    if rest and "=" not in first:
        return _call(from_module(name, first), rest.partition(",")[2], defaults, spec)
    return _call(_of_a_zoo(name), rest, defaults, spec)


def check(spec: str) -> None:
    """Refuse a name that `build` would, without making the network: no code of the user's is loaded.

    Raises:
        UsageError: no such architecture, or option of one that is built in.
    """
    if is_built_in(spec):
        ARCHITECTURES.choose(spec, inputs=1, channels=1, classes=2)  # what the data say
    elif zoos.parsed(spec) is None and not NAMES_CODE.fullmatch(spec.partition(",")[0]):
        _of_a_zoo(spec.partition(":")[0])


def _of_a_zoo(name: str) -> Callable[..., Any]:
    for library in zoos.ZOOS:
        found = zoos.find(library, name, explicit=False)
        if found is not None:
            return found
    known = [entry.name for entry in ARCHITECTURES]
    fix = did_you_mean(normal(name), known) if nearest(normal(name), known) else f"built in: {', '.join(known)}"
    raise UsageError(f"unknown architecture '{name}'", f"{fix}; or pass --arch module:factory")


def _call(factory: Callable[..., Any], options: str, defaults: Mapping[str, Any], spec: str) -> nn.Module:
    given = dict(_option(part, spec) for part in filter(None, options.split(",")))
    failed = refusing(
        FAILURES, lambda e: f"the factory of '{spec}' failed: {type(e).__name__}: {e}", "correct its options"
    )
    with failed:
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


def _module(made: Any, spec: str) -> nn.Module:
    if not isinstance(made, nn.Module):
        raise InputError(f"'{spec}' returned {type(made).__name__}, not a torch.nn.Module", "return the model itself")
    return made
