"""How often `calib threshold` breaks its promise, and how many rows it accepts, on populations whose risk is known.

    python benchmarks/threshold.py [--runs 400] [--seed 1] [--only PATTERN] [--rows 200 1000 5000 20000]

A promise is broken where a threshold is found and the risk of the population above it is larger than the limit. Every
cell prints the share of its runs that break it, for `calib` and for three ways to choose without its level:

- `naive`: the smallest threshold whose observed risk is within the limit;
- `each`: the smallest whose bound of Clopper and Pearson is, at level α for every candidate;
- `sequence`: candidates from the most confident rows down at level α, as far as they pass.

Exit 1 if the promise of calib is surely broken in more than 6 % of the runs of a cell (99.9 % lower bound), or if
`naive` and `each` are not found out by the same test.
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import _harness as bench
import numpy as np
from scipy.special import betainc

import calibcli
from calibcli.core.statistics import clopper_pearson
from calibcli.gate.threshold import Judged, Walk, above_negatives

Array = np.ndarray[Any, np.dtype[Any]]
LIMIT, ALPHA, MOST, SURE = 0.05, 0.05, 0.06, 0.001
WAYS = ("calib", "naive", "each", "sequence")


class Population(NamedTuple):
    """Scores and errors: `draw` n of each, (n,); `risk` and `share` of the rows from a score on."""

    draw: Callable[[np.random.Generator, int], tuple[Array, Array]]
    risk: Callable[[float], float]
    share: Callable[[float], float]


def by_rank(start: float, slope: float) -> Population:
    """Scores are uniform; the row at share u from the top is wrong with probability LIMIT (start + slope u)."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        score = rng.random(n)
        return score, rng.random(n) < LIMIT * (start + slope * (1 - score))

    return Population(draw, lambda tau: LIMIT * (start + slope * (1 - tau) / 2), lambda tau: 1 - tau)


def calibrated() -> Population:
    """Confidences are Beta(4, 1), and right as often as they say."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        score = rng.beta(4, 1, n)
        return score, rng.random(n) > score

    return Population(draw, lambda t: 1 - 0.8 * (1 - t**5) / (1 - t**4) if t < 1 else 0.0, lambda t: 1 - t**4)


def tied(inner: Population, levels: int) -> Population:
    """The same with scores rounded down to a few levels."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        score, wrong = inner.draw(rng, n)
        return np.floor(score * levels) / levels, wrong

    def up(tau: float) -> float:
        return math.ceil(tau * levels - 1e-9) / levels

    return Population(draw, lambda tau: inner.risk(up(tau)), lambda tau: inner.share(up(tau)))


FLAT = by_rank(1.02, 0)
POPULATIONS = {
    "calibrated, Beta(4, 1)": calibrated(),
    "3 % wrong at the top": by_rank(0.6, 1.428),
    "flat, .6 of the limit": by_rank(0.6, 0),
    "flat, 1.01 of the limit": by_rank(1.01, 0),
    "flat, 1.02 of the limit": FLAT,
    "flat, 1.05 of the limit": by_rank(1.05, 0),
    "sinks to 1.01 of the limit": by_rank(1.31, -0.6),
    "sinks to 1.05 of the limit": by_rank(1.35, -0.6),
    "flat, 1.02, 11 levels": tied(FLAT, 11),
    "calibrated, 11 levels": tied(calibrated(), 11),
}


class Drawn(NamedTuple):
    """Rows, and the risk and share from a score on in their population."""

    rows: Judged
    risk: Callable[[float], float]
    share: Callable[[float], float]


