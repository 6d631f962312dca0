"""`calib list`: what can be chosen by name."""

from __future__ import annotations

from calibcli.cli.run import CommandRun, takes
from calibcli.core.options import argument

PANEL = "Look up"


@takes
def command(
    *, name: str = argument("A list (metrics, methods, losses, ...) or an entry, such as ece.", ""), run: CommandRun
) -> int:
    """List metrics, methods, losses, quantities, formats, ...

    With the name of one entry: its definition and source, and every option with its range.

    Example: calib list ece
    """
    from calibcli.api import catalogue

    return run.finish(catalogue.listing(name) if name else catalogue.overview())
