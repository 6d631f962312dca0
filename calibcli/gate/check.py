"""Every gate of a configuration, judged on one input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from calibcli.errors import UsageError, did_you_mean
from calibcli.gate import baseline, limits, words
from calibcli.gate.baseline import Rows
from calibcli.gate.config import Config, Gate
from calibcli.gate.sources import Missing, Scores, Source, at, ece_estimate
from calibcli.gate.verdict import SIDES, Claim, Side, Verdict, judge, rule
from calibcli.metrics.intervals import BOUNDLESS
from calibcli.metrics.sample import average
from calibcli.result import Check, Estimate, Outcome, Result, Table

MOST_SLICES = 1000
Progress = Callable[[float, str], None]
Judged = Callable[[str], tuple[Rows, Rows] | str]
"""Baseline path -> (rows of this input hashed like the baseline's, rows of the baseline), or why not."""


def check(source: Source, config: Config, rows: Judged | None = None, progress: Progress | None = None) -> Result:
    """Judge every gate.

    Args:
        source: scores or an earlier result.
        config: the gates and their statistics.
        rows: how to get at a baseline; needed by gates that have one.

    Raises:
        UsageError: a gate that cannot be meant (unknown metric, no direction).
    """
    checks: list[Check] = []
    sides = [(gate, _side(gate, source)) for gate in config.gates]  # every mistake is found before any work
    for done, (gate, (side, limit)) in enumerate(sides):
        if progress:
            progress(done / len(sides), gate.metric)
        if gate.baseline:
            checks.append(_against_baseline(gate, config, source, rows))
        else:
            choice = source.judged(gate)
            kind = words.kind(choice) if choice is not None else ""
            found = _within_limit(gate, side, limit, source, config.alpha)
            checks += [dataclasses.replace(one, kind=kind) for one in found]
    if progress:
        progress(1.0, "")
    if not checks:
        checks.append(
            Check(
                rule="(none)",
                outcome="not_run",
                message="no gate is configured: write --max ece=0.05, or gates in calib.toml",
            )
        )
    estimates = list({(e.name, e.of): e for c in checks if (e := c.estimate) is not None}.values())
    judged = [choice for gate in config.gates if not gate.baseline and (choice := source.judged(gate)) is not None]
    notes = [said for said in dict.fromkeys(words.unseen(choice) for choice in judged) if said]
    return Result(command="check", estimates=estimates, checks=checks, tables=_tables(source, config), notes=notes)


def _side(gate: Gate, source: Source) -> tuple[Side, float]:
    """Which side of which number is allowed."""
    better = source.better(gate)
    if gate.baseline:
        name = gate.metric
        if name not in baseline.METRICS:
            raise UsageError(
                f"{at(gate)}{name} is not compared with a baseline row by row", did_you_mean(name, baseline.METRICS)
            )
    limits.check(gate, better)
    if gate.baseline:
        return SIDES[better], gate.margin or 0.0
    if gate.max is not None and better == "zero":  # as far below 0 is as bad
        return "zero", abs(gate.max)
    if gate.max is not None:
        return "max", gate.max
    if gate.min is not None:
        return "min", gate.min
    assert gate.limit is not None
    if better not in SIDES:
        raise UsageError(f"{at(gate)}neither end of {gate.metric} is better", "write max or min instead of limit")
    if better == "zero" and gate.limit < 0:
        raise UsageError(f"{at(gate)}limit {gate.limit:g} for a distance from 0", "write a limit that is positive")
    return SIDES[better], gate.limit


def _within_limit(gate: Gate, side: Side, limit: float, source: Source, alpha: float) -> list[Check]:
    text = rule(gate.metric, side, limit)
    parts = source.slices(gate)
    if isinstance(parts, str):
        return [_check(gate, text, "not_run", limit=limit, message=parts)]
    if len(parts) > MOST_SLICES:
        raise UsageError(
            f"{at(gate)}'{gate.by}' has {len(parts)} values, more than {MOST_SLICES}", "choose a coarser column"
        )
    checks = [
        _check(gate, text, "not_run", of=f"{gate.by}={value}", limit=limit, message="this slice is missing")
        for value in gate.values
        if gate.by and value not in parts
    ]
    sizes = {name: source.rows(part, gate) for name, part in parts.items()}
    judged = [name for name, n in sizes.items() if n is None or n >= gate.min_n]
    for name, part in parts.items():
        of = f"{gate.by}={name}" if gate.by else gate.of
        if name not in judged:
            why = f"{sizes[name]} rows are fewer than min_n = {gate.min_n}"
            checks.append(_check(gate, text, "not_run", gate.on_not_run == "warn", of=of, limit=limit, message=why))
            continue
        claim = source.claim(gate, part, alpha, len(judged))
        if isinstance(claim, str):
            checks.append(_check(gate, text, "not_run", gate.on_not_run == "warn", of=of, limit=limit, message=claim))
            continue
        checks.append(_judged(gate, text, of, judge(claim, side, limit), limit))
    return checks


def _judged(gate: Gate, text: str, of: str, verdict: Verdict, limit: float) -> Check:
    return _check(
        gate,
        text,
        verdict.outcome,
        verdict.outcome == "not_run" and gate.on_not_run == "warn",
        of=of,
        limit=limit,
        message=verdict.message,
        estimate=dataclasses.replace(verdict.estimate, of=of),
        n_needed=verdict.n_needed,
    )


def _against_baseline(gate: Gate, config: Config, source: Source, rows: Judged | None) -> Check:
    """The mean difference to the baseline on the same rows, against the margin."""
    margin = gate.margin or 0.0
    higher = source.better(gate) == "higher"
    side: Side = "min" if higher else "max"
    limit = -margin if higher else margin
    text = rule(f"{gate.metric} - baseline", side, limit)
    found = rows(gate.baseline) if rows is not None else "this input has no rows"
    if isinstance(found, str):
        excused = gate.missing == "warn" and isinstance(found, Missing)
        return _check(gate, text, "not_run", excused, limit=limit, message=found)
    new, base = found
    pairing = baseline.pair(new, base)
    if isinstance(pairing, str):
        return _check(gate, text, "not_run", limit=limit, message=pairing)
    n = len(pairing.new)
    if n < gate.min_n:
        few = f"{n} shared rows are fewer than {gate.min_n}"
        return _check(gate, text, "not_run", gate.on_not_run == "warn", limit=limit, message=few)
    common: dict[str, Any] = {
        "name": gate.metric,
        "of": "minus baseline",
        "unit": "nats" if gate.metric in ("nll", "recal_gain") else "",
        "better": "higher" if higher else "lower",
        "n": n,
    }
    delta = baseline.difference(new, base, pairing, gate.metric, *_design(source))
    if isinstance(delta, str):
        return _check(gate, text, "not_run", limit=limit, message=delta)
    low, high = delta.bounds(config.alpha)
    estimate = Estimate(
        **common,
        value=delta.mean.value,
        low=low,
        high=high if math.isfinite(high) else None,
        level=1 - 2 * config.alpha,
        sided="each",
        how=f"mean of differences on the same rows, score form with unseen rows{delta.mean.clustered}",
        reason="" if math.isfinite(high) else BOUNDLESS,
        se=delta.mean.se,
    )
    verdict = judge(Claim(estimate=estimate, low=estimate.low, high=estimate.high), side, limit)
    same = "the same predictions on all of them" if baseline.identical(new, base, pairing) else ""
    message = "; ".join(filter(None, [verdict.message, pairing.how, same]))
    check = _judged(gate, text, "minus baseline", verdict, limit)
    return dataclasses.replace(check, message=message)


def _design(source: Source) -> tuple[Any, bool, Any]:
    """Weights, whether they are counts, and groups of the input's rows."""
    if isinstance(source, Scores):
        p = source.predictions
        return p.weights, p.weight_kind == "count", p.groups
    return None, False, None


def _check(gate: Gate, text: str, outcome: Outcome, excused: bool = False, **fields: Any) -> Check:
    """A verdict of this gate; `excused` says that it does not fail the run though nothing was judged."""
    warns = excused or (outcome == "inconclusive" and gate.on_inconclusive == "warn")
    return Check(rule=text, outcome=outcome, fatal=not warns, file=gate.file, line=gate.line, **fields)


def _tables(source: Source, config: Config) -> list[Table]:
    """ECE and accuracy of every slice of the columns in [data] slices that no gate judges, for the reader."""
    if not isinstance(source, Scores):
        return []
    tables = []
    judged = {gate.by for gate in config.gates if gate.metric.partition(":")[0] == "ece"}
    for name in config.slices:
        if name in judged:
            continue
        parts = source.slices(Gate(metric="ece", by=name))
        if isinstance(parts, str):
            continue
        rows: list[Sequence[Any]] = []
        for value, part in parts.items():
            c = part.columns
            e = ece_estimate(source.bounds(source.choice(Gate(metric="ece")), c, config.alpha), "ece")
            accuracy = average(c.correct, c.weights)
            rows.append([value, c.n, accuracy, e.value, e.low, e.high, e.null])
        columns = [name, "n", "accuracy", "ece", "lower", "upper", "if calibrated"]
        tables.append(Table(name=f"by_{name}", title=f"By {name}", columns=columns, rows=rows))
    return tables
