"""Normalisations that are right at every order of differentiation.

From the third order on PyTorch's own are not: the second derivatives of its batch, instance and layer norms take the
saved mean and spread as constants, so that the gradient of a Hessian trace through them is wrong. Its group and RMS
norms are right in 2.13; they are here because older versions and fused kernels need not be. Signatures are those of
`torch.nn.functional`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F


def upcast(x: Tensor) -> Tensor:
    """x in float32 or wider."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


WRONG = ("BatchNorm", "LayerNorm", "GroupNorm", "RmsNorm", "RMSNorm")
"""Parts of the names of autograd nodes with such a second derivative."""


def batch_norm_with(train: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`F.batch_norm` with another function in train mode: of its arguments without `training`."""

    def batch_norm(
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:  # an affine map
            return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
        return train(input, running_mean, running_var, weight, bias, momentum, eps)

    return batch_norm


batch_norm = batch_norm_with(lambda *args: train_norm(*args)[0])


def train_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm in train mode, with the mean and 1/√(variance + eps) by channel."""
    if x.numel() <= x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    w = upcast(x.new_ones(x.shape[1])) if weight is None else weight
    b = torch.zeros_like(w) if bias is None else bias
    y, centre, rate = BatchNorm.apply(x, w, b, running_mean, running_var, momentum, eps)  # type: ignore[no-untyped-call]
    return y, centre, rate


class BatchNorm(Function):
    """PyTorch's kernels for a plain gradient, elementary operations for one that is differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor, mean: Any, var: Any, momentum: float, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, centre, rate = torch.ops.aten.native_batch_norm(x, w, b, mean, var, True, momentum, eps)
        ctx.save_for_backward(x, w, centre, rate)
        ctx.mark_non_differentiable(centre, rate)
        ctx.eps = eps
        return y, centre, rate

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> Any:
        x, w, centre, rate = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return (*norm_backward(g, x, w, centre, rate, [True, True, True]), None, None, None, None)
        dims = (0, *range(2, x.ndim))
        u, r = standardised(upcast(x), dims, ctx.eps)
        g = upcast(g)
        weighted = g * by_channel(w, x)
        to_x = r * (weighted - weighted.mean(dims, True) - u * (weighted * u).mean(dims, True))
        return to_x.to(x.dtype), (g * u).sum(dims).to(w.dtype), g.sum(dims).to(w.dtype), None, None, None, None


def norm_backward(g: Tensor, x: Tensor, weight: Tensor, centre: Tensor, rate: Tensor, needs: list[bool]) -> Any:
    return torch.ops.aten.native_batch_norm_backward(g, x, weight, None, None, centre, rate, True, 0.0, needs)


def scaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`x scale + shift`, by channel, in one pass."""
    return F.batch_norm(x, torch.zeros_like(scale), torch.ones_like(scale), scale, shift, False, 0.0, 0.0)


def add_(to: Tensor, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """`to += x scale + shift`, by channel."""
    to.addcmul_(x, by_channel(scale, x))
    return to if shift is None else to.add_(by_channel(shift, x))


def standardised(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """x less its mean, over the root of its variance + eps, and 1 over that root."""
    centred = x - x.mean(dims, True)
    rate = (centred.square().mean(dims, True) + eps).rsqrt()
    return centred * rate, rate


def by_channel(v: Tensor, like: Tensor) -> Tensor:
    return v.view(1, -1, *[1] * (like.ndim - 2))


def _as_torch(y: Tensor, x: Tensor) -> Tensor:
    """Float32 under CUDA's autocast, else the input's dtype."""
    return y if x.is_cuda and torch.is_autocast_enabled("cuda") else y.to(x.dtype)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    y = standardised(upcast(input), tuple(range(input.ndim - len(normalized_shape), input.ndim)), eps)[0]
    y = y if weight is None else y * weight
    return _as_torch(y if bias is None else y + bias, input)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    x = upcast(input)
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    least = torch.finfo(input.dtype).eps if eps is None else eps
    y = x * (x.square().mean(dims, True) + least).rsqrt()
    return _as_torch(y if weight is None else y * weight, input)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    n, channels = input.shape[:2]
    if channels % num_groups or n * math.prod(input.shape[2:]) == 0:
        return F.group_norm(input, num_groups, weight, bias, eps)  # refuses
    grouped = upcast(input).reshape(n, num_groups, -1)
    y = standardised(grouped, (2,), eps)[0].reshape(input.shape)
    y = y if weight is None else y * by_channel(weight, input)
    return _as_torch(y if bias is None else y + by_channel(bias, input), input)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if running_mean is not None or not use_input_stats:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not use_input_stats):  # for the running statistics
            y = F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        if not use_input_stats:
            return y
    return group_norm(input, input.shape[1], weight, bias, eps)


EXACT: dict[Any, Any] = {
    F.batch_norm: batch_norm,
    F.layer_norm: layer_norm,
    F.group_norm: group_norm,
    F.instance_norm: instance_norm,
    **({F.rms_norm: rms_norm} if hasattr(F, "rms_norm") else {}),
}
"""What to call in place of PyTorch's function."""


def wrong_thrice(y: Tensor) -> str:
    """The name of a node in the graph of y whose third derivative PyTorch gets wrong, or ""."""
    seen, waiting = set(), [y.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = node.name()
        ours = "calibcli" in type(node).__module__ or hasattr(node, "eps")
        if any(part in name for part in WRONG) and not ours and getattr(node, "_saved_training", True):
            return name
        waiting += [n for n, _ in node.next_functions]
    return ""
