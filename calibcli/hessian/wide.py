"""Derivatives along a direction in a float64 copy of a model, against central differences of its gradients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from calibcli.hessian.loss import LogitLoss
from calibcli.hessian.operator import hessian_scalar
from calibcli.hessian.problem import Problem, second
from calibcli.hessian.readied import copied

CLOSE = 1e-3  # up to which it is taken to be right at the first try
FIRST = (1e-7,)  # move of the differences at the first try, which crosses few kinks
STEPS = (1e-6, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3)  # of the norm of the parameters: moves of the differences


def widened(problem: Problem, moved: list[int]) -> Problem:
    """The problem in float64, in the tensors that are moved."""
    twin = copy.copy(problem)
    # wide copies at once: one launch, where narrow ones that are converted would take two for each tensor
    floats = [t for t in (*problem.model.parameters(), *problem.model.buffers()) if t.is_floating_point()]
    sizes = [-(-t.numel() // 8) * 8 for t in floats]  # each starts where a kernel, or a complex view, likes it
    flat = torch.empty(sum(sizes), dtype=torch.float64, device=problem.device)
    wide = [piece[: t.numel()].view(t.shape) for piece, t in zip(torch.split(flat, sizes), floats)]
    torch._foreach_copy_(wide, [t.detach() for t in floats])
    memo: dict[int, Any] = {id(t): t for t in problem.model.buffers()}  # integers, such as batch norm's counts
    memo |= {id(t): nn.Parameter(w) if isinstance(t, nn.Parameter) else w for t, w in zip(floats, wide)}
    twin.model, twin.dtype = copied(problem.model, memo).double(), torch.float64
    chosen = dict(twin.model.named_parameters())
    twin.tensors = [chosen[problem.names[i]] for i in moved]
    for still in chosen.values():
        still.requires_grad_(False)
    for tensor in twin.tensors:
        tensor.requires_grad_()
    return twin


@dataclass
class Along:
    """Derivatives of a float64 model along a direction, a piece for each of its tensors."""

    twin: Problem
    rows: range
    loss: LogitLoss
    v: list[torch.Tensor]

    def product(self) -> list[torch.Tensor]:
        gradients = self.twin.gradients(self.rows, hessian_scalar(self.loss))
        return second(gradients, self.twin.tensors, [p.double() for p in self.v])

    def disagreement(self, exact: list[torch.Tensor], steps: tuple[float, ...] = STEPS) -> float:
        """Relative error at the point where the model is, which is moved by rounding only.

        Kinks crossed by the step make differences wrong, not the derivative: the best of the steps counts. A model
        that computes in float32 within needs long ones.
        """
        tensors, place = self.twin.tensors, 0.0
        norm, size = norms(tensors, exact).tolist()
        errors: list[float] = []
        for step in steps:
            step *= max(norm, 1e-3)
            sides: list[list[torch.Tensor]] = []
            for side in (step, -step):
                self._move(side - place)
                place = side
                sides.append(self.twin.gradients(self.rows, hessian_scalar(self.loss), graph=False))
            slopes, other = sides
            torch._foreach_sub_(slopes, other)
            torch._foreach_div_(slopes, 2 * step)
            torch._foreach_sub_(slopes, exact)
            error, slope = norms(slopes, other).tolist()
            del slopes, other, sides  # memory
            rounding = 1e-8 * slope / max(step, FIRST[0] * norm)  # a finer step is no excuse
            errors.append(error / max(size, rounding, 1e-300))
            if errors[-1] < CLOSE:
                break
        self._move(-place)
        return min(errors)

    def _move(self, by: float) -> None:
        with torch.no_grad():
            torch._foreach_add_(self.twin.tensors, self.v, alpha=by)


def dot(a: list[torch.Tensor], b: list[torch.Tensor]) -> torch.Tensor:
    """() inner product of vectors in pieces."""
    one, other = (torch.cat([p.reshape(-1) for p in pieces]) for pieces in (a, b))
    return torch.dot(one, other)


def norms(*vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """(k,) norms of k vectors of as many pieces each."""
    each = torch._foreach_norm([p.detach() for pieces in vectors for p in pieces], dtype=torch.float64)
    found: torch.Tensor = torch.linalg.vector_norm(torch.stack(each).view(len(vectors), -1), dim=1)
    return found


def norm(pieces: Sequence[torch.Tensor]) -> float:
    """That of one vector."""
    return float(norms(pieces))
