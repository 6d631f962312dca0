"""The memory plan of `calib curvature`: how many rows are worked on at once, and whether their graphs are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn

from calibcli.networks import device as devices
from calibcli.networks.device import free_bytes

Memory = Literal["auto", "low", "high"]

BLOCK = 256  # rows that a group, and on a CPU a micro-batch, stays within
MOST = {"cpu": BLOCK}  # rows of a micro-batch, by sort of device
MANY = 4096  # on the others, which wait for the next launch where there are few
GRAPH = {"auto": 160 << 20, "high": 160 << 20, "low": 40 << 20}  # bytes of one micro-batch's graph to aim for
FREE = {"auto": 4, "high": 4, "low": 256}  # part of what is free on a device to aim for, where that is more
ROWS_OVER_WEIGHTS = 8  # bytes of a micro-batch's graph over those of the weights, from which the latter cost little
CACHED = 8 << 20  # bytes of a graph up to which a CPU takes more than BLOCK rows: 256 cost hardly less than a thousand
BUSY = 16 << 20  # bytes of a graph beyond which a CPU gains little from larger ones: a group's own then tells more
SHORT = 8  # part of the free memory that a micro-batch's graph may take: a second backward pass takes as much again
VECTORS = 8  # as long as the parameters: what a self-test, and a product with what is around it, holds at least
KEPT = 0.4  # share of the free memory that the kept graphs of all micro-batches may take


def power_of_two(rows: int, most: int = BLOCK) -> int:
    """The largest power of two up to `rows`, between 1 and `most`."""
    return 1 << (max(1, min(rows, most)).bit_length() - 1)


@dataclass(frozen=True)
class Layout:
    """How N rows are cut: groups inside blocks of 256 rows, micro-batches that hold whole groups or lie in one.

    Groups carry the sampling error. They depend on the index of a row alone, so that results do not depend on the
    micro-batch size, the number of ranks or the device.

    Attributes:
        n: rows of the whole data set.
        micro: rows per micro-batch, a power of two.
        group: rows per group, the power of two that makes at least 16 groups (one row each below 32 rows).
        rank, world: this process's share is a contiguous run of groups.
    """

    n: int
    micro: int
    rank: int
    world: int

    @classmethod
    def of(cls, n: int, micro: int = BLOCK, device: str = "cpu") -> Layout:
        return cls(n, power_of_two(micro, MOST.get(device, MANY)), devices.rank(), devices.world())

    @property
    def group(self) -> int:
        return power_of_two(self.n // 16)

    @property
    def groups(self) -> int:
        return -(-self.n // self.group)

    @property
    def weights(self) -> torch.Tensor:
        """(groups,) share of each group in the mean over rows."""
        counts = torch.full((self.groups,), float(self.group), dtype=torch.float64)
        counts[-1] = self.n - self.group * (self.groups - 1)
        return counts / self.n

    @property
    def local(self) -> range:
        """Rows of this rank."""
        first, last = (self.group * (self.groups * r // self.world) for r in (self.rank, self.rank + 1))
        return range(min(first, self.n), min(last, self.n))

    def batches(self, rows: int = 0) -> Iterator[range]:
        """Runs of at most `rows` (default: micro) of this rank's rows; none straddles a block or splits unevenly."""
        size = rows or self.micro
        block = max(size, BLOCK)
        start, end = self.local.start, self.local.stop
        while start < end:
            stop = min(start + size, end, (start // block + 1) * block)
            yield range(start, stop)
            start = stop


@dataclass(frozen=True)
class MemoryPlan:
    """How rows are cut into micro-batches, and whether their graphs are kept.

    Attributes:
        device: where the rows are worked on.
        memory: what the user asked for, see `CurvatureProblem`.
        fixed: whether the user chose the rows per micro-batch.
        layout: micro-batches and groups.
        rows: whose graphs memory takes at once; a micro-batch has no more than there are.
        keep: whether the first-order graph of every micro-batch is kept.
    """

    device: torch.device
    memory: Memory
    fixed: bool
    layout: Layout
    rows: int
    keep: bool

    @classmethod
    def first(cls, n: int, device: torch.device, memory: Memory, batch_size: int) -> MemoryPlan:
        """The plan for n rows before anything is measured; `batch_size` is 0 where the user leaves it open."""
        layout = Layout.of(n, batch_size or 2 * n - 1, device.type)
        return cls(device, memory, bool(batch_size), layout, layout.micro, memory == "high")

    def for_model(self, graph_bytes: int, weights: int, by_group: bool) -> MemoryPlan:
        """The plan for a model with `weights` bytes of parameters, of which a row's graph takes `graph_bytes`.

        `by_group` says that products will be wanted group by group.
        """
        layout, rows, keep = self.layout, self.rows, self.keep
        if not self.fixed:
            most = self._most_rows(graph_bytes, by_group)
            if self.device.type == "cpu" and layout.micro == BLOCK < most:
                layout = replace(layout, micro=power_of_two(2 * layout.n - 1, most))
            rows = power_of_two(self._graph_goal(weights) // max(1, graph_bytes), most)
            micro = min(rows, layout.micro)
            busy = self.device.type == "cpu" and graph_bytes * layout.group >= max(BUSY, 8 * weights)
            if by_group and busy:
                micro = min(micro, layout.group)
            layout = replace(layout, micro=power_of_two(micro, layout.micro))
        plan = replace(self, layout=layout, rows=rows, keep=keep)
        if self.memory == "auto":
            keep = replace(plan, keep=True).graphs(graph_bytes, weights) <= KEPT * free_bytes(self.device)
        return replace(plan, keep=keep)

    def graphs(self, graph_bytes: int, weights: int) -> int:
        """Bytes of the graphs that are held at once, each with a gradient and its negative; arguments as above."""
        count, rows = len(list(self.layout.batches())), len(self.layout.local)
        if not self.keep:
            count, rows = 1, min(self.layout.micro, rows)
        return graph_bytes * rows + 2 * weights * count

    def _most_rows(self, graph_bytes: int, by_group: bool) -> int:
        """Rows that a micro-batch may have, a power of two."""
        if self.device.type != "cpu":
            return MANY
        if by_group and self.layout.group == BLOCK:
            return BLOCK  # products of whole groups are remembered (`Engine.krylov`)
        return max(BLOCK, power_of_two(CACHED // max(1, graph_bytes), MANY))

    def _graph_goal(self, weights: int) -> int:
        """Bytes of one micro-batch's graph to aim for.

        A gradient is held anyway. What a micro-batch costs whatever its rows, to read the weights and to write and sum
        gradients, is to be little beside its rows: where memory is not short, their graph is larger than the weights.
        """
        free = free_bytes(self.device)
        goal = min(max(GRAPH[self.memory], weights), free // SHORT)
        if self.device.type != "cpu":  # it would wait for the launches of small ones
            return max(goal, free // FREE[self.memory])
        if self.memory == "low":
            return goal
        return max(goal, min(ROWS_OVER_WEIGHTS * weights, free // SHORT))

    def smaller(self) -> MemoryPlan | None:
        """The next plan where memory ran out: graphs are not kept, then rows are halved; None after a single row."""
        if self.keep:
            return replace(self, keep=False)
        if self.rows == 1:
            return None
        layout = replace(self.layout, micro=max(1, self.layout.micro // 2))
        return replace(self, layout=layout, rows=self.rows // 2)

    def text(self, graph_bytes: int) -> str:
        """The plan in words."""
        kept = "graphs of all of them kept" if self.keep else "graph of one kept at a time"
        size = graph_bytes * self.layout.micro / 2**20
        return f"micro-batches of {self.layout.micro} rows ({size:.0f} MiB of graph each), {kept}"


@contextlib.contextmanager
def counted_graph(model: nn.Module) -> Iterator[dict[int, int]]:
    """Collect the bytes of each storage that graphs made within it hold, the model's own parameters left out."""
    sizes: dict[int, int] = {}
    model_storages = {t.untyped_storage().data_ptr() for t in model.parameters()}

    def count(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        if tensor.layout == torch.strided:  # a sparse matrix is the model's own, and has no storage to ask
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in model_storages:
                sizes[storage.data_ptr()] = storage.nbytes()
        return tensor.detach(), tensor._version  # the tensor itself would make a cycle of a saved output and its node

    def unchanged(saved: tuple[torch.Tensor, int]) -> torch.Tensor:
        if saved[0]._version != saved[1]:  # hooks switch PyTorch's own check off
            raise RuntimeError("an inplace operation has modified a tensor that its gradient needs")
        return saved[0]

    with torch.autograd.graph.saved_tensors_hooks(count, unchanged):
        yield sizes
