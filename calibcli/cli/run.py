"""Commands: found by name, one run with its outputs checked before work starts, and the result emitted at its end."""

from __future__ import annotations

import dataclasses
import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from calibcli import __version__, cli, headline, render
from calibcli.cli.options import COMPLETION, parsed, takes
from calibcli.errors import CalibError, Exit
from calibcli.files import may_write
from calibcli.inputs.opening import Reading
from calibcli.render import layout, screen
from calibcli.result import Result
from calibcli.spec import Count, Edges, Level, Style, option

OTHERS = ("app", "options", "run", "typed")  # beside the files of commands
COMMANDS = sorted(m.name for m in pkgutil.iter_modules(cli.__path__) if m.name not in OTHERS)


def call(args: list[str]) -> int:
    """Run the command that these arguments name; its exit code. Typer is loaded where it has something to say."""
    if args == ["--version"]:
        print(f"calib {__version__}")
        return int(Exit.OK)
    if args and args[0] in COMMANDS and COMPLETION not in os.environ:
        command = importlib.import_module(f"calibcli.cli.{args[0]}").command
        given = parsed(args[1:], command.options)
        if given is not None:
            return int(command(**given))
    from calibcli.cli import typed

    return typed.call(args, COMMANDS)


def asked(reading: Reading) -> dict[str, Any]:
    """The options of reading that are not as they are by default, as keywords of the Python API."""
    return {f.name: value for f in dataclasses.fields(reading) if (value := getattr(reading, f.name)) != f.default}


def named(reading: Reading) -> list[str]:
    """Files that the options of reading may name, beside those that hold the scores."""
    return [
        name
        for name in (reading.labels, reading.classes, reading.choices)
        if isinstance(name, str) and os.path.isfile(name)
    ]


@dataclass(frozen=True)
class Measured:
    """What is measured, of rows as of the states that their parts left behind."""

    metric: Sequence[str] = option(
        (),
        "Metric, such as ece:bins=30 (calib list metrics); also 'default' and 'all'. Repeatable.",
        "--metric",
        "-m",
        kind=tuple[str, ...],
    )
    bins: Count | None = option(None, "Number of bins.")
    edges: Edges | None = option(None, "Edge that a bin includes: right, left, or as torchmetrics has it.")
    level: Level = option(0.95, "Confidence level of two-sided intervals, and of each one-sided bound.")
    per_class: bool = option(False, "Also a table and a diagram of each class.")

    @property
    def how(self) -> dict[str, Any]:
        """As keywords of the Python API, all but the metrics."""
        return {"bins": self.bins, "edges": self.edges, "level": self.level, "per_class": self.per_class}


def speaks() -> bool:
    """Whether this is the first of the processes that torchrun started, or the only one: no other has a say."""
    return os.environ.get("RANK", "0") == "0"


__all__ = ["COMMANDS", "Measured", "Run", "asked", "call", "named", "speaks", "takes"]


@dataclass
class Run:
    """What every command opens first and finishes last.

    Raises:
        UsageError: unknown format or suffix, or an output folder that does not exist.
    """

    format: str = option("table", "Format of stdout: table, json, markdown, csv, ... (calib list formats).")
    json: bool = option(False, "Short for --format json.")
    output: Sequence[Path] = option(
        (),
        "Also write the result here; the suffix decides the format (calib list formats). Repeatable.",
        "--output",
        "-o",
        kind=tuple[Path, ...],
    )
    style: Style = option("screen", "Of pictures: screen, or paper (3.3 inches wide, 8 pt, no titles).")
    quiet: bool = option(False, "No progress and no notes on stderr.", "--quiet", "-q")
    verbose: bool = option(False, "Show all that a file would have, and how numbers were found.", "--verbose", "-v")

    argv: ClassVar[Sequence[str]] = ()
    latest_code: ClassVar[int] = int(Exit.OK)  # of the last finished run, for a reader that went away early

    def __post_init__(self) -> None:
        self.format = render.known_format("json" if self.json else self.format)
        self.outputs = [render.known_output(path) for path in self.output]
        self.quiet = self.quiet or not speaks()
        self.started = time.time()
        self.stdout, sys.stdout = sys.stdout, sys.stderr  # what a user's own code prints is no result

    def claim(self, inputs: Iterable[str | Path | None], *targets: Path) -> None:
        """Refuse outputs, and the further files `targets`, that would replace or fall into an input.

        Raises:
            UsageError: as `files.may_write`.
        """
        written = [*targets, *(file for path in self.outputs for file in render.files(path))]
        if written:
            may_write(written, inputs)

    def note(self, text: str) -> None:
        """A remark on stderr."""
        if not self.quiet:
            print(layout.fitted(f"note: {text}", sys.stderr), file=sys.stderr)

    def progress(self, title: str) -> Callable[[float, str], None]:
        """A progress callback drawn on stderr (nothing when quiet or not a terminal)."""
        if self.quiet or not sys.stderr.isatty():
            return lambda *_: None
        from calibcli.render.progress import bar

        return bar(title)

    def keep(self, result: Result, path: Path) -> Result:
        """Write the JSON of a result that its checks let pass, as a later baseline; the result that says so."""
        if result.exit_code:
            note = f"no baseline is written to {path}: the check did not pass"
            return dataclasses.replace(result, notes=[*result.notes, note])
        if speaks():
            render.write(self.stamped(result), path)
        return dataclasses.replace(result, artefacts={**result.artefacts, "baseline": str(path)})

    def stamped(self, result: Result) -> Result:
        """The result with its sentence, what was called, and when."""
        inputs = [dict(entry) for entry in result.provenance.get("inputs", ())]
        provenance = {
            "version": __version__,
            "argv": list(self.argv),
            "inputs": inputs,
            **{key: value for key, value in result.provenance.items() if key != "inputs"},
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started, 3),
        }
        return dataclasses.replace(headline.headed(result), provenance=provenance)

    def finish(self, result: Result, asked: bool = False) -> int:
        """Stamp provenance, write `-o` files, print to stdout; the exit code that the checks ask for.

        Args:
            asked: the numbers were asked for by name, so that a screen shows all of them.
        """
        sys.stdout = self.stdout
        if not speaks():
            return int(Exit.OK)
        stamped = self.stamped(result)
        inputs = stamped.provenance["inputs"]
        code = stamped.exit_code
        failed: CalibError | None = None
        for path in self.outputs:
            try:
                may_write(render.files(path), [entry["path"] for entry in inputs])  # also those found on the way
                render.write(stamped, path, self.style)
            except CalibError as error:  # the other places still get the result
                failed = failed or error
        Run.latest_code = code if failed is None else int(failed.code)
        detail: screen.Detail = "all" if self.verbose else "asked" if asked else "few"
        for note in screen.notes(result, detail):
            self.note(note)
        render.show(stamped, self.format, detail)
        if failed is not None:
            raise failed
        return code
