"""`calib merge`: the metrics of all rows, from what their parts left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibcli.cli.run import Run, takes
from calibcli.device import Work
from calibcli.spec import Count, Edges, Level, argument, option

PANEL = "Measure"


@takes
def command(
    *,
    states: tuple[Path, ...] = argument("States that calib metrics --partial wrote; a pattern or a folder of them."),
    metric: tuple[str, ...] = option(
        (), "Metric, such as ece:bins=30 (calib list metrics); also 'default' and 'all'. Repeatable.", "--metric", "-m"
    ),
    bins: Count | None = option(None, "Number of bins."),
    edges: Edges | None = option(None, "Edge that a bin includes: right, left, or as torchmetrics has it."),
    level: Level = option(0.95, "Confidence level of two-sided intervals, and of each one-sided bound."),
    per_class: bool = option(False, "Also a table and a diagram of each class."),
    save: Path | None = option(None, "Write all of them as one state (.npz), to be merged again."),
    work: Work,
    run: Run,
) -> int:
    """Measure rows that were never together, from the states that their parts left behind.

    Example: calib merge state-*.npz -o result.json

    Means, proper scores and binned errors are those of all rows, however they are split; the details of other numbers
    say how far off they may be. A part that is there twice is refused.
    """
    from calibcli.api.accumulating import merged

    run.claim(states, *([save] if save else []))
    how: dict[str, Any] = {"bins": bins, "edges": edges, "level": level, "per_class": per_class, "seed": work.seed}
    return run.finish(merged(states, *metric, save=save, progress=run.progress("merging"), **how))
