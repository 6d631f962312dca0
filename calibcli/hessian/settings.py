"""The state the engine needs of torch while it runs, given back afterwards, also after an exception."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from calibcli import device as devices
from calibcli.signals import Signals, held_signals


@contextlib.contextmanager
def second_order(device: torch.device) -> Iterator[None]:
    """Gradients on, fused attention, autocast and TF32 off; all as before on the way out, random state included.

    Scaled-dot-product attention has a second derivative in its math backend only, and `nn.MultiheadAttention` none
    in its fused inference path.
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
        ):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def plain_recurrence(model: nn.Module) -> Iterator[None]:
    """cuDNN off around a model that holds recurrent layers: its kernels have no second derivative."""
    if any(isinstance(m, nn.RNNBase) for m in model.modules()):
        with devices.cudnn(enabled=False):
            yield
    else:
        yield


@contextlib.contextmanager
def memory_said(problem: Any) -> Iterator[None]:
    """Memory that runs out where no smaller plan would help is an `InputError`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not devices.is_out_of_memory(error):
            raise
        raise problem.too_large() from None


@contextlib.contextmanager
def held_together() -> Iterator[Signals | None]:
    """Signals held until all ranks have heard of them; None, and nothing held, for one process."""
    if devices.world() == 1:
        yield None
        return
    with held_signals() as signals:
        yield signals


def affine_norm(model: nn.Module) -> None:
    """Let the batch norms of a model in eval mode write out the affine map that they are, in place.

    The function and its derivatives in weight and bias are the same; torch's own second derivative of batch norm
    takes a dozen passes over the activations, a fifth of a Hessian product of a residual network.
    """
    known = (nn.modules.batchnorm._BatchNorm.forward, nn.SyncBatchNorm.forward)
    for module in model.modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm) or type(module).forward not in known:
            continue
        if module.running_mean is not None and module.running_var is not None:
            scale = torch.rsqrt(module.running_var + module.eps)
            module.register_buffer("calib_scale", scale, persistent=False)
            module.register_buffer("calib_shift", -module.running_mean * scale, persistent=False)
            module.forward = MethodType(_affine, module)  # type: ignore[method-assign]


def _affine(self: nn.modules.batchnorm._BatchNorm, x: torch.Tensor) -> torch.Tensor:
    self._check_input_dim(x)  # type: ignore[no-untyped-call]
    scale, shift = cast(torch.Tensor, self.calib_scale), cast(torch.Tensor, self.calib_shift)
    if self.affine:
        scale, shift = scale * self.weight, self.bias + shift * self.weight
    shape = (1, -1, *[1] * (x.ndim - 2))
    return torch.addcmul(shift.view(shape), x, scale.view(shape))


class AttentionWatch(TorchFunctionMode):
    """Notes whether a forward pass calls scaled-dot-product attention."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.seen = True
        return func(*args, **(kwargs or {}))
