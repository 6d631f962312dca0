"""`calib list`: what can be chosen by name."""

from __future__ import annotations

from typing import Annotated

import typer

from calibcli.cli import options
from calibcli.cli.run import Run

PANEL = "Inspect"


def command(
    name: Annotated[str, typer.Argument(help="metrics, methods, losses, ..., or one entry: ece.")] = "",
    format: options.Format = "table",
    json: options.Json = False,
    output: options.Output = None,
    quiet: options.Quiet = False,
) -> int:
    """List what can be chosen by name: metrics, methods, losses, quantities, architectures, formats.

    With the name of one entry: its definition and source, and every option with its range.

    Example: calib list ece
    """
    run = Run(format=format, json=json, output=output, quiet=quiet)
    from calibcli import catalogue

    return run.finish(catalogue.listing(name) if name else catalogue.overview())
