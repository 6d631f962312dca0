"""Eigenvalues and spectral density by one Krylov run (Lanczos), and the certificates that bound their error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from calibcli.networks import device as devices
from calibcli.networks.curvature.operator import Operator, SecondDerivative, Total, blocks, inner, norm
from calibcli.networks.curvature.problem import RESERVED, signs
from calibcli.networks.curvature.saved_state import Pieces

# One Krylov run for λmax, the top k, λmin and the density: Lanczos, fully reorthogonalised, restarted when full.
#
# The projected matrix T = VᵀHV is kept dense, which makes a thick restart (Wu and Simon 2000) one line: the basis
# becomes the wanted Ritz vectors and the residual, T their Ritz values; the coupling comes back with the next product.


@dataclass(frozen=True)
class Ritz:
    """Ritz values θ (m,) ascending, their residual norms (m,), coordinates (m, m) in the basis, and the run's state."""

    values: torch.Tensor
    residuals: torch.Tensor
    coordinates: torch.Tensor

    def value_error(self, index: int) -> float:
        """Estimate |θ - λ| as min(r, r²/gap), as is usual; it is a bound only if the gap is that of the spectrum."""
        r = float(self.residuals[index])
        others = torch.cat([self.values[:index], self.values[index + 1 :]]) if index != -1 else self.values[:-1]
        gap = float((others - self.values[index]).abs().min()) if len(others) else 0.0
        return min(r, r * r / gap) if gap > 0 else r


