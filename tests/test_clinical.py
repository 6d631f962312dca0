"""Risk models of two classes: calibration in the large, net benefit, PPV, the integrated calibration index, names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import script

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import UsageError
from calibcli.metrics import METRICS
from calibcli.metrics.recalibration import CurveDistance
from calibcli.metrics.reliability import BinaryOutcomes

NAMES = {
    "citl": "intercept calibration_intercept cal_intercept calibration-in-the-large cal_in_the_large cil",
    "cox_slope": "slope calibration_slope cal_slope logistic_slope",
    "cox_intercept": "logistic_intercept",
    "observed_expected": "oe O:E o:e O/E oe_ratio o_e observed_expected_ratio observed_to_expected calibration_ratio",
    "auc": "auroc AUROC roc_auc roc_auc_score rocauc roc c_statistic c-index cstat concordance binary_auroc",
    "brier": "brier_score brier_score_loss mse brier_loss neg_brier_score quadratic_score",
    "nll": "log_loss logloss cross_entropy CE nll_loss negative_log_likelihood neg_log_loss log_score",
    "accuracy": "acc accuracy_score top1 top_1_accuracy multiclass_accuracy",
    "ece": "expected_calibration_error calibration_error l1_calibration_error",
    "adaece": "ace adaptive_calibration_error adaptive_ece",
    "ici": "integrated_calibration_index Eavg e_avg mean_absolute_calibration_error",
    "e50": "median_calibration_error",
    "emax": "E_max",
    "net_benefit": "nb dca decision_curve decision_curve_analysis clinical_utility",
    "sensitivity": "recall recall_score TPR true_positive_rate hit_rate sens",
    "ppv": "precision precision_score positive_predictive_value prec",
}
"""Names in rms, val.prob, CalibrationCurves, dcurves, scikit-learn, torchmetrics, TRIPOD and papers."""


DISTANCES = {"ici": None, "e50": 0.5, "e90": 0.9, "emax": 1.0}


def clinic(n: int = 1200, seed: int = 0) -> tuple[Any, Any]:
    """Risks whose log-odds are N(-2, 1), too low and too extreme."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(-2, 1, n)
    return 1 / (1 + np.exp(-odds)), (rng.random(n) < 1 / (1 + np.exp(0.2 - 0.75 * odds))).astype(int)


def measured(p: Any, y: Any, *specs: str, **how: Any) -> Any:
    return calibcli.measure(p, y, *specs, kind="probabilities", **how)


def test_names_of_other_tools_lead_to_the_metric() -> None:
    pairs = [(name, metric) for metric, names in NAMES.items() for name in names.split()]
    assert len(pairs) >= 60
    for name, metric in pairs:
        with pytest.raises(UsageError) as error:
            METRICS.choose(name)
        assert error.value.fix == f"did you mean '{metric}'?", name
        assert f"unknown metric '{name}'" in error.value.problem


def test_net_benefit_is_that_by_hand() -> None:
    p, y = clinic()
    w = np.random.default_rng(1).uniform(0.5, 2, len(y))
    for at in (0.02, 0.1, 0.35, 0.6):
        spec = f"net_benefit:at={at:g}"
        for weights in (None, w):
            share = np.ones(len(y)) if weights is None else w
            hits = math.fsum(share[(p >= at) & (y == 1)])
            alarms = math.fsum(share[(p >= at) & (y == 0)])
            by_hand = (hits - alarms * at / (1 - at)) / math.fsum(share)
            e = measured(p, y, spec, weights=weights)[spec]
            assert e.value == pytest.approx(by_hand, abs=1e-12)
            assert e.low < e.value < e.high
            treat_all = (math.fsum(share[y == 1]) - math.fsum(share[y == 0]) * at / (1 - at)) / math.fsum(share)
            gain = measured(p, y, f"{spec},against=all", weights=weights)[f"{spec},against=all"]
            assert gain.value == pytest.approx(by_hand - treat_all, abs=1e-12)
            assert gain.low < gain.value < gain.high
    everybody = measured(p, y, "net_benefit:at=0.0001")["net_benefit:at=0.0001"].value
    assert everybody == pytest.approx(y.mean() - (1 - y.mean()) * 0.0001 / 0.9999, abs=1e-12)


