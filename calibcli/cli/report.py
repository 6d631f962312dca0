"""`calib report`: several results as one page."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, takes
from calibcli.core.options import argument

PANEL = "Look up"


@takes
def command(
    *,
    results: tuple[Path, ...] = argument("Results of any commands, written with -o FILE.json."),
    run: CommandRun,
) -> int:
    """Combine results; -o report.html is a page to send.

    Results of the same command are compared as if from independent data; calib compare pairs the rows of scores.
    The exit code is 0 whatever the verdicts are.

    Example: calib report metrics.json check.json -o report.html
    """
    from calibcli.api.gating import report

    run.progress("reading")
    return run.finish(report(*results))
