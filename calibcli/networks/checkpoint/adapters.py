"""Adapters as peft saves them: `adapter_config.json` beside weights that change a model in another folder."""

from __future__ import annotations

import importlib.util
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from calibcli.core.errors import InputError, refusing
from calibcli.networks.checkpoint import containers, processor
from calibcli.networks.user_code import FAILURES

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
MERGE = "merge both: model.merge_and_unload().save_pretrained(folder)"
KINDS = (
    "LORA",
    "ADALORA",
    "LOHA",
    "LOKR",
    "IA3",
    "OFT",
    "BOFT",
)  # which change weights alone, by what lies in the file
HEAD = re.compile(r"\.(score|classifier|classifier\.out_proj|out_proj|head|fc)(\.modules_to_save)?\.weight$")


def folder_of(path: Path) -> Path | None:
    """Return the folder of an adapter, `path` or its parent; else None."""
    folder = path.parent if path.name.startswith("adapter_model.") else path
    return folder if (folder / CONFIG).is_file() else None


def base(folder: Path, arch: str | None) -> Path:
    """Return the folder of the model that an adapter changes: `arch`, else the one that the adapter names.

    As in peft, the name is a path from the working folder; it may also be one from the folder of the adapter.

    Raises:
        InputError: peft is not installed, there is no such folder, or the adapter is of a kind that is not added.
    """
    config = processor.read_json(folder / CONFIG)
    named = str(config.get("base_model_name_or_path") or "")
    problem = f"{folder} holds an adapter, which changes a model that is stored elsewhere ({named or 'not named'})"
    places = [Path(arch)] if arch else [Path(named), folder / named] if named else []
    found = next((place for place in places if os.path.isfile(place / "config.json")), None)
    if importlib.util.find_spec("peft") is None:
        where = "" if found else ", and pass --arch FOLDER of that model"
        raise InputError(f"{problem}; peft is not installed", f"pip install peft{where}; or {MERGE}")
    if found is None or (found / CONFIG).is_file():
        raise InputError(problem, f"pass --arch FOLDER, which holds that model and its config.json; or {MERGE}")
    kind = str(config.get("peft_type"))
    if kind not in KINDS or config.get("megatron_config"):  # the others fetch files, or import what the file names
        fix = "load it with peft, and pass the model in Python: calibcli.logits(model, data, save=...), curvature(...)"
        raise InputError(f"{folder} holds an adapter of the kind {kind}, which is not added here", fix)
    return found


def tensors(folder: Path) -> dict[str, Tensor]:
    """Read the weights of an adapter by their names, without the prefix that peft puts before those of the model.

    Raises:
        InputError: there are none, or they are damaged.
    """
    path = next((folder / name for name in WEIGHTS if (folder / name).is_file()), folder / WEIGHTS[0])
    tree = containers.read(path, trust=False).tensors
    return {k: v for k, v in dict(tree).items() if isinstance(v, Tensor)} if isinstance(tree, Mapping) else {}


def classes(stored: Mapping[str, Tensor]) -> int | None:
    """Return the number of outputs of a classification head that was trained with an adapter; None if it has none."""
    heads = [tensor for name, tensor in stored.items() if HEAD.search(name) and tensor.ndim == 2]
    return len(heads[-1]) if heads else None


def added(model: nn.Module, folder: Path, stored: Mapping[str, Tensor]) -> nn.Module:
    """Add an adapter to its model. Its own weights can be trained afterwards, those of the model are frozen.

    Raises:
        InputError: peft does not take it, or the weights in the file are not those of the result.
    """
    import peft

    problem = f"{folder} cannot be added to its model by peft {peft.__version__}"
    fix = f"pass the model that it was trained on (--arch FOLDER), or {MERGE}"
    with (
        refusing(FAILURES, lambda e: f"{problem} ({' '.join(str(e).split())[:200]})", fix),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(action="ignore"),
    ):
        for name, module in model.named_modules():  # words that were added before the training come with the adapter
            words = stored.get(f"base_model.model.{name}.weight") if isinstance(module, nn.Embedding) else None
            if words is not None and len(words) != len(module.weight):
                cast(Any, model).resize_token_embeddings(len(words))
        changed: Any = peft.PeftModel.from_pretrained(model, folder, is_trainable=True, local_files_only=True)
        own = peft.get_peft_model_state_dict(changed, save_embedding_layers=False)
    state = {**changed.state_dict(), **own}
    odd = [k for k, v in stored.items() if k not in state or not torch.equal(state[k].float(), v.float())]
    if odd := [*odd, *(k for k in own if k not in stored)]:
        raise InputError(f"{problem}: {len(odd)} of its weights find no place or are missing, first '{odd[0]}'", fix)
    return changed.eval()  # type: ignore[no-any-return]
