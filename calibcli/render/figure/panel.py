"""One panel: the curves of a Plot on axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from calibcli.render.figure import style
from calibcli.result import Curve, Plot

Axes = Any  # matplotlib's own types differ between the versions we support
Handles = dict[str, Any]
ORDER = {"bars": 2.0, "band": 3.0, "vline": 3.5, "hline": 3.5, "steps": 4.0, "line": 5.0, "points": 6.0}
FILL = {"null": 0.26, "smooth": 0.17}  # opacity of a band
CROWDED = 40  # bins beyond which bars lose their outlines
OUTLINE = [Stroke(linewidth=3.2, foreground="#303048", alpha=0.7), Normal()]  # of what is drawn on a heat map


def draw(axes: Axes, plot: Plot, colours: style.Colours, small: bool = False) -> Handles:
    """Draw `plot`; the legend's handles by label."""
    if plot.kind == "heat":
        _heat(axes, plot)
    beside = [c for c in plot.curves if plot.labels and c.kind in ("bars", "points")]
    handles: Handles = {}
    for curve in plot.curves:
        place = (beside.index(curve), len(beside)) if curve in beside else (0, 1)
        handle = _curve(axes, curve, colours.of(curve), plot, place, small)
        if curve.label and handle is not None:
            handles[style.plain(curve.label)] = handle
    if plot.kind == "heat" and plot.levels and plot.levels_label and plot.z:
        handles[style.plain(plot.levels_label)] = Line2D([], [], color="white", linewidth=1.5, path_effects=OUTLINE)
    _axes(axes, plot, small)
    return handles


def colour_bar(axes: Axes, bar: Axes, plot: Plot) -> None:
    mesh = next((c for c in axes.collections if isinstance(c, QuadMesh)), None)
    if mesh is None:
        bar.set_axis_off()
        return
    axes.figure.colorbar(mesh, cax=bar, label=style.plain(plot.zlabel))
    bar.grid(False)
    for spine in bar.spines.values():
        spine.set_visible(False)


def write_counts(axes: Axes, plot: Plot) -> None:
    """The number above each bar of a histogram, where there is room for it."""
    bars = next((c for c in plot.curves if c.kind == "bars"), None)
    if bars is None or len(bars.x) > 20 or any(v is not None and v >= 1e5 for v in bars.y):
        return
    for x, y, width in zip(bars.x, bars.y, bars.width or [0.0] * len(bars.x)):
        if y:
            axes.annotate(
                f"{y:.0f}", (x + width / 2, y), (0, 1.5), textcoords="offset points", ha="center", fontsize=6.5
            )
    axes.margins(y=0.22)


def _curve(axes: Axes, curve: Curve, colour: str, plot: Plot, place: tuple[int, int], small: bool) -> Any:
    x, y = _array(curve.x), _array(curve.y)
    if curve.kind not in ("hline", "vline"):
        x = x[: max(len(y), len(_array(curve.low)))] if curve.kind != "steps" else x
        y = np.append(y, np.full(max(0, len(x) - len(y)), np.nan))
    low, high, base = (_padded(s, len(x)) for s in (curve.low, curve.high, curve.base))
    order = ORDER[curve.kind] + (0.4 if curve.role == "gap" else 0.2 if curve.role == "smooth" else 0.0)
    flip = plot.flip
    if curve.kind == "bars":
        return _bars(axes, curve, (x, y, low, high, base), colour, place, flip, order, bool(plot.labels))
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
    return Line2D([], [], color=colour, path_effects=effects, **look)


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
    x, y, low, high, base = data
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
    draw_bars = axes.barh if flip else axes.bar
    spans = (y - start)[fine], width[fine]
    draw_bars(left[fine], *spans, **{"left" if flip else "bottom": start[fine]}, align=align, zorder=order, **look)
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


