"""Calibration errors without bins: SmoothECE, kernel calibration error (MMCE) and kernel-density ECE.

Proofs of the bounds: docs/statistics/smooth-ece.md.
"""

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
from calibcli.metrics._histogram_error import PlacedRows, of_root
from calibcli.metrics.intervals import NO_GROUPS, Constant, one_sided
from calibcli.metrics.registry import METRICS, UNIT, Interval, Of, Sample, Statistic
from calibcli.metrics.reliability import BinaryOutcomes, Memoized
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
        """Return Σ_t |r_σ(t)| / Σ_t (f_σ(t) + EMPTY), the mean of |smoothed residual| weighted by density.

        The numbers of points are those of `relplot`: of the grid half of 20/σ, at least 1001; of the mesh 10/σ, at
        least 200. A grid of even size has no point at its centre, which moves its kernel by half a step; that is kept.
        The sums over the grid are not multiplied by its step, which is in numerator and denominator alike.
        """
        grid = (max(2000, round(20 / sigma)) // 2) + 1
        t = np.linspace(0, 1, max(round(10 / sigma), POINTS))
        kernel = np.exp(-((np.linspace(0, 1, grid) - 0.5) ** 2) / (2 * sigma**2)) / (math.sqrt(2 * math.pi) * sigma)
        residual, density = (_smooth(self.p, values, kernel, t) for values in (self.residual, self.weight))
        return float(np.abs(residual).sum() / (density + EMPTY).sum())

    @property
    def fixed_point(self) -> tuple[float, float]:
        """(value at σ*, σ*), with σ* the smallest multiple of 2^-10 that bisection finds not below its value.

        `bisect` brackets the point where a decreasing function turns from positive to not positive. Here that is a
        truth value, True (1) while σ is below its value and False (0) from σ* on, the upper end of the bracket.
        """

        def below_its_value(sigma: float) -> bool:
            return sigma < MESH_LEAST or sigma < self.ece(sigma)

        sigma = 1.0 if below_its_value(1.0) else bisect(below_its_value, 0.0, 1.0, HALVINGS)[1]
        return self.ece(sigma), sigma


def spread(p: Floats, values: Floats, cells: int) -> Floats:
    """Spread (N,) values at p in [0, 1] linearly over the two nearest of `cells` + 1 grid points.

    A value v at the place x = cells · p, between the points j and j + 1, adds v (x - j) to j + 1, and the rest to j.
    """
    grid = np.zeros(cells + 1)
    for start in range(0, len(p), STEP):
        x, some = p[start : start + STEP] * cells, values[start : start + STEP]
        left = np.minimum(x.astype(np.int64), cells - 1)
        x -= left
        x *= some  # in place: v (x - j), then the rest
        grid += np.bincount(left + 1, x, cells + 1)
        grid += np.bincount(left, np.subtract(some, x, out=x), cells + 1)
    return grid


def _smooth(p: Floats, values: Floats, kernel: Floats, t: Floats) -> Floats:
    """Spread values over a grid, convolve them with the kernel, reflected at the ends, and read the result at t.

    The kernel, (S,), is as wide as the grid, whose mirror images on both sides make (3 S - 2,) points. The convolution
    keeps the 2 S - 1 places where the kernel lies within these; S of them, from S // 2 on, are the points of the grid.
    """
    size = len(kernel)
    grid = spread(p, values, size - 1)
    mirrored = np.concatenate([grid[:0:-1], grid, grid[-2::-1]])
    smooth = np.convolve(mirrored, kernel, "valid")[size // 2 : size // 2 + size]
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
NOISE_DAMPED = 5.0  # exp(-5²/2) < 4e-6: the same of simulated noise


class Smoothed(Memoized):
    """The residuals of a view, ready to be smoothed at any σ."""

    def __init__(self, p: Floats, residual: Floats, exact: int = EXACT) -> None:
        """Take (N,) p in [0, 1] and (N,) residuals, divided by N or times w / Σw."""
        self.exact = len(p) <= exact
        if self.exact:
            self.p, self.residual = p, residual
        else:
            self._binned = cosine_sums(spread(p, residual, CELLS), CELLS)
        self._sums: Floats = np.empty(0)  # Σ_i residual_i cos πk p_i for k = 0, 1, ..., as far as they were needed

    @classmethod
    def of(cls, view: BinaryOutcomes) -> Smoothed:
        """Take the residuals of some outcomes."""
        return cls(view.p, view.residual * view.shares)

    def coefficients(self, terms: int) -> Floats:
        """Return a_0 to a_terms: twice Σ residual cos πk p, and once for k = 0.

        Missing sums are added for some k at a time, so that (k, N) cosines are at most a million numbers.
        """
        if not self.exact:
            return self._binned[: terms + 1]
        if len(self._sums) <= terms:
            size = max(1, (1 << 20) // max(len(self.p), 1))
            more = np.arange(len(self._sums), max(terms, 2 * len(self._sums)) + 1)
            pieces = [more[i : i + size, None] for i in range(0, len(more), size)]
            self._sums = np.concatenate([self._sums, *(np.cos(math.pi * k * self.p) @ self.residual for k in pieces)])
        a = 2 * self._sums[: terms + 1]
        a[0] /= 2
        return np.asarray(a)

    def series(self, sigma: float) -> Floats:
        """Return a_k exp(-π²k²σ²/2), up to the last term that matters."""
        terms = min(MOST_TERMS, math.ceil(DAMPED / (math.pi * sigma)))
        k = np.arange(terms + 1)
        return np.asarray(self.coefficients(terms) * np.exp(-((math.pi * sigma * k) ** 2) / 2))

    def ece(self, sigma: float) -> float:
        """Return ∫|r_σ|."""
        return self.memoized(Smoothed._ece, sigma)

    def _ece(self, sigma: float) -> float:
        return absolute_integral(self.series(sigma))

    @cached_property
    def fixed_point(self) -> tuple[float, float]:
        """(smECE at σ*, σ*), with σ* the solution of smECE_σ = σ; σ* is at least LEAST."""
        sigma = fixed_point(self.ece, 0.1, LEAST, TOLERANCE)
        return self.ece(sigma), sigma


def fixed_point(falling: Callable[[float], float], start: float, least: float, tolerance: float) -> float:
    """Find s in [least, 1] with falling(s) = s, or the end nearest to it.

    It lies between any s and falling(s): if falling(s) > s, the two meet above s, and not above falling(s).
    """
    low, high = sorted(min(max(s, least), 1.0) for s in (start, falling(start)))
    return root(lambda s: s - falling(s), low, high, tolerance)


def cosine_sums(grid: Floats, cells: int) -> Floats:
    """Return a_0 to a_MOST_TERMS of values on a grid, with the linear spreading divided out.

    a_k = 2 Σ_j grid_j cos(πk j / cells), without the 2 for k = 0, is the transform of the grid with its mirror image.
    Spreading is a convolution with a triangle two cells wide, whose transform is sinc²(k / (2 cells)).
    """
    even = np.concatenate([grid, grid[-2:0:-1]])
    even[[0, cells]] *= 2  # the ends have no mirror image
    k = np.arange(MOST_TERMS + 1)
    a = np.fft.rfft(even).real[: MOST_TERMS + 1] / np.sinc(k / (2 * cells)) ** 2
    a[0] /= 2
    return np.asarray(a)


def evaluate(series: Floats, points: int) -> Floats:
    """Return Σ s_k cos(πk j / points) for j = 0..points.

    The inverse transform of 2 · points numbers divides by their number, and counts all terms but the first and the last
    twice, once for each sign of k.
    """
    padded = np.zeros(points + 1)
    padded[: len(series)] = series
    padded[1:points] /= 2
    return np.fft.irfft(padded * points * 2, 2 * points)[: points + 1]


def absolute_integral(series: Floats) -> float:
    """Integrate |h(t)|, h(t) = Σ_k s_k cos πkt, over [0, 1].

    Between two sign changes the integral is a difference of H(t) = s_0 t + Σ_k s_k sin(πkt) / (πk). The sign changes
    are bracketed on a grid of 8 points or more for each term, placed by a secant, and improved by two steps of Newton.
    An error of theirs enters the integral as its square, as h is 0 there.
    """
    points = 1 << max(8, math.ceil(math.log2(8 * len(series))))
    values = evaluate(series, points)
    nonzero = np.flatnonzero(np.abs(values) > 1e-14 * np.abs(series).sum())  # smaller ones are rounding, of either sign
    changes = np.flatnonzero(np.diff(np.sign(values[nonzero])))
    left, right = nonzero[changes], nonzero[changes + 1]  # (C,) grid points on both sides of each sign change
    k = math.pi * np.arange(1, len(series))
    slopes = k * series[1:]
    t = (left + (right - left) * values[left] / (values[left] - values[right])) / points
    for _ in range(2):  # the error of the integral is then below 1e-11
        angle = np.outer(t, k)  # (C, terms)
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
    """Normal noise of the residuals, independent in cells of confidence, and ∫|G_σ|, G_σ that noise smoothed.

    With g_j the noise of cell j, whose middle is m_j = (j + ½) / CELLS, G_σ(t) = Σ_k a_k exp(-π² k² σ² / 2) cos πkt,
    where a_0 = Σ_j g_j and a_k = 2 Σ_j g_j cos πk m_j: the series of r_σ, with noise for residuals.
    """

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
        """Return (DRAWS, n) coefficients a_k of each draw for k < terms: those of even k, and those of odd k."""
        used = np.flatnonzero(self.scale)
        draws = self._unscaled[:, used] * self.scale[used]
        series = draws @ _cosines(self.CELLS, self.CELLS)[:terms, used].T
        series[:, 1:] *= 2
        return [np.ascontiguousarray(series[:, parity::2]) for parity in (0, 1)]

    def _norms(self, sigma: float) -> Floats:
        """Return (DRAWS,) values of ∫|G_σ|, the mean over the middles of the cells.

        Terms of even k are symmetric about t = ½, those of odd k change sign there. With a and b their sums at t, G_σ
        is a + b at t and a - b at 1 - t, and the two sizes add up to 2 max(|a|, |b|): half of the cells are enough.

        Coefficients are kept for FEW terms, or twice, four times as many, so that several σ share them.
        """
        terms = min(self.CELLS, math.ceil(NOISE_DAMPED / (math.pi * sigma)) + 1)
        series = self.memoized(Noise._series, min(FEW << ((terms - 1) // FEW).bit_length(), self.CELLS))
        damping = np.exp(-((math.pi * sigma * np.arange(terms)) ** 2) / 2)
        smooth = damping[:, None] * _cosines(self.CELLS, self.CELLS)[:terms, : self.CELLS // 2]  # (terms, CELLS / 2)
        even = series[0][:, : len(smooth[0::2])] @ smooth[0::2]  # (DRAWS, CELLS / 2)
        odd = series[1][:, : len(smooth[1::2])] @ smooth[1::2]
        larger = np.maximum(np.abs(even, out=even), np.abs(odd, out=odd), out=even)
        return np.asarray(larger.mean(axis=1))

    def quantile(self, sigma: float, level: float) -> float:
        """Return a quantile of ∫|G_σ|; narrower kernels than a cell are taken as wide as one."""
        return quantile(self.memoized(Noise._norms, max(sigma, 1 / self.CELLS)), level)

    def fixed_point(self, level: float) -> float:
        """Find σ with quantile(σ) = σ.

        The search starts where narrow kernels have E∫|G_σ| = σ. E∫G_σ² = Σ scale² ∫K_σ² = Σ scale² / (2 √π σ), and a
        normal number is (2/π)^½ of its deviation in the mean, so that σ³ = (2/π) Σ scale² / (2 √π) = Σ scale² / π^1.5.
        """
        usual = float(np.cbrt(self.scale @ self.scale)) / math.sqrt(math.pi)
        return fixed_point(lambda s: self.quantile(s, level), usual, 1e-5, SIMULATED)


class Noises(Memoized):
    """Noise of the residuals of some outcomes, with s the share of a row in the weight.

    Its variance in a cell is Σ s² r² over the rows of the cell, and Σ s² p (1 - p) if the model is calibrated. `seen`
    has the larger of both, `null` the latter alone; `variance` is Σ s² r² over all rows.
    """

    def __init__(self, view: BinaryOutcomes) -> None:
        size = Noise.CELLS
        scale = size * (1 + view.precision)  # so that a p on an edge stays above it after rounding
        cell = np.empty(view.n, np.int16)
        for part in parts(view.n):
            np.minimum(view.p[part] * scale, size - 1, out=cell[part], casting="unsafe")
        # the 2 is the power of the shares
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

    At a fixed σ the bounds of the ECE (`binned_bounds`) hold with ∫|.| instead of Σ|.|; as ∫|r_σ| falls with σ, they
    carry over to σ*.

    Upper: let ρ be r_σ of the population. ∫|ρ| = ∫ sign(ρ) ρ <= ∫|r_σ| + ∫ sign(ρ) (ρ - r_σ), and the last term is the
    noise of a mean of r_i u(p_i) with |u| = |∫ sign(ρ(t)) K_σ(t, p) dt| <= 1, whose variance is at most Σ s² r². So
    smECE_σ <= its estimate + h at every σ, where `unseen_reach` gives h. As both fall with σ, σ* rises by at most h.

    Lower: ∫|r_σ| <= ∫|ρ| + ∫|G_σ| with G the noise of the residuals, whose quantile q(σ) is simulated; see `_lower`.
    """

    view: BinaryOutcomes
    sigma: float | None

    @cached_property
    def value(self) -> float:
        rows = self.view.memoized(Smoothed.of)
        return rows.fixed_point[0] if self.sigma is None else rows.ece(self.sigma)

    def interval(self, level: float) -> Interval:
        view, sigma, noise = self.view, self.sigma, self.view.memoized(Noises)
        detail = {} if sigma is not None else {"sigma": max(self.value, LEAST)}
        how = "cosine series" + ("" if view.n <= EXACT else f", rows spread over {CELLS} cells (error < 1e-5)")
        if view.groups is not None:
            return Interval(reason=NO_GROUPS, how=how, detail=detail)
        null = noise.memoized(Noises.calibrated, 0.5, sigma)
        null_high = noise.memoized(Noises.calibrated, 0.95, sigma)
        low = self._lower(noise, level) if sigma is None else self.value - noise.seen.quantile(sigma, level)
        largest_moves = view.largest_moves  # of a sum of residuals, by one row that was drawn and by one that was not
        high = min(1.0, self.value + unseen_reach(normal_quantile(level), noise.variance, *largest_moves))
        how = f"{how}; one-sided bounds, each {percent(level)}; null level: normal noise"
        return one_sided(level, max(0.0, low), high, how, null=null, null_high=null_high, detail=detail)

    def _lower(self, noise: Noises, level: float) -> float:
        """Find the smallest τ that smECE at s = max(τ, FLOOR) does not refute: its estimate is at most τ + q(s).

        If the population's smECE is τ, then smECE_τ = τ, so smECE_s <= τ at s >= τ, and with probability `level` its
        estimate is at most τ + q(s). For τ below FLOOR only τ itself changes; above it τ + q(τ) - estimate is taken to
        rise, and its root is sought.
        """
        rows = self.view.memoized(Smoothed.of)

        def excess(tau: float) -> float:
            return tau + noise.seen.quantile(tau, level) - rows.ece(tau)

        at_floor = excess(FLOOR)
        return FLOOR - at_floor if at_floor >= 0 else root(excess, FLOOR, self.value, SIMULATED)


BEND, BEND_SLOPE = 0.968, 0.798
"""∫|K''| σ² = 4 φ(1) and ∫|K'| σ = (2/π)^½ of the Gaussian kernel, rounded upwards; reflection does not raise them."""
SPREADING = 1e-5  # largest error of smECE by spreading rows over CELLS cells


def _condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float | None:
    """Bound the change by merging the rows of each outcome in a cell, which keeps their number, mean and variance in p.

    Such rows add Σ s h(p) to r_σ(t), h(p) = (p - y) K_σ(t, p). That differs from h at their mean, times their share, by
    at most ½ (Σ s variance) max|h''| (Taylor), before merging and after it, so that merging changes it by at most (Σ s
    variance) max|h''|. h'' = 2 K' + (p - y) K'', and ∫ over t of |h''| is at most 2 ∫|K'| + ∫|K''|. So ∫|r_σ| changes
    by at most c = variance (2 BEND_SLOPE / σ + BEND / σ²), and with it σ*: ∫|r_σ| falls with σ, and where it changes by
    c at σ*, its fixed point moves by no more. `placed.variance` is Σ s variance over all cells and outcomes.

    Many rows are spread over cells, the merged ones and those of the file each with an error of SPREADING.
    """
    if options["variant"] != "exact":
        return None
    sigma = options["sigma"] or max(value, LEAST)
    spreading = 2 * SPREADING if placed.sample.n > EXACT or placed.view.n > EXACT else 0.0
    return min(placed.variance * (2 * BEND_SLOPE / sigma + BEND / sigma**2) + spreading, 1.0)


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
TRIWEIGHT = 7.52  # ∫|K''| of the triweight kernel (35/32) (1 - u²)³: 4 |K'(5^-½)| = 7.513, rounded upwards
Width = Annotated[float, Range(2e-3, 1e6)]  # exp(1 / width) must be a number


def _mmce_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging the rows of each outcome in a cell, which keeps their number, mean and variance in p.

    Let a be the vector Σ s r φ(p) of the rows before merging and b that after it, k the kernel φ·φ. The square changes
    by |a|² - |b|² = (a - b)·(a + b), which is the change of the sum of r u(p), u(p) = φ(p)·(a + b). With M = Σ s|r|,
    which merging keeps, |u| <= 2 M and |u'| <= 2 M / width, as k = exp(-|p - q| / width). So r u(p) changes with p by
    at most 2 M (1 + 1 / width), and a row lies from the mean of its cell and outcome by its standard deviation on
    average at most, before merging and after it: 2 Σ s deviation · 2 M (1 + 1 / width) in all. `placed.deviation` is Σ
    s deviation, and `placed.weight`, (cells,), adds up to M.

    The balanced form divides the residuals by the shares of right and wrong rows, the smaller of which counts here.
    """
    view, scale = placed.view, 1.0
    if options["weighted"]:
        right = float(view.shares[view.hit].sum())
        scale = 1 / max(min(right, 1 - right), 1e-12)
    mean = float(placed.weight.sum())
    rounding = 1e-13 * math.sqrt(view.total) * mean
    change = (4 * (1 + 1 / options["width"]) * placed.deviation + rounding) * mean * scale**2
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
    """The length of the mean m̂ = Σ s_i r_i φ(p_i), where φ(p)·φ(q) = exp(-|p - q| / width), so that |φ| = 1.

    Lower bound: |m| >= |m̂| - |m̂ - m|, whose quantile is simulated. Upper: with e = m / |m|, the direction of the mean
    of the population, |m| = e·m <= |m̂| + e·(m - m̂), the noise of one mean, of r_i e·φ(p_i), with a variance of at
    most Σ s² r². `unseen_reach` gives its quantile.
    """

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
        noise = self.view.memoized(Noises)
        if not self.weighted and self.view.groups is None:
            draws = self._lengths(noise.null) ** (2 if self.square else 1)  # (DRAWS,) on the scale of the value
            null = {"null": float(draws.mean()), "null_high": quantile(draws, 0.95)}
        if self.weighted or self.square:
            return Interval(reason="no bound for this form; mmce itself has one", **null)
        if self.view.groups is not None:
            return Interval(reason=NO_GROUPS, **null)
        low = max(0.0, self.value - quantile(self._lengths(noise.seen), level))
        largest_moves = (
            self.view.largest_moves
        )  # of a sum of residuals, by one row that was drawn and by one that was not
        high = min(1.0, self.value + unseen_reach(normal_quantile(level), noise.variance, *largest_moves))
        how = f"exact, by sorted sums; one-sided bounds, each {percent(level)}; null level: normal noise"
        return one_sided(level, low, high, how, **null)

    def _lengths(self, noise: Noise) -> Floats:
        """Return (DRAWS,) lengths of simulated noise: |g L| for a draw g, (CELLS,), as |Σ g_j φ(m_j)|² = g L L' g'."""
        return np.asarray(np.sqrt(((noise.draws @ _root(self.width)) ** 2).sum(axis=1)))


@lru_cache(maxsize=4)
def _root(width: float) -> Floats:
    """Return the Cholesky factor L, (CELLS, CELLS), of the kernel between the middles m_j of the cells of `Noise`."""
    centre = (np.arange(Noise.CELLS) + 0.5) / Noise.CELLS
    kernel = np.exp(-np.abs(centre[:, None] - centre) / width)
    return np.asarray(np.linalg.cholesky(kernel + 1e-9 * np.eye(Noise.CELLS)), dtype=np.float64)


def laplace_form(p: Floats, r: Floats, width: float) -> float:
    """Return Σ_ij r_i r_j exp(-|p_i - p_j| / width) for sorted p.

    It is twice the sum over j <= i, less the terms j = i, which that counts twice.
    """
    x = (p - p[0]) / width if len(p) else p
    before = np.cumsum(r * np.exp(x)) * np.exp(-x)  # Σ_{j <= i} r_j exp(-(x_i - x_j))
    return 2 * float(r @ before) - float(r @ r)


def _kde_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging the rows of each outcome in a cell, which keeps their number, mean and variance in p.

    The integrand is |t f(t) - min(f(t), h(t))| with f the density of all rows and h that of the hits. It changes by at
    most twice as much as f (t f, and the minimum) and once as much as h. Both are sums of s K_width(t - p), and as in
    `_condensed` each changes by at most (Σ s variance) ∫|K''| / width² in the integral: one half before merging, one
    half after it. The bandwidth depends on numbers, means and variances alone, and stays.

    The variance also grows as rows are spread over a grid, by at most 1/4 of its squared step; that is counted twice.
    """
    width = kde_bandwidth(placed.view)
    variance = placed.variance + 2 * (1 / KERNEL_CELLS) ** 2 / 4
    return min(3 * TRIWEIGHT * variance / width**2, 1.0)


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
    """Return Σ share · triweight((t - p) / h) / h, reflected, on KERNEL_CELLS + 1 points; h is the bandwidth.

    The grid is extended by the mirror images that the kernel, which ends at h, can see, and convolved with it by a
    Fourier transform. The transform is padded so that it does not wrap around.
    """
    grid = spread(p, share, KERNEL_CELLS)
    half_width = min(KERNEL_CELLS, math.ceil(bandwidth * KERNEL_CELLS))  # of the kernel, in steps of the grid
    u = np.arange(-half_width, half_width + 1) / (bandwidth * KERNEL_CELLS)
    kernel = np.maximum(1 - u * u, 0) ** 3
    kernel *= KERNEL_CELLS / kernel.sum()  # integrates to 1 on the grid
    grid[[0, -1]] *= 2  # the ends are their own mirror images
    mirrored = np.concatenate([grid[half_width:0:-1], grid, grid[-2 : -half_width - 2 : -1]])
    size = 1 << math.ceil(math.log2(len(mirrored) + len(kernel)))
    full = np.fft.irfft(np.fft.rfft(mirrored, size) * np.fft.rfft(kernel, size), size)
    return full[len(kernel) - 1 : len(mirrored)]
