"""Second derivatives of a mean over the data as operators: `size` and `matvec`, exact for ragged batches and shards.

Reverse over reverse: the gradient of a micro-batch is differentiated once more per vector. Keeping its graph saves the
forward and first backward pass (6 instead of 9 units of a forward pass's work). Sums over rows, then one all-reduce
and one division by N; sums in float64, but for those of a few micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from calibcli import device as devices
from calibcli.device import free_bytes
from calibcli.errors import InputError
from calibcli.hessian.groups import Groups, Part
from calibcli.hessian.loss import LogitLoss
from calibcli.hessian.problem import Problem, Scalar
from calibcli.hessian.vectors import blocks, norm

FEW = 8


class Operator(Protocol):
    """All that the Lanczos run knows."""

    size: int

    def matvec(self, vector: torch.Tensor) -> torch.Tensor:
        """(size,) float32 or float64 to a new (size,) vector: float64, or the model's dtype (see `Total`)."""
        ...


def hessian_scalar(loss: LogitLoss) -> Scalar:
    """Sum of the losses: its second derivative is H."""
    return lambda logits, labels: loss(logits, labels).sum()


def slope(loss: LogitLoss) -> Scalar:
    """∂loss/∂z (n, K)."""

    def of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        z = logits.detach().requires_grad_()
        return torch.autograd.grad(loss(z, labels).sum(), z)[0]

    return of


def rest_scalar(loss: LogitLoss) -> Scalar:
    """Σ ⟨∂loss/∂z, z⟩ with the slope held fixed: its second derivative is H - G."""
    fixed = slope(loss)
    return lambda logits, labels: (fixed(logits, labels) * logits).sum()


class SecondDerivative:
    """∂²/∂θ² of (1/N) Σ scalar over the data.

    Args:
        problem: model, data and memory plan.
        scalar: sum over a micro-batch of the function to differentiate.
    """

    def __init__(self, problem: Problem, scalar: Scalar) -> None:
        self.problem, self.scalar = problem, scalar
        self.size = problem.size
        self.groups = Groups(problem, scalar)
        self._kept: dict[range, list[torch.Tensor]] = {}

    def matvec(self, vector: torch.Tensor) -> torch.Tensor:
        """H v.

        Raises:
            InputError: the product is not finite.
        """

        def work() -> torch.Tensor:
            pieces, total = self.problem.split(vector), Total(self.problem)
            for _, gradients in self._graphs(self.problem.layout.micro):
                total.add(self.problem.product(gradients, pieces))
            return total.value()

        with devices.full_float32(self.problem.tf32):
            total = self.problem.guard(work)
        return self.mean(total)

    def by_group(self, vector: torch.Tensor) -> Iterator[Part]:
        """Sums of H_n v over each group's rows, for the groups of this rank in order."""
        problem = self.problem
        if problem.tf32 or not problem.keep:
            self.drop()  # certificates take float32
        pieces = problem.split(vector)

        def plain(rows: range) -> torch.Tensor:
            gradients = self._kept.get(rows) or problem.gradients(rows, self.scalar)
            return torch.cat([piece.reshape(-1) for piece in problem.product(gradients, pieces)])

        if (found := self.groups.products(vector.to(problem.device, problem.dtype), plain)) is not None:
            return found

        def products() -> Iterator[tuple[range, Sequence[torch.Tensor]]]:
            for rows, gradients in self._graphs(min(problem.layout.micro, problem.layout.group)):
                found = problem.product(gradients, pieces)
                del gradients  # memory, here and below: the next is made before a loop lets go of the last one
                yield rows, found
                del found

        return grouped(problem, products())

    def gradients(self) -> Iterator[Part]:
        """Sums of the gradients over each group's rows, for the groups of this rank in order."""
        problem = self.problem
        if not problem.keep:
            self.drop()
        if self.groups.mapped and self.groups.at_once:
            return self.groups.gradients()
        batches = problem.layout.batches(min(problem.layout.micro, problem.layout.group))
        return grouped(problem, ((rows, problem.gradients(rows, self.scalar, graph=False)) for rows in batches))

    def mean(self, total: torch.Tensor) -> torch.Tensor:
        """A rank's sum over rows to the mean over all of them, in place.

        Raises:
            InputError: it is not finite.
        """
        devices.all_sum(total).div_(self.problem.layout.n)
        if not math.isfinite(float(total.sum())):
            raise InputError("a Hessian-vector product is not finite", "look for NaN weights, or use --dtype float64")
        return total

    def drop(self) -> None:
        """Free the kept graphs."""
        self._kept.clear()

    def _graphs(self, micro: int) -> Iterator[tuple[range, list[torch.Tensor]]]:
        """Micro-batches of `micro` rows and their gradients, whose graphs are kept where the plan says so."""
        problem = self.problem
        if not problem.keep:
            self.drop()
        for rows in problem.layout.batches(micro):
            gradients = self._kept.get(rows)
            if gradients is None:
                gradients = problem.gradients(rows, self.scalar)
                if problem.keep and micro == problem.layout.micro:
                    self._kept[rows] = gradients
            yield rows, gradients
            del gradients


def grouped(problem: Problem, parts: Iterable[tuple[range, Sequence[torch.Tensor]]]) -> Iterator[Part]:
    """Sums over the rows of one group after the other of what runs of rows give, a piece per tensor; groups in order.

    float64, or the model's dtype where one run of rows is the whole group.
    """
    size, total = problem.layout.group, None
    for rows, pieces in parts:
        part = torch.cat([piece.reshape(-1) for piece in pieces])
        del pieces  # memory
        total = part if total is None else total.double().add_(part)
        del part
        if rows.stop % size == 0 or rows.stop == problem.layout.n:
            done, total = total[None], None
            yield rows.start // size, done
            del done


class Total:
    """A sum of vectors in float64, of which every FEW are summed in the model's dtype first.

    Adding float32 to float64 takes ten times longer than to float32, and twice the memory: where there are no more
    than FEW, and one process, the sum stays in the model's dtype.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.total: torch.Tensor | None = problem.zero() if problem.layout.world > 1 else None
        self.part: torch.Tensor | None = None
        self.count = 0

    def add(self, pieces: Sequence[torch.Tensor]) -> None:
        """One piece per tensor."""
        if self.count and self.count % FEW == 0:
            self.total, self.part = self._wide(), None
        self.count += 1
        if self.part is None:
            self.part = torch.cat([piece.reshape(-1) for piece in pieces])
        else:
            torch._foreach_add_(self.problem.pieces(self.part), list(pieces))

    def value(self) -> torch.Tensor:
        """(size,), once: the sum is used up."""
        return self._wide() if self.total is not None or self.part is None else self.part

    def _wide(self) -> torch.Tensor:
        total = self.problem.zero() if self.total is None else self.total
        return total if self.part is None else total.add_(self.part)


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
