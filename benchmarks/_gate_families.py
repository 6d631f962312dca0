"""Families of populations with parameters: those on which earlier gates were wrong, and what the search varies.

A population is named by its family and its parameters, `share=0.01 margin=100 wrong=0.1`, and is always the same. Each
row knows its group; rows of a group cannot be told apart by scores and weights, without labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from _populations import Floats, Ints, Pair, Population, drawn, softmax

ROWS = 40_000
Values = dict[str, float]


@dataclass(frozen=True)
class Parameter:
    """What a parameter may be in the search: from low to high, evenly in its logarithm if `log`."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, position: float) -> float:
        """The value at a position in [0, 1], to three digits so that the name of a cell says all of it."""
        position = min(max(position, 0.0), 1.0)
        value = (
            self.low * (self.high / self.low) ** position if self.log else self.low + (self.high - self.low) * position
        )
        return float(round(value)) if self.whole else float(f"{value:.3g}")

    def position(self, value: float) -> float:
        if self.log:
            return float(np.log(value / self.low) / np.log(self.high / self.low))
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Family:
    """How populations are built from a number of classes and named parameters, and those that are always looked at."""

    build: Callable[..., Population | Pair]
    parameters: dict[str, Parameter]
    listed: tuple[str, ...]
    classes: tuple[int, ...] = (2, 3, 10)
    sizes: tuple[int, ...] = (300, 1000, 5000)
    pairs: bool = False


def parsed(text: str) -> Values:
    """`share=0.01 margin=100` as numbers by name."""
    return {name: float(value) for name, _, value in (part.partition("=") for part in text.split())}


def written(values: Values) -> str:
    return " ".join(f"{name}={value:.3g}" for name, value in values.items())


def _peaked(top: Ints, margin: Floats, k: int) -> Floats:
    """Logits of rows whose top class is ahead of every other by a margin."""
    z = np.zeros((len(top), k))
    z[np.arange(len(top)), top] = margin
    return z


def _labels(top: Ints, right: Floats, k: int, rng: np.random.Generator) -> Ints:
    """The top class with the given chance, else any other."""
    other = (top + rng.integers(1, k, len(top))) % k
    return np.asarray(np.where(rng.random(len(top)) < right, top, other), dtype=np.int64)


def _margin(confidence: Floats | float, k: int) -> Floats:
    """By how much the logit of the top class is ahead where all others are alike."""
    return np.asarray(np.log(confidence) + np.log(k - 1) - np.log1p(-np.asarray(confidence)))


def _bulk(
    k: int, rng: np.random.Generator, confidence: float, spread: float, errors: float
) -> tuple[Floats, Ints, Ints]:
    """Logits, top classes and labels of rows about as sure as `confidence`, with `errors` times the errors due."""
    top = rng.integers(0, k, ROWS)
    margin = np.maximum(_margin(confidence, k) + spread * rng.standard_normal(ROWS), 0.05)
    z = _peaked(top, margin, k)
    wrong = 1 - np.exp(margin) / (np.exp(margin) + k - 1)
    return z, top, _labels(top, 1 - np.minimum(errors * wrong, 1), k, rng)


def rare(
    k: int,
    rng: np.random.Generator,
    *,
    share: float,
    margin: float,
    wrong: float,
    confidence: float = 0.85,
    spread: float = 0.0,
    errors: float = 1.0,
) -> Population:
    """A share of the rows is far surer than the rest, and some of those are wrong."""
    z, top, labels = _bulk(k, rng, confidence, spread, errors)
    count = round(share * ROWS)
    z[:count] = _peaked(top[:count], np.full(count, margin) + 0.01 * rng.random(count), k)
    labels[:count] = top[:count]
    missed = round(wrong * count)
    labels[:missed] = (top[:missed] + rng.integers(1, k, missed)) % k
    return Population(z, labels, "logits", group=(np.arange(ROWS) < count).astype(np.int64))


def axis(k: int, rng: np.random.Generator, *, best: float, scale: float) -> Population:
    """Normal logits whose best inverse temperature is `best`: negative where they point the wrong way."""
    z = scale * rng.standard_normal((ROWS, k))
    return Population(z, drawn(softmax(best * z), rng), "logits")


def weighted(
    k: int,
    rng: np.random.Generator,
    *,
    tail: float = 0.0,
    sigma: float = 0.0,
    confidence: float = 0.85,
    spread: float = 1.0,
    errors: float = 1.0,
    tie: float = 0.0,
) -> Population:
    """Sampling weights of a Pareto tail or lognormal, e^tie times as large where a row is wrong."""
    z, top, labels = _bulk(k, rng, confidence, spread, errors)

    def factor(rng: np.random.Generator, n: int) -> Floats:
        return (1 - rng.random(n)) ** (-1 / tail) if tail else np.exp(sigma * rng.standard_normal(n))

    return Population(z, labels, "logits", weights=np.exp(tie * (top != labels)), factor=factor)


