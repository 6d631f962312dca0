"""`calib apply`: a calibrator over a file of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.options import argument, option
from calibcli.scores.reading_options import Reading

PANEL = "Fix and train"


@takes
def command(
    *,
    calibrator: Path = argument("Calibrator written by calib scale --save; with --multilabel its folder."),
    files: tuple[Path, ...] = argument("Scores, with labels or without: .npz, .npy, .csv, ..."),
    save: Path = option(..., "File to write: .npz, .npy or .csv.", writes="file"),
    kind_out: Literal["probabilities", "logits"] = option(
        "probabilities", "Scores to write: probabilities, or logits (log-probabilities).", "--as"
    ),
    dtype: Literal["float32", "float64"] = option("float32", "Precision of the scores written."),
    threshold: Path | None = option(
        None, "Threshold (calib threshold --save): also write a column accept.", metavar="FILE"
    ),
    run: CommandRun,
    reading: Reading,
) -> int:
    """Apply a saved calibrator to a file of any size.

    Example: calib apply temperature.safetensors new.npz --save calibrated.npz

    Rows stream through in blocks. Methods that keep predicted classes keep them exactly. Labels, if there are any, are
    copied beside the scores.
    """
    from calibcli.api.fixing import apply

    options = {"labels": None, **given_options(reading)}
    progress = run.progress("applying")
    return run.finish(
        apply(
            calibrator,
            files,
            options.pop("labels"),
            save=save,
            kind_out=kind_out,
            dtype=dtype,
            threshold=threshold,
            progress=progress,
            **options,
        )
    )
