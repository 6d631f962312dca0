"""`calib apply` through `main`: what it writes, what it keeps, what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from calibcli import calibrators
from calibcli.cli.app import main
from calibcli.scores.likelihood import log_phi, log_softmax
from calibcli.scores.predictions import Predictions


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """data.npz, bare.npy (no labels), and two calibrators."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    z = (rng.standard_normal((400, 3)) * 3).astype(np.float32)
    y = (z / 2 + rng.gumbel(size=z.shape)).argmax(1)
    np.savez("data.npz", logits=z, labels=y, ids=[f"r{i}" for i in range(400)], site=["a", "b"] * 200)
    np.save("bare.npy", z)
    calibrators.save(calibrators.Scaler("temperature", 3, {"beta": np.array(0.5)}), "t.safetensors")
    parameters = {"beta": np.array(0.5), "gamma": np.array(2.0)}
    calibrators.save(calibrators.Scaler("focal_temperature", 3, parameters), "f.safetensors")
    return tmp_path


def logits() -> np.ndarray:
    with np.load("data.npz") as data:
        return np.asarray(data["logits"], np.float64)


@pytest.mark.parametrize("calibrator", ["t", "f"])
@pytest.mark.parametrize(("kind", "key"), [("probabilities", "probabilities"), ("logits", "logits")])
def test_npz_holds_what_the_scaler_says(files: Path, calibrator: str, kind: str, key: str) -> None:
    assert main(["apply", f"{calibrator}.safetensors", "data.npz", "--save", "o.npz", "--as", kind, "-q"]) == 0
    expected = log_softmax(logits() / 2) if calibrator == "t" else log_phi(logits() / 2, 2.0)
    with np.load("o.npz") as out, np.load("data.npz") as data:
        assert out[key].dtype == np.float32
        np.testing.assert_allclose(out[key], np.exp(expected) if key == "probabilities" else expected, rtol=2e-6)
        np.testing.assert_array_equal(out["labels"], data["labels"])
    assert main(["inspect", "o.npz", "-q"]) == 0


def test_dtype_and_other_files(files: Path) -> None:
    expected = np.exp(log_softmax(logits() / 2))
    assert main(["apply", "t.safetensors", "bare.npy", "--save", "o.npy", "--dtype", "float64", "-q"]) == 0
    got = np.load("o.npy")
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    assert main(["apply", "t.safetensors", "data.npz", "--save", "o.csv", "-q"]) == 0
    with open("o.csv") as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_allclose([float(r["prob_2"]) for r in rows], expected[:, 2], rtol=2e-6)
    with np.load("data.npz") as data:
        assert [int(r["label"]) for r in rows] == data["labels"].tolist()


def test_read_options_carry_columns(files: Path) -> None:
    args = ["apply", "t.safetensors", "data.npz", "--save", "o.npz", "--ids", "ids", "--by", "site", "-q"]
    assert main(args) == 0
    with np.load("o.npz") as out:
        assert out["ids"][3] == "r3"
        assert out["site"].tolist() == ["a", "b"] * 200


def test_ties_by_rounding_do_not_move_the_argmax(files: Path) -> None:
    top = np.float32(7.3)
    near = np.stack([np.full(4000, top), np.nextafter(top, np.float32(9)) * np.ones(4000), np.arange(4000) / 4000], 1)
    near = np.concatenate([near, near[:, ::-1]]).astype(np.float32)
    scaler = calibrators.Scaler("temperature", 3, {"beta": np.array(1 / 50)})
    for probabilities in (True, False):
        calibrators.stream(
            scaler, Predictions.of(near, np.zeros(8000, int)), Path("o.npz"), probabilities=probabilities
        )
        with np.load("o.npz") as out:
            scores = out["probabilities" if probabilities else "logits"]
        assert np.array_equal(scores.argmax(1), near.argmax(1))
        plain = (np.exp(scaler(near)) if probabilities else scaler(near)).astype(np.float32)
        assert not np.array_equal(plain.argmax(1), near.argmax(1))
        np.testing.assert_allclose(scores, plain, rtol=1e-6)