def levels(
    k: int, rng: np.random.Generator, *, levels: float, shift: float, moved: float = 0.0, swapped: float = 0.0
) -> Pair:
    """Two models whose confidences take few values: one calibrated, the other off by a shift of either sign.

    `moved` of the new model's rows are at another level; `swapped` have another top class.
    """
    count = int(levels)
    low = max(1 / k + 0.1, 0.4)
    values = np.linspace(low, 0.97, count)
    sign = np.where(np.arange(count) % 2, 1.0, -1.0)
    at, top = rng.integers(0, count, ROWS), rng.integers(0, k, ROWS)
    labels = _labels(top, values[at], k, rng)
    base = Population(_peaked(top, _margin(values[at], k), k), labels, "logits")
    there = np.where(rng.random(ROWS) < moved, rng.integers(0, count, ROWS), at)
    other = np.where(rng.random(ROWS) < swapped, (top + 1) % k, top)
    off = np.clip(values + sign * shift, 1 / k + 0.01, 0.995)
    return Pair(base, Population(_peaked(other, _margin(off[there], k), k), labels, "logits"))


def rarely(
    k: int, rng: np.random.Generator, *, share: float, margin: float, wrong: float, confidence: float = 0.85
) -> Pair:
    """A new model of which a share of rows is far surer than its baseline, and some of those are wrong."""
    new = rare(k, rng, share=share, margin=margin, wrong=wrong, confidence=confidence)
    top = new.scores.argmax(axis=1)
    base = _peaked(top, np.full(ROWS, _margin(confidence, k)), k)
    return Pair(Population(base, new.labels, "logits"), new)


_SHARE = Parameter(0.0008, 0.1, log=True)
_SURE = Parameter(4, 100, log=True)
_WRONG = Parameter(0.005, 0.9, log=True)
_CONFIDENCE = Parameter(0.55, 0.99)
_SPREAD = Parameter(0.0, 2.0)
_ERRORS = Parameter(0.0, 2.0)
_BULK = {"confidence": _CONFIDENCE, "spread": _SPREAD, "errors": _ERRORS}
_RARE = {"share": _SHARE, "margin": _SURE, "wrong": _WRONG}
_LISTED = ("share=0.04 margin=25 wrong=0.05", "share=0.01 margin=100 wrong=0.05", "share=0.01 margin=100 wrong=0.2")

FAMILIES = {
    "rare sure rows": Family(
        rare,
        _RARE | _BULK,
        (*_LISTED, "share=0.02 margin=50 wrong=0.1"),
    ),
    "errors surest": Family(
        rare,
        _RARE | _BULK,
        tuple(
            f"share={share} margin=12 wrong={wrong} confidence=0.9 spread=1 errors=0"
            for share, wrong in ((0.01, 0.6), (0.003, 0.6), (0.0006, 0.6), (0.001, 0.3))
        ),
    ),
    "best inverse temperature": Family(
        axis,
        {"best": Parameter(-0.3, 3.0), "scale": Parameter(0.3, 10, log=True)},
        tuple(f"best={best} scale=2" for best in (-0.3, -0.1, 0, 0.05, 0.1, 0.2, 0.5, 1, 2, 3)),
    ),
    "Pareto weights": Family(
        weighted,
        {"tail": Parameter(1.5, 4.0), **_BULK, "tie": Parameter(-1.0, 1.0)},
        (
            "tail=1.5 confidence=0.85 errors=0.3",
            "tail=1.5 confidence=0.9 errors=2",
            "tail=1.5 confidence=0.98 errors=5",
        ),
        classes=(3, 2),
    ),
    "lognormal weights": Family(
        weighted,
        {"sigma": Parameter(0.2, 2.0), **_BULK, "tie": Parameter(-1.0, 1.0)},
        ("sigma=1 confidence=0.85 errors=1", "sigma=1.5 confidence=0.9 errors=2", "sigma=1.5 confidence=0.98 errors=5"),
        classes=(3, 2),
    ),
    "few levels": Family(
        levels,
        {
            "levels": Parameter(3, 12, whole=True),
            "shift": Parameter(0.0, 0.03),
            "moved": Parameter(0.0, 0.3),
            "swapped": Parameter(0.0, 0.05),
        },
        (*(f"levels={count} shift=0.012" for count in (3, 6, 12)), "levels=12 shift=0.006 swapped=0.01"),
        pairs=True,
    ),
    "rare sure rows, to a baseline": Family(
        rarely,
        {**_RARE, "confidence": _CONFIDENCE},
        _LISTED,
        pairs=True,
    ),
}


def built(family: str, what: str, k: int) -> Population | Pair:
    """The population of that name."""
    seed = [k, *map(ord, f"{family} {what}")]
    return FAMILIES[family].build(k, np.random.default_rng(seed), **parsed(what))


FEWEST = 3.0
"""-ln .05: of a group expected in so many rows none is drawn with a chance of 5 %; no method sees what is not drawn."""


def visible() -> Iterator[tuple[str, str, int, int]]:
    """(family, parameters, K, n) of those that are always looked at and can be seen, small samples first."""
    for at in range(3):
        for name, family in FAMILIES.items():
            for what in family.listed:
                if parsed(what).get("share", 1.0) * family.sizes[at] >= FEWEST:
                    yield from ((name, what, k, family.sizes[at]) for k in family.classes)
