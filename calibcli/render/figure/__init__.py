"""Draw the plots of a Result with Matplotlib, as PNG, SVG or PDF.

The same input gives the same bytes: no dates, no random identifiers, no settings of the user.
"""

from __future__ import annotations

import dataclasses
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from calibcli.core.figure_data import Plot
from calibcli.core.options import Style
from calibcli.core.result import Result
from calibcli.render import table_contents, terminal
from calibcli.render.figure import panel, style
from calibcli.render.figure.panel import Axes, Handles
from calibcli.render.formats import table

LEGEND_GAP, HEADING, BELOW = 0.25, 0.3, 0.42  # inches
MOST = 36  # panels that a group shows
DATES: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "calib"},
    "pdf": {"CreationDate": None, "ModDate": None},
}
SENTENCE = {"png": "Description", "svg": "Description", "pdf": "Subject"}
Box = tuple[float, float, float, float]  # left, bottom, width, height in inches


def render(result: Result, format: str, look: Style = "screen", images: bool = True) -> bytes:
    """Draw the figure as a file of `format` (png, svg, pdf); a result without plots gives its table as a picture.

    Args:
        look: `screen` or `paper`, see `style.LOOKS`.
        images: whether an SVG may hold a heat map as an image; otherwise its cells are paths, however many.
    """
    chosen = style.LOOKS[look]
    with drawn(result, chosen) as figure:
        heat = not images and any(plot.kind == "heat" for plot in result.plots)
        for mesh in figure.findobj(QuadMesh) if heat else []:
            mesh.set(rasterized=False, edgecolor="face", linewidth=0.8)  # else the ground shines between the cells
        file = io.BytesIO()
        metadata = dict(DATES[format])
        if sentence := terminal.clean(table_contents.headline(result)):
            metadata[SENTENCE[format]] = sentence  # a description for readers who cannot see the figure
        options: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": chosen.pad, "metadata": metadata}
        figure.savefig(file, format=format, dpi=chosen.dpi, **options)
        return file.getvalue()


def parts(result: Result) -> dict[str, Result]:
    """Split a result into its figures, by name: a panel with its strip, small multiples, or before and after."""
    names = {p.name for p in result.plots}
    by_key: dict[str, list[Plot]] = {}
    for plot in result.plots:
        if plot.under not in names or plot.under == plot.name:
            key = plot.group or _pair(plot) or plot.name
            by_key.setdefault(key, []).extend(
                [plot, *(p for p in result.plots if p.under == plot.name and p is not plot)]
            )
    named: dict[str, Result] = {}
    for key, plots in by_key.items():
        name = terminal.file_name(key.lower(), "figure")
        name = name if name not in named else f"{name}_{len(named)}"
        named[name] = dataclasses.replace(result, plots=plots)
    return named


def main(result: Result) -> Result:
    """Keep the main figure: the first (two after a summary in rows), small multiples of reliability, and heat maps.

    A heat map is drawn only where the method is about it, as the one of temperature and focusing parameter is.
    """
    every = [part.plots for part in parts(result).values()]
    if len(every) < 2:
        return result
    first = 2 if every[0][0].texts else 1
    kept = [plots for i, plots in enumerate(every) if i < first or panel.diagrams(plots) or plots[0].kind == "heat"]
    return dataclasses.replace(result, plots=[plot for plots in kept for plot in plots])


@contextmanager
def drawn(result: Result, look: style.Look = style.LOOKS["screen"]) -> Iterator[Figure]:
    """Draw a figure; Matplotlib has our settings inside the block, for saving it."""
    with style.settings({**style.PARAMETERS, **look.parameters}, defaults=True):
        yield _Page(result, look).figure if result.plots else _text(result)


