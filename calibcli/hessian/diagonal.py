"""The diagonal of a second derivative, one unit vector after the other: exact, and dear where there are many."""

from __future__ import annotations

import torch

from calibcli import device as devices
from calibcli.hessian.problem import Problem, Scalar


def diagonal(
    problem: Problem, scalar: Scalar, tensors: torch.Tensor, cell: int, chosen: torch.Tensor | None = None
) -> torch.Tensor:
    """(cells, tensors) traces of the tensors' diagonal blocks of ∂²Σ scalar, a sum over a cell's rows.

    Args:
        tensors: (tensors,) bool, those that are wanted.  cell: rows of a cell, in one group.
        chosen: (cells,) bool, the cells that are wanted (default: all).
    """

    def work() -> torch.Tensor:
        layout = problem.layout
        found = torch.zeros(-(-layout.n // cell), len(problem.tensors), dtype=torch.float64)
        for rows in layout.batches(min(layout.micro, cell)):
            if chosen is not None and not chosen[rows.start // cell]:
                continue
            gradients = problem.gradients(rows, scalar)
            for k, (gradient, tensor) in enumerate(zip(gradients, problem.tensors)):
                if not tensors[k] or not gradient.requires_grad:
                    continue
                flat = gradient.reshape(-1)
                for i in range(len(flat)):
                    (row,) = torch.autograd.grad(flat[i], tensor, retain_graph=True, materialize_grads=True)
                    found[rows.start // cell, k] += float(row.reshape(-1)[i])
        return devices.all_sum_of_host(found, problem.device)

    return problem.guard(work)
