"""PDF: the plots of a result as a picture, or its table where it has none.

Drawn by Matplotlib (Hunter 2007). The file format is that of Adobe (1993).

>>> render(result)[:4]
b'%PDF'
"""

from __future__ import annotations

from calibcli.result import Result

SUFFIXES = (".pdf",)
TO_STDOUT = False
NEEDS = "matplotlib"


def render(result: Result) -> bytes:
    """The file's bytes."""
    from calibcli.render import figure

    return figure.render(result, "pdf")
