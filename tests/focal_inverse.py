"""The inverse of the focal map by Newton and bisection: the oracle of the loss that has it, and of `log_phi`."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from calibcli.core.statistics import log_sigmoid
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.likelihood.focal_map import ON_ARRAYS, Array, log_h


def log_phi_inverse(log_p: ArrayLike, gamma: float) -> Array:
    """ln q with φ_γ(q) = p: what a focal-trained network should output where the truth is p.

    Finds t with Σ_k h^-1(e^t p_k) = 1 (increasing in t); h is inverted by Newton in logit(q) inside a bracket. The sum
    is compared as ln of the others against ln(1 - q_top), which keeps every digit where q_top rounds to 1.

    Args:
        log_p: (..., K) log-probabilities (or logits: they are normalised).
        gamma: >= 0.

    Returns:
        (..., K) float64 log-probabilities.
    """
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


def _log_h_of_logit(m: Array, gamma: float) -> Array:
    log_rest = log_sigmoid(-m)
    return log_h(ON_ARRAYS, gamma, log_sigmoid(m), log_rest)


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
