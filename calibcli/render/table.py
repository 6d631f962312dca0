"""The terminal: estimates with their intervals, tables, checks."""

from __future__ import annotations

import sys

from calibcli.result import Result


def render(result: Result) -> str:
    lines = [f"{e.name} {e.of} {e.value} [{e.low}, {e.high}]" for e in result.estimates]
    return "\n".join(lines) + "\n"


def show(result: Result) -> None:
    sys.stdout.write(render(result))
