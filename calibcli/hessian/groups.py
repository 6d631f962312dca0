"""Gradients and products summed over each group of rows: one group after the other, or on a device many at once.

A group is small, and a device would wait for its launches: mapped over groups, an operation is launched once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import chain

import torch
from torch.func import grad, vjp, vmap

from calibcli import device as devices
from calibcli.hessian.indexed_data import Inputs, signs
from calibcli.hessian.per_row_gradients import UNMAPPED
from calibcli.hessian.problem import Problem, Scalar, T, free_bytes

SHARE = 16  # part of the free memory for what is mapped at once to hold one vector for each group
Part = tuple[int, torch.Tensor]
"""(first group, (g, size) sums over the rows of each of g groups); float64, or the model's dtype."""


class Groups:
    """Sums over the rows of a group of the gradient of `scalar`, and of products with its second derivative."""

    def __init__(self, problem: Problem, scalar: Scalar) -> None:
        self.problem, self.scalar = problem, scalar

    @cached_property
    def mapped(self) -> bool:
        """Whether groups are mapped: where vmap runs the model and `scalar`."""
        return maps(self.problem) and self.problem.guard(self._row_by_row)

    def _row_by_row(self) -> bool:
        with torch.no_grad():
            logits, labels = self.problem.logits(range(2))

        def row(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.scalar(z[None], y[None])

        found = _unless_unmapped(lambda: vmap(grad(row))(logits, labels))
        z = logits.requires_grad_()
        return found is not None and _agree(found, torch.autograd.grad(self.scalar(z, labels), z)[0])

    @property
    def at_once(self) -> int:
        """Groups that are mapped together; 0 where one by itself is too much."""
        problem = self.problem
        row = 4 * problem.size * problem.dtype.itemsize  # the sums, and what becomes of them
        return min(problem.rows // problem.layout.group, free_bytes(problem.device) // SHARE // row)

    def gradients(self) -> Iterator[Part]:
        """Sums over the rows of this rank's groups, in order; `at_once` is not 0."""
        return map(self._part, self._runs())

    def products(self, vector: torch.Tensor, plain: Callable[[range], torch.Tensor]) -> Iterator[Part] | None:
        """Products with a vector (size,), summed over the rows of this rank's groups, in order; None where groups are
        not mapped.

        Where that is not known yet, the first of them are the trial: their sum must be the `plain` product of these
        rows.
        """
        if not self.at_once or ("mapped" in vars(self) and not self.mapped):
            return None
        runs, part = list(self._runs()), partial(self._part, vector=vector)
        if not runs or self.problem.maps is not None or not _worth(self.problem):
            return map(part, runs) if self.mapped else None
        first = _unless_unmapped(lambda: part(runs[0]))
        self.mapped = first is not None and _agree(first[1].sum(0), plain(runs[0]))
        if first is None or not self.mapped:
            return None
        self.problem.maps = True
        return chain([first], map(part, runs[1:]))

    def _runs(self) -> Iterator[range]:
        """Rows of as many groups as are mapped together, then those of a last one that is smaller."""
        group, local = self.problem.layout.group, self.problem.layout.local
        whole, step = local.stop - len(local) % group, self.at_once * group
        yield from (range(start, min(start + step, whole)) for start in range(local.start, whole, step))
        if whole < local.stop:
            yield range(whole, local.stop)

    def _part(self, rows: range, vector: torch.Tensor | None = None) -> Part:
        group = self.problem.layout.group
        inputs, labels = self.problem.batch(rows)
        parts = max(1, len(rows) // group)
        return rows.start // group, mapped(self.problem, self.scalar, fold(inputs, parts), fold(labels, parts), vector)


def maps(problem: Problem) -> bool:
    """Whether rows are mapped: on a device, a model that vmap runs, where two rows agree with a plain product."""
    if problem.maps is None:
        problem.maps = _worth(problem) and problem.guard(lambda: _tried(problem))
    return problem.maps


def _worth(problem: Problem) -> bool:
    return problem.device.type != "cpu" and problem.layout.n > 1 and problem.layout.micro > 1


def _tried(problem: Problem) -> bool:
    rows = range(2)
    inputs, labels = problem.batch(rows)
    v = signs(problem.size, 0, 0, range((1 << 31) + 1, (1 << 31) + 2))[0].to(problem.device).to(problem.dtype)
    found = _unless_unmapped(lambda: mapped(problem, _squares, fold(inputs, 2), fold(labels, 2), v))
    if found is None:
        return False
    pieces = problem.product(problem.gradients(rows, _squares), problem.split(v))
    return _agree(found.sum(0), torch.cat([piece.reshape(-1) for piece in pieces]))


def _unless_unmapped(work: Callable[[], T]) -> T | None:
    """None where vmap cannot run it."""
    try:
        return work()
    except UNMAPPED as error:
        if devices.is_out_of_memory(error):
            raise
        return None


def _agree(found: torch.Tensor, true: torch.Tensor) -> bool:
    return bool((found - true).norm() <= 1e-3 * true.norm())


def _squares(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.square().sum()


def fold(rows: Inputs, parts: int) -> Inputs:
    """(parts · n, ...) to (parts, n, ...)."""
    if isinstance(rows, dict):
        return {name: fold(part, parts) for name, part in rows.items()}
    return rows.unflatten(0, (parts, -1))


def mapped(
    problem: Problem, scalar: Scalar, inputs: Inputs, labels: torch.Tensor, vectors: torch.Tensor | None = None
) -> torch.Tensor:
    """(parts, size) gradients of `scalar`, summed over each part's rows, or products with its second derivative.

    Args:
        problem: the model.
        scalar: of (logits, labels), a sum over rows.
        inputs, labels: (parts, n, ...) rows.
        vectors: (size,), or (parts, size) each part's own, to multiply by; gradients without.

    Raises:
        UNMAPPED: where vmap cannot run the model.
    """
    weights = {name: t.detach() for name, t in zip(problem.names, problem.tensors)}

    def gradient(at: dict[str, torch.Tensor], x: Inputs, y: torch.Tensor) -> dict[str, torch.Tensor]:
        def total(at: dict[str, torch.Tensor]) -> torch.Tensor:
            return scalar(problem.outputs(x, problem.placed(at)), y)

        found: dict[str, torch.Tensor] = grad(total)(at)
        return found

    def product(x: Inputs, y: torch.Tensor, v: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = vjp(lambda at: gradient(at, x, y), weights)[1](v)[0]
        return found

    if vectors is None:
        found = vmap(gradient, (None, 0, 0))(weights, inputs, labels)
    else:
        v = dict(zip(problem.names, problem.pieces(vectors)))
        found = vmap(product, (0, 0, None if vectors.ndim == 1 else 0))(inputs, labels, v)
    return torch.cat([found[name].flatten(1) for name in problem.names], 1).detach()
