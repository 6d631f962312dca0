"""The contents of the tables of a Result, before a format lays them out; and the bins of its diagrams."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from calibcli.core import number_format
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.number_format import count_text
from calibcli.core.result import VERDICTS, WORST_FIRST, Cell, Check, Estimate, Outcome, Result, Table, decisive
from calibcli.core.scope import Scope
from calibcli.headlines import FACT as HEADLINE
from calibcli.scores import reading_record

MOST_INPUTS = 4  # whose reading a screen tells


@dataclass(frozen=True)
class Bin:
    """One bin of a reliability diagram; `low` and `high` are the band of a calibrated model."""

    left: float
    right: float
    count: float | None = None
    accuracy: float | None = None
    confidence: float | None = None
    low: float | None = None
    high: float | None = None


def bins(plot: Plot, strip: Plot | None = None) -> list[Bin]:
    """Read the bins of a reliability diagram, with counts from the strip under it; [] for any other plot."""
    model, gap = curve(plot, "bars", "model"), curve(plot, "bars", "gap")
    if model is None or gap is None:
        return []
    counts = curve(strip, "bars", "count") if strip else None
    band = curve(plot, "band", "null")
    diagram_bins = []
    for i, x in enumerate(model.x):
        low = high = None
        if band and band.width and len(band.x) == len(model.x):
            low, high = at(band.low, i), at(band.high, i)
        count = at(counts.y, i) if counts else None
        right = x + (at(model.width, i) or 0.0)
        diagram_bins.append(Bin(x, right, count, at(model.y, i), at(gap.y, i), low, high))
    return diagram_bins


def fewer(bins: list[Bin], most: int) -> list[Bin]:
    """Merge neighbouring bins until there are at most `most`."""
    step = -(-len(bins) // most)
    return bins if step <= 1 else [merged(bins[i : i + step]) for i in range(0, len(bins), step)]


def merged(neighbours: Sequence[Bin]) -> Bin:
    """Merge neighbouring bins, weighted by their rows, into one without a band."""
    filled = [(b.count if b.count is not None else 1.0, b.accuracy, b.confidence) for b in neighbours]
    rows = [(n, a, c) for n, a, c in filled if a is not None and c is not None and n > 0]
    total = sum(n for n, _, _ in rows)
    count = total if any(b.count is not None for b in neighbours) else None
    if total <= 0:
        return Bin(neighbours[0].left, neighbours[-1].right, count)
    accuracy = sum(n * a for n, a, _ in rows) / total
    return Bin(neighbours[0].left, neighbours[-1].right, count, accuracy, sum(n * c for n, _, c in rows) / total)


def bins_table(result: Result) -> Table | None:
    """Collect the bins of all reliability diagrams of a result in a table; None if there are none."""
    strips = {p.under: p for p in result.plots if p.under}
    rows: list[list[Cell]] = [
        [plot.name, b.left, b.right, b.count, b.accuracy, b.confidence, b.low, b.high]
        for plot in result.plots
        for b in bins(plot, strips.get(plot.name))
    ]
    columns = ["diagram", "left", "right", "rows", "accuracy", "confidence", "calibrated_low", "calibrated_high"]
    return Table(name="bins", columns=columns, rows=rows) if rows else None


def curve(plot: Plot, kind: str, role: str) -> Curve | None:
    """Return the first curve of this kind and role, or None."""
    return next((c for c in plot.curves if c.kind == kind and c.role == role), None)


def at(series: Sequence[float | None] | None, i: int) -> float | None:
    """Return `series[i]`, or None if there is no series or it is too short."""
    return series[i] if series is not None and i < len(series) else None


Detail = Literal["few", "asked", "all"]
"""How much a screen shows: the few numbers that decide; all numbers, since they were asked for; everything."""
How = Literal["short", "full", "why"]
"""How much of the method of a number a table shows: a short text, all of it, or only why there is no number."""
NO_LIMIT = 10**6
HOW = 60  # characters of the method that a table shows; JSON has all of it
Tone = Literal["", "good", "bad", "warn"]
TONE: dict[str, Tone] = {"pass": "good", "fail": "bad", "inconclusive": "warn", "not_run": "bad"}


@dataclass(frozen=True)
class SheetColumn:
    """A column of a `Sheet`: its head and how it may be laid out."""

    head: str
    right: bool = False
    code: bool = False  # an identifier: metric, rule, slice
    free: bool = False  # prose, which may be wrapped
    spare: int = 0  # above 0, may be left out if the width is short, the lowest first


OF = (SheetColumn("metric", code=True), SheetColumn("scope", code=True))
VALUE, DIFFERENCE = SheetColumn("value", right=True), SheetColumn("change", right=True)
UNIT, LEVEL = SheetColumn("unit", spare=1), SheetColumn("level", right=True, spare=2)
ROWS, WHY = SheetColumn("n", right=True, spare=3), SheetColumn("why", free=True)
"""Columns that several tables share."""


@dataclass(frozen=True)
class Sheet:
    """A table of text.

    Attributes:
        breaks: indices of rows before which a group begins.
        tones: one per row, or empty.
        musts: indices of rows whose prose is shown at any width (why there is no number, why no PASS).
    """

    title: str
    columns: Sequence[SheetColumn]
    rows: Sequence[Sequence[str]]
    breaks: frozenset[int] = frozenset()
    tones: Sequence[Tone] = ()
    musts: frozenset[int] = frozenset()


def sheets(result: Result, how: How = "short") -> list[Sheet]:
    """Make the tables: verdicts with the numbers they judged, other estimates (before beside after), further tables."""
    same = attrgetter("name", "scope", "value", "low", "high", "level")  # comparing all fields of all pairs takes long
    judged = {same(c.estimate) for c in result.checks if c.estimate is not None}
    unjudged = [e for e in result.estimates if same(e) not in judged]
    pairs = _pairs(unjudged)
    paired = {id(e) for pair in pairs for e in pair}
    single = [e for e in unjudged if id(e) not in paired]
    verdicts = [_checks(result.checks, result.words)] if result.checks else []
    measured = [_before_after(pairs, how)] if pairs else []
    measured += [estimates(single, how)] if single else []
    if pairs and single and unjudged[0] in single:  # fitted parameters come before the changes they make
        measured.reverse()
    others = verdicts + measured  # beside which a table without rows, that only empties its file, is not shown
    return others + [of_table(t) for t in result.tables if t.rows or not others]


def heading(result: Result) -> str:
    """Write `calib metrics test.npz`, from the command and its inputs; of many the first few, and how many follow."""
    inputs = [str(one.get("path", "")) for one in result.provenance.get("inputs") or () if isinstance(one, dict)]
    more = [f"and {len(inputs) - MOST_INPUTS} more"] if len(inputs) > 2 * MOST_INPUTS else []
    return " ".join(["calib", result.command, *(inputs[:MOST_INPUTS] if more else inputs), *more])


def readings(result: Result) -> list[str]:
    """Say what the inputs were taken for: of one in two lines, of several in one line each."""
    inputs = result.inputs_read
    texts = [reading_record.lines(entry["read"]) for entry in inputs[:MOST_INPUTS]]
    if len(inputs) < 2:
        return [line for lines in texts for line in lines]
    more = len(inputs) - MOST_INPUTS
    each = [f"{entry.get('path', '')}: {lines[0]}" for entry, lines in zip(inputs, texts)]
    return [*each, *([f"and {more} more inputs, whose readings are in the JSON"] if more > 0 else [])]


def headline(result: Result) -> str:
    """Return the headline of a result, or ""."""
    return " ".join(str(result.facts.get(HEADLINE) or "").split())


def facts(result: Result) -> list[tuple[str, str]]:
    """List the facts that fit on a line; nested ones are only in the JSON."""
    return [
        (str(key).replace("_", " "), number_format.setting(value))
        for key, value in result.facts.items()
        if key != HEADLINE and value is not None and isinstance(value, str | int | float) and value != ""
    ]


def verdict(result: Result) -> tuple[str, Tone]:
    """Write the last line of a gate, with its tone; "" without checks."""
    return banner([(c.outcome, c.fatal) for c in result.checks], result.words)


def banner(outcomes: Sequence[tuple[Outcome, bool]], words: Mapping[Outcome, str] = VERDICTS) -> tuple[str, Tone]:
    """Write the outcome that decides the run and the count of each, with the tone: red only if the run fails.

    Args:
        outcomes: each with whether it is fatal.
    """
    if (first := decisive(outcomes)) is None:
        return "", ""
    name, fatal = first
    counts = Counter(outcome for outcome, _ in outcomes)
    order = dict.fromkeys([name, *(one for one in WORST_FIRST if one in counts)])
    counted = ", ".join(f"{counts[one]} {words[one].lower()}" for one in order)
    warnings = sum(outcome != "pass" and not fatal for outcome, fatal in outcomes)
    text, tone = words[name], TONE[name]
    if not fatal and tone == "bad":
        text, tone = text + " (only warns)" * (words is VERDICTS), "warn"
    elif name == "pass" and warnings:
        text, tone = f"{text}, {count_text(warnings, 'warning')}", "warn"
    return f"{text}: {counted}", tone


def estimates(listed: Sequence[Estimate], how: How = "short") -> Sheet:
    """Make a table with one row per estimate, ordered by scope."""
    order = list(dict.fromkeys(e.scope for e in listed))
    listed = sorted(listed, key=lambda e: order.index(e.scope)) if len(order) > 1 else listed
    level = number_format.level(listed)
    sizes = {e.n for e in listed if e.n is not None}
    quantile = any(e.null_high is not None for e in listed)
    columns = [
        *OF,
        VALUE,
        UNIT,
        intervals(listed),
        LEVEL,
        SheetColumn(f"if calibrated{' (95 %)' * quantile}", spare=4),
        ROWS,
    ]
    columns.append(WHY if how == "why" else SheetColumn("how", free=True))
    rows = []
    for e in listed:
        value, interval, null = number_format.shown(e)
        own_level = "" if level else number_format.level([e])
        own_size = "" if len(sizes) <= 1 or e.n is None else str(e.n)
        rows.append(
            [e.name, e.scope, value, _unit(e), interval or number_format.NONE, own_level, null, own_size, _how(e, how)]
        )
    many = {scope for scope, rows_of in Counter(e.scope for e in listed).items() if rows_of > 1}
    ends = ((listed[i - 1].scope, listed[i].scope) for i in range(1, len(listed)))
    breaks = {i for i, (a, b) in enumerate(ends, 1) if a != b and {a, b} & many}
    musts = frozenset(i for i, e in enumerate(listed) if e.reason)
    return without_empty(Sheet(size(listed), columns, rows, frozenset(breaks), musts=musts))


def size(estimates: Sequence[Estimate]) -> str:
    """Write `n = 997` if all estimates share it, else ""."""
    sizes = {e.n for e in estimates if e.n is not None}
    return f"n = {sizes.pop()}" if len(sizes) == 1 else ""


def _unit(e: Estimate) -> str:
    return "" if e.unit in ("probability", "percent", "ratio") else e.unit


def intervals(estimates: Sequence[Estimate], word: str = "interval") -> SheetColumn:
    """Make the column of intervals, whose head is the level that they share: `95 % interval`, `bounds, 95 % each`."""
    level = number_format.level(estimates)
    if level.endswith(("each", "FAIL", "lower", "upper")):
        return SheetColumn(f"bounds, {level}")
    return SheetColumn(f"{level} {word}".strip())


def changes(values: Sequence[object]) -> frozenset[int]:
    """Return the indices of values that differ from the one before."""
    return frozenset(i for i, (a, b) in enumerate(itertools.pairwise(values), 1) if a != b)


def _how(e: Estimate, how: How) -> str:
    if how == "full":
        return "; ".join(filter(None, [e.reason, e.how])) or ("" if e.value is not None else "not defined here")
    most = HOW if how == "short" else NO_LIMIT
    if e.value is None:
        return number_format.short(e.reason or "not defined here", most)
    if not number_format.has_interval(e) and e.reason:
        return number_format.short(e.reason, most)
    return "" if how == "why" else number_format.short(e.how, most)


def _pairs(estimates: Sequence[Estimate]) -> list[tuple[Estimate, Estimate]]:
    """Pair numbers that occur once `before` and once `after`, or once `X before` and once `X after`; sorted by X."""
    seen: dict[tuple[Scope, str], dict[str, list[Estimate]]] = {}
    for e in estimates:
        if e.where.phase in ("before", "after"):
            seen.setdefault((e.where.without_phase, e.name), {"before": [], "after": []})[e.where.phase].append(e)
    pairs = [(p["before"][0], p["after"][0]) for p in seen.values() if len(p["before"]) == len(p["after"]) == 1]
    order = list(dict.fromkeys(subject for subject, _ in seen))
    return sorted(pairs, key=lambda pair: order.index(pair[0].where.without_phase))


def _before_after(pairs: Sequence[tuple[Estimate, Estimate]], how: How) -> Sheet:
    listed = [e for pair in pairs for e in pair]
    level = number_format.level(listed)
    columns = [
        *OF,
        SheetColumn("before", right=True),
        intervals(listed),
        SheetColumn("after", right=True),
        intervals(listed),
        LEVEL,
    ]
    columns += [SheetColumn("if calibrated", spare=4), UNIT, SheetColumn("better", spare=3)]
    columns.append(WHY if how == "why" else SheetColumn("how", free=True))
    rows = []
    for pair in pairs:
        row = [pair[1].name, str(pair[1].where.without_phase)]
        same = number_format.level(pair)
        for e in pair:
            value, interval, null = number_format.shown(e)
            own_level = "" if same else f" {number_format.level([e])}".rstrip()
            row += [value, (interval or number_format.NONE) + own_level]
        rows.append([*row, "" if level else same, null, _unit(pair[1]), pair[1].better, _how(pair[1], how)])
    breaks = changes([row[1] for row in rows])
    musts = frozenset(i for i, pair in enumerate(pairs) if pair[1].reason)
    return without_empty(Sheet(size(listed), columns, rows, breaks, musts=musts))


def _checks(checks: Sequence[Check], words: Mapping[Outcome, str]) -> Sheet:
    judged = [c.estimate for c in checks if c.estimate is not None]
    level = number_format.level(judged)
    columns = [SheetColumn("verdict"), SheetColumn("rule", code=True), OF[1], VALUE, intervals(judged, "bounds"), LEVEL]
    columns.append(SheetColumn("limit", right=True, spare=1))  # the rule has it too
    columns += [SheetColumn("if calibrated", spare=5), ROWS, SheetColumn("n to decide", right=True, spare=4), WHY]
    rows = []
    for c in checks:
        e = c.estimate
        value, interval, null = number_format.shown(e, c.limit) if e else (number_format.NONE, "", "")
        own_level = "" if level or e is None else number_format.level([e])
        word = words[c.outcome] + " (warns)" * (words is VERDICTS and not c.fatal and c.outcome != "pass")
        size = str(e.n) if e and e.n is not None else ""
        limit = "" if c.limit is None else number_format.exact(c.limit)
        needed = "" if c.n_needed is None else str(c.n_needed)
        row = [
            word,
            c.rule_shown,
            c.scope,
            value,
            interval or number_format.NONE,
            own_level,
            limit,
            null,
            size,
            needed,
            c.message,
        ]
        rows.append([" ".join(text.split()) for text in row])
    tones: list[Tone] = [TONE[c.outcome] if c.fatal or c.outcome == "pass" else "warn" for c in checks]
    musts = frozenset(i for i, c in enumerate(checks) if c.outcome != "pass")
    return without_empty(Sheet("", columns, rows, tones=tones, musts=musts))


def of_table(table: Table) -> Sheet:
    """Format a table of a result."""
    width = len(table.columns)
    full = [[*row, *[None] * (width - len(row))][:width] for row in table.rows]
    cells = [number_format.of_table(str(name), [row[i] for row in full]) for i, name in enumerate(table.columns)]
    right = [any(isinstance(row[i], int | float) for row in full) for i in range(width)]
    columns = [SheetColumn(str(name), right=r) for name, r in zip(table.columns, right, strict=True)]
    return without_empty(Sheet(table.title or table.name, columns, [list(row) for row in zip(*cells, strict=True)]))


def without_empty(sheet: Sheet) -> Sheet:
    """Drop empty columns, unless the table has no rows."""
    if not sheet.rows:
        return sheet
    kept = [
        i
        for i, _ in enumerate(sheet.columns)
        if any(row[i] not in ("", number_format.NONE) for row in sheet.rows) or sheet.columns[i].head == "value"
    ]
    rows = [[row[i] for i in kept] for row in sheet.rows]
    return dataclasses.replace(sheet, columns=[sheet.columns[i] for i in kept], rows=rows)
