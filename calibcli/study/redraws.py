"""What a metric would be on other draws of the rows: sums over rows, of which it is a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import get_type_hints

import numpy as np

from calibcli.columns import Columns
from calibcli.metrics.gap_norms import GapNorm
from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.sample import METRICS, Sample
from calibcli.predictions import Floats, Ints

ERROR = "error"  # 1 - accuracy, which is on no shelf


@dataclass(frozen=True)
class Sums:
    """(n, m) what each row adds, and the metric as a function of (..., m) their means."""

    parts: Floats
    metric: Callable[[Floats], Floats]

    @property
    def value(self) -> float:
        return float(self.metric(self.parts.mean(axis=0)))

    def drawn(self, times: Floats) -> Floats:
        """(B,) the metric on each draw, (B, n) how often each row is in it."""
        return self.metric((times @ self.parts.astype(times.dtype)).astype(np.float64) / len(self.parts))


def names() -> list[str]:
    """Metrics that a study can take: the error, means over rows, and norms of the gaps of bins."""
    kinds = ((entry.name, get_type_hints(entry.target)["return"]) for entry in METRICS)
    return [ERROR, *(name for name, kind in kinds if issubclass(kind, MeanOf | GapNorm))]


def sums(name: str, columns: Columns) -> Sums:
    """A metric of a study, one of `names`; bins stay where they are on the rows themselves."""
    if name == ERROR:
        return means(np.asarray(~columns.correct, np.float64))
    choice = METRICS.choose(name)
    statistic = choice(Sample.of(columns))
    if isinstance(statistic, GapNorm):
        return _binned(statistic, choice.options["bins"], equal_width="edges" in choice.options)
    values = np.asarray(statistic.values, np.float64)
    if statistic.mask is None:
        return means(values)
    return Sums(np.stack([statistic.mask, np.where(statistic.mask, values, 0.0)], axis=1).astype(np.float64), _ratio)


def means(rows: Floats) -> Sums:
    """The mean of a number of each row."""
    return Sums(np.asarray(rows[:, None], np.float64), lambda mean: np.asarray(mean[..., 0]))


def _binned(statistic: GapNorm, bins: int, equal_width: bool) -> Sums:
    """The norm of the gaps: of each bin the share of the rows, of their residuals and of their hits.

    Bins of equal mass hold equal numbers of rows; ties stay in row order, as a draw may hold some of them only.
    """
    view = statistic.view
    if equal_width:
        assert statistic.table.index is not None
        index: Ints = statistic.table.index.astype(np.int64)
    else:
        index = np.empty(view.n, np.int64)
        index[view.stable_order] = np.arange(view.n) * bins // view.n
    member = np.eye(bins)[index]
    parts = np.hstack([member, member * view.residual[:, None], member * view.hit[:, None]])

    def norm(means: Floats) -> Floats:
        weight, gap, hit = np.split(means, 3, axis=-1)
        inverse = np.divide(1.0, weight, out=np.zeros_like(weight), where=weight > 0)
        of_bins = {"weight": weight, "weighted_gap": gap, "inverse": inverse, "effective": weight * view.n}
        return statistic.norm(SimpleNamespace(**of_bins, confidence=(hit + gap) * inverse))

    return Sums(parts, norm)


def draws(n: int, count: int, seed: int = 0) -> Floats:
    """(count, n) how often each of n rows is in each of `count` draws with replacement; single precision is enough."""
    rng = np.random.default_rng(seed)
    return np.stack([np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float32) for _ in range(count)])


def _ratio(means: Floats) -> Floats:
    held, value = means[..., 0], means[..., 1]
    return np.asarray(np.where(held > 0, value / np.where(held > 0, held, 1), np.nan))