def test_sensitivity_and_ppv_have_exact_intervals() -> None:
    from scipy.stats import beta

    p, y = clinic()
    found = measured(p, y, "sensitivity:at=0.2", "ppv:at=0.2")
    acts = p >= 0.2
    for spec, hits, n in (("sensitivity:at=0.2", (acts & y), y), ("ppv:at=0.2", (acts & y), acts)):
        k, m = int(hits.sum()), int(n.sum())
        e = found[spec]
        assert (e.value, e.n) == (k / m, m)
        assert (e.low, e.high) == pytest.approx((beta.ppf(0.025, k, m - k + 1), beta.ppf(0.975, k + 1, m - k)))


def test_citl_says_which_way_and_holds_the_slope() -> None:
    """Risks that are too low by a have citl a; the joint intercept of the same rows has the other sign."""
    p, y = clinic(20_000)
    found = measured(p, y, "citl", "cox_intercept", "observed_expected")
    assert found["citl"].low > 0 > found["cox_intercept"].high
    assert found["observed_expected"].low > 1
    odds = np.log(p / (1 - p)) + found["citl"].value
    moved = measured(1 / (1 + np.exp(-odds)), y, "citl", "confidence_gap")
    assert moved["citl"].value == pytest.approx(0, abs=1e-7)
    assert moved["confidence_gap"].value == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("how", ["weights", "groups"])
def test_citl_and_the_gap_exclude_the_same_truth(how: str) -> None:
    """If the interval of mean p - y leaves out 0, so does that of citl, whose rows not drawn cost less than 1."""
    found_off = 0
    for seed in range(12):
        p, y = clinic(1000, seed)
        design = {"weights": np.random.default_rng(seed).uniform(0.2, 2, 1000)} if how == "weights" else {}
        design |= {"group": np.arange(1000) // 5} if how == "groups" else {}
        found = measured(p, y, "citl", "confidence_gap", **design)
        sides = [(found[m].low > 0) - (found[m].high < 0) for m in ("citl", "confidence_gap")]
        assert sides[1] in (0, -sides[0])
        found_off += sides[1] != 0
    assert found_off >= 4


def test_citl_of_too_few_events_has_its_reason() -> None:
    p = np.full(50, 0.1)
    p[:25] = 0.2
    e = measured(p, np.zeros(50, int), "citl")["citl"]
    assert e.value is None or not math.isfinite(e.value)
    assert "no row, or every one, is the event" in e.reason
    one = measured(p, np.arange(50) == 3, "citl")["citl"]
    assert one.value < 0
    assert one.low is None
    assert one.high > one.value
    assert "so few rows" in one.reason


def test_level_if_calibrated_is_that_of_refitted_draws() -> None:
    """Labels drawn from the probabilities give distances whose mean and 95 % quantile the level has foretold."""
    p, _ = clinic(400)
    rng = np.random.default_rng(5)
    told = measured(p, rng.random(400) < p, *DISTANCES)
    drawn = {metric: list[float]() for metric in DISTANCES}
    for _ in range(200):
        y = rng.random(400) < p
        view = BinaryOutcomes(p, 1 - p, y, None, False, None)
        for metric, quantile in DISTANCES.items():
            drawn[metric].append(CurveDistance(view, quantile).value)
    for metric, values in drawn.items():
        assert told[metric].null == pytest.approx(np.mean(values), rel=0.2), metric
        assert told[metric].null_high == pytest.approx(np.quantile(values, 0.95), rel=0.3), metric
    off, y = clinic(1200)
    assert measured(off, y, "ici")["ici"].value > measured(off, y, "ici")["ici"].null_high


def test_merged_parts_are_within_their_error() -> None:
    specs = ["citl", *(f"{m}:at={at}" for m in ("net_benefit", "sensitivity", "ppv") for at in (0.1, 0.337))]
    p, y = clinic(2000, 3)
    whole = measured(p, y, *specs)
    parts = [calibcli.Accumulator(kind="probabilities").update(p[i::2], y[i::2], part=str(i)) for i in (0, 1)]
    merged = parts[0].merge(parts[1]).result(*specs)
    for spec in specs:
        error = merged[spec].detail.get("cell_error", 0.0)
        assert abs(merged[spec].value - whole[spec].value) <= error + 1e-12, spec
        assert error < 0.05


def test_of_more_classes_they_are_refused_by_name() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(60, 3)), rng.integers(0, 3, 60)
    for spec in ("net_benefit", "sensitivity", "ppv"):
        with pytest.raises(UsageError, match="is for two classes, these are 3"):
            calibcli.measure(z, y, spec)
    with pytest.raises(UsageError, match="decision is for two classes, this is 3 classes"):
        calibcli.measure(z, y, curve="decision")
    with pytest.raises(UsageError, match="more than 0 and less than 1"):
        calibcli.measure(z[:, :2], y % 2, "ppv:at=1")


