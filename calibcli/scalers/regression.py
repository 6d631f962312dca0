"""Penalised softmax regression: the convex problem behind vector, matrix, Dirichlet and bias-corrected scaling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.scalers.scaler import Array

SETTLED = 1e-10  # gradient of the mean loss at which the optimiser stops
NEWTON = 700  # parameters up to which the Hessian is formed
CHUNK = 1 << 21  # elements of the design per product


@dataclass(frozen=True)
class Shape:
    """How parameters θ become W and b: `full` (K²), `diagonal` (K) or `scalar` (1) W, then K biases."""

    kind: str
    k: int

    @property
    def weights(self) -> int:
        return {"full": self.k * self.k, "diagonal": self.k, "scalar": 1}[self.kind]

    def start(self) -> Array:
        one = np.eye(self.k).ravel() if self.kind == "full" else np.ones(self.weights)
        return np.append(one, np.zeros(self.k))

    def scores(self, theta: Array, x: Array) -> Array:
        """W x + b, (n, K)."""
        w, b = theta[: self.weights], theta[self.weights :]
        result: Array = (x @ w.reshape(self.k, self.k).T if self.kind == "full" else x * w) + b
        return result

    def pull(self, residual: Array, x: Array) -> Array:
        """Gradient in θ from that in the scores, (n, K)."""
        bias = residual.sum(axis=0)
        if self.kind == "full":
            return np.append((residual.T @ x).ravel(), bias)
        product = (residual * x).sum(axis=0)
        return np.append(product if self.kind == "diagonal" else product.sum(), bias)

    def curvature(self, p: Array, w: Array, x: Array) -> Array:
        """Hessian in θ of the weighted NLL, Σ w [Σ_k p_k φ_k φ_k' - m m'], φ_k = ds_k / dθ, m = Σ_k p_k φ_k.

        Args:
            p: (n, K) probabilities.  w: (n,) weights.  x: (n, K).
        """
        size = self.weights + self.k
        h, step = np.zeros((size, size)), max(1, CHUNK // size)
        for start in range(0, len(x), step):
            rows = slice(start, start + step)
            self._add(h, p[rows], w[rows], x[rows])
        return h

    def _add(self, h: Array, p: Array, w: Array, x: Array) -> None:
        k, n, mass = self.k, self.weights, p * w[:, None]
        slope, bias = h[:n, :n], h[n:, n:]
        bias[np.diag_indices(k)] += mass.sum(axis=0)
        if self.kind == "full":
            for c in range(k):
                own = slice(c * k, c * k + k)
                slope[own, own] += x.T @ (x * mass[:, [c]])
                h[own, n + c] += mass[:, c] @ x
                h[n + c, own] = h[own, n + c]
            first = (p[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        elif self.kind == "diagonal":
            slope[np.diag_indices(k)] += (mass * x * x).sum(axis=0)
            h[np.arange(k), n + np.arange(k)] += (mass * x).sum(axis=0)
            h[n + np.arange(k), np.arange(k)] += (mass * x).sum(axis=0)
            first = p * x
        else:
            slope[0, 0] += float((mass * x * x).sum())
            h[0, 1:] += (mass * x).sum(axis=0)
            h[1:, 0] += (mass * x).sum(axis=0)
            first = (p * x).sum(axis=1, keepdims=True)
        m = np.concatenate([first, p], axis=1)
        h -= m.T @ (m * w[:, None])

    def penalty(self, theta: Array, lam: float, mu: float) -> tuple[float, Array]:
        """ODIR (Kull et al. 2019), λ / (K (K - 1)) Σ_{i≠j} W_ij² + μ / K Σ b_j²: its value and diagonal Hessian.

        The gradient is the diagonal times θ.
        """
        diagonal = np.append(np.zeros(self.weights), np.full(self.k, 2 * mu / self.k))
        if self.kind == "full":
            off = 1 - np.eye(self.k)
            diagonal[: self.weights] = (2 * lam / (self.k * (self.k - 1)) * off).ravel()
        return float(diagonal @ (theta * theta)) / 2, diagonal


def minimise(
    shape: Shape,
    x: Array,
    labels: Any,
    weights: Array | None,
    lam: float,
    mu: float,
    start: Array | None = None,
    settled: float = SETTLED,
) -> Array:
    """θ of the smallest mean NLL plus penalty: damped Newton, or L-BFGS where there are many parameters."""
    w = np.full(len(x), 1 / len(x)) if weights is None else weights / weights.sum()
    rows = np.arange(len(x))
    theta = shape.start() if start is None else start

    def probabilities(theta: Array) -> tuple[float, Array]:
        s = shape.scores(theta, x)
        s -= s.max(axis=1, keepdims=True)
        own = s[rows, labels]
        np.exp(s, out=s)
        total = s.sum(axis=1, keepdims=True)
        s /= total
        value, _ = shape.penalty(theta, lam, mu)
        return value + float(w @ (np.log(total[:, 0]) - own)), s

    def gradient(theta: Array, p: Array) -> Array:
        residual = p * w[:, None]
        residual[rows, labels] -= w
        return shape.pull(residual, x) + shape.penalty(theta, lam, mu)[1] * theta

    if len(theta) > NEWTON:
        return _lbfgs(probabilities, gradient, theta, settled)
    value, p = probabilities(theta)
    for _ in range(200):
        g = gradient(theta, p)
        if np.abs(g).max() <= settled:
            break
        h = shape.curvature(p, w, x)
        # A constant added to every class changes nothing, so the Hessian is singular; the ridge picks the short step.
        h[np.diag_indices(len(h))] += shape.penalty(theta, lam, mu)[1] + 1e-10 * np.trace(h) / len(h) + 1e-14
        step = np.linalg.solve(h, g)
        slope = float(g @ step)
        for _ in range(50):
            following, q = probabilities(theta - step)
            if following <= value - 1e-4 * slope:
                break
            step, slope = step / 2, slope / 2
        else:
            break
        change, value, p, theta = value - following, following, q, theta - step
        if change <= settled * 1e-6 * max(1.0, abs(value)):
            break
    return theta


def _lbfgs(probabilities: Any, gradient: Any, start: Array, settled: float) -> Array:
    from scipy.optimize import minimize

    def objective(theta: Array) -> tuple[float, Array]:
        value, p = probabilities(theta)
        return value, gradient(theta, p)

    options = {"maxiter": 2000, "maxcor": 20, "ftol": 1e-14, "gtol": max(settled, 1e-8)}
    found: Array = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
    return found