class Basis:
    """Vectors as rows of a few matrices, so that a projection runs at the speed of memory.

    Args:
        size: of a vector.
        storage: dtype of the rows.
    """

    def __init__(self, size: int, storage: torch.dtype) -> None:
        self.size, self.storage = size, storage
        self.rows = max(1, min(16, (1 << 26) // size))  # per matrix
        self.matrices: list[torch.Tensor] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> torch.Tensor:
        """Return row i (size,), in the storage's dtype."""
        return self.matrices[i // self.rows][i % self.rows]

    def reserve(self, device: torch.device) -> None:
        """Allocate memory for one more vector."""
        if self.count == self.rows * len(self.matrices):
            self.matrices.append(torch.empty(self.rows, self.size, dtype=self.storage, device=device))

    def append(self, vector: torch.Tensor) -> None:
        self.reserve(vector.device)
        self[self.count].copy_(vector)
        self.count += 1

    def dot(self, w: torch.Tensor) -> torch.Tensor:
        """Compute the inner products with w (..., size): (..., count) in float64."""
        w = w.to(self.storage)
        return torch.cat([w @ matrix.T for matrix in self._filled()], -1).double()

    def combine(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Compute Σ_i c_i row_i, (size,) or (r, size), for coefficients c (count,) or (r, count), in the same dtype."""
        c = coefficients.to(self.matrices[0])
        total = c.new_zeros(*c.shape[:-1], self.size)
        for i, matrix in enumerate(self._filled()):
            part = c[..., i * self.rows :][..., : len(matrix)]
            total = total.addmm_(part, matrix) if c.ndim > 1 else total.addmv_(matrix.T, part)
        return total

    def _filled(self) -> Iterator[torch.Tensor]:
        for i, matrix in enumerate(self.matrices):
            yield matrix[: self.count - i * self.rows]


def least(keep: int) -> int:
    """Number of vectors that a run needs which keeps `keep` at each end: four products lie between two restarts."""
    return 2 * keep + 4


class Lanczos:
    """A Krylov run that can be continued.

    Args:
        operator: `size` and `matvec`.
        start: k -> (size,) float64 random start vector number k; the first is the run's, the next ones continue it
            when it has found an invariant subspace.
        capacity: most basis vectors in memory; the run restarts when they are used.
        keep: Ritz vectors that survive a restart at each end of the spectrum.
        storage: dtype of the basis (coefficients are float64, products what the operator gives).
        pieces: products that are known from a saved state.

    Attributes:
        products: matvecs so far.
        steps: length of the first, unrestarted run (its T is what the density reads).
    """

    def __init__(
        self,
        operator: Operator,
        start: Callable[[int], torch.Tensor],
        *,
        capacity: int = 200,
        keep: int = 6,
        storage: torch.dtype = torch.float64,
        pieces: Pieces | None = None,
    ) -> None:
        self.operator, self.start, self.storage = operator, start, storage
        self.pieces = pieces or Pieces()
        self.capacity = min(max(capacity, least(keep)), operator.size)
        self.keep = keep
        self.basis = Basis(operator.size, storage)
        self.t = torch.zeros(0, 0, dtype=torch.float64)  # projected matrix of the vectors already multiplied
        self.beta = 0.0  # norm of the current residual
        self.next: torch.Tensor | None = None  # its direction
        self.products = self.starts = self.restarts = 0
        self.alphas: list[float] = []
        self.betas: list[float] = []  # of the first run, for the density
        self._open = True  # whether the first run still goes on
        self._ritz: Ritz | None = None  # of the current basis
        self.history: list[tuple[float, float, float, float]] = []  # top value and residual, bottom value and residual

    @property
    def steps(self) -> int:
        return len(self.alphas)

    @property
    def exhausted(self) -> bool:
        """Whether the basis spans everything, so that Ritz values are eigenvalues."""
        return len(self.basis) == self.operator.size

    def extend(self) -> None:
        """Make one more product."""
        if len(self.basis) == self.capacity < self.operator.size:
            self._restart()
        v, m = self._next_vector(), len(self.basis) + 1
        name = f"product {self.products}"
        try:
            h, length, w = self.pieces.once(name, lambda: self._multiplied(v), self.operator)
        except BaseException:
            self.basis.count = m - 1  # after an interrupt the run is as it was
            raise
        if len(self.basis) < m:  # the product was known
            self.basis.append(v)
        self.products += 1
        t = torch.zeros(m, m, dtype=torch.float64)
        t[:-1, :-1] = self.t
        t[:, -1] = t[-1] = h
        self.t = t
        beta = float(length)
        if self._open:
            self.alphas.append(float(h[-1]))
            self.betas.append(beta)
        if m == self.operator.size or beta <= 1e-13 * float(torch.linalg.norm(t)):
            self.beta, self.next, self._open = 0.0, None, False  # an invariant subspace: exact
        else:
            self.beta, self.next = beta, w.to(v.device)
        self._ritz = None
        ritz = self.ritz()
        self.history.append(
            tuple(float(x) for i in (-1, 0) for x in (ritz.values[i], ritz.residuals[i]))  # type: ignore[arg-type]
        )

    def _multiplied(self, v: torch.Tensor) -> list[torch.Tensor]:
        """Multiply, and put v into the basis: coefficients of the product in it (m,), length of the rest, direction."""
        w = self.operator.matvec(v)
        self.basis.append(v)
        m = len(self.basis)
        h = torch.zeros(m, dtype=torch.float64)
        for i in range(max(0, m - 2), m):  # what is large first, so that one pass over the basis is mostly enough
            u = self.basis[i]
            h[i] = inner(u, w)
            w.add_(u, alpha=-float(h[i]))
        h += (more := self._orthogonalise(w))
        if float(more.norm()) > 1e-3 * norm(w):
            h += self._orthogonalise(w)
        beta = norm(w)
        return [h, torch.tensor(beta, dtype=torch.float64), w.div_(beta or 1.0).to(self.storage)]

    def ritz(self) -> Ritz:
        """Ritz values and residuals of the current basis."""
        if self._ritz is None:
            values, coordinates = torch.linalg.eigh(self.t)
            self._ritz = Ritz(values, (self.beta * coordinates[-1]).abs(), coordinates)
        return self._ritz

    def vector(self, coordinates: torch.Tensor) -> torch.Tensor:
        """Combine the basis to a vector (size,) of length 1, in the storage's dtype."""
        total = self.basis.combine(coordinates)
        return total.div_(norm(total))

    def vectors(self, chosen: list[int]) -> torch.Tensor:
        """Compute the chosen Ritz vectors (r, size), in the storage's dtype."""
        return self.basis.combine(self.ritz().coordinates[:, chosen].T)

    def _orthogonalise(self, w: torch.Tensor) -> torch.Tensor:
        """Project the basis out of w, in place (classical Gram-Schmidt), and return the coefficients."""
        h = self.basis.dot(w)
        w -= self.basis.combine(h)
        return h.cpu()

    def _next_vector(self) -> torch.Tensor:
        while self.next is None:
            v = self.start(self.starts)
            self.starts += 1
            v /= v.norm()
            if len(self.basis):
                self._orthogonalise(v)
                self._orthogonalise(v)
            norm = float(v.norm())
            if norm > 1e-10:
                self.next = v.div_(norm).to(self.storage)
        return self.next

    def _restart(self) -> None:
        ritz = self.ritz()
        m = len(self.basis)
        keep = sorted({*range(self.keep), *range(m - self.keep, m)})
        basis = Basis(self.operator.size, self.storage)
        for i in keep:
            basis.append(self.vector(ritz.coordinates[:, i]))
        self.basis = basis
        self.t = torch.diag(ritz.values[keep])
        self.restarts += 1
        self._open = False


# Spectral density by stochastic Lanczos quadrature (Golub and Welsch; Ghorbani et al. 2019), with both its errors.
#
# A Gaussian start vector v has squared components v_i²/‖v‖² in the eigenbasis that are Dirichlet(½, ..., ½), whatever
# the spectrum. So the error of one start vector has a closed form: for f averaged over the P eigenvalues,
# Var(Σ w_i f(λ_i)) = 2/(P + 2) (mean f² - (mean f)²). And m steps bound that vector's spectral measure μ only so far:
# with nodes θ_1 < θ_2 < ... and weights w of a quadrature, Σ_{i<k} w_i <= μ(-∞, θ_k) <= μ(-∞, θ_k] <= Σ_{i<=k} w_i
# (Chebyshev, Markov and Stieltjes).


@dataclass(frozen=True)
class Quadrature:
    """The Gauss quadrature that m Lanczos steps give for the spectral measure of a start vector.

    Attributes:
        t: (m, m) the projected matrix.  beta: norm of the residual after it; 0 where nothing is left open.
        nodes, weights: (m,) ascending eigenvalues, and their vectors' first components squared.
        ends: (m,) the eigenvectors' last components.
    """

    t: torch.Tensor
    beta: float
    nodes: torch.Tensor
    weights: torch.Tensor
    ends: torch.Tensor

    def below(self, x: float) -> tuple[float, float]:
        """Bound the weight that may lie below x, given the moments that the steps matched.

        The bounds are those of the quadrature that has x as a node (Gauss and Radau; Golub 1973): they differ by the
        weight of that node.
        """
        gaps = self.nodes - x
        gaps = torch.where(gaps.abs() < 1e-300, 1e-300, gaps)
        m = len(self.nodes)
        t = torch.zeros(m + 1, m + 1, dtype=torch.float64)
        t[:m, :m] = self.t
        t[m, m - 1] = t[m - 1, m] = self.beta
        t[m, m] = x + float((self.beta * self.ends).square().div(gaps).sum())
        nodes, vectors = torch.linalg.eigh(t)
        weights, nearest = vectors[0].square(), int((nodes - x).abs().argmin())
        low = float(weights[:nearest].sum())
        return low, low + float(weights[nearest])

    def between(self, first: float, last: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Bound the place of each weight (m,) to the left and right: by its neighbours, or by `first` and `last`."""
        if self.beta <= 1e-12 * float(self.nodes.abs().max()):
            return self.nodes, self.nodes
        ends = self.nodes.new_tensor([first]), self.nodes.new_tensor([last])
        return torch.cat([ends[0], self.nodes[:-1]]), torch.cat([self.nodes[1:], ends[1]])


def quadrature(run: Lanczos, steps: int) -> Quadrature:
    """Compute the quadrature of the first `steps` of a run's unrestarted part."""
    m = min(run.steps, steps)
    beside = torch.tensor(run.betas[: m - 1], dtype=torch.float64)
    t = torch.diag(torch.tensor(run.alphas[:m], dtype=torch.float64))
    t = t + torch.diag(beside, 1) + torch.diag(beside, -1)
    nodes, vectors = torch.linalg.eigh(t)
    return Quadrature(t, run.betas[m - 1], nodes, vectors[0].square(), vectors[-1])


@dataclass(frozen=True)
class Density:
    """Smoothed density on a grid.

    Attributes:
        grid: (g,) abscissae.  values: (g,) density, integrates to 1.  se: (g,) standard error of the start vectors.
        least, most: (g,) what the density of these start vectors may be, given the steps.
        sigma: width of the Gaussian.
        nodes, weights: the quadrature, over all start vectors.
        negative: share of eigenvalues below -sigma.  negative_least, negative_most: what it may be for these start
            vectors.  spread: 2 / ((P + 2) vectors): p (1 - p) times it is the variance of a share p among them.
    """

    grid: torch.Tensor
    values: torch.Tensor
    se: torch.Tensor
    least: torch.Tensor
    most: torch.Tensor
    sigma: float
    nodes: torch.Tensor
    weights: torch.Tensor
    negative: float
    negative_least: float
    negative_most: float
    spread: float

    def interval(self, z: float) -> tuple[float, float]:
        """Interval of the share below -sigma: the bounds of the steps, widened by z errors of the start vectors."""
        return tuple(self._shifted(*end) for end in ((self.negative_least, -z), (self.negative_most, z)))  # type: ignore[return-value]

    def _shifted(self, share: float, z: float) -> float:
        """Solve (share - p)² = z² spread p (1 - p) for p, on the side of z's sign (Wilson 1927)."""
        a = z * z * self.spread
        root = math.sqrt(max(0.0, a * share * (1 - share) + a * a / 4))
        return min(1.0, max(0.0, (share + a / 2 + math.copysign(root, z)) / (1 + a)))


def density(runs: list[Quadrature], size: int, *, sigma: float = 0.0, points: int = 400) -> Density:
    """Average the quadratures of the start vectors, and smooth them.

    Args:
        runs: one for each start vector.
        size: P, number of eigenvalues.
        sigma: width of the Gaussian, or 0 for √1e-5 of the spectrum's range.
        points: size of the grid.
    """
    nodes = torch.cat([r.nodes for r in runs])
    weights = torch.cat([r.weights for r in runs]) / len(runs)
    low, high = float(nodes.min()), float(nodes.max())
    spread = max(high - low, 1e-12 * max(abs(high), abs(low), 1e-300))
    sigma = sigma or math.sqrt(1e-5) * spread
    grid = torch.linspace(low - 4 * sigma, high + 4 * sigma, points, dtype=torch.float64)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(-(x**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    bumps = kernel(grid[:, None] - nodes)  # (g, m)
    values = bumps @ weights
    variance = 2 / (size + 2) * ((bumps.square() @ weights) - values.square()) / len(runs)
    # By the bounds of the measure, each weight may lie anywhere between the nodes beside its own. The bump around x at
    # a node t is k(x - t) = r(t) + f(t) - k(0): r(t) = k(max(x - t, 0)) rises with t, f(t) = k(min(x - t, 0)) falls.
    # Of the weights, r makes the most, and f the least, at their right ends.
    sides = zip(*(r.between(float(grid[0]), float(grid[-1])) for r in runs))
    left, right = (grid[:, None] - torch.cat(side) for side in sides)  # (g, m) x - t at the ends t; left >= right
    peak = kernel(torch.zeros(()))
    most = (kernel(left.clamp(max=0)) - peak + kernel(right.clamp(min=0))) @ weights
    least = (kernel(left.clamp(min=0)) - peak + kernel(right.clamp(max=0))) @ weights
    bounds = [r.below(-sigma) for r in runs]
    negative = float(weights[nodes < -sigma].sum())
    return Density(
        grid=grid,
        values=values,
        se=variance.clamp(min=0).sqrt(),
        least=torch.minimum(least.clamp(min=0), values),
        most=torch.maximum(most, values),
        sigma=sigma,
        nodes=nodes,
        weights=weights,
        negative=negative,
        negative_least=min(negative, sum(b[0] for b in bounds) / len(runs)),
        negative_most=max(negative, sum(b[1] for b in bounds) / len(runs)),
        spread=2 / (size + 2) / len(runs),
    )


# Certificates of an approximate eigenvector from true products: its residual, and its sampling error.
#
# A Ritz vector x = Σ s_j v_j has Hx = Σ s_j (H v_j): where the products of the Lanczos run are at hand, group by group,
# they are all that a certificate needs (`Record`); elsewhere one more product with x is made (`certify`).


REMEMBERED = 40  # first products of a run that a `Record` remembers
SKETCH = 64  # random combinations of a group's product that stand for its norm


@dataclass(frozen=True)
class Certificate:
    """The errors of θ = xᵀHx for a unit vector x.

    Attributes:
        value: θ.
        residual: ‖Hx - θx‖; an eigenvalue of H lies within it.
        sampling: standard error of θ over rows (delta method: dλ = xᵀ dH x).
        bias: by how much sampling raises an extreme eigenvalue, to second order.
        groups: groups of rows behind both.
        products: made for it.
        group, share: the group with the largest part in θ, and that part of it.
        parts: (groups,) each group's part in θ.
    """

    value: float
    residual: float
    sampling: float
    bias: float
    groups: int
    products: int = 0
    group: int = 0
    share: float = 0.0
    parts: torch.Tensor = field(default_factory=lambda: torch.zeros(0))


def certify(operator: SecondDerivative, vectors: torch.Tensor, values: torch.Tensor) -> Certificate:
    """Certify the first of some Ritz vectors by one product with it, group by group.

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
    depth: int,
    dots: Callable[[torch.Tensor], torch.Tensor],
    sketch: Sketch,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sum H_n v over this rank's rows, (size,); of each group's sum also return `dots` and the sketch.

    These are (groups, depth) and (groups, SKETCH), 0 for groups of other ranks. `dots` and `sketch` take the products
    of several groups (g, size). Where memory runs out, all is made again with a smaller plan.
    """

    def work() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total, groups = Total(operator.problem), operator.problem.layout.groups
        forms, sketches = (torch.zeros(groups, k, dtype=torch.float64, device=vector.device) for k in (depth, SKETCH))
        for first, products in operator.by_group(vector):
            # products (g, size) are the sums over groups first, first + 1, ...; `Total` adds them tensor by tensor
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
        self.signs = signs(size, 0, 0, range(RESERVED, RESERVED + 1))[0].to(device)  # (size,), the same in every run

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        """Sketch (..., size) vectors to (..., SKETCH) float64."""
        out = torch.zeros(*vector.shape[:-1], SKETCH, dtype=torch.float64, device=vector.device)
        for s in blocks(vector):
            signed = vector[..., s] * self.signs[s]
            whole = signed.shape[-1] // SKETCH * SKETCH
            out += signed[..., :whole].reshape(*out.shape[:-1], -1, SKETCH).sum(-2)  # (..., m, SKETCH) over m
            out[..., : signed.shape[-1] - whole] += signed[..., whole:]
        return out


def remembered_bytes(size: int, storage: torch.dtype) -> int:
    """Bytes that a `Record` holds for one product: the vector, and the product in float64."""
    return size * (storage.itemsize + 8)


class Record:
    """The Hessian as an operator that remembers its first products, and each group's part in them.

    It must see the orthonormal vectors of one Lanczos run, in order.

    Args:
        operator: the Hessian.
        storage: dtype that holds the vectors without loss.
        most: products that are remembered.

    Attributes:
        pieces: products that are known from a saved state.  products: so far.
    """

    def __init__(
        self, operator: SecondDerivative, storage: torch.dtype = torch.float64, most: int = REMEMBERED
    ) -> None:
        self.operator, self.size, self.most = operator, operator.size, most
        self.pieces, self.products = Pieces(), 0
        self.vectors = Basis(self.size, storage)
        self.images = Basis(self.size, torch.float64)  # H v_j
        self._forms: list[torch.Tensor] = []  # (groups, j + 1) sums over a group of v_iᵀH_n v_j, i <= j
        self._sketches: list[torch.Tensor] = []  # (groups, SKETCH) of the sum over a group of H_n v_j
        self._sketch = Sketch(self.size, operator.problem.device)

    def matvec(self, vector: torch.Tensor) -> torch.Tensor:
        """H v."""
        name = f"product {self.products}"
        self.products += 1
        if len(self.vectors) >= self.most:
            (image,) = self.pieces.once(name, lambda: [self.operator.matvec(vector)], self.operator)
            return image.to(vector.device)
        self.vectors.append(vector)
        found = self.pieces.once(name, lambda: self._multiplied(vector), self.operator)
        image, forms, sketches = (part.to(vector.device) for part in found)
        self.images.append(image)
        self._forms.append(forms)
        self._sketches.append(sketches)
        return image

    def _multiplied(self, vector: torch.Tensor) -> list[torch.Tensor]:
        depth = len(self.vectors)
        total, forms, sketches = _product(self.operator, vector, depth, self.vectors.dot, self._sketch)
        return [self.operator.mean(total), devices.all_sum(forms), devices.all_sum(sketches)]

    def certificate(self, index: int, values: torch.Tensor, vectors: torch.Tensor) -> Certificate | None:
        """Certify one of some Ritz vectors; None where products that it needs were not remembered.

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
        forms = torch.zeros(layout.groups, k, k, dtype=torch.float64, device=s.device)  # parts in v_iᵀHv_j
        for j, column in enumerate(self._forms):
            forms[:, : j + 1, j] = forms[:, j, : j + 1] = column / layout.n  # (groups, j + 1)
        x, image = self.vectors.combine(s[:, 0]).double(), self.images.combine(s[:, 0])
        value = float(torch.dot(x, image))
        residual = float((image - value * x).norm())
        weights = layout.weights.to(s.device)
        sketches = torch.tensordot(s[:, 0], torch.stack(self._sketches), 1) / layout.n  # (k,), (k, groups, SKETCH)
        gaps = [value - float(values[i]) for i in use[1:]]
        in_ritz = (forms @ s[:, 0]) @ s  # (groups, 1 + known): x_jᵀH x_0 from coordinates s (k, 1 + known)
        return _perturbed(value, residual, in_ritz, sketches, weights, gaps)


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
    diagonal, *others = along.tolist()
    parts = [*zip(gaps, others), (value, max(0.0, spread - diagonal - sum(others)))]
    # the shift of one eigenvalue by another at distance `gap`, with squared coupling `variance`
    shifts = [(math.sqrt(gap * gap + 4 * variance) - abs(gap)) / (2 if gap >= 0 else -2) for gap, variance in parts]
    group = int((forms[:, 0] * value).argmax())
    share = float(forms[group, 0]) / value if value else 0.0
    return Certificate(value, residual, diagonal**0.5, sum(shifts), count, products, group, share, forms[:, 0].cpu())
