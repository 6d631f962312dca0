"""The contents of a page before layout: verdict, sentences, figures, tables, and every field of a result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from calibcli.core.figure_data import Plot, saved
from calibcli.core.result import Estimate, Result
from calibcli.render import table_contents
from calibcli.render.page import _alt_text as alt_text
from calibcli.render.table_contents import Sheet, SheetColumn

SERIES = ("x", "y", "z")  # fields of a plot that its picture and tables show, as they do its curves
ELSEWHERE = ("notes", "provenance")  # fields of a result that the page shows elsewhere
LONG = 24  # characters of a text beyond which its column is wrapped
DIGITS = 6  # of a number in a field
POINTS, PANELS = 20, 12  # rows of a table of a figure, and panels of a figure
CELLS = 900  # of a heat map on a page, where each cell is a path


@dataclass(frozen=True)
class Caps:
    """Limits of what a page shows; the page says what was left out."""

    rows: int = 300  # of a table
    figures: int = 12  # of a result
    text: int = 500  # characters of a field
    fields: bool = True  # whether every field of the JSON is shown, and the method of each number


@dataclass
class CutSheet:
    """A table cut to `rows`; `more` is the number of rows left out."""

    sheet: Sheet
    name: str
    rows: Sequence[Sequence[str]]
    more: int = 0

    @property
    def columns(self) -> Sequence[SheetColumn]:
        return self.sheet.columns

    @cached_property
    def long(self) -> list[bool]:
        """Which columns are wrapped because a text of theirs is long; an interval is not."""
        return [max((len(row[i]) for row in self.rows), default=0) > LONG for i in range(len(self.columns))]

    @property
    def right(self) -> str:
        """CSS classes that say which columns hold numbers."""
        return " ".join(f"n{i}" for i, column in enumerate(self.columns, 1) if column.right and i <= 20)

    def tone(self, i: int) -> str:
        return self.sheet.tones[i] if self.sheet.tones else ""


@dataclass
class Picture:
    """A figure on a page: its panels, its description and its tables."""

    id: str
    title: str
    words: str
    plots: Sequence[Plot]
    tables: Sequence[CutSheet]
    estimates: Sequence[Estimate]
    svg: str = ""


@dataclass
class Portion:
    """The part of a page on one result."""

    id: str
    name: str
    heading: str
    result: Result
    caps: Caps
    first: Sequence[Picture] = ()
    later: Sequence[Picture] = ()
    more: int = 0
    tables: Sequence[CutSheet] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return table_contents.verdict(self.result)[0]

    @property
    def tone(self) -> str:
        return table_contents.verdict(self.result)[1]

    @property
    def headline(self) -> str:
        return _text(table_contents.headline(self.result), 4 * self.caps.text)

    @property
    def notes(self) -> list[str]:
        return [_text(note, 4 * self.caps.text) for note in self.result.notes[: self.caps.rows]]

    @property
    def facts(self) -> list[tuple[str, str]]:
        shown = [(key, _text(value, self.caps.text)) for key, value in table_contents.facts(self.result)]
        readings = [line.strip().removeprefix("read: ") for line in table_contents.readings(self.result)]
        shown += [("read", _text("; ".join(readings), 4 * self.caps.text))] if readings else []
        return shown[: self.caps.rows]


def portion(result: Result, id: str, name: str, caps: Caps) -> Portion:
    """Collect what a page shows of a result, cut to `caps`."""
    groups = sorted(alt_text.groups(result.plots), key=_order)
    drawn = enumerate(groups[: caps.figures], 1)
    pictures = [picture(plots, f"{id}-f{i}", result.estimates, caps) for i, plots in drawn]
    early = sum(_order(plots) == 0 for plots in groups)
    return Portion(
        id=id,
        name=_text(name or table_contents.heading(result), caps.text),
        heading=_text(table_contents.heading(result), caps.text),
        result=result,
        caps=caps,
        first=pictures[:early],
        later=pictures[early:],
        more=len(groups) - len(pictures),
        tables=[shown(one, caps) for one in sheets(result, "full" if caps.fields else "why")[: caps.rows // 5]],
        fields=fields(result, caps),
    )


def _order(plots: Sequence[Plot]) -> int:
    """Sort figures: reliability diagrams first (before the tables), convergence of estimators last."""
    first = plots[0]
    return 0 if table_contents.bins(first) and not first.group else 2 if first.name.startswith("convergence") else 1


def sheets(result: Result, how: table_contents.How) -> list[Sheet]:
    """Make the tables as in every format, but with the numbers of slices in tables of their own."""
    parts = [e for e in result.estimates if e.where.parts]
    whole = [e for e in result.estimates if not e.where.parts]
    if not parts or not whole:
        return table_contents.sheets(result, how)
    first = table_contents.sheets(dataclasses.replace(result, estimates=whole, tables=[]), how)
    sliced = table_contents.sheets(dataclasses.replace(result, estimates=parts, tables=[], checks=[]), how)
    by = ", ".join(dict.fromkeys(next(iter(e.where.parts)) for e in parts))
    named = [dataclasses.replace(s, title=f"By {by}" + (f", {s.title}" if s.title else "")) for s in sliced]
    return first + named + table_contents.sheets(dataclasses.replace(result, estimates=[], checks=[]), how)


def shown(sheet: Sheet, caps: Caps) -> CutSheet:
    """Cut a table to the rows, and the characters of a cell, that `caps` allows."""
    name = (
        sheet.title if sheet.title and not sheet.title.startswith("n = ") else "Verdicts" if sheet.tones else "Numbers"
    )
    name += f", {sheet.title}" if sheet.title.startswith("n = ") else ""
    rows = [[_text(text, caps.text) for text in row] for row in sheet.rows[: caps.rows]]
    return CutSheet(sheet, _text(name, caps.text), rows, max(0, len(sheet.rows) - caps.rows))


def picture(plots: Sequence[Plot], id: str, estimates: Sequence[Estimate], caps: Caps) -> Picture:
    """Make a figure of at most `PANELS` panels, with its description and tables."""
    panels = alt_text.panels(plots)
    names = {p.name for p in panels[:PANELS]}
    kept = [_thinned(p) for p in plots if p.name in names or p.under in names]
    more = max(0, len(panels) - PANELS)
    words = _text(alt_text.words(kept), 4 * caps.text) + (f" {more} more panels are not drawn." if more else "")
    tables: list[CutSheet] = []
    for table, rows in alt_text.tables(kept, POINTS):
        cut = shown(table_contents.of_table(table), dataclasses.replace(caps, rows=POINTS + 1))
        cut.more = rows - len(cut.rows)
        tables.append(cut)
    return Picture(id, alt_text.title(kept), words, kept, tables, estimates)


def _thinned(plot: Plot) -> Plot:
    if plot.kind != "heat" or len(plot.x) * len(plot.y) <= CELLS:
        return plot
    across, up = (math.ceil(len(series) / CELLS**0.5) for series in (plot.x, plot.y))
    z = [row[::across] for row in plot.z[::up]]
    return dataclasses.replace(plot, x=plot.x[::across], y=plot.y[::up], z=z)


def fields(result: Result, caps: Caps) -> dict[str, Any]:
    """Collect the fields of the JSON that are not empty, without the series of figures."""
    inputs = result.provenance.get("inputs") or ()  # what each was taken for stands among the facts
    bare = [{k: v for k, v in i.items() if k != "read"} if isinstance(i, dict) else i for i in inputs]
    kept: dict[str, Any] = {"provenance": _plain({**result.provenance, **({"inputs": bare} if bare else {})}, caps)}
    if caps.fields:
        data = saved(result)
        for estimate in [*data["estimates"], *(check["estimate"] or {} for check in data["checks"])]:
            estimate.pop("where", None)  # which the page shows as `scope`
        data["tables"] = [{"name": t.name, "title": t.title, "rows": len(t.rows)} for t in result.tables]
        for plot in data["plots"]:
            plot["curves"] = "; ".join(f"{c['label'] or '-'} ({c['kind']} {c['role']})" for c in plot["curves"])
            for key in SERIES:
                del plot[key]
        kept |= {name: _plain(value, caps) for name, value in data.items() if name not in ELSEWHERE}
    return kept


def _plain(value: Any, caps: Caps) -> Any:
    """Drop empty values from plain data, and cut long texts and lists."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
        kept = {str(k): plain for k, v in pairs[: caps.rows] if (plain := _plain(v, caps)) not in (None, "", [], {})}
        return kept | ({"…": f"{len(pairs) - caps.rows} more in the JSON"} if len(pairs) > caps.rows else {})
    if isinstance(value, list | tuple):
        items = [_plain(v, caps) for v in value[: caps.rows]]
        more = f"… {len(value) - caps.rows} more in the JSON" if len(value) > caps.rows else ""
        if all(not isinstance(v, dict | list) for v in items):
            return _text(", ".join(str(v) for v in items if v is not None), caps.text) + (f" {more}" if more else "")
        return FactRows(items, more) if all(isinstance(v, dict) for v in items) else items + [more] * bool(more)
    if value is None or isinstance(value, bool):
        return {None: None, True: "yes", False: "no"}[value]
    return _text(f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value), caps.text)


class FactRows(list[Any]):
    """Mappings as rows of a table; values that all rows share are kept once in `shared`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], more: str = "") -> None:
        keys = dict.fromkeys(key for row in rows for key in row)
        same = [k for k in keys if len(rows) > 2 and all(row.get(k) == rows[0].get(k) for row in rows)]
        self.shared = {k: rows[0][k] for k in same}
        self.columns = [k for k in keys if k not in same]
        self.more = more
        super().__init__([[row.get(k, "") for k in self.columns] for row in rows] if self.columns else [])


def _text(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters in the JSON)"
