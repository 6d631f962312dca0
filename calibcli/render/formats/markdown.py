"""Markdown: a summary that fits a comment on a pull request (60 kB); it says what had to be cut.

The tables are those of GitHub Flavored Markdown (GitHub 2017).

>>> print(render(result).splitlines()[-1])
| `accuracy` | 0.911 | [0.891, 0.928] | Clopper-Pearson interval |
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from calibcli.core.figure_data import RULES
from calibcli.core.result import Result
from calibcli.render import table_contents, terminal
from calibcli.render.formats import table
from calibcli.render.table_contents import Sheet, SheetColumn

SUFFIXES = (".md",)
REPORT = "summary.md"
LIMIT = 60_000  # bytes of UTF-8
WIDTH = 76  # of the diagram
TITLES = {"good": "✅ ", "bad": "❌ ", "warn": "⚠️ ", "": ""}


def render(result: Result, limit: int = LIMIT) -> str:
    """Render heading, verdict, notes, tables and the first diagram; the longest tables lose rows to stay in `limit`."""
    verdict, tone = table_contents.verdict(result)
    head = [f"## {_prose(table_contents.heading(result))}"]
    head += [_prose(headline)] if (headline := table_contents.headline(result)) else []
    head += [f"**{TITLES[tone]}{verdict}**"] if verdict else []
    if facts := table_contents.facts(result):
        head.append(" · ".join(f"{key}: {_prose(value)}" for key, value in facts))
    head += [_prose(" ".join(lines))] if (lines := table_contents.readings(result)) else []
    tail = ["\n".join(f"> **note:** {_prose(note)}" + "  " for note in result.notes)] if result.notes else []
    tables = table_contents.sheets(result)
    drawn = dataclasses.replace(result, plots=[p for p in result.plots if not p.name.startswith(RULES)])
    diagrams = table.diagrams(drawn, WIDTH)[:1]
    figures = ["```text\n" + "\n".join(block).replace("```", "'''") + "\n```" for block in diagrams]
    kept = [len(t.rows) for t in tables]
    for blocks in (figures, []):
        text = _joined(head, tables, kept, blocks, tail)
        if _size(text) <= limit:
            return text
    while _size(text) > limit and any(kept):
        longest = max(range(len(kept)), key=lambda i: kept[i])
        over = _size(text) - limit
        most = max(_size(_line(row, tables[longest].columns)) for row in tables[longest].rows)
        kept[longest] -= max(1, min(over // (most + 1), kept[longest] // 2))
        text = _joined(head, tables, kept, [], tail)
    if _size(text) > limit:
        cut = "\n\n(cut here: the rest is in the JSON)\n"
        text = text.encode()[: limit - _size(cut)].decode(errors="ignore") + cut
    return text


def _joined(head: list[str], tables: list[Sheet], kept: list[int], figures: list[str], tail: list[str]) -> str:
    blocks = [*head, *tail]
    for sheet, rows in zip(tables, kept, strict=True):
        blocks += [f"### {_prose(sheet.title)}"] if sheet.title else []
        blocks.append(_table(sheet, rows))
        if rows < len(sheet.rows):
            blocks.append(f"{len(sheet.rows) - rows} of {len(sheet.rows)} rows cut; all of them are in the JSON.")
    return "\n\n".join([*blocks, *figures]) + "\n"


def _table(table: Sheet, rows: int) -> str:
    heads = f"| {' | '.join(_prose(c.head) for c in table.columns)} |"
    rule = f"| {' | '.join('---:' if c.right else ':---' for c in table.columns)} |"
    return "\n".join([heads, rule, *(_line(row, table.columns) for row in table.rows[:rows])])


def _line(row: Sequence[str], columns: Sequence[SheetColumn]) -> str:
    cells = [(_code if c.code and text else _prose)(text) for text, c in zip(row, columns, strict=True)]
    return f"| {' | '.join(cells)} |"


def _prose(text: str) -> str:
    """Escape text for Markdown: no markup, no HTML, no link, no mention of a user."""
    text = re.sub(r"([\\`*_|<~]|\[(?=[^\]]*\]\s*[(\[:]))", r"\\\1", terminal.clean(text))
    text = re.sub(r"(?<=\w)\\_(?=\w)", "_", text)  # inside a word an underscore needs no escape
    return re.sub(r"@(?=\w)", "@\u200b", text)


def _code(text: str) -> str:
    """Write a code span; pipes are escaped, since they end a cell even there."""
    text = terminal.clean(text).replace("|", r"\|")
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _size(text: str) -> int:
    return len(text.encode())
