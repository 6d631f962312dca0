"""`calib slices`: where a model fails."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, given_options, takes
from calibcli.core.options import argument
from calibcli.scores.reading_options import Reading
from calibcli.slices import Search

PANEL = "Measure"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("Scores with labels and columns (- for stdin)."),
    search: Search,
    run: CommandRun,
    reading: Reading,
) -> int:
    """Find where a model fails, as rules on columns.

    Columns are those of --by, else all of the file but scores, labels, ids and weights. Groups (--group) stay together.
    -o rules.toml writes the confirmed rules as gates, to be judged on new data, never on these rows.

    Example: calib slices test.npz --by ink -o rules.toml
    """
    from calibcli.api.finding import find_slices

    return run.finish(find_slices(files, **vars(search), progress=run.progress("searching"), **given_options(reading)))
