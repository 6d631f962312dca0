"""Gradients and products summed over each group of rows: one group after the other, or on a device many at once.

A group is small, and a device would wait for its launches: mapped over groups, an operation is launched once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, groupby

import torch
from torch.func import grad, vjp, vmap
from torch.utils._pytree import tree_map

from calibcli.device import free_bytes
from calibcli.hessian import tuning
from calibcli.hessian.indexed_data import Inputs, signs
from calibcli.hessian.per_row_gradients import unless_unmapped
from calibcli.hessian.problem import Problem, Scalar

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

        found = unless_unmapped(lambda: vmap(grad(row))(logits, labels))
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
        first = unless_unmapped(lambda: part(runs[0]))
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
    found = unless_unmapped(lambda: mapped(problem, _squares, fold(inputs, 2), fold(labels, 2), v))
    if found is None:
        return False
    pieces = problem.product(problem.gradients(rows, _squares), problem.split(v))
    return _agree(found.sum(0), torch.cat([piece.reshape(-1) for piece in pieces]))


def _agree(found: torch.Tensor, true: torch.Tensor) -> bool:
    return bool((found - true).norm() <= 1e-3 * true.norm())


def _squares(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.square().sum()


def fold(rows: Inputs, parts: int) -> Inputs:
    """(parts · n, ...) to (parts, n, ...)."""
    return tree_map(lambda part: part.unflatten(0, (parts, -1)), rows)


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


Cell = tuple[range, range]
"""Its rows, and the numbers of its probes."""


class Cells:
    """Quadratic forms of the probes of several cells; the arguments are those of `trace.Prober`."""

    def __init__(self, problem: Problem, slope: Scalar | None, tensors: Sequence[bool], seed: int) -> None:
        self.problem, self.slope, self.tensors, self.seed = problem, slope, tensors, seed

    @property
    def mapped(self) -> bool:
        """Whether they are mapped. A loss that does not split is not: vmap might not run it."""
        return self.slope is not None and maps(self.problem)

    def light(self, wanted: Sequence[Cell]) -> bool:
        """Whether the launches for a cell by itself, on a device, take longer than its work."""
        probes = sum(len(rows) * len(numbers) for rows, numbers in wanted) / len(wanted)
        return probes * self.problem.graph_bytes < tuning.LIGHT

    def __call__(self, wanted: Sequence[Cell], whole: bool) -> Iterator[tuple[range, torch.Tensor]]:
        """(a cell's rows, (1 or 1 + tensors, m) forms of m of its probes), several times for a cell."""
        problem = self.problem
        pairs = [(rows, number) for rows, numbers in wanted for number in numbers]
        room = free_bytes(problem.device) // SHARE // (4 * problem.size * problem.dtype.itemsize)
        for count, alike in groupby(pairs, lambda pair: len(pair[0])):
            same = list(alike)
            step = max(1, min(problem.rows // count, room))
            for i in range(0, len(same), step):
                some = same[i : i + step]
                forms = self._together(some, whole).double().cpu()
                for (rows, _), form in zip(some, forms):
                    yield rows, form[:, None]

    def _together(self, pairs: Sequence[tuple[range, int]], whole: bool) -> torch.Tensor:
        """(pairs, 1 or 1 + tensors) forms vᵀ(H - G)v of cells with as many rows, and of a probe of each."""
        problem, slope = self.problem, self.slope
        assert slope is not None
        cells = {rows.start: rows for rows, _ in pairs}
        place = {start: i for i, start in enumerate(cells)}
        index = torch.tensor([place[rows.start] for rows, _ in pairs], device=problem.device)
        inputs, labels = problem.batch(torch.cat([torch.arange(rows.start, rows.stop) for rows in cells.values()]))
        with torch.no_grad():
            logits = problem.outputs(inputs)
        fixed = slope(logits, labels).view(len(cells), -1, problem.classes)[index]
        drawn = [signs(problem.size, self.seed, rows.start, range(number, number + 1)) for rows, number in pairs]
        v = torch.cat(drawn).to(problem.device).to(problem.dtype)
        for piece, on in zip(torch.split(v, problem.sizes, 1), self.tensors):
            if not on:
                piece.zero_()
        parts = mapped(problem, _along, _chosen(inputs, len(cells), index), fixed, v).mul_(v)
        if not whole:
            return parts.sum(1, keepdim=True)
        sums = torch.stack([piece.sum(1) for piece in torch.split(parts, problem.sizes, 1)], 1)
        return torch.cat([sums.sum(1, keepdim=True), sums], 1)


def bend_at_once(problem: Problem, rows: range, seed: int, which: Sequence[int] | None = None) -> torch.Tensor:
    """`trace.has_curvature` of these rows, of all tensors: a direction in each tensor, mapped over the tensors."""
    stream = torch.Generator().manual_seed(seed)
    weights = torch.randn(len(rows), problem.classes, generator=stream).to(problem.device)
    inputs = problem.batch(rows)[0]
    drawn = [torch.rand(size, generator=stream).sub_(0.5) for size in problem.sizes]
    gradient = problem.gradients(rows, lambda z, _: _along(z, weights.to(z.dtype)), graph=False)
    room = free_bytes(problem.device) // SHARE // (4 * problem.size * problem.dtype.itemsize)
    step, found = max(1, min(room, problem.rows // len(rows))), []
    all_of_them = list(range(len(drawn)))
    for i in range(0, len(drawn), step):
        some = all_of_them[i : i + step]
        v = torch.zeros(len(some), problem.size, dtype=problem.dtype)
        for j, k in enumerate(some):
            torch.split(v[j], problem.sizes)[k].copy_(drawn[k])
        v = v.to(problem.device)
        index = torch.zeros(len(some), dtype=torch.long, device=problem.device)
        fixed = weights.to(problem.dtype)[None][index]
        bends = mapped(problem, _along, _chosen(inputs, 1, index), fixed, v).mul_(v).sum(1)
        sizes = (torch.cat([g.reshape(-1) for g in gradient]) * v).abs().sum(1)
        found.append(bends.abs() > 1e-9 * sizes)
    return torch.cat(found).cpu()


def _along(logits: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
    return (fixed * logits).sum()


def _chosen(inputs: Inputs, cells: int, index: torch.Tensor) -> Inputs:
    """(pairs, rows, ...) inputs of the cells that pairs are of."""
    return tree_map(lambda part: part[index], fold(inputs, cells))
