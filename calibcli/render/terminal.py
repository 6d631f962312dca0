"""Text for terminals and pipes of any encoding and width, the progress bar, and a verdict as one sentence."""

from __future__ import annotations

import io
import itertools
import math
import re
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from calibcli.core import number_format
from calibcli.core.result import VERDICTS, WORST_FIRST, Check, Outcome
from calibcli.render.table_contents import Sheet, SheetColumn

if TYPE_CHECKING:
    from rich.progress import Progress

# Text and tables. A table is as wide as it needs, or is fitted to a width without breaking a word or a number, in this
# order: prose goes below the rows that need it; heads are wrapped between words; columns that can be spared are left
# out and named below the table; identifiers are wrapped after a comma, a colon or a space, other texts between words;
# and a table that is still too wide is split into several, each with the column that names the rows.

PLAIN = str.maketrans(
    {
        "—": "-", "–": "-", "−": "-", "…": "~", "≥": ">=", "≤": "<=", "×": "x", "·": "|", "±": "+-", "→": "->",
        "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "=", "▍": "=", "▎": "-", "▏": "-", "░": ":", "▒": "%", "▓": "&",
        "▁": ".", "▂": ".", "▃": "-", "▄": "-", "▅": "=", "▆": "=", "▇": "#", "◆": "|", "┃": "|", "│": "|", "─": "-",
        "┊": ":", "╎": "!",
        "├": "+", "┤": "+", "└": "+", "┬": "+", "┼": "+", "●": "*", "○": "o", "▲": "^", "■": "#", "⋅": ".", "★": "*",
        "λ": "lambda", "γ": "gamma", "²": "2", "α": "alpha", "Δ": "d", "’": "'", "“": '"', "”": '"',
    }
)  # fmt: skip
GAP = 2
NO_BREAK = "\N{NO-BREAK SPACE}"
PROSE = 24  # columns; narrower prose is hard to read
Line = list[tuple[str, str]]  # pieces of a line with their styles: "", title, head, code, faint, good, bad, warn
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def fits(text: str, encoding: str) -> bool:
    """Whether `encoding` has all characters of `text`."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def transliterated(text: str, encoding: str = "ascii") -> str:
    """Replace characters that `encoding` lacks, by similar ones of ASCII or by `?`."""
    if fits(text, encoding):
        return text
    folded = "".join(c if fits(c, encoding) else c.translate(PLAIN) for c in text)
    return folded.encode(encoding, "replace").decode(encoding)


def clean(text: str) -> str:
    """Put `text` on one line, without control characters and lone surrogates, so that no name can steer a terminal."""
    return " ".join(CONTROL.sub("\ufffd", text).split())


def file_name(text: str, otherwise: str) -> str:
    """Turn `text` into a safe file name, without path separators."""
    return re.sub(r"[^\w.-]+", "_", text).strip("._")[:100] or otherwise


def width(text: str) -> int:
    """Count the columns that `text` takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def eighth(share: float) -> str:
    """Draw a bar one character wide, in eighths of its height."""
    return "▁▂▃▄▅▆▇█"[min(7, max(0, math.ceil(share * 8) - 1))]


def wrapped(items: Sequence[str], room: int, between: str = "   ") -> list[str]:
    """Join items, such as those of a legend, to as few lines as fit."""
    lines: list[str] = []
    for item in items:
        if lines and width(lines[-1] + between + item) <= room:
            lines[-1] += between + item
        else:
            lines.append(item)
    return lines


def encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def put(text: str, json: bool = False) -> None:
    """Write `text` to stdout; characters that its encoding lacks are escaped (`json`) or replaced."""
    if not fits(text, encoding()):
        text = escape(text) if json else transliterated(text, encoding())
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", getattr(sys.stdout, "buffer", None))
    if not isinstance(raw, io.FileIO):  # stdout of a test or a notebook
        sys.stdout.write(text)
        return
    sys.stdout.flush()
    remaining = memoryview(text.encode(sys.stdout.encoding, sys.stdout.errors or "strict"))
    while remaining:  # with `python -u`, a write that a signal interrupts would lose the rest
        remaining = remaining[raw.write(remaining) or 0 :]


def escape(text: str) -> str:
    """Write JSON text in ASCII: other characters occur only inside strings, where \\u escapes mean the same."""
    from json import dumps

    return re.sub(r"[^\x00-\x7f]+", lambda m: dumps(m.group())[1:-1], text)


