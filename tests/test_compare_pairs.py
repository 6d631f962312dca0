"""Two models on the same rows: rare regressions against a baseline; p and interval of `compare`; means over groups."""

from __future__ import annotations

import dataclasses
import importlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from populations import drawn, softmax
from scipy.stats import binomtest, multinomial, norm

import calibcli
from calibcli import metrics
from calibcli.core import number_format
from calibcli.core.result import Estimate
from calibcli.gate import baseline, check, compare
from calibcli.gate.baseline import Pairing
from calibcli.gate.config import Config, Gate
from calibcli.gate.sources import RecordedOutputs
from calibcli.metrics import _paired_bins as paired_bins
from calibcli.metrics import paired
from calibcli.metrics.intervals import FEWEST_GROUPS, WeightedMean
from calibcli.metrics.paired import MeanDifference
from calibcli.metrics.registry import Sample, traits
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.columns import columns
from calibcli.scores.likelihood import fit_beta, nll_rows
from calibcli.scores.predictions import Predictions

COMPARED = ("temperature_gain", "nll", "brier", "accuracy")  # with a baseline, row by row


def shown(z: Any, y: Any) -> baseline.BaselineRows:
    found = Predictions.of(z, y)
    return baseline.rows(found, columns(found, class_bins=()), "5a17")


def regressed(k: int, share: float) -> tuple[Any, Any, Any]:
    """A calibrated model, and it with a wrong class 8 nats ahead in a share of rows."""
    rng = np.random.default_rng(k)
    z = rng.standard_normal((60_000, k)) * 5
    y = drawn(softmax(z), rng)
    new, rows = z.copy(), rng.choice(len(y), round(share * len(y)), replace=False)
    new[rows, (y[rows] + 1) % k] = z[rows].max(1) + 8
    return z, new, y


@pytest.mark.slow
@pytest.mark.regression("2.3")
@pytest.mark.parametrize(("n", "share"), [(200, 0.002), (500, 0.002), (200, 0.01)])
@pytest.mark.parametrize("k", [2, 10])
def test_rare_regressions_do_not_pass(k: int, n: int, share: float) -> None:
    base, new, y = regressed(k, share)
    both = [columns(Predictions.of(z, y), class_bins=()) for z in (base, new)]
    truth = {m: float(np.mean(getattr(both[1], m)) - np.mean(getattr(both[0], m))) for m in ("nll", "brier")}
    gains = [(nll_rows(z, y, 1.0) - nll_rows(z, y, fit_beta(z, y).beta)).mean() for z in (base, new)]
    truth |= {
        "temperature_gain": float(gains[1] - gains[0]),
        "accuracy": float(np.mean(both[1].correct * 1.0 - both[0].correct)),
    }
    rng, runs, passed = np.random.default_rng(n), 60, dict.fromkeys(COMPARED, 0)
    every = np.arange(n)
    for _ in range(runs):
        rows = rng.integers(0, len(y), n)
        kept = [shown(z[rows], y[rows]) for z in (base, new)]
        for metric in COMPARED:
            pairing = Pairing(new=every, base=every, how="")
            found = baseline.difference(kept[1], kept[0], pairing, metric, None, False, None)
            if isinstance(found, MeanDifference):
                low, high = found.bounds(0.05)
                passed[metric] += high < truth[metric] if metric != "accuracy" else low > truth[metric]
                assert low < high
    assert max(passed.values()) <= 0.05 * runs + 5, passed  # 2 of 3 runs at n = 200 without what was not seen


@pytest.mark.regression("2.3")
def test_gain_of_a_baseline_without_temperature_is_not_run() -> None:
    z = np.zeros((300, 3))
    z[:, 0] = 9
    y = np.zeros(300, dtype=int)
    pairing = Pairing(new=np.arange(300), base=np.arange(300), how="")
    found = baseline.difference(shown(z, y), shown(z * 2, y), pairing, "temperature_gain", None, False, None)
    assert isinstance(found, str)
    assert "no temperature" in found


