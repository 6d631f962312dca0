"""Structured matrix and vector scaling: penalties grow with the number of classes and fall with that of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibcli.calibrators.affine import Regression, Shape
from calibcli.calibrators.calibrator import SCALERS, FitContext, FittedParameters, Form, Parameters
from calibcli.calibrators.program import NumPy, Operations
from calibcli.calibrators.store import affine
from calibcli.calibrators.temperature import block_source, tempered
from calibcli.scores.likelihood import fit_beta
from calibcli.scores.predictions import Predictions


def structured(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Compute softmax(W x + b), with x the logarithm of the smoothed probabilities."""
    return o.normalised(o.linear(parameters["weight"], smoothed(o, parameters, z)) + o.const(parameters["bias"]))


def smoothed(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Return the logarithm of tempered probabilities, mixed with a small share of uniform ones."""
    even = float(parameters["even"])
    return o.log(o.softmax(tempered(o, parameters, z)) * (1 - even) + even / o.classes)


def _form(weight: str) -> dict[str, Form]:
    """Return the forms of the parameters; `weight` has the letters of W's axes, "kk" for (K, K) and "k" for (K,)."""
    return {"beta": Form(low=0, high=1e12), "even": Form(low=1e-15, high=1), **affine(weight)}


@SCALERS.add(preserves_accuracy=False, map=structured, form=_form("kk"))
def sms(predictions: Predictions, context: FitContext) -> FittedParameters:
    """Structured matrix scaling: softmax(W x + b) of temperature-scaled x, shrunk to it (Berta et al. 2025).

    x = ln((n q + 1/K) / (n + 1)), q = softmax(z / T) by NLL, n rows. W and b minimise the mean NLL + K / n Σ b²
    + K / n Σ (W_kk - 1)² + K (K - 1) / n Σ_{j≠k} W_jk², so few rows of many classes leave T alone.

    >>> calibcli.fit_scaler(logits, labels, "sms").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.02, 0.  , 0.28, 0.  , 0.  , 0.  , 0.71])
    """
    return _fit("full", predictions)


@SCALERS.add(preserves_accuracy=False, map=structured, form=_form("k"))
def svs(predictions: Predictions, context: FitContext) -> FittedParameters:
    """Structured vector scaling: `sms` with a diagonal W, softmax(v ∘ x + b) (Berta et al. 2025).

    >>> calibcli.fit_scaler(logits, labels, "svs").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.01, 0.  , 0.08, 0.  , 0.  , 0.  , 0.9 ])
    """
    return _fit("diagonal", predictions)


def _fit(kind: str, predictions: Predictions) -> FittedParameters:
    w, k = predictions.weights, predictions.k
    n = float(w.sum()) if w is not None and predictions.weight_kind == "count" else predictions.n
    beta = fit_beta(block_source(predictions)).usable
    parameters: Parameters = {"beta": np.array(beta), "even": np.array(1 / (n + 1))}
    shape = Shape(kind, k)
    x = smoothed(NumPy(k), parameters, np.asarray(predictions.logits, np.float64))
    regression = Regression(shape, x, predictions.labels, w)
    # the penalties are λ / (K (K - 1)) Σ_{j≠k} W_jk², μ / K Σ b² and ε / K Σ (W_kk - 1)², see `Shape.penalty`
    theta = regression.minimise(lam=(k * (k - 1)) ** 2 / n, mu=k * k / n, eps=k * k / n)
    weight = theta[: shape.weights]
    return FittedParameters(
        {**parameters, "weight": weight.reshape(k, k) if kind == "full" else weight, "bias": theta[shape.weights :]}
    )
