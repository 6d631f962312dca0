"""How strong a focal loss is: its gradient against cross-entropy's, and the γ that a probability calls for.

`grad FL = g(p, γ) grad CE` per sample, with `g = (1-p)^γ - γ p (1-p)^(γ-1) log p` (Mukhoti et al. 2020).
"""

from __future__ import annotations

import math

from calibcli.errors import UsageError
from calibcli.numerics import bisect

EXACT = 1100  # halvings after which the ends of any bracket are neighbours in float64


def focal_factor(p: float, gamma: float) -> float:
    """`g(p, γ)`, the ratio of the focal gradient to that of cross-entropy, for 0 < p < 1."""
    return math.exp(gamma * math.log1p(-p)) * (1 - gamma * p * math.log(p) / (1 - p))


def gamma_star(p0: float) -> float:
    """The smallest γ for which g(p, γ) <= 1 at every p >= p0; 0 for p0 >= 1/2.

    The root of `f(γ) = (γ-1) ln a + ln(a - γ b)`, a = 1-p0, b = p0 ln p0, to the right of its maximum: concave. Equal
    to the closed form with Lambert's W_{-1}, but keeps its digits near 1/2.

    Raises:
        UsageError: p0 <= 0 (γ* is infinite) or p0 > 1.
    """
    if not 0 < p0 <= 1:
        raise UsageError(f"p0={p0} has no γ*", "pass a probability above 0 (γ* grows without bound towards 0)")
    if p0 >= 0.5:
        return 0.0
    a, b, log_a = 1 - p0, p0 * math.log(p0), math.log1p(-p0)

    def f(gamma: float) -> float:
        return (gamma - 1) * log_a + math.log(a - gamma * b)

    top = max(a / b - 1 / log_a, 0.0)
    high = top + 1e-3
    while f(high) > 0:
        high = top + 2 * (high - top)
    return bisect(f, top, high, EXACT)[0]


def peak_p(gamma: float) -> float:
    """The probability at which g(p, γ) is largest: the root of `2 (1-p)/log p + 1 - γ p`, for γ > 0."""
    return bisect(lambda p: 2 * (1 - p) / math.log(p) + 1 - gamma * p, 1e-300, 0.5, EXACT)[0]


def critical_p(gamma: float) -> float:
    """The probability p0(γ) above which g(p, γ) < 1: gradients shrink there and grow below, for γ > 0."""
    return bisect(lambda p: math.log(focal_factor(p, gamma)), peak_p(gamma), 0.5, EXACT)[0]
