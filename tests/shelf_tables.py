"""The tables of docs/*.md that list a shelf are made from the shelf: between `<!-- list NAME -->` and `<!-- /list -->`.

`python tests/shelf_tables.py` writes them; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

from calibcli import catalogue

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"<!-- list (\w+) -->\n.*?<!-- /list -->", re.S)


def filled(text: str) -> str:
    """`text` with every table as the code has it now."""
    return BLOCK.sub(lambda match: f"<!-- list {match[1]} -->\n{table(match[1])}<!-- /list -->", text)


def table(name: str) -> str:
    if name == catalogue.FORMATS:
        [found] = catalogue.listing(name).tables
        rows = [[f"`{name}`", f"`{suffix}`" if suffix else "", way, what] for name, suffix, way, what in found.rows]
    else:
        found = catalogue.table(name)
        rows = [
            [f"`{name}`", _prose(what), f"`{_prose(options)}`" if options else ""] for name, what, options in found.rows
        ]
    lines = [found.columns, ["---"] * len(found.columns), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines).replace(" |  |", " | |")


def _prose(what: object) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", str(what))


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