def lines(table: Sheet, encoding: str = "utf-8", room: int | None = None) -> list[Line]:
    """Lay out a table in lines: title, heads, a rule, and rows with an empty line between groups.

    Args:
        room: width to fit the table to; None for as wide as it needs.
    """
    heads = [transliterated(clean(c.head), encoding) for c in table.columns]
    rows = [[transliterated(clean(text), encoding) for text in row] for row in table.rows]
    sizes = [max(map(width, column)) for column in zip(heads, *rows, strict=True)]
    parts, below = [list(range(len(heads)))], False
    if room is not None:
        parts, below = _fit_columns(table.columns, heads, rows, sizes, room)
    styled: list[Line] = []
    if table.title:
        title = transliterated(clean(table.title), encoding)
        styled += [[(line, "title")] for line in (prose(title, room) if room else [title])]
    for number, kept in enumerate(parts):
        styled += [[]] if number else []
        styled += _cells([heads[i] for i in kept], kept, sizes, table, "head")
        styled.append([(transliterated((" " * GAP).join("─" * sizes[i] for i in kept), encoding), "faint")])
        for r, row in enumerate(rows):
            if r in table.breaks:
                styled.append([])
            tone = table.tones[r] if table.tones else ""
            styled += _cells([row[i] for i in kept], kept, sizes, table, "", tone)
            if below and not number and r in table.musts:
                reasons = "; ".join(row[i] for i, c in enumerate(table.columns) if c.free and row[i])
                styled += [[(f"    {line}", "")] for line in prose(reasons, (room or 80) - 4)]
    shown = {i for kept in parts for i in kept}
    missing = [head for i, head in enumerate(heads) if i not in shown and not (table.columns[i].free and below)]
    if missing:
        note = f"(not shown at this width: {', '.join(missing)})"
        styled += [[(line, "faint")] for line in prose(note, room or len(note))]
    return styled


def prose(text: str, room: int) -> list[str]:
    """Wrap text between words; an interval, or a number with its per cent sign, counts as one word."""
    lines = textwrap.wrap(_keep_together(text), room, break_long_words=False, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def fitted(text: str, to: TextIO) -> str:
    """Wrap `text` to the width of a terminal; if `to` is none, return it unchanged."""
    if not to.isatty():
        return text
    room = max(40, shutil.get_terminal_size().columns)
    return "\n".join(line for one in text.splitlines() for line in prose(one, room) or [""])


def _keep_together(text: str) -> str:
    return re.sub(r"\[[^\[\],\s]+, [^\[\],\s]+\]|\S+ %", lambda m: m.group().replace(" ", NO_BREAK), text)


def text(table: Sheet, encoding: str = "utf-8", room: int | None = None) -> list[str]:
    """Lay out a table in plain lines; see `lines`."""
    return ["".join(piece for piece, _ in line).rstrip() for line in lines(table, encoding, room)]


def _fit_columns(
    columns: Sequence[SheetColumn], heads: Sequence[str], rows: Sequence[Sequence[str]], sizes: list[int], room: int
) -> tuple[list[list[int]], bool]:
    """Choose the columns of each part of a table, narrowing `sizes` in place, and whether prose goes below the rows."""
    kept = list(range(len(columns)))

    def excess() -> int:
        return sum(sizes[i] for i in kept) + GAP * (len(kept) - 1) - room

    below = False
    free = [i for i in kept if columns[i].free]
    if excess() > 0 and free:
        left = sum(sizes[i] for i in free) - excess()
        if left >= PROSE * len(free):
            for i in free:
                sizes[i] = left // len(free)
        else:
            kept, below = [i for i in kept if i not in free], True
    if excess() > 0:
        for i in kept:
            least = max((width(word) for word in _keep_together(heads[i]).split(" ")), default=0)
            cells = max((width(row[i]) for row in rows), default=0)
            sizes[i] = max(cells, min(sizes[i], max(least, sizes[i] - excess())))
    dropped = []
    for i in sorted((i for i in kept if columns[i].spare), key=lambda i: columns[i].spare):
        if excess() > 0:
            kept.remove(i)
            dropped.append(i)
    for i in reversed(dropped):  # the last column dropped may have made room for an earlier one
        if excess() + sizes[i] + GAP <= 0:
            kept = sorted([*kept, i])
    for i in sorted((i for i in kept if columns[i].code), key=lambda i: -sizes[i]):
        least = max((width(part) for row in [heads, *rows] for part in _pieces(row[i])), default=1)
        sizes[i] = min(sizes[i], max(least, sizes[i] - max(0, excess())))
    texts = [i for i in kept if not columns[i].right and not columns[i].code]
    for i in sorted(texts, key=lambda i: -sizes[i]):  # texts, in the tables of a result
        sizes[i] = min(sizes[i], max(PROSE, sizes[i] - max(0, excess())))
    for i in kept:  # a column wider than the screen has to be cut
        sizes[i] = min(sizes[i], room)
    return _parts(kept, sizes, room), below


def _parts(kept: list[int], sizes: Sequence[int], room: int) -> list[list[int]]:
    """Split the columns into tables that fit; the first column, which names the rows, is in each of them."""
    parts: list[list[int]] = [[]]
    name = kept[:1]
    for i in kept:
        used = sum(sizes[j] + GAP for j in parts[-1])
        if parts[-1] not in ([], name) and used + sizes[i] > room:
            parts.append([*name] if sizes[name[0]] + GAP + sizes[i] <= room else [])
        parts[-1].append(i)
    return parts


def _cells(
    cells: Sequence[str], kept: Sequence[int], sizes: Sequence[int], table: Sheet, style: str, tone: str = ""
) -> list[Line]:
    """Lay out one row, in several lines if a cell is wrapped; the tone colours the first cell."""
    wrapped = [wrap(text, sizes[i]) for text, i in zip(cells, kept, strict=True)]
    styled = []
    for parts in itertools.zip_longest(*wrapped, fillvalue=""):
        line: Line = []
        for position, (part, i) in enumerate(zip(parts, kept, strict=True)):
            column = table.columns[i]
            space = " " * (sizes[i] - width(part))
            cell_style = style or (tone if position == 0 and part else "code" if column.code else "")
            line += [(" " * GAP, "")] if position else []
            line.append((space + part if column.right else part + space, cell_style))
        styled.append(line)
    return styled


def _pieces(text: str) -> list[str]:
    """Split text into pieces that are never broken: words, and parts of identifiers up to `,`, `:`, `/` or `|`."""
    return [piece.rstrip() for piece in re.findall(r"[^\s,:/|]*[,:/|]+\s*|[^\s,:/|]+\s*|\s+", text)]


def wrap(text: str, size: int) -> list[str]:
    """Wrap `text` to lines of `size` columns: between words, and longer words between their `_pieces`.

    Only a piece that is longer than a line is cut.
    """
    if width(text) <= size:
        return [text]
    lines: list[str] = []
    part = ""
    for word in _keep_together(text).split(" "):
        joined = f"{part} {word}" if part else word
        if width(joined) <= size:
            part = joined
            continue
        lines += [part] if part else []
        part = ""
        for piece in [word] if width(word) <= size else _pieces(word):
            for characters in [piece] if width(piece) <= size else piece:
                if part and width(part + characters) > size:
                    lines.append(part)
                    part = characters
                else:
                    part += characters
    return [line.replace(NO_BREAK, " ") for line in [*lines, part]]


# A progress bar on stderr, with the time left.

REDRAWN = 0.05  # seconds between two drawings of the bar, at least
_open: list[Progress] = []


def close() -> None:
    """Remove open progress bars and show the cursor again, before a result or an error is printed."""
    while _open:
        _open.pop().stop()


def bar(title: str) -> Callable[[float, str], None]:
    """Draw a progress bar, which `close` removes, and return a callback `(fraction, text)` that moves it.

    The time left is that of the step that the bar shows: what it took so far, times what remains over what is done. A
    fraction that falls begins another step.
    """
    from rich.console import Console  # imported here, since plain text needs no rich
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        def render(self, task: Task) -> Text:
            left = time_left(task.completed, task.elapsed or 0.0)
            return Text(f"{left:>5} left" if left else "")

    close()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeLeft(),
        TextColumn("{task.fields[text]}"),
        console=Console(stderr=True),
        transient=True,
    )
    _open.append(progress)
    task = progress.add_task(title, total=1.0, text="")
    progress.start()
    shown, drawn = 0.0, 0.0

    def update(fraction: float, text: str = "") -> None:
        nonlocal shown, drawn
        now = time.monotonic()
        if fraction < shown:
            progress.reset(task, text=text)
            progress.update(task, completed=fraction)
        elif now - drawn > REDRAWN or fraction >= 1:
            progress.update(task, completed=fraction, text=text)
        else:
            return
        shown, drawn = fraction, now

    return update


