"""Draw numbers of different units on one axis: a row each, in units of half its interval, from a reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibcli import numbers
from calibcli.plots import Curve, Plot
from calibcli.result import Estimate

MOST = 40  # rows that a reader can still tell apart on a page


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a forest plot.

    Attributes:
        label: the name of the row; its number and interval are written behind it.
        estimate: the number; without a value or bounds it is not drawn.
        reference: where the axis has its 0: a limit, or 0 for a difference.
        verdict: the legend's text of its colour.  role: `good`, `bad` or `undecided`.
        flipped: whether larger numbers lie to the left.
    """

    label: str
    estimate: Estimate
    reference: float = 0.0
    verdict: str
    role: str
    flipped: bool = False


def forest(rows: Sequence[Row], *, name: str, title: str, axis: str, line: str, group: str = "") -> list[Plot]:
    """One panel with a row for every estimate that has a bound; none where no estimate has.

    The position of a number x is (x - reference) / h, with h half the width of its interval, or the distance to its
    only bound. All intervals so have a width of 2, whatever their unit, and those that hold the reference cross 0.

    Args:
        axis: the label of the axis.  line: what the line at 0 is.  group: of small multiples.
    """
    drawn = [row for row in rows if row.estimate.value is not None and numbers.has_interval(row.estimate)]
    if not drawn:
        return []
    if len(drawn) > MOST:
        title = f"{title} (first {MOST} of {len(drawn)})"
        drawn = drawn[:MOST]
    curves = [Curve(label=line, kind="hline", role="ideal", y=[0.0])]
    for verdict, role in dict.fromkeys((row.verdict, row.role) for row in drawn):
        positions = [(i, *_position(row)) for i, row in enumerate(drawn) if (row.verdict, row.role) == (verdict, role)]
        x, y, low, high = zip(*positions)
        curves.append(Curve(label=verdict, kind="points", role=role, x=list(map(float, x)), y=y, low=low, high=high))
    texts = []
    for e, reference in ((row.estimate, row.reference) for row in drawn):
        shown, unit = numbers.shown(e, reference), "" if e.unit in ("", "probability", *numbers.UNITS) else f" {e.unit}"
        texts.append(f"{shown.value}{unit} {shown.interval}")
    labels = [row.label for row in drawn]
    return [
        Plot(name=name, title=title, ylabel=axis, curves=curves, labels=labels, texts=texts, flip=True, group=group)
    ]


def _position(row: Row) -> tuple[float, float | None, float | None]:
    """Number and bounds in units of half the interval, from the reference."""
    e = row.estimate
    value = float(e)
    ends = [end for end in (e.low, e.high) if end is not None]
    half = (ends[1] - ends[0]) / 2 if len(ends) == 2 else abs(value - ends[0])
    half = half or abs(value - row.reference) or 1.0  # a number that is known without error
    sign = -1.0 if row.flipped else 1.0
    low, high = (None if end is None else sign * (end - row.reference) / half for end in (e.low, e.high))
    return sign * (value - row.reference) / half, *((high, low) if row.flipped else (low, high))
