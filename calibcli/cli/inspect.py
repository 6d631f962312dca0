"""`calib inspect`: how a file would be read, and why."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.options import argument
from calibcli.scores.reading_options import Reading

PANEL = "Look up"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("A file with scores and labels, or any other input (- for stdin)."),
    run: CommandRun,
    reading: Reading,
) -> int:
    """Show how a file would be read, and why.

    Takes the same reading options as the other commands and refuses what they refuse. A model (also a folder of Hugging
    Face or timm, or an ONNX graph), a data set, a calibrator or a result of calib is recognised, and the command that
    takes it is named.

    Example: calib inspect test.npz
    """
    from calibcli.api.inspecting import inspect

    return run.finish(inspect(files, progress=run.progress("reading"), **given_options(reading)))
