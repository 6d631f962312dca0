"""The short form of benchmarks/gate.py: verdicts are wrong as rarely as they claim, whatever the metric."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from calibcli.gate.check import check
from calibcli.gate.config import Config, Gate
from calibcli.gate.input_files import Baselines
from calibcli.gate.sources import Scores
from calibcli.predictions import Predictions

HERE = Path(__file__).parent.parent / "benchmarks"
RUNS = 50  # of which 10 wrong are surely more than 6 %


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(HERE))
    try:
        return importlib.import_module("gate")
    finally:
        sys.path.remove(str(HERE))


def worst(bench: ModuleType, kind: str, what: str) -> list[str]:
    """Shares of a cell of three classes that are surely above what is allowed."""
    wrong = []
    for cell in bench.short_cells(kind, what):
        counts, *_ = bench.work(cell, None, RUNS, 0, None)
        wrong += [f"{f.rule}: false {f.verdict} {bench.shown(f)}" for f in bench.wrong(cell, counts)]
    return wrong


@pytest.mark.parametrize(
    "what", ["constant 0.99, 1.00% errors", "constant 0.999, 0.50% errors", "constant 0.999, 1.36% errors"]
)
def test_constant_scores_exactly(bench: ModuleType, what: str) -> None:
    """Summed over the binomial: no simulation error to allow for."""
    assert worst(bench, "exact", what) == []
    assert worst(bench, "exact slices", what) == []


@pytest.mark.parametrize("what", ["calibrated", "saturated, .5 % errors", "5 neighbours", "alternating gaps"])
def test_independent_rows(bench: ModuleType, what: str) -> None:
    assert worst(bench, "rows", what) == []


@pytest.mark.parametrize("what", ["30 groups, sites", "100 groups, shift"])
def test_groups(bench: ModuleType, what: str) -> None:
    assert worst(bench, "groups", what) == []


@pytest.mark.parametrize("what", ["calibrated, .2 %", "saturated, 1 %"])
def test_baselines(bench: ModuleType, what: str) -> None:
    assert worst(bench, "baseline", what) == []


def test_the_benchmark_sees_a_bound_that_is_too_short(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thirds of the distance are too little: what allowed nothing to be missed would also allow everything."""
    from calibcli.gate import check as module

    judge = module.judge

    def hasty(claim: object, side: str, limit: float) -> object:
        e = claim.estimate  # type: ignore[attr-defined]
        if e.high is not None:
            import dataclasses

            e = dataclasses.replace(e, high=e.value + 0.5 * (e.high - e.value))
            claim = dataclasses.replace(claim, estimate=e)  # type: ignore[type-var]
        return judge(claim, side, limit)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "judge", hasty)
    assert any("false PASS" in text for text in worst(bench, "rows", "saturated, .5 % errors"))


def test_grouped_rows_need_the_group_column(bench: ModuleType) -> None:
    """The same clustered rows judged as if independent fail a calibrated model far too often."""
    cell = bench.Cell("groups", "10 groups, shift", 3, 1000)
    trial = bench.prepare(cell, None)
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(RUNS):
        rows, _ = bench.whole_groups(trial.population.starts, 10, rng)
        config = Config(gates=(trial.rules["accuracy min"],))
        [found] = check(Scores(bench.drawn(trial.population, rows), config), config).checks
        wrong += found.outcome in ("pass", "fail")
    assert wrong > 0.2 * RUNS


def test_a_temperature_that_is_off_is_noticed(bench: ModuleType, tmp_path: Path) -> None:
    """By 1.3, of 2,000 rows: nearly always."""
    rng = np.random.default_rng(0)
    path = tmp_path / "base.npz"
    config = Config(gates=(Gate(metric="temperature_gain", baseline=str(path), margin=0.0),))
    outcomes = []
    populations = sys.modules["_populations"]
    for _ in range(15):
        z = populations.scaled(rng.standard_normal((2000, 10)), 0.76)
        labels = populations.drawn(populations.softmax(z), rng)
        np.savez(path, logits=z, labels=labels)
        source = Scores(Predictions.of(1.3 * z, labels), config)
        outcomes.append(check(source, config, Baselines(source, {})).checks[0].outcome)
    assert outcomes.count("fail") >= 14
