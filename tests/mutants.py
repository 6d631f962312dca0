"""Break lines of the code, one at a time, and see that their tests notice: `make mutants`, by hand, half an hour.

    python tests/mutants.py [PATTERN ...]   # those whose file or text a pattern is found in

Each entry of `mutants.toml` names a file of calibcli/, a text that stands there exactly once, what it becomes, and the
tests that must then fail. All of it happens in a copy of the tree. First every named test must pass there unbroken, as
a test that fails anyway notices nothing. Exit 1 if a mutant survives, 2 if the list or the tests are not in order.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_suffix(".toml")
LIMIT = 900.0  # seconds that the tests of one mutant may take
PASSED, FAILED = 0, 1  # exit codes of pytest; others say that no test was run to its end


@dataclass(frozen=True)
class Mutant:
    """A line to break.

    Attributes:
        file: below calibcli/.  text: stands there once.  becomes: takes its place.  tests: arguments of pytest.
    """

    file: str
    text: str
    becomes: str
    tests: str

    @property
    def name(self) -> str:
        return f"{self.file}: {self.text.strip().splitlines()[0]}"

    def broken(self, source: str) -> str:
        """The source with its text replaced.

        Raises:
            ValueError: the text is there never or more than once.
        """
        times = source.count(self.text)
        if times != 1:
            raise ValueError(f"{self.name}: the text is there {times} times; write it again in {LIST.name}")
        return source.replace(self.text, self.becomes)


def listed() -> list[Mutant]:
    return [Mutant(**entry) for entry in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]]


def misplaced(mutants: Sequence[Mutant], root: Path = ROOT) -> list[str]:
    """What is wrong with the list: texts that are not there once, files that do not compile, tests that are gone."""
    wrong = []
    for one in mutants:
        try:
            compile(one.broken((root / "calibcli" / one.file).read_text(encoding="utf-8")), one.file, "exec")
        except (ValueError, SyntaxError, OSError) as error:
            wrong.append(str(error))
        files = [part for part in shlex.split(one.tests) if part.startswith("tests/")]
        wrong += [f"{one.name}: no {part}" for part in files if not (root / part.partition("::")[0]).is_file()]
    return wrong


def copy_of(root: Path, to: Path) -> None:
    """Copy what git knows of or would add: no environment, no output."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.split("\0"):
        if name and (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def tested(tests: str, tree: Path) -> int | None:
    """Exit code of pytest on the code of this tree; None after too long."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not extra",
        *shlex.split(tests),
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode not in (PASSED, FAILED):
        print(done.stdout.decode(errors="replace")[-3000:])
    return done.returncode


def tried(one: Mutant, tree: Path) -> int | None:
    """Exit code of the tests on the broken line, which is mended afterwards."""
    path = tree / "calibcli" / one.file
    source = path.read_text(encoding="utf-8")
    path.write_text(one.broken(source), encoding="utf-8")
    try:
        return tested(one.tests, tree)
    finally:
        path.write_text(source, encoding="utf-8")


def main(patterns: Sequence[str]) -> int:
    mutants = [one for one in listed() if not patterns or any(re.search(p, one.name) for p in patterns)]
    if wrong := misplaced(mutants):
        print("\n".join(wrong))
        return 2
    with tempfile.TemporaryDirectory(prefix="calib-mutants-") as folder:
        tree = Path(folder)
        copy_of(ROOT, tree)
        for tests in sorted({one.tests for one in mutants}):
            if tested(tests, tree) != PASSED:
                print(f"these tests do not pass on the code as it is: {tests}")
                return 2
        survived = 0
        for number, one in enumerate(mutants, 1):
            start = time.monotonic()
            code = tried(one, tree)
            killed = code == FAILED
            survived += not killed
            word = "killed" if killed else {PASSED: "SURVIVED", None: "TIMED OUT"}.get(code, f"NO TEST RAN ({code})")
            print(f"{number:3} {word:9} {time.monotonic() - start:5.0f} s  {one.name}", flush=True)
    print(f"{len(mutants) - survived} of {len(mutants)} killed")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
