"""How many studies show a difference of the size that a report says they could have shown; four of five should.

    python benchmarks/shown.py --runs 2000

`less` has normal differences, with and without an error of the rows. `tracks` has runs of 20 moments
(`_measured_tracks`), a tenth of the studies: the size is the median of what studies of unrelated runs state, and the
share that finds it is read off between simulated correlations.
"""

from __future__ import annotations

import _harness  # before NumPy, which it holds to one thread
import numpy as np
from _harness import head, row
from _measured_tracks import Logged, measured

from calibcli.lab.study.claims import LEVEL, ClaimVerdict, SeedMean

SEEDS = (3, 5, 10)
LINKS = np.arange(0.1, 1, 0.1)


def of_less(seeds: int, rows: float, claims: int, runs: int) -> tuple[float, float]:
    """What could have been shown, in standard errors, and the share of studies that show it."""
    rng = np.random.default_rng(0)
    size = SeedMean(0.0, 1.0, rows, seeds).shown(claims)
    values = size + rng.standard_normal(runs) * (1 + rows) ** 0.5
    spread = rng.chisquare(seeds - 1, runs) / (seeds - 1)
    found = [SeedMean(v, s, rows, seeds).sure(claims) > 0 for v, s in zip(values, spread, strict=True)]
    return size, float(np.mean(found))


def of_tracks(seeds: int, own: bool, claims: int, runs: int) -> tuple[float, float]:
    """The same of a mean correlation."""
    rng = np.random.default_rng(1)

    def verdicts(link: float) -> list[tuple[ClaimVerdict, SeedMean]]:
        world = Logged(link=link, own=own)
        judged = [world.judge(*measured(world, seeds, 0, rng, run)) for run in range(runs)]
        return [(one, one.difference) for one in judged if one.difference]

    size = float(np.median([mean.shown(claims) for _, mean in verdicts(0.0)]))
    linked = [verdicts(link) for link in LINKS]
    means = [np.mean([mean.value for _, mean in one]) for one in linked]
    found = [np.mean([v.p < (1 - LEVEL) / claims and mean.value > 0 for v, mean in one]) for one in linked]
    return size, float(np.interp(size, means, found))


def main() -> None:
    runs = _harness.arguments(__doc__, runs=2000).runs
    print(head("claim", "seeds", "claims", "could have shown", "studies that show it, %"))
    for claims in (1, 11):
        for seeds in SEEDS:
            for rows in (0.0, 1.0):
                size, share = of_less(seeds, rows, claims, runs)
                name = f"less, rows {'as large an error as seeds' if rows else 'without error'}"
                print(row(name, seeds, claims, f"{size:.1f} standard errors of the seeds", f"{100 * share:.0f}"))
            for own in (False, True):
                if own and seeds < 10:  # fewer orders than eleven claims ask for
                    continue
                size, share = of_tracks(seeds, own, claims, max(runs // 10, 10))
                print(row("tracks, own" if own else "tracks", seeds, claims, f"{size:.2f}", f"{100 * share:.0f}"))


if __name__ == "__main__":
    main()
