"""How figures look: one palette that colour-blind readers can tell apart (Okabe and Ito 2008), one colour per role."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from calibcli.render import stream
from calibcli.result import Curve

INK = "#26303a"
FAINT = "#d5dae0"
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#5b5b5b")
ROLES = {
    "model": "#0072B2",
    "before": "#E69F00",
    "after": "#0072B2",
    "gap": "#D55E00",
    "count": "#98a2ad",
    "ideal": INK,
    "null": "#7b8794",
    "smooth": "#007a5a",
    "limit": "#D55E00",
    "best": "#111111",
    "ridge": "#ffffff",
}
PALE_GAP, MID_GAP = "#fbe6d8", "#f0ab7c"  # opaque, so that a gap looks the same on and above a bar
PARAMETERS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
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


class Colours:
    """Colours by role; a role that has none takes the next of the palette and keeps it through the figure."""

    def __init__(self, curves: Iterable[Curve]) -> None:
        taken = {ROLES[c.role] for c in curves if c.role in ROLES}
        self._free = itertools.cycle([p for p in PALETTE if p not in taken] or PALETTE)
        self._given: dict[str, str] = {}

    def of(self, curve: Curve) -> str:
        if curve.role in ROLES:
            return ROLES[curve.role]
        if not curve.role:
            return next(self._free)
        return self._given.setdefault(curve.role, "") or self._new(curve.role)

    def _new(self, role: str) -> str:
        self._given[role] = next(self._free)
        return self._given[role]


def plain(text: str) -> str:
    """Text drawn as it is: no line breaks of its own, no mathematics between dollar signs."""
    return stream.clean(text).replace("$", r"\$")
