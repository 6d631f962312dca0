"""One panel: the curves of a Plot on axes."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from calibcli.plots import Curve, Plot, date
from calibcli.render.figure import marks, style
from calibcli.render.figure.marks import OUTLINE, Axes

Handles = dict[str, Any]
DIGIT = 0.64  # width of a digit, of the size of its font


def draw(axes: Axes, plot: Plot, colours: style.Colours, small: bool = False) -> Handles:
    """Draw `plot`; the legend's handles by label."""
    if plot.kind == "heat":
        _heat(axes, plot)
    curves = _told_apart(one_message(plot.curves))
    shared = beside(curves) if plot.labels else []
    handles: Handles = {}
    used: set[str] = set()
    drawn = 0
    for i, curve in enumerate(curves):
        place = (shared.index(i), len(shared)) if i in shared else (0, 1)
        colour = colours.of(curve, used)
        handle = marks.draw(axes, curve, colour, plot, place, small)
        if curve.role not in style.ROLES and curve.kind == "line":
            drawn += 1
            for line in (axes.lines[-1], handle) if drawn > style.SOLID else ():
                line.set_linestyle(style.DASHES[(drawn - style.SOLID - 1) % len(style.DASHES)])
        used.add(colour)
        if curve.label and handle is not None:
            handles[style.plain(curve.label)] = handle
            if marks.by_chance(plot, curve) is not None:
                handles["gap within chance"] = Patch(**marks.QUIET)
    if (beyond := marks.beyond(axes, plot)) is not None:
        handles["gap beyond chance"] = beyond
    if plot.kind == "heat" and plot.levels and plot.levels_label and plot.z:
        handles[style.plain(plot.levels_label)] = Line2D([], [], color="white", linewidth=1.5, path_effects=OUTLINE)
    _axes(axes, plot, small)
    return {} if len(handles) == 1 and _says(axes, plot, *handles) else handles


def beside(curves: Sequence[Curve]) -> list[int]:
    """Which curves stand beside each other in a category: bars and points, unless each category has only one."""
    marked = [i for i, c in enumerate(curves) if c.kind in ("bars", "points")]
    positions = [x for i in marked for x in curves[i].x]
    return marked if len(set(positions)) < len(positions) else []


def one_message(curves: Sequence[Curve]) -> list[Curve]:
    """Of a reliability diagram the isotonic or the smooth curve, where there is one, without the bins."""
    if not any(c.role in ("corp", "smooth") for c in curves):
        return list(curves)
    return [c for c in curves if not c.width]


def _says(axes: Axes, plot: Plot, label: str) -> bool:
    """Whether title and axis say what the legend of the only curve would; an axis label that begins it takes all."""
    words = [style.plain(text) for text in (plot.title, plot.ylabel, plot.name) if text]
    if words and label.startswith(style.plain(plot.ylabel) or "\n"):
        (axes.set_xlabel if plot.flip else axes.set_ylabel)(label)
        return True
    return any(text.startswith(label) for text in words)


def _told_apart(curves: Sequence[Curve]) -> list[Curve]:
    """The curves, where two of one kind and role but with different labels get roles, and so colours, of their own."""
    labels: dict[tuple[str, str], str] = {}
    found = []
    for curve in curves:
        first = labels.setdefault((curve.kind, curve.role), curve.label)
        again = curve.kind in ("line", "steps", "points") and curve.role and curve.label and curve.label != first
        found.append(dataclasses.replace(curve, role=f"{curve.role}/{curve.label}") if again else curve)
    return found


def colour_bar(axes: Axes, bar: Axes, plot: Plot) -> None:
    mesh = next((c for c in axes.collections if isinstance(c, QuadMesh)), None)
    if mesh is None:
        bar.set_axis_off()
        return
    axes.figure.colorbar(mesh, cax=bar, label=style.plain(plot.zlabel))
    if isinstance(mesh.norm, LogNorm):
        _log_ticks(bar.yaxis)
    bar.grid(False)
    for spine in bar.spines.values():
        spine.set_visible(False)


