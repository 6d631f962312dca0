"""How often gates on `cutoff_error` and `cutoff_loss` are wrong, how many rows they need, and what a PASS promises.

    python benchmarks/cutoffs.py --runs 1000              # all parts, some minutes on one core
    python benchmarks/cutoffs.py --part wrong --runs 200  # verdicts with the limit at the true value

`wrong`: rows are drawn from populations of which the chance of each row is known, with the limit at the true value,
where every PASS is false and every FAIL. `exact`: the same of one level, summed over the binomial. `groups` and
`weights` are those of populations whose rows agree within groups, or are sampled by their outcome. `rows`: the least of
a grid of numbers of rows at which 80 % of --samples samples PASS, beside `ece` (sharp bounds). `merged`: the distance
of a merged number from that of all rows, over its stated bound. `promise`: what rising rules gain in --populations
random populations, over L. Exit 1 if a share is surely above 6 % (99.9 % lower bound), a merged number beyond its bound
or a promise broken.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import _harness  # noqa: F401  (before NumPy, which it holds to one thread)
import numpy as np
from _gate_report import ALLOWED, Found
from _harness import arguments, head, row
from _populations import made, softmax
from scipy.stats import binom

import calibcli
from calibcli import Accumulator
from calibcli.metrics import Sample, choose
from calibcli.metrics._histogram_error import ERROR
from calibcli.metrics.binned_bounds import table_bounds
from calibcli.metrics.corp import pool
from calibcli.metrics.cutoffs import CutoffError, CutoffLoss, CutoffStatistic, Levels
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.columns import Columns

Floats = np.ndarray[Any, np.dtype[np.float64]]
METRIC = {"cutoff_error": CutoffError, "cutoff_loss": CutoffLoss}
ROWS, ALPHA = 20_000, 0.05
SIZES = (200, 1000, 5000)
GRID = (140, 200, 280, 400, 560, 800, 1100, 1600, 2200, 3200, 4500, 6400, 9000, 12800, 18000)
LIMITS = (0.05, 0.02, 0.01)
POWER = 0.8  # the chance of PASS that is asked for


def tempered(p: Floats, factor: float) -> Floats:
    """The probabilities whose log-odds are so many times those of p."""
    return np.asarray(p**factor / (p**factor + (1 - p) ** factor))


@cache
def population(name: str) -> tuple[Floats, Floats]:
    """(N,) stated probabilities, and the chance that each comes true."""
    rng = np.random.default_rng(sum(map(ord, name)))
    u = rng.permutation((np.arange(ROWS) + 0.5) / ROWS)
    top = rng.beta(6, 6 * 0.13 / 0.87, ROWS)
    if name.startswith("softmax"):
        rows = made("overconfident" if "overconfident" in name else "calibrated", 100)
        p = softmax(rows.scores.astype(np.float64))
        return p.max(axis=1), (p.argmax(axis=1) == rows.labels).astype(np.float64)
    if name == "cancelling":
        p = np.where(rng.random(ROWS) < 0.85, 0.95 + 0.05 * u, 0.95 * u)
        return p, np.where(p > 0.95, p + np.where(p < 0.975, 0.025, -0.03), p)
    if name.startswith("saturated"):
        p = np.where(rng.random(ROWS) < 0.99, 1 - 10.0 ** -(4 + 5 * u), u)
        return p, np.where(p > 0.9999, 1 - float(name.split()[1]), p)
    if name == "rare sure errors":
        p = np.where(rng.random(ROWS) < 0.02, 1 - 1e-6 * u, 0.5 + 0.45 * u)
        return p, np.where(p > 0.99, 0.7, p)
    if name == "five levels":
        level = rng.choice(5, ROWS, p=[0.3, 0.2, 0.1, 0.2, 0.2])
        return level / 4, np.array([0.04, 0.2, 0.5, 0.8, 0.93])[level]
    if name.startswith("one level"):
        p, q = map(float, name.split()[2:])
        return np.full(ROWS, p), np.full(ROWS, q)
    return {
        "calibrated, 2 classes": (u, u),
        "calibrated, top label": (top, top),
        "overconfident": (u, tempered(u, 0.6)),
        "overconfident, top label": (top, tempered(top, 0.7)),
        "underconfident": (u, tempered(u, 1.5)),
        "constant gap": (top, np.clip(top - 0.05, 0, 1)),
        "changing sign": (u, np.clip(u + 0.08 * np.sin(6 * np.pi * u), 0, 1)),
        "alternating": (top, np.clip(top + np.where(np.floor(60 * top) % 2, 0.15, -0.15), 0, 1)),
    }[name]


WRONG = (
    "calibrated, 2 classes", "calibrated, top label", "overconfident", "overconfident, top label", "underconfident",
    "constant gap", "cancelling", "changing sign", "alternating", "rare sure errors", "one level 0.8 0.75",
    "one level 0.99 0.985", "five levels", "saturated 0.005", "saturated 0.02", "softmax of 100",
    "softmax of 100, overconfident",
)  # fmt: skip
NEEDED = (
    "calibrated, top label",
    "calibrated, 2 classes",
    "changing sign",
    "overconfident, top label",
    "saturated 0.005",
)


def levels(p: Floats, hits: Floats) -> Levels:
    """Those of a population, of which every row counts the same."""
    values, which = np.unique(p, return_inverse=True)
    size = len(p)
    return Levels(values, np.bincount(which) / size, np.bincount(which, hits) / size)


@cache
def truth(name: str, metric: str) -> float:
    p, q = population(name)
    none = BinaryOutcomes(p, 1 - p, q > 0.5, None, False, None)
    return METRIC[metric](none, levels(p, q)).value


def measured(metric: str, view: BinaryOutcomes) -> CutoffStatistic:
    """The statistic of some outcomes, which a sample of two classes has."""
    c = Columns(
        numbers={"confidence": view.p, "rest": view.complement}, correct=view.hit, predicted=np.ones(view.n, np.int64),
        labels=view.hit.astype(np.int64), k=2, weights=view.weights, groups=view.groups,
    )  # fmt: skip
    found: CutoffStatistic = choose([metric], 2)[0](Sample.of(c))
    return found


def drawn(name: str, n: int, rng: np.random.Generator) -> BinaryOutcomes:
    p, q = population(name)
    rows = rng.integers(0, len(p), n)
    return BinaryOutcomes(p[rows], 1 - p[rows], rng.random(n) < q[rows], None, False, None)


def weighted(name: str, n: int, rng: np.random.Generator) -> BinaryOutcomes:
    """Wrong rows are kept with a chance of 1/4, and weigh four times as much."""
    view = drawn(name, 4 * n, rng)
    wrong = (view.p > 0.5) != view.hit
    kept = np.flatnonzero(rng.random(view.n) < np.where(wrong, 0.25, 1.0))[:n]
    weights = np.where(wrong[kept], 4.0, 1.0)
    return BinaryOutcomes(view.p[kept], view.complement[kept], view.hit[kept], weights, False, None)


def grouped(name: str, n: int, rng: np.random.Generator) -> BinaryOutcomes:
    """Groups of ten rows, nine in ten of which share a coin that says whether they come true; one probability each."""
    p, q = population(name)
    count = n // 10
    group, first = np.repeat(np.arange(count), 10), rng.integers(0, len(p), count)
    own = rng.random(n) < 0.1
    row_of = np.where(own, rng.integers(0, len(p), n), first[group])
    coin = np.where(own, rng.random(n), rng.random(count)[group])
    return BinaryOutcomes(p[row_of], 1 - p[row_of], coin < q[row_of], None, False, group)


def wrong(runs: int, cells: list[tuple[str, int]], draw: Any, title: str) -> list[Found]:
    """Both kinds of false verdicts of each population and size, in per cent."""
    print(f"\n{title}: false PASS / FAIL, %, {runs} runs\n")
    print(head("population, rows", "error: truth", "PASS / FAIL", "loss: truth", "PASS / FAIL"))
    found = []
    for name, n in cells:
        rng, texts = np.random.default_rng([n, len(name)]), []
        counts = {metric: [0, 0] for metric in METRIC}
        for _ in range(runs):
            view = draw(name, n, rng)
            for metric, count in counts.items():
                statistic, limit = measured(metric, view), truth(name, metric)
                count[0] += limit > 1e-9 and statistic.upper(ALPHA) <= limit
                count[1] += max(statistic.lower(ALPHA), 0.0) > limit + 1e-12
        for metric, count in counts.items():
            shares = [100 * c / runs for c in count]
            texts += [f"{truth(name, metric):.4f}", f"{shares[0]:.1f} / {shares[1]:.1f}"]
            kinds = zip(("PASS", "FAIL"), count, strict=True)
            found += [Found(f"{name}, n={n}", metric, kind, runs, c / runs, 0.0) for kind, c in kinds]
        print(row(f"{name}, {n}", *texts), flush=True)
    for metric in METRIC:
        for kind in ("PASS", "FAIL"):
            mine = [f for f in found if (f.rule, f.verdict) == (metric, kind)]
            print(f"worst false {kind} of {metric}: {max(mine, key=lambda f: f.share)}")
    return [f for f in found if f.lowest > ALLOWED]


def one_level() -> list[Found]:
    """Rows of one probability: the shares are sums over the binomial of the number of errors."""
    found = []
    for p, n in product((0.8, 0.9, 0.98, 0.99, 0.999, 0.99999), (200, 500, 1000, 5000)):
        for errors in (0.001, 0.005, 0.01, 0.015, 0.02, 0.05, 0.25):
            limit, wrong = abs(1 - errors - p), np.arange(n + 1)
            chance = binom.pmf(wrong, n, errors)
            for metric, kind in METRIC.items():
                counts = [0.0, 0.0]
                for k in wrong[chance > 1e-9] if limit > 1e-9 else ():
                    one = kind.of_counts(np.array([p]), np.array([n]), np.array([n - k]), seed=0)
                    counts[0] += chance[k] * (one.upper(ALPHA) <= limit)
                    counts[1] += chance[k] * (one.lower(ALPHA) > limit)
                cell = f"one level {p:g}, {errors:.1%} errors, n={n}"
                found += [Found(cell, metric, v, 0, float(c), 0.0) for v, c in zip(("PASS", "FAIL"), counts)]
    print(f"\nOne level, exactly: {len(found)} shares")
    for metric, verdict in product(METRIC, ("PASS", "FAIL")):
        worst = max((f for f in found if (f.rule, f.verdict) == (metric, verdict)), key=lambda f: f.share)
        print(f"worst false {verdict} of {metric}: {worst}")
    return [f for f in found if f.lowest > ALLOWED]


def upper(metric: str, view: BinaryOutcomes) -> float:
    if metric == "ece":
        return table_bounds(view, view.width_bins(15, "right"), alpha=ALPHA, method="sharp").upper
    return measured(metric, view).upper(ALPHA)


def fewest(name: str, metric: str, limit: float, samples: int, rng: np.random.Generator) -> str:
    """The least number of rows of the grid with a chance of POWER to PASS; > beyond it, - of a truth near the limit."""
    true = truth(name, metric) if metric != "ece" else truth_of_ece(name)
    if true > 0.85 * limit:
        return "-"
    low, high = 0, len(GRID)
    while low < high:  # the chance grows with the rows
        middle = (low + high) // 2
        passed = sum(upper(metric, drawn(name, GRID[middle], rng)) <= limit for _ in range(samples))
        low, high = (low, middle) if passed >= POWER * samples else (middle + 1, high)
    return f"{GRID[low]:,}" if low < len(GRID) else ">"


@cache
def truth_of_ece(name: str) -> float:
    p, q = population(name)
    bins = np.minimum(np.ceil(15 * p).astype(int) - 1, 14).clip(0)
    return float(np.abs(np.bincount(bins, p - q)).sum() / len(p))


def rows_needed(samples: int) -> None:
    print(f"\nRows for 80 % PASS, loss / error / ece (sharp), {samples} samples each\n")
    print(head("population: truths", *map(str, LIMITS)))
    for name in NEEDED:
        rng = np.random.default_rng(len(name))
        truths = " / ".join(
            f"{t:.3f}" for t in (truth(name, "cutoff_loss"), truth(name, "cutoff_error"), truth_of_ece(name))
        )
        each = [
            " / ".join(fewest(name, m, limit, samples, rng) for m in ("cutoff_loss", "cutoff_error", "ece"))
            for limit in LIMITS
        ]
        print(row(f"{name}: {truths}", *each), flush=True)


def merged(seeds: int) -> float:
    """The largest distance of a merged number from that of all rows, over its stated bound."""
    worst, stated = 0.0, 0.0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        for name in WRONG[::2]:
            view = drawn(name, int(rng.integers(50, 50_000)), rng)
            z = np.stack(
                [np.zeros(view.n), np.log(np.maximum(view.p, 1e-12)) - np.log(np.maximum(view.complement, 1e-12))], 1
            )
            y, cut = view.hit.astype(np.int64), view.n // 3
            whole = calibcli.measure(z, y, *METRIC)
            parts = Accumulator().update(z[:cut], y[:cut]).merge(Accumulator().update(z[cut:], y[cut:])).result(*METRIC)
            for metric in METRIC:
                bound = float(parts[metric].detail.get(ERROR, 0.0)) + 1e-12
                worst = max(worst, abs(parts[metric].value - whole[metric].value) / bound)
                stated = max(stated, bound)
    print(f"\nMerged rows: distance over stated bound at most {worst:.2f}; the bound is at most {stated:.1e}")
    return worst


def rules(count: int, size: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Rising maps of so many levels into [0, 1]: any steps, and the best one of a regression comes elsewhere."""
    for _ in range(count):
        yield np.sort(rng.random(size)) if rng.random() < 0.5 else np.repeat(rng.random(), size)


