"""The worst interval of the calibration error, the loss by a cutoff, their bounds, and what a PASS says."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import script

import calibcli
from calibcli.core.errors import UsageError
from calibcli.core.result import Estimate
from calibcli.gate._simulated import CutoffPopulation

METRICS = ("cutoff_error", "cutoff_loss")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("cutoffs")


def both(p: Any, y: Any, **how: Any) -> tuple[Estimate, Estimate]:
    found = calibcli.measure(p, np.asarray(y, dtype=np.int64), *METRICS, kind="probabilities", **how)
    return found["cutoff_error"], found["cutoff_loss"]


def double_loop(p: np.ndarray, y: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """All intervals between two probabilities; all cutoffs, against payoffs at each probability and just above it."""
    w, levels = w / w.sum(), np.unique(p)
    error = max(abs(float(((p - y) * w)[(p >= a) & (p <= b)].sum())) for a in levels for b in levels)
    payoffs = [(t, p >= t) for t in levels] + [(t, p > t) for t in levels]
    gains = [float((w * (y - t) * (1.0 * (p >= s) - acts)).sum()) for t, acts in payoffs for s in (*levels, 2.0)]
    return error, max(0.0, *gains)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("digits", [1, 2, 8])
def test_values_are_those_of_a_double_loop(digits: int, weighted: bool) -> None:
    rng = np.random.default_rng(digits)
    for n in (1, 2, 7, 40):
        p = rng.random(n).round(digits)
        y = rng.random(n) < rng.random(n)
        w = rng.exponential(size=n) if weighted else np.ones(n)
        error, loss = double_loop(p, y, w)
        of_event = both(p, y, **({"weights": w} if weighted else {}))
        assert [e.value for e in of_event] == pytest.approx([error, loss], abs=1e-12)
        assert loss <= error + 1e-12


def test_top_label_of_many_classes() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(0, 2, (80, 4)).round(1)
    y = rng.integers(0, 4, 80)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    top, hit = p.max(axis=1).round(13), z.argmax(axis=1) == y
    found = calibcli.measure(z, y, *METRICS)
    assert [found[m].value for m in METRICS] == pytest.approx(double_loop(top, hit, np.ones(80)), abs=1e-12)


def test_the_worst_interval_is_named() -> None:
    """Of 100 rows at each of five levels, the two upper ones come true too seldom."""
    p = np.repeat([0.1, 0.3, 0.5, 0.7, 0.9], 100)
    y = np.concatenate([np.arange(100) < hits for hits in (10, 30, 50, 60, 80)])
    error, loss = both(p, y)
    assert error.value == pytest.approx(0.04)
    wanted = {"from": 0.7, "to": 0.9, "share": 0.4, "stated": 0.8, "came_true": 0.7}
    assert error.detail == pytest.approx(wanted)
    assert "worst from 0.7000 to 0.9000: stated 0.8000, came true 0.7000" in error.how
    assert loss.value == pytest.approx(0.02)  # who breaks even at .7 acts on 100 rows of which 60 come true
    assert loss.detail == {"break_even": pytest.approx(0.7), "better": pytest.approx(0.9)}


def test_no_rising_rule_gains_more_than_is_promised(bench: ModuleType) -> None:
    assert bench.promise(100) <= 1 + 1e-9


def test_verdicts_are_seldom_wrong(bench: ModuleType) -> None:
    cells = [(name, n) for name in ("overconfident", "one level 0.8 0.75", "saturated 0.02") for n in (200, 1000)]
    assert bench.wrong(25, cells, bench.drawn, "") == []
    assert bench.wrong(10, [("one level 0.8 0.75", 300)], bench.grouped, "") == []
    assert bench.wrong(10, [("saturated 0.02", 1000)], bench.weighted, "") == []


def cancelling(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaps of ±.03 that cancel in the last of 15 bins."""
    rng = np.random.default_rng(4)
    p = np.where(rng.random(n) < 0.85, 0.95 + 0.05 * rng.random(n), 0.95 * rng.random(n))
    q = np.where(p > 0.95, p + np.where(p < 0.975, 0.025, -0.03), p)
    return p, (rng.random(n) < q).astype(np.int64)


def test_gates_see_gaps_that_cancel_within_a_bin() -> None:
    p, y = cancelling(20_000)
    result = calibcli.check(p, y, max={"ece": 0.008, "cutoff_error": 0.008, "cutoff_loss": 0.02}, kind="probabilities")
    assert [c.outcome for c in result.checks] == ["pass", "fail", "pass"]
    of_bins, said, *_ = result.notes
    assert "cancel within a bin (cutoff_loss bounds what they cost)" in of_bins
    assert said == (
        "Whoever acts where the stated probability reaches their break-even point loses at most 0.02 per row against "
        "the best other cutoff (unit: gain of a right action plus cost of a wrong one)"
    )


def test_what_a_pass_says_of_the_predicted_class_and_of_slices() -> None:
    p, y = cancelling(2_000)
    z = np.log(np.stack([1 - p, p], 1))
    halves = {"half": np.arange(2_000) % 2}
    top = calibcli.check(z, y, max={"cutoff_loss:of=top": 0.1})
    assert top.notes[0].endswith("; to act is to accept the prediction")
    split = calibcli.check(z, y, max={"cutoff_loss": 0.1}, by=halves)
    assert split.notes[-1].endswith("; in each part by half")


