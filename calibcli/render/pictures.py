"""What the formats of pictures have in common: Matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Callable

from calibcli.core.options import Style
from calibcli.core.result import Result


def drawer(kind: str) -> tuple[Callable[..., bytes], Callable[..., dict[str, bytes]]]:
    """`render` and `figures` of the format `kind`: png, svg or pdf."""

    def render(result: Result, style: Style = "screen") -> bytes:
        """The bytes of the main figure."""
        from calibcli.render import figure

        return figure.render(figure.main(result), kind, style)

    def figures(result: Result, style: Style = "screen") -> dict[str, bytes]:
        """Each figure, by name."""
        from calibcli.render import figure

        return {name: figure.render(part, kind, style) for name, part in figure.parts(result).items()}

    return render, figures
