"""Tr(G) from signed pairs: the heavy ones exactly, the rest by importance sampling.

Tr(G) = (1/N) Σ_n Σ_c l_nc ‖J_nᵀu_nc‖², where Σ_c l_nc u_nc u_ncᵀ is the Hessian of row n's loss in its logits. A pair
counts about as much as its mass |l_nc| ‖u_nc‖², which is known before any backward pass and sits in few pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from calibcli import device as devices
from calibcli.curvature.loss import Loss, Pairs
from calibcli.curvature.norms import RowNorms
from calibcli.curvature.problem import Problem

PILOT = 48  # draws from which the number of draws is decided
FEWEST, MOST = 32, 20_000  # draws for the rest


@dataclass(frozen=True)
class GGNTrace:
    """Tr(G) and its two errors.

    Attributes:
        value: the estimate.  se: standard error of the draws (0 when every pair was taken).
        dof: degrees of freedom of `se`.
        layers, layer_se: (tensors,) the same per parameter tensor.
        sampling: standard error over rows, of the value as an estimate of the population's.
        rows: (N,) each row's trace (exact pairs, and the rest in proportion to its mass).
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
    loss: Loss,
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    target: float,
    seed: int,
    exact: bool = False,
) -> GGNTrace:
    """Tr(G) to a standard error of `target` relative to its value.

    Args:
        problem, norms: model and data; how per-row norms are had.
        loss: of the rows.
        logits: (N, K) float64 of all rows.  labels: (N,).
        target: relative standard error of the draws to aim for.
        seed: of the draws.
        exact: take every pair.
    """
    pairs = Pairs(loss, logits, labels)
    mass = pairs.mass
    n, k = mass.shape
    flat = mass.flatten()
    order = flat.argsort(descending=True, stable=True)
    order = order[: int((flat > 0).sum())]
    left = torch.cat([flat[order].sum()[None], flat[order].sum() - flat[order].cumsum(0)]).clamp(min=0)
    stream = np.random.Generator(np.random.Philox(key=np.array([seed, 1 << 62], np.uint64)))
    take, count = len(order), 0
    if not exact and len(order) > 2 * PILOT:
        # how much l ‖Jᵀu‖² / mass varies, from a pilot that serves for nothing else: what follows stays unbiased
        pilot = _ratios(problem, norms, pairs, order[_draw(stream, flat[order], PILOT)]).sum(1)
        spread = float(pilot.std() / pilot.mean().abs().clamp(min=1e-300))
        # fewest backward passes: pairs taken + draws that bring the rest to the target
        draws = (left * spread / (target * left[0]).clamp(min=1e-300)) ** 2
        take = int((torch.arange(len(order) + 1) + draws).argmin())
        count = max(FEWEST, min(MOST, round(float(draws[take]))))
        take = take if take + count < len(order) else len(order)
    heavy, rest = order[:take], order[take:]
    # exact part
    square = _norms_of(problem, norms, pairs, heavy)  # (take, tensors)
    signed = pairs.weights.flatten()[heavy, None] * square
    rows = torch.zeros(n, dtype=torch.float64).index_add_(0, heavy // k, signed.sum(1))
    layers = signed.sum(0) / n
    layer_variance = torch.zeros_like(layers)
    value, variance, drawn = float(rows.sum()) / n, 0.0, 0
    second = float(rows.square().sum())  # Σ_n t_n²
    if len(rest):
        left_mass = float(flat[rest].sum())
        drawn_pairs = rest[_draw(stream, flat[rest], count)]
        ratio = _ratios(problem, norms, pairs, drawn_pairs)
        drawn = len(ratio)
        scale = left_mass / n
        total = ratio.sum(1)
        value += scale * float(total.mean())
        variance = scale**2 * float(total.var()) / drawn
        layers = layers + scale * ratio.mean(0)
        layer_variance = scale**2 * ratio.var(0) / drawn
        # Σ_n t_n² with t_n = exact + rest; the rest's square bounded by Cauchy-Schwarz over its pairs
        which = drawn_pairs // k
        row_mass = torch.zeros(n, dtype=torch.float64).index_add_(0, rest // k, flat[rest])
        second += left_mass * float((2 * rows[which] * total + row_mass[which] * total.square()).mean())
        rows = rows + row_mass * float(total.mean())
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
        len(order),
    )


def _draw(stream: np.random.Generator, mass: torch.Tensor, count: int) -> torch.Tensor:
    """(count,) positions drawn with replacement, in proportion to mass."""
    chance = mass.numpy() / mass.numpy().sum()
    return torch.from_numpy(stream.choice(len(chance), count, p=chance))


def _ratios(problem: Problem, norms: RowNorms, pairs: Pairs, flat: torch.Tensor) -> torch.Tensor:
    """(n, tensors) l ‖Jᵀu‖² / mass of drawn pairs."""
    scale = pairs.weights.flatten()[flat] / pairs.mass.flatten()[flat]
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
