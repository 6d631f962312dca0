"""Labels as class numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError
from calibcli.spec import real


def to_labels(labels: NDArray[Any], source: str) -> tuple[NDArray[np.int64], list[str]]:
    """Labels as (N,) int64: (N, 1) squeezed, one-hot rows converted, whole floats accepted.

    Raises:
        InputError: not whole numbers, negative, or of another shape.
    """
    notes: list[str] = []
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and bool((((labels == 0) | (labels == 1)).all(1) & (labels.sum(1) == 1)).all()):
        labels = labels.argmax(1)
        notes.append("one-hot labels were converted to class numbers")
    if labels.ndim != 1:
        raise InputError(f"{source}: labels have shape {labels.shape}", "pass one class number per row")
    if labels.dtype.kind not in "iubf":
        raise InputError(f"{source}: labels are {labels.dtype}, not numbers", "number the classes 0 to K-1")
    if not len(labels):
        raise InputError(f"{source} has no rows", "pass at least one row")
    with np.errstate(invalid="ignore"):  # NaN becomes some number, and is found below
        whole = labels.astype(np.int64)
    wrong = np.flatnonzero((whole != labels) | (whole < 0))
    if len(wrong):
        raise InputError(
            f"{source}: label {labels[wrong[0]]} in row {wrong[0]} is not a class number ({len(wrong)} such rows)",
            "number the classes 0 to K-1, and leave out rows without a class",
        )
    return whole, notes


def from_names(names: Sequence[str]) -> tuple[NDArray[Any], list[str] | None]:
    """Labels from text: numbers as they are, anything else as the sorted class names and an index into them."""
    try:
        return np.array([real(name) for name in names]), None
    except ValueError:
        classes, index = np.unique(np.array(names), return_inverse=True)
        return index.astype(np.int64), classes.tolist()
