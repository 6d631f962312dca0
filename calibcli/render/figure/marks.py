"""The marks of a curve on axes: bars, points, lines, bands; each also with its axes swapped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import Normal, Stroke

from calibcli.plots import Curve, Plot
from calibcli.render.figure import style

Axes = Any  # matplotlib's own types differ between the versions we support
ORDER = {"bars": 2.0, "band": 3.0, "vline": 3.5, "hline": 3.5, "steps": 4.0, "line": 5.0, "points": 6.0}
FILL = {"null": 0.26, "corp_null": 0.26, "smooth": 0.17}  # opacity of a band
CROWDED = 40  # bins beyond which bars lose their outlines
QUIET: dict[str, Any] = {"facecolor": style.FAINT_GAP, "edgecolor": style.MID_GAP, "linewidth": 0.6}  # a gap by chance
OUTLINE = [Stroke(linewidth=3.2, foreground="#303048", alpha=0.7), Normal()]  # of what is drawn on a heat map


def draw(axes: Axes, curve: Curve, colour: str, plot: Plot, place: tuple[int, int], small: bool) -> Any:
    """Draw one curve and return its legend handle. `place`: its position among curves that stand beside each other."""
    mark = _Mark(axes, curve, colour, plot, place, small)
    straight = curve.kind in ("vline", "hline")
    return mark.straight() if straight else getattr(mark, curve.kind)()


class _Mark:
    """A curve's arrays, and where and in which order it is drawn; each kind of curve has a method of that name."""

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
        for drawn, how in ((fine & ~usual, look), (usual, QUIET)):
            self._blocks(left[drawn], start[drawn], self.y[drawn], width[drawn], align=align, zorder=self.order, **how)
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
        """A band over bars as brackets, one a bin: an area would show through the bars."""
        width = _padded(self.curve.width, len(self.x))
        thin = 0.6 if len(self.x) > CROWDED else 1.1
        centre, half = self.x + width / 2, width * 0.3
        fine = np.isfinite(self.low) & np.isfinite(self.high)
        self._whiskers(centre, self.colour, self.order + 1, thin)
        ends = self.axes.vlines if self.flip else self.axes.hlines
        for end in (self.low[fine], self.high[fine]):
            ends(
                end,
                (centre - half)[fine],
                (centre + half)[fine],
                color=self.colour,
                linewidth=thin,
                zorder=self.order + 1,
            )
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
        how: dict[str, Any] = {"color": self.colour, "zorder": self.order}
        self._plot(self.x, self.y, **how, path_effects=effects, **look)
        fine = np.append(np.append(False, np.isfinite(self.y)), False)
        alone = fine[1:-1] & ~fine[:-2] & ~fine[2:]
        if alone.any():  # a line needs two points
            self._plot(self.x[alone], self.y[alone], **how, linestyle="none", marker="o", ms=4)
        return Line2D([], [], color=self.colour, path_effects=effects, **look)

    def _plot(self, x: Any, y: Any, **how: Any) -> None:
        self.axes.plot(*((y, x) if self.flip else (x, y)), **how)

    def _beside(self, width: Any) -> Any:
        return self.x + (self.k - (self.several - 1) / 2) * width

    def _blocks(self, left: Any, low: Any, high: Any, width: Any, **how: Any) -> None:
        side = {"left" if self.flip else "bottom": low}
        (self.axes.barh if self.flip else self.axes.bar)(left, high - low, width, **side, **how)

    def _whiskers(self, x: Any, colour: str, order: float, width: float) -> None:
        fine = np.isfinite(self.low) & np.isfinite(self.high) & np.isfinite(x)
        lines = self.axes.hlines if self.flip else self.axes.vlines
        lines(x[fine], self.low[fine], self.high[fine], color=colour, linewidth=width, zorder=order)

    def _fill(self, order: float) -> None:
        """Fill between the ends of a band."""
        fine = np.isfinite(self.low) & np.isfinite(self.high)
        fill = self.axes.fill_betweenx if self.flip else self.axes.fill_between
        look: dict[str, Any] = {"color": self.colour, "alpha": FILL.get(self.curve.role, 0.2), "linewidth": 0}
        fill(self.x, self.low, self.high, where=fine, zorder=order, **look)


def by_chance(plot: Plot, curve: Curve) -> Any:
    """For a gap: the bins whose accuracy lies in the band of a calibrated model. None without such a band."""
    band = next((c for c in plot.curves if c.kind == "band" and c.role == "null" and c.width), None)
    if curve.role != "gap" or curve.base is None or band is None or list(band.x) != list(curve.x):
        return None
    low, high, accuracy = (_padded(s, len(curve.x)) for s in (band.low, band.high, curve.base))
    return None if low is None or high is None else (accuracy >= low) & (accuracy <= high)


def beyond(axes: Axes, plot: Plot) -> Patch | None:
    """Fill what lies between an isotonic curve and the band of a calibrated model, where it is outside; its handle."""
    line, band = ([c for c in plot.curves if c.role == role] for role in ("corp", "corp_null"))
    if not (line and band) or len(band[0].x) < 2:
        return None
    x, ends = _array(line[0].x), [_array(end) for end in (band[0].low, band[0].high)]
    t = np.unique(np.concatenate([x, np.linspace(x[0], x[-1], 4 * len(ends[0])), _array(band[0].x)]))
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
    return {
        "linestyle": (0, (4, 1.5)) if curve.role in ("null", "ridge") else "-",
        "linewidth": rcParams["lines.linewidth"],
    }


def _array(series: Sequence[float | None] | None) -> Any:
    return np.array([np.nan if v is None else v for v in series or ()], dtype=float)


def _padded(series: Sequence[float | None] | None, n: int) -> Any:
    if series is None:
        return None
    values = _array(series)[:n]
    return np.append(values, np.full(n - len(values), np.nan))
