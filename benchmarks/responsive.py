"""What a user sees of a command that takes long, and how soon it ends after Ctrl-C, against limits.

    python benchmarks/responsive.py [--only PATTERN ...] [--short] [--list] [--save]

A row is a command on an input that takes some seconds, on a terminal of its own. Once it is watched to its end: when
the progress bar was first there, when it first had the time left, how long it then stood still at the most, and in
which moment Python would have taken longest to act on a signal. Then Ctrl-C is sent in the middle and in that moment,
to a new process each. It has to end with exit code 130, without a traceback, and leave no file behind that was not
there (`fit` and `study` keep what the same command resumes from). Seconds are CPU seconds, user and system, with one
thread, counted from the start of the process; so they do not depend on what else the machine does.

Exit 1 if a row breaks a limit: the bar after 2 s, the time left after 3 s (12 s where PyTorch is imported first, which
says so but not how long it takes), 4 s without a change after that, 1 s from Ctrl-C to the end. `--short` takes a tenth
of the sizes and holds no row to its seconds. --save puts the rows into results/responsive.txt, beside those that are
there.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import growth
from _harness import CALIB, TWO_ARMS, arguments, environment, head, held, put

Make = Callable[[Path, int], list[str]]
BAR, ESTIMATE, WITH_TORCH, STILL, ANSWER = 2.0, 3.0, 12.0, 4.0, 1.0  # limits, seconds
SHORT = 10
LONGEST = 120.0  # seconds by the clock that a process may go on after Ctrl-C
TICKS = os.sysconf("SC_CLK_TCK")
HEAD = head("command", "seconds", "bar at", "time left at", "longest still", "Ctrl-C: seconds", "what breaks")
WATCH = """
import json, os, signal, sys, time
moves, told, late = [], [0.0, 0.0], [0.0, 0.0]
def tick(number, frame):
    now = time.process_time()
    late[:] = max(late, [now - told[0], told[0] + (now - told[0]) / 4])
    told[0] = now
from calibcli.render import terminal
bar = terminal.bar
def watched(title):
    report = bar(title)
    def update(fraction, text=""):
        moves.append((time.process_time(), fraction))
        report(fraction, text)
    return update
terminal.bar = watched
signal.signal(signal.SIGPROF, tick)
signal.setitimer(signal.ITIMER_PROF, 0.02, 0.02)
from calibcli.cli.app import main
told[0], late[:] = time.process_time(), [0.0, 0.0]
code = main(sys.argv[2:])
signal.setitimer(signal.ITIMER_PROF, 0, 0)
with open(sys.argv[1], "w") as file:
    json.dump({"moves": moves, "late": late, "seconds": time.process_time()}, file)
