"""Write a calibration map as a function of one row in Python, JavaScript and C, by running its program on symbols."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli import __version__
from calibcli.calibrators import Scaler
from calibcli.calibrators.program import Operations, Parameters, unpacked
from calibcli.core.errors import InputError, refusing
from calibcli.scores.predictions import kind_words
from calibcli.ship.target import mapped

# The program of a map is run once on symbols. The result of an operation is a `Node`: one that is used once is written
# where it is used; others get a name and a line.

Array = NDArray[Any]
LEAVES = ("scores", "literal", "const", "-inf", "output")  # never need a line
CHEAP = ("same", "column", "number")  # are repeated at each use rather than named
LINES = ("max", "min", "sum", "argmax", "join", "matrix", "log_both")  # always have a line
WHOLE = ("argmax", "matrix", "log_both")  # take a whole vector, by its name
PRECEDENCE = {"where": 0, "<": 1, ">": 1, "<=": 1, "same": 1, "+": 2, "-": 2, "*": 3, "/": 3}
ATOM = 4


def _operator(op: str, swapped: bool = False) -> Any:
    return lambda a, b: a.o.node(op, b, a) if swapped else a.o.node(op, a, b)


@dataclass(eq=False)
class Node:
    """The result of an operation: one number, or one for each class (`wide`)."""

    o: RowOps
    op: str
    args: tuple[Node, ...]
    wide: bool
    value: Any = None

    __add__, __sub__, __mul__, __truediv__ = (_operator(op) for op in "+-*/")
    __radd__, __rsub__, __rmul__, __rtruediv__ = (_operator(op, True) for op in "+-*/")
    __lt__, __gt__, __le__ = _operator("<"), _operator(">"), _operator("<=")


class RowOps(Operations):
    """The operations on nodes.

    Args:
        classes: K.
        columns: number of scores in a row.
        parameters: of the map; a constant that is one of them has its name.
    """

    eps = float(np.finfo(np.float64).eps)

    def __init__(self, classes: int, columns: int, parameters: Parameters) -> None:
        self.classes, self.parameters = classes, parameters
        self.nodes: list[Node] = []
        self.constants: dict[str, Any] = {}
        self._known: dict[tuple[Any, ...], Node] = {}
        self._logits: dict[Node, Node] = {}
        self.scores = self.node("scores", wide=columns > 1)

    def node(self, op: str, *args: Node | float, wide: bool | None = None, value: Any = None) -> Node:
        """Return the node of an operation; the same one for the same arguments."""
        nodes = tuple(a if isinstance(a, Node) else self.const(a) for a in args)
        key = (op, *map(id, nodes), value)
        if key not in self._known:
            wide = any(n.wide for n in nodes) if wide is None else wide
            self._known[key] = Node(self, op, nodes, wide, value)
            self.nodes.append(self._known[key])
        return self._known[key]

    exp, log, log1p = partialmethod(node, "exp"), partialmethod(node, "log"), partialmethod(node, "log1p")
    abs, number, neg_inf = partialmethod(node, "abs"), partialmethod(node, "number"), partialmethod(node, "-inf")
    least, most, where = partialmethod(node, "least"), partialmethod(node, "most"), partialmethod(node, "where")
    max, min = partialmethod(node, "max", wide=False), partialmethod(node, "min", wide=False)
    sum, argmax = partialmethod(node, "sum", wide=False), partialmethod(node, "argmax", wide=False)
    join = partialmethod(node, "join", wide=True)

    def const(self, array: Any, whole: bool = False) -> Node:
        """Return a literal, or a named constant: named like the parameter that it is, else C."""
        name = next((name.upper() for name, value in self.parameters.items() if value is array), "")
        values = np.asarray(array, np.float64)
        if not name and values.size == 1:
            return self.node("literal", value=float(values.reshape(())))
        name = f"{name or 'C'}_" if name in ("", "K", "X", "Y", "START") else name
        while name in self.constants and not np.array_equal(self.constants[name], values):
            name += "_"
        self.constants[name] = values.reshape(()) if values.size == 1 else values
        return self.node("const", wide=values.size > 1, value=name)

    def column(self, x: Node, k: int) -> Node:
        return self.node("column", x, wide=False, value=str(k))

    def is_top(self, z: Node) -> Node:
        return self.node("same", self.argmax(z), wide=True)

    def linear(self, weight: Array, x: Node) -> Node:
        w = self.const(weight)
        return self.node("matrix", x, w, wide=True) if weight.ndim == 2 else w * x

    def log_both(self, z: Node) -> tuple[Node, Node]:
        pair = self.node("log_both", z, wide=False)
        return self.node("output", pair, wide=True, value=0), self.node("output", pair, wide=True, value=1)

    def read(self, parameters: Parameters, x: Node, steps: bool, at: Node | None = None) -> Node:
        xs, ys = ([row.tolist() for row in rows] for rows in zip(*unpacked(parameters), strict=True))
        self.constants |= {"X": xs, "Y": ys, "START": np.cumsum([0, *map(len, xs)])}
        return self.node("step" if steps else "curve", x, *([] if at is None else [at]))

    def normalised(self, z: Node) -> Node:
        out: Node = self.log_softmax(z)
        self._logits[out] = z
        return out

    def probabilities(self, log_p: Node) -> Any:
        """Return p for ln p, without the logarithm that the map ends in."""
        if log_p in self._logits:
            return self.softmax(self._logits[log_p])
        return log_p.args[0] if log_p.op == "log" else self.exp(log_p)


class Function:
    """The nodes that some results depend on, in order, with their names."""

    def __init__(self, language: Language, o: RowOps, results: Sequence[Node]) -> None:
        self.language, self.results = language, results
        needed = set(results)
        for node in reversed(o.nodes):
            needed |= set(node.args) if node in needed else set()
        self.nodes = [node for node in o.nodes if node in needed]
        self.users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for arg in node.args:
                self.users[arg].append(node)
        self.names: dict[Node, str] = {}
        self._letters = iter("xyuvwrstabcdgh")
        self._taken = {*"ijknpqze"}

    def text(self, name: str, results: str) -> str:
        """Write the function, with results of these names."""
        lines = [line for node in self.nodes if self._needs_line(node) for line in [self._line(node)]]
        values = [{"value": self.write(node)[0], "vector": self.vector(node)} for node in self.results]
        return self.language.function(name, lines, dict(zip(results, values, strict=True)))

    def _needs_line(self, node: Node) -> bool:
        if node.op in LEAVES or node.op in CHEAP:
            return False
        users = self.users[node]
        # a number that a loop over classes uses is computed before the loop, unless it is short, as in x[i] - total / 3
        short = node.op in "+-*/<>" and all(arg.op in LEAVES or self._needs_line(arg) for arg in node.args)
        again = any(user.wide and user.op != "join" for user in users) and not node.wide and not short
        return again or len(users) > 1 or node.op in LINES or any(user.op in WHOLE for user in users)

    def _line(self, node: Node) -> str:
        """Write the statement that gives a node its name."""
        arguments = node.args[:1] if node.op in WHOLE else node.args
        parts = {"vector": self.vector(node.args[0]) if node.args else ""}
        if node.op == "log_both":
            outputs = [output for output in node.o.nodes if output.op == "output" and output.args[0] is node]
            self.names |= {output: self._fresh(output) for output in outputs}
            parts |= {"a": self.names[outputs[0]], "b": self.names[outputs[1]]}
        elif node.op in LINES:
            values = [self.write(arg)[0] for arg in arguments]
            parts |= {"value": values[0], "values": ", ".join(values), "matrix": str(node.args[-1].value)}
        else:
            parts["value"] = self.write(node)[0]
        parts["name"] = self.names[node] = "" if node.op == "log_both" else self._fresh(node)
        kind = node.op if node.op in LINES else "each" if node.wide else "one"
        return self.language.lines[kind].format(**parts)

    def _fresh(self, node: Node) -> str:
        base = {"max": "top", "min": "least", "sum": "total", "argmax": "at"}.get(node.op, "" if node.wide else "m")
        base = name = base or next(self._letters, "x")
        number = 2
        while name in self._taken:
            name, number = f"{base}{number}", number + 1
        self._taken.add(name)
        return name

    def vector(self, node: Node) -> str:
        """Write a node as a whole vector: its name, or a list of its values."""
        return self._name(node) or (self.language.vector.format(value=self.write(node)[0]) if node.wide else "")

    def _name(self, node: Node) -> str:
        return "z" if node.op == "scores" else str(node.value) if node.op == "const" else self.names.get(node, "")

    def write(self, node: Node, i: str = "i") -> tuple[str, int]:
        """Write a node as an expression for the class `i`; return it with its precedence."""
        words, name = self.language.words, self._name(node)
        if name:
            index = i if node.wide else "0" if node.op == "scores" else ""
            return (f"{name}[{index}]" if index else name), ATOM
        if node.op == "literal":
            return repr(node.value), ATOM
        if node.op == "column":
            return self.write(node.args[0], node.value)
        args = [self.write(arg, i) for arg in node.args]
        if node.op in ("curve", "step"):
            curve = args[1][0] if len(args) > 1 else i if node.wide else "0"
            after = str(int(curve) + 1) if curve.isdigit() else f"{curve} + 1"
            return words["read"].format(node.op, curve, args[0][0], after), ATOM
        rank = PRECEDENCE.get(node.op, ATOM)
        if rank == ATOM:
            return words[node.op].format(*(text for text, _ in args)), ATOM
        # parentheses: the right side of - and / must bind tighter than the operator, and conditionals are not nested
        needs = [rank + (node.op == "where" or (place > 0 and node.op in "-/")) for place in range(len(args))]
        texts = [text if bound >= need else f"({text})" for (text, bound), need in zip(args, needs, strict=True)]
        return words.get(node.op, f"{{0}} {node.op} {{1}}").format(*texts, i=i), rank


@dataclass(frozen=True)
class Language:
    """Syntax of one language. In loops over all classes, `i` is the class.

    Attributes:
        words: expressions by operation, with {0}, {1}, ... for the arguments.
        vector: expression for the values of all classes of a node without a name.
        lines: statements by operation; `one` names a number, `each` a number for each class.
        constant: a constant.  head: the first lines.  body: a function.  last: its last line.
        helpers: functions by name, written if the text calls them.
        after: the last lines.
        flat: whether curves are joined end to end, from START[c] to START[c + 1], and arrays are written {1, 2}.
        modules: names by module, imported if the text uses them.
    """

    words: dict[str, str]
    vector: str
    lines: dict[str, str]
    constant: str
    head: str
    body: str
    last: str
    helpers: dict[str, str]
    indent: str = "  "
    after: str = ""
    flat: bool = False
    modules: dict[str, Sequence[str]] = field(default_factory=dict)

    def program(self, o: RowOps, p: Node) -> str:
        """Write constants and functions of the map whose probabilities are `p`."""
        text = Function(self, o, [p]).text("calibrate", "p")
        if "log_both(" in text:
            inner = RowOps(o.classes, o.classes, {})
            text = Function(self, inner, Operations.log_both(inner, inner.scores)).text("log_both", "pq") + text
        text = "".join(code for name, code in self.helpers.items() if re.search(rf"\b{name}\(", text)) + text
        constants = "".join(self._constant(n, v) for n, v in o.constants.items() if re.search(rf"\b{n}\b", text))
        used = {m: [n for n in names if re.search(rf"\b{n}\b", text)] for m, names in self.modules.items()}
        imports = "".join(f"from {module} import {', '.join(names)}\n" for module, names in used.items() if names)
        return imports + self.head.format(k=o.classes) + constants + text + self.after

    def function(self, name: str, lines: Sequence[str], results: dict[str, dict[str, str]]) -> str:
        """Write a function of its lines and of the expressions of its results."""
        vectors = [result["vector"] for result in results.values()]
        whole = vectors[0] if len(vectors) == 1 else f"[{', '.join(vectors)}]"
        ends = [self.last.format(whole=whole, result=result, **value) for result, value in results.items()]
        lines = [*lines, *dict.fromkeys(ends)]
        kind, outputs = "" if name == "calibrate" else "static ", "".join(f", double *{result}" for result in results)
        body = "".join(f"{self.indent}{line}\n" for line in lines)
        return self.body.format(name=name, kind=kind, outputs=outputs, body=body)

    def _constant(self, name: str, value: Any) -> str:
        value = np.concatenate(value) if self.flat and isinstance(value, list) else value
        if isinstance(value, list):  # curves of different lengths, in a language without types
            return self.constant.format(name=name, value=json.dumps(value))
        text = json.dumps(value.tolist())
        text = text.replace("[", "{").replace("]", "}") if self.flat else text
        shape, kind = "".join(f"[{n}]" for n in value.shape), "int" if value.dtype.kind == "i" else "double"
        return self.constant.format(name=name, value=text, shape=shape, kind=kind)


PYTHON = Language(
    words={
        **{op: f"{op}({{0}})" for op in ("exp", "abs")},
        "log": "ln({0})",
        "log1p": "ln1p({0})",
        "least": "min({0}, {1})",
        "most": "max({0}, {1})",
        "where": "{1} if {0} else {2}",
        "number": "float({0})",
        "same": "{i} == {0}",
        "-inf": "-inf",
        "read": "{0}(X[{1}], Y[{1}], {2})",
    },
    vector="[{value} for i in K]",
    lines={
        "one": "{name} = {value}",
        "each": "{name} = [{value} for i in K]",
        "max": "{name} = max({vector})",
        "min": "{name} = min({vector})",
        "sum": "{name} = fsum({vector})",
        "argmax": "{name} = {vector}.index(max({vector}))",
        "join": "{name} = [{values}]",
        "matrix": "{name} = [fsum({matrix}[i][j] * {vector}[j] for j in K) for i in K]",
        "log_both": "{a}, {b} = log_both({vector})",
    },
    constant="{name} = {value}\n",
    head="K = range({k})\n",
    body="def {name}(z):\n{body}",
    last="return {whole}",
    indent="    ",
    modules={"bisect": ("bisect_left", "bisect_right"), "math": ("exp", "fsum", "inf", "log", "log1p")},
    helpers={
        "ln": "def ln(v):\n    return log(v) if v > 0 else -inf\n",
        "ln1p": "def ln1p(v):\n    return log1p(v) if v > -1 else -inf\n",
        "curve": """def curve(x, y, v):
    i = bisect_right(x, v) - 1
    if i < 0 or i == len(x) - 1:
        return y[max(i, 0)]
    return y[i] + (y[i + 1] - y[i]) / (x[i + 1] - x[i]) * (v - x[i])
