"""Error rate of a watch that is looked at every night, and the time to its verdicts.

    python benchmarks/watch.py --short                   # half a minute
    python benchmarks/watch.py                           # 150 looks, the tables of docs/measured/watch.md; half an hour
    python benchmarks/watch.py --looks 1000 --only wrong # by night; also --runs 400

Wrong: rows are drawn with replacement from the populations of the gate's benchmark, 100 a night (or 5 groups), and the
limit is what is true of the population, where PASS and FAIL are both false; a run is wrong if any look is. All runs are
worked on at once, by the streams that `calib watch` keeps. Right: rows until PASS or FAIL, and nights from a drift to
its alarm, beside the gate of `calib check` run every night on all rows so far, or on those of the night.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from _harness import arguments, head, row
from _populations import MADE, Population, grouped, made, scaled, softmax

from calibcli.core.errors import UsageError
from calibcli.core.statistics import bin_index, clopper_pearson
from calibcli.gate.config import Config, Gate
from calibcli.gate.sources import RecordedOutputs
from calibcli.metrics.binned_bounds import table_bounds
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.predictions import Predictions
from calibcli.watch import _rules as watching
from calibcli.watch._bets import L, Stream, WatchedRule, tables, thresholds

RUNS, NIGHTS, ROWS = 400, 150, 100
AGAIN, MOST = 2000, 0.06  # runs of a second look, where a bound of the first is above
GROUPS = 5  # a night
ALPHA = PER_YEAR = 0.05
METRICS = ("ece", "accuracy", "brier", "nll", "confidence_gap", "brier_top")
SIDES = {"accuracy": "min", "confidence_gap": "zero"}
SHORT = ("calibrated", "saturated, 2 % errors", "alternating gaps", "two decimals")
NEVER = 10**9


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """Rows of a population as a rule sees them: where each counts and what it is; `starts` of groups, or None."""

    watched: WatchedRule
    cell: Any
    value: Any
    weight: Any = None
    starts: Any = None


def pool(p: Population, metric: str) -> Pool:
    """The population under a rule whose limit is the truth."""
    groups = None if p.starts is None else np.repeat(np.arange(len(p.starts) - 1), np.diff(p.starts))
    rows = Predictions.of(p.scores, p.labels, kind=p.kind, groups=groups)  # type: ignore[arg-type]
    side = SIDES.get(metric, "max")
    gate = Gate(metric=metric, **{"limit" if side == "zero" else side: 0.5})  # type: ignore[arg-type]
    source = RecordedOutputs(rows, Config(gates=(gate,)))
    rule = watching.watched(gate, source, 10.0)
    cell, value, weight, groups = watching._rows(rule, source, gate, source.whole, 10.0)
    starts = None
    if groups is not None:
        cell, value, weight = watching._one_row_per_group(rule, cell, value, weight, groups)
        starts = np.searchsorted(np.cumsum(weight), np.arange(len(p.starts)) - 0.5)  # each group weighs 1
    w = np.ones(len(value)) if weight is None else weight
    sums = np.bincount(cell, w * value, rule.size)
    truth = (np.abs(sums).sum() if rule.bins else abs(sums.sum())) / w.sum()
    rule = dataclasses.replace(rule, limit=float(truth))
    return Pool(rule, cell, np.clip(value, rule.low, rule.high), weight, starts)


def add(stream: Stream, cell: Any, value: Any, weight: Any, runs: int) -> None:
    """Rows (n,) of all runs; `cell` counts on over the runs."""
    shape = (runs, stream.watched.size)
    size = runs * stream.watched.size
    fail, passed = tables(stream.watched, cell, value, weight, size)
    both = [None, value] if weight is None else [weight, weight * value]
    sums = np.stack([np.bincount(cell, w, size) for w in both], axis=-1)
    stream.add(fail.reshape(*shape, -1, L), passed.reshape(*shape, -1, L), sums.reshape(*shape, 2))


Night = Callable[[int], tuple[Any, Any, Any]]


def nights(watched: WatchedRule, night: Night, runs: int, count: int) -> dict[str, np.ndarray[Any, Any]]:
    """The night, from 1, at whose end each claim was first made, by run; NEVER where it was not."""
    stream = Stream.begin(watched, runs)
    limits = thresholds(watched, ALPHA, PER_YEAR)
    first = {key: np.full(runs, NEVER) for key in limits}
    for n in range(count):
        add(stream, *night(n), runs)
        for key, found in stream.log_evidence().items():
            new = (first[key] == NEVER) & (found >= limits[key])
            first[key][new] = n + 1
        stream.close()
    return first


def drawn(pool: Pool, runs: int, rng: np.random.Generator, rows: int = ROWS) -> Night:
    """Rows, or groups, of a night of every run."""
    size = pool.watched.size

    def night(_: int) -> tuple[Any, Any, Any]:
        if pool.starts is None:
            at = rng.integers(0, len(pool.value), runs * rows)
            run = np.repeat(np.arange(runs), rows)
        else:
            chosen = rng.integers(0, len(pool.starts) - 1, runs * GROUPS)
            lengths = pool.starts[chosen + 1] - pool.starts[chosen]
            first = pool.starts[chosen] - np.append(0, np.cumsum(lengths)[:-1])
            at = np.repeat(first, lengths) + np.arange(lengths.sum())
            run = np.repeat(np.repeat(np.arange(runs), GROUPS), lengths)
        weight = None if pool.weight is None else pool.weight[at]
        return run * size + pool.cell[at], pool.value[at], weight

    return night


def populations(short: bool = False) -> Iterator[tuple[str, Population]]:
    for name, (_, classes) in MADE.items():
        for k in classes[:2]:
            if k <= 3 and "zeros" not in name and (not short or (name in SHORT and k == 3)):
                yield f"{name}, K={k}", made(name, k)
    for shape in ("shift", "sites", "size")[: 1 if short else 3]:
        yield f"groups, {shape}", grouped(3, 20, shape, np.random.default_rng(0))


def wrong(runs: int, looks: int, short: bool = False) -> dict[str, tuple[int, int, int, int]]:
    """By population and rule: runs that were ever falsely passed, failed, or alarmed."""
    found = {}
    for name, p in populations(short):
        for metric in METRICS[: 2 if short else None]:
            rng = np.random.default_rng([7, len(name), len(metric)])
            try:
                one = pool(p, metric)
            except UsageError as error:  # a rule that has no meaning there
                print(f"{name}: {metric}: {error}".replace("\n", " "))
                continue
            counts, of = _counts(nights(one.watched, drawn(one, runs, rng), runs, looks)), runs
            if not short and clopper_pearson(max(counts), runs, 0.001)[1] > MOST:  # too few runs to say
                counts, of = _counts(nights(one.watched, drawn(one, AGAIN, rng), AGAIN, looks)), AGAIN
            found[f"{name}: {metric} at {one.watched.limit:.4g}"] = (of, *counts)
    return found


def _counts(first: dict[str, Any]) -> tuple[int, int, int]:
    """Runs that were ever passed, failed, and of these by drift."""
    failed = (first["fail"] < NEVER) | (first["drift"] < NEVER)
    return int((first["pass"] < NEVER).sum()), int(failed.sum()), int((first["drift"] < NEVER).sum())


def worst(found: dict[str, tuple[int, int, int, int]]) -> list[str]:
    """Cells whose 99.9 % lower bound is above alpha, for FAIL and drift together."""
    return [
        f"{name}: {word} {count / runs:.3f}"
        for name, (runs, *counts) in found.items()
        for word, count in zip(("PASS", "FAIL", "drift"), counts, strict=True)
        if clopper_pearson(count, runs, 0.001)[0] > ALPHA
    ]


# beside the gate


def gate_says(c: Any, hit: Any, limit: float, alpha: float) -> tuple[bool, bool]:
    """PASS and FAIL of `ece <= limit` on these rows."""
    view = BinaryOutcomes(c, 1 - c, hit, None, False, None)
    bounds = table_bounds(view, view.width_bins(15, "right"), alpha=alpha, family=1, method="sharp")
    return bounds.upper <= limit, bounds.lower > limit


def sure(n: int = 60_000, accuracy: float = 0.87) -> Any:
    """Logits of a calibrated model."""
    return scaled(np.random.default_rng(0).standard_normal((n, 10)), accuracy)


Z = sure()
C = softmax(Z).max(axis=1)
ECE = WatchedRule(rule="", metric="ece", side="max", limit=0.0, low=-1.0, high=1.0, bins=15)
ACCURACY = WatchedRule(rule="", metric="accuracy", side="min", limit=0.0, low=0.0, high=1.0)


def told(gap: float, alternating: bool) -> Callable[..., tuple[Any, Any]]:
    def rows(rng: np.random.Generator, runs: int, count: int) -> tuple[Any, Any]:
        c = rng.uniform(0.1, 1, (runs, count)) if alternating else C[rng.integers(0, len(C), (runs, count))]
        sign = np.where(bin_index(c.ravel(), 15).reshape(c.shape) % 2, 1, -1) if alternating else 1
        return c, rng.random(c.shape) < np.clip(c - gap * sign, 0, 1)

    return rows


def first_night(says: Callable[[int, int], bool], runs: int, begins: int, count: int) -> Any:
    """(runs,) the night, from 1, on which something is said first; NEVER where it is not."""
    when = (next((n + 1 for n in range(begins, count) if says(run, n)), NEVER) for run in range(runs))
    return np.fromiter(when, dtype=np.int64)


def rows_to(name: str, draw: Callable[..., tuple[Any, Any]], limit: float, runs: int, count: int, key: str) -> str:
    """Rows at which half of the runs have the verdict: of the watch, and of the gate on all rows so far."""
    c, hit = draw(np.random.default_rng(5), runs, count * ROWS)
    rule = dataclasses.replace(ECE, limit=limit)
    when = [nights(rule, recorded(rule, c, hit, ROWS), runs, count)[key]]
    for alpha in (ALPHA, ALPHA / 365):

        def says(run: int, n: int, alpha: float = alpha) -> bool:
            part = np.s_[run, : (n + 1) * ROWS]
            return gate_says(c[part], hit[part], limit, alpha)[key == "fail"]

        when.append(first_night(says, min(runs, 30), 1, count))
    cells = (f"{middle * ROWS:,.0f}" if (middle := np.median(one)) < NEVER else "-" for one in when)
    return row(f"{name}, limit {limit:g}: {key.upper()}", *cells)


def recorded(rule: WatchedRule, c: Any, hit: Any, rows: int) -> Night:
    """Nights of (runs, rows) that were drawn already."""
    runs = len(c)
    bins = bin_index(c.ravel(), 15).reshape(c.shape) if rule.bins else np.zeros(c.shape, np.int64)

    def night(n: int) -> tuple[Any, Any, Any]:
        part = np.s_[:, n * rows : (n + 1) * rows]
        cell = (np.arange(runs)[:, None] * rule.size + bins[part]).ravel()
        return cell, (c[part] - hit[part] if rule.bins else hit[part].astype(float)).ravel(), None

    return night


def drift(name: str, factor: Callable[[int], float], runs: int, count: int, begins: int, rows: int = 500) -> str:
    """Nights from the drift of T to the alarm, by the watch and by three ways to run the gate; 90 % in brackets."""
    rng, limit = np.random.default_rng(9), 0.03
    at = rng.integers(0, len(C), (runs, count * rows))
    hit = rng.random(at.shape) < C[at]
    by = {f: softmax(f * Z).max(axis=1) for f in {factor(n) for n in range(count)}}
    c = np.concatenate([by[factor(n)][at[:, n * rows : (n + 1) * rows]] for n in range(count)], axis=1)
    rule = dataclasses.replace(ECE, limit=limit)
    first = nights(rule, recorded(rule, c, hit, rows), runs, count)
    alarm = np.minimum(first["fail"], first["drift"])
    ways = [_nights(alarm, begins)]
    for alpha, whole in ((ALPHA, False), (ALPHA / 365, False), (ALPHA, True)):

        def says(run: int, n: int, alpha: float = alpha, whole: bool = whole) -> bool:
            part = np.s_[run, (0 if whole else n * rows) : (n + 1) * rows]
            return gate_says(c[part], hit[part], limit, alpha)[1]

        ways.append(_nights(first_night(says, min(runs, 40), begins, count), begins))
    return row(name, *ways)


def _nights(first: Any, begins: int) -> str:
    """Median (90 %) of the nights from the drift on; `-` where that share never came."""
    early = int((first <= begins).sum())
    cells = [np.quantile(first, q, method="higher") - begins for q in (0.5, 0.9)]
    shown = ["-" if cell > NEVER / 2 else f"{cell:.0f}" for cell in cells]
    return f"{shown[0]} ({shown[1]})" + (f", {early} before" if early else "")


def accuracy_drop(runs: int) -> str:
    """Accuracy falls from .90 to .85 at night 40, limit .88."""
    rng, count, rows = np.random.default_rng(3), 150, 100
    right = np.where(np.arange(count * rows) // rows >= 40, 0.85, 0.90)
    hit = rng.random((runs, count * rows)) < right
    rule = dataclasses.replace(ACCURACY, limit=0.88)
    first = nights(rule, recorded(rule, hit * 1.0, hit, rows), runs, count)
    cell = [_nights(np.minimum(first["fail"], first["drift"]), 40)]
    tonight = np.add.reduceat(hit, np.arange(0, count * rows, rows), axis=1)
    for hits, n in ((tonight, [rows] * count), (np.cumsum(tonight, axis=1), rows * np.arange(1, count + 1))):

        def says(run: int, night: int, hits: Any = hits, n: Any = n) -> bool:
            return clopper_pearson(int(hits[run, night]), int(n[night]), ALPHA)[1] < rule.limit

        cell.append(_nights(first_night(says, runs, 40, count), 40))
    return row("accuracy .90 to .85, limit .88, 100 rows a night", cell[0], cell[1], "-", cell[2])


def right(runs: int) -> None:
    """Print when the watch and the gate are right."""
    print(head("rows to the verdict, median", "watch", "gate, every night at .05 (not valid)", "at .05/365"))
    for name, draw, limit, count, key in (
        ("calibrated", told(0, False), 0.05, 60, "pass"),
        ("calibrated", told(0, False), 0.03, 90, "pass"),
        ("too sure by .03", told(0.03, False), 0.06, 90, "pass"),
        ("too sure by .03", told(0.03, False), 0.01, 90, "fail"),
        ("alternating .04, uniform confidence", told(0.04, True), 0.02, 200, "fail"),
    ):
        print(rows_to(name, draw, limit, runs, count, key), flush=True)
    ways = "tonight at .05", "tonight at .05/365", "all rows at .05"
    print("\n" + head("nights to the alarm, median (90 %)", "watch", *ways))
    for name, factor in (
        ("logits × 1.5 at night 40 (ECE .044), limit .03, 500 rows", lambda n: 1.5 if n >= 40 else 1.0),
        ("logits × 2 (ECE .066)", lambda n: 2.0 if n >= 40 else 1.0),
        ("logits × 1 to 2 in 60 nights", lambda n: round(1 + min(max(n - 40, 0) / 60, 1), 3)),
    ):
        print(drift(name, factor, runs, 120, 40), flush=True)
    print(accuracy_drop(runs))


def main() -> int:
    given = arguments(__doc__, short=False, runs=RUNS, looks=NIGHTS, only=("both", "wrong", "right"))
    runs, looks = (100, 60) if given.short else (given.runs, given.looks)
    bad: list[str] = []
    if given.only != "right":
        start = time.process_time()
        found = wrong(runs, looks, given.short)
        print(head(f"{looks} looks, limit = truth", "runs", "ever PASS", "ever FAIL", "of these by drift"))
        for name, (n, *counts) in found.items():
            print(row(name, n, *(f"{100 * count / n:.1f} %" for count in counts)))
        bad = worst(found)
        shares = [max(counts[i] / n for n, *counts in found.values()) for i in (0, 1)]
        above = max(clopper_pearson(max(counts), n, 0.001)[1] for n, *counts in found.values())
        print(f"worst: PASS {shares[0]:.3f}, FAIL {shares[1]:.3f}; no cell above {above:.3f} (99.9 %)")
        print(f"{len(found)} cells, {time.process_time() - start:.0f} CPU s; surely above the claim: {bad or 'none'}")
    if given.only != "wrong" and not given.short:
        right(given.runs // 2)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
