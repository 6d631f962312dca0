"""LaTeX: the tables for a paper, with the rules of booktabs (Lamport 1986; Fear 2020).

>>> print(render(result).partition("rule")[2], end="")
<BLANKLINE>
metric & value & 95\\,\\% interval \\\\
\\midrule
accuracy & 0.911 & [0.891, 0.928] \\\\
\\bottomrule
\\end{tabular}
"""

from __future__ import annotations

import re

from calibcli.core.result import Result
from calibcli.render import table_contents
from calibcli.render.table_contents import Sheet
from calibcli.render.terminal import clean

SUFFIXES = (".tex",)
GREEK = ("alpha", "beta", "gamma", "lambda", "mu", "sigma", "Delta", "Sigma")
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "—": "---",
    "–": "--",
    "−": "$-$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "→": r"$\to$",
    **{c: rf"\{c}" for c in "&%$#_{}"},
    **{letter: rf"$\{name}$" for letter, name in zip("αβγλμσΔΣ", GREEK)},
    **{raised: f"$^{digit}$" for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}
OF_TEXT = re.compile("|".join(map(re.escape, SPECIAL)))


def render(result: Result) -> str:
    """Render each table as a `tabular`; titles and notes are comments, since a paper has its own captions."""
    head = [f"% {clean(table_contents.heading(result))}", r"% needs \usepackage{booktabs}"]
    head += [f"% {clean(sentence)}" for sentence in filter(None, [table_contents.headline(result)])]
    head += [f"% {clean(table_contents.verdict(result)[0])}"] * bool(result.checks)
    head += [f"% note: {clean(note)}" for note in result.notes]
    tables = table_contents.sheets(result)
    head += [f"% {clean(key)}: {clean(value)}" for key, value in table_contents.facts(result)] if not tables else []
    return "\n".join(head) + "\n" + "".join(f"\n{_tabular(one)}" for one in tables)


def _tabular(table: Sheet) -> str:
    """Render a table without its columns of prose, which are wider than a page."""
    kept = [i for i, column in enumerate(table.columns) if not column.free]
    spec = "".join("r" if table.columns[i].right else "l" for i in kept)
    lines = [f"% {clean(table.title)}"] * bool(table.title)
    lines += [rf"\begin{{tabular}}{{{spec}}}", r"\toprule", _row([table.columns[i].head for i in kept]), r"\midrule"]
    for number, row in enumerate(table.rows):
        lines += [r"\addlinespace"] * (number in table.breaks)
        lines.append(_row([row[i] for i in kept]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _row(cells: list[str]) -> str:
    row = " & ".join(map(text, cells))
    # without \relax LaTeX would read a bracket or a star as an option of the line before
    return (r"\relax " if row.startswith(("[", "*")) else "") + row + r" \\"


def text(cell: str) -> str:
    """Escape a cell for LaTeX."""
    return OF_TEXT.sub(lambda m: SPECIAL[m.group()], clean(cell)).replace(r" \%", r"\,\%")
