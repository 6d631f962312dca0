"""NLL of φ_γ(softmax(β z)) row by row with its derivatives in β and γ, and the confidence of its top class.

φ_γ(q)_k is proportional to q_k w(q_k), w(q) = (1 - q)^-γ / (1 + γ s(q)), s(q) = -q ln q / (1 - q). Only the top class
can have q > 1/2, so it alone is kept as a logarithm; the others are summed as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError
from calibcli.links.focal_map import log_factor
from calibcli.links.moments import Array

ROWS = 1 << 14  # logits per block


@dataclass(frozen=True)
class FocalRows:
    """Per row, at one (β, γ): NLL, its derivatives in β and γ (both zero-length if not asked for), top confidence."""

    nll: Array
    d_beta: Array
    d_gamma: Array
    confidence: Array


@dataclass(frozen=True)
class Shifted:
    """Logits prepared once: z - z_top as (K, n) with the top class at 0, where it is, and the labels."""

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
    """One result per γ; what depends on β alone is computed once.

    Args:
        data: prepared logits and labels.
        beta: 1/T > 0.
        gammas: each >= -1.
        gradient: whether to compute the derivatives.
    """
    n = data.z.shape[1]
    size = n if gradient else 0
    out = [FocalRows(np.empty(n), np.empty(size), np.empty(size), np.empty(n)) for _ in gammas]
    for rows, block in data.blocks():
        at_beta = _AtBeta(block, beta)
        for result, gamma in zip(out, gammas, strict=True):
            at_beta.fill(result, rows, gamma, gradient)
    return out


class _AtBeta:
    """A block at one β: probabilities q and what every γ needs of them."""

    def __init__(self, block: Shifted, beta: float) -> None:
        self.block = block
        self.here = np.arange(block.z.shape[1])
        self.own = (block.labels, self.here)
        self.hit = block.labels == block.top
        u = beta * block.z
        u[block.top, self.here] = -np.inf
        self.second = u.max(axis=0)
        self.e = np.exp(u - self.second)  # of the others relative to the largest of them: their sum never underflows
        u[block.top, self.here] = 0.0
        sum_others = self.e.sum(axis=0)
        rest = np.exp(self.second) * sum_others
        self.log_total = log_total = np.log1p(rest)
        self.q = self.e * (np.exp(self.second) / (1 + rest))  # 0 at the top class
        self.x = 1 - self.q
        self.log_x = np.log1p(-self.q)
        self.minus_log_q = log_total - u
        self.s = self.q * self.minus_log_q / self.x
        self.log_q_top, self.log_x_top = -log_total, self.second + np.log(sum_others) - log_total
        self.x_top = rest / (1 + rest)
        self.q_top = 1 / (1 + rest)
        self.s_top, self.one_minus_s_top, self.slope_top = _top_factors(self.q_top, self.x_top, log_total)
        self.mean = (self.q * block.z).sum(axis=0)  # E z - z_top
        self.mean_others = (self.e * block.z).sum(axis=0) / sum_others

    def fill(self, out: FocalRows, rows: slice, gamma: float, gradient: bool) -> None:
        factor = 1 + gamma * self.s
        factor_top = 1 + gamma * self.s_top if gamma >= 0 else (1 + gamma) - gamma * self.one_minus_s_top
        w = np.exp(-gamma * self.log_x) / factor
        t = self.e * w
        sum_others = t.sum(axis=0)
        log_others = self.second + np.log(sum_others) - self.log_total
        log_top = self.log_q_top - gamma * self.log_x_top - log_factor(factor_top, self.log_x_top)
        # φ_top = 1 / (1 + e^gap); everything below is relative to the top class
        gap = log_others - log_top
        log_sum = np.logaddexp(0.0, gap)
        own = self.minus_log_q[self.own] + gamma * self.log_x[self.own] + np.log(factor[self.own])
        out.nll[rows] = np.where(self.hit, log_sum, own + log_top + log_sum)
        out.confidence[rows] = np.exp(-log_sum)
        if not gradient:
            return
        share = np.exp(gap - log_sum)  # 1 - φ_top
        phi = t * (share / sum_others)
        d = self.block.z - self.mean
        rate = d * (1 + gamma * (self.q - (self.s - self.q) / factor) / self.x)  # d ln(q w) / dβ
        rate_top = -self.mean - gamma * (self.q_top * self.mean_others - self.slope_top * self.mean / factor_top)
        own_rate = np.where(self.hit, rate_top, rate[self.own])
        out.d_beta[rows] = (phi * rate).sum(axis=0) + (1 - share) * rate_top - own_rate
        grow = -self.log_x - self.s / factor  # d ln w / dγ
        grow_top = -self.log_x_top - self.s_top / factor_top
        own_grow = np.where(self.hit, grow_top, grow[self.own])
        out.d_gamma[rows] = (phi * grow).sum(axis=0) + (1 - share) * grow_top - own_grow


def _top_factors(q: Array, x: Array, minus_log_q: Array) -> tuple[Array, Array, Array]:
    """s, 1 - s and (s - q) / x of the top class, by series where x = 1 - q is small."""
    s = q * np.where(x > 1e-300, minus_log_q / np.maximum(x, 1e-300), 1.0)
    one_minus_s, slope = np.zeros_like(x), np.zeros_like(x)
    for n in range(8, 0, -1):
        one_minus_s = x * (1 / (n * (n + 1)) + one_minus_s)
        slope = x * (1 / (n + 1) + slope)  # -ln q / x - 1
    near = x < 1e-2
    direct = (s - q) / np.where(near, 1.0, x)
    return s, np.where(near, one_minus_s, 1 - s), np.where(near, q * slope / np.maximum(x, 1e-300), direct)
