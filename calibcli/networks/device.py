"""Device, dtype and seed, free memory, the ranks of a `torchrun` launch, and signals held back until a step is done."""

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

# Signals are held back until a training step is done, so that a saved state can be resumed and ranks stop together.

HELD = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stopping(BaseException):
    """A signal asked the run to stop; raised only between steps."""


class Signals:
    """Remembers SIGINT, SIGTERM and SIGHUP. A second one acts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def check(self) -> None:
        """Raise `Stopping` if a signal came."""
        if self.received is not None:
            raise Stopping

    def release(self) -> None:
        """Restore the former handlers and raise the signal that came."""
        number, self.received = self.received, None
        self._restore()
        if number is not None:
            signal.raise_signal(number)

    def _take(self) -> None:
        for number in HELD:
            if signal.getsignal(number) is not signal.SIG_IGN:  # background jobs of scripts ignore Ctrl-C
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
    """Hold these signals back inside the block. Outside the main thread they are left alone."""
    signals = Signals()
    with contextlib.suppress(ValueError):
        signals._take()
    try:
        yield signals
    finally:
        signals._restore()


# Device, dtype, seed, free memory, and the ranks of a `torchrun` launch. torch is imported in the functions, because
# commands that do not need it take their options from here.

DTYPES = ("float32", "float64")
OUT_OF_MEMORY = (  # parts of messages of the CPU allocator, oneDNN, CUDA and cuDNN
    *("can't allocate memory", "could not create a primitive", "STATUS_ALLOC_FAILED", "out of memory"),
    *("unable to find an engine", "Unable to find a valid cuDNN algorithm"),
)
WAIT = timedelta(minutes=30)  # how long a rank waits for the others


@dataclass(frozen=True, kw_only=True)
class Device:
    """The options of device and precision."""

    device: str = option("auto", "Device: auto, cpu, cuda or cuda:N.")
    dtype: str = option("float32", "Precision: float32 or float64.")


@dataclass(frozen=True, kw_only=True)
class Seeded:
    """The seed as an option."""

    seed: Seed = option(0, "Random seed.")


@dataclass(frozen=True, kw_only=True)
class Work(Seeded):
    """The seed and the number of threads as options."""

    threads: OrNone = option(0, "Worker threads; 0 uses all cores.")


@dataclass(frozen=True, kw_only=True)
class Machine(Work, Device):
    """The options of device, precision, seed and threads."""


def rank() -> int:
    """Return this process's rank under torchrun, else 0."""
    return 0 if _step else int(os.environ.get("RANK", "0"))


def world() -> int:
    """Return the number of processes under torchrun, or 1, also within `in_step`."""
    return 1 if _step else int(os.environ.get("WORLD_SIZE", "1"))


_step: list[None] = []  # not empty within `in_step`


@contextlib.contextmanager
def in_step() -> Iterator[None]:
    """Let each process of a launch work on all rows within the block, as if alone, all of them at the same pace.

    A model whose weights are sharded over them needs that: each pass gathers weights from all. What they
    decide by, such as the free memory, is the same in all of them.
    """
    _step.append(None)
    try:
        yield
    finally:
        _step.pop()


def local_world() -> int:
    """Return the number of processes under torchrun on this machine, else 1."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", str(world())))


def count() -> int:
    """Count the CUDA devices of this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def pick(name: str = "auto") -> torch.device:
    """Return the device of `auto`, `cpu`, `cuda` or `cuda:N`. `auto` is CUDA if there is one, chosen by local rank.

    Raises:
        UsageError: unknown name, or no such device on this machine.
    """
    import torch

    local, together, gpus = int(os.environ.get("LOCAL_RANK", "0")), local_world(), count()
    if name == "cpu" or (name == "auto" and not gpus):
        return torch.device("cpu")
    if name in ("auto", "cuda") or (name.startswith("cuda:") and name[5:].isdigit()):
        if together > 1 and ":" in name:
            raise UsageError(f"--device {name} is one device for {together} processes", "pass --device cuda")
        if together > gpus > 0:
            fix = f"start as many as there are devices (--nproc-per-node {gpus}), or pass --device cpu"
            raise UsageError(f"{together} processes share {gpus} CUDA device(s)", fix)
        index = int(name[5:]) if ":" in name else local
        if index >= gpus:
            raise UsageError(f"no device '{name}': this machine has {gpus} CUDA device(s)", "pass --device cpu")
        return torch.device("cuda", index)
    raise UsageError(f"unknown device '{name}'", did_you_mean(name, ("auto", "cpu", "cuda", "cuda:0")))


def free_bytes(device: torch.device | None = None) -> int:
    """Count the bytes that can still be allocated on a CUDA device, including those that torch caches; on the host, see
    `free_memory`."""
    import torch

    where = device or torch.device("cpu")
    if where.type != "cuda":
        from calibcli.core.memory import free_memory

        free = free_memory()
    else:
        cached = torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
        free = int(torch.cuda.mem_get_info(where)[0]) + cached
    return all_least(where, free)[0] if _step else free


