"""Data-parallel training: every process takes every world-th row of a batch, and gradients are summed.

The sum runs over gradients already divided by the whole batch, so uneven shares are exact. No wrapper is put around
the model, so penalties may differentiate twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calibcli import device


def share(rows: Tensor) -> Tensor:
    """This process's rows of a batch."""
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
    """The values of all processes, by rank."""
    if device.world() == 1:
        return [value]
    import torch.distributed as dist

    found: list[Any] = [None] * device.world()
    with device.together():
        dist.all_gather_object(found, value)
    return found
