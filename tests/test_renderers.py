"""Renderers read tiers and roles: they know no command and no metric, so that a new one is shown as it is made."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibcli import render
from calibcli.cli import COMMANDS
from calibcli.core.figure_data import Curve, Plot, first_alone
from calibcli.core.result import Estimate, Result, Screen, Table
from calibcli.core.scope import CHANGE
from calibcli.metrics import METRICS
from calibcli.render.formats import table

FOLDER = Path(render.__file__).parent
ALLOWED = {
    ("table_contents.py", "accuracy"): "a column of bins.csv, whose names are a format",
    ("formats/toml.py", "inspect"): "the command whose result is `[data]`, how a file was read",
    ("_side_by_side.py", "threshold"): "a detail of a score by AUROC, and the head of its column",
    ("formats/table.py", "accuracy"): "the axis of a diagram of the predicted class, whose columns have shorter heads",
}
"""(file, word): why a renderer may compare with the name of a command or of a metric."""
ASKS = ("get", "startswith", "endswith", "removeprefix", "pop")
"""Methods that decide by their first argument."""


def known(tree: ast.AST) -> Iterator[str]:
    """Strings that a program decides by: what it compares with, keys of a table, members of a list, arms of a match."""
    for node in ast.walk(tree):
        decisive: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            decisive = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            decisive = [*node.keys]
        elif isinstance(node, ast.List | ast.Tuple | ast.Set):
            decisive = [*node.elts]
        elif isinstance(node, ast.MatchValue):
            decisive = [node.value]
        elif isinstance(node, ast.Subscript):
            decisive = [node.slice]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ASKS:
            decisive = [*node.args[:1]]
        for one in decisive:
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                yield one.value


def test_what_counts_as_known() -> None:
    def of(text: str) -> list[str]:
        return [*known(ast.parse(text))]

    assert of("x.command == 'scale'") == ["scale"]
    assert of("x in ('a', 'b')") == ["a", "b"]
    assert of("{'scale': 1}") == ["scale"]
    assert of("match x:\n  case 'scale': pass") == ["scale"]
    assert of("name.startswith('ece')") == ["ece"]
    assert of("Column('threshold')") == []


def test_renderers_know_no_command_and_no_metric() -> None:
    names = {*COMMANDS, *METRICS.entries}
    assert {"scale", "ece", "study"} <= names
    found = {
        (file.relative_to(FOLDER).as_posix(), word)
        for file in FOLDER.rglob("*.py")
        for word in known(ast.parse(file.read_text(encoding="utf-8")))
        if word in names or word.partition(":")[0] in METRICS.entries
    }
    assert found == {*ALLOWED}


def number(name: str, scope: str = "", **fields: object) -> Estimate:
    return Estimate(name=name, scope=scope, value=0.5, low=0.25, high=0.75, level=0.95, n=100, **fields)  # type: ignore[arg-type]


def plot(name: str, **fields: object) -> Plot:
    curves = [Curve(label=name, kind="line", x=[0, 1, 2], y=[0, 1, 4])]
    return Plot(name=name, title=f"figure {name}", curves=curves, **fields)  # type: ignore[arg-type]


RESULT = Result(
    command="brand_new",
    estimates=[number("first"), number("second", tier="asked"), number("third", tier="all")],
    tables=[
        Table(name="short", columns=["x"], rows=[["row one"], ["row two"]], few=[1]),
        Table(name="parts", columns=["x"], rows=[["row three"]], tier="asked"),
        Table(name="errors", columns=["x"], rows=[["row four"]], tier="all"),
    ],
    plots=[plot("shown"), plot("kept", tier="all")],
    facts={"size": 7, "setting": "odd"},
    screen=Screen(hidden=("setting",), badge="novelty"),
)
WORDS = {"first", "second", "third", "row one", "row two", "row three", "row four", "figure kept", "odd"}


@pytest.mark.parametrize(
    ("detail", "seen"),
    [
        ("few", {"first", "row two"}),
        ("asked", {"first", "second", "row one", "row two", "row three"}),
        ("all", WORDS),
    ],
)
def test_a_screen_of_a_command_that_no_renderer_knows(detail: table.Detail, seen: set[str]) -> None:
    text = table.plain(RESULT, detail)
    assert {word for word in WORDS if word in text} == seen
    assert "figure shown" in text
    assert "size: 7" in text or detail == "all"
    assert ("short: 1 of 2, all with -v or -o" in text) == (detail == "few")


def test_where_no_number_is_shown_first_all_are() -> None:
    asked = dataclasses.replace(RESULT, estimates=RESULT.estimates[1:])
    assert "second" in table.plain(asked)
    assert "third" in table.plain(asked)


def test_what_changed_stands_side_by_side() -> None:
    estimates = [number("what", scope) for scope in ("before", "after", CHANGE)]
    text = table.plain(dataclasses.replace(RESULT, estimates=estimates, screen=Screen(pairs="change")))
    head = next(line for line in text.splitlines() if "before" in line)
    assert head.split()[:4] == ["metric", "before", "after", "change"]


def test_scores_stand_in_rows_and_their_differences_below() -> None:
    estimates = [number(name, f"score={one}") for one in "ab" for name in ("hits", "misses")]
    differences = Table(name="differences", columns=["metric", "scope", "shown"], rows=[["hits", "b - a", "real"]])
    estimates.append(number("hits", "b - a"))
    text = table.plain(
        dataclasses.replace(RESULT, estimates=estimates, tables=[differences], screen=Screen(pairs="scores"))
    )
    heads = [line.split() for line in text.splitlines() if line.startswith(("score", "hits of"))]
    assert heads[0][:2] == ["score", "hits"]
    assert "misses" in heads[0]
    assert heads[1] == ["hits", "of", "change", "95", "%", "interval", "shown"]


def test_a_badge_has_the_name_that_its_command_chose() -> None:
    assert json.loads(render.text(RESULT, "badge"))["label"] == "novelty"
    assert json.loads(render.text(dataclasses.replace(RESULT, screen=Screen()), "badge"))["label"] == "brand_new"


def test_no_file_says_what_a_screen_shows() -> None:
    """Older versions read what this one writes, and it reads theirs; a result is equal to what was read again."""
    data = json.loads(RESULT.to_json())
    assert not {"screen", "tier", "few"} & {
        key for part in (data, *data["estimates"], *data["tables"], *data["plots"]) for key in part
    }
    again = Result.from_json(RESULT.to_json())
    assert again == RESULT
    assert {e.tier for e in again.estimates} == {"few"}


def test_one_figure_is_drawn_where_there_are_several() -> None:
    plots = [plot("work", tier="all"), plot("a"), plot("strip", under="a"), plot("b"), plot("under_b", under="b")]
    assert [p.name for p in first_alone(plots) if p.tier == "few"] == ["a", "strip"]
    assert [p.name for p in first_alone(plots, lambda p: p.name == "b") if p.tier == "few"] == ["b", "under_b"]
    assert [p.name for p in first_alone(plots, lambda p: p.name == "work") if p.tier == "few"] == ["a", "strip"]
    assert first_alone([]) == []
