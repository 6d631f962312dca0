"""Everything that takes too long for every change, one after another: `make nightly`, some hours on one core.

    python benchmarks/nightly.py [--data DIR] [--out FOLDER] [--short] [NAME ...]

The full simulations, and 20 minutes of search for populations on which a gate is wrong; `coverage`, the share of lines
that the tests run; `draws`, the tests that draw at random (damaged files, edits, orders of dictionaries, hash seeds,
configurations) with many more draws than in `make test`; `oldest`, the tests that need no torch with the oldest
versions that pyproject.toml allows; `python3.12` and later where this machine has them.
Output goes to FOLDER/NAME.txt, the gate's cells to FOLDER/gate (it goes on where it was stopped). Exit 1 if one failed.
`--short` takes few draws, in `draws` those of `make test`, which says that everything starts and no more.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
RUNS = {
    "gate": (
        "gate.py --out {out}/gate",
        "--only '^exact: constant 0.99, 1.00% errors, K=3, n=200$' --runs 4 --again 0",
    ),
    "gate-search": ("gate.py --search --minutes 20 --out {out}/gate", "--minutes 0.5 --again 4"),
    "gate-report": ("gate.py --out {out}/gate --report", ""),
    "positions": ("positions.py", "--part coverage --replications 4"),
    "cutoffs": ("cutoffs.py", "--runs 3 --samples 2 --seeds 1 --populations 10"),
    "exact-scores": ("exact_scores.py", "--only 'levels, even, event 0' --runs 4 --worst 1 --again 4"),
    "gate-plan": ("gate_plan.py", "--runs 20"),
    "power": ("gate_plan.py --part power --runs 1000", "--runs 5"),
    "watch": ("watch.py --looks 1000 --only wrong", "--short"),
    "slices": ("slices.py", "--runs 4"),
    "threshold": ("threshold.py --runs 1000", "--only '^flat, 1.02 of' --runs 20 --rows 200"),
    "paired-near": ("paired_coverage.py --pairs near", "--runs 10 --sizes 150"),
    "coverage-of-intervals": ("coverage.py --save {out}/coverage.json", "--replications 2 --rows 500"),
    "coverage-of-confidences": (
        "coverage.py --confidence --save {out}/confidences.json",
        "--replications 2 --rows 500",
    ),
    "scale-coverage": ("scale_coverage.py", "--runs 4"),
    "curvature-coverage": ("curvature_coverage.py", "--seeds 2 --samples 2 --studies 2"),
    "claims": ("claims.py --save {out}/claims.jsonl", "--short"),
    "study-kills": ("studies.py --kills 20", "--kills 2 --epochs 20"),
    "studies": ("studies.py", "--only focal-shape --again 0"),
    "derivatives": ("derivatives.py", "--rounds 1"),
    "growth": ("growth.py", "--short"),
    "responsive": ("responsive.py", "--short"),
    "billion": ("billion.py --minutes 20", "--rows 1e5 --parts 4"),
    "zoo": ("zoo.py", "plain.*"),
}
"""The command lines by name, and what `--short` adds to each."""
EXTRA = ROOT / ".venv-extra" / "bin" / "python"  # with torchvision, timm and transformers
TAKE_DATA = ("gate", "gate-report")
PYTHONS = ("python3.12", "python3.13", "python3.14")
LEAST = 95  # percent of lines
DRAWS = {"CALIB_EDITS": "5000", "CALIB_ORDERS": "1000", "CALIB_HASH_SEEDS": "20", "CALIB_MUTANTS": "2000"}
"""How often tests draw at night, by the variable of the environment that they read."""
NOT_NEEDED = ("torch", "torchmetrics", "relplot", "mypy", "ruff")  # by the tests that need no torch
ALL_ROWS = ("-m", "not extra and not docs and not engines")  # with the tests and rows of `make test-slow`
Commands = list[list[str]]


def commands(name: str, out: Path, data: str | None, short: bool = False) -> Commands:
    """The command lines of a run."""
    python = [sys.executable]
    if name == "coverage":
        run = [*python, "-m", "coverage", "run", "--source", "calibcli", "-m", "pytest", *ALL_ROWS]
        return [run, [*python, "-m", "coverage", "report", "--skip-covered", "--fail-under", str(LEAST)]]
    if name == "draws":
        return many_draws({} if short else DRAWS)
    if name == "oldest" or name in PYTHONS:
        return elsewhere(out / f"env-{name}", sys.executable if name == "oldest" else name, oldest=name == "oldest")
    if name == "zoo" and EXTRA.exists():
        python = [str(EXTRA)]
    line, less = RUNS[name]
    script, *options = [part.format(out=out) for part in shlex.split(f"{line} {less}" if short else line)]
    return [[*python, str(HERE / script), *options, *(["--data", data] if data and name in TAKE_DATA else [])]]


def many_draws(counts: dict[str, str]) -> Commands:
    """The test files that read a count or the seeds of tests/edits.py, also with rare packages."""
    reads = re.compile("|".join([*DRAWS, "^from edits import"]), re.MULTILINE)
    files = [str(path) for path in sorted((ROOT / "tests").glob("test_*.py")) if reads.search(path.read_text())]
    of_tests = ["env", f"PYTHONPATH={ROOT / 'tests'}", *(f"{name}={count}" for name, count in counts.items())]
    found = [[*of_tests, sys.executable, "-m", "pytest", "-n", "auto", *ALL_ROWS, *files]]
    if EXTRA.exists():
        found.append([*of_tests, str(EXTRA), "-m", "pytest", "-n", "auto", "-p", "zoos", "-m", "extra", *files])
    return found


def elsewhere(folder: Path, python: str, oldest: bool) -> Commands:
    """The tests that need no torch (tests/conftest.py skips the others), in an environment of their own."""
    own = str(folder / "bin" / "python")
    skipped = ["-k", "not import_nothing_heavy"] if oldest else []  # old versions of Typer import rich at once
    install = [own, "-m", "pip", "install", "-q"]
    return [
        [python, "-m", "venv", "--clear", str(folder)],
        [*install, *packages(oldest)],
        [*install, "--no-deps", "-e", str(ROOT)],
        [own, "-m", "pytest", "-n", "auto", *ALL_ROWS, *skipped],
    ]


def packages(oldest: bool) -> list[str]:
    """What pyproject.toml asks for, or its oldest versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    kept = [one for one in asked if re.split(r"\W", one)[0] not in NOT_NEEDED]
    return [one.replace(">=", "==") for one in kept] if oldest else kept


def there(python: str) -> bool:
    """Whether this machine has that Python, and not only a launcher of its name."""
    return bool(shutil.which(python)) and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def main() -> int:
    known = [*RUNS, "coverage", "draws", "oldest", *PYTHONS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="of " + ", ".join(known))
    parser.add_argument("--data", help="folder of recorded outputs")
    parser.add_argument("--out", type=Path, default=Path("out/nightly"))
    parser.add_argument("--short", action="store_true", help="few draws, to see that every simulation starts")
    given = parser.parse_args()
    unknown = set(given.names) - set(known)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    given.out.mkdir(parents=True, exist_ok=True)
    failed = []
    absent = [name for name in PYTHONS if not given.names and not there(name)]
    for name in absent:
        print(f"{name}: not on this machine")
    for name in given.names or [name for name in known if name not in absent]:
        start, code = time.monotonic(), 0
        with open(given.out / f"{name}.txt", "w") as log:
            for command in commands(name, given.out.resolve(), given.data, given.short):
                code = code or subprocess.call(command, stdout=log, stderr=log, cwd=ROOT)
        print(f"{name}: {'ok' if code == 0 else f'exit {code}'}, {time.monotonic() - start:.0f} s", flush=True)
        failed += [name] if code else []
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
