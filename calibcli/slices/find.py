"""Search and confirm slices, and make the result of `calib slices`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.core import number_format
from calibcli.core.errors import InputError, UsageError
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.result import Estimate, Result, Screen, Table
from calibcli.core.scope import Scope
from calibcli.core.statistics import squares
from calibcli.gate.config import text_of
from calibcli.gate.sources import BY_CLASS
from calibcli.metrics import Sample
from calibcli.metrics.intervals import WeightedMean
from calibcli.metrics.paired import holm
from calibcli.metrics.report import class_names
from calibcli.scores.columns import columns
from calibcli.scores.histogram import CONFIDENCE
from calibcli.scores.predictions import Floats, Ints, Predictions, Progress
from calibcli.slices import Search
from calibcli.slices._confirmation import ConfirmedRule, MeasuredRows, detectable, halves
from calibcli.slices.candidates import (
    CandidateRule,
    CodedColumn,
    Evidence,
    columns_of,
    distinct,
    ranked,
    search_with_sliceline,
)

TESTS = 10  # most rules that are confirmed
WRONG = 20  # wrong rows below which a column is not suspected to be made from the labels
PREDICTED = 0.8  # share of the wrong rows whose label a suspect column predicts
SHARE = 0.05  # share of the rows in the slice that "would have been found"


def find(predictions: Predictions, search: Search, progress: Progress | None = None) -> Result:
    """Find rules on the columns of the rows (`predictions.slices`) on whose rows the model fails beyond chance.

    Raises:
        UsageError: there is no column to search, or there are too few rows.
        InputError: none of the columns can be searched.
    """
    given = predictions.slices
    if not given:
        raise UsageError("no column to search", "name one that the rows have: --by COLUMN")
    report_progress = progress or (lambda fraction, text: None)
    report_progress(0.0, "reading scores")
    table = columns(predictions, class_bins=(), names=CONFIDENCE)
    if BY_CLASS in given:
        given = {**given, BY_CLASS: np.array(class_names(predictions))[table.predicted]}
    measured, evidence = _measured(Sample.of(table), search)
    split = search.confirm == "split"
    searched = halves(predictions.n, predictions.groups, search.seed) if split else np.ones(predictions.n, bool)
    least = max(1, search.min_n // 2 if split else search.min_n)
    if searched.sum() < 2 * least:
        problem = f"{predictions.n} rows are too few to search for slices of {search.min_n}"
        raise UsageError(problem, f"pass more rows, or --min-n {max(1, predictions.n // 5)}")
    coded, notes = columns_of(given, searched, least)
    if not coded:
        raise InputError("no column can be searched: " + "; ".join(notes), "name others: --by COLUMN")
    searched_rows, confirming_rows = np.flatnonzero(searched), np.flatnonzero(~searched if split else searched)
    evidence = evidence.over(searched_rows)  # still of all rows; the totals are those of the searched ones
    rules, count = ranked(coded, evidence, searched_rows, least, min(search.depth, 2), progress)
    if search.depth == 3:
        deeper = search_with_sliceline(coded, evidence, searched_rows, least)
        rules, count = sorted({*rules, *deeper}, key=lambda rule: -rule.z), count + len(deeper)
    best = distinct(rules, coded, evidence, searched_rows, TESTS)
    report_progress(0.8, "confirming")
    tests = _tests(best, coded, measured, confirming_rows, search.alpha)
    adjusted = holm([test.p for test in tests]).tolist() if split else [min(1.0, test.p * count) for test in tests]
    tests = [dataclasses.replace(test, adjusted=p) for test, p in zip(tests, adjusted, strict=True)]
    texts = [text_of(rule.conditions(coded)) for rule in best]
    gaps = [float(np.mean(measured.rows.values[searched_rows][rule.holds(coded, searched_rows)])) for rule in best]
    confirming = measured.rows.at(confirming_rows)
    total = float(confirming.value)
    share = max(SHARE, search.min_n / predictions.n)
    # the slice has s n rows, and is compared with the others: v / (s n) + v / ((1 - s) n) = v / (1 - s) / (s n)
    variance = float(np.average(evidence.variance[confirming_rows])) / (1 - min(share, 0.5))
    gap = detectable(variance, share * len(confirming_rows), count, TESTS if split else count, search.alpha)
    report_progress(1.0, "")
    everywhere = search.find == "gap" and abs(total) > 3 * confirming.se
    least_gap = min(1.0, gap), share
    result = _result(search, texts, gaps, tests, len(confirming_rows), count, total, everywhere, least_gap)
    if everywhere:
        all_rows = f"all rows together have a gap of {total:+.3f}"
        notes.append(f"{all_rows}, which slices share: reduce it first with calib scale")
    if any(test.n < test.all_rows for test in tests):
        notes.append("n: rows of a rule that no rule above it selects, on which it is measured; of: all of its rows")
    possible = {i: column for i, column in enumerate(coded) if column.name != BY_CLASS}
    leaks = {i: _label_leak_note(column, predictions.labels, table.predicted) for i, column in possible.items()}
    notes += filter(None, leaks.values())
    for rule, text, test in zip(best, texts, tests, strict=True):
        noted = any(leaks.get(column) for column, _ in rule.parts)
        if test.adjusted <= search.alpha and not noted:
            notes += filter(None, [_constant_outcome_note(rule, text, coded, measured)])
    facts = {**result.facts, "n": predictions.n, **predictions.problem.facts, "columns": len(coded)}
    return dataclasses.replace(result, facts=facts, notes=[*predictions.notes, *notes])


def _measured(sample: Sample, search: Search) -> tuple[MeasuredRows, Evidence]:
    """Return what is measured on each row, and the evidence by which rules are ranked.

    Of gaps p - y the evidence has the variance p (1 - p) of calibrated rows. Of errors it is what exceeds the error of
    all rows, with the variance of rows that share it; then only an excess is wrong, not the opposite.
    """
    design = sample.weights, sample.counts, sample.columns.groups
    w = np.ones(sample.columns.n) if sample.weights is None else sample.weights
    power = squares(w, sample.counts)  # a count stands for so many independent rows
    if search.find == "gap":
        view = sample.view()
        variance = power * (view.p * view.complement)
        evidence = Evidence(value=w * view.residual, variance=variance, weight=sample.weights)
        return MeasuredRows(WeightedMean(view.residual, *design), view.p), evidence
    wrong: Floats = (~sample.columns.correct).astype(np.float64)
    mean = float(np.average(wrong, weights=w))
    variance = power * np.full(len(wrong), mean * (1 - mean))
    evidence = Evidence(value=w * (wrong - mean), variance=variance, signed=False, weight=sample.weights)
    return MeasuredRows(WeightedMean(wrong, *design), None), evidence


def _label_leak_note(column: CodedColumn, labels: Ints, predicted: Ints) -> str:
    """Return a note if a column predicts the labels even of the rows that the model gets wrong, as no feature would."""
    wrong = predicted != labels
    if wrong.sum() < WRONG:
        return ""
    size = int(labels.max()) + 1
    table = np.bincount(column.codes.astype(np.intp) * size + labels, minlength=(int(column.codes.max()) + 1) * size)
    table = table.reshape(-1, size)
    usual = table.argmax(axis=1)[column.codes]
    right = usual == labels
    chance = float(np.bincount(labels).max()) / len(labels)  # accuracy of always predicting the most frequent label
    if 1 - right.mean() > (1 - chance) / 2 or right[wrong].mean() < PREDICTED:
        return ""
    shares = [f"{100 * share:.1f} %" for share in (right.mean(), right[wrong].mean())]
    return (
        f"'{column.name}' alone predicts the label of {shares[0]} of rows, and of {shares[1]} of those that the model "
        "gets wrong: if it was made from the labels, it hides all other slices; name the other columns with --by"
    )


def _constant_outcome_note(
    rule: CandidateRule, text: str, columns: Sequence[CodedColumn], measured: MeasuredRows
) -> str:
    """Return a note if all rows of a rule have the same outcome, as with a column that was made from the labels."""
    outcomes = measured.outcomes[rule.holds(columns, slice(None))]
    if float(np.ptp(outcomes)) > 0.5:
        return ""
    names = " and ".join(f"'{columns[at].name}'" for at, _ in rule.parts)
    return (
        f"all {len(outcomes):,} rows of {text} have the same outcome: if {names} was made from the labels, it hides "
        "all other slices; name the other columns with --by"
    )


def _tests(
    rules: Sequence[CandidateRule], columns: Sequence[CodedColumn], measured: MeasuredRows, rows: Any, alpha: float
) -> list[ConfirmedRule]:
    """Test each rule on the rows that no stronger rule selects, so that nothing is found twice."""
    tests, unclaimed = [], np.ones(len(rows), bool)
    for rule in rules:
        inside = rule.holds(columns, rows)
        test = measured.test(rows[inside & unclaimed], rows[~inside & unclaimed], alpha)
        tests.append(dataclasses.replace(test, all_rows=int(inside.sum())))
        unclaimed &= ~inside
    return tests


def _result(
    search: Search,
    texts: Sequence[str],
    gaps: Sequence[float],
    tests: Sequence[ConfirmedRule],
    rows: int,
    count: int,
    total: float,
    everywhere: bool,
    least: tuple[float, float],
) -> Result:
    """Make the result.

    Args:
        texts, gaps, tests: each rule as text, its gap on the searched rows, and its test.
        rows: number of confirming rows.  count: number of rules.  total: gap, or error, of all confirming rows.
        everywhere: whether all rows together have a gap beyond chance.
        least: the gap that would have been found, and the share of rows that it would have to be in.
    """
    split = search.confirm == "split"
    metric = "confidence_gap" if search.find == "gap" else "error"
    how = "score form; other half, rows of no rule above" if split else "score form, on all rows"
    estimates, lines, rules = [], list[list[Any]](), []
    for text, gap, test in zip(texts, gaps, tests, strict=True):
        confirmed = test.adjusted <= search.alpha
        detail: dict[str, Any] = {"p_value": test.p, "p_adjusted": test.adjusted, "confirmed": confirmed}
        detail |= {"searched": gap, "of": test.all_rows}
        detail |= {} if test.others is None else {"other_rows": test.others}
        ends: dict[str, Any] = {} if test.reason else {"low": test.low, "high": test.high, "level": 1 - search.alpha}
        estimates.append(
            Estimate(
                name=metric,
                **Scope(subject=text).fields,
                value=test.value,
                **ends,
                unit="probability",
                better="zero" if search.find == "gap" else "lower",
                how=how,
                reason=test.reason,
                n=test.n,
                detail=detail,
            )
        )
        size: list[Any] = [test.n, test.all_rows, test.n / rows]
        lines.append([text, "yes" if confirmed else "no", *size, test.value, test.low, test.high, test.adjusted])
        if confirmed:
            rules.append({"by": text, "metric": metric, "value": test.value, "n": test.n})
    adjusted = f"p ({'Holm' if split else 'Bonferroni'})"
    heads = ["rule", "confirmed", "n", "of", "share", metric, "lower", "upper", adjusted]
    title = f"Where it fails: the {len(lines)} strongest of {count:,} rules"
    facts: dict[str, Any] = {
        "headline": _headline(estimates, search, total, least, rows, everywhere),
        "candidates": count,
        "confirmed": len(rules),
        "would_have_found": round(least[0], 3),
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
    estimates: Sequence[Estimate], search: Search, total: float, least: tuple[float, float], rows: int, everywhere: bool
) -> str:
    kind = "a gap" if search.find == "gap" else "an excess of errors"
    real = [e for e in estimates if e.detail["confirmed"]]
    if not real:
        gap, share = least
        least_rows = f"{100 * share:.0f} % of rows or more"
        if everywhere:
            power = f"a difference of {gap:.2f} in {least_rows} would have been found, with a chance of 80 %"
            return f"Everywhere alike: confidence gap {total:+.3f}; no slice differs ({power})."
        return f"No slice found; {kind} of {gap:.2f} in {least_rows} would have been, with a chance of 80 %."
    errors = search.find == "error"
    name = "error" if errors else "confidence gap"
    word = "wrong more often than the other rows" if errors else "miscalibrated, and more than the other rows"
    names = "; ".join(f"{e.scope} ({name} {_with_interval(e)}, n = {_rows(e)})" for e in real[:3])
    more = f"; and {len(real) - 3} more" if len(real) > 3 else ""
    all_rows = f"{total:.3f}" if errors else f"{total:+.3f}"
    return f"Surely {word}: {names}{more}. All {rows:,} rows together: {name} {all_rows}."


def _rows(e: Estimate) -> str:
    """Write the number of rows, and of how many, where stronger rules select some."""
    every = e.detail["of"]
    return f"{e.n:,}" if e.n == every else f"{e.n:,} of {every:,}"


def _with_interval(e: Estimate) -> str:
    """Write an estimate with its interval: a gap with its side, an error with that of the other rows and p."""
    shown = " ".join(number_format.shown(e)[:2]).strip()
    if e.better == "zero":
        return f"{shown}, too {'high' if (e.value or 0.0) > 0 else 'low'}"
    others = e.detail.get("other_rows")
    against = f" against {number_format.number(others, 3)}" if isinstance(others, float) else ""
    return f"{shown}{against}, p = {e.detail['p_adjusted']:.2g}"


def _plots(estimates: Sequence[Estimate], total: float, where: str) -> list[Plot]:
    if not estimates:
        return []
    curves = []
    for confirmed, label, role in ((True, "confirmed", "model"), (False, "not confirmed", "null")):
        positions = [i for i, e in enumerate(estimates) if e.detail["confirmed"] is confirmed]
        y, low, high = ([getattr(estimates[i], part) for i in positions] for part in ("value", "low", "high"))
        if positions:
            x = [float(i) for i in positions]
            curves.append(Curve(label=label, kind="points", role=role, x=x, y=y, low=low, high=high))
    curves.append(Curve(label="all rows", kind="hline", y=[total], role="limit"))
    labels, title = [e.scope for e in estimates], f"Where it fails, {where}"
    return [Plot(name="slices", title=title, ylabel=estimates[0].name, labels=labels, flip=True, curves=curves)]
