"""Screens of 60, 80 and 120 columns: at most 40 lines, no word and no number broken, notes elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from unittest import mock

import headline_cases
import numpy as np
import pytest
import render_cases

from calibcli import headlines, metrics, render
from calibcli.cli.app import main
from calibcli.core import number_format
from calibcli.core.result import Cell, Check, Estimate, Result, Table
from calibcli.core.scope import CHANGE
from calibcli.lab.study.experiment import SCREEN
from calibcli.render import table_contents, terminal
from calibcli.render.formats import table
from calibcli.render.table_contents import Detail, Sheet, SheetColumn

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_data"
FILES = {"TEST": "test.npz", "VALIDATION": "validation.npz", "MODEL": "model.safetensors", "DIGITS": "digits.npz"}
FILES = {name: str(SAMPLE / file) for name, file in FILES.items()}
TEST = FILES["TEST"]
COMMANDS = {
    "metrics": "metrics TEST",
    "metrics of two classes": "metrics two.npz",
    "metrics of each class": "metrics TEST --per-class",
    "metrics by a column": "metrics TEST --by ink",
    "scale": "scale VALIDATION --test TEST --save t.safetensors",
    "scale --method all": "scale VALIDATION --method all",
    "scale --method vector": "scale VALIDATION --method vector --test TEST",
    "scale of two classes": "scale two.npz --method isotonic",
    "check": "check TEST --max ece=0.05 --min accuracy=0.85 --max nll=0.3",
    "check of parts": "check TEST --max ece=0.05 --min accuracy=0.85 --max nll=0.3 --by ink",
    "compare": "compare TEST half.npz",
    "curvature": "curvature MODEL --train-loss focal:gamma=3 --device cpu",
    "ood --with": "ood TEST half.npz --with t.safetensors",
}
OTHERS = {
    "metrics of parts": "metrics TEST --partial state.npz",
    "slices": "slices TEST --by ink",
    "slices of errors": "slices TEST --by ink --find error",
    "ood": "ood TEST half.npz",
    "threshold": "threshold TEST --max-risk 0.05",
    "threshold of parts": "threshold TEST --max-risk 0.1 --by ink",
    "watch": "watch state.json TEST --max ece=0.1 --min accuracy=0.85",
    "plan": "plan --min accuracy=0.85",
    "merge": "merge state.npz",
    "apply": "apply t.safetensors TEST --save applied.npz",
    "export": "export t.safetensors --to json --data TEST -o c.json",
    "verify": "verify c.json --with t.safetensors --data TEST --max ece=0.05",
    "logits": "logits MODEL --save logits.npz --data DIGITS#test",
    "report": "report a.json b.json",
    "inspect": "inspect TEST",
    "inspect of a model": "inspect MODEL",
    "inspect of images": "inspect DIGITS",
    "inspect of a calibrator": "inspect t.safetensors",
    "list": "list",
    "list metrics": "list metrics",
    "list ece": "list ece",
}
NEEDS = {
    "merge": "metrics of parts",
    "verify": "export",
    **dict.fromkeys(("apply", "export", "inspect of a calibrator", "ood --with"), "scale"),
}
STUDIES = ("focal-map", "focal-shape", "focal-toy", "fts", "overfit", "step-size")
WIDTHS = (60, 80, 120)
DETAILS: tuple[Detail, ...] = ("few", "asked", "all")


@cache
def keeper() -> tempfile.TemporaryDirectory[str]:
    """A folder for as long as these tests run."""
    made = tempfile.TemporaryDirectory()
    data = np.load(TEST)
    np.savez(Path(made.name, "half.npz"), logits=data["logits"] * 0.5, labels=data["labels"])
    np.savez(Path(made.name, "two.npz"), logits=data["logits"][:, :2], labels=data["labels"] % 2)
    return made


@cache
def result(command: str) -> Result:
    """What the command finds on the sample data; a study's is in docs/studies."""
    if command in STUDIES:
        study = Result.from_json((ROOT / "docs" / "studies" / f"{command}.json").read_bytes())
        plots = [dataclasses.replace(plot, tier="all") for plot in study.plots]  # what a screen shows is in no file
        return dataclasses.replace(study, plots=plots, screen=SCREEN)
    folder = Path(keeper().name)
    if command in NEEDS:
        result(NEEDS[command])
    if command == "report":
        for name, of in (("a", "metrics"), ("b", "check")):
            (folder / f"{name}.json").write_text(result(of).to_json())
    argv = []
    for word in {**COMMANDS, **OTHERS}[command].split():
        name, _, part = word.partition("#")
        word = FILES.get(name, word) + (f"#{part}" if part else "")
        argv.append(str(folder / word) if word.endswith((".npz", ".json", ".safetensors")) else word)
    results: list[Result] = []
    with mock.patch.object(render, "show", lambda one, *_: results.append(one)):
        main([*argv, "--json", "-q"])
    (found,) = results
    inputs = [{"path": Path(str(entry["path"])).name} for entry in found.provenance.get("inputs") or ()]
    return dataclasses.replace(found, provenance={"inputs": inputs})


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, found: Result, width: int, detail: Detail = "few") -> list[str]:
    out = Terminal()
    for name, value in {"TERM": "xterm", "COLUMNS": str(width), "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", out)
    table.show(found, detail)
    return re.sub(r"\x1b\[\d*m", "", out.getvalue()).splitlines()


