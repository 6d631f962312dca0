"""Descriptions of figures with their numbers, and tables of them, for readers who cannot see or want to copy them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from calibcli.core.figure_data import Curve, Plot, date
from calibcli.core.number_format import number
from calibcli.core.result import Cell, Table
from calibcli.render import table_contents

NAMED = 12  # points of a curve that are listed one by one
KINDS = {"vline": "at", "hline": "at"}


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
    """Describe a figure in sentences, with numbers."""
    strips = {p.under: p for p in plots if p.under}
    described = panels(plots)
    few = 3 if len(described) > 1 else NAMED
    texts = []
    for plot in described:
        bins = table_contents.bins(plot, strips.get(plot.name))
        body = _reliability(plot, bins) if bins else _curves(plot, few)
        head = f"{plot.title or plot.name}: " if plot.title != title(plots) else ""
        texts.append(head + body)
    return " ".join(texts)


def tables(plots: Sequence[Plot], most: int) -> list[tuple[Table, int]]:
    """Make tables of a figure's numbers, or of its bins, of at most `most` rows; each with the number of all rows."""
    strips = {p.under: p for p in plots if p.under}
    binned = {p.name: table_contents.bins(p, strips.get(p.name)) for p in plots}
    cut_tables = []
    for plot in plots:
        curves = list(plot.curves)
        if bins := binned[plot.name]:
            cut_tables.append(_bins(plot, bins, most))
            curves = [c for c in curves if not (c.kind in ("bars", "band") and c.width)]
        elif binned.get(plot.under):
            continue
        elif plot.kind == "heat" and plot.z:
            cells: list[list[Cell]] = [[x, y, v] for y, row in zip(plot.y, plot.z) for x, v in zip(plot.x, row)]
            cut_tables.append(
                _cut(_name(plot), [plot.xlabel or "x", plot.ylabel or "y", plot.zlabel or "z"], cells, most)
            )
        cut_tables += [_points(plot, curve, most) for curve in curves if curve.role != "ideal" or curve.kind == "hline"]
    return [
        (table, rows) for table, rows in cut_tables if rows and len(table.columns) > 1
    ]  # a single column is in the description


def _bins(plot: Plot, bins: Sequence[table_contents.Bin], most: int) -> tuple[Table, int]:
    rows: list[list[Cell]] = [
        [b.left, b.right, b.count, b.accuracy, b.confidence, b.low, b.high] for b in bins if b.accuracy is not None
    ]
    band = next((c.label for c in plot.curves if c.role == "null" and c.label), "if calibrated")
    heads = ["from", "to", "rows", plot.ylabel or "accuracy", plot.xlabel or "confidence", f"{band}, low", "high"]
    return _without_empty_columns(_name(plot), heads, rows, most)


def _points(plot: Plot, curve: Curve, most: int) -> tuple[Table, int]:
    rows: list[list[Cell]] = []
    if plot.texts:
        rows = [[_category(plot, x), _category(plot, x, plot.texts)] for x in curve.x]
        return _without_empty_columns(_name(plot) + f": {curve.label}", [plot.xlabel or "name", "value"], rows, most)
    for i in range(max(map(len, (curve.x, curve.y, curve.low or ())))):
        x = table_contents.at(curve.x, i)
        name: Cell = x
        if x is not None and (plot.labels or plot.xscale == "date"):
            name = _category(plot, x) if plot.labels else date(x)
        rows.append(
            [name, *(table_contents.at(s, i) for s in (curve.y, curve.low, curve.high, curve.base, curve.width))]
        )
    heads = [plot.xlabel or "x", plot.ylabel or "y", "low", "high", "base", "width"]
    label = curve.label or curve.role or curve.kind
    return _without_empty_columns(
        _name(plot) + ("" if label in (plot.title, plot.name) else f": {label}"), heads, rows, most
    )


def _name(plot: Plot) -> str:
    return plot.title or plot.name


def _without_empty_columns(name: str, heads: list[str], rows: list[list[Cell]], most: int) -> tuple[Table, int]:
    """Make a table without its empty columns."""
    kept = [j for j in range(len(heads)) if any(row[j] is not None for row in rows)]
    return _cut(name, [heads[j] for j in kept], [[row[j] for j in kept] for row in rows], most)


