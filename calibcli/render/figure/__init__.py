"""PNG, SVG and PDF from the plots of a Result: the one place that draws with matplotlib.

The same input gives the same bytes: no dates, no random identifiers, no settings of the user's.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from calibcli.plots import Plot
from calibcli.render.figure import panel, style
from calibcli.render.figure.marks import Axes
from calibcli.render.figure.panel import Handles
from calibcli.render.formats import table
from calibcli.result import Result

WIDE, HIGH, SQUARE = 4.9, 3.0, 4.4  # inches of a panel of its own
SMALL = 2.1  # side of one of several panels
STRIP, STRIP_GAP = 0.85, 0.12
ROW_GAP, COLUMN_GAP, LEGEND_GAP, HEADING = 1.0, 0.8, 0.25, 0.3
LEGEND = 2.9  # between panels that have legends of their own
ACROSS = 3  # panels beside each other
MOST = 36  # panels of a group
DATES = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "calib"},
    "pdf": {"CreationDate": None, "ModDate": None},
}
Box = tuple[float, float, float, float]  # left, bottom, width, height in inches


def render(result: Result, format: str, images: bool = True) -> bytes:
    """The figure as a file of `format` (png, svg, pdf). A result without plots gives its table as a picture.

    Without `images` a heat map and its colour bar are paths in an SVG too, however many.
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a glyph the font lacks is drawn as a box
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style.PARAMETERS)  # type: ignore[arg-type, unused-ignore]
        figure = _Page(result).figure if result.plots else _text(result)
        for artist in [] if images else figure.findobj(lambda one: one.get_rasterized()):
            artist.set_rasterized(False)
        file = io.BytesIO()
        figure.savefig(file, format=format, dpi=160, bbox_inches="tight", pad_inches=0.18, metadata=DATES[format])
        return file.getvalue()


