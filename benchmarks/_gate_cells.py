"""A cell of the gate benchmark: draw rows from a population, set every limit to the true value, run the gate.

The gate is a black box: `calibcli.gate.check` on predictions, as `calib check` runs it.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from _gate_families import FAMILIES, built, visible
from _gate_truth import NO_BOUND, ROUNDING, margins, of_population
from _populations import MADE, Pair, Population, grouped, made, names, pairs, population, real
from scipy.stats import binom

from calibcli.core.result import Check
from calibcli.gate import sources
from calibcli.gate.check import Baselines, check
from calibcli.gate.config import Config, Gate
from calibcli.gate.sources import RecordedOutputs
from calibcli.metrics.corp import SimulationCells
from calibcli.metrics.cutoffs import CutoffStatistic
from calibcli.scores.predictions import ArrayScores, Predictions

SIZES = (200, 500, 1000, 5000)
GROUPS = (5, 10, 30, 100)
SLICES, PER_SLICE = 20, 250
FEW = 3
EVERY = {"smece": 4, "mmce": 2}
"""Metrics that cost more than most others together: asked of every fourth, and of every second sample."""
CONSTANT = (
    "mean_confidence", "entropy", "entropy_correct", "entropy_wrong", "nll_correct", "nll_wrong",
    "high_confidence_share",
)  # fmt: skip
"""Metrics that are known without error where every row has the same scores."""
PLAIN = ("calibrated", "overconfident", "saturated, 2 % errors", "alternating gaps")
OPTIONS = (
    "ece:bins=100", "ece:edges=torchmetrics", "ece_l2:bins=50", "oce:bins=50", "uce:bins=50", "adaece:method=split",
    "adaece:bins=50", "ece2_debiased:bins=50", "ece2_debiased:method=split", "classwise_ece:norm=l2",
    "classwise_ece:threshold=-1", "smece:sigma=0.1", "mmce:width=0.1", "mmce:square=true", "corp_mcb:score=log",
    "corp_dsc:score=log", "high_confidence_share:tau=0.9", "high_confidence_accuracy:tau=0.9",
)  # fmt: skip
POSITIVE = [f"{name}:of=positive" for name in ("ece", "ece_l2", "adaece", "ece2_debiased", "mmce")]
SLICED = ("accuracy min", "nll max", "brier max")
BROKEN = (".2 %", "1 %", "1 % of the same", "class", "saturating", "sharper")
SURE = 1e-9  # binomial weights below are left out


@dataclass(frozen=True)
class Cell:
    """One population, size and way to draw; `what` is a name whose meaning depends on the kind."""

    kind: str
    what: str
    k: int
    n: int

    @property
    def key(self) -> str:
        return f"{self.kind}: {self.what}, K={self.k}, n={self.n}"

    @property
    def seed(self) -> int:
        return zlib.crc32(self.key.encode())


def cells(data: Path | None) -> Iterator[Cell]:
    """All of them, independent rows of three classes first."""
    listed = list(names(data))
    for n in (200, 1000, 500, 5000):
        yield from (Cell("rows", name, k, n) for name, k in listed)
    for shape, groups, k in product(("shift", "sites", "size"), GROUPS, (3, 2, 20)):
        yield Cell("groups", f"{groups} groups, {shape}", k, max(500, 20 * groups))
    for name, n in product(PLAIN, (200, 1000)):
        yield from (Cell("options", name, k, n) for k in (3, 2))
        yield Cell("weights", name, 3, n)
    yield from (Cell(*one) for one in visible())
    for name, k in listed:
        if k in (3, 10, 100) and "zeros" not in name:
            yield Cell("slices", name, k, PER_SLICE)
    for model, damage in product(("calibrated", "saturated", "overconfident"), BROKEN):
        for k in (3, 20) if model == "calibrated" else (3,):
            yield from (Cell("baseline", f"{model}, {damage}", k, n) for n in SIZES)
    for confidence, n in product((0.98, 0.99, 0.999, 0.99999), SIZES):
        corner = math.ceil(2.706e4 / n) / 1e4  # just beyond z²/n, which a sample without errors may pass
        for errors in (0.001, 0.005, 0.01, 0.02, 0.05, corner):
            what = f"constant {confidence}, {errors:.2%} errors"
            yield Cell("exact", what, 3, n)
            if n == SIZES[0]:
                yield Cell("exact slices", what, 3, PER_SLICE)


# one run


@dataclass(eq=False)
class Trial:
    """A cell made ready: `rules` by name, `ask` to judge those that are wanted on one draw, `close` at the end."""

    cell: Cell
    rules: dict[str, Gate]
    population: Population | None = None
    pair: Pair | None = None
    folder: Any = None
    weights: Any = None

    def checks(self, wanted: Sequence[str], rng: np.random.Generator) -> list[Check]:
        """What the gate says about each wanted rule (and slice) of one draw."""
        if not wanted:  # of a metric that this population has no value of
            return []
        config = Config(gates=tuple(self.rules[name] for name in wanted))
        if self.pair is not None:
            base, new = self.pair
            rows = rng.integers(0, base.n, self.cell.n)
            np.savez(self.folder / "base.npz", logits=base.scores[rows], labels=base.labels[rows])
            source = RecordedOutputs(drawn(new, rows), config)
            return list(check(source, config, Baselines(source, {"kind": "logits"})).checks)
        return list(check(RecordedOutputs(self.draw(rng), config), config).checks)

    def draw(self, rng: np.random.Generator) -> Predictions:
        """Rows of the population, in the way of the cell."""
        p, n = self.population, self.cell.n
        assert p is not None
        if self.cell.kind == "slices":
            part = np.repeat(np.arange(SLICES), PER_SLICE).astype(str)
            return drawn(p, rng.integers(0, p.n, SLICES * PER_SLICE), slices={"part": part})
        if p.starts is not None:
            rows, groups = whole_groups(p.starts, int(self.cell.what.split()[0]), rng)
            return drawn(p, rows, groups=groups)
        if p.weights is not None:
            rows = rng.integers(0, p.n, n)
            return drawn(p, rows, weights=p.weights[rows] * (p.factor(rng, n) if p.factor else 1.0))
        if self.weights is not None:
            rows = np.searchsorted(np.cumsum(1 / self.weights), rng.random(n) * (1 / self.weights).sum())
            return drawn(p, rows, weights=self.weights[rows])
        return drawn(p, rng.integers(0, p.n, n))

    def ask(self, wanted: Sequence[str], rng: np.random.Generator) -> list[str]:
        """`pass`, `fail`, `inconclusive` or `not_run` of each wanted rule."""
        outcomes = [one.outcome for one in self.checks(wanted, rng)]
        if self.cell.kind != "slices":
            return outcomes
        each = [outcomes[i : i + SLICES] for i in range(0, len(outcomes), SLICES)]
        return ["fail" if "fail" in one else one[0] for one in each]

    def close(self) -> None:
        """Remove the files of the baseline, if there are any."""
        if self.folder is not None:
            shutil.rmtree(self.folder)


def drawn(p: Population, rows: Any, **fields: Any) -> Predictions:
    return Predictions(scores=ArrayScores(p.scores[rows]), labels=p.labels[rows], kind=p.kind, **fields)  # type: ignore[arg-type]


def whole_groups(starts: Any, count: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Rows of groups drawn with replacement, and which draw each is of."""
    chosen = rng.integers(0, len(starts) - 1, count)
    sizes = starts[chosen + 1] - starts[chosen]
    rows = np.concatenate([np.arange(starts[g], starts[g + 1]) for g in chosen])
    return rows, np.repeat(np.arange(count), sizes)


