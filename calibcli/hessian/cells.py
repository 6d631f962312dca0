"""Probes of many cells, and directions in many tensors, at once by `vmap`: what a device would launch one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from calibcli.hessian import tuning
from calibcli.hessian.groups import SHARE, fold, mapped, maps
from calibcli.hessian.indexed_data import Inputs, signs
from calibcli.hessian.problem import Problem, Scalar, free_bytes

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
    if isinstance(inputs, dict):
        return {name: _chosen(part, cells, index) for name, part in inputs.items()}
    return fold(inputs, cells)[index]
