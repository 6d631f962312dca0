"""`calib fit` from the command line: what it writes, what it says, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calibcli.cli.app import main
from calibcli.networks import checkpoint, inference
from calibcli.networks.device import held_signals
from calibcli.scores.likelihood import log_phi

torch.set_num_threads(1)
SAMPLE = Path(__file__).parent.parent / "sample_data"
DIGITS = str(SAMPLE / "digits.npz")


def fit(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    """The JSON of a run that succeeds."""
    code = main(["fit", *map(str, argv), "--json", "--threads", "1"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out)  # type: ignore[no-any-return]


def refused(capsys: pytest.CaptureFixture[str], code: int, *argv: object) -> str:
    """What stderr says of a run that is refused."""
    assert main(["fit", *map(str, argv), "--threads", "1"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "fix:" in err
    return err


def test_several_losses_side_by_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "runs"
    argv = ["mlp:hidden=32", "--data", DIGITS, "--epochs", "8", "--save", out]
    found = fit(capsys, *argv, "--loss", "ce", "--loss", "focal:gamma=3", "--loss", "ce+trace:weight=0.01,kind=ggn")
    (table,) = found["tables"]
    assert [row[:2] for row in table["rows"]] == [
        [loss, when]
        for loss in ("ce", "focal:gamma=3", "ce+trace:weight=0.01,kind=ggn")
        for when in ("before", "after")
    ]
    assert {(e["name"], e["scope"]) for e in found["estimates"]} >= {
        ("ece", "ce before"),
        ("nll", "focal:gamma=3 after"),
    }
    assert all(e["low"] <= e["value"] <= e["high"] for e in found["estimates"])
    folder = out / "focal-gamma-3"
    assert {p.name for p in folder.iterdir()} == {
        "model.safetensors",
        "validation.npz",
        "test.npz",
        "log.jsonl",
        "steps.jsonl",
        "state.pt",
    }
    assert len((folder / "log.jsonl").read_text().splitlines()) == 8
    assert found["plots"]

    # the checkpoint needs no further options: data, preprocessing and classes are its own
    loaded = checkpoint.load(folder / "model.safetensors")
    rows = loaded.open_data(None, "test")
    made = torch.cat(list(inference.predict(loaded.model, rows)))
    with np.load(folder / "test.npz") as stored:
        np.testing.assert_allclose(stored["logits"], made.numpy(), rtol=1e-5, atol=1e-5)
        assert np.array_equal(stored["labels"], rows.labels)
    error = next(e["value"] for e in found["estimates"] if (e["name"], e["scope"]) == ("error", "focal:gamma=3 before"))
    assert error == pytest.approx(float((made.argmax(1).numpy() != rows.labels).mean()))
    assert loaded.metadata["training"]["loss"] == "focal:gamma=3"


def test_from_a_checkpoint(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Weights are kept or drawn anew; the last layer can be trained alone."""
    model = SAMPLE / "model.safetensors"
    start = checkpoint.load(model).model.state_dict()
    short = ["--epochs", "1", "--lr", "0.001", "--pt"]
    fit(capsys, model, *short, "--save", tmp_path / "keep")
    kept = checkpoint.load(tmp_path / "keep" / "model.pt").model.state_dict()
    assert all((kept[k] - start[k]).abs().max() < 0.1 for k in start)
    fit(capsys, model, *short, "--save", tmp_path / "fresh", "--init", "fresh")
    fresh = checkpoint.load(tmp_path / "fresh" / "model.safetensors").model.state_dict()
    assert all((fresh[k] - start[k]).abs().max() > 0.1 for k in start if k.endswith("weight"))
    fit(capsys, model, *short, "--save", tmp_path / "head", "--head-only", "--loss", "focal:gamma=2")
    only = checkpoint.load(tmp_path / "head" / "model.safetensors").model.state_dict()
    assert [k for k in start if not torch.equal(start[k], only[k])] == ["linear.weight", "linear.bias"]
    fit(capsys, model, *short, "--save", tmp_path / "frozen", "--freeze", "hidden.0")
    frozen = checkpoint.load(tmp_path / "frozen" / "model.safetensors").model.state_dict()
    assert [k for k in start if torch.equal(start[k], frozen[k])] == ["hidden.0.0.weight", "hidden.0.0.bias"]


