"""Maps that are linear in the logits: vector, matrix, Dirichlet and bias-corrected temperature scaling, and Platt's.

All minimise a convex penalised NLL of softmax(W x + b); they differ in x, in the shape of W, and in the penalty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibcli.errors import InputError
from calibcli.links import log_softmax
from calibcli.numerics import log_sigmoid
from calibcli.predictions import Predictions
from calibcli.result import Estimate
from calibcli.scalers.parameters import Form
from calibcli.scalers.parameters import affine as form
from calibcli.scalers.program import NumPy, Operations
from calibcli.scalers.regression import SETTLED, Regression, Shape
from calibcli.scalers.scaler import SCALERS, Array, Fitted, Job, Parameters
from calibcli.scalers.subsets import fold_of_rows
from calibcli.spec import NotNegative

PENALTIES = tuple(10.0**e for e in range(3, -6, -1))  # 1e3 to 1e-5, strongest first
CV_FOLDS = 3
LARGEST = 1e12  # score
ROUGH = 1e-5  # nats that another step of the optimiser would gain, below which penalties are compared
CLEAR = 3.0  # standard errors by which a penalty that is worse ends the search along its line


def affine(o: Operations, given: Parameters, z: Any) -> Any:
    """softmax(W x + b) with W of shape (K, K), (K,) or ()."""
    x = log_p(o, z) if "log_probabilities" in given else centred(o, z)
    return o.normalised(o.linear(given["weight"], x) + o.const(given["bias"]))


def centred(o: Operations, z: Any) -> Any:
    """Logits with mean zero in each row: the same model, and one whose fit does not depend on a row's offset."""
    finite = o.most(z, o.max(z) - 1e3)  # probability 0 stays finite here
    return finite - o.sum(finite) / float(o.classes)


def log_p(o: Operations, z: Any) -> Any:
    """Log-probabilities; those of zero as of e^-1000."""
    return o.most(o.log_softmax(z), -1e3)


def _searches(options: Mapping[str, Any]) -> bool:
    return options["lam"] is None or options["mu"] is None


@SCALERS.add(preserves_accuracy=False, map=affine, form=form("k"))
def vector(predictions: Predictions, job: Job, *, mu: NotNegative = 0.0) -> Fitted:
    """Vector scaling: softmax(v ∘ z + b), a slope and a bias for each class (Guo et al. 2017).

    Logits are centred in each row. `mu`: ridge on the biases, μ / K Σ b².

    >>> calibcli.fit_scaler(logits, labels, "vector:mu=0.01").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.02, 0.  , 0.12, 0.  , 0.  , 0.  , 0.86])
    """
    x = centred(NumPy(predictions.k), _scores(predictions))
    return _fit(Shape("diagonal", predictions.k), predictions, x, 0.0, mu)


@SCALERS.add(preserves_accuracy=False, map=affine, form=form(""))
def bcts(predictions: Predictions, job: Job, *, mu: NotNegative = 1e-6) -> Fitted:
    """Bias-corrected temperature scaling: softmax(z / T + b) with a small ridge on b (Alexandari et al. 2020).

    >>> calibcli.fit_scaler(logits, labels, "bcts").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.02, 0.  , 0.07, 0.  , 0.  , 0.  , 0.91])
    """
    shape = Shape("scalar", predictions.k)
    done = _fit(shape, predictions, centred(NumPy(predictions.k), _scores(predictions)), 0.0, mu)
    slope = float(done.parameters["weight"])
    temperature = Estimate(
        name="temperature",
        value=1 / slope if slope > 0 else None,
        n=predictions.n,
        how="minimises NLL together with a bias for each class",
        reason="no interval is computed beside biases" if slope > 0 else "anti_informative: the best slope is negative",
    )
    return replace(done, estimates=[temperature])


@SCALERS.add(preserves_accuracy=False, map=affine, form=form("kk"), search=_searches)
def matrix(
    predictions: Predictions, job: Job, *, lam: NotNegative | None = None, mu: NotNegative | None = None
) -> Fitted:
    """Matrix scaling: softmax(W z + b) with the ODIR penalty (Guo et al. 2017; Kull et al. 2019).

    `lam` on off-diagonal weights and `mu` on biases, by 3-fold cross-validation over 1e-5..1e3 where not given.

    >>> calibcli.fit_scaler(logits, labels, "matrix:lam=0.1,mu=0.1").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.07, 0.  , 0.82, 0.  , 0.  , 0.  , 0.11])
    """
    return _odir(predictions, job, centred(NumPy(predictions.k), _scores(predictions)), lam, mu)


