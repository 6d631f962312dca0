"""The data of figures as plain Python values: panels with labelled axes, and the curves in them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal

Tier = Literal["few", "asked", "all"]
"""When a screen shows a part of a result: always; when numbers were asked for by name; only with `-v`."""
SCREEN = {"screen": True}
"""Metadata of a field that only guides the screen: it is not written to files and not compared."""
SAVED_IF = "saved if"
"""Metadata of a field that is written to files only if a function of the whole says so."""
RULES = "rules"
"""How the names of the panels of rules begin, which text formats leave out, since the verdicts have their numbers."""


class PlainList(list[Any]):
    """A list that is known to be plain data, so that nobody looks at its thousands of values again."""


PLAIN = {bool, int, str, type(None), PlainList}
"""Types that are plain data as they are."""
METRIC_INSIDE, METRIC_OF_SMOOTH = "ece", "smece"
"""Metrics whose value is written inside a reliability diagram (see `Plot.about`), without and with a smooth curve."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One drawn series; `kind` is its geometry, `role` its meaning. None leaves a gap.

    kind:
        `line`: y over x; with `low`/`high`, a shaded band around it.
        `band`: filled from `low` to `high` over x (with `width`: one step per bin, x its left edge).
        `bars`: from `base` (0 when absent) to y; x is the left edge and `width` the width (without `width`: centred on
            x). `low`/`high` are error bars.
        `steps`: y[i] holds from x[i] to x[i + 1]; x may be one longer than y.
        `points`: markers, `low`/`high` their error bars.
        `vline`: a line across the panel at each x.  `hline`: one at each y (x is empty).

    role: a role has one colour in every panel of a figure, so the line and the band of one thing share a role.
        `model`, `before`, `after`: the thing measured (accuracy of a bin, a metric, ...).
        `gap`: bars from accuracy (`base`) to mean confidence (y).    `count`: numbers of rows.
        `ideal`: the diagonal, or what a perfect model shows.         `null`: what chance allows a perfect model.
        `corp`: isotonic regression.                                  `corp_null`: what chance allows it.
        `smooth`: a smoothed estimate.                                `limit`: a gate's limit, a target.
        `best`: the optimum or the choice made.                       `ridge`: the ridge on a heat map.
        `printed`: what a paper has; a hollow diamond.                `good`, `bad`, `undecided`: by verdict.
        Anything else (`focal`, `layer1`, ...) takes the next colour of the palette; "" a new one for each curve.

    label: the legend's text; "" keeps the curve out of the legend.
    """

    label: str
    kind: Literal["line", "band", "bars", "steps", "points", "vline", "hline"]
    x: Sequence[float] = ()
    y: Sequence[float | None] = ()
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    width: Sequence[float] | None = None
    base: Sequence[float | None] | None = None
    role: str = ""

    def __post_init__(self) -> None:
        become(self, _numbers, "x", "y", "low", "high", "width", "base")


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Data of one figure panel: labelled axes with units, and a title that names the quantity and n.

    A reliability diagram consists of two panels, which every renderer recognises by these roles::

        Plot(name="reliability", title="Reliability of the top label, n = 500", xlim=(0, 1), ylim=(0, 1),
             xlabel="confidence", ylabel="accuracy", curves=[
                 Curve(label="accuracy", kind="bars", role="model", x=edges[:-1], width=widths, y=accuracy),
                 Curve(label="gap", kind="bars", role="gap", x=edges[:-1], width=widths, base=accuracy, y=confidence),
                 Curve(label="if calibrated", kind="band", role="null", x=edges[:-1], width=widths, low=.., high=..),
                 Curve(label="if calibrated", kind="band", role="corp_null", x=grid, low=.., high=..),
                 Curve(label="isotonic regression", kind="line", role="corp", x=knots, y=..),
                 Curve(label="perfect", kind="line", role="ideal", x=[0, 1], y=[0, 1])])
        Plot(name="confidence", under="reliability", ylabel="rows", curves=[
                 Curve(label="rows", kind="bars", role="count", x=edges[:-1], width=widths, y=counts)])

    Pictures draw the line (`corp` or `smooth`) instead of the bars, which are for the terminal and for tables.

    Attributes:
        kind: `xy` (curves) or `heat` (`z[row][column]` at the centres `y[row]`, `x[column]`; `curves` are drawn on it).
        xscale: with `date`, x counts days as `datetime.date.toordinal` does.
        xlim, ylim: (low, high), or None to fit the data.
        labels: names of the categorical x positions 0, 1, ... (layers, classes, differences).
        flip: draw categories from the top down and values to the right; for long labels (forest plot, bars per layer).
        zlabel, zscale: colour bar of a heat map; with `log`, z <= 0 takes the lowest colour.
        levels: contours of z, whose meaning `levels_label` says (the acceptable set: `levels=[best + 1.92 / n]`).
        group: panels of the same group are small multiples under that heading; "" gives the panel a row of its own.
        under: name of the Plot below which this one is drawn as a low strip with the same x axis.
        texts: numbers written beside categorical rows whose axis is in another unit.
        about: for a reliability diagram, the scope of the estimate whose ECE is written inside it; None for no number.
        tier: when a screen draws it.
    """

    name: str
    title: str = ""
    xlabel: str = ""
    ylabel: str = ""
    kind: Literal["xy", "heat"] = "xy"
    curves: Sequence[Curve] = ()
    xscale: Literal["linear", "log", "date"] = "linear"
    yscale: Literal["linear", "log"] = "linear"
    xlim: Sequence[float] | None = None
    ylim: Sequence[float] | None = None
    x: Sequence[float] = ()
    y: Sequence[float] = ()
    z: Sequence[Sequence[float | None]] = ()
    zlabel: str = ""
    zscale: Literal["linear", "log"] = "linear"
    levels: Sequence[float] = ()
    levels_label: str = ""
    labels: Sequence[str] = ()
    texts: Sequence[str] = ()
    flip: bool = False
    group: str = ""
    under: str = ""
    about: str | None = None
    tier: Tier = field(default="few", compare=False, repr=False, metadata=SCREEN)

    def __post_init__(self) -> None:
        become(self, lambda rows: [_numbers(row) for row in rows], "z")
        become(self, _numbers, "xlim", "ylim", "x", "y", "levels", "labels", "texts")
        become(self, list, "curves")


