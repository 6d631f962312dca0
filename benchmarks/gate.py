"""How often a gate is wrong: false PASS and false FAIL by simulation, and the sample sizes that `calib plan` states.

    python benchmarks/gate.py            # everything, about 20 minutes on one core
    python benchmarks/gate.py --short    # a minute

Every scenario has an exact population: rows are drawn from a pool of (reported confidence, true chance of being
right), so the population ECE is known. The limit is put at that ECE, where a wrong verdict is most likely: PASS there
is false (the limit is not undercut), and so is FAIL.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.stats import binom, norm

from calibcli.columns import bin_index
from calibcli.metrics.bounds import ece_bounds

SIZES = (200, 500, 1000, 2000, 5000, 20000)
CLASSES = (2, 10, 100)
ACCURACY = {"spread": 0.8, "saturated": 0.985}
SHARPEN = {"calibrated": 1.0, "overconfident": 1.5, "underconfident": 1 / 1.5}
POOL = 100_000
ALPHA = 0.05
ALLOWED = 0.06


@dataclass(frozen=True, eq=False)
class Pool:
    """Reported confidences and the chance that the row is right."""

    name: str
    confidence: np.ndarray
    chance: np.ndarray

    @property
    def ece(self) -> float:
        gap = np.bincount(bin_index(self.confidence, 15), weights=self.confidence - self.chance, minlength=15)
        return float(np.abs(gap).sum() / len(self.confidence))

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        rows = rng.integers(0, len(self.confidence), n)
        return self.confidence[rows], rng.random(n) < self.chance[rows]

    def draw_groups(self, sizes: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Rows of a group share part of what decides their confidence and part of what decides their outcome."""
        order = np.argsort(self.confidence)
        member = np.repeat(np.arange(len(sizes)), sizes)

        def shared() -> np.ndarray:
            common, own = rng.standard_normal(len(sizes)), rng.standard_normal(len(member))
            return norm.cdf(math.sqrt(share) * common[member] + math.sqrt(1 - share) * own)

        rows = order[np.minimum((shared() * len(order)).astype(int), len(order) - 1)]
        return self.confidence[rows], shared() < self.chance[rows], member


def pools() -> Iterator[Pool]:
    """K classes x spread or saturated x calibrated, too sure, not sure enough."""
    for k in CLASSES:
        rng = np.random.default_rng(k)
        base = rng.standard_normal((POOL, k))
        for shape, accuracy in ACCURACY.items():
            z = scaled(base, accuracy)
            for model, factor in SHARPEN.items():
                yield Pool(f"K={k} {shape} {model}", softmax(factor * z).max(axis=1), softmax(z).max(axis=1))


def scaled(z: np.ndarray, accuracy: float) -> np.ndarray:
    """Logits scaled so that a calibrated model of them has this accuracy."""
    low, high = 0.0, 200.0
    for _ in range(40):
        middle = (low + high) / 2
        if softmax(middle * z[:20_000]).max(axis=1).mean() < accuracy:
            low = middle
        else:
            high = middle
    return low * z


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def exact(n: int, confidence: float, errors: float) -> tuple[float, float]:
    """False PASS and false FAIL of a constant confidence, summed over the binomial number of errors."""
    truth = abs(confidence - (1 - errors))
    wrong = np.arange(n + 1)
    weight = binom.pmf(wrong, n, errors)
    false_pass = false_fail = 0.0
    for k in wrong[weight > 1e-12]:
        bounds = ece_bounds(np.full(n, confidence), np.arange(n) >= k, alpha=ALPHA)
        false_pass += weight[k] * (bounds.upper <= truth + 1e-12)
        false_fail += weight[k] * (bounds.lower > truth + 1e-12)
    return float(false_pass), float(false_fail)


def simulated(
    draw: Callable[[np.random.Generator], tuple[np.ndarray, ...]], truth: float, runs: int, seed: int
) -> tuple[float, float]:
    """False PASS and false FAIL at the limit `truth` over `runs` data sets."""
    rng = np.random.default_rng(seed)
    false_pass = false_fail = 0
    for _ in range(runs):
        confidence, correct, *groups = draw(rng)
        bounds = ece_bounds(confidence, correct, alpha=ALPHA, groups=groups[0] if groups else None)
        false_pass += bounds.upper <= truth
        false_fail += bounds.lower > truth + 1e-12
    return false_pass / runs, false_fail / runs


def independent(runs: int, sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[str, float, float]]:
    for pool in pools():
        for n in sizes:
            yield f"{pool.name} n={n}", *simulated(partial(pool.draw, n), pool.ece, runs, n)


def constant(sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[str, float, float]]:
    for n in sizes:
        for confidence in (0.98, 0.985, 0.99, 0.995, 0.998, 0.999):
            for errors in (0.01, 0.015, 0.02, 0.03, 0.04, 0.05):
                yield f"constant {confidence} errors {errors:.1%} n={n}", *exact(n, confidence, errors)


def clustered(runs: int, sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[str, float, float]]:
    """Groups of 1 to 19 rows (mean 10) with weak and strong dependence."""
    for pool in pools():
        if "K=100" in pool.name:
            continue
        for n in sizes:
            for share in (0.2, 0.7):
                counts = 1 + np.arange(max(n // 10, 2)) % 19
                draw = partial(pool.draw_groups, counts, share)
                yield f"groups ({share:g}) {pool.name} n={n}", *simulated(draw, pool.ece, runs, n)


def report(title: str, rows: Iterator[tuple[str, float, float]], show: int = 4) -> list[tuple[str, float, float]]:
    """Print the worst scenarios; return all."""
    found = list(rows)
    print(f"\n{title}: {len(found)} scenarios")
    for name, column in (("false PASS", 1), ("false FAIL", 2)):
        worst = sorted(found, key=lambda r: -float(r[column]))[:show]
        print(f"  {name}: worst " + "; ".join(f"{r[column]:.3f} ({r[0]})" for r in worst), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    sizes = (200, 1000) if arguments.short else SIZES
    runs = 150 if arguments.short else arguments.runs
    parts = {
        "constant": lambda: report("Constant confidence, exact", constant(sizes)),
        "independent": lambda: report("Independent rows", independent(runs, sizes)),
        "clustered": lambda: report("Clustered rows", clustered(runs, sizes)),
    }
    for name, part in parts.items():
        if arguments.only in ("", name):
            part()


if __name__ == "__main__":
    main()