class _Page:
    """A figure laid out in rows of panels: left edges aligned, legends beside the panels or in a free corner.

    Positions are computed in inches, so that panels have the same size in every figure; Matplotlib's own layouts shrink
    panels to make room for legends and titles.
    """

    def __init__(self, result: Result, look: style.Look) -> None:
        self.look, self.estimates = look, result.estimates
        self.figure = Figure(figsize=(8, 8))
        FigureCanvasAgg(self.figure)
        names = {p.name for p in result.plots}
        self.strips = {p.under: p for p in result.plots if p.under in names and p.under != p.name}
        plots = [p for p in result.plots if p not in self.strips.values()]
        self.colours = style.Colours(c for p in plots for c in p.curves)
        # inches from the bottom of an 8 inch page; rows may lie below it, since the file is cropped to fit
        self.top = 8.0
        rows: dict[object, list[Plot]] = {}  # by key: a group, or up to two panels without one
        for plot in plots:
            slim = plot.kind == "xy" and not plot.labels and not _square(plot) and plot.name not in self.strips
            half = next((k for k, row in rows.items() if isinstance(k, tuple) and len(row) == 1), ("slim", len(rows)))
            key: object = plot.group or _pair(plot) or (half if slim else id(plot))  # two slim panels share a row
            rows.setdefault(key, []).append(plot)
        for panels in rows.values():
            if len(panels) > 1 and panels[0].group:
                self._group(panels[0].group, panels)
            else:
                self._ungrouped(panels)

    def _ungrouped(self, plots: Sequence[Plot]) -> None:
        """Draw panels without a group side by side; a legend widens the gap."""
        look = self.look
        left, heights = look.left, []
        waiting: Handles = {}  # legend of `before`, which is drawn with that of `after`
        for i, plot in enumerate(plots):
            first = bool(_pair(plot)) and i + 1 < len(plots)
            width, height, legend, waiting = self._panel(plot, left, waiting, first)
            left += width + (look.legend if legend else look.column) + look.left / 5
            heights.append(height)
        self.top -= max(heights) + look.row

    def _panel(self, plot: Plot, left: float, waiting: Handles, first: bool) -> tuple[float, float, bool, Handles]:
        """Draw a panel.

        Returns:
            Its width; its height with the strip below; whether a legend stands beside it; and the handles that the
            legend of the next panel has to include, which are all handles if this is the first of a pair.
        """
        look = self.look
        width, height = _size(plot, look)
        box = (left, self.top - height, width, height)
        axes = self._axes(box)
        title = _lines(plot.title or plot.name, int(width * 13))
        if look.titles or _pair(plot):
            axes.set_title("\n".join(map(style.plain, title)))
        handles = {**waiting, **panel.draw(axes, plot, self.colours, stacked=not look.aside)}
        below = self._strip(plot, axes, box, counts=look.counts)
        left += width + LEGEND_GAP
        if plot.kind == "heat" and plot.z:
            bar = self._axes((left - 0.05, self.top - height, 0.16, height))
            panel.colour_bar(axes, bar, plot)
            left += 1.0
        lines = panel.ece_lines(plot, self.estimates)
        if first:
            panel.legend(axes, {}, lines, must=True)
            return width, height + below, False, handles
        if (lines or not look.aside) and panel.legend(axes, handles, lines):
            handles, lines = {}, []
        elif not look.aside:
            title_text = "" if panel.legend(axes, {}, lines) else "\n".join(lines)
            start = look.left - _overhang(plot, look)
            self._legend(handles, start, self.top - height - below - BELOW, columns=2, title=title_text)
            return width, height + below + BELOW, False, {}
        self._legend(handles, left, self.top, title="\n".join(lines))
        return width, height + below, bool(handles), {}

    def _group(self, title: str, plots: Sequence[Plot]) -> None:
        look, drawn = self.look, plots[:MOST]
        heading = title if len(plots) <= MOST else f"{title} (first {MOST} of {len(plots)})"
        height = (self.top - HEADING + 0.38) / 8
        if look.titles:
            self.figure.text(look.left / 8, height, style.plain(heading), fontsize=11.5, fontweight="bold")

        axes_labels = [(p.ylabel, p.xlabel) if p.flip else (p.xlabel, p.ylabel) for p in drawn]
        same_x, same_y = (len(set(labels)) == 1 for labels in zip(*axes_labels, strict=True))
        # categories down the side: written once, or each panel has a row of its own
        named = all(p.flip and p.labels for p in drawn)
        # panels with different curves have legends of their own
        separate = len({tuple(c.label for c in p.curves) for p in drawn if len(p.curves) > 1}) > 1
        separate = separate and not (named and all(c.role for p in drawn for c in p.curves))  # a role has one colour
        wide, high = (look.small, look.small) if all(map(_square, drawn)) else (look.small * 1.35, look.small)
        columns = 2 if separate or len(drawn) == 4 else min(look.across, len(drawn))
        columns = (
            1
            if (named and len({(*p.labels, *p.texts) for p in drawn}) > 1) or (separate and not look.aside)
            else columns
        )
        wide = look.wide if named and columns == 1 else wide
        gap = look.legend if separate else look.column * (0.56 if same_y else 1)
        if not look.aside:  # at most as wide as the column of a paper, so that it is not shrunk
            hang = max(_overhang(p, look) for p in drawn)
            fits = (look.wide + 0.1 - hang - gap * (columns - 1)) / columns
            wide, high = min(wide, fits), min(high, fits) if all(map(_square, drawn)) else high
        strip = 0.6 * look.strip + look.gap if any(p.name in self.strips for p in drawn) else 0.0
        titles = [_lines(plot.title or plot.name, int(wide * 13.5)) for plot in drawn]
        extra = 0.16 * (max(map(len, titles)) - 1)
        self.top -= HEADING + extra
        between = strip + 0.75 * look.row + extra + (0 if same_x else 0.1)
        # the height of each row of panels; categories take as much as they need
        highs = [high] * -(-len(drawn) // columns)
        if named:
            highs = [
                max(0.8 * _size(p, look)[1] for p in drawn[i : i + columns]) for i in range(0, len(drawn), columns)
            ]

        shared: Handles = {}
        for i, plot in enumerate(drawn):
            row, column = divmod(i, columns)
            high = highs[row]
            top = self.top - sum(highs[:row]) - row * between
            box = (look.left + column * (wide + gap), top - high, wide, high)
            axes = self._axes(box)
            axes.set_title(
                "\n".join(map(style.plain, titles[i])), fontsize=min(9, look.parameters.get("font.size", 9)), pad=4
            )
            handles = panel.draw(
                axes, plot, self.colours, small=not (named and columns == 1 and look.aside), stacked=not look.aside
            )
            if plot.ylabel == plot.title and not plot.flip:
                axes.set_ylabel("")
            self._strip(plot, axes, box, counts=False, share=0.6)
            panel.legend(axes, {}, panel.ece_lines(plot, self.estimates, short=True), must=True)
            if separate:
                self._legend(handles, box[0] + wide + LEGEND_GAP / 2, box[1] + high)
            shared = {**shared, **handles}
            for a in (axes, *axes.child_axes):
                if same_x and i + columns < len(drawn):
                    a.set_xlabel("")
                if same_y and column:
                    a.set_ylabel("")
            if named and column:
                axes.tick_params(labelleft=False)
        if not separate:
            if look.aside:
                self._legend(shared, look.left + columns * (wide + gap) - gap + LEGEND_GAP, self.top)
            else:
                bottom = self.top - sum(highs) - (len(highs) - 1) * between - strip
                self._legend(shared, look.left - max(_overhang(p, look) for p in drawn), bottom - BELOW, columns=2)
        used = sum(highs) + len(highs) * between
        self.top -= used - 0.75 * look.row - extra + look.row + (0 if look.aside else BELOW)

    def _strip(self, plot: Plot, above: Axes, box: Box, counts: bool, share: float = 1.0) -> float:
        """Draw the low panel under `above`, with the same x axis; returns its height in inches."""
        strip = self.strips.get(plot.name)
        if strip is None:
            return 0.0
        high, gap = self.look.strip * share, self.look.gap
        axes = above.inset_axes((0, -(high + gap) / box[3], 1, high / box[3]), sharex=above)
        locator, formatter = above.xaxis.get_major_locator(), above.xaxis.get_major_formatter()
        panel.draw(axes, strip, self.colours, small=True)
        above.xaxis.set_major_locator(locator)  # the shared axis keeps the ticks of the panel
        above.xaxis.set_major_formatter(formatter)
        panel.two_ticks(axes, strip, counts)
        if counts:
            panel.write_counts(axes, strip)
        above.tick_params(labelbottom=False)
        axes.set_xlabel(above.get_xlabel() or style.plain(strip.xlabel))
        above.set_xlabel("")
        return high + gap

    def _legend(self, handles: Handles, left: float, top: float, columns: int = 1, title: str = "") -> None:
        if handles:
            legend = self.figure.legend(
                list(handles.values()),
                [_wrapped(label) for label in handles],
                loc="upper left",
                bbox_to_anchor=(left / 8, top / 8),
                ncols=columns,
                title=title or None,
                alignment="left",
            )
            legend.get_title().set(fontweight="bold", multialignment="left")

    def _axes(self, box: Box) -> Axes:
        left, bottom, width, height = box
        return self.figure.add_axes((left / 8, bottom / 8, width / 8, height / 8))


def _lines(title: str, width: int) -> list[str]:
    """Wrap a title, without breaking "n = 500"."""
    kept = title.replace(" = ", "\u00a0=\u00a0")
    return [line.replace("\u00a0=\u00a0", " = ") for line in textwrap.wrap(kept, width, break_long_words=False)]


def _wrapped(label: str, width: int = 28) -> str:
    """Wrap a label after spaces, and after a comma or plus of a spec."""
    lines = [""]
    for part in re.split(r"(?<=[\s,+])", label):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line for whole in lines for line in textwrap.wrap(whole, width))


