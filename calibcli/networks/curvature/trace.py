"""Tr(H) = Tr(G) + Tr(H - G): the first from pairs, the second by Hutchinson probes where it does not vanish.

Where the logits are linear in each parameter tensor by itself (ReLU, pooling, eval-mode BatchNorm, linear and
convolution layers, residual sums, no tensor used twice) every tensor's diagonal block of H - G is zero almost
everywhere, and there is nothing to probe. Elsewhere H - G is probed with signs that are fresh in every cell of a few
rows, so that what is off the diagonal averages out over rows, and with more of them where it is larger.

Derivations: docs/statistics/curvature-traces.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import torch
from torch.utils._pytree import tree_map

from calibcli.core.statistics import bisect, normal_quantile, student_quantile
from calibcli.networks import device as devices
from calibcli.networks.curvature.differences import GradientDifferences
from calibcli.networks.curvature.memory_plan import SHORT, Layout, power_of_two
from calibcli.networks.curvature.operator import fold, mapped, maps, vectors_at_once
from calibcli.networks.curvature.per_row_gradients import UNMAPPED
from calibcli.networks.curvature.problem import CurvatureProblem, Scalar, second, signs
from calibcli.networks.curvature.saved_state import Pieces
from calibcli.networks.derivatives.jets import Bend
from calibcli.networks.derivatives.rules import Lost

# Settings that change time and spread, never what is estimated, chosen by `benchmarks/probes.py` (a pass of probes
# against one of H) and `benchmarks/curvature.py` (the trace of the ViT).
AT_ONCE = 64  # rows times probes whose first derivatives are carried together
AT_ONCE_THERE = 4096  # the same on a device, by the counts of `benchmarks/device.py`
BYTES = 256 << 20  # of directions at once
LIGHT = 1 << 30  # probes times bytes of a cell's graph up to which cells are mapped on a device: launches are dearer
WORTH = 32 << 20  # probes times bytes of a cell's graph from which carrying derivatives forward pays
SIMILAR = 4.0  # degrees of freedom that the guess counts for in the variance of a cell
HEAVY = 32  # probes of a cell at least, where it holds HOLDS of the variance: `curvature_coverage.py --resampled`
HOLDS = 0.1
VANISHING = 1e-9  # of its size: rounding of a product that should vanish but is a difference of two equal numbers


@dataclass(frozen=True)
class Probes:
    """Quadratic forms vᵀMv of a second derivative Σ_n M_n, by cell of rows.

    Attributes:
        forms: (cells, 3) number of probes, sum and sum of squares of their forms. Cells that were taken exactly stand
            as a single probe among several: without a variance.
        layers: (cells, tensors, 3) the same of the part of each tensor, the one that the left v is restricted to; of no
            tensors where whole products were not made.
        cell: rows of a cell.
    """

    forms: torch.Tensor
    layers: torch.Tensor
    cell: int

    def __add__(self, other: Probes) -> Probes:
        return Probes(self.forms + other.forms, self.layers + other.layers, self.cell)

    @property
    def each(self) -> float:
        """Probes of a cell, on average."""
        return float(self.forms[:, 0].mean())


def moments(forms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn counts, sums and sums of squares (..., 3) into means and their squared standard errors (0 of a single)."""
    count, total, square = forms.unbind(-1)
    mean = total / count.clamp(min=1)
    return mean, (square / count.clamp(min=1) - mean.square()).clamp(min=0) / (count - 1).clamp(min=1)


