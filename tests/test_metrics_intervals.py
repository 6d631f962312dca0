"""Intervals: their formulas against scipy, large-n forms against exact ones, and a short simulation of coverage."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

import calibcli
from calibcli import metrics
from calibcli.metrics import METRICS, smooth_ece, temperature_gain
from calibcli.metrics.binned import mean_absolute_deviation
from calibcli.metrics.discrimination import harmonic
from calibcli.metrics.intervals import WeightedMean
from calibcli.metrics.registry import Sample
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.metrics.smooth_ece import laplace_form
from calibcli.scores.columns import columns
from calibcli.scores.likelihood import cross_fit_beta
from calibcli.scores.predictions import Predictions


def logits(n: int, k: int = 4, seed: int = 0, sharpen: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) * 2
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    return z * sharpen, (p.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)


@pytest.mark.parametrize(("n", "p"), [(1, 0.3), (40, 0.01), (40, 0.4), (1000, 0.001), (1000, 0.995), (300, 0.5)])
def test_mean_absolute_deviation_of_a_binomial(n: int, p: float) -> None:
    x = np.arange(n + 1)
    exact = float(stats.binom.pmf(x, n, p) @ np.abs(x - n * p))
    assert mean_absolute_deviation(np.array([float(n)]), np.array([p]))[0] == pytest.approx(exact, rel=2e-3)


def test_standard_error_from_groups_is_that_of_group_sums() -> None:
    rng = np.random.default_rng(0)
    values, groups = rng.random(60), np.arange(60) // 5
    rows = WeightedMean(values, None, False, groups)
    sums = np.array([(values - values.mean())[groups == g].sum() for g in range(12)])
    assert rows.se == pytest.approx(math.sqrt(sums @ sums * 12 / 11) / 60)
    assert WeightedMean(values, None, False, None).se == pytest.approx(stats.sem(values))
    counts = np.arange(60) % 3 + 1.0
    repeated = WeightedMean(np.repeat(values, counts.astype(int)), None, False, None)
    assert WeightedMean(values, counts, True, None).se == pytest.approx(repeated.se)


def test_repeated_rows_in_groups_widen_every_interval() -> None:
    z, y = logits(600)
    alone = {
        e.name: e
        for e in metrics.measure(Predictions.of(z, y), ["accuracy", "nll", "confidence_gap", "ece", "cox_slope"])
    }
    copies = Predictions.of(np.repeat(z, 4, axis=0), np.repeat(y, 4), groups=np.repeat(np.arange(600), 4))
    for e in metrics.measure(copies, list(alone)):
        one = alone[e.name]
        assert e.value == pytest.approx(one.value, rel=1e-6)
        if e.name == "ece":  # the sharp bounds are for independent rows
            assert e.low <= one.low
            assert e.high == pytest.approx(one.high, rel=0.05)
            continue
        assert e.high - e.low == pytest.approx(one.high - one.low, rel=0.12), e.name  # type: ignore[operator]


def test_binned_forms_of_large_inputs_agree_with_the_exact_ones() -> None:
    z, y = logits(6000, sharpen=1.2)
    view = Sample.of(columns(Predictions.of(z, y))).top
    exact = smooth_ece.Smoothed(view.p, view.residual / view.n, exact=10_000)
    binned = smooth_ece.Smoothed(view.p, view.residual / view.n, exact=0)
    for sigma in (0.01, 0.05, 0.3):
        assert binned.ece(sigma) == pytest.approx(exact.ece(sigma), rel=1e-5)
    assert binned.fixed_point == pytest.approx(exact.fixed_point, rel=1e-5)


def test_running_sums_of_the_kernel_are_its_double_sum() -> None:
    rng = np.random.default_rng(1)
    p, r = np.sort(rng.random(300)), rng.normal(size=300)
    for scale in (0.002, 0.05, 0.4, 10.0):
        wanted = float(r @ np.exp(-np.abs(p[:, None] - p) / scale) @ r)
        assert laplace_form(p, r, scale) == pytest.approx(wanted, rel=1e-9)


def test_temperatures_of_folds_from_one_expansion_are_the_fitted_ones() -> None:
    z, y = logits(8000)
    predictions = Predictions.of(z, y)
    found, temperatures, *_ = temperature_gain.gains(predictions)
    wanted, fits, _ = cross_fit_beta(z, y, temperature_gain.folds_of(predictions))
    np.testing.assert_allclose(temperatures, [fit.temperature for fit in fits], rtol=1e-6)
    np.testing.assert_allclose(found, wanted, atol=1e-7)


def test_temperatures_of_folds_in_float32_and_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = logits(5000)
    z = z.astype(np.float32)
    wanted, fits, _ = cross_fit_beta(z, y, temperature_gain.folds_of(Predictions.of(z, y)))
    monkeypatch.setattr(temperature_gain, "WIDENED", 0)
    found, temperatures, *_ = temperature_gain.gains(Predictions.of(z, y))
    np.testing.assert_allclose(temperatures, [fit.temperature for fit in fits], rtol=1e-5)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    right = temperature_gain.gains(
        Predictions.of(z, z.argmax(axis=1))
    )  # no row is wrong: there is nothing to expand about
    wanted, _, _ = cross_fit_beta(z, z.argmax(axis=1), temperature_gain.folds_of(Predictions.of(z, y)))
    np.testing.assert_array_equal(right[0], wanted)


@pytest.mark.parametrize("n", [400, 30_000])
def test_temperature_gain_does_not_depend_on_the_order_of_classes(n: int) -> None:
    rng = np.random.default_rng(5)
    z = 3 * rng.normal(size=(n, 4))
    y = (np.exp(z / 3) / np.exp(z / 3).sum(1, keepdims=True)).cumsum(1).__gt__(rng.random((n, 1))).argmax(1)
    order = np.array([2, 0, 3, 1])
    (plain,) = metrics.measure(Predictions.of(z, y), ["temperature_gain"])
    (renamed,) = metrics.measure(Predictions.of(z[:, order], np.argsort(order)[y]), ["temperature_gain"])
    assert renamed.value == pytest.approx(plain.value, abs=1e-9)


def test_harmonic_numbers_are_those_of_the_digamma_function() -> None:
    from scipy.special import digamma

    n = np.array([0.0, 0.3, 1.0, 3.7, 10.0, 100.0, 1e6])
    np.testing.assert_allclose(harmonic(n), digamma(n + 1) + np.euler_gamma, atol=1e-12)


def test_temperature_gain_of_many_rows_uses_some(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = logits(9000)
    (whole,) = metrics.measure(Predictions.of(z, y), ["temperature_gain"])
    monkeypatch.setattr(temperature_gain, "SCORES", 100)
    (part,) = metrics.measure(Predictions.of(z, y), ["temperature_gain"])
    assert part.n == 5000
    assert "5000 of 9000 rows" in part.how
    assert part.low < whole.value < part.high  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["even", "tied", "saturated", "one"])
@pytest.mark.parametrize("bins", [1, 15, 100])
def test_equal_mass_of_rows_is_that_of_rows_with_weights_of_one(kind: str, bins: int) -> None:
    rng = np.random.default_rng(2)
    n = 40_000
    p = {
        "even": rng.random(n),
        "tied": np.round(rng.random(n), 2),
        "saturated": 1 - np.exp(-60 * rng.random(n)),
        "one": np.ones(n),
    }[kind]
    hit = rng.random(n) < p * p
    for method in ("split-merge", "whole"):
        found = BinaryOutcomes(p, 1 - p, hit, None, False, None).mass_bins(bins, method)
        want = BinaryOutcomes(p, 1 - p, hit, np.ones(n), True, None).mass_bins(bins, method)
        variances = ("weight_variance", "gap_variance", "null_variance")
        for name in ("lower", "upper", "rows", "weight", "p", "hit", "weighted_gap", *variances):
            np.testing.assert_allclose(
                getattr(found, name), getattr(want, name), rtol=1e-9, atol=1e-12, err_msg=f"{method} {name}"
            )


def test_intervals_do_not_move_the_estimate_with_level() -> None:
    z, y = logits(500)
    narrow = metrics.measure(Predictions.of(z, y), ["all"], level=0.8)
    wide = metrics.measure(Predictions.of(z, y), ["all"], level=0.99)
    for a, b in zip(narrow, wide):
        assert a.value == b.value
        if a.high is not None and a.high < 1:
            assert b.high > a.high, a.name  # type: ignore[operator]
        if a.low is not None and a.low > 0:
            assert b.low < a.low, a.name  # type: ignore[operator]


def test_weights_of_one_change_nothing() -> None:
    z, y = logits(300)
    plain = metrics.measure(Predictions.of(z, y), ["all"])
    for kind in ("sampling", "count"):
        weighted = metrics.measure(Predictions.of(z, y, weights=np.ones(300), weight_kind=kind), ["all"])
        for a, b in zip(plain, weighted):
            for end in ("value", "low", "high", "null", "null_high"):
                one, other = getattr(a, end), getattr(b, end)
                assert (one is None) == (other is None), (a.name, end)
                assert one is None or other == pytest.approx(one, rel=1e-6, abs=1e-12), (a.name, end)


def test_scale_of_sampling_weights_does_not_matter_and_uneven_ones_widen() -> None:
    z, y = logits(600)
    w = np.random.default_rng(0).random(600) + 0.05
    specs = [n for n, e in metrics.METRICS.entries.items() if n != "temperature_gain" and not e.traits.two_classes]
    one = metrics.measure(Predictions.of(z, y, weights=w), specs)
    ten = metrics.measure(Predictions.of(z, y, weights=10 * w), specs)
    equal = {e.name: e for e in metrics.measure(Predictions.of(z, y), specs)}
    for a, b in zip(one, ten):
        assert b.value == pytest.approx(a.value, rel=1e-9)
        assert a.high is None or b.high == pytest.approx(a.high, rel=1e-9)
        other = equal[a.name]
        if a.name in ("accuracy", "nll", "ece", "smece", "mmce"):
            assert a.high - a.low > other.high - other.low, a.name  # type: ignore[operator]


def benchmark() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "coverage.py"
    sys.path.append(str(path.parent))  # last, as there is a package of this name
    spec = importlib.util.spec_from_file_location("calib_coverage", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FAST = ["accuracy", "nll", "brier", "confidence_gap", "nll_wrong", "ece2_debiased", "ece", "ece_l2", "adaece", "oce"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["calibrated", "overconfident", "saturated"])
def test_coverage_of_200_replications(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/coverage.py in short; 200 replications see 95 % as 90 to 99 %."""
    module: Any = benchmark()
    monkeypatch.setattr(module, "POPULATION", 60_000)
    found = module.simulate(model, 500, 200, FAST)
    for spec, row in found.items():
        assert row["given"] > 0.9, spec
        if spec in module.TWO_SIDED:
            most = 1.0 if spec.startswith("nll") else 0.99  # unseen rows may cost much: longer above
            assert 0.9 <= row["both"] <= most, (spec, row["both"])
        else:
            assert min(row["low"], row["high"]) >= 0.91, (spec, row)
            assert all(row.get(end, 0) <= 2.5 for end in ("low_ratio", "high_ratio")), (spec, row)


