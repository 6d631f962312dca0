"""SmoothECE (Błasiok & Nakkiran 2024): the residuals smoothed by a reflected Gaussian, by its cosine series.

The reflected Gaussian kernel on [0, 1] is the heat kernel with insulated ends, whose eigenfunctions are cos πkt:

    r_σ(t) = (1/N) Σ_i (p_i - y_i) K_σ(t, p_i) = Σ_k a_k exp(-π² k² σ² / 2) cos πkt,
    a_0 = mean residual,  a_k = (2/N) Σ_i (p_i - y_i) cos πk p_i.

So the coefficients serve all bandwidths, and ∫|r_σ| is exact: differences of the antiderivative at sign changes.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Annotated, Any

import numpy as np

from calibcli.errors import UsageError
from calibcli.metrics.intervals import Ask, Interval, percent
from calibcli.metrics.mesh import Mesh
from calibcli.metrics.sample import METRICS, UNIT, Of, Sample, View
from calibcli.numerics import bisect, normal_quantile, score_bound
from calibcli.predictions import Floats
from calibcli.spec import Range

EXACT = 4_096  # rows up to which the coefficients are summed directly
CELLS = 1 << 15  # beyond: rows are spread linearly over this many cells, and that smoothing divided out
MOST_TERMS = 1 << 12  # reaches σ = 7e-4
LEAST = 1e-3  # bandwidth
FLOOR = 0.05  # the lower bound looks at no finer bandwidth: noise grows as it shrinks
MESH = "no bound: the mesh has an error of its own (smece without mesh has bounds)"
DAMPED = 8.9  # exp(-8.9²/2) < 1e-17: terms with πkσ beyond are nothing


class Smoothed:
    """The residuals of a view, ready to be smoothed at any σ."""

    def __init__(self, p: Floats, residual: Floats, exact: int = EXACT) -> None:
        """p: (N,) in [0, 1]; residual: (N,), already divided by N (or times w / Σw)."""
        self.p, self.residual = p, residual
        self.exact = len(p) <= exact

    @cached_property
    def _binned(self) -> Floats:
        return cosine_sums(*spread(self.p, self.residual))

    def coefficients(self, terms: int) -> Floats:
        """a_0 .. a_terms."""
        if not self.exact:
            return self._binned[: terms + 1]
        known: Floats = self.__dict__.get("_known", np.empty(0))
        if len(known) <= terms:
            more = np.arange(len(known), max(terms, 2 * len(known)) + 1)
            parts = [np.cos(math.pi * k[:, None] * self.p) @ self.residual for k in _pieces(more, len(self.p))]
            known = np.concatenate([known, *parts])
            self._known = known
        a = 2 * known[: terms + 1]
        a[0] /= 2
        return np.asarray(a)

    def series(self, sigma: float) -> Floats:
        """a_k exp(-π²k²σ²/2), to the last term that matters."""
        terms = min(MOST_TERMS, math.ceil(DAMPED / (math.pi * sigma)))
        k = np.arange(terms + 1)
        return np.asarray(self.coefficients(terms) * np.exp(-((math.pi * sigma * k) ** 2) / 2))

    def ece(self, sigma: float) -> float:
        """∫|r_σ|."""
        return absolute_integral(self.series(sigma))

    @cached_property
    def fixed_point(self) -> tuple[float, float]:
        """(smECE at σ*, σ*), with σ* the solution of smECE_σ = σ, by bisection; σ* is at least LEAST."""
        high, floor = 1.0, LEAST
        while high > floor and self.ece(high / 2) < high / 2:
            high /= 2
        if high <= floor:
            return self.ece(floor), floor
        sigma = bisect(lambda s: self.ece(s) >= s, high / 2, high, 60, 1e-9)[1]
        return self.ece(sigma), sigma


def _pieces(k: Any, n: int) -> list[Any]:
    size = max(1, (1 << 20) // max(n, 1))
    return [k[i : i + size] for i in range(0, len(k), size)]


def spread(p: Floats, values: Floats, cells: int = CELLS) -> tuple[Floats, int]:
    """Values shared between the two nearest of `cells` + 1 grid points, in proportion."""
    x = p * cells
    left = np.minimum(x.astype(np.int64), cells - 1)
    x -= left
    right = values * x
    grid = np.bincount(left, values - right, cells + 1).astype(np.float64)
    grid += np.bincount(left + 1, right, cells + 1)
    return grid, cells


def cosine_sums(grid: Floats, cells: int) -> Floats:
    """a_k of values on a grid, with the linear spreading divided out (its transform is sinc²)."""
    even = np.concatenate([grid, grid[-2:0:-1]])
    even[[0, cells]] *= 2  # the ends have no mirror image
    k = np.arange(MOST_TERMS + 1)
    a = np.fft.rfft(even).real[: MOST_TERMS + 1] / np.sinc(k / (2 * cells)) ** 2
    a[0] /= 2
    return np.asarray(a)


def evaluate(series: Floats, points: int) -> Floats:
    """Σ s_k cos(πk j / points) for j = 0..points."""
    padded = np.zeros(points + 1)
    padded[: len(series)] = series
    padded[1:points] /= 2
    return np.fft.irfft(padded * points * 2, 2 * points)[: points + 1]


def absolute_integral(series: Floats) -> float:
    """∫_0^1 |Σ_k s_k cos πkt| dt: sign changes on a grid, refined by Newton, and the antiderivative between them."""
    points = 1 << max(8, math.ceil(math.log2(8 * len(series))))
    values = evaluate(series, points)
    seen = np.flatnonzero(np.abs(values) > 1e-14 * np.abs(series).sum())  # the rest is rounding, of either sign
    at = np.flatnonzero(np.diff(np.sign(values[seen])))
    left, right = seen[at], seen[at + 1]
    k = np.arange(1, len(series))
    t = (left + (right - left) * values[left] / (values[left] - values[right])) / points
    for _ in range(4):
        angle = math.pi * np.outer(t, k)
        slope = -(math.pi * k * np.sin(angle)) @ series[1:]
        step = np.divide(series[0] + np.cos(angle) @ series[1:], slope, out=np.zeros_like(t), where=slope != 0)
        t = np.clip(t - step, left / points, right / points)
    ends = np.concatenate([[0.0], t, [1.0]])
    integral = series[0] * ends + np.sin(math.pi * np.outer(ends, k)) @ (series[1:] / (math.pi * k))
    return float(np.abs(np.diff(integral)).sum())


def smoothed(sample: Sample, of: Of) -> Smoothed:
    view = sample.view(of)
    key = ("smoothed", of)
    if key not in sample.memo:
        sample.memo[key] = Smoothed(view.p, view.residual * view.share())
    rows: Smoothed = sample.memo[key]
    return rows


def smece_interval(ask: Ask) -> Interval:
    """At a fixed σ the bounds of the ECE hold with ∫|.| for Σ|.|; as ∫|r_σ| falls with σ, they carry over to σ*.

    Upper: smECE_σ <= its estimate + h, so the fixed point rises by at most h. Lower: by the quantile q(σ) of ∫|G_σ|,
    G the noise of the residuals.
    """
    if ask.choice.options["mesh"]:
        return Interval(reason=MESH, how=f"mesh of {ask.choice.options['mesh']} points, as relplot")
    view = ask.sample.view(ask.choice.options["of"])
    sigma = ask.choice.options["sigma"]
    detail = {} if sigma is not None else {"sigma": ask.value}
    how = "cosine series" + ("" if view.n <= EXACT else f", rows spread over {CELLS} cells (error < 1e-5)")
    noise = noise_of(ask)
    null_at = sigma if sigma is not None else noise.fixed_point(noise.null, 0.5)
    null = noise.quantile(noise.null, null_at, 0.5)
    null_high = noise.quantile(noise.null, sigma if sigma is not None else noise.fixed_point(noise.null, 0.95), 0.95)
    if view.groups is not None:
        return Interval(reason="rows belong to groups, and this bound is for independent rows", how=how, detail=detail)
    high = min(1.0, score_bound(ask.value, normal_quantile(ask.level), noise.unseen, noise.spread))
    if sigma is not None:
        low = ask.value - noise.quantile(noise.scale, sigma, ask.level)
    else:
        low = _lower_fixed_point(noise, smoothed(ask.sample, ask.choice.options["of"]), ask.level)
    return Interval(
        low=max(0.0, low),
        high=high,
        level=1 - 2 * ask.alpha,
        sided="each",
        how=f"{how}; one-sided bounds, each {percent(ask.level)}; null level: normal noise",
        null=null,
        null_high=null_high,
        detail=detail,
    )


class Noise:
    """Normal noise of the smoothed residuals: independent in 256 cells of confidence, then smoothed."""

    CELLS, DRAWS, POINTS = 256, 400, 256

    def __init__(self, view: View, ask: Ask) -> None:
        cell = np.minimum((view.p * self.CELLS).astype(np.int64), self.CELLS - 1)
        size = self.CELLS
        spread = view.sums(cell, size, view.residual**2, 2)
        null = view.sums(cell, size, view.p * view.rest, 2)
        self.scale, self.null = np.sqrt(np.maximum(spread, null)), np.sqrt(null)
        self.unseen, self.spread = float(view.sums(cell, size, 1.0, 2).sum()), float(spread.sum())
        self.draws = draws = np.random.default_rng([ask.seed, size]).standard_normal((self.DRAWS, size))
        self.curves = _cosines(size, self.POINTS)
        basis = 2 * _cosines(size, size).T
        basis[:, 0] = 1
        self.series = {id(s): (draws * s) @ basis for s in (self.scale, self.null)}
        self.cache: dict[tuple[int, float], Floats] = {}

    def norms(self, scale: Floats, sigma: float) -> Floats:
        """(DRAWS,) of ∫|G_σ|."""
        key = (id(scale), sigma)
        if key not in self.cache:
            k = np.arange(min(self.CELLS, math.ceil(5 / (math.pi * sigma)) + 1))
            a = self.series[id(scale)][:, k] * np.exp(-((math.pi * sigma * k) ** 2) / 2)
            self.cache[key] = np.abs(a @ self.curves[k]).mean(axis=1)
        return self.cache[key]

    def quantile(self, scale: Floats, sigma: float, level: float) -> float:
        return float(np.quantile(self.norms(scale, max(sigma, 1 / self.CELLS)), level))

    def fixed_point(self, scale: Floats, level: float) -> float:
        """σ with quantile(σ) = σ."""
        return bisect(lambda s: self.quantile(scale, s, level) - s, 0.0, 1.0)[0]


@lru_cache(maxsize=4)
def _cosines(terms: int, points: int) -> Floats:
    """cos πk (j + ½) / points, (terms, points)."""
    return np.cos(math.pi * np.outer(np.arange(terms), (np.arange(points) + 0.5) / points))


def noise_of(ask: Ask) -> Noise:
    """The noise of the view that a metric is of, worked out once."""
    key = ("noise", ask.choice.options["of"])
    if key not in ask.sample.memo:
        ask.sample.memo[key] = Noise(ask.sample.view(ask.choice.options["of"]), ask)
    noise: Noise = ask.sample.memo[key]
    return noise


def _lower_fixed_point(noise: Noise, rows: Smoothed, level: float) -> float:
    """Smallest τ not refuted by smECE at s = max(τ, FLOOR): its estimate is at most τ + q(s), as smECE_s <= τ."""

    def excess(tau: float) -> float:
        s = max(tau, FLOOR)
        return rows.ece(s) - noise.quantile(noise.scale, s, level) - tau

    return bisect(excess, 0.0, 1.0)[0]


@METRICS.add(values=UNIT, better="lower", unit="probability", interval=smece_interval)
def smece(
    sample: Sample,
    *,
    sigma: Annotated[float, Range(1e-3, 1)] | None = None,
    mesh: Annotated[int, Range(0, 10_000)] = 0,
    of: Of = "auto",
) -> float:
    """SmoothECE, ∫|r_σ(t)| dt at the bandwidth σ* where it equals σ* (or at a given `sigma`); σ* is at least 0.001.

    `mesh`: 0 for the integral; `mesh=200` for the number that the package `relplot` prints, a mean over 200 points (see
    `calibcli.metrics.mesh`).
    """
    if mesh:
        if mesh < 2:
            raise UsageError(f"a mesh of {mesh} points", "pass mesh=200, or leave it out for the integral")
        on_mesh = Mesh(sample.view(of), mesh)
        return on_mesh.fixed_point[0] if sigma is None else on_mesh.ece(sigma)
    exact = smoothed(sample, of)
    return exact.fixed_point[0] if sigma is None else exact.ece(sigma)
