"""Convolution and batch norm for a loss that holds a first derivative: those of PyTorch, differentiated in few passes.

PyTorch writes the second derivative of batch norm as dozens of elementwise passes over the activations, and that of a
convolution's weight as a convolution with a kernel as large as the image. Here both are calls of the kernels that the
first derivative uses. `Twice` puts them in the place of PyTorch's while a model runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from calibcli.networks.derivatives import normalisation
from calibcli.networks.derivatives.normalisation import add_, norm_backward, scaled

aten = torch.ops.aten


class Twice(TorchFunctionMode):
    """Make 2-d convolutions and batch norms in train mode cheap to differentiate twice, while it is on.

    Values and derivatives are PyTorch's up to rounding (on a CPU, images are laid out with channels last, where the
    kernels are faster). A third derivative raises RuntimeError. Convolutions under autocast stay PyTorch's.
    """

    # Both pay: a step with the Gauss-Newton trace takes 1.09 times as long with PyTorch's convolution for a ResNet-20,
    # 1.02 for the small `cnn`; 1.25 and 1.65 times with its batch norm (one thread of a busy machine, 2026-11-25).

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        replaced: dict[Any, Callable[..., Any]] = {torch.conv2d: conv2d, F.batch_norm: batch_norm}
        return replaced.get(func, func)(*args, **(kwargs or {}))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Compute `torch.conv2d`, with a second derivative of few passes."""
    if isinstance(padding, str) or x.ndim != 4 or torch.is_autocast_enabled(x.device.type):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    if x.device.type == "cpu":
        x = x.contiguous(memory_format=torch.channels_last)
    settings = tuple([n, n] if isinstance(n, int) else list(n) for n in (stride, padding, dilation))
    out: Tensor = Convolution.apply(x, weight, bias, (*settings, groups))  # type: ignore[no-untyped-call]
    return out


class Convolution(Function):
    """A convolution whose derivative is `ConvolutionBackward`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, settings: tuple[Any, ...]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.settings, ctx.bias = settings, None if bias is None else list(bias.shape)
        return torch.conv2d(x, weight, bias, *settings)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        needs = list(ctx.needs_input_grad[:3])
        return (*ConvolutionBackward.apply(g, x, weight, ctx.bias, ctx.settings, needs), None)  # type: ignore[no-untyped-call]


def conv_backward(g: Tensor, x: Tensor, weight: Tensor, bias: Any, settings: tuple[Any, ...], needs: list[bool]) -> Any:
    stride, padding, dilation, groups = settings
    return aten.convolution_backward(g, x, weight, bias, stride, padding, dilation, False, [0, 0], groups, needs)


class ConvolutionBackward(Function):
    """The gradients of a convolution, bilinear in its output's cotangent g and in (x, weight)."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, weight: Tensor, bias: Any, settings: tuple[Any, ...], needs: list[bool]
    ) -> Any:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(g, x, weight)
        ctx.settings = settings
        return tuple(conv_backward(g, x, weight, bias, settings, needs))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None, c: Tensor | None) -> Any:
        """Differentiate, for cotangents of the gradients in the input (a), the weight (b) and the bias (c)."""
        g, x, weight = ctx.saved_tensors
        to_g = to_x = to_weight = None
        if a is not None:
            to_g = torch.conv2d(a, weight, c, *ctx.settings)
        if b is not None:
            product = torch.conv2d(x, b, c if a is None else None, *ctx.settings)
            to_g = product if to_g is None else to_g.add_(product)
        if to_g is None and c is not None:
            to_g = c.view(1, -1, 1, 1).expand_as(g)  # (n, channels, height, width)
        needs = [b is not None and ctx.needs_input_grad[1], a is not None and ctx.needs_input_grad[2], False]
        if any(needs):
            inputs, kernels = x if a is None else a, weight if b is None else b
            to_x, to_weight, _ = conv_backward(g, inputs, kernels, None, ctx.settings, needs)
        return to_g, to_x, to_weight, None, None, None


def train_norm(
    x: Tensor, mean: Any, var: Any, weight: Tensor | None, bias: Tensor | None, momentum: float, eps: float
) -> Tensor:
    if weight is None or bias is None or x.dtype != weight.dtype:
        return F.batch_norm(x, mean, var, weight, bias, True, momentum, eps)
    y: Tensor = TrainingBatchNorm.apply(x, weight, bias, mean, var, momentum, eps)[0]  # type: ignore[no-untyped-call]
    return y


batch_norm = normalisation.batch_norm_with(train_norm)


class TrainingBatchNorm(normalisation.BatchNorm):
    """Batch norm in train mode, whose derivative is `BatchNormBackward`."""

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> Any:
        return (*BatchNormBackward.apply(g, *ctx.saved_tensors), None, None, None, None)  # type: ignore[no-untyped-call]


class BatchNormBackward(Function):
    """The gradients of batch norm: with u = (x - centre) rate and m the mean over all but channels, `w rate P g` in x.

    P g = g - m(g) - u m(u g).
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, centre: Tensor, rate: Tensor) -> Any:
        to_x, to_weight, to_bias = norm_backward(g, x, weight, centre, rate, [True, True, True])
        ctx.save_for_backward(g, x, weight, centre, rate, to_weight, to_bias)
        return to_x, to_weight, to_bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: Tensor, b: Tensor, c: Tensor) -> Any:
        """Differentiate, for cotangents of the gradients in the input (a), the weight (b) and the bias (c).

        The form is n w rate [m(ag) - m(a)m(g) - m(ua)m(ug)] + b n m(ug) + c n m(g), and du = rate P dx,
        d rate = -rate² m(u dx). So every gradient is, per channel, a linear combination of a, g, u and 1.
        """
        g, x, w, centre, rate, ug, g_sum = ctx.saved_tensors
        n = x.numel() // x.shape[1]
        to_g, ua, a_sum = norm_backward(a, x, w, centre, rate, [True, True, True])
        ag = norm_backward(a, g, w, torch.zeros_like(rate), torch.ones_like(rate), [False, True, False])[1]
        ag, ug, ua, mg, ma = ag / n, ug / n, ua / n, g_sum / n, a_sum / n
        form = ag - ma * mg - ua * ug
        # to_g = w rate P a + b u + c
        add_(to_g, x, b * rate, c - b * rate * centre)
        # h, the cotangent of u, is k a + l g; then rate P h - w form rate² u
        k, l = -w * rate * ug, b - w * rate * ua
        mh, uh = k * ma + l * mg, k * ua + l * ug
        on_u = -rate * uh - w * form * rate.square()
        to_x = scaled(a, rate * k, -rate * mh - on_u * rate * centre)
        add_(to_x, g, rate * l)
        add_(to_x, x, on_u * rate)
        return to_g, to_x, n * rate * form, None, None