def test_groups_count_as_one_draw() -> None:
    """Ten copies of each row say what one says; few groups have no bound."""
    rng = np.random.default_rng(2)
    p = rng.random(300)
    y = rng.random(300) < p
    for one, ten in zip(both(p, y), both(np.repeat(p, 10), np.repeat(y, 10), group=np.repeat(np.arange(300), 10))):
        assert ten.value == pytest.approx(one.value, abs=1e-12)
        assert one.high is not None
        assert ten.high is not None
        assert 0.9 * one.high < ten.high < 1.5 * one.high
        assert ten.low == pytest.approx(0, abs=0.02)
        assert ten.null is None
    for few in both(p, y, group=np.arange(300) % 8):
        assert few.high is None
        assert "8 groups, and bounds need 10" in few.reason


def test_groups_whose_gaps_cancel_within_them() -> None:
    """Rows of a group at neighbouring levels come true in opposite ways: running sums have far more noise than ends."""
    rng, low = np.random.default_rng(3), 0
    for _ in range(40):
        p = 0.3 + 0.4 * np.arange(64).repeat(20) / 63
        coin = np.repeat(rng.random((20, 32)) < 0.5, 2, axis=1).T.copy().reshape(-1)  # (64 · 20,) by level
        y = coin ^ np.repeat(np.arange(64) % 2 == 1, 20)
        group = np.repeat(np.arange(32), 40) * 20 + np.tile(np.arange(20), 64)
        error, _ = both(np.full(1280, 0.5) + 1e-6 * (p - 0.5), y, group=group)
        assert error.low is not None
        low += error.low > 1e-3
    assert low <= 6


@pytest.mark.parametrize("hit", [False, True])
def test_rows_of_one_outcome_and_of_extreme_probabilities(hit: bool) -> None:
    for p in (np.full(50, 1.0), np.full(50, 0.0), np.linspace(0, 1, 50)):
        error, loss = both(p, np.full(50, hit))
        for e in (error, loss):
            assert e.value is not None
            assert e.low is not None
            assert e.high is not None
            assert 0 <= e.low <= e.value + 1e-12 <= e.high + 1e-12 <= 1 + 2e-12
    assert both(np.array([0.3]), [True])[0].reason == "one row has no spread"


@pytest.mark.parametrize("level", [0.5, 0.999999])
def test_any_level_has_bounds(level: float) -> None:
    p, y = cancelling(300)
    for e in both(p, y, level=level):
        assert e.value is not None
        assert e.low is not None
        assert e.high is not None
        assert 0 <= e.low <= e.value <= e.high <= 1


def test_the_chance_of_a_verdict_rises_with_the_rows(bench: ModuleType) -> None:
    """At a calibrated population PASS becomes sure; where the loss is twice the limit, FAIL does."""
    view = bench.drawn("overconfident", 500, np.random.default_rng(0))
    statistic = bench.measured("cutoff_loss", view)
    for truth, side in ((0.0, 0), (0.04, 1)):
        population = CutoffPopulation.of(statistic, truth)
        assert population.truth == pytest.approx(truth, abs=1e-6)
        chances = [population.chance(side, n, 0.02, 0.05, 10) for n in (20, 200, 20_000)]
        assert chances[0] == 0
        assert chances[1] <= 0.5
        assert chances[2] == 1
        between = [population.chance(side, n, 0.02, 0.05, 10) for n in (160, 200, 226.3)]
        assert min(between[0], between[2]) <= between[1] <= max(between[0], between[2])


@pytest.mark.slow
def test_a_plan_is_simulated(bench: ModuleType) -> None:
    """A calibrated model of 10 classes, of which the stated number of rows PASSes about as often as asked."""
    found = calibcli.plan(max={"cutoff_loss": 0.08}, accuracy=0.87)
    rows = found.estimates[0].value
    assert rows is not None
    rng, passed = np.random.default_rng(0), 0
    for _ in range(60):
        passed += bench.upper("cutoff_loss", bench.drawn("calibrated, top label", round(rows), rng)) <= 0.08
    assert 0.55 <= passed / 60 <= 0.97


def test_a_truth_that_no_gaps_have_cannot_be_planned() -> None:
    with pytest.raises(UsageError, match="out of reach"):
        calibcli.plan(max={"cutoff_loss": 0.05}, truth=0.99)


def test_an_undecided_gate_says_how_many_rows_it_takes() -> None:
    p, y = cancelling(400)
    judged = calibcli.check(p, y, max={"cutoff_loss": 0.015}, kind="probabilities")
    [check] = judged.checks
    assert check.outcome == "inconclusive"
    assert not any("Whoever acts" in note for note in judged.notes)
    assert check.n_needed is None or check.n_needed > 400
    result = calibcli.measure(p, y, *METRICS, kind="probabilities")
    [stored] = calibcli.check(result, max={"cutoff_loss": 0.015}).checks
    assert "pass the scores to see how many rows would decide" in stored.message
