"""The diagonal of a second derivative, one unit vector after the other: exact, and dear where there are many."""

from __future__ import annotations

from collections.abc import Callable

import torch

from calibcli import device as devices
from calibcli.hessian.problem import Problem, Scalar


class Diagonals:
    """Traces of the parameter tensors' diagonal blocks of ∂²Σ scalar by cell of rows, each computed once.

    Args:
        problem: model and data.
        scalar: what is differentiated twice, a sum over rows.
        tensors: (tensors,) bool, those that are wanted.
        asked: whether this process was asked to stop: it leaves off before the next element.
        agree: raises in all processes where one of them was asked to stop.
    """

    def __init__(
        self,
        problem: Problem,
        scalar: Scalar,
        tensors: torch.Tensor,
        *,
        asked: Callable[[], bool],
        agree: Callable[[], bool],
    ) -> None:
        self.problem, self.scalar, self.asked, self.agree = problem, scalar, asked, agree
        self.tensors: list[bool] = tensors.tolist()
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def __call__(self, cell: int, chosen: torch.Tensor | None = None) -> torch.Tensor:
        """(cells, tensors), sums over the `cell` rows of one, in one group; of the `chosen` (cells,) ones or of all."""
        cells = torch.ones(-(-self.problem.layout.n // cell), dtype=torch.bool) if chosen is None else chosen
        key = cell, *cells.nonzero().flatten().tolist()
        while key not in self._known:
            found = self.problem.guard(lambda: self._own(cell, cells))
            whole = all(devices.all_least(self.problem.device, int(found is not None)))
            self.agree()
            if whole and found is not None:
                self._known[key] = devices.all_sum_of_host(found, self.problem.device)
        return self._known[key]

    def _own(self, cell: int, cells: torch.Tensor) -> torch.Tensor | None:
        """Of this rank's rows; None where it was asked to stop."""
        layout = self.problem.layout
        found = torch.zeros(len(cells), len(self.tensors), dtype=torch.float64)
        for rows in layout.batches(min(layout.micro, cell)):
            if not cells[rows.start // cell]:
                continue
            gradients = self.problem.gradients(rows, self.scalar)
            for k, (gradient, tensor) in enumerate(zip(gradients, self.problem.tensors)):
                if not self.tensors[k] or not gradient.requires_grad:
                    continue
                flat = gradient.reshape(-1)
                for i in range(len(flat)):
                    if self.asked():
                        return None
                    (row,) = torch.autograd.grad(flat[i], tensor, retain_graph=True, materialize_grads=True)
                    found[rows.start // cell, k] += float(row.reshape(-1)[i])
        return found
