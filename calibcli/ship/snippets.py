"""Calibrators as functions that need nothing, in Python, JavaScript and C, working in float64; and runs of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli import __version__
from calibcli.errors import InputError, refusing
from calibcli.predictions import words
from calibcli.scalers import Scaler
from calibcli.ship.languages import LANGUAGES, RowOps
from calibcli.ship.maps import mapped

Array = NDArray[Any]
MARK = " by calibcli "  # in the first line of a program, by which it is known again


def lines(scaler: Scaler, suffix: str) -> str:
    """The program: scores of one row to its probabilities."""
    o = RowOps(scaler.k, scaler.columns, scaler.parameters)
    takes = f"{words(scaler.kind)} ({scaler.columns})"
    what = f"{scaler.spec}{MARK}{__version__}: {takes} to probabilities ({scaler.k})"
    comment = {".py": f"# {what}", ".js": f"// {what}", ".c": f"/* {what} */"}[suffix]
    return f"{comment}\n" + LANGUAGES[suffix].program(o, o.probabilities(mapped(o, scaler, o.scores)))


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
