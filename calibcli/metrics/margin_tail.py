"""How many rows lie near the border of their class, or beyond it: the tail of the margins."""

from __future__ import annotations

import numpy as np

from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.registry import METRICS, UNIT, Sample
from calibcli.scores.predictions import Floats, Predictions, chunk_rows

NO_ROWS = "needs the scores of each row: the cells of a histogram do not tell it"


@METRICS.add(values=UNIT, better="lower", unit="", needs_scores=True, papers=True)
def margin_tail(sample: Sample) -> MeanOf:
    """Mean of exp(-max(m, 0)), with the margin m: the logit of the label minus the largest other one.

    A row adds t = 1 if it is wrong, else the probability of the second class over that of the first. As
    t/2 <= 1 - p_y <= (K - 1) t in each row, (K - 1) times it bounds the ECE, and 2 (K - 1) times it the mean of
    1 - Σ p², the trace of the matrix that Gauss-Newton curvature has from each row.

    No unit ("Too Sharp, Too Sure" 2026, arXiv 2604.20614).

    >>> round(calibcli.measure(logits, labels, "margin_tail")["margin_tail"].value, 4)
    0.1046
    """
    if sample.columns.condensed:
        none = np.zeros(sample.columns.n, bool)
        return MeanOf(sample, none.astype(np.float64), none, (0.0, 1.0), empty=NO_ROWS)
    assert sample.predictions is not None  # as the trait `needs_scores` says
    return MeanOf(sample, tails(sample.predictions), ends=(0.0, 1.0))


def tails(predictions: Predictions) -> Floats:
    """Compute exp(-max(m, 0)), (N,) float64 in [0, 1], block by block."""
    scores, out = predictions.plain.scores, np.empty(predictions.n)
    step = chunk_rows(scores)
    for start in range(0, predictions.n, step):
        z = np.array(scores.read(start, start + step), np.float64)  # (rows, K), a copy
        rows, labels = np.arange(len(z)), np.asarray(predictions.labels[start : start + step])
        own = z[rows, labels]
        z[rows, labels] = -np.inf
        out[start : start + step] = np.exp(-np.maximum(own - z.max(axis=1), 0))
    return out
