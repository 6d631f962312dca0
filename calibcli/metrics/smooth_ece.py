"""Calibration errors without bins: SmoothECE, kernel calibration error (MMCE) and kernel-density ECE."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.core.number_format import percent
from calibcli.core.options import Range
from calibcli.core.statistics import bisect, normal_quantile, normals, parts, quantile, root, unseen_reach
from calibcli.metrics.histogram_error import PlacedRows, of_root
from calibcli.metrics.intervals import NO_GROUPS, Constant, one_sided
from calibcli.metrics.reliability import BinaryOutcomes, Memoized
from calibcli.metrics.shelf import METRICS, UNIT, Interval, Of, Sample, Statistic
from calibcli.scores.predictions import Floats

# SmoothECE on a mesh, as the package `relplot` 1.0 computes it, whose numbers papers print.
#
# The values at 200 equally spaced t (10/σ of them if that is more) of the smoothed residuals r_σ and of the smoothed
# density f_σ, both convolved on a grid, give Σ_t |r_σ(t)| / Σ_t (f_σ(t) + 1e-4). Both ends of the mesh count in full,
# which moves the number where many confidences are near 1; σ* is found to 2^-10 by bisection.

MESH_LEAST = 1e-3  # smallest bandwidth
HALVINGS = 10
POINTS = 200
STEP = 1 << 18  # rows that are spread at once
EMPTY = 1e-4  # added to the density, which is a sum over rows, not their mean


class Mesh:
    """Rows of a view, to be smoothed on a mesh at any σ."""

    def __init__(self, view: BinaryOutcomes) -> None:
        rows = view.total if view.counts else view.n  # with sampling weights the number of rows is kept
        self.p = view.p
        self.weight = view.shares * rows
        self.residual = self.weight * view.residual

    def ece(self, sigma: float) -> float:
        """Return the mean of |r_σ| over the mesh, weighted by density."""
        grid = (max(2000, round(20 / sigma)) // 2) + 1
        t = np.linspace(0, 1, max(round(10 / sigma), POINTS))
        kernel = np.exp(-((np.linspace(0, 1, grid) - 0.5) ** 2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
        residual, density = (_smooth(self.p, values, kernel, t) for values in (self.residual, self.weight))
        return float(np.abs(residual).sum() / (density + EMPTY).sum())

    @property
    def fixed_point(self) -> tuple[float, float]:
        """(value at σ*, σ*), with σ* the largest multiple of 2^-10 that bisection finds below its value."""

        def enough(sigma: float) -> bool:
            return sigma < MESH_LEAST or sigma < self.ece(sigma)

        sigma = 1.0 if enough(1.0) else bisect(enough, 0.0, 1.0, HALVINGS)[1]
        return self.ece(sigma), sigma


def spread(p: Floats, values: Floats, cells: int) -> Floats:
    """Spread values linearly over the two nearest of `cells` + 1 grid points."""
    grid = np.zeros(cells + 1)
    for start in range(0, len(p), STEP):
        x, here = p[start : start + STEP] * cells, values[start : start + STEP]
        left = np.minimum(x.astype(np.int64), cells - 1)
        x -= left
        x *= here
        grid += np.bincount(left + 1, x, cells + 1)
        grid += np.bincount(left, np.subtract(here, x, out=x), cells + 1)
    return grid


def _smooth(p: Floats, values: Floats, kernel: Floats, t: Floats) -> Floats:
    """Spread values over a grid, convolve them with the kernel, reflected at the ends, and read the result at t."""
    size = len(kernel)
    grid = spread(p, values, size - 1)
    whole = np.concatenate([grid[:0:-1], grid, grid[-2::-1]])
    smooth = np.convolve(whole, kernel, "valid")[size // 2 : size // 2 + size]
    return np.interp(t * (size - 1), np.arange(size), smooth)


# SmoothECE, exact (Błasiok & Nakkiran 2024): residuals smoothed by a reflected Gaussian, as a cosine series.
#
# The reflected Gaussian kernel on [0, 1] is the heat kernel with insulated ends, whose eigenfunctions are cos πkt:
#
#     r_σ(t) = (1/N) Σ_i (p_i - y_i) K_σ(t, p_i) = Σ_k a_k exp(-π² k² σ² / 2) cos πkt,
#     a_0 = mean residual,  a_k = (2/N) Σ_i (p_i - y_i) cos πk p_i.
#
# So the coefficients serve all bandwidths, and ∫|r_σ| is exact: differences of the antiderivative at sign changes.

EXACT = 4_096  # rows up to which the coefficients are summed directly
CELLS = 1 << 15  # more rows are spread linearly over this many cells, and that smoothing is divided out
MOST_TERMS = 1 << 12  # enough for σ = 7e-4
LEAST = 1e-3  # smallest bandwidth
FLOOR = 0.05  # smallest bandwidth of the lower bound: noise grows as it shrinks
MESH = "no bound: the mesh has an error of its own (variant=exact has bounds)"
FEW = 40  # coefficients of noise that are enough for bandwidths from FLOOR; narrower ones need twice as many, and so on
TOLERANCE = 1e-8  # of bandwidths before the last step of a secant, so that the order of summation does not show
SIMULATED = 1e-4  # of what has an error of simulation
DAMPED = 8.9  # exp(-8.9²/2) < 1e-17: terms with a larger πkσ are left out


class Smoothed(Memoized):
    """The residuals of a view, ready to be smoothed at any σ."""

    def __init__(self, p: Floats, residual: Floats, exact: int = EXACT) -> None:
        """Take (N,) p in [0, 1] and (N,) residuals, divided by N or times w / Σw."""
        self.exact = len(p) <= exact
        if self.exact:
            self.p, self.residual = p, residual
        else:
            self._binned = cosine_sums(spread(p, residual, CELLS), CELLS)
        self._known: Floats = np.empty(0)

    @classmethod
    def of(cls, view: BinaryOutcomes) -> Smoothed:
        """Take the residuals of some outcomes."""
        return cls(view.p, view.residual * view.shares)

    def coefficients(self, terms: int) -> Floats:
        """Return a_0 to a_terms."""
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
        """Return a_k exp(-π²k²σ²/2), up to the last term that matters."""
        terms = min(MOST_TERMS, math.ceil(DAMPED / (math.pi * sigma)))
        k = np.arange(terms + 1)
        return np.asarray(self.coefficients(terms) * np.exp(-((math.pi * sigma * k) ** 2) / 2))

    def ece(self, sigma: float) -> float:
        """Return ∫|r_σ|."""
        return self.once(Smoothed._ece, sigma)

    def _ece(self, sigma: float) -> float:
        return absolute_integral(self.series(sigma))

    @cached_property
    def fixed_point(self) -> tuple[float, float]:
        """(smECE at σ*, σ*), with σ* the solution of smECE_σ = σ; σ* is at least LEAST."""
        sigma = fixed_point(self.ece, 0.1, LEAST, TOLERANCE)
        return self.ece(sigma), sigma


def fixed_point(falling: Callable[[float], float], start: float, least: float, tolerance: float) -> float:
    """Find s in [least, 1] with falling(s) = s, or the end nearest to it: it lies between any s and falling(s)."""
    low, high = sorted(min(max(s, least), 1.0) for s in (start, falling(start)))
    return root(lambda s: s - falling(s), low, high, tolerance)


def cosine_sums(grid: Floats, cells: int) -> Floats:
    """Return a_k of values on a grid, with the linear spreading divided out (its transform is sinc²)."""
    even = np.concatenate([grid, grid[-2:0:-1]])
    even[[0, cells]] *= 2  # the ends have no mirror image
    k = np.arange(MOST_TERMS + 1)
    a = np.fft.rfft(even).real[: MOST_TERMS + 1] / np.sinc(k / (2 * cells)) ** 2
    a[0] /= 2
    return np.asarray(a)


def evaluate(series: Floats, points: int) -> Floats:
    """Return Σ s_k cos(πk j / points) for j = 0..points."""
    padded = np.zeros(points + 1)
    padded[: len(series)] = series
    padded[1:points] /= 2
    return np.fft.irfft(padded * points * 2, 2 * points)[: points + 1]


def absolute_integral(series: Floats) -> float:
    """Integrate |Σ_k s_k cos πkt| over [0, 1]: sign changes from a grid and Newton, the antiderivative between them."""
    points = 1 << max(8, math.ceil(math.log2(8 * len(series))))
    values = evaluate(series, points)
    nonzero = np.flatnonzero(np.abs(values) > 1e-14 * np.abs(series).sum())  # smaller ones are rounding, of either sign
    at = np.flatnonzero(np.diff(np.sign(values[nonzero])))
    left, right = nonzero[at], nonzero[at + 1]
    k = math.pi * np.arange(1, len(series))
    slopes = k * series[1:]
    t = (left + (right - left) * values[left] / (values[left] - values[right])) / points
    for _ in range(2):  # the integral is flat there: its error is below 1e-11
        angle = np.outer(t, k)
        slope = -(np.sin(angle) @ slopes)
        step = np.divide(series[0] + np.cos(angle) @ series[1:], slope, out=np.zeros_like(t), where=slope != 0)
        t = np.clip(t - step, left / points, right / points)
    ends = np.concatenate([[0.0], t, [1.0]])
    integral = series[0] * ends + np.sin(np.outer(ends, k)) @ (series[1:] / k)
    return float(np.abs(np.diff(integral)).sum())


@lru_cache(maxsize=4)
def _cosines(terms: int, points: int) -> Floats:
    """Tabulate cos πk (j + ½) / points, (terms, points)."""
    return np.cos(math.pi * np.outer(np.arange(terms), (np.arange(points) + 0.5) / points))


class Noise(Memoized):
    """Normal noise of the residuals, independent in cells of confidence, and the integral of its smoothed size."""

    CELLS, DRAWS = 256, 400

    def __init__(self, scale: Floats, seed: int) -> None:
        """Take (CELLS,) standard deviations."""
        self.scale, self.seed = scale, seed

    @property
    def draws(self) -> Floats:
        """(DRAWS, CELLS) noise."""
        return self._unscaled * self.scale

    @property
    def _unscaled(self) -> Floats:
        """(DRAWS, CELLS) standard normal numbers."""
        return normals((self.DRAWS, self.CELLS), (self.seed, self.CELLS))

    def _series(self, terms: int) -> list[Floats]:
        """Return (DRAWS, n) coefficients of the cosine series, of the even and of the odd ones of these terms."""
        used = np.flatnonzero(self.scale)
        draws = self._unscaled[:, used] * self.scale[used]
        series = draws @ _cosines(self.CELLS, self.CELLS)[:terms, used].T
        series[:, 1:] *= 2
        return [np.ascontiguousarray(series[:, parity::2]) for parity in (0, 1)]

    def _norms(self, sigma: float) -> Floats:
        """Return (DRAWS,) of ∫|G_σ|.

        Every other term is even about the middle, where |a + b| and |a - b| add up to 2 max(|a|, |b|).
        """
        terms = min(self.CELLS, math.ceil(5 / (math.pi * sigma)) + 1)
        series = self.once(Noise._series, min(FEW << ((terms - 1) // FEW).bit_length(), self.CELLS))
        damping = np.exp(-((math.pi * sigma * np.arange(terms)) ** 2) / 2)
        smooth = damping[:, None] * _cosines(self.CELLS, self.CELLS)[:terms, : self.CELLS // 2]
        even, odd = (series[i][:, : len(smooth[i::2])] @ smooth[i::2] for i in (0, 1))
        larger = np.maximum(np.abs(even, out=even), np.abs(odd, out=odd), out=even)
        return np.asarray(larger.mean(axis=1))

    def quantile(self, sigma: float, level: float) -> float:
        """Return a quantile of ∫|G_σ|."""
        return quantile(self.once(Noise._norms, max(sigma, 1 / self.CELLS)), level)

    def fixed_point(self, level: float) -> float:
        """Find σ with quantile(σ) = σ, from where narrow kernels have their mean: E∫|G_σ|² = Σ scale² / (2 √π σ)."""
        usual = float(np.cbrt(self.scale @ self.scale)) / math.sqrt(math.pi)
        return fixed_point(lambda s: self.quantile(s, level), usual, 1e-5, SIMULATED)


class Noises(Memoized):
    """Noise of the residuals of some outcomes.

    `seen` is the larger of that of these rows and that of a calibrated model; `null` is the latter alone.
    """

    def __init__(self, view: BinaryOutcomes) -> None:
        size = Noise.CELLS
        scale = size * (1 + view.precision)  # so that a p on an edge stays above it after rounding
        cell = np.empty(view.n, np.int16)
        for part in parts(view.n):
            np.minimum(view.p[part] * scale, size - 1, out=cell[part], casting="unsafe")
        variance = view.sums(cell, size, lambda part: view.residual[part] ** 2, 2)
        null = view.sums(cell, size, lambda part: view.p[part] * view.complement[part], 2)
        self.seen = Noise(np.sqrt(np.maximum(variance, null)), view.seed)
        self.null = Noise(np.sqrt(null), view.seed)
        self.variance = float(variance.sum())

    def calibrated(self, level: float, sigma: float | None) -> float:
        """Return a quantile of the error of a calibrated model, at σ* or at a given σ."""
        return self.null.quantile(self.null.fixed_point(level) if sigma is None else sigma, level)


@dataclass(frozen=True, eq=False)
class SmoothError(Statistic):
    """SmoothECE with one-sided bounds.

    At a fixed σ the bounds of the ECE hold with ∫|.| instead of Σ|.|; as ∫|r_σ| falls with σ, they carry over to σ*.

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
        """Find the smallest τ that smECE at s = max(τ, FLOOR) does not refute: its estimate is at most τ + q(s)."""
        rows = self.view.once(Smoothed.of)

        def excess(tau: float) -> float:
            return tau + noise.seen.quantile(tau, level) - rows.ece(tau)

        least = excess(FLOOR)
        return FLOOR - least if least >= 0 else root(excess, FLOOR, self.value, SIMULATED)


