"""The focal calibration map φ_γ in logarithms, stable at every margin.

A model trained with the focal loss -(1 - q)^γ ln q reports probabilities q that are not the truth; the truth they stand
for is p = φ_γ(q), φ_γ(q)_k = h(q_k) / Σ_j h(q_j), h(q) = q / ((1 - q)^γ - γ q (1 - q)^(γ - 1) ln q).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibcli.errors import UsageError

Array = NDArray[np.float64]


def log_softmax(logits: ArrayLike) -> Array:
    """ln softmax over the last axis.

    Args:
        logits: (..., K); -inf is probability 0. float16 is widened before anything else.

    Returns:
        (..., K) float64.
    """
    return _log_softmax_and_rest(logits)[0]


def _log_softmax_and_rest(logits: ArrayLike) -> tuple[Array, Array, NDArray[np.intp]]:
    """log-softmax; ln Σ_others exp(z - z_top), shape (..., 1); and the index of the top class, shape (..., 1)."""
    z = np.asarray(logits, dtype=np.float64)
    top = z.argmax(axis=-1, keepdims=True)
    z = z - np.take_along_axis(z, top, axis=-1)
    others = z.copy()
    np.put_along_axis(others, top, -np.inf, axis=-1)
    second = np.maximum(others.max(axis=-1, keepdims=True), -1e300)
    with np.errstate(divide="ignore"):
        log_rest = second + np.log(np.exp(others - second).sum(axis=-1, keepdims=True))
    result: Array = z - np.log1p(np.exp(log_rest))  # keeps the digits of ln q_top where q_top rounds to 1
    return result, log_rest, top


def log_both(logits: ArrayLike) -> tuple[Array, Array]:
    """ln p and ln(1 - p) of every class, p = softmax(z); neither loses digits where p is near 0 or 1.

    Args:
        logits: (..., K); -inf is probability 0.

    Returns:
        (..., K) float64 each.
    """
    log_p, others, top = _log_softmax_and_rest(logits)
    log_rest = np.log1p(-np.minimum(np.exp(log_p), 0.75))  # only the top class can exceed 1/2
    np.put_along_axis(log_rest, top, others - np.log1p(np.exp(others)), axis=-1)
    return log_p, log_rest


def log_phi(logits: ArrayLike, gamma: float) -> Array:
    """ln φ_γ(softmax(z)) over the last axis. γ = 0 is log-softmax.

    With L = ln q, M = ln(1 - q) and s = -q ln q / (1 - q): ln h = L - γ M - ln(1 + γ s), then log-softmax of ln h.
    For γ < 0 (a formal extension that softens; order is preserved down to -1), 1 + γ s = (1 + γ) - γ (1 - s).

    Args:
        logits: (..., K) logits or log-probabilities; -inf is probability 0.
        gamma: >= -1.

    Returns:
        (..., K) float64.

    Raises:
        UsageError: gamma < -1, where the map is not monotone.
    """
    if not gamma >= -1:
        raise UsageError(f"gamma = {gamma:g} is below -1, where the focal map reverses classes", "pass gamma >= -1")
    if gamma == 0:
        return log_softmax(logits)
    return log_softmax(_log_h(*log_both(logits), gamma))


def _log_h(log_q: Array, log_rest: Array, gamma: float) -> Array:
    """ln h = L - γ M - ln(1 + γ s) from L = ln q, M = ln(1 - q), finite also at a vertex (M = -inf)."""
    log_rest = np.maximum(log_rest, -1e150)
    return np.asarray(log_q - gamma * log_rest - _log_slope(log_q, log_rest, gamma))


def _log_slope(log_q: Array, log_x: Array, gamma: float) -> Array:
    """ln(1 + γ s), s = -q ln q / (1 - q), x = 1 - q, without cancellation at either end."""
    x = np.exp(log_x)
    if gamma < 0:
        return log_factor((1 + gamma) - gamma * _one_minus_s(log_q, x), log_x)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(x < 1e-3, 1 + x * (1 / 2 + x * (1 / 3 + x * (1 / 4 + x / 5))), -log_q / x)
        q = np.exp(log_q)
        s = np.where(q > 0, q * ratio, 0.0)
    return np.asarray(np.log1p(gamma * s))


def log_factor(factor: Array, log_x: Array) -> Array:
    """ln(1 + γ s); at γ = -1 it is ln(x / 2) where x = 1 - q underflows."""
    with np.errstate(divide="ignore"):
        return np.where(factor > 0, np.log(factor), log_x - np.log(2.0))


def _one_minus_s(log_q: Array, x: Array) -> Array:
    """1 - s = Σ_n x^n / (n (n + 1)); the series where x < 0.01."""
    series = np.zeros_like(x)
    for n in range(8, 0, -1):
        series = x * (1 / (n * (n + 1)) + series)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q = np.exp(log_q)
        direct = 1 + np.where(q > 0, q * log_q / x, 0.0)
    return np.where(x < 1e-2, series, direct)
