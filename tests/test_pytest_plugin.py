"""The fixture `calib_check`, in a pytest of its own: what passes, what fails, and what it says."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = """
import numpy as np
import pytest

rng = np.random.default_rng(0)
z = 3 * rng.normal(size=(3000, 3))
p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
y = (p.cumsum(1) < rng.random((3000, 1))).sum(1)

def test_good(calib_check):
    result = calib_check(z, y, max={"ece": 0.05}, min={"accuracy": 0.5})
    assert result["ece"].value < 0.05

def test_bad(calib_check):
    calib_check(0.2 * z, y, max={"ece": 0.05})

def test_few(calib_check):
    calib_check(z[:300], y[:300], max={"ece": 0.03})

def test_few_may_warn(calib_check):
    calib_check(z[:300], y[:300], max={"ece": 0.03}, on_inconclusive="warn")

def test_refused(calib_check):
    calib_check(z, y[:5], max={"ece": 0.03})
"""


def test_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_model.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "calibcli.api.pytest_plugin",
        "-rA",
        "-q",
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    said = {line.split("::")[1].split(" ")[0]: line.split(" ")[0] for line in ran.stdout.splitlines() if "py::" in line}
    assert said == {
        "test_good": "PASSED",
        "test_bad": "FAILED",
        "test_few": "FAILED",
        "test_few_may_warn": "PASSED",
        "test_refused": "FAILED",
    }, ran.stdout
    assert "surely above the limit" in ran.stdout
    assert "INCONCLUSIVE" in ran.stdout
    assert "pytest_plugin.py" not in ran.stdout.split("test_refused")[0]  # no traceback through the fixture


def test_the_entry_point_is_light() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"calib": "calibcli.api.pytest_plugin"}
    code = (
        "import sys, pytest; old = set(sys.modules); import calibcli.api.pytest_plugin; print(*set(sys.modules) - old)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    loaded = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert not {"numpy", "scipy", "torch", "matplotlib", "rich"} & {name.split(".")[0] for name in loaded.split()}
