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
    metrics: MetricOptions,
    top_k: OrNone = option(0, "Also report top-k calibration, for 2 up to this k."),
    partial: Path | None = option(
        None,
        "Measure file by file, and write a state (.npz) for calib merge.",
        metavar="FILE",
        writes="file",
    ),
    judge: str | None = option(
        None,
        "Column with verdicts of a judge on all rows, of which people labelled some at random: means of both together.",
        metavar="KEY",
    ),
    curve: Drawn = option(
        "corp",
        "Curve of the reliability diagram: isotonic regression (corp), accuracy per bin (bars), or smooth; "
        "decision adds the net benefit over the threshold.",
    ),
    work: Work,
    run: CommandRun,
    reading: Reading,
) -> int:
    """Measure calibration: numbers with intervals, and a diagram.

    Example: calib metrics test.npz -o reliability.png

    Each calibration error is shown with its bounds and with the value expected under perfect calibration.
    """
    keywords: dict[str, Any] = metrics.how | {"seed": work.seed}
    progress = run.progress("measuring")
    if partial is not None:
        from calibcli.api.measuring import partly

        if judge:
            raise UsageError("--judge needs the rows of all files together", "leave --partial out")
        if top_k:
            raise UsageError("--top-k needs the scores of all rows together", "leave it out, or --partial")
        return run.finish(
            partly(
                files,
                *metrics.metric,
                save=partial,
                reading=given_options(reading),
                threads=work.threads,
                progress=progress,
                **keywords,
            )
        )
    from calibcli.api.measuring import measured
    from calibcli.metrics.report import ReportOptions
    from calibcli.scores.from_arrays import How

    shown = run.screen_alone  # a screen shows few numbers, a diagram of bins and no sha256: no more is computed
    options = ReportOptions(
        specs=metrics.metric or None,
        few=shown,
        top_k=top_k,
        curve="bars" if shown and curve != "decision" else curve,
        threads=work.threads or None,
        **keywords,
    )
    given: dict[str, Any] = {"labels": None, **given_options(reading)}
    result = measured(files, given.pop("labels"), options, progress, cast(How, given), hashed=not shown, judge=judge)
    return run.finish(result, asked=bool(metrics.metric))
