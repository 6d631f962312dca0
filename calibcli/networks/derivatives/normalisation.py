"""Normalisations that are right at every order of differentiation that they allow.

`JetNorm`, whose outputs are derivatives of second order, can be differentiated once: PyTorch refuses a second time. All
others can be differentiated any number of times.

From the third order on PyTorch's own are not: the second derivatives of its batch, instance and layer norms take the
saved mean and spread as constants, so that the gradient of a Hessian trace through them is wrong. Its group and RMS
norms are right in 2.13; they are here because older versions and fused kernels need not be. Signatures are those of
`torch.nn.functional`. Derivations: docs/statistics/normalisation.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


def upcast(x: Tensor) -> Tensor:
    """Widen x to float32, unless it is that or wider."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


WRONG = ("BatchNorm", "LayerNorm", "GroupNorm", "RmsNorm", "RMSNorm")
"""Parts of the names of autograd nodes whose third derivative is wrong, or may be in another version of PyTorch."""


def batch_norm_with(train: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make an `F.batch_norm` that calls `train` in train mode, with all its arguments but `training`."""

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
    x: Tensor, running_mean: Any, running_var: Any, weight: Any, bias: Any, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute batch norm in train mode; also return the mean and 1/√(variance + eps) by channel."""
    if x.numel() <= x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    w = upcast(x.new_ones(x.shape[1])) if weight is None else weight
    b = torch.zeros_like(w) if bias is None else bias
    y, centre, rate = BatchNorm.apply(x, w, b, running_mean, running_var, momentum, eps)  # type: ignore[no-untyped-call]
    return y, centre, rate


class BatchNorm(Function):
    """PyTorch's kernels for a plain gradient, elementary operations for one that is differentiated again.

    With u = (x - mean) rate, m the mean over all but channels, and g the gradient in y = w u + b, the gradient in x is
    rate [w g - m(w g) - u m(u w g)]: see `JetNorm.backward` for du. That in w is Σ g u, that in b is Σ g.
    """

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
    """Compute batch norm's gradients in x, weight and bias in one kernel; None for those that `needs` leaves out."""
    return torch.ops.aten.native_batch_norm_backward(g, x, weight, None, None, centre, rate, True, 0.0, needs)


def scaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Compute `x scale + shift`, by channel, in one pass."""
    return F.batch_norm(x, torch.zeros_like(scale), torch.ones_like(scale), scale, shift, False, 0.0, 0.0)


def add_(to: Tensor, x: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """Add `x scale + shift` to a tensor in place, by channel."""
    to.addcmul_(x, by_channel(scale, x))
    return to if shift is None else to.add_(by_channel(shift, x))


def standardised(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """Compute (x - mean) rate, with rate = 1/√(variance + eps), and rate."""
    centred = x - x.mean(dims, True)
    rate = (centred.square().mean(dims, True) + eps).rsqrt()
    return centred * rate, rate


def by_channel(v: Tensor, like: Tensor) -> Tensor:
    """View v (channels,) as (1, channels, 1, ...), with the dimensions of `like`."""
    return v.view(1, -1, *[1] * (like.ndim - 2))


def _as_torch(y: Tensor, x: Tensor) -> Tensor:
    """Cast y to the input's dtype, unless CUDA's autocast is on, which keeps float32."""
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
    F.rms_norm: rms_norm,
}
"""The function to call in place of PyTorch's."""


def wrong_thrice(y: Tensor) -> str:
    """Find a node in the graph of y whose third derivative PyTorch gets wrong: its name, or "".

    Nodes of this package have such names too, as `BatchNormBackward` of `BatchNorm` here. They are known by their
    module or, where autograd makes the class of the node, by `ctx.eps`, which is an attribute of the node; PyTorch's
    own have `_saved_eps`. Batch norm in eval mode is an affine map (`_saved_training` is False), and right.
    """
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


class JetNorm(Function):
    """Compute y', y'' of y = w u + b, u = (x - mean x) rate, from x, x', x'', w, w' and b' (w'' = b'' = 0).

    A prime is a derivative along a line in the parameters. x, x', x'', y', y'' and u have the shape (rows, channels,
    ...), all others (channels,). With m the mean over all but channels, m1 = m(x'), m2 = m(x''), s = m(u x'),
    q = m(x'²) and k = m(u x''):

        rate' = -rate² s,   u' = rate (x' - m1 - s u),   s' = m(u' x') + m(u x'') = rate (q - m1² - s²) + k,
        u'' = rate (x'' - m2 - s' u - 2 s u').

    So per channel y' and y'' are linear combinations of x', x'', u and 1,

        y' = a x' + c u + d,   y'' = a x'' + e x' + f u + h,

    whose coefficients depend on w, w', b', rate, m1, m2, s, q and k alone (`coefficients`). Gradients are such
    combinations too. One with β u is written as β rate x - β rate centre, as u is not kept.
    """

    # By the formulas one after the other, as in `rules.layer_normed`, a step with the Hessian's trace of a ResNet-20
    # takes 1.54 times as long (32 rows, one thread, 2026-11-25).

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, x1: Tensor, x2: Tensor, w: Tensor, w1: Tensor, b1: Tensor, centre: Tensor, rate: Tensor
    ) -> Any:
        n = x.numel() // x.shape[1]
        s, m1 = (v / n for v in inner(x1, x, centre, rate))
        k, m2 = (v / n for v in inner(x2, x, centre, rate))
        q = inner(x1, x1, torch.zeros_like(rate), torch.ones_like(rate))[0] / n
        a, c, d, e, f, h = coefficients(w1, b1, (w, rate, m1, m2, s, q, k))
        ctx.save_for_backward(x, x1, x2, w, w1, b1, centre, rate, m1, m2, s, q, k)
        y1 = scaled(x1, a, d - c * rate * centre)
        add_(y1, x, c * rate)
        y2 = scaled(x2, a, h - f * rate * centre)
        add_(y2, x1, e)
        add_(y2, x, f * rate)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g1: Tensor, g2: Tensor) -> Any:
        """Return the gradients of L = Σ (g1 y' + g2 y'') in x, x', x'' and w.

        Write v·w for the sum of v w over all but channels, n for its number of terms, and L_z for the gradient in z.
        L changes in two ways.

        By the coefficients: L_a = g1·x' + g2·x'', L_c = g1·u, L_d = g1·1, L_e = g2·x', L_f = g2·u, L_h = g2·1.
        Autograd carries these through `coefficients` to L_w, L_rate, L_m1, L_m2, L_s, L_q and L_k. These in turn reach
        the inputs by dm1 = m(dx'), dm2 = m(dx''), ds = m(x' du) + m(u dx'), dq = m(2 x' dx'), dk = m(x'' du) + m(u
        dx'') and d rate = -rate² m(u dx).

        By the arrays that the coefficients multiply: x', x'' and u. Both together:

            L_x'' = a g2 + L_m2 / n + (L_k / n) u
            L_x'  = a g1 + e g2 + L_m1 / n + (L_s / n) u + (2 L_q / n) x'
            L_u   = c g1 + f g2 + (L_s / n) x' + (L_k / n) x''
            L_x   = rate P L_u - (L_rate rate² / n) u

        as du = rate (dx - m(dx)) + u d rate / rate = rate P dx, where P v = v - m(v) - u m(u v) is symmetric.

        w' and b' are directions that the caller has chosen, and centre and rate are functions of x whose part is in
        L_x: none of them gets a gradient.
        """
        x, x1, x2, w, w1, b1, centre, rate, *moments = ctx.saved_tensors
        n = x.numel() // x.shape[1]
        zeros, ones = torch.zeros_like(rate), torch.ones_like(rate)
        g1_u, g1_sum = inner(g1, x, centre, rate)
        g2_u, g2_sum = inner(g2, x, centre, rate)
        g1_x1 = inner(g1, x1, zeros, ones)[0]
        g2_x1 = inner(g2, x1, zeros, ones)[0]
        g2_x2 = inner(g2, x2, zeros, ones)[0]
        with torch.enable_grad():
            free = [v.detach().requires_grad_() for v in (w, rate, *moments)]
            values = coefficients(w1, b1, free)
            on_values = (g1_x1 + g2_x2, g1_u, g1_sum, g2_x1, g2_u, g2_sum)  # L_a, L_c, L_d, L_e, L_f, L_h
            on_free = torch.autograd.grad(values, free, on_values, materialize_grads=True)
        on_w, on_rate, on_m1, on_m2, on_s, on_q, on_k = on_free  # L_w, L_rate, ...
        a, c, _, e, f, _ = (v.detach() for v in values)
        m1, m2, s, _, k = moments
        on_s, on_k = on_s / n, on_k / n
        # L_x''
        to_x2 = scaled(g2, a, on_m2 / n - on_k * rate * centre)
        add_(to_x2, x, on_k * rate)
        # L_x'
        to_x1 = scaled(g1, a, on_m1 / n - on_s * rate * centre)
        add_(to_x1, g2, e)
        add_(to_x1, x1, 2 * on_q / n)
        add_(to_x1, x, on_s * rate)
        # L_x, with the two means of P L_u, and the coefficient of u
        mean_on_u = (c * g1_sum + f * g2_sum) / n + on_s * m1 + on_k * m2  # m(L_u)
        mean_u_on_u = (c * g1_u + f * g2_u) / n + on_s * s + on_k * k  # m(u L_u)
        of_u = -rate * mean_u_on_u - rate.square() * on_rate / n
        to_x = scaled(g1, rate * c, -rate * mean_on_u - of_u * rate * centre)
        add_(to_x, g2, rate * f)
        add_(to_x, x1, rate * on_s)
        add_(to_x, x2, rate * on_k)
        add_(to_x, x, rate * of_u)
        return to_x, to_x1, to_x2, on_w, None, None, None, None


def coefficients(w1: Tensor, b1: Tensor, free: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Compute (a, c, d, e, f, h) of `y' = a x' + c u + d` and `y'' = a x'' + e x' + f u + h`, each (channels,).

    With the u' and u'' of `JetNorm`, y' = w u' + w' u + b' and y'' = w u'' + 2 w' u', in which the terms with u' are
    2 (w' - a s) u' = 2 c rate (x' - m1 - s u).

    Args:
        w1, b1: w' and b'.
        free: w, rate, m1, m2, s, q, k, in which the gradient is taken.
    """
    w, rate, m1, m2, s, q, k = free
    s1 = rate * (q - m1.square() - s.square()) + k  # s'
    a = w * rate
    c = w1 - a * s
    f = -a * s1 - 2 * rate * s * c
    h = -a * m2 - 2 * rate * m1 * c
    return a, c, b1 - a * m1, 2 * rate * c, f, h


def inner(g: Tensor, x: Tensor, centre: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """Sum `g (x - centre) rate` and g by channel, in one pass."""
    _, product, total = norm_backward(g, x, torch.ones_like(rate), centre, rate, [False, True, True])
    return product, total
