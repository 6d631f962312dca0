"""Calibrators as functions of a dozen lines that need nothing: Python, JavaScript, C. They work in float64."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli import __version__
from calibcli.errors import InputError, UsageError, refusing
from calibcli.predictions import words
from calibcli.scalers import Scaler

Array = NDArray[Any]
LANGUAGES = (".py", ".js", ".c")
MARK = " by calibcli "  # in the first line of a program, by which it is known again
LOOP = "for (int i = 0; i < KK; i++)"


def lines(scaler: Scaler, suffix: str) -> str:
    """The program.

    Raises:
        UsageError: a method that has none.
    """
    name = scaler.choice.name
    if name not in SHORT:
        raise UsageError(
            f"there is no short program for '{name}' ({', '.join(SHORT)} have one)",
            "use --to onnx, --to pt2 or --to torchscript",
        )
    body, numbers = SHORT[name](scaler, suffix)
    takes = f"{words(scaler.kind)} ({scaler.columns})"
    what = f"{scaler.spec}{MARK}{__version__}: {takes} to probabilities ({scaler.k})"
    made = {".py": _python, ".js": _javascript, ".c": _c}[suffix](scaler, body, numbers)
    comment = {".py": f"# {what}", ".js": f"// {what}", ".c": f"/* {what} */"}[suffix]
    return comment + "\n" + made


def _numbers(numbers: dict[str, Any], suffix: str) -> str:
    """Constants, one to a line."""
    found = ""
    for name, value in numbers.items():
        text = json.dumps(value if isinstance(value, list) else np.asarray(value).tolist())
        if suffix == ".c":
            shape = "".join(f"[{n}]" for n in np.shape(value))
            kind = "int" if np.asarray(value).dtype.kind in "iu" else "double"
            found += f"static const {kind} {name}{shape} = {text.replace('[', '{').replace(']', '}')};\n"
        else:
            found += f"const {name} = {text};\n" if suffix == ".js" else f"{name} = {text}\n"
    return found


FIRST = {
    ("one", "logits"): ("z = [0.0, z[0]]", "z = [0, z[0]];", "const double z[2] = {0, in[0]};"),
    ("one", "probabilities"): (
        "z = [log(p) if p > 0 else -inf for p in (1 - z[0], z[0])]",
        "z = [Math.log1p(-z[0]), Math.log(z[0])];",
        "const double z[2] = {log1p(-in[0]), log(in[0])};",
    ),
    ("one", "log_probabilities"): (
        "z = [log(-expm1(z[0])) if z[0] < 0 else -inf, z[0]]",
        "z = [Math.log(-Math.expm1(z[0])), z[0]];",
        "const double z[2] = {log(-expm1(in[0])), in[0]};",
    ),
    ("all", "probabilities"): (
        "z = [log(p) if p > 0 else -inf for p in z]",
        "z = z.map(p => Math.log(Math.max(p, 0)));",
        "double z[KK]; for (int i = 0; i < KK; i++) z[i] = log(fmax(in[i], 0));",
    ),
}
"""The line that makes logits of what the calibrator takes, by columns and kind, in each of LANGUAGES."""


def _indented(scaler: Scaler, suffix: str, body: str, indent: str = "  ") -> str:
    """The lines of a function: what it takes as logits, and the body."""
    made = FIRST.get(("one" if scaler.columns == 1 else "all", scaler.kind), ("", "", "const double *z = in;"))
    first = made[LANGUAGES.index(suffix)]
    return "".join(f"{indent}{line}\n" for line in [*filter(None, [first]), *body.strip().split("\n")])


def _python(scaler: Scaler, body: str, numbers: dict[str, Any]) -> str:
    head = "from bisect import bisect_right\n" if "bisect" in body else ""
    head += "from math import exp, expm1, fsum, inf, log, log1p\n" + _numbers(numbers, ".py") + "def calibrate(z):\n"
    return head + _indented(scaler, ".py", body, "    ")


def _javascript(scaler: Scaler, body: str, numbers: dict[str, Any]) -> str:
    text = _indented(scaler, ".js", body)
    last = "if (typeof module !== 'undefined') module.exports = { calibrate };\n"
    return f"{_numbers(numbers, '.js')}function calibrate(z) {{\n{text}}}\n{last}"


def _c(scaler: Scaler, body: str, numbers: dict[str, Any]) -> str:
    text = _indented(scaler, ".c", body)
    head = f"#include <math.h>\n{_numbers(numbers, '.c')}"
    return f"{head}void calibrate(const double *in, double *p) {{\n{text}}}\n".replace("KK", str(scaler.k))


def _affine(scaler: Scaler, suffix: str) -> tuple[str, dict[str, Any]]:
    given = _finite(scaler)
    plain, mixed = scaler.choice.name == "temperature", "even" in given
    weight = given["beta"] if plain else given["weight"]
    numbers: dict[str, Any] = {"W": weight} if plain else {"W": weight, "B": given["bias"]}
    numbers |= {"BETA": given["beta"], "EVEN": given["even"]} if mixed else {}
    logs, full = "log_probabilities" in given, np.ndim(weight) == 2
    w, bias = "W[i]" if np.ndim(weight) == 1 else "W", "" if plain else " + B[i]"
    if suffix == ".py":
        centre = "log(fsum(map(exp, x)))" if logs else "fsum(x) / len(x)"
        clamp, shift = "x = [max(v, -1000.0) for v in x]", f"shift = {centre}\nx = [v - shift for v in x]"
        mix = "x = [exp(BETA * v) for v in x]\nall = fsum(x)\n"
        mix += "x = [log((1 - EVEN) * v / all + EVEN / len(x)) for v in x]"
        row = "fsum(a * v for a, v in zip(W[i], x))" if full else f"{w} * x[i]"
        start = "top = max(z)\nx = [v - top for v in z]"
        end = f"y = [{row}{bias} for i in range(len(z))]\ntop = max(y)\ne = [exp(v - top) for v in y]\n"
        end += "total = fsum(e)\nreturn [v / total for v in e]"
    elif suffix == ".js":
        centre = "Math.log(x.reduce((s, v) => s + Math.exp(v), 0))" if logs else "x.reduce((s, v) => s + v) / x.length"
        clamp = "x = x.map(v => Math.max(v, -1000));"
        shift = f"const shift = {centre};\nx = x.map(v => v - shift);"
        mix = "x = x.map(v => Math.exp(BETA * v));\nconst all = x.reduce((s, v) => s + v, 0);\n"
        mix += "x = x.map(v => Math.log((1 - EVEN) * v / all + EVEN / x.length));"
        row = "W[i].reduce((s, a, j) => s + a * x[j], 0)" if full else f"{w} * x[i]"
        start = "const first = Math.max(...z);\nlet x = z.map(v => v - first);"
        end = (
            f"const y = z.map((_, i) => {row}{bias}), top = Math.max(...y);\nconst e = y.map(v => Math.exp(v - top));\n"
        )
        end += "const total = e.reduce((s, v) => s + v, 0);\nreturn e.map(v => v / total);"
    else:
        centre = f"{LOOP} total += exp(x[i]);\ntotal = log(total);" if logs else f"{LOOP} total += x[i] / KK;"
        clamp, shift = f"{LOOP} x[i] = fmax(x[i], -1000);", f"{centre}\n{LOOP} x[i] -= total;"
        start = f"double x[KK], top = z[0], total = 0;\n{LOOP} top = fmax(top, z[i]);\n{LOOP} x[i] = z[i] - top;"
        mix = f"{LOOP} total += x[i] = exp(BETA * x[i]);\n"
        mix += f"{LOOP} x[i] = log((1 - EVEN) * x[i] / total + EVEN / KK);"
        row = f"{LOOP} p[i] = {w} * x[i]{bias};"
        if full:
            row = f"{LOOP} {{ p[i] = B[i]; for (int j = 0; j < KK; j++) p[i] += W[i][j] * x[j]; }}"
        end = f"{row}\ntop = p[0]; total = 0;\n{LOOP} top = fmax(top, p[i]);\n"
        end += f"{LOOP} total += (p[i] = exp(p[i] - top));\n{LOOP} p[i] /= total;"
    middle = [] if plain else [mix] if mixed else [shift, clamp] if logs else [clamp, shift]
    return "\n".join([start, *middle, end]), numbers


def _finite(scaler: Scaler) -> Any:
    """Parameters, unless all rows become one.

    Raises:
        UsageError: they do.
    """
    if float(scaler.parameters.get("beta", 1)) == 0:
        raise UsageError("T is infinite: every row becomes uniform", "fit another method, or use --to onnx")
    return scaler.parameters


def _ensemble(scaler: Scaler, suffix: str) -> tuple[str, dict[str, Any]]:
    given = _finite(scaler)
    numbers = {name.upper(): given[name] for name in ("beta", "tempered", "plain", "uniform")}
    if suffix == ".py":
        start = "top = max(z)\ne, t = [exp(v - top) for v in z], [exp(BETA * (v - top)) for v in z]\n"
        start += "n = [v > -inf for v in z]\na, b, c = TEMPERED / fsum(t), PLAIN / fsum(e), UNIFORM / sum(n)\n"
        return start + "return [a * u + b * v + c * w for u, v, w in zip(t, e, n)]", numbers
    if suffix == ".js":
        start = "const top = Math.max(...z), sum = x => x.reduce((s, v) => s + v, 0);\n"
        start += "const e = z.map(v => Math.exp(v - top)), t = z.map(v => Math.exp(BETA * (v - top)));\n"
        start += "const n = z.map(v => +(v > -Infinity));\n"
        start += "const a = TEMPERED / sum(t), b = PLAIN / sum(e), c = UNIFORM / sum(n);\n"
        return start + "return z.map((_, i) => a * t[i] + b * e[i] + c * n[i]);", numbers
    start = f"double top = z[0], a = 0, b = 0, c = 0;\n{LOOP} top = fmax(top, z[i]);\n"
    start += f"{LOOP} {{ a += exp(BETA * (z[i] - top)); b += exp(z[i] - top); c += z[i] > -INFINITY; }}\n{LOOP}\n"
    start += "  p[i] = TEMPERED * exp(BETA * (z[i] - top)) / a + PLAIN * exp(z[i] - top) / b\n"
    return start + "    + UNIFORM * (z[i] > -INFINITY) / c;", numbers


def _odds(scaler: Scaler, suffix: str) -> tuple[str, dict[str, Any]]:
    """Platt's map is beta's with a = b."""
    given, k = scaler.parameters, scaler.k
    a, b, c = (given[n] for n in (("slope", "slope", "bias") if scaler.choice.name == "platt" else ("a", "b", "c")))
    numbers = {"A": a, "B": b, "C": c}
    if suffix == ".py":
        start = "top = max(z)\ne = [exp(v - top) for v in z]\nall = log(fsum(e))\np = []\n"
        loop = f"for i, k in enumerate({'[1]' if k == 2 else 'range(len(z))'}):\n"
        rest = "    rest = fsum(e[:k] + e[k + 1:])\n"
        m = "    rest = max(log(rest) - all, -700.0) if rest else -700.0\n"
        m += "    m = A[i] * max(z[k] - top - all, -700.0) - B[i] * rest + C[i]\n"
        p = "    p.append(1 / (1 + exp(min(-m, 700.0))))\n"
        last = (
            "return [1 / (1 + exp(min(m, 700.0))), p[0]]"
            if k == 2
            else "total = fsum(p)\nreturn [v / total for v in p]"
        )
        return start + loop + rest + m + p + last, numbers
    if suffix == ".js":
        start = "const top = Math.max(...z), e = z.map(v => Math.exp(v - top));\n"
        start += "const all = Math.log(e.reduce((s, v) => s + v, 0));\n"
        start += f"const m = A.map((a, i) => {{\n  const k = {'1' if k == 2 else 'i'};\n"
        start += "  const rest = e.reduce((s, v, j) => j === k ? s : s + v, 0);\n"
        start += (
            "  return a * Math.max(z[k] - top - all, -700) - B[i] * Math.max(Math.log(rest) - all, -700) + C[i];\n});\n"
        )
        if k == 2:
            return start + "return [1 / (1 + Math.exp(m[0])), 1 / (1 + Math.exp(-m[0]))];", numbers
        p = "const p = m.map(v => 1 / (1 + Math.exp(-v))), total = p.reduce((s, v) => s + v, 0);\n"
        return start + p + "return p.map(v => v / total);", numbers
    start = f"double top = z[0], all = 0, total = 0;\n{LOOP} top = fmax(top, z[i]);\n{LOOP} all += exp(z[i] - top);\n"
    curves = "for (int i = 0, k = 1; k < 2; k++) {" if k == 2 else "for (int i = 0; i < KK; i++) {\n  const int k = i;"
    start += f"{curves}\n  double rest = 0;\n  for (int j = 0; j < KK; j++) if (j != k) rest += exp(z[j] - top);\n"
    start += "  const double q = fmax(z[k] - top - log(all), -700), r = fmax(log(rest) - log(all), -700);\n"
    start += "  const double m = A[i] * q - B[i] * r + C[i];\n"
    if k == 2:
        return start + "  p[0] = 1 / (1 + exp(m)); p[1] = 1 / (1 + exp(-m));\n}\n(void)total;", numbers
    return start + f"  total += (p[i] = 1 / (1 + exp(-m)));\n}}\n{LOOP} p[i] /= total;", numbers


def _isotonic(scaler: Scaler, suffix: str) -> tuple[str, dict[str, Any]]:
    """Each class's log-odds through its curve."""
    given, k = scaler.parameters, scaler.k
    if "log_odds" not in given:
        raise UsageError("this isotonic map of an earlier calib has no short program", "fit it again")
    starts = np.concatenate([[0], np.cumsum(given["knots"].astype(np.int64))])
    if suffix == ".py":
        cuts = starts[1:-1]
        numbers: dict[str, Any] = {n: [a.tolist() for a in np.split(given[n.lower()], cuts)] for n in ("X", "Y")}
        start = "top = max(z)\ne, q = [exp(v - top) for v in z], []\n"
        loop = f"for k, (x, y) in enumerate(zip(X, Y){', 1' if k == 2 else ''}):\n"
        at = "    rest = fsum(e[:k] + e[k + 1:])\n    v = z[k] - top - log(rest) if rest else inf\n"
        at += "    v = min(max(v, x[0]), x[-1])\n    i = min(bisect_right(x, v), len(x) - 1)\n"
        value = "    q.append(y[i] if i == 0 else y[i - 1] + (y[i] - y[i - 1]) / (x[i] - x[i - 1]) * (v - x[i - 1]))\n"
        last = "return [1 - q[0], q[0]]" if k == 2 else "total = fsum(q)\nreturn [v / total for v in q]"
        return start + loop + at + value + last, numbers
    numbers = {"X": given["x"], "Y": given["y"], "S": starts}
    if suffix == ".js":
        start = "const top = Math.max(...z), e = z.map(v => Math.exp(v - top));\n"
        start += (
            f"const q = S.slice(1).map((end, c) => {{\n  const k = {'1' if k == 2 else 'c'};\n  let i = S[c] + 1;\n"
        )
        start += "  const rest = e.reduce((s, v, j) => j === k ? s : s + v, 0);\n"
        start += "  const v = Math.min(Math.max(z[k] - top - Math.log(rest), X[S[c]]), X[end - 1]);\n"
        start += "  while (i < end - 1 && X[i] <= v) i++;\n  if (i >= end) return Y[S[c]];\n"
        start += "  return Y[i - 1] + (Y[i] - Y[i - 1]) / (X[i] - X[i - 1]) * (v - X[i - 1]);\n});\n"
        if k == 2:
            return start + "return [1 - q[0], q[0]];", numbers
        return start + "const total = q.reduce((s, v) => s + v, 0);\nreturn q.map(v => v / total);", numbers
    start = f"double top = z[0], total = 0;\n{LOOP} top = fmax(top, z[i]);\n"
    c = "0" if k == 2 else "k"
    start += "{\n  const int k = 1;\n" if k == 2 else "for (int k = 0; k < KK; k++) {\n"
    start += f"  int i = S[{c}] + 1;\n  double rest = 0;\n"
    start += "  for (int j = 0; j < KK; j++) if (j != k) rest += exp(z[j] - top);\n"
    start += f"  const double v = fmin(fmax(z[k] - top - log(rest), X[S[{c}]]), X[S[{c} + 1] - 1]);\n"
    start += f"  while (i < S[{c} + 1] - 1 && X[i] <= v) i++;\n"
    start += f"  const double slope = i < S[{c} + 1] ? (Y[i] - Y[i - 1]) / (X[i] - X[i - 1]) : 0;\n"
    start += f"  total += p[{c}] = Y[i - 1] + slope * (v - X[i - 1]);\n}}\n"
    return start + ("p[1] = p[0]; p[0] = 1 - p[1];" if k == 2 else f"{LOOP} p[i] /= total;"), numbers


