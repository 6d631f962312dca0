"""`calib inspect`: what a file would be read as, and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from calibcli.cli.run import Run, asked, takes
from calibcli.inputs.opening import Reading
from calibcli.spec import argument

PANEL = "Inspect"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("A file with scores and labels, or any other input; - is stdin."),
    run: Run,
    reading: Reading,
) -> int:
    """Say what a file would be read as, and why.

    Takes the same reading options as every other command and refuses what they refuse. A model (also a folder of
    Hugging Face or timm, an ONNX graph), a data set, a calibrator or a result of calib is named, with the command that
    takes it.

    Example: calib inspect test.npz
    """
    from calibcli.inputs import models_and_folders
    from calibcli.inputs.scores import recognise

    found = models_and_folders.of(files[0]) if len(files) == 1 and not asked(reading) else None
    if found is not None:
        return run.finish(found)
    result, inputs = recognise.inspect(files, asked(reading), run.progress("reading"))
    return run.finish(dataclasses.replace(result, provenance={"inputs": inputs}))
