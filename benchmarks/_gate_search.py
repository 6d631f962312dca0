"""Search the families of populations for the worst cell of each metric, in a given CPU time.

Each metric has the same time. The search begins with a fixed set of cells, then varies the worst so far: a child moves
some parameters of its parent, and now and then the number of classes or rows. A cell is simulated in 40 runs, and in
more the worse it is. Cells that no method can judge do not count (see `hidden`). The worst of all are run again with
new seeds, so that no cell is reported because of luck in the search.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
from _gate_cells import Cell, Counts, Trial, simulate, trial_of
from _gate_families import FAMILIES, FEWEST, Family, built, parsed, visible, written
from _gate_report import ALLOWED
from _gate_truth import COMPARED, NO_BOUND, gain, plain, truths
from _populations import Pair, Population

from calibcli.metrics import METRICS
from calibcli.metrics.registry import known as known_for

LOOK = 40
MOST = 320  # runs of one cell while searching
SIZES = (200, 300, 500, 1000, 2000)
STEP = 0.15  # of the range of a parameter
FRESH = 0.1  # share of children that have no parent
PART = 0.1  # of the reach of a bound, by which a group that is not seen may move a metric
PILOTS = 9
WORST = 20
OF_ONE = 3  # how many of the worst may be of one metric


@dataclass
class Tried:
    """What is known of a cell: how often the worst of the metric's rules was wrong.

    Attributes:
        hidden: whether a group that is too rare to be seen moves the metric, or None while nobody has asked.
    """

    cell: Cell
    metric: str
    runs: int = 0
    wrong: int = 0
    hidden: bool | None = None

    @property
    def score(self) -> float:
        """Share of wrong verdicts, drawn towards 5 % as if of 20 more runs."""
        return (self.wrong + 1) / (self.runs + 20)


def metrics() -> list[str]:
    """Every metric that a gate judges, and `NAME margin` for those that are compared to a baseline."""
    judged = [name for name in METRICS.entries if name not in NO_BOUND]
    return [*judged, *(f"{name} margin" for name in COMPARED)]


def ready(cell: Cell, metric: str) -> Trial:
    name, _, margin = metric.partition(" ")
    trial = trial_of(cell, built(cell.kind, cell.what, cell.k), [name])
    if margin:
        trial.rules = {rule: gate for rule, gate in trial.rules.items() if rule == metric}
    return trial


def look(tried: Tried, runs: int) -> None:
    """Add so many runs to what is known of a cell."""
    with closing(ready(tried.cell, tried.metric)) as trial:
        counts = simulate(trial, runs, 1000 + tried.runs, list(trial.rules))
        tried.runs += runs
        tried.wrong += int(max((max(c[1], c[2]) for c in counts.values()), default=0))
        if tried.hidden is None and tried.score > ALLOWED:
            tried.hidden = hidden(trial, tried.metric)


def hidden(trial: Trial, metric: str) -> bool:
    """Whether rows that look alike, and are expected in fewer than 3 of the sample, move the metric by more than a
    tenth of the reach of its bound: with a chance of 5 % and more none of them is drawn.
    """
    made = trial.population or trial.pair
    assert made is not None
    group = made.new.group if isinstance(made, Pair) else made.group
    parts = [group == name for name in np.unique(group)] if group is not None else []
    rare = [rows for rows in parts if trial.cell.n * np.mean(rows) < FEWEST]
    if not rare or not trial.rules:
        return False
    moved = max(abs(_truth(_without(made, rows), metric) - _truth(made, metric)) for rows in rare)
    return moved > PART * reach(trial)


def _without(made: Population | Pair, rows: np.ndarray) -> Population | Pair:
    def rest(p: Population) -> Population:
        weights = None if p.weights is None else p.weights[~rows]
        return replace(p, scores=p.scores[~rows], labels=p.labels[~rows], weights=weights, group=None)

    return Pair(rest(made.base), rest(made.new)) if isinstance(made, Pair) else rest(made)


def _truth(made: Population | Pair, metric: str) -> float:
    name = metric.split()[0]
    if isinstance(made, Population):
        return truths(made, [name])[name]
    base, new = (gain(p) if name == "temperature_gain" else plain(p, [name])[name] for p in (made.base, made.new))
    return new - base


def reach(trial: Trial) -> float:
    """How far a bound is from its value, the farther of the two; the least of a few draws, as where nothing rare is."""
    rng, rule, found = np.random.default_rng(trial.cell.seed), next(iter(trial.rules)), [np.inf]
    for _ in range(PILOTS):
        e = trial.checks([rule], rng)[0].estimate
        if e is not None and e.value is not None:
            found.append(max((abs(end - e.value) for end in (e.low, e.high) if end is not None), default=np.inf))
    return float(min(found))


def search(metric: str, seconds: float, rng: np.random.Generator) -> list[Tried]:
    """The cells tried for a metric, worst first."""
    end = time.process_time() + seconds  # of work, so that a busy machine searches as long as an idle one
    of = {name: family for name, family in FAMILIES.items() if family.pairs == metric.endswith(" margin")}
    first = [Cell(*one) for one in visible() if one[0] in of and one[3] <= 1000 and defined(metric, one[2])]
    rng.shuffle(first)  # type: ignore[arg-type]
    tried: dict[Cell, Tried] = {}
    for step in count():
        if time.process_time() > end:
            break
        known = sorted((t for t in tried.values() if not t.hidden), key=lambda t: -t.score)
        doubtful = next((t for t in known[:3] if t.runs < MOST and t.score > ALLOWED), None)
        if doubtful is not None and step % 3 == 0:
            look(doubtful, doubtful.runs)  # twice as many as before
            continue
        if first and (step % 2 or not known):
            cell = first.pop()
        elif known:
            some = [known[i] for i in rng.integers(0, len(known), 4)]
            cell = child(max(some, key=lambda t: t.score).cell, of, rng)
        else:
            break
        if cell not in tried and defined(metric, cell.k):
            tried[cell] = Tried(cell, metric)
            look(tried[cell], LOOK)
    return sorted((t for t in tried.values() if not t.hidden), key=lambda t: -t.score)


def defined(metric: str, k: int) -> bool:
    """Whether the metric is one of so many classes."""
    return metric.split()[0] in known_for(METRICS.entries, top_only=False, k=k)


def child(parent: Cell, of: dict[str, Family], rng: np.random.Generator) -> Cell:
    """A cell near another of the same family, or now and then anywhere."""
    fresh = rng.random() < FRESH
    name = str(rng.choice(list(of))) if fresh else parent.kind
    family, before = of[name], {} if fresh else parsed(parent.what)
    values = {}
    moves = rng.random(len(family.parameters)) < 0.5
    moves[rng.integers(len(moves))] = True
    for (key, parameter), moved in zip(family.parameters.items(), moves, strict=True):
        if fresh or (key not in before and moved):
            values[key] = parameter.at(rng.random())
        elif moved:
            values[key] = parameter.at(parameter.position(before[key]) + STEP * rng.standard_normal())
        elif key in before:
            values[key] = before[key]
    elsewhere = rng.random(2) < (1.0 if fresh else 0.2)
    k = int(rng.choice(family.classes)) if elsewhere[0] else parent.k
    n = int(rng.choice(SIZES)) if elsewhere[1] else parent.n
    return Cell(name, written(values), k, n)


def worst(tried: Sequence[Tried], most: int = WORST) -> list[Tried]:
    """The worst cells over all metrics, a few of each at most."""
    chosen: list[Tried] = []
    for one in sorted(tried, key=lambda t: -t.score):
        if len(chosen) < most and sum(t.metric == one.metric for t in chosen) < OF_ONE:
            chosen.append(one)
    return chosen


def again(tried: Tried, runs: int, seed: int) -> Counts:
    """Count wrong verdicts in draws that the search has not seen."""
    with closing(ready(tried.cell, tried.metric)) as trial:
        return simulate(trial, runs, seed, list(trial.rules))
