"""The confidence of the predicted class through a map of that class."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from calibcli.links import log_softmax
from calibcli.predictions import Predictions
from calibcli.scalers.monotone import TIE_ODDS, bin_curve, isotonic_curve, packed, scores, share
from calibcli.scalers.parameters import CURVES_BY_CLASS
from calibcli.scalers.program import NumPy, Operations
from calibcli.scalers.scaler import SCALERS, Array, Fitted, Job, Parameters
from calibcli.scalers.subsets import raw_argmax
from calibcli.spec import Count

By = Literal["histogram", "isotonic"]
NAMED = 5  # classes that a note names


def by_top(o: Operations, given: Parameters, z: Any) -> Any:
    """The confidence through the curve of the predicted class."""
    log_p, log_rest, p = scores(o, given, z)
    return share(o, z, log_p, log_rest, o.read(given, o.max(p), "linear" not in given, o.argmax(z)))


@SCALERS.add(preserves_accuracy=True, map=by_top, form=CURVES_BY_CLASS, steep=True)
def top_label(predictions: Predictions, job: Job, *, by: By = "histogram", points: Count = 50) -> Fitted:
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
        given = sure[rows], hit[rows], None if w is None else w[rows]
        if by == "histogram":
            return bin_curve(*given, max(1, int(n // points)))
        x, y = isotonic_curve(*given, TIE_ODDS)
        return x, np.clip(y, 1 / (n + 2), 1 - 1 / (n + 2))

    of_all = curve(slice(None), float(size.sum()))
    curves = [curve(top == c, n) if n >= points else of_all for c, n in enumerate(size)]
    parameters = packed(curves, 0.0, "classes")
    parameters |= {"linear": np.array(1.0), "log_odds": np.array(1.0)} if by == "isotonic" else {}
    few = np.flatnonzero(size < points)
    if not len(few):
        return Fitted(parameters)
    named = [str(predictions.classes[c] if predictions.classes else c) for c in few[:NAMED]]
    said = ", ".join(named) + (", ..." if len(few) > NAMED else "")
    note = f"{len(few)} of {predictions.k} classes are predicted in fewer than {points} rows and share one map: {said}"
    return Fitted(parameters, notes=[note])