SHORT: dict[str, Callable[[Scaler, str], tuple[str, dict[str, Any]]]] = {
    **dict.fromkeys(("temperature", "vector", "bcts", "matrix", "dirichlet", "sms", "svs"), _affine),
    **dict.fromkeys(("platt", "beta"), _odds),
    "isotonic": _isotonic,
    "ensemble_temperature": _ensemble,
}
"""By method: the body of its function, and the constants that it needs."""


def run(text: str, suffix: str, fed: Array, k: int) -> Array | None:
    """Probabilities (n, K) of a generated program in a process of its own; None where its language is not installed.

    Raises:
        InputError: it cannot be compiled, or fails.
    """
    rows = np.asarray(fed, np.float64)
    room = "free some space in the folder of temporary files"
    with (
        refusing(OSError, lambda e: f"the generated program cannot be run here ({e.strerror or e})", room),
        tempfile.TemporaryDirectory() as name,
    ):
        command = _command(text, suffix, Path(name), rows.shape[1], k)
        if command is None:
            return None
        number = float.hex if suffix == ".c" else repr
        said = "".join(" ".join(map(number, row)) + "\n" for row in rows.tolist())
        done = _finished(command, Path(name), said)
        return np.array(done.split(), np.float64).reshape(-1, k)


def _finished(command: list[str], folder: Path, said: str = "") -> str:
    done = subprocess.run(command, cwd=folder, input=said, capture_output=True, text=True, check=False)
    if done.returncode:
        problem = f"the generated program fails ({done.stderr.strip()[-200:]}); nothing was written"
        raise InputError(problem, "report it with the calibrator, and use --to onnx")
    return done.stdout


def _command(text: str, suffix: str, folder: Path, columns: int, k: int) -> list[str] | None:
    """What runs the program over lines of numbers on stdin."""
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
