"""Checkpoints as we write them: tensors and a JSON object, in .safetensors or .pt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from calibcli.files import atomic, known_suffix
from calibcli.inputs.checkpoint import metadata as meta


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
    found = meta.parse({"schema": meta.SCHEMA, **json.loads(json.dumps(metadata))}, str(path))
    state = {key: value.detach().cpu().contiguous() for key, value in model.state_dict().items()}
    if path.suffix == ".safetensors":
        # safetensors refuses tensors that share memory (tied weights): write each of them
        with atomic(path) as temporary:
            save_file({k: v.clone() for k, v in state.items()}, temporary, {meta.KEY: json.dumps(found)})
    else:
        # an open file, not a path: torch would write the temporary name into the archive
        with atomic(path) as temporary, Path(temporary).open("wb") as file:
            torch.save({"state_dict": state, meta.KEY: found}, file)