def _heat(axes: Axes, plot: Plot) -> None:
    z = np.ma.masked_invalid(np.array([[np.nan if v is None else v for v in row] for row in plot.z], dtype=float))
    if z.ndim != 2 or z.shape != (len(plot.y), len(plot.x)) or z.count() == 0:
        return
    norm = Normalize(float(z.min()), float(z.max()))
    if plot.zscale == "log" and (z > 0).any():
        top = float(z.max())
        norm = LogNorm(max(float(z[z > 0].min()), top * 1e-5), top, clip=True)
        z = np.ma.masked_invalid(np.where(z.filled(np.nan) <= 0, top * 1e-9, z.filled(np.nan)))
    edges = _edges(plot.x, plot.xscale), _edges(plot.y, plot.yscale)
    axes.pcolormesh(*edges, z, norm=norm, cmap="viridis", rasterized=z.size > 1600, zorder=1, linewidth=0)
    if plot.levels and min(z.shape) > 1:
        height, levels = z, sorted(set(plot.levels))
        if isinstance(norm, LogNorm):  # the logarithm is the smoother surface to interpolate
            height, levels = np.ma.log(z), [math.log(v) for v in levels if v > 0]
        if levels:
            lines = axes.contour(
                plot.x, plot.y, height, levels=levels, colors="white", linestyles="-", linewidths=1.5, zorder=4
            )
            lines.set(path_effects=OUTLINE)
    axes.grid(False)


def _edges(centres: Sequence[float], scale: str) -> Any:
    c = np.asarray(centres, dtype=float)
    log = scale == "log" and (c > 0).all()
    c = np.log(c) if log else c
    half = np.diff(c) / 2 if len(c) > 1 else np.array([0.5])
    edges = np.concatenate([[c[0] - half[0]], c[:-1] + np.diff(c) / 2, [c[-1] + half[-1]]])
    return np.exp(edges) if log else edges


def _axes(axes: Axes, plot: Plot, small: bool) -> None:
    """Scales, limits, ticks and labels; with `flip`, x runs down the side."""
    across, up = (axes.yaxis, axes.xaxis) if plot.flip else (axes.xaxis, axes.yaxis)
    set_across, set_up = (axes.set_ylim, axes.set_xlim) if plot.flip else (axes.set_xlim, axes.set_ylim)
    data = [v for c in plot.curves for s in (c.y, c.low or (), c.high or ()) for v in s if v is not None]
    for axis, scale, limits, values in (
        (across, plot.xscale, plot.xlim, [*plot.x, *(v for c in plot.curves for v in c.x)]),
        (up, plot.yscale, plot.ylim, [*plot.y, *data]),
    ):
        if scale == "log" and any(v > 0 for v in values):
            (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
            _log_ticks(axis)
        else:
            unit = limits is not None and list(limits) == [0, 1]
            most = (2 if unit else 4) if small else 6
            steps = [1, 2, 5, 10] if unit else [1, 2, 2.5, 5, 10]
            axis.set_major_locator(MaxNLocator(most, steps=steps, min_n_ticks=3))
            axis.set_major_formatter(FuncFormatter(_tick))
    if plot.labels:
        across.set_ticks(range(len(plot.labels)), [_name(label) for label in plot.labels])
        axes.tick_params(axis="y" if plot.flip else "x", length=0)
        across.grid(False)
        if not plot.flip and sum(map(len, plot.labels)) > (30 if small else 60):
            axes.tick_params(axis="x", rotation=90 if len(plot.labels) > 12 else 40)
        set_across(*((len(plot.labels) - 0.4, -0.6) if plot.flip else (-0.6, len(plot.labels) - 0.4)))
    if plot.xlim is not None and len(plot.xlim) == 2:
        set_across(*(reversed(plot.xlim) if plot.flip else plot.xlim))
    if plot.ylim is not None and len(plot.ylim) == 2 and (plot.yscale == "linear" or min(plot.ylim) > 0):
        set_up(*plot.ylim)
    across.set_label_text(style.plain(plot.xlabel))
    up.set_label_text(style.plain(plot.ylabel))


def _log_ticks(axis: Any) -> None:
    low, high = sorted(axis.get_view_interval())
    if low > 0 and math.log10(high / low) < 3.2:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(_tick))
    axis.set_minor_formatter(NullFormatter())


def _tick(value: float, _: int | None = None) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.10g}" if abs(value) >= 1000 else f"{value:.6g}"


def _name(label: str) -> str:
    text = style.plain(str(label))
    return text if len(text) <= 40 else text[:39] + "…"


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
