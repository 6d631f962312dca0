"""The focal calibration map φ_γ in logarithms, stable at every margin, and its inverse.

A model trained with the focal loss -(1 - q)^γ ln q reports probabilities q that are not the truth; the truth they stand
for is p = φ_γ(q), φ_γ(q)_k = h(q_k) / Σ_j h(q_j), h(q) = q / ((1 - q)^γ - γ q (1 - q)^(γ - 1) ln q).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibcli.errors import UsageError
from calibcli.numerics import log_sigmoid

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


def true_class_log_odds(logits: ArrayLike, labels: ArrayLike) -> Array:
    """Margin of the true class, z_y - logsumexp of the others: its log-odds, exact where p_y rounds to 1.

    Args:
        logits: (N, K).
        labels: (N,) integers.

    Returns:
        (N,) float64.
    """
    z = np.array(logits, dtype=np.float64)
    rows, labels = np.arange(len(z)), np.asarray(labels)
    own = z[rows, labels]
    z[rows, labels] = -np.inf
    top = z.max(axis=-1)
    margin: Array = own - top - np.log(np.exp(z - top[:, None]).sum(axis=-1))
    return margin


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
    log_q, others, top = _log_softmax_and_rest(logits)
    if gamma == 0:
        return log_q
    log_rest = np.log1p(-np.minimum(np.exp(log_q), 0.75))  # only the top class can exceed 1/2
    np.put_along_axis(log_rest, top, others - np.log1p(np.exp(others)), axis=-1)
    return log_softmax(_log_h(log_q, log_rest, gamma))


def log_phi_inverse(log_p: ArrayLike, gamma: float) -> Array:
    """ln q with φ_γ(q) = p: what a focal-trained network should output where the truth is p.

    Finds t with Σ_k h^-1(e^t p_k) = 1 (increasing in t); h is inverted by Newton in logit(q) inside a bracket. The sum
    is compared as ln of the others against ln(1 - q_top), which keeps every digit where q_top rounds to 1.

    Args:
        log_p: (..., K) log-probabilities (or logits: they are normalised).
        gamma: >= 0.

    Returns:
        (..., K) float64 log-probabilities.

    Raises:
        UsageError: gamma < 0.
    """
    if not gamma >= 0:
        raise UsageError(f"gamma = {gamma:g}: the inverse focal map needs gamma >= 0", "pass gamma >= 0")
    p = np.maximum(log_softmax(log_p), -1e4)
    if gamma == 0:
        return log_softmax(log_p)
    shape, p = p.shape, p.reshape(-1, p.shape[-1])
    k = p.shape[-1]
    # At t_low every h is at most that of 1/K, so the sum is at most 1; at t_high the largest q alone is nearly 1.
    low = _log_h_of_logit(np.array([-np.log(k - 1.0)]), gamma) - p.max(axis=-1)
    high = low + 1
    m = np.full_like(p, -np.log(k - 1.0))
    for _ in range(80):  # double the step until the sum exceeds 1
        m = _inverse_log_h(high[:, None] + p, gamma, m)
        short = _excess(m) < 0
        if not short.any():
            break
        high = np.where(short, high + 2 * (high - low), high)
    for _ in range(60):
        middle = 0.5 * (low + high)
        m = _inverse_log_h(middle[:, None] + p, gamma, m)
        over = _excess(m) >= 0
        high, low = np.where(over, middle, high), np.where(over, low, middle)
        if np.all(high - low <= 4e-16 * np.maximum(1, np.abs(high))):
            break
    return log_sigmoid(m).reshape(shape)


def _log_h(log_q: Array, log_rest: Array, gamma: float) -> Array:
    """ln h = L - γ M - ln(1 + γ s) from L = ln q, M = ln(1 - q), finite also at a vertex (M = -inf)."""
    log_rest = np.maximum(log_rest, -1e150)
    factor: Array = log_q - gamma * log_rest - _log_slope(log_q, log_rest, gamma)
    return factor


def _log_slope(log_q: Array, log_x: Array, gamma: float) -> Array:
    """ln(1 + γ s), s = -q ln q / (1 - q), x = 1 - q, without cancellation at either end."""
    x = np.exp(log_x)
    if gamma < 0:
        return log_factor((1 + gamma) - gamma * _one_minus_s(log_q, x), log_x)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(x < 1e-3, 1 + x * (1 / 2 + x * (1 / 3 + x * (1 / 4 + x / 5))), -log_q / x)
        q = np.exp(log_q)
        s = np.where(q > 0, q * ratio, 0.0)
    result: Array = np.log1p(gamma * s)
    return result


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


def _log_h_of_logit(m: Array, gamma: float) -> Array:
    log_rest = log_sigmoid(-m)
    return _log_h(log_sigmoid(m), log_rest, gamma)


def _slope_of_log_h(m: Array, gamma: float) -> Array:
    """d ln h / dm at q = sigmoid(m): (1 - q) + γ q - γ q (1 - q) s'(q) / (1 + γ s)."""
    log_q, log_x = log_sigmoid(m), log_sigmoid(-m)
    q, x = np.exp(log_q), np.exp(log_x)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        s = np.where(x < 1e-3, q * (1 + x / 2 + x * x / 3), np.where(q > 0, -q * log_q / x, 0.0))
        xs = np.where(x < 1e-3, x * (1 / 2 + x / 3), np.where(q > 0, -log_q * (1 + q / x) - 1, 0.0))
    slope: Array = x + gamma * q - gamma * q * xs / (1 + gamma * s)  # xs = (1 - q) s'(q)
    return slope


def _inverse_log_h(target: Array, gamma: float, start: Array) -> Array:
    """logit(q) with ln h(q) = target: Newton inside a bracket that every evaluation tightens."""
    m = start
    low, high = np.full_like(target, -1e5), np.full_like(target, 1e5)
    for _ in range(100):
        error = _log_h_of_logit(m, gamma) - target
        high, low = np.where(error >= 0, m, high), np.where(error >= 0, low, m)
        step = m - error / np.maximum(_slope_of_log_h(m, gamma), 1e-300)
        inside = (step >= low) & (step <= high)
        following = np.where(inside, step, 0.5 * (low + high))
        done = np.abs(following - m) <= 1e-15 * np.maximum(1, np.abs(m))
        m = following
        if done.all() or np.all(error == 0):
            break
    return m


def _excess(m: Array) -> Array:
    """ln Σ_others q - ln(1 - q_top) of probabilities sigmoid(m): zero where they sum to one."""
    log_q = log_sigmoid(m)
    top = m.argmax(axis=-1, keepdims=True)
    np.put_along_axis(log_q, top, -np.inf, axis=-1)
    largest = log_q.max(axis=-1, keepdims=True)
    others = largest[:, 0] + np.log(np.exp(log_q - largest).sum(axis=-1))
    result: Array = others - log_sigmoid(-np.take_along_axis(m, top, axis=-1))[:, 0]
    return result
