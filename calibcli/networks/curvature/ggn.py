"""Tr(G) from signed pairs: the heavy ones exactly, the rest by importance sampling.

Tr(G) = (1/N) Σ_n Σ_c l_nc ‖J_nᵀu_nc‖², where Σ_c l_nc u_nc u_ncᵀ is the Hessian of row n's loss in its logits. A pair
counts about as much as its mass |l_nc| ‖u_nc‖², which is known before any backward pass and sits in few pairs, times
its row's scale ‖J_nᵀu‖² / ‖u‖², which varies far more between rows (a LayerNorm whose input hardly varies) than within
one. So the heaviest pair of every row that counts comes first, and tells what the row's others weigh: with draws by
mass alone, most runs would miss rows that are rare and large, and their standard error with them.

Derivations: docs/statistics/curvature-traces.md.
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
from calibcli.networks.curvature.saved_state import Pieces

EXACT = 10**9  # degrees of freedom of an error without draws
STREAM = 1 << 62  # second half of the random key: that of `signs` is less (for 2**30 rows), that of `normal` more
SMALLEST = 1e-300  # of a divisor

# Settings that change time and spread, never what is estimated, chosen by `benchmarks/curvature.py` (time to 1 %) and
# `benchmarks/curvature_coverage.py` (whether the interval covers).
CHEAP = 3  # pairs of a row, which take a product's time: if there are no more, all are taken
PILOT = 48  # draws from which the number of draws is decided
FEWEST, MOST = 128, 20_000  # draws for the rest
FLOOR = 0.3  # of the mean scale of rows, added to every row's: no pair is out of reach of the draws
OPEN = 0.1  # of the target, that rows which were not looked at may hold if they are as steep as any other
REDONE = 8  # of the heaviest rows, computed again in float64 where every pair was taken
REDONE_PAIRS = 1024  # of those rows at most, but of two rows in any case
PIECE = 1024  # pairs that are one piece of a saved state
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
    known_squares: torch.Tensor | None,
    *,
    target: float,
    seed: int,
    exact: bool = False,
    pieces: Pieces | None = None,
) -> GGNTrace:
    """Estimate Tr(G) to a standard error of `target` relative to its value.

    Args:
        problem, norms: model and data, and a function of rows (n,) and vectors u (n, K) that computes ‖J_nᵀu‖² for each
            parameter tensor, (n, tensors).
        pairs: of all rows: `weights` l and `mass` |l| ‖u‖², (N, K) each, or (N, 1) for two classes.
        known_squares: (N, 1 + tensors) the column c of a pair of each row and its ‖Jᵀu‖² by tensor, NaN where they are
            not known yet.
        target: relative standard error of the draws to aim for.
        seed: of the draws.
        exact: take every pair.
        pieces: norms that are known from a saved state.
    """
    work = _PairTrace(problem, norms, pairs, seed, pieces or Pieces())
    present = int(torch.count_nonzero(work.mass))
    if exact or present <= max(2 * PILOT, CHEAP * work.n):
        taken = work.mass.nonzero()[:, 0]
        return work.total(taken, work.norms_of(taken), None, 0, present)
    first, square, left_out = work.first(known_squares, target)
    more, others, draws = work.plan(first, square, left_out, target)
    return work.total(torch.cat([first, more]), torch.cat([square, work.norms_of(more)]), others, draws, present)


def _variance(ratios: torch.Tensor) -> float:
    """Variance of a draw, as if one more were as far from the mean as any: the tail is seldom seen whole."""
    return float(ratios.var() + (ratios - ratios.mean()).square().max() / len(ratios))


class _Rest:
    """The pairs that are not taken exactly, to draw from.

    Pair p has t_p = l ‖Jᵀu‖², of which N Tr(G) is the sum, and is drawn with the chance weight_p / W, W = Σ weight. So
    Σ t_p over the rest is W times the mean of the ratio t_p / weight_p of a draw.

    Args:
        weight: (N, K), 0 for pairs that are taken.
        left_out: (1 + tensors,) what rows that were not looked at may hold (see `first`).
        variance: of the ratio of a draw, by a pilot.

    Attributes:
        rows: (N,) sums of `weight`.  total: W.
    """

    def __init__(self, weight: torch.Tensor, left_out: torch.Tensor, variance: float = 0.0) -> None:
        self.weight, self.left_out, self.variance = weight, left_out, variance
        self.rows = row_sums(weight)
        self.total = float(self.rows.sum())

    def draw(self, stream: np.random.Generator, count: int) -> torch.Tensor:
        """Draw `count` pairs with replacement, their numbers (count,): a row, then one of its pairs.

        The column is found by inverting the cumulated weights of the row, which are summed once for all its draws.
        """
        n, k = self.weight.shape
        chance = self.rows.numpy()
        row = stream.choice(n, count, p=chance / chance.sum())
        uniform = stream.random(count)
        by_row = np.argsort(row, kind="stable")
        columns = np.empty(count, np.int64)
        for draws_of_row in np.split(by_row, np.diff(row[by_row]).nonzero()[0] + 1):
            sums = np.cumsum(self.weight[row[draws_of_row[0]]].numpy(), dtype=np.float64)
            columns[draws_of_row] = np.searchsorted(sums, uniform[draws_of_row] * sums[-1], side="right")
        return torch.from_numpy(row * k + np.minimum(columns, k - 1))


class _PairTrace:
    """The phases of the estimate: first pairs, plan, total. Pair (n, c) has the number p = n·K + c.

    Attributes:
        mass, weights: (N K,) |l| ‖u‖² and l of each pair.
        n, k: N and K, where K is 1 for two classes, whose rows have one pair.
        stream: of random numbers.
    """

    def __init__(self, problem: CurvatureProblem, norms: RowNorms, pairs: Pairs, seed: int, pieces: Pieces) -> None:
        self.problem, self.norms, self.pairs = problem, norms, pairs
        self.pieces, self.calls = pieces, 0  # of `norms_of`
        self.n, self.k = pairs.mass.shape
        self.mass, self.weights = pairs.mass.flatten(), pairs.weights.flatten()
        self.stream = np.random.Generator(np.random.Philox(key=np.array([seed, STREAM], np.uint64)))

    def first(
        self, known_squares: torch.Tensor | None, target: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Take the heaviest pair of each row: the pairs, their ‖Jᵀu‖² (pairs, tensors), and what other rows may hold.

        With μ_n = Σ_c |l| ‖u‖² the mass of a row, and its scale σ_n = |l| ‖Jᵀu‖² / (|l| ‖u‖²) = ‖Jᵀu‖² / ‖u‖² by its
        heaviest pair, N Tr(G) is about Σ σ_n μ_n. Rows are looked at by falling mass, until those after them, of mass A
        together, hold at most OPEN · target of that sum even if they are as steep as the steepest row so far:

            A max σ <= OPEN · target · Σ σ_n μ_n.

        What they may then hold, A max σ, enters the error: (1 + tensors,), of all tensors together and of each.

        A is first compared with target / 100 of all mass, as if the steepest row were ten times as steep as the mean.
        If that is too much, the limit becomes lower than A, so that the next round looks at more rows.
        """
        row_mass, heaviest = self.pairs.rows, self.pairs.mass.argmax(1)  # (N,) each
        order = row_mass.argsort(descending=True, stable=True)
        order = order[row_mass[order] > 0]
        after = row_mass[order].flip(0).cumsum(0).flip(0) - row_mass[order]  # A, for each number of rows looked at
        square = torch.zeros(0, len(self.problem.tensors), dtype=torch.float64)
        allowed = target / 100 * float(row_mass.sum())
        while True:
            count = min(1 + int((after > allowed).sum()), len(order))
            new_rows = order[len(square) : count]
            pairs = order[:count] * self.k + heaviest[order[:count]]
            square = torch.cat([square, self._squares(known_squares, new_rows, pairs[len(square) :])])
            scale = self.weights[pairs, None].double().abs() * square / self.mass[pairs, None]  # σ, (pairs, tensors)
            steepest = torch.cat([scale.sum(1).amax(0)[None], scale.amax(0)])
            covered = float(scale.sum(1) @ row_mass[order[:count]])
            allowed = OPEN * target * covered / max(float(steepest[0]), SMALLEST)
            if float(after[count - 1]) <= allowed or count == len(order):
                return pairs, square, steepest * after[count - 1]

    def _squares(self, known_squares: torch.Tensor | None, rows: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        """Return ‖Jᵀu‖² (n, tensors) of one pair of each of these rows: the known one if it is of this pair."""
        if known_squares is None:
            return self.norms_of(pairs)
        square = known_squares[rows, 1:].double()
        missing = known_squares[rows, 0] != pairs % self.k  # also where it is NaN
        square[missing] = self.norms_of(pairs[missing])
        return square

    def plan(
        self, first: torch.Tensor, square: torch.Tensor, left_out: torch.Tensor, target: float
    ) -> tuple[torch.Tensor, _Rest, int]:
        """Choose further pairs to take, the rest, and the number of draws from it, for the fewest backward passes.

        D draws from a rest of the weight W have the variance W² V / D, V that of the ratio of a draw (`_Rest`). It is
        to be (target N Tr(G))², so D = (W s)² with s = √V / (target N |Tr(G)|). If the m heaviest pairs are taken as
        well, W falls to W_m, and the cost is m + (W_m s)² backward passes: m is where that is least.

        Before that, pairs are taken that alone could hold target · N Tr(G) if they were as steep as the steepest row.
        The weight of a pair is its mass times the scale of its row, about |l| ‖Jᵀu‖².

        Returns:
            The pairs to take; the rest; and the number of draws, 0 if all pairs are taken.
        """
        signed = self.weights[first].double() * square.sum(1)  # l ‖Jᵀu‖² of the first pairs
        weight = self.pairs.mass * self.scales(first, signed.abs()).to(self.mass)[:, None]  # (N, K)
        flat = weight.view(-1)  # the same memory, by the numbers of the pairs
        flat[first] = 0

        enough = target * (abs(float(signed.sum())) + float(row_sums(weight).sum()))
        steepest = float((signed.abs() / self.mass[first]).max())
        sure = ((self.mass > enough / max(steepest, SMALLEST)) & (flat > 0)).nonzero()[:, 0]
        sure = sure[self.mass[sure].argsort(descending=True)[:MOST]]
        in_first, in_sure = signed.sum(), flat[sure].double().sum()
        flat[sure] = 0
        others, present = _Rest(weight, left_out), int(torch.count_nonzero(weight))
        if present <= PILOT + FEWEST:
            return torch.cat([sure, flat.nonzero()[:, 0]]), others, 0

        # V and N Tr(G) are estimated by a pilot that enters no mean: what follows stays unbiased
        pilot = self.draw(others, PILOT)[1].sum(1)
        variance, size = _variance(pilot), abs(float(in_first + in_sure + others.total * pilot.mean()))
        spread = variance**0.5 / max(target * size, SMALLEST)  # s

        most = min(present, 1 + math.ceil((others.total * spread) ** 2))  # to take more is dearer than to draw them all
        order, heaviest = largest(flat, most)
        taken_weight = torch.cat([torch.zeros(1, dtype=torch.float64), heaviest.double().cumsum(0)])  # m = 0..most
        draws = ((others.total - taken_weight).clamp(min=0) * spread) ** 2
        take = int((torch.arange(len(draws)) + draws).argmin())
        count = max(FEWEST, min(MOST, round(float(draws[take]))))
        if take + count >= present:
            return torch.cat([sure, flat.nonzero()[:, 0]]), others, 0
        flat[order[:take]] = 0
        return torch.cat([sure, order[:take]]), _Rest(weight, left_out, variance), count

    def total(
        self, taken: torch.Tensor, square: torch.Tensor, others: _Rest | None, draws: int, present: int
    ) -> GGNTrace:
        """Add up the pairs that are taken exactly and, from draws, estimate the sum over the rest.

        Tr(G) = (1/N) [Σ_taken t_p + W mean(ratio)], t_p = l ‖Jᵀu‖², ratio = t_p / weight_p of a draw (`_Rest`). Its
        variance is (W / N)² V / draws, and that what was not looked at may hold is added as a square. V is the larger
        of the pilot's and the draws'.

        The error over rows is the spread of T_n, the sum of t_p over row n: √[(Σ T_n² / N - Tr(G)²) / (N - 1)]. With
        a_n the exact part and b_n the rest of T_n, T_n² = a_n² + 2 a_n b_n + b_n². The mean of a draw's W 2 a_n ratio
        is Σ 2 a_n b_n. By Cauchy and Schwarz b_n² <= w_n Σ_p t_p² / weight_p, w_n the row's sum of weights, whose sum
        over rows is the mean of W w_n ratio².

        Args:
            taken, square: numbers of the pairs, and their ‖Jᵀu‖² (taken, tensors).
            rest, draws: to draw from, and how often.  present: how many pairs there are.
        """
        n = self.n
        signed = self.weights[taken, None].double() * square  # t_p, (taken, tensors)
        rows = torch.zeros(n, dtype=torch.float64).index_add_(0, taken // self.k, signed.sum(1))  # a_n, later T_n
        layers = signed.sum(0) / n  # (tensors,)
        layer_variance = torch.zeros_like(layers)
        variance, dof = 0.0, max(draws - 1, 1)
        if not draws and len(taken) and self.problem.dtype != torch.float64:
            rounding = self.redo(taken, signed, rows, layers)
            variance, layer_variance, dof = float(rounding[0]) ** 2, rounding[1:].square(), EXACT
        value = float(rows.sum()) / n
        second = float(rows.square().sum())  # Σ_n T_n²
        if draws and others is not None:
            drawn, ratio = self.draw(others, draws)  # (draws,), (draws, tensors)
            left, ratio_of_all = others.total, ratio.sum(1)  # W; over all tensors
            value += left / n * float(ratio_of_all.mean())
            doubt = (others.left_out / n).square()  # (1 + tensors,)
            variance = (left / n) ** 2 * max(_variance(ratio_of_all), others.variance) / draws + float(doubt[0])
            layers = layers + left / n * ratio.mean(0)
            layer_variance = (left / n) ** 2 * ratio.var(0) / draws + doubt[1:]
            row = drawn // self.k
            second += left * float((2 * rows[row] * ratio_of_all + others.rows[row] * ratio_of_all.square()).mean())
            rows = rows + others.rows * float(ratio_of_all.mean())
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
        `layers`. The others are taken to be rounded by the same share of their size as the worst of these. The size of
        a row is Σ |t_p| over its pairs, and in a tensor Σ |t_p| of that tensor.

        Args:
            taken: numbers of the pairs.  signed: (taken, tensors) their t_p = l ‖Jᵀu‖².
            rows: (N,) sums of t_p.  layers: (tensors,) sums over N.
        """
        row_of, size = taken // self.k, signed.sum(1).abs()
        sizes = torch.zeros(self.n, dtype=torch.float64).index_add_(0, row_of, size)
        count = min(max(2, min(REDONE, REDONE_PAIRS // self.k)), self.n)
        heavy = sizes.topk(count).indices
        tensor_sizes = torch.linalg.vector_norm(signed, 1, dim=0)
        remaining = torch.cat([sizes.sum()[None], tensor_sizes])  # (1 + tensors,), less the rows computed again
        (exact,) = self.pieces.once("rows in float64", lambda: [self.in_float64(heavy)])  # (count, tensors)
        if not bool(exact.isfinite().all()):
            return remaining.mul(ROUNDED * torch.finfo(self.problem.dtype).eps / self.n)
        share = torch.zeros_like(remaining)
        for row, true in zip(heavy.tolist(), exact):
            of_row = signed[row_of == row]  # (pairs, tensors)
            row_size = torch.cat([sizes[row][None], of_row.abs().sum(0)])
            off = torch.cat([(true.sum() - rows[row])[None], true - of_row.sum(0)])
            share = share.maximum(off.abs() / row_size.clamp(min=SMALLEST))
            remaining -= row_size
            rows[row] = true.sum()
            layers += off[1:] / self.n
        # where nothing is left, that of float64
        least = ROUNDED * torch.finfo(torch.float64).eps * torch.cat([sizes.sum()[None], tensor_sizes])
        return torch.add(share * remaining.clamp(min=0), least).div(self.n)

    def in_float64(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum t_p over all pairs of these rows in a float64 copy of the model, (n, tensors); NaN without a copy.

        Each rank computes the rows that it holds. A model that cannot run in float64, or not within the memory, raises
        one of UNMAPPED (RuntimeError, ValueError, TypeError, AttributeError); KeyError is raised if the copy lacks a
        parameter of that name.
        """
        problem, local = self.problem, self.problem.layout.local
        out = torch.zeros(len(rows), len(problem.tensors), dtype=torch.float64)
        on_this_rank = (rows >= local.start) & (rows < local.stop)
        if bool(on_this_rank.any()):
            out[on_this_rank] = math.nan
            with contextlib.suppress(*UNMAPPED, KeyError):
                if has_twin(problem):
                    out[on_this_rank] = self._in_float64(rows[on_this_rank])
        return devices.all_sum_of_host(out, problem.device)

    def _in_float64(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum t_p over all pairs of these rows, (n, tensors), with the model and its logits in float64."""
        wide, norms = twin(self.problem, [*range(len(self.problem.tensors))]), copy.copy(self.norms)
        norms.problem = wide
        with torch.no_grad():
            logits, labels = wide.logits(rows)
        pairs = Pairs(self.pairs.loss, logits.cpu(), labels.cpu())
        n, k = pairs.mass.shape
        index, column = torch.arange(n).repeat_interleave(k), torch.arange(k).repeat(n)  # of all pairs, (n k,)
        signed = pairs.weights.flatten()[:, None].double() * norms(rows[index], pairs.cotangents(index, column))
        sums: torch.Tensor = signed.view(n, k, -1).sum(1)
        return sums

    def scales(self, first: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        """Estimate each row's scale |l| ‖Jᵀu‖² / (|l| ‖u‖²), (N,): that of its first pair plus a floor, else the mean.

        The mean is weighted by the masses of the rows. If it is 0, the Jacobians say nothing, and all scales are 1.

        Args:
            first: numbers of the first pairs.  sizes: their |l| ‖Jᵀu‖².
        """
        chosen = first // self.k
        scale = sizes / self.mass[first]
        masses = self.pairs.rows[chosen]
        mean = (scale * masses).sum() / masses.sum()
        out = mean.repeat(self.n)
        out[chosen] = scale + FLOOR * mean
        return out if float(mean) > 0 else torch.ones_like(out)

    def draw(self, others: _Rest, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw `count` pairs with replacement by weight, and compute their l ‖Jᵀu‖² / weight, (count, tensors)."""
        drawn = others.draw(self.stream, count)
        scale = self.weights[drawn].double() / others.weight.view(-1)[drawn]
        return drawn, scale[:, None] * self.norms_of(drawn)

    def norms_of(self, pairs: torch.Tensor) -> torch.Tensor:
        """Compute ‖J_nᵀu_nc‖² of pairs, (n, tensors); each rank computes those of its rows."""
        problem = self.problem
        wanted, back = torch.unique(pairs, return_inverse=True)
        row = wanted // self.k
        on_this_rank = (row >= problem.layout.local.start) & (row < problem.layout.local.stop)
        out = torch.zeros(len(wanted), len(problem.tensors), dtype=torch.float64)
        # at most PART numbers of u at once; of these, whole micro-batches of `chunk` rows if they fit
        chunk = self.norms.chunk
        step = max(1, min(PART // problem.classes, max(PIECE, chunk)))
        self.calls += 1
        for i, some in enumerate(torch.split(on_this_rank.nonzero()[:, 0], max(step - step % chunk, min(step, chunk)))):

            def work(some: torch.Tensor = some) -> list[torch.Tensor]:
                return [self.norms(row[some], self.pairs.cotangents(row[some], wanted[some] % self.k))]

            (out[some],) = self.pieces.once(f"norms {self.calls}, part {i}", work)
        return devices.all_sum_of_host(out, problem.device)[back]


def largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the `count` largest of (m,) values, descending: indices and values. In blocks, which take less memory."""
    index, largest_values = torch.zeros(0, dtype=torch.long), values[:0]
    for s in range(0, len(values), PART):
        top, position = values[s : s + PART].topk(min(count, len(values) - s, PART))
        largest_values, index = torch.cat([largest_values, top]), torch.cat([index, position + s])
        order = largest_values.argsort(descending=True, stable=True)[:count]
        largest_values, index = largest_values[order], index[order]
    return index, largest_values
