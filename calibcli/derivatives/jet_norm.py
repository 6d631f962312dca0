"""First and second derivative of batch norm along a curve, in few passes over the activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from calibcli.derivatives.normalisation import add_, norm_backward, scaled


class JetNorm(Function):
    """y', y'' of y = w u + b, u = (x - mean x) rate, from x, x', x'', w, w' and b' (w'' = b'' = 0).

    With m the mean over all but channels, s = m(u x'), q = m(x'²) and k = m(u x''):
    `rate' = -rate² s`, `u' = rate (x' - m(x') - s u)`, `s' = rate (q - m(x')² - s²) + k` and
    `u'' = rate (x'' - m(x'') - s' u - 2 s u')`. Per channel these are linear combinations of x', x'', u and 1, and so
    are all of their gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, x1: Tensor, x2: Tensor, w: Tensor, w1: Tensor, b1: Tensor, centre: Tensor, rate: Tensor
    ) -> Any:
        n = x.numel() // x.shape[1]
        s, m1 = (v / n for v in inner(x1, x, centre, rate))
        k, m2 = (v / n for v in inner(x2, x, centre, rate))
        q = inner(x1, x1, torch.zeros_like(rate), torch.ones_like(rate))[0] / n
        c = coefficients(w1, b1, (w, rate, m1, m2, s, q, k))
        ctx.save_for_backward(x, x1, x2, w, w1, b1, centre, rate, m1, m2, s, q, k)
        a, on_u, on_1, on_x1, u2, shift = c
        y1 = scaled(x1, a, on_1 - on_u * rate * centre)
        add_(y1, x, on_u * rate)
        y2 = scaled(x2, a, shift - u2 * rate * centre)
        add_(y2, x1, on_x1)
        add_(y2, x, u2 * rate)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g1: Tensor, g2: Tensor) -> Any:
        x, x1, x2, w, w1, b1, centre, rate, *moments = ctx.saved_tensors
        n = x.numel() // x.shape[1]
        zero, one = torch.zeros_like(rate), torch.ones_like(rate)
        g1_u, g1_sum = inner(g1, x, centre, rate)
        g2_u, g2_sum = inner(g2, x, centre, rate)
        g1_x1, g2_x1, g2_x2 = (inner(g, v, zero, one)[0] for g, v in ((g1, x1), (g2, x1), (g2, x2)))
        with torch.enable_grad():
            free = [v.detach().requires_grad_() for v in (w, rate, *moments)]
            found = coefficients(w1, b1, free)
            by = (g1_x1 + g2_x2, g1_u, g1_sum, g2_x1, g2_u, g2_sum)
            on_w, on_rate, on_m1, on_m2, on_s, on_q, on_k = torch.autograd.grad(found, free, by, materialize_grads=True)
        a, c1, _, e1, e0, _ = (v.detach() for v in found)
        m1, m2, s, _, k = moments
        on_s, on_k = on_s / n, on_k / n
        to_x2 = scaled(g2, a, on_m2 / n - on_k * rate * centre)
        add_(to_x2, x, on_k * rate)
        to_x1 = scaled(g1, a, on_m1 / n - on_s * rate * centre)
        for tensor, factor in ((g2, e1), (x1, 2 * on_q / n), (x, on_s * rate)):
            add_(to_x1, tensor, factor)
        # h = c1 g1 + e0 g2 + on_s x' + on_k x'' is the cotangent of u, and du = rate P dx, d rate = -rate² m(u dx)
        h_mean = (c1 * g1_sum + e0 * g2_sum) / n + on_s * m1 + on_k * m2
        h_u = (c1 * g1_u + e0 * g2_u) / n + on_s * s + on_k * k
        on_u = -rate * h_u - rate.square() * on_rate / n
        to_x = scaled(g1, rate * c1, -rate * h_mean - on_u * rate * centre)
        for tensor, factor in ((g2, e0), (x1, on_s), (x2, on_k), (x, on_u)):
            add_(to_x, tensor, rate * factor)
        return to_x, to_x1, to_x2, on_w, None, None, None, None


def coefficients(w1: Tensor, b1: Tensor, free: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """(a, c, d, e, f, h) of `y' = a x' + c u + d` and `y'' = a x'' + e x' + f u + h`, each by channel."""
    w, rate, m1, m2, s, q, k = free
    s1 = rate * (q - m1.square() - s.square()) + k
    a = w * rate
    return (
        a,
        w1 - a * s,
        b1 - a * m1,
        2 * rate * (w1 - a * s),
        2 * a * rate * s.square() - a * s1 - 2 * w1 * rate * s,
        2 * a * rate * s * m1 - a * m2 - 2 * w1 * rate * m1,
    )


def inner(g: Tensor, x: Tensor, centre: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """Sums by channel of `g (x - centre) rate` and of g, in one pass."""
    _, product, total = norm_backward(g, x, torch.ones_like(rate), centre, rate, [False, True, True])
    return product, total
