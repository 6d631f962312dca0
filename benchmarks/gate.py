"""How often a gate is wrong: every metric that --max, --min and --margin accept, its limit put at the truth.

    python benchmarks/gate.py --data DIR --part 1/8                   # every eighth cell; goes on where it was stopped
    python benchmarks/gate.py --only PATTERN --metric NAME            # cells whose name it is found in, these metrics
    python benchmarks/gate.py --search --minutes 20                   # the worst populations it can find
    python benchmarks/gate.py --price OLD NEW                         # what the bounds of two trees of code cost
    python benchmarks/gate.py --report --write docs/measured/gate.md  # its table; 1 if a cell is wrong

Rows are drawn with replacement from finite populations of 60,000 rows and more (and from the recorded outputs in DIR),
so that what is true is known; the limit is that number, where a wrong verdict is most likely: PASS there is false (the
limit is not undercut), and so is FAIL. One draw serves every metric. There are --runs 400 of a cell, --again 2,000 more
where a share is above 4 %, and constant scores are summed over the binomial. Counts are kept in --out. The search has
--minutes of CPU time for all metrics together and another --seed every day; the worst are run again with new seeds.
"""

from __future__ import annotations

import re
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import date
from pathlib import Path

import _harness  # noqa: F401  (before NumPy, which it holds to one thread)
import numpy as np
from _gate_cells import Cell, Counts, cells, drawn, exact, prepare, simulate, whole_groups
from _gate_price import compared
from _gate_report import AGAIN, Found, offending, report, shares
from _gate_search import again, metrics, search, worst
from _harness import HERE, append, arguments, lines

__all__ = ["drawn", "prepare", "short_cells", "whole_groups", "work", "wrong"]  # tests use them too
LOOK_AGAIN = 0.04


def short_cells(kind: str, what: str) -> Iterator[Cell]:
    """The smallest cell of that name with three classes."""
    for cell in cells(None):
        if (cell.kind, cell.what, cell.k) == (kind, what, 3) and (cell.n <= 250 or kind == "groups"):
            yield cell


def work(cell: Cell, data: Path | None, runs: int, again: int, metrics: Sequence[str] | None) -> Iterator[Counts]:
    """What a cell counts; then, of the rules that look bad, what more runs count."""
    if cell.kind.startswith("exact"):
        yield exact(cell, metrics)
        return
    with closing(prepare(cell, data)) as trial:
        only = None if metrics is None else [name for name in trial.rules if name.split()[0] in metrics]
        first = simulate(trial, runs, 1, only)
        yield first
        doubtful = [name for name, c in first.items() if c[0] and max(c[1], c[2]) > LOOK_AGAIN * c[0]]
        if doubtful and again:
            yield simulate(trial, again, 2, doubtful)


def wrong(cell: Cell, counts: Counts) -> list[Found]:
    """Shares of one cell that are surely above what is allowed."""
    return offending(shares({(cell.key, rule): c for rule, c in counts.items()}))


def run(given: Namespace) -> None:
    """Work on the cells of a part and append what they count to a file of its own."""
    path = given.out / f"part-{given.part.replace('/', '-of-')}.jsonl"
    done = {line["key"] for line in lines(given.out.glob("*.jsonl")) if line["last"]}
    at, count = map(int, given.part.split("/"))
    for cell in [cell for cell in cells(given.data) if re.search(given.only, cell.key)][at - 1 :: count]:
        if cell.key in done:
            continue
        start = time.perf_counter()
        counted = list(work(cell, given.data, given.runs, given.again, given.metric))
        stages = enumerate(counted, 1)
        append(path, *({"key": cell.key, "stage": i, "last": i == len(counted), "counts": c} for i, c in stages))
        most = max((max(c[1], c[2]) / (c[0] or 1) for c in counted[-1].values()), default=0)
        print(f"{time.perf_counter() - start:6.0f} s  {cell.key}: worst {most:.3f}", flush=True)


def searched(given: Namespace) -> int:
    """Search for the worst cells, run the worst again with new seeds; 1 if one of those is surely wrong."""
    wanted = given.metric or metrics()
    rng, tried, bad = np.random.default_rng(given.seed), [], 0
    print(f"seed {given.seed}, {len(wanted)} metrics", flush=True)
    for metric in wanted:
        mine = search(metric, 60 * given.minutes / len(wanted), rng)
        tried += mine
        if mine:
            print(f"{metric}: {len(mine)} cells, worst {mine[0].score:.3f} ({mine[0].cell.key})", flush=True)
    for one in worst(tried):
        counts = again(one, given.again, given.seed)
        append(given.out / "search.jsonl", {"key": one.cell.key, "stage": 1, "last": True, "counts": counts})
        most = max(shares({(one.cell.key, r): c for r, c in counts.items()}), key=lambda f: f.share)
        bad += len(wrong(one.cell, counts))
        print(f"{most.rule}: false {most.verdict} {most}; {one.wrong} of {one.runs} in the search", flush=True)
    print(f"{bad} shares surely above what is allowed")
    return int(bad > 0)


def main() -> int:
    given = arguments(
        __doc__, data=Path, out=HERE / "gate_runs", part="1/1", runs=400, again=AGAIN, only="", metric=[str],
        search=False, minutes=20.0, seed=date.today().toordinal(), price=[Path], report=False, write=Path,
    )  # fmt: skip
    if given.search:
        return searched(given)
    if given.price:
        return compared(*given.price, given.runs, given.metric)
    if given.report:
        return report(given.out, given.write)
    run(given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
