"""`state.pt` with other content: refused with the file and the key, or the run goes on; never a crash."""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from edits import SEEDS, places

from calibcli.cli.app import main
from calibcli.core.errors import CalibError, Exit, InputError
from calibcli.lab.training import _state as state
from calibcli.lab.training._loop import Trainer
from calibcli.lab.training.batches import Loader
from calibcli.lab.training.recipes import Recipe
from calibcli.networks import dataset

DIGITS = str(Path(__file__).parent.parent / "sample_data" / "digits.npz")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    argv = ["fit", "mlp:hidden=4", "--data", DIGITS, "--epochs", "2", "--keep", "best", "--save", str(folder), "-q"]
    assert main(argv) == 0
    return [*argv, "--resume"], torch.load(folder / "state.pt", weights_only=True)


def put(*way: Any) -> Callable[[dict[str, Any]], None]:
    *keys, last, value = way

    def change(content: dict[str, Any]) -> None:
        holder: Any = content
        for key in keys:
            holder = holder[key]
        holder[last] = value

    return change


def drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.pop(name)


@pytest.mark.regression("4 state-content")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("position", "epoch", 10**9), "position.epoch is 1000000000"),
        (put("position", "epoch", 1), "the log has 2 epochs"),
        (put("position", "epoch", "2"), "position.epoch is '2'"),
        (put("position", "finished", 1), "position.finished is 1, not true or false"),
        (put("position", "best", "epoch", 99), "position.best.epoch is 99"),
        (put("position", "best", "weights", {}), "position.best.weights is not of this model"),
        (put("position", [1]), "position is [1]"),
        (put("history", "[{}]"), "the log has 1 epochs"),
        (put("history", "[" * 5000), "not JSON"),
        (put("identity", "[]"), "identity is []"),
        (put("schema", 7), "schema is 7"),
        (put("model", {}), "model is not of this model"),
        (put("model", "linear.bias", torch.ones(3)), "model is not of this model"),
        (put("model", "linear.bias", torch.full((10,), torch.nan)), "model.linear.bias is not finite"),
        (put("model", 3), "model is 3"),
        (put("parts", {}), "parts.optimizer is missing"),
        (put("parts", "optimizer", {}), "parts.optimizer is not of this run"),
        (put("parts", "optimizer", "param_groups", 0, "momentum", 5.0), "parts.optimizer is not of this run"),
        (put("parts", "optimizer", "state", 0, {"momentum_buffer": torch.ones(2)}), "parts.optimizer is not of"),
        (put("parts", "loss", {"_extra_state": {"gamma": "x", "gamma_text": ""}}), "does not fit this run"),
        (put("local", []), "of 0 processes"),
        (put("local", [3]), "local[0] is 3"),
        (put("local", 0, "torch", torch.ones(3)), "does not fit this run"),
        (drop("local"), "local is missing"),
        (drop("schema"), "not the state of a run"),
    ],
)
def test_a_state_says_what_is_wrong(
    change: Callable[[dict[str, Any]], None],
    said: str,
    run: tuple[list[str], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv, content = run
    path = Path(argv[argv.index("--save") + 1]) / "state.pt"
    wrong = copy.deepcopy(content)
    change(wrong)
    torch.save(wrong, path)
    assert main(argv) == Exit.REFUSED
    err = capsys.readouterr().err
    assert said in err
    assert "state.pt" in err


@pytest.mark.regression("4 state-content")
def test_a_whole_state_goes_on(run: tuple[list[str], dict[str, Any]]) -> None:
    argv, content = run
    torch.save(content, Path(argv[argv.index("--save") + 1]) / "state.pt")
    assert main(argv) == 0


ODD: list[Any] = [None, True, 0, -1, 1, 2, 10**9, 10**30, 0.5, -1e300, "", "x", "[]", "{}", [], [1], {}, {"a": 1}]


@pytest.mark.slow
@pytest.mark.regression("4 state-content")
def test_edited_states(tmp_path: Path) -> None:
    """A state with one to three values replaced or dropped: refused, or the run goes on to a whole log."""
    done = trainer(tmp_path)
    done.run()
    done.save()
    first = (tmp_path / state.FILE).read_bytes()
    for seed in SEEDS:
        edited(first, tmp_path, random.Random(seed))


def edited(first: bytes, folder: Path, rng: random.Random) -> None:
    content = torch.load(io.BytesIO(first), weights_only=True)
    for _ in range(rng.choice([1, 1, 2, 3])):
        *way, last = rng.choice(list(places(content)))
        holder: Any = content
        for key in way:
            holder = holder[key]
        if rng.random() < 0.15:
            del holder[last]
        elif isinstance(holder[last], torch.Tensor):
            holder[last] = rng.choice([holder[last] * 2, holder[last][..., None], torch.tensor(torch.nan), None, 3])
        else:
            holder[last] = rng.choice(ODD)
    torch.save(content, folder / state.FILE)
    one = trainer(folder)
    try:
        one.resume()
    except CalibError as error:
        said = error
    else:
        assert 0 <= one.position.epoch <= 3
        assert len(one.position.history) == one.position.epoch
        json.dumps(one.position.history)
        return
    assert isinstance(said, InputError) or "another run" in said.problem
    assert said.fix


def trainer(folder: Path) -> Trainer:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    np.savez(folder / "rows.npz", x=rng.normal(size=(24, 4)).astype(np.float32), y=rng.integers(0, 3, 24))
    loader = Loader(dataset.load(folder / "rows.npz"), torch.device("cpu"), torch.float32)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    return Trainer(model, Recipe(epochs=3, batch_size=8, loss="adafocal"), loader, loader, folder=folder)
