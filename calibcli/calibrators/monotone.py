"""Maps of one probability at a time: isotonic regression, histogram binning, beta calibration, top-label maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from calibcli.calibrators.affine import curved, each_class, joined, logistic
from calibcli.calibrators.calibrator import SCALERS, Array, FitContext, FittedParameters, Form, Parameters
from calibcli.calibrators.fitting import raw_argmax
from calibcli.calibrators.program import FAR, NumPy, Operations
from calibcli.calibrators.store import CURVES, CURVES_BY_CLASS
from calibcli.core.number_format import first_few
from calibcli.core.options import BINS, Count
from calibcli.core.statistics import TIE, counted
from calibcli.metrics.corp import pool
from calibcli.scores.likelihood import log_softmax
from calibcli.scores.predictions import Predictions

# With more than 2 classes each class is fitted against the rest, and rows are renormalised. The `of=top` variants map
# the confidence of the predicted class alone; the other classes share the rest in proportion.

Of = Literal["classes", "top"]
TIE_ODDS = 1e-6
"""Log-odds as close as this share one knot of a fit. It is wider than the rule for ties of a metric
(`core.statistics.tie_ends`): a curve that rises from 0 to 1 in less would amplify rounding of new scores."""


def isotonic_curve(score: Array, hit: Array, weights: Array | None, tie: float = 0.0) -> tuple[Array, Array]:
    """Fit an isotonic regression of hits on a score: knots (x, y), linear in between and constant beyond.

    Scores within `tie` of the next count as equal.
    """
    if weights is None:  # values alone are sorted several times as fast as their places
        x, rows = counted(score)
        hits = np.diff(np.searchsorted(np.sort(score[hit > 0]), x, side="right"), prepend=0)
        w, y = rows.astype(np.float64), hits.astype(np.float64)
    else:
        x, where = np.unique(score, return_inverse=True)
        w = np.bincount(where, weights, len(x)).astype(np.float64)
        y = np.bincount(where, hit * weights, len(x)).astype(np.float64)
        x, y, w = x[w > 0], y[w > 0], w[w > 0]
    first = np.flatnonzero(np.append(True, np.diff(x) > tie))
    x, y, w = x[first], np.add.reduceat(y, first), np.add.reduceat(w, first)
    x, y = pool(w, y).knots(x)
    once = np.append(True, np.diff(x) > 0)
    return x[once], y[once]


def packed(curves: Sequence[tuple[Array, Array]], least: float, of: Of) -> Parameters:
    """Pack the knots of several curves into three flat arrays, with values clipped to [least, 1 - least]."""
    return {
        "x": np.concatenate([x for x, _ in curves]),
        "y": np.concatenate([np.clip(y, least, 1 - least) for _, y in curves]),
        "knots": np.array([len(x) for x, _ in curves]),
        **({"top": np.array(1.0)} if of == "top" else {}),
    }


def curves(o: Operations, parameters: Parameters, z: Any, steps: bool = False) -> Any:
    """Map each class by its curve and renormalise; with `top`, map the confidence alone."""
    log_p, log_rest, p = scores(o, parameters, z)
    if "top" in parameters:
        return share(o, z, log_p, log_rest, o.read(parameters, o.max(p), steps))
    if o.classes == 2:
        second = o.read(parameters, o.column(p, 1), steps)
        return o.log(o.join(1.0 - second, second))
    q = o.read(parameters, p, steps)
    return o.log(q / o.sum(q))


def binned(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Map by `curves` that are step functions."""
    return curves(o, parameters, z, steps=True)


def scores(o: Operations, parameters: Parameters, z: Any) -> tuple[Any, Any, Any]:
    """Return ln p, ln(1 - p), and what the curves were fitted to: log-odds or probabilities."""
    log_p, log_rest = o.log_both(z)
    return log_p, log_rest, o.bounded(log_p - log_rest) if "log_odds" in parameters else o.exp(log_p)


def share(o: Operations, z: Any, log_p: Any, log_rest: Any, mapped: Any) -> Any:
    """Set the top probability to `mapped`; the others keep their proportions, and none exceeds the top.

    Let r = p₂ / (1 - p₁), the share of the second class in the rest. Below r / (1 + r) the top would fall under the
    second, so the confidence stops there, just above it, where rounding of the output does not change the top class.
    """
    top, left = o.is_top(z), o.min(log_rest)
    alone = left < -FAR  # the others had no probability: they share evenly what the map leaves them
    others = o.where(alone, -math.log(o.classes - 1), log_p - o.most(left, -FAR))
    others = o.where(top, o.neg_inf(), others)
    second = o.max(others)  # ln r
    mapped = o.most(mapped, 1.0 / (o.exp(0.0 - second) + 1.0))
    log_rest = o.log1p(0.0 - mapped)
    return o.where(top, o.most(o.log(mapped), second + log_rest + 8 * o.eps), others + log_rest)


