"""The state file from which a run continues exactly where it was, and data-parallel training over ranks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from calibcli.core import validation
from calibcli.core.errors import InputError, UsageError, first_line, refusing
from calibcli.core.files import atomic
from calibcli.core.options import Range
from calibcli.networks import device

# Data-parallel training: every process takes every world-th row of a batch, and gradients are summed.
#
# The sum runs over gradients already divided by the whole batch, so uneven shares are exact. No wrapper is put around
# the model, so penalties may differentiate twice.


def share(rows: Tensor) -> Tensor:
    """Return this process's rows of a batch."""
    return rows[device.rank() :: device.world()] if device.world() > 1 else rows


def sum_gradients(parameters: Sequence[nn.Parameter], value: Tensor, stop: bool) -> tuple[Tensor, bool]:
    """Sum gradients over processes, in place, in one message with the loss and the wish to stop.

    Returns:
        the summed loss, and whether any process wishes to stop.
    """
    if device.world() == 1:
        return value, stop
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    extra = torch.stack([value.to(gradients[0].dtype), value.new_tensor(float(stop), dtype=gradients[0].dtype)])
    flat = device.all_sum(torch.cat([*(g.flatten() for g in gradients), extra]))
    for p, g in zip(parameters, torch.split(flat[:-2], [g.numel() for g in gradients])):
        p.grad = g.view_as(p)
    return flat[-2], bool(flat[-1] > 0)


def agree(model: nn.Module, buffers_only: bool = False) -> None:
    """Give every process rank 0's parameters and buffers."""
    if device.world() > 1:
        import torch.distributed as dist

        tensors = [*model.buffers()] if buffers_only else [*model.parameters(), *model.buffers()]
        with device.together():
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)


def gather(value: Any) -> list[Any]:
    """Gather the values of all processes, by rank."""
    if device.world() == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * device.world()
    with device.together():
        dist.all_gather_object(values, value)
    return values


# The state file, which is written whole or not at all.

FILE = "state.pt"
UNFIT = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)
UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError)


@dataclass(frozen=True)
class TrainingState:
    """A run's state file, and the objects whose state it holds.

    Attributes:
        identity: recipe and data, which must be the same when the run is continued.
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
            problem = f"the weights of '{bad}' are no longer finite"
            raise InputError(problem, "lower --lr, or pass --clip-norm 1 or --warmup 0.1")
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

    def load(self, lengthen: Callable[[Mapping[str, Any], Position], None] | None = None) -> Position:
        """Put a saved state into these objects and return where the run was.

        Args:
            lengthen: is called with the saved recipe where it differs in `LENGTH` alone, and with the position; it
                raises a `UsageError` if the new recipe would not have come to this state.

        Raises:
            InputError: not a state of this version, damaged, or of another number of processes.
            UsageError: it belongs to another recipe, model or data.
        """
        path, model, parts = self.path, self.model, self.parts
        fix = "pass --overwrite to start again, or another --save folder"
        with refusing(UNREADABLE, lambda error: f"{path} is not the state of a run ({first_line(error)})", fix):
            content = torch.load(path, map_location="cpu", weights_only=True)
        saved, stored, position = read(content, path, fix)
        current = json.loads(json.dumps(self.identity))
        differing, recipe = differences(stored, current), current["recipe"]
        as_long = {**stored, "recipe": {**stored["recipe"], **{name: recipe.get(name) for name in LENGTH}}}
        if differing and (lengthen is None or as_long != current or recipe["epochs"] < position.epoch):
            problem = f"{path} belongs to another run ({'; '.join(differing)})"
            raise UsageError(problem, f"pass the same options; or {fix.removeprefix('pass ')}")
        if len(saved.local) != device.world():
            raise InputError(f"{path} is of {len(saved.local)} processes, this run has {device.world()}", fix)
        local: ProcessState = saved.local[device.rank()]
        check(saved, position, stored, model, parts, path, fix)
        if differing and lengthen is not None:
            lengthen(stored["recipe"], position)
        with refusing(UNFIT, lambda error: f"{path} does not fit this run ({first_line(error)})", fix):
            model.load_state_dict(saved.model)
            for name, part in parts.items():
                part.load_state_dict(saved.parts[name])
            for name, buffer in model.named_buffers():
                buffer.copy_(local.buffers[name])
            torch.set_rng_state(local.torch)
            if local.cuda is not None:
                torch.cuda.set_rng_state(local.cuda, self.generator.device)
            self.generator.set_state(local.generator)
        return position


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Copy the model's state to the CPU."""
    return {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}


def differences(stored: Any, current: Any, name: str = "", most: int = 60) -> list[str]:
    """List the differences of two JSON values, leaf by leaf: `recipe lr: 0.1, not 0.2`; long texts are cut."""
    if isinstance(stored, dict) and isinstance(current, dict):
        keys = dict.fromkeys([*stored, *current])
        return [d for k in keys for d in differences(stored.get(k), current.get(k), f"{name} {k}".strip(), most)]
    if stored == current:
        return []
    texts = ["nothing" if value is None else str(value) for value in (stored, current)]
    start = next((i for i, (a, b) in enumerate(zip(*texts)) if a != b), min(map(len, texts)))
    start = start - 12 if max(map(len, texts)) > most and start > 15 else 0
    cut = [("..." if start else "") + t[start : start + most] + ("..." if len(t) > start + most else "") for t in texts]
    return [f"{name}: {cut[0]}, not {cut[1]}"]