class _Page:
    """Rows of panels from the top down, left edges aligned, legends to the right of the data."""

    def __init__(self, result: Result) -> None:
        self.figure = Figure(figsize=(8, 8))
        FigureCanvasAgg(self.figure)
        names = {p.name for p in result.plots}
        self.strips = {p.under: p for p in result.plots if p.under in names and p.under != p.name}
        plots = [p for p in result.plots if p not in self.strips.values()]
        self.colours = style.Colours(c for p in plots for c in p.curves)
        self.top = 8.0  # inches above the bottom of an 8 inch page; rows may lie below it, the file is cut to fit
        rows: dict[object, list[Plot]] = {}  # a group; or up to two panels of their own
        for plot in plots:
            key: object = plot.group or (_row(rows) if self._slim(plot) else id(plot))
            rows.setdefault(key, []).append(plot)
        for panels in rows.values():
            if len(panels) > 1 and panels[0].group:
                self._group(panels[0].group, panels)
            else:
                self._own(panels)

    def _slim(self, plot: Plot) -> bool:
        """Whether a panel leaves room for another at its side."""
        return plot.kind == "xy" and not plot.labels and not _square(plot) and plot.name not in self.strips

    def _own(self, plots: Sequence[Plot]) -> None:
        """Panels without a group, beside each other; a legend widens the gap."""
        left, heights = 1.0, []
        for plot in plots:
            width, height, legend = self._single(plot, left)
            left += width + (LEGEND if legend else COLUMN_GAP) + 0.2
            heights.append(height)
        self.top -= max(heights) + ROW_GAP

    def _single(self, plot: Plot, left: float) -> tuple[float, float, bool]:
        """Draw a panel; its width, its height with the strip below, and whether it has a legend."""
        width, height = _size(plot)
        box = (left, self.top - height, width, height)
        axes = self._axes(box)
        title = "\n".join(textwrap.wrap(plot.title or plot.name, 62))
        axes.set_title("\n".join(style.plain(line) for line in title.split("\n")))
        handles = panel.draw(axes, plot, self.colours)
        below = self._strip(plot, axes, box, counts=True)
        left += width + LEGEND_GAP
        if plot.kind == "heat" and plot.z:
            bar = self._axes((left - 0.05, self.top - height, 0.16, height))
            panel.colour_bar(axes, bar, plot)
            left += 1.0
        self._legend(handles, left, self.top)
        return width, height + below, bool(handles)

    def _group(self, title: str, plots: Sequence[Plot]) -> None:
        drawn = plots[:MOST]
        heading = title if len(plots) <= MOST else f"{title} (first {MOST} of {len(plots)})"
        height = (self.top - HEADING + 0.38) / 8
        self.figure.text(1 / 8, height, style.plain(heading), fontsize=11.5, fontweight="bold")

        same_x, same_y = (len({getattr(p, k) for p in drawn}) == 1 for k in ("xlabel", "ylabel"))
        named = all(p.flip and p.labels for p in drawn)  # names down the side: once, or every panel a row of its own
        own = len({tuple(c.label for c in p.curves) for p in drawn if len(p.curves) > 1}) > 1  # legends of their own
        wide, high = (SMALL, SMALL) if all(map(_square, drawn)) else (SMALL * 1.35, SMALL)
        high = max(_size(p)[1] for p in drawn) * 0.8 if named else high
        columns = 2 if own or len(drawn) == 4 else min(ACROSS, len(drawn))
        columns = 1 if named and len({tuple(p.labels) for p in drawn}) > 1 else columns
        gap = LEGEND if own else 0.45 if same_y else COLUMN_GAP
        strip = 0.6 * STRIP + STRIP_GAP if any(p.name in self.strips for p in drawn) else 0.0
        titles = [textwrap.wrap(plot.title or plot.name, int(wide * 13.5)) for plot in drawn]
        extra = 0.16 * (max(map(len, titles)) - 1)
        self.top -= HEADING + extra
        step = high + strip + 0.75 + extra

        shared: Handles = {}
        for i, plot in enumerate(drawn):
            row, column = divmod(i, columns)
            box = (1.0 + column * (wide + gap), self.top - row * step - high, wide, high)
            axes = self._axes(box)
            axes.set_title("\n".join(map(style.plain, titles[i])), fontsize=9, pad=5)
            handles = panel.draw(axes, plot, self.colours, small=True)
            if plot.ylabel == plot.title and not plot.flip:
                axes.set_ylabel("")
            self._strip(plot, axes, box, counts=False, share=0.6)
            if own:
                self._legend(handles, box[0] + wide + LEGEND_GAP / 2, box[1] + high)
            shared = {**shared, **handles}
            for a in (axes, *axes.child_axes):
                if same_x and i + columns < len(drawn):
                    a.set_xlabel("")
                if same_y and column:
                    a.set_ylabel("")
            if named and column:
                axes.tick_params(labelleft=False)
        if not own:
            self._legend(shared, 1.0 + columns * (wide + gap) - gap + LEGEND_GAP, self.top)
        self.top -= -(-len(drawn) // columns) * step - 0.75 - extra + ROW_GAP

    def _strip(self, plot: Plot, above: Axes, box: Box, counts: bool, share: float = 1.0) -> float:
        """The low panel under `above`, with the same x axis; the inches it takes."""
        strip = self.strips.get(plot.name)
        if strip is None:
            return 0.0
        high = STRIP * share
        axes = above.inset_axes((0, -(high + STRIP_GAP) / box[3], 1, high / box[3]), sharex=above)
        locator, formatter = above.xaxis.get_major_locator(), above.xaxis.get_major_formatter()
        panel.draw(axes, strip, self.colours, small=True)
        above.xaxis.set_major_locator(locator)  # the shared axis keeps the ticks of the panel
        above.xaxis.set_major_formatter(formatter)
        if counts:
            panel.write_counts(axes, strip)
        above.tick_params(labelbottom=False)
        axes.set_xlabel(above.get_xlabel() or style.plain(strip.xlabel))
        above.set_xlabel("")
        return high + STRIP_GAP

    def _legend(self, handles: Handles, left: float, top: float) -> None:
        if handles:
            self.figure.legend(
                list(handles.values()),
                [_wrapped(label) for label in handles],
                loc="upper left",
                bbox_to_anchor=(left / 8, top / 8),
            )

    def _axes(self, box: Box) -> Axes:
        left, bottom, width, height = box
        return self.figure.add_axes((left / 8, bottom / 8, width / 8, height / 8))


def _wrapped(label: str, width: int = 28) -> str:
    """A label in lines that end after a space, or a comma or plus of a spec."""
    lines = [""]
    for part in re.split(r"(?<=[\s,+])", label):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line for whole in lines for line in textwrap.wrap(whole, width))


def _size(plot: Plot) -> tuple[float, float]:
    if _square(plot):
        return SQUARE, SQUARE
    if plot.flip and plot.labels:
        return WIDE, max(1.2, 0.27 * len(plot.labels) * _series(plot))
    return WIDE, HIGH + 0.4 * (plot.kind == "heat")


def _series(plot: Plot) -> float:
    """Room that a category needs: more where several bars stand beside each other."""
    return max(1.0, 0.6 * sum(c.kind in ("bars", "points") for c in plot.curves))


def _row(rows: Mapping[object, Sequence[Plot]]) -> object:
    """The key of a row with room for one more slim panel, else of a new row."""
    return next((k for k, row in rows.items() if isinstance(k, tuple) and len(row) == 1), ("slim", len(rows)))


def _square(plot: Plot) -> bool:
    return plot.xlim is not None and plot.xlim == plot.ylim


def _text(result: Result) -> Figure:
    """The plain table, for a result that has nothing to draw."""
    figure = Figure(figsize=(8, 2))
    FigureCanvasAgg(figure)
    lines = table.render(result).splitlines()[:60]
    figure.text(0, 1, "\n".join(lines).replace("$", r"\$"), family="DejaVu Sans Mono", fontsize=7.5, va="top")
    return figure
