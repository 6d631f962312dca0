"""Proper focal loss: focal loss composed with the inverse of its calibration map, and so strictly proper."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibcli.losses.focal import focal
from calibcli.losses.logspace import log_not_p, log_p, margin, surprise_ratio
from calibcli.losses.shelf import LOSSES, Gamma, Loss


def log_h(a: Tensor, gamma: float) -> Tensor:
    """`ln h` of the probability with log-odds a, where `h(q) = -1/ℓ'(q) = q / g(q, γ)` for focal ℓ; increasing."""
    return log_p(a) - gamma * log_not_p(a) - torch.log1p(gamma * torch.sigmoid(a) * surprise_ratio(a))


def slope(a: Tensor, gamma: float) -> Tensor:
    """`d ln h / da` at log-odds a: 1 towards q = 0, γ towards q = 1; positive for γ > 0."""
    q, x, u = torch.sigmoid(a), torch.sigmoid(-a), surprise_ratio(a)
    return x + gamma * q - gamma * q * (u - 1) / (1 + gamma * q * u)


class InverseMap(torch.autograd.Function):
    """Log-odds a of `q = φ_γ^{-1}(softmax z)`, `(N, K) -> (N, K)`; any number of derivatives, in closed form.

    Differentiating `ln h(q_k) = t + z_k` and `Σ q_k = 1`:
    `da_k = (dz_k - Σ_j w_j dz_j) / slope_k`, `w ∝ q (1-q) / slope`. The backward is written in a itself, so autograd
    differentiates it again through this same rule.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, gamma: float) -> Tensor:
        a = solve(z, gamma)
        ctx.save_for_backward(a)
        ctx.gamma = gamma
        return a

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (a,) = ctx.saved_tensors
        scaled = grads[0] / slope(a, ctx.gamma)
        w = (log_p(a) + log_not_p(a) - slope(a, ctx.gamma).log()).softmax(1)
        return scaled - w * scaled.sum(1, keepdim=True), None


def solve(z: Tensor, gamma: float) -> Tensor:
    """Log-odds a `(N, K)` of `q = φ_γ^{-1}(softmax z)`.

    Newton on `ln h(a_k) = t + log p_k` and, so that saturated rows keep their digits, on the constraint in log space
    `logsumexp_{k != top} log q_k = log(1 - q_top)`. Both are close to linear in a, so that 4 to 7 steps suffice.
    """
    log_probability = z.log_softmax(1)
    top = z.argmax(1, keepdim=True)
    is_top = torch.zeros_like(z, dtype=torch.bool).scatter(1, top, True)
    a = torch.where(is_top, margin(z, top.squeeze(1)).unsqueeze(1) / (1 + gamma), log_probability)
    for _ in range(50):
        s = slope(a, gamma)
        missing = log_probability - log_h(a, gamma)
        others = log_p(a).masked_fill(is_top, -torch.inf)
        total = others.logsumexp(1, keepdim=True)
        c = torch.where(is_top, torch.sigmoid(a), (others - total).exp() * torch.sigmoid(-a)) / s
        excess = total - log_not_p(a.gather(1, top))
        step = (missing - (excess + (c * missing).sum(1, keepdim=True)) / c.sum(1, keepdim=True)) / s
        a = a + step
        if not bool((step.abs() > 4 * torch.finfo(a.dtype).eps * (1 + a.abs())).any()):
            break
    return a


@LOSSES.add("proper_focal")
class ProperFocal(Loss):
    """Focal loss of `φ_γ^{-1}(softmax z)`: strictly proper, with focal loss's weighting of samples.

    Not cross-entropy of φ_γ(softmax z), which is a different loss. Training plain focal loss and reporting
    φ_γ(softmax z) trains the same network with the map as a fixed last layer.

    Source: Komisarenko and Kull (2024), who take focal loss apart into φ_γ and a proper loss.

    >>> import torch
    >>> calibcli.loss("proper_focal:gamma=2")(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
    tensor([0.0870])
    """

    def __init__(self, *, gamma: Gamma) -> None:
        super().__init__()
        self.gamma = gamma

    def values(self, z: Tensor, labels: Tensor) -> Tensor:
        if self.gamma == 0:  # the map is the identity
            return focal(margin(z, labels), 0.0)
        a: Tensor = InverseMap.apply(z, self.gamma)  # type: ignore[no-untyped-call]
        return focal(a.gather(1, labels.unsqueeze(1)).squeeze(1), self.gamma)
