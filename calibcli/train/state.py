"""What a run needs to go on exactly where it was, in one file that is written whole or not at all."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibcli import device
from calibcli.errors import InputError, UsageError
from calibcli.files import atomic
from calibcli.train.ranks import gather

SCHEMA = 1
FILE = "state.pt"


@dataclass
class Position:
    """How far a run is.

    Attributes:
        epoch, step: the next step to take.
        loss_sum: of the losses of this epoch's steps times their rows.  rows: of those steps.
        gradient_norm: of the last layer at the epoch's last step.
        penalties: sum and number of each penalty's values in this epoch.
        history: one record per finished epoch, as in the log.
        best: value, epoch and weights of the best epoch so far, where asked for.
        since_best: epochs without a better one.  finished: no step is left.
    """

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    rows: int = 0
    gradient_norm: float | None = None
    penalties: dict[str, list[float]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    since_best: int = 0
    finished: bool = False


def save(
    path: Path,
    position: Position,
    identity: dict[str, Any],
    parts: dict[str, Any],
    model: nn.Module,
    generator: torch.Generator,
) -> None:
    """Write the state; every process calls it, rank 0 writes.

    Args:
        identity: recipe and data, which a continued run must share.
        parts: objects with `state_dict`, by name.

    Raises:
        InputError: a weight is not finite; the file is left as it was.
    """
    local = gather(
        {
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(generator.device) if generator.device.type == "cuda" else None,
            "generator": generator.get_state(),
            "buffers": {k: v.detach().cpu() for k, v in model.named_buffers()},
        }
    )
    if device.rank():
        return
    bad = next((name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())), None)
    if bad is not None:
        raise InputError(f"the weights of '{bad}' are no longer finite", "lower --lr, or pass --clip 1 or --warmup 0.1")
    content = {
        "schema": SCHEMA,
        "identity": json.dumps(identity),
        "position": {k: v for k, v in vars(position).items() if k != "history"},
        "history": json.dumps(position.history),
        "model": {k: v.detach() for k, v in model.state_dict().items()},
        "parts": {name: part.state_dict() for name, part in parts.items()},
        "local": local,
    }
    with atomic(path) as temporary:
        torch.save(content, temporary)


def load(
    path: Path,
    identity: dict[str, Any],
    parts: dict[str, Any],
    model: nn.Module,
    generator: torch.Generator,
) -> Position:
    """Put a saved state into these objects and return where the run was.

    Raises:
        InputError: not a state of this version, damaged, or of another number of processes.
        UsageError: of another recipe, model or data.
    """
    fix = "pass --overwrite to start again, or another --save folder"
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        schema, stored = content["schema"], json.loads(content["identity"])
        position = Position(**content["position"], history=json.loads(content["history"]))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
        raise InputError(f"{path} is not the state of a run ({str(error).splitlines()[0][:100]})", fix) from None
    if schema != SCHEMA:
        raise InputError(f"{path} has schema {schema}, this version reads {SCHEMA}", fix)
    found = differences(stored, json.loads(json.dumps(identity)))
    if found:
        raise UsageError(f"{path} is of another run ({'; '.join(found)})", f"pass the same options; or {fix[5:]}")
    if len(content["local"]) != device.world():
        raise InputError(f"{path} is of {len(content['local'])} processes, this is {device.world()}", fix)
    model.load_state_dict(content["model"])
    for name, part in parts.items():
        part.load_state_dict(content["parts"][name])
    local = content["local"][device.rank()]
    for name, buffer in model.named_buffers():
        buffer.copy_(local["buffers"][name])
    torch.set_rng_state(local["torch"])
    if local["cuda"] is not None:
        torch.cuda.set_rng_state(local["cuda"], generator.device)
    generator.set_state(local["generator"])
    return position


def weights(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the model's state, on the CPU."""
    return {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}


def differences(stored: Any, given: Any, name: str = "", most: int = 60) -> list[str]:
    """What differs between two JSON values, leaf by leaf: `recipe lr: 0.1, not 0.2`; long texts from where they do."""
    if isinstance(stored, dict) and isinstance(given, dict):
        keys = dict.fromkeys([*stored, *given])
        return [d for k in keys for d in differences(stored.get(k), given.get(k), f"{name} {k}".strip(), most)]
    if stored == given:
        return []
    texts = ["nothing" if value is None else str(value) for value in (stored, given)]
    start = next((i for i, (a, b) in enumerate(zip(*texts)) if a != b), min(map(len, texts)))
    start = start - 12 if max(map(len, texts)) > most and start > 15 else 0
    cut = [("..." if start else "") + t[start : start + most] + ("..." if len(t) > start + most else "") for t in texts]
    return [f"{name}: {cut[0]}, not {cut[1]}"]
