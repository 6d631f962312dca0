"""SVG: the plots of a result as a picture, or its table where it has none.

Drawn by Matplotlib (Hunter 2007). The file format is that of Ferraiolo (2001).

>>> b"<svg" in render(result)
True
"""

from __future__ import annotations

from calibcli.result import Result

SUFFIXES = (".svg",)
TO_STDOUT = False
NEEDS = "matplotlib"


def render(result: Result) -> bytes:
    """The file's bytes."""
    from calibcli.render import figure

    return figure.render(result, "svg")
