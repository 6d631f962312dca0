"""Metrics of an evaluation on several GPUs: every rank adds its batches, and all know the result.

torchrun --nproc-per-node 2 with_torch.py        here with a linear model on random rows
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibcli import Accumulator, Result


@torch.no_grad()
def measure(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Result:
    """Of the batches of this rank and of all others; logits stay on their device until they are sums."""
    found = Accumulator(kind="logits")
    for inputs, labels in batches:
        found.update(model(inputs), labels)
    if not dist.is_initialized():
        return found.result()
    parts: list[Accumulator] = [found] * dist.get_world_size()
    dist.all_gather_object(parts, found)
    return Accumulator(kind="logits").merge(*parts).result()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, (rank, world) = nn.Linear(8, 4), (dist.get_rank(), dist.get_world_size())
    inputs, labels = torch.randn(4000, 8), torch.randint(4, (4000,))
    mine = [(inputs[i : i + 500], labels[i : i + 500]) for i in range(0, 4000, 500)][rank::world]
    result = measure(model, mine)
    if rank == 0:
        print(result.to_json())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
