"""Penalised softmax regression: the convex problem behind vector, matrix, Dirichlet and bias-corrected scaling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.scalers.scaler import Array

SETTLED = 1e-8  # gradient of the mean loss at which the optimiser stops
BOUND = 1e-6  # ε: of the penalty on a class's own slope
STEPS, PRODUCTS = 200, 250  # Newton steps at most, and products with the Hessian within one
SLOW = 25  # products in one step from which the preconditioner is worth renewing
CERTAIN = 1e-3  # rows whose 1 - max p is below this share of the mean bend nothing: products leave them out
FEWER = 1e-3  # of that share where a step was far too long; ten times as much after each that was not
CLOSE = 0.1  # share of a class's mean p (1 - p) below which a row is left out of the preconditioner
FLAT = 3e-7  # curvature beside that of the preconditioner below which float32 does not know it
ROUNDING = 1e-13  # expected decrease below which values cannot tell whether a step is good


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

    def scores(self, theta: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
        """W x + b, (n, K)."""
        w, b = theta[: self.weights], theta[self.weights :]
        result: NDArray[Any] = x @ w.reshape(self.k, self.k).T if self.kind == "full" else x * w
        result += b
        return result

    def pull(self, residual: NDArray[Any], x: NDArray[Any]) -> Array:
        """Gradient in θ from that in the scores, (n, K)."""
        bias = residual.sum(axis=0)
        if self.kind == "full":
            return np.append((residual.T @ x).ravel(), bias).astype(np.float64)
        product = (residual * x).sum(axis=0)
        return np.append(product if self.kind == "diagonal" else product.sum(), bias).astype(np.float64)

    def penalty(self, lam: float, mu: float, own: float = BOUND) -> Array:
        """Diagonal Hessian of the ODIR penalty (Kull et al. 2019), λ / (K (K - 1)) Σ_{i≠j} W_ij² + μ / K Σ b_j², and of
        ε / K Σ (W_ii - 1)², without which classes that are separable have no optimum.
        """
        diagonal = np.append(np.full(self.weights, 2 * own / self.k), np.full(self.k, 2 * mu / self.k))
        if self.kind == "full":
            off = 2 * lam / (self.k * (self.k - 1)) * (1 - np.eye(self.k))
            diagonal[: self.weights] = (off + 2 * own / self.k * np.eye(self.k)).ravel()
        return diagonal


class Regression:
    """Mean NLL of softmax(W x + b) with a ridge: a truncated Newton iteration (Dembo & Steihaug 1983).

    Each step solves H d = g by conjugate gradients on products H v, in float32 and without the rows that are certain:
    they only choose the direction, and values and gradients are float64 over every row. The blocks of H within a class
    precondition them (the diagonal, unless `full`) and are kept along a path of penalties.

    Attributes:
        gradient: largest entry of the gradient where the last minimisation stopped.

    Args:
        x: (n, K).  labels: (n,).  weights: (n,) or None.
        like: a regression on other rows of the same data, whose preconditioner serves to begin with.
    """

    def __init__(
        self, shape: Shape, x: Array, labels: Any, weights: Array | None, like: Regression | None = None
    ) -> None:
        self.shape, self.x, self.labels = shape, x, labels
        self.w = np.full(len(x), 1 / len(x)) if weights is None else weights / weights.sum()
        self.rows = np.arange(len(x))
        self.narrow = x.astype(np.float32)
        self.blocks: NDArray[Any] | None = like.blocks if like else None
        self.gradient, self.certain = np.inf, CERTAIN

    def minimise(
        self, lam: float, mu: float, start: Array | None = None, gain: float = 0.0, own: float = BOUND
    ) -> Array:
        """θ of the smallest mean NLL plus penalty.

        Args:
            lam, mu, own: of the penalty: on other weights, biases, and ε.
            start: where to begin; without it the scores as they are.
            gain: expected decrease, in nats, that is not worth another step.
        """
        theta = self.shape.start() if start is None else start
        ridge = self.shape.penalty(lam, mu, own)
        value, p = self._value(theta, ridge)
        if self.blocks is None:
            self._renew(p)
        solve = self._preconditioner(ridge)
        smallest = np.inf
        for _ in range(STEPS):
            g = self._gradient(p) + ridge * (theta - self.shape.start())
            self.gradient = size = float(np.abs(g).max())
            if size <= SETTLED:
                break
            step, products = self._direction(p, ridge, g, solve)
            slope = float(g @ step)
            if slope <= 2 * gain or (slope <= ROUNDING and size > smallest / 2):
                break
            smallest = min(smallest, size)
            following, q = self._value(theta - step, ridge)
            scale = 1.0
            while following > value - 1e-4 * scale * slope and slope > ROUNDING and scale > 1e-12:
                scale /= 2
                following, q = self._value(theta - scale * step, ridge)
            # a step that goes too far does so where rows that are certain were left out
            self.certain = self.certain * FEWER if scale < 0.3 else min(CERTAIN, self.certain * 10)
            value, p, theta = following, q, theta - scale * step
            if products > SLOW:
                self._renew(p)
                solve = self._preconditioner(ridge)
        return theta

    def _value(self, theta: Array, ridge: Array) -> tuple[float, Array]:
        """The loss, and the probabilities (n, K)."""
        s = self.shape.scores(theta, self.x)
        s -= s.max(axis=1, keepdims=True)
        own = s[self.rows, self.labels]
        np.exp(s, out=s)
        total = s.sum(axis=1)
        s /= total[:, None]
        return float(ridge @ (theta - self.shape.start()) ** 2) / 2 + float(self.w @ (np.log(total) - own)), s

    def _gradient(self, p: Array) -> Array:
        residual = p * self.w[:, None]
        residual[self.rows, self.labels] -= self.w
        return self.shape.pull(residual, self.x)

    def _direction(self, p: Array, ridge: Array, g: Array, solve: Callable[[Array], Array]) -> tuple[Array, int]:
        """H⁻¹ g to 3 √|g| of its size, 1 to 30 %, by preconditioned conjugate gradients, and the products that took."""
        rows = self._uncertain(p)
        q, x = p[rows].astype(np.float32), self.narrow[rows]
        mass = q * self.w[rows].astype(np.float32)[:, None]
        step, rest = np.zeros_like(g), g.copy()
        z = solve(rest)
        along, left = z, float(rest @ z)
        norm = left  # of `along`, as the preconditioner measures
        enough = left * min(0.3, max(0.01, 3 * float(np.abs(g).max()) ** 0.5)) ** 2
        done = 0
        while done < PRODUCTS:
            done += 1
            s = self.shape.scores(along.astype(np.float32), x)
            s -= np.einsum("ij,ij->i", q, s)[:, None]
            s *= mass
            h = self.shape.pull(s, x) + ridge * along
            bend = float(along @ h)
            if bend <= FLAT * norm:  # float32 cannot tell how long a step along it should be
                break
            a = left / bend
            step += a * along
            rest -= a * h
            z = solve(rest)
            before, left = left, float(rest @ z)
            if left <= enough:
                break
            along = z + left / before * along
            norm = left + (left / before) ** 2 * norm
        return (step if step.any() else z), done

    def _uncertain(self, p: Array) -> NDArray[Any]:
        """Rows that bend the loss."""
        left = 1 - p.max(axis=1)
        return np.flatnonzero(left > self.certain * float(self.w @ left))

    def _renew(self, p: Array) -> None:
        """Blocks of the Hessian within each class: (K, K + 1, K + 1) for `full`, else the diagonal, (parameters,)."""
        rows, k = self._uncertain(p), self.shape.k
        x, spread = self.narrow[rows], p[rows] * (1 - p[rows])
        mass = (spread * self.w[rows, None]).astype(np.float32)
        if self.shape.kind != "full":
            self.blocks = self.shape.pull(mass * x, x)
            self.blocks[self.shape.weights :] = mass.sum(axis=0)
            return
        x = np.column_stack([x, np.ones(len(x), np.float32)])
        self.blocks = np.empty((k, k + 1, k + 1), np.float32)
        for c in range(k):
            some = np.flatnonzero(spread[:, c] > CLOSE * spread[:, c].sum() / max(len(rows), 1))
            part = x[some]
            self.blocks[c] = part.T @ (part * mass[some, c][:, None])

    def _preconditioner(self, ridge: Array) -> Callable[[Array], Array]:
        assert self.blocks is not None
        k, n = self.shape.k, self.shape.weights
        if self.shape.kind != "full":
            scale = self.blocks + ridge
            inverse = 1 / (scale + 1e-6 * scale.mean() + 1e-12)
            return lambda g: np.asarray(g * inverse)
        blocks, at = self.blocks.copy(), np.arange(k + 1)
        mean = np.einsum("cii->c", blocks)[:, None] / (k + 1)
        blocks[:, at, at] += np.column_stack([ridge[:n].reshape(k, k), ridge[n:]]) + 1e-5 * mean + 1e-9
        from scipy.linalg.lapack import spotrf, spotri

        inverses = np.empty_like(blocks)
        for c, block in enumerate(blocks):
            factor, _ = spotrf(block)
            half, _ = spotri(factor)  # the upper triangle
            inverses[c] = np.triu(half) + np.triu(half, 1).T

        def solve(g: Array) -> Array:
            v = np.column_stack([g[:n].reshape(k, k), g[n:]]).astype(np.float32)
            u = np.matmul(inverses, v[:, :, None])[:, :, 0].astype(np.float64)
            return np.append(u[:, :k].ravel(), u[:, k])

        return solve
