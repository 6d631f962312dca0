"""Sheets as lines of text: as wide as they need, or fitted to a width without ever cutting a number.

Where the width is short, prose is wrapped; then it goes below the rows that need it and columns that can be spared
are left out by name; then identifiers are wrapped. What is still too wide is left to the terminal to wrap.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from calibcli.render import stream
from calibcli.render.sheet import Sheet

GAP = 2
PROSE = 24  # columns below which wrapped prose is unreadable
NAME = 12  # columns that an identifier keeps
Line = list[tuple[str, str]]  # pieces of a line with their styles: "", title, head, code, faint, good, bad, warn


def lines(sheet: Sheet, encoding: str = "utf-8", width: int | None = None) -> list[Line]:
    """The title, the heads, a rule, and the rows with an empty line between groups."""
    heads = [stream.fold(stream.clean(c.head), encoding) for c in sheet.columns]
    rows = [[stream.fold(stream.clean(text), encoding) for text in row] for row in sheet.rows]
    sizes = [max(map(stream.width, column)) for column in zip(heads, *rows, strict=True)]
    kept, below = list(range(len(heads))), ""
    if width is not None:
        kept, below = _fitted(sheet, sizes, width)

    found: list[Line] = []
    if sheet.title:
        found.append([(stream.fold(stream.clean(sheet.title), encoding), "title")])
    found.append(_row([heads[i] for i in kept], kept, sizes, sheet, "head")[0])
    found.append([(stream.fold((" " * GAP).join("─" * sizes[i] for i in kept), encoding), "faint")])
    for r, row in enumerate(rows):
        if r in sheet.breaks:
            found.append([])
        tone = sheet.tones[r] if sheet.tones else ""
        found += _row([row[i] for i in kept], kept, sizes, sheet, "", tone)
        if below and r in sheet.musts:
            said = "; ".join(row[i] for i, c in enumerate(sheet.columns) if c.free and row[i])
            found += [[(f"    {line}", "faint")] for line in textwrap.wrap(said, (width or 80) - 4)]
    if len(kept) < len(heads):
        missing = ", ".join(heads[i] for i in range(len(heads)) if i not in kept)
        found.append([(f"(not shown at this width: {missing})", "faint")])
    return found


def text(sheet: Sheet, encoding: str = "utf-8") -> list[str]:
    """Plain lines, as wide as they need."""
    return ["".join(piece for piece, _ in line).rstrip() for line in lines(sheet, encoding)]


def _fitted(sheet: Sheet, sizes: list[int], width: int) -> tuple[list[int], str]:
    """The columns kept (their `sizes` narrowed in place) and where prose went: beside ("") or `below`."""
    columns = sheet.columns
    kept = list(range(len(columns)))

    def excess() -> int:
        return sum(sizes[i] for i in kept) + GAP * (len(kept) - 1) - width

    below = ""
    free = [i for i in kept if columns[i].free]
    if excess() > 0 and free:
        room = sum(sizes[i] for i in free) - excess()
        if room >= PROSE * len(free):
            for i in free:
                sizes[i] = room // len(free)
        else:
            kept, below = [i for i in kept if i not in free], "below"
    spared = sorted((i for i in kept if columns[i].spare), key=lambda i: columns[i].spare)
    dropped = []
    for i in spared:
        if excess() > 0:
            kept.remove(i)
            dropped.append(i)
    for i in reversed(dropped):  # the last one dropped may have made room for another
        if excess() + sizes[i] + GAP <= 0:
            kept = sorted([*kept, i])
    for i in sorted((i for i in kept if columns[i].code), key=lambda i: -sizes[i]):
        sizes[i] = max(min(sizes[i], NAME), sizes[i] - max(0, excess()))
    return kept, below


def _row(
    cells: Sequence[str], kept: Sequence[int], sizes: Sequence[int], sheet: Sheet, style: str, tone: str = ""
) -> list[Line]:
    """One row; several lines where a cell is wrapped. The tone colours the first cell."""
    wrapped = [_wrapped(text, sizes[i], sheet.columns[i].free) for text, i in zip(cells, kept, strict=True)]
    found = []
    for k in range(max(map(len, wrapped), default=1)):
        line: Line = []
        for position, (parts, i) in enumerate(zip(wrapped, kept, strict=True)):
            column = sheet.columns[i]
            part = parts[k] if k < len(parts) else ""
            space = " " * (sizes[i] - stream.width(part))
            own = style or (
                tone if position == 0 and tone else "code" if column.code else "faint" if column.free else ""
            )
            line += [(" " * GAP, "")] if position else []
            line.append((space + part if column.right else part + space, own))
        found.append(line)
    return found


def _wrapped(text: str, size: int, prose: bool) -> list[str]:
    if stream.width(text) <= size:
        return [text]
    if prose and text.isascii():
        return textwrap.wrap(text, size)
    parts, part = [], ""
    for word in text.split(" "):
        joined = f"{part} {word}" if part else word
        if stream.width(joined) <= size or (prose and not part):
            part = joined
            continue
        parts += [part] if part else []
        part = ""
        for letter in [word] if prose else word:  # an identifier that is too long is cut anywhere
            if part and stream.width(part + letter) > size:
                parts.append(part)
                part = letter
            else:
                part += letter
    return [*parts, part]
