"""Tr(G) from signed pairs: the heavy ones exactly, the rest by importance sampling.

Tr(G) = (1/N) Σ_n Σ_c l_nc ‖J_nᵀu_nc‖², where Σ_c l_nc u_nc u_ncᵀ is the Hessian of row n's loss in its logits. A pair
counts about as much as its mass |l_nc| ‖u_nc‖², which is known before any backward pass and sits in few pairs, times
its row's scale ‖J_nᵀu‖² / ‖u‖², which varies far more between rows (a LayerNorm whose input hardly varies) than within
one. So the heaviest pair of every row that counts comes first, and tells what the row's others weigh: with draws by
mass alone, most runs would miss rows that are rare and large, and their standard error with them.
"""

from __future__ import annotations

import contextlib
import copy
import math
from dataclasses import dataclass

import numpy as np
import torch

from calibcli.networks import device as devices
from calibcli.networks.curvature.loss import PART, Pairs, row_sums
from calibcli.networks.curvature.per_row_gradients import UNMAPPED, RowNorms
from calibcli.networks.curvature.problem import CurvatureProblem, has_twin, twin

EXACT = 10**9  # degrees of freedom of an error without draws

# Settings that change time and spread, never what is estimated, chosen by `benchmarks/curvature.py` (time to 1 %) and
# `benchmarks/curvature_coverage.py` (whether the interval covers).
CHEAP = 3  # pairs of a row, which take a product's time: if there are no more, all are taken
PILOT = 48  # draws from which the number of draws is decided
FEWEST, MOST = 128, 20_000  # draws for the rest
FLOOR = 0.3  # of the mean scale of rows, added to every row's: no pair is out of reach of the draws
OPEN = 0.1  # of the target, that rows which were not looked at may hold if they are as steep as any other
REDONE = 8  # of the heaviest rows, computed again in float64 where every pair was taken
REDONE_PAIRS = 1024  # of those rows at most, but of two rows in any case
ROUNDED = 100.0  # rounding of Tr(G) in units of the dtype's, where no float64 copy tells: that of the worst rows seen


@dataclass(frozen=True)
class GGNTrace:
    """Tr(G) and its two errors.

    Attributes:
        value: the estimate.  se: standard error of the draws and of what was not looked at; when every pair was taken,
            the rounding, which is left out in float64.
        dof: degrees of freedom of `se`.
        layers, layer_se: (tensors,) the same per parameter tensor.
        sampling: standard error over rows, of the value as an estimate of the population's.
        rows: (N,) each row's trace (exact pairs, and the rest in proportion to its weight).
        taken, drawn, pairs: pairs taken exactly, drawn, and there.
    """

    value: float
    se: float
    dof: int
    layers: torch.Tensor
    layer_se: torch.Tensor
    sampling: float
    rows: torch.Tensor
    taken: int
    drawn: int
    pairs: int

    @property
    def how(self) -> str:
        """The method in words."""
        if not self.drawn:
            return f"Tr(G) from all {self.pairs} pairs that count"
        return f"Tr(G) from {self.taken} of {self.pairs} pairs and {self.drawn} draws from the rest"


def ggn_trace(
    problem: CurvatureProblem,
    norms: RowNorms,
    pairs: Pairs,
    known: torch.Tensor | None,
    *,
    target: float,
    seed: int,
    exact: bool = False,
) -> GGNTrace:
    """Estimate Tr(G) to a standard error of `target` relative to its value.

    Args:
        problem, norms: model and data, and the norms of per-row gradients.
        pairs: of all rows.
        known: (N, 1 + tensors) a class of each row and ‖Jᵀu‖² of its pair, NaN where it is not known yet.
        target: relative standard error of the draws to aim for.
        seed: of the draws.
        exact: take every pair.
    """
    work = _PairTrace(problem, norms, pairs, seed)
    present = int(torch.count_nonzero(work.mass))
    if exact or present <= max(2 * PILOT, CHEAP * work.n):
        taken = work.mass.nonzero()[:, 0]
        return work.total(taken, work.norms_of(taken), None, 0, present)
    taken, square, left_out = work.first(known, target)
    more, rest, draws = work.plan(taken, square, left_out, target)
    return work.total(torch.cat([taken, more]), torch.cat([square, work.norms_of(more)]), rest, draws, present)


def _variance(ratios: torch.Tensor) -> float:
    """Variance of a draw, as if one more were as far from the mean as any: the tail is seldom seen whole."""
    return float(ratios.var() + (ratios - ratios.mean()).square().max() / len(ratios))


