"""Coverage of the interval of the difference of two models' ECE on the same rows, as `compare` gives it.

    python benchmarks/paired_coverage.py [--runs 1000]

Twelve pairs of models: both calibrated, one calibrated, both off; alike and apart. Independent rows, and 1,000 rows in
200 groups of 5 that are one row five times over. The truth is that of a population of 200,000 rows whose label
probabilities are known. Every interval should cover in 92 to 98 % of the runs; `width` is the median.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np  # noqa: E402 (after the number of threads is set)

from calibcli import metrics  # noqa: E402
from calibcli.columns import columns  # noqa: E402
from calibcli.metrics import paired  # noqa: E402
from calibcli.metrics.sample import Sample  # noqa: E402
from calibcli.predictions import Predictions  # noqa: E402

Floats = np.ndarray[Any, np.dtype[np.float64]]
POPULATION, K = 200_000, 10
CELLS = {"200": (200, 1), "1,000": (1000, 1), "5,000": (5000, 1), "1,000 in 200 groups": (1000, 5)}
"""Rows, and how often each is there."""
HEAD = "| models | " + " | ".join(CELLS) + " |\n|" + "---|" * (len(CELLS) + 1)


def softmax(z: Floats) -> Floats:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def pairs() -> tuple[Floats, Iterator[tuple[str, Floats, Floats]]]:
    """(N, K) true label probabilities, and the logits of two models of the same rows.

    A vague model knows the probabilities only up to swaps of two classes, of which it reports the average: calibrated.
    """
    rng = np.random.default_rng(5)
    z = 2 * rng.standard_normal((POPULATION, K))
    one, two = rng.standard_normal((2, POPULATION, K))
    true = softmax(z)
    vague = np.log((true + true[:, [1, 0, 2, 3, 4, 5, 6, 7, 8, 9]]) / 2)
    vaguer = np.log((true + true[:, [0, 1, 3, 2, 5, 4, 7, 6, 9, 8]]) / 2)

    def each() -> Iterator[tuple[str, Floats, Floats]]:
        yield "calibrated; sharper", vague, z
        yield "calibrated; apart", vaguer, vague
        yield "calibrated; the same with a little noise", z, z + 0.05 * one
        yield "calibrated; logits x 1.1", z, 1.1 * z
        yield "calibrated; logits x 1.5", z, 1.5 * z
        yield "calibrated, vague; sharper, logits x 1.2", vague, 1.2 * z
        yield "logits x 1.2; the same with noise", 1.2 * z, 1.2 * z + 0.1 * one
        yield "logits x 1.5; the same with noise", 1.5 * z, 1.5 * z + 0.1 * one
        yield "logits x 1.3; x .9 with much noise", 1.3 * z, 0.9 * z + 0.6 * one
        yield "logits x 1.2; x .8", 1.2 * z, 0.8 * z
        yield "logits x 2; x 3", 2 * z, 3 * z
        yield "logits x 1.2 with noise; with other noise", 1.2 * z + 0.5 * one, 1.2 * z + 0.5 * two

    return true, each()


def truth(z: Floats, true: Floats) -> float:
    """ECE over the label probabilities of all rows."""
    p = softmax(z)
    rows, top = np.arange(len(p)), p.argmax(axis=1)
    c = p[rows, top]
    return float(np.abs(np.bincount(np.ceil(c * 15).astype(int), c - true[rows, top])).sum()) / len(p)


def cell(models: tuple[Floats, Floats], true: Floats, n: int, copies: int, runs: int) -> tuple[float, float, float]:
    """Share of runs whose interval lies above the truth, share in which it lies below, and median width."""
    choice = metrics.choose(["ece"], K)[0]
    expected = truth(models[1], true) - truth(models[0], true)
    rng, widths, above, below = np.random.default_rng([n, copies]), [], 0, 0
    for _ in range(runs):
        rows = np.repeat(rng.integers(0, POPULATION, n // copies), copies)
        y = (true[rows[::copies]].cumsum(axis=1) < rng.random((n // copies, 1))).sum(axis=1).clip(0, K - 1)
        groups = np.arange(n) // copies if copies > 1 else None
        samples = [
            Sample.of(columns(Predictions.of(z[rows], np.repeat(y, copies), groups=groups), class_bins=()))
            for z in models
        ]
        found = paired.difference(samples[0], samples[1], choice, 0.95)
        assert isinstance(found, paired.Paired)
        above, below = above + (found.low > expected), below + (found.high < expected)
        widths.append(found.high - found.low)
    return above / runs, below / runs, float(np.median(widths))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    args = parser.parse_args()
    true, models = pairs()
    print(HEAD)
    outside, covered = 0, []
    for name, first, second in models:
        shown = []
        for n, copies in CELLS.values():
            above, below, width = cell((first, second), true, n, copies, args.runs)
            covered.append(1 - above - below)
            outside += not 0.92 <= covered[-1] <= 0.98
            shown.append(f"{100 * covered[-1]:.1f}, width {width:.3f}")
        print(f"| {name} | " + " | ".join(shown) + " |", flush=True)
    print(
        f"\n{args.runs} runs a cell: {100 * min(covered):.1f} to {100 * max(covered):.1f} %, "
        f"{outside} of {len(covered)} cells outside 92 to 98 %; {time.process_time():.0f} CPU s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
