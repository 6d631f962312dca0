"""What one true product says about an approximate eigenvector: the residual, and the error that the sample brings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from calibcli import device as devices
from calibcli.curvature.operator import SecondDerivative


@dataclass(frozen=True)
class Certificate:
    """For a unit vector x and θ = xᵀHx.

    Attributes:
        value: θ.
        residual: ‖Hx - θx‖; an eigenvalue of H lies within it.
        sampling: standard error of θ over rows (delta method: dλ = xᵀ dH x).
        bias: by how much sampling raises an extreme eigenvalue, to second order.
        groups: groups of rows behind both.
    """

    value: float
    residual: float
    sampling: float
    bias: float
    groups: int


def certify(
    operator: SecondDerivative, x: torch.Tensor, others: Sequence[tuple[float, torch.Tensor]] = ()
) -> Certificate:
    """One product with x, group by group.

    Second-order perturbation: λ(H + E) = λ + xᵀEx + Σ_j (x_jᵀEx)² / (λ - λ_j). The squares are estimated from the
    spread of H_g x between groups, along the known `others` (λ_j, x_j) one by one and for the rest together at λ_j = 0;
    near-degenerate neighbours through the 2×2 problem, which stays bounded.

    Args:
        operator: a mean over rows.
        x: (size,) float64 unit vector.
        others: further approximate eigenpairs.
    """
    layout = operator.problem.layout
    weights = layout.weights.to(x.device)
    basis = [x, *(v for _, v in others)]
    forms = torch.zeros(layout.groups, len(basis), dtype=torch.float64, device=x.device)
    total, weighted = torch.zeros_like(x), torch.zeros_like(x)
    squares = torch.zeros(1, dtype=torch.float64, device=x.device)
    for group, product in operator.by_group(x):
        product /= layout.n
        forms[group] = torch.stack([torch.dot(v, product) for v in basis])
        total += product
        weighted += weights[group] * product
        squares += product.square().sum()
    for tensor in (forms, total, weighted, squares):
        devices.all_sum(tensor)
    value = float(torch.dot(x, total))
    residual = float((total - value * x).norm())
    count = layout.groups
    correct = count / max(count - 1, 1)
    along = (forms - weights[:, None] * forms.sum(0)).square().sum(0) * correct  # variance of x_jᵀHx
    spread = float(squares - 2 * torch.dot(weighted, total) + weights.square().sum() * total.square().sum()) * correct
    parts = [(value - other, float(v)) for (other, _), v in zip(others, along[1:])]
    parts.append((value, max(0.0, spread - float(along.sum()))))
    bias = sum(_shift(gap, variance) for gap, variance in parts)
    return Certificate(value, residual, float(along[0]) ** 0.5, bias, count)


def _shift(gap: float, variance: float) -> float:
    """Shift of one eigenvalue by another at distance `gap` with squared coupling `variance`."""
    sign = 1.0 if gap >= 0 else -1.0
    return sign * (math.sqrt(gap * gap + 4 * variance) - abs(gap)) / 2