def promise(populations: int) -> float:
    """The most that a rising rule gains, over L of two actions and over 2 L of three to five with payoffs in [0, 1].

    The rule acts on κ(p), κ rising, as if that were the probability. The best κ of all is among those tried: the
    isotonic regression of the true chances, as it minimises every proper loss.
    """
    rng, worst = np.random.default_rng(0), [0.0, 0.0]
    for _ in range(populations):
        size = int(rng.integers(1, 9))
        p, weight = np.sort(rng.random(size)), rng.dirichlet(np.ones(size))
        q = np.clip(p + rng.normal(0, rng.choice([0.02, 0.1, 0.4]), size), 0, 1)
        all_levels = Levels(p, weight, weight * q)
        loss = max(all_levels.best().gain, 0.0)
        best = pool(weight, weight * q).spread(size)
        tried = [best, *rules(20, size, rng)]
        for actions in (2, 2, 3, 4, 5):
            pay = rng.random((actions, 2)) if actions > 2 else np.array([[0, 0], [-(t := rng.random()), 1 - t]])
            value = pay[:, :1] * (1 - q) + pay[:, 1:] * q  # (actions, levels)

            def earned(beliefs: Floats, pay: Floats = pay, value: Floats = value, weight: Floats = weight) -> float:
                # of equal actions, at the break-even point, the one that pays more if the event comes
                stated = pay[:, :1] * (1 - beliefs) + pay[:, 1:] * beliefs + 1e-13 * pay[:, 1:]
                return float(value[stated.argmax(axis=0), np.arange(len(beliefs))] @ weight)

            gain = max(earned(kappa) for kappa in tried) - earned(p)
            assert gain <= (1 if actions == 2 else 2) * loss + 1e-9, (p, q, weight, pay, gain, loss)
            worst[actions > 2] = max(worst[actions > 2], gain / max(loss, 1e-9))
    print(f"\n{populations:,} random populations, 5 payoffs and 21 rising rules each: a rule gains at most")
    print(f"{worst[0]:.2f} L with two actions, {worst[1]:.2f} L with three to five")
    return max(worst[0], worst[1] / 2)