def words(lines: list[str]) -> list[str]:
    """What stands between spaces, without rules and bars."""
    return [w for line in lines for w in line.split() if re.search(r"[\w.]", w) and "█" not in w]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.one_in(21)
def test_a_screen_fits(monkeypatch: pytest.MonkeyPatch, command: str, width: int) -> None:
    lines = shown(monkeypatch, result(command), width)
    assert max(map(terminal.width, lines)) <= width
    assert len(lines) <= 40
    assert " ".join(str(result(command).facts["headline"]).split()) in " ".join(" ".join(lines).split())


def unbroken(monkeypatch: pytest.MonkeyPatch, found: Result, detail: Detail, widths: Sequence[int] = WIDTHS) -> None:
    """Every word of the screen is one of the same text on a line as long as it needs, or ends where an identifier may;
    only what is longer than a line is cut."""
    found = dataclasses.replace(found, plots=())
    whole = set(words(table.plain(found, detail).splitlines()))
    for width in widths:
        lines = shown(monkeypatch, found, width, detail)
        assert max(map(terminal.width, lines), default=0) <= width
        named = {w for line in lines if "not shown at" in line or line.endswith(")") for w in line.split()}
        for word in {*words(lines)} - whole - named:
            edge = re.compile(rf"(?<![^\s,:/|]){re.escape(word)}(?:(?<=[,:/|])|(?!\S))")
            assert any(edge.search(one) or (len(one) > width and word in one) for one in whole), word