def test_a_folder_that_holds_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = ["mlp:hidden=8", "--data", DIGITS, "--epochs", "2", "--save", tmp_path / "run"]
    fit(capsys, *argv)
    first = (tmp_path / "run" / "model.safetensors").read_bytes()
    assert "holds a run" in refused(capsys, 2, *argv)
    found = fit(capsys, *argv, "--resume")
    assert found["facts"]["runs"][0]["continued_at_step"] == 4
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == first
    assert "another run" in refused(capsys, 2, *argv, "--resume", "--lr", "0.2")
    fit(capsys, *argv, "--overwrite", "--lr", "0.2")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != first


def test_a_refused_run_leaves_no_empty_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for out in ("new", "new/below", "mine", "mine/below"):
        for losses in (["--loss", "ce"], ["--loss", "ce", "--loss", "brier"]):
            refused(capsys, 4, "mlp:hidden=8", "--data", tmp_path / "none.npz", "--save", tmp_path / out, *losses)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_without_test_rows_the_temperature_is_crossfitted(capsys: pytest.CaptureFixture[str]) -> None:
    found = fit(capsys, "mlp:hidden=8", "--data", f"{DIGITS}#train", "--val-fraction", "0.3", "--epochs", "3")
    assert found["facts"]["rows"] == {"train": 141, "validation": 59}
    assert {e["n"] for e in found["estimates"]} == {59}
    assert any("--save" in note for note in found["notes"])


def test_without_validation_rows_nothing_is_fitted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", train_x=np.eye(6), train_y=[0, 1] * 3, test_x=np.eye(6), test_y=[0, 1] * 3)
    argv = ["mlp:hidden=4", "--epochs", "2", "--val-fraction", "0", "--loss", "ce", "--loss", "brier"]
    found = fit(capsys, *argv, "--data", tmp_path / "d.npz")
    assert {e["scope"] for e in found["estimates"]} == {"ce before", "brier before"}
    assert any("no temperature is fitted" in note for note in found["notes"])
    found = fit(capsys, *argv, "--data", f"{tmp_path / 'd.npz'}#train")
    assert found["estimates"] == []
    assert any("nothing is measured" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("code", "argv", "match"),
    [
        (2, ["mlp:hidden=8"], "no training rows"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--loss", "foccal:gamma=1"], "did you mean 'focal'"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--amp", "int8"], "--amp int8 is not a choice"),
        (2, ["mpl:hidden=8", "--data", DIGITS], "did you mean 'mlp'"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--resume"], "--resume needs the folder"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--init", "new"], "--init new"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--seed", "-1"], "--seed"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--seed", str(2**40)], "--seed"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--dtype", "float16"], "unknown dtype"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--arch", "mlp"], "--arch is for checkpoints"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--val-fraction", "-1"], "out of range"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--val-fraction", "nan"], "out of range"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--optimizer", "adamw:beta1=2"], "out of range"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--optimizer", "sgd:nesterov=true,momentum=0"], "nesterov"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--schedule", "step:factor=-1"], "out of range"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--schedule", "step:at=3"], "out of range"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--augment", "crop:pad=-1"], "out of range"),
        (4, ["mlp:hidden=8,classes=5", "--data", DIGITS], "the model has 5 outputs"),
        (4, ["cnn:channels=3", "--data", DIGITS], "1 channels, the model takes 3"),
        (4, ["mlp:hidden=8", "--data", DIGITS, "--augment", "crop", "--layout", "flat"], "needs images"),
        (4, ["mlp:hidden=8", "--data", DIGITS, "--lr", "1e30"], "lower --lr"),
        (4, ["mlp:hidden=8", "--data", DIGITS, "--freeze", "nothing"], "matches no parameter"),
        (2, ["mlp:hidden=8", "--data", DIGITS, "--head-only", "--augment", "flip"], "computed once"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], code: int, argv: list[str], match: str) -> None:
    assert match in refused(capsys, code, *argv)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_signals() as signals:
            signal.raise_signal(signal.SIGINT)
            assert signals.received is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_interrupted_runs_say_how_to_go_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    from calibcli.lab.training._loop import Trainer

    plain = Trainer._step

    def stepping(self: Trainer, *args: Any) -> bool:
        if self.position.step == 3:
            signal.raise_signal(signal.SIGTERM)
        return plain(self, *args)

    monkeypatch.setattr(Trainer, "_step", stepping)
    argv = ["fit", "mlp:hidden=8", "--data", DIGITS, "--batch-size", "32", "--save", str(tmp_path / "run")]
    assert main(argv) == 143
    assert "--resume" in capsys.readouterr().err
    assert torch.load(tmp_path / "run" / "state.pt", weights_only=True)["position"]["step"] == 4


