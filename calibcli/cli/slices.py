"""`calib slices`: where a model fails."""

from __future__ import annotations

from pathlib import Path

from calibcli.cli.run import CommandRun, asked, takes
from calibcli.core.options import argument
from calibcli.scores.reading_options import Reading
from calibcli.slices import Search

PANEL = "Inspect"


@takes
def command(
    *,
    files: tuple[Path, ...] = argument("Scores with labels and columns; - is stdin."),
    search: Search,
    run: CommandRun,
    reading: Reading,
) -> int:
    """Find the rules on the columns, of one or two conditions, whose rows show more than chance: where a model fails.

    Columns are those of --by, else all that the file has beside scores, labels, ids and weights. Groups (--group) stay
    together. -o rules.toml writes what was confirmed as gates, to be judged on new data, never on these rows.

    Example: calib slices test.npz --by ink -o rules.toml
    """
    from calibcli.api.finding import find_slices

    return run.finish(find_slices(files, **vars(search), progress=run.progress("searching"), **asked(reading)))