@pytest.mark.regression("2.3")
def test_gain_of_a_temperature_that_two_rows_decide_is_not_bounded_below_what_these_rows_gain() -> None:
    """Folds without one of them have another temperature, which costs more than the margin of a new temperature."""
    n, rng = 300, np.random.default_rng(1)
    y = (rng.random(n) < 0.15).astype(int)
    base = np.stack([np.full(n, np.log(0.85 / 0.15)), np.zeros(n)], 1)
    new = base.copy()
    y[:3], new[:3, 0] = (1, 1, 0), (100, 100.01, 100.02)  # far surer than the others, two of them wrong
    pairing = Pairing(new=np.arange(n), base=np.arange(n), how="")
    found = baseline.difference(shown(new, y), shown(base, y), pairing, "temperature_gain", None, False, None)
    assert isinstance(found, MeanDifference)
    best = [(nll_rows(z, y, 1.0) - nll_rows(z, y, fit_beta(z, y).beta)).mean() for z in (base, new)]
    assert found.mean.value < 0 < best[1] - best[0] < found.bounds(0.05)[1]


@pytest.mark.regression("2.3")
def test_kept_rows_judge_as_the_scores_do() -> None:
    base, new, y = regressed(3, 0.01)
    kept = [shown(z[:400], y[:400]) for z in (base, new)]
    packed = [baseline.BaselineRows.unpack(rows.pack(), "b.json") for rows in kept]
    pairing = Pairing(new=np.arange(400), base=np.arange(400), how="")
    for metric in COMPARED:
        live, read = (baseline.difference(b, a, pairing, metric, None, False, None) for a, b in (kept, packed))
        assert isinstance(live, MeanDifference)
        assert isinstance(read, MeanDifference)
        assert live.bounds(0.05) == pytest.approx(read.bounds(0.05))


