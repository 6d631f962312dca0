"""README and docs are true: their console blocks print what they show, the overview of docs/python.md runs.

A block that has a title (```python title="rows.py") is a file that the reader saves; it lies beside the commands, and
`$ python rows.py` runs it. `python tests/test_readme.py [PAGE...]` writes the output of the commands into them.
"""

from __future__ import annotations

import doctest
import importlib.util
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n(.*?)```", re.S)
ALL = [README, *sorted(ROOT.glob("docs/**/*.md"))]
PAGES = [page for page in ALL if BLOCK.search(page.read_text(encoding="utf-8"))]
FILE = re.compile(r'```\w+ title="([\w.]+)"\n(.*?)```', re.S)
NOTEBOOK = re.compile(r"```pycon\n(.*?)```", re.S)
NUMBER = re.compile(r"\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
BY_PROCESSOR = (
    "curvature.md",
    "curvature-compare.md",
    "fit.md",
    "is-my-curvature-high.md",
    "my-experiment.md",
    "my-hugging-face-model.md",
    "positions.md",
    "ship.md",
)
"""Pages of numbers in float32, which other processors round otherwise; training carries that into the first digits."""
NEEDS = {"my-hugging-face-model.md": "transformers", "positions.md": "transformers"}


def run(command: str, folder: Path) -> str:
    """stdout of a `calib` command, or of a script (its first lines, with `| head -n N`), where sample_data/ lies."""
    command, _, lines = command.partition(" | head -n ")
    name, *words = shlex.split(command)
    argv = [sys.executable, *(["-m", "calibcli", *words, "-q"] if name == "calib" else words)]
    places = os.pathsep.join(map(str, [ROOT, ROOT / "tests", folder / "site"]))
    environment = {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode in ((0, 1, 3) if words[0] in ("check", "threshold", "watch") else (0,)), (
        done.stderr
    )  # a gate may fail
    return "\n".join(done.stdout.splitlines()[: int(lines) if lines else None])


def filled(text: str, folder: Path) -> str:
    """A page with the true output under each command of its console blocks."""
    (folder / "out").mkdir(exist_ok=True)
    if not (folder / "sample_data").exists():
        (folder / "sample_data").symlink_to(ROOT / "sample_data")
    for name, body in FILE.findall(text):
        (folder / name).write_text(body, encoding="utf-8")
    if "transformers" in text:  # which asks for torchvision: zoos.py
        (folder / "site").mkdir(exist_ok=True)
        (folder / "site" / "sitecustomize.py").write_text("import zoos\n")

    def block(match: re.Match[str]) -> str:
        commands = [line[2:] for line in match[1].splitlines() if line.startswith("$ ")]
        shown = [f"$ {command}\n{run(command, folder).rstrip()}\n" for command in commands]
        return "```console\n" + "\n".join(shown) + "```"

    # the commands say where the data lie; that is not the reader's folder
    return BLOCK.sub(block, text).replace(f"{ROOT}/", "").replace(f"{folder.resolve()}/", "")


def words(text: str) -> list[str]:
    """The words of a page, without its numbers and the rules of its tables."""
    return re.sub(r"─+", "─", NUMBER.sub("#", text.replace(",", ""))).split()


def jobs() -> list[Any]:
    """Pages whose packages few have are of the extra job."""
    marks = (pytest.mark.extra if page.name in NEEDS else pytest.mark.docs for page in PAGES)
    return [pytest.param(p, marks=m, id=str(p.relative_to(ROOT))) for p, m in zip(PAGES, marks, strict=True)]


@pytest.mark.parametrize("page", jobs())
def test_console_blocks_show_what_the_commands_print(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text(encoding="utf-8")
    printed = filled(text, tmp_path)
    if page.name in BY_PROCESSOR:
        assert words(printed) == words(text), "run `python tests/test_readme.py`"
        values = zip(*(NUMBER.findall(one.replace(",", "")) for one in (printed, text)), strict=True)
        assert [(a, b) for a, b in values if not math.isclose(float(a), float(b), rel_tol=0.4, abs_tol=2e-3)] == []
    else:
        assert printed == text, "run `python tests/test_readme.py`"
    if page.parent.name == "how-to" and NOTEBOOK.search(text):  # after the commands, in the same folder
        monkeypatch.chdir(tmp_path)
        example = doctest.DocTestParser().get_doctest("\n".join(NOTEBOOK.findall(text)), {}, page.name, None, None)
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


@pytest.mark.docs
def test_the_overview_of_the_page_of_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.S)
    assert code
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((300, 3)) * 3
    names = {"logits": logits, "labels": rng.integers(0, 3, 300), "new_logits": logits}
    exec(code[1], names)
    assert names["calibrated"].shape == (300, 3)
    assert names["result"].checks[0].outcome == "fail"
    assert names["curvature"]["trace"].value > 0


if __name__ == "__main__":
    import tempfile

    asked = {Path(name).resolve() for name in sys.argv[1:]} or {*PAGES}
    for page in (page for page in PAGES if page in asked):
        if importlib.util.find_spec(NEEDS.get(page.name, "calibcli")) is None:
            print(f"{page} needs {NEEDS[page.name]}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(filled(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