def _probabilities(logits: Array) -> Array:
    return np.exp(log_softmax(logits))


def _targets(
    predictions: Predictions, of: Of, score: Callable[[Array], Array] = _probabilities
) -> list[tuple[Array, Array]]:
    """Return (score, hit) of every curve to fit."""
    # some rows at a time, whose intermediate arrays take memory that was taken before
    p = np.concatenate([score(np.asarray(rows, np.float64)) for _, rows in predictions.blocks()])
    if of == "top":
        return [(p.max(axis=1), (raw_argmax(predictions) == predictions.labels).astype(np.float64))]
    return [(p[:, c], (predictions.labels == c).astype(np.float64)) for c in curved(predictions.k)]


def _isotonic(predictions: Predictions, of: Of) -> FittedParameters:
    targets = _targets(predictions, of, NumPy(predictions.k).log_odds)
    knots = [isotonic_curve(m, hit, predictions.weights, TIE_ODDS) for m, hit in each_class(targets)]
    least = 1 / (predictions.n + 2)  # never 0 or 1: the NLL stays finite
    return FittedParameters({**packed(knots, least, of), "log_odds": np.array(1.0)})


@SCALERS.add(preserves_accuracy=False, map=curves, form=CURVES, steep=True, of_confidence=True)
def isotonic(predictions: Predictions, context: FitContext) -> FittedParameters:
    """Isotonic regression of each class against the rest, renormalised (Zadrozny & Elkan 2002).

    Linear in the log-odds between the knots of the fit, so that rows near 0 and 1 keep their differences; values are
    within [1/(N+2), 1 - 1/(N+2)].

    >>> calibcli.fit_scaler(logits, labels, "isotonic").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.01, 0.  , 0.22, 0.  , 0.  , 0.  , 0.76])
    """
    return _isotonic(predictions, "classes")


@SCALERS.add(preserves_accuracy=True, map=curves, form=CURVES, steep=True)
def isotonic_top(predictions: Predictions, context: FitContext) -> FittedParameters:
    """Isotonic regression of correctness on the confidence of the predicted class; the others share the rest.

    The confidence does not fall so low that another class would become the largest.

    Ours: the isotonic regression of Zadrozny and Elkan (2002) on the confidence alone.

    >>> calibcli.fit_scaler(logits, labels, "isotonic_top").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.  , 0.  , 0.14, 0.  , 0.  , 0.  , 0.86])
    """
    return _isotonic(predictions, "top")


@SCALERS.add(
    preserves_accuracy=lambda options: options["of"] == "top", map=binned, form=CURVES, steep=True, of_confidence=True
)
def histogram(
    predictions: Predictions, context: FitContext, *, bins: Count = BINS, of: Of = "classes"
) -> FittedParameters:
    """Histogram binning: equal-mass bins of each class's probability, value (n₊ + 1) / (n + 2), renormalised.

    `of=top` bins the confidence of the predicted class alone and keeps every predicted class (Zadrozny & Elkan 2001).

    >>> calibcli.fit_scaler(logits, labels, "histogram:bins=10").predict_proba(logits)[0].round(2)
    array([0.02, 0.  , 0.  , 0.02, 0.  , 0.12, 0.  , 0.  , 0.01, 0.82])
    """
    each = each_class(_targets(predictions, of))
    knots = [bin_curve(p, hit, predictions.weights, bins) for p, hit in each]
    return FittedParameters(packed(knots, 0.0, of))


def bin_curve(p: Array, hit: Array, weights: Array | None, bins: int) -> tuple[Array, Array]:
    """Return lower edges of equal-mass bins of p, and the value (n₊ + 1) / (n + 2) of each bin."""
    if weights is None:
        ordered, mass = np.sort(p), np.arange(1.0, len(p) + 1)
    else:
        order = np.argsort(p, kind="stable")
        ordered, mass = p[order], np.cumsum(weights[order])
    inner = np.searchsorted(mass, mass[-1] * np.arange(1, bins) / bins)
    last = np.unique(ordered[np.minimum(inner, len(p) - 1)])
    after = np.searchsorted(ordered, last + TIE, side="right")
    between = after < len(p)  # an edge lies between two rows, so that rounding moves no row across it
    edges = np.unique((last[between] + ordered[after[between]]) / 2)
    edges = np.concatenate([[-np.inf], edges])
    index = np.clip(np.searchsorted(edges, p, side="left") - 1, 0, len(edges) - 1)
    count = np.bincount(index, weights, len(edges))
    positive = np.bincount(index, hit if weights is None else weights * hit, len(edges))
    return np.maximum(edges, -1.0), (positive + 1) / (count + 2)


