"""Scores of exactly 0 and 1, and many equal ones, as forests and neighbours give them: every metric of the registry.

The populations are those of benchmarks/exact_scores.py, which counts false PASSes on them. What a metric should be is
its oracle in `test_metrics_oracles`, so that a new metric, which needs one, is tested here without being named.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import script
from test_metrics_oracles import ORACLES, TWO, Rows

import calibcli
from calibcli.core.result import Estimate, Result
from calibcli.metrics import METRICS
from calibcli.metrics import _histogram_error as histogram_error
from calibcli.metrics.corp import Isotonic
from calibcli.metrics.registry import Sample, traits
from calibcli.scores.columns import columns
from calibcli.scores.predictions import Predictions

N = 240
MODELS = ("forest of 10", "forest of 30", "5 neighbours", "naive Bayes", "boosted trees", "five levels")
POOLS = [(model, data) for model in MODELS for data in ("even", "rare")]
LOG = [(spec, *rest) for entries in ORACLES.values() for spec, *rest in entries if "score=log" in spec]
CASES: list[tuple[str, Callable[[Rows], float], float]] = [
    *(entries[0] for name, entries in ORACLES.items() if name != "calibration_p"),  # random: its draws are not these
    *((spec, oracle, rtol) for spec, oracle, rtol in LOG),
]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("exact_scores")


@cache
def rows(bench: ModuleType, model: str, data: str) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (N, 2) and labels (N,), with both outcomes among the rows of probability 0 and of 1."""
    p, y = bench.predicted(model, data, 4000)
    odd = np.flatnonzero((p[np.arange(len(y)), y] == 0) & (p.max(axis=1) == 1))[:6]
    some = np.append(odd, np.setdiff1d(np.arange(len(y)), odd)[: N - len(odd)])
    return p[some], y[some]


class Exact(Rows):
    """Rows of probabilities, as they are; of the event, or of the top label."""

    def __init__(self, p: np.ndarray, y: np.ndarray, positive: bool = False) -> None:
        self.p, self.y = [[float(v) for v in row] for row in p], [int(v) for v in y]
        self.z = [[math.log(v) if v > 0 else -math.inf for v in row] for row in self.p]
        self.n, self.k = p.shape
        top = [row.index(max(row)) for row in self.p]
        self.c = [row[1] if positive else row[t] for row, t in zip(self.p, top)]
        self.a = [float(y == (1 if positive else t)) for y, t in zip(self.y, top)]


def of_event(spec: str) -> bool:
    """Whether a metric of two classes is of the event."""
    name = spec.partition(":")[0]
    options = METRICS.entries[name].options
    return ("of" in options and options["of"].default == "auto") or name in TWO


def oracle_value(spec: str, oracle: Callable[[Rows], float], p: np.ndarray, y: np.ndarray) -> float | None:
    """What the oracle says; None where it divides by 0, or takes the logarithm of it."""
    try:
        with np.errstate(all="ignore"):
            value = oracle(Exact(p, y, of_event(spec) and spec not in TWO))
    except (ValueError, ZeroDivisionError, FloatingPointError):
        return None
    return value if math.isfinite(value) else None


def measured(p: np.ndarray, y: np.ndarray, *specs: str, **how: Any) -> Result:
    return calibcli.measure(p, y, *specs, kind="probabilities", **how)


def same(one: Estimate, other: Estimate, rel: float = 1e-9) -> None:
    a, b = (e.value if e.value is not None and math.isfinite(e.value) else None for e in (one, other))
    assert (a is None) == (b is None), one.name
    assert a is None or a == pytest.approx(b, rel=rel, abs=1e-12), one.name


