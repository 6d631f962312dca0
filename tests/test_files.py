"""Files are written whole or not at all, where a file can stand, and never over what was read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from calibcli.cli.app import main
from calibcli.core.errors import Exit, UsageError
from calibcli.core.files import YOUNG, atomic, claim, guarding, reading, written
from calibcli.scores.files import locations

TEST = Path(__file__).parent.parent / "sample_data" / "test.npz"
STUCK = """
import sys, time
from calibcli.core.files import atomic
with atomic(sys.argv[1]) as temporary:
    temporary.write_text("half")
    print(temporary, flush=True)
    time.sleep(60)
"""


def test_a_killed_run_leaves_nothing_for_long(tmp_path: Path) -> None:
    """What SIGKILL left is removed when the same file is written again, and what a living process writes is not."""
    path = tmp_path / "out.csv"
    other = tmp_path / ".out.csv.notours1.csv.bak"
    other.write_text("mine")
    argv = [sys.executable, "-c", STUCK, str(path)]
    killed, alive = (subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2))
    try:
        left, kept = (Path(one.stdout.readline().strip()) for one in (killed, alive) if one.stdout)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        for name in (left, kept):
            os.utime(name, (time.time() - 2 * YOUNG,) * 2)
        with atomic(path) as temporary:
            temporary.write_text("whole")
        assert sorted(tmp_path.iterdir()) == sorted([kept, other, path])
        assert path.read_text() == "whole"
    finally:
        for one in (killed, alive):
            one.kill()
            one.communicate()


def test_a_young_temporary_file_is_left_alone(tmp_path: Path) -> None:
    left = tmp_path / ".out.csv.abcdefgh.csv"
    left.write_text("just begun")
    with atomic(tmp_path / "out.csv") as temporary:
        temporary.write_text("whole")
    assert left.exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "out.json"
    os.mkfifo(pipe)
    for argv in (["-o", str(pipe)], ["-o", f"{tmp_path}/./out.json"]):
        assert main(["metrics", str(TEST), *argv, "-q"]) == Exit.USAGE
        assert "a pipe or a device" in capsys.readouterr().err
        assert pipe.is_fifo()
    with pytest.raises(UsageError, match="a pipe or a device"), atomic("/dev/null"):
        pass


@pytest.mark.parametrize(
    "argv",
    [
        ["metrics", "{test}", "-o", ""],
        ["metrics", "{test}", "-qo", ""],
        ["metrics", "{test}", "-o", "/"],
        ["metrics", "{test}", "--partial", ""],
        ["metrics", ""],
        ["check", "{test}", "--max", "ece=0.5", "--baseline", ""],
        ["fit", "mlp:hidden=4", "--save", "/"],
        ["study", "step-size", "--save", "//"],
        ["demo", "--save", ""],
    ],
)
def test_an_empty_variable_is_no_path(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-o "$X"` writes no eight files over the working folder, and `-o "$X/"` none into the root."""
    monkeypatch.chdir(tmp_path)
    assert main([part.format(test=TEST) for part in argv]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "is empty" in said or "is the root of the file system" in said
    assert "variable" in said
    assert not list(tmp_path.iterdir())


def test_what_was_written_may_be_read_and_written_again(tmp_path: Path) -> None:
    """An own output is no input, and an input of one call is none of the next."""
    path, source = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text("mine")
    with guarding():
        claim(path)
        for text in ("first", "second"):
            with atomic(path) as temporary:
                temporary.write_text(text)
                reading(temporary)
            reading(path)
        reading(source)
        with pytest.raises(UsageError, match="would replace the input"), guarding(), atomic(source):
            pass
    with guarding(), atomic(source) as temporary:
        temporary.write_text("new")
    assert (path.read_text(), source.read_text()) == ("second", "new")


def test_what_a_command_makes_and_reads_again_is_no_input(tmp_path: Path) -> None:
    """A folder is made under another name, compared with what it was made of, and renamed."""
    with guarding():
        made = tmp_path / "made"
        made.mkdir()
        written(made, tmp_path / "model")
        (made / "config.json").write_text("{}")
        reading(made, made / "config.json")
        made.rename(tmp_path / "model")
        claim(tmp_path / "model" / "other.json")
        reading(tmp_path / "model")


PIPES = {
    "a checkpoint": ["curvature", "{pipe}.pt", "--data", "{sample}/digits.npz#test"],
    "a checkpoint to train": ["fit", "{pipe}.pt", "--data", "{sample}/digits.npz#test"],
    "a graph": ["logits", "{pipe}.onnx", "--data", "{sample}/digits.npz#test", "--save", "{folder}/o.npz"],
    "a calibrator": ["apply", "{pipe}.safetensors", "{sample}/test.npz", "--save", "{folder}/o.npz"],
    "a calibrator as text": ["apply", "{pipe}.json", "{sample}/test.npz", "--save", "{folder}/o.npz"],
    "a calibrator of two": ["ood", "{sample}/test.npz", "{sample}/validation.npz", "--with", "{pipe}.safetensors"],
    "a calibrator to export": ["export", "{pipe}.safetensors", "--to", "json", "--save", "{folder}/o.json"],
}


@pytest.mark.regression
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize("case", PIPES)
def test_a_pipe_is_refused_where_a_file_is_read_twice(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing writes to it: whoever opened it would wait for ever, without a word."""
    places = {"pipe": str(tmp_path / "p"), "sample": str(TEST.parent), "folder": str(tmp_path)}
    argv = [word.format(**places) for word in PIPES[case]]
    pipe = next(word for word in argv if word.startswith(places["pipe"]))
    os.mkfifo(pipe)
    assert main([*argv, "-q"]) == Exit.REFUSED
    said = capsys.readouterr().err
    assert f"{pipe} is a pipe, and this input is read more than once" in said
    assert f"fix: write it to a file first: cat {pipe} > FILE" in said


@pytest.mark.regression
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_scores_from_a_pipe_are_waited_for_aloud(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read once. What comes at once is read without a word."""
    pipe = tmp_path / "scores.npz"
    os.mkfifo(pipe)

    def written(after: float) -> str:
        writer = threading.Timer(after, lambda: pipe.write_bytes(TEST.read_bytes()))
        writer.start()
        assert main(["metrics", str(pipe), "-m", "accuracy", "--format", "json"]) == 0
        writer.join()
        return capsys.readouterr().err

    assert "waiting for" not in written(0.0)
    monkeypatch.setattr(locations, "PATIENCE", 0.05)
    assert f"waiting for {pipe}, which is a pipe" in written(0.6)
