"""What a metric would be on other draws of the rows: sums over rows, of which it is a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibcli.columns import Columns
from calibcli.metrics.sample import BinaryOutcomes, Sample
from calibcli.predictions import Floats, Ints

BINS = 15
SURE = 0.99  # of high confidence


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


def sums(name: str, found: Columns) -> Sums:
    """A metric of a study, one of `NAMES`; bins stay where they are on the rows themselves."""
    view = Sample.of(found).view()
    if name == "high_confidence_accuracy":
        held = np.asarray(found.confidence >= SURE, np.float64)
        return Sums(np.stack([held, held * found.correct], axis=1), _ratio)
    each: dict[str, Floats] = {
        "error": np.asarray(~found.correct, np.float64),
        "nll": found.nll,
        "brier": found.brier,
        "confidence_gap": view.residual,
        "high_confidence_share": np.asarray(found.confidence >= SURE, np.float64),
    }
    return means(each[name]) if name in each else binned(name, view)


def means(rows: Floats) -> Sums:
    """The mean of a number of each row."""
    return Sums(np.asarray(rows[:, None], np.float64), lambda found: np.asarray(found[..., 0]))


def binned(name: str, view: BinaryOutcomes) -> Sums:
    """`ece`, `mce`, `adaece` or `ece2_debiased` of probabilities and what came true."""
    if name in ("ece", "mce"):
        index = view.width_bins(BINS, "right").index
        assert index is not None
        gaps = _gaps(view, index.astype(np.int64))
        return Sums(gaps, _total) if name == "ece" else Sums(np.hstack([np.eye(BINS)[index], gaps]), _largest)
    rank = np.empty(view.n, np.int64)
    rank[view.stable_order] = np.arange(view.n)
    index = rank * BINS // view.n
    if name == "adaece":
        return Sums(_gaps(view, index), _total)
    held = np.eye(BINS)[index]
    parts = np.hstack([held, held * view.residual[:, None], held * view.hit[:, None]])
    return Sums(parts, lambda found: _debiased(found, view.n))


NAMES = (
    "error",
    "nll",
    "brier",
    "confidence_gap",
    "ece",
    "adaece",
    "ece2_debiased",
    "mce",
    "high_confidence_share",
    "high_confidence_accuracy",
)
WITHOUT_DRAWS = ("mce",)  # a maximum: on draws of the rows it is larger than on the rows


def draws(n: int, count: int, seed: int = 0) -> Floats:
    """(count, n) how often each of n rows is in each of `count` draws with replacement; single precision is enough."""
    rng = np.random.default_rng(seed)
    return np.stack([np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float32) for _ in range(count)])


def _gaps(view: BinaryOutcomes, index: Ints) -> Floats:
    return np.eye(BINS)[index] * view.residual[:, None]


def _total(gaps: Floats) -> Floats:
    return np.asarray(np.abs(gaps).sum(axis=-1))


def _largest(means: Floats) -> Floats:
    weight, gap = np.split(means, 2, axis=-1)
    return np.asarray(np.max(np.abs(gap) / np.maximum(weight, 1e-300), axis=-1))


def _ratio(means: Floats) -> Floats:
    held, hit = means[..., 0], means[..., 1]
    return np.asarray(np.where(held > 0, hit / np.where(held > 0, held, 1), np.nan))


def _debiased(means: Floats, n: int) -> Floats:
    weight, gap, hit = np.split(means, 3, axis=-1)
    held = np.maximum(weight, 1e-300)
    noise = hit / held * (1 - hit / held) / np.maximum(weight * n - 1, 1)
    return np.asarray(np.where(weight * n > 1, weight * ((gap / held) ** 2 - noise), 0.0).sum(axis=-1))
