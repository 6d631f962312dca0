"""Second derivatives of a mean over the data as operators: `size` and `matvec`, exact for ragged batches and shards.

Reverse over reverse: the gradient of a micro-batch is differentiated once more per vector. Keeping its graph saves the
forward and first backward pass (6 instead of 9 units of a forward pass's work). Sums over rows, then one all-reduce
and one division by N; vectors and accumulation in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch

from calibcli import device as devices
from calibcli.curvature.loss import Loss
from calibcli.curvature.problem import Problem, Scalar
from calibcli.errors import InputError


class Operator(Protocol):
    """All that the Lanczos run knows."""

    size: int

    def matvec(self, vector: torch.Tensor) -> torch.Tensor:
        """(size,) float64 to (size,) float64."""
        ...


def hessian_scalar(loss: Loss) -> Scalar:
    """Sum of the losses: its second derivative is H."""
    return lambda logits, labels: loss(logits, labels).sum()


def rest_scalar(loss: Loss) -> Scalar:
    """Σ ⟨∂loss/∂z, z⟩ with the slope held fixed: its second derivative is H - G."""

    def scalar(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        z = logits.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss(z, labels).sum(), z)
        return (slope * logits).sum()

    return scalar


class SecondDerivative:
    """∂²/∂θ² of (1/N) Σ scalar over the data.

    Args:
        problem: model, data and memory plan.
        scalar: sum over a micro-batch of the function to differentiate.
    """

    def __init__(self, problem: Problem, scalar: Scalar) -> None:
        self.problem, self.scalar = problem, scalar
        self.size = problem.size
        self.products = 0  # passes over the data
        self._kept: dict[range, list[torch.Tensor]] = {}

    def matvec(self, vector: torch.Tensor) -> torch.Tensor:
        """H v.

        Raises:
            InputError: the product is not finite.
        """
        return self.matmat([vector])[0]

    def matmat(self, vectors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """H v for several v, each micro-batch's graph built once."""
        totals = self.problem.guard(lambda: self._totals(vectors))
        self.products += len(vectors)
        for total in totals:
            devices.all_sum(total).div_(self.problem.layout.n)
            if not bool(total.isfinite().all()):
                raise InputError(
                    "a Hessian-vector product is not finite", "look for NaN weights, or use --dtype float64"
                )
        return totals

    def by_group(self, vector: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """(group, sum of H_n v over its rows on this rank), for the groups of this rank in order."""
        problem = self.problem
        pieces = problem.split(vector)
        size = problem.layout.group
        group, total = -1, torch.empty(0)
        for rows in problem.layout.batches(min(problem.layout.micro, size)):
            if rows.start // size != group:
                if group >= 0:
                    yield group, total
                group, total = rows.start // size, torch.zeros(self.size, dtype=torch.float64, device=problem.device)
            _add(total, problem.product(self._gradients(rows), pieces))
        if group >= 0:
            yield group, total
        self.products += 1

    def drop(self) -> None:
        """Free the kept graphs."""
        self._kept.clear()

    def _totals(self, vectors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        pieces = [self.problem.split(v) for v in vectors]
        totals = [torch.zeros(self.size, dtype=torch.float64, device=self.problem.device) for _ in vectors]
        if not self.problem.keep:
            self.drop()
        for rows in self.problem.layout.batches():
            gradients = self._gradients(rows)
            if self.problem.keep:
                self._kept[rows] = gradients
            for total, v in zip(totals, pieces):
                _add(total, self.problem.product(gradients, v))
        return totals

    def _gradients(self, rows: range) -> list[torch.Tensor]:
        kept = self._kept.get(rows)
        return self.problem.gradients(rows, self.scalar) if kept is None else kept


def _add(total: torch.Tensor, pieces: Sequence[torch.Tensor]) -> None:
    start = 0
    for piece in pieces:
        total[start : start + piece.numel()] += piece.reshape(-1)
        start += piece.numel()
