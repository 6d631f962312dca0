"""Maps of one probability at a time: isotonic regression, histogram binning and beta calibration.

With more than 2 classes each is fitted one class against the rest and rows are renormalised; `of=top` variants map the
confidence of the predicted class alone and share what is left among the others in proportion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from calibcli.links import log_both, log_softmax
from calibcli.metrics.isotonic import pool
from calibcli.numerics import TIE
from calibcli.predictions import Predictions
from calibcli.scalers.affine import curved, joined, log_odds, logistic
from calibcli.scalers.parameters import CURVES, Form
from calibcli.scalers.scaler import SCALERS, Array, Fitted, Job, Parameters
from calibcli.scalers.subsets import raw_argmax
from calibcli.spec import Count

Of = Literal["classes", "top"]
TIE_ODDS = 1e-6
"""Log-odds as close as this are one knot of a fit. Wider than the rule for ties of a metric (`numerics.tie_ends`): a
curve that rises from 0 to 1 in less would map rounding in new scores to anything between."""


def isotonic_curve(score: Array, hit: Array, weights: Array | None, tie: float = 0.0) -> tuple[Array, Array]:
    """Knots (x, y) of the isotonic regression of hits on a score; linear between knots, constant beyond them.

    Scores within `tie` of the next are one.
    """
    x, where = np.unique(score, return_inverse=True)
    w = np.bincount(where, weights, len(x)).astype(np.float64)
    y = np.bincount(where, hit if weights is None else hit * weights, len(x)).astype(np.float64)
    keep = w > 0
    x, y, w = x[keep], y[keep], w[keep]
    first = np.flatnonzero(np.append(True, np.diff(x) > tie))
    x, y, w = x[first], np.add.reduceat(y, first), np.add.reduceat(w, first)
    x, y = pool(w, y).knots(x)
    once = np.append(True, np.diff(x) > 0)
    return x[once], y[once]


def packed(curves: Sequence[tuple[Array, Array]], least: float, of: Of) -> Parameters:
    """Knots of several curves in three flat arrays, as they are saved; values within [least, 1 - least]."""
    return {
        "x": np.concatenate([x for x, _ in curves]),
        "y": np.concatenate([np.clip(y, least, 1 - least) for _, y in curves]),
        "knots": np.array([len(x) for x, _ in curves]),
        **({"top": np.array(1.0)} if of == "top" else {}),
    }


def unpacked(parameters: Parameters) -> list[tuple[Array, Array]]:
    """The curves of `packed`."""
    cuts = np.cumsum(parameters["knots"])[:-1]
    return list(zip(np.split(parameters["x"], cuts), np.split(parameters["y"], cuts), strict=True))


def _apply_curves(read: Callable[[Array, Array, Array], Array]) -> Callable[[Parameters, Array], Array]:
    """The map that reads one curve per class (or one for the top label) with `read(p, x, y)`."""

    def apply(parameters: Parameters, logits: Array) -> Array:
        curves = unpacked(parameters)
        p = (log_odds if "log_odds" in parameters else _probabilities)(logits)
        if "top" in parameters:
            return share(logits, lambda rows, top: read(p[rows, top], *curves[0]))
        if logits.shape[1] == 2:
            one = read(p[:, 1], *curves[0])
            return np.log(np.stack([1 - one, one], axis=1))
        out = np.stack([read(p[:, c], x, y) for c, (x, y) in enumerate(curves)], axis=1)
        return np.asarray(np.log(out / out.sum(axis=1, keepdims=True)))

    return apply


def share(logits: Array, function: Callable[[Any, Any], Array]) -> Array:
    """The top probability becomes `function(rows, top)`; the others keep their proportions, and none passes the top.

    With r = p₂ / (1 - p₁) the share of the second in what is left, it overtakes the top below r / (1 + r): the
    confidence stops there, just above it where the first of two equal classes would be another.
    """
    log_p = log_softmax(logits)
    rows, top = np.arange(len(log_p)), logits.argmax(axis=1)
    mapped = function(rows, top)
    log_p[rows, top] = -np.inf
    alone = np.isneginf(log_p).all(axis=1)  # nothing is left to others: what the map leaves them is shared evenly
    log_p[alone] = 0.0
    log_p[rows, top] = -np.inf
    others = log_softmax(log_p)
    second = others.argmax(axis=1)
    r = np.exp(others[rows, second])
    mapped = np.maximum(mapped, r / (1 + r))
    others += np.log1p(-mapped)[:, None]
    highest = others[rows, second]
    least = np.where(second < top, np.nextafter(highest, np.inf), highest)
    others[rows, top] = np.maximum(np.log(mapped), least)
    return others


def in_bins(p: Array, x: Array, y: Array) -> Array:
    """Value of the bin (x[b], x[b + 1]] that p falls in; the first and the last reach to the ends."""
    return np.asarray(y[np.clip(np.searchsorted(x, p, side="left") - 1, 0, len(y) - 1)])


def _probabilities(logits: Array) -> Array:
    return np.exp(log_softmax(logits))


def _targets(
    predictions: Predictions, of: Of, score: Callable[[Array], Array] = _probabilities
) -> list[tuple[Array, Array]]:
    """(score, hit) of every curve to fit."""
    p = score(np.asarray(predictions.logits, np.float64))
    if of == "top":
        return [(p.max(axis=1), (raw_argmax(predictions) == predictions.labels).astype(np.float64))]
    return [(p[:, c], (predictions.labels == c).astype(np.float64)) for c in curved(predictions.k)]


def _isotonic(predictions: Predictions, of: Of) -> Fitted:
    curves = [isotonic_curve(m, hit, predictions.weights, TIE_ODDS) for m, hit in _targets(predictions, of, log_odds)]
    least = 1 / (predictions.n + 2)  # never 0 or 1: the NLL stays finite
    return Fitted({**packed(curves, least, of), "log_odds": np.array(1.0)})


@SCALERS.add(preserves_accuracy=False, apply=_apply_curves(np.interp), form=CURVES, of_confidence=True)
def isotonic(predictions: Predictions, job: Job) -> Fitted:
    """Isotonic regression of each class against the rest, renormalised (Zadrozny & Elkan 2002).

    Linear in the log-odds between the knots of the fit, so that rows near 0 and 1 are told apart; values kept within
    [1/(N+2), 1 - 1/(N+2)].

    >>> calibcli.fit_scaler(logits, labels, "isotonic").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.01, 0.  , 0.22, 0.  , 0.  , 0.  , 0.76])
    """
    return _isotonic(predictions, "classes")


@SCALERS.add(preserves_accuracy=True, apply=_apply_curves(np.interp), form=CURVES)
def isotonic_top(predictions: Predictions, job: Job) -> Fitted:
    """Isotonic regression of correctness on the confidence of the predicted class; the others share the rest.

    The confidence does not fall below where another class would become the largest.

    Ours: the isotonic regression of Zadrozny and Elkan (2002) on the confidence alone.

    >>> calibcli.fit_scaler(logits, labels, "isotonic_top").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.  , 0.  , 0.14, 0.  , 0.  , 0.  , 0.86])
    """
    return _isotonic(predictions, "top")


@SCALERS.add(
    preserves_accuracy=lambda options: options["of"] == "top",
    apply=_apply_curves(in_bins),
    form=CURVES,
    of_confidence=True,
)
def histogram(predictions: Predictions, job: Job, *, bins: Count = 15, of: Of = "classes") -> Fitted:
    """Histogram binning: equal-mass bins of each class's probability, value (n₊ + 1) / (n + 2), renormalised.

    `of=top` bins the confidence of the predicted class alone and keeps every predicted class (Zadrozny & Elkan 2001).

    >>> calibcli.fit_scaler(logits, labels, "histogram:bins=10").predict_proba(logits)[0].round(2)
    array([0.02, 0.  , 0.  , 0.02, 0.  , 0.12, 0.  , 0.  , 0.01, 0.82])
    """
    curves = [bin_curve(p, hit, predictions.weights, bins) for p, hit in _targets(predictions, of)]
    return Fitted(packed(curves, 0.0, of))


def bin_curve(p: Array, hit: Array, weights: Array | None, bins: int) -> tuple[Array, Array]:
    """Lower edges of equal-mass bins of p, and the value (n₊ + 1) / (n + 2) of each."""
    w = np.ones(len(p)) if weights is None else weights
    order = np.argsort(p, kind="stable")
    mass = np.cumsum(w[order])
    inner = np.searchsorted(mass, mass[-1] * np.arange(1, bins) / bins)
    ordered = p[order]
    last = np.unique(ordered[np.minimum(inner, len(p) - 1)])
    after = np.searchsorted(ordered, last + TIE, side="right")
    between = after < len(p)  # an edge lies between two rows, so that rounding moves no row across it
    edges = np.unique((last[between] + ordered[after[between]]) / 2)
    edges = np.concatenate([[-np.inf], edges])
    index = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, len(edges) - 1)
    count, positive = np.bincount(index, w, len(edges)), np.bincount(index, w * hit, len(edges))
    return np.maximum(edges, -1.0), (positive + 1) / (count + 2)


def _apply_beta(parameters: Parameters, logits: Array) -> Array:
    log_p, log_rest = _logs(logits)
    columns = curved(logits.shape[1])
    return joined(parameters["a"] * log_p[:, columns] - parameters["b"] * log_rest[:, columns] + parameters["c"])


BETA = {"a": Form("c", 0), "b": Form("c", 0), "c": Form("c")}


@SCALERS.add(preserves_accuracy=False, apply=_apply_beta, form=BETA, of_confidence=True)
def beta(predictions: Predictions, job: Job) -> Fitted:
    """Beta calibration: logit = a ln p - b ln(1 - p) + c with a, b >= 0 (Kull et al. 2017).

    Beyond 2 classes one against the rest, renormalised.

    >>> calibcli.fit_scaler(logits, labels, "beta").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.01, 0.  , 0.07, 0.  , 0.  , 0.  , 0.91])
    """
    log_p, log_rest = _logs(np.asarray(predictions.logits, np.float64))
    a, b, c = np.transpose(
        [
            _beta_fit(np.stack([log_p[:, c], -log_rest[:, c]], axis=1), predictions.labels == c, predictions.weights)
            for c in curved(predictions.k)
        ]
    )
    return Fitted({"a": a, "b": b, "c": c})


def _beta_fit(x: Array, positive: Any, weights: Array | None) -> Array:
    """(a, b, c); a negative slope is set to 0 and the others are fitted again."""
    theta = logistic(x, positive, weights, smooth=False)
    if theta[0] >= 0 and theta[1] >= 0:
        return theta
    keep = 1 if theta[0] < 0 else 0
    slope, bias = logistic(x[:, [keep]], positive, weights, smooth=False)
    if slope < 0:
        (bias,) = logistic(x[:, []], positive, weights, smooth=False)
        return np.array([0.0, 0.0, bias])
    return np.array([0.0, slope, bias] if keep else [slope, 0.0, bias])


def _logs(logits: Array) -> tuple[Array, Array]:
    """ln p and ln(1 - p) of every class, at least -700."""
    log_p, log_rest = log_both(logits)
    return np.maximum(log_p, -700), np.maximum(log_rest, -700)
