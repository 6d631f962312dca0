"""Where code runs: device, dtype and seed, free memory, the ranks of a `torchrun` launch, and signals that wait until
a step is whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Any

from calibcli.core.errors import InputError, UsageError, did_you_mean
from calibcli.core.options import OrNone, Seed, option

if TYPE_CHECKING:
    import torch

# Signals wait until a step is whole: what is saved can be continued, and ranks stop together.

HELD = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopping(BaseException):
    """A signal asked the run to stop; raised only where the state is whole."""


class Signals:
    """SIGINT, SIGTERM and SIGHUP remembered. A second one acts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise `Stopping` if a signal came."""
        if self.received is not None:
            raise Stopping

    def release(self) -> None:
        """Put the former handlers back and let the signal that came act."""
        number, self.received = self.received, None
        self._restore()
        if number is not None:
            signal.raise_signal(number)

    def _take(self) -> None:
        for number in HELD:
            if signal.getsignal(number) is not signal.SIG_IGN:  # a job of a script's background ignores Ctrl-C
                self._before[number] = signal.signal(number, self._remember)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self.release()
        self.received = number


@contextlib.contextmanager
def held_signals() -> Iterator[Signals]:
    """Hold these signals back inside the block (elsewhere than in the main thread: leave them alone)."""
    signals = Signals()
    with contextlib.suppress(ValueError):
        signals._take()
    try:
        yield signals
    finally:
        signals._restore()


# Where code runs: device, dtype, seed, free memory, and the ranks of a `torchrun` launch. torch is imported lazily.


DTYPES = ("float32", "float64")
OUT_OF_MEMORY = (
    *("can't allocate memory", "could not create a primitive", "STATUS_ALLOC_FAILED", "out of memory"),
    *("unable to find an engine", "Unable to find a valid cuDNN algorithm"),
)
WAIT = timedelta(minutes=30)  # for the other ranks, before a rank gives up


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where torch code runs, as options."""

    device: str = option("auto", "Device: auto, cpu, cuda or cuda:N.")
    dtype: str = option("float32", "Precision: float32 or float64.")


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """What is random."""

    seed: Seed = option(0, "Random seed.")


@dataclass(frozen=True, kw_only=True)
class Work(Seeded):
    """What is random, and on how many cores."""

    threads: OrNone = option(0, "Worker threads; 0 uses all cores.")


@dataclass(frozen=True, kw_only=True)
class Machine(Work, Device):
    """All of it."""


def rank() -> int:
    """This process's rank under torchrun, else 0."""
    return int(os.environ.get("RANK", "0"))


def world() -> int:
    """Number of processes under torchrun, else 1."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def count() -> int:
    """CUDA devices of this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def pick(name: str = "auto") -> torch.device:
    """The device of `auto`, `cpu`, `cuda` or `cuda:N`. `auto` is CUDA when there is one, by local rank.

    Raises:
        UsageError: unknown name, or no such device on this machine.
    """
    import torch

    local = int(os.environ.get("LOCAL_RANK", "0"))
    together = int(os.environ.get("LOCAL_WORLD_SIZE", str(world())))
    gpus = count()
    if name == "cpu" or (name == "auto" and not gpus):
        return torch.device("cpu")
    if name in ("auto", "cuda") or (name.startswith("cuda:") and name[5:].isdigit()):
        if together > 1 and ":" in name:
            raise UsageError(f"--device {name} is one device for {together} processes", "pass --device cuda")
        if together > gpus > 0:
            raise UsageError(
                f"{together} processes share {gpus} CUDA device(s)",
                f"start as many as there are devices (--nproc-per-node {gpus}), or pass --device cpu",
            )
        index = int(name[5:]) if ":" in name else local
        if index >= gpus:
            raise UsageError(f"no device '{name}': this machine has {gpus} CUDA device(s)", "pass --device cpu")
        return torch.device("cuda", index)
    raise UsageError(f"unknown device '{name}'", did_you_mean(name, ("auto", "cpu", "cuda", "cuda:0")))


