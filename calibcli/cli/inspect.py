"""`calib inspect`: what a file would be read as, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from calibcli.cli import options
from calibcli.cli.reading import named, reads
from calibcli.cli.run import Run

PANEL = "Inspect"


@reads
def command(
    files: Annotated[list[Path], typer.Argument(help="A file with scores and labels, or any other input; - is stdin.")],
    reading: dict[str, Any],
    format: options.Format = "table",
    json: options.Json = False,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> int:
    """Say what a file would be read as, and why.

    Takes the same reading options as every other command and refuses what they refuse. A checkpoint, a calibrator or a
    result of calib is named, with the command that takes it.

    Example: calib inspect test.npz
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli.inputs.scores import recognise

    run.claim([*files, *named(reading)])
    progress = run.progress("reading")
    result, inputs = recognise.inspect(files, reading, progress)
    run.inputs.extend(inputs)
    return run.finish(result)
