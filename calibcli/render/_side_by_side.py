"""Layout of a screen: numbers that are compared stand side by side, and tables and pictures shrink to fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from calibcli.core import number_format
from calibcli.core.number_format import EstimateText
from calibcli.core.result import Cell, Result, Table
from calibcli.core.scope import CHANGE, Phase, Scope
from calibcli.render import table_contents, terminal
from calibcli.render.table_contents import DIFFERENCE, OF, UNIT, VALUE, WHY, Sheet, SheetColumn, changes, intervals

# Fitting the first screen: pictures get fewer bins, then none is drawn, then tables lose rows.

LINES, LEAST_ROWS = 40, 3  # lines of a first screen; rows that each of its tables keeps
FEWER_BINS = (8, 5)
ROWS = 60  # most rows of a table beside the estimates on a terminal
Clipped = tuple[Sheet, int]


def fitted(
    tables: Sequence[Sheet],
    pictures: Callable[[int], list[list[str]]],
    bins: int,
    taken: int | None,
    width: int,
    encoding: str,
) -> tuple[list[Clipped], list[list[str]]]:
    """Fit tables and pictures to a screen; each table is returned with the number of rows left out.

    Args:
        pictures: draws the pictures with at most the given number of bins, as lines.  bins: that number if all fits.
        taken: lines of the screen that are used by other things; None if the screen may have any length.
    """
    sheets: list[Clipped] = []
    for s in tables:
        more = 0 if s.tones or any(c.code for c in s.columns) else max(0, len(s.rows) - ROWS)
        sheets.append((dataclasses.replace(s, rows=s.rows[: len(s.rows) - more]), more))
    if taken is None:
        return sheets, pictures(bins)
    left = LINES - taken
    lengths = [_length(*one, encoding, width) for one in sheets]
    for most in (bins, *(m for m in FEWER_BINS if m < bins)):
        blocks = pictures(most)
        if sum(lengths) + sum(1 + len(block) for block in blocks) <= left:
            return sheets, blocks
    blocks = [["(the picture with -v or -o FILE.png)"]] * bool(blocks)
    left -= sum(1 + len(block) for block in blocks)
    while sum(lengths) > left and max((len(s.rows) for s, _ in sheets), default=0) > LEAST_ROWS:
        i = max(range(len(sheets)), key=lambda i: len(sheets[i][0].rows))
        sheets[i] = _without_one(*sheets[i])
        lengths[i] = _length(*sheets[i], encoding, width)
    return sheets, blocks


def _length(s: Sheet, more: int, encoding: str, width: int) -> int:
    """Count the lines of a table, with the empty one before."""
    return 1 + len(terminal.lines(s, encoding, width)) + bool(more)


def _without_one(s: Sheet, more: int) -> Clipped:
    """Drop the least important row: the last that passes, else that did not run, else that is undecided."""
    tones = s.tones or [""] * len(s.rows)
    order = {"good": 0, "": 1, "warn": 3, "bad": 4}
    dropped = min(
        reversed(range(len(s.rows))), key=lambda i: 2 if s.rows[i][0].startswith("NOT RUN") else order[tones[i]]
    )
    kept = [i for i in range(len(s.rows)) if i != dropped]

    def moved(marks: frozenset[int]) -> frozenset[int]:
        return frozenset(new for new, old in enumerate(kept) if old in marks)

    rows, left = [s.rows[i] for i in kept], [s.tones[i] for i in kept] if s.tones else ()
    return dataclasses.replace(s, rows=rows, tones=left, breaks=moved(s.breaks), musts=moved(s.musts)), more + 1


# Layouts that put numbers side by side: before and after, models, errors.


def _change(result: Result) -> list[Sheet]:
    """Put before, after and their paired difference side by side, for each loss; other numbers come first."""
    by = {(e.name, e.where.without_phase, e.where.phase): e for e in result.estimates}
    differences = [e for e in result.estimates if e.where.phase == CHANGE]
    keys = list(dict.fromkeys((name, scope) for name, scope, when in by if when in ("before", "after")))
    other = [e for e in result.estimates if not e.where.phase]
    phases: tuple[Phase, ...] = ("before", "after", CHANGE)
    rows = []
    for name, scope in keys:
        before, after, change = (by.get((name, scope, when)) for when in phases)
        none = EstimateText(number_format.NONE, "", "")
        shown = [none if e is None else number_format.shown(e) for e in (before, after)]
        moved = EstimateText("", "", "") if change is None else number_format.shown(change)
        unit = next((e.unit for e in (change, before) if e is not None and e.unit == "nats"), "")
        why = next((e.reason for e in (change, after) if e is not None and e.reason), "")
        rows.append(
            [name, str(scope), shown[0].value, shown[1].value, moved.value, moved.interval, unit, shown[1].null, why]
        )
    columns = [
        *OF,
        SheetColumn("before", right=True, spare=3),
        SheetColumn("after", right=True),
        DIFFERENCE,
        intervals(differences),
        UNIT,
    ]
    columns += [SheetColumn("if calibrated", spare=2), WHY]
    breaks = changes([scope for _, scope in keys])
    sheets = [table_contents.estimates(other, "why")] if other else []
    size = table_contents.size([e for (_, _, when), e in by.items() if when == "after"])
    sheets += [table_contents.without_empty(Sheet(size, columns, rows, breaks))] if rows else []
    return sheets + [_ranking(t) for t in result.tables]


def _ranking(table: Table) -> Sheet:
    """Format a ranking without its ranks and with `low` and `high` in one column; any other table as it is."""
    heads = [str(name) for name in table.columns]
    if not {"rank", "low", "high"} <= {*heads}:
        return table_contents.of_table(table)
    cells = {name: [row[i] for row in table.rows] for i, name in enumerate(heads)}
    low, high = (number_format.column(cells.pop(name)) for name in ("low", "high"))
    numeric = [name for name in cells if any(isinstance(cell, int | float) for cell in cells[name]) and name != "rank"]
    texts = [name for name in cells if name not in numeric and name != "rank"]
    columns: list[SheetColumn] = []
    series: list[list[str]] = []
    for position, name in enumerate(heads):
        if name == "low":
            columns.append(SheetColumn("interval"))
            series.append(["" if a == number_format.NONE else f"[{a}, {b}]" for a, b in zip(low, high, strict=True)])
        elif name in numeric:  # columns after the interval may be left out, the last first
            spare = len(numeric) - numeric.index(name) if position > heads.index("low") else 0
            columns.append(SheetColumn(name, right=True, spare=spare))
            series.append(number_format.column(cells[name]))
        elif name in texts:
            columns.append(SheetColumn(name, code=True) if name == texts[0] else SheetColumn(name, free=True))
            series.append([str(cell) for cell in cells[name]])
    return table_contents.without_empty(Sheet(table.title, columns, [list(row) for row in zip(*series, strict=True)]))


def _table(result: Result, name: str) -> Table | None:
    return next((t for t in result.tables if t.name == name), None)


def _models(result: Result) -> list[Sheet]:
    """Put each difference beside the numbers of both models, with its verdict."""
    models, verdicts = _table(result, "models"), _table(result, "differences")
    if models is None or verdicts is None or len(models.columns) < 4:
        return table_contents.sheets(result, "why")
    names = [str(name) for name in models.columns[2:]]
    values_of = {(str(row[0]), str(row[1])): row[2:] for row in models.rows}
    verdict_of = {(str(row[0]), str(row[1])): str(row[-1]) for row in verdicts.rows}
    rows = []
    for e in result.estimates:
        index, scope = _model(e.where, names)
        values = values_of.get((e.name, scope))
        pair = [None, None] if values is None else [values[0], values[index]]
        pair_shown = number_format.column(pair)
        shown = number_format.shown(e)
        verdict = verdict_of.get((e.name, e.scope), "").removeprefix(f"{names[index]} is ")
        unit = e.unit if e.unit == "nats" else ""
        rows.append([e.name, scope, names[index], *pair_shown, shown.value, shown.interval, unit, verdict])
    columns = [*OF, SheetColumn("model", code=True), SheetColumn(names[0], right=True, spare=2)]
    columns.append(SheetColumn("model's" if len(names) > 2 else names[1], right=True, spare=3))
    columns += [DIFFERENCE, intervals(result.estimates), UNIT, SheetColumn("shown")]
    breaks = changes([row[2] for row in rows])
    if len(names) == 2:
        columns[2] = dataclasses.replace(columns[2], spare=1)
        columns, rows = [c for i, c in enumerate(columns) if i != 2], [row[:2] + row[3:] for row in rows]
    table = table_contents.without_empty(Sheet(table_contents.size(result.estimates), columns, rows, breaks))
    return [table, *(table_contents.of_table(t) for t in result.tables if t not in (models, verdicts))]


def _model(where: Scope, names: Sequence[str]) -> tuple[int, str]:
    """Return the index of the model of a difference, and the scope of the number: of `site=A, b - a`, `site=A`."""
    for index, name in enumerate(names[1:], 1):
        if (scope := where.compared(name, names[0])) is not None:
            return index, str(scope)
    return 0, str(where)


def _errors(result: Result) -> list[Sheet]:
    """Put both its errors beside each number."""
    losses = [str(one) for one in result.facts.get("losses") or ()]
    rows, owners = [], []
    for e in result.estimates:
        shown = number_format.shown(e)
        low, high, se = (e.detail.get(key) for key in ("estimator_low", "estimator_high", "sampling_se"))
        half = number_format.number((high - low) / 2, 2) if isinstance(low, float) and isinstance(high, float) else ""
        spread = number_format.number(se, 2) if isinstance(se, float) else ""
        owners.append(e.where.parts.get("loss") or (losses[0] if len(losses) > 1 else ""))
        rows.append(
            [e.name, owners[-1], str(e.where.without("loss")), shown.value, shown.interval, half, spread, e.reason]
        )
    columns = [SheetColumn(head, code=True) for head in ("quantity", "loss", "scope")]
    columns += [VALUE, intervals(result.estimates), SheetColumn("± estimator", right=True, spare=2)]
    columns += [SheetColumn("± rows (se)", right=True, spare=1), WHY]
    breaks = changes(owners)
    musts = frozenset(i for i, e in enumerate(result.estimates) if e.reason)
    sheet = table_contents.without_empty(
        Sheet(table_contents.size(result.estimates), columns, rows, breaks, musts=musts)
    )
    return [sheet, *(table_contents.of_table(t) for t in result.tables if t.tier != "all")]


def _scores(result: Result) -> list[Sheet]:
    """Make a row for each score with its metrics, then the paired differences between scores."""
    table = _table(result, "differences")
    verdicts = {} if table is None else {(row[0], row[1]): str(row[-1]) for row in table.rows}
    measured = [e for e in result.estimates if (e.name, e.scope) not in verdicts]
    changed = [e for e in result.estimates if (e.name, e.scope) in verdicts]
    by = {(e.name, e.where): number_format.shown(e)[:2] for e in result.estimates}
    names = list(dict.fromkeys(e.name for e in measured))
    level = intervals(result.estimates)
    rows = []
    for where in dict.fromkeys(e.where for e in measured):
        cells = [text for name in names for text in by.get((name, where), ("", ""))]
        threshold = next(
            (e.detail["threshold"] for e in measured if e.where == where and "threshold" in e.detail), None
        )
        rows.append([where.within("score") or str(where), *cells, number_format.cell(threshold)])
    columns = [SheetColumn("score", code=True)]
    for name in names:
        columns += [SheetColumn(name, right=True), level]
    columns.append(SheetColumn("threshold", right=True, spare=1))
    sheets = [Sheet(table_contents.size(result.estimates), columns, rows)]
    for name in dict.fromkeys(e.name for e in changed):
        heads = [SheetColumn(f"{name} of", code=True), DIFFERENCE, level, SheetColumn("shown")]
        of_name = [e for e in changed if e.name == name]
        sheets.append(Sheet("", heads, [[e.scope, *by[name, e.where], verdicts[name, e.scope]] for e in of_name]))
    return [table_contents.without_empty(one) for one in sheets if one.rows]


def _claims(result: Result) -> list[Sheet]:
    """Put the verdict on each claim beside the numbers that decide it."""
    if (claims := _table(result, "claims")) is None:
        return table_contents.sheets(result, "why")
    tones: dict[Cell, table_contents.Tone] = {"holds": "good", "reversed": "warn"}
    rows: list[list[str]] = []
    row_tones = []
    named = [dict(zip(claims.columns, row, strict=True)) for row in claims.rows]
    p_values = number_format.of_table("p (Holm)", ["" if one["p (Holm)"] is None else one["p (Holm)"] for one in named])
    for claim, p in zip(named, p_values, strict=True):
        cells = {key: str(cell or "") for key, cell in claim.items()}
        counted = cells["seeds and rows"].startswith("[")
        interval = cells["seeds and rows" if counted else "these rows alone"]
        words = "; ".join(filter(None, [cells["text"], cells["would decide"]]))
        could = cells.get("could have shown", "")  # a result of an earlier version has none
        rows.append([cells["verdict"], cells["claim"], cells["value"], interval, could, p, words])
        row_tones.append(tones.get(cells["verdict"], ""))
    columns = [
        SheetColumn("verdict"),
        SheetColumn("claim", code=True),
        SheetColumn("value", right=True),
        SheetColumn("interval"),
    ]
    columns += [SheetColumn("could have shown", right=True, spare=2), SheetColumn("p (Holm)", right=True, spare=1)]
    columns.append(SheetColumn("in words", free=True))
    title = f"{claims.title} (arms, what differs from the paper and figures with -v or -o)"
    sheet = Sheet(title, columns, rows, tones=row_tones, musts=frozenset(range(len(rows))))
    return [table_contents.without_empty(sheet)]


LAYOUTS: Mapping[str, Callable[[Result], list[Sheet]]] = {
    "": lambda result: table_contents.sheets(result, "why"),
    "change": _change,
    "models": _models,
    "errors": _errors,
    "scores": _scores,
    "claims": _claims,
    "tables": lambda result: [table_contents.of_table(t) for t in result.tables],  # which have the numbers too
}
"""The layouts by `Screen.pairs`."""
