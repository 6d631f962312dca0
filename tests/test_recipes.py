"""The recipes of CONTRIBUTING.md, followed to the letter in a copy: one file and one entry each, and it is there.

Without the entry, or without the docs, the suite fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs
ROOT = Path(__file__).parent.parent
REGISTRIES = {
    "metric": ("metrics", "sharpness", "metrics/registry.py"),
    "scaler": ("methods", "shares", "calibrators/calibrator.py"),
    "loss": ("losses", "spherical", "networks/losses/registry.py"),
    "architecture": ("architectures", "logistic", "networks/architectures/registry.py"),
}
"""Kind: what `calib list` calls it, the entry of the recipe, and the file that defines the registry."""

# what must hold of each kind: the entry is there, its value is the oracle's, and the docs have it
TESTS = {
    "metric": ["test_metrics_oracles.py::test_every_metric_has_an_oracle"],
    "scaler": ["test_scalers_oracles.py::test_every_method_has_an_oracle"],
    "loss": ["test_losses.py::test_every_loss_has_a_formula"],
    "architecture": ["test_architectures.py::test_every_architecture_has_its_count"],
    "input format": ["test_formats.py::test_every_input_format_has_another_program"],
    "output format": ["test_formats.py::test_every_output_format_has_another_program"],
    "command": [
        "test_outputs_never_replace_inputs.py::test_every_command_and_every_path_is_in_the_table",
        "test_app.py::test_every_command_is_in_the_table_of_the_readme[labels]",
    ],
}
VALUES = {
    "metric": ["test_metrics_oracles.py::test_metric_equals_its_oracle[sharpness]"],
    "scaler": ["test_scalers_oracles.py::test_method_equals_its_oracle[shares]"],
    "loss": ["test_losses.py::test_every_loss_against_its_formula[spherical]"],
    "architecture": ["test_architectures.py::test_parameter_counts[logistic:inputs=12,classes=5]"],
    "input format": ["test_formats.py::test_what_others_write_is_read[f64]"],
    "output format": ["test_formats.py::test_what_is_written_others_read[org]"],
    "command": [
        "test_app.py::test_every_command_has_help_with_an_example[labels]",
        "test_outputs_never_replace_inputs.py::test_every_command_takes_sets_of_files_or_networks",
    ],
}
SAID = {
    "metric": "metrics sharpness",
    "scaler": "methods shares",
    "loss": "losses spherical",
    "architecture": "architectures logistic",
    "input format": "formats read f64",
    "output format": "formats written org",
}
"""What test_docstrings.py calls it: it holds the docstrings of the recipes to what it holds all others to."""
DOCS = {
    "metric": ("metrics.md", "README.md", "CHANGELOG.md"),
    "scaler": ("scale.md",),
    "loss": ("losses.md",),
    "architecture": ("architectures.md",),
    "input format": ("formats.md",),
    "output format": ("formats.md",),
}
SAME_DOCS = "test_list.py::test_the_tables_of_the_docs_are_those_of_the_registries[{}]"
EXPORT = """
import calibcli
from calibcli.ship import TARGETS
rows = "sample_data/test.npz"
fit = calibcli.fit_scaler(rows, spec="shares")
missing = {"onnx"}  # packages that few have
refused = {"checkpoint", "vllm", "card"}  # not linear in the logits; a page about a model
for target in TARGETS:
    if target.name not in missing | refused:
        suffix = target.traits.suffixes[0]
        calibcli.export(fit, target.name, save=f"shares-{target.name}{suffix}", data=rows)
        shown = calibcli.verify(f"shares-{target.name}{suffix}", fit, rows, trust=True)
        print(target.name, shown.verdict)
"""
"""Every target that needs no extra package holds the scaler of the recipe, and runs as calib says it does."""
LIST = """
import json, sys
from calibcli.cli.app import main
for argv in sys.argv[1:]:
    print("$", argv, flush=True)
    assert main(argv.split()) == 0
"""

METRIC = """
import json
import numpy as np
import calibcli
from calibcli.scores.columns import columns
from calibcli.lab.study import _readings as readings

name = "sharpness"
with np.load("sample_data/test.npz") as file:
    z, y = file["logits"], file["labels"]
whole = calibcli.measure(z, y, name)[name]
parts = [calibcli.Accumulator().update(z[i::3], y[i::3]) for i in range(3)]
merged = parts[0].merge(*parts[1:]).result(name)[name]
rows = columns(calibcli.from_arrays(z, y), class_bins=())
models = [calibcli.from_arrays(s * z, y) for s in (1, 0.8)]
gate = calibcli.check(calibcli.from_arrays(z, y), max={name: whole.high + 0.001})
difference = calibcli.compare(*models, metrics=[name]).estimates[0]
found = {
    "whole": whole.value,
    "merged": [merged.value, merged.low, merged.high, merged.detail],
    "interval": [whole.low, whole.high],
    "gate": str(gate.verdict),
    "difference": [difference.value, difference.how, difference.low < difference.value < difference.high],
    "study": name in readings.names(),
    "redrawn": readings.sums(name, rows).value,
}
print(json.dumps(found))
"""
"""What merges, gates, comparisons and studies make of the metric of the recipe, which says nothing of them."""


@dataclass(frozen=True)
class Block:
    """A block of code: the file that it makes, or in which it stands after the line that begins with `after`."""

    path: str
    after: str
    text: str


def recipes() -> dict[str, list[Block]]:
    """Kind of thing: its blocks."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    adding = text[text.index("## Adding things") : text.index("## Rules of the house")]
    block = re.compile(r"`([\w/.]+)`(?:, in `([^`]+)`)?:\n\n```(?:python)?\n(.*?)```\n", re.S)
    parts = re.split(r"(?m)^### An? ", adding)[1:]
    return {
        part.partition("\n")[0]: [Block(path, after or "", code) for path, after, code in block.findall(part)]
        for part in parts
    }


