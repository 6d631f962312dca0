"""Finite populations for testing gates: scores, labels, and for some the groups that rows come in; and how often
intervals hold a truth.

Each is made from a top-label confidence per row and the chance that the label is that class, so that the miscalibration
is known by construction; true values are computed from the rows themselves (see `_gate_cells`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibcli.core.statistics import clopper_pearson
from calibcli.metrics import Sample, choose, columns_of
from calibcli.metrics.binned_bounds import Bounds, table_bounds
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.predictions import Predictions

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
ROWS = 60_000
CLIP = 1e-15  # what `--clip` raises probabilities to
REAL = {
    "LeNet-5": "cifar10_lenet5_probs_test_10000.npz",
    "WRN-16-4": "cifar100_wideresnet_16_4_probs_test_10000.npz",
    "ResNet-20": "cifar10_resnet20_logits_test_1000.npz",
}


@dataclass(frozen=True, eq=False)
class Population:
    """Rows of a finite population.

    Attributes:
        scores: (N, K) logits or log-probabilities.  labels: (N,).
        kind: of the scores, as `Predictions` has it.
        starts: (G + 1,) where the rows of each group begin, or None for independent rows.
        weights: (N,) sampling weights, by which what is true of the population is weighted, or None.
        factor: draws what the weight of each row of a sample is multiplied by, whatever the row: of an endless
            population, in which no single row has a share.
        group: (N,) which rows look alike to whoever sees no label, or None where nothing sets any apart.
    """

    scores: np.ndarray[Any, Any]
    labels: Ints
    kind: str = "probabilities"
    starts: Ints | None = None
    weights: Floats | None = None
    factor: Callable[[np.random.Generator, int], Floats] | None = None
    group: Ints | None = None

    @property
    def n(self) -> int:
        return len(self.labels)

    @property
    def k(self) -> int:
        return int(self.scores.shape[1])


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def scaled(z: Floats, accuracy: float) -> Floats:
    """Logits scaled so that a calibrated model of them has this accuracy."""
    low, high = 0.0, 200.0
    for _ in range(40):
        middle = (low + high) / 2
        if softmax(middle * z[:20_000]).max(axis=1).mean() < accuracy:
            low = middle
        else:
            high = middle
    return low * z


def drawn(p: Floats, rng: np.random.Generator) -> Ints:
    """A label of each row of probabilities."""
    return np.minimum((p.cumsum(axis=1) < rng.random((len(p), 1))).sum(axis=1), p.shape[1] - 1)


@lru_cache(maxsize=2)
def spread_logits(k: int, accuracy: float = 0.8) -> Floats:
    """Logits of a calibrated model."""
    return scaled(np.random.default_rng(k).standard_normal((ROWS, k)), accuracy)


def population(p: Floats, labels: Ints) -> Population:
    with np.errstate(divide="ignore"):
        scores = np.log(p)
    return Population(scores.astype(np.float32) if p.shape[1] > 32 else scores, labels)


def from_confidence(c: Floats, right: Floats, k: int, rng: np.random.Generator) -> Population:
    """Rows with confidence c in a random class, which is the label with the given chance.

    The rest of the probability, and of the labels, is shared among the other classes in proportion to one draw.
    """
    n = len(c)
    c = np.clip(c, 1 / k + 1e-9, 1.0)
    top = rng.integers(0, k, n)
    rest = rng.gamma(1.0, size=(n, k)) + 1e-3
    rest[np.arange(n), top] = 0
    rest /= rest.sum(axis=1, keepdims=True)
    even = np.full_like(rest, 1 / (k - 1))
    even[np.arange(n), top] = 0
    most = rest.max(axis=1) * (1 - c) > 0.98 * c  # the top class must stay the top
    rest[most] = even[most]
    p = rest * (1 - c)[:, None]
    p[np.arange(n), top] = c
    labels = np.where(rng.random(n) < right, top, drawn(rest, rng))
    return population(p, labels)


def calibrated(k: int, rng: np.random.Generator) -> Population:
    p = softmax(spread_logits(k))
    return population(p, drawn(p, rng))


def overconfident(k: int, rng: np.random.Generator) -> Population:
    z = spread_logits(k)
    return population(softmax(1.5 * z), drawn(softmax(z), rng))


def label_noise(k: int, rng: np.random.Generator) -> Population:
    """10 % of a calibrated model's labels are replaced by any class."""
    p = softmax(spread_logits(k, 0.9))
    return population(p, np.where(rng.random(ROWS) < 0.1, rng.integers(0, k, ROWS), drawn(p, rng)))


