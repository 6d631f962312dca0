"""How many rows a gate needs: the chance that its verdict is reached, as a function of n."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from calibcli.columns import Edges, bin_index
from calibcli.gate.verdict import Side
from calibcli.links import log_softmax
from calibcli.metrics import bounds
from calibcli.metrics.bounds import Method, norm_quantile
from calibcli.metrics.intervals import End
from calibcli.metrics.reliability import Bins
from calibcli.metrics.sample import BinaryOutcomes
from calibcli.numerics import bisect, normal_quantile, normal_share, unseen_reach

Floats = npt.NDArray[np.float64]
FEWEST, LARGEST = 10, 10**9
DRAWS = 4_000
QUICK = 2_000


@dataclass(frozen=True, eq=False, kw_only=True)
class EcePopulation:
    """What one row of the future evaluation brings to the binned calibration error.

    Attributes:
        gap: (B,) population d_b = E[(c - y) 1_b].
        square: (B,) E[(c - y)² 1_b].
        null: (B,) E[c (1 - c) 1_b].
        fourth: (B,) E[(c - y)⁴ 1_b].
    """

    gap: Floats
    square: Floats
    null: Floats
    fourth: Floats

    @property
    def ece(self) -> float:
        return float(np.abs(self.gap).sum())

    @classmethod
    def of(cls, view: BinaryOutcomes, table: Bins, truth: float | None = None) -> EcePopulation:
        """From a pilot and its table of equal-width bins.

        Args:
            truth: the population ECE to assume; the pilot's gaps are scaled to it. None takes the pilot's own, shrunk
                towards 0 by the part of Σd̂² that is noise (James and Stein).
        """
        assert table.index is not None
        per_bin = partial(view.sums, table.index, len(table.weight))
        square, null, fourth = map(per_bin, (view.residual**2, view.p * view.complement, view.residual**4))
        raw = cls(gap=table.weighted_gap, square=square, null=null, fourth=fourth)
        return raw.taken(raw.gap, float(view.shares @ view.shares), truth)

    def taken(self, gap: Floats, noise: float, truth: float | None) -> EcePopulation:
        """With a pilot's gaps, scaled to `truth`, or shrunk by their noise (`noise`: 1 / effective rows)."""
        if truth is not None:
            shape = gap if np.abs(gap).sum() > 0 else self.square
            gap = shape * (truth / np.abs(shape).sum())
        else:
            energy = float(gap @ gap)
            less = float((self.square - gap**2).sum()) * noise
            gap = gap * math.sqrt(max(0.0, 1 - less / energy)) if energy > 0 else gap
        return replace(self, gap=gap)

    def pilots(self, noise: float, truth: float | None, count: int, seed: int) -> list[EcePopulation]:
        """What other pilots of this population, as large as the one at hand, would have led to."""
        draws = np.random.default_rng([seed, count]).standard_normal((count, len(self.gap)))
        root = np.sqrt(np.maximum(self.square - self.gap**2, 0) * noise)
        return [self.taken(self.gap + root * z, noise, truth) for z in draws]

    @classmethod
    def assumed(
        cls, accuracy: float, truth: float, *, bins: int = 15, edges: Edges = "right", event: bool = False
    ) -> EcePopulation:
        """Confidences spread as Beta(6, 6 (1 - a) / a) with mean a, each too high by `truth`.

        Args:
            event: they are of two classes, either of which is predicted as often; the rows are P(class 1).
        """
        from scipy.special import betaincinv

        grid = (np.arange(200_000) + 0.5) / 200_000
        c = betaincinv(6.0, 6 * (1 - accuracy) / accuracy, grid)
        hit = np.clip(c - truth, 0, 1)
        if event:
            c, hit = np.concatenate([c, 1 - c]), np.concatenate([hit, 1 - hit])
        index, width = bin_index(c, bins, edges), bins + (edges == "torchmetrics")
        square, fourth = (hit * (1 - c) ** m + (1 - hit) * c**m for m in (2, 4))
        columns = (c - hit, square, c * (1 - c), fourth)
        gap, square, null, fourth = (np.bincount(index, x / len(c), width).astype(np.float64) for x in columns)
        return cls(gap=gap, square=square, null=null, fourth=fourth)

    def power(
        self,
        limit: float,
        *,
        alpha: float,
        family: int = 1,
        draws: int = DRAWS,
        seed: int = 0,
        method: Method = "sharp",
    ) -> Power:
        """Chance of PASS and of FAIL at n rows, from normal bins around the population's gaps."""
        used = self.square > 0
        covariance = np.diag(self.square[used]) - np.outer(self.gap[used], self.gap[used])
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))
        noise = np.random.default_rng(seed).standard_normal((draws, int(used.sum()))) @ root.T
        gap, square = self.gap[used], self.square[used]
        variance, fourth = np.maximum(square, self.null[used]), self.fourth[used]
        z, error = normal_quantile(1 - alpha), alpha / family
        whole = error * bounds.WHOLE if method == "sharp" else error
        reach = norm_quantile(np.diag(variance), 1 - whole, seed)

        def chance(n: float) -> tuple[float, float]:
            d = gap + noise / math.sqrt(n)
            found = np.abs(d).sum(axis=1)
            length = unseen_reach(z, float(square.sum()) / n, 1 / n, 1 / n)
            most, lower = limit - length, found - reach / math.sqrt(n)
            if method == "sharp":
                most = bounds.sharp_largest(limit, length, gap, square / n, fourth / n**3, 1 / n, alpha)
                lower = np.maximum(lower, bounds.signed(d, variance / n, error - whole))
            return float((found <= most).mean()), float((lower > limit).mean())

        return chance


