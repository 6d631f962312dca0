"""A page of HTML for one result or several: no JavaScript, no requests, figures inside, at most 600 kB.

A page that would be larger is cut, and says so. It never has rows of data. Equal results give equal bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from calibcli.core import extensions
from calibcli.core.result import VERDICTS, Result, by_report, results_of
from calibcli.render import table_contents, terminal
from calibcli.render.page import _sections as sections
from calibcli.render.page._sections import Caps, Picture

MOST = 600_000  # bytes of a page, which mail programs still attach
FIGURE = 5_000  # bytes of a small figure: more figures than have room are not drawn at all
LEVELS = (
    Caps(),
    Caps(fields=False),
    Caps(rows=60, figures=4, fields=False),
    Caps(rows=60, figures=3, text=120, fields=False),
    Caps(rows=20, figures=0, text=100, fields=False),
)


def page(result: Result) -> str:
    """Render the page of a result, or of the results in a report.

    It has the first of `LEVELS` that makes it small enough; if none does, results are left out.
    """
    named = results_of(result)
    several = len(named) > 1
    judged = [r for _, r in named if r.verdict]
    gates = [r for r in judged if r.words is VERDICTS] or judged  # claims fail nothing: they give way to gates
    if several:
        outcomes = [r.deciding for r in gates if r.deciding]
        verdict, tone = table_contents.banner(outcomes, gates[0].words if gates else VERDICTS)
    else:
        verdict, tone = table_contents.verdict(named[0][1])
    count = sum(not by_report(r) for _, r in named)
    drawn: dict[str, bytes] = {}
    text = ""
    fewer = [len(named) >> i for i in range(1, len(named).bit_length())]
    for caps, kept in [*((caps, len(named)) for caps in LEVELS), *((LEVELS[-1], kept) for kept in fewer)]:
        cut = "" if caps is LEVELS[0] else "the JSON files have longer tables, more figures and every field"
        cut = f"the first {kept} of {len(named)} results" if kept < len(named) else cut
        shown = [
            sections.portion(one, f"r{i}", name if several else "", caps)
            for i, (name, one) in enumerate(named[:kept], 1)
        ]
        pictures = [p for one in shown for p in (*one.first, *one.later)]
        heading = f"Report of {count} results" if several else shown[0].heading
        values = {
            "parts": shown,
            "overview": several,
            "heading": heading,
            "title": ": ".join(filter(None, [heading, verdict.partition(":")[0]])),
            "verdict": verdict,
            "tone": tone,
            "notes": result.notes[: caps.rows] if several else [],
            "cut": f"Shortened to stay below 600 kB: {cut}." if cut else "",
        }
        text = rendered("page.html", style=stylesheet(), **values)
        if _bytes(text) + FIGURE * len(pictures) > MOST:  # known before anything is drawn
            continue
        if pictures:
            text = rendered("page.html", style=stylesheet() + drawings(pictures, drawn), **values)
        if _bytes(text) <= MOST:
            break
    return text


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "backslashreplace"))


def cell(result: Result) -> str:
    """Render a result for a notebook: the head and tables of a page, without figures and methods."""
    portion = sections.portion(dataclasses.replace(result, plots=[]), "", "", Caps(rows=60, fields=False))
    return rendered("cell.html", one=portion, style=stylesheet())


def drawings(pictures: Sequence[Picture], drawn: dict[str, bytes]) -> str:
    """Draw pictures in place and return the rules of their style sheet; `drawn` caches equal pictures."""
    if not pictures:
        return ""
    from calibcli.render import figure
    from calibcli.render.page import _inline_figures as inline_figures

    styles = inline_figures.Styles()
    for p in extensions.with_progress(pictures, lambda p: p.title):
        key = repr((p.plots, p.estimates))
        if key not in drawn:
            drawn[key] = figure.render(Result(command="", plots=p.plots, estimates=p.estimates), "svg", images=False)
        p.svg = _safe(inline_figures.small(drawn[key], p.id, p.title, f"{p.id}-w", styles))
    return inline_figures.palette() + styles.sheet()


def stylesheet() -> str:
    return Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def rendered(name: str, **values: Any) -> str:
    """Render a template of this folder; texts are escaped and lose control characters."""
    return str(_environment().get_template(name).render(**{**values, "style": _safe(values.get("style", ""))}))


@cache
def _environment() -> Any:
    import jinja2

    def finalize(value: Any) -> Any:
        return terminal.clean(value) if type(value) is str else value

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, finalize=finalize, undefined=jinja2.StrictUndefined)


def _safe(markup: str) -> Any:
    """Mark our own markup as safe, so that it is not escaped again."""
    from markupsafe import Markup

    return Markup(markup)
