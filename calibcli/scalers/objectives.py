"""The NLL and the Brier score of softmax(β z) as functions of β, over blocks of rows."""

from __future__ import annotations

import numpy as np

from calibcli.links import nll_rows
from calibcli.links.moments import Source, shift, weighted
from calibcli.predictions import Array, ArrayScores, Predictions


def block_source(predictions: Predictions) -> Source:
    """The rows as `fit_beta` reads them."""
    y, w = predictions.labels, predictions.weights
    if isinstance(predictions.scores, ArrayScores):
        whole = (predictions.logits, y, w)
        return lambda: (whole,)
    return lambda: (
        (z, y[start : start + len(z)], None if w is None else w[start : start + len(z)])
        for start, z in predictions.blocks()
    )


def nll(source: Source, beta: float) -> float:
    """Weighted mean NLL of softmax(β z)."""
    total = weight = 0.0
    for z, y, w in weighted(source):
        total += float(nll_rows(z, y, beta) @ w)
        weight += float(w.sum())
    return total / weight


def nll_curve(source: Source, betas: Array) -> Array:
    """Weighted mean NLL at each β, as exact as a figure needs: in float32."""
    total, weight = np.zeros(len(betas)), 0.0
    for z, y, w in weighted(source):
        d, own, axis = shift(z, y, np.float32)
        e = np.empty_like(d)
        for i, beta in enumerate(betas):
            np.multiply(d, np.float32(beta), out=e)
            sums = np.exp(e, out=e).sum(axis=axis)
            total[i] += float(w @ np.log(sums)) - beta * float(w @ own)
        weight += float(w.sum())
    return total / weight


def brier(source: Source, beta: float) -> tuple[float, float]:
    """Mean Brier score (sum over classes) of softmax(β z) and its derivative in ln β."""
    total = slope = weight = 0.0
    for z, y, w in weighted(source):
        d, _, axis = shift(z, y, np.float64)
        d = np.maximum(d if axis == 0 else d.T, -1e5)
        p = np.exp(beta * d)
        p /= p.sum(axis=0)
        rate = beta * p * (d - (p * d).sum(axis=0))
        p[y, np.arange(len(y))] -= 1
        total += float((p * p).sum(axis=0) @ w)
        slope += 2 * float((p * rate).sum(axis=0) @ w)
        weight += float(w.sum())
    return total / weight, slope / weight
