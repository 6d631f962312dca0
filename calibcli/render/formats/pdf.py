"""PDF: the main figure of a result, or its table where it has none.

Drawn by Matplotlib (Hunter 2007). The file format is that of Adobe (1993).

>>> render(result)[:4]
b'%PDF'
"""

from __future__ import annotations

from calibcli.result import Result
from calibcli.spec import Style

SUFFIXES = (".pdf",)
TO_STDOUT = False
NEEDS = ("matplotlib",)


def render(result: Result, style: Style = "screen") -> bytes:
    """The bytes of the main figure."""
    from calibcli.render import figure

    return figure.render(figure.main(result), "pdf", style)


def figures(result: Result, style: Style = "screen") -> dict[str, bytes]:
    """Each figure, by name."""
    from calibcli.render import figure

    return {name: figure.render(part, "pdf", style) for name, part in figure.parts(result).items()}
