"""The table format: verdicts, estimates with their intervals, tables, diagrams in plain Unicode, notes.

On a terminal it takes colour (not with NO_COLOR) and the terminal's width; anywhere else it is plain and not wrapped.

Sheets are as wide as they need, or fitted to a width without ever cutting a number. Where the width is short, prose is
wrapped; then it goes below the rows that need it and columns that can be spared are left out by name; then identifiers
are wrapped. What is still too wide is left to the terminal to wrap.

Ours: the choice and the order of its parts.

>>> print(render(result).splitlines()[-1])
accuracy  0.911  [0.891, 0.928]  Clopper-Pearson interval
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Literal

from calibcli.plots import Plot
from calibcli.render import canvas, sheet, stream
from calibcli.render.sheet import Sheet
from calibcli.result import Result

SUFFIXES = (".txt",)
WIDTH = 80  # of a diagram where there is no terminal to ask
STYLES = {"title": "bold", "head": "bold", "code": "cyan", "faint": "dim", "": ""}
STYLES |= {"good": "green", "bad": "bold red", "warn": "yellow"}
ROWS = 60  # of a table beside the estimates on a terminal
GAP = 2
PROSE = 24  # columns below which wrapped prose is unreadable
NAME = 12  # columns that an identifier keeps
Line = list[tuple[str, str]]  # pieces of a line with their styles: "", title, head, code, faint, good, bad, warn
MOST = 3  # diagrams in one table
BINS = 30  # rows of a reliability diagram; more bins are merged
HELD = "\N{NO-BREAK SPACE}"
LEGEND = ("█ accuracy", "░ overconfident by", "▒ underconfident by", "◆ mean confidence")
LEGEND_OF_CLASS = ("█ share of the class", "░ predicted too high by", "▒ too low by", "◆ mean probability")


def render(result: Result, encoding: str = "utf-8") -> str:
    """Plain text; every line as long as it needs to be."""
    said = wrapped_sentence(result, WIDTH)
    blocks = [[heading(result), *said], _facts(result)] if said else [[heading(result), *_facts(result)]]
    blocks += [text(s, encoding) for s in sheet.sheets(result)]
    blocks += diagrams(result, WIDTH, encoding)
    if result.notes:
        blocks.append([f"note: {stream.clean(note)}" for note in result.notes])
    if result.artefacts:
        blocks.append([_saved(role, path) for role, path in result.artefacts.items()])
    if result.checks:
        blocks.append([sheet.verdict(result)[0]])
    blocks = [block for block in blocks if block]
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


def wrapped_sentence(result: Result, width: int) -> list[str]:
    """What the result opens with, in lines that end between words."""
    said = re.sub(r"\[[^\[\]]*\]|\S+ %", lambda m: m.group().replace(" ", HELD), stream.clean(sheet.headline(result)))
    lines = textwrap.wrap(said, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(HELD, " ") for line in lines]


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
    import shutil

    from rich.console import Console
    from rich.text import Text

    width = max(40, shutil.get_terminal_size().columns)
    colour: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    console = Console(highlight=False, emoji=False, markup=False, width=width, color_system=colour)

    def say(line: str, style: str = "") -> None:
        console.print(Text(stream.fold(line, encoding), style=style))

    say(heading(result), "dim")
    for opening in (said_first := wrapped_sentence(result, width)):
        say(opening, "bold")
    if said_first:
        console.print()
    for fact in _facts(result):
        say(fact, "dim")
    for s in sheet.sheets(result):
        console.print()
        more = 0 if s.tones or any(c.code for c in s.columns) else max(0, len(s.rows) - ROWS)
        s = dataclasses.replace(s, rows=s.rows[: len(s.rows) - more])
        for line in lines(s, encoding, width):
            pieces = Text.assemble(*((piece, STYLES[style]) for piece, style in line))
            pieces.rstrip()
            console.print(pieces, soft_wrap=True)
        if more:
            say(f"… {more} more rows (all of them with --format json or -o)", "dim")
    for block in diagrams(result, min(100, width), encoding):
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


def lines(table: Sheet, encoding: str = "utf-8", width: int | None = None) -> list[Line]:
    """The title, the heads, a rule, and the rows with an empty line between groups."""
    heads = [stream.fold(stream.clean(c.head), encoding) for c in table.columns]
    rows = [[stream.fold(stream.clean(text), encoding) for text in row] for row in table.rows]
    sizes = [max(map(stream.width, column)) for column in zip(heads, *rows, strict=True)]
    kept, below = list(range(len(heads))), ""
    if width is not None:
        kept, below = _fitted(table, sizes, width)

    found: list[Line] = []
    if table.title:
        found.append([(stream.fold(stream.clean(table.title), encoding), "title")])
    found.append(_row([heads[i] for i in kept], kept, sizes, table, "head")[0])
    found.append([(stream.fold((" " * GAP).join("─" * sizes[i] for i in kept), encoding), "faint")])
    for r, row in enumerate(rows):
        if r in table.breaks:
            found.append([])
        tone = table.tones[r] if table.tones else ""
        found += _row([row[i] for i in kept], kept, sizes, table, "", tone)
        if below and r in table.musts:
            said = "; ".join(row[i] for i, c in enumerate(table.columns) if c.free and row[i])
            found += [[(f"    {line}", "faint")] for line in textwrap.wrap(said, (width or 80) - 4)]
    if len(kept) < len(heads):
        missing = ", ".join(heads[i] for i in range(len(heads)) if i not in kept)
        found.append([(f"(not shown at this width: {missing})", "faint")])
    return found


def text(table: Sheet, encoding: str = "utf-8") -> list[str]:
    """Plain lines, as wide as they need."""
    return ["".join(piece for piece, _ in line).rstrip() for line in lines(table, encoding)]


def _fitted(table: Sheet, sizes: list[int], width: int) -> tuple[list[int], str]:
    """The columns kept (their `sizes` narrowed in place) and where prose went: beside ("") or `below`."""
    columns = table.columns
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
    cells: Sequence[str], kept: Sequence[int], sizes: Sequence[int], table: Sheet, style: str, tone: str = ""
) -> list[Line]:
    """One row; several lines where a cell is wrapped. The tone colours the first cell."""
    wrapped = [_wrapped(text, sizes[i], table.columns[i].free) for text, i in zip(cells, kept, strict=True)]
    found = []
    for k in range(max(map(len, wrapped), default=1)):
        line: Line = []
        for position, (parts, i) in enumerate(zip(wrapped, kept, strict=True)):
            column = table.columns[i]
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


def diagrams(result: Result, width: int, encoding: str = "utf-8") -> list[list[str]]:
    """The first figures of a result, one block of lines each; small multiples only where there is nothing else."""
    strips = {p.under: p for p in result.plots if p.under}
    panels = sorted((p for p in result.plots if not p.under), key=lambda p: bool(p.group))
    blocks: list[list[str]] = []
    for plot in panels:
        if len(blocks) < MOST and not (plot.group and blocks) and (b := diagram(plot, strips.get(plot.name), width)):
            blocks.append(b)
    if len(panels) > len(blocks):
        more = len(panels) - len(blocks)
        blocks.append([f"{more} more figure{'s' * (more > 1)} with -o FILE.png (or .svg, .pdf)"])
    return [[stream.fold(line, encoding) for line in block] for block in blocks]


def diagram(plot: Plot, strip: Plot | None, width: int) -> list[str]:
    """One panel; nothing when it has nothing to draw."""
    if plot.kind == "heat":
        body = canvas.heat(plot, width)
    elif sheet.bins(plot):
        body = reliability(plot, strip, width)
    elif plot.labels:
        body = canvas.rows(plot, width)
    else:
        body = canvas.xy(plot, width)
    return [stream.clean(plot.title or plot.name), *body] if body else []


def reliability(plot: Plot, strip: Plot | None, width: int) -> list[str]:
    """A row per bin: edges, count, accuracy, mean confidence, gap, and a bar for accuracy with the gap beside it."""
    bins = _few(sheet.bins(plot, strip))
    room = max(10, width - 42)
    title = stream.clean(plot.ylabel or "accuracy")
    axis = "0" + title.center(room - 2) + "1" if len(title) <= room - 4 else "0" + " " * (room - 2) + "1"
    most = max((b.count or 0 for b in bins), default=0)
    top = title == "accuracy"  # else the probability of one class, and how often it was the label
    heads = ("acc.", "conf.") if top else ("share", "mean p")
    lines = [f"{'bin':<9} {'rows':>7}   {heads[0]:>6} {heads[1]:>6} {'gap':>6}  {axis}"]
    outside = False
    empty = 0
    for i, b in enumerate(bins):
        if b.accuracy is None or b.confidence is None:
            empty += 1
            if i + 1 == len(bins) or bins[i + 1].accuracy is not None:
                edges = f"{bins[i - empty + 1].left:.2f}–{b.right:.2f}"
                lines.append(f"{edges:<9} {0:>7}")
                empty = 0
            continue
        gap = b.confidence - b.accuracy
        count = "" if b.count is None else f"{b.count:.0f}" if b.count < 1e7 else f"{b.count:.1e}"
        flag = "*" if b.low is not None and b.high is not None and not b.low <= b.accuracy <= b.high else " "
        outside = outside or flag == "*"
        size = stream.eighth(b.count / most) if b.count and most else " "
        sign = "+" if gap >= 0 else "−"
        head = f"{b.left:.2f}–{b.right:.2f} {count:>7} {size} {b.accuracy:6.3f} {b.confidence:6.3f}"
        lines.append(f"{head} {sign}{abs(gap):.3f}{flag} {_bar(b.accuracy, b.confidence, room)}")
    lines += stream.wrapped(LEGEND if top else LEGEND_OF_CLASS, width)
    if outside:
        band = next((c.label for c in plot.curves if c.kind == "band" and c.role == "null"), "")
        what = heads[0] if not top else title
        lines.append(f"* {what} outside the band: {stream.clean(band) or 'what a calibrated model shows'}")
    return lines


def _few(bins: list[sheet.Bin]) -> list[sheet.Bin]:
    step = -(-len(bins) // BINS)
    return bins if step <= 1 else [sheet.merged(bins[i : i + step]) for i in range(0, len(bins), step)]


def _bar(accuracy: float, confidence: float, room: int) -> str:
    """Filled up to accuracy, shaded between accuracy and confidence, a mark at confidence."""
    lower, upper = sorted((accuracy, confidence))
    shade = "░" if confidence > accuracy else "▒"
    solid, end = (round(min(max(v, 0.0), 1.0) * (room - 1)) for v in (lower, upper))
    cells = ["█"] * solid + [shade] * (end - solid) + [" "] * (room - end)
    cells[end if confidence >= accuracy else solid] = "◆"
    return "".join(cells).rstrip()
