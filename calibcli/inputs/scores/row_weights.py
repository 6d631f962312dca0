"""Weights of rows."""

from __future__ import annotations

import dataclasses

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.files.text import floats_of_text
from calibcli.predictions import Array, ArrayScores, Floats, PickedScores, Predictions


def weights(values: Array, name: str, kind: str) -> Floats:
    """Finite weights >= 0 as float64.

    Raises:
        InputError: otherwise, or `count` weights that are not whole.
    """
    if values.dtype.kind in "USO":
        values = floats_of_text(values, name, "the weights")
    w = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~(np.isfinite(w) & (w >= 0)))
    if len(bad):
        raise InputError(f"weight {w[bad[0]]:g} in row {bad[0]} ('{name}')", "weights are finite and not negative")
    if not w.any():
        raise InputError(f"weights '{name}' are all 0", "pass weights that are not all 0")
    with np.errstate(over="ignore"):
        total = float(w.sum())
    if kind == "count" and total > 2**53:
        raise InputError(f"weights '{name}' count {total:.3g} rows", "use --weight-kind sampling")
    used = w[w > 0]
    if used.min() < 1e-100 or used.max() > 1e100:  # their squares are summed
        problem = f"weights '{name}' run from {used.min():.3g} to {used.max():.3g}"
        raise InputError(problem, "divide them by the largest of them")
    odd = np.flatnonzero(w != np.floor(w))
    if kind == "count" and len(odd):
        problem = f"weight {w[odd[0]]:g} in row {odd[0]} ('{name}') is not a count"
        raise InputError(problem, "use --weight-kind sampling")
    return w


def counted(found: Predictions) -> Predictions:
    """Without rows of weight 0, which no number may depend on, nor a bound or a fold."""
    if found.weights is None or found.weights.all():
        return found
    index = np.flatnonzero(found.weights)
    memory = isinstance(found.scores, ArrayScores)
    kept = found.take(index) if memory else found.with_rows(index, PickedScores(found.scores, index))
    note = f"weight 0: {found.n - kept.n:,} of {found.n:,} rows left out"
    return dataclasses.replace(kept, notes=[*kept.notes, note])