""",
        "step": """def step(x, y, v):
    return y[max(bisect_left(x, v) - 1, 0)]
""",
    },
)
JAVASCRIPT = Language(
    words={
        **{op: f"Math.{op}({{0}})" for op in ("exp", "log", "log1p", "abs")},
        "least": "Math.min({0}, {1})",
        "most": "Math.max({0}, {1})",
        "where": "{0} ? {1} : {2}",
        "number": "Number({0})",
        "same": "{i} === {0}",
        "-inf": "-Infinity",
        "read": "{0}(X[{1}], Y[{1}], {2})",
    },
    vector="K.map(i => {value})",
    lines={
        "one": "const {name} = {value};",
        "each": "const {name} = K.map(i => {value});",
        "max": "const {name} = Math.max(...{vector});",
        "min": "const {name} = Math.min(...{vector});",
        "sum": "const {name} = {vector}.reduce((s, v) => s + v, 0);",
        "argmax": "const {name} = {vector}.indexOf(Math.max(...{vector}));",
        "join": "const {name} = [{values}];",
        "matrix": "const {name} = K.map(i => K.reduce((s, j) => s + {matrix}[i][j] * {vector}[j], 0));",
        "log_both": "const [{a}, {b}] = log_both({vector});",
    },
    constant="const {name} = {value};\n",
    head="const K = [...Array({k}).keys()];\n",
    body="function {name}(z) {{\n{body}}}\n",
    last="return {whole};",
    after="if (typeof module !== 'undefined') module.exports = { calibrate };\n",
    helpers={
        "curve": """function curve(x, y, v) {
  let i = 0;
  while (i < x.length && x[i] <= v) i++;
  if (i === 0 || i === x.length) return y[Math.max(i - 1, 0)];
  return y[i - 1] + (y[i] - y[i - 1]) / (x[i] - x[i - 1]) * (v - x[i - 1]);
}
""",
        "step": """function step(x, y, v) {
  let i = 0;
  while (i < x.length && x[i] < v) i++;
  return y[Math.max(i - 1, 0)];
}
""",
    },
)
LOOP = "for (int i = 0; i < K; i++)"
C = Language(  # C99, which C11 and C++ compile as well
    words={
        **{op: f"{op}({{0}})" for op in ("exp", "log", "log1p")},
        "abs": "fabs({0})",
        "least": "fmin({0}, {1})",
        "most": "fmax({0}, {1})",
        "where": "{0} ? {1} : {2}",
        "number": "(double)({0})",
        "same": "{i} == {0}",
        "-inf": "-INFINITY",
        "read": "{0}(X + START[{1}], Y + START[{1}], START[{3}] - START[{1}], {2})",
    },
    vector="",
    lines={
        "one": "const double {name} = {value};",
        "each": f"double {{name}}[K]; {LOOP} {{name}}[i] = {{value}};",
        "max": f"double {{name}} = -INFINITY; {LOOP} {{name}} = fmax({{name}}, {{value}});",
        "min": f"double {{name}} = INFINITY; {LOOP} {{name}} = fmin({{name}}, {{value}});",
        "sum": f"double {{name}} = 0; {LOOP} {{name}} += {{value}};",
        "argmax": f"int {{name}} = 0; {LOOP} if ({{vector}}[i] > {{vector}}[{{name}}]) {{name}} = i;",
        "join": "const double {name}[K] = {{{values}}};",
        "matrix": f"double {{name}}[K] = {{{{0}}}}; {LOOP} "
        "for (int j = 0; j < K; j++) {name}[i] += {matrix}[i][j] * {vector}[j];",
        "log_both": "double {a}[K], {b}[K]; log_both({vector}, {a}, {b});",
    },
    constant="static const {kind} {name}{shape} = {value};\n",
    head="#include <math.h>\nenum {{ K = {k} }};\n",
    body="{kind}void {name}(const double *z{outputs}) {{\n{body}}}\n",
    last=f"{LOOP} {{result}}[i] = {{value}};",
    flat=True,
    helpers={
        "curve": """static double curve(const double *x, const double *y, int n, double v) {
  int i = 0;
  while (i < n && x[i] <= v) i++;
  if (i == 0 || i == n) return y[i == 0 ? 0 : n - 1];
  return y[i - 1] + (y[i] - y[i - 1]) / (x[i] - x[i - 1]) * (v - x[i - 1]);
}
""",
        "step": """static double step(const double *x, const double *y, int n, double v) {
  int i = 0;
  while (i < n && x[i] < v) i++;
  return y[i == 0 ? 0 : i - 1];
}
""",
    },
)
LANGUAGES = {".py": PYTHON, ".js": JAVASCRIPT, ".c": C}


# Programs of calibrators, and running them for the comparison.

MARK = " by calibcli "  # stands in the first line of a program, by which a later export recognises it


def program(scaler: Scaler, suffix: str) -> str:
    """Write the program that maps the scores of one row to probabilities, in float64."""
    o = RowOps(scaler.k, scaler.columns, scaler.parameters)
    takes = f"{kind_words(scaler.kind)} ({scaler.columns})"
    description = f"{scaler.spec}{MARK}{__version__}: {takes} to probabilities ({scaler.k})"
    comment = {".py": f"# {description}", ".js": f"// {description}", ".c": f"/* {description} */"}[suffix]
    return f"{comment}\n" + LANGUAGES[suffix].program(o, o.probabilities(mapped(o, scaler, o.scores)))


def run(text: str, suffix: str, fed: Array, k: int) -> Array | None:
    """Run a generated program in its own process: probabilities (n, K), or None where its language is not installed.

    Raises:
        InputError: the program cannot be compiled, or fails.
    """
    rows = np.asarray(fed, np.float64)
    fix = "free some space in the folder of temporary files"
    with (
        refusing(OSError, lambda e: f"the generated program cannot be run here ({e.strerror or e})", fix),
        tempfile.TemporaryDirectory() as name,
    ):
        command = _command(text, suffix, Path(name), rows.shape[1], k)
        if command is None:
            return None
        number = float.hex if suffix == ".c" else repr
        stdin = "".join(" ".join(map(number, row)) + "\n" for row in rows.tolist())
        stdout = _finished(command, Path(name), stdin)
        return np.array(stdout.split(), np.float64).reshape(-1, k)


def _finished(command: list[str], folder: Path, stdin: str = "") -> str:
    process = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, check=False)
    if process.returncode:
        problem = f"the generated program fails ({process.stderr.strip()[-200:]}); nothing was written"
        raise InputError(problem, "report it with the calibrator, and use --to onnx")
    return process.stdout


def _command(text: str, suffix: str, folder: Path, columns: int, k: int) -> list[str] | None:
    """Write, and if need be compile, the program; return the command that runs it on rows of numbers on stdin."""
    name = f"run{suffix}"
    (folder / name).write_text(
        text + DRIVERS[suffix].replace("NN", str(columns)).replace("KK", str(k)), encoding="utf-8"
    )
    if suffix == ".py":
        return [sys.executable, "-I", "-S", name]
    tool = shutil.which("node" if suffix == ".js" else "cc")
    if tool is None:
        return None
    if suffix == ".js":
        return [tool, name]
    _finished([tool, "-std=c99", "-O2", "-pedantic", "-Wall", "-Wextra", "-Werror", name, "-o", "run", "-lm"], folder)
    return [str(folder / "run")]


DRIVERS = {
    ".py": "import sys\nfor line in sys.stdin:\n    print(*map(repr, calibrate([float(v) for v in line.split()])))\n",
    ".js": """const n = v => v === '-inf' ? -Infinity : +v;
for (const line of require('fs').readFileSync(0, 'utf8').trim().split('\\n'))
  console.log(calibrate(line.split(/\\s+/).map(n)).join(' '));
""",
    ".c": """#include <stdio.h>
int main(void) {
  double z[NN], p[KK];
  for (;;) {
    for (int i = 0; i < NN; i++) if (scanf("%lf", z + i) != 1) return 0;
    calibrate(z, p);
    for (int i = 0; i < KK; i++) printf("%.17g\\n", p[i]);
  }
}
""",
}
