"""The text of a scope is for readers: only `core/scope.py` takes it apart, other code asks `Estimate.where`.

Values of slices may look like anything, so that every other file would sometimes be wrong (`tests/test_scopes.py`).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "calibcli"
OWN = ROOT / "core" / "scope.py"
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != OWN]
PARTED = {
    *("partition", "rpartition", "split", "rsplit", "splitlines", "startswith", "endswith", "removeprefix"),
    *("removesuffix", "strip", "lstrip", "rstrip", "replace", "find", "rfind", "index", "rindex", "count"),
}
MATCHED = {"match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split"}


def is_scope(node: ast.AST) -> bool:
    """`e.scope`, a variable of that name, or the text of a scope, as `str(e.where)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str":
        return any(name_of(one) == "where" for one in node.args)
    return name_of(node) in ("scope", "scopes")


def name_of(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def taken_apart(tree: ast.AST) -> Iterator[int]:
    """Lines on which a scope is cut, searched, matched with a pattern, or asked for a part of its text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, own = node.func.attr, node.func.value
            if (method in PARTED and is_scope(own)) or (method in MATCHED and any(map(is_scope, node.args))):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            if any(isinstance(op, ast.In | ast.NotIn) and is_scope(of) for op, of in zip(node.ops, node.comparators)):
                yield node.lineno
        elif isinstance(node, ast.Subscript) and is_scope(node.value) and isinstance(node.slice, ast.Slice):
            yield node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_no_other_file_takes_a_scope_apart(path: Path) -> None:
    lines = sorted(set(taken_apart(ast.parse(path.read_text(encoding="utf-8")))))
    assert not lines, f"{path.relative_to(ROOT)}, lines {lines}: ask `where`, which whoever measures sets"


def test_every_way_to_take_it_apart_is_seen() -> None:
    ways = """
        e.scope.partition("=")
        scope.endswith(" before")
        "=" in e.scope
        "loss=" not in scope
        re.fullmatch("before|after", e.scope)
        PATTERN.search(gate.scope)
        e.scope[len(prefix):]
        str(e.where).removeprefix("score=")
    """
    assert sorted(taken_apart(ast.parse(inspect.cleandoc(ways)))) == [1, 2, 3, 4, 5, 6, 7, 8]
    others = 'e.scope == "before"\ne.scope in ("before", "after")\nby_scope[e.scope]\nf"{e.scope}, {other}"\nscopes[-1]'
    assert not [*taken_apart(ast.parse(others))]
