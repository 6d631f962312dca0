"""The table of what was once wrong and the tests that keep it from coming back: `python tests/regressions_table.py`.

Read from the markers `@pytest.mark.regression("1.4")` by AST, without importing a test.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
MARKER = "pytest.mark.regression"
NUMBERED = [
    *(f"1.{n}" for n in range(1, 23)),
    *(f"2.{n}" for n in range(1, 14)),
    *(f"3.{n}" for n in range(1, 8)),
    *(f"device {n}" for n in (1, 2, 4, 5, 7, 8, 10)),
    "models 1",
    *(f"maps {n}" for n in range(1, 5)),
]
NAMED = {
    "4": [
        "smece",
        "dropout",
        "s99",
        "ece:bins",
        "focal_temperature",
        "bert",
        "state.pt",
        "epochs",
        "digits",
        "bins 1e12",
        "brackets",
        "alpha",
        "weights",
        "label-base",
        "result json",
        "baseline n",
        "calibrator spec",
        "calibrator k",
        "calibrator beta",
        "calibrator names",
        "dimensions",
        "folder",
        "disk full",
        "ulimit",
        "stderr",
        "sighup",
        "unreadable",
        "resume",
        "bomb",
        "crc",
        "two members",
        "ragged",
        "1_0",
        "boolean",
        "ctrl-c",
        "warnings",
    ],
    "5": ["seconds", "shift", "maxrss", "help"],
}
"""A line without a number is a marker of its section that holds this word: `regression("4 SIGHUP")`."""


MARKED = {
    **dict.fromkeys(["dropout", "s99", "ece:bins", "bins 1e12", "alpha"], "option-ranges"),
    **dict.fromkeys(["state.pt", "epochs"], "state-content"),
    **dict.fromkeys([f"calibrator {part}" for part in ("spec", "k", "beta", "names")], "calibrator-metadata"),
    "baseline n": "baseline-n",
    "result json": "result-",
    "crc": "flipped byte",
}
"""Where a marker says it in other words."""


def lines() -> list[str]:
    """Every line that needs a test."""
    return [*NUMBERED, *(f"{section} {word}" for section, words in NAMED.items() for word in words)]


@cache
def marked(folder: Path = HERE) -> dict[str, list[str]]:
    """Tests, as `file::name`, by what their markers say."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text if MARKER in text else "")):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                decorators: list[ast.AST] = [*node.decorator_list]
                name = f"{path.relative_to(folder)}::{node.name}"
            elif isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "pytestmark" for t in node.targets):
                decorators, name = [node.value], str(path.relative_to(folder))
            else:
                continue
            for decorator in decorators:
                for line in _regressions(decorator):
                    found.setdefault(line, []).append(name)
    return found


def table(folder: Path = HERE) -> dict[str, list[str]]:
    """Every line with its tests, which may be none."""
    by_marker = marked(folder)
    found = {}
    for line in lines():
        section, _, word = line.partition(" ")
        named, meant = section in NAMED, MARKED.get(word, word)
        found[line] = [
            test
            for marker, tests in by_marker.items()
            if (marker.startswith(f"{section} ") and meant in marker.lower() if named else marker == line)
            for test in tests
        ]
    return found


def unknown(folder: Path = HERE) -> list[str]:
    """Markers that belong to no line."""
    used = {test for tests in table(folder).values() for test in tests}
    return [marker for marker, tests in marked(folder).items() if not used & set(tests)]


def _regressions(node: ast.AST) -> Iterator[str]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == MARKER:
            yield from (str(a.value) for a in call.args if isinstance(a, ast.Constant))


if __name__ == "__main__":
    for line, tests in table().items():
        print(f"{line:<22}{tests[0] if tests else '-'}", *(f"\n{'':<22}{test}" for test in tests[1:]), sep="")
    sys.exit(0 if all(table().values()) else 1)
