"""The committed sample data are what make.py makes, small, and as their README says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_sample_data_are_small() -> None:
    assert sum(p.stat().st_size for p in (ROOT / "sample_data").iterdir() if p.is_file()) < 2_000_000


@pytest.mark.docs
def test_make_check_agrees() -> None:
    pytest.importorskip("sklearn")
    done = subprocess.run(
        [sys.executable, "sample_data/make.py", "--check"], cwd=ROOT, capture_output=True, text=True, env=ENV
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("6 files")


def test_every_file_is_described() -> None:
    text = (ROOT / "sample_data" / "README.md").read_text()
    for path in (ROOT / "sample_data").iterdir():
        if path.is_file() and path.name not in ("make.py", "README.md"):
            assert f"`{path.name}`" in text, path.name
