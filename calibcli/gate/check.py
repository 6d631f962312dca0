"""Every gate of a configuration, judged on one input."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from calibcli.errors import UsageError
from calibcli.gate import baseline, words
from calibcli.gate.baseline import Missing, Rows
from calibcli.gate.config import Config, Gate
from calibcli.gate.limits import Rule, resolved
from calibcli.gate.pairing import Unpaired, pair
from calibcli.gate.sources import Scores, ece_estimate
from calibcli.gate.stored import Source
from calibcli.gate.verdict import Claim, judge
from calibcli.metrics.intervals import BOUNDLESS, average
from calibcli.metrics.sample import traits
from calibcli.plots import RULES, Plot
from calibcli.predictions import Progress
from calibcli.result import WORST_FIRST, Check, Estimate, Result, Screen, Table

MOST_SLICES = 1000
Judged = Callable[[str], tuple[Rows, Rows] | str]
"""Baseline path -> (rows of this input hashed like the baseline's, rows of the baseline), or why not."""


def check(source: Source, config: Config, rows: Judged | None = None, progress: Progress | None = None) -> Result:
    """Judge every gate.

    Args:
        source: scores or an earlier result.
        config: the gates and their statistics.
        rows: how to get at a baseline; needed by gates that have one.

    Raises:
        UsageError: a gate without a meaning (an unknown metric, or one that is better at neither end).
    """
    checks: list[Check] = []
    notes: dict[str, None] = {}
    rules = [resolved(g, source.better(g), source.k) for g in config.gates]  # every mistake is found before any work
    tell = progress or (lambda fraction, text: None)
    for done, rule in enumerate(rules):
        tell(done / len(rules), rule.gate.metric)
        if source.refusal:
            checks.append(rule.check("not_run", source.refusal))
            continue
        if rule.gate.baseline:
            checks.append(_against_baseline(rule, config.alpha, source, rows))
            continue
        choice = source.judged(rule.gate)
        kind = words.kind(choice)
        checks += [dataclasses.replace(one, kind=kind) for one in _within_limit(rule, config.alpha, source)]
        notes |= {words.unseen(rule.gate.name, kind): None} if kind else {}
    tell(1.0, "")
    if not checks:
        none = "no gate is configured: write --max ece=0.05, or gates in calib.toml"
        checks.append(Check(rule="(none)", outcome="not_run", message=none))
    estimates = list({(e.name, e.scope): e for c in checks if (e := c.estimate) is not None}.values())
    result = Result(command="check", estimates=estimates, checks=checks, tables=_tables(source, config), notes=[*notes])
    return dataclasses.replace(result, screen=Screen(one_page=True, badge="calibration"))


def _within_limit(rule: Rule, alpha: float, source: Source) -> list[Check]:
    gate = rule.gate
    parts = source.slices(gate)
    if isinstance(parts, str):
        return [rule.check("not_run", parts)]
    if len(parts) > MOST_SLICES:
        problem = f"{gate.at}'{gate.by}' has {len(parts)} values, more than {MOST_SLICES}"
        raise UsageError(problem, "choose a coarser column")
    missing = [value for value in gate.values if gate.by and value not in parts]
    checks = [rule.check("not_run", "this slice is missing", scope=f"{gate.by}={value}") for value in missing]
    sizes = {name: source.rows(part, gate) for name, part in parts.items()}
    family = sum(n is None or n >= gate.min_n for n in sizes.values())
    for name, part in parts.items():
        n = sizes[name]
        few = n is not None and n < gate.min_n
        claim = f"{n} rows are fewer than min_n = {gate.min_n}" if few else source.claim(rule, part, alpha, family)
        checks.append(_judged(rule, claim, f"{gate.by}={name}" if name else gate.by or gate.scope))
    return checks


def _judged(rule: Rule, claim: Claim | str, scope: str, *said: str) -> Check:
    """The verdict on a claim, or NOT RUN where none can be made."""
    excused = rule.gate.on_not_run == "warn"
    if isinstance(claim, str):
        return rule.check("not_run", claim, excused, scope=scope)
    verdict = judge(claim, rule.side, rule.limit)
    message = "; ".join(filter(None, [verdict.message, *said]))
    estimate = dataclasses.replace(verdict.estimate, scope=scope)
    excused = excused and verdict.outcome == "not_run"
    return rule.check(verdict.outcome, message, excused, scope=scope, estimate=estimate, n_needed=verdict.n_needed)


def _against_baseline(rule: Rule, alpha: float, source: Source, rows: Judged | None) -> Check:
    """The mean difference to the baseline on the same rows, against the margin."""
    gate = rule.gate
    found = rows(gate.baseline) if rows is not None else "this input has no rows"
    if isinstance(found, str):
        return rule.check("not_run", found, gate.missing == "warn" and isinstance(found, Missing))
    new, base = found
    pairing = pair(new, base)
    if isinstance(pairing, Unpaired):
        return rule.check("not_run", str(pairing))
    n = len(pairing.new)
    if n < gate.min_n:
        return rule.check("not_run", f"{n} shared rows are fewer than {gate.min_n}", gate.on_not_run == "warn")
    delta = baseline.difference(new, base, pairing, gate.metric, *source.design)
    if isinstance(delta, str):
        return rule.check("not_run", delta)
    low, high = delta.bounds(alpha)
    bounded = math.isfinite(high)
    estimate = Estimate(
        name=gate.metric,
        value=delta.mean.value,
        low=low,
        high=high if bounded else None,
        level=1 - 2 * alpha,
        sided="each",
        unit="nats" if traits(gate.metric)["unit"] == "nats" else "",
        better="higher" if rule.side == "min" else "lower",
        how=f"mean of differences on the same rows, score form with unseen rows{delta.mean.clustered}",
        reason="" if bounded else BOUNDLESS,
        n=n,
        se=delta.mean.se,
    )
    same = "the same predictions on all of them" if baseline.identical(new, base, pairing) else ""
    claim = Claim(estimate=estimate, low=estimate.low, high=estimate.high)
    return _judged(rule, claim, "minus baseline", pairing.how, same)


def rules_plot(checks: Sequence[Check]) -> list[Plot]:
    """Draw value, bounds and limit of every rule that has them, the worst verdict first where they are many."""
    from calibcli.gate.forest import MOST, Row, forest  # here, as few checks are drawn

    drawn = [c for c in checks if c.estimate is not None and c.limit is not None]
    if len(drawn) > MOST:
        drawn.sort(key=lambda c: WORST_FIRST.index(c.outcome))
    roles = {"pass": "good", "fail": "bad"}
    rows = [
        Row(
            label=f"{c.rule}, {c.scope}" if c.scope else c.rule,
            estimate=c.estimate,
            reference=c.limit,
            verdict=c.outcome.upper().replace("_", " "),
            role=roles.get(c.outcome, "undecided"),
            flipped=c.estimate.better == "lower",
        )
        for c in drawn
        if c.estimate is not None and c.limit is not None
    ]
    axis = "distance to the limit / half the interval (right of 0: within)"
    figures = forest(rows, name=RULES, title="Rules", axis=axis, line="limit")
    return [dataclasses.replace(plot, tier="all") for plot in figures]


def _tables(source: Source, config: Config) -> list[Table]:
    """ECE and accuracy of every slice of the columns in [data] slices that no gate judges, for the reader."""
    judged = {gate.by for gate in config.gates if traits(gate.name).get("table_bounds")}
    if not isinstance(source, Scores):
        return []
    tables = []
    for name in config.slices:
        gate = Gate(metric="ece", by=name)
        if name in judged or isinstance(parts := source.slices(gate), str):
            continue
        rows: list[Sequence[Any]] = []
        for value, part in parts.items():
            with closing(part):
                e = ece_estimate(source.bounds(source.judged(gate), part, config.alpha), "ece")
                accuracy = average(part.columns.correct, part.columns.weights)
            rows.append([value, part.n, accuracy, e.value, e.low, e.high, e.null])
        columns = [name, "n", "accuracy", "ece", "lower", "upper", "if calibrated"]
        tables.append(Table(name=f"by_{name}", title=f"By {name}", columns=columns, rows=rows))
    return tables
