"""Top-k: is the label among the k most probable classes, and how probable were they together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibcli.links import log_softmax
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.metrics.sample import Sample
from calibcli.predictions import Ints, Predictions


def label_rank(predictions: Predictions) -> Ints:
    """(N,) number of classes ahead of the label; of equal scores the lower class is ahead."""
    rank = np.empty(predictions.n, dtype=np.int64)
    for start, block in predictions.blocks():
        labels = predictions.labels[start : start + len(block)]
        own = block[np.arange(len(block)), labels][:, None]
        tied = (block == own) & (np.arange(block.shape[1]) < labels[:, None])
        rank[start : start + len(block)] = (block > own).sum(axis=1) + tied.sum(axis=1)
    return rank


def views(sample: Sample, ks: Sequence[int]) -> dict[int, BinaryOutcomes]:
    """For each k, the probability mass of the top k classes and whether the label is among them."""
    predictions = sample.predictions
    assert predictions is not None
    rank = label_rank(predictions)
    mass = {k: np.empty(predictions.n) for k in ks}
    for start, block in predictions.blocks():
        p = np.exp(log_softmax(block.astype(np.float64)))
        p.partition(sorted({p.shape[1] - k for k in ks if k < p.shape[1]}), axis=1)
        for k in ks:
            mass[k][start : start + len(block)] = np.minimum(p[:, -k:].sum(axis=1), 1.0)
    return {k: sample.outcomes(mass[k], 1 - mass[k], rank < k) for k in ks}
