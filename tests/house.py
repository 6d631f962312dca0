"""The facts of the house, read from its code: packages, lines, imports, circles, long functions and files.

`make house` prints them, and what no test can judge: how much the code has grown since the last tag, the files that
`calib metrics` runs code of, the metrics that are named outside of their own files, and the modules inside of a package
that tests import.
"""

from __future__ import annotations

import ast
import inspect
import io
import os
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "calibcli"
FILES = sorted(PACKAGE.rglob("*.py"))


def module(path: Path) -> str:
    """`calibcli.metrics.binned` of its file; a package is its `__init__`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module(path): path for path in FILES}


def package(path: Path) -> str:
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


def code_lines(text: str) -> int:
    """Lines with code: no blanks, comments or docstrings."""
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for first in node.body
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        for line in range(first.lineno, (first.end_lineno or first.lineno) + 1)
    }
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
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


def comment_lines(text: str) -> int:
    """Lines that hold a comment and nothing else."""
    return sum(line.lstrip().startswith("#") for line in text.splitlines())


def git(*args: str) -> str:
    """What git prints; "" where there is no git, or no such thing."""
    try:
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def since_last_tag(files: int, lines: int) -> str:
    """How many files and lines of code were added since the last tag."""
    tag = git("describe", "--tags", "--abbrev=0").strip()
    if not tag:
        return "no tag yet"
    names = [name for name in git("ls-tree", "-r", "--name-only", tag, "calibcli").split() if name.endswith(".py")]
    before = sum(code_lines(git("show", f"{tag}:{name}")) for name in names)
    return f"since {tag}: {files - len(names):+} files, {lines - before:+} lines"


FOLLOW = """
import sys, threading
from calibcli.__main__ import main

def body(code):  # of a module or a class: it runs once, when its file is imported
    return not code.co_flags & 0x1

def follow(frame, event, argument):
    if event != "call" or PACKAGE not in frame.f_code.co_filename or frame.f_code.co_filename in entered:
        return
    outer = frame
    while outer is not None:
        if PACKAGE in outer.f_code.co_filename and body(outer.f_code):
            return
        outer = outer.f_back
    entered.add(frame.f_code.co_filename)

PACKAGE, entered = sys.argv.pop(1), set()
threading.setprofile(follow)
sys.setprofile(follow)
try:
    main()
finally:
    sys.setprofile(None)
    print(*sorted(entered), sep="\\n", file=sys.stderr)
"""


def entered(*command: str) -> list[str]:
    """Files that a command runs code of, other than by importing them: the way of a number."""
    package = str(PACKAGE) + os.sep
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", FOLLOW, package, *command, "-q"]
    done = subprocess.run(argv, env=environment, capture_output=True, encoding="utf-8", check=True)
    return [line.removeprefix(package) for line in done.stderr.splitlines() if line.startswith(package)]


def literals(code: ast.AST) -> Iterator[str]:
    """Strings that something is compared with, that are keys, or elements of a list, set or tuple.

    Values of `Literal[...]` are left out: they are the options of a function, which states them in its signature.
    """
    types = {
        id(part)
        for node in ast.walk(code)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Literal")
        for part in ast.walk(node)
    }
    for node in ast.walk(code):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = [*node.keys]
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.List | ast.Set | ast.Tuple):
            parts = [*node.elts]
        for part in parts:
            if id(node) not in types and isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def only_used_within() -> list[str]:
    """Modules without `_` that nothing outside of their own package imports, and that are no entries found by name."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, path in MODULES.items():
        for there in imports(path):
            users[there].add(name)
    return [
        name
        for name in sorted(MODULES)
        if name.count(".") > 1
        and "._" not in name
        and users[name]
        and all(user.startswith(name.rpartition(".")[0]) for user in users[name])
    ]


def metrics_named() -> dict[str, list[str]]:
    """The metrics that a file names though they are of another file; what a metric is should stand on its entry.

    The default sets in the registry are left out.
    """
    from calibcli.metrics import METRICS

    own = {entry.name: Path(inspect.getfile(entry.target)) for entry in METRICS}
    named = {
        path: sorted({text for text in literals(tree(path)) if text in own and own[text] != path})
        for path in FILES
        if path != PACKAGE / "metrics" / "registry.py"
    }
    return {module(path): names for path, names in named.items() if names}


def inner_modules_of_tests() -> Counter[str]:
    """Modules that tests import though they are inside of a package, with the number of test files."""
    found = Counter[str]()
    for path in sorted((ROOT / "tests").glob("test_*.py")):
        found.update(name for name in imports(path) if name.count(".") > 1)
    return found


def table() -> str:
    """Packages with their files, code lines, own-line comments, and the packages that they import."""
    count, lines, comments = Counter(map(package, FILES)), Counter[str](), Counter[str]()
    used: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        lines[package(path)] += code_lines(text)
        comments[package(path)] += comment_lines(text)
        used[package(path)] |= {package(MODULES[name]) for name in imports(path)} - {package(path), "__init__"}
    rows = ["| package | files | code lines | comments per 1,000 | imports |", "|---|---|---|---|---|"]
    rows += [
        f"| `{name}` | {count[name]} | {lines[name]} | {1000 * comments[name] / lines[name]:.1f} | "
        f"{' '.join(sorted(used[name]))} |"
        for name in sorted(count, key=lambda name: (-lines[name], name))
    ]
    files, code = len(FILES), sum(lines.values())
    total = (
        f"{files} files, {code} lines of code (no blanks, comments, docstrings), "
        f"{1000 * sum(comments.values()) / code:.1f} lines of comments per 1,000; {since_last_tag(files, code)}."
    )
    return "\n".join([*rows, "", total])


if __name__ == "__main__":
    print(table())
    print("circles:", circles())
    print("functions above 100 lines:", long_functions(100))
    print("files above 600 lines:", long_files(600))
    way = entered("metrics", str(ROOT / "sample_data" / "test.npz"))
    print(f"`calib metrics` of a file runs code of {len(way)} files:", *way)
    print("metrics named outside of their own files:")
    print(*(f"    {name}: {' '.join(metrics)}" for name, metrics in metrics_named().items()), sep="\n")
    print("modules without _ that only their own package imports:", *only_used_within())
    inner = inner_modules_of_tests()
    print(f"modules inside of a package that tests import: {len(inner)}, in {inner.total()} places")
    print(*(f"    {name}: {files} test files" for name, files in inner.most_common(20)), sep="\n")
