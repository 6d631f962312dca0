"""The table format: verdicts, estimates with their intervals, tables, diagrams, notes.

On a terminal it takes colour (not with NO_COLOR) and the terminal's width; anywhere else it is plain and not wrapped.
Ours: the choice and the order of its parts.

>>> print(render(result).splitlines()[-1])
accuracy  0.911  [0.891, 0.928]  Clopper-Pearson interval
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from typing import Literal

from calibcli.render import sheet, stream, terminal
from calibcli.result import Result

SUFFIXES = (".txt",)
WIDTH = 80  # of a diagram where there is no terminal to ask
STYLES = {"title": "bold", "head": "bold", "code": "cyan", "faint": "dim", "": ""}
STYLES |= {"good": "green", "bad": "bold red", "warn": "yellow"}
ROWS = 60  # of a table beside the estimates on a terminal


def render(result: Result, encoding: str = "utf-8") -> str:
    """Plain text; every line as long as it needs to be."""
    blocks = [[heading(result), *_facts(result)]]
    blocks += [terminal.text(s, encoding) for s in sheet.sheets(result)]
    blocks += terminal.diagrams(result, WIDTH, encoding)
    if result.notes:
        blocks.append([f"note: {stream.clean(note)}" for note in result.notes])
    if result.artefacts:
        blocks.append([_saved(role, path) for role, path in result.artefacts.items()])
    if result.checks:
        blocks.append([sheet.verdict(result)[0]])
    return "\n\n".join("\n".join(stream.fold(line, encoding).rstrip() for line in block) for block in blocks) + "\n"


def show(result: Result) -> None:
    """Print to stdout: with rich on a terminal, plain elsewhere."""
    encoding = stream.encoding()
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        stream.put(render(result, encoding))
        return
    _rich(result, encoding)


def heading(result: Result) -> str:
    return stream.clean(sheet.heading(result))


def _facts(result: Result) -> list[str]:
    """On one line where they fit, else one on each."""
    facts = [(stream.clean(key), stream.clean(value)) for key, value in sheet.facts(result)]
    line = " · ".join(f"{key}: {value}" for key, value in facts)
    if stream.width(line) <= WIDTH:
        return [line] if facts else []
    longest = max(stream.width(key) for key, _ in facts)
    return [f"  {key}{' ' * (longest - stream.width(key))}  {value}" for key, value in facts]


def _saved(role: str, path: str) -> str:
    return stream.clean(f"saved: {path} ({role})")


def _rich(result: Result, encoding: str) -> None:
    from rich.console import Console
    from rich.text import Text

    width = max(40, shutil.get_terminal_size().columns)
    colour: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    console = Console(highlight=False, emoji=False, markup=False, width=width, color_system=colour)

    def say(line: str, style: str = "") -> None:
        console.print(Text(stream.fold(line, encoding), style=style))

    say(heading(result), "bold")
    for fact in _facts(result):
        say(fact, "dim")
    for s in sheet.sheets(result):
        console.print()
        more = 0 if s.tones or any(c.code for c in s.columns) else max(0, len(s.rows) - ROWS)
        s = dataclasses.replace(s, rows=s.rows[: len(s.rows) - more])
        for line in terminal.lines(s, encoding, width):
            pieces = Text.assemble(*((piece, STYLES[style]) for piece, style in line))
            pieces.rstrip()
            console.print(pieces, soft_wrap=True)
        if more:
            say(f"… {more} more rows (all of them with --format json or -o)", "dim")
    for block in terminal.diagrams(result, min(100, width), encoding):
        console.print()
        for diagram in block:
            console.print(Text(diagram), soft_wrap=True)
    if result.notes:
        console.print()
    for note in result.notes:
        console.print(Text.assemble(("note: ", "bold yellow"), stream.fold(stream.clean(note), encoding)))
    for role, path in result.artefacts.items():
        say(_saved(role, path), "dim")
    said, tone = sheet.verdict(result)
    if said:
        console.print()
        say(said, STYLES[tone])
