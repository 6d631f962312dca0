"""Spectral density by stochastic Lanczos quadrature (Golub and Welsch; Ghorbani et al. 2019), with both its errors.

A Gaussian start vector v has squared components v_i²/‖v‖² in the eigenbasis that are Dirichlet(½, ..., ½), whatever
the spectrum. So the error of one start vector has a closed form: for f averaged over the P eigenvalues,
Var(Σ w_i f(λ_i)) = 2/(P + 2) (mean f² - (mean f)²). And m steps tell only so much of that vector's spectral measure μ:
with nodes θ_1 < θ_2 < ... and weights w of a quadrature, Σ_{i<k} w_i <= μ(-∞, θ_k) <= μ(-∞, θ_k] <= Σ_{i<=k} w_i
(Chebyshev, Markov and Stieltjes).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from calibcli.hessian.lanczos import Lanczos


@dataclass(frozen=True)
class Quadrature:
    """What m steps say of the measure of a start vector.

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
        """The least and the most weight that may lie below x, given the moments that the steps matched.

        From the quadrature that has x as a node (Gauss and Radau; Golub 1973): that node's weight is what is open.
        """
        gaps = self.nodes - x
        gaps = torch.where(gaps.abs() < 1e-300, 1e-300, gaps)
        m = len(self.nodes)
        t = torch.zeros(m + 1, m + 1, dtype=torch.float64)
        t[:m, :m] = self.t
        t[m, m - 1] = t[m - 1, m] = self.beta
        t[m, m] = x + float((self.beta * self.ends).square().div(gaps).sum())
        nodes, vectors = torch.linalg.eigh(t)
        weights, at = vectors[0].square(), int((nodes - x).abs().argmin())
        low = float(weights[:at].sum())
        return low, low + float(weights[at])

    def between(self, first: float, last: float) -> tuple[torch.Tensor, torch.Tensor]:
        """(m,) how far each weight may lie to the left and to the right: at its neighbours, or at the ends given."""
        if self.beta <= 1e-12 * float(self.nodes.abs().max()):
            return self.nodes, self.nodes
        ends = self.nodes.new_tensor([first]), self.nodes.new_tensor([last])
        return torch.cat([ends[0], self.nodes[:-1]]), torch.cat([self.nodes[1:], ends[1]])


def quadrature(run: Lanczos, steps: int) -> Quadrature:
    """Of the first `steps` of a run's unrestarted part."""
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

    @property
    def negative_se(self) -> float:
        """Standard error of the start vectors."""
        return math.sqrt(self.spread * max(0.0, self.negative * (1 - self.negative)))

    def interval(self, z: float) -> tuple[float, float]:
        """The share below -sigma: both errors, the start vectors' to z standard errors at either bound."""
        return tuple(self._shifted(*end) for end in ((self.negative_least, -z), (self.negative_most, z)))  # type: ignore[return-value]

    def _shifted(self, share: float, z: float) -> float:
        """p with (share - p)² = z² spread p (1 - p), on the side of z's sign (Wilson 1927)."""
        a = z * z * self.spread
        root = math.sqrt(max(0.0, a * share * (1 - share) + a * a / 4))
        return min(1.0, max(0.0, (share + a / 2 + math.copysign(root, z)) / (1 + a)))


def density(runs: list[Quadrature], size: int, *, sigma: float = 0.0, points: int = 400) -> Density:
    """Average of the start vectors' quadratures, smoothed.

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

    def kernel(at: torch.Tensor) -> torch.Tensor:
        return torch.exp(-(at**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    bumps = kernel(grid[:, None] - nodes)
    values = bumps @ weights
    variance = 2 / (size + 2) * ((bumps.square() @ weights) - values.square()) / len(runs)
    # a bump over mass that may lie between its neighbours: integrated by parts against the bounds of the measure
    sides = zip(*(r.between(float(grid[0]), float(grid[-1])) for r in runs))
    left, right = (grid[:, None] - torch.cat(side) for side in sides)  # left >= right
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
