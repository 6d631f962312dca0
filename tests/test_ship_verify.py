"""`calib verify`: what is deployed against its calibrator, and the gate's verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError
from calibcli.ship.target import fed

SAMPLES = Path(__file__).parent.parent / "sample_data"
TEST, VALIDATION, MODEL = (str(SAMPLES / n) for n in ("test.npz", "validation.npz", "model.safetensors"))


@pytest.fixture
def calibrator(tmp_path: Path) -> str:
    path = tmp_path / "t.safetensors"
    calibcli.save_scaler(calibcli.fit_scaler(VALIDATION).scaler, path)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "name", "trust"),
    [
        ("json", "c.json", False),
        ("pt2", "c.pt2", True),
        ("torchscript", "c.pt", True),
        pytest.param("onnx", "c.onnx", False, marks=pytest.mark.extra),
    ],
)
def test_a_calibrator_of_its_own(target: str, name: str, trust: bool, calibrator: str, tmp_path: Path) -> None:
    calibcli.export(calibrator, target, save=tmp_path / name, data=TEST)
    found = calibcli.verify(tmp_path / name, calibrator, TEST, max={"ece": 0.05}, trust=trust)
    assert found["max_dp"].value <= found.facts["limit"] == 1e-6
    assert found.facts["predicted classes changed"] == 0
    assert (found.verdict, found.facts["verdict before"], found.facts["verdict after"]) == (
        "pass",
        "inconclusive",
        "pass",
    )
    [row] = found.tables[0].rows
    assert row[:4] == ["ece <= 0.05", "", "inconclusive", "pass"] or row[2:4] == ["inconclusive", "pass"]


def test_a_folded_model(calibrator: str, tmp_path: Path) -> None:
    made = tmp_path / "made.safetensors"
    calibcli.export(calibrator, "checkpoint", model=MODEL, save=made)
    rows = f"{SAMPLES / 'digits.npz'}#test"
    found = calibcli.verify(made, calibrator, rows, before=MODEL)
    assert found.verdict == "pass"
    assert found["max_dp"].n == 997
    wrong = calibcli.verify(MODEL, calibrator, rows, before=MODEL)  # nobody deployed it
    assert wrong.verdict == "fail"
    assert wrong.exit_code == 1
    assert wrong["max_dp"].value > 0.1
    assert "does not give what temperature gives" in str(wrong.facts["headline"])


def test_outputs_of_a_server(calibrator: str, tmp_path: Path) -> None:
    """A file of probabilities: right, of another temperature, of other rows, of too few."""
    one = calibcli.fit_scaler(VALIDATION).scaler
    with np.load(TEST) as data:
        z, y = data["logits"], data["labels"]
    cases: dict[str, tuple[Any, Any]] = {
        "right": (one.predict_proba(z), y),
        "cold": (one.predict_proba(z * 1.01), y),
        "other": (one.predict_proba(z)[::-1], y[::-1]),
        "few": (one.predict_proba(z)[:-1], y[:-1]),
    }
    for name, (p, labels) in cases.items():
        np.savez(tmp_path / f"{name}.npz", probabilities=p.astype(np.float32), labels=labels)
    assert calibcli.verify(tmp_path / "right.npz", calibrator, TEST).verdict == "pass"
    cold = calibcli.verify(tmp_path / "cold.npz", calibrator, TEST)
    expected = np.abs(one.predict_proba(z * 1.01).astype(np.float32) - one.predict_proba(z)).max()
    assert cold["max_dp"].value == pytest.approx(expected, rel=1e-4)
    assert cold.verdict == "fail"
    assert calibcli.verify(tmp_path / "cold.npz", calibrator, TEST, tolerance=0.1).verdict == "pass"
    with pytest.raises(InputError, match="other labels"):
        calibcli.verify(tmp_path / "other.npz", calibrator, TEST)
    with pytest.raises(InputError, match="996 rows"):
        calibcli.verify(tmp_path / "few.npz", calibrator, TEST)


def test_the_command(calibrator: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = str(tmp_path / "c.json")
    assert main(["export", calibrator, "--to", "json", "--data", TEST, "-o", made, "-q"]) == 0
    capsys.readouterr()
    assert main(["verify", made, "--with", calibrator, "--data", TEST, "--max", "ece=0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["checks"][0]["outcome"] == "pass"
    assert {t["name"] for t in found["tables"]} == {"verdicts"}
    assert main(["verify", TEST, "--with", calibrator, "--data", TEST, "-q"]) == 1
    assert main(["verify", str(tmp_path / "none.onnx"), "--with", calibrator, "--data", TEST, "-q"]) in (2, 4)
    np.save(tmp_path / "bare.npy", np.load(TEST)["logits"])
    argv = ["verify", made, "--with", calibrator, "--data", str(tmp_path / "bare.npy"), "-q"]
    assert main(argv) == 0
    assert main([*argv, "--max", "ece=0.05"]) == 2
    assert "has no labels, which a gate needs" in capsys.readouterr().err


def test_code_is_not_run_unless_trusted(calibrator: str, tmp_path: Path) -> None:
    calibcli.export(calibrator, "torchscript", save=tmp_path / "c.pt", data=TEST)
    with pytest.raises(InputError, match="nothing was executed"):
        calibcli.verify(tmp_path / "c.pt", calibrator, TEST)


def test_rows_are_needed(calibrator: str, tmp_path: Path) -> None:
    one = calibcli.fit_scaler(np.eye(3) * 4, [0, 1, 2])
    with pytest.raises(UsageError, match="none were named"):
        calibcli.export(one, "json", save=tmp_path / "c.json")
    found = calibcli.export(
        calibrator, "json", save=tmp_path / "c.json"
    )  # the rows of the fit, if they are still there
    assert found["max_dp"].n == 600


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["temperature", "isotonic", "sms", "ensemble_temperature", "top_label"])
@pytest.mark.parametrize("columns", [1, 2, 4])
def test_rows_of_float64_are_compared_as_a_program_of_float32_takes_them(
    spec: str, columns: int, tmp_path: Path
) -> None:
    """Near 0 and 1 rounding of what goes in moves a steep map by more than a program is off."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((400, max(columns, 2))) * 3
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    given = 1 / (1 + np.exp(z[:, 0] - z[:, 1])) if columns == 1 else z
    rows = calibcli.from_arrays(given, y, kind="probabilities" if columns == 1 else "logits")
    one = calibcli.fit_scaler(rows, spec=spec)
    made = calibcli.export(one, "torchscript", save=tmp_path / "c.pt", data=rows)
    found = calibcli.verify(tmp_path / "c.pt", one, rows, trust=True)
    assert found.verdict == "pass"
    assert found["max_dp"].value == made["max_dp"].value


def test_a_program_is_given_a_copy_of_the_rows_which_it_may_write_to() -> None:
    logits, labels = np.random.default_rng(0).normal(size=(200, 3)), np.arange(200) % 3
    rows = calibcli.from_arrays(logits, labels)
    given = fed(calibcli.fit_scaler(rows).scaler, rows, "float64")
    np.testing.assert_array_equal(given, rows.logits)
    assert not np.shares_memory(given, rows.logits)


def test_labels_are_named_in_python_as_on_the_command_line(calibrator: str, tmp_path: Path) -> None:
    with np.load(TEST) as held:
        np.savez(tmp_path / "rows.npz", logits=held["logits"], labels=0 * held["labels"], truth=held["labels"])
    for labels, accuracy in (("truth", 0.9107), ("labels", None)):
        card = tmp_path / f"{labels}.md"
        calibcli.export(calibrator, "card", labels, save=card, data=tmp_path / "rows.npz")
        [row] = [line for line in card.read_text().splitlines() if line.startswith("| accuracy")]
        assert (f"| {accuracy} |" in row) == (accuracy is not None)
