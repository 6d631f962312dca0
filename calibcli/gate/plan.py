"""How many rows a gate needs: the chance that its verdict is reached, as a function of n."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from calibcli.columns import Edges, bin_index
from calibcli.metrics.bounds import norm_quantile

Floats = npt.NDArray[np.float64]
LARGEST = 10**9
DRAWS = 4_000
QUICK = 2_000


@dataclass(frozen=True, eq=False, kw_only=True)
class EcePopulation:
    """What one row of the future evaluation brings to the binned calibration error.

    Attributes:
        gap: (B,) population d_b = E[(c - y) 1_b].
        square: (B,) E[(c - y)² 1_b].
        null: (B,) E[c (1 - c) 1_b].
    """

    gap: Floats
    square: Floats
    null: Floats

    @property
    def ece(self) -> float:
        return float(np.abs(self.gap).sum())

    @classmethod
    def from_rows(
        cls,
        confidence: Any,
        correct: Any,
        *,
        bins: int = 15,
        edges: Edges = "right",
        truth: float | None = None,
        weights: Any = None,
    ) -> EcePopulation:
        """From a pilot of n rows.

        Args:
            truth: the population ECE to assume; the pilot's gaps are scaled to it. None takes the pilot's own, shrunk
                towards 0 by the part of Σd̂² that is noise (James and Stein).
        """
        c, y = np.asarray(confidence, np.float64), np.asarray(correct, np.float64)
        share = np.full(len(c), 1 / len(c)) if weights is None else np.asarray(weights, np.float64) / np.sum(weights)
        index = bin_index(c, bins, edges)
        width = bins + (edges == "torchmetrics")

        def per_bin(x: Floats) -> Floats:
            return np.bincount(index, weights=share * x, minlength=width).astype(np.float64)

        gap, square = per_bin(c - y), per_bin((c - y) ** 2)
        if truth is not None:
            mass = per_bin(np.ones_like(c))
            shape = gap if np.abs(gap).sum() > 0 else mass
            gap = shape * (truth / np.abs(shape).sum())
        else:
            noise = float((square - gap**2).sum() * (share @ share))
            energy = float(gap @ gap)
            gap = gap * math.sqrt(max(0.0, 1 - noise / energy)) if energy > 0 else gap
        return cls(gap=gap, square=square, null=per_bin(c * (1 - c)))

    @classmethod
    def assumed(
        cls, accuracy: float, truth: float, *, bins: int = 15, edges: Edges = "right", event: bool = False
    ) -> EcePopulation:
        """Confidences spread as Beta(6, 6 (1 - a) / a) with mean a, each too high by `truth`.

        Args:
            event: they are of two classes, either of which is predicted as often; the rows are P(class 1).
        """
        grid = (np.arange(200_000) + 0.5) / 200_000
        from scipy.special import betaincinv

        c = betaincinv(6.0, 6 * (1 - accuracy) / accuracy, grid)
        hit = np.clip(c - truth, 0, 1)
        if event:
            c, hit = np.concatenate([c, 1 - c]), np.concatenate([hit, 1 - hit])
        index = bin_index(c, bins, edges)
        width = bins + (edges == "torchmetrics")

        def per_bin(x: Floats) -> Floats:
            return np.bincount(index, weights=x, minlength=width) / len(c)

        square = hit * (1 - c) ** 2 + (1 - hit) * c**2
        return cls(gap=per_bin(c - hit), square=per_bin(square), null=per_bin(c * (1 - c)))

    def power(self, limit: float, *, alpha: float, family: int = 1, draws: int = DRAWS, seed: int = 0) -> Power:
        """Chance of PASS and of FAIL at n rows, from normal bins around the population's gaps."""
        used = self.square > 0
        covariance = np.diag(self.square[used]) - np.outer(self.gap[used], self.gap[used])
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))
        noise = np.random.default_rng(seed).standard_normal((draws, int(used.sum()))) @ root.T
        gap, total = self.gap[used], float(self.square.sum())
        z = NormalDist().inv_cdf(1 - alpha)
        reach = norm_quantile(np.diag(np.maximum(self.square, self.null)), 1 - alpha / family, seed)

        def chance(n: float) -> tuple[float, float]:
            found = np.abs(gap + noise / math.sqrt(n)).sum(axis=1)
            a = z * z / n
            upper = found + (a + math.sqrt(a * a + 4 * a * total)) / 2
            return float((upper <= limit).mean()), float((found - reach / math.sqrt(n) > limit).mean())

        return chance


Power = Callable[[float], tuple[float, float]]
"""n -> (chance of PASS, chance of FAIL)."""


def mean_power(
    truth: float,
    sd: float,
    limit: float,
    *,
    better: str,
    alpha: float,
    family: int = 1,
    at_limit: float | None = None,
) -> Power:
    """Chance of PASS and FAIL for a mean of independent rows.

    Args:
        truth, sd: mean and standard deviation of one row.
        better: `lower` (limit is a maximum) or `higher` (a minimum).
        at_limit: standard deviation that the bounds take (that of a share equal to the limit); None: `sd`.
    """
    normal = NormalDist()
    sign = 1.0 if better == "lower" else -1.0
    used = sd if at_limit is None else at_limit
    z, z_fail = normal.inv_cdf(1 - alpha), normal.inv_cdf(1 - alpha / family)

    def chance(n: float) -> tuple[float, float]:
        if sd == 0:
            return float(sign * (limit - truth) >= 0), float(sign * (truth - limit) > 0)
        distance = sign * (limit - truth) * math.sqrt(n)
        return normal.cdf((distance - z * used) / sd), normal.cdf((-distance - z_fail * used) / sd)

    return chance


def rows_for(chance: Callable[[float], float], power: float, start: int = 10) -> int | None:
    """The smallest n >= start with chance(n) >= power, for a chance that grows with n; None beyond 10⁹."""
    high = start
    while chance(high) < power:
        if high >= LARGEST:
            return None
        high = min(2 * high, LARGEST)
    low = max(start, high // 2)
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        if chance(middle) >= power:
            high = middle
        else:
            low = middle
    return high


def to_decide(population: EcePopulation, limit: float, *, alpha: float, family: int, power: float = 0.8) -> int | None:
    """Rows at which a gate on ECE reaches the verdict that is true of this population with the given chance."""
    if population.ece == limit:
        return None
    chance = population.power(limit, alpha=alpha, family=family, draws=QUICK)
    side = 0 if population.ece < limit else 1
    return rows_for(lambda n: chance(n)[side], power)


def synthetic_logits(
    accuracy: float, classes: int = 10, rows: int = 20_000, seed: int = 0
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Logits of a perfectly calibrated model with the given accuracy: z ~ s·N(0, 1) per class, y ~ softmax(z).

    Returns:
        logits (rows, classes) and labels (rows,).
    """
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((rows, classes))
    low, high = 0.0, 50.0
    for _ in range(60):
        scale = (low + high) / 2
        if float(_softmax(scale * base).max(axis=1).mean()) < accuracy:
            low = scale
        else:
            high = scale
    z = low * base
    labels = (_softmax(z).cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    return z, np.minimum(labels, classes - 1).astype(np.int64)


def _softmax(z: Floats) -> Floats:
    e: Floats = np.exp(z - z.max(axis=1, keepdims=True))
    e /= e.sum(axis=1, keepdims=True)
    return e