BEND, BEND_SLOPE = 0.968, 0.798  # ∫|K''| σ² and ∫|K'| σ of the Gaussian kernel


def _condensed(at: PlacedRows, options: Mapping[str, Any], value: float) -> float | None:
    if options["variant"] != "exact":
        return None
    sigma = options["sigma"] or max(value, LEAST)
    spread = 2e-5 if at.sample.n > EXACT or at.view.n > EXACT else 0.0  # of rows over cells, see `SmoothError`
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
    points (see `calibcli.metrics.smooth_ece`).

    Source: Błasiok and Nakkiran (2023).

    >>> round(calibcli.measure(logits, labels, "smece")["smece"].value, 4)
    0.0646
    """
    if variant == "exact":
        return SmoothError(sample.view(of), sigma)
    on_mesh = Mesh(sample.view(of))
    value = on_mesh.fixed_point[0] if sigma is None else on_mesh.ece(sigma)
    return Constant(value, Interval(reason=MESH, how=f"mesh of {POINTS} points, as relplot"))


# Kernel calibration error (MMCE) and the kernel-density ECE.

KERNEL_CELLS = 1 << 14  # of the density estimates
TRIWEIGHT = 7.52  # ∫|K''| of the triweight kernel
Width = Annotated[float, Range(2e-3, 1e6)]  # exp(1 / width) must be a number


def _mmce_condensed(at: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging: of u(p) r, where |u| and width |u'| are at most 2 Σs|r|, u the potential of r."""
    view, scale = at.view, 1.0
    if options["weighted"]:
        right = float(view.shares[view.hit].sum())
        scale = 1 / max(min(right, 1 - right), 1e-12)
    mean = float(at.weight.sum())
    rounding = 1e-13 * math.sqrt(view.total) * mean
    change = (4 * (1 + 1 / options["width"]) * at.deviation + rounding) * mean * scale**2
    return change if options["square"] else of_root(change, value)