class _Rest:
    """The pairs that are not taken exactly, to draw from.

    Args:
        weight: (N, pairs) to which their chances are proportional, 0 of those that are taken.
        left_out: what rows that were not looked at may hold (see `first`).
        variance: of a draw, by a pilot.
    """

    def __init__(self, weight: torch.Tensor, left_out: torch.Tensor, variance: float = 0.0) -> None:
        self.weight, self.left_out, self.variance = weight, left_out, variance
        self.rows = row_sums(weight)
        self.total = float(self.rows.sum())

    def draw(self, stream: np.random.Generator, count: int) -> torch.Tensor:
        """Draw `count` pairs with replacement: a row, then one of its pairs."""
        n, k = self.weight.shape
        chance = self.rows.numpy()
        row = stream.choice(n, count, p=chance / chance.sum())
        at = stream.random(count)
        order = np.argsort(row, kind="stable")
        columns = np.empty(count, np.int64)
        for own in np.split(order, np.diff(row[order]).nonzero()[0] + 1):  # the draws of a row: one sum over its pairs
            sums = np.cumsum(self.weight[row[own[0]]].numpy(), dtype=np.float64)
            columns[own] = np.searchsorted(sums, at[own] * sums[-1], side="right")
        return torch.from_numpy(row * k + np.minimum(columns, k - 1))


