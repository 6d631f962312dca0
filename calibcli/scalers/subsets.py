"""Subsets and folds of rows that stay on disk where the scores do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibcli.predictions import ArrayScores, DerivedScores, PickedScores, Predictions, read
from calibcli.scalers.scaler import Array, Scaler

Ints = NDArray[np.int64]


def fold_of_rows(predictions: Predictions, folds: int, seed: int) -> Ints:
    """(N,) fold of each row, balanced and random; rows of one group share a fold."""
    rng = np.random.default_rng(seed)
    if predictions.groups is not None:
        names, group = np.unique(predictions.groups, return_inverse=True)
        return np.asarray((rng.permutation(len(names)) % folds)[group])
    return rng.permutation(predictions.n) % folds


def subset(predictions: Predictions, rows: Ints) -> Predictions:
    """The given rows (increasing indices): copied where the scores lie in memory, read on demand where they do not."""
    if isinstance(predictions.scores, ArrayScores):
        return predictions.take(rows)
    return predictions.with_rows(rows, PickedScores(predictions.scores, rows))


def sample(predictions: Predictions, rows: int, seed: int = 0) -> Predictions:
    """At most `rows` random rows, in memory."""
    if predictions.n <= rows:
        return predictions
    chosen = np.sort(np.random.default_rng(seed).choice(predictions.n, rows, replace=False))
    return predictions.take(chosen)


@dataclass(frozen=True, eq=False)
class FoldedScores(DerivedScores):
    """Scores where each row goes through the scaler that was fitted without it."""

    scalers: Sequence[Scaler]
    folds: Ints

    def read(self, start: int, stop: int) -> Array:
        block, folds = read(self.inner, start, stop), self.folds[start:stop]
        out = np.empty(block.shape)
        for fold, scaler in enumerate(self.scalers):
            rows = folds == fold
            if rows.any():
                out[rows] = scaler.map(block[rows])
        return out


def raw_argmax(predictions: Predictions) -> Ints:
    """(N,) predicted classes of the raw scores, the lowest index on ties."""
    if predictions.predicted is not None:
        return predictions.predicted
    return np.concatenate([block.argmax(axis=1) for _, block in predictions.blocks()] or [np.empty(0, np.int64)])