def first_alone(plots: Sequence[Plot], preferred: Callable[[Plot], bool] = lambda plot: False) -> list[Plot]:
    """Mark all panels but one, with the strip under it, to be drawn only with `-v`.

    Args:
        preferred: whether a panel is to be drawn rather than the first one.
    """
    panels = [p for p in plots if not p.under and p.tier != "all"]
    first = next(iter([*filter(preferred, panels), *panels]), None)
    shown = set() if first is None else {first.name}
    return [p if shown & {p.name, p.under} else replace(p, tier="all") for p in plots]


class Later(Sequence[Any]):
    """A sequence that is made when it is first read, such as plots that nobody may ask for."""

    def __init__(self, make: Callable[[], Sequence[Any]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> list[Any]:
        return list(self._make())

    def __getitem__(self, index: Any) -> Any:
        return self._made[index]

    def __len__(self) -> int:
        return len(self._made)

    def __eq__(self, other: object) -> bool:
        return self._made == (other._made if isinstance(other, Later) else other)

    def __add__(self, other: Sequence[Any]) -> list[Any]:
        return [*self._made, *other]

    def __radd__(self, other: Sequence[Any]) -> list[Any]:
        return [*other, *self._made]

    def __repr__(self) -> str:
        return repr(self._made)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._made,)


def saved(value: Any) -> Any:
    """Convert dataclasses to the mappings and lists that a file holds, without fields that only guide the screen."""
    if is_dataclass(value):
        return {f.name: saved(getattr(value, f.name)) for f in fields(value) if _is_saved(f.metadata, value)}
    if isinstance(value, Mapping):
        return {key: saved(item) for key, item in value.items()}
    if isinstance(value, list | tuple | Later):
        return [saved(item) for item in value]
    return value


def _is_saved(metadata: Mapping[str, Any], whole: Any) -> bool:
    return "screen" not in metadata and (SAVED_IF not in metadata or metadata[SAVED_IF](whole))


def date(day: float) -> str:
    """Write the ISO date of a day on an axis of dates.

    >>> date(738000)
    '2021-07-27'
    """
    return datetime.date.fromordinal(max(1, round(day))).isoformat()


def become(frozen: Any, convert: Callable[[Any], Any], *keys: str) -> None:
    """Replace the fields `keys` of a frozen dataclass by `convert` of them; None stays None."""
    for key in keys:
        if (value := getattr(frozen, key)) is not None:
            object.__setattr__(frozen, key, convert(value))


def finite(value: Any) -> Any:
    """Convert to plain Python data: NumPy values unpacked, numbers that are not finite as None, tuples as lists."""
    kind = type(value)
    if kind is float:  # the usual types first
        return value if math.isfinite(value) else None
    if kind in PLAIN or isinstance(value, bool | str | int):
        return value
    if kind is dict or isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)


class PlainData(dict[str, Any]):
    """Plain Python data that `finite` made, which copies of a result need not convert again."""

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> PlainData:
        """Return the mapping by `finite`; one of these as it is."""
        return mapping if type(mapping) is cls else cls(finite(dict(mapping)))


def _numbers(series: Any) -> list[Any]:
    return [finite(v) for v in (series.tolist() if hasattr(series, "tolist") else series)]
