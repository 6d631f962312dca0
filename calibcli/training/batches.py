"""Which rows a step sees, and where they wait: batches, and data kept on the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from calibcli.inputs.dataset import Dataset

Inputs = Tensor | Mapping[str, Tensor]
Index = NDArray[np.int64]
RESIDENT_BYTES = 1 << 30  # data up to this size is preprocessed once and stays on the device


class Loader:
    """Batches of a data set on a device; small data sets are preprocessed once and kept there.

    Attributes:
        labels: (N,) int64, on the device.  shape: of one row, as the model gets it.
    """

    def __init__(self, data: Dataset, device: torch.device, dtype: torch.dtype) -> None:
        self.data, self.device, self.dtype = data, device, dtype
        self.labels = torch.from_numpy(data.labels).to(device)
        self.shape = data.shape
        self.kept: Inputs | None = None
        size = 8 if dtype == torch.float64 else 4
        if len(data) * int(np.prod(self.shape)) * size <= RESIDENT_BYTES:
            parts = [self._read(slice(i, i + 4096)) for i in range(0, len(data), 4096)]
            self.kept = tree_map(lambda *tensors: torch.cat(tensors), *parts)

    @classmethod
    def holding(cls, inputs: Tensor, labels: Tensor) -> Loader:
        """A loader of rows that are on their device already."""
        made = cls.__new__(cls)
        made.kept, made.labels, made.shape = inputs, labels, tuple(inputs.shape[1:])
        made.device, made.dtype = inputs.device, inputs.dtype
        return made

    def __len__(self) -> int:
        return len(self.labels)

    def _read(self, rows: slice | Index) -> Inputs:
        inputs, _ = self.data.batch(rows, device=self.device, dtype=self.dtype)
        return inputs

    def __call__(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """Inputs and labels of these rows (int64, on the CPU)."""
        index = rows.to(self.device)
        if self.kept is None:
            return self._read(rows.numpy()), self.labels[index]
        return tree_map(lambda tensor: tensor[index], self.kept), self.labels[index]


class Batches:
    """The rows of every step: a new permutation per epoch from (seed, epoch) alone, so any step can be rebuilt.

    A last batch of fewer than two rows per process is left out (batch statistics need two).
    """

    def __init__(self, rows: int, size: int, seed: int, ranks: int = 1) -> None:
        self.rows, self.size, self.seed = rows, min(size, rows), seed
        full, rest = divmod(rows, self.size)
        self.steps = full + (rest >= 2 * ranks)

    def epoch(self, number: int) -> Tensor:
        """All rows in this epoch's order, int64 `(rows,)`."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + number) % 2**63)
        return torch.randperm(self.rows, generator=generator)

    def batch(self, order: Tensor, step: int) -> Tensor:
        """The rows of a step, over all processes."""
        return order[step * self.size : (step + 1) * self.size]
