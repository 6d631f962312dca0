"""README and docs are true: their console blocks print what they show, the README's Python block runs.

`python tests/test_readme.py` writes the output of the commands into them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
pytestmark = pytest.mark.docs
FILE = re.compile(r'```\w+ title="([\w.]+)"\n(.*?)```', re.S)
BLOCK = re.compile(r"```console\n(.*?)```", re.S)
ALL = [README, *sorted(ROOT.glob("docs/**/*.md"))]
PAGES = [page for page in ALL if BLOCK.search(page.read_text(encoding="utf-8"))]


def run(command: str, folder: Path) -> str:
    """stdout of a `calib` command (its first lines, with `| head -n N`), run where sample_data/ lies."""
    command, _, lines = command.partition(" | head -n ")
    argv = [sys.executable, "-m", "calibcli", *command.split()[1:], "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode in ((0, 1, 3) if argv[3] == "check" else (0,)), done.stderr  # a gate may fail
    return "\n".join(done.stdout.splitlines()[: int(lines) if lines else None])


def filled(text: str, folder: Path) -> str:
    """A page with the true output under each command of its console blocks."""
    (folder / "out").mkdir(exist_ok=True)
    if not (folder / "sample_data").exists():
        (folder / "sample_data").symlink_to(ROOT / "sample_data")

    for name, content in FILE.findall(text):  # what the page has the reader write
        (folder / name).write_text(content, encoding="utf-8")

    def block(match: re.Match[str]) -> str:
        commands = [line[2:] for line in match[1].splitlines() if line.startswith("$ ")]
        shown = [f"$ {command}\n{run(command, folder).rstrip()}\n" for command in commands]
        return "```console\n" + "\n".join(shown) + "```"

    # the commands say where the data lie; that is not the reader's folder
    return BLOCK.sub(block, text).replace(f"{ROOT}/", "").replace(f"{folder.resolve()}/", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_console_blocks_show_what_the_commands_print(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text, tmp_path) == text, "run `python tests/test_readme.py`"


def test_python_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(README.parent)
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert code
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((300, 3)) * 3
    names = {"logits": logits, "labels": rng.integers(0, 3, 300), "new_logits": logits}
    exec(code[1], names)
    assert names["calibrated"].shape == (300, 3)
    assert names["result"].checks[0].outcome == "fail"
    assert names["around"]["trace"].value > 0


if __name__ == "__main__":
    import tempfile

    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            page.write_text(filled(page.read_text(encoding="utf-8"), Path(folder)), encoding="utf-8")
