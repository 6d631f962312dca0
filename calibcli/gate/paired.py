"""Paired comparisons: McNemar's exact test with the interval that it inverts to, and multiplicity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.metrics.intervals import SMALLEST_P
from calibcli.numerics import clopper_pearson, normal_quantile

Floats = npt.NDArray[np.float64]


def mcnemar(gained: int, lost: int, n: int, level: float) -> tuple[float, float, float]:
    """Interval and p-value of (gained - lost) / n, where two models differ in gained + lost of n rows.

    p: exact, two-sided: each of the rows that differ is gained with chance 1/2 (McNemar 1947; binomial). The interval:
    Clopper and Pearson's for that chance θ, times the share δ of rows that differ, the difference being (2θ - 1) δ. As
    the sign of an end is that of its 2θ - 1, the interval leaves out 0 exactly if p < 1 - level. δ is taken at its
    bound on the far side, at the level z tan(φ/2), sin φ = 2θ - 1, which adds the two distances as their squares.
    """
    from scipy.special import bdtr

    differ = gained + lost
    p = 1.0 if differ == 0 else min(1.0, max(2 * float(bdtr(min(gained, lost), differ, 0.5)), SMALLEST_P))
    tail = (1 - level) / 2
    chance = clopper_pearson(gained, differ, tail) if differ else (0.0, 1.0)
    z = normal_quantile(1 - tail)

    def end(theta: float, upper: bool) -> float:
        s = 2 * theta - 1
        spent = 0.5 * math.erfc(z * math.tan(math.asin(s) / 2) * (1 if s > 0 else -1) / math.sqrt(2))
        bounds = clopper_pearson(differ, n, spent)
        return s * bounds[int((s > 0) == upper)]

    value = (gained - lost) / n
    return min(value, end(chance[0], False)), max(value, end(chance[1], True)), p


def holm(p_values: Any) -> Floats:
    """Holm's step-down adjusted p-values (Holm 1979): rejecting those <= α keeps the family-wise error at α."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted
