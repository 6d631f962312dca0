"""`calib merge`: the metrics of all rows, from what their parts left behind."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, MetricOptions, takes
from calibcli.core.options import argument, option
from calibcli.networks.device import Work

PANEL = "Measure"


@takes
def command(
    *,
    states: tuple[Path, ...] = argument("States that calib metrics --partial wrote; a pattern or a folder of them."),
    what: MetricOptions,
    save: Path | None = option(None, "Write all of them as one state (.npz), to be merged again.", writes="file"),
    work: Work,
    run: CommandRun,
) -> int:
    """Measure rows that were never together, from the states that their parts left behind.

    Example: calib merge state-*.npz -o result.json

    Means, proper scores and binned errors are those of all rows, however they are split; the details of other numbers
    say how far off they may be. A part that is there twice is refused.
    """
    from calibcli.api.measuring import merged

    progress = run.progress("merging")
    return run.finish(merged(states, *what.metric, save=save, progress=progress, seed=work.seed, **what.how))