sys.exit(code)
"""
"""Runs a command, and writes when its bar moved and when Python took longest between two of its own steps."""


@dataclass(frozen=True)
class Row:
    """A command.

    Attributes:
        make: writes an input of a size into a folder, and returns the arguments.
        size: of an input that takes some seconds.  keeps: whether files may stay after Ctrl-C, to resume from.
        torch: whether it imports PyTorch.
    """

    make: Make
    size: int
    keeps: bool = False
    torch: bool = False


ROWS: dict[str, Row] = {}


def takes_long(name: str, size: int, **more: Any) -> Callable[[Make], Make]:
    """Add a row, as a decorator."""

    def add(make: Make) -> Make:
        ROWS[name] = Row(make, size, **more)
        return make

    return add


def _grown(name: str) -> Make:
    return growth.ROWS[name].make  # type: ignore[return-value]


def _tables(folder: Path, n: int, *more: str) -> list[str]:
    return [*more[:1], growth.saved(folder / "a.npz", n), *more[1:]]


def _wide(spec: str) -> Make:
    return lambda folder, n: ["scale", growth.saved(folder / "a.npz", n, 100), "--method", spec]


for _name, _size in {
    "metrics: values of --by": 1000,
    "metrics: labels of --multilabel": 400,
    "metrics: groups": 300_000,
    "metrics: rows of CSV": 600_000,
    "metrics: rows of JSON lines": 300_000,
    "metrics: files in a pattern": 5000,
    "metrics --partial: files": 400,
    "merge: states": 400,
    "inspect: rows": 8_000_000,
    "ood: rows on both sides": 500_000,
    "check: slices that are INCONCLUSIVE": 800,
    "check: rules of many bin counts": 600,
    "plan: rules": 16,
    "compare: rows": 700_000,
    "compare: models": 60,
    "slices: columns of numbers, in pairs": 400,
    "scale --multilabel: labels": 100,
    "apply: rows": 4_000_000,
    "export --to card: rows": 500_000,
    "verify: rows": 1_000_000,
    "report -o page.html: results": 16,
}.items():
    takes_long(_name, _size)(_grown(_name))
for _spec, _size in {
    "temperature:grid=mukhoti,objective=adaece": 100_000,
    "focal": 10_000,
    "focal_temperature": 5000,
    "vector": 30_000,
    "matrix": 10_000,
    "isotonic": 30_000,
    "beta": 10_000,
    "sms": 10_000,
}.items():
    takes_long(f"scale --method {_spec}: rows", _size)(_wide(_spec))
takes_long("metrics -m all: rows", 700_000)(lambda folder, n: [*_tables(folder, n, "metrics"), "-m", "all"])
takes_long("metrics --per-class: rows", 700_000)(lambda folder, n: [*_tables(folder, n, "metrics"), "--per-class"])


@takes_long("watch: rows of the first night", 1_500_000)
def _(folder: Path, n: int) -> list[str]:
    state = str(folder / "state.json")
    return ["watch", state, growth.saved(folder / "a.npz", n), "--max", "ece=0.3", "--min", "accuracy=0.3"]


takes_long("fit: epochs", 400, keeps=True, torch=True)(
    lambda folder, n: [part for part in growth._fit(folder, "mlp:hidden=64/64", n) if part != "-q"]
)
takes_long("curvature: rows", 8000, torch=True)(_grown("curvature: rows"))
takes_long("logits: rows", 600_000, torch=True)(_grown("logits: rows"))


@takes_long("study: seeds", 20, keeps=True, torch=True)
def _(folder: Path, seeds: int) -> list[str]:
    recipe = folder / "recipe.toml"
    recipe.write_text(TWO_ARMS.format(name="seeds", hidden=8, epochs=5, seeds=seeds))
    return ["study", str(recipe), "--save", str(folder / "study")]


# Processes on a terminal of their own.


class Process:
    """A command on a terminal, which takes its stderr; text is what has been shown so far."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.end, other = pty.openpty()
        os.set_blocking(self.end, False)
        env = environment(TERM="xterm", COLUMNS="100")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=other, env=env, cwd=folder)
        os.close(other)
        self.text = ""

    def running(self) -> bool:
        """Whether it runs still; what it showed meanwhile is read."""
        if self.process.returncode is not None:
            return False
        ended, status, spent = os.wait4(self.process.pid, os.WNOHANG)
        with contextlib.suppress(OSError):
            while part := os.read(self.end, 1 << 16):
                self.text += part.decode(errors="replace")
        if not ended:
            time.sleep(0.01)
            return True
        os.close(self.end)
        self.process.returncode, self._seconds = os.waitstatus_to_exitcode(status), spent.ru_utime + spent.ru_stime
        return False

    def seconds(self) -> float:
        """CPU seconds so far, user and system."""
        if self.process.returncode is None:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            self._seconds = (int(fields[11]) + int(fields[12])) / TICKS
        return self._seconds


