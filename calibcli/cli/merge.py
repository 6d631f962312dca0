"""`calib merge`: the metrics of all rows, from the states of their parts."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, MetricOptions, takes
from calibcli.core.options import argument, option
from calibcli.networks.device import Work

PANEL = "Measure"


@takes
def command(
    *,
    states: tuple[Path, ...] = argument("States written by calib metrics --partial; also a pattern or a folder."),
    metrics: MetricOptions,
    save: Path | None = option(None, "Write the merged state to this file (.npz).", writes="file"),
    work: Work,
    run: CommandRun,
) -> int:
    """Measure rows that were never in one place, from saved states.

    Example: calib merge state-*.npz -o result.json

    Means, proper scores and binned errors equal those of all rows together, however they are split; the details of
    other numbers say how far off they may be. A part that is passed twice is refused.
    """
    from calibcli.api.measuring import merged

    progress = run.progress("merging")
    result = merged(states, *metrics.metric, save=save, progress=progress, seed=work.seed, **metrics.how)
    return run.finish(result, asked=bool(metrics.metric))