def test_estimates_are_frozen_data() -> None:
    z, y = logits(100)
    (e,) = metrics.measure(Predictions.of(z, y), ["ece"])
    assert dataclasses.asdict(e)["name"] == "ece"


@pytest.mark.parametrize("seed", range(20))
def test_a_weighted_mean_lies_among_its_values(seed: int) -> None:
    """Rows that are all correct have an accuracy of 1 whatever they weigh, so that a minimum of 1 does not FAIL."""
    rng = np.random.default_rng(seed)
    z, y = np.tile([5.0, 0.0, 0.0], (67, 1)), np.zeros(67, int)
    (accuracy,) = metrics.measure(
        Predictions.of(z, y, weights=rng.pareto(3.6, 67) + 1, weight_kind="sampling"), ["accuracy"]
    )
    assert accuracy.value == accuracy.high == 1.0


@pytest.mark.one_in(3)
@pytest.mark.regression
@pytest.mark.parametrize("largest", [1, 3, 30, 300, 10_000])
@pytest.mark.parametrize("others", [1, 11, 60])
def test_one_group_or_weight_that_holds_most_rows_ends_in_no_error(largest: int, others: int) -> None:
    """Whatever the ratio of sizes, each number has its interval, or a reason; the gate is NOT RUN below 10 groups."""
    rng = np.random.default_rng(0)
    sizes = np.array([20 * max(largest // 20, 1), *[20] * others])
    p = rng.random(sizes.sum())
    y = (rng.random(len(p)) < p).astype(np.int64)
    grouped = calibcli.measure(p, y, *METRICS.entries, group=np.repeat(np.arange(len(sizes)), sizes))
    weights = np.ones(len(p))
    weights[: others // 2 + 1] = float(largest) ** 2
    weighted = calibcli.measure(p, y, *METRICS.entries, weights=weights)
    for one in (*grouped.estimates, *weighted.estimates):
        assert one.reason or (one.low is not None and one.low <= one.high), one.name
    effective = (sizes.astype(float) ** 2).sum() ** 2 / (sizes.astype(float) ** 4).sum()
    assert (grouped["ece"].low is None) == (effective < 10)
    judged = calibcli.check(p, y, max={"ece": 0.9}, group=np.repeat(np.arange(len(sizes)), sizes))
    assert judged.checks[0].outcome == ("not_run" if effective < 10 else "pass")


@pytest.mark.regression
def test_the_null_level_of_a_squared_error_is_on_its_scale() -> None:
    """The 95 % quantile of squares is the square of the quantile; their mean is at least the square of the mean."""
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(500, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    squared, root = (calibcli.measure(z, y, spec).estimates[0] for spec in ("mmce:square=true", "mmce"))
    assert squared.value == pytest.approx(root.value**2)  # type: ignore[operator]
    assert squared.null_high == pytest.approx(root.null_high**2, rel=0.02)  # type: ignore[operator]
    assert root.null**2 < squared.null < squared.null_high  # type: ignore[operator]
