"""Style of figures: a palette that colour-blind readers can distinguish (Okabe and Ito 2008), one colour per role."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib

from calibcli.core.figure_data import Curve
from calibcli.render import terminal

INK = "#26303a"
FAINT = "#d5dae0"
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#5b5b5b")
SOLID = 3  # lines that every reader can distinguish by colour alone; further lines are dashed as well
DASHES = ((0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)))
ROLES = {
    "model": "#0072B2",
    "before": "#E69F00",
    "after": "#0072B2",
    "gap": "#D55E00",
    "count": "#98a2ad",
    "ideal": INK,
    "null": "#7b8794",
    "smooth": "#007a5a",
    "corp": "#0072B2",
    "corp_null": "#7b8794",
    "limit": "#D55E00",
    "best": "#111111",
    "good": "#0072B2",
    "bad": "#D55E00",
    "undecided": "#7b8794",
    "printed": "#111111",
    "ridge": "#ffffff",
}
BEYOND = "#E8590C"  # a gap that chance does not explain
# opaque, so that a gap looks the same on a bar and above it
FAINT_GAP, PALE_GAP, MID_GAP = "#fdf3ec", "#fbe6d8", "#f0ab7c"
PARAMETERS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "axes.facecolor": "white",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.borderaxespad": 0,
    "lines.linewidth": 1.8,
    "hatch.linewidth": 0.7,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "none",  # text stays text: searchable, and small
    "svg.hashsalt": "calib",  # the same input gives the same bytes
    "pdf.fonttype": 42,
    "path.simplify": True,
}


DRAWING = threading.RLock()
"""Matplotlib has one set of settings for all threads: who changes it keeps others of us out until it is as before."""


@contextmanager
def settings(parameters: Any, defaults: bool = False) -> Iterator[None]:
    """Give Matplotlib these parameters, by name, inside the block, on top of its defaults or of the user's.

    Threads take turns. A glyph that the font lacks is drawn as a box, without a warning.
    """
    with DRAWING, matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if defaults:
            matplotlib.rcdefaults()
        matplotlib.rcParams.update(parameters)
        yield


@dataclass(frozen=True, kw_only=True)
class Look:
    """Sizes of a figure style, in inches, and its parameters of Matplotlib.

    Attributes:
        wide, high: a panel of its own.  square: the side of a reliability diagram.
        small: the side of one of several panels.
        strip, gap: height of the panel of counts, and the space above it.
        left: room for the labels of the y axis.  row, column: between panels.  legend: beside a panel.
        across: panels side by side.  counts: whether the strip has numbers.
        titles: whether there are titles; a paper has captions.  aside: whether legends may stand beside panels.
        pad: margin around the figure.  dpi: pixels to the inch.
    """

    wide: float
    high: float
    square: float
    small: float
    strip: float
    gap: float
    left: float
    row: float
    column: float
    legend: float
    across: int
    counts: bool
    titles: bool
    aside: bool
    pad: float
    dpi: int
    parameters: Mapping[str, Any]


LOOKS = {
    "screen": Look(
        wide=4.9, high=3.0, square=4.4, small=2.1, strip=0.85, gap=0.12, left=1.0, row=1.0, column=0.8, legend=2.9,
        across=3, counts=True, titles=True, aside=True, pad=0.18, dpi=160, parameters={},
    ),
    "paper": Look(
        wide=2.7, high=1.8, square=2.7, small=1.22, strip=0.42, gap=0.06, left=0.45, row=0.6, column=0.5, legend=1.6,
        across=2, counts=False, titles=False, aside=False, pad=0.02, dpi=400,
        parameters={
            "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
            "legend.fontsize": 7, "legend.title_fontsize": 7, "axes.linewidth": 0.6, "grid.linewidth": 0.4,
            "lines.linewidth": 1.2, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5,
            "ytick.major.size": 2.5, "axes.titlepad": 4, "axes.labelpad": 2, "hatch.linewidth": 0.5,
        },
    ),
}  # fmt: skip
"""`screen`, and `paper`: a column of 3.3 inches, text of 7 and 8 points, no titles."""


class Colours:
    """Colours by role; a role without one gets a colour not yet used in its panel, and keeps it in the whole figure."""

    def __init__(self, curves: Iterable[Curve]) -> None:
        taken = {ROLES[c.role] for c in curves if c.role in ROLES}
        self._free = [p for p in PALETTE if p not in taken] or list(PALETTE)
        self._given: dict[str, str] = {}

    def of(self, curve: Curve, used: Collection[str]) -> str:
        """Return the colour of `curve` in a panel where the colours `used` are taken."""
        if curve.role in ROLES:
            return ROLES[curve.role]
        colour = self._given.get(curve.role) or next((c for c in self._free if c not in used), self._free[0])
        if curve.role:
            self._given[curve.role] = colour
        self._free.remove(colour)  # moved to the end: the colour unused for longest comes first
        self._free.append(colour)
        return colour


def plain(text: str) -> str:
    """Prepare text to be drawn literally: on one line, and without mathematics between dollar signs."""
    return terminal.clean(text).replace("$", r"\$")
