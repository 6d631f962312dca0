"""Values that readers look at: in a notebook, at a prompt, as a data frame, drawn, or written to a file.

How they look is `render`'s, above this room; it is asked by its name when somebody looks, and costs nothing before.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


class Shown:
    """A result, a fit or an estimate as its reader wants it."""

    def __str__(self) -> str:
        return str(_renderer().text(self))

    def _repr_html_(self) -> str:
        """For a notebook: verdict, sentences and tables."""
        return str(_renderer().html(self))

    def _repr_markdown_(self) -> str:
        """For a notebook or a document that takes Markdown."""
        return str(_renderer().markdown(self))

    def to_frame(self, table: str = "") -> Any:
        """The estimates as a pandas `DataFrame`, one row each; or a table by its name.

        >>> found = calibcli.measure(logits, labels, "ece", "nll")
        >>> list(found.to_frame().columns[:4]), found.to_frame()["n"].tolist()
        (['name', 'scope', 'value', 'low'], [997, 997])

        Raises:
            UsageError: pandas is not installed, or there is no such table.
        """
        return _renderer().frame(self, table)

    def plot(self, ax: Any = None) -> Any:
        """Draw the main figure, or the estimates with their intervals where there is none; the Matplotlib axes.

        >>> calibcli.measure(logits, labels, "ece", diagram=True).plot().get_ylabel()
        'accuracy'

        Args:
            ax: axes to draw on; None makes a figure.
        """
        return _renderer().plot(self, ax)

    def write(self, path: str | Path) -> None:
        """Write a file, whole or not at all, in the format of its suffix: .html, .json, .png, .csv, .md, ...

        >>> calibcli.measure(logits, labels, "ece").write(folder / "report.html")
        >>> (folder / "report.html").read_text()[:15]
        '<!doctype html>'

        Raises:
            UsageError: a suffix that is no format, or a path that cannot be written.
        """
        _renderer().write(self, Path(path))


def _renderer() -> Any:
    return importlib.import_module("calibcli.render.notebook")
