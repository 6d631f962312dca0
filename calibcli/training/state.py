"""What a run needs to go on exactly where it was, in one file that is written whole or not at all."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibcli import device
from calibcli.errors import InputError, UsageError, refusing
from calibcli.files import atomic
from calibcli.training import stores
from calibcli.training.parallel import gather
from calibcli.training.stores import SCHEMA, Position

FILE = "state.pt"
UNFIT = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)
UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError)

__all__ = ["FILE", "Position", "State", "weights"]


@dataclass(frozen=True)
class State:
    """A run's state file, and what is kept in it.

    Attributes:
        identity: recipe and data, which a continued run must share.
        parts: objects with `state_dict`, by name.
        model, generator: of the run.
    """

    path: Path
    identity: dict[str, Any]
    parts: dict[str, Any]
    model: nn.Module
    generator: torch.Generator

    def save(self, position: Position) -> None:
        """Write the state at `position`; every process calls it, rank 0 writes.

        Raises:
            InputError: a weight is not finite; the file is left as it was.
        """
        model, generator = self.model, self.generator
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
            raise InputError(
                f"the weights of '{bad}' are no longer finite", "lower --lr, or pass --clip-norm 1 or --warmup 0.1"
            )
        content = {
            "schema": SCHEMA,
            "identity": json.dumps(self.identity),
            "position": {k: v for k, v in vars(position).items() if k != "history"},
            "history": json.dumps(position.history),
            "model": {k: v.detach() for k, v in model.state_dict().items()},
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "local": local,
        }
        with atomic(self.path) as temporary:
            torch.save(content, temporary)

    def load(self) -> Position:
        """Put a saved state into these objects and return where the run was.

        Raises:
            InputError: not a state of this version, damaged, or of another number of processes.
            UsageError: of another recipe, model or data.
        """
        path, model, parts = self.path, self.model, self.parts
        fix = "pass --overwrite to start again, or another --save folder"
        with refusing(UNREADABLE, lambda error: f"{path} is not the state of a run ({_first_line(error)})", fix):
            content = torch.load(path, map_location="cpu", weights_only=True)
        held, stored, position = stores.read(content, path, fix)
        found = differences(stored, json.loads(json.dumps(self.identity)))
        if found:
            raise UsageError(f"{path} is of another run ({'; '.join(found)})", f"pass the same options; or {fix[5:]}")
        if len(held.local) != device.world():
            raise InputError(f"{path} is of {len(held.local)} processes, this is {device.world()}", fix)
        local: stores.Local = held.local[device.rank()]
        stores.check(held, position, stored, model, parts, path, fix)
        with refusing(UNFIT, lambda error: f"{path} does not fit this run ({_first_line(error)})", fix):
            model.load_state_dict(held.model)
            for name, part in parts.items():
                part.load_state_dict(held.parts[name])
            for name, buffer in model.named_buffers():
                buffer.copy_(local.buffers[name])
            torch.set_rng_state(local.torch)
            if local.cuda is not None:
                torch.cuda.set_rng_state(local.cuda, self.generator.device)
            self.generator.set_state(local.generator)
        return position


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:100]


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