class _PairTrace:
    """The phases of the estimate: first pairs, plan, total. Pair (n, c) has the number n·K + c."""

    def __init__(self, problem: CurvatureProblem, norms: RowNorms, pairs: Pairs, seed: int) -> None:
        self.problem, self.norms, self.pairs = problem, norms, pairs
        self.n, self.k = pairs.mass.shape
        self.mass, self.weights = pairs.mass.flatten(), pairs.weights.flatten()
        self.stream = np.random.Generator(np.random.Philox(key=np.array([seed, 1 << 62], np.uint64)))

    def first(self, known: torch.Tensor | None, target: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Take the heaviest pair of each row: the pairs, their ‖Jᵀu‖² (pairs, tensors), and what other rows may hold.

        Light rows are left out while they hold little of the mass and, if they were as steep as the steepest row that
        was looked at, of Tr(G). What they may then hold, (1 + tensors,) in units of N Tr(G), enters the error.
        """
        mass = self.pairs.mass
        rows, heaviest = self.pairs.rows, mass.argmax(1)
        order = rows.argsort(descending=True, stable=True)
        order = order[rows[order] > 0]
        after = rows[order].flip(0).cumsum(0).flip(0) - rows[order]  # mass of the rows after each
        square = torch.zeros(0, len(self.problem.tensors), dtype=torch.float64)
        allowed = target / 100 * float(rows.sum())
        while True:
            count = min(1 + int((after > allowed).sum()), len(order))
            more = order[len(square) : count]
            pairs = order[:count] * self.k + heaviest[order[:count]]
            square = torch.cat([square, self._known(known, more, pairs[len(square) :])])
            each = self.weights[pairs, None].double().abs() * square / self.mass[pairs, None]
            steepest = torch.cat([each.sum(1).amax(0)[None], each.amax(0)])
            allowed = OPEN * target * float(each.sum(1) @ rows[order[:count]]) / max(float(steepest[0]), 1e-300)
            if float(after[count - 1]) <= allowed or count == len(order):
                return pairs, square, steepest * after[count - 1]

    def _known(self, known: torch.Tensor | None, rows: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        if known is None:
            return self.norms_of(pairs)
        square = known[rows, 1:].double()
        missing = known[rows, 0] != pairs % self.k
        square[missing] = self.norms_of(pairs[missing])
        return square

    def plan(
        self, first: torch.Tensor, square: torch.Tensor, left_out: torch.Tensor, target: float
    ) -> tuple[torch.Tensor, _Rest, int]:
        """Choose further pairs to take, the rest, and the number of draws from it, for the fewest backward passes."""
        signed = self.weights[first].double() * square.sum(1)
        weight = self.pairs.mass * self.scales(first, signed.abs()).to(self.mass)[:, None]
        weight.view(-1)[first] = 0
        # what could hold the target's part of Tr(G), were it as steep as any, is not left to chance
        enough = target * (abs(float(signed.sum())) + float(row_sums(weight).sum()))
        steepest = float((signed.abs() / self.mass[first]).max())
        sure = ((self.mass > enough / max(steepest, 1e-300)) & (weight.view(-1) > 0)).nonzero()[:, 0]
        sure = sure[self.mass[sure].argsort(descending=True)[:MOST]]
        signed, expected = signed.sum(), weight.view(-1)[sure].double().sum()
        weight.view(-1)[sure] = 0
        rest, present = _Rest(weight, left_out), int(torch.count_nonzero(weight))
        if present <= PILOT + FEWEST:
            return torch.cat([sure, weight.view(-1).nonzero()[:, 0]]), rest, 0
        # how much l ‖Jᵀu‖² / weight varies, from a pilot that enters no mean: what follows stays unbiased
        pilot = self.draw(rest, PILOT)[1].sum(1)
        variance, size = _variance(pilot), abs(float(signed + expected + rest.total * pilot.mean()))
        spread = variance**0.5 / max(target * size, 1e-300)
        most = min(present, 1 + math.ceil((rest.total * spread) ** 2))  # to take more is dearer than to draw them
        order, heaviest = largest(weight.view(-1), most)
        left = (rest.total - torch.cat([torch.zeros(1, dtype=torch.float64), heaviest.double().cumsum(0)])).clamp(min=0)
        draws = (left * spread) ** 2
        take = int((torch.arange(len(left)) + draws).argmin())
        count = max(FEWEST, min(MOST, round(float(draws[take]))))
        if take + count >= present:
            return torch.cat([sure, weight.view(-1).nonzero()[:, 0]]), rest, 0
        weight.view(-1)[order[:take]] = 0
        return torch.cat([sure, order[:take]]), _Rest(weight, left_out, variance), count

    def total(
        self, taken: torch.Tensor, square: torch.Tensor, rest: _Rest | None, draws: int, present: int
    ) -> GGNTrace:
        """Add up the pairs that are taken exactly and, from draws, estimate the sum over the rest."""
        n = self.n
        signed = self.weights[taken, None].double() * square
        rows = torch.zeros(n, dtype=torch.float64).index_add_(0, taken // self.k, signed.sum(1))
        layers = signed.sum(0) / n
        layer_variance = torch.zeros_like(layers)
        variance, dof = 0.0, max(draws - 1, 1)
        if not draws and len(taken) and self.problem.dtype != torch.float64:
            rounding = self.redo(taken, signed, rows, layers)
            variance, layer_variance, dof = float(rounding[0]) ** 2, rounding[1:].square(), EXACT
        value = float(rows.sum()) / n
        second = float(rows.square().sum())  # Σ_n t_n²
        if draws and rest is not None:
            drawn, ratio = self.draw(rest, draws)
            left, total = rest.total, ratio.sum(1)
            value += left / n * float(total.mean())
            doubt = (rest.left_out / n).square()
            variance = (left / n) ** 2 * max(_variance(total), rest.variance) / draws + float(doubt[0])
            layers = layers + left / n * ratio.mean(0)
            layer_variance = (left / n) ** 2 * ratio.var(0) / draws + doubt[1:]
            # Σ_n t_n² with t_n = exact + rest; the rest's square bounded by Cauchy-Schwarz over its pairs
            which = drawn // self.k
            second += left * float((2 * rows[which] * total + rest.rows[which] * total.square()).mean())
            rows = rows + rest.rows * float(total.mean())
        spread_of_rows = max(second / n - value**2, 0.0) * n / max(n - 1, 1)
        return GGNTrace(
            value=value,
            se=variance**0.5,
            dof=dof,
            layers=layers,
            layer_se=layer_variance.sqrt(),
            sampling=(spread_of_rows / n) ** 0.5,
            rows=rows,
            taken=len(taken),
            drawn=draws,
            pairs=present,
        )

    def redo(self, taken: torch.Tensor, signed: torch.Tensor, rows: torch.Tensor, layers: torch.Tensor) -> torch.Tensor:
        """Bound the rounding of Tr(G) and of each tensor's part, (1 + tensors,).

        The heaviest rows, which may hold nearly all of it, are computed again in float64 and corrected in `rows` and
        `layers`. The others are taken to be rounded by the same share of their size as the worst of these.
        """
        of, size = taken // self.k, signed.sum(1).abs()
        sizes = torch.zeros(self.n, dtype=torch.float64).index_add_(0, of, size)
        count = min(max(2, min(REDONE, REDONE_PAIRS // self.k)), self.n)
        heavy = sizes.topk(count).indices
        each = torch.linalg.vector_norm(signed, 1, dim=0)
        remaining = torch.cat([sizes.sum()[None], each])
        exact = self.in_float64(heavy)
        if not bool(exact.isfinite().all()):
            return remaining.mul(ROUNDED * torch.finfo(self.problem.dtype).eps / self.n)
        share = torch.zeros_like(remaining)
        for row, true in zip(heavy.tolist(), exact):
            own = signed[of == row]
            own_size = torch.cat([sizes[row][None], own.abs().sum(0)])
            off = torch.cat([(true.sum() - rows[row])[None], true - own.sum(0)])
            share = share.maximum(off.abs() / own_size.clamp(min=1e-300))
            remaining -= own_size
            rows[row] = true.sum()
            layers += off[1:] / self.n
        # where nothing is left, that of float64
        least = ROUNDED * torch.finfo(torch.float64).eps * torch.cat([sizes.sum()[None], each])
        return torch.add(share * remaining.clamp(min=0), least).div(self.n)

    def in_float64(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum over all pairs of these rows in a float64 copy, (n, tensors), each rank its own; NaN without a copy."""
        problem, local = self.problem, self.problem.layout.local
        out = torch.zeros(len(rows), len(problem.tensors), dtype=torch.float64)
        own = (rows >= local.start) & (rows < local.stop)
        if bool(own.any()):
            out[own] = math.nan
            # a model that does not run in float64, or not within the memory, leaves them unknown
            with contextlib.suppress(*UNMAPPED, KeyError):
                if has_twin(problem):
                    out[own] = self._in_float64(rows[own])
        return devices.all_sum_of_host(out, problem.device)

    def _in_float64(self, rows: torch.Tensor) -> torch.Tensor:
        wide, norms = twin(self.problem, [*range(len(self.problem.tensors))]), copy.copy(self.norms)
        norms.problem = wide
        with torch.no_grad():
            logits, labels = wide.logits(rows)
        pairs = Pairs(self.pairs.loss, logits.cpu(), labels.cpu())
        at, column = (part.flatten() for part in torch.meshgrid(*map(torch.arange, pairs.mass.shape), indexing="ij"))
        signed = pairs.weights.flatten()[:, None].double() * norms(rows[at], pairs.cotangents(at, column))
        sums: torch.Tensor = signed.view(*pairs.mass.shape, -1).sum(1)
        return sums

    def scales(self, first: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        """Estimate each row's scale |l| ‖Jᵀu‖² / mass (N,) from its first pair, else by the mean; plus a floor."""
        chosen = first // self.k
        scale = sizes / self.mass[first]
        masses = self.pairs.rows[chosen]
        mean = (scale * masses).sum() / masses.sum()
        out = mean.repeat(self.n)
        out[chosen] = scale + FLOOR * mean
        # a Jacobian that vanishes on all of them says nothing
        return out if float(mean) > 0 else torch.ones_like(out)

    def draw(self, rest: _Rest, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw `count` pairs with replacement by weight, and compute their l ‖Jᵀu‖² / weight, (count, tensors)."""
        drawn = rest.draw(self.stream, count)
        scale = self.weights[drawn].double() / rest.weight.view(-1)[drawn]
        return drawn, scale[:, None] * self.norms_of(drawn)

    def norms_of(self, pairs: torch.Tensor) -> torch.Tensor:
        """Compute ‖J_nᵀu_nc‖² of pairs, (n, tensors); each rank computes those of its rows."""
        problem = self.problem
        wanted, back = torch.unique(pairs, return_inverse=True)
        row = wanted // self.k
        on_this_rank = (row >= problem.layout.local.start) & (row < problem.layout.local.stop)
        out = torch.zeros(len(wanted), len(problem.tensors), dtype=torch.float64)
        own = on_this_rank.nonzero()[:, 0]
        step, chunk = max(1, PART // problem.classes), self.norms.chunk
        for some in torch.split(own, max(step - step % chunk, min(step, chunk))):  # whole micro-batches, if they fit
            out[some] = self.norms(row[some], self.pairs.cotangents(row[some], wanted[some] % self.k))
        return devices.all_sum_of_host(out, problem.device)[back]


def largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the `count` largest of (m,) values, descending: indices and values. In blocks, which take less memory."""
    index, largest_values = torch.zeros(0, dtype=torch.long), values[:0]
    for s in range(0, len(values), PART):
        top, at = values[s : s + PART].topk(min(count, len(values) - s, PART))
        largest_values, index = torch.cat([largest_values, top]), torch.cat([index, at + s])
        order = largest_values.argsort(descending=True, stable=True)[:count]
        largest_values, index = largest_values[order], index[order]
    return index, largest_values
