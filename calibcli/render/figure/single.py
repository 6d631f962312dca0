"""One panel on axes that somebody has, or on a figure of its own."""

from __future__ import annotations

import warnings
from typing import Any

import matplotlib

from calibcli.plots import Plot
from calibcli.render.figure import panel, style


def draw(plot: Plot, ax: Any = None) -> Any:
    """Draw `plot` on `ax` with title and legend, and return it; without `ax` on a new figure of pyplot's."""
    with matplotlib.rc_context(style.PARAMETERS), warnings.catch_warnings():  # type: ignore[arg-type, unused-ignore]
        warnings.simplefilter("ignore")  # a glyph that the font lacks
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots(layout="constrained")
        ax.set_title(style.plain(plot.title or plot.name))
        handles = panel.draw(ax, plot, style.Colours(plot.curves))
        if handles:
            ax.legend(list(handles.values()), list(handles), loc="best", fontsize="small")
        if plot.kind == "heat" and plot.z:
            panel.colour_bar(ax, ax.inset_axes((1.03, 0, 0.04, 1)), plot)
        return ax
