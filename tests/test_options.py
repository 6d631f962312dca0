"""A command line means what its spelling says: options, values and messages, over every option of every command."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_scripts import script
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibcli import __version__
from calibcli.cli import COMMANDS
from calibcli.cli.app import main
from calibcli.cli.run import Command, Option

ROOT = Path(__file__).parent.parent
PARTS = 9  # `make test` reads one of nine lines that `benchmarks/command_lines.py` makes, `make test-slow` the others
Calls = list[dict[str, Any]]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("command_lines")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Calls:
    """What commands were called with, none of which runs."""
    kept: Calls = []

    def keep(self: Command, **given: Any) -> int:
        kept.append({key: tuple(v or ()) if self.options[key].many else v for key, v in given.items()})
        return 0

    monkeypatch.setattr(Command, "__call__", keep)
    monkeypatch.chdir(tmp_path)
    return kept


def options(name: str) -> dict[str, Option]:
    return dict(importlib.import_module(f"calibcli.cli.{name}").command.options)


def defaults(name: str) -> dict[str, Any]:
    return {key: () if one.many else one.default for key, one in options(name).items()}


def same(call: dict[str, Any], name: str, given: dict[str, Any]) -> bool:
    """Whether a command was called with these values, of these types, and with its defaults for the others."""
    wanted = defaults(name) | given
    return {key: repr(value) for key, value in call.items()} == {key: repr(value) for key, value in wanted.items()}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.one_in(PARTS)
def test_a_line_means_what_its_spelling_says(
    part: int, bench: ModuleType, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in bench.lines() if line.given is not None or line.refused]
    assert len(lines) > 2000
    for line in lines[part::PARTS]:
        calls.clear()
        code = main(list(line.words))
        err = capsys.readouterr().err
        if line.refused:
            assert (code, calls) == (2, []), line
            assert err.startswith(f"error: {line.refused}"), line
            assert "\n  fix: " in err, line
        else:
            assert (code, err) == (0, ""), line
            assert len(calls) == 1, line
            assert same(calls[0], line.words[0], line.given), line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_its_lines(name: str, bench: ModuleType) -> None:
    """In the first command that has it, each of its flags is in a line whose meaning is known."""
    lines = [line for line in bench.lines() if line.words[:1] == (name,) and (line.given is not None or line.refused)]
    words = {word.split("=", 1)[0] for line in lines for word in line.words}
    for one in options(name).values():
        for flag in () if one.argument else one.flags:
            assert flag in words or any(word.startswith(flag) for word in words if len(flag) == 2), flag


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("metrics", "missing argument 'files'\n  fix: for example: calib metrics test.npz -o reliability.png"),
        ("verify m.npz --data d.npz", "missing option '--with'\n  fix: see calib verify --help"),
        ("export m.npz --to json", "missing option '--save' / '-o'\n  fix: see calib export --help"),
        ("completion bash zsh", "got unexpected extra argument(s) (zsh)\n  fix: see calib completion --help"),
        ("completion -- bash --json", "got unexpected extra argument(s) (--json)\n  fix: see calib completion --help"),
        ("metrics a.npz --bins", "option '--bins' requires an argument\n  fix: see calib metrics --help"),
        ("metrics a.npz -qm", "option '-m' requires an argument\n  fix: see calib metrics --help"),
        ("metrics a.npz --json=1", "option '--json' does not take a value\n  fix: see calib metrics --help"),
        ("metrics a.npz --level 0.9 --level=0.9", "--level was given more than once\n  fix: pass it once"),
        ("metrics a.npz --labels= --labels a", "--labels was given more than once\n  fix: pass it once"),
        ("metrics a.npz --bins=", "--bins  is not a whole number\n  fix: pass a whole number from 1 to 1000"),
        ("metrics a.npz -o=a --output=", "-o is empty\n  fix: name a file; is the variable that it comes from set?"),
        ("check --baseline= a.npz", "--baseline is empty\n  fix: name a file; is the variable that it comes from set?"),
        ("metrics a.npz -qZ", "no such option: -Z\n  fix: see calib metrics --help"),
        ("metrics a.npz -q-v", "no such option: --\n  fix: see calib metrics --help"),
        ("metrics a.npz --edges lft", "--edges lft is not a choice\n  fix: did you mean 'left'?"),
        ("metrcs a.npz --json", "no such command 'metrcs'\n  fix: did you mean: calib metrics a.npz --json"),
        ("help metrcs", "no such command 'metrcs'\n  fix: did you mean: calib metrics --help"),
        ("xyzw", "no such command 'xyzw'\n  fix: see calib --help"),
        ("--no-such", "no such option: --no-such\n  fix: see calib --help"),
        ("--", "missing command\n  fix: see calib --help"),
        ("--json metrics a.npz", "no such option: --json"),
    ],
)
def test_a_wrong_line_is_refused_with_its_fix(
    line: str, said: str, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    assert not calls
    err = capsys.readouterr().err
    assert err.startswith(f"error: {said}"), err
    assert "\n  fix: " not in said or err == f"error: {said}\n", err


def test_an_empty_argument_is_no_file(calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["metrics", ""], ["metrics", "a.npz", ""], ["ood", "a.npz", ""], ["check", "--", ""]):
        assert main(line) == 2
        assert " is empty\n  fix: name a file; is the variable that it comes from set?" in capsys.readouterr().err
    assert not calls


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("metrics -qmece a.npz", {"quiet": True, "metric": ("ece",), "files": (Path("a.npz"),)}),
        ("metrics a.npz -m -1 -m --json", {"metric": ("-1", "--json"), "files": (Path("a.npz"),)}),
        ("metrics a.npz -m=ece", {"metric": ("=ece",), "files": (Path("a.npz"),)}),
        ("metrics --by a=b a.npz b.npz", {"by": ("a=b",), "files": (Path("a.npz"), Path("b.npz"))}),
        ("metrics --by=--json a.npz", {"by": ("--json",), "files": (Path("a.npz"),)}),
        ("metrics -- --json -x", {"files": (Path("--json"), Path("-x"))}),
        ("metrics a.npz -- -", {"files": (Path("a.npz"), Path("-"))}),
        ("metrics -", {"files": (Path("-"),)}),
        ("metrics --json --json -vv a.npz", {"json": True, "verbose": True, "files": (Path("a.npz"),)}),
        ("metrics --clip a.npz", {"clip": 1e-15, "files": (Path("a.npz"),)}),
        ("metrics a.npz --clip 1e-3", {"clip": 1e-3, "files": (Path("a.npz"),)}),
        ("apply c.npz a.npz b.npz --save d.npz", {"calibrator": Path("c.npz"), "save": Path("d.npz"),
                                              "files": (Path("a.npz"), Path("b.npz"))}),
        ("watch s.json a.npz b.npz", {"state": Path("s.json"), "new": (Path("a.npz"), Path("b.npz"))}),
        ("ood a.npz --json b.npz", {"json": True, "inside": Path("a.npz"), "outside": Path("b.npz")}),
        ("completion BASH", {"shell": "bash"}),
        ("-- list metrics", {"name": "metrics"}),
        ("list", {}),
    ],
)  # fmt: skip
def test_what_a_line_means(line: str, given: dict[str, Any], calls: Calls) -> None:
    assert main(line.split()) == 0
    [call] = calls
    assert same(call, "list" if "list" in line else line.split()[0], given), call


def spellings(name: str, bench: ModuleType) -> st.SearchStrategy[list[tuple[list[str], str, Any]]]:
    """Options of a command, each once: how it is written, its name, its value."""

    @st.composite
    def one_option(draw: st.DrawFn, one: Option) -> tuple[list[str], str, Any]:
        flag = draw(st.sampled_from(list(one.flags)))
        if one.flag:
            return [flag], one.name, True
        right = bench.right(one)
        texts = draw(st.lists(st.sampled_from(list(right)), min_size=1, max_size=3 if one.many else 1))
        glued = f"{flag}=" if flag.startswith("--") else flag
        words = [word for text in texts for word in draw(st.sampled_from([[flag, text], [glued + text]]))]
        values = [right[text] for text in texts]
        return words, one.name, tuple(values) if one.many else values[0]

    given_apart = [one for one in options(name).values() if not one.argument and one.alone is None]
    some = (
        st.lists(st.sampled_from(given_apart), max_size=6, unique_by=lambda one: one.name)
        if given_apart
        else st.just([])
    )
    return some.flatmap(lambda chosen: st.tuples(*map(one_option, chosen))).map(list)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.one_in(5)
def test_options_mean_the_same_in_any_order_and_spelling(name: str, bench: ModuleType, calls: Calls) -> None:
    rest, base = bench.needed(name)

    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(spellings(name, bench))
    def hold(drawn: list[tuple[list[str], str, Any]]) -> None:
        calls.clear()
        names = {key for _, key, _ in drawn}
        kept = [word for one in drawn for word in one[0]]
        needed = [one.flags[0] for one in options(name).values() if one.name in names and one.name in base]
        words = list(rest)
        for flag in needed:  # given by what was drawn
            del words[words.index(flag) : words.index(flag) + 2]
        assert main([name, *kept, *words]) == 0
        assert same(calls[0], name, base | {key: value for _, key, value in drawn}), kept

    hold()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.one_in(5)
def test_any_words_are_read_or_refused_with_a_fix(
    name: str, bench: ModuleType, calls: Calls, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [flag for one in options(name).values() if not one.argument for flag in one.flags]
    word = st.sampled_from([*flags, *bench.TEXTS, *bench.NUMBERS, "a.npz", "-mece", "--bins=15", "--level", "-qm", ""])

    @settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(word, max_size=7))
    def hold(words: list[str]) -> None:
        calls.clear()
        code = main([name, *words])
        err = capsys.readouterr().err
        assert (code, len(calls), err) == (0, 1, "") or (code == 2 and not calls and "\n  fix: " in err), err

    hold()


@pytest.mark.parametrize("line", [["--version"], ["-V"], ["--version", "metrics"], ["-V", "--help"]])
def test_the_version(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 0
    assert capsys.readouterr().out == f"calib {__version__}\n"


def test_help_comes_before_what_is_wrong_with_values(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("metrics --help", "help metrics", "metrics --bins x --help", "metrics --seed 1 --seed 2 -qh"):
        assert main(line.split()) == 0
        shown = capsys.readouterr()
        assert "Usage: calib metrics [OPTIONS]" in shown.out
        assert not shown.err
    assert main(["help"]) == main(["--help"]) == 0
    assert main([]) == 2
    first, second, third = capsys.readouterr().out.split("Usage: calib [OPTIONS] COMMAND")[1:]
    assert first.strip() == second.strip() == third.strip()


@pytest.mark.slow
def test_commands_import_nothing_heavy_to_read_a_line() -> None:
    """Importing pydantic takes as long as importing NumPy."""
    modules = "print(*{'pydantic', 'rich', 'typer'} & {*sys.modules})"
    script = f"import sys; from calibcli.cli.app import main; main(['list', '-q', '--format=csv']); {modules}"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "typer"
