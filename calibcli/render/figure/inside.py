"""What is written inside a reliability diagram: its ECE, and the legend, in the corner that is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rcParams

from calibcli import numbers
from calibcli.plots import METRIC_INSIDE, Plot
from calibcli.render.figure.marks import Axes
from calibcli.result import Estimate

CORNERS = ("upper left", "lower right")
MARGIN = 0.025  # of the panel, between its edge and a text
STEPS = 400  # points of a line that a text may not cover


def said(plot: Plot, estimates: Sequence[Estimate], short: bool = False) -> list[str]:
    """The ECE with its interval, and what a calibrated model shows; of one of many panels the ECE alone."""
    if plot.about is None:
        return []
    found = next((e for e in estimates if e.name.partition(":")[0] == METRIC_INSIDE and e.scope == plot.about), None)
    if found is None or found.value is None:
        return []
    shown = numbers.shown(found)
    name = METRIC_INSIDE.upper() + found.name.removeprefix(METRIC_INSIDE).replace(":", " ")
    lines = [f"{name} {shown.value}" + (f" {shown.interval}" if shown.interval and not short else "")]
    if found.null is not None and not short:
        lines.append(f"if calibrated {shown.null}")
    return lines


def diagrams(plots: Sequence[Plot]) -> bool:
    """Whether these are small multiples of a reliability diagram."""
    return bool(plots[0].group) and any(c.role == "gap" for c in plots[0].curves)


def legend(axes: Axes, handles: dict[str, Any], lines: Sequence[str], must: bool = False) -> bool:
    """Put the lines and the legend into a free corner, or one into each; whether there was room for both.

    Args:
        must: put them where they cover least.
    """
    ways = [[(corner, handles, lines)] for corner in CORNERS]
    if handles and lines:
        ways += [[(one, {}, lines), (other, handles, [])] for one, other in (CORNERS, CORNERS[::-1])]
    covered = []
    for way in ways:
        boxes = [_put(axes, *part) for part in way]
        renderer = axes.figure.canvas.get_renderer()
        covered.append(sum(_covered(axes, box.get_window_extent(renderer)) for box in boxes))
        for box in boxes:
            box.remove()
        if covered[-1] == 0:
            break
    least = min(covered)
    if least > 0 and not must:
        return False
    for part in ways[covered.index(least)]:
        _put(axes, *part)
    return True


def _put(axes: Axes, corner: str, handles: dict[str, Any], lines: Sequence[str]) -> Any:
    left = corner == "upper left"
    x, y = (MARGIN, 1 - MARGIN) if left else (1 - MARGIN, MARGIN)
    if not handles:
        how: dict[str, Any] = {"ha": "left" if left else "right", "va": "top" if left else "bottom", "zorder": 9}
        how |= {"fontsize": rcParams["legend.fontsize"], "transform": axes.transAxes, "linespacing": 1.3}
        return axes.text(x, y, "\n".join(lines), fontweight="bold" if len(lines) > 1 else "normal", **how)
    found = axes.legend(
        list(handles.values()), list(handles), loc=corner, bbox_to_anchor=(x, y), title="\n".join(lines) or None,
        alignment="left", handlelength=1.6, labelspacing=0.35, borderpad=0,
    )  # fmt: skip
    found.set_zorder(9)
    found.get_title().set(fontweight="bold", multialignment="left")
    return found


def _covered(axes: Axes, box: Any) -> int:
    """How many points of what is drawn lie under a box: lines, ends of bands and bars."""
    points = [_walk(line.get_xydata()) for line in axes.lines]
    points += [_walk(path.vertices) for filled in axes.collections for path in filled.get_paths()]
    wide = box.padded(2)
    total = sum(bool(bar.get_window_extent().overlaps(wide)) for bar in axes.patches)
    for xy in points:
        at = axes.transData.transform(xy)
        total += int(np.count_nonzero(((at > wide.min) & (at < wide.max)).all(axis=1)))
    return total


def _walk(xy: Any) -> Any:
    """Points along a line through these."""
    xy = np.asarray(xy, dtype=float)
    xy = xy[np.isfinite(xy).all(axis=1)]
    if len(xy) < 2:
        return xy.reshape(-1, 2)
    at = np.linspace(0, len(xy) - 1, max(STEPS, len(xy)))
    return np.stack([np.interp(at, np.arange(len(xy)), xy[:, i]) for i in (0, 1)], axis=1)
