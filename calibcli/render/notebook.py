"""Results, fits and estimates as Python shows them: text, HTML, Markdown, data frames, axes (see `Display`)."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

from calibcli import render
from calibcli.core import number_format
from calibcli.core.errors import UsageError, did_you_mean
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.files import guarding, reading
from calibcli.core.result import Estimate, Result
from calibcli.render import table_contents

FRAME = ("name", "scope", "value", "low", "high", "level", "sided", "unit", "better", "n", "se", "null", "null_high")
MOST = 40  # estimates in a figure, one line each


def result(value: Any) -> Result:
    """Return a result as it is, and wrap a fit or an estimate in one."""
    if isinstance(value, Result):
        return value
    if isinstance(value, Estimate):
        return Result(command="", estimates=[value])
    kept = {f.name: getattr(value, f.name) for f in dataclasses.fields(Result) if hasattr(value, f.name)}
    return Result(**{"command": "fit_scaler", **kept})


def text(value: Any) -> str:
    """Return tables as text; for an estimate its value and interval on one line."""
    if not isinstance(value, Estimate):
        return render.text(dataclasses.replace(result(value), plots=[]), "table").rstrip("\n")
    shown = number_format.shown(value)
    level = f" ({number_format.level([value])})" if shown.interval and number_format.level([value]) else ""
    unit = f" {value.unit}" if value.unit not in ("", "probability", *number_format.UNITS) else ""
    line = " ".join(filter(None, (value.name, value.scope, shown.value + unit, shown.interval + level)))
    return f"{line}: {value.reason}" if value.value is None and value.reason else line


def html(value: Any) -> str:
    """Return HTML for a cell of a notebook."""
    from calibcli.render import page

    return page.cell(result(value))


def markdown(value: Any) -> str:
    return render.text(result(value), "markdown")


def frame(value: Any, table: str = "") -> Any:
    """Return a pandas `DataFrame` of the estimates, or of a table.

    Raises:
        UsageError: pandas is not installed, or there is no such table.
    """
    if importlib.util.find_spec("pandas") is None:
        raise UsageError("a data frame needs pandas, which is not installed", "pip install pandas")
    import pandas

    shown = result(value)
    if not table:
        columns = [*FRAME, "how", "reason"]
        return pandas.DataFrame([[getattr(e, c) for c in columns] for e in shown.estimates], columns=columns)
    tables = {t.name: t for t in shown.tables}
    if table not in tables:
        raise UsageError(f"there is no table '{table}'", did_you_mean(table, tables) if tables else "there is none")
    return pandas.DataFrame(tables[table].rows, columns=list(tables[table].columns))


def plot(value: Any, ax: Any = None) -> Any:
    """Draw the first reliability diagram, else the first figure, else the estimates, and return the axes."""
    from calibcli.render.figure import panel

    shown = result(value)
    panels = [p for p in shown.plots if not p.under]  # without those that are strips under another one
    first = next((p for p in panels if table_contents.bins(p)), panels[0] if panels else forest(shown))
    return panel.alone(first, ax)


def forest(shown: Result) -> Plot:
    """Make a forest plot of the estimates with their intervals, from the top down.

    Raises:
        UsageError: no estimate has a value.
    """
    valued = [e for e in shown.estimates if e.value is not None][:MOST]
    if not valued:
        raise UsageError("there is nothing to draw: no figure and no number", "measure(..., diagram=True) has figures")
    units = {e.unit for e in valued}
    unit = units.pop() if len(units) == 1 else ""
    points = Curve(
        label=" ".join(filter(None, ("value,", number_format.level(valued), "interval"))),
        kind="points",
        role="model",
        x=[float(i) for i in range(len(valued))],
        y=[e.value for e in valued],
        low=[e.low for e in valued],
        high=[e.high for e in valued],
    )
    names = [" ".join(filter(None, (e.name, e.scope, f"({e.unit})" if e.unit and not unit else ""))) for e in valued]
    title = " ".join(filter(None, ("calib", shown.command))) if shown.command else valued[0].name
    return Plot(name="estimates", title=title, ylabel=unit or "value", labels=names, flip=True, curves=[points])


def write(value: Any, path: Path) -> None:
    """Write a file in the format of its suffix.

    Raises:
        UsageError: as for `render.known_output`.
    """
    shown = result(value)
    with guarding():  # the files that the result was made from count as read, so that none of them is written over
        reading(*(str(entry["path"]) for entry in shown.provenance.get("inputs", ()) if "path" in entry), pipes=True)
        render.write(shown, render.known_output(path))