def free_bytes(device: torch.device | None = None) -> int:
    """Bytes that can still be allocated on a CUDA device, what torch keeps for itself included; else `free_memory`."""
    if device is None or device.type != "cuda":
        from calibcli.core.memory import free_memory

        return free_memory()
    import torch

    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + cached


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
            dist.init_process_group("nccl", device_id=device, timeout=WAIT)
        else:
            dist.init_process_group("gloo", timeout=WAIT)
    try:
        yield
    finally:
        if joined:
            dist.destroy_process_group()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Around what ranks do together.

    Raises:
        InputError: another of them ended, or did not answer within `WAIT`.
    """
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise InputError(
            f"rank {rank()} waited in vain for another process of this launch ({str(error).splitlines()[0]})",
            "look at what that one said last, and start all of them again",
        ) from None


def all_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum over ranks, in place; the same tensor for one process.

    Raises:
        InputError: as `together`.
    """
    if world() > 1:
        import torch.distributed as dist

        with together():
            dist.all_reduce(tensor)
    return tensor


def all_sum_of_host(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Sum over ranks, by way of the device, of a tensor on the CPU; the same tensor for one process."""
    return tensor if world() == 1 else all_sum(tensor.to(device)).cpu()


def all_least(device: torch.device, *values: int) -> list[int]:
    """The least of the ranks' values, one by one; the values themselves for one process.

    Raises:
        InputError: as `together`.
    """
    if world() == 1:
        return [*values]
    import torch
    import torch.distributed as dist

    shared = torch.tensor(values, device=device)
    with together():
        dist.all_reduce(shared, dist.ReduceOp.MIN)
        found: list[int] = shared.tolist()
    return found


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` is CUDA's, cuDNN's, the CPU allocator's or oneDNN's way to say that memory ran out.

    cuDNN and oneDNN report no reason; of an operation that they support, as those of a model that ran, memory is the
    one left.
    """
    import torch

    said = any(t in str(error) for t in OUT_OF_MEMORY)
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or (isinstance(error, RuntimeError) and said)


def of_dtype(error: BaseException, dtype: torch.dtype) -> InputError | None:
    """What to say of a model's error, if it is that its forward pass asks for another precision than `dtype`."""
    said = str(error).splitlines()[-1:]
    if not said or not any(word in str(error) for word in ("dtype", "scalar type", "Double")):
        return None
    has = str(dtype).removeprefix("torch.")
    other, call = ("float32", "float()") if has == "float64" else ("float64", "double()")
    return InputError(
        f"the model does not run in {has} ({said[0]})",
        f"pass --dtype {other}, or take {call}, dtype= and constants in {other} out of its forward pass",
    )


@contextlib.contextmanager
def unchanged_rng(device: torch.device | None = None) -> Iterator[None]:
    """Leave torch's global random state (CPU and the given CUDA device) as it was found."""
    import torch

    devices: list[Any] = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        yield


@contextlib.contextmanager
def full_float32(tf32: bool = False) -> Iterator[None]:
    """Products and convolutions in float32 proper within the block; or in TF32, where that is wished for."""
    import torch

    with _settings(torch.backends.cuda.matmul, allow_tf32=tf32), cudnn(allow_tf32=tf32):
        yield


@contextlib.contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """The same algorithms in every run, within the block: cuDNN's, cuBLAS's, and torch's own that have such a form."""
    import torch

    with cudnn(deterministic=True, benchmark=False):
        if device.type == "cpu":
            yield
            return
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # looked at when cuBLAS starts
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            with (
                _settings(torch.utils.deterministic, fill_uninitialized_memory=False),  # it costs a pass over each
                warnings.catch_warnings(),
            ):
                warnings.filterwarnings("ignore", message=".*deterministic")
                yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


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


def set_threads(count: int) -> None:
    """Let torch use that many threads; 0 leaves it to torch."""
    import torch

    if count:
        torch.set_num_threads(count)
