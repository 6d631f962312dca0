"""Verdicts of a study on simulated runs: coverage of the intervals, and how often a verdict is false.

    python benchmarks/claims.py [--runs 400] [--short]

S seeds train two arms; all are measured on the same n rows. A row is right with a chance of its own, by luck that the
runs share in part; a seed moves its arm's confidence and adds noise row by row. The truth is the mean over
thousands of seeds and draws of rows: at this n for `ece`, whose bias the arms may not share, and of 20,000 rows for the
debiased one. `less` is judged by both, as in a study; with arms that are alike every verdict is false.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np  # noqa: E402 (after the number of threads is set)

from calibcli.metrics.reliability import BinaryOutcomes  # noqa: E402
from calibcli.numerics import clopper_pearson  # noqa: E402
from calibcli.study.claims import DRAWS, Mean, Measured, both, less, preserved  # noqa: E402
from calibcli.study.redraws import Sums, binned, draws, means  # noqa: E402

METRICS = ("error", "nll", "ece", "ece2_debiased")


class Arm(NamedTuple):
    """Factor on the log-odds, its spread over seeds (log), noise of a row's log-odds, and error added to every row."""

    factor: float
    spread: float = 0.05
    noise: float = 0.3
    worse: float = 0.0


PAIRS = {
    "alike, calibrated": (Arm(1.0), Arm(1.0)),
    "alike, overconfident": (Arm(1.6), Arm(1.6)),
    "calibrated; overconfident": (Arm(1.0), Arm(1.5)),
    "over; more so": (Arm(1.4), Arm(1.7)),
    "alike, seeds differ much": (Arm(1.3, 0.3), Arm(1.3, 0.3)),
    "one point worse": (Arm(1.0), Arm(1.0, worse=0.01)),
}


def measured(
    arms: tuple[Arm, Arm], seeds: int, n: int, rng: np.random.Generator, times: np.ndarray | None
) -> list[dict]:
    """Values and draws of every metric of both arms."""
    odds = rng.normal(2.0, 1.5, n)
    shared = rng.random(n)
    found = []
    for arm in arms:
        values: dict[str, list] = {name: [] for name in METRICS}
        spread: dict[str, list] = {name: [] for name in METRICS}
        for _ in range(seeds):
            own = odds + arm.noise * rng.standard_normal(n)
            luck = np.where(rng.random(n) < 0.7, shared, rng.random(n))
            hit = luck < (1 - arm.worse) / (1 + np.exp(-odds))
            factor = arm.factor * np.exp(arm.spread * rng.standard_normal())
            p = np.clip(1 / (1 + np.exp(-factor * own)), 1e-9, 1 - 1e-9)
            for name, summed in sums(p, hit).items():
                values[name].append(summed.value)
                if times is not None:
                    spread[name].append(summed.drawn(times))
        found.append(
            {
                name: Measured(np.array(values[name]), np.mean(spread[name], axis=0) if times is not None else None)
                for name in METRICS
            }
        )
    return found


def sums(p: np.ndarray, hit: np.ndarray) -> dict[str, Sums]:
    view = BinaryOutcomes(p, 1 - p, hit, None, False, None, values_only=True)
    rows = {"error": 1.0 - hit, "nll": -np.log(np.where(hit, p, 1 - p))}
    return {name: means(rows[name]) if name in rows else binned(name, view) for name in METRICS}


@functools.cache
def truth(arms: tuple[Arm, Arm], n: int) -> dict[str, float]:
    rng = np.random.default_rng(1)
    many = [measured(arms, 10, n, rng, None) for _ in range(400 if n < 5000 else 100)]
    large = [measured(arms, 10, 20_000, rng, None) for _ in range(20)]
    return {
        name: float(
            np.mean([b[name].values.mean() - a[name].values.mean() for a, b in (large if "2" in name else many)])
        )
        for name in METRICS
    }


def cell(arms: tuple[Arm, Arm], seeds: int, n: int, runs: int) -> dict[str, float]:
    """Shares in which an interval covers (with and without the rows' part), and in which a verdict is given."""
    wanted, counts = truth(arms, n), dict[str, int]()
    rng = np.random.default_rng([seeds, n])

    def count(key: str, yes: bool) -> None:
        counts[key] = counts.get(key, 0) + bool(yes)

    for run in range(runs):
        a, b = measured(arms, seeds, n, rng, draws(n, DRAWS, run))
        for name in METRICS:
            found = Mean.of(b[name] - a[name])
            off = abs(found.value - wanted[name])
            count(f"{name} covered", off <= found.half(0.95))
            count(f"{name} by seeds alone", off <= found.half(0.95, rows=False))
        verdict = both(less(b["ece"], a["ece"]), less(b["ece2_debiased"], a["ece2_debiased"]))
        count("less: holds", verdict.word == "holds")
        count("less: reversed", verdict.word == "reversed")
        kept = preserved(b["error"], a["error"], 0.01)
        count("within a point: holds", kept.word == "holds")
        count("within a point: reversed", kept.word == "reversed")
    return {key: value / runs for key, value in counts.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--short", action="store_true", help="a minute: 1,000 rows, 60 runs, two pairs")
    args = parser.parse_args()
    sizes, pairs, runs = ((1000, 10_000), [*PAIRS], args.runs) if not args.short else ((1000,), [*PAIRS][:2], 60)
    wrong = 0
    print(
        "| arms | rows | seeds | "
        + " | ".join(f"{m} covered (seeds alone)" for m in METRICS)
        + " | less | within .01 |"
    )
    print("|" + "---|" * (5 + len(METRICS)))
    for name in pairs:
        for n in sizes:
            for seeds in (3, 5, 10, 20):
                found = cell(PAIRS[name], seeds, n, runs)
                shown = [f"{found[f'{m} covered']:.3f} ({found[f'{m} by seeds alone']:.3f})" for m in METRICS]
                shown += [
                    f"{found[f'{k}: holds']:.3f}, reversed {found[f'{k}: reversed']:.3f}"
                    for k in ("less", "within a point")
                ]
                print(f"| {name} | {n:,} | {seeds} | " + " | ".join(shown) + " |", flush=True)
                for metric in METRICS:
                    low, high = clopper_pearson(round(found[f"{metric} covered"] * runs), runs, 0.0005)
                    wrong += high < 0.92 or low > 0.98
                if name.startswith("alike"):
                    false = round((found["less: holds"] + found["less: reversed"]) * runs)
                    wrong += clopper_pearson(false, runs, 0.0005)[0] > 0.06
    print(
        f"\n{runs} runs a cell, {wrong} of them surely outside 92 to 98 % or above 6 %; {time.process_time():.0f} CPU s"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
