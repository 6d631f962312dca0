"""Sampling weights of which few rows carry most: how often a bound is wrong, and whom the rule against them refuses.

    python benchmarks/weights.py [--only pareto]

A share of errors with distributions of weights from equal to those without variance, in populations of 400,000 rows
from which samples are drawn with replacement, so that the true share is known; errors depend on the weight in five
ways. For each distribution and number of rows: the share of samples that `few_carry` refuses, and the largest share,
over the ways, of upper bounds (95 %) below the truth, of all samples and of those that are not refused. Ways of which
fewer than 3 rows that matter are expected in a sample are left out, as no method can see them. One CPU minute.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import _harness  # noqa: F401  (before NumPy, which it holds to one thread)
import numpy as np
from _harness import arguments

from calibcli.metrics.intervals import WeightedMean
from calibcli.metrics.registry import few_carry

ROWS = 400_000
RUNS = {200: 500, 1000: 500, 5000: 300}


def few_heavy(share: float, times: float) -> Callable[[Any, Any], Any]:
    return lambda u, rng: np.where(u < share, times, 1.0)


WEIGHTS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda u, rng: np.ones(ROWS),
    "exponential": lambda u, rng: rng.exponential(size=ROWS),
    **{f"{times} times in {share:.0%}": few_heavy(share, times) for share, times in
       ((0.05, 20), (0.02, 50), (0.01, 100), (0.01, 1000))},
    **{f"lognormal {s}": lambda u, rng, s=s: np.exp(s * rng.standard_normal(ROWS)) for s in (0.5, 1, 1.5, 2, 2.5)},
    **{f"pareto {a}": lambda u, rng, a=a: u ** (-1 / a) for a in (3, 2.5, 2, 1.7, 1.5, 1.2)},
}  # fmt: skip
ERRORS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "of any weight": (lambda r: np.full(ROWS, 0.1), 0),
    "of heavy rows": (lambda r: 0.02 + 0.5 * r**20, 0),
    "of the heaviest .5 %": (lambda r: np.where(r > 0.995, 0.6, 0.03), 1000),
    "of the heaviest .1 %": (lambda r: np.where(r > 0.999, 0.9, 0.05), 5000),
    "of light rows": (lambda r: 0.2 * (1 - r**5), 0),
}
"""The chance of an error by the rank of the weight in [0, 1), and the rows from where 3 that matter are expected."""


def main() -> int:
    given, rng = arguments(__doc__, only=""), np.random.default_rng(7)
    print(f"{'weights':>20} {'rows':>5} {'refused':>8} {'below truth':>12} {'not refused':>12}")
    for name, draw in WEIGHTS.items():
        if not re.search(given.only, name):
            continue
        w = draw(rng.random(ROWS), rng)
        rank = np.argsort(np.argsort(w, kind="stable")) / ROWS
        found: dict[int, list[Any]] = {n: [] for n in RUNS}
        for chance, least in ERRORS.values():
            wrong = rng.random(ROWS) < chance(rank)
            truth = float(w[wrong].sum() / w.sum())
            for n, runs in RUNS.items():
                seen = np.zeros((runs, 2), np.bool_)
                for run in range(runs):
                    rows = rng.integers(0, ROWS, n)
                    mean = WeightedMean(wrong[rows].astype(np.float64), w[rows], False, None)
                    below = not mean.lacking and mean.bounds(0.05, 0.0, 1.0)[1] < truth
                    seen[run] = below, bool(few_carry(w[rows], False, None))
                found[n].append((seen[:, 1].mean(), seen[:, 0].mean(), (seen[:, 0] & ~seen[:, 1]).mean(), n >= least))
        for n, each in found.items():
            refused = np.mean([one[0] for one in each])
            before, after = (max(one[i] for one in each if one[3]) for i in (1, 2))
            print(f"{name:>20} {n:5} {refused:8.1%} {before:12.1%} {after:12.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
