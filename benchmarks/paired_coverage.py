"""Coverage of the interval of the difference of two models' ECE on the same rows, as `compare` gives it.

    python benchmarks/paired_coverage.py [--runs 1000] [--pairs main|more|all] [--parts MODELS]

main: twelve pairs of models of 10 classes: both calibrated, one calibrated, both off; alike and apart. Independent
rows, and 1,000 rows in 200 groups of five copies of a row. more: pairs that the method was not developed on
(2 and 100 classes, saturated, constant, recalibrated), also with weights and in 30 groups, which may be of like
confidence: two or three of them then share a bin, and there is no interval (`none`). The truth is that of a
population of 200,000 rows whose label probabilities are known. Every interval should cover in 92 to 98 % of the runs;
the two numbers in brackets are the shares in % that lay above and below the truth, `width` is the median.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from _paired_near import METRICS, Near
from _paired_near import pairs as near_pairs

from calibcli.core.statistics import clopper_pearson
from calibcli.metrics import paired, paired_bins
from calibcli.metrics.binned import GapNorm
from calibcli.metrics.discrimination import RankFunctional
from calibcli.metrics.intervals import Statistic
from calibcli.metrics.shelf import BinaryOutcomes

Floats = np.ndarray[Any, np.dtype[np.float64]]
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
SIZES = (150, 300, 1000, 5000)


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


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


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


def cell(models: Pair, n: int, design: str, runs: int) -> tuple[int, float, float, float]:
    """Runs with an interval; the share of them above the truth, and below it; and the median width."""
    rng, widths, above, below, expected = np.random.default_rng([n, len(design)]), [], 0, 0, models.truth
    for _ in range(runs):
        views = draw(models, n, design, rng)
        found = paired_bins.difference(
            views, (views[0].width_bins(BINS, "right"), views[1].width_bins(BINS, "right")), 0.95
        )
        assert found is not None
        if isinstance(found, str):
            continue
        assert (found[3] < 0.05) == (found[1] > 0 or found[2] < 0), found  # p-value and interval agree
        above, below = above + (found[1] > expected), below + (found[2] < expected)
        widths.append(found[2] - found[1])
    given = len(widths)
    return given, above / max(given, 1), below / max(given, 1), float(np.median(widths)) if given else 0.0


def parts(models: Pair, n: int, design: str, runs: int) -> str:
    """What an interval is made of, in standard deviations of the estimate: its bias, that of the plain difference, the
    root of the mean variance, and of that with the allowance for bias; and what share that standard deviation covers.
    """
    rng, rows = np.random.default_rng([n, len(design)]), []
    for _ in range(runs):
        views = draw(models, n, design, rng)
        gaps = paired_bins._gaps(views, (views[0].width_bins(BINS, "right"), views[1].width_bins(BINS, "right")))
        centre, plain = float(gaps.difference(gaps.d)), float(np.abs(gaps.d) @ gaps.model)
        variance = gaps.spread[0]
        rows.append((centre - models.truth, plain - models.truth, variance, variance + gaps.bias**2 / 3))
    off, plain_off, variance, error = np.array(rows).T
    sd = off.std()
    shares = (off.mean() / sd, plain_off.mean() / sd, *(np.sqrt(v.mean()) / sd for v in (variance, error)))
    return " ".join(f"{share:.2f}" for share in shares) + f" {100 * np.mean(np.abs(off) <= 1.96 * sd):.1f} %"


def table(pairs: Iterator[tuple[str, Pair]], cells: dict[str, tuple[int, str]], runs: int) -> bool:
    """Print a table; whether every cell covers."""
    print("| models | " + " | ".join(cells) + " |\n|" + "---|" * (len(cells) + 1))
    covered: list[tuple[float, int]] = []
    for name, models in pairs:
        shown = []
        for n, design in cells.values():
            given, above, below, width = cell(models, n, design, runs)
            if given < runs / 20:
                shown.append(f"none in {100 * (1 - given / runs):.0f} %")
                continue
            covered.append((share := round(1 - above - below, 9), given))
            none = f", none in {100 * (1 - given / runs):.0f} %" if given < runs else ""
            shown.append(f"{100 * share:.1f} ({100 * above:.1f}, {100 * below:.1f}), width {width:.3f}{none}")
        print(f"| {name} | " + " | ".join(shown) + " |", flush=True)
    ends = [clopper_pearson(share * given, given, 0.0005) for share, given in covered]
    outside = sum(not LOW <= share <= HIGH for share, _ in covered)
    surely = sum(high < LOW or low > HIGH for low, high in ends)
    print(
        f"\n{runs} runs a cell: {100 * min(covered)[0]:.1f} to {100 * max(covered)[0]:.1f} %, {outside} of "
        f"{len(covered)} cells outside 92 to 98 %, {surely} with their whole 99.9 % interval; "
        f"{time.process_time():.0f} CPU s\n"
    )
    return not any(high < LOW for _, high in ends)


class Coverage(NamedTuple):
    """Of one metric in one cell: runs, those with an interval, shares of these above and below the truth, widths."""

    runs: int
    given: int
    above: int
    below: int
    width: float
    exact: float

    @property
    def share(self) -> float:
        return 1 - (self.above + self.below) / max(self.given, 1)

    @property
    def fails(self) -> bool:
        """Whether the 99.9 % interval of the coverage lies below 92 %."""
        return clopper_pearson(self.given - self.above - self.below, self.given, 0.0005)[1] < LOW

    def __str__(self) -> str:
        if not self.given:
            return "none"
        text = f"{100 * self.share:.1f} ({100 * self.above / self.given:.1f}, {100 * self.below / self.given:.1f})"
        text += f", width {self.width:.4f}, exact {self.exact:.4f}" if self.share > HIGH else ""
        text += f", none in {100 * (1 - self.given / self.runs):.0f} %" if self.given < self.runs else ""
        return text + " FAILS" * self.fails


def changed(before: Statistic, after: Statistic) -> paired.Paired | str | None:
    """The difference of two numbers of one metric."""
    if isinstance(before, GapNorm) and isinstance(after, GapNorm):
        return paired._binned(before, after, 0.95)
    assert isinstance(before, RankFunctional)
    assert isinstance(after, RankFunctional)
    return paired.ranked(before, after, 0.95)


def near_cell(models: Near, n: int, runs: int, names: Sequence[str], seed: int = 0) -> dict[str, Coverage]:
    """Coverage of every metric's difference; `exact` is the width of what 95 % of the differences lie in."""
    rng = np.random.default_rng([seed, n])
    sides = models.sides(rng)
    truth = models.truth(sides)
    ends: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    plain: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(runs):
        for name, (before, after) in models.draw(n, rng, sides).items():
            if name not in names:
                continue
            plain[name].append(float(after) - float(before))
            found = changed(before, after)
            if isinstance(found, paired.Paired):
                assert found.low <= found.value <= found.high, (name, found)
                assert (found.p < 0.05) == (found.low > 0 or found.high < 0), (name, found)
                ends[name].append((found.low, found.high))
    cells = {}
    for name in names:
        low, high = np.array(ends[name]).reshape(-1, 2).T
        above, below = (int(np.count_nonzero(x)) for x in (low > truth[name], high < truth[name]))
        values = np.array([x for x in plain[name] if np.isfinite(x)])
        exact = float(np.subtract(*np.quantile(values, [0.975, 0.025]))) if len(values) else 0.0
        width = float(np.median(high - low)) if len(low) else 0.0
        cells[name] = Coverage(runs, len(low), above, below, width, exact)
    return cells


