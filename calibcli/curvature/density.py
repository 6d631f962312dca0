"""Spectral density by stochastic Lanczos quadrature (Golub and Welsch; Ghorbani et al. 2019), with the probe's error.

A Gaussian start vector v has squared components v_i²/‖v‖² in the eigenbasis that are Dirichlet(½, ..., ½), whatever
the spectrum. So the error of one probe has a closed form: for f averaged over the P eigenvalues,
Var(Σ w_i f(λ_i)) = 2/(P + 2) (mean f² - (mean f)²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from calibcli.curvature.lanczos import Lanczos


@dataclass(frozen=True)
class Density:
    """Smoothed density on a grid.

    Attributes:
        grid: (g,) abscissae.  values: (g,) density, integrates to 1.  se: (g,) standard error of the probes.
        sigma: width of the Gaussian.
        nodes, weights: the quadrature, over all probes.
        negative: share of eigenvalues below -sigma, and `negative_se` its error.
    """

    grid: torch.Tensor
    values: torch.Tensor
    se: torch.Tensor
    sigma: float
    nodes: torch.Tensor
    weights: torch.Tensor
    negative: float
    negative_se: float


def quadrature(run: Lanczos, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes and weights (first components squared) of the first `steps` of a run's unrestarted part."""
    m = min(run.steps, steps)
    t = torch.diag(torch.tensor(run.alphas[:m], dtype=torch.float64))
    for i in range(m - 1):
        t[i, i + 1] = t[i + 1, i] = run.betas[i]
    nodes, vectors = torch.linalg.eigh(t)
    return nodes, vectors[0].square()


def density(
    runs: list[tuple[torch.Tensor, torch.Tensor]], size: int, *, sigma: float = 0.0, points: int = 400
) -> Density:
    """Average of the probes' quadratures, smoothed.

    Args:
        runs: nodes and weights per probe.
        size: P, number of eigenvalues.
        sigma: width of the Gaussian, or 0 for √1e-5 of the spectrum's range.
        points: size of the grid.
    """
    nodes = torch.cat([n for n, _ in runs])
    weights = torch.cat([w for _, w in runs]) / len(runs)
    low, high = float(nodes.min()), float(nodes.max())
    spread = max(high - low, 1e-12 * max(abs(high), abs(low), 1e-300))
    sigma = sigma or math.sqrt(1e-5) * spread
    grid = torch.linspace(low - 4 * sigma, high + 4 * sigma, points, dtype=torch.float64)
    kernel = torch.exp(-((grid[:, None] - nodes) ** 2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
    values = kernel @ weights
    variance = 2 / (size + 2) * ((kernel.square() @ weights) - values.square()) / len(runs)
    negative = float(weights[nodes < -sigma].sum())
    negative_variance = 2 / (size + 2) * negative * (1 - negative) / len(runs)
    return Density(
        grid,
        values,
        variance.clamp(min=0).sqrt(),
        sigma,
        nodes,
        weights,
        negative,
        math.sqrt(max(0.0, negative_variance)),
    )