def test_decision_curve_draws_the_metric() -> None:
    p, y = clinic()
    result = measured(p, y, "citl", curve="decision")
    (plot,) = [plot for plot in result.plots if plot.name == "decision"]
    band, model, everybody, nobody = plot.curves
    assert [c.label for c in plot.curves] == ["95 % at each", "model", "treat all", "treat none"]
    for at in (0.05, 0.1, 0.3):
        i = int(np.argmin(np.abs(np.asarray(model.x) - at)))
        spec = f"net_benefit:at={at:g}"
        assert model.y[i] == pytest.approx(measured(p, y, spec)[spec].value, abs=1e-12)
        if everybody.y[i] is not None:
            assert everybody.y[i] == pytest.approx(y.mean() - (1 - y.mean()) * at / (1 - at), abs=1e-12)
        assert nobody.y[i] == 0
        e = measured(p, y, spec)[spec]
        assert (band.low[i], band.high[i]) == pytest.approx((e.low, e.high), abs=1e-12)
    said = result.facts["better than acting on all or on none"]
    low, high, sure, surest = (float(word.rstrip(",")) for word in said.split() if word[0].isdigit())
    inside = [
        m > max(-1 if a is None else a, 0)
        for t, m, a in zip(model.x, model.y, everybody.y, strict=True)
        if low <= t <= high
    ]
    assert all(inside)
    assert 0.05 < low < sure < surest < high < 0.5
    for at, both in ((sure, True), (surest, True), (round(sure - 0.01, 2), False), (round(surest + 0.01, 2), False)):
        specs = [f"net_benefit:at={at:g}{other}" for other in ("", ",against=all")]
        assert all(e.low > 0 for e in measured(p, y, *specs).estimates) is both


def test_a_clinician_reads_it_off_the_first_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p, y = clinic()
    rows = "".join(f"{a:.6f},{b}\n" for a, b in zip(p, y, strict=True))
    (tmp_path / "risks.csv").write_text(f"p_death,death\n{rows}", encoding="utf-8")
    file = str(tmp_path / "risks.csv")
    assert main(["metrics", file]) == 0
    screen = capsys.readouterr().out
    assert "P(death) too low" in screen
    assert "better than acting on all or on none: at thresholds 0." in " ".join(screen.split())
    shown = {line.split()[0]: line for line in screen.splitlines() if line}
    assert {"citl", "observed_expected", "cox_slope"} <= shown.keys()
    assert "cox_intercept" not in shown
    assert main(["metrics", file, "--curve", "decision", "-o", str(tmp_path / "curve.svg")]) == 0
    assert "Net benefit of acting on P(death)" in capsys.readouterr().out
    assert (tmp_path / "curve.svg").stat().st_size > 10_000
    assert main(["check", file, "--min", "net_benefit:at=0.1=0.05", "--max", "citl=0.6"]) == 0
    assert main(["metrics", file, "--partial", str(tmp_path / "part.npz"), "-q"]) == 0
    capsys.readouterr()
    assert main(["merge", str(tmp_path / "part.npz"), "-m", "citl", "-m", "net_benefit:at=0.1"]) == 0
    assert "\nnet_benefit:at=0.1" in capsys.readouterr().out  # what was asked for is shown
    assert main(["check", file, "--max", "ici=0.1", "--json"]) != 0  # it has no bound
    assert "NOT RUN" in capsys.readouterr().out


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return script("clinical")


@pytest.mark.parametrize("name", ["network, class 3", "made, too low"])
def test_intervals_of_citl_cover(benchmark: Any, name: str) -> None:
    share, _ = benchmark.coverage(name, 300, 60)["citl"]
    assert share >= 0.87
