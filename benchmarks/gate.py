"""How often a gate is wrong: every metric that --max, --min and --margin accept, its limit put at the truth.

    python benchmarks/gate.py --short                                 # a minute
    python benchmarks/gate.py --data DIR --part 1/8                   # one of 8 parts; goes on where it was stopped
    python benchmarks/gate.py --search --minutes 20                   # the worst populations it can find
    python benchmarks/gate.py --price OLD NEW                         # what the bounds of two trees of code cost
    python benchmarks/gate.py --report --write docs/measured/gate.md  # its table; 1 if a cell is wrong

Rows are drawn with replacement from finite populations of 60,000 rows and more (and from the recorded outputs in DIR),
so that what is true is known; the limit is that number, where a wrong verdict is most likely: PASS there is false (the
limit is not undercut), and so is FAIL. One draw serves every metric. 400 runs a cell, 2,000 more where a share is above
4 %, and constant scores summed over the binomial.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

import numpy as np
from _gate_cells import Cell, Counts, cells, drawn, exact, prepare, simulate, whole_groups
from _gate_price import compared, priced
from _gate_report import AGAIN, Found, judged, lines, matrix, offending, report, shares, shown, write
from _gate_search import again, metrics, search, worst

__all__ = ["drawn", "prepare", "short_cells", "shown", "whole_groups", "work", "wrong"]
RUNS = 400
LOOK_AGAIN = 0.04
MOST = 3000.0  # seconds a part may take
SHORT = {
    "rows": ("calibrated", "saturated, .5 % errors", "5 neighbours", "alternating gaps"),
    "groups": ("30 groups, sites", "100 groups, shift"),
    "slices": ("saturated, .5 % errors",),
    "baseline": ("calibrated, .2 %", "saturated, 1 %"),
    "exact": ("constant 0.999, 1.00% errors", "constant 0.99, 0.50% errors", "constant 0.999, 1.36% errors"),
    "exact slices": ("constant 0.99, 1.00% errors",),
}
"""What `--short` looks at; see `short_cells`."""
SHORT_RUNS = 80


def short_cells(kind: str, what: str) -> Iterator[Cell]:
    """The smallest cell of that name with three classes."""
    for cell in cells(None):
        if (cell.kind, cell.what, cell.k) == (kind, what, 3) and (cell.n <= 250 or kind == "groups"):
            yield cell


def parts(everything: Sequence[Cell], count: int) -> list[list[Cell]]:
    """Cells shared out so that parts take about as long: the dearest first, each to the part that has least."""
    shared: list[list[Cell]] = [[] for _ in range(count)]
    taken = [0.0] * count
    for cell in sorted(everything, key=lambda c: -c.cost):
        least = taken.index(min(taken))
        shared[least].append(cell)
        taken[least] += cell.cost
    order = {cell: i for i, cell in enumerate(everything)}
    return [sorted(part, key=order.__getitem__) for part in shared]


def work(cell: Cell, data: Path | None, runs: int, again: int, metrics: Sequence[str] | None) -> Iterator[Counts]:
    """What a cell counts; then, of the rules that look bad, what more runs count."""
    if cell.kind.startswith("exact"):
        yield exact(cell, metrics)
        return
    trial = prepare(cell, data)
    try:
        only = None if metrics is None else [name for name in trial.rules if name.split()[0] in metrics]
        first = simulate(trial, runs, 1, only)
        yield first
        doubtful = [name for name, c in first.items() if c[0] and max(c[1], c[2]) > LOOK_AGAIN * c[0]]
        if doubtful and again:
            yield simulate(trial, again, 2, doubtful)
    finally:
        trial.close()


def speed(data: Path | None) -> float:
    """Seconds of this machine per second of the one that costs are stated for, from one small cell."""
    trial = prepare(Cell("rows", "calibrated", 3, 200), data)
    simulate(trial, 2, 0)
    start = time.perf_counter()
    simulate(trial, 20, 0)
    return (time.perf_counter() - start) / 20 / 0.05


def run(chosen: Sequence[Cell], arguments: argparse.Namespace) -> None:
    """Work on cells and append what they count to a file of this part's own."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"part-{arguments.part.replace('/', '-of-')}.jsonl"
    done = {str(line["key"]) for line in lines(arguments.out) if line["last"]}
    for cell in chosen:
        if cell.key in done:
            continue
        start = time.perf_counter()
        counted = list(work(cell, arguments.data, arguments.runs, arguments.again, arguments.metric))
        with path.open("a") as file:
            for stage, counts in enumerate(counted, 1):
                last = stage == len(counted)
                file.write(json.dumps({"key": cell.key, "stage": stage, "last": last, "counts": counts}) + "\n")
        worst = max((max(c[1], c[2]) / (c[0] or 1) for c in counted[-1].values()), default=0)
        print(f"{time.perf_counter() - start:6.0f} s  {cell.key}: worst {worst:.3f}", flush=True)


