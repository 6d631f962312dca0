"""Sums over long vectors in float64, block by block: a block stays in a CPU's cache, and no wide copy is made."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

BLOCK = 1 << 16  # elements


def blocks(vector: torch.Tensor) -> Iterator[slice]:
    """Slices of (..., size) vectors: cache-sized on a CPU, all of it elsewhere."""
    size = vector.shape[-1]
    step = BLOCK if vector.device.type == "cpu" else size
    return (slice(i, i + step) for i in range(0, size, step))


def inner(a: torch.Tensor, b: torch.Tensor) -> float:
    """aᵀb of two (size,) vectors of any precision, in float64."""
    return math.fsum(float(torch.dot(a[s].double(), b[s].double())) for s in blocks(a))


def norm(a: torch.Tensor) -> float:
    """‖a‖ of a (size,) vector, in float64."""
    return math.sqrt(inner(a, a))
