"""Training on a device: every loss and penalty ends with the CPU's numbers, and cuDNN stays on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pretend
import pytest
import torch
from both import CUDA, K, command, spec

from calibcli.cli.app import main
from calibcli.lab.training._loop import Trainer
from calibcli.lab.training.batches import Loader
from calibcli.lab.training.recipes import Recipe
from calibcli.networks.architectures import build
from calibcli.networks.losses import LOSSES, PENALTIES

SPECS = [spec(entry.name) for entry in LOSSES]
SPECS += [f"ce+{spec(entry.name)}" for entry in PENALTIES] + ["ce+trace:weight=0.01,kind=ggn"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 small pictures of four classes."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % K
    x = rng.normal(size=(400, 1, 6, 6)) + y[:, None, None, None] * 0.5
    path = tmp_path_factory.mktemp("data") / "rows.npz"
    np.savez(path, inputs=x.astype(np.float32), labels=y)
    return path


def fit(rows: Path, *argv: object, arch: str = "mlp:hidden=8") -> list[object]:
    return ["fit", arch, "--data", rows, "--epochs", "2", "--batch-size", "80", "--lr", "0.05", *argv]


@pytest.mark.parametrize("loss", SPECS)
def test_every_loss_and_penalty(capsys: pytest.CaptureFixture[str], rows: Path, loss: str) -> None:
    command(capsys, *fit(rows, "--loss", loss), tolerance=1e-4)


@pytest.mark.parametrize(
    "argv", [["--dtype", "float64"], ["--optimizer", "adamw", "--clip-norm", "1"], ["--keep", "best"]]
)
def test_options(capsys: pytest.CaptureFixture[str], rows: Path, argv: list[str]) -> None:
    command(capsys, *fit(rows, *argv, arch="cnn:widths=4/4"), tolerance=1e-4)


def test_what_is_saved_is_read_again(capsys: pytest.CaptureFixture[str], rows: Path, tmp_path: Path) -> None:
    """`fit --save` on the device, then its checkpoint through `logits` and `curvature` on both."""
    assert main([*map(str, fit(rows, "--loss", "FLSD-53", "--save", tmp_path / "run", "--device", "cuda"))]) == 0
    capsys.readouterr()
    model = tmp_path / "run" / "model.safetensors"
    command(capsys, "curvature", model, "--data", rows, "-w", "lambda_max", "-w", "trace")
    made = []
    for device in ("cpu", "cuda"):
        saved = tmp_path / f"{device}.npz"
        assert main(["logits", str(model), "--data", str(rows), "--save", str(saved), "--device", device, "-q"]) == 0
        with np.load(saved) as arrays:
            made.append(arrays["logits"])
    np.testing.assert_allclose(made[1], made[0], rtol=1e-5, atol=1e-6)


def test_cudnn_is_on_and_deterministic_within_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], rows: Path
) -> None:
    seen: list[tuple[bool, ...]] = []
    run = Trainer.run

    def modes() -> tuple[bool, ...]:
        cudnn = torch.backends.cudnn
        return cudnn.enabled, cudnn.deterministic, torch.are_deterministic_algorithms_enabled()

    def looked(self: Any, *args: Any, **options: Any) -> Any:
        seen.append(modes())
        return run(self, *args, **options)

    monkeypatch.setattr(Trainer, "run", looked)
    assert main([*map(str, fit(rows)), "--device", "cuda", "-q"]) == 0
    capsys.readouterr()
    assert seen == [(True, True, True)]
    assert modes() == (True, False, False)


@pytest.mark.pretended
def test_a_step_does_not_wait() -> None:
    """An epoch of ten times as many waits as often: losses are looked at all at once."""
    waits = []
    for steps in (4, 40):
        loader = Loader.holding(torch.randn(4 * steps, 5).to(CUDA), (torch.arange(4 * steps) % 3).to(CUDA))
        model = build("mlp:inputs=5,hidden=4,classes=3").to(CUDA)
        trainer = Trainer(model, Recipe(epochs=1, batch_size=4), loader, save_every=1000)
        pretend.reset()
        trainer.run()
        waits.append(pretend.syncs())
    assert waits[0] == waits[1] <= 10
