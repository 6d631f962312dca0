"""The nightly job asks for everything that is too long for every change, in words that its scripts understand."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from benchmark_scripts import script

from calibcli.cli import COMMANDS

ROOT = Path(__file__).parent.parent
COUNT = re.compile(r'environ\.get\("(CALIB_\w+)", "\d+"\)')
SEEDS = re.compile("^from edits import", re.MULTILINE)


def takes(text: str, option: str) -> bool:
    """Whether a script has the option: `arguments(__doc__, runs=400)` is `--runs`."""
    name = option.removeprefix("--").replace("-", "_")
    return bool(re.search(rf"arguments\(\s*__doc__[^=)]*(?:.(?!\n\w))*?\b{name}=", text, re.DOTALL))


@pytest.fixture(scope="module")
def nightly() -> ModuleType:
    return script("nightly")


@pytest.fixture(scope="module")
def growth() -> ModuleType:
    return script("growth")


def test_every_count_that_tests_read_is_larger_at_night(nightly: ModuleType) -> None:
    texts = {path.name: path.read_text() for path in (ROOT / "tests").glob("*.py")}
    assert {name for text in texts.values() for name in COUNT.findall(text)} == set(nightly.DRAWS)
    [line, *_] = nightly.commands("draws", Path("out"), None)
    assert {f"{name}={count}" for name, count in nightly.DRAWS.items()} <= set(line)
    run = {Path(part).name for part in line if part.endswith(".py")}
    readers = {name for name, text in texts.items() if COUNT.search(text) or SEEDS.search(text)}
    assert run == {name for name in readers if name.startswith("test_")}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("gate-search", ["--search", "--minutes", "20"]), ("paired-near", ["--pairs", "near"])],
)
def test_the_searches_run_at_night(nightly: ModuleType, name: str, wanted: list[str]) -> None:
    [line] = nightly.commands(name, Path("out"), None)
    at = line.index(wanted[0])
    assert line[at : at + len(wanted)] == wanted


def test_scripts_are_there_and_know_their_options(nightly: ModuleType) -> None:
    """Also in the short form."""
    for name, (line, short) in nightly.RUNS.items():
        text = (ROOT / "benchmarks" / line.split()[0]).read_text()
        assert all(takes(text, option) for option in re.findall(r"--[\w-]+", f"{line} {short}")), name


def test_a_name_that_is_unknown_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "nightly.py", "nothing"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "unknown: nothing" in done.stderr


@pytest.mark.slow
def test_a_run_writes_its_output_and_says_how_it_ended(nightly: ModuleType, tmp_path: Path) -> None:
    """The shortest of them, as `make nightly` starts it."""
    script = [sys.executable, str(ROOT / "benchmarks" / "nightly.py"), "--short", "--out", str(tmp_path), "gate"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, (tmp_path / "gate.txt").read_text()
    assert re.fullmatch(r"gate: ok, \d+ s\n", done.stdout)
    assert "worst 0." in (tmp_path / "gate.txt").read_text()


def test_rows_of_results_are_scripts_with_their_options_and_every_script_has_a_row() -> None:
    folder = ROOT / "benchmarks"
    lines = re.findall(r"`(\w+\.py)((?: [^`]*)?)`", (folder / "RESULTS.md").read_text(encoding="utf-8"))
    for name, options in lines:
        text = (folder / name).read_text()
        assert all(takes(text, option) for option in re.findall(r"--[\w-]+", options)), (name, options)
    scripts = {path.name for path in folder.glob("[a-z]*.py")} - {"run.py", "nightly.py"}
    assert scripts == {name for name, _ in lines} - {"run.py", "nightly.py"}


def test_every_command_has_a_row_of_growth(growth: ModuleType) -> None:
    """`demo` writes a fixed tour, `list` and `completion` print what is fixed: none has an input that may be large."""
    assert set(COMMANDS) - {"completion", "demo", "list"} == {
        name.replace(":", " ").split()[0] for name in growth.ROWS
    } - {"measure"}


def test_a_row_that_breaks_its_limit_is_measured_again_and_reported(
    growth: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    lasts = iter([8.0, 3.9, 8.0, 7.9, 8.1])
    monkeypatch.setattr(growth, "attempt", lambda *given: {"seconds": [1.0, 2.0, next(lasts)], "mb": [1.0, 1.0, 9.0]})
    growth.ROWS["x: y"] = growth.Row(lambda folder, size: [], (10, 20, 40), "y", "", 1.1, 10.0, (0,))
    try:
        assert [growth.judged("x: y", 3, False)[1] for _ in range(2)] == [True, False]
    finally:
        del growth.ROWS["x: y"]


def test_time_and_memory_of_a_row_are_those_of_a_fork(growth: ModuleType) -> None:

    def make(folder: Path, size: int) -> Callable[[], object]:
        return lambda: (b"x" * (size << 20)).count(b"y")

    spent, peak = growth.forked(lambda: growth.once(make, 16, (0,)))
    assert spent > 0
    assert 15 < peak < 20
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        growth.forked(lambda: 1 / 0)
