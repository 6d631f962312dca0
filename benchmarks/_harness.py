"""What the benchmarks share: options, processes of their own, times by turns, ratios, memory, saved runs, the machine.

Whatever is compared is run by turns, so that a slow moment of the machine hits all of it alike. Seconds are CPU seconds
unless a script says otherwise; a ratio is the median over rounds of the round's ratio.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
CALIB = [sys.executable, "-m", "calibcli"]
os.environ.update(ONE_THREAD)  # of this process, where NumPy is imported later, and of all that it starts
# A call of a function of a script; the folder comes last in the search for imports, where its coverage.py does not hide
# the package of that name, which PyTorch looks for.
CALL = """import importlib.util, json, sys
sys.path.append({folder!r})
spec = importlib.util.spec_from_file_location({name!r}, {file!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(module.{function}(*json.loads(sys.argv[1]))))"""
TWO_ARMS = """
[study]
name = "{name}"
[data]
train = "digits#train"
validation = "digits#validation"
test = "digits#test"
[axes]
arch = ["mlp:hidden={hidden}"]
seeds = {seeds}
[train]
epochs = {epochs}
batch_size = 20
[[arm]]
name = "CE"
loss = "ce"
[[arm]]
name = "FL-3"
loss = "focal:gamma=3"
[[claim]]
id = "ece"
text = "focal loss has a lower ECE"
less = {{ metric = "ece", a = "FL-3", b = "CE" }}
"""
"""A recipe of two losses on the digits, which trains in seconds."""


class Used(NamedTuple):
    """CPU seconds and peak resident memory in MB of a process, and what it printed."""

    seconds: float
    peak: float
    text: str


def arguments(about: str | None, *positional: str, **defaults: Any) -> argparse.Namespace:
    """The options of a script, which its docstring explains: `runs=400` is `--runs N` with this default.

    False is a flag, a list takes several values, a type (or a list of one) has no default, and a tuple has the values
    that may be chosen, the first by default. `positional` arguments are words, any number of them.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in positional:
        parser.add_argument(name, nargs="*")
    for name, default in defaults.items():
        how: dict[str, Any] = {"default": default, "type": type(default)}
        if default is False:
            how = {"action": "store_true"}
        elif isinstance(default, type):
            how = {"type": default}
        elif isinstance(default, list):
            how = {"default": default, "nargs": "*", "type": type(default[0])}
            if isinstance(default[0], type):
                how |= {"default": None, "type": default[0]}
        elif isinstance(default, tuple):
            how = {"default": default[0], "choices": default, "type": type(default[-1])}
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    return parser.parse_args()


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


def run(command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path | str | None = None) -> Used:
    """Run a command to its end. RuntimeError with the last line of its errors where it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=env or environment(), cwd=cwd, stdout=out, stderr=errors)
        _, status, spent = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode:
            lines = errors.read().strip().splitlines() or [f"exit code {process.returncode}"]
            raise RuntimeError(lines[-1][:200])
        return Used(spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 1024, out.read())


def call(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """The command that calls a function of a script, and prints what it returns as JSON."""
    file = Path(function.__code__.co_filename).resolve()
    text = CALL.format(folder=str(HERE), file=str(file), name=f"bench_{file.stem}", function=function.__name__)
    return [sys.executable, "-P", "-c", text, json.dumps(arguments)]


def child(function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None) -> Any:
    """What a function of a script returns, in a process and an empty folder of its own; RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:  # `calib check` reads the pyproject.toml of where it runs
        return json.loads(run(call(function, *arguments), env, folder).text.splitlines()[-1])


def attempt(function: Callable[..., Any], *arguments: Any) -> dict[str, Any] | str:
    """The same, or in a few words why there is no result."""
    try:
        return child(function, *arguments)  # type: ignore[no-any-return]
    except RuntimeError as error:
        missing = str(error).startswith(("ModuleNotFoundError", "ImportError"))
        return "not installed" if missing else f"failed: {str(error)[:90]}"


def peak() -> float:
    """The largest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# times


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def cost(work: Callable[[], Any], fewest: int = 3, enough: float = 0.5, most: float = 60.0) -> dict[str, Any]:
    """The least CPU seconds of some calls, the MB by which the peak of memory grew, and what the last one returned.

    There are `fewest` calls, and more until they took `enough` seconds together, but none after `most` seconds.
    """
    before, times = peak(), [0.0]
    while (len(times) <= fewest or sum(times) < enough) and sum(times) < most:
        start = time.process_time()
        value = work()
        times.append(time.process_time() - start)
    return {"seconds": min(times[1:]), "mb": peak() - before, "value": value}


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


# tables and files


def row(*cells: object) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def head(*cells: object) -> str:
    return f"{row(*cells)}\n{'|---' * len(cells)}|"


def between(path: Path, start: str, end: str, change: Callable[[str], str]) -> None:
    """Change what stands between two marks of a file."""
    before, _, rest = path.read_text().partition(start)
    old, _, after = rest.partition(end)
    path.write_text(f"{before}{start}\n{change(old)}\n{end}{after}")


def lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The JSON lines of files, without one that was cut off when its process was stopped."""
    found = []
    for path in paths:
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


def append(path: Path | None, *records: dict[str, Any]) -> None:
    """Add JSON lines to a file, if there is one; a run that is stopped goes on from them."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


def chosen(rows: Mapping[str, Any], given: Any) -> list[str]:
    """The names of the rows that fit one of the patterns of `only`, or all."""
    return [name for name in rows if any(re.search(one, name) for one in given.only or [""])]


def held(
    rows: Mapping[str, Any], given: Any, head: str, judged: Callable[[str], Any], keep: Callable[..., None]
) -> int:
    """Print the rows that are asked for, and which of them break a limit; the exit code says whether any does.

    Args:
        given: the arguments `only` (patterns of names), `list` (print the names alone) and `save`.
        judged: gives the cells of a row and whether it keeps its limits.
        keep: puts a row into the table of results, with where and when it was measured.
    """
    names = chosen(rows, given)
    if given.list:
        print(*names, sep="\n")
        return 0
    where = f"{datetime.date.today()}, {machine('scipy', 'torch')}"
    print(where, "", head, sep="\n", flush=True)
    broken = []
    for name in names:
        cells, holds = judged(name)
        print(row(*cells), flush=True)
        broken += [] if holds else [name]
        if given.save:
            keep(row(*cells), where)
    print(f"\n{len(names) - len(broken)} of {len(names)} rows keep their limits")
    print(*(f"breaks: {name}" for name in broken), sep="\n")
    return int(bool(broken))


def put(
    script: str, head: str, rows: Mapping[str, Any], line: str, where: str, name: Callable[[str], str] = str
) -> str:
    """Put a row into results/SCRIPT.txt, in the place of an earlier one of its name, and return the table.

    Args:
        name: turns the first cell of a row into the name of the row.
    """
    path = HERE / "results" / f"{script}.txt"
    said = path.read_text().splitlines() if path.exists() else []
    known = {name(cells[1].strip()): one for one in [*said, line] if len(cells := one.split("|")) > 2}
    table = "\n".join([head, *(known[one] for one in rows if one in known)])
    path.write_text(f"python benchmarks/{script}.py, last {where}\n\n{table}\n")
    return table