@pytest.mark.regression
@pytest.mark.parametrize(("spec", "oracle", "rtol"), CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize(("model", "data"), POOLS, ids=["-".join(pool) for pool in POOLS])
@pytest.mark.one_in(33)
def test_every_metric_of_exact_scores_is_its_oracle(
    bench: ModuleType, model: str, data: str, spec: str, oracle: Callable[[Rows], float], rtol: float
) -> None:
    """Of either event; alike with weights that are all equal, groups, and rows that are counted, not repeated."""
    p, y = rows(bench, model, data)
    times = np.random.default_rng(0).integers(0, 3, len(y))
    for scores, labels in ((p, y), (p[:, ::-1], 1 - y)):
        plain = measured(scores, labels, spec)[spec]
        wanted = oracle_value(spec, oracle, scores, labels)
        if wanted is not None:
            assert plain.value == pytest.approx(wanted, rel=max(rtol, 1e-9), abs=1e-9)
        assert plain.value is None or not math.isfinite(plain.value) or wanted is not None or plain.reason
        same(measured(scores, labels, spec, weights=np.full(len(y), 2.5))[spec], plain)
        if traits(spec).rows != "cross_fitted":  # whose folds are of the rows of the file, and divide no group
            same(measured(scores, labels, spec, group=np.arange(len(y)) % 40)[spec], plain)
            counted = measured(scores, labels, spec, weights=times.astype(float), weight_kind="count")[spec]
            same(counted, measured(np.repeat(scores, times, axis=0), np.repeat(labels, times), spec)[spec], 1e-6)


@pytest.mark.regression
@pytest.mark.parametrize(("model", "data"), POOLS, ids=["-".join(pool) for pool in POOLS])
@pytest.mark.one_in(6)
def test_a_file_of_exact_scores_is_one_file(bench: ModuleType, model: str, data: str) -> None:
    """Named by another event, in another order of its rows, or in parts: the same numbers, and intervals."""
    p, y = rows(bench, model, data)
    specs = [case[0] for case in CASES]
    whole = measured(p, y, *specs)
    other = measured(p, y, *specs, event="0")
    mirrored = measured(p[:, ::-1], 1 - y, *specs)
    order = np.random.default_rng(1).permutation(len(y))
    shuffled = measured(p[order], y[order], *specs)
    parts = [calibcli.Accumulator(*specs, kind="probabilities") for _ in range(3)]
    for i, one in enumerate(parts):
        one.update(p[i::3], y[i::3])
    merged = parts[0].merge(*parts[1:]).result()
    for spec in specs:
        for a, b in ((other[spec], mirrored[spec]), (shuffled[spec], whole[spec])):
            same(a, b)
            for end in ("low", "high", "null_high"):
                ends = getattr(a, end), getattr(b, end)
                assert ends[0] == ends[1] or ends[0] == pytest.approx(ends[1], rel=1e-6, abs=1e-9), (spec, end)
        a, b = merged[spec], whole[spec]
        if None not in (a.value, b.value) and math.isfinite(b.value):
            assert abs(a.value - b.value) <= a.detail.get(histogram_error.ERROR, 0.0) + 1e-9, spec


@pytest.mark.one_in(3)
@pytest.mark.regression
@pytest.mark.parametrize(("model", "data"), POOLS, ids=["-".join(pool) for pool in POOLS])
@pytest.mark.parametrize("event", [1, 0])
def test_parts_of_a_score_add_up_where_scores_are_exact(bench: ModuleType, model: str, data: str, event: int) -> None:
    """MCB - DSC + UNC is the score, whether rows are plain, weighted, counted or grouped, also of each class and label.

    Isotonic regression has one value for rows of one score, whatever their labels.
    """
    p, y = rows(bench, model, data)
    p, y = (p, y) if event == 1 else (p[:, ::-1], 1 - y)
    rng = np.random.default_rng(0)
    designs: list[dict[str, Any]] = [
        {},
        {"weights": np.full(len(y), 3.0)},
        {"weights": rng.exponential(size=len(y))},
        {"weights": rng.integers(0, 4, len(y)).astype(float), "weight_kind": "count"},
        {"group": np.arange(len(y)) % 30},
    ]

    def whole(found: Result, score: str) -> float:
        parts = [found[f"corp_{part}{score}"].value for part in ("mcb", "dsc", "unc")]
        return parts[0] - parts[1] + parts[2]

    names = [f"corp_{part}{score}" for part in ("mcb", "dsc", "unc") for score in ("", ":score=log")]
    for how in designs:
        found = measured(p, y, *names, "brier", "nll", **how)
        assert whole(found, "") == pytest.approx(found["brier"].value, abs=1e-12)
        if found["nll"].value is not None:
            assert whole(found, ":score=log") == pytest.approx(found["nll"].value, abs=1e-10)
        else:  # of a label of probability 0
            assert found["corp_mcb:score=log"].value is None
    labels = measured(p, np.stack([1 - y, y], 1), *names[::2], "brier", multilabel=True)
    for label in (0, 1):
        each = {e.name: e.value for e in labels.estimates if e.scope == f"label={label}"}
        assert each["corp_mcb"] - each["corp_dsc"] + each["corp_unc"] == pytest.approx(each["brier"], abs=1e-12)
    table = next(t for t in measured(p, y, "brier", per_class=True).tables if t.name == "per_class")
    by_class = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    of_event = measured(p, y, *names[::2])
    for row in by_class:  # of two classes each is the mirror of the other
        assert row["mcb"] == pytest.approx(of_event["corp_mcb"].value, abs=1e-12)
        assert row["dsc"] == pytest.approx(of_event["corp_dsc"].value, abs=1e-12)
    one = Predictions.of(np.log(np.maximum(p, 0)) if p.all() else _logs(p), y, kind="probabilities")
    fit = Sample.of(columns(one), one).view().memoized(Isotonic.of)
    values = {float(v): {round(f, 12) for f in fit.fitted[p[:, 1] == v]} for v in set(p[:, 1].tolist())}
    assert all(len(fitted) == 1 for fitted in values.values())


def _logs(p: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p))


