"""Every exit code through `main`: the same in every format, with a reader that went away, with no stdout, to a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli import render
from calibcli.cli.app import main
from calibcli.gate import check

STDOUT_FORMATS = [name for name in render.NAMES if render.to_stdout(name)]


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated model of 3 classes: accuracy about .7, ECE 0."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(1500, 3)) * 1.5
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((len(z), 1))).sum(1)
    path = tmp_path_factory.mktemp("scores") / "t.npz"
    np.savez(path, logits=z, labels=labels)
    np.savez(path.with_name("few.npz"), logits=z[:100], labels=labels[:100])
    np.savez(path.with_name("bad.npz"), logits=np.where(z > 3, np.nan, z), labels=labels)
    return path


def arguments(code: int, scores: Path) -> list[str]:
    bad, few = str(scores.with_name("bad.npz")), str(scores.with_name("few.npz"))
    return {
        0: ["check", str(scores), "--max", "ece=0.2"],
        1: ["check", str(scores), "--min", "accuracy=0.95", "--max", "ece=0.2"],
        2: ["check", str(scores), "--max", "eec=0.2"],
        3: ["check", str(scores), "--max", "ece=0.02", "--max", "nll=2"],
        4: ["check", bad, "--max", "ece=0.2"],
        5: ["check", few, "--max", "ece=0.2"],
    }.get(code, ["check", str(scores), "--max", "ece=0.2"])


def interrupt(*_: Any, **more: Any) -> None:
    raise KeyboardInterrupt


def terminate(*_: Any, **more: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass


def broken(*_: Any, **more: Any) -> None:
    raise RuntimeError("a bug")


TROUBLE: dict[int, Callable[..., None]] = {70: broken, 130: interrupt, 143: terminate}
CODES = [0, 1, 2, 3, 4, 5, *TROUBLE]


def run(code: int, scores: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> int:
    if code in TROUBLE:
        monkeypatch.setattr(check, "run", TROUBLE[code])
    return main([*arguments(code, scores), "--format", format, "--quiet"])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.delenv("CALIB_TRACEBACK", raising=False)


@pytest.mark.parametrize("format", STDOUT_FORMATS)
@pytest.mark.parametrize("code", CODES)
def test_code(code: int, format: str, scores: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert run(code, scores, format, monkeypatch) == code
    out, err = capsys.readouterr()
    assert (out == "") == (code in (2, 4, 70, 130, 143))
    assert ("error: " in err) == (code in (2, 4, 70, 130, 143))
    assert "Traceback" not in err


@pytest.mark.parametrize("format", STDOUT_FORMATS)
@pytest.mark.parametrize("code", CODES)
def test_reader_went_away(code: int, format: str, scores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))
    assert run(code, scores, format, monkeypatch) == code


@pytest.mark.parametrize("format", STDOUT_FORMATS)
@pytest.mark.parametrize("code", CODES)
def test_no_stdout_at_all(code: int, format: str, scores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert run(code, scores, format, monkeypatch) == code


@pytest.mark.parametrize("format", STDOUT_FORMATS)
@pytest.mark.parametrize("code", CODES)
def test_stdout_is_a_file(
    code: int, format: str, scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as file:
        monkeypatch.setattr(sys, "stdout", file)
        assert run(code, scores, format, monkeypatch) == code
        file.flush()
    assert bool((tmp_path / "out").stat().st_size) == (code in (0, 1, 3, 5))


def test_the_worst_wins(scores: Path, capsys: Any) -> None:
    """1 > 5 > 3 > 0, and a warning does not count."""
    t = str(scores)
    failed, late, unsure = ["--min", "accuracy=0.95"], ["--baseline", "none.json"], ["--max", "ece=0.02"]
    assert main(["check", t, *failed, *late, *unsure]) == 1
    assert main(["check", t, *late, *unsure]) == 5
    assert main(["check", t, *unsure]) == 3
    assert main(["check", t, *unsure, "--on-inconclusive", "warn"]) == 0
    assert main(["check", t]) == 5
    assert main(["check"]) == 2


@pytest.mark.parametrize(
    ("code", "shell"), [(0, "{0} >&-"), (1, "{0} >&- 2>&-"), (0, "{0} | true"), (1, "{0} --json | true")]
)
def test_a_real_shell(code: int, shell: str, scores: Path) -> None:
    command = f"{sys.executable} -m calibcli " + " ".join(arguments(code, scores))
    done = subprocess.run(["bash", "-o", "pipefail", "-c", shell.format(command)], cwd=Path(__file__).parent.parent)
    assert done.returncode == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_bug(scores: Path) -> None:
    command = [sys.executable, "-m", "calibcli", *arguments(0, scores)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=Path(__file__).parent.parent, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "cannot write" in done.stderr


LONG = "a" * 300


@pytest.mark.parametrize(
    "name", [f"{LONG}.json", f"{LONG}/", f"{LONG}/x.json", LONG, "x\0.json", "x\0/", "a\0b/x.json", "\0", "d/" * 3000]
)
def test_a_name_that_no_file_can_have(name: str, scores: Path, capsys: Any) -> None:
    """It is refused before any work, as an output and as an input."""
    for argv in (
        ["check", str(scores), "--max", "ece=0.5", "-o", name],
        ["check", str(scores), "--save-baseline", name],
        ["metrics", name],
        ["inspect", name],
        ["study", name],
        ["watch", name, str(scores), "--max", "ece=0.5"],
    ):
        assert main(argv) in (2, 4), argv
        printed = capsys.readouterr()
        assert "fix: " in printed.err
        assert not printed.out


def test_a_long_name_that_a_file_can_have(scores: Path, capsys: Any) -> None:
    path = scores.parent / ("a" * 250 + ".json")
    assert main(["check", str(scores), "--max", "ece=0.9", "-q", "-o", str(path)]) in (0, 1, 3)
    assert path.exists()
