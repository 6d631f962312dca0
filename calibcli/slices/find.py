"""One run of `calib slices`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.core import number_format
from calibcli.core.errors import InputError, UsageError
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.result import Estimate, Result, Screen, Table
from calibcli.gate.config import text_of
from calibcli.gate.sources import BY_CLASS
from calibcli.metrics import Sample
from calibcli.metrics.intervals import WeightedMean
from calibcli.metrics.paired import holm
from calibcli.scores.columns import columns
from calibcli.scores.histogram import LEAN
from calibcli.scores.predictions import Floats, Ints, Predictions, Progress
from calibcli.slices import Search
from calibcli.slices.candidates import CandidateRule, CodedColumn, Evidence, columns_of, distinct, ranked
from calibcli.slices.confirmation import ConfirmedRule, MeasuredRows, detectable, halves

TESTS = 10
WRONG, TOLD = 20, 0.8  # wrong rows, and the share of them whose label a column tells, from where it is suspect
SHARE = 0.05  # of the rows, of the slice that "would have been found"


def find(predictions: Predictions, search: Search, progress: Progress | None = None) -> Result:
    """Rules on the columns of the rows (`predictions.slices`) whose rows show more than chance does.

    Raises:
        UsageError: no column to search, or too few rows.
    """
    given = predictions.slices
    if not given:
        raise UsageError("no column to search", "name one that the rows have: --by COLUMN")
    tell = progress or (lambda fraction, text: None)
    tell(0.0, "reading scores")
    table = columns(predictions, class_bins=(), names=LEAN)
    if BY_CLASS in given:
        names = range(predictions.k) if predictions.classes is None else predictions.classes
        given = {**given, BY_CLASS: np.asarray(names).astype(str)[table.predicted]}
    measured, evidence = _asked(Sample.of(table), search)
    split = search.confirm == "split"
    searched = halves(predictions.n, predictions.groups, search.seed) if split else np.ones(predictions.n, bool)
    least = max(1, search.min_n // 2 if split else search.min_n)
    if searched.sum() < 2 * least:
        problem = f"{predictions.n} rows are too few to search for slices of {search.min_n}"
        raise UsageError(problem, f"pass more rows, or --min-n {max(1, predictions.n // 5)}")
    found, notes = columns_of(given, searched, least)
    if not found:
        raise InputError("no column can be searched: " + "; ".join(notes), "name others: --by COLUMN")
    at, rest = np.flatnonzero(searched), np.flatnonzero(~searched if split else searched)
    evidence = evidence.over(at)
    tell(0.2, "searching")
    rules, count = ranked(found, evidence, at, least, min(search.depth, 2))
    if search.depth == 3:
        from calibcli.slices.candidates import deeper

        more = deeper(found, evidence, at, least)
        rules, count = sorted({*rules, *more}, key=lambda rule: -rule.z), count + len(more)
    best = distinct(rules, found, evidence, at, TESTS)
    tell(0.8, "confirming")
    tests = _tests(best, found, measured, rest, search.alpha)
    adjusted = holm([one.p for one in tests]).tolist() if split else [min(1.0, one.p * count) for one in tests]
    tests = [dataclasses.replace(one, adjusted=p) for one, p in zip(tests, adjusted, strict=True)]
    texts = [text_of(rule.conditions(found)) for rule in best]
    gaps = [float(np.mean(measured.rows.values[at][rule.holds(found, at)])) for rule in best]
    confirming = measured.rows.at(rest)
    total = float(confirming.value)
    sides = len(rest), float(np.average(evidence.variance[rest])), count, max(SHARE, search.min_n / predictions.n)
    tell(1.0, "")
    everywhere = search.find == "gap" and abs(total) > 3 * confirming.se
    told = _result(search, texts, gaps, tests, total, sides, everywhere)
    if everywhere:
        notes.append(f"all rows together have a gap of {total:+.3f}, which slices share: calib scale mends that first")
    if any(one.n < one.of for one in tests):
        notes.append("a rule is measured on its rows (n) that no rule above it holds, of all that it has (of)")
    labels = predictions.labels
    leaks = {
        i: note
        for i, column in enumerate(found)
        if column.name != BY_CLASS and (note := _of_labels(column, labels, table.predicted))
    }
    notes += leaks.values()
    notes += [said for rule, text, one in zip(best, texts, tests, strict=True)
              if one.adjusted <= search.alpha and not leaks.keys() & {at for at, _ in rule.parts}
              and (said := _leak(rule, text, found, measured))]  # fmt: skip
    facts = {**told.facts, "n": predictions.n, **predictions.problem, "columns": len(found)}
    return dataclasses.replace(told, facts=facts, notes=[*predictions.notes, *notes])


def _asked(sample: Sample, search: Search) -> tuple[MeasuredRows, Evidence]:
    """What is measured of each row, and how it ranks rules."""
    design = sample.weights, sample.counts, sample.columns.groups
    w = np.ones(sample.columns.n) if sample.weights is None else sample.weights
    power = w if sample.counts else w * w
    if search.find == "gap":
        view = sample.view()
        values, variance = view.residual, view.p * view.complement
        return MeasuredRows(WeightedMean(values, *design), view.p), Evidence(
            w * values, power * variance, weight=sample.weights
        )
    wrong: Floats = (~sample.columns.correct).astype(np.float64)
    mean = float(np.average(wrong, weights=w))
    spread = np.full(len(wrong), mean * (1 - mean))
    return MeasuredRows(WeightedMean(wrong, *design), None), Evidence(w * (wrong - mean), power * spread, signed=False)


def _of_labels(column: CodedColumn, labels: Ints, predicted: Ints) -> str:
    """A remark where a column tells the labels, also of the rows that the model gets wrong, as no feature does."""
    wrong = predicted != labels
    if wrong.sum() < WRONG:
        return ""
    size = int(labels.max()) + 1
    table = np.bincount(column.codes * size + labels, minlength=(int(column.codes.max()) + 1) * size)
    table = table.reshape(-1, size)
    usual = table.argmax(axis=1)[column.codes]
    right = usual == labels
    chance = float(np.bincount(labels).max()) / len(labels)  # of the most frequent label, whatever the column says
    if 1 - right.mean() > (1 - chance) / 2 or right[wrong].mean() < TOLD:
        return ""
    shares = [f"{100 * share:.1f} %" for share in (right.mean(), right[wrong].mean())]
    return (
        f"'{column.name}' alone tells the label of {shares[0]} of rows, and of {shares[1]} of those that the model "
        "gets wrong: if it was made from the labels, it hides what else there is; name the other columns with --by"
    )


def _leak(rule: CandidateRule, text: str, columns: Sequence[CodedColumn], measured: MeasuredRows) -> str:
    """A remark where all rows of a rule came out alike: a column that was made from the labels explains everything."""
    outcomes = measured.outcomes[rule.holds(columns, slice(None))]
    if float(np.ptp(outcomes)) > 0.5:
        return ""
    names = " and ".join(f"'{columns[at].name}'" for at, _ in rule.parts)
    return (
        f"all {len(outcomes):,} rows of {text} have the same outcome: if {names} was made from the labels, it hides "
        "what else there is; name the other columns with --by"
    )


def _tests(
    rules: Sequence[CandidateRule], columns: Sequence[CodedColumn], measured: MeasuredRows, rows: Any, alpha: float
) -> list[ConfirmedRule]:
    """Each on the rows that no rule before it holds: what those explain is not found again."""
    found, free = [], np.ones(len(rows), bool)
    for rule in rules:
        held = rule.holds(columns, rows)
        one = measured.test(rows[held & free], rows[~held & free], alpha)
        found.append(dataclasses.replace(one, of=int(held.sum())))
        free &= ~held
    return found


def _result(
    search: Search,
    texts: Sequence[str],
    gaps: Sequence[float],
    tests: Sequence[ConfirmedRule],
    total: float,
    sides: tuple[int, float, int, float],
    everywhere: bool,
) -> Result:
    rows, variance, count, share = sides
    split = search.confirm == "split"
    metric = "confidence_gap" if search.find == "gap" else "error"
    how = "score form; other half, rows of no rule above" if split else "score form, on all rows"
    estimates, lines, rules = [], list[list[Any]](), []
    for text, gap, one in zip(texts, gaps, tests, strict=True):
        real = one.adjusted <= search.alpha
        bounded = not one.reason
        detail: dict[str, Any] = {"p_value": one.p, "p_adjusted": one.adjusted, "confirmed": real}
        estimates.append(
            Estimate(
                name=metric,
                scope=text,
                value=one.value,
                low=one.low if bounded else None,
                high=one.high if bounded else None,
                level=1 - search.alpha if bounded else None,
                unit="probability",
                better="zero" if search.find == "gap" else "lower",
                how=how,
                reason=one.reason,
                n=one.n,
                detail=detail
                | {"searched": gap, "of": one.of}
                | ({} if one.rest is None else {"other_rows": one.rest}),
            )
        )
        size: list[Any] = [one.n, one.of, one.n / rows]
        lines.append([text, "yes" if real else "no", *size, one.value, one.low, one.high, one.adjusted])
        if real:
            rules.append({"by": text, "metric": metric, "value": one.value, "n": one.n})
    adjusted = f"p ({'Holm' if split else 'Bonferroni'})"
    heads = ["rule", "confirmed", "n", "of", "share", metric, "lower", "upper", adjusted]
    title = f"Where it fails: the {len(lines)} strongest of {count:,} rules"
    least = min(
        1.0, detectable(variance / (1 - min(share, 0.5)), share * rows, count, TESTS if split else count, search.alpha)
    )
    facts: dict[str, Any] = {
        "headline": _headline(estimates, search, total, (least, share), rows, everywhere),
        "candidates": count,
        "confirmed": len(rules),
        "would_have_found": round(least, 3),
        "all_rows": round(total, 4),
        "alpha": search.alpha,
        "rules": rules,
    }
    tables = [Table(name="slices", title=title, columns=heads, rows=lines)]
    plots = _plots(estimates, total, "on rows that were not searched" if split else "on all rows")
    return Result(
        command="slices", estimates=estimates, tables=tables, plots=plots, facts=facts, screen=Screen(pairs="tables")
    )


def _headline(
    found: Sequence[Estimate], search: Search, total: float, least: tuple[float, float], rows: int, everywhere: bool
) -> str:
    what = "a gap" if search.find == "gap" else "an excess of errors"
    real = [e for e in found if e.detail["confirmed"]]
    if not real:
        gap, share = least
        least_rows = f"{100 * share:.0f} % of rows or more"
        if everywhere:
            seen = f"a difference of {gap:.2f} in {least_rows} would have been found, with a chance of 80 %"
            return f"Everywhere alike: confidence gap {total:+.3f}; no slice differs ({seen})."
        return f"No slice found; {what} of {gap:.2f} in {least_rows} would have been, with a chance of 80 %."
    errors = search.find == "error"
    word, name = (
        ("wrong more often than the other rows", "error")
        if errors
        else ("miscalibrated, and more than the other rows", "confidence gap")
    )
    names = "; ".join(f"{e.scope} ({name} {_told(e)}, n = {_rows(e)})" for e in real[:3])
    more = f"; and {len(real) - 3} more" if len(real) > 3 else ""
    all_rows = f"{total:.3f}" if errors else f"{total:+.3f}"
    return f"Surely {word}: {names}{more}. All {rows:,} rows together: {name} {all_rows}."


def _rows(e: Estimate) -> str:
    """How many rows, of how many where stronger rules hold some."""
    every = e.detail["of"]
    return f"{e.n:,}" if e.n == every else f"{e.n:,} of {every:,}"


def _told(e: Estimate) -> str:
    """The number with its interval: of a gap with its side, of an error beside what it is compared with, and p."""
    shown = " ".join(number_format.shown(e)[:2]).strip()
    if e.better == "zero":
        return f"{shown}, too {'high' if (e.value or 0.0) > 0 else 'low'}"
    rest = e.detail.get("other_rows")
    against = f" against {number_format.number(rest, 3)}" if isinstance(rest, float) else ""
    return f"{shown}{against}, p = {e.detail['p_adjusted']:.2g}"


def _plots(estimates: Sequence[Estimate], total: float, where: str) -> list[Plot]:
    if not estimates:
        return []
    curves = []
    for confirmed, label, role in ((True, "confirmed", "model"), (False, "not confirmed", "null")):
        at = [i for i, e in enumerate(estimates) if e.detail["confirmed"] is confirmed]
        y, low, high = ([getattr(estimates[i], part) for i in at] for part in ("value", "low", "high"))
        if at:
            x = [float(i) for i in at]
            curves.append(Curve(label=label, kind="points", role=role, x=x, y=y, low=low, high=high))
    curves.append(Curve(label="all rows", kind="hline", y=[total], role="limit"))
    labels, title = [e.scope for e in estimates], f"Where it fails, {where}"
    return [Plot(name="slices", title=title, ylabel=estimates[0].name, labels=labels, flip=True, curves=curves)]
