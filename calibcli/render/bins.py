"""The bins of a reliability diagram, read back from its curves by their roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibcli.result import Cell, Curve, Plot, Result, Table


@dataclass(frozen=True)
class Bin:
    """Edges, rows, accuracy and mean confidence; `low` and `high` are the band of a calibrated model."""

    left: float
    right: float
    count: float | None = None
    accuracy: float | None = None
    confidence: float | None = None
    low: float | None = None
    high: float | None = None


def bins(plot: Plot, strip: Plot | None = None) -> list[Bin]:
    """The bins of a reliability diagram with the counts of the strip under it; none of any other plot."""
    model, gap = curve(plot, "bars", "model"), curve(plot, "bars", "gap")
    if model is None or gap is None:
        return []
    counts = curve(strip, "bars", "count") if strip else None
    band = curve(plot, "band", "null")
    found = []
    for i, x in enumerate(model.x):
        low = high = None
        if band and band.width and len(band.x) == len(model.x):
            low, high = _at(band.low or (), i), _at(band.high or (), i)
        count = _at(counts.y, i) if counts else None
        right = x + (_at(model.width or (), i) or 0.0)
        found.append(Bin(x, right, count, _at(model.y, i), _at(gap.y, i), low, high))
    return found


def merged(some: Sequence[Bin]) -> Bin:
    """Neighbours as one bin, weighted by their rows; it has no band."""
    filled = [(b.count if b.count is not None else 1.0, b.accuracy, b.confidence) for b in some]
    rows = [(n, a, c) for n, a, c in filled if a is not None and c is not None and n > 0]
    total = sum(n for n, _, _ in rows)
    count = total if any(b.count is not None for b in some) else None
    if total <= 0:
        return Bin(some[0].left, some[-1].right, count)
    accuracy = sum(n * a for n, a, _ in rows) / total
    return Bin(some[0].left, some[-1].right, count, accuracy, sum(n * c for n, _, c in rows) / total)


def table(result: Result) -> Table | None:
    """The bins of every reliability diagram of a result."""
    strips = {p.under: p for p in result.plots if p.under}
    rows: list[list[Cell]] = [
        [plot.name, b.left, b.right, b.count, b.accuracy, b.confidence, b.low, b.high]
        for plot in result.plots
        for b in bins(plot, strips.get(plot.name))
    ]
    columns = ["diagram", "left", "right", "rows", "accuracy", "confidence", "calibrated_low", "calibrated_high"]
    return Table(name="bins", columns=columns, rows=rows) if rows else None


def curve(plot: Plot, kind: str, role: str) -> Curve | None:
    """The first curve of that kind and role."""
    return next((c for c in plot.curves if c.kind == kind and c.role == role), None)


def _at(series: Sequence[float | None], i: int) -> float | None:
    return series[i] if i < len(series) else None
