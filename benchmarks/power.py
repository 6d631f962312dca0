"""Power of the bounds of an ECE gate: the chance of each verdict, and the rows that it takes, old against new.

    python benchmarks/power.py            # about ten minutes on one core
    python benchmarks/power.py --runs 50  # the cells roughly

Models have confidences spread as Beta(6, 6 (1 - a) / a) with mean a = .87 and gaps of one size: `same` sign in every
bin, or of `alternating` sign from bin to bin. `score` are the plain bounds (`--bounds score`). `sharp before` had, for
FAIL, the smallest gaps inside a confidence set (Berger and Boos 1994); `sharp` has signs predicted from the rows.
The last lines of the first table put the limit at the truth: every verdict counted there is false.
"""

from __future__ import annotations

import numpy as np
from _harness import options
from _populations import ece_bounds

from calibcli.core.statistics import normal_quantile
from calibcli.gate.plan import EcePopulation, rows_for
from calibcli.metrics.binned_bounds import Method
from calibcli.scores.columns import bin_index

BINS, ACCURACY, ALPHA, DRAWS = 15, 0.87, 0.05, 4_000
FAILS = (
    ("same", 0.03, 0.01, 2_000),
    ("same", 0.08, 0.05, 1_000),
    ("same", 0.08, 0.05, 2_000),
    ("same", 0.075, 0.06, 10_000),
    ("alternating", 0.03, 0.01, 2_000),
    ("alternating", 0.08, 0.03, 2_000),
    ("same", 0.03, None, 2_000),
    ("alternating", 0.08, None, 1_000),
    ("same", 0.0, None, 1_000),
)
PASSES = ((0.0, 0.02, 3_000), (0.0, 0.02, 4_000), (0.0, 0.02, 5_000), (0.01, 0.03, 3_000), (0.03, None, 2_000))
LIMITS = (0.01, 0.02, 0.03, 0.05)


def draw(signs: str, gap: float, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    c = rng.beta(6, 6 * (1 - ACCURACY) / ACCURACY, n)
    return c, rng.random(n) < chances(signs, gap, c)


def chances(signs: str, gap: float, c: np.ndarray) -> np.ndarray:
    each = gap if signs == "same" else np.where(bin_index(c, BINS) % 2, gap, -gap)
    return np.clip(c - each, 0, 1)


def true_ece(signs: str, gap: float) -> float:
    c = np.random.default_rng(0).beta(6, 6 * (1 - ACCURACY) / ACCURACY, 1_000_000)
    d = np.bincount(bin_index(c, BINS), c - chances(signs, gap, c), BINS)
    return float(np.abs(d).sum() / len(c))


def sharp_before(c: np.ndarray, y: np.ndarray, normal: np.ndarray) -> float:
    """The former lower bound: .05 α on how small the gaps may be, and the quantile of E - ECE at those."""
    index, n, r = bin_index(c, BINS), len(c), c - y
    d = np.bincount(index, r, BINS) / n
    sigma = np.sqrt(np.maximum(np.bincount(index, r * r, BINS), np.bincount(index, c * (1 - c), BINS))) / n
    used = sigma > 0
    sigma, d = sigma[used], d[used]
    least = np.maximum(np.abs(d) / sigma - normal_quantile(1 - 0.05 * ALPHA / len(d) / 2), 0)
    excess = (np.abs(normal[:, used] + least) - least) @ sigma
    return max(0.0, float(np.abs(d).sum() - np.quantile(excess, 1 - 0.95 * ALPHA)))


def fails(runs: int) -> None:
    print("| gaps, size, true ECE | limit | n | FAIL %: score | sharp before | sharp |\n|---|---|---|---|---|---|")
    normal = np.random.default_rng(1).standard_normal((DRAWS, BINS))
    for signs, gap, at, n in FAILS:
        rng, truth = np.random.default_rng(n), true_ece(signs, gap)
        limit = truth if at is None else at
        found = np.zeros(3)
        for _ in range(runs):
            c, y = draw(signs, gap, n, rng)
            lowers = (ece_bounds(c, y, method="score").lower, sharp_before(c, y, normal), ece_bounds(c, y).lower)
            found += np.array(lowers) > limit + 1e-12
        cells = " | ".join(f"{100 * share:.0f}" for share in found / runs)
        print(f"| {signs}, {gap:g}, {truth:.3f} | {'the truth' if at is None else at} | {n} | {cells} |", flush=True)


def passes(runs: int) -> None:
    print("\n| true ECE | limit | n | PASS %: score | sharp |\n|---|---|---|---|---|")
    for gap, at, n in PASSES:
        rng, truth = np.random.default_rng(n), true_ece("same", gap)
        limit = truth if at is None else at
        found = np.zeros(2)
        for _ in range(runs):
            c, y = draw("same", gap, n, rng)
            found += [ece_bounds(c, y, method=method).upper <= limit for method in ("score", "sharp")]  # type: ignore[arg-type]
        cells = " | ".join(f"{100 * share:.0f}" for share in found / runs)
        print(f"| {truth:.3f} | {'the truth' if at is None else at} | {n} | {cells} |", flush=True)


def rows(population: EcePopulation, limit: float, method: Method, side: int) -> int:
    chance = population.power(limit, alpha=ALPHA, method=method)
    found = rows_for(lambda n: chance(n)[side], 0.8)
    assert found is not None
    return found


def needed() -> None:
    print("\nRows for the verdict with a chance of 80 %: PASS of a perfect model, FAIL of one off by twice the limit")
    print("\n| limit | PASS: score | sharp | saved | FAIL: score | sharp | saved |\n|---|---|---|---|---|---|---|")
    for limit in LIMITS:
        cells = []
        for side, truth in ((0, 0.0), (1, 2 * limit)):
            population = EcePopulation.assumed(ACCURACY, truth, bins=BINS)
            old, new = (rows(population, limit, method, side) for method in ("score", "sharp"))
            cells += [f"{old:,}", f"{new:,}", f"{100 * (1 - new / old):.0f} %"]
        print(f"| {limit} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    runs = parser.parse_args().runs
    fails(runs)
    passes(runs)
    needed()


if __name__ == "__main__":
    main()