def test_report_link_maps_what_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    argv = ["mlp:hidden=16", "--data", DIGITS, "--epochs", "3", "--loss", "focal:gamma=3", "--curvature-every", "3"]
    plain = fit(capsys, *argv, "--save", tmp_path / "plain")
    mapped = fit(capsys, *argv, "--save", tmp_path / "phi", "--report-link", "phi")
    with np.load(tmp_path / "plain" / "test.npz") as a, np.load(tmp_path / "phi" / "test.npz") as b:
        np.testing.assert_allclose(b["logits"], log_phi(a["logits"], 3.0), rtol=1e-5, atol=1e-5)
    assert (tmp_path / "plain" / "model.safetensors").read_bytes() == (
        tmp_path / "phi" / "model.safetensors"
    ).read_bytes()
    assert any("focal map" in note for note in mapped["notes"])
    before = [
        [e["value"] for e in r["estimates"] if (e["name"], e["scope"]) == ("error", "before")] for r in (plain, mapped)
    ]
    assert before[0] == before[1]
    last = plain["facts"]["runs"][0]["last_epoch"]
    assert last["lambda_max"] > 0
    assert any(p["name"] == "curvature" for p in plain["plots"])


def ranks(argv: list[str], folder: Path) -> list[int]:
    """The exit codes of two processes launched as torchrun does; what they print goes to `0.json` and `1.json`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            with open(folder / f"{rank}.json", "w") as out:
                sys.stdout = out
                code = main(argv)
            os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def test_under_torchrun_one_process_speaks(tmp_path: Path) -> None:
    """Two processes: rank 0 writes and prints, the other is silent, and both end well."""
    argv = ["mlp:hidden=16", "--data", DIGITS, "--epochs", "2", "--loss", "ce", "--loss", "mmce", "--threads", "1"]
    argv = ["fit", *argv, "--device", "cpu", "--json", "--save", str(tmp_path / "run")]
    assert ranks(argv, tmp_path) == [0, 0]
    assert (tmp_path / "1.json").read_text() == ""
    found = json.loads((tmp_path / "0.json").read_text())
    assert found["facts"]["processes"] == 2
    assert any("MMCE is of each" in note for note in found["notes"])
    assert (tmp_path / "run" / "ce-mmce" / "model.safetensors").exists()
    assert ranks(argv, tmp_path) == [2, 2]  # both refuse the folder: neither waits for the other


OWN = """
import numpy, torch
class Silent(torch.nn.Linear):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x.flatten(1))
def talks():
    print("from the factory")
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
def silent():
    return Silent(64, 10)
