"""Files that calib wrote, edited: refused with the key, or what they say is what is judged; never a crash."""

from __future__ import annotations

import copy
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edits import SEEDS, places
from safetensors.numpy import load_file, save_file

from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.core.result import Result
from calibcli.gate.baseline import BaselineRows

SAMPLES = Path(__file__).parent.parent / "sample_data"
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1.5, 15, 1e9, 1e30, -1e30, 10**30, 10**400, 1e-300, "", "x", "ece", "0",
    [], [1], {}, {"a": 1}, [[]], "\ud800", "9" * 500,
]  # fmt: skip


def edited(data: Any, rng: random.Random) -> Any:
    """A copy with one to three values replaced, dropped, doubled or slightly changed."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        found = list(places(data))
        if not found:
            return data
        *way, last = rng.choice(found)
        holder = data
        for key in way:
            holder = holder[key]
        old = holder[last]
        how = rng.random()
        if how < 0.1:
            del holder[last]
        elif how < 0.2 and isinstance(holder, list):
            holder.append(copy.deepcopy(old))
        elif how < 0.4 and isinstance(old, int | float) and not isinstance(old, bool):
            holder[last] = rng.choice(
                [-old, old * 2, old + 1, 1 - old, old * 0.3 if isinstance(old, float) else old // 3]
            )
        else:
            holder[last] = copy.deepcopy(rng.choice(ODD))
    return data


CODES = {int(code) for code in Exit} - {int(Exit.BUG)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    small = np.load(SAMPLES / "test.npz")
    np.savez(folder / "t.npz", logits=small["logits"][:300], labels=small["labels"][:300])
    main(["check", str(folder / "t.npz"), "--max", "ece=0.02", "--min", "accuracy=0.8", "--keep-rows",
          "-o", str(folder / "r.json"), "-q"])  # fmt: skip
    return folder


RULES = ["--max", "ece=0.02", "--min", "accuracy=0.8"]


@pytest.mark.slow
@pytest.mark.regression("3.5")
@pytest.mark.regression("4 result-json")
def test_edited_results(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (made / "r.json").read_text()
    for seed in SEEDS:
        judged_edited(edited(json.loads(text), random.Random(seed)), made / "edited.json", capsys)


def judged_edited(data: Any, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(json.dumps(data))
    code = main(["check", str(path), *RULES, "-q"])
    said = capsys.readouterr()
    assert code in CODES, said
    assert "Traceback" not in said.err + said.out
    if code == 0:  # only where the numbers say so, and hang together
        by_name = {e["name"]: e for e in data["estimates"]}
        e, accuracy = by_name["ece"], by_name["accuracy"]
        assert 0 <= e["low"] <= e["value"] <= e["high"] <= 0.02
        assert 0.8 <= accuracy["low"] <= accuracy["value"] <= accuracy["high"]
        assert accuracy["value"] <= 1
        assert all(isinstance(x["n"], int) and x["n"] >= 1 and 0 < x["level"] < 1 for x in (e, accuracy))


@pytest.mark.slow
@pytest.mark.regression("4 baseline-n")
def test_edited_baselines(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (made / "r.json").read_text()
    for seed in SEEDS:
        rows_edited(made, json.loads(text), random.Random(seed), capsys)


def rows_edited(made: Path, data: Any, rng: random.Random, capsys: pytest.CaptureFixture[str]) -> None:
    rows = edited(data["facts"]["rows"], rng)
    data["facts"]["rows"] = rows
    path = made / "base.json"
    path.write_text(json.dumps(data))
    if rng.random() < 0.02:
        argv = ["check", str(made / "t.npz"), "--baseline", str(path), "--margin", "nll=0", "-q"]
        assert main(argv) in CODES, capsys.readouterr()
        capsys.readouterr()
        return
    try:
        found = Result.from_json(path.read_bytes(), "base.json").facts["rows"]
        if isinstance(found, dict):
            kept = BaselineRows.unpack(found, "base.json")
            assert kept.n == len(kept.nll) == len(kept.correct) == rows["n"]
    except InputError as error:
        said = error
    else:
        return
    assert "base.json" in said.problem
    assert said.fix


@pytest.fixture(scope="module")
def calibrators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrators")
    small = np.load(SAMPLES / "validation.npz")
    np.savez(folder / "v.npz", logits=small["logits"][:300], labels=small["labels"][:300])
    np.savez(folder / "few.npz", logits=small["logits"][:20])
    for method in METHODS:
        main(["scale", str(folder / "v.npz"), "--method", method, "--folds", "2", "-m", "nll",
              "--save", str(folder / f"{method}.safetensors"), "-q"])  # fmt: skip
    return folder


METHODS = ("temperature", "focal-temperature", "vector", "histogram", "beta")


@pytest.mark.one_in(3)
@pytest.mark.regression("4 calibrator-metadata")
@pytest.mark.parametrize("method", METHODS)
def test_edited_calibrators(calibrators: Path, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in SEEDS[METHODS.index(method) :: len(METHODS)]:
        calibrator_edited(calibrators, method, random.Random(seed), capsys)


def calibrator_edited(calibrators: Path, method: str, rng: random.Random, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors import safe_open

    source = calibrators / f"{method}.safetensors"
    tensors = load_file(source)
    with safe_open(str(source), framework="numpy") as file:
        about = json.loads(file.metadata()["calib"])
    if rng.random() < 0.5:
        about = edited(about, rng)
    else:
        name = rng.choice(sorted(tensors))
        old = tensors[name]
        tensors[name] = rng.choice(
            [-old, old * np.nan, old * 1e300, old[..., None], np.zeros(0), old.astype(np.float16), np.ones(3), old * 0]
        )
        if rng.random() < 0.2:
            tensors["more"] = tensors.pop(name)
    path = calibrators / "edited.safetensors"
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path, metadata={"calib": json.dumps(about)})
    code = main(["apply", str(path), str(calibrators / "few.npz"), "--save", str(calibrators / "out.npz"), "-q"])
    said = capsys.readouterr()
    assert code in (0, int(Exit.REFUSED)), said
    assert "Traceback" not in said.err
    if code == 0:
        p = np.load(calibrators / "out.npz")[
            "probs" if "probs" in np.load(calibrators / "out.npz") else "probabilities"
        ]
        assert np.isfinite(p).all()


@pytest.mark.regression("4 calibrator-metadata")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": [1]}, "spec is [1], not a text"),
        ({"k": 1e9}, "k is 1000000000.0, not a whole number from 2 to 1000000"),
        ({"k": 10**9}, "k is 1000000000, not a whole number"),
        ({"classes": list("abcdefghi")}, "classes are not k names"),
        ({"classes": "abc"}, "classes is 'abc', not a list"),
        ({"fit": []}, "fit is []"),
        ({"beta": np.array(-1.0)}, "lies in -1 to -1, outside 0"),
    ],
)
def test_a_calibrator_says_what_is_wrong(
    change: dict[str, Any], said: str, calibrators: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors import safe_open

    source = calibrators / "temperature.safetensors"
    with safe_open(str(source), framework="numpy") as file:
        about = json.loads(file.metadata()["calib"])
    tensors = {**load_file(source), **{k: v for k, v in change.items() if k == "beta"}}
    about |= {k: v for k, v in change.items() if k != "beta"}
    path = tmp_path / "c.safetensors"
    save_file(tensors, path, metadata={"calib": json.dumps(about)})
    argv = ["apply", str(path), str(calibrators / "few.npz"), "--save", str(tmp_path / "o.npz")]
    assert main(argv) == Exit.REFUSED
    assert said in capsys.readouterr().err


@pytest.mark.regression("3.5")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"high": 0.0}, "low is"),
        ({"value": -0.1, "low": -0.2, "high": 0.01}, "a ece is from 0 to 1"),
        ({"level": 1.0}, "level is 1.0"),
        ({"level": 0}, "level is 0"),
        ({"level": -3}, "level is -3"),
        ({"n": None}, "does not say of how many rows"),
        ({"n": 0}, "n is 0"),
        ({"n": "300"}, "n is '300'"),
        ({"n": 300.0}, "n is 300.0"),
        ({"value": "0.01"}, "value is '0.01', not a finite number"),
        ({"name": ["ece"]}, "name is ['ece'], not a text"),
        ({"sided": "three"}, "sided is 'three'"),
        ({"name": "accuracy"}, "accuracy is there twice"),
        ({"name": "ece:bins=15"}, "is not written as 'ece'"),
    ],
)
def test_a_result_says_what_is_wrong(
    change: dict[str, Any], said: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((made / "r.json").read_text())
    next(e for e in data["estimates"] if e["name"] == "ece").update(change)
    del data["checksum"]  # as an earlier version wrote it
    path = tmp_path / "r.json"
    path.write_text(json.dumps(data))
    assert main(["check", str(path), *RULES]) == Exit.REFUSED
    err = capsys.readouterr().err
    assert said in err
    assert str(path) in err


@pytest.mark.regression("4 nested-brackets")
@pytest.mark.parametrize("text", ["[" * 5000, '{"command": "check", "schema": 1, "facts": ' + "[" * 5000, "nul", '"x"'])
def test_what_is_no_result(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    path.write_text(text)
    assert main(["check", str(path), *RULES]) == Exit.REFUSED
    assert len(capsys.readouterr().err) < 500


@pytest.mark.slow
def test_every_command_writes_results_that_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("test.npz", "validation.npz", "digits.npz", "model.safetensors"):
        shutil.copy(SAMPLES / name, name)
    shutil.copy(SAMPLES / "test.npz", "again.npz")
    every = [
        a for m in ("mce", "smece", "mmce", "kde_ece", "confidence_gap", "cox_slope", "ece_sweep") for a in ("-m", m)
    ]
    for argv in (
        ["metrics", "test.npz", "-m", "default", *every, "--per-class", "--top-k", "3"],
        ["scale", "validation.npz", "--method", "temperature", "--method", "vector"],
        ["compare", "test.npz", "again.npz"],
        ["plan", "--max", "ece=0.05"],
        ["inspect", "test.npz"],
        ["check", "test.npz", "--max", "ece=0.1"],
        ["curvature", "model.safetensors", "--data", "digits.npz#test", "-w", "lambda_max", "-w", "trace"],
        ["logits", "model.safetensors", "--data", "digits.npz#test", "--save", "l.npz"],
    ):
        assert main([*argv, "-o", "r.json", "-q"]) == 0
        text = Path("r.json").read_bytes()
        assert Result.from_json(text).to_json().encode() == text, argv
