"""What a scaler is called with: arrays of the kind it was fitted on, checked and made into logits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from calibcli.array_likes import array
from calibcli.errors import InputError
from calibcli.predictions import SHARE_OFF, UNIT_HIGH, UNIT_LOW, Array, Floats, Kind, two_columns, words

FEW = 10  # log-odds that all lie in [0, 1] are believed up to here


def as_logits(scores: ArrayLike, kind: Kind, k: int, columns: int) -> Floats:
    """(n, K) float64 logits or log-probabilities from scores of `kind`.

    Args:
        scores: (n, K); (n,), (n, 1) or (n, 2) where the fit was on one column. Any array-like, torch tensors too.
        kind: what the fit was on.
        k: number of classes.
        columns: columns of the scores that the fit was on.

    Raises:
        InputError: another shape, or what cannot be of this kind.
    """
    raw = array(scores)
    z = np.asarray(raw, np.float64)
    if columns == 1 and (z.ndim == 1 or (z.ndim == 2 and z.shape[1] == 1)):
        column = z.reshape(-1)
        _refuse(_column_fault(column, kind), kind, "(n,)")
        return two_columns(column, kind)
    if z.ndim != 2 or z.shape[1] != k:
        shape = "(n,) or (n, 2)" if columns == 1 else f"(n, {k})"
        raise InputError(f"scores of shape {z.shape} for a calibrator of {k} classes", f"pass an array {shape}")
    _refuse(_fault(z, kind, _tolerance(raw.dtype)), kind, f"(n, {k})")
    if kind == "probabilities":
        with np.errstate(divide="ignore"):
            z = np.log(np.maximum(z, 0.0))
    return z


def _refuse(fault: str, kind: Kind, shape: str) -> None:
    if fault:
        fix = f"pass {words(kind)} {shape} as in the fit" + ("; log p of a probability is one" * (kind == "logits"))
        raise InputError(f"{fault}, and the calibrator was fitted on {words(kind)}", fix)


def _tolerance(dtype: np.dtype[Any]) -> float:
    """How far a row of probabilities may sum from one."""
    return 1e-4 if dtype.itemsize > 2 or dtype.kind != "f" else 1e-2


def _probabilities(z: Array, tolerance: float) -> Array:
    """(n,) whether each row is a distribution."""
    inside = (z.min(axis=1) >= UNIT_LOW) & (z.max(axis=1) <= UNIT_HIGH)
    return np.asarray(inside & (np.abs(z.sum(axis=1) - 1) <= tolerance))


def _fault(z: Floats, kind: Kind, tolerance: float) -> str:
    """Why rows cannot be of this kind, or nothing."""
    if not len(z):
        return ""
    bad = np.isnan(z).any(axis=1) | (z == np.inf).any(axis=1) | (z == -np.inf).all(axis=1)
    if bad.any():
        return f"row {int(bad.argmax())} holds NaN, infinity, or nothing but -infinity"
    if kind == "logits":
        return "every row is a distribution of probabilities" if _probabilities(z, tolerance).all() else ""
    if kind == "probabilities":
        odd = ~_probabilities(z, tolerance)
    else:
        with np.errstate(divide="ignore"):
            odd = ~((z.max(axis=1) <= 1e-6) & (np.abs(np.log(np.exp(np.minimum(z, 1)).sum(axis=1))) <= 10 * tolerance))
    if odd.sum() <= SHARE_OFF * len(z):
        return ""
    row = int(odd.argmax())
    total = np.exp(np.minimum(z[row], 700)).sum() if kind == "log_probabilities" else z[row].sum()
    return f"row {row} lies in {z[row].min():.4g} to {z[row].max():.4g} and its probabilities would sum to {total:.4g}"


def _column_fault(z: Floats, kind: Kind) -> str:
    """The same for one column: of the probability of class 1, its logarithm, or its log-odds."""
    bad = np.isnan(z) | (np.isinf(z) & ~((z < 0) & (kind == "log_probabilities")))
    if bad.any():
        return f"row {int(bad.argmax())} is NaN or infinite"
    inside = (z >= UNIT_LOW) & (z <= UNIT_HIGH)
    if kind == "logits":
        return "every value lies in [0, 1] as a probability does" if inside.all() and len(z) >= FEW else ""
    odd = ~inside if kind == "probabilities" else z > 1e-6
    return f"row {int(odd.argmax())} is {z[int(odd.argmax())]:.4g}" if odd.any() else ""