def grouped(count: int, spread: float, seed: int) -> tuple[Any, Any, Any, Any]:
    """Rows of groups of uneven size that share how hard they are."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(1, np.round(15 * np.exp(spread * rng.standard_normal(count)))).astype(int)
    member = np.repeat(np.arange(count), sizes)
    hard = rng.beta(4.5, 0.5, count)[member]
    y = np.where(rng.random(len(member)) < hard, 0, 1)
    z = np.zeros((len(member), 3))
    z[:, 0] = 2 + rng.random(len(member))
    return z, y, member, sizes


@pytest.mark.regression("2.4")
@pytest.mark.parametrize(
    "spec", ["accuracy", "nll", "brier", "confidence_gap", "temperature_gain", "high_confidence_share", "cox_slope"]
)
def test_too_few_groups_are_not_run(spec: str) -> None:
    for count, spread in ((5, 0.0), (9, 0.0), (12, 1.5)):
        z, y, member, _ = grouped(count, spread, 1)
        z += np.random.default_rng(0).standard_normal(z.shape) / 9
        gate = Gate(metric=spec, min_n=1, **{"min" if spec == "accuracy" else "max": 0.5})
        found = check.check(
            RecordedOutputs(Predictions.of(z, y, groups=member), Config(gates=())), Config(gates=(gate,))
        )
        assert found.checks[0].outcome == "not_run", (spec, count)
        assert str(FEWEST_GROUPS) in found.checks[0].message, found.checks[0].message


@pytest.mark.slow
@pytest.mark.regression("2.4")
@pytest.mark.parametrize(("count", "spread"), [(5, 1.0), (10, 0.0), (30, 0.5), (100, 1.0)])
def test_means_over_few_or_uneven_groups(count: int, spread: float) -> None:
    choices = metrics.choose(["accuracy", "nll"], 3)
    truth = {"accuracy": 0.9}
    big = grouped(300_000, spread, 0)
    truth["nll"] = float(np.mean(nll_rows(big[0], np.zeros(len(big[1]), int))))
    other = float(np.mean(nll_rows(big[0], np.ones(len(big[1]), int))))
    truth["nll"] = 0.9 * truth["nll"] + 0.1 * other
    wrong: dict[str, list[int]] = {"accuracy": [0, 0], "nll": [0, 0]}
    runs = 300
    for seed in range(1, runs + 1):
        z, y, member, _ = grouped(count, spread, seed)
        sample = Sample.of(columns(Predictions.of(z, y, groups=member), class_bins=()))
        for e in metrics.estimates(sample, choices, level=0.9):
            if e.low is not None and e.high is not None:
                wrong[e.name][0] += e.high < truth[e.name]
                wrong[e.name][1] += e.low > truth[e.name]
                assert e.detail["effective_groups"] >= FEWEST_GROUPS  # type: ignore[operator]
                assert "effective)" in e.how
    assert max(map(max, wrong.values())) <= 0.05 * runs + 12, wrong


@pytest.mark.slow
@pytest.mark.regression("2.10")
@given(st.integers(0, 400), st.integers(0, 400), st.integers(1, 400))
@settings(max_examples=300, deadline=None)
def test_mcnemar_and_its_interval_never_disagree(gained: int, lost: int, same: int) -> None:
    n = gained + lost + same
    low, high, p = paired.mcnemar(gained, lost, n, 0.95)
    assert p == pytest.approx(binomtest(gained, gained + lost).pvalue if gained + lost else 1.0, abs=1e-9)
    assert 0 < p <= 1
    assert (p < 0.05) == (low > 0 or high < 0)
    assert low < high
    assert low <= (gained - lost) / n <= high


@pytest.mark.slow
@pytest.mark.regression("2.10")
@pytest.mark.parametrize(("gained", "lost"), [(0.02, 0.02), (0.3, 0.05), (0.2, 0.0), (0.01, 0.0)])
def test_mcnemar_covers_exactly(gained: float, lost: float) -> None:
    n, below, above = 60, 0.0, 0.0
    for a in range(n + 1):
        for b in range(n + 1 - a):
            weight = float(multinomial.pmf([a, b, n - a - b], n, [gained, lost, 1 - gained - lost]))
            if weight > 1e-9:
                low, high, _ = paired.mcnemar(a, b, n, 0.95)
                below, above = below + weight * (high < gained - lost), above + weight * (low > gained - lost)
    assert max(below, above) <= 0.025


@pytest.mark.regression("2.10")
@given(st.integers(0, 10_000), st.sampled_from(["", "groups", "weights"]), st.floats(0.7, 1.4))
@settings(max_examples=25, deadline=None)
@pytest.mark.slow
def test_p_and_interval_never_disagree(seed: int, design: str, factor: float) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(30, 400))
    z = rng.standard_normal((n, 3)) * 2
    y = drawn(softmax(z), rng)
    extra: dict[str, Any] = {"groups": np.arange(n) // 2} if design == "groups" else {}
    extra |= {"weights": rng.random(n) + 0.2} if design == "weights" else {}
    other = z * factor + rng.standard_normal(z.shape) * rng.choice([0.0, 0.5, 2.0])
    names = [name for name in metrics.DEFAULT if traits(name).compared] + [
        "entropy",
        "high_confidence_share",
        "brier_top",
    ]
    found = compare.scores([Predictions.of(z, y, **extra), Predictions.of(other, y, **extra)], ["a", "b"], names)
    for e, row in zip(found.estimates, found.tables[1].rows, strict=True):
        if e.low is not None and e.high is not None:
            assert e.low <= e.value <= e.high, e  # type: ignore[operator]
            assert e.low < e.high, e
            assert row[2] is not None
            assert (float(row[2]) < 0.05) == (e.low > 0 or e.high < 0), (e, row)


def two_models(name: str) -> tuple[Any, Any]:
    """(N,) confidences and hits of two models of 60,000 rows."""
    rng = np.random.default_rng(3)
    z = rng.standard_normal((60_000, 10)) * 2
    y = drawn(softmax(z), rng)
    second = {"sharper": 1.5 * z, "noisy": 0.9 * z + 0.6 * rng.standard_normal(z.shape)}[name]
    first = z if name == "sharper" else 1.3 * z
    return (first, second), y


@pytest.mark.slow
@pytest.mark.regression("2.10")
@pytest.mark.parametrize("name", ["sharper", "noisy"])
def test_coverage_of_the_difference_of_eces(name: str) -> None:
    pair, y = two_models(name)
    choice = metrics.choose(["ece"], 10)
    tables = [columns(Predictions.of(z, y), class_bins=()) for z in pair]
    values = [float(choice[0](Sample.of(t))) for t in tables]
    rng, runs, held, n = np.random.default_rng(0), 150, 0, 1000
    for _ in range(runs):
        rows = rng.integers(0, len(y), n)
        found = compare.scores([Predictions.of(z[rows], y[rows]) for z in pair], ["a", "b"], ["ece"]).estimates[0]
        assert found.low is not None
        assert found.high is not None
        held += found.low <= values[1] - values[0] <= found.high
    assert held >= 0.92 * runs - 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [(0.0, 0.0, 0.3), (0.0, 0.0, 0.98), (1.0, -1.0, 0.6), (2.0, 2.0, 0.95), (0.0, 2.0, 0.5), (3.0, 9.0, 0.6)],
    ids=["calibrated", "alike", "opposite", "alike, off", "one off", "both off"],
)
def test_spread_of_the_difference_of_eces(first: float, second: float, shared: float) -> None:
    """The error that the interval takes is that which the difference has, wherever the true gaps are."""
    bins, runs = 15, 80
    rng, shape = np.random.default_rng(0), np.sin(np.linspace(0.4, 2.7, bins))
    sigma = 0.004 * np.sqrt(shape)
    truth = np.concatenate([first * sigma * shape, second * sigma * shape])
    covariance: Any = np.kron([[1, shared], [shared, 1]], np.diag(sigma**2))
    gaps = [
        paired_bins.Gaps(d, np.tile(sigma, 2), np.tile(shape, 2), np.repeat([-1.0, 1.0], bins), covariance)
        for d in rng.multivariate_normal(truth, covariance, size=runs)
    ]
    spread = float(np.std(gaps[0].difference(rng.multivariate_normal(truth, covariance, size=20_000))))
    assert np.sqrt(np.mean([g.spread[0] for g in gaps])) == pytest.approx(
        spread, rel=0.11
    )  # around d itself: .75 to 1.4
    half = [paired_bins.BoundedEstimate(0, g.spread[0] ** 0.5, np.inf, g.bias, 0).half(0.05) for g in gaps]
    assert 0.98 < np.mean(half) / spread / 1.96 < 1.6


def test_an_interval_covers_whatever_the_bias_within_its_bound() -> None:
    """Its half width in standard errors is the quantile of |Z + bias|."""
    for bias, error in ((0.0, 1.0), (0.5, 1.0), (1.0, 2.0), (3.0, 0.1)):
        half = paired_bins.BoundedEstimate(0.0, error, np.inf, bias, 0.0).half(0.05)
        assert norm.cdf((half - bias) / error) - norm.cdf((-half - bias) / error) == pytest.approx(0.95, abs=1e-6)
    known = paired_bins.BoundedEstimate(0.07, 0.02, 99.0, 0.01, 0.001)
    p = known.p_value(0.05)
    assert known.half(p) == pytest.approx(0.07, rel=1e-6)
    hidden = paired_bins.BoundedEstimate(
        0.07, 1e-9, 99.0, 0.0, 0.01
    )  # a share h of rows stays unseen with exp(-h / .01)
    assert hidden.p_value(0.05) == pytest.approx(2 * np.exp(-7), rel=1e-6)
    assert paired_bins.BoundedEstimate(0.0, 0.02, 99.0, 0.01, 0.001).p_value(0.05) == 1


@given(st.integers(0, 10_000), st.sampled_from(["split-merge", "split", "whole"]), st.sampled_from(["", "weight"]))
@settings(max_examples=30, deadline=None)
def test_rows_are_in_the_bins_that_hold_them(seed: int, method: Any, kind: str) -> None:
    """Also tied rows across a cut, of which each bin has a share."""
    rng = np.random.default_rng(seed)
    n, bins = int(rng.integers(20, 90)), 7
    p = rng.integers(1, rng.integers(3, 30), n) / 30
    w = rng.exponential(size=n) if kind else None
    view = BinaryOutcomes(p, 1 - p, rng.random(n) < 0.6, w, False, None)
    table = view.mass_bins(bins, method)
    members = paired_bins.BinMembership.of(view, table)
    assert np.allclose(members.sums(view.shares * view.residual), table.weighted_gap)
    assert np.allclose(members.sums(view.shares), table.weight)
    assert np.allclose(members.share.sum(axis=1), 1)


@pytest.mark.regression
def test_rows_that_interpolated_edges_omit_are_in_no_bin() -> None:
    """They were counted in the covariance of the first gap, which they are no part of."""
    rng = np.random.default_rng(0)
    p = np.maximum(rng.random(200).round(2), 0.25)  # a fourth of the rows have the smallest confidence
    view = BinaryOutcomes(p, 1 - p, rng.random(200) < 0.6, None, False, None)
    table = view.mass_bins(7, "mukhoti")
    members = paired_bins.BinMembership.of(view, table)
    assert np.allclose(members.sums(view.shares * view.residual), table.weighted_gap)
    assert np.allclose(members.sums(view.shares), table.weight)
    assert table.weight.sum() == pytest.approx(np.mean(p > 0.25))
    gaps = paired_bins._gaps((view, view), (table, table))
    counted = np.where(p > 0.25, view.residual, 0.0)
    assert gaps.covariance[:7, :7].sum() == pytest.approx(np.var(counted) / 200)


@lru_cache
def near_pairs() -> dict[str, Any]:
    return dict(importlib.import_module("_paired_near").pairs())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "metric"),
    [
        ("12 levels, apart by .012, first calibrated", 300, "adaece"),
        ("12 levels, apart by .012, second calibrated", 1000, "ece"),
        ("any confidence, apart by .012, first calibrated", 300, "adaece"),
        ("the same, .4 % catastrophic", 150, "aurc"),
        ("the same, .4 % catastrophic", 300, "auc"),
        ("AUC .99 and .998", 150, "auc"),
        ("the same, .15 % catastrophic", 150, "ood aupr_in"),
    ],
)
def test_coverage_of_models_that_differ_by_little(
    monkeypatch: pytest.MonkeyPatch, name: str, n: int, metric: str
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    bench = importlib.import_module("paired_coverage")
    models = near_pairs()[name]
    found = bench.near_cell(models, n, 60, [metric])[metric]
    assert found.given >= 0.9 * found.runs
    assert found.share >= 0.87, found


def test_a_plain_difference_outside_the_interval_is_said() -> None:
    """Chance makes the |gaps| of the calibrated model too large: the plain difference is too small."""
    rng = np.random.default_rng(21)
    z = rng.standard_normal((1000, 10)) * 2
    y = drawn(softmax(z), rng)
    found = calibcli.compare(*(calibcli.from_arrays(s * z, y) for s in (1, 1.5)), metrics=["ece"])
    (one,), (_, _, first, second) = found.estimates, found.tables[0].rows[0]
    plain = one.detail[paired.PLAIN]
    assert plain == pytest.approx(second - first)  # type: ignore[operator]
    assert plain < one.low == one.value  # type: ignore[operator]
    assert any(f"differ by {plain:.4f}, outside" in note for note in found.notes)


@pytest.mark.parametrize(("size", "least", "most"), [(9.0, 1.0, 1.1), (0.0, 8.0, 14.0)], ids=["sure", "calibrated"])
def test_degrees_of_a_spread_are_those_of_the_sums_in_it(size: float, least: float, most: float) -> None:
    """Sure gaps add up to one sum; those of two calibrated models of which nothing is shared are many."""
    bins, sigma = 6, np.full(12, 0.01)
    gaps = paired_bins.Gaps(size * sigma, sigma, np.full(12, 1 / bins), np.repeat([-1.0, 1.0], bins), np.diag(sigma**2))
    assert least <= gaps.spread[1] <= most


@given(st.integers(0, 10_000), st.sampled_from(["weight", "count"]))
@settings(max_examples=20, deadline=None)
def test_covariance_of_gaps_under_weights(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    n, bins = 60, 4
    w: Any = rng.integers(1, 4, n) * 1.0 if kind == "count" else rng.exponential(size=n) + 0.01
    views = [BinaryOutcomes(p, 1 - p, rng.random(n) < 0.6, w, kind == "count", None) for p in rng.random((2, n))]
    found = paired_bins._gaps((views[0], views[1]), tuple(v.width_bins(bins, "right") for v in views))  # type: ignore[arg-type]
    rows = [v.residual[:, None] * (np.ceil(v.p * bins).clip(1)[:, None] == np.arange(1, bins + 1)) for v in views]
    off = np.hstack(rows) - found.d
    assert np.allclose(found.d, np.average(np.hstack(rows), axis=0, weights=w))
    assert np.allclose(found.covariance, (off.T * (w if kind == "count" else w * w)) @ off / w.sum() ** 2)
    third = (w if kind == "count" else w**3) @ np.hstack(rows) ** 3 / w.sum() ** 3
    assert np.allclose(found.skewness * found.sigma**3, third)
    assert found.groups == np.inf


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("spec", ["ece", "adaece"])
def test_rows_that_are_all_right_and_nearly_all_sure_have_a_difference_with_a_width(spec: str) -> None:
    """Gaps of bins whose rows are all but certain: the cube of a standard error is 0 before it is."""
    z = np.random.default_rng(0).standard_normal((300, 3)) * 200
    found = calibcli.compare(*(calibcli.from_arrays(s * z, z.argmax(axis=1)) for s in (1, 1.5)), metrics=[spec])
    (one,) = found.estimates
    assert one.low is not None
    assert one.high is not None
    assert one.low < 0 < one.high


def skewed(rng: np.random.Generator, n: int) -> paired_bins.Gaps:
    """Two overconfident models whose few bins of many rows are nearly sure."""
    p = rng.beta(6, 0.5, n)
    hit = rng.random(n) < 1 - (1 - p) ** 0.5
    views = [BinaryOutcomes(c, 1 - c, hit, None, False, None) for c in (p, 1 - (1 - p) ** 1.5)]
    return paired_bins._gaps((views[0], views[1]), (views[0].width_bins(15, "right"), views[1].width_bins(15, "right")))


@pytest.mark.slow
def test_standard_errors_move_with_skewed_gaps() -> None:
    """Noise that leaves them where they are makes the difference spread 1.17 times as far as it does."""
    rng = np.random.default_rng(0)
    truth = skewed(rng, 400_000).d
    found = [skewed(rng, 200) for _ in range(600)]
    spread = float(np.std([g.difference(g.d) for g in found]))
    fixed, moving = [], []
    for g in found[:60]:
        values, vectors = np.linalg.eigh(g.covariance)
        noise = rng.standard_normal((800, len(g.d))) @ (vectors * np.sqrt(np.maximum(values, 0))).T
        fixed.append(g.difference(truth + noise).var())
        moving.append(g.difference(truth + noise, noise).var())
    assert np.sqrt(np.mean(moving)) == pytest.approx(spread, rel=0.08)
    assert np.sqrt(np.mean(fixed)) > 1.1 * spread


@pytest.mark.parametrize("ordered", [True, False], ids=["by confidence", "at random"])
def test_groups_that_meet_in_few_bins_have_no_interval_and_say_why(ordered: bool) -> None:
    """30 groups of 100 rows: sorted by confidence, two or three of them share a bin."""
    rng = np.random.default_rng(4)
    z = 2 * rng.standard_normal((3000, 10))
    y = drawn(softmax(z), rng)
    groups: Any = np.arange(3000) // 100
    if ordered:
        z, y = (a[np.argsort(softmax(z).max(1))] for a in (z, y))
    pair = [Predictions.of(a, y, groups=groups) for a in (z, 1.5 * z)]
    found = compare.scores(pair, ["a", "b"], ["ece", "nll"])
    ece, nll = found.estimates
    assert ece.value is not None
    assert nll.low is not None
    assert (ece.low is None) == ordered
    assert ("effective groups each" in ece.reason) == ordered


def test_effective_groups_of_a_bin() -> None:
    held = np.array([[2.0, 0, 1], [2, 0, 3], [0, 5, 3]])
    each = [sum(m**2) ** 2 / sum(m**4) for m in held.T]
    sigma = np.array([0.1, 0.3, 0.0])
    assert paired_bins._groups_per_bin(held, sigma) == pytest.approx(0.4 / (0.1 / each[0] + 0.3 / each[1]))
    assert paired_bins._groups_per_bin(held, 0 * sigma) == np.inf


@pytest.mark.regression("2.10")
def test_p_values_are_shown_as_what_they_can_be() -> None:
    z = np.random.default_rng(0).standard_normal((3000, 3)) * 3
    y = z.argmax(1)
    found = compare.scores([Predictions.of(z, y), Predictions.of(-z, y)], ["a", "b"], ["accuracy", "nll"])
    for row in found.tables[1].rows:
        assert float(row[2]) > 0  # type: ignore[arg-type]
    head = list(found.tables[1].columns)
    assert [number_format.of_table(head[2], [row[2]]) for row in found.tables[1].rows] == [["< 1e-4"]] * 2


def test_difference_of_a_model_with_itself() -> None:
    z = np.random.default_rng(0).standard_normal((600, 3)) * 2
    y = drawn(softmax(z), np.random.default_rng(1))
    e: Estimate
    for e in compare.scores([Predictions.of(z, y)] * 2, ["a", "b"]).estimates:
        assert e.value in (0.0, None)
        assert e.low is None or e.low < e.high  # type: ignore[operator]
    assert dataclasses.replace(WeightedMean(np.zeros(9), None, False, None)).bounds(0.05, -1, 1)[1] > 0