@METRICS.add(values=UNIT, better="lower", unit="", condensed=_mmce_condensed, papers=True)
def mmce(
    sample: Sample, *, width: Width = 0.4, weighted: bool = False, square: bool = False, of: Of = "auto"
) -> Statistic:
    """Maximum mean calibration error, (N⁻² Σ_ij r_i r_j exp(-|p_i - p_j| / width))^½, r = p - y (Kumar et al. 2018).

    `weighted`: its class-balanced form, with right and wrong rows averaged apart. `square`: without the root. Exact in
    N log N: sorted, the kernel factorises into running sums.

    >>> round(calibcli.measure(logits, labels, "mmce")["mmce"].value, 4)
    0.0572
    """
    return Mmce(sample.view(of), width, weighted, square)


@dataclass(frozen=True, eq=False)
class Mmce(Statistic):
    """The length of the mean of r_i φ(p_i), |φ| = 1; bounds: the triangle inequality below, one direction above."""

    view: BinaryOutcomes
    width: float
    weighted: bool
    square: bool

    @cached_property
    def value(self) -> float:
        view, share = self.view, self.view.shares
        if self.weighted:
            right, wrong = float(share[view.hit].sum()), float(share[~view.hit].sum())
            if right == 0 or wrong == 0:
                return 0.0
            # Σ over right and wrong of their means: (1 - p) / n_right and -p / n_wrong
            r = np.where(view.hit, -view.complement * share / right, view.p * share / wrong)
        else:
            r = view.residual * share
        value = max(laplace_form(view.p[view.order], r[view.order], self.width), 0.0)
        return value if self.square else math.sqrt(value)

    def interval(self, level: float) -> Interval:
        null: dict[str, Any] = {}
        noise = self.view.once(Noises)
        if not self.weighted and self.view.groups is None:
            draws = self._lengths(noise.null)
            null = {"null": float(draws.mean()), "null_high": quantile(draws, 0.95)}
        if self.weighted or self.square:
            return Interval(reason="no bound for this form; mmce itself has one", **null)
        if self.view.groups is not None:
            return Interval(reason=NO_GROUPS, **null)
        low = max(0.0, self.value - quantile(self._lengths(noise.seen), level))
        high = min(1.0, self.value + unseen_reach(normal_quantile(level), noise.variance, *self.view.steps))
        how = f"exact, by sorted sums; one-sided bounds, each {percent(level)}; null level: normal noise"
        return one_sided(level, low, high, how, **null)

    def _lengths(self, noise: Noise) -> Floats:
        """Return the lengths of simulated noise."""
        return np.asarray(np.sqrt(((noise.draws @ _root(self.width)) ** 2).sum(axis=1)))


