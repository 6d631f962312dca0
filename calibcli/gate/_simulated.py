"""The chance of a verdict on a metric whose bounds do not shrink as 1/√n: simulated at each number of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from calibcli.core.statistics import bisect
from calibcli.metrics.corp import Isotonic
from calibcli.metrics.cutoffs import CutoffStatistic, Levels
from calibcli.scores.predictions import Floats

RUN = 4  # of the cells in which a calibrated model is simulated, so many are one level of a population
FEWEST, LEAST = 10, 80  # rows from which a search doubles, and below which a verdict is not simulated: there is none
STEPS = 2  # numbers of rows that are simulated for each doubling; between them the chance is interpolated
FARTHEST = 50.0  # times the gaps of a pilot


@dataclass(eq=False)
class CutoffPopulation:
    """A population with the probabilities of some rows, and gaps of the shape of theirs.

    Attributes:
        statistic: of these rows.  p, weight, gap: (C,) levels, their shares, and what their rows come true too seldom.
    """

    statistic: CutoffStatistic
    p: Floats
    weight: Floats
    gap: Floats
    _known: dict[tuple[int, int, float, float, int], float] = field(default_factory=dict)

    @classmethod
    def of(cls, statistic: CutoffStatistic, truth: float, *, own_gaps: bool = True) -> CutoffPopulation:
        """Take the gaps to the regression of the rows, or one gap of all, of the size where the metric is `truth`."""
        fit = statistic.view.memoized(Isotonic.of)
        heads = np.arange(0, len(fit.cells.p), RUN)
        weight = np.add.reduceat(fit.cells.weight, heads)
        p = np.add.reduceat(fit.cells.weight * fit.cells.p, heads) / weight
        gap = p - np.interp(p, *fit.knots) if own_gaps else np.ones(len(p))
        plain = cls(statistic, p, weight / weight.sum(), gap)
        return plain.sized(bisect(lambda size: truth - plain.sized(size).truth, 0.0, FARTHEST, 60)[1] if truth else 0.0)

    def sized(self, size: float) -> CutoffPopulation:
        """Return the population with gaps of so many times the size."""
        return CutoffPopulation(self.statistic, self.p, self.weight, self.p - np.clip(self.p - size * self.gap, 0, 1))

    @property
    def truth(self) -> float:
        """The metric of the population."""
        levels = Levels(self.p, self.weight, self.weight * (self.p - self.gap))
        return type(self.statistic)(self.statistic.view, levels).value

    def chance(self, side: int, n: float, limit: float, alpha: float, draws: int) -> float:
        """Return the chance of PASS (side 0) or FAIL (side 1), with a bound that holds at 1 - alpha, at n rows."""
        place = STEPS * math.log2(max(n / FEWEST, 1.0))
        low, high = (
            self._simulated(side, round(FEWEST * 2 ** (k / STEPS)), limit, alpha, draws)
            for k in (math.floor(place), math.ceil(place))
        )
        return low + (place % 1) * (high - low)

    def _simulated(self, side: int, n: int, limit: float, alpha: float, draws: int) -> float:
        if n < LEAST:
            return 0.0
        key = side, n, limit, alpha, draws
        if key not in self._known:
            seed, of_counts = self.statistic.view.seed, type(self.statistic).of_counts
            rng = np.random.default_rng([seed, n])
            rows = rng.multinomial(n, self.weight, size=draws)  # (draws, C)
            hits = rng.binomial(rows, np.clip(self.p - self.gap, 0, 1))
            drawn = [of_counts(self.p, *one, seed=seed) for one in zip(rows, hits, strict=True)]
            reached = sum(one.upper(alpha) <= limit if side == 0 else one.lower(alpha) > limit for one in drawn)
            self._known[key] = reached / draws
        return self._known[key]
