"""Weights that `fully_shard` (FSDP2) shares out among processes: their part here, and gradients of the whole.

All processes make the same passes at the same time, as each pass gathers weights from all of them. Of the rows of a
pass each takes its part, and every process then has the whole gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from calibcli.core.errors import InputError
from calibcli.networks import device as devices

FULLY_SHARDED = "FSDPModule"  # by name: its module takes long to import


def units(model: nn.Module) -> list[Any]:
    """List the modules whose weights are gathered together; none of a model that is not sharded."""
    return [m for m in model.modules() if any(kind.__name__ == FULLY_SHARDED for kind in type(m).__mro__)]


def check(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse a sharded model that is not as it would be measured, as it is not copied.

    Raises:
        InputError: weights in another precision or on another device, or batch norm without running statistics.
    """
    let_go(units(model))  # what was gathered for a forward pass is in the place of its parameters
    for name, p in model.named_parameters():
        if hasattr(p, "device_mesh") and p.device_mesh.ndim > 1:
            fix = "shard it over a mesh of one dimension, or gather the weights into a network that is not sharded"
            raise InputError(f"parameter '{name}' is sharded over a mesh of {p.device_mesh.ndim} dimensions", fix)
        if p.dtype != dtype and p.is_floating_point():
            has, fix = str(p.dtype)[6:], f"call model.to(torch.{str(dtype)[6:]}) before fully_shard"
            fix = f"pass dtype='{has}', or {fix}" if has in devices.DTYPES else fix
            raise InputError(f"parameter '{name}' is {has}, and weights that are sharded cannot be converted", fix)
        if p.device.type != device.type:
            raise InputError(f"parameter '{name}' is on {p.device}, not on {device}", f"pass device='{p.device.type}'")
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            fix = "train it with track_running_stats=True, or use a norm of each row, such as GroupNorm"
            raise InputError(f"'{name}' is a batch norm without running statistics: rows depend on each other", fix)


def local(tensor: Any) -> Tensor:
    """Return the part of a tensor that this process holds, which shares its memory."""
    part: Tensor = tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor.detach()
    return part


def whole(tensor: Any) -> Tensor:
    """Gather a tensor from all processes."""
    gathered: Tensor = tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    return gathered


def length(tensors: Sequence[Tensor]) -> float:
    """Compute the norm of all of them."""
    return float(torch.stack([whole(t.detach().norm()) for t in tensors]).norm())


def places(tensors: Sequence[Any]) -> list[slice | Tensor]:
    """Find which elements of each tensor, row by row, this process holds."""
    found: list[slice | Tensor] = []
    for t in tensors:
        if not hasattr(t, "to_local"):
            found.append(slice(None))
            continue
        from torch.distributed.tensor import distribute_tensor

        numbers = torch.arange(t.numel(), device=t.device).view(t.shape)
        own = distribute_tensor(numbers, t.device_mesh, t.placements).to_local().reshape(-1)
        first = int(own[0]) if len(own) else 0
        run = torch.arange(first, first + len(own), device=own.device)
        found.append(slice(first, first + len(own)) if bool((own == run).all()) else own)
    return found


def shares(pieces: Sequence[Tensor], here: Sequence[slice | Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Take what is at these `places` of each piece, a whole tensor that all processes have, in the shapes of `like`."""
    return [piece.reshape(-1)[at].view_as(t) for piece, at, t in zip(pieces, here, like)]


def let_go(gathered: Sequence[Any]) -> None:
    """Forget weights that were gathered by units (see `units`): they are gathered anew, as they are then."""
    for unit in gathered:
        unit.reshard()


def own(rows: Any) -> tuple[Any, float]:
    """Return this process's part of a pass over rows (a range, or whole numbers), and what its sum counts.

    Gradients come as the mean over processes. One without rows takes the first, which counts 0.
    """
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    every = torch.arange(rows.start, rows.stop) if isinstance(rows, range) else rows
    mine = every[rank::world]
    return (mine, float(world)) if len(mine) else (every[:1], 0.0)


def gradients(total: Tensor, tensors: Sequence[Tensor], model: nn.Module) -> list[Tensor]:
    """Compute the gradient of a sum over rows in every tensor: whole, and over all processes' rows."""
    total.backward()  # type: ignore[no-untyped-call]  # hooks of the units reduce gradients into `.grad`
    gathered = [torch.zeros_like(whole(t)) if t.grad is None else whole(t.grad) for t in tensors]
    for tensor in model.parameters():
        tensor.grad = None
    return gathered


@contextlib.contextmanager
def output_bytes(model: nn.Module) -> Iterator[list[int]]:
    """Collect the bytes of what the innermost modules give; saved tensors cannot be counted, as their memory goes."""
    sizes: list[int] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        sizes.extend(part.nbytes for part in tree_leaves(output) if isinstance(part, Tensor))

    hooks = [m.register_forward_hook(note) for m in model.modules() if not any(m.children())]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def as_it_was(model: nn.Module | None) -> Iterator[None]:
    """Put a sharded model, which is not copied, in eval mode, all processes in step; restore modes and gradients."""
    gathering = [] if model is None else units(model)
    if model is None or not gathering:
        yield
        return
    let_go(gathering)
    modes = [(module, module.training) for module in model.modules()]
    slopes = [(p, p.grad) for p in model.parameters()]
    for parameter, _ in slopes:
        parameter.grad = None
    try:
        model.eval()
        with devices.in_step():
            yield
    finally:
        let_go(gathering)
        for module, mode in modes:
            module.training = mode
        for parameter, slope in slopes:
            parameter.grad = slope
