"""Without PyTorch, as calibcli-core installs it: what runs, and what says which package it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from calibcli.cli import COMMANDS

ROOT = Path(__file__).parent.parent
SAMPLES = ROOT / "sample_data"
TEST, VALIDATION, MODEL = (str(SAMPLES / name) for name in ("test.npz", "validation.npz", "model.pt"))
RUN = [
    f"metrics {TEST} -o page.html -o picture.png",
    f"metrics {TEST} --partial state.npz",
    "merge state.npz",
    f"scale {VALIDATION} --test {TEST} --method temperature --save map.safetensors -o scale.json",
    f"apply map.safetensors {TEST} --save calibrated.npz",
    "check calibrated.npz --max ece=0.5 -o check.json",
    f"compare {TEST} calibrated.npz",
    "plan --max ece=0.05 --accuracy 0.9",
    f"slices {TEST}",
    f"watch night.state {TEST} --max ece=0.5",
    f"ood {VALIDATION} {TEST}",
    f"threshold {TEST} --max-risk 0.05 --save t.json",
    "report check.json scale.json",
    "list",
    "list metrics",
    "list temperature",
    f"inspect {TEST}",
    f"init {TEST} --save new.toml",
    f"inspect {SAMPLES / 'model.safetensors'}",
    "export map.safetensors --to json -o map.json",
    f"export map.safetensors --to card --data {TEST} -o card.md",
    f"verify map.json --with map.safetensors --data {TEST}",
    "completion bash",
    "help metrics",
    "demo --save tour",
]
NEED = [
    f"logits {MODEL} --save out.npz",
    f"curvature {MODEL}",
    f"fit {MODEL} --save fit",
    "study overfit --save study",
    f"inspect {MODEL}",
    f"metrics {MODEL}",
    "list losses",
    "export map.safetensors --to pt2 -o map.pt2",
    "export map.safetensors --to torchscript -o map.pt",
    f"export map.safetensors --to checkpoint --model {MODEL} -o folded.pt",
]
PROGRAM = """
import json, sys, contextlib, io
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch" and WAY == "missing":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
WAY, lines = sys.argv[1], json.loads(sys.argv[2])
sys.meta_path.insert(0, Missing())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if (name, WAY) == ("torch", "missing") else find_spec(name, *rest)
from calibcli.cli.app import main
for line in lines:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = main(line.split())
    print(json.dumps([line, code, errors.getvalue()]))
"""


def outcomes(way: str, lines: list[str], folder: Path) -> dict[str, tuple[int, str]]:
    """Exit code and stderr of command lines, where PyTorch is missing, or lies on the path and fails if imported."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder / "site")]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", PROGRAM, way, json.dumps(lines)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]  # the tour prints more
    return {line: (code, said) for line, code, said in told}


def test_every_command_is_here() -> None:
    assert {line.split()[0] for line in RUN + NEED} == {*COMMANDS, "help"}


@pytest.mark.slow
def test_these_never_import_it(tmp_path: Path) -> None:
    """A file `torch.py` that fails when it is imported lies on the path; the tour leaves out what needs PyTorch."""
    found = outcomes("broken", [line for line in RUN if not line.startswith(("demo", "list"))], tmp_path)
    assert {line: outcome for line, outcome in found.items() if outcome[0]} == {}
    assert "torch was imported" not in str(found)


def test_these_run_without_it(tmp_path: Path) -> None:
    found = outcomes("missing", [line for line in RUN if line.startswith(("list", "demo"))], tmp_path)
    assert {line: outcome for line, outcome in found.items() if outcome[0]} == {}
    assert "not listed without PyTorch: quantities, losses" in " ".join(found["list"][1].split())


def test_the_others_say_what_they_need(tmp_path: Path) -> None:
    fit = f"scale {VALIDATION} --method temperature --save map.safetensors"
    found = outcomes("missing", [fit, *NEED], tmp_path)
    assert found.pop(fit)[0] == 0
    assert {line: outcome for line, outcome in found.items() if outcome[0] != 2} == {}
    assert [line for line, (_, said) in found.items() if "fix: pip install torch" not in said] == []
