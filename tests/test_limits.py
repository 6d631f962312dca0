"""`--time-limit` and `--memory-limit` end a command with exit code 4, say what it was at, and leave no half files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli import limits
from calibcli.cli.app import main

ROOT = Path(__file__).parent.parent
TEST = str(ROOT / "sample_data" / "test.npz")


def calib(*line: str, script: str = "") -> tuple[int, str]:
    command = [sys.executable, *(["-c", script] if script else ["-m", "calibcli", *line])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr


def test_a_run_that_takes_too_long_ends_and_says_what_it_was_at(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", logits=rng.normal(size=(400_000, 10)), labels=rng.integers(10, size=400_000))
    output = tmp_path / "result.json"
    code, said = calib("scale", str(tmp_path / "rows.npz"), "--method", "all", "-o", str(output), "--time-limit", "4")
    assert code == 4
    assert re.search(r"error: the time limit has passed while \w", said), said
    assert "fix: raise --time-limit, or use a smaller input" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.npz"]


def test_code_that_does_not_come_back_is_ended_with_the_process() -> None:
    """As a library does that loops in C, where no signal is seen."""
    script = """
import signal, time
from calibcli.cli import limits
limits.GRACE = 0.5
signal.signal(signal.SIGALRM, lambda *_: None)
limits.start(0.2, None)
end = time.time() + 60
while time.time() < end:
    time.sleep(0.1)
"""
    start = time.time()
    code, said = calib(script=script)
    assert code == 4
    assert "the time limit has passed" in said
    assert time.time() - start < 30


def test_memory_beyond_the_limit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "rows.npz", logits=rng.normal(size=(400_000, 10)), labels=rng.integers(10, size=400_000))
    code, said = calib("scale", str(tmp_path / "rows.npz"), "--method", "matrix", "--memory-limit", "0.15")
    assert code == 4
    assert "more than the 0.15 GB of --memory-limit are needed while" in said or "GB allowed here" in said
    assert "fix: " in said


def test_a_limit_below_what_the_interpreter_takes(capsys: Any) -> None:
    assert main(["metrics", TEST, "--memory-limit", "0.011"]) == 2
    said = capsys.readouterr().err
    fix = re.search(r"pass --memory-limit ([\d.]+) or more", said)
    assert fix is not None
    assert main(["metrics", TEST, "--memory-limit", str(2 * float(fix[1]))]) == 0


def test_limits_end_with_their_command(capsys: Any) -> None:
    """Python, or a test, that calls a command goes on afterwards."""
    assert main(["metrics", TEST, "--time-limit", "500", "--memory-limit", "1000"]) == 0
    assert limits._ended.is_set()
    assert limits.memory._most is None
    capsys.readouterr()


@pytest.mark.parametrize("name", ["--time-limit", "--memory-limit"])
def test_every_command_that_opens_files_takes_them(name: str, capsys: Any) -> None:
    import importlib

    from calibcli.cli import COMMANDS

    without = [
        c
        for c in COMMANDS
        if not any(name in one.flags for one in importlib.import_module(f"calibcli.cli.{c}").command.options.values())
    ]
    assert without == ["completion", "demo"]