@lru_cache(maxsize=4)
def _root(width: float) -> Floats:
    """Return the Cholesky factor of the kernel between the cells of `Noise`."""
    centre = (np.arange(Noise.CELLS) + 0.5) / Noise.CELLS
    kernel = np.exp(-np.abs(centre[:, None] - centre) / width)
    return np.asarray(np.linalg.cholesky(kernel + 1e-9 * np.eye(Noise.CELLS)), dtype=np.float64)


def laplace_form(p: Floats, r: Floats, width: float) -> float:
    """Return Σ_ij r_i r_j exp(-|p_i - p_j| / width) for sorted p."""
    x = (p - p[0]) / width if len(p) else p
    before = np.cumsum(r * np.exp(x)) * np.exp(-x)  # Σ_{j <= i} r_j exp(-(x_i - x_j))
    return 2 * float(r @ before) - float(r @ r)


def _kde_condensed(at: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging: twice that of the density and once that of the hits, both spread over a grid."""
    width = kde_bandwidth(at.view)
    spread = at.variance + 2 * (1 / KERNEL_CELLS) ** 2 / 4
    return min(3 * TRIWEIGHT * spread / width**2, 1.0)


@METRICS.add(values=UNIT, better="lower", unit="probability", condensed=_kde_condensed, papers=True)
def kde_ece(sample: Sample, *, of: Of = "auto") -> Constant:
    """ECE with density estimates in place of bins, ∫ |t - acc(t)| f(t) dt (Zhang et al. 2020).

    Triweight kernel reflected at 0 and 1, bandwidth std(p | hit) (2N)^-1/5, acc(t) = min(1, acc f_hit(t) / f(t)).

    >>> round(calibcli.measure(logits, labels, "kde_ece")["kde_ece"].value, 4)
    0.066
    """
    view = sample.view(of)
    bandwidth = kde_bandwidth(view)
    if not bandwidth > 0:
        reason = "the confidences of correct rows do not vary, so there is no bandwidth"
        return Constant(math.nan, Interval(reason=reason))
    t = np.arange(KERNEL_CELLS + 1) / KERNEL_CELLS
    everything = _density(view.p, view.shares, bandwidth)
    hits = _density(view.p[view.hit], view.shares[view.hit], bandwidth)
    accuracy = np.minimum(1, np.divide(hits, everything, out=np.zeros_like(hits), where=everything > 0))
    height = np.abs(t - accuracy) * everything
    value = float(height.sum() - (height[0] + height[-1]) / 2) / KERNEL_CELLS
    how = f"triweight kernel on {KERNEL_CELLS} cells"
    reason = "no interval: the bias of the kernel is of unknown size (ece and smece have one)"
    return Constant(value, Interval(reason=reason, how=how))


def kde_bandwidth(view: BinaryOutcomes) -> float:
    """Return the bandwidth: standard deviation of p over hits times (2N)^-1/5."""
    p, w = view.p[view.hit], view.shares[view.hit]
    if not w.sum() > 0:
        return 0.0
    variance = float(np.average((p - np.average(p, weights=w)) ** 2, weights=w))
    deviation = math.sqrt(variance)
    return deviation * float((2 * view.effective) ** -0.2) if deviation > view.precision else 0.0  # not rounding


def _density(p: Floats, share: Floats, bandwidth: float) -> Floats:
    """Return Σ share · triweight((t - p) / h) / h, reflected, on KERNEL_CELLS + 1 points."""
    grid = spread(p, share, KERNEL_CELLS)
    reach = min(KERNEL_CELLS, math.ceil(bandwidth * KERNEL_CELLS))
    u = np.arange(-reach, reach + 1) / (bandwidth * KERNEL_CELLS)
    kernel = np.maximum(1 - u * u, 0) ** 3
    kernel *= KERNEL_CELLS / kernel.sum()  # integrates to 1 on the grid
    grid[[0, -1]] *= 2  # the ends are their own mirror images
    even = np.concatenate([grid[reach:0:-1], grid, grid[-2 : -reach - 2 : -1]])
    size = 1 << math.ceil(math.log2(len(even) + len(kernel)))
    full = np.fft.irfft(np.fft.rfft(even, size) * np.fft.rfft(kernel, size), size)
    return full[len(kernel) - 1 : len(even)]