def test_json_says_what_was_written(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "t.safetensors", "bare.npy", "--save", "o.npz", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["artefacts"] == {"scores": "o.npz"}
    assert data["facts"]["n"] == 400
    assert data["facts"]["keeps predicted classes"] is True
    with np.load("o.npz") as out:
        assert out.files == ["probabilities"]
    assert [Path(i["path"]).name for i in data["provenance"]["inputs"]] == ["t.safetensors", "bare.npy"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["t.safetensors", "four.npy", "--save", "o.npz"], 4, "4 classes, the calibrator was fitted on 3"),
        (["data.npz", "data.npz", "--save", "o.npz"], 4, "not a safetensors file"),
        (["none.safetensors", "data.npz", "--save", "o.npz"], 4, "cannot read"),
        (["t.safetensors", "data.npz", "--save", "o.pkl"], 2, "use a suffix of"),
        (["t.safetensors", "data.npz", "--save", "x/o.npz"], 2, "no folder"),
        (["t.safetensors", "data.npz", "--save", "./data.npz"], 2, "would replace the input"),
        (["t.safetensors", "data.npz", "--save", "o.npz", "--as", "probs"], 2, "did you mean 'probabilities'"),
        (["t.safetensors", "data.npz", "--save", "o.npz", "--dtype", "float16"], 2, "did you mean 'float64'"),
        (["t.safetensors", "data.npz", "--save", "o.npz", "--multilabel"], 4, "not a folder of calibrators"),
    ],
)
def test_refusals(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    np.save("four.npy", np.random.default_rng(0).standard_normal((30, 4)))
    assert main(["apply", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert not Path("o.npz").exists()


def test_a_csv_keeps_names_of_classes_and_labels_as_they_stood(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    z = np.random.default_rng(1).standard_normal((60, 3))
    words = np.array(["cat", "dog", "owl"])[z.argmax(1)]
    table = "".join(f"{','.join(map(str, row))},{word}\n" for row, word in zip(z, words, strict=True))
    Path("named.csv").write_text(f"logit_cat,logit_dog,logit_owl,label\n{table}")
    assert main(["apply", "t.safetensors", "named.csv", "--save", "o.csv", "-q"]) == 0
    with open("o.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["prob_cat", "prob_dog", "prob_owl", "label"]
    assert [row["label"] for row in rows] == words.tolist()
    np.savez("one.npz", logits=z, labels=z.argmax(1) + 1)
    assert main(["apply", "t.safetensors", "one.npz", "--save", "o.csv", "--label-base", "1", "-q"]) == 0
    with open("o.csv") as file:
        assert [int(row["label"]) for row in csv.DictReader(file)] == (z.argmax(1) + 1).tolist()
    # of two classes by one column of class 0, the event is the other way round
    p = np.random.default_rng(2).random(80)
    y = np.where(np.random.default_rng(3).random(80) < p, 0, 1)
    Path("two.csv").write_text("prob_0,label\n" + "".join(f"{a:.6f},{b}\n" for a, b in zip(p, y, strict=True)))
    calibrators.save(calibrators.Scaler("temperature", 2, {"beta": np.array(1.0)}), "two.safetensors")
    for event in ("0", "1"):
        assert main(["apply", "two.safetensors", "two.csv", "--save", "o.csv", "--event", event, "-q"]) == 0
        with open("o.csv") as file:
            assert [int(row["label"]) for row in csv.DictReader(file)] == y.tolist(), event
    capsys.readouterr()


def test_names_of_classes_that_only_the_calibrator_has_are_noted(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = calibrators.Scaler("temperature", 3, {"beta": np.array(0.5)}, classes=("cat", "dog", "owl"))
    calibrators.save(named, "n.safetensors")
    assert main(["apply", "n.safetensors", "bare.npy", "--save", "o.npz"]) == 0
    assert "has class names (cat, dog, owl), these rows have none" in capsys.readouterr().err
    np.savez("turned.npz", logits=np.load("bare.npy"), classes=["dog", "cat", "owl"])
    assert main(["apply", "n.safetensors", "turned.npz", "--save", "o.npz"]) == 4
    assert "in another order" in capsys.readouterr().err


def test_a_map_reads_new_rows_as_those_of_its_fit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    risk = rng.beta(1, 3, 400).round(4)
    died = (rng.random(400) < risk).astype(int)
    rows = [f"{i},{a},{b}" for i, (a, b) in enumerate(zip(risk, died, strict=True))]
    (tmp_path / "cohort.csv").write_text("\n".join(["patient,predicted_risk,death", *rows]) + "\n")
    (tmp_path / "new.csv").write_text(
        "\n".join(["patient,predicted_risk", *(r.rpartition(",")[0] for r in rows)]) + "\n"
    )
    cal, cohort, new = (str(tmp_path / name) for name in ("cal.safetensors", "cohort.csv", "new.csv"))
    named = ["--scores", "predicted_risk", "--labels", "death"]
    assert main(["scale", cohort, *named, "--method", "platt", "--save", cal, "-q"]) == 0
    for file, labelled in ((cohort, True), (new, False)):
        out = tmp_path / f"{labelled}.csv"
        assert main(["apply", cal, file, "--save", str(out), "-q"]) == 0
        assert out.read_text().splitlines()[0] == "prob_0,prob_1" + ",label" * labelled
    assert (tmp_path / "True.csv").read_text().startswith("prob_0,prob_1,label")
    for data in ([], ["--data", cohort], ["--data", new]):
        assert main(["export", cal, "--to", "json", "-o", str(tmp_path / f"{len(data)}.json"), *data, "-q"]) == 0
