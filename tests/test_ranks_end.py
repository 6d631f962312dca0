"""Two processes of which one is interrupted, dies, or no longer answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import json, os, signal, sys
from datetime import timedelta
sys.path.insert(0, {tests!r})
import torch
from curvature_models import setup
from calibcli import device
from calibcli.errors import CalibError
from calibcli.hessian import measure

name, calls = sys.argv[1], 0
device.WAIT = timedelta(seconds=8)

def progress(fraction, text):
    global calls
    calls += 1
    if calls == 6 and device.rank() == 1:
        os.kill(os.getpid(), getattr(signal, name))

model, inputs, labels = setup("silu", n=40)
try:
    with device.process_group(torch.device("cpu")):
        what = ("lambda_max:tol=1e-12", "density:steps=30,probes=2")
        found = measure(model, (inputs, labels), *what, progress=progress)
except CalibError as error:
    sys.exit(f"error: {{error}}")
print(json.dumps([found.facts["interrupted"], calls, [e.value for e in found.estimates]]))
"""


def ranks(tmp_path: Path, name: str) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of rank 0, then of rank 1, which is sent the signal `name` after six products."""
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    common["PYTHONPATH"] = str(Path(__file__).parent.parent)
    both = [
        subprocess.Popen(
            [sys.executable, str(script), name],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = both[0].communicate(timeout=240)
        if name == "SIGSTOP":
            both[1].kill()
        other = both[1].communicate(timeout=60)
    finally:
        for one in both:
            one.kill()
    return [(both[0].returncode, *said), (both[1].returncode, *other)]


def test_an_interrupt_of_one_stops_both_with_the_same_numbers(tmp_path: Path) -> None:
    (code, one, err), (other_code, other, _) = ranks(tmp_path, "SIGINT")
    assert (code, other_code) == (0, 0), err
    assert one == other
    kind, calls, values = json.loads(one)
    assert kind == "KeyboardInterrupt"
    assert calls < 20
    assert values[0] > 0


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
def test_one_that_is_gone_ends_the_other_with_one_error(tmp_path: Path, name: str) -> None:
    """At once, or after the time that is waited for an answer (30 minutes, here 8 seconds)."""
    began = time.monotonic()
    (code, out, err), _ = ranks(tmp_path, name)
    assert (code, out) == (1, "")
    assert "rank 0 waited in vain for another process of this launch" in err
    assert "Traceback" not in err
    assert time.monotonic() - began < 200
