"""HTML: a page in one file, with verdict, sentences, figures, tables and provenance.

Figures are SVG inside the page; nothing is loaded, and no script runs. Laid out by Jinja2 (Ronacher
2008) as HTML (WHATWG).

>>> render(result).startswith("<!doctype html>")
True
"""

from __future__ import annotations

from calibcli.core.result import Result

SUFFIXES = (".html", ".htm")
NEEDS = ("jinja2", "matplotlib")
REPORT = "report.html"


def render(result: Result) -> str:
    """Render the page."""
    from calibcli.render import page

    return page.page(result)
