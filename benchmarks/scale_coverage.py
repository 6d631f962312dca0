"""Coverage of the intervals of T and γ: temperature and focal temperature, independent rows, groups of unequal sizes.

    python benchmarks/scale_coverage.py             every cell, 1,000 runs each
    python benchmarks/scale_coverage.py --runs 200  a rough table
    python benchmarks/scale_coverage.py --only focal_temperature --gamma 5 --rows 500   the true gamma at the end of its
                                                                                       range; also --kinds plain

Rows of a group share a temperature of their own and the sizes of groups are lognormal, so rows are worth less than
their number. The truth is the optimum over a population of 400,000 rows. A cell is right where the interval covers in
92 to 98 % of the runs in which there is one (which may be open above); `none` is the share of runs that say why there
is none.
"""

from __future__ import annotations

import itertools
import sys
import time

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from _populations import Covered

from calibcli import calibrators
from calibcli.calibrators._focal_likelihood import Surface
from calibcli.scores.likelihood import fit_beta, log_phi
from calibcli.scores.predictions import Predictions

POPULATIONS = {"plain": (3, 2.0), "many classes": (20, 2.5), "saturated": (5, 8.0)}  # classes, scale of the logits
GROUPS = (0, 10, 30, 100)  # 0: independent rows
ROWS = [200, 1000]


def draw(n: int, groups: int, kind: str, gamma: float, rng: np.random.Generator) -> Predictions:
    """n rows of a population: logits that are too large by 1.6; those of a focal-trained model where gamma is not 0."""
    k, scale = POPULATIONS[kind]
    z = rng.standard_normal((n, k)) * scale
    member = None
    own = np.ones((n, 1))
    if groups:
        size = rng.lognormal(0, 1, groups)
        member = np.sort(rng.choice(groups, n, p=size / size.sum()))
        own = np.exp(0.4 * rng.standard_normal(groups))[member][:, None]
    log_p = log_phi(z / own, gamma) if gamma else z / own
    y = (log_p + rng.gumbel(size=z.shape)).argmax(axis=1)
    return Predictions.of(1.6 * z, y, groups=member)


def truth(kind: str, groups: int, gamma: float) -> list[float]:
    """T, and γ of focal temperature."""
    if gamma and not groups:
        return [1.6, gamma]
    rng = np.random.default_rng(99)
    p = draw(400_000 if not gamma else 100_000, 100_000 if groups else 0, kind, gamma, rng)
    if not gamma:
        return [fit_beta(p.logits, p.labels).temperature]
    surface = Surface(p.logits, p.labels)
    best = surface.optimum(surface.profile(np.arange(-2, 21) / 4, -0.5))
    return [best.temperature, best.gamma]


def cell(kind: str, n: int, groups: int, gamma: float, runs: int, truths: list[float]) -> list[Covered]:
    """The intervals of each parameter, of which the upper end may be open."""
    spec, covered = "focal_temperature" if gamma else "temperature", [Covered(runs) for _ in truths]
    for run in range(runs):
        p = draw(n, groups, kind, gamma, np.random.default_rng([run, n, groups]))
        for one, estimate, t in zip(covered, calibrators.fit(spec, p).estimates, truths, strict=False):
            if estimate.low is not None:
                one.add(estimate.low, estimate.high, t)
    return covered


def main() -> int:
    specs = ("temperature", "focal_temperature")
    given = _harness.arguments(__doc__, runs=1000, only=str, kinds=[*POPULATIONS], rows=ROWS, gamma=1.0)
    wrong = 0
    for spec, kind, groups in itertools.product(specs, given.kinds, GROUPS):
        if given.only not in (None, spec):
            continue
        if (kind, groups) == (given.kinds[0], GROUPS[0]):
            print(f"\n{spec}, {given.runs} runs")
            print(f"  {'population':14}{'rows':>6}{'groups':>8}{'none %':>8}{'coverage %':>12}")
        gamma = 0.0 if spec == "temperature" else given.gamma
        truths = truth(kind, groups, gamma)
        for n in given.rows:
            for name, one in zip("Tγ", cell(kind, n, groups, gamma, given.runs, truths), strict=False):
                error = 3 * (0.05 * 0.95 / max(one.given, 1)) ** 0.5
                bad = one.given > 0.02 * given.runs and not 0.92 - error <= one.share <= 0.98 + error
                wrong += bad
                none = 100 * (1 - one.given / given.runs)
                share = f"{100 * one.share:12.1f}" if one.given else f"{'-':>12}"
                print(f"{name} {kind:14}{n:6}{groups or '-':>8}{none:8.1f}{share}{'  !' if bad else ''}", flush=True)
    print(f"\n{wrong} cells outside 92 to 98 % beyond the error of simulation; {time.process_time():.0f} CPU s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
