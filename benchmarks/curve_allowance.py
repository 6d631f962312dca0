"""What `one_curve` would find if it allowed for a curve that misses arms by a standard error (SE).

    python benchmarks/curve_allowance.py [--runs 120]

The claim refutes that a polynomial passes through all arms; one that misses them by an SE is refuted, too, now and then
(`claims.py --only sharp`). Two tests that allow for a miss of up to `a` SE of each arm, whatever its direction:

- together: the F of all offsets is compared with a noncentral F, whose noncentrality is that of the worst misses (at a
  corner of their box, as a convex function is largest there);
- each: t-tests of single offsets, each beyond the largest that misses could make of it (Σ|c| SE), times their number.

SE is that of an arm's y beside the others, as the claim estimates it. First the verdicts on `curvature-cause`, from the
means and errors that its pages print; then simulated studies: % reversed without an allowance, and with either.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Mapping, Sequence

import _harness  # before NumPy, which it holds to one thread
import _measured_curves
import numpy as np
from _harness import head, row
from _measured_curves import Curved
from scipy import stats

from calibcli.lab.study import _curve, claims
from calibcli.lab.study.claims import MeasuredArm, SeedMean

ALLOWED = (0.5, 1.0)
OF_PAGES = (0.5, 1.0, 2.0, 3.0)
SEEDS = (3, 5, 10)
SHIFTS = (2.0, 4.0, 8.0)


@functools.cache
def corners(count: int) -> np.ndarray:
    """The corners of a box, of two opposite ones one: (2 ** (count - 1), count) signs."""
    bits = np.arange(2 ** (count - 1))[:, None] >> np.arange(count) & 1
    return np.where(bits, 1, -1).astype(np.float32)


def judged(
    x: Sequence[MeasuredArm], y: Sequence[MeasuredArm], causes: Mapping[str, Sequence[int]], allowed: Sequence[float]
) -> np.ndarray:
    """The largest p of all degrees: as it is, then together and each by allowance; it ends where all are above 5 %."""
    of_x, of_y = (np.stack([one.values for one in side]) for side in (x, y))
    points, arms = _curve.Points.of(of_x, of_y, claims._stacked([*x, *y])), len(x)
    se, largest = np.sqrt(points.errors[1]), np.zeros(1 + 2 * len(allowed))
    for degree in range(1, min(claims.MOST_CURVED, (arms - 1) // 2 - 1) + 1):
        curve, weights = points.curve(degree), []
        for members in causes.values():
            marked = curve.leaves @ np.isin(np.arange(arms), members)
            if marked[[*members]].sum() > claims.UNTESTED * (1 / curve.v[[*members]]).sum():
                weights.append(marked / marked[[*members]].sum())
        found = tested(points, curve.slope, np.stack(weights), se, allowed) if weights else np.ones_like(largest)
        largest = np.maximum(largest, found)
        if largest.min() >= 1 - claims.LEVEL:
            break
    return largest


def tested(
    points: _curve.Points, slope: np.ndarray, weights: np.ndarray, se: np.ndarray, allowed: Sequence[float]
) -> np.ndarray:
    """The p-values at one degree; F is that of `Points.together`."""
    both, each = np.hstack([-weights * slope, weights]), points._own(-slope, np.ones_like(slope))
    own, vectors = np.linalg.eigh(weights * each @ weights.T + both @ points.rows @ both.T)
    count = int((own > _curve.SINGULAR * own[-1]).sum())
    root = (vectors[:, -count:] / np.sqrt(own[-count:])).T @ weights  # (count, A)
    degrees = points._degrees(each * np.square(root).sum(axis=0))
    left = degrees - count + 1
    if not left > 0:
        return np.ones(1 + 2 * len(allowed))
    f = float(np.square(root @ points.y.mean(axis=1)).sum()) / degrees * left / count
    worst = float(np.square(corners(len(se)) @ (root * se).T.astype(np.float32)).sum(axis=1).max())
    together = [float(np.nan_to_num(stats.ncf.sf(f, count, left, a**2 * worst), nan=1.0)) for a in allowed]
    offsets = [SeedMean(*points.combined(-slope * c, c)) for c in weights]
    single = [
        len(weights)
        * min(
            claims._one_sided(dataclasses.replace(mean, value=abs(mean.value)), a * float(np.abs(c) @ se), 1)
            for mean, c in zip(offsets, weights, strict=True)
        )
        for a in allowed
    ]
    return np.array([points.together(slope, weights), *together, *np.minimum(1, single)])


def shares(of: Curved, runs: int, anew: bool) -> list[str]:
    """% reversed by seeds; the truth is measured `anew` for each number of seeds, if it depends on it."""
    rng, counts = np.random.default_rng(7), dict.fromkeys(SEEDS, np.zeros(1 + 2 * len(ALLOWED)))
    causes = _measured_curves.layout(of.of, of.arms).causes
    for run, seeds in itertools.product(range(runs), SEEDS):
        if anew or seeds == SEEDS[0]:
            sides = _measured_curves.measured(of, seeds if anew else max(SEEDS), _measured_curves.ROWS, rng, run)
        first = [[MeasuredArm(one.values[:seeds], one.draws[:seeds]) for one in side] for side in sides]
        counts[seeds] = counts[seeds] + (judged(*first, causes, ALLOWED) < 1 - claims.LEVEL)
    return [", ".join(f"{100 * one / runs:.0f}" for one in counts[seeds]) for seeds in SEEDS]


def main() -> int:
    given = _harness.arguments(__doc__, runs=120)
    told = [f"p {how}, {a:g} SE" for how in ("together", "each") for a in OF_PAGES]
    print(head("page", "correlation of what a row does to two arms", "p", *told))
    for (of, page), rows in itertools.product(_measured_curves.PUBLISHED.items(), (0.0, 0.5, 0.8, 0.9)):
        x, y = _measured_curves.printed(of, rows, _measured_curves.full(of))
        found = judged(x, y, _measured_curves.layout(of, 15).causes, OF_PAGES)
        print(row(page, rows, *(f"{p:.2g}" for p in found)))
    told = ", ".join(["as it is", *(f"{how} {a:g} SE" for how in ("together", "each") for a in ALLOWED)])
    print("\n" + head("truth", *(f"{seeds} seeds: {told}" for seeds in SEEDS)))
    of_truth = {
        name: _measured_curves.SHARP[name]
        for name in (
            "medium: tanh 8t, 9 arms, off by 1 SE",
            "medium: a step at -.3, 15 arms, off by 1 SE",
        )
    }
    for of in ("medium", "digits"):
        for cause, by in itertools.product(("gamma", "lr"), SHIFTS):
            of_truth[f"{of}: {cause} off by {by:g} SE"] = _measured_curves.POWER[f"{of}: {cause} off by {by:g} SE"]
        of_truth[f"{of}: as published"] = _measured_curves.POWER[f"{of}: as published"]
    for name, of_it in of_truth.items():
        print(row(name, *shares(of_it, given.runs, anew=bool(of_it.miss))), flush=True)
    print(f"\n{given.runs} runs a line; {time.process_time():.0f} CPU s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
