"""The data set as the engine sees it: rows by index, cut into groups that carry the sampling error and micro-batches.

Everything random or grouped is a function of the row's index alone, so that results do not depend on the micro-batch
size, the number of ranks or the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from calibcli import device as devices
from calibcli.errors import InputError

BLOCK = 256  # rows that a group, and on a CPU a micro-batch, stays within
MOST = {"cpu": BLOCK}  # rows of a micro-batch, by sort of device
MANY = 4096  # on the others, which wait for the next launch where there are few
Inputs = Any  # a Tensor, or a dict of Tensors by argument name


class IndexedData(Protocol):
    """An indexed data set."""

    @property
    def labels(self) -> Any:
        """(N,) integers: a Tensor or an array."""
        ...

    def __len__(self) -> int: ...

    def batch(self, rows: Any, *, device: torch.device, dtype: torch.dtype) -> tuple[Inputs, torch.Tensor]: ...


class Tensors:
    """`IndexedData` over tensors in memory.

    Args:
        inputs: (N, ...) tensor, or a dict of them by argument name. Floating inputs are cast to the model's dtype.
        labels: (N,) integers, a tensor or an array.

    Raises:
        InputError: the rows of inputs and labels differ, or there are none.
    """

    def __init__(self, inputs: Inputs, labels: Any) -> None:
        parts = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
        if not len(labels) or any(len(part) != len(labels) for part in parts):
            found = " and ".join(str(len(part)) for part in parts)
            raise InputError(f"{found} rows of inputs, {len(labels)} labels", "pass one label per row, at least one")
        self.inputs = inputs
        self.labels = torch.as_tensor(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Any, *, device: torch.device, dtype: torch.dtype) -> tuple[Inputs, torch.Tensor]:
        def take(part: torch.Tensor) -> torch.Tensor:
            part = part[torch.as_tensor(rows)]
            return part.to(device, dtype if part.is_floating_point() else part.dtype)

        inputs = {k: take(v) for k, v in self.inputs.items()} if isinstance(self.inputs, dict) else take(self.inputs)
        return inputs, self.labels[torch.as_tensor(rows)].to(device)


@dataclass(frozen=True)
class Layout:
    """How N rows are cut: groups inside blocks of 256 rows, micro-batches that hold whole ones or lie in one.

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


def power_of_two(rows: int, most: int = BLOCK) -> int:
    """The largest power of two up to `rows`, between 1 and `most`."""
    return 1 << (max(1, min(rows, most)).bit_length() - 1)


def signs(size: int, seed: int, row: int, numbers: range) -> torch.Tensor:
    """(m, size) int8 Rademacher probes, functions of (seed, first row that they are for, number) (Philox counter)."""
    keys = (np.array([seed, (row << 32) | i], np.uint64) for i in numbers)
    bits = np.stack([np.random.Philox(key=key).random_raw(-(-size // 64)) for key in keys])
    ones = np.unpackbits(bits.astype("<u8").view(np.uint8), axis=1, count=size).view(np.int8)
    return torch.from_numpy(ones).mul_(2).sub_(1)


def normal(size: int, seed: int, number: int) -> torch.Tensor:
    """(size,) standard normal vector in float64, a function of (seed, number) alone."""
    stream = np.random.Generator(np.random.Philox(key=np.array([seed, (1 << 63) | number], np.uint64)))
    return torch.from_numpy(stream.standard_normal(size))
