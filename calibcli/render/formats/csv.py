"""CSV: one row per estimate, in full precision; a judged estimate carries its rule and verdict.

A result without estimates gives its table; several tables give one row per cell, with table, row and column; without
tables it gives its facts. The format is RFC 4180 (Shafranovich 2005).

>>> heads, row = (line.split(",") for line in render(result).splitlines())
>>> row[heads.index("name")], round(float(row[heads.index("value")]), 3)
('accuracy', 0.911)
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from calibcli.core.result import Cell, Check, Estimate, Result, Table

SUFFIXES = (".csv",)
REPORT = "estimates.csv"
FIELDS = ["name", "scope", "value", "low", "high", "level", "sided", "unit", "better"]
FIELDS += ["null", "null_high", "se", "n", "how", "reason"]
JUDGED = ["rule", "limit", "verdict"]


def render(result: Result) -> str:
    """Render the estimates; a check that judged none of them adds a row."""
    if not result.estimates and not result.checks and (result.tables or result.facts):
        return _of_tables(result)
    rows: list[Sequence[Cell]] = []
    left = list(result.checks)
    for estimate in result.estimates:
        judging = [c for c in left if c.estimate == estimate]
        left = [c for c in left if c not in judging]
        rows += [_row(estimate, check) for check in judging] or [_row(estimate)]
    rows += [_row(check.estimate, check) for check in left]
    heads = FIELDS + JUDGED if result.checks else FIELDS
    return _written(heads, [row[: len(heads)] for row in rows])


def table(table: Table) -> str:
    """Render a table of a result."""
    return _written(table.columns, table.rows)


def _of_tables(result: Result) -> str:
    """Render the tables or facts of a result without numbers."""
    if len(result.tables) == 1:
        return table(result.tables[0])
    if not result.tables:
        return _written(["name", "value"], ([key, _plain(value)] for key, value in result.facts.items()))
    cells = (
        [one.name, number, column, value]
        for one in result.tables
        for number, row in enumerate(one.rows, 1)
        for column, value in zip(one.columns, row)
    )
    return _written(["table", "row", "column", "value"], cells)


def _plain(value: Any) -> Cell:
    """Turn a fact into a cell: lists and mappings as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _row(estimate: Estimate | None, check: Check | None = None) -> list[Cell]:
    cells: list[Cell] = [None if estimate is None else getattr(estimate, field) for field in FIELDS]
    if check is None:
        return [*cells, None, None, None]
    if estimate is None:
        cells[FIELDS.index("scope")], cells[FIELDS.index("reason")] = check.scope, check.message
    return [*cells, check.rule, check.limit, check.outcome]


def _written(heads: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(heads)
    writer.writerows(rows)
    return text.getvalue()
