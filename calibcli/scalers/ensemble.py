"""Ensemble temperature scaling: a mean of what a temperature says, of what the model says, and of even odds."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibcli.links import fit_beta
from calibcli.predictions import Predictions
from calibcli.scalers.objectives import block_source
from calibcli.scalers.parameters import SHARE, Form
from calibcli.scalers.program import FAR, NumPy, Operations
from calibcli.scalers.scaler import SCALERS, Array, Fitted, Job, Parameters
from calibcli.scalers.temperature import tempered

PARTS = ("tempered", "plain", "uniform")
BARRIERS = tuple(10.0**-e for e in range(2, 15, 2))
NOTHING = 1e-9  # nats that a share may cost to be set to 0


def components(o: Operations, given: Parameters, z: Any) -> list[Any]:
    """Probabilities (n, K): softmax(z / T), softmax(z), and even ones, 0 for classes of probability 0."""
    left = o.number(z > -FAR)
    return [o.softmax(tempered(o, given, z)), o.softmax(z), left / o.sum(left)]


def mixed(o: Operations, given: Parameters, z: Any) -> Any:
    """The mean of the components by their shares."""
    p, q, even = (part * o.const(given[name]) for name, part in zip(PARTS, components(o, given, z), strict=True))
    return o.log(p + q + even)


@SCALERS.add(preserves_accuracy=True, map=mixed, form={"beta": Form(low=0, high=1e12), **dict.fromkeys(PARTS, SHARE)})
def ensemble_temperature(predictions: Predictions, job: Job) -> Fitted:
    """Ensemble temperature scaling: a softmax(z / T) + b softmax(z) + c / K, shares of sum 1 (Zhang et al. 2020).

    T minimises the NLL as in `temperature`, then the shares do; c bounds what a wrong sure row costs.

    >>> calibcli.fit_scaler(logits, labels, "ensemble_temperature").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.01, 0.  , 0.06, 0.  , 0.  , 0.  , 0.93])
    """
    beta = fit_beta(block_source(predictions)).usable
    rows = np.arange(predictions.n)
    z = np.asarray(predictions.logits, np.float64)
    parts = components(NumPy(predictions.k), {"beta": np.array(beta)}, z)
    own = np.stack([part[rows, predictions.labels] for part in parts], axis=1)
    shares = mixture(own, np.ones(len(own)) if predictions.weights is None else predictions.weights)
    return Fitted({"beta": np.array(beta), **dict(zip(PARTS, map(np.array, shares), strict=True))})


def mixture(p: Array, w: Array) -> Array:
    """Shares s of sum 1 that minimise -Σ w ln(p s), for p (n, parts): Newton behind a barrier that comes down.

    The minimum of the mean NLL + Σ s over s >= 0 has sum 1 by itself, as the NLL falls by ln t where s grows t times.
    """
    w = w / w.sum()

    def nll(s: Array) -> float:
        with np.errstate(divide="ignore"):
            return float(-(w @ np.log(p @ s)) + s.sum())

    s = np.full(p.shape[1], 1 / p.shape[1])
    for barrier in BARRIERS:
        for _ in range(50):
            r = p / (p @ s)[:, None]
            g = 1 - w @ r - barrier / s
            step = np.linalg.solve((r * w[:, None]).T @ r + np.diag(barrier / s**2), g)
            length = min(1.0, 0.99 / max(float((step / s).max()), 1e-300))
            value = nll(s) - barrier * float(np.log(s).sum())
            while length > 1e-12 and nll(s - length * step) - barrier * np.log(s - length * step).sum() > value:
                length /= 2
            s = s - length * step
            if float(g @ step) < 1e-15:
                break
    without = np.where(s < 1e-5, 0.0, s)
    s = without if nll(without / without.sum()) <= nll(s / s.sum()) + NOTHING else s
    return np.asarray(s / s.sum())
