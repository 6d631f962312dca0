"""`calib scale` through `main`: what it prints, saves and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli import calibrators
from calibcli.cli.app import main
from calibcli.scores.likelihood import fit_beta


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """val.npz and test.npz, overconfident by a factor of two, and same.npz, half of which is in val.npz."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((900, 4)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    z = (2 * z).astype(np.float32)
    np.savez(tmp_path / "val.npz", logits=z[:500], labels=y[:500])
    np.savez(tmp_path / "test.npz", logits=z[500:], labels=y[500:])
    np.savez(tmp_path / "same.npz", logits=z[400:600], labels=y[400:600])
    np.savez(tmp_path / "few.npz", logits=z[498:], labels=y[498:])
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str, str]:
    code = main([str(a) for a in args])
    out, err = capsys.readouterr()
    return code, out, err


def result(capsys: pytest.CaptureFixture[str], *args: str | Path) -> dict[str, Any]:
    code, out, err = run(capsys, "scale", *args, "--json")
    assert code == 0, err
    data: dict[str, Any] = json.loads(out)
    return data


def get(data: dict[str, Any], name: str, scope: str = "") -> dict[str, Any]:
    found: dict[str, Any] = next(e for e in data["estimates"] if (e["name"], e["scope"]) == (name, scope))
    return found


