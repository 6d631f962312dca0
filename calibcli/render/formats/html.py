"""HTML: a page for a colleague, whole in one file: verdict, sentences, figures, tables and where they come from.

Figures are SVG inside the page; nothing is loaded, nothing runs. Laid out by Jinja2 (Ronacher 2008) as HTML (WHATWG).

>>> render(result).startswith("<!doctype html>")
True
"""

from __future__ import annotations

from calibcli.core.result import Result

SUFFIXES = (".html", ".htm")
NEEDS = ("jinja2", "matplotlib")
REPORT = "report.html"


def render(result: Result) -> str:
    """The page."""
    from calibcli.render import page

    return page.page(result)