@cache
def _ready(what: str, k: int, data: Path | None) -> tuple[Population, dict[str, Gate]]:
    p = made(what, k) if what in MADE else real(data or Path(), what)
    return p, of_population(p)


def prepare(cell: Cell, data: Path | None) -> Trial:
    """Build the population of a cell and work out what is true of it."""
    rng = np.random.default_rng(cell.seed)
    if cell.kind == "groups":
        count = int(cell.what.split()[0])
        return trial_of(cell, grouped(cell.k, cell.n // count, cell.what.rsplit(" ", 1)[1], rng))
    if cell.kind in FAMILIES:
        return trial_of(cell, built(cell.kind, cell.what, cell.k))
    if cell.kind == "baseline":
        model, damage = cell.what.split(", ")
        return trial_of(cell, pairs(model, damage, cell.k, rng))
    if cell.kind == "options":
        return trial_of(cell, made(cell.what, cell.k), [*OPTIONS, *(POSITIVE if cell.k == 2 else ())])
    p, rules = _ready(cell.what, cell.k, data)
    if cell.kind == "slices":
        return Trial(cell, {name: replace(rules[name], by="part") for name in SLICED if name in rules}, p)
    if cell.kind == "weights":  # rows that are wrong are drawn less often, and weigh more
        wrong = p.scores.argmax(axis=1) != p.labels
        return Trial(cell, rules, p, weights=np.exp(0.5 * rng.standard_normal(p.n) + 0.7 * wrong))
    return Trial(cell, rules, p)


def trial_of(cell: Cell, made: Population | Pair, metrics: Sequence[str] | None = None) -> Trial:
    """A cell of independent rows with the rules of these metrics, or of all; of a pair those against a baseline."""
    if isinstance(made, Pair):
        folder = Path(tempfile.mkdtemp(prefix="calib-gate-"))
        return Trial(cell, margins(made, str(folder / "base.npz")), pair=made, folder=folder)
    return Trial(cell, of_population(made, metrics), made)


# what a run counts


Counts = dict[str, list[float]]
"""By rule: runs, false PASS, false FAIL, NOT RUN; shares in place of counts for exact cells (runs 0)."""


def verdicts_alone(function: Any) -> Any:
    """Leave out the advice on rows and the null level that come with a verdict, which take most of the time."""
    for owner, name, nothing in (
        (sources, "to_decide", None),
        (sources, "cutoff_rows", None),
        (SimulationCells, "miscalibration", np.zeros(1)),
        (CutoffStatistic, "calibrated", np.zeros(1)),
    ):
        function = patch.object(owner, name, lambda *_, nothing=nothing, **__: nothing)(function)
    return function


@verdicts_alone
def simulate(trial: Trial, runs: int, seed: int, only: Sequence[str] | None = None) -> Counts:
    """Outcomes of `runs` draws, of the rules in `only` or of all."""
    rng = np.random.default_rng([trial.cell.seed, seed])
    rules = [name for name in trial.rules if only is None or name in only]
    counts: Counts = {name: [0, 0, 0, 0] for name in rules}
    for run in range(runs):
        wanted = [name for name in rules if only is not None or _due(re.split("[ :]", name)[0], run)]
        for name, outcome in zip(wanted, trial.ask(wanted, rng), strict=True):
            one = counts[name]
            one[0] += 1
            if at := _column(outcome, trial.rules[name]):
                one[at] += 1
    return counts


def _column(outcome: str, gate: Gate) -> int:
    """Where an outcome counts; nowhere if it is not wrong, as a PASS of what is 0 and has no smaller limit."""
    at_zero = ROUNDING in (gate.max, gate.min, gate.limit)
    return {"pass": 0 if at_zero else 1, "fail": 2, "not_run": 3}.get(outcome, 0)


def _due(metric: str, run: int) -> bool:
    return run < FEW if metric in NO_BOUND else run % EVERY.get(metric, 1) == 0


def exact(cell: Cell, metrics: Sequence[str] | None = None) -> Counts:
    """Constant scores: every number is a function of the number of errors, summed over the binomial."""
    confidence, percent = map(float, re.findall(r"[\d.]+", cell.what))
    p = constant(confidence, round(percent * 200), 20_000, cell.k)
    skipped = {*CONSTANT, *NO_BOUND, "cox_slope", "cox_intercept", *(("smece",) if cell.n > 200 else ())}
    rules = {n: g for n, g in of_population(p).items() if n.split()[0] not in skipped}
    wrong = np.arange(cell.n + 1)
    weight = binom.pmf(wrong, cell.n, percent / 100)
    wrong = wrong[weight > SURE]
    if cell.kind == "exact slices":
        rules = {n: replace(rules[n], by="part") for n in SLICED}
    rules = {n: g for n, g in rules.items() if metrics is None or n.split()[0] in metrics}
    config = Config(gates=tuple(rules.values()))
    found: Counts = {name: [0, 0.0, 0.0, 0.0] for name in rules}
    step = SLICES if cell.kind == "exact slices" else 1
    for first in range(0, len(wrong), step):
        chunk = wrong[first : first + step]
        padded = [*chunk, *[chunk[-1]] * (step - len(chunk))]  # as many slices as there are, so that alpha is shared
        rows = [constant(confidence, int(k), cell.n, cell.k) for k in padded]
        joined = Population(np.concatenate([r.scores for r in rows]), np.concatenate([r.labels for r in rows]))
        part = np.repeat([f"{i:02}" for i in range(step)], cell.n)
        predictions = drawn(joined, np.arange(joined.n), slices={"part": part})
        outcomes = [one.outcome for one in check(RecordedOutputs(predictions, config), config).checks]
        for i, name in enumerate(rules):
            for k, outcome in zip(chunk, outcomes[i * step : (i + 1) * step]):
                if at := _column(outcome, rules[name]):
                    found[name][at] += float(weight[k])
    if cell.kind == "exact slices":
        for one in found.values():
            one[2] = 1 - (1 - one[2]) ** SLICES
    return found


def constant(confidence: float, wrong: int, n: int, k: int) -> Population:
    p = np.full((n, k), (1 - confidence) / (k - 1))
    p[:, 0] = confidence
    labels = np.zeros(n, np.int64)
    labels[:wrong] = 1
    return population(p, labels)
