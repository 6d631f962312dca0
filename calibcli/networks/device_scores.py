"""Scores in a torch tensor on a device, processed there.

Rows are processed in float32 or float64 as NumPy would, and only numbers per row come to the host. They equal those of
`Piece` and `SoftmaxBlock` to the precision of the pass. The host waits for the device once per block of some million
scores. Tensors on the CPU are read by NumPy without a copy, which is faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibcli.scores.predictions import Array, Floats, Ints, Kind
from calibcli.scores.softmax import DeviceScores, Piece, SoftmaxBlock

AT_ONCE = 1 << 24  # scores of a block
NO_DOUBLE = ("cpu", "mps", "meta")  # devices whose memory NumPy reads, without float64, or without numbers


class TensorPiece(Piece):
    """A piece of scores on a device; its properties are computed there."""

    def __init__(self, part: Tensor) -> None:
        self.part, (self.n, self.k) = part, part.shape
        best = part.argmax(dim=1)
        top = part.gather(1, best[:, None])
        several = (part == top).sum(dim=1)
        self.top, self._best, self._several = host(top[:, 0]), host(best), host(several)
        self.low = float(part.min()) if self.n else math.inf
        self.narrow = False

    @property
    def z(self) -> Array:  # type: ignore[override]
        """All scores, copied to the host; rarely needed."""
        return host(self.part)

    @property
    def least(self) -> Array:
        return host(self.part.amin(dim=1))

    @property
    def sums(self) -> Floats:
        return host(self.part.sum(dim=1, dtype=torch.float64))

    @property
    def log_sums(self) -> Floats:
        return host(self.part.logsumexp(dim=1).double())

    def columns(self, which: Sequence[int]) -> list[Array]:
        return [*host(self.part[:, list(which)].T.contiguous())]

    def at(self, labels: Ints) -> Array:
        return host(self.part.gather(1, there(labels, self.part)[:, None])[:, 0])


class TensorBlock(SoftmaxBlock):
    """A block whose sums over classes are computed on the device and copied to the host at once."""

    def _sums(self, z: Any) -> tuple[Floats, ...]:
        labels = there(self.labels, z)
        weights = None if self.weights is None else there(self.weights, z)
        top = z.argmax(dim=1)[:, None]
        d = z - z.gather(1, top)
        gap = -d.gather(1, labels[:, None])[:, 0]
        e = d.exp().scatter_(1, top, 0.0)
        r = e.sum(dim=1, dtype=torch.float64)
        total = 1 + r
        named = [top[:, 0], r, gap]
        if not self.confidence_only:
            deep = d.masked_fill(d == -math.inf, 0.0) if self.masked else d
            first = (e * d.clamp(min=-1e4)).sum(dim=1, dtype=torch.float64) / total
            squares = (e * e).sum(dim=1, dtype=torch.float64) / (total * total)
            named += [squares, first, -deep.amin(dim=1)]
        if self.least:
            e /= total[:, None]
            row, col = (e >= self.least).nonzero(as_tuple=True)
            self.listed.append((host(row), host(col), host(e[row, col].double())))
            mass = e.double().sum(dim=0) if weights is None else weights @ e.double()
            self.mass += host(mass)
        index, r, gap, *more = host(torch.stack([one.double() for one in named]))
        self.top = index.astype(np.int64)
        squares, first, deep = more or (r, r, r)
        return r, squares, first, gap, deep


@dataclass(frozen=True, eq=False)
class TensorScores(DeviceScores):
    """(N, K) scores on a device, copied to the host by rows.

    Attributes:
        tensor: (N, K) of any float type.
        dtype: of the rows that are read.
        kind: of the scores in the tensor; if `ready`, probabilities are read as their logarithms.
        least: smallest probability; if `ready`, smaller ones are raised to it.
    """

    block = TensorBlock
    tensor: Tensor
    dtype: np.dtype[Any]
    kind: Kind = "logits"
    least: float = 0.0
    ready: bool = False

    def left_out(self, depth: float) -> TensorScores:
        """Return these scores with -inf for those that lie `depth` or more below the largest of their row."""
        wide = self.tensor.double()
        mask = wide.amax(dim=1, keepdim=True) - wide >= depth
        return replace(self, tensor=self.tensor.masked_fill(mask, -math.inf))

    def measured(self, kind: Kind, dtype: np.dtype[Any], least: float) -> TensorScores:
        """Return these scores ready to be measured: logits or log-probabilities, in float32 or float64."""
        return replace(self, dtype=dtype, kind=kind, least=least, ready=True)

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.tensor.shape
        return n, k

    @property
    def height(self) -> int:
        """Number of rows of a block."""
        return max(1, AT_ONCE // self.shape[1])

    def part(self, rows: slice | Tensor, wide: bool = False) -> Tensor:
        """Return rows on the device, in float64 if `wide` or if `dtype` is."""
        part = self.tensor[rows].to(torch.float64 if wide or self.dtype.itemsize > 4 else torch.float32)
        if self.ready and self.kind == "probabilities":
            part = part.clamp(min=self.least).log()
        elif self.ready and self.kind == "log_probabilities" and self.least:
            part = part.clamp(min=math.log(self.least))
        return part

    def piece(self, start: int, stop: int) -> Piece:
        return TensorPiece(self.part(slice(start, stop)))

    def read(self, start: int, stop: int) -> Array:
        return host(self.part(slice(start, stop))).astype(self.dtype, copy=False)

    def rows(self, index: Ints) -> Array:
        """Copy the given rows to the host."""
        return host(self.part(there(index, self.tensor))).astype(self.dtype, copy=False)


def of_tensor(tensor: Tensor) -> TensorScores | None:
    """Wrap a tensor as scores; None if NumPy should read it: on the CPU, with one column, or of integers."""
    dtypes = {"float64": np.float64, "float16": np.float16}
    if tensor.ndim != 2 or tensor.shape[1] < 2 or not tensor.is_floating_point() or tensor.device.type in NO_DOUBLE:
        return None
    return TensorScores(tensor, np.dtype(dtypes.get(str(tensor.dtype).removeprefix("torch."), np.float32)))


def host(tensor: Tensor) -> Array:
    """Copy a tensor to a NumPy array."""
    array: Array = tensor.cpu().numpy()
    return array


def there(values: Array, beside: Tensor) -> Tensor:
    """Copy a NumPy array to the device of another tensor."""
    tensor: Tensor = torch.from_numpy(np.ascontiguousarray(values)).to(beside.device)
    return tensor
