"""`calib inspect` names every kind of file, and the command that takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import main
from calibcli.core.errors import Exit
from calibcli.core.result import Estimate, Result

SAMPLE = Path(__file__).parent.parent / "sample_data"


def inspect(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    assert main(["inspect", *map(str, args), "--json"]) == Exit.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_recorded_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect(capsys, SAMPLE / "test.npz")
    facts = found["facts"]
    assert (facts["what"], facts["rows"], facts["classes"], facts["kind"]) == ("recorded outputs", 997, 10, "logits")
    assert facts["why"].endswith(", beyond [0, 1]")
    arrays = next(t for t in found["tables"] if t["name"] == "arrays")
    assert ["logits", "(997, 10) float32", "scores: logits"] in arrays["rows"]
    labels = next(t for t in found["tables"] if t["name"] == "labels")
    assert sum(row[2] for row in labels["rows"]) == 997
    assert len(found["provenance"]["inputs"][0]["sha256"]) == 64


@pytest.mark.parametrize(
    ("name", "what", "commands"),
    [
        ("model.safetensors", "a checkpoint", "curvature"),
        ("model.pt", "a checkpoint", "curvature"),
        ("digits.npz", "a data set", "--data"),
        ("calib.toml", "a configuration", "check"),
    ],
)
def test_other_files(name: str, what: str, commands: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = inspect(capsys, SAMPLE / name)["facts"]
    assert facts["what"] == what
    assert commands in facts["used_by"]


def test_results_and_calibrators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import save_file

    result = Result(command="metrics", estimates=[Estimate(name="ece", value=0.1)])
    (tmp_path / "r.json").write_text(result.to_json())
    facts = inspect(capsys, tmp_path / "r.json")["facts"]
    assert (facts["what"], facts["estimates"]) == ("a result of calib metrics", 1)
    about = {"what": "calibrator", "schema": 1, "spec": "temperature", "k": 3, "classes": None, "fit": {}}
    about |= {"preserves_accuracy": True, "version": "0.1.0"}
    save_file({"beta": np.array(1.0)}, tmp_path / "c.safetensors", metadata={"calib": json.dumps(about)})
    facts = inspect(capsys, tmp_path / "c.safetensors")["facts"]
    assert (facts["what"], facts["spec"]) == ("a calibrator of calib scale", "temperature")


def test_a_number_under_the_name_of_scores_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", logits=np.float16(0))
    for command in ("inspect", "metrics"):
        assert main([command, str(tmp_path / "a.npz"), "-q"]) == 4
    assert "bug" not in capsys.readouterr().err


def test_other_files_are_refused_as_outputs(tmp_path: Path) -> None:
    from calibcli.core.errors import InputError
    from calibcli.scores import recorded_outputs

    with pytest.raises(InputError, match="is a checkpoint") as error:
        recorded_outputs.read(SAMPLE / "model.safetensors")
    assert "curvature" in error.value.fix


def test_multilabel_and_missing_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p = np.random.default_rng(0).uniform(size=(50, 3))
    np.savez(tmp_path / "a.npz", probs=p, labels=(p > 0.5).astype(int))
    found = inspect(capsys, tmp_path / "a.npz", "--multilabel", "--classes", "a,b,c")
    labels = next(t for t in found["tables"] if t["name"] == "labels")
    assert labels["rows"][0] == ["a", int((p[:, 0] > 0.5).sum()), 50]
    np.savez(tmp_path / "b.npz", logits=p * 9)
    assert any("no labels" in note for note in inspect(capsys, tmp_path / "b.npz")["notes"])


@pytest.mark.parametrize("path", ["missing.npz", ".", "empty.npz", "noise.bin"])
def test_unreadable(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.npz").touch()
    Path("noise.bin").write_bytes(bytes(range(256)))
    assert main(["inspect", path]) == Exit.REFUSED
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")


@pytest.mark.regression
def test_pickled_checkpoints_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    model = torch.nn.Linear(3, 2)
    torch.save(model, tmp_path / "whole.pt")
    torch.save(model, tmp_path / "whole.pkl", _use_new_zipfile_serialization=False)
    torch.save(model.state_dict(), tmp_path / "old.th", _use_new_zipfile_serialization=False)
    for name in ("whole.pt", "whole.pkl"):
        facts = inspect(capsys, tmp_path / name)["facts"]
        assert facts["what"] == "a pickled network"
        assert "--arch" in facts["used_by"]
    assert inspect(capsys, tmp_path / "old.th")["facts"]["what"] == "a checkpoint"


def test_arrays_without_rows_end_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "scalar.npz", beta=np.float64(2.0))
    assert main(["inspect", str(tmp_path / "scalar.npz")]) in (Exit.OK, Exit.REFUSED)
    assert "this is a bug" not in capsys.readouterr().err


def test_a_published_data_set_in_its_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import zipfile

    from downloads_written import RNG, binary, cifar10, lay, mnist, pictures, tar

    monkeypatch.chdir(tmp_path)
    x, y = pictures(19), RNG.integers(0, 10, 19)
    tar("cifar-10-python.tar.gz", cifar10(x, y))
    lay("bin", binary(x, y, False))
    for name in ("cifar-10-python.tar.gz", "cifar-10-python.tar.gz#test", "bin/cifar-10-batches-bin"):
        facts = inspect(capsys, name)["facts"]
        assert (facts["what"], facts["splits"], facts["split"]) == ("a data set", "train, test", "test")
        assert (facts["rows"], facts["inputs"]) == (7, "(7, 3, 32, 32) uint8")
        assert f"--data {Path(name).name})" in facts["used_by"]
    assert inspect(capsys, "cifar-10-python.tar.gz#train")["facts"]["rows"] == 12
    lay("root", mnist(packed=True))
    tar("mnist.tar", mnist(packed=True), "w")
    for name in ("root/MNIST", "mnist.tar", "root/MNIST/t10k-labels-idx1-ubyte.gz"):
        assert inspect(capsys, name)["facts"]["inputs"] == "(7, 28, 28) uint8"
    with zipfile.ZipFile("other.zip", "w") as archive:
        archive.writestr("a.txt", "x")
    tar("other.tar.gz", {"a.txt": b"x"})
    for name, fix in (("root", "name root/MNIST"), ("other.zip", "unpack it"), ("other.tar.gz", "unpack it")):
        assert main(["inspect", name]) == Exit.REFUSED
        assert fix in capsys.readouterr().err


def test_an_adapter_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import save_file

    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "some-bert"}')
    save_file({"base_model.model.lora_A.weight": np.zeros((2, 3), "f4")}, tmp_path / "adapter_model.safetensors")
    for path in (tmp_path, tmp_path / "adapter_model.safetensors"):
        found = inspect(capsys, path)
        assert (found["facts"]["what"], found["facts"]["changes"]) == ("an adapter of peft", "some-bert")
        assert "merge_and_unload()" in found["notes"][0]
        assert main(["logits", str(path), "--data", str(SAMPLE / "digits.npz"), "--save", str(tmp_path / "../o.npz")])
        assert "merge_and_unload()" in capsys.readouterr().err