def searched(arguments: argparse.Namespace) -> int:
    """Search for the worst cells, run the worst again with new seeds; 1 if one of those is surely wrong."""
    wanted = arguments.metric or metrics()
    rng, tried = np.random.default_rng(arguments.seed), []
    print(f"seed {arguments.seed}, {len(wanted)} metrics", flush=True)
    for metric in wanted:
        mine = search(metric, 60 * arguments.minutes / len(wanted), rng)
        tried += mine
        if mine:
            print(f"{metric}: {len(mine)} cells, worst {mine[0].score:.3f} ({mine[0].cell.key})", flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    bad = 0
    for one in worst(tried):
        counts = again(one, arguments.again, arguments.seed)
        line = json.dumps({"key": one.cell.key, "stage": 1, "last": True, "counts": counts})
        with (arguments.out / "search.jsonl").open("a") as file:
            file.write(line + "\n")
        [most] = sorted(shares({(one.cell.key, r): c for r, c in counts.items()}), key=lambda f: f.share)[-1:]
        bad += len(wrong(one.cell, counts))
        print(f"{most.rule}: false {most.verdict} {shown(most)}; {one.wrong} of {one.runs} in the search", flush=True)
    print(f"{bad} shares surely above what is allowed")
    return int(bad > 0)


def wrong(cell: Cell, counts: Counts) -> list[Found]:
    """Shares of one cell that are surely above what is allowed."""
    return offending(judged(shares({(cell.key, rule): c for rule, c in counts.items()})))


def short() -> int:
    """A minute's worth; 1 if a share is surely above what is allowed."""
    bad = 0
    for kind, names in SHORT.items():
        for cell in (cell for name in names for cell in short_cells(kind, name)):
            counts, *_ = work(cell, None, SHORT_RUNS, 0, None)
            for f in wrong(cell, counts):
                bad += 1
                print(f"{f.rule}: false {f.verdict} {shown(f)}", flush=True)
    print(f"{bad} shares surely above what is allowed")
    return int(bad > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a minute, for CI")
    parser.add_argument("--data", type=Path, help="folder of recorded outputs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "gate_runs", help="folder of results")
    parser.add_argument("--part", default="1/1", help="i/m: the i-th of m parts")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--again", type=int, default=AGAIN, help="runs of a second look; 0 for none")
    parser.add_argument("--only", default="", help="cells whose name this pattern is found in")
    parser.add_argument("--metric", action="append", help="these metrics alone")
    parser.add_argument("--search", action="store_true", help="vary populations towards the worst of each metric")
    parser.add_argument("--minutes", type=float, default=20, help="CPU time of the search, all metrics together")
    parser.add_argument("--seed", type=int, default=date.today().toordinal(), help="of the search; else the day's")
    parser.add_argument("--price", nargs=2, type=Path, metavar="TREE", help="compare the bounds of two trees of code")
    parser.add_argument("--priced", action="store_true", help="what --price runs in each of them")
    parser.add_argument("--report", action="store_true", help="the worst cells of all that was run")
    parser.add_argument("--write", type=Path, help="with --report: put the table between the markers of this file")
    parser.add_argument("--matrix", action="store_true", help="every share above 5 %%")
    arguments = parser.parse_args()
    if arguments.short:
        return short()
    if arguments.search:
        return searched(arguments)
    if arguments.priced:
        print(json.dumps(priced(arguments.runs, arguments.metric)))
        return 0
    if arguments.price:
        return compared(*arguments.price, arguments.runs, arguments.metric)
    if arguments.report or arguments.matrix:
        if arguments.matrix:
            print(matrix(arguments.out))
            return 0
        if arguments.write:
            write(arguments.out, arguments.write)
        return report(arguments.out)
    chosen = [cell for cell in cells(arguments.data) if re.search(arguments.only, cell.key)]
    at, count = map(int, arguments.part.split("/"))
    mine = parts(chosen, count)[at - 1]
    factor = speed(arguments.data) * arguments.runs / RUNS
    total, part = (factor * sum(cell.cost for cell in some) for some in (chosen, mine))
    print(f"{len(chosen)} cells, about {total / 3600:.1f} h on one core and up to as much again for second looks")
    split = math.ceil(2 * total / MOST)
    print(
        f"this part: {len(mine)} cells, {part / 60:.0f} min; each of {split} parts takes less than an hour", flush=True
    )
    run(mine, arguments)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