def logistic_in_logs(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Apply slopes to ln p and ln(1 - p), and a bias."""
    log_p, log_rest = logs(o, z)
    if o.classes == 2:
        log_p, log_rest = o.column(log_p, 1), o.column(log_rest, 1)
    return joined(o, log_p * o.const(parameters["a"]) - log_rest * o.const(parameters["b"]) + o.const(parameters["c"]))


def logs(o: Operations, z: Any) -> tuple[Any, Any]:
    """Return ln p and ln(1 - p) of every class, at least -700."""
    log_p, log_rest = o.log_both(z)
    return o.most(log_p, -700.0), o.most(log_rest, -700.0)


BETA = {"a": Form("c", 0), "b": Form("c", 0), "c": Form("c")}


@SCALERS.add(preserves_accuracy=False, map=logistic_in_logs, form=BETA, of_confidence=True, cuts=True)
def beta(predictions: Predictions, context: FitContext) -> FittedParameters:
    """Beta calibration: logit = a ln p - b ln(1 - p) + c with a, b >= 0 (Kull et al. 2017).

    Beyond 2 classes one against the rest, renormalised.

    >>> calibcli.fit_scaler(logits, labels, "beta").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.01, 0.  , 0.07, 0.  , 0.  , 0.  , 0.91])
    """
    log_p, log_rest = logs(NumPy(predictions.k), np.asarray(predictions.logits, np.float64))

    def parameters(c: int) -> Array:
        x = np.stack([log_p[:, c], -log_rest[:, c]], axis=1)
        return _beta_fit(x, predictions.labels == c, predictions.weights)

    a, b, c = np.transpose([*map(parameters, each_class(curved(predictions.k)))])
    return FittedParameters({"a": a, "b": b, "c": c})


def _beta_fit(x: Array, positive: Any, weights: Array | None) -> Array:
    """Fit (a, b, c); a negative slope is set to 0 and the others are fitted again."""
    theta = logistic(x, positive, weights, smooth=False)
    if theta[0] >= 0 and theta[1] >= 0:
        return theta
    keep = 1 if theta[0] < 0 else 0
    slope, bias = logistic(x[:, [keep]], positive, weights, smooth=False)
    if slope < 0:
        (bias,) = logistic(x[:, []], positive, weights, smooth=False)
        return np.array([0.0, 0.0, bias])
    return np.array([0.0, slope, bias] if keep else [slope, 0.0, bias])


# Top-label binning maps the confidence by a curve of the predicted class.

By = Literal["histogram", "isotonic"]
NAMED = 5  # most classes that a note names


def by_top(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Map the confidence by the curve of the predicted class."""
    log_p, log_rest, p = scores(o, parameters, z)
    return share(o, z, log_p, log_rest, o.read(parameters, o.max(p), "linear" not in parameters, o.argmax(z)))


@SCALERS.add(preserves_accuracy=True, map=by_top, form=CURVES_BY_CLASS, steep=True)
def top_label(
    predictions: Predictions, context: FitContext, *, by: By = "histogram", points: Count = 50
) -> FittedParameters:
    """Top-label binning: bins of the confidence for each predicted class; others share the rest (Gupta & Ramdas 2022).

    A class that is predicted n times has n // `points` equal-mass bins of value (n₊ + 1) / (n + 2), or with
    `by=isotonic` an isotonic regression; one that is predicted in fewer than `points` rows takes the map of all rows.

    >>> calibcli.fit_scaler(logits, labels, "top_label").predict_proba(logits)[0].round(2)
    array([0. , 0. , 0. , 0. , 0. , 0.3, 0. , 0. , 0. , 0.7])
    """
    top, w = raw_argmax(predictions), predictions.weights
    z = np.asarray(predictions.logits, np.float64)
    sure = (NumPy(predictions.k).log_odds(z) if by == "isotonic" else np.exp(log_softmax(z))).max(axis=1)
    hit = (top == predictions.labels).astype(np.float64)
    counts = w if predictions.weight_kind == "count" else None
    size = np.bincount(top, counts, minlength=predictions.k)

    def curve(rows: Any, n: float) -> tuple[Array, Array]:
        outcomes = sure[rows], hit[rows], None if w is None else w[rows]
        if by == "histogram":
            return bin_curve(*outcomes, max(1, int(n // points)))
        x, y = isotonic_curve(*outcomes, TIE_ODDS)
        return x, np.clip(y, 1 / (n + 2), 1 - 1 / (n + 2))

    of_all = curve(slice(None), float(size.sum()))
    each = enumerate(each_class(size.tolist()))
    curves = [curve(top == c, n) if n >= points else of_all for c, n in each]
    parameters = packed(curves, 0.0, "classes")
    parameters |= {"linear": np.array(1.0), "log_odds": np.array(1.0)} if by == "isotonic" else {}
    few = np.flatnonzero(size < points)
    if not len(few):
        return FittedParameters(parameters)
    names = first_few((predictions.classes[c] if predictions.classes else c for c in few.tolist()), NAMED)
    note = f"{len(few)} of {predictions.k} classes are predicted in fewer than {points} rows and share one map: {names}"
    return FittedParameters(parameters, notes=[note])