@SCALERS.add(preserves_accuracy=False, map=affine, form=form("kk", log_probabilities=True), search=_searches)
def dirichlet(
    predictions: Predictions, job: Job, *, lam: NotNegative | None = None, mu: NotNegative | None = None
) -> Fitted:
    """Dirichlet calibration: softmax(W ln p + b) with the ODIR penalty (Kull et al. 2019).

    `lam` on off-diagonal weights and `mu` on biases, by 3-fold cross-validation over 1e-5..1e3 where not given.

    >>> calibcli.fit_scaler(logits, labels, "dirichlet:lam=0.1,mu=0.1").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.03, 0.  , 0.85, 0.  , 0.  , 0.  , 0.12])
    """
    done = _odir(predictions, job, log_p(NumPy(predictions.k), _scores(predictions)), lam, mu)
    return replace(done, parameters={**done.parameters, "log_probabilities": np.array(1.0)})


def curved(k: int) -> list[int]:
    """The classes that have a curve of their own, one against the rest: of two, the second says all."""
    return [1] if k == 2 else list(range(k))


def joined(o: Operations, score: Any) -> Any:
    """Log-probabilities (n, K) of log-odds: of the second of two classes, or of each against the rest."""
    return o.of_two(score) if o.classes == 2 else o.normalised(o.log_sigmoid(score))


PLATT = {"slope": Form("c"), "bias": Form("c")}


def one_vs_rest(o: Operations, given: Parameters, z: Any) -> Any:
    """Slope and bias on the log-odds of each class that has a curve."""
    m = o.log_odds(z)
    return joined(o, (o.column(m, 1) if o.classes == 2 else m) * o.const(given["slope"]) + o.const(given["bias"]))


@SCALERS.add(preserves_accuracy=False, map=one_vs_rest, form=PLATT, of_confidence=True)
def platt(predictions: Predictions, job: Job, *, smooth: bool = True) -> Fitted:
    """Platt scaling: sigmoid(a m + b) of the log-odds m; beyond 2 classes one against the rest, renormalised.

    `smooth`: targets (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), which keep a separable fit finite (Platt 1999).

    >>> calibcli.fit_scaler(logits, labels, "platt").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.02, 0.  , 0.09, 0.  , 0.  , 0.  , 0.89])
    """
    m = NumPy(predictions.k).log_odds(np.asarray(predictions.logits, np.float64))
    found = [logistic(m[:, [c]], predictions.labels == c, predictions.weights, smooth) for c in curved(predictions.k)]
    slope, bias = np.transpose(found)
    return Fitted({"slope": slope, "bias": bias})


FLAT = 1e-6  # curvature at slopes of one, below which Newton would step anywhere: all rows are sure there


