"""`calib metrics`: every calibration number with its uncertainty, and the reliability diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from calibcli.cli.run import CommandRun, MetricOptions, given_options, takes
from calibcli.core.errors import UsageError
from calibcli.core.options import Drawn, OrNone, argument, option
from calibcli.networks.device import Work
from calibcli.scores.reading_options import Reading

PANEL = "Measure"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("Scores and labels: .npz, .npy, .csv, ... (- for stdin)."),
    what: MetricOptions,
    top_k: OrNone = option(0, "Also report top-k calibration, for 2 up to this k."),
    partial: Path | None = option(
        None,
        "Write a state (.npz) of these rows, for calib merge.",
        metavar="FILE",
        writes="file",
    ),
    curve: Drawn = option(
        "corp", "Curve of the reliability diagram: isotonic regression (corp), accuracy per bin (bars), or smooth."
    ),
    work: Work,
    run: CommandRun,
    reading: Reading,
) -> int:
    """Measure calibration: every number with its uncertainty, and a reliability diagram.

    Example: calib metrics test.npz -o reliability.png

    Each calibration error is shown with its bounds and with the value expected under perfect calibration.
    """
    how: dict[str, Any] = what.how | {"seed": work.seed}
    progress = run.progress("measuring")
    if partial is not None:
        from calibcli.api.measuring import partly

        if top_k:
            raise UsageError("--top-k needs the scores of all rows together", "leave it out, or --partial")
        return run.finish(
            partly(
                files,
                *what.metric,
                save=partial,
                reading=given_options(reading),
                threads=work.threads,
                progress=progress,
                **how,
            )
        )
    from calibcli.api.measuring import measured
    from calibcli.metrics.report import ReportOptions
    from calibcli.scores.from_arrays import How

    shown = run.screen_alone  # which has few numbers, bins for a picture and no digest: no more is worked out
    options = ReportOptions(
        specs=what.metric or None,
        few=shown,
        top_k=top_k,
        curve="bars" if shown else curve,
        threads=work.threads or None,
        **how,
    )
    given: dict[str, Any] = {"labels": None, **given_options(reading)}
    found = measured(files, given.pop("labels"), options, progress, cast(How, given), hashed=not shown)
    return run.finish(found, asked=bool(what.metric))
