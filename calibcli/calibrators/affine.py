"""Maps that are affine in the logits or log-odds: vector, matrix, Dirichlet, bias-corrected and Platt scaling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calibcli.calibrators.calibrator import SCALERS, Array, FitContext, FittedParameters, Form, Parameters
from calibcli.calibrators.fitting import fold_of_rows
from calibcli.calibrators.program import NumPy, Operations
from calibcli.calibrators.store import FLAG
from calibcli.calibrators.store import affine as form
from calibcli.core import extensions
from calibcli.core.errors import InputError
from calibcli.core.options import NotNegative
from calibcli.core.result import Estimate
from calibcli.core.statistics import log_sigmoid
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.predictions import Predictions

# Penalised softmax regression: the convex problem behind vector, matrix, Dirichlet and bias-corrected scaling.

SETTLED = 1e-8  # largest entry of the gradient of the mean loss at which the optimiser stops
BOUND = 1e-6  # ε, the penalty on a class's own slope
STEPS, PRODUCTS = 200, 250  # most Newton steps, and most products with the Hessian within one
SLOW = 25  # a step that takes more products than this makes a new preconditioner worth its time
CERTAIN = {"full": 1e-3, "diagonal": 1e-6, "scalar": 1e-6}
"""Rows whose 1 - max p is below this share of the mean hardly add to the Hessian and are left out; where a product is
cheap, fewer of them, as steps that are too long cost more."""
FEWER = 1e-3  # factor on CERTAIN after a step that was far too long
CLOSE = 0.1  # rows below this share of a class's mean p (1 - p) are left out of its preconditioner
FLAT_DIRECTION = 3e-7  # curvature relative to the preconditioner's that rounding in float32 hides
EXACT, RANK = 64, 16  # classes up to which the blocks of a full W are inverted; rows that stand for a block beyond
MOST_CLASSES = 500
"""Most classes of a full W, whose fit takes hundreds of products of n K², and memory for many arrays of K² weights."""
NEVER_ZERO = 1e-3  # share of the mean square of a column that its variance is at least taken to be
RARE = 0.01  # rows that a class without any is taken to have at the start
ENOUGH = 1e-7  # nats; a step that needed many products and is expected to gain less than this is the last
ROUNDING = 1e-13  # expected decrease below which rounding of the loss hides whether a step is good


@dataclass(frozen=True)
class Shape:
    """Layout of the parameters θ: W that is `full` (K²), `diagonal` (K) or `scalar` (1), then K biases."""

    kind: str
    k: int

    @property
    def weights(self) -> int:
        return {"full": self.k * self.k, "diagonal": self.k, "scalar": 1}[self.kind]

    def start(self) -> Array:
        identity = np.eye(self.k).ravel() if self.kind == "full" else np.ones(self.weights)
        return np.append(identity, np.zeros(self.k))

    def scores(self, theta: NDArray[Any], x: NDArray[Any]) -> NDArray[Any]:
        """Return W x + b, (n, K)."""
        w, b = theta[: self.weights], theta[self.weights :]
        result: NDArray[Any] = x @ w.reshape(self.k, self.k).T if self.kind == "full" else x * w
        result += b
        return result

    def pull(self, residual: NDArray[Any], x: NDArray[Any]) -> Array:
        """Return the gradient in θ, given the gradient in the scores (n, K)."""
        bias = residual.sum(axis=0)
        if self.kind == "full":
            return np.append((residual.T @ x).ravel(), bias).astype(np.float64)
        product = (residual * x).sum(axis=0)
        return np.append(product if self.kind == "diagonal" else product.sum(), bias).astype(np.float64)

    def penalty(self, lam: float, mu: float, eps: float = BOUND) -> Array:
        """Return the diagonal Hessian of the penalty.

        It is the ODIR penalty (Kull et al. 2019), λ / (K (K - 1)) Σ_{i≠j} W_ij² + μ / K Σ b_j², plus
        ε / K Σ (W_ii - 1)², without which separable classes have no optimum.
        """
        diagonal = np.append(np.full(self.weights, 2 * eps / self.k), np.full(self.k, 2 * mu / self.k))
        if self.kind == "full":
            off = 2 * lam / (self.k * (self.k - 1)) * (1 - np.eye(self.k))
            diagonal[: self.weights] = (off + 2 * eps / self.k * np.eye(self.k)).ravel()
        return diagonal


class Regression:
    """Minimise the mean NLL of softmax(W x + b) plus a ridge, by truncated Newton (Dembo & Steihaug 1983).

    Each step solves H d = g by conjugate gradients on products H v, in float32 and without the rows that are certain.
    These products only choose the direction; values and gradients are in float64 over every row. The blocks of H within
    each class are the preconditioner, which is kept along a path of penalties.

    The steps end where the gradient is 0 to SETTLED, or after a costly one whose slope g·d was at most 2 ENOUGH. The
    loss was then at most about g·d above its minimum, also where classes are separable and it falls as exp(-t): there
    g H⁻¹ g is the loss itself. The step that is made before stopping leaves 1/e of it at the most.

    Attributes:
        gradient: largest entry of the gradient where the last minimisation began its last step.
        left: decrease in nats, twice that of the quadratic model, that was to be expected of this step.

    Args:
        x: (n, K).  labels: (n,).  weights: (n,) or None.
        like: a regression on other rows of the same data, whose preconditioner is the first one here.
    """

    def __init__(
        self, shape: Shape, x: Array, labels: Any, weights: Array | None, like: Regression | None = None
    ) -> None:
        self.shape, self.x, self.labels = shape, x, labels
        self.w = np.full(len(x), 1 / len(x)) if weights is None else weights / weights.sum()
        self.rows = np.arange(len(x))
        self.narrow = x.astype(np.float32)
        self.blocks: NDArray[Any] | None = like.blocks if like else None
        self.gradient, self.left, self.certain = np.inf, np.inf, CERTAIN[shape.kind]

    def minimise(
        self, lam: float, mu: float, start: Array | None = None, gain: float = 0.0, eps: float = BOUND
    ) -> Array:
        """Return the θ of the smallest mean NLL plus penalty.

        Args:
            lam, mu, eps: penalties λ on off-diagonal weights, μ on biases, and ε.
            start: where to begin; by default at the identity.
            gain: expected decrease, in nats, below which no further step is taken.
        """
        theta = self.shape.start() if start is None else start
        ridge = self.shape.penalty(lam, mu, eps)
        value, p = self._value(theta, ridge)
        if start is None:  # one step of iterative scaling, which never raises the NLL (Darroch and Ratcliff 1972)
            seen, expected = np.bincount(self.labels, self.w, self.shape.k), self.w @ p
            moved = theta.copy()
            moved[self.shape.weights :] += np.log((seen + RARE / len(p)) / (expected + RARE / len(p)))
            following, q = self._value(moved, ridge)
            if following < value:
                value, p, theta = following, q, moved
        if self.blocks is None:
            self._renew(p)
        solve = self._preconditioner(ridge)
        smallest, first = np.inf, 0.0
        self.left = smallest
        for _ in range(STEPS):
            g = self._gradient(p) + ridge * (theta - self.shape.start())
            self.gradient = size = float(np.abs(g).max())
            first = first or size
            if size <= SETTLED:
                self.left = 0.0
                break
            done = math.log(first / size) / math.log(first / SETTLED)
            extensions.tell(max(0.0, done), f"gradient {size:.1e}, {SETTLED:g} ends")
            step, products = self._direction(p, ridge, g, solve)
            self.left = slope = float(g @ step)
            if slope <= 2 * gain or (slope <= ROUNDING and size > smallest / 2):
                break
            smallest = min(smallest, size)
            following, q = self._value(theta - step, ridge)
            scale = 1.0
            while following > value - 1e-4 * scale * slope and slope > ROUNDING and scale > 1e-12:
                scale /= 2
                following, q = self._value(theta - scale * step, ridge)
            # a step is too long because rows that were left out as certain add to the Hessian there
            self.certain *= FEWER if scale < 0.3 else 1.0
            value, p, theta = following, q, theta - scale * step
            if products > SLOW:
                if slope <= 2 * ENOUGH and self.shape.kind != "full":  # whose penalty leaves no long way to go
                    break
                self._renew(p)
                solve = self._preconditioner(ridge)
        return theta

    def _value(self, theta: Array, ridge: Array) -> tuple[float, Array]:
        """Return the loss, and the probabilities (n, K)."""
        s = self.shape.scores(theta, self.x)
        s -= s.max(axis=1, keepdims=True)
        label_scores = s[self.rows, self.labels]
        np.exp(s, out=s)
        total = s.sum(axis=1)
        s /= total[:, None]
        return float(ridge @ (theta - self.shape.start()) ** 2) / 2 + float(self.w @ (np.log(total) - label_scores)), s

    def _gradient(self, p: Array) -> Array:
        residual = p * self.w[:, None]
        residual[self.rows, self.labels] -= self.w
        return self.shape.pull(residual, self.x)

    def _direction(self, p: Array, ridge: Array, g: Array, solve: Callable[[Array], Array]) -> tuple[Array, int]:
        """Solve H d = g by preconditioned conjugate gradients to a relative error of 3 √|g|, between 1 and 30 %.

        Returns:
            d, and the number of products with H.
        """
        times = self._hessian(p)
        step, residual = np.zeros_like(g), g.copy()
        z = solve(residual)
        direction, squared = z, float(residual @ z)
        norm = squared  # of `direction`, in the norm of the preconditioner
        tolerance = squared * min(0.3, max(0.01, 3 * float(np.abs(g).max()) ** 0.5)) ** 2
        products = 0
        while products < PRODUCTS:
            products += 1
            h = times(direction) + ridge * direction
            curvature = float(direction @ h)
            if curvature <= FLAT_DIRECTION * norm:  # float32 cannot tell how long a step along it should be
                break
            a = squared / curvature
            step += a * direction
            residual -= a * h
            z = solve(residual)
            previous, squared = squared, float(residual @ z)
            if squared <= tolerance:
                break
            direction = z + squared / previous * direction
            norm = squared + (squared / previous) ** 2 * norm
        return (step if step.any() else z), products

    def _hessian(self, p: Array) -> Callable[[Array], Array]:
        """Return v -> H v of the mean NLL, in float32.

        Of a row with weight w, probabilities q and scores s = W x + b along v it is w q (s - q·s), pulled back to θ.
        Unless W is `full`, a product reads only the matrices q and q x. Scores are then measured from that of the row's
        top class t: of a row that is nearly certain every term is as small as 1 - q_t, where q_t - q_t² is rounding.
        """
        rows, k = self._uncertain(p), self.shape.k
        q, x, w = p[rows].astype(np.float32), self.narrow[rows], self.w[rows].astype(np.float32)
        if self.shape.kind == "full":
            mass = q * w[:, None]

            def product(v: Array) -> Array:
                s = self.shape.scores(v.astype(np.float32), x)
                s -= np.einsum("ij,ij->i", q, s)[:, None]
                s *= mass
                return self.shape.pull(s, x)

            return product
        index, top = np.arange(len(rows)), q.argmax(axis=1)
        top_mass, x_top = q[index, top] * w, x[index, top]
        q[index, top] = 0
        q_others, qx = q.sum(axis=1), q * x
        zeroth, first = ((w @ part).astype(np.float64) for part in (q, qx))
        second = (w @ (qx * x)).astype(np.float64)

        def of_slopes(v: Array) -> Array:
            slope, bias = np.broadcast_to(v[:-k], k), v[-k:]
            near = (x_top * slope[top] + bias[top]).astype(np.float32)
            far = qx @ slope.astype(np.float32) + q @ bias.astype(np.float32) - q_others * near
            weighted = w * (near + far)
            h_slope = second * slope + first * bias - weighted @ qx - np.bincount(top, top_mass * far * x_top, k)
            h_bias = first * slope + zeroth * bias - weighted @ q - np.bincount(top, top_mass * far, k)
            return np.append(h_slope if self.shape.kind == "diagonal" else h_slope.sum(), h_bias)

        return of_slopes

    def _uncertain(self, p: Array) -> NDArray[Any]:
        """Return the indices of the rows that matter to the Hessian."""
        uncertainty = 1 - p.max(axis=1)
        return np.flatnonzero(uncertainty > self.certain * float(self.w @ uncertainty))

    def _renew(self, p: Array) -> None:
        """Compute the blocks of the Hessian within each class, (K, 2, 2) or for `full` (K, K + 1, K + 1).

        Beyond EXACT classes those of `full` are approximated, see `_low_rank`: their inverses would cost K⁴.
        """
        rows, k = self._uncertain(p), self.shape.k
        x, spread = self.narrow[rows], p[rows] * (1 - p[rows])
        mass = (spread * self.w[rows, None]).astype(np.float32)
        if self.shape.kind != "full":
            mass_x = mass * x
            second, first, zeroth = (part.sum(axis=0, dtype=np.float64) for part in (mass_x * x, mass_x, mass))
            self.blocks = np.stack([second, first, first, zeroth], axis=1).reshape(k, 2, 2)  # of slope and bias
            return
        x = np.column_stack([x, np.ones(len(x), np.float32)])
        if k > EXACT:
            self.blocks = _low_rank(x, mass)
            return
        self.blocks = np.empty((k, k + 1, k + 1), np.float32)  # of a class's weights and its bias
        for c in range(k):
            uncertain = np.flatnonzero(spread[:, c] > CLOSE * spread[:, c].sum() / max(len(rows), 1))
            part = x[uncertain]
            self.blocks[c] = part.T @ (part * mass[uncertain, c][:, None])

    def _preconditioner(self, ridge: Array) -> Callable[[Array], Array]:
        assert self.blocks is not None
        k, n = self.shape.k, self.shape.weights
        if self.shape.kind != "full":
            slope, cross, bias = self.blocks[:, 0, 0], self.blocks[:, 0, 1], self.blocks[:, 1, 1]
            if self.shape.kind == "scalar":
                slope, cross = slope.sum(keepdims=True), np.zeros(1)
            slope, bias = (h + 1e-6 * h.mean() + 1e-12 + r for h, r in ((slope, ridge[:n]), (bias, ridge[n:])))
            if self.shape.kind == "scalar":
                return lambda g: g / np.append(slope, bias)
            determinant = slope * bias - cross**2
            rows = np.stack([bias, -cross]) / determinant, np.stack([-cross, slope]) / determinant
            return lambda g: np.concatenate([(row * g.reshape(2, k)).sum(axis=0) for row in rows])
        if k > EXACT:
            return _woodbury(self.blocks, np.column_stack([ridge[:n].reshape(k, k), ridge[n:]]))
        blocks, index = self.blocks.copy(), np.arange(k + 1)
        mean = np.einsum("cii->c", blocks)[:, None] / (k + 1)  # (K, 1), of the diagonals
        blocks[:, index, index] += np.column_stack([ridge[:n].reshape(k, k), ridge[n:]]) + 1e-5 * mean + 1e-9
        from scipy.linalg.lapack import spotrf, spotri

        inverses = np.empty_like(blocks)
        for c, block in enumerate(blocks):
            factor, _ = spotrf(block)
            half, _ = spotri(factor)  # the upper triangle
            inverses[c] = np.triu(half) + np.triu(half, 1).T

        def solve(g: Array) -> Array:
            v = np.column_stack([g[:n].reshape(k, k), g[n:]]).astype(np.float32)
            u = np.matmul(inverses, v[:, :, None])[:, :, 0].astype(np.float64)  # (K, K + 1, K + 1) times (K, K + 1, 1)
            return np.append(u[:, :k].ravel(), u[:, k])

        return solve


def _low_rank(x: NDArray[Any], mass: NDArray[Any]) -> NDArray[Any]:
    """Approximate x' diag(mass_c) x for each class c, in K² numbers for each of RANK rows.

    The rows that weigh most are kept; of the others the mean, as one row, and the variance of each column.

    Args:
        x: (m, K + 1).  mass: (m, K).

    Returns:
        (K, RANK + 2, K + 1): the diagonal, the mean of the others, and the rows, both times the roots of their masses.
    """
    weight, rank = np.ascontiguousarray(mass.T), min(RANK, len(x))
    kept = np.argpartition(weight, len(x) - rank, axis=1)[:, len(x) - rank :]
    kept_weight = np.take_along_axis(weight, kept, axis=1)
    np.put_along_axis(weight, kept, 0.0, axis=1)
    total = weight.sum(axis=1, keepdims=True) + np.float32(1e-30)
    first, second = weight @ x, weight @ x**2
    diagonal = np.maximum(second - first**2 / total, 0) + NEVER_ZERO * second
    rows = x[kept] * np.sqrt(kept_weight)[:, :, None]  # (K, RANK, K + 1)
    return np.concatenate([diagonal[:, None], (first / np.sqrt(total))[:, None], rows], axis=1)  # see Returns


def _woodbury(blocks: NDArray[Any], ridge: Array) -> Callable[[Array], Array]:
    """Return the product with the inverses of what `_low_rank` returns plus a ridge (K, K + 1) (Woodbury 1950).

    In float64: in float32 rounding makes the inverses indefinite where rows are saturated.
    """
    k, rows = len(blocks), blocks[:, 1:].astype(np.float64)  # rows (K, R, K + 1), with R = RANK + 1
    mean = (blocks[:, 0].sum(axis=1) + np.einsum("crj,crj->c", rows, rows)) / (k + 1)  # (K,)
    diagonal = blocks[:, 0] + ridge + 1e-5 * mean[:, None] + 1e-9
    scaled = rows / diagonal[:, None]  # (K, R, K + 1)
    inverse = np.linalg.inv(scaled @ rows.transpose(0, 2, 1) + np.eye(rows.shape[1]))  # (K, R, R)

    def solve(g: Array) -> Array:
        v = np.column_stack([g[: k * k].reshape(k, k), g[k * k :]])
        inside = inverse @ (scaled @ v[:, :, None])  # (K, R, 1)
        u = v / diagonal - (inside.transpose(0, 2, 1) @ scaled)[:, 0]  # (K, 1, R) times (K, R, K + 1)
        return np.append(u[:, :k].ravel(), u[:, k])

    return solve


# The methods that use it. They differ in x, in the shape of W, and in the penalty.

PENALTIES = tuple(10.0**e for e in range(3, -6, -1))  # 1e3 to 1e-5, strongest first
CV_FOLDS = 3
LARGEST = 1e12  # products of much larger scores are no numbers
ROUGH = 1e-5  # nats; fits that another step would improve by less are good enough to compare penalties
CLEAR = 3.0  # standard errors; a penalty that is worse by more ends the search along its line


def affine(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Compute softmax(W x + b) with W of shape (K, K), (K,) or ()."""
    x = log_p(o, z) if "log_probabilities" in parameters else centred(o, z)
    return o.normalised(o.linear(parameters["weight"], x) + o.const(parameters["bias"]))


