"""`calib threshold`: above which confidence a prediction may be used without a person."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.errors import UsageError
from calibcli.core.options import argument, option
from calibcli.gate.options import Promise
from calibcli.scores.reading_options import Reading

PANEL = "Gate"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("Scores with labels, of rows that no calibrator was fitted on (- for stdin)."),
    promise: Promise,
    calibrator: Path | None = option(
        None, "Calibrator that the scores go through first (calib scale --save).", "--with", metavar="FILE"
    ),
    save: Path | None = option(
        None,
        "Write the threshold to this .json, for apply, check and watch (--threshold).",
        metavar="FILE",
        writes="file",
    ),
    run: CommandRun,
    reading: Reading,
) -> int:
    """Find the confidence above which to act without a person.

    Of the predictions with at least that confidence, at most the given share is wrong in the population, with 95 %
    confidence (--alpha), although the threshold was chosen on the same rows. With --by each value of a column has a
    threshold of its own, and all of them together keep that confidence.

    Exit codes: 0 there is a threshold, 1 surely none is of use, 3 too few rows to show one, 2 wrong request, 4 input
    refused.

    Example: calib threshold test.npz --max-risk 0.05 --save t.json
    """
    from calibcli.api.gating import threshold

    if save is not None and save.suffix != ".json":
        raise UsageError(f"a threshold is not written as '{save.name}'", "use the suffix .json")
    progress = run.progress("reading")
    options = {**vars(promise), "calibrator": calibrator, "progress": progress, **given_options(reading)}
    result = threshold(files, **options)
    if save is not None:
        result = run.keep(result, save, "threshold", "there is none")
    return run.finish(result)
