"""What documents say of the registries is made from them: tables between `<!-- list NAME -->` and `<!-- /list -->` of
docs/*.md, and the number of metrics in README and CHANGELOG.

`python tests/registry_tables.py` writes them; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

from calibcli.api import catalogue

ROOT = Path(__file__).parent.parent
PAGES = {path.name: path for path in (*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CHANGELOG.md")}
COUNT = re.compile(r"\d+ calibration metrics")
BLOCK = re.compile(r"<!-- list (\w+) -->\n.*?<!-- /list -->", re.S)


def filled(text: str) -> str:
    """`text` with every table and number as the code has it now."""
    text = COUNT.sub(f"{len(catalogue.REGISTRIES['metrics'].registry.entries)} calibration metrics", text)
    return BLOCK.sub(lambda match: f"<!-- list {match[1]} -->\n{table(match[1])}<!-- /list -->", text)


def table(name: str) -> str:
    text = ""
    for found in catalogue.listing(name).tables:
        if name == catalogue.FORMATS:
            rows = [[f"`{name}`", f"`{suffix}`" if suffix else "", way, what] for name, suffix, way, what in found.rows]
        else:
            rows = [
                [f"`{name}`", _prose(what), f"`{_prose(options)}`" if options else ""]
                for name, what, options in found.rows
            ]
        lines = [found.columns, ["---"] * len(found.columns), *rows]
        text += f"\n{found.title.capitalize()}:\n\n" if found.title else ""
        text += "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines).replace(" |  |", " | |")
    return text


def _prose(what: object) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", str(what))


if __name__ == "__main__":
    for path in PAGES.values():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
