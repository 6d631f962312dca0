"""PNG: the plots of a result as a picture, or its table where it has none.

Drawn by Matplotlib (Hunter 2007). The file format is that of Boutell (1997).

>>> render(result)[:4]
b'\\x89PNG'
"""

from __future__ import annotations

from calibcli.result import Result

SUFFIXES = (".png",)
TO_STDOUT = False
NEEDS = "matplotlib"
REPORT = "figure.png"


def render(result: Result) -> bytes:
    """The file's bytes."""
    from calibcli.render import figure

    return figure.render(result, "png")


def reports(result: Result) -> bool:
    """Whether a folder of reports gets this file."""
    return bool(result.plots)
