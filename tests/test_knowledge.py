"""What a metric is stands on its entry: no other file compares with its name, or has it in a table or a list."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibcli.metrics import METRICS

ROOT = Path(__file__).parent.parent / "calibcli"
OWN = {entry.name: Path(inspect.getfile(entry.target)) for entry in METRICS}
ALLOWED = {
    # what is measured where nothing is asked for
    "metrics/paired.py": "accuracy brier ece nll",
    "metrics/report.py": "accuracy confidence_gap ece nll",
    "ship/targets/card.py": "accuracy brier ece nll",
    "lab/study/parsing.py": "ece nll",
    "lab/training/evaluation.py": "accuracy adaece ece entropy entropy_wrong nll nll_correct nll_wrong",
    # columns of numbers by row, which metrics are the means of
    "scores/columns.py": "brier",
    "metrics/binned.py": "nll",
    "metrics/temperature_gain.py": "nll",
    "scores/softmax.py": "entropy nll",
    "gate/baseline.py": "brier nll",
    "networks/curvature/engine.py": "accuracy nll",
    "metrics/partial_states.py": "nll",
    # numbers of a training log, of which some are metrics; and what `fit` measures by default
    "lab/study/experiment.py": "adaece ece entropy nll nll_correct nll_wrong",
    "lab/training/one_model.py": "confidence_gap nll",
    "lab/training/fit.py": "accuracy adaece ece entropy nll nll_correct nll_wrong",
    # heads of tables, labels of axes
    "gate/check.py": "accuracy ece",
    "metrics/diagrams.py": "accuracy",
    "core/figure_data.py": "ece smece",  # the number inside a diagram
    "calibrators/report.py": "accuracy ece nll",
    # objectives of a fit, each implemented there, and what a fit says of itself
    "calibrators/focal.py": "brier nll",
    "calibrators/temperature.py": "adaece brier ece nll",
    # options of these metrics: the score that CORP takes apart, the statistic that is tested
    "metrics/corp.py": "brier",
    "metrics/means.py": "ece ece2_debiased mmce",
    # other things of the same name: scores of out-of-distribution rows, losses, penalties, fields of files
    "metrics/ood.py": "entropy",
    "networks/losses/__init__.py": "mmce",
    "networks/losses/shelf.py": "brier",
    "scores/files/roles.py": "accuracy nll",
}
"""Names that another file than the metric's own may have, and why."""
FREE = ("metrics/shelf.py", "render/")
"""The default sets; and renderers, which are to know no metric."""


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of strings that something is compared with, that are keys, or elements of a list, set or tuple.

    Values of `Literal[...]` are left out: they are the options of a function, which states them in its signature.
    """
    types = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal")
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in types:
            continue
        if isinstance(node, ast.Compare):
            parts: list[ast.expr | None] = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = [*node.keys]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.List | ast.Set | ast.Tuple):
            parts = [*node.elts]
        else:
            continue
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.lineno, part.value


def known_elsewhere(path: Path) -> list[tuple[int, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(line, text) for line, text in literals(tree) if text in OWN and OWN[text] != path]


FILES = [p for p in sorted(ROOT.rglob("*.py")) if not p.relative_to(ROOT).as_posix().startswith(FREE)]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_metric_is_known_in_its_own_file(path: Path) -> None:
    allowed = set(ALLOWED.get(path.relative_to(ROOT).as_posix(), "").split())
    found = known_elsewhere(path)
    more = [f"line {line}: '{text}'" for line, text in found if text not in allowed]
    assert not more, f"{path}: ask the metric's entry (metrics.shelf.traits): {', '.join(more)}"
    assert allowed == {text for _, text in found}, f"{path} may know more than it does"


def test_every_way_to_know_a_name_is_seen() -> None:
    ways = """
        e == "ece"
        "ece" in e
        e in ("a", "ece")
        e in {"ece"}
        {"ece": 1}
        ["ece"]
        dict.fromkeys(("ece",))
        match e:
            case "ece": ...
    """
    lines = [line for line, text in literals(ast.parse(inspect.cleandoc(ways))) if text == "ece"]
    assert sorted(lines) == [1, 2, 3, 4, 5, 6, 7, 9]
    others = 'METRICS.choose("ece")\nx: Literal["ece", "nll"]\nfirst(result, "ece")\nGate(metric="ece")'
    assert not [text for _, text in literals(ast.parse(others))]


def test_what_a_file_may_know_is_there() -> None:
    assert all((ROOT / path).is_file() for path in ALLOWED)


def test_what_entries_state_of_other_metrics_is_there() -> None:
    for entry in METRICS:
        for trait in ("of_top", "debiased"):
            assert (getattr(entry.traits, trait) or entry.name) in METRICS
        other = [name for one in METRICS for name in one.traits.called]
        assert len(other) == len(set(other))
        assert not {*other} & METRICS.entries.keys()


@pytest.mark.parametrize("trait", ["error", "named"])
def test_places_in_sentences_are_those_of_one_metric(trait: str) -> None:
    places = [place for entry in METRICS if (place := getattr(entry.traits, trait))]
    assert sorted(places) == [*range(1, len(places) + 1)]
