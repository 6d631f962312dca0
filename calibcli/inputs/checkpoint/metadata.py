"""Checkpoints as we write them, and what they say about themselves: a JSON object under the key "calib".

    {"schema": 1,
     "architecture": "mlp:inputs=64,hidden=128/128,classes=10",           built-in architectures only
     "preprocess": {"layout": "flat", "scale": 0.0625, "mean": [0.3], "std": [0.4]},
     "classes": ["0", "1", ...],
     "data": {"train": "digits.npz#train", "validation": "digits.npz#val", "test": "digits.npz#test"},   relative
     "training": {...}, "data_sha256": "...",
     "split": {"how": "stratified", "seed": 0, "share": 0.1, ...},       of "train", where validation rows came from it
     "folded": {"calibrator": "temperature", "temperature": 2.8, "date": "2026-11-22", "rows": 997, ...}}

All fields but `schema` may be missing. A file can name data and built-in architectures, never code.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import nn

from calibcli import wellformed
from calibcli.errors import InputError, printable, refusing
from calibcli.files import atomic, known_suffix
from calibcli.inputs.checkpoint.factory import is_built_in
from calibcli.spec import Range, Seed, Share

KEY = "calib"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """How validation rows were drawn from the training data, which they are none of; see `training.split`."""

    how: Literal["stratified", "mukhoti"]
    seed: Seed
    share: Share
    held_out: int = 0
    of: int = 0
    rows_sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The types of what a checkpoint says about itself."""

    architecture: str | None = None
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    classes: Sequence[str] | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    data_sha256: str = ""
    split: HeldOut | None = None
    folded: Mapping[str, Any] = field(default_factory=dict)


def folded(metadata: Mapping[str, Any]) -> str:
    """What a checkpoint, or its logits, say of a calibrator that is folded into the last layer; "" of none.

    >>> folded({"folded": {"calibrator": "temperature", "temperature": 2.813, "date": "2026-11-22", "rows": 997}})
    'temperature (T = 2.813; 2026-11-22, fitted on 997 rows) is folded into the last layer already'
    """
    about = metadata.get("folded") or {}
    if not about:
        return ""
    t = about.get("temperature")
    parts = [f"T = {t:.4g}"] if isinstance(t, int | float) else []
    parts.append(f"{str(about.get('date', ''))[:10]}, fitted on {about.get('rows', '?')} rows")
    return printable(f"{about.get('calibrator')} ({'; '.join(parts)}) is folded into the last layer already", 200)


def parse(text: str | Mapping[str, Any], source: str) -> dict[str, Any]:
    """Metadata from its JSON text or the object itself, checked.

    Raises:
        InputError: not JSON, a newer schema, a field of the wrong type, an architecture that is not built in, or an
            absolute data path.
    """
    fix = "pass --arch and --data on the command line and save the checkpoint again"
    with refusing((ValueError, RecursionError), f"{source}: its calib metadata is not JSON", fix):
        found = json.loads(text) if isinstance(text, str) else dict(text)
    if not isinstance(found, dict):
        raise InputError(f"{source}: its calib metadata is not an object", fix)
    if found.get("schema") != SCHEMA:
        problem = f"{source}: its metadata has schema {found.get('schema')}, this version reads {SCHEMA}"
        raise InputError(problem, "upgrade calibcli, or save the checkpoint again")
    wellformed.read(found, Fields, source, fix)
    for name, value in found.get("preprocess", {}).items():
        whole = isinstance(value, list) and all(_number(v) for v in value)
        words = name in ("layout", "resample", "middle")
        plain = isinstance(value, str) if words else _number(value)
        if not (whole if name in ("mean", "std", "size", "crop") else plain):
            raise InputError(f"{source}: metadata preprocess '{name}' is {reprlib.repr(value)}", fix)
    architecture = found.get("architecture")
    if architecture is not None and not is_built_in(architecture):
        problem = f"{source}: its metadata names the architecture '{architecture}', which is not built in"
        raise InputError(problem, f"nothing was imported; if you trust it, pass --arch {architecture}")
    for role, path in found.get("data", {}).items():
        if os.path.isabs(path) or not path or set(path) & set(":\0"):
            raise InputError(f"{source}: metadata names the {role} data '{path}', not a relative path", fix)
    return found


def _number(value: Any) -> bool:
    """Finite, and no truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value in Range(-1e9, 1e9)


def resolve(metadata: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Data paths by role, relative to the checkpoint's folder."""
    return {role: os.path.normpath(folder.resolve() / path) for role, path in metadata.get("data", {}).items()}


def save(path: str | Path, model: nn.Module, metadata: Mapping[str, Any]) -> None:
    """Write a model's parameters and buffers with its metadata, whole or not at all.

    `.safetensors` holds the metadata as JSON under the key "calib"; `.pt` and `.pth` hold
    `{"state_dict": ..., "calib": {...}}`, which `torch.load(..., weights_only=True)` reads.

    Args:
        metadata: the fields of `checkpoint.metadata`; `schema` is filled in.

    Raises:
        UsageError: another suffix, or a folder that cannot be written.
        InputError: metadata that `load` would refuse.
    """
    path = known_suffix(Path(path), (".safetensors", ".pt", ".pth"), "a checkpoint")
    found = parse({"schema": SCHEMA, **json.loads(json.dumps(metadata))}, str(path))
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    if path.suffix == ".safetensors":
        # safetensors refuses tensors that share memory (tied weights): write each of them
        with atomic(path) as temporary:
            save_file({k: v.clone() for k, v in state.items()}, temporary, {KEY: json.dumps(found)})
    else:
        # an open file, not a path: torch would write the temporary name into the archive
        with atomic(path) as temporary, Path(temporary).open("wb") as file:
            torch.save({"state_dict": state, KEY: found}, file)
