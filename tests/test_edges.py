"""Rows at the edges of what a bound or a fit can take: all alike, all wrong, too large, impossible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError
from calibcli.core.result import Result


def constant(n: int, confidence: float, right: int, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """n rows of one confidence in class 0, `right` of them right."""
    p = np.full((n, k), (1 - confidence) / (k - 1))
    p[:, 0] = confidence
    return np.log(p), np.where(np.arange(n) < right, 0, 1)


@pytest.mark.parametrize(("metric", "right"), [("uce", 140), ("oce", 300), ("overconfidence_error", 300)])
def test_gaps_of_one_sign_are_no_proof_that_the_other_has_none(metric: str, right: int) -> None:
    z, y = constant(300, 0.9, right)
    estimate = calibcli.measure(z, y, metric)[metric]
    assert estimate.value == 0
    assert estimate.high > 0.008


def test_rows_that_are_all_alike_bound_no_mean_at_its_value() -> None:
    z, y = constant(300, 0.9, 0)
    estimate = calibcli.measure(z, y, "nll")["nll"]
    assert estimate.high > 1.01 * estimate.value


def test_scores_that_no_temperature_changes_have_no_gain_to_bound() -> None:
    y = np.arange(300) % 3
    estimate = calibcli.measure(np.full((300, 3), 1 / 3), y, "temperature_gain")["temperature_gain"]
    assert (estimate.low, estimate.high) == (None, None)
    assert "no temperature" in estimate.reason


def test_a_largest_distance_from_zero_is_judged_on_both_sides() -> None:
    z, y = constant(500, 0.6, 500)
    assert calibcli.check(z, y, max={"confidence_gap": 0.1}).verdict == "fail"


def test_an_interval_that_is_too_short_for_alpha_judges_nothing(tmp_path: Path, capsys: Any) -> None:
    z, y = constant(400, 0.95, 390)
    np.savez(tmp_path / "a.npz", logits=z, labels=y)
    assert main(["metrics", str(tmp_path / "a.npz"), "-q", "-o", str(tmp_path / "r.json")]) == 0
    capsys.readouterr()
    rules = ["--max", "ece=0.3", "--min", "accuracy=0.5", "--json", "-q"]
    assert main(["check", str(tmp_path / "r.json"), *rules]) == 0
    assert main(["check", str(tmp_path / "r.json"), *rules[:4], "--alpha", "0.001", "--json", "-q"]) == 5
    out = capsys.readouterr().out
    last = Result.from_json(out[out.rindex('{\n  "command"') :])
    assert {c.outcome for c in last.checks} == {"not_run"}


@pytest.mark.parametrize("factor", [1e38, 1e74])
def test_huge_scores_are_measured(factor: float) -> None:
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((300, 3)) * factor, rng.integers(0, 3, 300)
    assert calibcli.measure(z, y, "accuracy", "temperature_gain")["accuracy"].value is not None
    with pytest.raises(InputError, match="cannot be logits"):  # of 1e300 the search for a temperature did not end
        calibcli.measure(z / factor * 1e300, y)


@pytest.mark.parametrize("method", ["vector", "bcts", "matrix", "dirichlet"])
def test_impossible_labels_are_refused_before_a_fit(method: str) -> None:
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((200, 3)), rng.integers(0, 3, 200)
    z[np.arange(5), y[:5]] = -np.inf
    with pytest.raises(InputError, match="probability zero"):
        calibcli.fit_scaler(z, y, method, kind="logits")
    with pytest.raises(InputError, match="too large"):
        calibcli.fit_scaler(rng.standard_normal((200, 3)) * 1e30, y, method)


@pytest.mark.parametrize(
    ("labels", "fix"), [((-1, 1), "--classes=-1,1"), ((1, 2), "--label-base 1")], ids=["signs", "from one"]
)
def test_two_classes_by_other_numbers_get_the_option_that_reads_them(
    labels: tuple[int, int], fix: str, tmp_path: Path, capsys: Any
) -> None:
    rng = np.random.default_rng(0)
    y = rng.choice(labels, 200)
    rows = "".join(f"{label},{p:.4f}\n" for label, p in zip(y, rng.random(200), strict=True))
    (tmp_path / "a.csv").write_text("y_true,prob\n" + rows)
    assert main(["metrics", str(tmp_path / "a.csv"), "-q"]) == 4
    assert fix in capsys.readouterr().err
    assert main(["metrics", str(tmp_path / "a.csv"), "-q", *fix.split()]) == 0
