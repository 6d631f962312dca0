"""SVG: the main figure of a result, or its table where it has none.

Drawn by Matplotlib (Hunter 2007). The file format is that of Ferraiolo (2001).

>>> b"<svg" in render(result)
True
"""

from __future__ import annotations

from calibcli.result import Result
from calibcli.spec import Style

SUFFIXES = (".svg",)
TO_STDOUT = False
NEEDS = ("matplotlib",)


def render(result: Result, style: Style = "screen") -> bytes:
    """The bytes of the main figure."""
    from calibcli.render import figure

    return figure.render(figure.main(result), "svg", style)


def figures(result: Result, style: Style = "screen") -> dict[str, bytes]:
    """Each figure, by name."""
    from calibcli.render import figure

    return {name: figure.render(part, "svg", style) for name, part in figure.parts(result).items()}