def free_for_each(device: torch.device | None = None) -> int:
    """Count the bytes of `free_bytes` that each process here may take: they share the machine's memory, not a GPU's."""
    return free_bytes(device) // (1 if device is not None and device.type == "cuda" else local_world())


def dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a name in `DTYPES`.

    Raises:
        UsageError: unknown name.
    """
    import torch

    if name not in DTYPES:
        raise UsageError(f"unknown dtype '{name}'", did_you_mean(name, DTYPES))
    chosen: torch.dtype = getattr(torch, name)
    return chosen


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Join the ranks of a torchrun launch (nccl on CUDA, gloo on CPU); do nothing for one process."""
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
    """Run a collective operation inside the block.

    Raises:
        InputError: another rank ended, or did not answer within `WAIT`.
    """
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        problem = f"rank {rank()} waited in vain for another process of this launch ({str(error).splitlines()[0]})"
        raise InputError(problem, "look at what that one said last, and start all of them again") from None


def all_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Sum a tensor over ranks, in place; for one process, return it unchanged.

    Raises:
        InputError: as `together`.
    """
    if world() > 1:
        import torch.distributed as dist

        with together():
            dist.all_reduce(tensor)
    return tensor


def all_sum_of_host(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Sum a tensor on the CPU over ranks by way of the device; for one process, return it unchanged."""
    return tensor if world() == 1 else all_sum(tensor.to(device)).cpu()


def all_least(device: torch.device, *values: int) -> list[int]:
    """Take the minimum of each value over ranks; for one process, return the values.

    Raises:
        InputError: as `together`.
    """
    import torch
    import torch.distributed as dist

    if world() == 1 and not (_step and dist.is_initialized()):
        return [*values]
    shared = torch.tensor(values, device=device)
    with together():
        dist.all_reduce(shared, dist.ReduceOp.MIN)
        least: list[int] = shared.tolist()
    return least


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory ran out, in the words of CUDA, cuDNN, the CPU allocator or oneDNN.

    cuDNN and oneDNN only report that an operation failed. For an operation that they support, such as one that ran
    before, the reason is memory.
    """
    import torch

    named = any(t in str(error) for t in OUT_OF_MEMORY)
    return isinstance(error, torch.cuda.OutOfMemoryError | MemoryError) or (isinstance(error, RuntimeError) and named)


def of_dtype(error: BaseException, dtype: torch.dtype) -> InputError | None:
    """Return our error for a model whose forward pass needs another precision than `dtype`; None for other errors."""
    message = str(error).splitlines()[-1:]
    if not message or not any(word in str(error) for word in ("dtype", "scalar type", "Double")):
        return None
    has = str(dtype).removeprefix("torch.")
    other, call = ("float32", "float()") if has == "float64" else ("float64", "double()")
    fix = f"pass --dtype {other}, or take {call}, dtype= and constants in {other} out of its forward pass"
    return InputError(f"the model does not run in {has} ({message[0]})", fix)


def unchanged_rng(device: torch.device | None = None) -> contextlib.AbstractContextManager[None]:
    """Restore torch's global random state (CPU and the given CUDA device) after the block."""
    import torch

    devices: list[Any] = [device] if device is not None and device.type == "cuda" else []
    return torch.random.fork_rng(devices=devices)


@contextlib.contextmanager
def full_float32(tf32: bool = False) -> Iterator[None]:
    """Compute products and convolutions in full float32 within the block, or in TF32 if `tf32`."""
    import torch

    with _settings(torch.backends.cuda.matmul, allow_tf32=tf32), cudnn(allow_tf32=tf32):
        yield


@contextlib.contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Use deterministic algorithms of cuDNN, cuBLAS and torch within the block, where there are any."""
    import torch

    with cudnn(deterministic=True, benchmark=False):
        if device.type == "cpu":
            yield
            return
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            unfilled = _settings(torch.utils.deterministic, fill_uninitialized_memory=False)
            with unfilled, warnings.catch_warnings():  # filling costs a pass over each tensor
                warnings.filterwarnings("ignore", message=".*deterministic")
                yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def cudnn(**settings: bool) -> contextlib.AbstractContextManager[None]:
    """Set flags of cuDNN (`enabled`, `deterministic`, `benchmark`, `allow_tf32`) within the block; keep its others.

    `torch.backends.cudnn.flags` would reset the flags that are not named to False, `enabled` among them.
    """
    import torch

    return _settings(torch.backends.cudnn, **settings)


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
    """Set the number of threads of torch; 0 leaves it to torch."""
    import torch

    if count:
        torch.set_num_threads(count)
