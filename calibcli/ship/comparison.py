"""What was written against the calibrator in float64, on real rows. Nothing is kept that is further off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError
from calibcli.scalers import Labels, Scaler

Array = NDArray[Any]
LIMITS = {"float64": 1e-9, "float32": 1e-6, "float16": 1e-6, "bfloat16": 1e-6}
DRAWS = 8  # of rounding, where a half-precision head is rounded


class Inexact(InputError):
    """What was written is further from the calibrator than its limit."""


@dataclass(frozen=True)
class Compared:
    """One comparison.

    Attributes:
        n: rows.  most: the largest difference of a probability, in row `row`.  limit: what it may be.
        changed: rows whose predicted class is not the calibrator's.
        rounding: what arithmetic and storage cost by themselves.
    """

    n: int
    most: float
    row: int
    limit: float
    changed: int
    rounding: float | None = None

    @property
    def within(self) -> bool:
        return self.most <= self.limit

    @property
    def text(self) -> str:
        """`max|dp| 3.0e-08 on 997 rows (limit 1e-06), no predicted class changed`."""
        changed = f"{self.changed or 'no'} predicted class{'es' if self.changed > 1 else ''} changed"
        cost = "" if self.rounding is None else f", twice what rounding alone costs is {2 * self.rounding:.2g}"
        return f"max|dp| {self.most:.2g} on {self.n:,} rows (limit {self.limit:.2g}{cost}), {changed}"

    def require(self, what: str, fix: str = "") -> None:
        """Refuse what is further off than its limit.

        Raises:
            Inexact: it is.
        """
        if not self.within:
            problem = (
                f"{what} is off by max|dp| = {self.most:.3g} (row {self.row} of {self.n:,}), "
                f"its limit is {self.limit:.3g}; {self.changed} predicted classes changed; nothing was written"
            )
            raise Inexact(problem, fix or "check that model, rows and calibrator belong together, or pass --tolerance")


def compare(
    expected: Array,
    found: Array,
    dtype: str = "float32",
    tolerance: float | None = None,
    raw: Array | None = None,
    rounding: Callable[[], float | None] = lambda: None,
) -> Compared:
    """Compare probabilities.

    Args:
        expected: (n, K) log-probabilities of the calibrator, float64.
        found: (n, K) probabilities of what was written.
        dtype: that it works in.
        tolerance: the limit, where the user named one.
        raw: (n, K) scores before, where the calibrator keeps their predicted classes.
        rounding: what arithmetic and storage cost without a calibrator; asked where `found` is beyond its limit.
    """
    p = np.asarray(found, np.float64)
    if p.shape != expected.shape:
        shapes = f"{tuple(p.shape)} for {tuple(expected.shape)}"
        raise InputError(f"what was written gives outputs of shape {shapes}; nothing was written", "check --model")
    far = np.abs(np.exp(expected) - p)
    worst = np.nan_to_num(far.max(axis=1, initial=0.0), nan=np.inf)
    classes = (expected if raw is None else raw).argmax(axis=1)
    limit, cost = LIMITS[dtype] if tolerance is None else tolerance, None
    if tolerance is None and worst.max(initial=0.0) > limit and (cost := rounding()) is not None:
        limit = max(limit, 2 * cost)
    row = int(worst.argmax())
    return Compared(len(p), float(worst[row]), row, limit, int((p.argmax(axis=1) != classes).sum()), cost)


def of_scores(scaler: Scaler, fed: Array, found: Array, dtype: str, tolerance: float | None = None) -> Compared:
    """What a calibrator of its own gives for the scores `fed`, as it was given them."""
    wide = fed.astype(np.float64)
    expected = np.asarray(scaler(wide))
    if isinstance(scaler, Labels):  # each label of each row is a problem of its own
        p, q = np.exp(expected).ravel(), np.asarray(found, np.float64).ravel()
        with np.errstate(divide="ignore"):
            return compare(np.log(np.stack([1 - p, p], axis=1)), np.stack([1 - q, q], axis=1), dtype, tolerance)
    raw = wide if scaler.preserves_accuracy and scaler.columns > 1 else None
    return compare(expected, found, dtype, tolerance, raw)


def softmax(scores: Array) -> Array:
    """Probabilities (n, K) of scores that are logits or log-probabilities."""
    from calibcli.links import log_softmax

    return np.exp(log_softmax(np.asarray(scores, np.float64)))