def grouped(rng: np.random.Generator, n: int, size: int, icc: float, together: bool) -> Drawn:
    """Groups whose rows are wrong together, at 1.02 of the limit; `together`: their scores are near one another."""
    groups, mean = np.arange(n) // size, 1.02 * LIMIT
    spread = (1 - icc) / icc
    p = rng.beta(mean * spread, (1 - mean) * spread, -(-n // size))[groups]
    base = rng.random(-(-n // size))[groups]
    score = (base + 0.05 * rng.random(n)) % 1 if together else rng.random(n)
    return Drawn(Judged(score, rng.random(n) < p, groups=groups), FLAT.risk, FLAT.share)


def weighted(rng: np.random.Generator, n: int, kind: str) -> Drawn:
    """Rows of a population at 1.02 of the limit, drawn with unequal chances and weighted by their inverse."""
    score, wrong = FLAT.draw(rng, 3 * n)
    chance = {
        "wrong rows at half the rate": np.where(wrong, 0.5, 1.0),
        "wrong rows at twice the rate": np.where(wrong, 1.0, 0.5),
        "sure rows at a fifth of the rate": np.where(score > 0.5, 0.2, 1.0),
        "chances from .1 to 1": rng.uniform(0.1, 1, 3 * n),
    }[kind]
    kept = np.flatnonzero(rng.random(3 * n) < chance)[:n]
    return Drawn(Judged(score[kept], wrong[kept], 1 / chance[kept]), FLAT.risk, FLAT.share)


def weighted_groups(rng: np.random.Generator, n: int, kind: str) -> Drawn:
    """Groups of 5 of which wrong rows are drawn at half the rate."""
    rows = grouped(rng, 2 * n, 5, 0.5, kind == "together").rows
    kept = np.flatnonzero(rng.random(2 * n) < np.where(rows.wrong, 0.5, 1.0))[:n]
    assert rows.groups is not None
    judged = Judged(rows.score[kept], rows.wrong[kept], np.where(rows.wrong[kept], 2.0, 1.0), False, rows.groups[kept])
    return Drawn(judged, FLAT.risk, FLAT.share)


def plain(population: Population) -> Callable[[np.random.Generator, int], Drawn]:
    return lambda rng, n: Drawn(Judged(*population.draw(rng, n)), population.risk, population.share)


DESIGNS: dict[str, Callable[[np.random.Generator, int], Drawn]] = {
    "groups of 5, correlation .5": lambda rng, n: grouped(rng, n, 5, 0.5, False),
    "groups of 5, correlation .1": lambda rng, n: grouped(rng, n, 5, 0.1, False),
    "groups of 5, near in score": lambda rng, n: grouped(rng, n, 5, 0.5, True),
    "groups of 20, correlation .5": lambda rng, n: grouped(rng, n, 20, 0.5, False),
    "groups of 20, correlation .1": lambda rng, n: grouped(rng, n, 20, 0.1, False),
    "groups of 20, near in score": lambda rng, n: grouped(rng, n, 20, 0.5, True),
    **{
        kind: lambda rng, n, kind=kind: weighted(rng, n, kind)  # type: ignore[misc]
        for kind in (
            "wrong rows at half the rate",
            "wrong rows at twice the rate",
            "sure rows at a fifth of the rate",
            "chances from .1 to 1",
        )
    },
    "groups of 5, wrong at half the rate": lambda rng, n: weighted_groups(rng, n, "apart"),
    "the same, near in score": lambda rng, n: weighted_groups(rng, n, "together"),
}


class Levels:
    """Walks whose level is computed only where it may matter: at one number of rows it hardly varies."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, float], float] = {}

    def walk(self, rows: Judged, alpha: float = ALPHA) -> Walk:
        walk = Walk.of(rows, LIMIT, alpha)
        if not len(walk.tau):
            return walk
        wrong, right = walk.effective * walk.seen, walk.effective * (1 - walk.seen)
        vars(walk)["chances"] = betainc(right, wrong + 1, 1 - LIMIT)  # the same as its own, in less time
        key = (round(math.log(walk.effective[-1]) * 10), alpha)
        if key not in self.known:
            self.known[key] = walk.level
            return walk
        near = self.known[key]
        chosen = []
        for level in (near / 1.1, near * 1.1):
            vars(walk)["level"] = level
            vars(walk).pop("chosen", None)
            chosen.append(walk.chosen)
        if chosen[0] != chosen[1]:
            vars(walk).pop("level")
            vars(walk).pop("chosen")
        return walk


def chosen(walk: Walk, way: str) -> int | None:
    """Return the candidate that a way chooses."""
    if way == "calib":
        return walk.chosen
    count = len(walk.tau)
    if way == "naive":
        return next((i for i in reversed(range(count)) if walk.seen[i] <= LIMIT), None)

    passes = walk.chances <= ALPHA
    if way == "each":
        return int(np.flatnonzero(passes)[-1]) if passes.any() else None
    failed = count if passes.all() else int(passes.argmin())
    return failed - 1 if failed else None


class Found(NamedTuple):
    """Of the runs of a cell, by way: broken promises, and the mean share that is accepted."""

    runs: int
    broken: dict[str, int]
    accepted: dict[str, float]


def cell(draw: Callable[[np.random.Generator, int], Drawn], n: int, runs: int, seed: int, levels: Levels) -> Found:
    """Run one cell."""
    broken, accepted = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0.0)
    for run in range(runs):
        drawn = draw(np.random.default_rng([seed, n, run]), n)
        walk = levels.walk(drawn.rows)
        for way in WAYS:
            i = chosen(walk, way)
            if i is not None:
                tau = float(walk.tau[i])
                broken[way] += drawn.risk(tau) > LIMIT * (1 + 1e-9)
                accepted[way] += drawn.share(tau) / runs
    return Found(runs, broken, accepted)


def negatives(rng: np.random.Generator, n: int, kind: str) -> bool:
    """Whether the false positive rate of n negatives with uniform scores is over the limit."""
    size = 5 if kind == "groups of 5" else 1
    score = np.repeat(rng.random(n // size), size)
    weights, groups = None, np.arange(n) // size if size > 1 else None
    if kind == "weights":
        chance = np.where(score > 0.7, 0.3, 1.0)
        kept = rng.random(n) < chance
        score, weights = score[kept], 1 / chance[kept]
    if kind == "ties":
        score = np.floor(score * 40) / 40
    tau = above_negatives(Judged(score, np.ones(len(score), bool), weights, False, groups), LIMIT, ALPHA)
    if kind == "ties" and tau is not None:
        tau = math.ceil(tau * 40 - 1e-9) / 40
    return tau is not None and 1 - tau > LIMIT


def halved(rng: np.random.Generator, score: Array, wrong: Array) -> tuple[Array, Array, Array]:
    """Half of the rows, of which wrong ones were drawn at half the rate, with their weights."""
    kept = np.flatnonzero(rng.random(len(score)) < np.where(wrong, 0.5, 1.0))[: len(score) // 2]
    return score[kept], wrong[kept], np.where(wrong[kept], 2.0, 1.0)


def sliced(rng: np.random.Generator, levels: Levels, own: bool, flat: float = 0.0, weights: bool = False) -> bool:
    """Whether the promise is broken in one of four slices of 2,000 rows, of which one is too sure of itself.

    `own`: each has a threshold at α / 4; else all have that of all rows. `flat`: the risk of all four instead, as a
    multiple of the limit. `weights`: wrong rows are drawn at half the rate.
    """
    population = [by_rank(flat, 0)] * 4 if flat else [*[by_rank(0.5, 1.0)] * 3, by_rank(0.9, 1.4)]
    drawn: list[Any] = [one.draw(rng, 4000 if weights else 2000) for one in population]
    drawn = [halved(rng, *one) for one in drawn] if weights else drawn
    if own:
        walks = [levels.walk(Judged(*one), ALPHA / 4) for one in drawn]
    else:
        walks = [levels.walk(Judged(*(np.concatenate(part) for part in zip(*drawn, strict=True))))] * 4
    taus = [None if walk.chosen is None else float(walk.tau[walk.chosen]) for walk in walks]
    return any(t is not None and one.risk(t) > LIMIT for t, one in zip(taus, population, strict=True))


def of_classes(rng: np.random.Generator, k: int, n: int) -> tuple[Array, Array, Array]:
    """Logits of an overconfident model (n, k), the true probabilities (n, k), and labels (n,)."""
    z = rng.normal(size=(n, k)) * (3 + 2 * math.log(k))
    p = np.exp((z - z.max(axis=1, keepdims=True)) / 1.4)
    p /= p.sum(axis=1, keepdims=True)
    labels = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, k - 1)
    return z, p, labels


@cache
def fresh(k: int) -> tuple[Array, Array]:
    """Of 100,000 other rows of K classes the confidence, and the probability that the prediction is right, (n,)."""
    z, p, _ = of_classes(np.random.default_rng(k), k, 100_000)
    top = z.argmax(axis=1)
    return 1 / np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1), p[np.arange(len(z)), top]


def whole(rng: np.random.Generator, k: int, n: int) -> tuple[bool, float]:
    """Whether `calibcli.threshold` breaks its promise on scores of K classes, and the share it accepts."""
    z, _, labels = of_classes(rng, k, n)
    found = calibcli.threshold(z, labels, max_risk=LIMIT)
    confidence, right = fresh(k)
    accept = confidence >= (found["threshold"].value or 2.0)
    return bool(accept.any() and 1 - right[accept].mean() > LIMIT), float(accept.mean())


def deployed(rng: np.random.Generator, folder: Path) -> tuple[bool, float]:
    """The same of what `apply` accepts of fresh rows, with a temperature and a threshold of two other files."""
    names = {name: str(folder / f"{name}.npz") for name in ("fit", "found", "new", "out")}
    for name, n in (("fit", 1000), ("found", 2000), ("new", 20_000)):
        z, p, labels = of_classes(rng, 10, n)
        np.savez(names[name], logits=z.astype(np.float32), **({} if name == "new" else {"labels": labels}))
    scaler, t = str(folder / "t.safetensors"), folder / "t.json"
    calibcli.save_scaler(calibcli.fit_scaler(names["fit"], "labels"), scaler)
    calibcli.threshold(names["found"], max_risk=LIMIT, calibrator=scaler).write(t)
    calibcli.apply(scaler, names["new"], save=names["out"], threshold=t)
    accept = np.load(names["out"])["accept"]
    right = p[np.arange(len(z)), z.argmax(axis=1)]
    return bool(accept.any() and 1 - right[accept].mean() > LIMIT), float(accept.mean())


def surely(broken: int, runs: int) -> bool:
    """Whether promises are surely broken in more than `MOST` of the runs."""
    return clopper_pearson(broken, runs, SURE)[0] > MOST


def main() -> int:
    args = bench.arguments(__doc__, runs=400, seed=1, only="", rows=[200, 1000, 5000, 20_000])
    levels, failed, caught = Levels(), list[str](), dict.fromkeys(WAYS, 0)
    wanted = re.compile(args.only)
    print(f"broken, % of runs (mean share accepted), limit {LIMIT}, alpha {ALPHA}: {', '.join(WAYS)}")
    cells = {**{name: plain(one) for name, one in POPULATIONS.items()}, **DESIGNS}
    for name, draw in cells.items():
        for n in args.rows if name in POPULATIONS else [r for r in args.rows if r in (1000, 5000)]:
            if not wanted.search(name):
                continue
            found = cell(draw, n, args.runs, args.seed, levels)
            for way in WAYS:
                caught[way] += surely(found.broken[way], found.runs)
            failed += [f"{name}, n = {n}"] if surely(found.broken["calib"], found.runs) else []
            each = [f"{100 * found.broken[w] / found.runs:.1f} ({found.accepted[w]:.2f})" for w in WAYS]
            print(f"{name}, n = {n:,}: {', '.join(each)}", flush=True)

    def counted(name: str, one: Callable[[np.random.Generator], Any], runs: int, must: bool = True) -> None:
        if not wanted.search(name):
            return
        outcomes = [np.atleast_1d(one(np.random.default_rng([args.seed, 7, run]))) for run in range(runs)]
        broken = int(sum(o[0] for o in outcomes))
        more = f" ({np.mean([o[1] for o in outcomes]):.2f})" if len(outcomes[0]) > 1 else ""
        print(f"{name}: {100 * broken / runs:.1f}{more}, {runs:,} runs", flush=True)
        failed.extend([name] if must and surely(broken, runs) else [])

    for kind in ("rows alone", "groups of 5", "weights", "ties"):
        counted(
            f"false positive rate, {kind}, 1,000 negatives", lambda rng, k=kind: negatives(rng, 1000, k), 5 * args.runs
        )  # type: ignore[misc]
    for name, flat in (("", 0.0), (", flat, 1.02 of the limit", 1.02)):
        for more, weights in (("", False), (", wrong rows at half the rate", True)):
            counted(
                f"4 slices, own thresholds{name}{more}",
                lambda rng, flat=flat, weights=weights: sliced(rng, levels, True, flat, weights),
                max(1, args.runs // 2),
            )
    counted(
        "4 slices, threshold of all rows", lambda rng: sliced(rng, levels, False), max(1, args.runs // 2), must=False
    )
    for k in (2, 10, 100):
        counted(f"{k} classes, n = 1,000", lambda rng, k=k: whole(rng, k, 1000), max(1, args.runs // 8))  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        counted("deployed with apply", lambda rng: deployed(rng, Path(folder)), max(1, args.runs // 8))
    print(f"cells surely above {MOST:.0%}: " + ", ".join(f"{way} {count}" for way, count in caught.items()))
    blind = [way for way in ("naive", "each") if not caught[way]] if not args.only else []
    print(*(f"FAILED: {name}" for name in failed), *(f"FAILED: {way} is not found out" for way in blind), sep="\n")
    print(bench.machine("scipy"))
    return bool(failed or blind)


if __name__ == "__main__":
    sys.exit(main())
