"""Gradients and products summed over each group of rows: one group after the other, or on a device many at once.

A group is small, and a device would wait for its launches: mapped over groups, an operation is launched once for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch.func import functional_call, grad, vjp, vmap

from calibcli import device as devices
from calibcli.hessian.indexed_data import Inputs, signs
from calibcli.hessian.per_row_gradients import UNMAPPED
from calibcli.hessian.problem import Problem, Scalar, free_bytes

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

        try:
            found: torch.Tensor = vmap(grad(row))(logits, labels)
        except UNMAPPED as error:
            if devices.is_out_of_memory(error):
                raise
            return False
        z = logits.requires_grad_()
        (true,) = torch.autograd.grad(self.scalar(z, labels), z)
        return bool((found - true).norm() <= 1e-3 * true.norm())

    @property
    def at_once(self) -> int:
        """Groups that are mapped together; 0 where one by itself is too much."""
        problem = self.problem
        row = 4 * problem.size * problem.dtype.itemsize  # the sums, and what becomes of them
        return min(problem.rows // problem.layout.group, free_bytes(problem.device) // SHARE // row)

    def __call__(self, vector: torch.Tensor | None = None) -> Iterator[Part]:
        """Products with a vector (size,), or gradients without, of this rank's groups, in order; `at_once` is not 0."""
        problem, group, local = self.problem, self.problem.layout.group, self.problem.layout.local
        whole = local.stop - len(local) % group
        starts = range(local.start, whole, self.at_once * group)
        runs = [range(start, min(start + self.at_once * group, whole)) for start in starts]
        for rows in [*runs, *([range(whole, local.stop)] if whole < local.stop else [])]:
            inputs, labels = problem.batch(rows)
            parts = max(1, len(rows) // group)
            yield rows.start // group, mapped(problem, self.scalar, fold(inputs, parts), fold(labels, parts), vector)


def maps(problem: Problem) -> bool:
    """Whether rows are mapped: on a device, a model that vmap runs, where two rows agree with a plain product."""
    if problem.maps is None:
        on = problem.device.type != "cpu" and problem.layout.n > 1 and problem.layout.micro > 1
        problem.maps = on and problem.guard(lambda: _agrees(problem))
    return problem.maps


def _agrees(problem: Problem) -> bool:
    rows = range(2)
    inputs, labels = problem.batch(rows)
    v = signs(problem.size, 0, 0, range((1 << 31) + 1, (1 << 31) + 2))[0].to(problem.device).to(problem.dtype)
    try:
        found = mapped(problem, _squares, fold(inputs, 2), fold(labels, 2), v).sum(0)
    except UNMAPPED as error:
        if devices.is_out_of_memory(error):
            raise
        return False
    pieces = problem.product(problem.gradients(rows, _squares), problem.split(v))
    true = torch.cat([piece.reshape(-1) for piece in pieces])
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
            def model(*args: Any, **kwargs: Any) -> Any:
                return functional_call(problem.model, at, args, kwargs)

            return scalar(problem.outputs(x, model), y)

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