def time_left(done: float, seconds: float) -> str:
    """Write the time that is left after a fraction that took so many seconds: `0:07`, `1:02:03`; "" once it is done."""
    if not 0 < done < 1:
        return "" if done >= 1 else "-:--"
    minutes, seconds_left = divmod(round(seconds * (1 - done) / done), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


# The verdict of a check as one sentence, for formats without columns.


def title(check: Check, words: Mapping[Outcome, str] = VERDICTS) -> str:
    """Write a rule with its verdict: `ece <= 0.03 (site=A): FAIL`."""
    scope = f" ({check.scope})" if check.scope else ""
    return clean(f"{check.rule_shown}{scope}: {words[check.outcome]}")


def sentence(check: Check) -> str:
    """Write value, bounds, limit, null level, n and reason; no rounded number contradicts the verdict."""
    parts = []
    e = check.estimate
    if e is not None and e.value is not None:
        value, interval, null = number_format.shown(e, check.limit)
        level = "" if e.level is None else f" (each {number_format.percent((1 + e.level) / 2)})"
        level = f" ({number_format.level([e])})" if "fail_level" in e.detail else level
        parts.append(f"{e.name} {value}" + (f", bounds {interval}{level}" if interval else ""))
        if check.limit is not None:
            parts.append(f"limit {number_format.exact(check.limit)}")
        if null:
            parts.append(f"{null} if calibrated")
        if e.n is not None:
            parts.append(f"n = {e.n}")
    text = ", ".join(parts)
    if check.message:
        text += (": " if text else "") + check.message
    return clean(text or VERDICTS[check.outcome].lower())


def not_passed(checks: Sequence[Check]) -> list[Check]:
    """Sort the checks that did not pass: those that fail the run first, then by FAIL, NOT RUN, INCONCLUSIVE."""
    failing = [c for c in checks if c.outcome != "pass"]
    return sorted(failing, key=lambda c: (not c.fatal, WORST_FIRST.index(c.outcome)))
