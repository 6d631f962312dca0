"""What `calib fit` looks at while it trains: training and test rows, snapshots; resumed runs see the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crashing import Crash, Crashing
from torch import Tensor, nn

import calibcli
from calibcli.cli.app import main
from calibcli.lab.training import _state as state
from calibcli.lab.training._evaluation import EvaluationPlan, confidences_of_wrong, counted, gradient_norms
from calibcli.lab.training._loop import Trainer
from calibcli.lab.training.batches import Loader
from calibcli.lab.training.recipes import Recipe
from calibcli.networks import checkpoint, losses
from calibcli.networks.dataset import load

torch.set_num_threads(1)
DIGITS = str(Path(__file__).parent.parent / "sample_data" / "digits.npz")
SMALL = ("mlp:hidden=8", "--data", DIGITS, "--batch-size", "100", "--schedule", "constant", "--threads", "1")


class Net(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(5, 6), nn.Dropout(0.4), nn.Linear(6, 3, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.first(x).relu()))  # type: ignore[no-any-return]


def rows(n: int, seed: int) -> Loader:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return Loader.holding(x, (x[:, :3] + torch.randn(n, 3, generator=generator)).argmax(1))


def trainer(folder: Path | None, keep: Callable[[nn.Module, int], None], kind: type[Trainer] = Trainer) -> Trainer:
    torch.manual_seed(0)
    train, model = rows(60, 0), Net()
    evaluations = EvaluationPlan(
        every=2,
        rows={"train": train, "test": rows(40, 2)},
        snapshots=(1, 4),
        train=train,
        keep=lambda epoch: keep(model, epoch),
    )
    recipe = Recipe(epochs=5, batch_size=20, loss="focal:gamma=2", lr=0.05)
    return kind(model, recipe, train, rows(30, 1), folder=folder, save_every=2, evaluations=evaluations)


def content(model: nn.Module) -> bytes:
    return b"".join(t.detach().numpy().tobytes() for t in model.state_dict().values())


def test_a_resumed_run_looks_at_the_same(tmp_path: Path) -> None:
    kept: dict[int, bytes] = {}
    plain = trainer(None, lambda model, epoch: kept.update({epoch: content(model)}))
    history = plain.run()
    assert list(kept) == [1, 4]
    assert ["nll" in r for r in history] == ["train_ece" in r for r in history] == [False, True, False, True, True]
    assert ["snapshot" in r for r in history] == [True, False, False, True, False]
    for after in (1, 4, 11, 13):
        folder, again = tmp_path / str(after), dict[int, bytes]()
        folder.mkdir()

        def keep(model: nn.Module, epoch: int, into: dict[int, bytes] = again) -> None:
            into[epoch] = content(model)

        Crashing.after = after
        with pytest.raises(Crash):
            trainer(folder, keep, Crashing).run()
        resumed = trainer(folder, keep)
        if (folder / state.FILE).exists():
            resumed.resume()
        assert resumed.run() == history
        assert again == kept
        assert content(resumed.model) == content(plain.model)


def test_looking_changes_nothing() -> None:
    torch.manual_seed(0)
    bare = Trainer(Net(), Recipe(epochs=5, batch_size=20, loss="focal:gamma=2", lr=0.05), rows(60, 0), rows(30, 1))
    bare.run()
    looked = trainer(None, lambda model, epoch: None)
    looked.run()
    assert content(bare.model) == content(looked.model)


@pytest.mark.parametrize("spec", ["ce", "focal:gamma=3", "brier", "ce:alpha=1/2/3", "label_smoothing", "FLA-53"])
@pytest.mark.parametrize("bias", [True, False])
def test_gradient_norms_are_those_of_autograd(spec: str, bias: bool) -> None:
    torch.manual_seed(1)
    model, data, loss = Net(bias).eval(), rows(30, 3), losses.objective(spec).loss
    found = gradient_norms(model, loss, data)
    assert found is not None
    for i in range(30):
        x, y = data(torch.tensor([i]))
        slopes = torch.autograd.grad(loss(model(x), y).sum(), list(model.last.parameters()))
        assert found[i] == pytest.approx(float(torch.cat([s.flatten() for s in slopes]).norm()), rel=1e-5)


def test_a_layer_that_makes_no_logits_has_no_gradient_norms() -> None:
    class Scaled(Net):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    assert gradient_norms(Scaled(), losses.objective("ce").loss, rows(9, 0)) is None
    assert gradient_norms(nn.Conv1d(1, 3, 1), losses.objective("ce").loss, rows(9, 0)) is None


def test_histograms_count_every_row() -> None:
    z = np.random.default_rng(0).normal(size=(400, 3)) * 4
    y = np.random.default_rng(1).integers(0, 3, 400)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    wrong = p.max(1)[p.argmax(1) != y]
    assert confidences_of_wrong(z, y) == np.histogram(wrong, 20, (0, 1))[0].tolist()
    assert counted(np.array([0.0, 1e-12, 0.9, 1.1, 1e9])) == [2, *[0] * 29, 0, 1, 1, *[0] * 14, 1]


def fit(folder: Path, *argv: str) -> Any:
    path = folder.parent / f"{folder.name}.json"
    assert main(["fit", *SMALL, "--save", str(folder), *argv, "-o", str(path), "-q"]) == 0
    return json.loads(path.read_text())


def test_a_snapshot_is_the_checkpoint_of_a_shorter_run(tmp_path: Path, capsys: Any) -> None:
    more = "--snapshot", "1", "--snapshot", "3", "--log-rows", "train", "--log-rows", "test"
    long = fit(tmp_path / "long", "--epochs", "3", *more)
    fit(tmp_path / "short", "--epochs", "1")
    loaded = [checkpoint.load(str(tmp_path / name)) for name in ("long/epoch-1.safetensors", "short/model.safetensors")]
    assert content(loaded[0].model) == content(loaded[1].model)
    assert loaded[0].metadata["training"]["kept_epoch"] == loaded[0].metadata["training"]["trained_epochs"] == 1
    run = long["facts"]["runs"][0]
    assert [s["epoch"] for s in run["snapshots"]] == [1, 3]
    assert long["artefacts"]["epoch 3"].endswith("epoch-3.safetensors")
    assert {p["name"] for p in long["plots"]} >= {"wrong_1", "wrong_3", "gradients_1", "gradients_3"}
    for role, n in (("train", 200), ("test", 997)):
        assert (
            main(
                [
                    "logits",
                    str(tmp_path / "long/epoch-3.safetensors"),
                    "--data",
                    f"{DIGITS}#{role}",
                    "--save",
                    str(tmp_path / "z.npz"),
                    "-q",
                ]
            )
            == 0
        )
        found = calibcli.measure(tmp_path / "z.npz", None, "nll", "accuracy", "ece")
        assert found["nll"].n == n
        for name in ("nll", "accuracy", "ece"):
            assert run["last_epoch"][f"{role}_{name}"] == pytest.approx(found[name].value, abs=1e-6)
        wrong = sum(run["snapshots"][1]["wrong_confidence"][role])
        assert wrong == round(n * (1 - found["accuracy"].value))
    assert sum(run["snapshots"][1]["gradient_norms"]) == 200
    fit(tmp_path / "long", "--epochs", "2", "--snapshot", "2", "--overwrite")
    assert sorted(p.name for p in (tmp_path / "long").glob("epoch-*")) == ["epoch-2.safetensors"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--snapshot", "1"], 2, "--snapshot needs a folder"),
        (["--snapshot", "9", "--save", "{folder}"], 2, "--snapshot 9 is beyond the 2 epochs"),
        (["--snapshot", "0", "--save", "{folder}"], 2, "out of range"),
        (["--log-every", "2", "--keep", "best"], 2, "--log-every 2 leaves out epochs"),
        (["--log-every", "2", "--patience", "1"], 2, "--log-every 2 leaves out epochs"),
        (["--amp", "bf16", "--dtype", "float64"], 2, "--amp bf16 with --dtype float64"),
        (["--log-rows", "tests"], 2, "did you mean 'test'"),
        (["--log-rows", "test", "{bare}"], 2, "--log-rows test needs test rows"),
    ],
)
def test_what_is_refused(argv: list[str], code: int, said: str, tmp_path: Path, capsys: Any) -> None:
    data = load(f"{DIGITS}#train")
    np.savez(tmp_path / "bare.npz", x=data.batch(np.arange(200))[0].numpy(), labels=data.labels)
    folder = tmp_path / "run"
    argv = [a.format(folder=folder, bare=tmp_path / "bare.npz") for a in argv]
    small = [str(tmp_path / "bare.npz") if a == DIGITS and "bare" in "".join(argv) else a for a in SMALL]
    argv = [a for a in argv if not a.endswith("bare.npz")]
    assert main(["fit", *small, "--epochs", "2", *argv, "-q"]) == code
    assert said in capsys.readouterr().err
    assert not folder.exists()


def test_snapshots_that_the_disk_cannot_hold_are_refused(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 3000})
    monkeypatch.setattr("calibcli.lab.training._evaluation.shutil.disk_usage", lambda folder: usage)
    code = main(["fit", *SMALL, "--epochs", "2", "--snapshot", "1", "--snapshot", "2", "--save", str(tmp_path / "run")])
    assert code == 2
    assert "2 snapshots take" in capsys.readouterr().err
    assert main(["fit", *SMALL, "--epochs", "1", "--snapshot", "1", "--save", str(tmp_path / "run"), "-q"]) == 0
