"""action.yml, the pre-commit hooks and the example pipelines: well-formed, and what a gate writes for them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from calibcli.cli.app import main
from calibcli.core.result import Check, Result
from calibcli.gate.config import load

ROOT = Path(__file__).parent.parent
FILES = ["action.yml", ".pre-commit-hooks.yaml", "examples/ci/github.yml", "examples/ci/gitlab-ci.yml"]


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
    assert [gate.metric for gate in config.gates] == ["ece", "accuracy", "ece", "brier"]
    assert all(gate.line for gate in config.gates)
    tomllib.loads((ROOT / "examples/ci/calib.toml").read_text())


def test_a_baseline_without_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first night: rows are kept, nothing is judged, whatever calib.toml says; a FAIL keeps the old file."""
    test, base = str(ROOT / "sample_data" / "test.npz"), tmp_path / "base.json"
    rules = tmp_path / "calib.toml"
    rules.write_text(f'schema = 1\n[[gate]]\nmetric = "nll"\nbaseline = "{base}"\nmargin = 0.0\n')
    save = ["--config", str(rules), "--save-baseline", str(base), "--json"]
    assert main(["check", test, *save]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert "rows" not in printed["facts"]
    assert printed["artefacts"] == {"baseline": str(base)}
    assert printed["checks"] == []
    written = base.read_bytes()
    assert json.loads(written)["provenance"]["inputs"][0]["path"] == test
    assert main(["check", test, "--baseline", str(base), "--margin", "nll=0.5", "-q"]) == 0
    assert main(["check", test, "--max", "ece=0.001", *save, "-q"]) == 1
    assert base.read_bytes() == written
    assert main(["check", test, "--max", "ece=0.5", *save, "-q"]) == 0
    assert len(json.loads(base.read_bytes())["checks"]) == 1
    capsys.readouterr()
    assert main(["check", test, "--baseline", str(base), "--save-baseline", str(base)]) == 2  # over an input
    assert main(["check", test, "--save-baseline", str(tmp_path / "b.npz")]) == 2
    assert "use the suffix .json" in capsys.readouterr().err


def test_a_folder_of_reports_without_matplotlib(tmp_path: Path) -> None:
    """A light install has none: the picture is left out of the folder, in words it is in the summary."""
    code = (
        "import importlib.util as u, sys; found = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'matplotlib' else found(name, *a);"
        "sys.modules['matplotlib'] = None;"
        "from calibcli.cli.app import main; sys.exit(main(sys.argv[1:]))"
    )
    line = ["check", str(ROOT / "sample_data" / "test.npz"), "--max", "ece=0.5", "-q", "-o", f"{tmp_path / 'r'}/"]
    done = subprocess.run(
        [sys.executable, "-c", code, *line], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "reliability.png" not in {p.name for p in (tmp_path / "r").iterdir()}
    assert "eliability of the top label" in (tmp_path / "r" / "summary.md").read_text()


def test_passes_are_one_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    test = str(ROOT / "sample_data" / "test.npz")
    rules = ["--max", "ece=0.2", "--min", "accuracy=0.5", "--max", "nll=5"]
    assert main(["check", test, *rules, "--format", "github", "-q"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["calib check", "passed", "PASS"]
    assert lines[1].count(";") == 2
    assert "accuracy >= 0.5: 0.911 [0.894, 0.925]" in lines[1]
    many = [a for i in range(12) for a in ("--max", f"nll={5 + i}")]
    assert main(["check", test, *many, "--format", "github", "-q"]) == 0
    assert "; 3 more\n" in capsys.readouterr().out


def test_the_badge() -> None:
    from calibcli.render.formats import badge

    base = {"schemaVersion": 1, "label": "calibration"}
    wanted = {"pass": "brightgreen", "fail": "red", "inconclusive": "yellow", "not_run": "red"}
    for outcome, color in wanted.items():
        made = json.loads(badge.render(Result(command="check", checks=[Check(rule="r", outcome=outcome)])))  # type: ignore[arg-type]
        assert made == {**base, "message": outcome.replace("_", " "), "color": color}
    assert badge.OF_CHECKS  # a folder of reports gets none where nothing was judged
