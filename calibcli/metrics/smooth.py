"""SmoothECE (Błasiok & Nakkiran 2024): the residuals smoothed by a reflected Gaussian, by its cosine series.

The reflected Gaussian kernel on [0, 1] is the heat kernel with insulated ends, whose eigenfunctions are cos πkt:

    r_σ(t) = (1/N) Σ_i (p_i - y_i) K_σ(t, p_i) = Σ_k a_k exp(-π² k² σ² / 2) cos πkt,
    a_0 = mean residual,  a_k = (2/N) Σ_i (p_i - y_i) cos πk p_i.

So the coefficients serve all bandwidths, and ∫|r_σ| is exact: differences of the antiderivative at sign changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.metrics.intervals import NO_GROUPS, Bare, Interval, Statistic, one_sided, percent
from calibcli.metrics.lossy import Placed
from calibcli.metrics.mesh import POINTS, Mesh, spread
from calibcli.metrics.sample import METRICS, UNIT, BinaryOutcomes, Of, Once, Sample
from calibcli.numerics import normal_quantile, parts, quantile, root, unseen_reach
from calibcli.predictions import Floats
from calibcli.spec import Range

EXACT = 4_096  # rows up to which the coefficients are summed directly
CELLS = 1 << 15  # beyond: rows are spread linearly over this many cells, and that smoothing divided out
MOST_TERMS = 1 << 12  # reaches σ = 7e-4
LEAST = 1e-3  # bandwidth
FLOOR = 0.05  # the lower bound looks at no finer bandwidth: noise grows as it shrinks
MESH = "no bound: the mesh has an error of its own (variant=exact has bounds)"
FEW = 40  # coefficients of noise that serve bandwidths of FLOOR and more
FOUND = 1e-10  # to which bandwidths and bounds are found: rounding of the rows must not show
DAMPED = 8.9  # exp(-8.9²/2) < 1e-17: terms with πkσ beyond are nothing


class Smoothed(Once):
    """The residuals of a view, ready to be smoothed at any σ."""

    def __init__(self, p: Floats, residual: Floats, exact: int = EXACT) -> None:
        """p: (N,) in [0, 1]; residual: (N,), already divided by N (or times w / Σw)."""
        self.exact = len(p) <= exact
        if self.exact:
            self.p, self.residual = p, residual
        else:
            self._binned = cosine_sums(spread(p, residual, CELLS), CELLS)
        self._known: Floats = np.empty(0)

    @classmethod
    def of(cls, view: BinaryOutcomes) -> Smoothed:
        return cls(view.p, view.residual * view.shares)

    def coefficients(self, terms: int) -> Floats:
        """a_0 .. a_terms."""
        if not self.exact:
            return self._binned[: terms + 1]
        if len(self._known) <= terms:
            size = max(1, (1 << 20) // max(len(self.p), 1))
            more = np.arange(len(self._known), max(terms, 2 * len(self._known)) + 1)
            pieces = [more[i : i + size, None] for i in range(0, len(more), size)]
            self._known = np.concatenate([self._known, *(np.cos(math.pi * k * self.p) @ self.residual for k in pieces)])
        a = 2 * self._known[: terms + 1]
        a[0] /= 2
        return np.asarray(a)

    def series(self, sigma: float) -> Floats:
        """a_k exp(-π²k²σ²/2), to the last term that matters."""
        terms = min(MOST_TERMS, math.ceil(DAMPED / (math.pi * sigma)))
        k = np.arange(terms + 1)
        return np.asarray(self.coefficients(terms) * np.exp(-((math.pi * sigma * k) ** 2) / 2))

    def ece(self, sigma: float) -> float:
        """∫|r_σ|."""
        return self.once(Smoothed._ece, sigma)

    def _ece(self, sigma: float) -> float:
        return absolute_integral(self.series(sigma))

    @cached_property
    def fixed_point(self) -> tuple[float, float]:
        """(smECE at σ*, σ*), with σ* the solution of smECE_σ = σ; σ* is at least LEAST."""
        sigma = fixed_point(self.ece, LEAST, FOUND)
        return self.ece(sigma), sigma


def fixed_point(falling: Callable[[float], float], least: float, tolerance: float) -> float:
    """s in [least, 1] with falling(s) = s, or the end that is nearer to it."""
    high = 1.0
    while high > least and falling(high / 2) < high / 2:
        high /= 2
    return least if high <= least else root(lambda s: s - falling(s), high / 2, high, tolerance)


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
    k = math.pi * np.arange(1, len(series))
    slopes = k * series[1:]
    t = (left + (right - left) * values[left] / (values[left] - values[right])) / points
    for _ in range(4):
        angle = np.outer(t, k)
        slope = -(np.sin(angle) @ slopes)
        step = np.divide(series[0] + np.cos(angle) @ series[1:], slope, out=np.zeros_like(t), where=slope != 0)
        t = np.clip(t - step, left / points, right / points)
    ends = np.concatenate([[0.0], t, [1.0]])
    integral = series[0] * ends + np.sin(np.outer(ends, k)) @ (series[1:] / k)
    return float(np.abs(np.diff(integral)).sum())


@lru_cache(maxsize=4)
def _cosines(terms: int, points: int) -> Floats:
    """cos πk (j + ½) / points, (terms, points)."""
    return np.cos(math.pi * np.outer(np.arange(terms), (np.arange(points) + 0.5) / points))


@lru_cache(maxsize=2)
def _normals(seed: int, draws: int, cells: int) -> Floats:
    return np.random.default_rng([seed, cells]).standard_normal((draws, cells))


class Noise(Once):
    """Normal noise of the residuals, independent in cells of confidence, and its integral once smoothed."""

    CELLS, DRAWS = 256, 400

    def __init__(self, scale: Floats, seed: int) -> None:
        """scale: (CELLS,) standard deviations."""
        self.scale, self.seed = scale, seed

    @property
    def draws(self) -> Floats:
        """(DRAWS, CELLS)."""
        return np.asarray(_normals(self.seed, self.DRAWS, self.CELLS) * self.scale)

    def _series(self, terms: int) -> Floats:
        """(DRAWS, terms) coefficients."""
        used = np.flatnonzero(self.scale)
        draws = _normals(self.seed, self.DRAWS, self.CELLS)[:, used] * self.scale[used]
        series = draws @ _cosines(self.CELLS, self.CELLS)[:terms, used].T
        series[:, 1:] *= 2
        return np.asarray(series)

    def _norms(self, sigma: float) -> Floats:
        """(DRAWS,) of ∫|G_σ|.

        Of the terms, every other one is even about the middle, where |a + b| and |a - b| add up to 2 max(|a|, |b|).
        """
        terms, half = min(self.CELLS, math.ceil(5 / (math.pi * sigma)) + 1), self.CELLS // 2
        series = self.once(Noise._series, self.CELLS if terms > FEW else FEW)
        a = series[:, :terms] * np.exp(-((math.pi * sigma * np.arange(terms)) ** 2) / 2)
        even, odd = (a[:, i::2] @ _cosines(self.CELLS, self.CELLS)[i:terms:2, :half] for i in (0, 1))
        larger = np.maximum(np.abs(even, out=even), np.abs(odd, out=odd), out=even)
        return np.asarray(larger.mean(axis=1))

    def quantile(self, sigma: float, level: float) -> float:
        return quantile(self.once(Noise._norms, max(sigma, 1 / self.CELLS)), level)

    def fixed_point(self, level: float) -> float:
        """σ with quantile(σ) = σ."""
        return fixed_point(lambda s: self.quantile(s, level), 1e-5, FOUND)


class Noises(Once):
    """Noise of the residuals of some outcomes: as seen or as of a calibrated model, whichever is larger; and `null`,
    the latter alone.
    """

    def __init__(self, view: BinaryOutcomes) -> None:
        size = Noise.CELLS
        scale = size * (1 + view.precision)  # an edge stays one
        cell = np.empty(view.n, np.int16)
        for part in parts(view.n):
            np.minimum(view.p[part] * scale, size - 1, out=cell[part], casting="unsafe")
        variance = view.sums(cell, size, lambda part: view.residual[part] ** 2, 2)
        null = view.sums(cell, size, lambda part: view.p[part] * view.complement[part], 2)
        self.seen = Noise(np.sqrt(np.maximum(variance, null)), view.seed)
        self.null = Noise(np.sqrt(null), view.seed)
        self.variance = float(variance.sum())

    def calibrated(self, level: float, sigma: float | None) -> float:
        """Quantile of the error that a calibrated model shows, at σ* or at a given σ."""
        return self.null.quantile(self.null.fixed_point(level) if sigma is None else sigma, level)


@dataclass(frozen=True, eq=False)
class SmoothError(Statistic):
    """At a fixed σ the bounds of the ECE hold with ∫|.| for Σ|.|; as ∫|r_σ| falls with σ, they carry over to σ*.

    Upper: smECE_σ <= its estimate + h, so the fixed point rises by at most h. Lower: by the quantile q(σ) of ∫|G_σ|,
    G the noise of the residuals.
    """

    view: BinaryOutcomes
    sigma: float | None

    @cached_property
    def value(self) -> float:
        rows = self.view.once(Smoothed.of)
        return rows.fixed_point[0] if self.sigma is None else rows.ece(self.sigma)

    def interval(self, level: float) -> Interval:
        view, sigma, noise = self.view, self.sigma, self.view.once(Noises)
        detail = {} if sigma is not None else {"sigma": self.value}
        how = "cosine series" + ("" if view.n <= EXACT else f", rows spread over {CELLS} cells (error < 1e-5)")
        if view.groups is not None:
            return Interval(reason=NO_GROUPS, how=how, detail=detail)
        null, null_high = (noise.once(Noises.calibrated, at, sigma) for at in (0.5, 0.95))
        low = self._lower(noise, level) if sigma is None else self.value - noise.seen.quantile(sigma, level)
        high = min(1.0, self.value + unseen_reach(normal_quantile(level), noise.variance, *view.steps))
        how = f"{how}; one-sided bounds, each {percent(level)}; null level: normal noise"
        return one_sided(level, max(0.0, low), high, how, null=null, null_high=null_high, detail=detail)

    def _lower(self, noise: Noises, level: float) -> float:
        """Smallest τ not refuted by smECE at s = max(τ, FLOOR): its estimate is at most τ + q(s), as smECE_s <= τ."""
        rows = self.view.once(Smoothed.of)

        def excess(tau: float) -> float:
            s = max(tau, FLOOR)
            return tau + noise.seen.quantile(s, level) - rows.ece(s)

        return root(excess, 0.0, 1.0, FOUND)


BEND, BEND_SLOPE = 0.968, 0.798  # ∫|K''| σ² and ∫|K'| σ of the Gaussian kernel


def _condensed(at: Placed, options: Mapping[str, Any], value: float) -> float | None:
    if options["variant"] != "exact":
        return None
    sigma = options["sigma"] or max(value, LEAST)
    spread = 2e-5 if at.sample.n > EXACT or at.view.n > EXACT else 0.0  # what `smooth` says of its cells
    return min(at.variance * (2 * BEND_SLOPE / sigma + BEND / sigma**2) + spread, 1.0)


@METRICS.add(values=UNIT, better="lower", unit="probability", condensed=_condensed, label="smECE", error=2)
def smece(
    sample: Sample,
    *,
    sigma: Annotated[float, Range(1e-3, 1)] | None = None,
    variant: Literal["exact", "relplot"] = "exact",
    of: Of = "auto",
) -> Statistic:
    """SmoothECE, ∫|r_σ(t)| dt at the bandwidth σ* where it equals σ* (or at a given `sigma`); σ* is at least 0.001.

    `variant`: `exact` for the integral; `relplot` for the number that the package of that name prints, a mean over 200
    points (see `calibcli.metrics.mesh`).

    Source: Błasiok and Nakkiran (2023).

    >>> round(calibcli.measure(logits, labels, "smece")["smece"].value, 4)
    0.0646
    """
    if variant == "exact":
        return SmoothError(sample.view(of), sigma)
    on_mesh = Mesh(sample.view(of))
    value = on_mesh.fixed_point[0] if sigma is None else on_mesh.ece(sigma)
    return Bare(value, Interval(reason=MESH, how=f"mesh of {POINTS} points, as relplot"))
