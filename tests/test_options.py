"""A line read by hand means what it means to Typer, over every option of every command, or is left to Typer."""

from __future__ import annotations

import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from calibcli import __version__
from calibcli.cli import app
from calibcli.cli.app import COMMANDS, main
from calibcli.cli.run import Command, Option, parsed
from calibcli.cli.typed import build

TEXTS = ("a", "", " ", "-", "--", "-1", "-x", "--json", "--level=0.9", "a=b", "=", "ü", "a b", "-m", "none", "\udcff")
NUMBERS = (
    "1",
    "2",
    "3",
    "0",
    "0.6",
    ".5",
    "1e-3",
    "-1",
    "-0.5",
    "+3",
    " 3 ",
    "1_0",
    "1.0",
    "nan",
    "inf",
    "x",
    "",
    "9" * 30,
)


def options(name: str) -> dict[str, Option]:
    return dict(importlib.import_module(f"calibcli.cli.{name}").command.options)


@cache
def by_typer(name: str) -> Any:
    return typer.main.get_command(build([name]))


def meant(name: str, line: list[str]) -> dict[str, Any] | None:
    """What Typer would call the command with; None where it does not."""
    kept: list[dict[str, Any]] = []

    def keep(self: Command, **given: Any) -> int:
        kept.append({key: tuple(v or ()) if self.options[key].many else v for key, v in given.items()})
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Command, "__call__", keep)
        try:
            by_typer(name).main([name, *line], prog_name="calib", standalone_mode=False)
        except Exception:
            return None
    return kept[0] if kept else None


def agree(name: str, line: list[str]) -> bool:
    """Whether the line was read by hand; if so, as Typer reads it, types included."""
    mine, other = parsed(line, options(name)), meant(name, line)
    if mine is not None:
        assert repr(mine) == repr(other), line
    return mine is not None


def least(name: str, but: str = "") -> list[str]:
    """What the command needs, without one of its options."""
    needed = [one for one in options(name).values() if one.default not in (None, (), "") and one.name != but]
    required = [one for one in needed if "MISSING" in repr(one.default)]
    line = [text for one in required if not one.argument for text in (one.flags[0], "x.npz")]
    arguments = [one for one in required if one.argument]
    return [*line, *(get_args(a.kind)[0] if get_origin(a.kind) is Literal else f"{a.name}.npz" for a in arguments)]


def values(one: Option) -> tuple[str, ...]:
    if get_origin(one.kind) is Literal:
        words = [str(word) for word in get_args(one.kind)]
        return (*words, words[0].upper(), f" {words[0]} ", words[0].replace("_", "-"), words[0][:-1], "x", "")
    return TEXTS if one.plain else NUMBERS


def lines(name: str, one: Option) -> list[list[str]]:
    """One option, in every spelling, with values good and bad."""
    rest, found = least(name, one.name), []
    if one.argument:
        found = [[*least(name, one.name), value] for value in values(one)]
        return found + [[value, *least(name, one.name), "--", "-x"] for value in values(one)]
    for flag in one.flags:
        long = flag.startswith("--")
        spellings = [[flag]] if one.flag else [[flag, value] for value in values(one)]
        spellings += [[f"{flag}={value}" if long else f"{flag}{value}"] for value in values(one)]
        spellings += [[f"{flag}={value}"] for value in values(one)[:2]]
        spellings += [[flag, "1", flag, "2"], [flag, flag], [flag], [flag[:-1], "1"], [f"--no-{flag.strip('-')}"]]
        spellings += [[f"-q{flag.strip('-')}", "1"], [flag.upper(), "1"], ["--", flag, "1"], [f"-{flag}", "1"]]
        found += [[*rest, *spelling] if i % 2 else [*spelling, *rest] for i, spelling in enumerate(spellings)]
    return found


@cache
def first_with() -> dict[str, str]:
    """The first command that has an option: the others have the same one, flags, type and default."""
    return {repr(one): name for name in reversed(COMMANDS) for one in options(name).values()}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.one_in(7)
def test_every_option_as_typer_reads_it(name: str) -> None:
    """In every spelling with every value where it is first, in one elsewhere."""
    assert agree(name, least(name))
    for one in options(name).values():
        found, first = lines(name, one), first_with()[repr(one)] == name
        by_hand = [agree(name, line) for line in (found if first else found[:1])]
        assert any(by_hand) or not first, f"{one.name} is never read by hand"


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.one_in(5)
def test_what_is_left_to_typer(name: str) -> None:
    flags = [one.flags[0] for one in options(name).values() if one.flag][:1]
    odd_flags = [[f"{flag}=1"] for flag in flags] + [[flag[:-1]] for flag in flags]
    for odd in (["--help"], ["-h"], ["--no-such"], ["-qm", "ece"], *odd_flags):
        assert not agree(name, [*least(name), *odd]), odd


def words(name: str) -> st.SearchStrategy[list[str]]:
    flags = [flag for one in options(name).values() if not one.argument for flag in one.flags]
    word = st.sampled_from([*flags, *TEXTS, *NUMBERS, "a.npz", "-mece", "--bins=15", "--level", "0.9", "-qm"])
    return st.lists(word, max_size=7)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.one_in(5)
def test_any_words_as_typer_reads_them(name: str) -> None:
    @settings(max_examples=20, deadline=None, derandomize=True)
    @given(words(name))
    def hold(line: list[str]) -> None:
        agree(name, [*least(name), *line])
        agree(name, line)

    hold()


def test_the_version_by_hand_is_that_of_typer(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["--version"], ["--version", "metrics"]):
        assert main(line) == 0
        assert capsys.readouterr().out == f"calib {__version__}\n"


def test_a_shell_that_completes_is_answered_by_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("calibcli.cli.typed.call", lambda args, commands: asked.append(args) or 0)
    assert app.call(["list", "metrics", "--no-such"]) == 0
    monkeypatch.setenv("_CALIB_COMPLETE", "complete_bash")
    assert app.call(["list", "metrics"]) == 0
    assert len(asked) == 2


def test_the_help_of_the_whole_is_the_same_without_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for about in (False, True):
        build(COMMANDS, about)(["--help"], prog_name="calib", standalone_mode=False)
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def test_a_command_that_runs_loads_no_typer() -> None:
    script = "import sys; from calibcli.cli.app import main; main(['list', '-q']); print('typer' in sys.modules)"
    root = Path(__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