@pytest.mark.slow
@pytest.mark.parametrize("command", [*COMMANDS, *OTHERS, *STUDIES])
def test_no_word_and_no_number_is_broken(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    for detail in DETAILS:
        unbroken(monkeypatch, result(command), detail)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.one_in(3)
def test_situations_by_hand_are_not_broken(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    for found in headline_cases.situations().values():
        for detail in DETAILS:
            unbroken(monkeypatch, headlines.headed(found), detail, (width,))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("command", [*OTHERS, *STUDIES])
def test_diagrams_fit(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    for width in WIDTHS:
        assert max(map(terminal.width, shown(monkeypatch, result(command), width)), default=0) <= width


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_intervals_stay_on_one_line(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    for command in COMMANDS:
        for line in shown(monkeypatch, dataclasses.replace(result(command), plots=()), width):
            assert line.count("[") == line.count("]"), line


def test_the_few_numbers_come_first_and_files_have_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["metrics", TEST, "-q", "-o", str(tmp_path / "all.txt")])
    few = capsys.readouterr().out
    assert re.findall(r"(?m)^(\w+) +-?[\d.]+ ", few) == ["accuracy", "nll", "ece", "temperature_gain"]
    names = {e.name for e in result("metrics").estimates}
    assert all(name in (tmp_path / "all.txt").read_text() for name in names)
    for argv in (["-m", "default"], ["-v"]):
        main(["metrics", TEST, "-q", *argv])
        assert names <= set(capsys.readouterr().out.split())
    main(["metrics", TEST, "-q", "-v"])
    how = " ".join(capsys.readouterr().out.split())
    assert all(" ".join(e.how.split()) in how and e.reason in how for e in result("metrics").estimates)


@pytest.mark.parametrize("argv", ["TEST", "TEST --per-class --curve smooth", "two.npz", "sure.npz --confidence c"])
def test_a_screen_alone_shows_what_it_does_beside_a_file(
    argv: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no screen shows is not worked out, unless it goes somewhere else."""
    folder, asked = Path(keeper().name), []
    np.savez(folder / "sure.npz", c=np.linspace(0.5, 1, 200), correct=np.arange(200) % 7 > 0)
    words = [FILES.get(word, str(folder / word) if word.endswith(".npz") else word) for word in argv.split()]
    monkeypatch.setattr(
        "calibcli.metrics.estimates", lambda *a, f=metrics.estimates, **o: asked.append(f(*a, **o)) or asked[-1]
    )
    for more in ([], ["-o", str(tmp_path / "all.json")]):
        assert main(["metrics", *words, "-q", *more]) == 0
    half = capsys.readouterr().out
    assert half[: len(half) // 2] == half[len(half) // 2 :]
    assert len(asked[0]) < len(asked[1])


def test_scale_shows_the_paired_change_of_every_metric_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(shown(monkeypatch, result("scale"), 120))
    for e in result("scale").estimates:
        if e.scope == CHANGE and e.name in ("nll", "ece"):
            row = next(line for line in text.splitlines() if line.startswith(e.name))
            assert {*" ".join(number_format.shown(e)).split()} <= {*row.split()}


def test_notes_are_on_stderr_alone_and_silent_when_quiet() -> None:
    import pty

    def run(*more: str) -> tuple[str, str]:
        main_end, end = pty.openpty()
        env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1", "TERM": "xterm"}
        argv = [sys.executable, "-m", "calibcli", "inspect", TEST, "--labels", "labels", *more]
        argv[3:5] = ["metrics", TEST, "-m", "mce"]
        done = subprocess.run(argv, stdout=end, stderr=subprocess.PIPE, text=True, env=env, check=True)
        os.close(end)
        text = b""
        with contextlib.suppress(OSError):
            while part := os.read(main_end, 65536):
                text += part
        os.close(main_end)
        return text.decode(), done.stderr

    out, err = run("-v")
    assert "note:" in err
    assert "note:" not in out
    assert run("-q")[1] == run("-v", "-q")[1] == ""


def test_notes_and_errors_on_a_terminal_end_their_lines_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = "note: 80 rows over 15 bins: chance raises binned errors [0.0000, 0.0312] and a/" + "long/" * 20 + "name"
    lines = terminal.fitted(text + "\n  fix: none", Terminal()).splitlines()
    assert " ".join(lines).split() == [*text.split(), "fix:", "none"]
    assert [line for line in lines if len(line) > 60 and " " in line] == []
    assert terminal.fitted(text, io.StringIO()) == text


def test_a_bar_that_was_not_finished_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    terminal.bar("curvature")(0.5, "40 products")
    assert "\x1b[?25l" in out.getvalue()
    terminal.close()
    assert out.getvalue().endswith(("\x1b[?25h\r\x1b[1A\x1b[2K", "\x1b[1A\x1b[2K"))
    assert out.getvalue().count("\x1b[?25h") == 1


@pytest.mark.parametrize(
    ("done", "seconds", "text"),
    [(0.0, 5.0, "-:--"), (0.25, 30.0, "1:30"), (0.5, 7.0, "0:07"), (0.001, 10.0, "2:46:30"), (1.0, 5.0, "")],
)
def test_the_time_left_is_that_so_far_times_what_remains_over_what_is_done(
    done: float, seconds: float, text: str
) -> None:
    assert terminal.time_left(done, seconds) == text


def test_a_bar_begins_anew_with_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("TERM", "xterm")
    move = terminal.bar("measuring")
    assert "-:-- left" in out.getvalue()  # there from the start
    for fraction in (0.5, 1.0, 0.25):
        move(fraction, f"at {fraction}")
    (progress,) = terminal._open
    (task,) = progress.tasks
    assert task.completed == 0.25
    assert task.elapsed is not None
    assert task.elapsed < 5
    assert task.finished_time is None
    terminal.close()


@pytest.mark.parametrize("command", STUDIES)
def test_a_study_fits(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    lines = shown(monkeypatch, result(command), 80)
    assert len(lines) <= 50  # eleven claims of three lines each, and the head
    assert all(claim.rule.split()[0] in " ".join(lines) for claim in result(command).checks)


def test_a_study_shows_p_values_with_four_digits_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    study = result("step-size")
    (claims,) = (table for table in study.tables if table.name == "claims")
    given: list[Cell] = [0.060689289369513746, 2.5e-27, 0.0, 1.0, "", None]
    at = claims.columns.index("p (Holm)")
    rows = [[*claims.rows[0][:at], p, *claims.rows[0][at + 1 :]] for p in given]
    study = dataclasses.replace(study, tables=[dataclasses.replace(claims, rows=rows)])
    lines = shown(monkeypatch, study, 200)
    (head,) = (line for line in lines if line.startswith("verdict"))
    place = slice(head.index("p (Holm)"), head.index("in words"))
    texts = [line[place].strip() for line in lines if line.startswith("holds")]
    assert texts == ["0.0607", "< 1e-4", "< 1e-4", "1.0000", "", ""]


@pytest.mark.parametrize("command", ["ood", "slices", "merge"])
def test_other_screens_fit(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    assert len(shown(monkeypatch, result(command), 80)) <= 42


def test_what_only_warns_is_not_red() -> None:
    for outcome, fatal, words, tone in (
        ("fail", True, "FAIL: 1 fail", "bad"),
        ("fail", False, "FAIL (only warns): 1 fail", "warn"),
        ("not_run", False, "NOT RUN (only warns): 1 not run", "warn"),
        ("inconclusive", False, "INCONCLUSIVE: 1 inconclusive", "warn"),
        ("pass", False, "PASS: 1 pass", "good"),
    ):
        found = Result(command="check", checks=[Check(rule="x", outcome=outcome, fatal=fatal)])  # type: ignore[arg-type]
        assert table_contents.verdict(found) == (words, tone)
    assert table_contents.banner([("fail", False), ("fail", True)])[1] == "bad"


def test_colours_are_read_on_a_light_and_on_a_dark_ground() -> None:
    """Red alone has a contrast of 3 on both, in the palettes of the common terminals; the others need a ground."""
    for style in table.STYLES.values():
        assert not re.search("red|green|yellow|cyan|white|blue|magenta", style) or " on " in style


def test_a_table_has_no_empty_column() -> None:
    made = table_contents.of_table(Table(name="t", columns=["a", "b", "c"], rows=[["x", "", None], ["y", "", 1.0]]))
    assert [c.head for c in made.columns] == ["a", "c"]
    assert [c.head for c in table_contents.of_table(Table(name="t", columns=["a", "b"], rows=[])).columns] == ["a", "b"]


def test_what_is_too_wide_becomes_several_tables() -> None:
    cells = [["row", *[f"{i}.{i}{i}{i}{i}{i}{i}" for i in range(1, 10)]]]
    columns = [SheetColumn(f"c{i}", right=i > 0) for i in range(10)]
    lines = terminal.text(Sheet("", columns, cells), room=40)
    assert max(map(len, lines)) <= 40
    assert [w for w in " ".join(lines).split() if w == "row"] == ["row"] * 3
    assert set(cells[0]) <= set(" ".join(lines).split())


def test_odd_results_fit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [Estimate(name="x" * 90, value=0.5), Estimate(name="y", value=None, reason="z" * 90)]
    for found in (Result(command="metrics", estimates=odd), render_cases.everything(), render_cases.gate(30)):
        for detail in ("few", "asked", "all"):
            lines = shown(monkeypatch, dataclasses.replace(found, plots=()), 60, detail)  # type: ignore[arg-type]
            assert lines
