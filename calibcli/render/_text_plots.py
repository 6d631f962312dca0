"""Plots of characters: curves over x, one row per category, heat maps."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence

from calibcli.core import number_format
from calibcli.core.figure_data import Curve, Plot, date
from calibcli.core.result import Estimate
from calibcli.render import terminal
from calibcli.render.table_contents import at

HEIGHT = 12
NAME = 28  # characters of a category's name
MARKS = "●○▲■◆+x*"
HOLLOW = "○"  # for what chance may give
BEHIND = {"band": "░", "bars": "█", "hline": "─", "vline": ""}  # drawn before other curves, in this order
SHADES = "█▓▒░ "  # lowest to highest
Scale = tuple[float, float, bool]  # low, high, logarithmic


def xy(plot: Plot, width: int, height: int = HEIGHT) -> list[str]:
    """Draw curves over a numeric axis; each has a mark of its own, and bands are shaded."""
    across = _scale([x for c in plot.curves for x in c.x], plot.xlim, plot.xscale)
    up = _scale([y for c in plot.curves for y in _values(c)], plot.ylim, plot.yscale)
    if across is None or up is None:
        return []
    ticks = [_tick(v) for v in (up[1], _value_at(0.5, up), up[0])]
    margin = max(map(terminal.width, ticks))
    room = max(10, width - margin - 2)
    grid = [[" "] * room for _ in range(height)]
    legend = []
    behind = list(BEHIND)
    order = sorted(plot.curves, key=lambda c: behind.index(c.kind) if c.kind in BEHIND else len(behind))
    marks, posts = itertools.cycle(MARKS), itertools.cycle("│┊╎")
    for curve in order:
        if curve.kind == "vline":
            mark = next(posts)
        else:
            mark = BEHIND.get(curve.kind) or ("⋅" if curve.role in ("ideal", "null") else next(marks))
        _draw(grid, curve, mark, across, up)
        if curve.label:
            legend.append(f"{mark} {terminal.clean(curve.label)}")
    lines = [terminal.clean(plot.ylabel)] if plot.ylabel not in ("", plot.title) else []
    for i, row in enumerate(grid):
        tick = {0: ticks[0], height // 2: ticks[1], height - 1: ticks[2]}.get(i, "")
        lines.append(f"{' ' * (margin - terminal.width(tick))}{tick} {'┤' if tick else '│'}{''.join(row)}")
    lines.append(" " * (margin + 1) + "└" + "─" * room)
    lines.append(" " * (margin + 2) + _axis(across, plot.xlabel, room, date if plot.xscale == "date" else _tick))
    return [*lines, *terminal.wrapped(legend, width)]


def rows(plot: Plot, width: int) -> list[str]:
    """Draw one row per category and curve: name, value, and a bar (or a mark with its interval) on a common scale."""
    listed = [c for c in plot.curves if c.kind in ("bars", "points", "line", "steps")]
    entries = sorted(((x, c, i) for c in listed for i, x in enumerate(c.x)), key=lambda e: e[0])
    values = [y for c in plot.curves if c.kind != "vline" for y in _values(c)]
    if any(c.kind == "bars" for c in plot.curves) and plot.yscale == "linear":
        values.append(0.0)
    up = _scale(values, plot.ylim, plot.yscale)
    if up is None or not entries:
        return []
    named = [n for c in listed if (n := terminal.clean(c.label))]
    several = len(named) > 1
    texts = [_category(plot.texts, x) for x, _, _ in entries] if plot.texts else _texts([e[1:] for e in entries], width)
    drawn = [c for c in listed if c.x]
    cycle = itertools.cycle(MARKS.replace(HOLLOW, "") if any(c.role == "null" for c in drawn) else MARKS)
    marks = {id(c): HOLLOW if c.role == "null" else next(cycle) for c in drawn}
    if not several:
        marks = {id(c): "█" if c.kind == "bars" else marks[id(c)] for c in drawn}
    names = [_category(plot.labels, x) for x, _, _ in entries]
    margin, figures = max(map(terminal.width, names)), max(map(terminal.width, texts))
    room = max(10, width - margin - figures - 3)
    guides = [y for c in plot.curves if c.kind == "hline" for y in c.y if y is not None]
    if up[0] < 0 < up[1]:
        guides.append(0.0)
    lines = []
    for k, ((_, curve, i), name, text) in enumerate(zip(entries, names, texts, strict=True)):
        cells = [" "] * room
        for guide in guides:
            _put(cells, _share_of(guide, up), "│")
        _mark(cells, curve, i, marks[id(curve)], up)
        shown = "" if k and names[k - 1] == name and entries[k - 1][0] == entries[k][0] else name
        lines.append(f"{shown}{' ' * (margin - terminal.width(shown))} {text:>{figures}} {''.join(cells)}".rstrip())
    lines.append(" " * (margin + figures + 2) + _axis(up, plot.ylabel, room))
    legend = [f"{marks[id(c)]} {terminal.clean(c.label)}" for c in plot.curves if id(c) in marks and c.label in named]
    return lines + (terminal.wrapped(legend, width) if several else [])


def heat(plot: Plot, width: int) -> list[str]:
    """Draw a heat map, shaded by the rank of z (lowest darkest), with the acceptable set and curves on top."""
    values = sorted(v for row in plot.z for v in row if v is not None)
    if not values or not plot.x or not plot.y:
        return []
    ticks = [_tick(v) for v in plot.y]
    margin = max(map(len, ticks))
    columns = min(len(plot.x), max(10, width - margin - 2))
    down = list(range(len(plot.y)))[:: -(-len(plot.y) // 20)]
    across = [round(j * (len(plot.x) - 1) / max(1, columns - 1)) for j in range(columns)]
    level = max(plot.levels) if plot.levels else None
    grid = {}
    for i in down:
        for j in across:
            z = plot.z[i][j] if i < len(plot.z) and j < len(plot.z[i]) else None
            rank = 0 if z is None else bisect.bisect_left(values, z) / len(values)
            inside = level is not None and z is not None and z <= level
            grid[i, j] = "?" if z is None else "■" if inside else SHADES[min(4, int(rank * 5))]
    lowest, highest = map(number_format.number, (values[0], values[-1]))
    legend = [f"█ lowest {plot.zlabel or 'z'} ({lowest})", f"(blank) highest ({highest})"]
    if level is not None:
        legend.append(f"■ {plot.levels_label or f'at most {number_format.number(level)}'}")
    xs, ys = [plot.x[j] for j in across], [plot.y[i] for i in down]
    for curve, mark in zip([c for c in plot.curves if c.kind in ("line", "points")], itertools.cycle("●★◆x+")):
        for x, y in zip(curve.x, curve.y):
            if y is not None:
                cell = _nearest(y, ys, down), _nearest(x, xs, across)
                grid[cell] = mark if curve.kind == "points" or grid[cell] != "■" else "■"
        if curve.label:
            legend.append(f"{mark} {terminal.clean(curve.label)}")
    lines = [terminal.clean(plot.ylabel)] if plot.ylabel else []
    wide = max(1, min(3, (width - margin - 2) // columns))
    lines += [f"{ticks[i]:>{margin}} ┤{''.join(grid[i, j] * wide for j in across)}" for i in reversed(down)]
    axis = (plot.x[0], plot.x[-1], plot.xscale == "log")
    return [*lines, " " * (margin + 2) + _axis(axis, plot.xlabel, columns * wide), *terminal.wrapped(legend, width)]


def _draw(grid: list[list[str]], curve: Curve, mark: str, across: Scale, up: Scale) -> None:
    height, room = len(grid), len(grid[0])
    levels, shares = [r / (height - 1) for r in range(height)], [j / (room - 1) for j in range(room)]

    def put(column: float, row: float, character: str = mark) -> None:
        i, j = height - 1 - round(row * (height - 1)), round(column * (room - 1))
        if 0 <= i < height and 0 <= j < room:
            grid[i][j] = character

    if curve.kind == "vline":
        for x, r in itertools.product(curve.x, levels):
            put(_share_of(x, across), r)
    elif curve.kind == "hline":
        for y, j in itertools.product([y for y in curve.y if y is not None], shares):
            put(j, _share_of(y, up))
    elif curve.kind in ("band", "bars"):
        ends = (curve.low, curve.high) if curve.kind == "band" else (curve.base or [up[0]] * len(curve.x), curve.y)
        for j in shares:
            heights = [v for end in ends if (v := _curve_at(curve, end or (), j, across)) is not None]
            first, last = sorted(_share_of(v, up) for v in heights) if len(heights) == 2 else (math.inf, -math.inf)
            for r in levels:
                if first - 0.5 / height <= r <= last + 0.5 / height:
                    put(j, r)
    elif curve.kind == "points":
        for i, x in enumerate(curve.x):
            low, high, p = at(curve.low, i), at(curve.high, i), at(curve.y, i)
            for r in levels:
                if low is not None and high is not None and _share_of(low, up) <= r <= _share_of(high, up):
                    put(_share_of(x, across), r, "│")
            if p is not None:
                put(_share_of(x, across), _share_of(p, up))
    else:
        for j in shares:
            if (height_at := _curve_at(curve, curve.y, j, across)) is not None:
                put(j, _share_of(height_at, up))


def _curve_at(curve: Curve, series: Sequence[float | None], share: float, across: Scale) -> float | None:
    """Evaluate a curve at a share of the axis: the value of its bin, or interpolated between points."""
    x = _value_at(share, across)
    edge = 1e-9 * (across[1] - across[0])
    if curve.kind in ("bars", "steps") or curve.width:
        widths = curve.width or [b - a for a, b in zip(curve.x, [*curve.x[1:], math.inf])]
        for left, wide, y in zip(curve.x, widths, series):
            if left - edge <= x <= left + wide + edge:
                return y
        return None
    for a, b, p, q in zip(curve.x, curve.x[1:], series, series[1:]):
        if min(a, b) - edge <= x <= max(a, b) + edge and p is not None and q is not None:
            return p if b == a else p + (q - p) * (x - a) / (b - a)
    return None


def _mark(cells: list[str], curve: Curve, i: int, mark: str, up: Scale) -> None:
    y, low, high = at(curve.y, i), at(curve.low, i), at(curve.high, i)
    if y is None:
        return
    last = len(cells) - 1
    if curve.kind == "bars":
        start, end = sorted((_share_of(max(0.0, up[0]) if not up[2] else up[0], up), _share_of(y, up)))
        for j in range(round(max(0, start) * last), round(min(1, end) * last) + 1):
            cells[j] = mark
    if low is not None and high is not None:
        for j in range(round(max(0, _share_of(low, up)) * last), round(min(1, _share_of(high, up)) * last) + 1):
            cells[j] = "─" if cells[j] != mark else cells[j]
    _put(cells, _share_of(y, up), mark)


def _texts(entries: Sequence[tuple[Curve, int]], width: int) -> list[str]:
    """Format values, with their intervals if the width allows."""
    values = [at(c.y, i) for c, i in entries]
    ends = [(at(c.low, i), at(c.high, i)) for c, i in entries]
    if width < 72 or not any(low is not None and high is not None for low, high in ends):
        return number_format.column(values)
    estimates = [Estimate(name="", value=v, low=low, high=high) for v, (low, high) in zip(values, ends)]
    return [f"{shown.value} {shown.interval}".rstrip() for shown in map(number_format.shown, estimates)]


def _put(cells: list[str], share: float, mark: str) -> None:
    j = round(share * (len(cells) - 1))
    if 0 <= j < len(cells):
        cells[j] = mark


def _values(curve: Curve) -> list[float]:
    series = [curve.y, curve.low or (), curve.high or (), curve.base or ()]
    values = [v for s in series for v in s if v is not None]
    return [*values, 0.0] if values and curve.kind == "bars" and curve.base is None else values


def _scale(values: Sequence[float | None], limits: Sequence[float] | None, scale: str) -> Scale | None:
    log = scale == "log"
    if limits is not None and len(limits) == 2 and (not log or min(limits) > 0):
        ends = [float(v) for v in limits]
    else:
        ends = [v for v in values if v is not None and (v > 0 or not log)]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
    return low, high, log


def _share_of(value: float, scale: Scale) -> float:
    """Return the share of the axis at which `value` lies."""
    low, high, log = scale
    if log:
        return (math.log(value / low) / math.log(high / low)) if value > 0 else 0.0
    return (value - low) / (high - low)


def _value_at(share: float, scale: Scale) -> float:
    low, high, log = scale
    return low * (high / low) ** share if log else low + share * (high - low)


def _tick(value: float) -> str:
    return f"{value:.3g}"


def _axis(scale: Scale, label: str, room: int, tick: Callable[[float], str] = _tick) -> str:
    """Write both ends of an axis, and its label between them if four characters of it or more fit there."""
    low, high = tick(scale[0]), tick(scale[1])
    between = room - len(low) - len(high)
    text = (
        number_format.short(terminal.clean(label) + (" (log)" if scale[2] else ""), between - 2) if between > 5 else ""
    )
    return low + text.center(max(1, between)) + high


def _category(labels: Sequence[str], x: float) -> str:
    i = round(x)
    return number_format.short(terminal.clean(labels[i]), NAME) if 0 <= i < len(labels) else _tick(x)


def _nearest(value: float, ticks: Sequence[float], positions: Sequence[int]) -> int:
    return positions[min(range(len(ticks)), key=lambda i: abs(ticks[i] - value))]
