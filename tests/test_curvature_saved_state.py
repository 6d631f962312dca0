"""The saved state of curvature: a run that was killed goes on to the same bytes, and no other run takes its state."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_scripts import script
from curvature_models import setup
from forks import ended, forked
from torch import nn

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError
from calibcli.core.result import Result
from calibcli.networks.curvature import saved_state
from calibcli.networks.curvature.saved_state import State

ALL = ("lambda_max", "lambda_min", "top", "trace", "trace_ggn", "density:steps=12,probes=2", "grad_norm")
ASKED = {
    "mlp": ("trace:exact=true", "lambda_max"),
    "cnn": ALL,
    "relu": (*ALL, "trace after", "fisher_rao", "adaptive_lambda after"),
    "attention": ("trace", "lambda_max", "density:steps=12,probes=2"),
    "silu": ("lambda_max", "trace:precision=0.1", "grad_norm"),
    "gru": ("lambda_max_ggn:by=differences", "top_ggn:by=differences,k=2", "trace:precision=0.05"),
}


def measured(name: str, folder: Path | None = None, **more: Any) -> Result:
    model, inputs, labels = setup(name)
    options: dict[str, Any] = {"dtype": "float64", "device": "cpu", "save_state": folder}
    options |= {"products": "gradients"} if name == "silu" else {}
    return calibcli.curvature(model, (inputs, labels), *ASKED[name], **{**options, **more})


def content(result: Result) -> str:
    return result.to_json()


def killed(work: Callable[[], object], after: int, where: str) -> Callable[[], object]:
    """The work in a process that is killed when it has written so many pieces: whole, cut off, or not counted yet."""
    done = 0

    def write(self: State, name: str, tensors: Any) -> None:
        nonlocal done
        done += 1
        if done <= after:
            return plain(self, name, tensors)
        if where == "cut off":
            self.file.seek(self.size)
            self.file.write(b'["half a pie')
        elif where == "not counted":
            saved_state.EVERY = 1e9
            plain(self, name, tensors)
        os.kill(os.getpid(), signal.SIGKILL)

    plain = State.write

    def run() -> object:
        saved_state.EVERY = 0.0
        State.write = write  # type: ignore[method-assign]
        return work()

    return run


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ASKED)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    known, place = [], 1
    for where in ("whole", "cut off", "not counted"):
        child = forked(killed(lambda: measured(name, tmp_path / "state"), place, where))
        assert ended(child) == -signal.SIGKILL
        known.append(json.loads((tmp_path / "state/state.json").read_text())["size"])
        place = {1: 7, 7: 12}.get(place, 12)
    assert known[0] < known[1] < known[2]
    said: list[str] = []
    found = measured(name, tmp_path / "state", note=said.append)
    assert said
    assert said[0].startswith("resumed at product")
    assert content(found) == content(measured(name))
    size = (tmp_path / "state/pieces.bin").stat().st_size
    assert content(measured(name, tmp_path / "state", note=said.append)) == content(found)
    assert "had finished" in said[-1]
    assert (tmp_path / "state/pieces.bin").stat().st_size == size  # nothing was computed again


def quick(folder: Path, model: nn.Module | None = None, **more: Any) -> Result:
    default, inputs, labels = setup("relu")
    options: dict[str, Any] = {"dtype": "float64", "device": "cpu", "save_state": folder}
    rows = more.pop("data", (inputs, labels))
    return calibcli.curvature(model or default, rows, more.pop("quantity", "lambda_max"), **{**options, **more})


def moved() -> nn.Module:
    model = setup("relu")[0]
    with torch.no_grad():
        model[0].bias[0] += 1e-12
    return model


def other_code() -> nn.Module:
    model = setup("relu")[0]
    model[1] = nn.GELU()
    return model


def other_rows() -> tuple[torch.Tensor, torch.Tensor]:
    _, inputs, labels = setup("relu")
    return inputs.flip(0), labels


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"model": moved}, "other weights"),
        ({"model": other_code}, "other code: the outputs of the model or the loss differ on the first rows"),
        ({"data": other_rows}, "other rows"),
        ({"seed": 1}, "seed: 0, not 1"),
        ({"quantity": "trace"}, "quantities: lambda_max, not trace"),
        ({"loss": "brier"}, "loss: ce, not brier"),
        ({"params": "0.*"}, "params: *, not 0.*"),
        ({"dtype": "float32"}, "dtype: float64, not float32"),
    ],
)
def test_the_state_of_another_run_is_refused_and_kept(more: dict[str, Any], problem: str, tmp_path: Path) -> None:
    quick(tmp_path / "state")
    before = (tmp_path / "state/pieces.bin").read_bytes()
    given = {key: value() if callable(value) else value for key, value in more.items()}
    with pytest.raises(UsageError) as refused:
        quick(tmp_path / "state", **given)
    assert problem in refused.value.problem
    assert (tmp_path / "state/pieces.bin").read_bytes() == before
    fix = refused.value.fix
    other = tmp_path / "state-2"
    assert str(other) in fix
    assert quick(other, **{key: value() if callable(value) else value for key, value in more.items()}).estimates


def test_another_loss_of_the_same_name_is_refused(tmp_path: Path) -> None:
    own = [lambda z, y, by=by: by * nn.functional.cross_entropy(z, y, reduction="none") for by in (1.0, 2.0)]
    quick(tmp_path, loss=own[0])
    with pytest.raises(UsageError, match="other code"):
        quick(tmp_path, loss=own[1])


def test_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(tmp_path)
    monkeypatch.setattr(torch, "__version__", "2.0.1")
    with pytest.raises(UsageError, match=r"of a run with calib .* and torch 2\.\d+") as refused:
        quick(tmp_path)
    assert "install these again" in refused.value.fix


def test_a_plan_that_is_asked_for_anew_is_taken_and_threads_stay(tmp_path: Path) -> None:
    said: list[str] = []
    first = quick(tmp_path)
    threads = torch.get_num_threads()
    edited = json.loads((tmp_path / "state.json").read_text())
    assert edited["threads"] == threads
    second = quick(tmp_path, batch_size=4, note=said.append)
    assert "another one than before" in said[-1]
    assert second["lambda_max"].value == pytest.approx(first["lambda_max"].value, rel=1e-9)
    assert second.facts["memory_plan"].startswith("micro-batches of 4 rows")
    assert torch.get_num_threads() == threads


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds 'notes\.txt'") as refused:
        quick(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    assert f"--save-state {tmp_path / 'state'}" in str(refused.value.fix) or "save_state" in str(refused.value.fix)
    quick(tmp_path / "state")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the folder"):
        quick(tmp_path / "file")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/state.json").write_text('{"schema": 1, "nights": []}')
    with pytest.raises(InputError, match="is no state of calib curvature"):
        quick(tmp_path / "other")


def test_no_input_is_taken_for_pieces(tmp_path: Path) -> None:
    folder = Path(__file__).parent.parent / "sample_data"
    sample, rows = (folder / "model.pt").read_bytes(), folder / "digits.npz"
    (tmp_path / "pieces.bin").write_bytes(sample)
    with pytest.raises(UsageError, match="holds 'pieces"):
        calibcli.curvature(tmp_path / "pieces.bin", f"{rows}#test", "grad_norm", device="cpu", save_state=tmp_path)
    assert (tmp_path / "pieces.bin").read_bytes() == sample


@pytest.mark.parametrize("damage", ["json", "cut", "text", "gone", "type"])
def test_a_damaged_state_is_refused(damage: str, tmp_path: Path) -> None:
    quick(tmp_path)
    state, pieces = tmp_path / "state.json", tmp_path / "pieces.bin"
    if damage == "json":
        state.write_text(state.read_text()[:-9])
    elif damage == "cut":
        pieces.write_bytes(pieces.read_bytes()[:-1])
    elif damage == "text":
        pieces.write_bytes(b"x" + pieces.read_bytes()[1:])
    elif damage == "gone":
        pieces.unlink()
    else:
        state.write_text(state.read_text().replace('"threads": 1', '"threads": "1"'))
    with pytest.raises(InputError, match=r"is no state|is damaged|threads"):
        quick(tmp_path)


def test_a_refused_model_leaves_no_state(tmp_path: Path) -> None:
    model = setup("relu")[0]
    model[1] = nn.Dropout(0.5)
    model[1].forward = lambda x: nn.functional.dropout(x)  # type: ignore[method-assign]
    with pytest.raises(InputError, match="change from call to call"):
        quick(tmp_path / "state", model)
    assert not (tmp_path / "state").exists()


def test_two_runs_on_one_state(tmp_path: Path) -> None:
    refused: list[str] = []

    def again(fraction: float, text: str) -> None:
        if not refused:
            with pytest.raises(UsageError, match="another run writes into") as error:
                quick(tmp_path)
            refused.append(str(error.value))

    quick(tmp_path, progress=again)
    assert refused
    assert sorted(p.name for p in tmp_path.iterdir()) == ["pieces.bin", "state.json"]


def test_a_full_disk_ends_the_saving_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    plain, done = State._write, []

    def full(self: State) -> None:
        done.append(1)
        if len(done) > 3:
            raise OSError(28, "No space left on device")
        plain(self)

    monkeypatch.setattr(saved_state, "EVERY", 0.0)
    monkeypatch.setattr(State, "_write", full)
    found = quick(tmp_path, note=said.append)
    assert said == [f"the state in {tmp_path} is not saved any more (No space left on device); the run goes on"]
    monkeypatch.setattr(State, "_write", plain)
    assert content(quick(tmp_path, note=said.append)) == content(found)
    assert "resumed at product" in said[-1]


def test_a_launch_of_several_processes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_state.devices, "world", lambda: 2)
    with (
        pytest.raises(UsageError, match="is for one process, not 2"),
        State(tmp_path / "state", {}, print).opened(),
    ):
        pass
    assert not (tmp_path / "state").exists()


def test_sigterm_saves_and_the_command_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With states a minute apart, what was done before SIGTERM is there all the same."""
    sample = Path(__file__).parent.parent / "sample_data/model.pt"
    argv = ["curvature", str(sample), "-w", "lambda_max", "-w", "trace", "--json", "--device", "cpu"]

    def stopped() -> None:
        done, plain = [], State.write

        def write(self: State, name: str, tensors: Any) -> None:
            plain(self, name, tensors)
            done.append(name)
            if len(done) == 5:
                signal.raise_signal(signal.SIGTERM)

        State.write = write  # type: ignore[method-assign]
        os._exit(main([*argv, "--save-state", str(tmp_path / "state")]))

    assert ended(forked(stopped)) == 143
    assert json.loads((tmp_path / "state/state.json").read_text())["size"] > 0
    outputs = []
    for more in (["--save-state", str(tmp_path / "state")], []):
        assert main([*argv, *more]) == 0
        out, err = capsys.readouterr()
        outputs.append({key: value for key, value in json.loads(out).items() if key not in ("provenance", "checksum")})
        assert ("resumed at product" in err) == bool(more)
    assert outputs[0] == outputs[1]


@pytest.mark.slow
def test_the_benchmark_finds_the_same_bytes() -> None:
    found = script("resume").compare(3, 0, 0.5, ("relu", "gru"))
    assert found["same_bytes"] == found["kills"] == 3
