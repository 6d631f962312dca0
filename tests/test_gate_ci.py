"""action.yml, the pre-commit hooks and the example pipelines: well-formed, and their shell does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.gate.config import load

ROOT = Path(__file__).parent.parent
FILES = ["action.yml", ".pre-commit-hooks.yaml", "examples/ci/github.yml", "examples/ci/gitlab-ci.yml"]


def scripts(text: str) -> list[str]:
    """The `run: |` blocks of a YAML file, without their indent."""
    found = []
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if re.fullmatch(r"\s*(- )?run: \|", line):
            indent = len(lines[i + 1]) - len(lines[i + 1].lstrip())
            block = []
            for inner in lines[i + 1 :]:
                if inner.strip() and len(inner) - len(inner.lstrip()) < indent:
                    break
                block.append(inner[indent:])
            found.append("\n".join(block))
    return found


@pytest.mark.parametrize("name", FILES)
def test_yaml_parses(name: str) -> None:
    yaml = pytest.importorskip("yaml")
    data: Any = yaml.safe_load((ROOT / name).read_text())
    if name == "action.yml":
        assert data["runs"]["using"] == "composite"
        for step in data["runs"]["steps"]:
            assert step["shell"] == "bash"  # which composite actions require
            assert "${{" not in step["run"]  # inputs reach the shell through the environment only
        assert all({"description"} <= set(i) for i in data["inputs"].values())
    if name == ".pre-commit-hooks.yaml":
        for hook in data:
            assert {"id", "name", "entry", "language"} <= set(hook)
            assert re.compile(hook["files"]).search("models/calib.toml")
    if name.endswith("github.yml"):
        assert data["jobs"]["calibration"]["steps"][0]["uses"].startswith("actions/checkout@")
    if name.endswith("gitlab-ci.yml"):
        assert data["calibration"]["artifacts"]["reports"] == {
            "junit": "calib-report/junit.xml",
            "metrics": "calib-report/metrics.txt",
        }


@pytest.mark.parametrize("name", FILES)
def test_no_tabs_and_even_indents(name: str) -> None:
    for line in (ROOT / name).read_text().splitlines():
        assert "\t" not in line
        assert (len(line) - len(line.lstrip())) % 2 == 0, line


def test_example_rules_load() -> None:
    config = load(ROOT / "examples/ci/calib.toml")
    assert [gate.metric for gate in config.gates] == ["ece", "accuracy", "ece", "temperature_gain"]
    assert all(gate.line for gate in config.gates)
    tomllib.loads((ROOT / "examples/ci/calib.toml").read_text())


@pytest.mark.parametrize(("limit", "code"), [("0.5", 0), ("0.001", 3)])
def test_the_action_checks_reports_and_exits(limit: str, code: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(1000, 3))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((1000, 1))).sum(1)
    np.savez(tmp_path / "t.npz", logits=z, labels=labels)
    check = scripts((ROOT / "action.yml").read_text())[1]
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", check],
        cwd=tmp_path,
        env={
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "PYTHONPATH": str(ROOT),
            "CALIB_INPUT": "t.npz",
            "CALIB_ARGS": f"--max ece={limit}",
            "CALIB_OUTPUT": "report",
            "GITHUB_OUTPUT": str(tmp_path / "outputs"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "step"),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    assert f"exit-code={code}\n" in (tmp_path / "outputs").read_text()
    assert {"result.json", "summary.md", "junit.xml", "metrics.txt", "badge.json"} <= {
        p.name for p in (tmp_path / "report").iterdir()
    }
    assert (tmp_path / "step").read_text() == (tmp_path / "report" / "summary.md").read_text()
    assert ("::error" in done.stdout) == (code != 0)


@pytest.mark.parametrize("name", ["action.yml"])
def test_shell_is_well_formed(name: str) -> None:
    for script in scripts((ROOT / name).read_text()):
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0