def coarse(n: int) -> int:
    """Number of rows of a cell: 8, more from 131,072 rows, fewer below 128."""
    return min(power_of_two(n // 16), max(8, power_of_two(n // 8192)))


class Prober:
    """Draw random-sign probes of a second derivative, and compute their quadratic forms.

    Args:
        problem: model and data.
        scalar: what is differentiated twice.
        slope: (logits, labels) -> s (n, K), where the scalar is Σ ⟨s, logits⟩ with s held fixed; else None.
        tensors: (tensors,) bool, which parameter tensors are probed; the others' signs are 0.
        seed: of the signs, which are a function of (seed, first row of the cell, probe number).
        hessian: makes the products, where reverse over reverse does not.
        pieces: sums over probes that are known from a saved state.
    """

    def __init__(
        self,
        problem: CurvatureProblem,
        scalar: Scalar,
        slope: Scalar | None,
        *,
        tensors: torch.Tensor,
        seed: int,
        hessian: GradientDifferences | None = None,
        pieces: Pieces | None = None,
    ) -> None:
        self.problem, self.scalar, self.slope, self.seed = problem, scalar, slope, seed
        self.hessian, self.pieces = hessian, pieces or Pieces()
        self.tensors: list[bool] = tensors.tolist()

    @cached_property
    def forward(self) -> bool:
        """Whether first derivatives can be carried forward (`Bend`) where whole products are not needed.

        It is decided on one or two rows, where they must agree with reverse over reverse.
        """
        return self.slope is not None and self.hessian is None and self.problem.guard(self._agrees)

    def whole(self, each: float, cell: int) -> bool:
        """Whether whole products are made for `each` probes of a cell: carrying derivatives takes Python longer."""
        return each * cell * self.problem.graph_bytes < WORTH or not self.forward

    def __call__(self, first: torch.Tensor, last: torch.Tensor, cell: int, *, whole: bool) -> Probes:
        """Compute the probes numbered from `first` up to `last` (cells,) of each cell of `cell` rows."""
        return self.problem.guard(lambda: self._draw(first.tolist(), last.tolist(), cell, whole or not self.forward))

    def _draw(self, first: list[int], last: list[int], cell: int, whole: bool) -> Probes:
        layout = self.problem.layout
        # (cells, 1 or 1 + tensors, 3): of the forms and of each tensor's part, the number, sum and sum of squares
        sums = torch.zeros(len(first), 1 + whole * len(self.tensors), 3, dtype=torch.float64)
        wanted = [
            (range(start, min(start + cell, layout.local.stop)), range(first[start // cell], last[start // cell]))
            for start in range(layout.local.start, layout.local.stop, cell)
        ]
        of_cell = dict(wanted)
        known = {
            rows: self.pieces.recall(self._name(rows, numbers, whole)) for rows, numbers in of_cell.items() if numbers
        }
        for rows, found in known.items():
            sums[rows.start // cell] = found[0] if found else 0.0
        done = dict.fromkeys(known, 0)
        for rows, forms in self._forms([(rows, of_cell[rows]) for rows, found in known.items() if not found], whole):
            each = torch.stack([torch.ones_like(forms), forms, forms.square()], 2)  # (1 or 1 + tensors, m, 3)
            sums[rows.start // cell] += each.sum(1)
            done[rows] += forms.shape[1]
            if done[rows] == len(of_cell[rows]):
                self.pieces.keep(self._name(rows, of_cell[rows], whole), [sums[rows.start // cell]])
        totals = devices.all_sum_of_host(sums, self.problem.device)
        return Probes(totals[:, 0], totals[:, 1:], cell)

    @staticmethod
    def _name(rows: range, numbers: range, whole: bool) -> str:
        kind = "whole products" if whole else "forms"
        return f"probes {numbers.start} to {numbers.stop} of rows {rows.start} to {rows.stop}, {kind}"

    def _forms(self, wanted: list[tuple[range, range]], whole: bool) -> Iterator[tuple[range, torch.Tensor]]:
        """Yield a cell's rows and the forms (1 or 1 + tensors, m) of m of its probes, for each wanted cell."""
        layout = self.problem.layout
        each = sum(len(rows) * len(numbers) for rows, numbers in wanted) / max(len(wanted), 1)
        light = whole or each * self.problem.graph_bytes < LIGHT
        # cells of a loss that does not split are not mapped: vmap might not run it
        if wanted and light and self.slope is not None and maps(self.problem):
            yield from self._mapped(wanted, whole)
            return
        for rows, numbers in wanted:
            micro = [range(i, min(i + layout.micro, rows.stop)) for i in range(rows.start, rows.stop, layout.micro)]
            part = self._whole if whole else self._bends
            yield rows, torch.stack([part(some, rows.start, numbers) for some in micro]).sum(0)  # over micro-batches

    def _mapped(self, wanted: list[tuple[range, range]], whole: bool) -> Iterator[tuple[range, torch.Tensor]]:
        """Yield what `_forms` does from many cells at once, several times for a cell."""
        problem = self.problem
        pairs = [(rows, number) for rows, numbers in wanted for number in numbers]
        for count, alike in groupby(pairs, lambda pair: len(pair[0])):
            same = list(alike)
            step = max(1, min(problem.plan.rows // count, vectors_at_once(problem)))
            for i in range(0, len(same), step):
                some = same[i : i + step]
                forms = self._together(some, whole).double().cpu()
                for (rows, _), form in zip(some, forms):
                    yield rows, form[:, None]

    def _together(self, pairs: Sequence[tuple[range, int]], whole: bool) -> torch.Tensor:
        """Compute the forms (pairs, 1 or 1 + tensors) for a probe of each of some cells of equal size."""
        problem, slope = self.problem, self.slope
        assert slope is not None
        cells = {rows.start: rows for rows, _ in pairs}
        place = {start: i for i, start in enumerate(cells)}
        index = torch.tensor([place[rows.start] for rows, _ in pairs], device=problem.device)
        inputs, labels = problem.batch(torch.cat([torch.arange(rows.start, rows.stop) for rows in cells.values()]))
        with torch.no_grad():
            logits = problem.outputs(inputs)
        chosen, fixed = tree_map(lambda part: part[index], fold((inputs, slope(logits, labels)), len(cells)))
        drawn = [signs(problem.size, self.seed, rows.start, range(number, number + 1)) for rows, number in pairs]
        v = torch.cat(drawn).to(problem.device).to(problem.dtype)
        for piece, on in zip(torch.split(v, problem.sizes, 1), self.tensors):
            if not on:
                piece.zero_()
        parts = mapped(problem, along, chosen, fixed, v).mul_(v)
        if not whole:
            return parts.sum(1, keepdim=True)
        sums = torch.stack([piece.sum(1) for piece in torch.split(parts, problem.sizes, 1)], 1)
        return torch.cat([sums.sum(1, keepdim=True), sums], 1)

    def _directions(self, row: int, numbers: range) -> list[torch.Tensor]:
        """Draw signs (m, *shape) for each parameter tensor."""
        problem = self.problem
        return problem.pieces(signs(problem.size, self.seed, row, numbers).to(problem.device).to(problem.dtype))

    def _whole(self, rows: range, row: int, numbers: range) -> torch.Tensor:
        """Compute the forms and each tensor's part, (1 + tensors, m), by whole products."""
        at: Any = self.hessian.at(rows) if self.hessian else self.problem.gradients(rows, self.scalar)
        multiply = self.hessian.times if self.hessian else self.problem.product
        forms = []
        for i in numbers:
            drawn = zip(self._directions(row, range(i, i + 1)), self.tensors)
            v = [d[0] if on else torch.zeros_like(d[0]) for d, on in drawn]
            products = multiply(at, v)
            forms.append(torch.stack([torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in zip(v, products)]))
        parts = torch.stack(forms, 1).double().cpu()
        return torch.cat([parts.sum(0)[None], parts])

    def _bends(self, rows: range, row: int, numbers: range) -> torch.Tensor:
        """Compute the forms (1, m), with first derivatives carried forward."""
        problem, slope = self.problem, self.slope
        assert slope is not None
        inputs, labels = problem.batch(rows)
        moving = [t for t, on in zip(problem.tensors, self.tensors) if on]
        bend = Bend(lambda: problem.outputs(inputs), moving, lambda logits: slope(logits, labels))
        size = problem.size * torch.empty((), dtype=problem.dtype).element_size()
        most = AT_ONCE if problem.device.type == "cpu" else AT_ONCE_THERE
        room = min(BYTES, devices.free_bytes(problem.device) // SHORT) // size
        step = max(1, min(most // len(rows), room, 4 * problem.layout.micro // len(rows)))
        forms = []
        for i in range(numbers.start, numbers.stop, step):
            drawn = self._directions(row, range(i, min(i + step, numbers.stop)))
            forms.append(bend.forms([v for v, on in zip(problem.scaled(drawn), self.tensors) if on]))
        return torch.cat(forms).double().cpu()[None]

    def _agrees(self) -> bool:
        rows, numbers = range(min(2, self.problem.layout.n, self.problem.layout.micro)), range(4)
        true = self._whole(rows, 0, numbers)[0]
        try:
            carried = self._bends(rows, 0, numbers)[0]
        except Lost:
            return False
        except UNMAPPED as error:
            if devices.is_out_of_memory(error):
                raise
            return False
        return bool((carried - true).abs().max() <= 1e-3 * true.square().mean().sqrt())


def exactly(traces: torch.Tensor, chosen: torch.Tensor, cell: int, whole: bool) -> Probes:
    """Turn exact traces (cells, tensors) of the chosen (cells,) cells into `Probes` without a variance."""
    traces = torch.cat([traces.sum(1, keepdim=True), traces[:, : whole * traces.shape[1]]], 1)
    ones = torch.ones_like(traces) * chosen[:, None]
    forms = torch.stack([ones, traces, traces.square()], 2)  # (cells, 1 or 1 + tensors, 3)
    return Probes(forms[:, 0], forms[:, 1:], cell)


def has_curvature(problem: CurvatureProblem, seed: int, which: Sequence[int] | None = None) -> torch.Tensor:
    """Test for each tensor, or for those of `which`, whether the logits have curvature in that tensor alone: bool.

    Two rows are tested with random directions.

    A tensor's diagonal block of H - G is a combination of second derivatives of the logits; random combinations and
    directions that give exactly zero say that all of them are zero there.
    """

    def work() -> torch.Tensor:
        two, micro = min(2, problem.layout.n), problem.layout.micro
        runs = [range(i, min(i + micro, two)) for i in range(0, two, micro)]
        return torch.stack([_bent(problem, rows, seed, which) for rows in runs]).any(0)

    return problem.guard(work)


def _bent(problem: CurvatureProblem, rows: range, seed: int, which: Sequence[int] | None) -> torch.Tensor:
    """Compute `has_curvature` of these rows, on a device for all tensors at once: with a direction in each, mapped.

    There one tensor after the other takes 8,032 kernels for a ResNet-20, all at once 1,679, where the whole self-test
    takes 2,440 (`benchmarks/results/device.txt`).
    """
    stream = torch.Generator().manual_seed(seed)
    weights = torch.randn(len(rows), problem.classes, generator=stream).to(problem.device)
    at_once = which is None and maps(problem)
    gradients = problem.gradients(rows, lambda z, _: along(z, weights.to(z.dtype)), graph=not at_once)
    chosen = range(len(gradients)) if which is None else which
    drawn = (torch.rand(problem.tensors[k].shape, generator=stream).sub_(0.5) for k in chosen)
    bent = []
    if not at_once:
        for k, direction in zip(chosen, drawn):
            v = direction.to(problem.device, problem.dtype)
            (product,) = second([gradients[k]], [problem.tensors[k]], [v])
            bent.append(((product * v).sum().abs() > VANISHING * (gradients[k].detach() * v).abs().sum())[None])
        return torch.cat(bent).cpu()
    inputs, flat = problem.batch(rows)[0], torch.cat([g.reshape(-1) for g in gradients])
    step = max(1, min(vectors_at_once(problem), problem.plan.rows // len(rows)))
    for i in range(0, len(gradients), step):
        some = chosen[i : i + step]
        v = torch.zeros(len(some), problem.size, dtype=problem.dtype)
        for row, k in zip(v, some):
            problem.pieces(row)[k].copy_(next(drawn))
        v = v.to(problem.device)
        same, fixed = tree_map(lambda part, v=v: part.expand(len(v), *part.shape), (inputs, weights.to(problem.dtype)))
        bends = mapped(problem, along, same, fixed, v).mul_(v).sum(1)
        bent.append(bends.abs() > VANISHING * (flat * v).abs().sum(1))
    return torch.cat(bent).cpu()


def along(logits: torch.Tensor, fixed: torch.Tensor) -> torch.Tensor:
    """Return Σ ⟨fixed, logits⟩, whose second derivative is that of the logits alone."""
    return (fixed * logits).sum()


def pilot(n: int) -> int:
    """Number of pilot probes of a cell, from which the number of probes is decided: few where there are many cells."""
    cells = -(-n // coarse(n))
    return max(2, min(8, -(-256 // cells)))


def allocate(
    pilot_probes: Probes,
    rows: torch.Tensor,
    se: float,
    most: int,
    cell: int,
    level: float = 0.95,
    exact: float = math.inf,
) -> torch.Tensor:
    """Choose the number of probes of each cell (cells,), in proportion to its spread, for a wanted standard error.

    It is 0 for a cell that `exact` products, fewer than its probes, take exactly; else at least two and on average at
    most `most`. A cell that holds much of the variance gets a few more, since a spread estimated from two probes is
    next to nothing too often. Where few cells hold the variance, few probes of them would be enough for the standard
    error, but Student's factor would be large: there are as many as the half width of the interval needs.

    Args:
        pilot_probes: probes so far, of cells no smaller.
        rows: (N,) guess of what a row's variance is proportional to. It shares out the variance of a cell, and counts
            for a little in it.
        se: the standard error to reach, were its degrees of freedom known to be many.  most: of the average number.
        cell: rows of the cells to come.  level: of the interval.
        exact: products for the diagonal of a cell. Where probes take as many on average, every cell is taken exactly.
    """
    n, count = len(rows), pilot_probes.forms[:, 0]
    index = torch.arange(n)
    cells = index // pilot_probes.cell
    variance, freedom = moments(pilot_probes.forms)[1] * count, count - 1  # of one probe
    guess = _of_cells(rows, pilot_probes)
    variance = _leaning(variance, freedom, guess)
    each = variance[cells] * torch.where(guess[cells] > 0, rows / guess[cells].clamp(min=1e-300), 1 / pilot_probes.cell)
    spread = torch.zeros(-(-n // cell), dtype=torch.float64).index_add_(0, index // cell, each).sqrt()
    count = _shared_out(spread, n, se, most, level)
    is_exact = (count > exact) | (float(count.double().mean()) >= exact)
    if not bool(is_exact.any()):
        return count
    return _shared_out(spread.masked_fill(is_exact, 0), n, se, most, level).masked_fill(is_exact, 0)


def _shared_out(spread: torch.Tensor, n: int, se: float, most: int, level: float) -> torch.Tensor:
    """Share out probes (cells,) by the standard deviations of one probe of each cell."""
    wish = spread * spread.sum() / max(se * n, 1e-300) ** 2
    if not bool((spread > 0).any()):
        return wish.clamp(min=2).long()
    heavy = spread.square() > HOLDS * spread.square().sum()
    least = torch.where(heavy, max(2, min(HEAVY, most)), 2)

    def counts(factor: float) -> torch.Tensor:
        more = wish * factor**2
        return (more * min(1.0, most / max(float(more.mean()), 1e-300))).round().long().maximum(least)

    def short(factor: float) -> float:
        """By how much the half width exceeds the wanted one, with the standard error smaller by `factor`."""
        each, number = spread.square() / n**2 / counts(factor), counts(factor) - 1
        total = float(each.sum())
        dof = max(1.0, total**2 / float((each.square() / number).sum()))
        return student_quantile(0.5 + level / 2, dof) * math.sqrt(total) - normal_quantile(0.5 + level / 2) * se

    factor = bisect(short, 1.0, 16.0)[1] if short(1.0) > 0 else 1.0
    return counts(factor)


@dataclass(frozen=True)
class ProbeMean:
    """An average over probes with its standard error and its degrees of freedom."""

    value: float
    se: float
    dof: float


def summarise(probes: Probes, n: int, rows: torch.Tensor | None = None) -> ProbeMean:
    """Estimate the mean over rows of vᵀM_n v; cells have probes of their own, so their variances v add.

    With a guess `rows` (N,), as for `allocate`, a cell's variance leans to it: where forms are skewed, few probes give
    too small a value and too small a spread together. Degrees of freedom after Satterthwaite, (Σv)² / Σ(v²/f), with v²
    replaced by v² f / (f + 2) and (Σv)² less by twice that sum: the squares of variances from few probes are too large.
    """
    mean, variance = moments(probes.forms)
    count, freedom = probes.forms[:, 0], (probes.forms[:, 0] - 1).clamp(min=1)
    if rows is not None:
        variance = _leaning(variance * count, freedom, _of_cells(rows, probes)) / count.clamp(min=1)
    variance = variance / n**2
    total, squares = float(variance.sum()), float((variance.square() / (freedom + 2)).sum())
    dof = max(1.0, total**2 / squares - 2) if squares > 0 else float(freedom.max())
    return ProbeMean(float(mean.sum()) / n, total**0.5, dof)


def _of_cells(rows: torch.Tensor, probes: Probes) -> torch.Tensor:
    """Sum over a cell's rows, (cells,); 0 for cells that were taken exactly."""
    cells = torch.arange(len(rows)) // probes.cell
    sums = torch.zeros(len(probes.forms), dtype=torch.float64).index_add_(0, cells, rows)
    return sums * (probes.forms[:, 0] > 1)


def _leaning(variance: torch.Tensor, freedom: torch.Tensor, guess: torch.Tensor) -> torch.Tensor:
    """Shrink the measured variances of one probe (cells,) towards variances in proportion to a guess."""
    expected = guess * (variance.sum() / guess.sum().clamp(min=1e-300))
    return (freedom * variance + SIMILAR * expected) / (freedom + SIMILAR)


def by_tensor(probes: Probes, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean over rows of each tensor's part (tensors,), and its standard error."""
    mean, variance = moments(probes.layers)
    return mean.sum(0) / n, variance.sum(0).sqrt() / n


def sampling_error(rows: torch.Tensor, sums: torch.Tensor, noise: torch.Tensor, layout: Layout) -> float:
    """Estimate the standard error over rows of the mean of t_n = rows (N,) + vᵀM_n v, from the spread between groups.

    `sums` (groups,) are of vᵀM_n v over a group's rows, `noise` (groups,) the variances that probes leave in them: they
    are taken out of the spread; where they drown it, a quarter of the raw variance is the floor.
    """
    n, count, weights = len(rows), layout.groups, layout.weights
    x = (sums.index_add(0, torch.arange(n) // layout.group, rows)) / n  # (groups,) shares of the mean
    x = x - weights * x.sum()  # each group against what its share of the rows would give
    raw = float(x.square().sum())
    clean = raw - float((noise * (1 - 2 * weights)).sum() + noise.sum() * weights.square().sum()) / n**2
    return math.sqrt(max(clean, raw / 4) * count / max(count - 1, 1))


def by_row(sums: torch.Tensor, cell: int, n: int) -> torch.Tensor:
    """Spread sums over cells of rows (cells,) to (n,) terms with the same mean, that vary as the rows themselves do.

    A row's own term is not known. The mean of m independent rows varies as a row divided by √m: the distance of each
    cell's mean from that of all is multiplied by √m.
    """
    cells = torch.arange(n) // cell
    count = torch.bincount(cells, minlength=len(sums)).double()
    terms = ((sums / count - sums.sum() / n) * count.sqrt())[cells]
    return terms - terms.mean() + sums.sum() / n


def by_group(probes: Probes, layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum vᵀM_n v over each group's rows, (groups,), with the squared standard errors."""
    group_of = torch.arange(len(probes.forms)) * probes.cell // layout.group
    zero = torch.zeros(layout.groups, dtype=torch.float64)
    mean, variance = moments(probes.forms)
    return zero.index_add(0, group_of, mean), zero.index_add(0, group_of, variance)
