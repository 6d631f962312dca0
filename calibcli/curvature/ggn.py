"""Tr(G) from signed pairs: the heavy ones exactly, the rest by importance sampling.

Tr(G) = (1/N) Σ_n Σ_c l_nc ‖J_nᵀu_nc‖², where Σ_c l_nc u_nc u_ncᵀ is the Hessian of row n's loss in its logits. A pair
counts about as much as its mass |l_nc| ‖u_nc‖², which is known before any backward pass and sits in few pairs, times
its row's scale ‖J_nᵀu‖² / ‖u‖², which varies far more between rows (a LayerNorm whose input hardly varies) than within
one. So the heaviest pair of every row that counts comes first, and tells what the row's others weigh: with draws by
mass alone, most runs would miss rows that are rare and large, and their standard error with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from calibcli import device as devices
from calibcli.curvature.loss import Pairs
from calibcli.curvature.norms import RowNorms
from calibcli.curvature.problem import Problem

PILOT = 48  # draws from which the number of draws is decided
FEWEST, MOST = 64, 20_000  # draws for the rest
FLOOR = 0.3  # of the mean scale, added to every row's: no pair is out of reach of the draws


@dataclass(frozen=True)
class GGNTrace:
    """Tr(G) and its two errors.

    Attributes:
        value: the estimate.  se: standard error of the draws (0 when every pair was taken).
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
        """In words."""
        if not self.drawn:
            return f"Tr(G) from all {self.pairs} pairs that count"
        return f"Tr(G) from {self.taken} of {self.pairs} pairs and {self.drawn} draws from the rest"


