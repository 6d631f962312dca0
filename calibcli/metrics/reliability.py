"""A reliability table, of which binned errors are functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from calibcli.predictions import Floats, Ints


@dataclass(frozen=True, eq=False)
class Bins:
    """A reliability table: one entry per bin, in shares of the total weight.

    Attributes:
        lower, upper: edges of the bins.
        rows: number of rows.
        weight: Σw / W.  p: Σ w p / W.  hit: Σ w y / W.  d: Σ w (p - y) / W, the signed gap times the weight.
        square: variance of `weight` when rows are drawn: Σ w² / W² (Σ w / W² for counts).
        spread: the same of d, about 0.  null: the same of d under perfect calibration, given the confidences.
        total: rows behind the shares (sum of the weights where they are counts).
    """

    lower: Floats
    upper: Floats
    rows: Ints
    weight: Floats
    p: Floats
    hit: Floats
    d: Floats
    square: Floats
    spread: Floats
    null: Floats
    total: float

    @cached_property
    def gap(self) -> Floats:
        """Mean confidence minus accuracy per bin, 0 where empty."""
        return _ratio(self.d, self.weight)

    @property
    def confidence(self) -> Floats:
        return _ratio(self.p, self.weight)

    @property
    def accuracy(self) -> Floats:
        return _ratio(self.hit, self.weight)

    @property
    def effective(self) -> Floats:
        """Effective rows per bin: (Σw)²/Σw²."""
        return _ratio(self.weight**2, self.square)

    @property
    def filled(self) -> npt.NDArray[np.bool_]:
        return self.weight > 0


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
