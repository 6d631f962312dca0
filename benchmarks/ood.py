"""Coverage of the intervals of `calib ood`: binormal scores of two samples, and the paired differences of two scores.

    python benchmarks/ood.py [--runs 2000]

Prints, for each setting, how often the 95 % interval lies wholly above and wholly below the truth (2.5 % each are
intended), for AUROC, AUPR and FPR at 95 % TPR; and for the difference of two AUROCs (DeLong).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from _harness import arguments
from _populations import Covered

from calibcli.metrics.discrimination import Concordance
from calibcli.metrics.ood import AveragePrecision, FalsePositives
from calibcli.metrics.paired import ranked
from calibcli.metrics.reliability import BinaryOutcomes

SETTINGS = [
    *((d, 50, 50, 1.0, 1) for d in (0.5, 2.0, 4.0)),
    (2.0, 30, 500, 1.0, 1),
    (2.0, 500, 30, 1.0, 1),
    (1.0, 500, 500, 0.5, 1),
    (3.0, 1000, 1000, 1.0, 1),
    (2.0, 15, 15, 1.0, 1),
    (1.5, 500, 500, 1.0, 5),
]
"""Distance of the means, rows inside and outside, standard deviation inside, rows of a group (whose scores are one)."""
STATISTICS = {"auroc": Concordance, "aupr": AveragePrecision, "fpr95": FalsePositives}


def truth(d: float, m: int, n: int, sd: float) -> dict[str, float]:
    """By quadrature; of the AUPR with the precision of these sizes."""
    normal, inside = NormalDist(), NormalDist(d, sd)
    x = np.linspace(-10, 10 + d, 20_001)
    f1, f0 = (np.array([1 - one.cdf(v) for v in x]) for one in (inside, normal))
    density = np.array([inside.pdf(v) for v in x])
    found = m * f1 / np.maximum(m * f1 + n * f0, 1e-300)
    return {
        "auroc": normal.cdf(d / math.hypot(1, sd)),
        "aupr": float(np.sum(found * density) * (x[1] - x[0])),
        "fpr95": 1 - normal.cdf(inside.inv_cdf(0.05)),
    }


def view(inside: np.ndarray, outside: np.ndarray, group: int) -> BinaryOutcomes:
    """Ranks as probabilities' odds; rows of a group share a score."""
    inside, outside = np.repeat(inside, group), np.repeat(outside, group)
    rank = np.unique(np.concatenate([inside, outside]), return_inverse=True)[1] + 1.0
    groups = None if group == 1 else np.arange(len(rank)) // group
    return BinaryOutcomes(rank, np.ones(len(rank)), np.arange(len(rank)) < len(inside), None, False, groups)


def intervals(d: float, m: int, n: int, sd: float, group: int, repetitions: int) -> dict[str, tuple[float, float]]:
    """Share of the intervals that lie above, and below, the truth."""
    rng, true = np.random.default_rng(0), truth(d, m, n, sd)
    covered = {name: Covered(repetitions) for name in STATISTICS}
    for _ in range(repetitions):
        seen = view(rng.normal(d, sd, m // group), rng.normal(0, 1, n // group), group)
        for name, statistic in STATISTICS.items():
            found = statistic(seen).interval(0.95)
            if found.low is not None and found.high is not None:
                covered[name].add(found.low, found.high, true[name])
    return {name: (one.above / repetitions, one.below / repetitions) for name, one in covered.items()}


def differences(m: int, n: int, share: float, repetitions: int) -> tuple[float, float]:
    """DeLong's test of two scores of the same rows with correlated noise, AUROCs equal: share of p below 5 %, and of
    intervals that leave out the truth where one score is better."""
    rng, wrong, missed = np.random.default_rng(1), 0, 0
    normal = NormalDist()
    better = normal.cdf(2.0 / math.sqrt(2)) - normal.cdf(1.5 / math.sqrt(2))
    for _ in range(repetitions):
        common, one, two = rng.normal(size=(3, m + n))
        where = 1.5 * (np.arange(m + n) < m)
        noises = [math.sqrt(share) * common + math.sqrt(1 - share) * own for own in (one, two)]
        a, b = (where + noise for noise in noises)
        c = where * 2.0 / 1.5 + noises[1]
        first, second, third = (Concordance(view(s[:m], s[m:], 1)) for s in (a, b, c))
        same, other = ranked(first, second, 0.95), ranked(first, third, 0.95)
        wrong += not isinstance(same, str) and same.p < 0.05
        missed += not isinstance(other, str) and not other.low <= better <= other.high
    return wrong / repetitions, missed / repetitions


def main(repetitions: int) -> None:
    print(f"above / below the truth in %, {repetitions} repetitions")
    for setting in SETTINGS:
        found = intervals(*setting, repetitions)
        shown = ", ".join(f"{name} {100 * a:.1f} / {100 * b:.1f}" for name, (a, b) in found.items())
        print("d={} rows {}+{} sd={} groups of {}:".format(*setting), shown)
    for m, n, share in ((50, 50, 0.5), (500, 500, 0.9), (30, 1000, 0.5)):
        wrong, missed = differences(m, n, share, repetitions)
        shown = f"p < .05 in {100 * wrong:.1f} %, missed {100 * missed:.1f} %"
        print(f"paired, rows {m}+{n}, shared noise {share}: {shown}")


if __name__ == "__main__":
    main(arguments(__doc__, runs=2000).runs)
