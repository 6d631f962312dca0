"""Differences of two models on the same rows, with one-sided bounds for their mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean with what its bounds need.

    Attributes:
        value: the mean.
        se: standard error; of group sums where rows are grouped.
        square: standard error if the mean were 0; larger than `se` where the mean is far from 0.
        unseen: Σ(share)², the variance that one unseen row (or group) of size 1 would bring.
        degrees: of Student's t for grouped rows, else None.
        n: rows.
    """

    value: float
    se: float
    square: float
    unseen: float
    degrees: int | None
    n: int

    def quantile(self, alpha: float) -> float:
        """z of the one-sided level 1 - alpha."""
        if self.degrees is None:
            return NormalDist().inv_cdf(1 - alpha)
        from scipy.special import stdtrit

        return float(stdtrit(self.degrees, 1 - alpha))

    def half(self, alpha: float, *, counts: bool = False) -> float:
        """Distance from the mean to its bound at 1 - alpha.

        Args:
            counts: differences in {-1, 0, 1}, where the plain form is too short when few rows differ: solve
                h² = z² (square² + unseen h), the form that allows for differences which happened not to be seen.
        """
        z = self.quantile(alpha)
        if not counts:
            return z * self.se
        a = z * z * self.unseen
        return (a + math.sqrt(a * a + 4 * (z * self.square) ** 2)) / 2

    def p_value(self) -> float:
        """Two-sided p-value of mean = 0; 1 when every difference is 0."""
        if self.se == 0:
            return 1.0 if self.value == 0 else 0.0
        ratio = abs(self.value) / self.se
        if self.degrees is None:
            return math.erfc(ratio / math.sqrt(2))
        from scipy.special import stdtr

        return float(2 * stdtr(self.degrees, -ratio))


def mean(values: Any, *, weights: Any = None, weight_kind: str = "sampling", groups: Any = None) -> Mean:
    """Mean of `values` (N,) with its standard error for independent, weighted or grouped rows.

    Args:
        weights: (N,) >= 0: importance (`sampling`) or frequency (`count`).
        groups: (N,) labels of rows that belong together: the error is that of the group sums.
    """
    x = np.asarray(values, dtype=np.float64)
    w = np.ones_like(x) if weights is None else np.asarray(weights, dtype=np.float64)
    total = float(w.sum())
    counts = weight_kind == "count" and weights is not None
    n = round(total) if counts else len(x)
    share = w / total
    value = float(share @ x)
    if groups is None:
        square = share / total if counts else share * share
        correction = n / (n - 1) if n > 1 else math.inf
        spread = float(square @ (x - value) ** 2) * correction if n > 1 else math.inf
        return Mean(
            value=value,
            se=math.sqrt(spread),
            square=math.sqrt(float(square @ x**2)),
            unseen=float(square.sum()),
            degrees=None,
            n=n,
        )
    labels, member = np.unique(np.asarray(groups), return_inverse=True)
    count = len(labels)
    correction = count / (count - 1) if count > 1 else math.inf
    centred = np.bincount(member, weights=share * (x - value))
    raw = np.bincount(member, weights=share * x)
    weight = np.bincount(member, weights=share)
    return Mean(
        value=value,
        se=math.sqrt(float(centred @ centred) * correction),
        square=math.sqrt(float(raw @ raw) * correction),
        unseen=float(weight @ weight),
        degrees=max(count - 1, 1),
        n=n,
    )


def holm(p_values: Any) -> Floats:
    """Holm's step-down adjusted p-values (Holm 1979): rejecting those <= α keeps the family-wise error at α."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