def logistic(x: Array, positive: Any, weights: Array | None, smooth: bool) -> Array:
    """Slopes and bias of a logistic regression on the columns of x, by Newton with halved steps."""
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
    """(N, K) logits that a linear map can take.

    Raises:
        InputError: a label has probability 0, or scores are too large for their products to be numbers.
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
) -> Fitted:
    regression = Regression(shape, x, predictions.labels, predictions.weights, like)
    theta = regression.minimise(lam, mu, start)
    w, b = theta[: shape.weights], theta[shape.weights :]
    weight = w.reshape(shape.k, shape.k) if shape.kind == "full" else w[0] if shape.kind == "scalar" else w
    notes = []
    if shape.kind == "full" and predictions.n < shape.weights:
        notes.append(f"{shape.weights + shape.k:,} parameters from {predictions.n:,} rows: temperature may do better")
    if regression.gradient > 100 * SETTLED:
        notes.append(
            f"the NLL has no minimum in reach (a gradient of {regression.gradient:.1g} is left): "
            "some classes are separable; a penalty (matrix, dirichlet) or temperature bounds the fit"
        )
    return Fitted({"weight": np.asarray(weight), "bias": b - b.mean()}, notes=notes)


def _odir(predictions: Predictions, job: Job, x: Array, lam: float | None, mu: float | None) -> Fitted:
    """Matrix fit with λ and μ given, or chosen by cross-validation: first λ = μ, then μ around the λ that won.

    Raises:
        InputError: fewer rows than classes: K² weights would be those of the penalty, after a long time.
    """
    if predictions.n < predictions.k:
        problem = f"{predictions.n:,} rows for a weight from each to each of {predictions.k:,} classes"
        raise InputError(problem, "pass more rows than classes, or use temperature or vector")
    shape = Shape("full", predictions.k)
    chosen: dict[str, float | int | str | None] = {}
    start: Array | None = None
    like: Regression | None = None
    if lam is None or mu is None:
        if job.rows is None or "tried" not in job.memory:
            search = _Search(shape, predictions, job, x)
            found = search.best(lam, mu)
            job.memory["tried"], job.memory["like"] = search.tried, search.fits[0]
        else:
            w = np.ones(predictions.n) if predictions.weights is None else predictions.weights
            found = min(job.memory["tried"], key=lambda tried: float(w @ tried.nll[job.rows]))
        (lam, mu), start, like = found.pair, found.start, job.memory["like"]
        chosen = {"lambda": lam, "mu": mu}
    return replace(_fit(shape, predictions, x, lam, mu, start, like), facts=chosen)


@dataclass(frozen=True)
class _Tried:
    """A pair of penalties: its held-out NLL, row by row, and the fit of each fold.

    Attributes:
        start: the mean of the fits, where a fit to other rows may start.
    """

    pair: tuple[float, float]
    nll: Array
    thetas: Sequence[Array]

    @property
    def start(self) -> Array:
        return np.asarray(np.mean(self.thetas, axis=0))


class _Search:
    """Penalties by cross-validation: held-out NLL along lines of pairs, every fit started from the one before it."""

    def __init__(self, shape: Shape, predictions: Predictions, job: Job, x: Array) -> None:
        folds = fold_of_rows(predictions, min(CV_FOLDS, predictions.n), job.seed)
        self.shape, self.x, self.labels, self.job = shape, x, predictions.labels, job
        self.w = np.ones(len(x)) if predictions.weights is None else predictions.weights
        self.out = [np.flatnonzero(folds == fold) for fold in range(int(folds.max()) + 1)]
        inside = [np.flatnonzero(folds != fold) for fold in range(len(self.out))]
        self.fits = [Regression(shape, x[rows], self.labels[rows], self.w[rows]) for rows in inside]
        self.tried: list[_Tried] = []

    def best(self, lam: float | None, mu: float | None) -> _Tried:
        """The best λ and μ; a given one stays."""
        found = self._along([(p if lam is None else lam, p if mu is None else mu) for p in PENALTIES])
        if lam is None and mu is None:
            lam = found.pair[0]
            found = self._along([(lam, min(lam * 10, PENALTIES[0]))], found)
            found = self._along([(lam, lam / 10), (lam, lam / 100)], found)
        return found

    def _along(self, pairs: Sequence[tuple[float, float]], best: _Tried | None = None) -> _Tried:
        """The best pair; stops at one that is clearly worse than the best, or the second in a row that is worse."""
        best = last = best or self._try(pairs[0], None)
        worse = 0
        for pair in pairs:
            if pair == best.pair:
                continue
            last = self._try(pair, last)
            more = self.w * (last.nll - best.nll)
            if more.sum() < 0:
                best, worse = last, 0
                continue
            worse += 1
            if worse == 2 or more.sum() > CLEAR * math.sqrt(float(more @ more)):
                break
        return best

    def _try(self, pair: tuple[float, float], before: _Tried | None) -> _Tried:
        nll, thetas = np.zeros(len(self.x)), list[Array]()
        for fold, (regression, out) in enumerate(zip(self.fits, self.out, strict=True)):
            if regression.blocks is None:
                regression.blocks = self.fits[0].blocks
            start = before.thetas[fold] if before else None
            theta = regression.minimise(*pair, start, gain=ROUGH)
            nll[out] = -log_softmax(self.shape.scores(theta, self.x[out]))[np.arange(len(out)), self.labels[out]]
            thetas.append(theta)
            done = len(self.tried) * len(self.out) + fold + 1
            self.job.step(1 - 0.97**done, f"penalty {pair[0]:g}, {pair[1]:g}")
        self.tried.append(_Tried(pair, nll, thetas))
        return self.tried[-1]