def ggn_trace(
    problem: Problem,
    norms: RowNorms,
    pairs: Pairs,
    known: torch.Tensor | None,
    *,
    target: float,
    seed: int,
    exact: bool = False,
) -> GGNTrace:
    """Tr(G) to a standard error of `target` relative to its value.

    Args:
        problem, norms: model and data; how per-row norms are had.
        pairs: of all rows.
        known: (N, 1 + tensors) a class of each row and ‖Jᵀu‖² of its pair, NaN where there is none yet.
        target: relative standard error of the draws to aim for.
        seed: of the draws.
        exact: take every pair.
    """
    mass = pairs.mass
    n, k = mass.shape
    flat = mass.flatten()
    present = (flat > 0).nonzero()[:, 0]
    heavy, order, rest, weight, count = present, present[:0], present[:0], flat, 0
    square = torch.zeros(0, len(problem.tensors), dtype=torch.float64)
    if not exact and len(present) > 2 * PILOT:
        heavy = _first(mass, target)
        known = torch.full((n, 1 + len(problem.tensors)), torch.nan) if known is None else known
        square = known[heavy // k, 1:].double()
        missing = known[heavy // k, 0] != heavy % k
        square[missing] = _norms_of(problem, norms, pairs, heavy[missing])
        signed = pairs.weights.flatten()[heavy] * square.sum(1)
        weight = (mass * _scales(mass, heavy, signed.abs())[:, None]).flatten()
        order = weight.argsort(descending=True, stable=True)
        order = order[(flat[order] > 0) & ~torch.isin(order, heavy)]
    if len(order) > PILOT + FEWEST:
        left = torch.cat([weight[order].sum()[None], weight[order].sum() - weight[order].cumsum(0)]).clamp(min=0)
        stream = np.random.Generator(np.random.Philox(key=np.array([seed, 1 << 62], np.uint64)))
        # how much l ‖Jᵀu‖² / weight varies, from a pilot that serves for nothing else: what follows stays unbiased
        pilot = _ratios(problem, norms, pairs, weight, order[_draw(stream, weight[order], PILOT)]).sum(1)
        size = abs(float(signed.sum() + left[0] * pilot.mean()))
        # fewest backward passes: pairs taken + draws that bring the rest to the target
        draws = (left * float(pilot.std()) / max(target * size, 1e-300)) ** 2
        take = int((torch.arange(len(order) + 1) + draws).argmin())
        count = max(FEWEST, min(MOST, round(float(draws[take]))))
        take = take if take + count < len(order) else len(order)
        order, rest = order[:take], order[take:]
    # exact part
    heavy = torch.cat([heavy, order])
    square = torch.cat([square, _norms_of(problem, norms, pairs, heavy[len(square) :])])  # (taken, tensors)
    signed = pairs.weights.flatten()[heavy, None] * square
    rows = torch.zeros(n, dtype=torch.float64).index_add_(0, heavy // k, signed.sum(1))
    layers = signed.sum(0) / n
    layer_variance = torch.zeros_like(layers)
    value, variance, drawn = float(rows.sum()) / n, 0.0, 0
    second = float(rows.square().sum())  # Σ_n t_n²
    if len(rest):
        left_weight = float(weight[rest].sum())
        drawn_pairs = rest[_draw(stream, weight[rest], count)]
        ratio = _ratios(problem, norms, pairs, weight, drawn_pairs)
        drawn = len(ratio)
        scale = left_weight / n
        total = ratio.sum(1)
        value += scale * float(total.mean())
        variance = scale**2 * float(total.var()) / drawn
        layers = layers + scale * ratio.mean(0)
        layer_variance = scale**2 * ratio.var(0) / drawn
        # Σ_n t_n² with t_n = exact + rest; the rest's square bounded by Cauchy-Schwarz over its pairs
        which = drawn_pairs // k
        row_weight = torch.zeros(n, dtype=torch.float64).index_add_(0, rest // k, weight[rest])
        second += left_weight * float((2 * rows[which] * total + row_weight[which] * total.square()).mean())
        rows = rows + row_weight * float(total.mean())
    spread_of_rows = max(second / n - value**2, 0.0) * n / max(n - 1, 1)
    return GGNTrace(
        value,
        variance**0.5,
        max(drawn - 1, 1),
        layers,
        layer_variance.sqrt(),
        (spread_of_rows / n) ** 0.5,
        rows,
        len(heavy),
        drawn,
        len(present),
    )


def _first(mass: torch.Tensor, target: float) -> torch.Tensor:
    """The heaviest pair of each row, of the fewest rows that hold all of the mass but a hundredth of `target`."""
    rows = mass.sum(1)
    order = rows.argsort(descending=True, stable=True)
    before = rows[order].cumsum(0) - rows[order]
    chosen = order[(before < (1 - target / 100) * rows.sum()) & (rows[order] > 0)]
    return chosen * mass.shape[1] + mass[chosen].argmax(1)


def _scales(mass: torch.Tensor, first: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
    """(N,) each row's |l| ‖Jᵀu‖² / mass from its first pair; the mean where none was taken, and a floor."""
    chosen = first // mass.shape[1]
    scale = found / mass.flatten()[first]
    mean = (scale * mass[chosen].sum(1)).sum() / mass[chosen].sum()
    out = mean.repeat(len(mass))
    out[chosen] = scale + FLOOR * mean
    # a Jacobian that vanishes on all of them says nothing
    return out if float(mean) > 0 else torch.ones_like(out)


def _draw(stream: np.random.Generator, weight: torch.Tensor, count: int) -> torch.Tensor:
    """(count,) positions drawn with replacement, in proportion to weight."""
    chance = weight.numpy() / weight.numpy().sum()
    return torch.from_numpy(stream.choice(len(chance), count, p=chance))


def _ratios(problem: Problem, norms: RowNorms, pairs: Pairs, weight: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """(n, tensors) l ‖Jᵀu‖² / weight of drawn pairs."""
    scale = pairs.weights.flatten()[flat] / weight[flat]
    return scale[:, None] * _norms_of(problem, norms, pairs, flat)


def _norms_of(problem: Problem, norms: RowNorms, pairs: Pairs, flat: torch.Tensor) -> torch.Tensor:
    """(n, tensors) ‖J_nᵀu_nc‖² of pairs n·K + c; each rank computes those of its rows."""
    k = pairs.mass.shape[1]
    wanted, back = torch.unique(flat, return_inverse=True)
    row = wanted // k
    mine = (row >= problem.layout.local.start) & (row < problem.layout.local.stop)
    out = torch.zeros(len(wanted), len(problem.tensors), dtype=torch.float64)
    out[mine] = norms(row[mine], pairs.cotangents(row[mine], wanted[mine] % k))
    return devices.all_sum(out.to(problem.device)).cpu()[back]
