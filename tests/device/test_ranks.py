"""Two processes, each on its own device, against one: `fit --save` and `curvature` by the launch of torchrun.

On two real devices (with NCCL) where there are so many, else on pretended ones.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pretend
import pytest
import torch
from pretend import build

from calibcli.cli.app import main

REAL = build.has_cuda()
pytestmark = pytest.mark.skipif(REAL and torch.cuda.device_count() < 2, reason="one CUDA device")
SAMPLE = Path(__file__).parents[2] / "sample_data"
SECONDS = 300  # until a rank that waits for the other in vain is ended
RANK = f"""
import sys, pretend
{"" if REAL else "pretend.load()"}
from calibcli.cli.app import main
sys.exit(main(sys.argv[1:]))
"""


def ranks(out: Path, *argv: str) -> dict[str, Any]:
    """The JSON of the first of two ranks. They are started, not forked: autograd has threads on a device."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    path = os.pathsep.join([str(Path(__file__).parent), str(SAMPLE.parent)])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, *argv, "--json"],
            env=os.environ | group | {"RANK": str(rank), "LOCAL_RANK": str(rank), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [child.communicate(timeout=SECONDS) for child in children]
    finally:
        for child in children:
            child.kill()
    assert [child.returncode for child in children] == [0, 0], "".join(err for _, err in said)
    return json.loads(said[0][0])  # type: ignore[no-any-return]


def values(result: dict[str, Any]) -> list[float]:
    return [e["value"] for e in result["estimates"]]


def test_there_are_two_devices() -> None:
    assert torch.cuda.device_count() >= 2


def test_fit_saves_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.npz"
    rng = np.random.default_rng(0)
    np.savez(rows, inputs=rng.normal(size=(300, 8)), labels=np.arange(300) % 3)
    argv = ["fit", "mlp:hidden=8", "--data", str(rows), "--epochs", "2", "--dtype", "float64", "--device", "cuda"]
    assert main([*argv, "--save", str(tmp_path / "one"), "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    two = ranks(tmp_path, *argv, "--save", str(tmp_path / "two"))
    assert values(two) == pytest.approx(values(one), rel=1e-9)
    assert (tmp_path / "two" / "model.safetensors").exists()
    assert {p.name for p in (tmp_path / "two").iterdir()} == {p.name for p in (tmp_path / "one").iterdir()}


def test_curvature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    what = ["-w", "lambda_max", "-w", "trace", "-w", "grad_norm"]
    argv = ["curvature", str(SAMPLE / "model.safetensors"), *what, "--device", "cuda", "--dtype", "float64"]
    assert main([*argv, "--json"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert values(ranks(tmp_path, *argv)) == pytest.approx(values(one), rel=1e-6)
    assert REAL or pretend.refused() == 0


def test_two_ranks_on_one_device_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="is one device for 2 processes"):
        ranks(tmp_path, "curvature", str(SAMPLE / "model.safetensors"), "-w", "grad_norm", "--device", "cuda:0")
