"""The types of the public functions, as a program that uses them sees them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import calibcli

ROOT = Path(__file__).parent.parent
CONSUMER = ROOT / "tests" / "consumer.py"


def test_the_consumer_uses_every_public_name() -> None:
    text = CONSUMER.read_text(encoding="utf-8")
    assert [name for name in calibcli.__all__ if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.slow
def test_a_consumer_sees_no_error_and_no_any_by_mypy() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", str(CONSUMER)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.extra
def test_a_consumer_sees_no_error_and_no_any_by_pyright(tmp_path: Path) -> None:
    """By basedpyright, which brings all that it needs, in the mode in which pyright checks by default."""
    settings = {"include": [str(CONSUMER)], "typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "-p", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 errors, 0 warnings, 0 notes" in done.stdout  # it was found, and read
