"""Tr(H) = Tr(G) + Tr(H - G): the first from pairs, the second by Hutchinson probes where it does not vanish.

Where the logits are linear in each parameter tensor by itself (ReLU, pooling, eval-mode BatchNorm, linear and
convolution layers, residual sums, no tensor used twice) every tensor's diagonal block of H - G is zero almost
everywhere, and there is nothing to probe. Elsewhere H - G is probed with signs that are fresh in every block of 256
rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from calibcli import device as devices
from calibcli.curvature.problem import Problem, Scalar
from calibcli.curvature.rows import signs


@dataclass(frozen=True)
class Probes:
    """Quadratic forms vᵀMv of a second derivative M = (1/N) Σ_n M_n.

    Attributes:
        groups: (groups, m) sums over a group's rows, per probe.
        layers: (tensors, m) means over all rows, by the tensor that the left v is restricted to.
    """

    groups: torch.Tensor
    layers: torch.Tensor

    def between(self, first: int, last: int) -> Probes:
        return Probes(self.groups[:, first:last], self.layers[:, first:last])

    def join(self, other: Probes) -> Probes:
        return Probes(torch.cat([self.groups, other.groups], 1), torch.cat([self.layers, other.layers], 1))


def probe(
    problem: Problem, scalar: Scalar, numbers: range, *, seed: int, tensors: torch.Tensor | None = None
) -> Probes:
    """Probes with these numbers, each micro-batch's graph built once for all of them.

    Args:
        problem, scalar: what is differentiated twice.
        numbers: which probes.
        seed: of the signs, which are a function of (seed, block of 256 rows, probe number).
        tensors: (tensors,) bool, which parameter tensors are probed; the others' signs are 0.
    """
    return problem.guard(lambda: _probe(problem, scalar, numbers, seed, tensors))


def _probe(problem: Problem, scalar: Scalar, numbers: range, seed: int, tensors: torch.Tensor | None) -> Probes:
    layout = problem.layout
    groups = torch.zeros(layout.groups, len(numbers), dtype=torch.float64)
    layers = torch.zeros(len(problem.tensors), len(numbers), dtype=torch.float64)
    wanted = [True] * len(problem.tensors) if tensors is None else tensors.tolist()
    block, vectors = -1, list[list[torch.Tensor]]()
    for rows in layout.batches(min(layout.micro, layout.group)):
        if rows.start // 256 != block:
            block = rows.start // 256
            vectors = [problem.split(signs(problem.size, seed, block, i)) for i in numbers]
            for pieces in vectors:
                pieces[:] = [v if on else torch.zeros_like(v) for v, on in zip(pieces, wanted)]
        gradients = problem.gradients(rows, scalar)
        for i, pieces in enumerate(vectors):
            products = problem.product(gradients, pieces)
            forms = torch.stack([torch.dot(v.reshape(-1), h.reshape(-1)) for v, h in zip(pieces, products)]).cpu()
            groups[rows.start // layout.group, i] += forms.sum()
            layers[:, i] += forms
    both = devices.all_sum(torch.cat([groups, layers]).to(problem.device)).cpu()
    return Probes(both[: layout.groups], both[layout.groups :] / layout.n)


def alive(problem: Problem, seed: int) -> torch.Tensor:
    """(tensors,) bool: whether the logits bend in that tensor alone, tested on two rows with random directions.

    A tensor's diagonal block of H - G is a combination of second derivatives of the logits; random combinations and
    directions that give exactly zero say that all of them are zero there.
    """
    rows = range(min(2, problem.layout.n))
    stream = torch.Generator().manual_seed(seed)
    weights = torch.randn(len(rows), problem.classes, generator=stream).to(problem.device)
    gradients = problem.gradients(rows, lambda logits, labels: (weights.to(logits.dtype) * logits).sum())
    found = []
    for gradient, tensor in zip(gradients, problem.tensors):
        if not gradient.requires_grad:
            found.append(False)
            continue
        v = torch.randn(tensor.shape, generator=stream).to(problem.device, problem.dtype)
        (bend,) = torch.autograd.grad(gradient, tensor, v, retain_graph=True, materialize_grads=True)
        # tolerance: rounding of a product that should vanish but is a difference of two equal numbers
        found.append(bool((bend * v).sum().abs() > 1e-9 * (gradient.detach() * v).abs().sum()))
    return torch.tensor(found)


def pilot(blocks: int) -> int:
    """Probes from which the number of probes is decided: every block has its own, so few do when there are many."""
    return max(2, min(8, -(-16 // blocks)))


@dataclass(frozen=True)
class Mean:
    """An average over probes with its standard error and (Welch-Satterthwaite) degrees of freedom."""

    value: float
    se: float
    dof: float


def summarise(probes: Probes, n: int, group: int) -> Mean:
    """Mean over rows of vᵀM_n v; blocks have probes of their own, so their variances add."""
    m = probes.groups.shape[1]
    per = max(256 // group, 1)
    pad = -probes.groups.shape[0] % per
    blocks = torch.nn.functional.pad(probes.groups, (0, 0, 0, pad)).view(-1, per, m).sum(1) / n  # (blocks, m)
    variance = blocks.var(1) / m if m > 1 else torch.zeros(len(blocks), dtype=torch.float64)
    total = float(variance.sum())
    dof = total**2 / float((variance.square() / max(m - 1, 1)).sum()) if total > 0 else float(max(m - 1, 1))
    return Mean(float(blocks.sum(0).mean()), total**0.5, dof)


def sampling_error(rows: torch.Tensor, forms: torch.Tensor, weights: torch.Tensor, group: int) -> float:
    """Standard error over rows of the mean of t_n = rows (N,) + vᵀM_n v, from the spread between groups.

    `forms` (groups, m) are sums of vᵀM_n v over a group's rows, per probe.

    The probes' own noise is kept out by products of different probes, E[x_gi x_gj] = t_g² for i ≠ j; where the noise
    drowns them, a quarter of the raw variance is the floor.
    """
    n, (count, m) = len(rows), forms.shape
    sums = torch.zeros(count, dtype=torch.float64).index_add_(0, torch.arange(n) // group, rows)
    x = (sums[:, None] + forms) / n  # (groups, m) shares of the mean
    x = x - weights[:, None] * x.sum(0)  # each group against what its share of the rows would give
    raw = float(x.mean(1).square().sum())
    clean = raw
    if m > 1:
        clean = float((x.sum(1).square() - x.square().sum(1)).sum()) / (m * (m - 1))
    return math.sqrt(max(clean, raw / 4) * count / max(count - 1, 1))


def exact_rest(problem: Problem, scalar: Scalar, tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Traces of the diagonal blocks of (1/N) ∂²Σ scalar, one unit vector after the other.

    Returns:
        (groups,) sums over the rows of each group, and (tensors,) means over all rows.
    """

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        layout = problem.layout
        groups = torch.zeros(layout.groups, dtype=torch.float64)
        layers = torch.zeros(len(problem.tensors), dtype=torch.float64)
        for rows in layout.batches(min(layout.micro, layout.group)):
            gradients = problem.gradients(rows, scalar)
            for k, (gradient, tensor) in enumerate(zip(gradients, problem.tensors)):
                if not tensors[k] or not gradient.requires_grad:
                    continue
                flat = gradient.reshape(-1)
                for i in range(len(flat)):
                    (row,) = torch.autograd.grad(flat[i], tensor, retain_graph=True, materialize_grads=True)
                    diagonal = float(row.reshape(-1)[i])
                    layers[k] += diagonal
                    groups[rows.start // layout.group] += diagonal
        both = devices.all_sum(torch.cat([groups, layers]).to(problem.device)).cpu()
        return both[: layout.groups], both[layout.groups :] / layout.n

    return problem.guard(work)
