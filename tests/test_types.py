"""The types of the public functions, as a program that uses them sees them."""

from __future__ import annotations

import re
import shutil
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
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_a_consumer_sees_no_error_and_no_any(checker: str) -> None:
    if checker == "pyright" and shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    command = [sys.executable, "-m", "mypy", "--strict"] if checker == "mypy" else ["pyright"]
    done = subprocess.run([*command, str(CONSUMER)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
