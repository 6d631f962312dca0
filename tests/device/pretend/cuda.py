"""The names of `torch.cuda` that a build without CUDA answers otherwise, over the pretended devices."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

COUNT = int(os.environ.get("PRETEND_GPUS", "1"))


def install() -> None:
    """Let `torch.cuda` and what asks it see the pretended devices."""
    import torch

    ops, cuda = torch.ops.pretend, torch.cuda

    def index(device: Any = None) -> int:
        if isinstance(device, int):
            return device
        found = None if device is None else torch.device(device).index
        return int(ops.device()) if found is None else found

    def free(device: Any = None) -> tuple[int, int]:
        used, _, total, _ = ops.memory()
        return total - used, total

    def properties(device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(
            name="pretend", major=9, minor=0, total_memory=free()[1], multi_processor_count=132, gcnArchName=""
        )

    generators = tuple(torch.Generator(torch.device("cuda", i)) for i in range(COUNT))
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: COUNT,
        "_is_compiled": lambda: True,
        "_lazy_init": lambda: None,
        "_initialized": True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "current_device": ops.device,
        "set_device": lambda device: ops.set_device(index(device)),
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "mem_get_info": free,
        "memory_allocated": lambda device=None: ops.memory()[0],
        "memory_reserved": lambda device=None: ops.memory()[0],
        "max_memory_allocated": lambda device=None: ops.memory()[1],
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": properties,
        "get_device_name": lambda device=None: "pretend",
        "is_bf16_supported": lambda *args, **options: True,
        "is_current_stream_capturing": lambda: False,
        "_is_in_bad_fork": lambda: False,
        "default_generators": generators,
        "get_rng_state_all": lambda: [g.get_state() for g in generators],
    }
    randomness = {
        "get_rng_state": lambda device="cuda": generators[index(device)].get_state(),
        "set_rng_state": lambda state, device="cuda": generators[index(device)].set_state(state),
        "manual_seed": lambda seed: generators[index()].manual_seed(seed),
        "manual_seed_all": lambda seed: [g.manual_seed(seed) for g in generators],
    }
    for name, value in {**answers, **randomness}.items():
        setattr(cuda, name, value)
    for name, value in randomness.items():  # the rest of torch asks by these names
        setattr(cuda.random, name, value)
    for name, value in {"_cuda_isCurrentStreamCapturing": False, "_cuda_getCurrentRawStream": 0}.items():
        if not hasattr(torch._C, name):
            setattr(torch._C, name, lambda *args, value=value: value)
    _storages()


def _storages() -> None:
    """A copy of a storage goes by way of its bytes as a tensor."""
    import torch

    clone = torch.UntypedStorage.clone

    def copied(self: Any) -> Any:
        if self.device.type != "cuda":
            return clone(self)
        made = torch.empty(self.nbytes(), dtype=torch.uint8, device=self.device)
        return made.copy_(torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)).untyped_storage()

    torch.UntypedStorage.clone = copied  # type: ignore[method-assign]
