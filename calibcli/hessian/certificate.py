"""What true products say about an approximate eigenvector: the residual, and the error that the sample brings.

A Ritz vector x = Σ s_j v_j has Hx = Σ s_j (H v_j): where the products of the Lanczos run are at hand, group by group,
they are all that a certificate needs (`Record`); elsewhere one more product with x is made (`certify`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from calibcli import device as devices
from calibcli.hessian.indexed_data import signs
from calibcli.hessian.lanczos import Basis
from calibcli.hessian.operator import SecondDerivative, Total
from calibcli.hessian.vectors import blocks, inner, norm

SKETCH = 64  # random combinations of a group's product that stand for its norm


@dataclass(frozen=True)
class Certificate:
    """For a unit vector x and θ = xᵀHx.

    Attributes:
        value: θ.
        residual: ‖Hx - θx‖; an eigenvalue of H lies within it.
        sampling: standard error of θ over rows (delta method: dλ = xᵀ dH x).
        bias: by how much sampling raises an extreme eigenvalue, to second order.
        groups: groups of rows behind both.
        products: made for it.
        group, share: the group with the largest part in θ, and that part of it.
    """

    value: float
    residual: float
    sampling: float
    bias: float
    groups: int
    products: int = 0
    group: int = 0
    share: float = 0.0


def certify(operator: SecondDerivative, vectors: torch.Tensor, values: torch.Tensor) -> Certificate:
    """One product with the first of some Ritz vectors, group by group.

    Args:
        operator: a mean over rows.
        vectors: (r, size), orthonormal to rounding; the others are known directions (see `_perturbed`).
        values: (r,) their Ritz values.
    """
    layout = operator.problem.layout
    x = vectors[0]
    x /= norm(x)
    sketch = Sketch(operator.size, operator.problem.device)
    sums, forms, sketches = _product(operator, x, len(vectors), lambda p: p.to(vectors.dtype) @ vectors.T, sketch)
    total = operator.mean(sums)
    value = inner(x, total)
    residual = norm(total.sub_(x, alpha=value))
    forms, sketches = devices.all_sum(forms) / layout.n, devices.all_sum(sketches) / layout.n
    gaps = [value - other for other in values[1:].tolist()]
    return _perturbed(value, residual, forms, sketches, layout.weights.to(x.device), gaps, products=1)


def _product(
    operator: SecondDerivative,
    vector: torch.Tensor,
    known: int,
    dots: Callable[[torch.Tensor], torch.Tensor],
    sketch: Sketch,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """This rank's sum over rows of H_n v; of each group's, (groups, known) `dots` and (groups, SKETCH) sketches.

    `dots` and `sketch` take the products of several groups (g, size).
    """

    def work() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total, groups = Total(operator.problem), operator.problem.layout.groups
        forms, sketches = (torch.zeros(groups, k, dtype=torch.float64, device=vector.device) for k in (known, SKETCH))
        for first, products in operator.by_group(vector):
            total.add(operator.problem.pieces(products.sum(0) if len(products) > 1 else products[0]))
            here = slice(first, first + len(products))
            forms[here], sketches[here] = dots(products), sketch(products)
            del products  # memory
        return total.value(), forms, sketches

    return operator.problem.guard(work)


class Sketch:
    """SKETCH sums of every SKETCH-th element with random signs: linear, and its squared norm is unbiased.

    Args:
        size: of the vectors to sketch.  device: where they are.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.signs = signs(size, 0, 0, range(1 << 31, (1 << 31) + 1))[0].to(device)

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """(..., size) to (..., SKETCH) float64."""
        out = torch.zeros(*vector.shape[:-1], SKETCH, dtype=torch.float64, device=vector.device)
        for s in blocks(vector):
            signed = vector[..., s] * self.signs[s]
            whole = signed.shape[-1] // SKETCH * SKETCH
            out += signed[..., :whole].reshape(*out.shape[:-1], -1, SKETCH).sum(-2)
            out[..., : signed.shape[-1] - whole] += signed[..., whole:]
        return out