def _size(plot: Plot, look: style.Look) -> tuple[float, float]:
    if _square(plot):
        return look.square, look.square
    if plot.flip and plot.labels:
        room = max(1.0, 0.6 * len(panel.beside(plot.curves)))  # more where several bars stand side by side
        row = 0.27 if look.aside or not plot.texts else 0.38  # two lines
        return look.wide - _overhang(plot, look), max(0.5 if plot.texts else 1.2, row * len(plot.labels) * room)
    return look.wide, look.high + 0.4 * (plot.kind == "heat")


def _overhang(plot: Plot, look: style.Look) -> float:
    """Return the inches of a paper's column that category names take beyond the room for numbers."""
    if look.aside or not (plot.flip and plot.labels):
        return 0.0
    longest = max(map(len, (*(label[:40] for label in plot.labels), *plot.texts)))
    return max(0.0, 0.055 * longest + 0.15 - look.left)


def _pair(plot: Plot) -> str:
    """Return the key of diagrams that stand side by side as before and after; or ""."""
    return "before and after" if plot.about in ("before", "after") and not plot.group else ""


def _square(plot: Plot) -> bool:
    return plot.xlim is not None and plot.xlim == plot.ylim


def _text(result: Result) -> Figure:
    """Draw the plain table, for a result without plots."""
    figure = Figure(figsize=(8, 2))
    FigureCanvasAgg(figure)
    lines = table.render(result).splitlines()[:60]
    figure.text(0, 1, "\n".join(lines).replace("$", r"\$"), family="DejaVu Sans Mono", fontsize=7.5, va="top")
    return figure