def watched(words: Sequence[str], folder: Path) -> dict[str, Any]:
    """What a user sees of a command that runs to its end; RuntimeError where it fails."""
    log = folder / "log.json"
    process = Process([sys.executable, "-c", WATCH, str(log), *words], folder)
    bar = estimate = None
    while process.running():
        now = process.seconds()
        bar = now if bar is None and "━" in process.text else bar
        estimate = now if estimate is None and re.search(r"\d:\d\d left", process.text) else estimate
    if not log.exists() or process.process.returncode not in (0, 1, 3, 5):
        raise RuntimeError(process.text.strip()[-200:])
    found = json.loads(log.read_text())
    log.unlink()
    changed = [at for i, (at, fraction) in enumerate(found["moves"]) if i == 0 or fraction != found["moves"][i - 1][1]]
    changed = [at for at in changed if at >= (estimate or 0.0)]
    still = max((b - a for a, b in zip(changed, [*changed[1:], found["seconds"]], strict=True)), default=0.0)
    return {"seconds": found["seconds"], "bar": bar, "estimate": estimate, "still": still, "late": found["late"]}


def interrupted(one: Row, words: Sequence[str], folder: Path, at: float) -> tuple[float, str]:
    """CPU seconds from Ctrl-C, sent after so many of them, to the end; and what is wrong."""
    before = set(folder.rglob("*"))
    process = Process([*CALIB, *words], folder)
    while process.running() and process.seconds() < at:
        pass
    process.process.send_signal(signal.SIGSTOP)  # else it goes on while this process waits for a core
    time.sleep(0.05)
    start, clock = process.seconds(), time.monotonic()
    process.process.send_signal(signal.SIGINT)
    process.process.send_signal(signal.SIGCONT)
    while process.running() and time.monotonic() - clock < LONGEST:
        pass
    wrong = []
    code = process.process.returncode
    if code is None:
        process.process.kill()
        wrong.append("does not end")
    elif code not in (130, -signal.SIGINT, 0, 1, 3, 5):  # it may have ended before, or be about to
        wrong.append(f"exit code {code}")
    if "Traceback" in process.text:
        wrong.append("a traceback")
    left = set(folder.rglob("*")) - before
    if left and code == 130 and not one.keeps:
        wrong.append(f"leaves {', '.join(sorted(path.name for path in left))}")
    return process.seconds() - start, "; ".join(wrong)


def judged(name: str, short: bool) -> tuple[list[str], bool]:
    """The cells of a row, and whether it keeps its limits."""
    one = ROWS[name]
    size = max(2, one.size // SHORT) if short else one.size
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        words = [word for word in one.make(folder, size) if word != "-q"]
        inputs = set(folder.rglob("*"))
        seen = watched(words, folder)
        answers, wrong = [], []
        for at in dict.fromkeys((seen["seconds"] / 2, seen["late"][1])):
            for path in set(folder.rglob("*")) - inputs if not one.keeps else ():
                path.unlink()
            seconds, what = interrupted(one, words, folder, at)
            answers.append(seconds)
            wrong += [what] if what else []
    if not short:
        limit = WITH_TORCH if one.torch else ESTIMATE
        wrong += ["no bar"] if seen["bar"] is None or seen["bar"] > BAR else []
        wrong += ["no time left"] if seen["estimate"] is None or seen["estimate"] > limit else []
        wrong += ["stands still"] if seen["still"] > STILL else []
        wrong += ["goes on after Ctrl-C"] if max(answers) > ANSWER else []
    cells = [name, f"{seen['seconds']:.1f}"]
    cells += ["" if at is None else f"{at:.1f}" for at in (seen["bar"], seen["estimate"])]
    cells += [f"{seen['still']:.1f}", ", ".join(f"{one:.2f}" for one in answers), "; ".join(wrong)]
    return [f"{name} {size:,}", *cells[1:]], not wrong


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
    given = arguments(__doc__, only=[str], short=False, list=False, save=False)

    def cells(name: str) -> tuple[list[str], bool]:
        try:
            return judged(name, given.short)
        except RuntimeError as error:
            return [name, *[""] * 5, f"failed: {error}"], False

    return held(ROWS, given, HEAD, cells, keep)


def keep(line: str, where: str) -> None:
    put("responsive", HEAD, ROWS, line, where, lambda cell: cell.rpartition(" ")[0])


if __name__ == "__main__":
    sys.exit(main())
