"""What a state file has to hold before a run believes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from calibcli import wellformed
from calibcli.errors import InputError, refusing
from calibcli.spec import Range

SCHEMA = 1
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
SLOTS = {"SGD": {"momentum_buffer"}, "Adam": MOMENTS, "AdamW": MOMENTS, "Adagrad": {"step", "sum"}}
"""What each optimizer keeps of a parameter."""


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

    epoch: Annotated[int, Range(0, 1_000_000)] = 0
    step: Annotated[int, Range(0, 10**12)] = 0
    loss_sum: float = 0.0
    rows: Annotated[int, Range(0, 10**12)] = 0
    gradient_norm: float | None = None
    penalties: dict[str, list[float]] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Any] | None = None
    since_best: Annotated[int, Range(0, 1_000_000)] = 0
    finished: bool = False

    def problem(self) -> str:
        """A log of another length than the epochs that are done, or sums without their number."""
        if len(self.history) != self.epoch:
            return f"the log has {len(self.history)} epochs, {self.epoch} are done"
        bad = next((name for name, pair in self.penalties.items() if len(pair) != 2 or pair[1] == 0), None)
        return "" if bad is None else f"penalties.{bad} is not a sum and a number"


@dataclass
class Best:
    """The best epoch so far."""

    value: float
    epoch: Annotated[int, Range(1, 1_000_000)]
    weights: Mapping[str, Tensor]


@dataclass
class Local:
    """What each process has of its own: random states and buffers."""

    torch: Tensor
    generator: Tensor
    buffers: Mapping[str, Tensor]
    cuda: Tensor | None = None


@dataclass
class Held:
    """A state file: `identity` and `history` are JSON, `position` the rest of a `Position`."""

    schema: int
    identity: str
    position: Mapping[str, Any]
    history: str
    model: Mapping[str, Tensor]
    parts: Mapping[str, Mapping[str, Any]]
    local: list[Local]


def read(content: Any, path: Path, fix: str) -> tuple[Held, dict[str, Any], Position]:
    """The parts of a state file, the identity of its run, and where that was.

    Raises:
        InputError: something is missing, of another type or out of range.
    """
    source = str(path)
    if not isinstance(content, dict) or "schema" not in content:
        raise InputError(f"{path} is not the state of a run", fix)
    if content["schema"] != SCHEMA:
        raise wellformed.wrong(content["schema"], f"{SCHEMA}, which this version reads", source, fix, "schema")
    held: Held = wellformed.read(content, Held, source, fix)
    with refusing((ValueError, RecursionError), f"{path}: its identity or its log is not JSON", fix):
        identity, history = json.loads(held.identity), json.loads(held.history)
    stored: dict[str, Any] = wellformed.read(identity, dict[str, Any], source, fix, "identity")
    if not isinstance(stored.get("recipe"), dict):
        raise InputError(f"{path}: identity.recipe is missing", fix)
    position: Position = wellformed.read({**held.position, "history": history}, Position, source, fix, "position")
    return held, stored, position


def check(
    held: Held,
    position: Position,
    identity: Mapping[str, Any],
    model: nn.Module,
    parts: Mapping[str, Any],
    path: Path,
    fix: str,
) -> None:
    """Refuse a state that this run cannot have left: epochs beyond its end, other tensors, numbers that are not finite.

    Raises:
        InputError: it has one of these.
    """
    epochs = identity["recipe"].get("epochs", 0)
    if position.epoch > epochs:
        raise InputError(f"{path}: position.epoch is {position.epoch}, and the run has {epochs}", fix)
    if position.finished and position.epoch < epochs and not identity["recipe"].get("patience"):
        raise InputError(f"{path}: position.finished is true after {position.epoch} of {epochs} epochs", fix)
    own = model.state_dict()
    named: list[tuple[str, Mapping[str, Tensor], Mapping[str, Tensor]]] = [("model", held.model, own)]
    named += [(f"local[{i}].buffers", one.buffers, dict(model.named_buffers())) for i, one in enumerate(held.local)]
    if position.best is not None:
        best: Best = wellformed.read(position.best, Best, str(path), fix, "position.best")
        if best.epoch > position.epoch:
            raise InputError(f"{path}: position.best.epoch is {best.epoch}, {position.epoch} epochs are done", fix)
        if best.weights or identity["recipe"].get("keep") == "best":
            named.append(("position.best.weights", best.weights, own))
    for key, found, wanted in named:
        if {k: v.shape for k, v in found.items()} != {k: v.shape for k, v in wanted.items()}:
            raise InputError(f"{path}: {key} is not of this model", fix)
    for name, part in parts.items():
        if name not in held.parts:
            raise InputError(f"{path}: parts.{name} is missing", fix)
        if isinstance(part, torch.optim.Optimizer):
            _check_optimizer(held.parts[name], part, path, fix)
    for key, tensor in _tensors({"model": held.model, "parts": held.parts}, ""):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{path}: {key} is not finite", fix)


def _check_optimizer(found: Mapping[str, Any], own: torch.optim.Optimizer, path: Path, fix: str) -> None:
    """Its settings are the recipe's, and what it keeps has the shapes of the parameters."""
    groups, states = found.get("param_groups"), found.get("state")
    shapes = dict(enumerate(p.shape for group in own.param_groups for p in group["params"]))
    slots = SLOTS[type(own).__name__]

    def settings(group: Any) -> Any:
        return isinstance(group, dict) and {name: value for name, value in group.items() if name != "lr"}

    def fits(name: str, value: Any, shape: torch.Size) -> bool:
        if value is None:
            return name == "momentum_buffer"
        return isinstance(value, Tensor) and value.shape == (torch.Size() if name == "step" else shape)

    if not (
        isinstance(groups, list)
        and isinstance(states, dict)
        and [*map(settings, groups)] == [*map(settings, own.state_dict()["param_groups"])]
        and all(index in shapes and isinstance(state, dict) and set(state) == slots for index, state in states.items())
        and all(fits(name, value, shapes[i]) for i, state in states.items() for name, value in state.items())
    ):
        raise InputError(f"{path}: parts.optimizer is not of this run", fix)


def _tensors(content: Any, key: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(content, Tensor):
        yield key, content
    elif isinstance(content, dict):
        for name, value in content.items():
            yield from _tensors(value, f"{key}.{name}".lstrip("."))
