"""The frame of the command line: version, help, and what a command costs before it works."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from calibcli import __version__, headlines
from calibcli.cli import COMMANDS
from calibcli.cli.app import main
from calibcli.cli.typed import PANELS, build_command
from calibcli.lab.training.options import Setup
from calibcli.scores.reading_options import Reading

ROOT = Path(__file__).parent.parent
TEST, VALIDATION = (str(ROOT / "sample_data" / f"{name}.npz") for name in ("test", "validation"))
HEAVY = ("torch", "scipy.stats", "scipy.optimize", "matplotlib", "pandas", "sklearn", "rich", "jinja2")


@cache
def imports(*argv: str) -> list[str]:
    """The modules that a command loads, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-X", "importtime", "-m", "calibcli", *argv]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return [line.rsplit("|", 1)[-1].strip() for line in lines]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"calib {__version__}\n"


def test_no_arguments_show_the_help_and_are_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert all(name in shown.out for name in COMMANDS)
    assert shown.err == ""


@pytest.mark.parametrize("columns", [80, 100])
def test_the_commands_fit_on_one_screen(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", columns)
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert [name for name in COMMANDS if not any(re.match(rf"│ {name} +[A-Z]", line) for line in lines)] == []


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("fit", ["--data", "--loss", "--epochs", "--lr", "--batch-size", "--save"]),
        ("metrics", ["--metric"]),
        ("check", ["--max", "--min"]),
        ("compare", ["--metric"]),
    ],
)
def test_the_options_that_are_used_most_come_first(
    name: str, first: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """And before those that every command has."""
    assert main([name, "--help"]) == 0
    shown = re.findall(r"(?m)^│ (?:\*| ) *(--[\w-]+)|^│ (--[\w-]+)", capsys.readouterr().out)
    options = [one or other for one, other in shown]
    assert options[: len(first)] == first
    assert options.index("--format") > len(first)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_table_of_the_readme(name: str) -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `calib {name}\b", readme, re.M), f"write a row for calib {name} into the table of README"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"Example: calib {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("check t.npz --max ece=0.1 --alpha 7", "--alpha 7 is out of range\n  fix: pass a number from 1e-06 to 0.25"),
        ("plan --max ece=0.1 --power x", "--power x is not a number\n  fix: pass a number from 0.5 to 0.999"),
        (
            "study step-size --dry-run --jobs 1001",
            "--jobs 1001 is out of range\n  fix: pass a whole number from 1 to 1000",
        ),
    ],
)
def test_a_value_that_no_option_can_have_is_refused_in_our_words(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refusals are errors of a value too, which Typer would put into a sentence of its own."""
    assert main(line.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {said}")


def test_paragraphs_of_the_help_fill_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """No line ends where the docstring's does."""
    main(["watch", "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert not any(line.endswith("The") and len(line) < 20 for line in lines), lines
    assert any("The rules are those" in line for line in lines), lines


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_all_of_every_option(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Types in words, texts whole (brackets may be taken for markup), and where the names of a spec are listed."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    assert main([name, "--help-all"]) == 0
    shown = " ".join(re.sub("│", " ", capsys.readouterr().out).split())
    assert not re.search(r"<\w+>|<list|\blist\[", shown)
    specs = {
        "max",
        "min",
        "margin",
        "train_loss",
        "metric",
        "method",
        "quantity",
        "loss",
        "optimizer",
        "schedule",
        "augment",
        "penalty",
        "arch",
        "format",
    }
    for one in [one for one in build_command(name).params if not one.hidden]:
        assert " ".join(one.help.split()) in shown, one.name
        assert one.name not in specs or "(calib list " in one.help, one.name


def test_the_help_shows_what_is_used_most_and_says_what_shows_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for asked in ("--help", "--help-all"):
        assert main(["metrics", "test.npz", asked]) == 0
        shown[asked] = capsys.readouterr().out
    reading = {f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(Reading) if "help" in f.metadata}
    few = {option for option in reading if re.search(rf"^│ +{option} ", shown["--help"], re.M)}
    assert few == {"--scores", "--labels", "--classes", "--event", "--kind", "--by"}
    assert f"{Reading.PANEL} ({len(reading - few)} more: --help-all)" in shown["--help"]
    assert all(re.search(rf"^│ +{option} ", shown["--help-all"], re.M) for option in reading)
    assert "more:" not in shown["--help-all"]


@pytest.mark.regression
def test_the_help_of_fit_is_short_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Options that few need are shown by --help-all alone, as those of reading are."""
    shown = {}
    for asked in ("--help", "--help-all"):
        assert main(["fit", asked]) == 0
        shown[asked] = capsys.readouterr().out
    options = {f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(Setup) if "help" in f.metadata} - {"--model"}
    few = {option for option in options if re.search(rf"^│ +{option} ", shown["--help"], re.M)}
    assert {"--data", "--loss", "--epochs", "--save", "--resume"} <= few
    assert len(few) < len(options) / 2
    assert f"{Setup.PANEL} ({len(options - few)} more: --help-all)" in shown["--help"]
    assert all(re.search(rf"^│ +{option} ", shown["--help-all"], re.M) for option in options)
    assert "─ Arguments ─" in shown["--help"]


def test_commands_stand_in_the_order_of_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-h"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split()[1] for line in shown.splitlines() if re.match(r"│ [a-z]", line)]
    known = ["metrics", "slices", "scale", "apply", "fit", "check", "inspect", "list", "demo", "report"]
    assert [name for name in rows if name in known] == known
    assert {*COMMANDS} <= {*rows}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("calib met", ["metrics"]),
        ("calib metrics x --metric ece_s", ["ece_sweep"]),
        ("calib scale x --method temp", ["temperature"]),
        ("calib check x --max ec", ["ece="]),
        ("calib metrics x --format js", ["json"]),
        ("calib metrics x --per-c", ["--per-class"]),
    ],
)
def test_a_shell_completes_commands_options_and_specs(line: str, first: list[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_CALIB_COMPLETE": "complete_bash"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **words}
    command = [sys.executable, "-m", "calibcli"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split()[: len(first)] == first, done.stderr[-500:]


@pytest.mark.parametrize(
    "argv",
    [
        ("--help",),
        ("metrics", TEST),
        ("scale", VALIDATION, "--test", TEST),
        ("scale", VALIDATION, "--method", "focal-temperature"),
        ("check", TEST, "--max", "ece=0.2"),
        ("plan", "--max", "ece=0.05"),
        ("inspect", TEST),
        ("ood", TEST, VALIDATION),
        ("threshold", TEST, "--max-risk", "0.05"),
        ("watch", f"{tempfile.mkdtemp()}/state.json", TEST, "--max", "ece=0.2"),
    ],
    ids=lambda argv: " ".join(Path(a).name for a in argv),
)
@pytest.mark.one_in(7)
def test_light_commands_import_nothing_heavy(argv: tuple[str, ...]) -> None:
    loaded = imports(*argv)
    assert "pydantic" not in loaded  # by which Typer would convert values, that have types of ours
    assert argv[0] == "plan" or "scipy.special" not in loaded  # which it asks for the quantiles of a whole grid
    assert argv != ("--help",) or "numpy" not in loaded
    assert not {m for m in loaded if m.startswith(tuple(h for h in HEAVY if argv != ("--help",) or h != "rich"))}


@pytest.mark.regression("5 --help")
@pytest.mark.parametrize(
    ("argv", "most"),
    [(("--help",), 380), (("metrics", TEST), 376), (("check", TEST, "--max", "ece=0.2"), 406)],
    ids=lambda one: str(one[0] if isinstance(one, tuple) else one),
)
def test_start_is_small(argv: tuple[str, ...], most: int) -> None:
    """In modules loaded, which no other process changes (NumPy alone loads 184, Typer another 45, torch 1,141)."""
    assert len(imports(*argv)) < most


@pytest.mark.regression
@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("fit m.pt --data d.npz --loss focal --gamma 3", "it is an option of a spec: --loss focal:gamma=3"),
        ("fit m.pt --gamma=3 --loss focal", "it is an option of a spec: --loss focal:gamma=3"),
        ("metrics a.csv --max ece=.05", "calib check a.csv --max ece=.05"),
        ("metrics a.csv --min accuracy=.8", "calib check a.csv --min accuracy=.8"),
        ("metrics a.csv --with t.safetensors", "--with is an option of calib "),
        ("metrics a.csv --deployed x", "see calib metrics --help"),  # an argument of `verify`, no option
        ("compare a.csv b.csv --method platt", "--method is an option of calib scale: see calib scale --help"),
        ("metrics a.npz --bin 3", "did you mean --bins?"),
        ("fit m.pt --loss focal --gama 3", "see calib fit --help"),
        ("metrics", "for example: calib metrics test.npz"),
        ("fit", "for example: calib fit mlp"),
        ("list studies", "calib study lists those that come with calib"),
    ],
)
def test_a_fix_is_what_was_meant(line: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert fix in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_what_the_recipe_asks_for(name: str) -> None:
    """What `calib NAME` finds by a name: `PANEL` and `command` of the file, and the `command` of its results."""
    module = importlib.import_module(f"calibcli.cli.{name}")
    assert module.PANEL in PANELS
    assert f"`calib {name}`" in str(module.__doc__)
    assert build_command(name, brief=True).name == name


def test_results_carry_the_name_of_a_command() -> None:
    """By it a headline is found, and a format knows what it shows."""
    named = set[str]()
    for path in (ROOT / "calibcli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Result", "dataclasses.replace", "replace"):
                values = [word.value for word in node.keywords if word.arg == "command"]
                named |= {value.value for value in values if isinstance(value, ast.Constant)}
    assert named - {""} == {*COMMANDS} - {"completion", "demo"}  # these give no result
    assert {*headlines._sentences()} <= {*COMMANDS}