def centred(o: Operations, z: Any) -> Any:
    """Shift each row of logits to mean zero, so that the fit does not depend on the offset of a row."""
    finite = o.most(z, o.max(z) - 1e3)  # probability 0 stays finite here
    return finite - o.sum(finite) / float(o.classes)


def log_p(o: Operations, z: Any) -> Any:
    """Return log-probabilities of at least -1000, so that a probability of 0 is a finite number."""
    return o.most(o.log_softmax(z), -1e3)


def _searches(options: Mapping[str, Any]) -> bool:
    """Return whether penalties are left to cross-validation."""
    return options["lam"] is None or options["mu"] is None


@SCALERS.add(preserves_accuracy=False, map=affine, form=form("k"))
def vector(predictions: Predictions, context: FitContext, *, mu: NotNegative = 0.0) -> FittedParameters:
    """Vector scaling: softmax(v ∘ z + b), a slope and a bias for each class (Guo et al. 2017).

    Logits are centred in each row. `mu`: ridge on the biases, μ / K Σ b².

    >>> calibcli.fit_scaler(logits, labels, "vector:mu=0.01").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.02, 0.  , 0.12, 0.  , 0.  , 0.  , 0.86])
    """
    x = centred(NumPy(predictions.k), _scores(predictions))
    return _fit(Shape("diagonal", predictions.k), predictions, x, 0.0, mu)


