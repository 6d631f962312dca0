"""What the tables of a Result say, before a format lays them out: text in rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from calibcli.render import numbers
from calibcli.result import Check, Estimate, Result, Table

HOW = 60  # characters of "how" that a table shows; JSON has all of it
VERDICT = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE", "not_run": "NOT RUN"}
Tone = Literal["", "good", "bad", "warn"]
TONE: dict[str, Tone] = {"pass": "good", "fail": "bad", "inconclusive": "warn", "not_run": "bad"}


@dataclass(frozen=True)
class Column:
    head: str
    right: bool = False
    code: bool = False  # an identifier: metric, rule, slice
    free: bool = False  # prose, which may be wrapped where the width is short
    spare: int = 0  # > 0: may be left out where the width is short, the lowest first


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    Attributes:
        breaks: rows before which a group begins.
        tones: one per row, or none.
        musts: rows whose prose must be seen, however short the width (why there is no number, why no PASS).
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    breaks: frozenset[int] = frozenset()
    tones: Sequence[Tone] = ()
    musts: frozenset[int] = frozenset()


def sheets(result: Result) -> list[Sheet]:
    """Verdicts with the numbers they judged, the other estimates (before and after side by side), then the tables."""
    judged = [c.estimate for c in result.checks]
    estimates = [e for e in result.estimates if e not in judged]
    names = _paired(estimates)
    pairs = [e for e in estimates if e.name in names and e.of in ("before", "after")]
    rest = [e for e in estimates if e not in pairs]
    found = [_checks(result.checks)] if result.checks else []
    measured = [_before_after(pairs, names)] if pairs else []
    measured += [_estimates(rest)] if rest else []
    if pairs and rest and estimates[0] in rest:  # what was fitted comes before what it changed
        measured.reverse()
    return found + measured + [_table(t) for t in result.tables]


def heading(result: Result) -> str:
    """`calib metrics test.npz`, from the command and its inputs."""
    inputs = result.provenance.get("inputs") or ()
    return " ".join(["calib", result.command, *(str(i.get("path", "")) for i in inputs if isinstance(i, dict))])


def facts(result: Result) -> list[tuple[str, str]]:
    """Facts that fit on a line; what is nested is in the JSON alone."""
    return [
        (str(key).replace("_", " "), numbers.cell(value))
        for key, value in result.facts.items()
        if value is not None and isinstance(value, str | int | float) and value != ""
    ]


def verdict(result: Result) -> tuple[str, Tone]:
    """The sentence that a gate ends with; "" without checks."""
    counts = {
        name: sum(c.outcome == name for c in result.checks) for name in ("fail", "not_run", "inconclusive", "pass")
    }
    if not result.checks:
        return "", ""
    worst = next(name for name, count in counts.items() if count)
    said = ", ".join(f"{n} {VERDICT[name].lower()}" for name, n in counts.items() if n)
    return f"{VERDICT[worst]}: {said}", TONE[worst]


def _estimates(estimates: Sequence[Estimate]) -> Sheet:
    order = list(dict.fromkeys(e.of for e in estimates))
    estimates = sorted(estimates, key=lambda e: order.index(e.of)) if len(order) > 1 else estimates
    level = numbers.level(estimates)
    sizes = {e.n for e in estimates if e.n is not None}
    nulls = sorted({numbers.percent(0.95) for e in estimates if e.null_high is not None})
    columns = [
        Column("metric", code=True),
        Column("of", code=True),
        Column("value", right=True),
        Column("unit", spare=3),
        Column(f"{level} interval".strip()),
        Column("level", right=True),
        Column("if calibrated" + (f" ({nulls[0]})" if nulls else ""), spare=4),
        Column("n", right=True, spare=1),
        Column("how", free=True),
    ]
    rows = []
    for e in estimates:
        value, interval, null = numbers.shown(e)
        own = "" if level or not numbers.has_interval(e) else numbers.level([e])
        unit = "" if e.unit in ("probability", "percent", "ratio") else e.unit
        size = "" if len(sizes) <= 1 or e.n is None else str(e.n)
        rows.append([e.name, e.of, value, unit, interval or numbers.NONE, own, null, size, _how(e)])
    breaks = {i for i in range(1, len(estimates)) if estimates[i].of != estimates[i - 1].of}
    if len(estimates) < 2 * len(order):
        breaks = set()
    title = f"n = {sizes.pop()}" if len(sizes) == 1 else ""
    musts = frozenset(i for i, e in enumerate(estimates) if e.reason)
    return _without_empty(Sheet(title, columns, rows, frozenset(breaks), musts=musts))


def _how(e: Estimate) -> str:
    if e.value is None:
        return numbers.short(e.reason or "not defined here", HOW)
    if not numbers.has_interval(e) and e.reason:
        return numbers.short(e.reason, HOW)
    return numbers.short(e.how, HOW)


def _paired(estimates: Sequence[Estimate]) -> list[str]:
    """Names that are there exactly once before and once after, in order."""
    seen: dict[str, list[str]] = {}
    for e in estimates:
        seen.setdefault(e.name, []).append(e.of)
    return [name for name, ofs in seen.items() if ofs.count("before") == 1 and ofs.count("after") == 1]


def _before_after(estimates: Sequence[Estimate], names: Sequence[str]) -> Sheet:
    by = {(e.name, e.of): e for e in estimates}
    level = numbers.level(estimates)
    columns = [
        Column("metric", code=True),
        Column("before", right=True),
        Column(f"{level} interval".strip()),
        Column("after", right=True),
        Column(f"{level} interval".strip()),
        Column("unit", spare=2),
        Column("better", spare=1),
        Column("how", free=True),
    ]
    rows = []
    for name in names:
        row = [name]
        for of in ("before", "after"):
            e = by[name, of]
            value, interval, _ = numbers.shown(e)
            own = "" if level or not numbers.has_interval(e) else f" {numbers.level([e])}"
            row += [value, (interval or numbers.NONE) + own]
        after = by[name, "after"]
        unit = "" if after.unit in ("probability", "percent", "ratio") else after.unit
        rows.append([*row, unit, after.better, _how(after)])
    sizes = {e.n for e in by.values() if e.n is not None}
    musts = frozenset(i for i, name in enumerate(names) if by[name, "after"].reason)
    return _without_empty(Sheet(f"n = {sizes.pop()}" if len(sizes) == 1 else "", columns, rows, musts=musts))


def _checks(checks: Sequence[Check]) -> Sheet:
    judged = [c.estimate for c in checks if c.estimate is not None]
    level = numbers.level(judged)
    columns = [
        Column("verdict"),
        Column("rule", code=True),
        Column("of", code=True),
        Column("value", right=True),
        Column(f"{level} bounds".strip()),
        Column("level", right=True),
        Column("limit", right=True),
        Column("if calibrated", spare=3),
        Column("n", right=True, spare=1),
        Column("n to decide", right=True, spare=2),
        Column("why", free=True),
    ]
    rows = []
    for c in checks:
        e = c.estimate
        value, interval, null = numbers.shown(e, c.limit) if e else (numbers.NONE, "", "")
        own = "" if level or e is None or not numbers.has_interval(e) else numbers.level([e])
        word = VERDICT[c.outcome] + ("" if c.fatal or c.outcome == "pass" else " (warns)")
        size = str(e.n) if e and e.n is not None else ""
        limit = "" if c.limit is None else numbers.exact(c.limit)
        needed = "" if c.n_needed is None else str(c.n_needed)
        row = [word, c.rule, c.of, value, interval or numbers.NONE, own, limit, null, size, needed, c.message]
        rows.append([" ".join(text.split()) for text in row])
    tones: list[Tone] = [TONE[c.outcome] if c.fatal or c.outcome == "pass" else "warn" for c in checks]
    musts = frozenset(i for i, c in enumerate(checks) if c.outcome != "pass")
    return _without_empty(Sheet("", columns, rows, tones=tones, musts=musts))


def _table(table: Table) -> Sheet:
    width = len(table.columns)
    full = [[*row, *[None] * (width - len(row))][:width] for row in table.rows]
    cells = [numbers.column([row[i] for row in full]) for i in range(width)]
    right = [any(isinstance(row[i], int | float) for row in full) for i in range(width)]
    columns = [Column(str(name), right=r) for name, r in zip(table.columns, right, strict=True)]
    return Sheet(table.title or table.name, columns, [list(row) for row in zip(*cells, strict=True)])


def _without_empty(sheet: Sheet) -> Sheet:
    """Columns that say nothing are left out."""
    kept = [
        i
        for i, _ in enumerate(sheet.columns)
        if any(row[i] not in ("", numbers.NONE) for row in sheet.rows) or sheet.columns[i].head == "value"
    ]
    return Sheet(
        sheet.title,
        [sheet.columns[i] for i in kept],
        [[row[i] for i in kept] for row in sheet.rows],
        sheet.breaks,
        sheet.tones,
        sheet.musts,
    )
