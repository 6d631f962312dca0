"""PDF: the plots of a result as a picture, or its table where it has none."""

from __future__ import annotations

from calibcli.result import Result

SUFFIXES = (".pdf",)
TO_STDOUT = False
NEEDS = "matplotlib"


def render(result: Result) -> bytes:
    from calibcli.render import figure

    return figure.render(result, "pdf")
