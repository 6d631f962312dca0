"""One run of a command: outputs checked before work starts, provenance stamped and the result emitted at its end."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from calibcli import __version__, render
from calibcli.errors import CalibError, Exit
from calibcli.files import may_write, sha256
from calibcli.result import Result

Progress = Callable[[float, str], None]
"""Called as `progress(fraction, text)`; fraction in [0, 1]."""


class Run:
    """What every command opens first and finishes last.

    Args:
        format, json, output, quiet: the shared options.

    Raises:
        UsageError: unknown format or suffix, or an output folder that does not exist.
    """

    argv: Sequence[str] = ()
    latest_code = int(Exit.OK)  # of the last finished run, for a reader that went away early

    def __init__(self, *, format: str, json: bool, output: Sequence[Path] | None, quiet: bool) -> None:
        self.format = render.known_format("json" if json else format)
        self.outputs = [render.known_output(path) for path in output or ()]
        self.quiet = quiet
        self.started = time.time()
        self.inputs: list[dict[str, Any]] = []
        self.stdout, sys.stdout = sys.stdout, sys.stderr  # what a user's own code prints is no result

    def claim(self, inputs: Iterable[str | Path | None], *targets: Path) -> None:
        """Refuse outputs, and the further files `targets`, that would replace or fall into an input.

        Raises:
            UsageError: as `files.may_write`.
        """
        may_write([*targets, *(file for path in self.outputs for file in render.files(path))], inputs)

    def note(self, text: str) -> None:
        """A remark on stderr."""
        if not self.quiet:
            print(f"note: {text}", file=sys.stderr)

    def input(self, path: str | Path) -> None:
        """Record an input file with its fingerprint."""
        self.inputs.append({"path": str(path), "sha256": "" if str(path) == "-" else sha256(path)})

    def progress(self, title: str) -> Progress:
        """A progress callback drawn on stderr (nothing when quiet or not a terminal)."""
        if self.quiet or not sys.stderr.isatty():
            return _silent
        from calibcli.render.progress import bar

        return bar(title)

    def finish(self, result: Result, **provenance: Any) -> int:
        """Stamp provenance, write `-o` files, print to stdout; the exit code that the checks ask for."""
        sys.stdout = self.stdout
        stamped = dataclasses.replace(
            result,
            provenance={
                "version": __version__,
                "argv": list(self.argv),
                "inputs": self.inputs,
                **provenance,
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
                "seconds": round(time.time() - self.started, 3),
            },
        )
        if not (self.format == "table" and sys.stdout.isatty()):  # there the table ends with them
            for note in result.notes:
                self.note(note)
        code = stamped.exit_code
        failed: CalibError | None = None
        for path in self.outputs:
            try:
                render.write(stamped, path)
            except CalibError as error:  # the other places still get the result
                failed = failed or error
        Run.latest_code = code if failed is None else int(failed.code)
        render.show(stamped, self.format)
        if failed is not None:
            raise failed
        return code


def _silent(fraction: float, text: str = "") -> None:
    pass
