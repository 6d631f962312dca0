"""How often the interval of few labels and many verdicts of a judge misses, and how much the judge saves.

    python benchmarks/judged.py [--runs 400] [--seed 1]

Each run draws N answers with a confidence, of which a share is right; a judge agrees with the truth in a share of them;
people label n, drawn at random. Printed are, for accuracy: the share of runs in which the truth is above or below the
interval (5 % each at level .90), the same for the labels alone (Clopper-Pearson), and the mean width beside theirs. A
further row takes λ from the rows that it is applied to, which is shorter and misses more often.

Exit 1 if a side is missed in more than 6 % of the runs of a cell, beyond chance (99.9 %).
"""

from __future__ import annotations

import sys

import _harness as bench
import numpy as np
from scipy.stats import binom

import calibcli
from calibcli.core.statistics import clopper_pearson
from calibcli.metrics import registry
from calibcli.metrics.judged import JudgedMean
from calibcli.metrics.registry import Sample

JUDGES = ((0.7, 0.94), (0.5, 0.9), (0.7, 0.8), (0.9, 0.9), (0.97, 0.97), (0.7, 0.5))
"""Accuracy of the answers, and how often the judge agrees with the truth."""
SIZES = ((50, 2000), (100, 500), (300, 2000), (300, 20000), (1000, 5000))
LEVEL = 0.90


class OwnRows(JudgedMean):
    """λ from all labelled rows, those that it is applied to among them."""

    @property
    def trust(self) -> np.ndarray:
        y, f = self.labelled.values.astype(float), self.judged.values[self.has_label].astype(float)
        ratio = 1 + len(y) / (~self.has_label).sum()
        return np.full(len(y), np.clip(np.cov(y, f, bias=True)[0, 1] / max(ratio * f.var(), 1e-12), 0, 1))


def mean_of(hit: np.ndarray, confidence: np.ndarray) -> object:
    rows = calibcli.from_confidence(confidence, hit)
    choices = registry.choose(["accuracy"], 2, True)
    return choices[0](Sample.of(registry.columns_of(rows, choices), rows).acyclic)


def main() -> int:
    args = bench.arguments(__doc__, runs=400, seed=1)
    rng, failed = np.random.default_rng(args.seed), False
    print("right  agrees      n       N  above %  below %  labels alone %  own rows %  width / alone  worth labels")
    for accuracy, agrees in JUDGES:
        for n, total in SIZES:
            missed, alone, own, widths, worth = np.zeros(2), 0, 0, [], []
            for _ in range(args.runs):
                hit = rng.random(total) < accuracy
                judged = np.where(rng.random(total) < agrees, hit, ~hit)
                has_label = np.zeros(total, bool)
                has_label[rng.permutation(total)[:n]] = True
                confidence = rng.uniform(0.5, 1, total)
                parts = mean_of(hit[has_label], confidence[has_label]), mean_of(judged, confidence), has_label
                found = JudgedMean(*parts).interval(LEVEL)
                missed += [accuracy > found.high, accuracy < found.low]
                low, high = clopper_pearson(hit[has_label].sum(), n, (1 - LEVEL) / 2)
                alone += accuracy > high or accuracy < low
                rough = OwnRows(*parts).interval(LEVEL)
                own += accuracy > rough.high or accuracy < rough.low
                widths.append((found.high - found.low) / (high - low))
                worth.append(found.detail["worth_labels"])
            failed |= bool((binom.sf(missed - 1, args.runs, 0.06) < 1e-3).any())
            shares = [100 * count / args.runs for count in (*missed, alone, own)]
            cells = [f"{accuracy:5.2f}", f"{agrees:6.2f}", f"{n:5}", f"{total:6}"]
            cells += [f"{share:{width}.1f}" for share, width in zip(shares, (7, 7, 14, 10), strict=True)]
            print("  ".join([*cells, f"{np.mean(widths):13.2f}", f"{np.mean(worth):12.0f}"]))
    print(bench.machine())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
