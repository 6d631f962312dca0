"""The table format: headline, verdicts, estimates with their intervals, tables, and diagrams in plain Unicode.

A screen shows the few numbers that decide, one table per question; with `-v` or for numbers asked for by name, all. A
terminal gets colour (not with NO_COLOR) and tables fitted to its width; pipes get plain text as wide as needed. Notes
go to stderr. A file has everything, with the notes.

Ours: the choice and the order of the parts.

>>> print(render(result).splitlines()[-1])
accuracy  0.911  [0.891, 0.928]  Clopper-Pearson interval
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Literal

from calibcli.core.figure_data import Plot
from calibcli.core.number_format import count_text
from calibcli.core.result import Result, Table
from calibcli.render import _side_by_side as side_by_side
from calibcli.render import _text_plots as text_plots
from calibcli.render import table_contents, terminal
from calibcli.render.table_contents import Detail, Sheet

SUFFIXES = (".txt",)
MOST = 3  # diagrams at most
BINS = 30  # rows of a reliability diagram; more bins are merged
LEGEND = ("█ accuracy", "░ overconfident by", "▒ underconfident by", "◆ mean confidence")
LEGEND_OF_CLASS = ("█ share of the class", "░ predicted too high by", "▒ too low by", "◆ mean probability")
FEW_LINES = 8  # height of a curve on a first screen
WIDTH = 80  # of a diagram if there is no terminal
STYLES = {"title": "bold", "head": "bold", "code": "", "faint": "dim", "": ""}
STYLES |= {"good": "black on green", "bad": "bold bright_white on red", "warn": "black on yellow"}
"""Verdicts have a coloured background: green, yellow and cyan letters are pale on white, red ones dark on black."""
FEW_BINS = 10  # rows of a diagram on a narrow terminal
Block = list[terminal.Line]


def render(result: Result, encoding: str = "utf-8") -> str:
    """Render everything as plain text, with lines as long as needed."""
    sheets = [(sheet, 0) for sheet in table_contents.sheets(result)]
    notes = [f"note: {terminal.clean(note)}" for note in result.notes]
    drawn = [*diagrams(result, WIDTH, encoding), notes]
    lines = [*_facts(table_contents.facts(result)), *_readings(result)]
    return _joined(_blocks(result, lines, sheets, drawn, encoding))


def show(result: Result, detail: Detail = "few") -> None:
    """Print to stdout: with rich on a terminal, or with FORCE_COLOR or CLICOLOR_FORCE, else plain."""
    encoding = terminal.encoding()
    forced = bool(os.environ.get("FORCE_COLOR")) or os.environ.get("CLICOLOR_FORCE", "0") != "0"
    if not forced and (not sys.stdout.isatty() or os.environ.get("TERM") == "dumb"):
        terminal.put(plain(result, detail, encoding))
        return
    from rich.console import Console
    from rich.text import Text

    width = max(40, shutil.get_terminal_size().columns)
    colour: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    console = Console(
        highlight=False, emoji=False, markup=False, width=width, color_system=colour, force_terminal=forced or None
    )
    for number, block in enumerate(_fitted_blocks(result, detail, width, encoding)):
        if number:
            console.print()
        for line in block:
            pieces = Text.assemble(*((piece, STYLES[style]) for piece, style in line))
            pieces.rstrip()
            console.print(pieces, soft_wrap=True)


def plain(result: Result, detail: Detail = "few", encoding: str = "utf-8") -> str:
    """Render what a screen shows, without colour and as wide as needed."""
    lines = [*_wrapped_facts(facts(result, detail), WIDTH, detail), *_readings(result)]
    sheets = [(sheet, 0) for sheet in tables(result, detail)]
    drawn = dataclasses.replace(result, plots=plots(result, detail))
    pictures = diagrams(drawn, WIDTH, encoding, _bins(result, detail, WIDTH))
    return _joined(_blocks(result, lines, sheets, pictures, encoding))


def _fitted_blocks(result: Result, detail: Detail, width: int, encoding: str) -> list[Block]:
    """Lay out what a terminal of `width` columns shows."""
    unwrapped = [*_wrapped_facts(facts(result, detail), width, detail), *_readings(result)]
    wrapped = (terminal.prose(line, width) for line in unwrapped)
    fact_lines = [line for lines in wrapped for line in lines]
    taken = None
    if detail == "few" and result.screen.one_page:  # lines above and below the tables and pictures
        sentence, saved = terminal.prose(_headline(result), width), len(result.artefacts)
        above = len(terminal.prose(heading(result), width)) + len(sentence) + bool(sentence) + len(fact_lines)
        taken = above + saved + bool(saved) + 2 * bool(result.checks)
    drawn = dataclasses.replace(result, plots=plots(result, detail))
    sheets, pictures = side_by_side.fitted(
        tables(result, detail),
        lambda most: diagrams(drawn, min(100, width), encoding, most),
        _bins(result, detail, width),
        taken,
        width,
        encoding,
    )
    return _blocks(result, fact_lines, sheets, pictures, encoding, width)


def _blocks(
    result: Result,
    facts: Sequence[str],
    sheets: Sequence[tuple[Sheet, int]],
    pictures: Sequence[Sequence[str]],
    encoding: str,
    room: int | None = None,
) -> list[Block]:
    """Lay out a result in blocks: heading with headline, facts, tables, pictures, saved files, verdict.

    Args:
        sheets: each with the number of rows that are left out.
        room: width to fit all but the pictures to; None for lines as long as needed.
    """

    def styled(lines: Sequence[str], style: str, room: int | None = room) -> Block:
        folded = [terminal.transliterated(line, encoding) for line in lines]
        return [[(part, style)] for line in folded for part in (terminal.wrap(line, room) if room else [line])]

    sentence = terminal.prose(_headline(result), room or WIDTH)
    opening, fact_block = styled([heading(result)], "faint") + styled(sentence, "title"), styled(facts, "faint")
    blocks = [opening, fact_block] if sentence else [opening + fact_block]
    for sheet, more in sheets:
        note = f"… {count_text(more, 'more row')} (all of them with -v, --format json or -o)"
        blocks.append(terminal.lines(sheet, encoding, room) + styled([note] * bool(more), "faint"))
    blocks += [styled(block, "", None) for block in pictures]
    verdict, tone = table_contents.verdict(result)
    blocks.append(
        styled([terminal.clean(f"saved: {path} ({role})") for role, path in result.artefacts.items()], "faint")
    )
    blocks.append(styled([verdict] * bool(verdict), tone))
    return [block for block in blocks if block]


def _joined(blocks: Sequence[Block]) -> str:
    texts = ("\n".join("".join(piece for piece, _ in line).rstrip() for line in block) for block in blocks)
    return "\n\n".join(texts) + "\n"


def heading(result: Result) -> str:
    return terminal.clean(table_contents.heading(result))


def _headline(result: Result) -> str:
    return terminal.clean(table_contents.headline(result))


def _facts(facts: Sequence[tuple[str, str]]) -> list[str]:
    """Put facts on one line if they fit, else on one line each."""
    facts = [(terminal.clean(key), terminal.clean(value)) for key, value in facts]
    line = " · ".join(f"{key}: {value}" for key, value in facts)
    if terminal.width(line) <= WIDTH:
        return [line] if facts else []
    longest = max(terminal.width(key) for key, _ in facts)
    return [f"  {key}{' ' * (longest - terminal.width(key))}  {value}" for key, value in facts]


def _wrapped_facts(facts: Sequence[tuple[str, str]], width: int, detail: Detail) -> list[str]:
    """Put several facts on each line; with `detail="all"`, see `_facts`."""
    if detail == "all":
        return _facts(facts)
    items = [f"{terminal.clean(key)}: {terminal.clean(value)}" for key, value in facts]
    return terminal.wrapped(items, width, " · ")


def _readings(result: Result) -> list[str]:
    return [terminal.clean(line) for line in table_contents.readings(result)]


def _bins(result: Result, detail: Detail, width: int) -> int:
    return BINS if detail == "all" else min(result.screen.bins, FEW_BINS if width < WIDTH else BINS)


def tables(result: Result, detail: Detail) -> list[Sheet]:
    """Make the tables of a screen."""
    if detail == "all":
        return [
            dataclasses.replace(s, musts=frozenset(range(len(s.rows)))) for s in table_contents.sheets(result, "full")
        ]
    if detail == "few":
        few = _few(result)
    else:  # numbers that can be asked for by name, and tables that are not only for `-v`
        estimates = [e for e in result.estimates if e.tier != "all"]
        few = dataclasses.replace(result, estimates=estimates, tables=[t for t in result.tables if t.tier != "all"])
    sizes = {f"n = {result.facts.get(key)}" for key in ("n", "rows")}  # titles that repeat a fact
    return [
        dataclasses.replace(one, title="") if one.title in sizes else one
        for one in side_by_side.LAYOUTS[few.screen.pairs](few)
    ]


def facts(result: Result, detail: Detail) -> list[tuple[str, str]]:
    """List the facts of a screen, without those that only `-v` shows."""
    if detail == "all":
        return table_contents.facts(result)
    shown = {key: value for key, value in result.facts.items() if key not in result.screen.hidden}
    return table_contents.facts(dataclasses.replace(result, facts=shown))


def notes(result: Result, detail: Detail) -> Sequence[str]:
    """Return the notes, without those on numbers that are not shown."""
    if detail != "few":
        return result.notes
    hidden = {e.name for e in result.estimates} - {e.name for e in _few(result).estimates}
    return [note for note in result.notes if not hidden & {part.strip() for part in note.split(":")[:2]}]


def plots(result: Result, detail: Detail) -> Sequence[Plot]:
    """Return the plots of a screen: those of tier `few`, or all of them."""
    return result.plots if detail == "all" else [plot for plot in result.plots if plot.tier == "few"]


def _few(result: Result) -> Result:
    """Keep the numbers and tables of tier `few`; all of them if no number has it or if rules were judged."""
    kept = [e for e in result.estimates if e.tier == "few"]
    if result.checks or not kept:
        return dataclasses.replace(result, tables=[_few_rows(t) for t in result.tables])
    return dataclasses.replace(result, estimates=kept, tables=[_few_rows(t) for t in result.tables if t.tier == "few"])


def _few_rows(table: Table) -> Table:
    """Keep the rows of a table that are shown at first."""
    if not table.few:
        return table
    title = f"{table.title or table.name}: {len(table.few)} of {len(table.rows)}, all with -v or -o"
    return dataclasses.replace(table, rows=[table.rows[i] for i in table.few], title=title)


def diagrams(result: Result, width: int, encoding: str = "utf-8", most: int = BINS) -> list[list[str]]:
    """Draw the first figures of a result, a block of lines each; small multiples only alone or as rows of numbers."""
    strips = {p.under: p for p in result.plots if p.under}
    panels = sorted((p for p in result.plots if not p.under), key=lambda p: bool(p.group))
    blocks: list[list[str]] = []
    for plot in panels:
        if (
            len(blocks) < MOST
            and not (plot.group and blocks and not plot.texts)
            and (b := diagram(plot, strips.get(plot.name), width, most))
        ):
            blocks.append(b)
    if len(panels) > len(blocks):
        more = len(panels) - len(blocks)
        blocks.append([f"{count_text(more, 'more figure')} with -o DIR/"])
    return [[terminal.transliterated(line, encoding) for line in block] for block in blocks]


def diagram(plot: Plot, strip: Plot | None, width: int, most: int = BINS) -> list[str]:
    """Draw one panel; [] if it has nothing to draw."""
    if plot.kind == "heat":
        body = text_plots.heat(plot, width)
    elif table_contents.bins(plot):
        body = reliability(plot, strip, width, most)
    elif plot.labels:
        body = text_plots.rows(plot, width)
    else:
        body = text_plots.xy(plot, width, text_plots.HEIGHT if most >= BINS else FEW_LINES)
    return [terminal.clean(plot.title or plot.name), *body] if body else []


def reliability(plot: Plot, strip: Plot | None, width: int, most_bins: int = BINS) -> list[str]:
    """Draw a reliability diagram: for each bin its edges, count, accuracy, mean confidence, gap, and a bar."""
    every = table_contents.bins(plot, strip)
    bins = table_contents.fewer(every, most_bins)
    across = max(10, width - 42)
    title = terminal.clean(plot.ylabel or "accuracy")
    axis = "0" + title.center(across - 2) + "1" if len(title) <= across - 4 else "0" + " " * (across - 2) + "1"
    most = max((b.count or 0 for b in bins), default=0)
    top = title == "accuracy"  # else a diagram of one class: its probability, and how often it was the label
    heads = ("acc.", "conf.") if top else ("share", "mean p")
    lines = [f"{'bin':<9} {'rows':>7}   {heads[0]:>6} {heads[1]:>6} {'gap':>6}  {axis}"]
    outside = False
    for empty, run in itertools.groupby(bins, lambda b: b.accuracy is None or b.confidence is None):
        neighbours = list(run)
        if empty:
            edges = f"{neighbours[0].left:.2f}–{neighbours[-1].right:.2f}"
            lines.append(f"{edges:<9} {0:>7}")
            continue
        for b in neighbours:
            accuracy, confidence = b.accuracy or 0.0, b.confidence or 0.0
            gap = confidence - accuracy
            count = "" if b.count is None else f"{b.count:.0f}" if b.count < 1e7 else f"{b.count:.1e}"
            flag = "*" if b.low is not None and b.high is not None and not b.low <= accuracy <= b.high else " "
            outside = outside or flag == "*"
            size = terminal.eighth(b.count / most) if b.count and most else " "
            sign = "+" if gap >= 0 else "−"
            head = f"{b.left:.2f}–{b.right:.2f} {count:>7} {size} {accuracy:6.3f} {confidence:6.3f}"
            lines.append(f"{head} {sign}{abs(gap):.3f}{flag} {_bar(accuracy, confidence, across)}")
    lines += terminal.wrapped(LEGEND if top else LEGEND_OF_CLASS, width)
    if len(bins) < len(every):
        joined = f"each bar joins {-(-len(every) // most_bins)} of the {len(every)} bins of the calibration error"
        lines += textwrap.wrap(f"{joined}; -o PICTURE draws all", width)
    if outside:
        band = next((c.label for c in plot.curves if c.kind == "band" and c.role == "null"), "")
        share = heads[0] if not top else title
        lines.append(f"* {share} outside the band: {terminal.clean(band) or 'what a calibrated model shows'}")
    return lines


def _bar(accuracy: float, confidence: float, room: int) -> str:
    """Draw a bar up to accuracy, shaded between accuracy and confidence, with a mark at confidence."""
    lower, upper = sorted((accuracy, confidence))
    shade = "░" if confidence > accuracy else "▒"
    solid, end = (round(min(max(v, 0.0), 1.0) * (room - 1)) for v in (lower, upper))
    cells = ["█"] * solid + [shade] * (end - solid) + [" "] * (room - end)
    cells[end if confidence >= accuracy else solid] = "◆"
    return "".join(cells).rstrip()