SCHEMA = 1
LENGTH = ("epochs", "schedule", "warmup")
"""What of a recipe may change when a run goes on, as long as the learning rates of its past stay the same."""
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
SLOTS = {"SGD": {"momentum_buffer"}, "Adam": MOMENTS, "AdamW": MOMENTS, "Adagrad": {"step", "sum"}}
"""The values that each optimizer keeps for a parameter."""


@dataclass
class Position:
    """The progress of a run.

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
        """Report a log of another length than the finished epochs, or sums without their number; "" if all is right."""
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
class ProcessState:
    """The state that each process has of its own: random states and buffers."""

    torch: Tensor
    generator: Tensor
    buffers: Mapping[str, Tensor]
    cuda: Tensor | None = None


@dataclass
class SavedState:
    """The content of a state file: `identity` and `history` are JSON, `position` the other fields of a `Position`."""

    schema: int
    identity: str
    position: Mapping[str, Any]
    history: str
    model: Mapping[str, Tensor]
    parts: Mapping[str, Mapping[str, Any]]
    local: list[ProcessState]


def read(content: Any, path: Path, fix: str) -> tuple[SavedState, dict[str, Any], Position]:
    """Read the content of a state file, the identity of its run, and the run's position.

    Raises:
        InputError: something is missing, of another type or out of range.
    """
    source = str(path)
    if not isinstance(content, dict) or "schema" not in content:
        raise InputError(f"{path} is not the state of a run", fix)
    if content["schema"] != SCHEMA:
        raise validation.wrong(content["schema"], f"{SCHEMA}, which this version reads", source, fix, "schema")
    saved: SavedState = validation.read(content, SavedState, source, fix)
    with refusing((ValueError, RecursionError), f"{path}: its identity or its log is not JSON", fix):
        identity, history = json.loads(saved.identity), json.loads(saved.history)
    stored: dict[str, Any] = validation.read(identity, dict[str, Any], source, fix, "identity")
    if not isinstance(stored.get("recipe"), dict):
        raise InputError(f"{path}: identity.recipe is missing", fix)
    position: Position = validation.read({**saved.position, "history": history}, Position, source, fix, "position")
    return saved, stored, position


def check(
    saved: SavedState,
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
    stops_early = any(identity["recipe"].get(name) is not None for name in ("patience", "stop_nll"))
    if position.finished and position.epoch < epochs and not stops_early:
        raise InputError(f"{path}: position.finished is true after {position.epoch} of {epochs} epochs", fix)
    model_tensors = model.state_dict()
    named: list[tuple[str, Mapping[str, Tensor], Mapping[str, Tensor]]] = [("model", saved.model, model_tensors)]
    named += [(f"local[{i}].buffers", one.buffers, dict(model.named_buffers())) for i, one in enumerate(saved.local)]
    if position.best is not None:
        best: Best = validation.read(position.best, Best, str(path), fix, "position.best")
        if best.epoch > position.epoch:
            raise InputError(f"{path}: position.best.epoch is {best.epoch}, {position.epoch} epochs are done", fix)
        if best.weights or identity["recipe"].get("keep") == "best":
            named.append(("position.best.weights", best.weights, model_tensors))
    for key, state, wanted in named:
        if {k: v.shape for k, v in state.items()} != {k: v.shape for k, v in wanted.items()}:
            raise InputError(f"{path}: {key} is not of this model", fix)
    for name, part in parts.items():
        if name not in saved.parts:
            raise InputError(f"{path}: parts.{name} is missing", fix)
        if isinstance(part, torch.optim.Optimizer):
            _check_optimizer(saved.parts[name], part, path, fix)
    for key, tensor in _tensors({"model": saved.model, "parts": saved.parts}, ""):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{path}: {key} is not finite", fix)


def _check_optimizer(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer, path: Path, fix: str) -> None:
    """Refuse a state of an optimizer with other settings than the recipe's, or with values of other shapes."""
    groups, states = saved.get("param_groups"), saved.get("state")
    shapes = dict(enumerate(p.shape for group in optimizer.param_groups for p in group["params"]))
    slots = SLOTS[type(optimizer).__name__]

    def settings(group: Any) -> Any:
        return isinstance(group, dict) and {name: value for name, value in group.items() if name != "lr"}

    def fits(name: str, value: Any, shape: torch.Size) -> bool:
        if value is None:
            return name == "momentum_buffer"
        return isinstance(value, Tensor) and value.shape == (torch.Size() if name == "step" else shape)

    if not (
        isinstance(groups, list)
        and isinstance(states, dict)
        and [*map(settings, groups)] == [*map(settings, optimizer.state_dict()["param_groups"])]
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