def neighbours(k: int, rng: np.random.Generator) -> Population:
    """The vote of 5 nearest neighbours, with zeros raised as `--clip` does."""
    p = softmax(spread_logits(k))
    votes = np.zeros((ROWS, k))
    for _ in range(5):
        votes[np.arange(ROWS), drawn(p, rng)] += 1
    q = np.maximum(votes / 5, CLIP)
    return population(q / q.sum(axis=1, keepdims=True), drawn(p, rng))


def neighbours_zero(k: int, rng: np.random.Generator) -> Population:
    """The same with its zeros, so that some labels have probability 0 and the mean NLL is infinite."""
    found = neighbours(k, rng)
    return Population(np.where(found.scores < np.log(CLIP) + 1, -np.inf, found.scores), found.labels)


def rounded(k: int, rng: np.random.Generator) -> Population:
    """Probabilities of a calibrated model, written with two decimals, read with `--clip`."""
    p = softmax(spread_logits(k, 0.9))
    q = np.maximum(np.round(p, 2), CLIP)
    return population(q / q.sum(axis=1, keepdims=True), drawn(p, rng))


def saturated(k: int, rng: np.random.Generator, *, errors: float) -> Population:
    """99 % of rows above .9999, some of them wrong all the same."""
    sure = rng.random(ROWS) < 0.99
    c = np.where(sure, 1 - 10.0 ** rng.uniform(-9, -4.01, ROWS), rng.uniform(1 / k, 1, ROWS))
    return from_confidence(c, np.where(sure, 1 - errors, c), k, rng)


def ceiling(k: int, rng: np.random.Generator) -> Population:
    """70 % of rows at .999, of which 1 % are wrong, and a uniform calibrated tail."""
    top = rng.random(ROWS) < 0.7
    c = np.where(top, 0.999, rng.uniform(1 / k, 0.999, ROWS))
    return from_confidence(c, np.where(top, 0.99, c), k, rng)


def broken_class(k: int, rng: np.random.Generator) -> Population:
    """A sharp calibrated model that never sees class 0, the label of 1.5 % of rows."""
    z = spread_logits(k, 0.95).copy()
    rare = rng.random(ROWS) < 0.015
    labels = drawn(softmax(z), rng)
    labels = np.where(labels == 0, 1 + rng.integers(0, k - 1, ROWS), labels)
    z[:, 0] = z.min(axis=1) - 2
    labels = np.where(~rare & (labels != 0), labels, 0)
    return population(softmax(z), labels)


def alternating(k: int, rng: np.random.Generator) -> Population:
    """Gaps of .1 to .2 whose sign alternates four times within each of 15 bins."""
    c = rng.beta(4, 1.2, ROWS) * (1 - 1 / k) + 1 / k
    stripe = np.floor(c * 60).astype(int)
    gap = np.random.default_rng(1).uniform(0.1, 0.2, 61)[stripe] * np.where(stripe % 2, 1, -1)
    return from_confidence(c, np.clip(c - gap, 0, 1), k, rng)


def band(k: int, rng: np.random.Generator) -> Population:
    """Calibrated but for one gap of .3 in a band of width .02."""
    c = rng.beta(4, 1.2, ROWS) * (1 - 1 / k) + 1 / k
    return from_confidence(c, np.clip(c - 0.3 * (np.abs(c - 0.85) < 0.01), 0, 1), k, rng)


