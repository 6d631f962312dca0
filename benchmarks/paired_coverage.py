"""Coverage of the interval of the difference of two models' ECE on the same rows, as `compare` gives it.

    python benchmarks/paired_coverage.py [--runs 1000] [--pairs main|more|near|all]
    python benchmarks/paired_coverage.py --pairs near [--metrics NAME ...] [--sizes N ...] [--only WORD] [--seed N]

main: twelve pairs of models of 10 classes: both calibrated, one calibrated, both off; alike and apart. Independent
rows, and 1,000 rows in 200 groups of five copies of a row. more: pairs that the method was not developed on
(2 and 100 classes, saturated, constant, recalibrated), also with weights and in 30 groups, which may be of like
confidence: two or three of them then share a bin, and there is no interval (`none`). The truth is that of a
population of 200,000 rows whose label probabilities are known. Every interval should cover in 92 to 98 % of the runs;
the two numbers in brackets are the shares in % that lay above and below the truth, `width` is the median. near: the
differences of eight numbers, of models that differ by little or in few rows; `exact` is the width of what 95 % of the
differences lie in, and a cell FAILS where the 99.9 % interval of its coverage lies below 92 %.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from _harness import head, row
from _paired_near import METRICS, Near
from _paired_near import pairs as near_pairs
from _populations import Covered, Floats, softmax

from calibcli.metrics import _paired_bins as paired_bins
from calibcli.metrics import paired
from calibcli.metrics.binned import GapNorm
from calibcli.metrics.discrimination import RankFunctional
from calibcli.metrics.registry import Statistic
from calibcli.metrics.reliability import BinaryOutcomes

POPULATION, K, BINS = 200_000, 10, 15
LOW, HIGH = 0.92, 0.98
MAIN = {"200": (200, "rows"), "1,000": (1000, "rows"), "5,000": (5000, "rows"), "1,000 in 200 groups": (1000, "copies")}
MORE = {
    "300": (300, "rows"),
    "2,000": (2000, "rows"),
    "1,000 with weights": (1000, "weights"),
    "3,000 in 30 groups": (3000, "groups"),
    "3,000 in 30 groups by confidence": (3000, "by confidence"),
}
"""Rows, and how they are drawn."""
SIZES = [150, 300, 1000, 5000]
LEAD = """Does the 95 % interval of the difference of two models' ECE on the same rows contain the true difference? A
line is a pair of models: what is done to logits that are calibrated as they are, or nothing (*calibrated*). A
*sharper* model knows more about each row, a *vague* one less, and two that are *apart* know little of what the other
knows. A column is a number of rows. A cell has the coverage in %; in brackets how often the interval lies above and
below the truth; its median width; and *none*, how often there is no interval. The intervals are wide on purpose: they
are widened by the largest possible bias of the estimate, and by what groups of rows that were not drawn could add."""


class Pair(NamedTuple):
    """Two models of the same rows: (2, N) confidences, chances of a hit and bins; whether both name the same class."""

    p: Floats
    chance: Floats
    bins: Any
    same: Any

    @property
    def truth(self) -> float:
        """ECE of the second less that of the first, over the label probabilities of all rows."""
        first, second = (
            float(np.abs(np.bincount(b, p - h)).sum()) for b, p, h in zip(self.bins, self.p, self.chance, strict=True)
        )
        return (second - first) / self.p.shape[1]


def pair(true: Floats, first: Floats, second: Floats) -> Pair:
    """Of (N, K) true label probabilities and the logits of two models; of two classes the event."""
    rows, both = np.arange(len(true)), [softmax(z) for z in (first, second)]
    top = [np.ones(len(true), int) if true.shape[1] == 2 else p.argmax(axis=1) for p in both]
    p = np.stack([p[rows, t] for p, t in zip(both, top, strict=True)])
    chance = np.stack([true[rows, t] for t in top])
    return Pair(p, chance, np.maximum(np.ceil(p * BINS).astype(int) - 1, 0), top[0] == top[1])


def main_pairs() -> Iterator[tuple[str, Pair]]:
    """A vague model knows the label probabilities only up to swaps of two classes, of which it reports the average."""
    rng = np.random.default_rng(5)
    z = 2 * rng.standard_normal((POPULATION, K))
    one, two = rng.standard_normal((2, POPULATION, K))
    true = softmax(z)
    vague = np.log((true + true[:, [1, 0, 2, 3, 4, 5, 6, 7, 8, 9]]) / 2)
    vaguer = np.log((true + true[:, [0, 1, 3, 2, 5, 4, 7, 6, 9, 8]]) / 2)
    yield "calibrated; sharper", pair(true, vague, z)
    yield "calibrated; apart", pair(true, vaguer, vague)
    yield "calibrated; the same with a little noise", pair(true, z, z + 0.05 * one)
    yield "calibrated; logits x 1.1", pair(true, z, 1.1 * z)
    yield "calibrated; logits x 1.5", pair(true, z, 1.5 * z)
    yield "calibrated, vague; sharper, logits x 1.2", pair(true, vague, 1.2 * z)
    yield "logits x 1.2; the same with noise", pair(true, 1.2 * z, 1.2 * z + 0.1 * one)
    yield "logits x 1.5; the same with noise", pair(true, 1.5 * z, 1.5 * z + 0.1 * one)
    yield "logits x 1.3; x .9 with much noise", pair(true, 1.3 * z, 0.9 * z + 0.6 * one)
    yield "logits x 1.2; x .8", pair(true, 1.2 * z, 0.8 * z)
    yield "logits x 2; x 3", pair(true, 2 * z, 3 * z)
    yield "logits x 1.2 with noise; with other noise", pair(true, 1.2 * z + 0.5 * one, 1.2 * z + 0.5 * two)


def more_pairs() -> Iterator[tuple[str, Pair]]:
    rng = np.random.default_rng(6)
    z = 2 * rng.standard_normal((POPULATION, 2))
    true = softmax(z)
    yield "2 classes: calibrated; logits x 1.3", pair(true, z, 1.3 * z)
    yield "2 classes: logits x 1.3; x .8", pair(true, 1.3 * z, 0.8 * z)
    yield "2 classes: shifted by .3; by -.2", pair(true, z + np.array([0, 0.3]), z - np.array([0, 0.2]))
    z = 2.5 * rng.standard_normal((POPULATION // 4, 100))
    true = softmax(z)
    yield "100 classes: calibrated; logits x 1.2", pair(true, z, 1.2 * z)
    yield "100 classes: logits x 1.3; x .8", pair(true, 1.3 * z, 0.8 * z)
    z = 6 * rng.standard_normal((POPULATION, K))
    true, noise = softmax(z), rng.standard_normal((POPULATION, K))
    yield "saturated, calibrated; logits x 1.5", pair(true, z, 1.5 * z)
    yield "saturated, calibrated; with noise", pair(true, z, z + 0.5 * noise)
    z = 2 * rng.standard_normal((POPULATION, K))
    true = softmax(z)
    yield "constant; calibrated", pair(true, np.tile(np.eye(K)[0], (POPULATION, 1)), z)
    yield "logits x 1.5; recalibrated on other rows", pair(true, 1.5 * z, 1.02 * z)


def draw(models: Pair, n: int, design: str, rng: np.random.Generator) -> tuple[BinaryOutcomes, BinaryOutcomes]:
    """Rows, or groups whose rows share a part of their labels' luck."""
    copies = 5 if design == "copies" else 1
    rows = np.repeat(rng.integers(0, models.p.shape[1], n // copies), copies)
    luck = np.repeat(rng.random(n // copies), copies)
    groups = np.arange(n) // copies if copies > 1 else None
    if design in ("groups", "by confidence"):
        groups = rng.permutation(n) % 30
        if design == "by confidence":
            groups[np.argsort(models.p[0, rows])] = np.arange(n) // 100
        luck = np.where(rng.random(n) < 0.15, rng.random(30)[groups], luck)
    weights = 0.1 + rng.exponential(size=n) if design == "weights" else None
    first, second = models.chance[:, rows]
    hits = luck < first, np.where(models.same[rows], luck < second, (luck >= first) & (luck < first + second))
    one, two = (
        BinaryOutcomes(p, 1 - p, hit, weights, False, groups, values_only=True)
        for p, hit in zip(models.p[:, rows], hits, strict=True)
    )
    return one, two


def cell(models: Pair, n: int, design: str, runs: int) -> Covered:
    """The intervals of so many runs."""
    rng, covered, truth = np.random.default_rng([n, len(design)]), Covered(runs), models.truth
    for _ in range(runs):
        views = draw(models, n, design, rng)
        found = paired_bins.difference(
            views, (views[0].width_bins(BINS, "right"), views[1].width_bins(BINS, "right")), 0.95
        )
        assert found is not None
        if not isinstance(found, str):
            assert (found[3] < 0.05) == (found[1] > 0 or found[2] < 0), found  # p-value and interval agree
            covered.add(found[1], found[2], truth)
    return covered


def table(pairs: Iterator[tuple[str, Pair]], cells: dict[str, tuple[int, str]], runs: int) -> bool:
    """Print a table; whether every cell covers."""
    print(head("models", *cells))
    every: list[Covered] = []
    for name, models in pairs:
        mine = [cell(models, n, design, runs) for n, design in cells.values()]
        shown = [f"{one}, width {one.width():.3f}" if one.given >= runs / 20 else "none" for one in mine]
        print(row(name, *shown), flush=True)
        every += [one for one in mine if one.given >= runs / 20]
    shares = [round(one.share, 9) for one in every]
    wide, narrow = sum(one.surely()[0] > HIGH for one in every), sum(one.surely()[1] < LOW for one in every)
    print(
        f"\n{runs} runs a cell: {100 * min(shares):.1f} to {100 * max(shares):.1f} %, "
        f"{sum(share > HIGH for share in shares)} of {len(every)} cells above 98 % ({wide} surely, 99.9 %), "
        f"{sum(share < LOW for share in shares)} below 92 % ({narrow} surely); {time.process_time():.0f} CPU s\n"
    )
    return narrow == 0


# models that are near each other


class Differences(Covered):
    """The intervals of one metric's difference, and the plain differences."""

    def __init__(self, runs: int) -> None:
        super().__init__(runs)
        self.plain: list[float] = []

    @property
    def fails(self) -> bool:
        return self.surely()[1] < LOW

    def __str__(self) -> str:
        text = super().__str__()
        if self.given and self.share > HIGH:
            exact = np.subtract(*np.quantile([x for x in self.plain if np.isfinite(x)], [0.975, 0.025]))
            text += f", width {self.width():.4f}, exact {exact:.4f}"
        return text + " FAILS" * (self.given > 0 and self.fails)


def changed(before: Statistic, after: Statistic) -> paired.Paired | str | None:
    """The difference of two numbers of one metric."""
    if isinstance(before, GapNorm) and isinstance(after, GapNorm):
        return paired._binned(before, after, 0.95)
    assert isinstance(before, RankFunctional)
    assert isinstance(after, RankFunctional)
    return paired.ranked(before, after, 0.95)


def near_cell(models: Near, n: int, runs: int, names: Sequence[str], seed: int = 0) -> dict[str, Differences]:
    """Coverage of every metric's difference."""
    rng = np.random.default_rng([seed, n])
    sides = models.sides(rng)
    truth, cells = models.truth(sides), {name: Differences(runs) for name in names}
    for _ in range(runs):
        for name, (before, after) in models.draw(n, rng, sides).items():
            if name in names:
                cells[name].plain.append(float(after) - float(before))
                found = changed(before, after)
                if isinstance(found, paired.Paired):
                    assert found.low <= found.value <= found.high, (name, found)
                    assert (found.p < 0.05) == (found.low > 0 or found.high < 0), (name, found)
                    cells[name].add(found.low, found.high, truth[name])
    return cells


def near_table(sizes: Sequence[int], runs: int, names: Sequence[str], only: str = "", seed: int = 0) -> bool:
    """Print a table; whether every cell covers."""
    every: list[Differences] = []
    print(head("models", "rows", *names))
    for name, models in near_pairs():
        for n in sizes if only in name else ():
            cells = near_cell(models, n, runs, names, seed)
            every += (one for one in cells.values() if one.given)
            print(row(name, f"{n:,}", *cells.values()), flush=True)
    shares, failed = [one.share for one in every], sum(one.fails for one in every)
    print(
        f"\n{runs} runs a cell: {100 * min(shares):.1f} to {100 * max(shares):.1f} %, "
        f"{sum(share > HIGH for share in shares)} of {len(every)} cells above 98 %, "
        f"{failed} surely below 92 %; {time.process_time():.0f} CPU s\n"
    )
    return failed == 0


def main() -> int:
    given = _harness.arguments(
        __doc__, runs=1000, pairs=("all", "main", "more", "near"), metrics=[*METRICS], sizes=SIZES, only="", seed=0
    )
    covered = True
    if given.pairs != "near":
        print(LEAD + "\n")
    if given.pairs in ("main", "all"):
        covered &= table(main_pairs(), MAIN, given.runs)
    if given.pairs in ("more", "all"):
        covered &= table(more_pairs(), MORE, given.runs)
    if given.pairs in ("near", "all"):
        covered &= near_table(given.sizes, given.runs, given.metrics, given.only, given.seed)
    return int(not covered)


if __name__ == "__main__":
    sys.exit(main())
