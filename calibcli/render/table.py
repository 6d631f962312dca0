"""The table format: verdicts, estimates with their intervals, tables, diagrams, notes.

On a terminal it takes colour (not with NO_COLOR) and the terminal's width; anywhere else it is plain and not wrapped.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from calibcli.render import sheet, stream, terminal
from calibcli.render.sheet import Column, Sheet
from calibcli.result import Result

WIDTH = 80  # of a diagram where there is no terminal to ask
ROWS = 60  # of a table beside the estimates on a terminal


def render(result: Result, encoding: str = "utf-8") -> str:
    """Plain text; every line as long as it needs to be."""
    blocks = [[heading(result), *([f] if (f := _facts(result)) else [])]]
    blocks += [_plain(s, encoding) for s in sheet.sheets(result)]
    blocks += terminal.diagrams(result, WIDTH, encoding)
    if result.notes:
        blocks.append([f"note: {stream.clean(note)}" for note in result.notes])
    if result.artefacts:
        blocks.append([f"saved: {path} ({role})" for role, path in result.artefacts.items()])
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


def _facts(result: Result) -> str:
    return " · ".join(f"{key}: {stream.clean(value)}" for key, value in sheet.facts(result))


def _plain(table: Sheet, encoding: str) -> list[str]:
    """Columns apart by two spaces, a rule under the heads, an empty line between groups."""
    rows = [[stream.fold(stream.clean(text), encoding) for text in row] for row in table.rows]
    heads = [stream.fold(stream.clean(c.head), encoding) for c in table.columns]
    widths = [max(stream.width(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = [stream.clean(table.title)] if table.title else []
    lines += [_line(heads, widths, table.columns), "  ".join("─" * w for w in widths)]
    for i, row in enumerate(rows):
        lines += [""] if i in table.breaks else []
        lines.append(_line(row, widths, table.columns))
    return lines


def _line(cells: list[str], widths: list[int], columns: Sequence[Column]) -> str:
    padded = []
    for text, width, column in zip(cells, widths, columns, strict=True):
        space = " " * (width - stream.width(text))
        padded.append(space + text if column.right else text + space)
    return "  ".join(padded).rstrip()


def _rich(result: Result, encoding: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = max(40, shutil.get_terminal_size().columns)
    console = Console(highlight=False, emoji=False, markup=False, width=width)
    if os.environ.get("NO_COLOR"):
        console = Console(highlight=False, emoji=False, markup=False, width=width, color_system=None)
    styles = {"": "", "good": "green", "bad": "bold red", "warn": "yellow"}

    def text(line: str, style: str = "") -> Text:
        return Text(stream.fold(stream.clean(line), encoding), style=style)

    def column(table: Table, column: Column) -> None:
        table.add_column(
            text(column.head, "bold"),
            justify="right" if column.right else "left",
            style="cyan" if column.code else "dim" if column.free else "",
            no_wrap=not (column.free or column.code),
            overflow="fold",
            ratio=None,
        )

    console.print(text(heading(result), "bold"))
    if _facts(result):
        console.print(text(_facts(result), "dim"))
    for s in sheet.sheets(result):
        console.print()
        if s.title:
            console.print(text(s.title, "bold"))
        shown = s.rows if s.breaks or s.tones or any(c.code for c in s.columns) else s.rows[:ROWS]
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold", show_edge=False)
        for c in s.columns:
            column(table, c)
        for i, row in enumerate(shown):
            if i in s.breaks:
                table.add_row()
            tone = styles[s.tones[i]] if s.tones else ""
            table.add_row(*(text(cell, tone if j == 0 and tone else "") for j, cell in enumerate(row)))
        console.print(table)
        if len(shown) < len(s.rows):
            console.print(text(f"… {len(s.rows) - len(shown)} more rows (all of them with --format json or -o)", "dim"))
    for block in terminal.diagrams(result, min(100, console.width), encoding):
        console.print()
        for line in block:
            console.print(Text(line), no_wrap=True, overflow="crop")
    if result.notes:
        console.print()
    for note in result.notes:
        console.print(Text.assemble(("note: ", "bold yellow"), text(note)))
    for role, path in result.artefacts.items():
        console.print(text(f"saved: {path} ({role})", "dim"))
    said, tone = sheet.verdict(result)
    if said:
        console.print()
        console.print(text(said, styles[tone]))
