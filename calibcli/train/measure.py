"""The numbers of an epoch's log, from the validation logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibcli.columns import Columns, bin_index, columns
from calibcli.predictions import Predictions

Floats = NDArray[np.float64]


def numbers(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> dict[str, float | None]:
    """Point values for the log: no intervals, which the final table has.

    Returns:
        nll, nll_correct, nll_wrong, entropy, p_true, accuracy, error, ece (15 equal-width bins), adaece (15
        equal-mass bins), temperature (None where no finite one is best).
    """
    predictions = Predictions.of(logits, labels)
    c = columns(predictions, class_bins=())
    right = c.correct
    return {
        "nll": float(c.nll.mean()),
        "nll_correct": _mean(c.nll[right]),
        "nll_wrong": _mean(c.nll[~right]),
        "entropy": float(c.entropy.mean()),
        "p_true": float(c.p_true.mean()),
        "accuracy": float(right.mean()),
        "error": float(1 - right.mean()),
        "ece": ece(c),
        "adaece": adaece(c),
        "temperature": temperature(logits, labels),
    }


def ece(c: Columns, bins: int = 15) -> float:
    gaps = np.bincount(bin_index(c.confidence, bins), weights=c.confidence - c.correct, minlength=bins)
    return float(np.abs(gaps).sum() / c.n)


def adaece(c: Columns, bins: int = 15) -> float:
    order = np.argsort(c.confidence, kind="stable")
    gaps = (c.confidence - c.correct)[order]
    return float(sum(abs(part.sum()) for part in np.array_split(gaps, bins)) / c.n)


def temperature(logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float | None:
    """The temperature that minimises NLL: bisection on the slope of the NLL in 1/T, which rises."""
    z = logits.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    at_label = z[np.arange(len(z)), labels].mean()

    def slope(beta: float) -> float:
        p = np.exp(beta * z)
        return float(((p * z).sum(1) / p.sum(1)).mean() - at_label)

    low, high = 1e-3, 1e3
    if slope(low) >= 0 or slope(high) <= 0:
        return None
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return float((low * high) ** -0.5)


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
