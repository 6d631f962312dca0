"""Kernel calibration error (MMCE) and the kernel-density ECE."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Annotated, Any

import numpy as np

from calibcli.metrics.intervals import NO_GROUPS, Bare, Interval, Statistic, one_sided, percent
from calibcli.metrics.lossy import Placed, of_root
from calibcli.metrics.mesh import spread
from calibcli.metrics.sample import METRICS, UNIT, BinaryOutcomes, Of, Sample
from calibcli.metrics.smooth import Noise, Noises
from calibcli.numerics import normal_quantile, quantile, unseen_reach
from calibcli.predictions import Floats
from calibcli.spec import Range

CELLS = 1 << 14
TRIWEIGHT = 7.52  # ∫|K''| of the triweight kernel
Width = Annotated[float, Range(2e-3, 1e6)]  # exp(1 / width) must be a number


def _mmce_condensed(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """u(p) r with u the potential of all residuals, 2 Σs|r| large and as steep over the width."""
    view, scale = at.view, 1.0
    if options["weighted"]:
        right = float(view.shares[view.hit].sum())
        scale = 1 / max(min(right, 1 - right), 1e-12)
    mean = float(at.weight.sum())
    rounding = 1e-13 * math.sqrt(view.total) * mean
    change = (4 * (1 + 1 / options["width"]) * at.deviation + rounding) * mean * scale**2
    return change if options["square"] else of_root(change, value)


@METRICS.add(values=UNIT, better="lower", unit="", condensed=_mmce_condensed)
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
    """MMCE is the length of the mean of r_i φ(p_i), |φ| = 1: the triangle inequality below, one direction above."""

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
        return np.asarray(np.sqrt(((noise.draws @ _root(self.width)) ** 2).sum(axis=1)))


@lru_cache(maxsize=4)
def _root(width: float) -> Floats:
    """Cholesky factor of the kernel between the cells of `Noise`."""
    centre = (np.arange(Noise.CELLS) + 0.5) / Noise.CELLS
    kernel = np.exp(-np.abs(centre[:, None] - centre) / width)
    return np.asarray(np.linalg.cholesky(kernel + 1e-9 * np.eye(Noise.CELLS)), dtype=np.float64)


def laplace_form(p: Floats, r: Floats, width: float) -> float:
    """Σ_ij r_i r_j exp(-|p_i - p_j| / width) for sorted p."""
    x = (p - p[0]) / width if len(p) else p
    before = np.cumsum(r * np.exp(x)) * np.exp(-x)  # Σ_{j <= i} r_j exp(-(x_i - x_j))
    return 2 * float(r @ before) - float(r @ r)


def _kde_condensed(at: Placed, options: Mapping[str, Any], value: float) -> float:
    """Twice the density and once that of the hits; both are spread over a grid first."""
    width = kde_bandwidth(at.view)
    spread = at.variance + 2 * (1 / CELLS) ** 2 / 4
    return min(3 * TRIWEIGHT * spread / width**2, 1.0)


@METRICS.add(values=UNIT, better="lower", unit="probability", condensed=_kde_condensed)
def kde_ece(sample: Sample, *, of: Of = "auto") -> Bare:
    """ECE with density estimates in place of bins, ∫ |t - acc(t)| f(t) dt (Zhang et al. 2020).

    Triweight kernel reflected at 0 and 1, bandwidth std(p | hit) (2N)^-1/5, acc(t) = min(1, acc f_hit(t) / f(t)).

    >>> round(calibcli.measure(logits, labels, "kde_ece")["kde_ece"].value, 4)
    0.066
    """
    view = sample.view(of)
    bandwidth = kde_bandwidth(view)
    if not bandwidth > 0:
        reason = "the confidences of correct rows do not vary, so there is no bandwidth"
        return Bare(math.nan, Interval(reason=reason))
    t = np.arange(CELLS + 1) / CELLS
    everything = _density(view.p, view.shares, bandwidth)
    hits = _density(view.p[view.hit], view.shares[view.hit], bandwidth)
    accuracy = np.minimum(1, np.divide(hits, everything, out=np.zeros_like(hits), where=everything > 0))
    height = np.abs(t - accuracy) * everything
    value = float(height.sum() - (height[0] + height[-1]) / 2) / CELLS
    how = f"triweight kernel on {CELLS} cells"
    reason = "no interval: the bias of the kernel is of unknown size (ece and smece have one)"
    return Bare(value, Interval(reason=reason, how=how))


def kde_bandwidth(view: BinaryOutcomes) -> float:
    """Standard deviation of p over hits times (2N)^-1/5."""
    p, w = view.p[view.hit], view.shares[view.hit]
    if not w.sum() > 0:
        return 0.0
    variance = float(np.average((p - np.average(p, weights=w)) ** 2, weights=w))
    deviation = math.sqrt(variance)
    return deviation * float((2 * view.effective) ** -0.2) if deviation > view.precision else 0.0  # not rounding


def _density(p: Floats, share: Floats, bandwidth: float) -> Floats:
    """Σ share · triweight((t - p) / h) / h, reflected, on CELLS + 1 points."""
    grid = spread(p, share, CELLS)
    reach = min(CELLS, math.ceil(bandwidth * CELLS))
    u = np.arange(-reach, reach + 1) / (bandwidth * CELLS)
    kernel = np.maximum(1 - u * u, 0) ** 3
    kernel *= CELLS / kernel.sum()  # integrates to 1 on the grid
    grid[[0, -1]] *= 2  # the ends are their own mirror images
    even = np.concatenate([grid[reach:0:-1], grid, grid[-2 : -reach - 2 : -1]])
    size = 1 << math.ceil(math.log2(len(even) + len(kernel)))
    full = np.fft.irfft(np.fft.rfft(even, size) * np.fft.rfft(kernel, size), size)
    return full[len(kernel) - 1 : len(even)]
