"""Kernel calibration error (MMCE) and the kernel-density ECE."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from calibcli.metrics.intervals import Ask, Interval, percent
from calibcli.metrics.sample import METRICS, UNIT, Of, Sample, View
from calibcli.metrics.smooth import Noise, noise_of, spread
from calibcli.numerics import normal_quantile, score_bound
from calibcli.predictions import Floats
from calibcli.spec import Range

CELLS = 1 << 14
Scale = Annotated[float, Range(2e-3, 1e6)]  # exp(1 / scale) must be a number


def mmce_interval(ask: Ask) -> Interval:
    """MMCE is the length of the mean of r_i φ(p_i), |φ| = 1: the triangle inequality below, one direction above."""
    options = ask.choice.options
    view = ask.sample.view(options["of"])
    draws = None
    if not options["weighted"]:
        noise = noise_of(ask)
        root = _root(options["scale"])
        draws = np.sqrt((((noise.draws * noise.null) @ root) ** 2).sum(axis=1))
    null: dict[str, Any] = (
        {} if draws is None else {"null": float(draws.mean()), "null_high": float(np.quantile(draws, 0.95))}
    )
    if options["weighted"] or options["square"]:
        return Interval(reason="no bound for this form; mmce itself has one", **null)
    if view.groups is not None:
        return Interval(reason="rows belong to groups, and this bound is for independent rows", **null)
    lengths = np.sqrt((((noise.draws * noise.scale) @ root) ** 2).sum(axis=1))
    return Interval(
        low=max(0.0, ask.value - float(np.quantile(lengths, ask.level))),
        high=min(1.0, score_bound(ask.value, normal_quantile(ask.level), noise.unseen, noise.spread)),
        level=1 - 2 * ask.alpha,
        sided="each",
        how=f"exact, by sorted sums; one-sided bounds, each {percent(ask.level)}; null level: normal noise",
        **null,
    )


@lru_cache(maxsize=4)
def _root(scale: float) -> Floats:
    """Cholesky factor of the kernel between the cells of `Noise`."""
    centre = (np.arange(Noise.CELLS) + 0.5) / Noise.CELLS
    kernel = np.exp(-np.abs(centre[:, None] - centre) / scale)
    return np.asarray(np.linalg.cholesky(kernel + 1e-9 * np.eye(Noise.CELLS)), dtype=np.float64)


@METRICS.add(values=UNIT, better="lower", unit="", interval=mmce_interval)
def mmce(
    sample: Sample,
    *,
    scale: Scale = 0.4,
    weighted: bool = False,
    square: bool = False,
    of: Of = "auto",
) -> float:
    """Maximum mean calibration error, (N⁻² Σ_ij r_i r_j exp(-|p_i - p_j| / scale))^½, r = p - y (Kumar 2018).

    `weighted`: its class-balanced form, with right and wrong rows averaged apart. `square`: without the root. Exact in
    N log N: sorted, the kernel factorises into running sums.
    """
    view = sample.view(of)
    share = np.broadcast_to(view.share(), (view.n,))
    if weighted:
        right, wrong = float(share[view.hit].sum()), float(share[~view.hit].sum())
        if right == 0 or wrong == 0:
            return 0.0
        # Σ over right and wrong of their means: (1 - p) / n_right and -p / n_wrong
        r = np.where(view.hit, -view.rest * share / right, view.p * share / wrong)
    else:
        r = view.residual * share
    value = max(laplace_form(view.p[view.order], r[view.order], scale), 0.0)
    return value if square else math.sqrt(value)


def laplace_form(p: Floats, r: Floats, scale: float) -> float:
    """Σ_ij r_i r_j exp(-|p_i - p_j| / scale) for sorted p."""
    x = (p - p[0]) / scale if len(p) else p
    before = np.cumsum(r * np.exp(x)) * np.exp(-x)  # Σ_{j <= i} r_j exp(-(x_i - x_j))
    return 2 * float(r @ before) - float(r @ r)


def kde_interval(ask: Ask) -> Interval:
    if not math.isfinite(ask.value):
        return Interval(reason="the confidences of correct rows do not vary, so there is no bandwidth")
    return Interval(
        reason="no interval: the bias of the kernel is of unknown size",
        how=f"triweight kernel on {CELLS} cells",
    )


@METRICS.add(values=UNIT, better="lower", unit="probability", interval=kde_interval)
def kde_ece(sample: Sample, *, of: Of = "auto") -> float:
    """ECE with density estimates in place of bins, ∫ |t - acc(t)| f(t) dt (Zhang 2020).

    Triweight kernel reflected at 0 and 1, bandwidth std(p | hit) (2N)^-1/5, acc(t) = min(1, acc f_hit(t) / f(t)).
    """
    view = sample.view(of)
    share = np.broadcast_to(view.share(), (view.n,))
    bandwidth = kde_bandwidth(view)
    if not bandwidth > 0:
        return math.nan
    t = np.arange(CELLS + 1) / CELLS
    everything = _density(view.p, share, bandwidth)
    hits = _density(view.p[view.hit], share[view.hit], bandwidth)
    accuracy = np.minimum(1, np.divide(hits, everything, out=np.zeros_like(hits), where=everything > 0))
    height = np.abs(t - accuracy) * everything
    return float(height.sum() - (height[0] + height[-1]) / 2) / CELLS


def kde_bandwidth(view: View) -> float:
    """Standard deviation of p over hits times (2N)^-1/5."""
    p, w = view.p[view.hit], None if view.weights is None else view.weights[view.hit]
    if len(p) == 0 or (w is not None and w.sum() == 0):
        return 0.0
    variance = float(np.average((p - np.average(p, weights=w)) ** 2, weights=w))
    return math.sqrt(variance) * float((2 * view.effective) ** -0.2)


def _density(p: Floats, share: Floats, bandwidth: float) -> Floats:
    """Σ share · triweight((t - p) / h) / h, reflected, on CELLS + 1 points."""
    grid, cells = spread(p, share, CELLS)
    reach = min(cells, math.ceil(bandwidth * cells))
    u = np.arange(-reach, reach + 1) / (bandwidth * cells)
    kernel = np.maximum(1 - u * u, 0) ** 3
    kernel *= cells / kernel.sum()  # integrates to 1 on the grid
    grid[[0, -1]] *= 2  # the ends are their own mirror images
    even = np.concatenate([grid[reach:0:-1], grid, grid[-2 : -reach - 2 : -1]])
    even[[reach, -reach - 1]] /= 1
    return _convolve(even, kernel)


def _convolve(values: Floats, kernel: Floats) -> Floats:
    size = 1 << math.ceil(math.log2(len(values) + len(kernel)))
    full = np.fft.irfft(np.fft.rfft(values, size) * np.fft.rfft(kernel, size), size)
    return full[len(kernel) - 1 : len(values)]