@pytest.mark.regression
def test_equal_scores_of_three_classes_are_one_tie_each(bench: ModuleType) -> None:
    """Votes of 5 neighbours of three classes, with 0 and 1: each class is a file of two classes of its own."""
    rng = np.random.default_rng(3)
    p = rng.multinomial(5, [0.6, 0.25, 0.15], 400) / 5
    y = np.where(
        rng.random(400) < 0.8, (p.cumsum(axis=1) > rng.random((400, 1))).argmax(axis=1), rng.integers(0, 3, 400)
    )
    found = measured(p, y, "ece", per_class=True)
    table = next(t for t in found.tables if t.name == "per_class")
    for label, row in enumerate(table.rows):
        seen = dict(zip(table.columns, row, strict=True))
        own = np.stack([1 - p[:, label], p[:, label]], axis=1)
        for name in ("mcb", "dsc"):
            [(spec, oracle, _)] = [case for case in ORACLES[f"corp_{name}"] if ":" not in case[0]]
            wanted = oracle_value(spec, oracle, own, (y == label).astype(int))
            assert seen[name] == pytest.approx(wanted, abs=1e-12)


@pytest.mark.regression
def test_a_probability_of_0_with_events_is_miscalibrated() -> None:
    """A third of the rows at exactly 0 with 14 % events: the gate that PASSed on `corp_mcb` does so no more."""
    rng = np.random.default_rng(0)
    p = np.where(np.arange(4000) < 1333, 0.0, rng.random(4000))
    y = (rng.random(4000) < np.where(p == 0, 0.14, p)).astype(int)
    found = measured(p, y, "corp_mcb", "ece2_debiased")
    assert found["corp_mcb"].value == pytest.approx(1333 / 4000 * y[:1333].mean() ** 2, rel=0.4)
    assert found["ece2_debiased"].value < 0.01
    judged = calibcli.check(p, y, max={"corp_mcb": 0.004}, kind="probabilities")
    assert judged.checks[0].outcome != "pass"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["five levels, even, event 1", "forest of 10, rare, event 0"])
def test_no_limit_is_passed_falsely_on_exact_scores(bench: ModuleType, what: str) -> None:
    """The limit of every metric is its true value: 30 runs of what the benchmark has 400 of."""
    [(cell, pool)] = [one for one in bench.cells(500) if what in one[0].key]
    trial = bench.prepared(cell, pool)
    found = bench.shares(cell.key, bench.passes(trial, 30, 1, [*trial.rules]))
    assert len(found) > 15
    assert bench.offending(found) == []
