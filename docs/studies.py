"""The tables of docs/studies/NAME.md from NAME.json beside it, between its marks: `python docs/studies.py`.

NAME.json is the result.json of `calib study NAME --save DIR`; the words around the tables are written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from calibcli.core.result import Result, Table

HERE = Path(__file__).parent / "studies"
MARKS = re.compile(r"(<!-- study -->\n).*(<!-- /study -->)", re.S)
LEFT_OUT = ("p (Holm)", "ece2_debiased", "error after", "error unrenormalised", "error after unrenormalised")


def tables(result: Result) -> str:
    """Its sentence, its claims, its arms, what differs from the paper, and how to do it again."""
    facts = result.facts
    parts = [f"**{facts['headline']}**"] + [markdown(table) for table in result.tables]
    again = [
        f"    {facts['command']} --save out/{facts['study']}",
        f"Recipe: sha256 `{facts.get('recipe_sha256', '')}`.",
    ]
    if "spent" in facts:
        again[-1] += f" Spent here, with other processes at work: {60 * facts['spent']['hours']:.0f} minutes."
    cite = f"```bibtex\n{facts['cite']}\n```"
    return "\n\n".join([*parts, *again, cite]) + "\n"


def shown(name: str) -> bool:
    """Whether a page has the column: not numbers of the log, and of the ways to choose a temperature the ECE alone."""
    return not name.endswith("%") and (" after temperature:" not in name or name.startswith("ece "))


def markdown(table: Table) -> str:
    """A table with its title."""
    kept = [i for i, name in enumerate(table.columns) if name not in LEFT_OUT and shown(name)]
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    text = "\n".join("| " + " | ".join(str(line[i]) for i in kept) + " |" for line in lines)
    return f"{table.title or table.name}:\n\n{text}"


def written(page: Path) -> str:
    """A page with its tables as they are in its JSON."""
    result = Result.from_json(page.with_suffix(".json").read_bytes())
    return MARKS.sub(lambda m: f"{m[1]}{tables(result)}{m[2]}", page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for path in sorted(HERE.glob("*.md")):
        path.write_text(written(path), encoding="utf-8")
