"""The marks of a curve on axes: bars, points, lines, bands; each also with its axes swapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import Normal, Stroke

from calibcli.render.figure import style
from calibcli.result import Curve, Plot

Axes = Any  # matplotlib's own types differ between the versions we support
ORDER = {"bars": 2.0, "band": 3.0, "vline": 3.5, "hline": 3.5, "steps": 4.0, "line": 5.0, "points": 6.0}
FILL = {"null": 0.26, "smooth": 0.17}  # opacity of a band
CROWDED = 40  # bins beyond which bars lose their outlines
QUIET: dict[str, Any] = {"facecolor": style.FAINT_GAP, "edgecolor": style.MID_GAP, "linewidth": 0.6}  # a gap by chance
OUTLINE = [Stroke(linewidth=3.2, foreground="#303048", alpha=0.7), Normal()]  # of what is drawn on a heat map


def draw(axes: Axes, curve: Curve, colour: str, plot: Plot, place: tuple[int, int], small: bool) -> Any:
    """Draw one curve and return its legend handle. `place`: its position among curves that stand beside each other."""
    x, y = _array(curve.x), _array(curve.y)
    if curve.kind not in ("hline", "vline"):
        x = x[: max(len(y), len(_array(curve.low)))] if curve.kind != "steps" else x
        y = np.append(y, np.full(max(0, len(x) - len(y)), np.nan))
    low, high, base = (_padded(s, len(x)) for s in (curve.low, curve.high, curve.base))
    order = ORDER[curve.kind] + (0.4 if curve.role == "gap" else 0.2 if curve.role == "smooth" else 0.0)
    flip = plot.flip
    if curve.kind == "bars":
        usual = by_chance(plot, curve)
        return _bars(axes, curve, (x, y, low, high, base, usual), colour, place, flip, order, bool(plot.labels))
    if curve.kind == "points":
        return _points(axes, curve, (x, y, low, high), colour, place, flip, order, plot, small)
    if curve.kind == "band":
        if low is None or high is None:
            return None
        _fill(axes, curve, x, low, high, colour, flip, order)
        return Patch(facecolor=colour, alpha=FILL.get(curve.role, 0.2) + 0.05, linewidth=0)
    look = _line_style(curve)
    if curve.kind in ("vline", "hline"):
        upright = (curve.kind == "vline") != flip
        for v in x if curve.kind == "vline" else y[np.isfinite(y)]:
            (axes.axvline if upright else axes.axhline)(v, color=colour, zorder=order, **look)
        return Line2D([], [], color=colour, **look)
    if curve.kind == "steps":
        n = min(len(x), len(y))
        xs, ys = (x[:n], y[:n])
        if len(curve.x) == len(curve.y) + 1:
            ys = np.append(_array(curve.y), _array(curve.y)[-1:])
        axes.plot(
            *_flipped(xs, ys, flip), color=colour, zorder=order, drawstyle="steps-pre" if flip else "steps-post", **look
        )
        return Line2D([], [], color=colour, **look)
    effects = OUTLINE if plot.kind == "heat" else None
    if low is not None and high is not None:
        _fill(axes, curve, x, low, high, colour, flip, order - 1)
    axes.plot(*_flipped(x, y, flip), color=colour, zorder=order, path_effects=effects, **look)
    if (alone := _alone(y)).any():  # a line needs two points
        axes.plot(*_flipped(x[alone], y[alone], flip), color=colour, zorder=order, linestyle="none", marker="o", ms=4)
    return Line2D([], [], color=colour, path_effects=effects, **look)


def _alone(y: Any) -> Any:
    """Points of a line that have no neighbour to be joined to."""
    fine = np.append(np.append(False, np.isfinite(y)), False)
    return fine[1:-1] & ~fine[:-2] & ~fine[2:]


def by_chance(plot: Plot, curve: Curve) -> Any:
    """For a gap: the bins whose accuracy lies in the band of a calibrated model. None without such a band."""
    band = next((c for c in plot.curves if c.kind == "band" and c.role == "null" and c.width), None)
    if curve.role != "gap" or curve.base is None or band is None or list(band.x) != list(curve.x):
        return None
    low, high, accuracy = (_padded(s, len(curve.x)) for s in (band.low, band.high, curve.base))
    return None if low is None or high is None else (accuracy >= low) & (accuracy <= high)


def _bars(
    axes: Axes,
    curve: Curve,
    data: tuple[Any, ...],
    colour: str,
    place: tuple[int, int],
    flip: bool,
    order: float,
    categories: bool,
) -> Patch:
    x, y, low, high, base, usual = data
    k, several = place
    if curve.width:
        width, align = _padded(curve.width, len(x)), "edge"
        left = x
    else:
        step = float(np.min(np.diff(np.sort(x)))) if len(x) > 1 and len(np.unique(x)) == len(x) else 1.0
        width, align = np.full(len(x), 0.76 * (1.0 if categories else step) / several), "center"
        left = x + (k - (several - 1) / 2) * width
    start = np.zeros(len(x)) if base is None else base
    fine = np.isfinite(y) & np.isfinite(start)
    look: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.7, "alpha": 0.85}
    if curve.role == "model" and curve.width:
        look |= {"alpha": 0.45, "linewidth": 0.7 if len(x) <= CROWDED else 0}
    if curve.role == "gap":
        look = {"facecolor": style.PALE_GAP, "edgecolor": colour, "hatch": "////", "linewidth": 0.7}
        if len(x) > CROWDED:
            look = {"facecolor": style.MID_GAP, "linewidth": 0}
    bars = axes.barh if flip else axes.bar
    usual = np.zeros(len(x), dtype=bool) if usual is None else fine & usual
    for drawn, how in ((fine & ~usual, look), (usual, QUIET)):
        side = {"left" if flip else "bottom": start[drawn]}
        bars(left[drawn], (y - start)[drawn], width[drawn], **side, align=align, zorder=order, **how)
    if low is not None and high is not None:
        middle = left + (width / 2 if align == "edge" else 0)
        _whiskers(axes, middle, y, low, high, style.INK, flip, order + 0.3)
    return Patch(**look)


def _points(
    axes: Axes,
    curve: Curve,
    data: tuple[Any, ...],
    colour: str,
    place: tuple[int, int],
    flip: bool,
    order: float,
    plot: Plot,
    small: bool,
) -> Line2D:
    x, y, low, high = data
    k, several = place
    x = x + (k - (several - 1) / 2) * 0.76 / several if several > 1 else x
    star = curve.role == "best"
    heat = plot.kind == "heat"
    look: dict[str, Any] = {
        "marker": "*" if star else "o",
        "markersize": (13 if star else 6) * (0.6 if small or len(x) > 60 else 1),
        "markerfacecolor": "white" if heat else colour,
        "markeredgecolor": "black" if heat else "white",
        "markeredgewidth": 0.8,
        "linestyle": "none",
    }
    if low is not None and high is not None:
        _whiskers(axes, x, y, low, high, colour, flip, order - 0.1, 1.6)
    axes.plot(*_flipped(x, y, flip), zorder=order, clip_on=not star, **look)
    return Line2D([], [], **look)


def _whiskers(
    axes: Axes, x: Any, y: Any, low: Any, high: Any, colour: str, flip: bool, order: float, width: float = 0.9
) -> None:
    fine = np.isfinite(low) & np.isfinite(high) & np.isfinite(x)
    (axes.hlines if flip else axes.vlines)(x[fine], low[fine], high[fine], color=colour, linewidth=width, zorder=order)


def _fill(axes: Axes, curve: Curve, x: Any, low: Any, high: Any, colour: str, flip: bool, order: float) -> None:
    fill = axes.fill_betweenx if flip else axes.fill_between
    look: dict[str, Any] = {"color": colour, "alpha": FILL.get(curve.role, 0.2), "linewidth": 0, "zorder": order}
    if curve.width:  # one block per bin, behind the bars, its ends above them
        fine = np.isfinite(low) & np.isfinite(high)
        left, wide = x[fine], _padded(curve.width, len(x))[fine]
        bars, lines = (axes.barh, axes.vlines) if flip else (axes.bar, axes.hlines)
        side = {"left" if flip else "bottom": low[fine]}
        bars(left, (high - low)[fine], wide, align="edge", **side, **{**look, "zorder": 1.5})
        for end in (low[fine], high[fine]):
            lines(end, left, left + wide, color=colour, linewidth=1.1 if len(left) <= CROWDED else 0.6, zorder=order)
        return
    fill(x, low, high, where=np.isfinite(low) & np.isfinite(high), **look)


def _line_style(curve: Curve) -> dict[str, Any]:
    if curve.role in ("ideal", "limit") or curve.kind in ("vline", "hline"):
        dashes = {"ideal": (0, (1, 1.6)), "limit": (0, (5, 2))}.get(curve.role, (0, (4, 2)))
        return {"linestyle": dashes, "linewidth": 1.2}
    return {"linestyle": (0, (4, 1.5)) if curve.role in ("null", "ridge") else "-", "linewidth": 1.8}


def _array(series: Sequence[float | None] | None) -> Any:
    return np.array([np.nan if v is None else v for v in series or ()], dtype=float)


def _padded(series: Sequence[float | None] | None, n: int) -> Any:
    if series is None:
        return None
    values = _array(series)[:n]
    return np.append(values, np.full(n - len(values), np.nan))


def _flipped(x: Any, y: Any, flip: bool) -> tuple[Any, Any]:
    return (y, x) if flip else (x, y)