Power = Callable[[float], tuple[float, float]]
"""n -> (chance of PASS, chance of FAIL)."""


def mean_power(
    truth: float,
    sd: float,
    limit: float,
    *,
    side: Side,
    alpha: float,
    family: int = 1,
    at_limit: float | None = None,
    above: tuple[float, End] = (0.0, 0.0),
    below: tuple[float, End] = (0.0, 0.0),
    lost: float = 0.0,
    moved: Callable[[float], float] = lambda n: 0.0,
) -> Power:
    """Chance of PASS and FAIL for a mean of independent rows.

    Args:
        truth, sd: mean and standard deviation of one row.
        side: which side of the limit passes; `zero` judges both, so that each bound of FAIL has half the error.
        at_limit: standard deviation that the bounds take (that of a share equal to the limit); None: `sd`.
        above, below: `seen` and `unseen` of `numerics.unseen_reach` for one row, on either side: the rate at which its
            variance grows, and how far from the truth a row that was not drawn may lie. Of an array, in rising order,
            the number that the dearest of n such rows has.
        lost: what n times the bounds are further off for, in the unit of the mean times rows.  moved: what they are
            further off for at n rows.
    """
    used = sd if at_limit is None else at_limit
    z, z_fail = normal_quantile(1 - alpha), normal_quantile(1 - alpha / family / (2 if side == "zero" else 1))
    least = {"max": -math.inf, "min": limit, "zero": -limit}[side]  # what passes lies from here
    most = {"max": limit, "min": math.inf, "zero": limit}[side]  # to here

    def chance(n: float) -> tuple[float, float]:
        if sd == 0:
            passes = least <= truth <= most
            return float(passes), float(not passes)
        root, spread = math.sqrt(n) / sd, used * used / n
        (up, down), (up_fail, down_fail) = (
            [
                lost / n + moved(n) + unseen_reach(at, spread, seen / n, dearest(unseen, n) / n)
                for seen, unseen in (above, below)
            ]
            for at in (z, z_fail)
        )

        def share(distance: float) -> float:
            return normal_share(distance * root)

        passed = share(most - up - truth) - share(least + down - truth)
        return max(passed, 0.0), share(least - up_fail - truth) + share(truth - most - down_fail)

    return chance


def dearest(costs: End, n: float) -> float:
    """Of n rows whose costs are spread as these, which rise."""
    if not isinstance(costs, np.ndarray):
        return costs
    return float(costs[min(math.floor(len(costs) * (1 - 1 / n)), len(costs) - 1)])


def rows_for(chance: Callable[[float], float], power: float) -> int | None:
    """The smallest n >= 10 with chance(n) >= power, for a chance that grows with n; None beyond 10⁹."""
    high = FEWEST
    while chance(high) < power:
        if high >= LARGEST:
            return None
        high = min(2 * high, LARGEST)
    low = max(FEWEST, high // 2)
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= power else (middle, high)
    return high


def to_decide(
    population: EcePopulation, limit: float, *, alpha: float, family: int, method: Method = "sharp"
) -> int | None:
    """Rows at which a gate on ECE reaches the verdict that is true of this population in 4 of 5 cases."""
    if population.ece == limit:
        return None
    chance = population.power(limit, alpha=alpha, family=family, draws=QUICK, method=method)
    side = 0 if population.ece < limit else 1
    return rows_for(lambda n: chance(n)[side], 0.8)


def synthetic_logits(
    accuracy: float, classes: int = 10, rows: int = 20_000, seed: int = 0
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Logits of a perfectly calibrated model with the given accuracy: z ~ s·N(0, 1) per class, y ~ softmax(z).

    Returns:
        logits (rows, classes) and labels (rows,).
    """
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((rows, classes))

    def softmax(scale: float) -> Floats:
        return np.exp(log_softmax(scale * base))

    scale, _ = bisect(lambda s: accuracy - float(softmax(s).max(axis=1).mean()), 0.0, 50.0, 60)
    labels = (softmax(scale).cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    return scale * base, np.minimum(labels, classes - 1).astype(np.int64)
