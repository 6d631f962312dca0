"""Two processes against one, and processes that are killed. Children are forked: torch is loaded once."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from forks import ended, forked, ranks
from torch import nn

from calibcli.lab.training._loop import Trainer
from calibcli.lab.training.batches import Loader
from calibcli.lab.training.recipes import Recipe
from calibcli.networks import device, losses

torch.set_num_threads(1)
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def small(kind: str = "layer") -> tuple[nn.Module, Loader]:
    torch.manual_seed(0)
    norm: nn.Module = nn.LayerNorm(8) if kind == "layer" else nn.BatchNorm1d(8)
    model = nn.Sequential(
        nn.Linear(6, 8), norm, nn.Tanh(), nn.Dropout(0.2 if kind != "layer" else 0.0), nn.Linear(8, 3)
    )
    x = torch.randn(43, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return model.double(), Loader.holding(x, torch.arange(43) % 3)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["focal:gamma=2,alpha=1/2/0.5", "ce", "ce+trace:weight=0"])
def test_two_processes_are_one(tmp_path: Path, loss: str) -> None:
    """20 steps of a LayerNorm model on uneven shares (11 rows: 6 and 5; a last batch of 10)."""

    def work(out: str) -> None:
        model, rows = small()
        with device.process_group(torch.device("cpu")):
            Trainer(model, Recipe(loss=loss, epochs=5, batch_size=11, lr=0.1, clip_norm=1.0), rows).run()
        if device.rank() == 0:
            torch.save(model.state_dict(), tmp_path / out)

    children = ranks(lambda: work("two.pt"))
    work("one.pt")
    assert [ended(child) for child in children] == [0, 0]
    one, two = (torch.load(tmp_path / name, weights_only=True) for name in ("one.pt", "two.pt"))
    for name, weight in one.items():
        assert float((weight - two[name]).abs().max()) < 1e-12, name


def run(folder: Path, resume: bool = True) -> None:
    model, rows = small("batch")
    recipe = Recipe(loss="adafocal", epochs=12, batch_size=4, keep="best")
    trainer = Trainer(model, recipe, rows, rows, folder=folder, save_every=7)
    if resume and (folder / "state.pt").exists():
        trainer.resume()
    trainer.run()
    torch.save(model.state_dict(), folder / "end.pt")


def steps(folder: Path) -> list[dict[str, float]]:
    path = folder / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def wait_for_steps(folder: Path, count: int) -> None:
    limit = time.monotonic() + 60
    while len(steps(folder)) < count:
        assert time.monotonic() < limit
        time.sleep(0.001)


@pytest.mark.slow
def test_killed_twenty_times_ends_the_same(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    run(whole)
    rng = np.random.default_rng(0)
    killed = 0
    while killed < 20:
        child = forked(lambda: run(cut))
        try:
            wait_for_steps(cut, len(steps(cut)) + int(rng.integers(1, 10)))
        finally:
            os.kill(child, signal.SIGKILL)
        killed += ended(child) == -signal.SIGKILL
    run(cut)
    assert (cut / "end.pt").read_bytes() == (whole / "end.pt").read_bytes()
    assert (cut / "log.jsonl").read_bytes() == (whole / "log.jsonl").read_bytes()
    seen: set[int] = set()
    repeated = 0
    for line in [*steps(cut), {"start": 0}]:
        if "start" in line:  # a start after a kill repeats the steps since the last saved state
            assert repeated <= 7
            repeated = 0
        else:
            repeated += line["step"] in seen
            seen.add(int(line["step"]))
    assert seen == set(range(len(seen)))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_signals_save_first(tmp_path: Path, number: int, code: int) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    run(whole)
    child = forked(lambda: run(cut))
    wait_for_steps(cut, 25)
    os.kill(child, number)
    assert ended(child) == code
    assert not (cut / "end.pt").exists()
    run(cut)
    done = [line["step"] for line in steps(cut) if "step" in line]
    assert done == list(range(len(done)))  # nothing was repeated
    assert (cut / "end.pt").read_bytes() == (whole / "end.pt").read_bytes()


def test_mmce_and_batch_norm_are_said_to_be_per_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibcli.lab.training._one_model import _misfits

    model, _ = small("batch")
    parts: Any = SimpleNamespace(items=dict, classes=3)
    assert _misfits(Recipe(loss="mmce"), model, parts, None) == []
    monkeypatch.setenv("WORLD_SIZE", "2")
    notes = _misfits(Recipe(loss="mmce"), model, parts, None)
    assert len(notes) == 2
    assert any("batch-norm" in note for note in notes)
    assert losses.objective("mmce").penalties
