"""Hugging Face model folders: `config.json` beside safetensors weights, read with transformers when it is installed."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from calibcli.errors import InputError

HEADS = ("ForSequenceClassification", "ForImageClassification", "ForAudioClassification", "ForMultipleChoice")


def is_model(path: Path) -> bool:
    return os.path.isfile(path / "config.json")


def model(path: Path) -> tuple[nn.Module, str, list[str] | None]:
    """The classifier of a folder, in float32, the name of its class, and the names of its labels.

    Only classes that transformers itself has are built: code in the folder is never run, and neither are pickled
    weights read.

    Raises:
        InputError: transformers is missing, the folder is not a classifier's, or it needs code or pickles.
    """
    try:
        import transformers
    except ImportError:
        fix = "pip install 'calibcli[hf]', or pass --arch to load its weights into a model of yours"
        raise InputError(f"{path} is a Hugging Face model, and transformers is not installed", fix) from None
    transformers.utils.logging.disable_progress_bar()
    if not any(path.glob("*.safetensors")):
        raise InputError(f"{path} has no .safetensors weights", "save it with model.save_pretrained(folder)")
    try:
        config: Any = transformers.AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        name = next(iter(config.architectures or []), "")
        made = getattr(transformers, name, None)
        if made is None or not name.endswith(HEADS):
            heads = ", ".join(f"...{head}" for head in HEADS)
            problem = f"{path} is a '{name or 'model without a head'}', not a classifier"
            raise InputError(problem, f"pass one of {heads}")
        with warnings.catch_warnings(action="ignore"):
            found: nn.Module = made.from_pretrained(path, config=config, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, TypeError, AttributeError) as error:
        first = str(error).strip().partition("\n")[0][:200]
        raise InputError(f"{path} cannot be loaded by transformers ({first})", "check its config.json") from None
    labels = [str(config.id2label[i]) for i in range(len(config.id2label))]
    named = any(not label.startswith("LABEL_") for label in labels)
    return found.float(), name, labels if named else None
