"""The saved state of a run of curvature: one that is killed anywhere goes on to the same bytes; what is not ours stays."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from curvature_models import setup
from forks import ended, forked

import calibcli
from calibcli.core.result import Result
from calibcli.networks.curvature import saved_state
from calibcli.networks.curvature.saved_state import State

ALL = ("lambda_max", "lambda_min", "top", "trace", "trace_ggn", "density:steps=12,probes=2", "grad_norm")
ASKED = {
    "cnn": ALL,
    "relu": (*ALL, "trace after", "fisher_rao", "adaptive_lambda after"),
    "attention": ("trace", "lambda_max", "density:steps=12,probes=2"),
    "gru": ("lambda_max_ggn:by=differences", "top_ggn:by=differences,k=2", "trace:precision=0.05"),
    "mlp": ("trace:exact=true", "lambda_max"),
}


def measured(name: str, folder: Path | None = None, **more: Any) -> Result:
    model, inputs, labels = setup(name)
    options: dict[str, Any] = {"dtype": "float64", "device": "cpu", "save_state": folder}
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


@pytest.mark.one_in(5)
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