def found_by_name(kind: str) -> bool:
    """Whether a new file is loaded: formats and commands are, a registry if it says from which package."""
    return kind not in REGISTRIES or "package=" in (ROOT / "calibcli" / REGISTRIES[kind][2]).read_text(encoding="utf-8")


KINDS = [kind for kind in recipes() if found_by_name(kind)]


def place(copy: Path, block: Block) -> None:
    """Do what the recipe says."""
    path = copy / block.path
    if not block.after:
        assert not path.exists()
        path.write_text(block.text, encoding="utf-8")
        return
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    [at] = [i for i, line in enumerate(lines) if re.match(re.escape(block.after) + r"(:.*\{| = \{)?$", line)]
    at += 2 if block.after.startswith("|") else 1  # below the rule under a table's head
    path.write_text("".join([*lines[:at], block.text, *lines[at:]]), encoding="utf-8")


def python(copy: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{copy}{os.pathsep}{copy / 'tests'}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *argv], cwd=copy, env=environment, capture_output=True, text=True, encoding="utf-8"
    )


def outcomes(copy: Path, tests: list[str]) -> dict[str, str]:
    """`PASSED`, `FAILED` or `ERROR` of each of these tests, run in the copy."""
    argv = ["-m", "pytest", "-m", "not extra", "-rA", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = python(copy, *argv, *(f"tests/{test}" for test in tests))
    said = re.findall(r"(?m)^(PASSED|FAILED|ERROR) tests/(.+?)(?: - .*)?$", done.stdout)
    assert len(said) == len(tests), done.stdout + done.stderr
    return {test: outcome for outcome, test in said}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with one new file of each kind; entries and docs are still to be written."""
    folder = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__", "device")
    for name in ("calibcli", "tests", "docs", "sample_data"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder)
    for kind in KINDS:
        place(folder, recipes()[kind][0])
    return folder


def test_every_kind_has_a_recipe_of_one_file_and_its_entry() -> None:
    assert [*recipes()] == KINDS
    assert set(recipes()) == set(TESTS) == set(VALUES) == {*DOCS, "command"}
    for blocks in recipes().values():
        assert [bool(block.after) for block in blocks][:2] == [False, True]
        assert all(block.after for block in blocks[1:])


def test_recipes_followed_to_the_letter(copy: Path) -> None:
    """Forgetting everything but the file fails; then entries and docs are written, and all of it passes."""
    wanted = [test for kind in KINDS for test in TESTS[kind]]
    docs = sorted({SAME_DOCS.format(page) for kind in KINDS for page in DOCS.get(kind, ())})
    assert outcomes(copy, wanted + docs) == dict.fromkeys(wanted + docs, "FAILED")

    for kind in KINDS:
        for block in recipes()[kind][1:]:
            place(copy, block)
    files = [str(copy / block.path) for kind in KINDS for block in recipes()[kind] if not block.after]
    for task in (["check"], ["format", "--check"]):
        linted = python(copy, "-m", "ruff", *task, "--config", str(ROOT / "pyproject.toml"), *files)
        assert linted.returncode == 0, linted.stdout + linted.stderr
    written = python(copy, "tests/registry_tables.py")
    assert written.returncode == 0, written.stderr
    wanted += docs + [test for kind in KINDS for test in VALUES[kind]]
    wanted += [f"test_docstrings.py::test_the_example_is_true[{SAID[kind]}]" for kind in KINDS if kind in SAID]
    sources = {"formats": "a_format_says_its_source_and_errors"}
    for said in (SAID[kind] for kind in KINDS if kind in SAID):
        test = sources.get(said.split()[0], "an_entry_says_its_source_unit_and_errors")
        wanted.append(f"test_docstrings.py::test_{test}[{said}]")
    assert outcomes(copy, wanted) == dict.fromkeys(wanted, "PASSED")

    exported = python(copy, "-c", EXPORT)
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout.split("\n")[:-1] == [f"{name} pass" for name in ("json", "pt2", "sklearn", "torchscript")]

    # what users see
    asked = {kind: REGISTRIES[kind][:2] for kind in KINDS if kind in REGISTRIES}
    lines = [f"list {registry}" for registry, _ in asked.values()] + [
        f"list {name} --json" for _, name in asked.values()
    ]
    lines += [
        "list formats",
        "labels sample_data/test.npz --json",
        "labels sample_data/test.npz --format org",
        "--help",
    ]
    shown = python(copy, "-c", LIST, *lines)
    assert shown.returncode == 0, shown.stderr
    said = {part.partition("\n")[0]: part.partition("\n")[2] for part in shown.stdout.split("$ ")[1:]}
    for registry, name in asked.values():
        assert name in said[f"list {registry}"]
        assert f'"{registry}_{name}"' in said[f"list {name} --json"]
    assert {"f64", "org"} <= set(said["list formats"].split())
    assert json.loads(said["labels sample_data/test.npz --json"])["tables"][0]["columns"] == ["class", "rows"]
    assert re.search(r"labels +Count the rows", said["--help"])

    # and what takes a metric besides
    done = python(copy, "-c", METRIC)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    value, *ends, detail = found["merged"]
    assert (value, detail) == (pytest.approx(found["whole"], rel=1e-12), {})
    assert ends == pytest.approx(found["interval"], rel=1e-7)
    assert found["redrawn"] == pytest.approx(found["whole"], rel=1e-12)
    assert (found["gate"], found["study"]) == ("pass", True)
    assert found["difference"][0] < 0
    assert found["difference"][1].startswith("paired: mean of differences by row")
    assert found["difference"][2]