@SCALERS.add(preserves_accuracy=False, map=affine, form=form(""))
def bcts(predictions: Predictions, context: FitContext, *, mu: NotNegative = 1e-6) -> FittedParameters:
    """Bias-corrected temperature scaling: softmax(z / T + b) with a small ridge on b (Alexandari et al. 2020).

    >>> calibcli.fit_scaler(logits, labels, "bcts").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.02, 0.  , 0.07, 0.  , 0.  , 0.  , 0.91])
    """
    shape = Shape("scalar", predictions.k)
    fitted = _fit(shape, predictions, centred(NumPy(predictions.k), _scores(predictions)), 0.0, mu)
    slope = float(fitted.parameters["weight"])
    temperature = Estimate(
        name="temperature",
        value=1 / slope if slope > 0 else None,
        n=predictions.n,
        how="minimises NLL together with a bias for each class",
        reason="no interval is computed beside biases" if slope > 0 else "anti_informative: the best slope is negative",
    )
    return replace(fitted, estimates=[temperature])


@SCALERS.add(preserves_accuracy=False, map=affine, form=form("kk"), search=_searches)
def matrix(
    predictions: Predictions, context: FitContext, *, lam: NotNegative | None = None, mu: NotNegative | None = None
) -> FittedParameters:
    """Matrix scaling: softmax(W z + b) with the ODIR penalty (Guo et al. 2017; Kull et al. 2019).

    `lam` on off-diagonal weights and `mu` on biases, by 3-fold cross-validation over 1e-5..1e3 where not given.

    >>> calibcli.fit_scaler(logits, labels, "matrix:lam=0.1,mu=0.1").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.07, 0.  , 0.82, 0.  , 0.  , 0.  , 0.11])
    """
    return _odir(predictions, context, centred(NumPy(predictions.k), _scores(predictions)), lam, mu)