class Record:
    """The Hessian as an operator that remembers its first products, and each group's part in them.

    It must see the orthonormal vectors of one Lanczos run, in order.

    Args:
        operator: the Hessian.
        storage: dtype that holds the vectors without loss.
        most: products that are remembered.
    """

    def __init__(self, operator: SecondDerivative, storage: torch.dtype = torch.float64, most: int = 40) -> None:
        self.operator, self.size, self.most = operator, operator.size, most
        self.vectors = Basis(self.size, storage)
        self.images = Basis(self.size, torch.float64)  # H v_j
        self._forms: list[torch.Tensor] = []  # (groups, j + 1) sums over a group of v_iᵀH_n v_j, i <= j
        self._sketches: list[torch.Tensor] = []  # (groups, SKETCH) of the sum over a group of H_n v_j
        self._sketch = Sketch(self.size, operator.problem.device)

    def matvec(self, vector: torch.Tensor) -> torch.Tensor:
        """H v."""
        if len(self.vectors) >= self.most:
            return self.operator.matvec(vector)
        self.vectors.append(vector)
        known = len(self.vectors)
        total, forms, sketches = _product(self.operator, vector, known, self.vectors.dot, self._sketch)
        self.images.append(self.operator.mean(total))
        self._forms.append(devices.all_sum(forms))
        self._sketches.append(devices.all_sum(sketches))
        return total

    def certificate(self, index: int, values: torch.Tensor, vectors: torch.Tensor) -> Certificate | None:
        """For one of some Ritz vectors; None where products that it needs were not remembered.

        Args:
            index: which.
            values: (r,) all their Ritz values.
            vectors: (m, r) their coordinates in the m vectors of the run.
        """
        k = len(self.images)
        s = vectors[:k].to(self.operator.problem.device)
        kept = s.norm(dim=0)
        if float(kept[index]) < 1 - 1e-9:
            return None
        use = [index, *(i for i in range(len(values)) if i != index and kept[i] > 1 - 1e-3)]
        s = s[:, use] / kept[use]
        layout = self.operator.problem.layout
        forms = torch.zeros(layout.groups, k, k, dtype=torch.float64, device=s.device)
        for j, column in enumerate(self._forms):
            forms[:, : j + 1, j] = forms[:, j, : j + 1] = column / layout.n
        x, image = self.vectors.combine(s[:, 0]).double(), self.images.combine(s[:, 0])
        value = float(torch.dot(x, image))
        residual = float((image - value * x).norm())
        weights = layout.weights.to(s.device)
        sketches = torch.tensordot(s[:, 0], torch.stack(self._sketches), 1) / layout.n
        gaps = [value - float(values[i]) for i in use[1:]]
        return _perturbed(value, residual, (forms @ s[:, 0]) @ s, sketches, weights, gaps)


def _perturbed(
    value: float,
    residual: float,
    forms: torch.Tensor,
    sketches: torch.Tensor,
    weights: torch.Tensor,
    gaps: Sequence[float],
    products: int = 0,
) -> Certificate:
    """Perturbation to second order: λ(H + E) = λ + xᵀEx + Σ_j (x_jᵀEx)² / (λ - λ_j).

    The squares are estimated from the spread of H_g x between groups, along the known x_j one by one and for the rest
    together at λ_j = 0; near-degenerate neighbours through the 2×2 problem, which stays bounded.

    Args:
        value, residual: θ and ‖Hx - θx‖.
        forms: (groups, 1 + known) parts of a group in xᵀHx and x_jᵀHx.
        sketches: (groups, SKETCH) of a group's part in Hx.
        weights: (groups,) shares of the rows.
        gaps: (known,) λ - λ_j.
        products: made for it.
    """
    count = len(weights)
    correct = count / max(count - 1, 1)
    spread = float((sketches - weights[:, None] * sketches.sum(0)).square().sum()) * correct
    along = (forms - weights[:, None] * forms.sum(0)).square().sum(0) * correct  # variance of x_jᵀHx
    own, *others = along.tolist()
    parts = [*zip(gaps, others), (value, max(0.0, spread - own - sum(others)))]
    bias = sum(_shift(gap, variance) for gap, variance in parts)
    group = int((forms[:, 0] * value).argmax())
    share = float(forms[group, 0]) / value if value else 0.0
    return Certificate(value, residual, own**0.5, bias, count, products, group, share)


def _shift(gap: float, variance: float) -> float:
    """Shift of one eigenvalue by another at distance `gap` with squared coupling `variance`."""
    sign = 1.0 if gap >= 0 else -1.0
    return sign * (math.sqrt(gap * gap + 4 * variance) - abs(gap)) / 2
