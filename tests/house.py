"""The facts of the house, read from its code: rooms, lines, imports, circles, long functions and files.

`make house` prints them.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "calibcli"
FILES = sorted(PACKAGE.rglob("*.py"))


def module(path: Path) -> str:
    """`calibcli.metrics.binned` of its file; a package is its `__init__`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in FILES}


def room(path: Path) -> str:
    """First folder, or the file itself where it lies at the top."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> frozenset[str]:
    """Files of the package that this one imports, those inside functions included, `if TYPE_CHECKING` left out."""
    found: set[str] = set()
    skipped = {
        id(inner)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and any(getattr(part, "id", "") == "TYPE_CHECKING" for part in ast.walk(node.test))
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree(path)):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in MODULES else node.module)
    return frozenset(name for name in found if name in MODULES and name != module(path))


def circles() -> list[list[str]]:
    """Groups of files that import each other, directly or through others (Tarjan's components of more than one)."""
    edges = {name: sorted(imports(path)) for name, path in MODULES.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for there in edges[name]:
            if there not in index:
                visit(there)
                low[name] = min(low[name], low[there])
            elif there in stack:
                low[name] = min(low[name], index[there])
        if low[name] == index[name]:
            part = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(part) > 1:
                found.append(sorted(part))

    for name in edges:
        if name not in index:
            visit(name)
    return found


def code_lines(path: Path) -> int:
    """Lines with code: no blanks, comments or docstrings."""
    strings = {
        line
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for first in node.body
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        for line in range(first.lineno, (first.end_lineno or first.lineno) + 1)
    }
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    text = path.read_text(encoding="utf-8")
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in skip
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - strings)


def classes_defined_twice() -> dict[str, list[str]]:
    """Names of classes that more than one file defines, with those files."""
    where: dict[str, list[str]] = defaultdict(list)
    for name, path in MODULES.items():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(name)
    return {name: files for name, files in where.items() if len(files) > 1}


def long_functions(most: int) -> list[str]:
    return [
        f"{module(path)}.{node.name}: {length} lines"
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > most
    ]


def long_files(most: int) -> list[str]:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    return [f"{path.relative_to(ROOT)}: {size} lines" for path, size in sizes.items() if size > most]


def table() -> str:
    """Rooms with their files, code lines, and the rooms that they import."""
    count, lines = Counter(map(room, FILES)), Counter[str]()
    used: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        lines[room(path)] += code_lines(path)
        used[room(path)] |= {room(MODULES[name]) for name in imports(path)} - {room(path), "__init__"}
    rows = ["| room | files | code lines | imports |", "|---|---|---|---|"]
    rows += [
        f"| `{name}` | {count[name]} | {lines[name]} | {' '.join(sorted(used[name]))} |"
        for name in sorted(count, key=lambda name: (-lines[name], name))
    ]
    total = f"{len(FILES)} files, {sum(lines.values())} lines of code (no blanks, comments, docstrings)."
    return "\n".join([*rows, "", total])


if __name__ == "__main__":
    print(table())
    print("circles:", circles())
    print("functions above 100 lines:", long_functions(100))
    print("files above 600 lines:", long_files(600))