@SCALERS.add(preserves_accuracy=False, map=affine, form=form("kk", log_probabilities=True), search=_searches)
def dirichlet(
    predictions: Predictions, context: FitContext, *, lam: NotNegative | None = None, mu: NotNegative | None = None
) -> FittedParameters:
    """Dirichlet calibration: softmax(W ln p + b) with the ODIR penalty (Kull et al. 2019).

    `lam` on off-diagonal weights and `mu` on biases, by 3-fold cross-validation over 1e-5..1e3 where not given.

    >>> calibcli.fit_scaler(logits, labels, "dirichlet:lam=0.1,mu=0.1").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.03, 0.  , 0.85, 0.  , 0.  , 0.  , 0.12])
    """
    fitted = _odir(predictions, context, log_p(NumPy(predictions.k), _scores(predictions)), lam, mu)
    return replace(fitted, parameters={**fitted.parameters, "log_probabilities": np.array(1.0)})


def each_class(per_class: Sequence[Any]) -> Iterator[Any]:
    """Yield what belongs to each class, and tell the command that runs how many classes are done."""
    return extensions.with_progress(per_class, lambda one: f"a map of each of {len(per_class)} classes")


def curved(k: int) -> list[int]:
    """Return the classes that have a map of their own, each against the rest. Of two classes only the second has."""
    return [1] if k == 2 else list(range(k))


