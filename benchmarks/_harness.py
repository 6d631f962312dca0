"""What the benchmarks share: options, processes of their own, times by turns, ratios, memory, and the machine.

Whatever is compared is run by turns, so that a slow moment of the machine hits all of it alike. Seconds are CPU seconds
unless a script says otherwise; a ratio is the median over rounds of the round's ratio.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
CALIB = [sys.executable, "-m", "calibcli"]
os.environ.update(ONE_THREAD)  # of this process, where NumPy is imported later, and of all that it starts
START = """import runpy, sys
sys.path.append({folder!r})
sys.argv = {argv!r}
runpy.run_path(sys.argv[0], run_name="__main__")"""


class Used(NamedTuple):
    """CPU seconds and peak resident memory in MB of a process, and what it printed."""

    seconds: float
    peak: float
    text: str


def options(about: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the script."""
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def installed(*packages: str) -> bool:
    return all(importlib.util.find_spec(name) for name in packages)


def machine(*modules: str) -> str:
    """The line that says where figures were taken: processor, cores, load, Python, and packages that are installed."""
    known = importlib.metadata.packages_distributions()
    names = [known[module][0] for module in ("numpy", *modules) if module in known]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in names]
    where = f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return ", ".join([where, f"Python {platform.python_version()}", *versions])


# processes


def environment(root: Path | str = ROOT, **more: str) -> dict[str, str]:
    """That of a process with one thread and the package of a checkout."""
    return {**os.environ, **ONE_THREAD, "PYTHONPATH": str(root), **more}


def script(file: str, *arguments: object) -> list[str]:
    """The command that runs a script of this folder, whose modules come last in the search for imports.

    Python puts them first, where `coverage.py` hides the package of that name, which PyTorch looks for.
    """
    argv = [str(Path(file).resolve()), *map(str, arguments)]
    return [sys.executable, "-P", "-c", START.format(folder=str(HERE), argv=argv)]


def run(
    command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | str | None = None, good: Any = (0,)
) -> Used:
    """Run a command to its end. RuntimeError with the last line of its errors unless its exit code is `good`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=env or environment(), cwd=cwd, stdout=out, stderr=errors)
        _, status, spent = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode not in good:
            lines = errors.read().strip().splitlines() or [f"exit code {process.returncode}"]
            raise RuntimeError(lines[-1][:200])
        return Used(spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 1024, out.read())


def child(file: str, *arguments: object, env: Mapping[str, str] | None = None) -> Any:
    """The JSON that a script prints last, in a process and an empty folder of its own. RuntimeError where it fails."""
    with tempfile.TemporaryDirectory() as folder:  # `calib check` reads the pyproject.toml of where it runs
        return json.loads(run(script(file, *arguments), env, folder).text.splitlines()[-1])


def peak() -> float:
    """The largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# times


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def by_turns(works: Mapping[str, Any], rounds: int, clock: Callable[[Any], float] = seconds) -> dict[str, list[float]]:
    """What `clock` returns for each work, by default CPU seconds of a call; every round runs all works, in order."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(clock(work))
    return times


def ratio(values: Sequence[float], base: Sequence[float], digits: int = 3) -> str:
    """Median, least and largest of the rounds' ratios."""
    ratios = [a / b for a, b in zip(values, base, strict=True)]
    return f"{statistics.median(ratios):.{digits}f} [{min(ratios):.{digits}f}, {max(ratios):.{digits}f}]"


# tables


def row(*cells: object) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(*cells: str) -> str:
    return f"{row(*cells)}\n{'|---' * len(cells)}|"
