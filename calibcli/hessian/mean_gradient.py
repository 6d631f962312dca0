"""The gradient of the mean loss, and the noise that it stands in."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from calibcli import device as devices
from calibcli.hessian.groups import Part
from calibcli.hessian.operator import SecondDerivative, Total
from calibcli.hessian.problem import free_bytes
from calibcli.hessian.vectors import blocks, norm


@dataclass(frozen=True)
class Gradient:
    """(size,) gradient of the mean loss, the standard error of its norm, and √(tr Σ / N), the noise it stands in."""

    vector: torch.Tensor
    se: float
    noise: float


def mean_gradient(hessian: SecondDerivative) -> Gradient:
    """Gradient of the mean loss and its spread between groups: one pass, or two where groups do not fit memory."""
    problem, layout = hessian.problem, hessian.problem.layout
    room = free_bytes(problem.device) // 16 // (problem.size * problem.dtype.itemsize)
    held: list[Part] = []

    def sum_of_all() -> torch.Tensor:
        held.clear()
        total = Total(problem)
        if layout.groups > room:
            for rows in layout.batches():
                total.add(problem.gradients(rows, hessian.scalar, graph=False))
            return total.value()
        for part in hessian.gradients():
            held.append(part)
            total.add(problem.pieces(part[1].sum(0)))
        return total.value()

    total = devices.all_sum(problem.guard(sum_of_all)).div_(layout.n)
    length = max(norm(total), 1e-300)
    weights = layout.weights.to(problem.device)
    along = torch.zeros(layout.groups, dtype=torch.float64, device=problem.device)
    squares = torch.zeros(1, dtype=torch.float64, device=problem.device)

    def spread() -> None:
        squares.zero_()  # after memory ran out it starts again, without what was held
        along.zero_()
        found = [*held]
        held.clear()
        for first, g in found or hessian.gradients():
            here = slice(first, first + len(g))
            for s in blocks(total):
                mean = total[s].double()
                share = g[:, s].double().div_(layout.n).sub_(weights[here, None] * mean)
                along[here] += share @ mean / length
                squares.add_(share.square().sum())

    problem.guard(spread)
    devices.all_sum(along)
    devices.all_sum(squares)
    correct = layout.groups / max(layout.groups - 1, 1)
    both = torch.cat([along.square().sum()[None], squares]).mul_(correct).sqrt_().tolist()
    return Gradient(total, *both)
