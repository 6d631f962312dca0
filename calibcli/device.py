"""Where torch code runs: device, dtype, seed, and the ranks of a `torchrun` launch. torch is imported lazily."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibcli.errors import UsageError, did_you_mean
from calibcli.spec import OrNone, Seed, option

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "float64")
OUT_OF_MEMORY = (
    *("can't allocate memory", "could not create a primitive", "STATUS_ALLOC_FAILED", "CUDA error: out of memory"),
    *("unable to find an engine", "Unable to find a valid cuDNN algorithm"),
)


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where torch code runs, as options."""

    device: str = option("auto", "Device: auto, cpu, cuda or cuda:N.")
    dtype: str = option("float32", "Precision: float32 or float64.")


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """What is random."""

    seed: Seed = option(0, "Seed of everything that is random.")


@dataclass(frozen=True, kw_only=True)
class Work(Seeded):
    """What is random, and on how many cores."""

    threads: OrNone = option(0, "Worker threads; 0 uses every core.")


@dataclass(frozen=True, kw_only=True)
class Machine(Work, Device):
    """All of it."""


def rank() -> int:
    """This process's rank under torchrun, else 0."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    """Number of processes under torchrun, else 1."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def pick(name: str = "auto") -> torch.device:
    """The device of `auto`, `cpu`, `cuda` or `cuda:N`. `auto` is CUDA when there is one, by local rank.

    Raises:
        UsageError: unknown name, or no such device on this machine.
    """
    import torch

    local = int(os.environ.get("LOCAL_RANK", "0"))
    together = int(os.environ.get("LOCAL_WORLD_SIZE", str(world())))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not count):
        return torch.device("cpu")
    if name in ("auto", "cuda") or (name.startswith("cuda:") and name[5:].isdigit()):
        if together > 1 and ":" in name:
            raise UsageError(f"--device {name} is one device for {together} processes", "pass --device cuda")
        if together > count > 0:
            raise UsageError(
                f"{together} processes share {count} CUDA device(s)",
                f"start as many as there are devices (--nproc-per-node {count}), or pass --device cpu",
            )
        index = int(name[5:]) if ":" in name else local
        if index >= count:
            raise UsageError(f"no device '{name}': this machine has {count} CUDA device(s)", "pass --device cpu")
        return torch.device("cuda", index)
    raise UsageError(f"unknown device '{name}'", did_you_mean(name, ("auto", "cpu", "cuda", "cuda:0")))


def dtype(name: str) -> torch.dtype:
    """The torch dtype of a name in `DTYPES`.

    Raises:
        UsageError: unknown name.
    """
    import torch

    if name not in DTYPES:
        raise UsageError(f"unknown dtype '{name}'", did_you_mean(name, DTYPES))
    found: torch.dtype = getattr(torch, name)
    return found


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the ranks of a torchrun launch (nccl on CUDA, gloo on CPU); nothing to do for one process."""
    if world() == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    joined = not dist.is_initialized()
    if joined:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # object collectives take the current one
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
    try:
        yield
    finally:
        if joined:
            dist.destroy_process_group()


def all_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum over ranks, in place; the same tensor for one process."""
    if world() > 1:
        import torch.distributed as dist

        dist.all_reduce(tensor)
    return tensor


def all_least(value: int, device: torch.device) -> int:
    """The least of the ranks' values; the value itself for one process."""
    if world() == 1:
        return value
    import torch
    import torch.distributed as dist

    shared = torch.tensor([value], device=device)
    dist.all_reduce(shared, dist.ReduceOp.MIN)
    return int(shared)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is CUDA's, cuDNN's, the CPU allocator's or oneDNN's way to say that memory ran out.

    cuDNN and oneDNN report no reason; of an operation that they support, as those of a model that ran, memory is the
    one left.
    """
    import torch

    said = any(t in str(error) for t in OUT_OF_MEMORY)
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or (isinstance(error, RuntimeError) and said)


@contextlib.contextmanager
def unchanged_rng(device: torch.device | None = None) -> Iterator[None]:
    """Leave torch's global random state (CPU and the given CUDA device) as it was found."""
    import torch

    devices: list[Any] = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Products and convolutions in float32 proper: no TF32 within the block."""
    import torch

    with _settings(torch.backends.cuda.matmul, allow_tf32=False), cudnn(allow_tf32=False):
        yield


@contextlib.contextmanager
def cudnn(**settings: bool) -> Iterator[None]:
    """cuDNN with these settings (`enabled`, `deterministic`, `benchmark`, `allow_tf32`) and its others as they are.

    `torch.backends.cudnn.flags` sets all of them: what is not named there, `enabled` among it, goes to a default of
    False.
    """
    import torch

    with _settings(torch.backends.cudnn, **settings):
        yield


@contextlib.contextmanager
def _settings(backend: Any, **settings: bool) -> Iterator[None]:
    before = {name: getattr(backend, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(backend, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(backend, name, value)


def array(given: Any) -> Any:
    """`given` as a NumPy array: any array-like; torch tensors of any device, with a graph or in bfloat16 included."""
    import numpy as np

    if hasattr(given, "detach") and hasattr(given, "cpu"):
        given = given.detach().cpu()
        given = given.float() if str(given.dtype) == "torch.bfloat16" else given
    return np.asarray(given)


def set_threads(count: int) -> None:
    """Let torch use that many threads; 0 leaves it to torch."""
    import torch

    if count:
        torch.set_num_threads(count)