def main() -> int:
    given = arguments(
        __doc__, part=("all", "wrong", "exact", "groups", "weights", "rows", "merged", "promise"), runs=1000,
        samples=60, seeds=20, populations=1000,
    )  # fmt: skip
    start, bad = time.process_time(), []

    def asked(part: str) -> bool:
        return given.part in ("all", part)

    some = ("calibrated, top label", "overconfident", "one level 0.8 0.75", "five levels", "saturated 0.02")
    if asked("wrong"):
        bad += wrong(given.runs, [(name, n) for n in SIZES for name in WRONG], drawn, "Independent rows")
    if asked("exact"):
        bad += one_level()
    if asked("groups"):
        cells = [(name, n) for n in (300, 1000, 3000) for name in some]
        bad += wrong(max(given.runs // 4, 1), cells, grouped, "Groups of ten rows")
    if asked("weights"):
        bad += wrong(max(given.runs // 4, 1), [(n, 1000) for n in some], weighted, "Wrong rows kept at 1/4")
    if asked("rows"):
        rows_needed(given.samples)
    broken = asked("merged") and merged(given.seeds) > 1
    broken |= asked("promise") and promise(given.populations) > 1 + 1e-6
    print(f"\n{len(bad)} shares surely above {ALLOWED:.0%}; {time.process_time() - start:.0f} CPU s")
    for f in bad:
        print(f"  {f.rule}: false {f.verdict} {f}")
    return int(bool(bad) or broken)


if __name__ == "__main__":
    sys.exit(main())