def convolution():
    return torch.nn.Sequential(torch.nn.Conv2d(1, 10, 8), torch.nn.Flatten())
def ends_in_softmax():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.Softmax(1))
def rows():
    print("from the data")
    return numpy.random.default_rng(0).random((200, 8, 8), dtype=numpy.float32), numpy.arange(200) % 10
def leaves():
    raise SystemExit(0)
"""


def test_code_of_the_users_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_code.py").write_text(OWN)
    own = ["--data", "own_code:rows", "--epochs", "1"]
    assert fit(capsys, "own_code:talks", *own, "--save", "run")["command"] == "fit"  # stdout is JSON alone
    assert "does not depend on its trainable" in refused(capsys, 4, "own_code:silent", *own)
    assert "probabilities, not logits" in refused(capsys, 4, "own_code:ends_in_softmax", *own)
    assert "the model takes images" in refused(capsys, 4, "own_code:convolution", *own)
    assert "own_code:leaves failed (SystemExit" in refused(capsys, 4, "own_code:talks", "--data", "own_code:leaves")
    assert "has no array 'x'" in refused(capsys, 4, "own_code:talks", *own, "--labels", "x")
    both = ["run", *own, "--arch", "own_code:talks", "--arch-file", "own_code.py:talks"]
    assert "--arch and --arch-file exclude each other" in refused(capsys, 2, *both)


def test_the_split_is_apart_from_the_seed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every `--seed` holds out the same rows; result and checkpoint name the split, and what goes on keeps it."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3)), np.repeat([0, 1, 2, 3], 20)
    np.savez(tmp_path / "rows.npz", x=x, y=y, ids=np.arange(80))
    base: list[object] = ["mlp:hidden=4", "--data", tmp_path / "rows.npz", "--epochs", "1"]

    def held(name: str, *more: object) -> tuple[list[int], dict[str, Any]]:
        found = fit(capsys, *base, *more, "--save", tmp_path / name)
        with np.load(tmp_path / name / "validation.npz") as stored:
            rows = stored["ids"].tolist()
        split = found["facts"]["split"]
        assert checkpoint.load(tmp_path / name / "model.safetensors").metadata["split"] == split
        assert (split["held_out"], split["of"]) == (len(rows), 80)
        return rows, split

    first, said = held("a")
    assert [said[k] for k in ("how", "seed", "share")] == ["stratified", 0, 0.1]
    assert np.bincount(y[first]).tolist() == [2, 2, 2, 2]
    assert held("b", "--seed", "7") == (first, said)
    other, moved = held("c", "--split-seed", "3", "--val-fraction", "0.2")
    assert (other != first, moved["seed"], len(other)) == (True, 3, 16)
    paper, named = held("d", "--split", "mukhoti", "--missing-classes")
    assert (named["how"], named["seed"]) == ("mukhoti", 1)
    assert paper == sorted(np.random.RandomState(1).permutation(80)[:8])

    base = [tmp_path / "c" / "model.safetensors", "--epochs", "1"]
    assert held("on", "--head-only") == (other, moved)
    found = fit(capsys, *base, "--split-seed", "4")
    assert any("held out other rows" in note for note in found["notes"])
    base = [
        "mlp:hidden=4",
        "--data",
        tmp_path / "rows.npz",
        "--epochs",
        "1",
    ]  # sorted by class: the labels are the same
    assert "another run" in refused(capsys, 2, *base, "--save", tmp_path / "a", "--split-seed", "1", "--resume")


def test_a_subset_is_drawn_by_the_split_seed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    notes = [
        fit(capsys, "mlp:hidden=4", "--data", DIGITS, "--epochs", "1", "--subset", "50", *more)["notes"]
        for more in ([], ["--seed", "3"], ["--split-seed", "3"])
    ]
    drawn = [next(n for n in some if "drawn with split seed" in n) for some in notes]
    assert [n[-1] for n in drawn] == ["0", "0", "3"]
