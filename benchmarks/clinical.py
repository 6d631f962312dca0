"""Calibration in the large of rare events: how often do the intervals of `citl` and O:E hold the true value?

    python benchmarks/clinical.py                 # every cell, 1,000 runs
    python benchmarks/clinical.py --runs 100 --only 'class 3'

Populations of 12 % events: P(class) of single classes by the overconfident network of sample_data/ (its outputs on 997
test rows, drawn with replacement, events more often so that they are 12 %), and made risks, log-odds N(-2.3, 1), that
are right, or too low and too extreme. The truth is the value of the whole pool. Exit 1 if an interval of `citl` holds
it in less than 92 % of the runs of a cell.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import _harness  # noqa: F401  (before NumPy, which it holds to one thread)
import numpy as np
from _harness import ROOT, arguments

import calibcli

EVENTS, LEAST = 0.12, 0.92
ROWS = (100, 300, 1000)
METRICS = ("citl", "observed_expected")
POOLS = (*(f"network, class {c}" for c in (0, 3, 8)), "made, right", "made, too low")


def pool(name: str) -> tuple[Any, Any, Any]:
    """Log-odds (n,) of an event, whether it happened (n,), and chances (n,) to draw each row."""
    if name.startswith("network"):
        data = np.load(ROOT / "sample_data" / "test.npz")
        event = int(name[-1])
        z = data["logits"].astype(np.float64)
        others = np.delete(z, event, axis=1)
        odds = z[:, event] - np.log(np.exp(others - others.max(1)[:, None]).sum(1)) - others.max(1)
        y = data["labels"] == event
    else:
        rng = np.random.default_rng(0)
        odds = rng.normal(-2.3, 1, 50_000)
        a, b = (0.0, 1.0) if name.endswith("right") else (-0.2, 0.75)
        y = rng.random(len(odds)) < 1 / (1 + np.exp(-(a + b * odds)))
    chance = np.where(y, EVENTS / y.mean(), (1 - EVENTS) / (1 - y.mean()))
    return odds, y.astype(np.int64), chance / chance.sum()


def coverage(name: str, n: int, runs: int) -> dict[str, tuple[float, float]]:
    """The share of runs in which the interval holds the truth, and its median width, by metric."""
    odds, y, chance = pool(name)
    whole = calibcli.measure(odds, y, *METRICS, kind="logits", weights=chance)
    held: dict[str, list[bool]] = {metric: [] for metric in METRICS}
    width: dict[str, list[float]] = {metric: [] for metric in METRICS}
    rng = np.random.default_rng([POOLS.index(name), n])
    for _ in range(runs):
        rows = rng.choice(len(y), n, p=chance)
        if not 0 < y[rows].sum() < n:
            continue
        found = calibcli.measure(odds[rows], y[rows], *METRICS, kind="logits")
        for metric in METRICS:
            e = found[metric]
            low, high = (-np.inf if e.low is None else e.low), (np.inf if e.high is None else e.high)
            held[metric].append(bool(low <= whole[metric].value <= high))
            width[metric].append(float(high - low))
    return {metric: (float(np.mean(held[metric])), float(np.median(width[metric]))) for metric in METRICS}


def main() -> int:
    options = arguments(__doc__, only=".", runs=1000)
    low = []
    print(f"{'':<20}{'n':>6}" + "".join(f"{metric:>20}{'width':>8}" for metric in METRICS))
    for name in POOLS:
        for n in ROWS:
            if re.search(options.only, name):
                found = coverage(name, n, options.runs)
                cells = "".join(f"{100 * share:>18.1f} %{width:>8.2f}" for share, width in found.values())
                print(f"{name:<20}{n:>6}{cells}", flush=True)
                low += [f"{name}, {n}"] if found["citl"][0] < LEAST else []
    print(f"cells in which citl covers less than {100 * LEAST:.0f} %: {low or 'none'}")
    return int(bool(low))


if __name__ == "__main__":
    sys.exit(main())
