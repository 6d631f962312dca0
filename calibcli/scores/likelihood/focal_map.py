"""The focal calibration map φ_γ in logarithms, and the NLL of φ_γ(softmax(β z)) with its derivatives in β and γ.

Derivations: docs/statistics/focal-map.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibcli.core.errors import InputError, UsageError

# A model trained with the focal loss -(1 - q)^γ ln q reports probabilities q that are not the true ones; the true
# ones are p = φ_γ(q), φ_γ(q)_k = h(q_k) / Σ_j h(q_j), h(q) = q / ((1 - q)^γ - γ q (1 - q)^(γ - 1) ln q).

Array = NDArray[np.float64]
ON_ARRAYS = SimpleNamespace(exp=np.exp, log=np.log, log1p=np.log1p, where=np.where, most=np.maximum)
"""The operations of `log_h` on arrays of float64."""


def log_softmax(logits: ArrayLike) -> Array:
    """Compute ln softmax over the last axis.

    Args:
        logits: (..., K); -inf is probability 0. float16 is widened before anything else.

    Returns:
        (..., K) float64.
    """
    return _log_softmax_and_rest(logits)[0]


def _log_softmax_and_rest(logits: ArrayLike) -> tuple[Array, Array, NDArray[np.intp]]:
    """Return log-softmax; ln R, R = Σ_others exp(z - z_top), shape (..., 1); and the top class's index, shape (..., 1).

    ln q_k = z_k - z_top - ln(1 + R). R is summed without the top class, relative to the second largest logit, so that
    it keeps its digits where q_top = 1 / (1 + R) rounds to 1.
    """
    z = np.asarray(logits, dtype=np.float64)
    top = z.argmax(axis=-1, keepdims=True)
    z = z - np.take_along_axis(z, top, axis=-1)
    others = z.copy()
    np.put_along_axis(others, top, -np.inf, axis=-1)
    second = np.maximum(others.max(axis=-1, keepdims=True), -1e300)  # finite, also where no other class is possible
    with np.errstate(divide="ignore"):
        log_rest = second + np.log(np.exp(others - second).sum(axis=-1, keepdims=True))
    result: Array = z - np.log1p(np.exp(log_rest))
    return result, log_rest, top


def log_both(logits: ArrayLike) -> tuple[Array, Array]:
    """Compute ln p and ln(1 - p) of every class, p = softmax(z); neither loses digits where p is near 0 or 1.

    Args:
        logits: (..., K); -inf is probability 0.

    Returns:
        (..., K) float64 each.
    """
    log_p, others, top = _log_softmax_and_rest(logits)
    log_rest = np.log1p(-np.minimum(np.exp(log_p), 0.75))  # only the top class, replaced next, can exceed 1/2
    np.put_along_axis(log_rest, top, others - np.log1p(np.exp(others)), axis=-1)  # ln R / (1 + R)
    return log_p, log_rest


def log_phi(logits: ArrayLike, gamma: float) -> Array:
    """Compute ln φ_γ(softmax(z)) over the last axis, the log-softmax of `log_h`. γ = 0 is log-softmax.

    Args:
        logits: (..., K) logits or log-probabilities; -inf is probability 0.
        gamma: >= -1.

    Returns:
        (..., K) float64.

    Raises:
        UsageError: gamma < -1, where 1 + γ s may be negative, and φ no probability.
    """
    if not gamma >= -1:
        raise UsageError(f"gamma = {gamma:g} is below -1, where the focal map is no probability", "pass gamma >= -1")
    if gamma == 0:
        return log_softmax(logits)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # in branches of `where` that are not taken
        return log_softmax(log_h(ON_ARRAYS, gamma, *log_both(logits)))


def log_h(o: Any, gamma: float, log_q: Any, log_rest: Any) -> Any:
    """Compute ln h = L - γ M - ln(1 + γ s) from L = ln q and M = ln(1 - q), with s = -q ln q / (1 - q).

    With x = 1 - q, -ln q / x = 1 + x / 2 + x² / 3 + ... . For γ < 0 (a formal extension that softens; order is
    preserved down to -1), 1 + γ s = (1 + γ) - γ (1 - s), with 1 - s = Σ_n x^n / (n (n + 1)), n = 1, 2, ... . These
    series are used where x is small, and keep the digits that a difference, or ln q / x, would lose.

    Args:
        o: the operations: `ON_ARRAYS`, or those that a calibration map is written in (`calibrators.program`).
    """
    log_rest = o.most(log_rest, -1e30)  # at a vertex it is -inf
    x, q = o.exp(log_rest), o.exp(log_q)
    positive = q > 0.0
    if gamma > 0:
        near_one = x * (x * (x * (x * (1 / 5) + 1 / 4) + 1 / 3) + 1 / 2) + 1.0
        ratio = o.where(x < 1e-3, near_one, (0.0 - log_q) / o.most(x, 1e-300))
        slope = o.log1p(o.where(positive, q * ratio, 0.0) * gamma)
    else:
        series = x * (1 / 72)
        for n in range(7, 0, -1):
            series = x * (series + 1 / (n * (n + 1)))
        direct = o.where(positive, q * log_q / o.most(x, 1e-300), 0.0) + 1.0
        slope = log_factor(o, (1 + gamma) - o.where(x < 1e-2, series, direct) * gamma, log_rest)
    return log_q - log_rest * gamma - slope


def log_factor(o: Any, factor: Any, log_x: Any) -> Any:
    """Compute ln(1 + γ s); at γ = -1 it is ln(x / 2) where x = 1 - q underflows."""
    return o.where(factor > 0.0, o.log(factor), log_x - math.log(2.0))


# NLL of φ_γ(softmax(β z)) row by row with its derivatives in β and γ, and the confidence of its top class.
#
# With x = 1 - q, h(q) = q w(q), w(q) = x^-γ / (1 + γ s(q)), s(q) = -q ln q / x, so φ_k = q_k w_k / Σ_j q_j w_j. Only
# the top class can have q > 1/2, so it alone is kept as a logarithm; the others are summed directly. The derivatives
# are
#     d NLL = Σ_k φ_k d ln(q_k w_k) - d ln(q_y w_y),   in β and in γ, with
#     d ln(q w) / dβ = D [1 + γ (q - (s - q) / (1 + γ s)) / x],   D_k = d ln q_k / dβ = z_k - E z,
#     d ln w / dγ = -ln x - s / (1 + γ s).
#
# The first follows from dq/dβ = q D, d ln x / dβ = -q D / x, and ds/dβ = D (s - q) / x, since q ds/dq = (s - q) / x.


ROWS = 1 << 14  # logits per block


@dataclass(frozen=True)
class FocalRows:
    """Numbers per row at one (β, γ), (N,): NLL and top confidence; with a gradient also the NLL's derivatives in β and
    γ, and without the sum of squared probabilities. What is not computed is empty.
    """

    nll: Array
    d_beta: Array
    d_gamma: Array
    confidence: Array
    square: Array


@dataclass(frozen=True)
class Shifted:
    """Logits prepared once: z - z_top as (K, n), the index of the top class, and the labels."""

    z: Array
    top: NDArray[np.intp]
    labels: NDArray[Any]

    @classmethod
    def of(cls, logits: NDArray[Any], labels: NDArray[Any]) -> Shifted:
        z = np.array(logits, np.float64).T.copy()
        top = z.argmax(axis=0)
        z -= z[top, np.arange(z.shape[1])]
        labels = np.asarray(labels)
        if not np.all(np.isfinite(z[labels, np.arange(z.shape[1])])):
            problem = "a true label has probability zero, so no calibration map makes the NLL finite"
            raise InputError(problem, "drop those rows or pass --clip")
        return cls(np.maximum(z, -1e9), top, labels)

    def blocks(self) -> Iterator[tuple[slice, Shifted]]:
        k, n = self.z.shape
        step = max(1, ROWS // k)
        for start in range(0, n, step):
            rows = slice(start, start + step)
            yield rows, Shifted(np.ascontiguousarray(self.z[:, rows]), self.top[rows], self.labels[rows])


def focal_rows(data: Shifted, beta: float, gammas: Sequence[float], gradient: bool = True) -> list[FocalRows]:
    """Compute one result per γ; what depends on β alone is computed once.

    Args:
        data: prepared logits and labels.
        beta: 1/T > 0.
        gammas: each >= -1.
        gradient: whether to compute the derivatives, rather than the sum of squares.
    """
    n = data.z.shape[1]
    of_gradient, of_values = (n, 0) if gradient else (0, n)
    out = [
        FocalRows(
            nll=np.empty(n),
            d_beta=np.empty(of_gradient),
            d_gamma=np.empty(of_gradient),
            confidence=np.empty(n),
            square=np.empty(of_values),
        )
        for _ in gammas
    ]
    for rows, block in data.blocks():
        at_beta = _AtBeta(block, beta)
        for result, gamma in zip(out, gammas, strict=True):
            at_beta.fill(result, rows, gamma, gradient)
    return out


class _AtBeta:
    """A block at one β: the probabilities q, and what every γ needs from them.

    Attributes of all classes, (K, n), in which the top class has the exponential and the q of 0:
        e: exp(β (z - z_second)), relative to the second largest logit: its sum over the others never underflows.
        q, x, log_x, minus_log_q, s: q, 1 - q, ln(1 - q), -ln q and -q ln q / (1 - q).
    Attributes of each row, (n,):
        rows: 0..n-1.  at_label: indices of the label in an array (K, n).  hit: whether the top class is the label.
        second: β (z_second - z_top).  log_total: ln Σ_k exp(β (z_k - z_top)) = -ln q_top.
        q_top, x_top, log_q_top, log_x_top, s_top, one_minus_s_top: the same numbers of the top class.
        slope_top: (s - q) / x of the top class.
        mean: E z - z_top = Σ_k q_k (z_k - z_top).  mean_others: the same under q without the top class, = mean / x_top.
    """

    def __init__(self, block: Shifted, beta: float) -> None:
        self.block = block
        self.rows = np.arange(block.z.shape[1])
        self.at_label = (block.labels, self.rows)
        self.hit = block.labels == block.top
        u = beta * block.z  # (K, n) β (z - z_top)
        u[block.top, self.rows] = -np.inf
        self.second = u.max(axis=0)
        self.e = np.exp(u - self.second)
        u[block.top, self.rows] = 0.0
        sum_others = self.e.sum(axis=0)
        others_over_top = np.exp(self.second) * sum_others  # (n,) Σ_others exp(β (z - z_top))
        self.log_total = log_total = np.log1p(others_over_top)
        self.q = self.e * (np.exp(self.second) / (1 + others_over_top))
        self.x = 1 - self.q
        self.log_x = np.log1p(-self.q)
        self.minus_log_q = log_total - u
        self.s = self.q * self.minus_log_q / self.x
        self.log_q_top, self.log_x_top = -log_total, self.second + np.log(sum_others) - log_total
        self.x_top = others_over_top / (1 + others_over_top)
        self.q_top = 1 / (1 + others_over_top)
        self.s_top, self.one_minus_s_top, self.slope_top = _top_factors(self.q_top, self.x_top, log_total)
        self.mean = (self.q * block.z).sum(axis=0)
        self.mean_others = (self.e * block.z).sum(axis=0) / sum_others

    def fill(self, out: FocalRows, rows: slice, gamma: float, gradient: bool) -> None:
        """Write the results of one γ for these rows, by the formulas above `ROWS`.

        With S = Σ_others q w, φ_top = 1 / (1 + exp(gap)), where gap = ln S - ln(q_top w_top): all is relative to the
        top class. So -ln φ_top = ln(1 + exp(gap)), and -ln φ_k is larger by ln(q_top w_top) - ln(q_k w_k).

        The top class has D = -(E z - z_top) = -mean. In its derivative -mean γ q_top / x_top is written with
        mean_others = mean / x_top, as x_top may be too small to divide by.
        """
        factor = 1 + gamma * self.s  # (K, n) 1 + γ s
        factor_top = 1 + gamma * self.s_top if gamma >= 0 else (1 + gamma) - gamma * self.one_minus_s_top
        w = np.exp(-gamma * self.log_x) / factor
        t = self.e * w  # (K, n) q w of the others, up to a factor of each row
        sum_others = t.sum(axis=0)
        log_others = self.second + np.log(sum_others) - self.log_total  # ln S
        with np.errstate(divide="ignore"):  # the logarithm that `log_factor` does not take
            log_top = self.log_q_top - gamma * self.log_x_top - log_factor(ON_ARRAYS, factor_top, self.log_x_top)
        gap = log_others - log_top
        log_sum = np.logaddexp(0.0, gap)  # -ln φ_top
        # -ln(q_y w_y), of use where the label is not the top class
        label = self.minus_log_q[self.at_label] + gamma * self.log_x[self.at_label] + np.log(factor[self.at_label])
        out.nll[rows] = np.where(self.hit, log_sum, label + log_top + log_sum)
        out.confidence[rows] = np.exp(-log_sum)
        share = np.exp(gap - log_sum)  # 1 - φ_top
        if not gradient:
            out.square[rows] = np.einsum("kn,kn->n", t, t) * (share / sum_others) ** 2 + (1 - share) ** 2
            return
        phi = t * (share / sum_others)  # (K, n), 0 at the top class
        d = self.block.z - self.mean  # D
        in_beta = d * (1 + gamma * (self.q - (self.s - self.q) / factor) / self.x)  # (K, n) d ln(q w) / dβ
        in_beta_top = -self.mean - gamma * (self.q_top * self.mean_others - self.slope_top * self.mean / factor_top)
        in_beta_label = np.where(self.hit, in_beta_top, in_beta[self.at_label])
        out.d_beta[rows] = (phi * in_beta).sum(axis=0) + (1 - share) * in_beta_top - in_beta_label
        in_gamma = -self.log_x - self.s / factor  # (K, n) d ln w / dγ
        in_gamma_top = -self.log_x_top - self.s_top / factor_top
        in_gamma_label = np.where(self.hit, in_gamma_top, in_gamma[self.at_label])
        out.d_gamma[rows] = (phi * in_gamma).sum(axis=0) + (1 - share) * in_gamma_top - in_gamma_label


def _top_factors(q: Array, x: Array, minus_log_q: Array) -> tuple[Array, Array, Array]:
    """Compute s, 1 - s and (s - q) / x of the top class, (n,) each, by series where x = 1 - q is small.

    1 - s = Σ_n x^n / (n (n + 1)), and (s - q) / x = q (-ln q / x - 1) / x with -ln q / x - 1 = Σ_n x^n / (n + 1).
    """
    s = q * np.where(x > 1e-300, minus_log_q / np.maximum(x, 1e-300), 1.0)
    one_minus_s, slope = np.zeros_like(x), np.zeros_like(x)
    for n in range(8, 0, -1):
        one_minus_s = x * (1 / (n * (n + 1)) + one_minus_s)
        slope = x * (1 / (n + 1) + slope)  # -ln q / x - 1
    near = x < 1e-2
    direct = (s - q) / np.where(near, 1.0, x)
    return s, np.where(near, one_minus_s, 1 - s), np.where(near, q * slope / np.maximum(x, 1e-300), direct)