def _cut(name: str, columns: list[str], rows: list[list[Cell]], most: int) -> tuple[Table, int]:
    """Make a table of every n-th row and the last, at most about `most`."""
    step = max(1, -(-len(rows) // max(1, most)))
    kept = rows[::step] + (rows[-1:] if step > 1 and (len(rows) - 1) % step else [])
    return Table(name=name, title=name, columns=columns, rows=kept if most else []), len(rows)


def _reliability(plot: Plot, bins: Sequence[table_contents.Bin]) -> str:
    filled = [b for b in bins if b.accuracy is not None and b.confidence is not None]
    outside = [
        b for b in filled if b.low is not None and b.high is not None and not b.low <= (b.accuracy or 0) <= b.high
    ]
    up, across = plot.ylabel or "accuracy", plot.xlabel or "confidence"
    texts = []
    for b in filled[-NAMED:]:
        count = f" of {b.count:.0f} rows" if b.count is not None else ""
        texts.append(f"{b.left:.2f} to {b.right:.2f}{count}: {up} {b.accuracy:.3f}, {across} {b.confidence:.3f}")
    more = f" (the last {NAMED})" if len(filled) > NAMED else ""
    band = f" In {len(outside)} of them the {up} is outside the band of a calibrated model." if filled else ""
    return f"{len(filled)} bins of {across} hold rows{more}: " + "; ".join(texts) + "." + band


def _curves(plot: Plot, few: int) -> str:
    if plot.kind == "heat":
        values = [(v, x, y) for y, row in zip(plot.y, plot.z) for x, v in zip(plot.x, row) if v is not None]
        if values:
            (low, x, y), (high, *_) = min(values), max(values)
            where = f"{plot.xlabel or 'x'} {number(x)}, {plot.ylabel or 'y'} {number(y)}"
            return f"{plot.zlabel or 'z'} from {number(low)} (at {where}) to {number(high)}, on {len(values)} points."
    texts = [text for curve in plot.curves if (text := _curve(plot, curve, few))]
    axes = (
        f"{plot.ylabel or 'values'} over {plot.xlabel}: " if plot.xlabel else f"{plot.ylabel}: " if plot.ylabel else ""
    )
    return axes + ("; ".join(texts) if texts else "nothing to draw") + "."


def _curve(plot: Plot, curve: Curve, few: int) -> str:
    label = curve.label or curve.role or curve.kind
    if curve.kind in KINDS:
        name_of = _text_of_x(plot) if curve.x else number
        return f"{label} at " + ", ".join(name_of(v) for v in (curve.x or curve.y)[:few] if v is not None)
    if curve.role == "ideal":
        return ""
    points = [(x, i, y) for i, (x, y) in enumerate(zip(curve.x, curve.y)) if y is not None]
    if not points:
        return ""
    if plot.texts:
        return f"{label}: " + ", ".join(
            f"{_category(plot, x)} {_category(plot, x, plot.texts)}" for x, *_ in points[:few]
        )
    if plot.labels or len(points) <= few:
        texts = []
        for x, i, y in points[:few]:
            low, high = table_contents.at(curve.low, i), table_contents.at(curve.high, i)
            name = _category(plot, x) if plot.labels else f"at {_text_of_x(plot)(x)}"
            texts.append(
                f"{name} {number(y)}"
                + (f" [{number(low)}, {number(high)}]" if low is not None and high is not None else "")
            )
        more = f", and {len(points) - few} more" if len(points) > few else ""
        return f"{label}: " + ", ".join(texts) + more
    ends = (points[0], points[-1], min(points, key=lambda p: p[2]), max(points, key=lambda p: p[2]))
    first, last, lowest, highest = (f"{number(y)} at {_text_of_x(plot)(x)}" for x, _, y in ends)
    return f"{label}: {first}, {last}, lowest {lowest}, highest {highest}"


def _text_of_x(plot: Plot) -> Callable[[float], str]:
    return date if plot.xscale == "date" else number


def _category(plot: Plot, x: float, names: Sequence[str] | None = None) -> str:
    i, names = round(x), plot.labels if names is None else names
    return str(names[i]) if 0 <= i < len(names) else number(x)
