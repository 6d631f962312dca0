"""The contents of a page before layout: verdict, sentences, figures, tables, and every field of a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibcli.core.figure_data import Plot, saved
from calibcli.core.result import Estimate, Result
from calibcli.render import table_contents
from calibcli.render.page import alt_text
from calibcli.render.table_contents import Sheet, SheetColumn

SERIES = ("x", "y", "z", "low", "high", "width", "base", "curves")  # fields of a plot that its picture and tables show
ELSEWHERE = ("notes", "provenance")  # fields of a result that the page shows elsewhere
DIGITS = 6  # of a number in a field
SEEN = ("value", "low", "high", "level", "unit", "null", "null_high", "n")  # fields that the table of estimates shows
FIRST = {"name": 0, "scope": 1}  # the first columns of a table of fields
CHECKED = ("outcome", "message", "limit", "n_needed", "kind")  # fields that the table of checks shows


@dataclass(frozen=True)
class Caps:
    """Limits of what a page shows; the page says what was left out."""

    rows: int = 300  # of a table
    points: int = 20  # of a figure's table
    panels: int = 12  # of a figure
    thinned: bool = True  # whether curves with more points have tables of every n-th point
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
    more: int = 0
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
        return shown[: self.caps.rows]


def portion(result: Result, id: str, name: str, caps: Caps) -> Portion:
    """Collect what a page shows of a result, cut to `caps`."""
    groups = sorted(alt_text.groups(result.plots), key=_order)
    early = [plots for plots in groups if _order(plots) == 0][: caps.figures + bool(caps.panels)]
    later = [plots for plots in groups if _order(plots) > 0][: caps.figures - (caps.figures < len(early))]
    pictures = [picture(plots, f"{id}-f{i}", result.estimates, caps) for i, plots in enumerate([*early, *later], 1)]
    return Portion(
        id=id,
        name=_text(name or table_contents.heading(result), caps.text),
        heading=_text(table_contents.heading(result), caps.text),
        result=result,
        caps=caps,
        first=pictures[: len(early)],
        later=pictures[len(early) :],
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
    parts = [e for e in result.estimates if "=" in e.scope]
    whole = [e for e in result.estimates if "=" not in e.scope]
    if not parts or not whole:
        return table_contents.sheets(result, how)
    first = table_contents.sheets(dataclasses.replace(result, estimates=whole, tables=[]), how)
    sliced = table_contents.sheets(dataclasses.replace(result, estimates=parts, tables=[], checks=[]), how)
    by = ", ".join(dict.fromkeys(e.scope.partition("=")[0] for e in parts))
    named = [dataclasses.replace(s, title=f"By {by}" + (f", {s.title}" if s.title else "")) for s in sliced]
    return first + named + table_contents.sheets(dataclasses.replace(result, estimates=[], checks=[]), how)


def shown(one: Sheet, caps: Caps) -> CutSheet:
    """Cut a table to the rows, and the characters of a cell, that `caps` allows."""
    name = one.title if one.title and not one.title.startswith("n = ") else "Verdicts" if one.tones else "Numbers"
    name += f", {one.title}" if one.title.startswith("n = ") else ""
    rows = [[_text(text, caps.text) for text in row] for row in one.rows[: caps.rows]]
    return CutSheet(one, _text(name, caps.text), rows, max(0, len(one.rows) - caps.rows))


def picture(plots: Sequence[Plot], id: str, estimates: Sequence[Estimate], caps: Caps) -> Picture:
    """Make a figure of at most `caps.panels` panels; fine heat maps are thinned, since each cell becomes a path."""
    panels = alt_text.panels(plots)
    names = {p.name for p in panels[: caps.panels]}
    kept = [_thinned(p) for p in plots if p.name in names or p.under in names]
    more = max(0, len(panels) - caps.panels)
    words = alt_text.words(kept)
    if len(words) > 4 * caps.text:
        words = words[: 4 * caps.text].rpartition(" ")[0] + " … The rest is in the JSON, in numbers."
    words += f" {more} more panels are not drawn." if more else ""
    tables: list[CutSheet] = []
    for table, rows in alt_text.tables(kept, caps.points):
        if not caps.thinned and tables and rows > len(table.rows):
            continue  # every n-th point of a curve adds little to its drawing
        one = shown(table_contents.of_table(table), dataclasses.replace(caps, rows=caps.points + 1))
        one.more = rows - len(one.rows)
        tables.append(one)
    return Picture(id, alt_text.title(kept), words, kept, tables if caps.points else [], estimates, more)


def _thinned(plot: Plot) -> Plot:
    if plot.kind != "heat" or len(plot.x) * len(plot.y) <= 1600:
        return plot
    across, up = (-(-len(series) // 40) for series in (plot.x, plot.y))
    z = [row[::across] for row in plot.z[::up]]
    return dataclasses.replace(plot, x=plot.x[::across], y=plot.y[::up], z=z)


def fields(result: Result, caps: Caps) -> dict[str, Any]:
    """Collect the fields of the JSON that are not empty, without the series of figures."""
    kept: dict[str, Any] = {"provenance": _plain(result.provenance, caps)}
    if caps.fields:
        data = saved(result)
        data["tables"] = [{"name": t.name, "title": t.title, "rows": len(t.rows)} for t in result.tables]
        data["estimates"] = [_fields_left(e) for e in result.estimates]
        data["checks"] = [
            {k: v for k, v in one.items() if k not in CHECKED}
            | ({"estimate": _fields_left(c.estimate, judged=True)} if c.estimate else {})
            for c, one in zip(result.checks, data["checks"], strict=True)
        ]
        for plot in data["plots"]:
            plot["curves"] = "; ".join(f"{c['label'] or '-'} ({c['kind']} {c['role']})" for c in plot["curves"])
            for key in SERIES[:3]:
                del plot[key]
        kept |= {
            f.name: _plain(data[f.name], caps)
            for f in dataclasses.fields(Result)
            if f.name in data and f.name not in ELSEWHERE
        }
    return kept


def _fields_left(e: Estimate, judged: bool = False) -> dict[str, Any]:
    """Return the fields of an estimate that the table of estimates, or of verdicts, does not show."""
    seen = (
        SEEN[:5] if e.scope.rpartition(" ")[2] == "before" else SEEN
    )  # beside `after`, the table does not show the null level of `before`
    left = {k: v for k, v in saved(e).items() if k not in seen or (judged and k == "unit")}
    if not judged and seen is SEEN:
        del left["reason"], left["how"]
    return {"name": left.pop("name"), "scope": left.pop("scope"), **left}


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
    return None if value is None else _text(_text_of(value), caps.text)


class FactRows(list[Any]):
    """Mappings as rows of a table; values that all rows share are kept once in `shared`."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], more: str = "") -> None:
        keys = sorted(dict.fromkeys(key for row in rows for key in row), key=lambda k: FIRST.get(k, len(FIRST)))
        same = [k for k in keys if len(rows) > 2 and all(row.get(k) == rows[0].get(k) for row in rows)]
        self.shared = {k: rows[0][k] for k in same}
        self.columns = [k for k in keys if k not in same]
        self.more = more
        super().__init__([[row.get(k, "") for k in self.columns] for row in rows] if self.columns else [])


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def _text(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters in the JSON)"