ALL, USUAL = (3, 2, 20, 100), (3, 2, 20)  # classes, in the order in which they are looked at
MADE: dict[str, tuple[Callable[[int, np.random.Generator], Population], tuple[int, ...]]] = {
    "calibrated": (calibrated, ALL),
    "overconfident": (overconfident, ALL),
    "10 % label noise": (label_noise, ALL),
    "5 neighbours": (neighbours, ALL),
    "5 neighbours, zeros": (neighbours_zero, (3, 20)),
    "two decimals": (rounded, ALL),
    "saturated, .5 % errors": (partial(saturated, errors=0.005), ALL),
    "saturated, 2 % errors": (partial(saturated, errors=0.02), ALL),
    "70 % at .999": (ceiling, USUAL),
    "broken class": (broken_class, ALL),
    "alternating gaps": (alternating, USUAL),
    "one narrow band": (band, USUAL),
}


def grouped(k: int, size: int, shape: str, rng: np.random.Generator) -> Population:
    """Groups of lognormal size with effects of their own, contiguous.

    `shift`: each group is sure and right by its own amount. `sites`: one group in ten is right half as often. `size`:
    the larger a group, the less it is right.
    """
    sizes = np.maximum(1, np.round(size * rng.lognormal(-0.5, 1.0, ROWS // size))).astype(int)
    starts = np.append(0, np.cumsum(sizes))
    member = np.repeat(np.arange(len(sizes)), sizes)
    n, own = len(member), rng.standard_normal(len(sizes))
    if shape == "shift":
        margin = 1.5 + own[member] + 1.2 * rng.standard_normal(n)
        c = 1 / k + (1 - 1 / k) / (1 + np.exp(-margin))
        right = 1 / k + (1 - 1 / k) / (1 + np.exp(-margin - 0.5 * rng.standard_normal(len(sizes))[member]))
    elif shape == "sites":
        c = 1 - 10.0 ** rng.uniform(-4, -0.7, n)
        right = np.where((rng.random(len(sizes)) < 0.1)[member], 0.5, c)
    else:
        c = rng.beta(6, 1.2, n) * (1 - 1 / k) + 1 / k
        right = np.clip(c - 0.1 * np.log(sizes[member] / size), 0.05, 1)
    found = from_confidence(c, right, k, rng)
    return Population(found.scores, found.labels, starts=starts)


def real(folder: Path, name: str) -> Population:
    """Recorded outputs of a trained network."""
    with np.load(folder / REAL[name]) as data:
        labels = data["labels"].astype(np.int64)
        if "logits" in data:
            return Population(data["logits"].astype(np.float64), labels, "logits")
        return population(data["probs"].astype(np.float64), labels)


class Pair(NamedTuple):
    """Two models of the same rows: the baseline, and the new one that is broken in some way."""

    base: Population
    new: Population


def pairs(model: str, damage: str, k: int, rng: np.random.Generator) -> Pair:
    """`model` is what the baseline is like; `damage` what happens to `.2 %` or `1 %` of rows or to a `class`.

    The other rows differ a little, as after another training run, unless the damage is to `1 % of the same`.
    """
    if model == "saturated":
        base = saturated(k, rng, errors=0.005)
    else:
        base = MADE["saturated, .5 % errors" if model == "saturated" else model][0](k, rng)
    labels, scores = base.labels, np.array(base.scores, dtype=np.float64)
    if damage in (".2 %", "1 %", "class"):
        scores = np.log(softmax(scores + 0.05 * rng.standard_normal(scores.shape)))
    if damage == "sharper":  # what a model gains that learns more: the baseline is vague about some rows
        order = np.argsort(-scores, axis=1)
        swap = np.flatnonzero(rng.random(base.n) < 0.3)
        vague = np.exp(scores)
        first, second = order[swap, 0], order[swap, 1]
        vague[swap, first] = vague[swap, second] = (vague[swap, first] + vague[swap, second]) / 2
        return Pair(population(vague, labels), base)
    if damage == "saturating":
        z = 3 * scores
        return Pair(base, Population(z - np.log(np.exp(z).sum(axis=1, keepdims=True)), labels))
    hit = (labels == 0) & (rng.random(base.n) < 0.015 * k)
    if damage != "class":
        hit = rng.random(base.n) < (0.002 if damage == ".2 %" else 0.01)
    rows = np.flatnonzero(hit)
    p = np.full((len(rows), k), np.exp(-8.0) / max(k - 1, 1))
    p[np.arange(len(rows)), labels[rows]] = np.exp(-8.0)
    p[np.arange(len(rows)), (labels[rows] + 1) % k] = 0
    p[np.arange(len(rows)), (labels[rows] + 1) % k] = 1 - p.sum(axis=1)
    scores[rows] = np.log(p)
    return Pair(base, Population(scores, labels))


def made(name: str, k: int) -> Population:
    """A population of `MADE`, always the same."""
    build, _ = MADE[name]
    return build(k, np.random.default_rng([k, len(name), sum(map(ord, name))]))


def names(data: Path | None) -> Iterator[tuple[str, int]]:
    """(population, K), those of 3 classes first; recorded ones where there is a folder of them."""
    for at in range(4):
        for name, (_, classes) in MADE.items():
            if at < len(classes):
                yield name, classes[at]
        if at == 0 and data is not None:
            yield from ((name, 100 if "WRN" in name else 10) for name, file in REAL.items() if (data / file).is_file())


def ece_bounds(
    confidence: Any,
    correct: Any,
    *,
    bins: int = 15,
    weights: Any = None,
    weight_kind: str = "sampling",
    groups: Any = None,
    seed: int = 0,
    **how: Any,
) -> Bounds:
    """Bounds of the ECE from (N,) confidences and hits; `how` as of `table_bounds`."""
    c, w = np.asarray(confidence, dtype=np.float64), None if weights is None else np.asarray(weights, dtype=np.float64)
    member = None if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    view = BinaryOutcomes(c, 1 - c, np.asarray(correct) > 0, w, weight_kind == "count", member, seed=seed)
    return table_bounds(view, view.width_bins(bins, "right"), **how)


def values(predictions: Predictions, specs: Sequence[str], *, threads: int | None = 1) -> dict[str, float]:
    """Metrics without intervals, by spec as it was asked for; nan where one is not defined."""
    choices = {spec: choose([spec], predictions.k, predictions.top_only)[0] for spec in specs}
    sample = Sample.of(columns_of(predictions, [*choices.values()], threads), predictions)
    return {spec: float(choice(sample)) for spec, choice in choices.items()}


class Covered:
    """How often intervals hold a truth: of those that were given, which lay above it and below it, and their widths."""

    def __init__(self, runs: int) -> None:
        self.runs, self.above, self.below = runs, 0, 0
        self.widths: list[float] = []

    def add(self, low: float | None, high: float | None, truth: float) -> None:
        """An interval; one end that is None is open, and with neither there was no interval."""
        if low is not None or high is not None:
            self.above += low is not None and bool(low > truth)
            self.below += high is not None and bool(high < truth)
            self.widths.append(np.inf if low is None or high is None else high - low)

    @property
    def given(self) -> int:
        return len(self.widths)

    @property
    def share(self) -> float:
        """Of the intervals that hold the truth."""
        return 1 - (self.above + self.below) / max(self.given, 1)

    def surely(self, level: float = 0.999) -> tuple[float, float]:
        """Clopper and Pearson's interval of that share."""
        return clopper_pearson(self.given - self.above - self.below, self.given, (1 - level) / 2)

    def width(self) -> float:
        return float(np.median(self.widths)) if self.widths else 0.0

    def __str__(self) -> str:
        """The share in %, in brackets those above and below the truth, and how often there was no interval."""
        above, below = (100 * count / max(self.given, 1) for count in (self.above, self.below))
        none = f", none in {100 * (1 - self.given / self.runs):.0f} %" if self.given < self.runs else ""
        return f"{100 * self.share:.1f} ({above:.1f}, {below:.1f}){none}" if self.given else "none"
