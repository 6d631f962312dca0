"""Descriptions of figures with their numbers, and tables of them, for readers who cannot see or want to copy them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from calibcli.core.figure_data import Curve, Plot, date
from calibcli.core.number_format import number
from calibcli.core.result import Cell, Table
from calibcli.render import table_contents


def panels(plots: Sequence[Plot]) -> list[Plot]:
    """List the plots that are not strips under others."""
    names = {p.name for p in plots}
    return [p for p in plots if p.under not in names - {p.name}]


def groups(plots: Sequence[Plot]) -> list[list[Plot]]:
    """Group the plots by figure: small multiples, or a panel with the strip under it."""
    by_group: dict[object, list[Plot]] = {}
    for plot in panels(plots):
        below = [p for p in plots if p.under == plot.name and p is not plot]
        by_group.setdefault(plot.group or id(plot), []).extend([plot, *below])
    return list(by_group.values())


def title(plots: Sequence[Plot]) -> str:
    """Return the title of a figure."""
    return plots[0].group or plots[0].title or plots[0].name


def words(plots: Sequence[Plot]) -> str:
    """Describe a figure in sentences: the axes, and for each curve its lowest and highest number and where it is."""
    texts = []
    for plot in panels(plots):
        series = [(c.label or c.role or c.kind, c) for c in plot.curves if c.role != "ideal"]
        parts = [f"{label} {span}" for label, curve in series if (span := _span(plot, curve))]
        values = [(v, x, y) for y, row in zip(plot.y, plot.z) for x, v in zip(plot.x, row) if v is not None]
        if values:  # of a heat map
            low, high = (f"{number(v)} at {number(x)}, {number(y)}" for v, x, y in (min(values), max(values)))
            parts.insert(0, f"{plot.zlabel or 'z'} from {low} to {high}")
        head = f"{plot.title or plot.name}: " if plot.title != title(plots) else ""
        axes = (
            f"{plot.ylabel or 'values'} over {plot.xlabel}: " if plot.xlabel else f"{plot.ylabel}: " * bool(plot.ylabel)
        )
        texts.append(f"{head}{axes}{'; '.join(parts) or 'nothing to draw'}.")
    return " ".join(texts)


def _span(plot: Plot, curve: Curve) -> str:
    """Write the lowest and the highest number of a curve, or the places of its lines; "" without any."""
    if curve.kind in ("vline", "hline"):
        return "at " + ", ".join(_place(plot, v) if curve.x else number(v) for v in curve.x or curve.y if v is not None)
    points = [(y, x) for x, y in zip(curve.x, curve.y) if y is not None]
    if not points:
        return ""
    low, high = (
        f"{_category(plot.texts, x) if plot.texts else number(y)} at {_place(plot, x)}"
        for y, x in (min(points), max(points))
    )
    return f"from {low} to {high}" if len(points) > 1 else low


def _place(plot: Plot, x: float) -> str:
    return date(x) if plot.xscale == "date" else _category(plot.labels, x) if plot.labels else number(x)


def tables(plots: Sequence[Plot], most: int) -> list[tuple[Table, int]]:
    """Make tables of a figure's numbers, or of its bins, of about `most` rows; each with the number of all rows."""
    strips = {p.under: p for p in plots if p.under}
    binned = {p.name: table_contents.bins(p, strips.get(p.name)) for p in plots}
    cut_tables = []
    for plot in plots:
        for name, heads, rows in [] if binned.get(plot.under) else _contents(plot, binned[plot.name]):
            kept = [j for j in range(len(heads)) if any(row[j] is not None for row in rows)]
            if len(kept) < 2:  # a single column is in the description
                continue
            step = math.ceil(len(rows) / most)
            shown = rows[::step] + (rows[-1:] if (len(rows) - 1) % step else [])
            cells = [[row[j] for j in kept] for row in shown]
            cut_tables.append((Table(name=name, title=name, columns=[heads[j] for j in kept], rows=cells), len(rows)))
    return cut_tables


def _contents(plot: Plot, bins: Sequence[table_contents.Bin]) -> Iterator[tuple[str, list[str], list[list[Cell]]]]:
    """Yield name, heads and rows of the tables of a panel: of its bins or its heat map, and of each other curve."""
    name, across, up = plot.title or plot.name, plot.xlabel, plot.ylabel
    if bins:
        band = next((c.label for c in plot.curves if c.role == "null" and c.label), "if calibrated")
        heads = ["from", "to", "rows", up or "accuracy", across or "confidence", f"{band}, low", "high"]
        filled = [b for b in bins if b.accuracy is not None]
        yield name, heads, [[b.left, b.right, b.count, b.accuracy, b.confidence, b.low, b.high] for b in filled]
    elif plot.kind == "heat":
        heads = [across or "x", up or "y", plot.zlabel or "z"]
        yield name, heads, [[x, y, v] for y, row in zip(plot.y, plot.z) for x, v in zip(plot.x, row)]
    for curve in plot.curves:
        if (curve.role == "ideal" and curve.kind != "hline") or (bins and curve.width):
            continue
        label = curve.label or curve.role or curve.kind
        heading = name + ("" if label in (plot.title, plot.name) else f": {label}")
        if plot.texts:
            yield heading, [across or "name", "value"], [[_place(plot, x), _category(plot.texts, x)] for x in curve.x]
            continue
        named = plot.labels or plot.xscale == "date"
        series = (curve.y, curve.low, curve.high, curve.base, curve.width)
        xs = [_place(plot, x) if named and x is not None else x for x in curve.x]
        columns = itertools.zip_longest(xs, *(one or () for one in series))
        yield heading, [across or "x", up or "y", "low", "high", "base", "width"], [list(row) for row in columns]


def _category(names: Sequence[str], x: float) -> str:
    i = round(x)
    return str(names[i]) if 0 <= i < len(names) else number(x)
