"""Pairs of models that differ by little, or in few rows: populations of `paired_coverage.py`, with six differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from _populations import Floats

from calibcli.metrics import binned
from calibcli.metrics.binned import GapNorm
from calibcli.metrics.discrimination import Concordance, RiskCoverage
from calibcli.metrics.ood import AveragePrecision
from calibcli.metrics.registry import Statistic
from calibcli.metrics.reliability import BinaryOutcomes

POPULATION, BINS = 100_000, 15
METRICS = ("ece", "adaece", "aurc", "failure_auroc", "auc", "ood auroc", "ood aupr_in", "ood aupr_out")
Metric = Callable[[BinaryOutcomes], Statistic]
OF_EVENT: dict[str, Metric] = {
    "ece": lambda v: GapNorm(v, v.width_bins(BINS, "right"), binned.l1),
    "adaece": lambda v: GapNorm(v, v.mass_bins(BINS, "split-merge"), binned.l1),
    "auc": Concordance,
}
OF_TOP: dict[str, Metric] = {"aurc": RiskCoverage, "failure_auroc": Concordance}
OF_SIDES: dict[str, Metric] = {
    "ood auroc": Concordance,
    "ood aupr_in": AveragePrecision,
    "ood aupr_out": lambda v: AveragePrecision(view(v.complement, v.p, ~v.hit, v.weights)),
}


class Near(NamedTuple):
    """(2, N) P(event) by two models, 1 - P(event), and (N,) its true chance."""

    p: Floats
    complement: Floats
    chance: Floats

    def statistics(self, rows: Any, event: Any, weights: Any = None, sides: bool = False) -> dict[str, list[Statistic]]:
        """Of some rows with these outcomes, every metric of both models, or of two `sides`."""
        found: dict[str, list[Statistic]] = {}
        for p, complement in zip(self.p[:, rows], self.complement[:, rows], strict=True):
            views = [(OF_SIDES if sides else OF_EVENT, view(p, complement, event, weights))]
            if not sides:
                top, hit = (np.maximum(p, complement), np.minimum(p, complement)), event == (p >= complement)
                views.append((OF_TOP, view(*top, hit, weights)))
            for metrics, seen in views:
                for name, metric in metrics.items():
                    found.setdefault(name, []).append(metric(seen))
        return found

    def sides(self, rng: np.random.Generator) -> tuple[Any, Any]:
        """Rows in which the event happened, and others: the rows inside and outside."""
        event = rng.random(len(self.chance)) < self.chance
        return np.flatnonzero(event), np.flatnonzero(~event)

    def draw(self, n: int, rng: np.random.Generator, sides: tuple[Any, Any]) -> dict[str, list[Statistic]]:
        """n rows of the population, and n / 2 of either side."""
        rows = rng.integers(0, len(self.chance), n)
        found = self.statistics(rows, rng.random(n) < self.chance[rows])
        rows = np.concatenate([rng.choice(side, n // 2) for side in sides])
        return found | self.statistics(rows, np.arange(len(rows)) < n // 2, None, sides=True)

    def truth(self, sides: tuple[Any, Any]) -> dict[str, float]:
        """Differences in the population, every row as often an event as it is one."""
        n = len(self.chance)
        rows, event = np.tile(np.arange(n), 2), np.arange(2 * n) < n
        both = self.statistics(rows, event, np.concatenate([self.chance, 1 - self.chance]))
        weights = np.concatenate([np.full(len(side), 1 / len(side)) for side in sides])
        rows = np.concatenate(sides)
        both |= self.statistics(rows, np.arange(len(rows)) < len(sides[0]), weights, sides=True)
        return {name: float(after) - float(before) for name, (before, after) in both.items()}


def view(p: Floats, complement: Floats, hit: Any, weights: Any) -> BinaryOutcomes:
    if weights is not None:
        p, complement, hit, weights = (x[weights > 0] for x in (p, complement, hit, weights))
    return BinaryOutcomes(p, complement, hit, weights, False, None)


def near(first: Floats, second: Floats, chance: Floats) -> Near:
    p = np.stack([first, second])
    return Near(p, 1 - p, chance)


def logistic(z: Floats) -> Near | Any:
    return 1 / (1 + np.exp(-z))


def of_logits(first: Floats, second: Floats, chance: Floats) -> Near:
    z = np.stack([first, second])
    return Near(logistic(z), logistic(-z), chance)


def levels(count: int, shift: float, off: float, rng: np.random.Generator) -> Near:
    """Probabilities at few levels; those of the second model are larger by `shift`, the true ones by `off`."""
    p = np.linspace(0.08, 0.88, count)[rng.integers(0, count, POPULATION)]
    return near(p, p + shift, p + off)


def apart(shift: float, off: float, rng: np.random.Generator) -> Near:
    """The same with any probabilities."""
    p = rng.uniform(0.05, 0.9, POPULATION)
    return near(p, p + shift, p + off)


def noisy(scale: float, noise: float, rng: np.random.Generator) -> Near:
    """A calibrated model, and it with a little noise."""
    z = scale * rng.standard_normal(POPULATION)
    return of_logits(z, z + noise * rng.standard_normal(POPULATION), logistic(z))


def binormal(first: float, second: float, shared: float, rate: float, rng: np.random.Generator) -> Near:
    """Two calibrated models with these AUCs, whose noise is correlated."""
    event = rng.random(POPULATION) < rate
    common, *own = rng.standard_normal((3, POPULATION))
    z = []
    for auc, noise in zip((first, second), own, strict=True):
        far = math.sqrt(2) * NormalDist().inv_cdf(auc)
        score = far * event + math.sqrt(shared) * common + math.sqrt(1 - shared) * noise
        z.append(far * (score - far / 2) + math.log(rate / (1 - rate)))
    return of_logits(z[0], z[1], event.astype(float))


def catastrophic(models: Near, share: float, rng: np.random.Generator) -> Near:
    """The second model is sure and wrong in a share of the rows."""
    p, complement, chance = models.p.copy(), models.complement.copy(), models.chance
    rows = rng.choice(len(chance), round(share * len(chance)), replace=False)
    surely = chance[rows] < 0.5
    p[1, rows], complement[1, rows] = np.where(surely, 1 - 1e-5, 1e-5), np.where(surely, 1e-5, 1 - 1e-5)
    return Near(p, complement, chance)


def pairs() -> Iterator[tuple[str, Near]]:
    rng = np.random.default_rng(7)
    yield "3 levels, apart by .012, first calibrated", levels(3, 0.012, 0, rng)
    yield "5 levels, apart by .03, first calibrated", levels(5, 0.03, 0, rng)
    yield "8 levels, apart by .006, second calibrated", levels(8, 0.006, 0.006, rng)
    yield "12 levels, apart by .012, first calibrated", levels(12, 0.012, 0, rng)
    yield "12 levels, apart by .012, second calibrated", levels(12, 0.012, 0.012, rng)
    yield "12 levels, apart by .02, both off", levels(12, 0.02, 0.05, rng)
    yield "12 levels, apart by .024, equal ECE", levels(12, 0.024, 0.012, rng)
    yield "any confidence, apart by .006, second calibrated", apart(0.006, 0.006, rng)
    yield "any confidence, apart by .012, first calibrated", apart(0.012, 0, rng)
    yield "any confidence, apart by .03, first calibrated", apart(0.03, 0, rng)
    yield "any confidence, apart by .024, equal ECE", apart(0.024, 0.012, rng)
    yield "calibrated; with a little noise", noisy(2, 0.05, rng)
    yield "the same, .15 % catastrophic", catastrophic(noisy(2, 0.05, rng), 0.0015, rng)
    yield "the same, .4 % catastrophic", catastrophic(noisy(2, 0.05, rng), 0.004, rng)
    yield "sure models, .15 % catastrophic", catastrophic(noisy(8, 0.05, rng), 0.0015, rng)
    yield "sure models, .4 % catastrophic", catastrophic(noisy(8, 0.05, rng), 0.004, rng)
    yield "8 levels, apart by .012, .4 % catastrophic", catastrophic(levels(8, 0.012, 0, rng), 0.004, rng)
    yield "AUC .99 and .998", binormal(0.99, 0.998, 0.5, 0.5, rng)
    yield "AUC .998 and .9995", binormal(0.998, 0.9995, 0.5, 0.5, rng)
    yield "AUC .99 and .99", binormal(0.99, 0.99, 0.5, 0.5, rng)
    yield "AUC .99 and .998, a fifth events", binormal(0.99, 0.998, 0.8, 0.2, rng)
    yield "AUC .99 and .998, .4 % catastrophic", catastrophic(binormal(0.99, 0.998, 0.5, 0.5, rng), 0.004, rng)
