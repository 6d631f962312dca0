"""The state the engine needs of torch while it runs, given back afterwards, also after an exception."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from calibcli import device as devices
from calibcli.signals import Signals, held_signals


@contextlib.contextmanager
def second_order(device: torch.device) -> Iterator[None]:
    """Gradients on; fused attention, autocast, TF32 and compiled parts off; all as before on the way out, random state
    included.

    Scaled-dot-product attention has a second derivative in its math backend only, `nn.MultiheadAttention` none in its
    fused inference path, and what `torch.compile` made none: it runs as it was written.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            devices.full_float32(),
            devices.unchanged_rng(device),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
            sdpa_kernel(SDPBackend.MATH),
            torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext(),
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def plain_recurrence(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """cuDNN off around a model that holds recurrent layers: its kernels have no second derivative."""
    recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())
    return devices.cudnn(enabled=False) if recurrent else contextlib.nullcontext()


@contextlib.contextmanager
def memory_said(problem: Any) -> Iterator[None]:
    """Memory that runs out where no smaller plan would help is an `InputError`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not devices.is_out_of_memory(error):
            raise
        raise problem.too_large() from None


def held_together() -> contextlib.AbstractContextManager[Signals | None]:
    """Signals held until all ranks have heard of them; None, and nothing held, for one process."""
    return held_signals() if devices.world() > 1 else contextlib.nullcontext()


class AttentionWatch(TorchFunctionMode):
    """Notes whether a forward pass calls scaled-dot-product attention."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.seen = True
        return func(*args, **(kwargs or {}))