def near_table(sizes: Sequence[int], runs: int, names: Sequence[str], only: str = "", seed: int = 0) -> bool:
    """Print a table; whether every cell covers."""
    every: list[Coverage] = []
    print("| models | rows | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 2))
    for name, models in near_pairs():
        for n in sizes if only in name else ():
            cells = near_cell(models, n, runs, names, seed)
            every += cells.values()
            print(f"| {name} | {n:,} | " + " | ".join(str(cells[metric]) for metric in names) + " |", flush=True)
    given = [one for one in every if one.given]
    print(
        f"\n{runs} runs a cell: {100 * min(one.share for one in given):.1f} to "
        f"{100 * max(one.share for one in given):.1f} %, {sum(one.share > HIGH for one in given)} of {len(given)} "
        f"cells above 98 %, {sum(one.fails for one in given)} surely below 92 %; {time.process_time():.0f} CPU s\n"
    )
    return not any(one.fails for one in given)


def main() -> int:
    parser = _harness.options(__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--pairs", choices=["main", "more", "near", "all"], default="all")
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=METRICS, help="of the pairs that are near")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="rows of these")
    parser.add_argument("--only", default="", help="those with this in their name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", metavar="MODELS", help="of one pair of the second table, what intervals are made of")
    args = parser.parse_args()
    if args.parts:
        models = dict(more_pairs())[args.parts]
        for name, (n, design) in MORE.items():
            print(f"{name}: {parts(models, n, design, args.runs)}", flush=True)
        return 0
    covered = True
    if args.pairs in ("main", "all"):
        covered &= table(main_pairs(), MAIN, args.runs)
    if args.pairs in ("more", "all"):
        covered &= table(more_pairs(), MORE, args.runs)
    if args.pairs in ("near", "all"):
        covered &= near_table(args.sizes, args.runs, args.metrics, args.only, args.seed)
    return 0 if covered else 1


if __name__ == "__main__":
    sys.exit(main())
