"""A pretended CUDA for torch builds without one: `pretend.load()` before torch is imported.

Tensors on "cuda" live in host memory and run the CPU's kernels, and what CUDA refuses is refused: tensors on two
devices, a generator of the wrong device, `.numpy()`. Memory is counted and runs out at a limit that can be set.
Kernels, synchronisations and copies are counted. The environment variable PRETEND_GPUS is the number of devices.

    pretend.load()
    torch.zeros(3, device="cuda") + torch.zeros(3)      # RuntimeError: Expected all tensors to be on the same device
    pretend.reset(); work(); print(pretend.kernels(), pretend.syncs(), pretend.peak())

It cannot show cuDNN's numerics and determinism, TF32, streams, fragmentation, pinned memory or the real nccl. `foreach`
counts as one kernel, and so does a convolution.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from pretend import build

VIEWS = ("as_strided", "view", "_reshape_alias", "unfold", "set_", "resize_", "_unsafe_view")


def load() -> None:
    """Put the devices into torch."""
    assert "torch" not in sys.modules, "torch is imported already"
    ctypes.CDLL(str(build.library()), mode=ctypes.RTLD_GLOBAL)
    from pretend import cuda, nccl

    cuda.install()
    nccl.install()


def _ops() -> Any:
    import torch

    return torch.ops.pretend


def counts() -> dict[str, int]:
    """Calls since `reset`, by name: `aten::mm`, `sync ...`, `copy host to device`."""
    return {name: int(count) for name, count in (line.split("\t") for line in _ops().counts().splitlines())}


def reset() -> None:
    """Start the counts, the peak and the refusals again."""
    _ops().reset()


def syncs() -> int:
    """Times that the host waited for the device."""
    return sum(count for name, count in counts().items() if name.startswith("sync"))


def copies() -> int:
    """Copies from the host to the device."""
    return counts().get("copy host to device", 0)


def kernels() -> int:
    """Calls that launch something: views and notes are left out."""
    views = tuple(f"aten::{name}" for name in VIEWS)
    return sum(n for name, n in counts().items() if name.startswith("aten::") and not name.startswith(views))


def used() -> int:
    """Bytes that tensors hold on the devices."""
    return int(_ops().memory()[0])


def peak() -> int:
    """Most bytes held since `reset`."""
    return int(_ops().memory()[1])


def limit(size: int) -> int:
    """Set the bytes that the devices have; returns what it was."""
    before = int(_ops().memory()[2])
    _ops().limit(size)
    return before


def refused() -> int:
    """Allocations since `reset` for which there was no room."""
    return int(_ops().memory()[3])