def two_ticks(axes: Axes, plot: Plot, numbers: bool) -> None:
    """0 and one round number, well below the top: a low strip has no room for more.

    Args:
        numbers: whether they stand above the bars; the strip is then higher.
    """
    most = max((v for c in plot.curves for v in c.y if v), default=0.0)
    if most <= 0 or plot.yscale == "log":
        return
    size = 10 ** math.floor(math.log10(most))
    tick = max(step * size for step in (1, 2, 5) if step * size <= most)
    axes.set_yticks([0, tick], ["0", _tick(tick)])
    axes.set_ylim(0, max(most * (1.25 if numbers else 1.08), tick / (0.8 if numbers else 0.62)))


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
            if axis is axes.xaxis and not unit:
                most = max(2, min(most, int(_inches(axis) / 0.45)))
            steps = [1, 2, 5, 10] if unit else [1, 2, 2.5, 5, 10]
            whole = axis is across and len(set(values)) > 2 and all(float(v).is_integer() for v in values)
            axis.set_major_locator(
                MaxNLocator(most, steps=steps, min_n_ticks=min(2 if small else 3, most), integer=whole)
            )
            axis.set_major_formatter(FuncFormatter(_tick))
            if scale == "date":
                axis.set_major_locator(MaxNLocator(max(1, int(_inches(axis) / 0.9)), integer=True))
                axis.set_major_formatter(FuncFormatter(lambda day, _: date(day)))
    if plot.labels:
        texts = plot.texts or [""] * len(plot.labels)
        names = [f"{_name(label)}   {style.plain(text)}".rstrip() for label, text in zip(plot.labels, texts)]
        across.set_ticks(range(len(plot.labels)), names)
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
    decades = math.log10(high / low) if low > 0 else math.inf
    if decades < 3.2:
        subs: tuple[float, ...] = (1.0, 2.0, 5.0) if decades > 1 else (1.0, 2.0, 3.0, 4.0, 5.0, 7.0)
        if axis.axis_name == "x" and not _room(axis, decades, _tick(10 ** math.floor(math.log10(high)))):
            subs = subs[:1] if decades > 1 else subs[:5:2]
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter(FuncFormatter(_tick))
    axis.set_minor_formatter(NullFormatter())


def _room(axis: Any, decades: float, longest: str) -> bool:
    """Whether there is room for a label beside that of its double."""
    size = axis.get_major_ticks()[0].label1.get_fontsize() / 72
    return bool(math.log10(2) / decades * _inches(axis) > size * (DIGIT * len(longest) + 1))


def _inches(axis: Any) -> float:
    return float(axis.axes.get_window_extent().width / axis.axes.figure.dpi)


def _tick(value: float, _: int | None = None) -> str:
    if value and (abs(value) >= 1e6 or abs(value) < 1e-4):
        return f"{value:.3g}"
    return f"{value:,.10g}" if abs(value) >= 1000 else f"{value:.6g}"


def _name(label: str) -> str:
    text = style.plain(str(label))
    return text if len(text) <= 40 else text[:39] + "…"


def alone(plot: Plot, ax: Any = None) -> Any:
    """Draw `plot` on `ax` with title and legend, and return it; without `ax` on a new figure of pyplot's."""
    with matplotlib.rc_context(style.PARAMETERS), warnings.catch_warnings():  # type: ignore[arg-type, unused-ignore]
        warnings.simplefilter("ignore")  # a glyph that the font lacks
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(layout="constrained")
        ax.set_title(style.plain(plot.title or plot.name))
        handles = draw(ax, plot, style.Colours(plot.curves))
        if handles:
            ax.legend(list(handles.values()), list(handles), loc="best", fontsize="small")
        if plot.kind == "heat" and plot.z:
            colour_bar(ax, ax.inset_axes((1.03, 0, 0.04, 1)), plot)
        return ax