def joined(o: Operations, score: Any) -> Any:
    """Turn log-odds, of the second of two classes or of each class against the rest, into log-probabilities (n, K)."""
    return o.of_two(score) if o.classes == 2 else o.normalised(o.log_sigmoid(score))


PLATT = {"slope": Form("c"), "bias": Form("c"), "of_p": FLAG}


def one_vs_rest(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Apply a slope and a bias to the log-odds, or with `of_p` to the probability, of each class that has a map."""
    m = o.exp(o.log_both(z)[0]) if "of_p" in parameters else o.log_odds(z)
    x = o.column(m, 1) if o.classes == 2 else m
    return joined(o, x * o.const(parameters["slope"]) + o.const(parameters["bias"]))


@SCALERS.add(preserves_accuracy=False, map=one_vs_rest, form=PLATT, of_confidence=True, cuts=True)
def platt(
    predictions: Predictions,
    context: FitContext,
    *,
    smooth: bool = True,
    on: Literal["auto", "log_odds", "p"] = "auto",
) -> FittedParameters:
    """Platt scaling: sigmoid(a m + b) of the log-odds m; beyond 2 classes one against the rest, renormalised.

    `smooth`: targets (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), which keep a separable fit finite (Platt 1999). `on`: m is
    the log-odds or the probability; `auto` takes those of the lower held-out NLL, of scores that are probabilities of
    two classes, or some of them 0 (`fitting.candidates`).

    >>> calibcli.fit_scaler(logits, labels, "platt").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.02, 0.  , 0.09, 0.  , 0.  , 0.  , 0.89])
    """
    z = np.asarray(predictions.logits, np.float64)
    m = np.exp(log_softmax(z)) if on == "p" else NumPy(predictions.k).log_odds(z)
    labels, w = predictions.labels, predictions.weights
    slope, bias = np.transpose([logistic(m[:, [c]], labels == c, w, smooth) for c in each_class(curved(predictions.k))])
    return FittedParameters({"slope": slope, "bias": bias, **({"of_p": np.array(1.0)} if on == "p" else {})})


FLAT = 1e-6  # curvature at slopes of one below which all rows are certain, and Newton's step would be arbitrary


def logistic(x: Array, positive: Any, weights: Array | None, smooth: bool) -> Array:
    """Fit a logistic regression on the columns of x, by Newton with halved steps; return its slopes, then its bias."""
    w = np.ones(len(x)) if weights is None else weights
    target = positive.astype(np.float64)
    if smooth:
        up, down = float(w @ target), float(w @ (1 - target))
        target = np.where(positive, (up + 1) / (up + 2), 1 / (down + 2))
    design = np.column_stack([x, np.ones(len(x))])
    w = w / w.sum()

    def loss(theta: Array) -> float:
        s = design @ theta
        return float(w @ (np.logaddexp(0, s) - target * s))

    theta = np.append(np.ones(x.shape[1]), 0.0)
    p = np.exp(log_sigmoid(design @ theta))
    if w @ (p * (1 - p)) < FLAT:
        theta[:-1] = 4 / np.abs(x).max(initial=4.0)
    value = loss(theta)
    for _ in range(100):
        p = np.exp(log_sigmoid(design @ theta))
        gradient = design.T @ (w * (p - target))
        hessian = (design * (w * p * (1 - p))[:, None]).T @ design
        step = np.linalg.lstsq(hessian + 1e-14 * np.eye(len(theta)), gradient, rcond=None)[0]
        if gradient @ step <= 1e-16 * max(1.0, abs(value)):  # less than rounding, which halved steps would look for
            return np.asarray(theta - step)
        for _ in range(40):
            following = loss(theta - step)
            if following <= value:
                break
            step = step / 2
        theta, change, value = theta - step, value - following, following
        if change <= 1e-16 * max(1.0, abs(value)) or np.abs(theta).max() > 1e6:
            break
    return theta


def _scores(predictions: Predictions) -> Array:
    """Return logits (N, K) that a linear map can take.

    Raises:
        InputError: a label has probability 0, or scores are so large that their products are no numbers.
    """
    z = np.asarray(predictions.logits, np.float64)
    if np.isneginf(z[np.arange(len(z)), predictions.labels]).any():
        problem = "a true label has probability zero, so no calibration map makes the NLL finite"
        raise InputError(problem, "pass --clip, or drop those rows")
    if np.abs(z, where=np.isfinite(z), out=np.zeros_like(z)).max() > LARGEST:
        raise InputError(f"scores beyond {LARGEST:g} are too large for a linear map", "divide them by a constant")
    return z


def _fit(
    shape: Shape,
    predictions: Predictions,
    x: Array,
    lam: float,
    mu: float,
    start: Array | None = None,
    like: Regression | None = None,
) -> FittedParameters:
    regression = Regression(shape, x, predictions.labels, predictions.weights, like)
    theta = regression.minimise(lam, mu, start)
    w, b = theta[: shape.weights], theta[shape.weights :]
    weight = w.reshape(shape.k, shape.k) if shape.kind == "full" else w[0] if shape.kind == "scalar" else w
    notes = []
    if shape.kind == "full" and predictions.n < shape.weights:
        notes.append(f"{shape.weights + shape.k:,} parameters from {predictions.n:,} rows: temperature may do better")
    if regression.left > 2 * ENOUGH:
        notes.append(
            f"the NLL has no minimum in reach (the last step gained {regression.left / 2:.1g} nats): "
            "some classes are separable; a penalty (matrix, dirichlet) or temperature bounds the fit"
        )
    return FittedParameters({"weight": np.asarray(weight), "bias": b - b.mean()}, notes=notes)


def _odir(
    predictions: Predictions, context: FitContext, x: Array, lam: float | None, mu: float | None
) -> FittedParameters:
    """Fit W and b, with λ and μ as given or chosen by cross-validation: first λ = μ, then μ around the best λ.

    Raises:
        InputError: there are fewer rows than classes, where the penalty would decide most of the K² weights; or more
            classes than MOST_CLASSES.
    """
    if predictions.k > MOST_CLASSES:
        problem = f"a weight from each to each of {predictions.k:,} classes is {predictions.k**2:,} weights"
        fix = f"use temperature or vector; matrix and dirichlet are for {MOST_CLASSES} classes at the most"
        raise InputError(problem, fix)
    if predictions.n < predictions.k:
        problem = f"{predictions.n:,} rows for a weight from each to each of {predictions.k:,} classes"
        raise InputError(problem, "pass more rows than classes, or use temperature or vector")
    shape = Shape("full", predictions.k)
    chosen: dict[str, float | int | str | None] = {}
    start: Array | None = None
    like: Regression | None = None
    report: Callable[[float, str], None] | None = None  # the last fit goes on where the search ended
    if lam is None or mu is None:
        if context.rows is None or "tried" not in context.memory:
            search = _PenaltySearch(shape, predictions, context, x)
            best = search.best(lam, mu)
            context.memory["tried"], context.memory["like"] = search.tried, search.fits[0]
            report = functools.partial(search.tell, len(search.tried) * len(search.out), best.pair)
        else:
            w = np.ones(predictions.n) if predictions.weights is None else predictions.weights
            best = min(context.memory["tried"], key=lambda tried: float(w @ tried.nll[context.rows]))
        (lam, mu), start, like = best.pair, best.start, context.memory["like"]
        chosen = {"lambda": lam, "mu": mu}
    with extensions.reporting(report):
        return replace(_fit(shape, predictions, x, lam, mu, start, like), facts=chosen)


@dataclass(frozen=True)
class _PenaltyTrial:
    """A pair of penalties (λ, μ) that was tried.

    Attributes:
        pair: λ and μ.  nll: held-out NLL of each row.  thetas: parameters fitted in each fold.
        start: mean of `thetas`, a good start for a fit to other rows.
    """

    pair: tuple[float, float]
    nll: Array
    thetas: Sequence[Array]

    @property
    def start(self) -> Array:
        return np.asarray(np.mean(self.thetas, axis=0))


class _PenaltySearch:
    """Choose penalties by held-out NLL along lines of pairs; every fit starts from the one before it."""

    def __init__(self, shape: Shape, predictions: Predictions, context: FitContext, x: Array) -> None:
        folds = fold_of_rows(predictions, min(CV_FOLDS, predictions.n), context.seed)
        self.shape, self.x, self.labels, self.context = shape, x, predictions.labels, context
        self.w = np.ones(len(x)) if predictions.weights is None else predictions.weights
        self.out = [np.flatnonzero(folds == fold) for fold in range(int(folds.max()) + 1)]
        inside = [np.flatnonzero(folds != fold) for fold in range(len(self.out))]
        self.fits = [Regression(shape, x[rows], self.labels[rows], self.w[rows]) for rows in inside]
        self.tried: list[_PenaltyTrial] = []

    def best(self, lam: float | None, mu: float | None) -> _PenaltyTrial:
        """Return the trial of the best λ and μ; one that is given stays."""
        best = self._along([(p if lam is None else lam, p if mu is None else mu) for p in PENALTIES])
        if lam is None and mu is None:
            lam = best.pair[0]
            best = self._along([(lam, min(lam * 10, PENALTIES[0]))], best)
            best = self._along([(lam, lam / 10), (lam, lam / 100)], best)
        return best

    def _along(self, pairs: Sequence[tuple[float, float]], best: _PenaltyTrial | None = None) -> _PenaltyTrial:
        """Return the best trial along a line; stop at a clearly worse pair, or at the second worse one in a row."""
        best = last = best or self._try(pairs[0], None)
        worse = 0
        for pair in pairs:
            if pair == best.pair:
                continue
            last = self._try(pair, last)
            increase = self.w * (last.nll - best.nll)
            if increase.sum() < 0:
                best, worse = last, 0
                continue
            worse += 1
            if worse == 2 or increase.sum() > CLEAR * math.sqrt(float(increase @ increase)):
                break
        return best

    def _try(self, pair: tuple[float, float], before: _PenaltyTrial | None) -> _PenaltyTrial:
        nll, thetas = np.zeros(len(self.x)), list[Array]()
        for fold, (regression, held_out) in enumerate(zip(self.fits, self.out, strict=True)):
            if regression.blocks is None:
                regression.blocks = self.fits[0].blocks
            start = before.thetas[fold] if before else None
            fits = len(self.tried) * len(self.out) + fold
            with extensions.reporting(functools.partial(self.tell, fits, pair)):
                theta = regression.minimise(*pair, start, gain=ROUGH)
            held_out_log_p = log_softmax(self.shape.scores(theta, self.x[held_out]))
            nll[held_out] = -held_out_log_p[np.arange(len(held_out)), self.labels[held_out]]
            thetas.append(theta)
        self.tried.append(_PenaltyTrial(pair, nll, thetas))
        return self.tried[-1]

    def tell(self, fits: int, pair: tuple[float, float], fraction: float, text: str) -> None:
        """Tell how far the search is: nobody knows how many fits it needs, so that each is worth less than the last."""
        self.context.step(1 - 0.97 ** (fits + fraction), f"penalty {pair[0]:g}, {pair[1]:g}")
