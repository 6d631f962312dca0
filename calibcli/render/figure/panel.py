"""Draw one panel: the curves of a Plot with their marks on axes, and the text inside a reliability diagram."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize, to_rgba
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import Normal, Stroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from calibcli.core import number_format
from calibcli.core.figure_data import METRIC_INSIDE, METRIC_OF_SMOOTH, Curve, Plot, date
from calibcli.core.result import Estimate
from calibcli.render.figure import style

# The marks of a curve: bars, points, lines, bands; each also with swapped axes.

Axes = Any  # matplotlib's own types differ between the versions we support
ORDER = {"bars": 2.0, "band": 3.0, "vline": 3.5, "hline": 3.5, "steps": 4.0, "line": 5.0, "points": 6.0}
FILL = {"null": 0.26, "corp_null": 0.26, "smooth": 0.17}  # opacity of a band
CROWDED = 40  # bins beyond which bars lose their outlines
# a gap within chance
QUIET: dict[str, Any] = {"facecolor": style.FAINT_GAP, "edgecolor": style.MID_GAP, "linewidth": 0.6}
OUTLINE = [Stroke(linewidth=3.2, foreground="#303048", alpha=0.7), Normal()]  # makes lines visible on a heat map


def draw_curve(axes: Axes, curve: Curve, colour: str, plot: Plot, place: tuple[int, int], small: bool) -> Any:
    """Draw one curve and return its legend handle; `place` is its index among curves side by side, and their number."""
    mark = _Mark(axes, curve, colour, plot, place, small)
    straight = curve.kind in ("vline", "hline")
    return mark.straight() if straight else getattr(mark, curve.kind)()


class _Mark:
    """A curve on axes: its arrays and drawing order, and a method for each kind of curve."""

    def __init__(self, axes: Axes, curve: Curve, colour: str, plot: Plot, place: tuple[int, int], small: bool) -> None:
        self.axes, self.curve, self.colour, self.plot, self.small = axes, curve, colour, plot, small
        self.k, self.several = place
        x, y = _array(curve.x), _array(curve.y)
        if curve.kind not in ("hline", "vline"):
            x = x[: max(len(y), len(_array(curve.low)))] if curve.kind != "steps" else x
            y = np.append(y, np.full(max(0, len(x) - len(y)), np.nan))
        self.x, self.y = x, y
        self.low, self.high, self.base = (_padded(s, len(x)) for s in (curve.low, curve.high, curve.base))
        self.ends = self.low is not None and self.high is not None
        self.order = ORDER[curve.kind] + (0.4 if curve.role == "gap" else 0.2 if curve.role == "smooth" else 0.0)
        self.flip = plot.flip

    def bars(self) -> Patch:
        curve, x, n = self.curve, self.x, len(self.x)
        align, left = "edge", x
        width = _padded(curve.width, n)
        if not curve.width:
            step = float(np.min(np.diff(np.sort(x)))) if n > 1 and len(np.unique(x)) == n else 1.0
            width, align = np.full(n, 0.76 * (1.0 if self.plot.labels else step) / self.several), "center"
            left = self._beside(width)
        start = np.zeros(n) if self.base is None else self.base
        fine = np.isfinite(self.y) & np.isfinite(start)
        look: dict[str, Any] = {"facecolor": self.colour, "edgecolor": "white", "linewidth": 0.7, "alpha": 0.85}
        if curve.role == "model" and curve.width:
            look |= {"alpha": 0.45, "linewidth": 0.7 if n <= CROWDED else 0}
        if curve.role == "gap":
            look = {"facecolor": style.PALE_GAP, "edgecolor": self.colour, "hatch": "////", "linewidth": 0.7}
            if n > CROWDED:
                look = {"facecolor": style.MID_GAP, "linewidth": 0}
        usual = by_chance(self.plot, curve)
        usual = np.zeros(n, dtype=bool) if usual is None else fine & usual
        for drawn, options in ((fine & ~usual, look), (usual, QUIET)):
            self._blocks(
                left[drawn], start[drawn], self.y[drawn], width[drawn], align=align, zorder=self.order, **options
            )
        if self.ends:
            self._whiskers(left + (width / 2 if align == "edge" else 0), style.INK, self.order + 0.3, 0.9)
        return Patch(**look)

    def points(self) -> Line2D:
        self.x = self._beside(0.76 / self.several) if self.several > 1 else self.x
        star, heat = self.curve.role == "best", self.plot.kind == "heat"
        look: dict[str, Any] = {
            "marker": "*" if star else "o",
            "markersize": (13 if star else 6) * (0.6 if self.small or len(self.x) > 60 else 1),
            "markerfacecolor": "white" if heat else self.colour,
            "markeredgecolor": "black" if heat else "white",
            "markeredgewidth": 0.8,
            "linestyle": "none",
        }
        if self.curve.role == "printed":
            look |= {"marker": "D", "markerfacecolor": "none", "markeredgecolor": self.colour, "markeredgewidth": 1.2}
        if self.ends:
            self._whiskers(self.x, self.colour, self.order - 0.1, 1.6)
        self._plot(self.x, self.y, zorder=self.order, clip_on=not star, **look)
        return Line2D([], [], **look)

    def band(self) -> Patch | Line2D | None:
        if not self.ends:
            return None
        if self.curve.width:
            return self._brackets()
        self._fill(self.order)
        return Patch(facecolor=self.colour, alpha=FILL.get(self.curve.role, 0.2) + 0.05, linewidth=0)

    def _brackets(self) -> Line2D:
        """Draw a band over bars as one bracket per bin, since an area would show through the bars."""
        width = _padded(self.curve.width, len(self.x))
        thin = 0.6 if len(self.x) > CROWDED else 1.1
        centre, half = self.x + width / 2, width * 0.3
        self._whiskers(centre, self.colour, self.order + 1, thin)
        ends = self.axes.vlines if self.flip else self.axes.hlines
        look: dict[str, Any] = {"color": self.colour, "linewidth": thin, "zorder": self.order + 1}
        fine = np.isfinite(self.low) & np.isfinite(self.high)
        for end in (self.low, self.high):
            ends(end[fine], (centre - half)[fine], (centre + half)[fine], **look)
        return Line2D([], [], color=self.colour, linewidth=1.1, marker="_", markersize=6)

    def straight(self) -> Line2D:
        look, vertical = _line_style(self.curve), self.curve.kind == "vline"
        rule = self.axes.axvline if vertical != self.flip else self.axes.axhline
        for v in self.x if vertical else self.y[np.isfinite(self.y)]:
            rule(v, color=self.colour, zorder=self.order, **look)
        return Line2D([], [], color=self.colour, **look)

    def steps(self) -> Line2D:
        look, n = _line_style(self.curve), min(len(self.x), len(self.y))
        x, y = self.x[:n], self.y[:n]
        if len(self.curve.x) == len(self.curve.y) + 1:
            y = np.append(_array(self.curve.y), _array(self.curve.y)[-1:])
        drawn = "steps-pre" if self.flip else "steps-post"
        self._plot(x, y, color=self.colour, zorder=self.order, drawstyle=drawn, **look)
        return Line2D([], [], color=self.colour, **look)

    def line(self) -> Line2D:
        look, effects = _line_style(self.curve), OUTLINE if self.plot.kind == "heat" else None
        if self.ends:
            self._fill(self.order - 1)
        options: dict[str, Any] = {"color": self.colour, "zorder": self.order}
        self._plot(self.x, self.y, **options, path_effects=effects, **look)
        fine = np.append(np.append(False, np.isfinite(self.y)), False)
        alone = fine[1:-1] & ~fine[:-2] & ~fine[2:]
        if alone.any():  # a point without neighbours would be invisible in a line
            self._plot(self.x[alone], self.y[alone], **options, linestyle="none", marker="o", ms=4)
        return Line2D([], [], color=self.colour, path_effects=effects, **look)

    def _plot(self, x: Any, y: Any, **options: Any) -> None:
        self.axes.plot(*((y, x) if self.flip else (x, y)), **options)

    def _beside(self, width: Any) -> Any:
        return self.x + (self.k - (self.several - 1) / 2) * width

    def _blocks(self, left: Any, low: Any, high: Any, width: Any, **options: Any) -> None:
        side = {"left" if self.flip else "bottom": low}
        (self.axes.barh if self.flip else self.axes.bar)(left, high - low, width, **side, **options)

    def _whiskers(self, x: Any, colour: str, order: float, width: float) -> None:
        fine = np.isfinite(self.low) & np.isfinite(self.high) & np.isfinite(x)
        lines = self.axes.hlines if self.flip else self.axes.vlines
        lines(x[fine], self.low[fine], self.high[fine], color=colour, linewidth=width, zorder=order)

    def _fill(self, order: float) -> None:
        """Fill the area of a band."""
        fine = np.isfinite(self.low) & np.isfinite(self.high)
        fill = self.axes.fill_betweenx if self.flip else self.axes.fill_between
        look: dict[str, Any] = {"color": self.colour, "alpha": FILL.get(self.curve.role, 0.2), "linewidth": 0}
        fill(self.x, self.low, self.high, where=fine, zorder=order, **look)


def by_chance(plot: Plot, curve: Curve) -> Any:
    """Return which bins of a gap have an accuracy inside the band of a calibrated model; None without a band."""
    band = next((c for c in plot.curves if c.kind == "band" and c.role == "null" and c.width), None)
    if curve.role != "gap" or curve.base is None or band is None or list(band.x) != list(curve.x):
        return None
    low, high, accuracy = (_padded(s, len(curve.x)) for s in (band.low, band.high, curve.base))
    return None if low is None or high is None else (accuracy >= low) & (accuracy <= high)


def beyond_axis(axes: Axes, plot: Plot) -> Patch | None:
    """Fill between an isotonic curve and the band of a calibrated model where it is outside; returns the handle."""
    line, band = ([c for c in plot.curves if c.role == role] for role in ("corp", "corp_null"))
    if not (line and band) or len(band[0].x) < 2:
        return None
    x, ends = _array(line[0].x), [_array(end) for end in (band[0].low, band[0].high)]
    t = np.unique(np.concatenate([x, _array(band[0].x)]))
    y = np.interp(t, x, _array(line[0].y))
    low, high = (np.interp(t, _array(band[0].x), end) for end in ends)
    edge = np.clip(y, low, high)
    if not np.any(np.abs(y - edge) > 1e-9):
        return None
    look: dict[str, Any] = {"facecolor": style.BEYOND, "alpha": 0.55, "linewidth": 0}
    axes.fill_between(t, edge, y, zorder=4.5, **look)
    return Patch(**look)


def _line_style(curve: Curve) -> dict[str, Any]:
    if curve.role in ("ideal", "limit") or curve.kind in ("vline", "hline"):
        dashes = {"ideal": (0, (1, 1.6)), "limit": (0, (5, 2))}.get(curve.role, (0, (4, 2)))
        return {"linestyle": dashes, "linewidth": 0.67 * rcParams["lines.linewidth"]}
    pattern = (0, (4, 1.5)) if curve.role in ("null", "ridge") else "-"
    return {"linestyle": pattern, "linewidth": rcParams["lines.linewidth"]}


def _array(series: Sequence[float | None] | None) -> Any:
    return np.array([np.nan if v is None else v for v in series or ()], dtype=float)


def _padded(series: Sequence[float | None] | None, n: int) -> Any:
    if series is None:
        return None
    values = _array(series)[:n]
    return np.append(values, np.full(n - len(values), np.nan))


# Text inside a reliability diagram: its ECE and the legend, in a free corner.

CORNERS = ("upper left", "lower right")
MARGIN = 0.025  # between the edge of the panel and a text, as a share of the panel
STEPS = 400  # points at which a line is tested for being covered by a text


def ece_lines(plot: Plot, estimates: Sequence[Estimate], short: bool = False) -> list[str]:
    """Write the ECE with its interval, and its value under calibration; with `short` the ECE alone.

    Beside a smooth curve it is the smooth ECE, or, where that was not measured, the binned one, which is called so.
    """
    if plot.about is None:
        return []
    valued = {e.name.partition(":")[0]: e for e in estimates[::-1] if e.scope == plot.about and e.value is not None}
    smooth = any(c.role == "smooth" for c in plot.curves)
    estimate = (valued.get(METRIC_OF_SMOOTH) if smooth else None) or valued.get(METRIC_INSIDE)
    if estimate is None:
        return []
    shown = number_format.shown(estimate)
    metric, _, options = estimate.name.partition(":")
    name = {METRIC_OF_SMOOTH: "smooth ECE", METRIC_INSIDE: "binned ECE" if smooth else "ECE"}[metric]
    name = " ".join(filter(None, (name, options)))
    lines = [f"{name} {shown.value}" + (f" {shown.interval}" if shown.interval and not short else "")]
    if estimate.null is not None and not short:
        lines.append(f"if calibrated {shown.null}")
    return lines


def diagrams(plots: Sequence[Plot]) -> bool:
    """Whether these plots are small multiples of a reliability diagram."""
    return bool(plots[0].group) and any(c.role == "gap" for c in plots[0].curves)


def legend(axes: Axes, handles: dict[str, Any], lines: Sequence[str], must: bool = False) -> bool:
    """Put the lines and the legend into a free corner, or into two corners; returns whether there was room.

    Args:
        must: without a free corner, put them where they cover least.
    """
    layouts = [[(corner, handles, lines)] for corner in CORNERS]
    if handles and lines:
        layouts += [[(one, {}, lines), (other, handles, [])] for one, other in (CORNERS, CORNERS[::-1])]
    covered = []
    for layout in layouts:
        boxes = [_put(axes, *part) for part in layout]
        renderer = axes.figure.canvas.get_renderer()
        covered.append(sum(_covered(axes, box.get_window_extent(renderer)) for box in boxes))
        for box in boxes:
            box.remove()
        if covered[-1] == 0:
            break
    least = min(covered)
    if least > 0 and not must:
        return False
    for part in layouts[covered.index(least)]:
        _put(axes, *part)
    return True


def _put(axes: Axes, corner: str, handles: dict[str, Any], lines: Sequence[str]) -> Any:
    left = corner == "upper left"
    x, y = (MARGIN, 1 - MARGIN) if left else (1 - MARGIN, MARGIN)
    if not handles:
        options: dict[str, Any] = {"ha": "left" if left else "right", "va": "top" if left else "bottom", "zorder": 9}
        options |= {"fontsize": rcParams["legend.fontsize"], "transform": axes.transAxes, "linespacing": 1.3}
        return axes.text(x, y, "\n".join(lines), fontweight="bold" if len(lines) > 1 else "normal", **options)
    box = axes.legend(
        list(handles.values()), list(handles), loc=corner, bbox_to_anchor=(x, y), title="\n".join(lines) or None,
        alignment="left", handlelength=1.6, labelspacing=0.35, borderpad=0,
    )  # fmt: skip
    box.set_zorder(9)
    box.get_title().set(fontweight="bold", multialignment="left")
    return box


def _covered(axes: Axes, box: Any) -> int:
    """Count the points of lines and bands, and the bars, that lie under a box."""
    points = [_walk(line.get_xydata()) for line in axes.lines]
    points += [_walk(path.vertices) for filled in axes.collections for path in filled.get_paths()]
    wide = box.padded(2)
    total = sum(bool(bar.get_window_extent().overlaps(wide)) for bar in axes.patches)
    for xy in points:
        pixels = axes.transData.transform(xy)
        total += int(np.count_nonzero(((pixels > wide.min) & (pixels < wide.max)).all(axis=1)))
    return total


def _walk(xy: Any) -> Any:
    """Return points spread along a line through these points."""
    xy = np.asarray(xy, dtype=float)
    xy = xy[np.isfinite(xy).all(axis=1)]
    if len(xy) < 2:
        return xy.reshape(-1, 2)
    position = np.linspace(0, len(xy) - 1, max(STEPS, len(xy)))
    return np.stack([np.interp(position, np.arange(len(xy)), xy[:, i]) for i in (0, 1)], axis=1)


# A panel: the curves of a Plot on axes, with scales, ticks and labels.

Handles = dict[str, Any]
DIGIT = 0.64  # width of a digit, as a share of the font size


def draw(axes: Axes, plot: Plot, colours: style.Colours, small: bool = False, stacked: bool = False) -> Handles:
    """Draw `plot` and return the handles of its legend by label.

    Args:
        stacked: whether the texts of categories stand below their names, for a narrow figure.
    """
    if plot.kind == "heat":
        _heat(axes, plot)
    curves = _with_own_roles(without_bins(plot.curves))
    shared = beside(curves) if plot.labels else []
    handles: Handles = {}
    used: set[str] = set()
    drawn = 0
    for i, curve in enumerate(curves):
        place = (shared.index(i), len(shared)) if i in shared else (0, 1)
        colour = colours.of(curve, used)
        handle = draw_curve(axes, curve, colour, plot, place, small)
        if curve.role not in style.ROLES and curve.kind == "line":
            drawn += 1
            for line in (axes.lines[-1], handle) if drawn > style.SOLID else ():
                line.set_linestyle(style.DASHES[(drawn - style.SOLID - 1) % len(style.DASHES)])
        used.add(colour)
        if curve.label and handle is not None:
            handles[style.plain(curve.label)] = handle
            if by_chance(plot, curve) is not None:
                handles["gap within chance"] = Patch(**QUIET)
    if (beyond := beyond_axis(axes, plot)) is not None:
        handles["gap beyond chance"] = beyond
    if plot.kind == "heat" and plot.levels and plot.levels_label and plot.z:
        handles[style.plain(plot.levels_label)] = Line2D([], [], color="white", linewidth=1.5, path_effects=OUTLINE)
    _axes(axes, plot, small, stacked)
    return {} if len(handles) == 1 and _says(axes, plot, *handles) else handles


def beside(curves: Sequence[Curve]) -> list[int]:
    """Return the indices of curves that share categories, so that their bars or points are drawn side by side."""
    marked = [i for i, c in enumerate(curves) if c.kind in ("bars", "points")]
    positions = [x for i in marked for x in curves[i].x]
    return marked if len(set(positions)) < len(positions) else []


def without_bins(curves: Sequence[Curve]) -> list[Curve]:
    """Drop the bins of a reliability diagram that has an isotonic or smooth curve, so that it has one message."""
    if not any(c.role in ("corp", "smooth") for c in curves):
        return list(curves)
    return [c for c in curves if not c.width]


def _says(axes: Axes, plot: Plot, label: str) -> bool:
    """Whether title or axis label say the same as the legend of the only curve; an axis label may take its text."""
    words = [style.plain(text) for text in (plot.title, plot.ylabel, plot.name) if text]
    if words and label.startswith(style.plain(plot.ylabel) or "\n"):
        (axes.set_xlabel if plot.flip else axes.set_ylabel)(label)
        return True
    return any(text.startswith(label) for text in words)


def _with_own_roles(curves: Sequence[Curve]) -> list[Curve]:
    """Give curves of one kind and role but with different labels roles, and so colours, of their own."""
    labels: dict[tuple[str, str], str] = {}
    distinct = []
    for curve in curves:
        first = labels.setdefault((curve.kind, curve.role), curve.label)
        again = curve.kind in ("line", "steps", "points") and curve.role and curve.label and curve.label != first
        distinct.append(dataclasses.replace(curve, role=f"{curve.role}/{curve.label}") if again else curve)
    return distinct


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
    """Set two ticks, 0 and a round number well below the top, as a low strip has no room for more.

    Args:
        numbers: whether numbers stand above the bars, which then need more room.
    """
    most = max((v for c in plot.curves for v in c.y if v), default=0.0)
    if most <= 0 or plot.yscale == "log":
        return
    size = 10 ** math.floor(math.log10(most))
    tick = max(step * size for step in (1, 2, 5) if step * size <= most)
    axes.set_yticks([0, tick], ["0", _tick(tick)])
    axes.set_ylim(0, max(most * (1.25 if numbers else 1.08), tick / (0.8 if numbers else 0.62)))


def write_counts(axes: Axes, plot: Plot) -> None:
    """Write the number above each bar of a histogram, if there is room."""
    bars = next((c for c in plot.curves if c.kind == "bars"), None)
    if bars is not None and len(bars.x) <= 20 and all(v is None or v < 1e5 for v in bars.y):
        axes.bar_label(axes.containers[0], fmt=lambda v: f"{v:.0f}" if v else "", padding=1.5, fontsize=6.5)


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
        if isinstance(norm, LogNorm):  # contours of the logarithm are smoother
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


def _axes(axes: Axes, plot: Plot, small: bool, stacked: bool) -> None:
    """Set scales, limits, ticks and labels; with `flip`, x runs down the side."""
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
        between = "\n" if stacked else "   "
        names = [f"{_name(label)}{between}{style.plain(text)}".rstrip() for label, text in zip(plot.labels, texts)]
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
    """Whether the labels of a number and of its double fit side by side on a logarithmic axis."""
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


def _dark(axes: Axes) -> bool:
    """Return whether the background of axes, or of their figure where they have none, is darker than middle grey."""
    faces = [to_rgba(axes.get_facecolor()), to_rgba(axes.figure.get_facecolor())]
    red, green, blue, _ = next((face for face in faces if face[3] > 0.5), (1.0, 1.0, 1.0, 1.0))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.5


def alone(plot: Plot, ax: Any = None) -> Any:
    """Draw `plot` with title and legend on `ax`, or on a new figure of pyplot, and return the axes."""
    if ax is None:
        import matplotlib.pyplot as plt

        plt.get_backend()  # which chooses one, if none is, and with it settings that are to stay
    with style.settings(style.PARAMETERS):
        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        elif _dark(ax):
            ax.set_facecolor("white")  # the ink of lines, bands and texts is for paper
        ax.set_title(style.plain(plot.title or plot.name))
        handles = draw(ax, plot, style.Colours(plot.curves))
        if handles:
            ax.legend(list(handles.values()), list(handles), loc="best", fontsize="small")
        if plot.kind == "heat" and plot.z:
            colour_bar(ax, ax.inset_axes((1.03, 0, 0.04, 1)), plot)
        return ax