def test_test_rows_before_and_after(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = result(capsys, files / "val.npz", "--test", files / "test.npz")
    with np.load(files / "val.npz") as val:
        expected = fit_beta(val["logits"], val["labels"]).temperature
    assert get(data, "temperature")["value"] == pytest.approx(expected, rel=1e-9)
    assert get(data, "nll", "after")["value"] < get(data, "nll", "before")["value"]
    assert get(data, "nll", "after")["n"] == 400
    assert get(data, "accuracy", "after") | {"scope": "before"} == get(data, "accuracy", "before")
    assert "400 rows" in data["facts"]["after"]
    names = [e["name"] for e in data["estimates"] if e["scope"] == "before"]
    assert names == [e["name"] for e in data["estimates"] if e["scope"] == "after"]


def test_cross_fitting_without_test_rows(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    five = result(capsys, files / "val.npz", "-m", "nll")
    three = result(capsys, files / "val.npz", "-m", "nll", "--folds", "3")
    other = result(capsys, files / "val.npz", "-m", "nll", "--split-seed", "1")
    seeded = result(capsys, files / "val.npz", "-m", "nll", "--seed", "1")
    assert get(seeded, "nll", "after") == get(five, "nll", "after")  # the folds stay
    assert other["provenance"]["split"] == {"folds": 5, "seed": 1}
    assert main(["scale", str(files / "val.npz"), "--test", str(files / "test.npz"), "--split-seed", "1"]) == 2
    assert "--split-seed is of folds, and --test makes none" in capsys.readouterr().err
    ranked = result(capsys, files / "val.npz", "--test", files / "test.npz", "--method", "all", "--split-seed", "1")
    assert ranked["provenance"]["split"]["seed"] == 1
    assert "5 folds" in five["facts"]["after"]
    assert "3 folds" in three["facts"]["after"]
    values = {get(d, "nll", "after")["value"] for d in (five, three, other)}
    assert len(values) == 3
    assert [e["name"] for e in five["estimates"] if e["scope"] in ("before", "after")] == ["nll", "nll"]


def test_focal_temperature_and_save(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = files / "cal.safetensors"
    data = result(capsys, files / "val.npz", "--method", "focal-temperature", "--save", out, "-m", "nll")
    scaler = calibrators.load(out)
    assert scaler.spec == "focal_temperature"
    assert 1 / float(scaler.parameters["beta"]) == pytest.approx(get(data, "temperature")["value"])
    assert float(scaler.parameters["gamma"]) == pytest.approx(get(data, "gamma")["value"])
    assert len(scaler.metadata["sha256"]) == 64
    assert data["artefacts"] == {"calibrator": str(out)}
    assert {p["name"] for p in data["plots"]} >= {"gamma_profile", "t_gamma"}


def test_ranking(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = result(capsys, files / "val.npz", "--method", "temperature", "--method", "focal", "-m", "nll")
    table = next(t for t in data["tables"] if t["name"] == "ranking")
    methods = [row[1] for row in table["rows"]]
    assert sorted(methods) == ["focal", "none", "temperature"]
    nlls = [row[2] for row in table["rows"]]
    assert nlls == sorted(nlls)
    assert data["facts"]["method"] == methods[0]
    worst = get(data, "nll_difference", f"method={methods[-1]}")
    assert worst["low"] < worst["value"] < worst["high"]
    assert worst["value"] == pytest.approx(nlls[-1] - nlls[0])
    cross = result(capsys, files / "val.npz", "--method", "temperature", "-m", "nll")
    assert dict(zip(methods, nlls, strict=True))["temperature"] == pytest.approx(get(cross, "nll", "after")["value"])


def test_level_sets_the_interval(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = get(result(capsys, files / "val.npz", "-m", "nll", "--level", "0.99"), "temperature")
    narrow = get(result(capsys, files / "val.npz", "-m", "nll", "--level", "0.8"), "temperature")
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--test", "same.npz"], 4, "also in"),
        (["--test", "val.npz"], 4, "--folds 5"),
        (["--test", "test.npz", "--folds", "5"], 2, "pass one of them"),
        (["--method", "temprature"], 2, "did you mean 'temperature'"),
        (["--method", "temperature:objective=foo"], 2, "is not a choice"),
        (["--folds", "1"], 2, "from 2 to 1000"),
        (["--save", "cal.pkl"], 2, "use the suffix .safetensors"),
        (["--save", "none/cal.safetensors"], 2, "folder"),
        (["-m", "eec"], 2, "did you mean"),
        (["--multilabel"], 4, "both must be (N, L)"),
    ],
)
def test_refusals(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(files)
    got, out, err = run(capsys, "scale", "val.npz", *arguments)
    assert (got, out) == (code, "")
    assert message in err


def test_few_shared_rows_are_a_note(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = result(capsys, files / "val.npz", "--test", files / "few.npz", "-m", "nll")
    assert any("2 of 402 rows" in note for note in data["notes"])


def test_other_classes_are_refused(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(files / "five.npz", logits=np.random.default_rng(0).standard_normal((50, 5)), labels=np.arange(50) % 5)
    code, out, err = run(capsys, "scale", files / "val.npz", "--test", files / "five.npz")
    assert (code, out) == (4, "")
    assert "has 5 classes" in err


def test_degenerate_temperature_is_null_with_a_reason(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z = np.random.default_rng(0).standard_normal((200, 3))
    np.savez(files / "perfect.npz", logits=z, labels=z.argmax(1))
    data = result(capsys, files / "perfect.npz", "-m", "nll")
    temperature = get(data, "temperature")
    assert temperature["value"] is None
    assert temperature["reason"].startswith("separable")
    assert data["facts"]["temperature status"] == "separable"


@pytest.mark.slow
def test_two_runs_are_the_same_apart_from_time(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = [result(capsys, files / "val.npz", "--method", "focal_temperature") for _ in range(2)]
    for data in both:
        for key in ("started", "seconds"):
            data["provenance"].pop(key)
    assert both[0] == both[1]


def test_slices_before_and_after(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with np.load(files / "val.npz") as val:
        np.savez(files / "by.npz", logits=val["logits"], labels=val["labels"], site=np.arange(500) % 2)
    data = result(capsys, files / "by.npz", "--by", "site")
    for site in (0, 1):
        before, after = (get(data, "nll", f"site={site} {phase}") for phase in ("before", "after"))
        assert before["n"] == after["n"] == 250
        assert after["value"] < before["value"]


@pytest.mark.regression
@pytest.mark.parametrize(
    ("names", "said"), [(["weight", "bias"], True), (["0.weight", "a"], True), (["a", "b"], False)]
)
def test_weights_of_a_network_are_not_taken_for_scores(
    names: list[str], said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "m.npz", **dict(zip(names, (np.ones((3, 4)), np.ones(3)), strict=True)))
    for command in ("scale", "metrics"):
        assert main([command, str(tmp_path / "m.npz")]) == 4
        assert ("is a checkpoint, not recorded outputs" in capsys.readouterr().err) == said


@pytest.mark.regression
def test_the_picture_says_which_bins_it_joins(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", str(files / "val.npz"), "-q"]) == 0
    assert "each bar joins 2 of the 15 bins of the calibration error" in capsys.readouterr().out
    assert main(["scale", str(files / "val.npz"), "-v"]) == 0
    shown = capsys.readouterr()
    assert "each bar joins" not in shown.out
    assert "two estimates of one saving" in shown.err


def test_a_missing_folder_is_found_before_the_fit(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "scale", files / "none.npz", "--save", files / "none" / "t.safetensors")
    assert (code, out) == (2, "")
    assert "mkdir -p" in err
