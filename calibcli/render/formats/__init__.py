"""The output formats, one file each, and the functions that the picture formats share (they import Matplotlib late)."""

from __future__ import annotations

from collections.abc import Callable

from calibcli.core.options import Style
from calibcli.core.result import Result


def drawer(kind: str) -> tuple[Callable[..., bytes], Callable[..., dict[str, bytes]]]:
    """Make the functions `render` and `figures` of a picture format: png, svg or pdf."""

    def render(result: Result, style: Style = "screen") -> bytes:
        """Draw the main figure and return the contents of its file."""
        from calibcli.render import figure

        return figure.render(figure.main(result), kind, style)

    def figures(result: Result, style: Style = "screen") -> dict[str, bytes]:
        """Draw each figure and return the contents of the files by name."""
        from calibcli.render import figure

        return {name: figure.render(part, kind, style) for name, part in figure.parts(result).items()}

    return render, figures
