"""Turn the rules of a gate into rules that are watched row by row, and rows into evidence on them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.core import extensions
from calibcli.core.errors import InputError, UsageError
from calibcli.core.registries import Choice
from calibcli.gate import judging
from calibcli.gate.baseline import Unpaired, pair
from calibcli.gate.config import Gate
from calibcli.gate.judging import possible, resolved
from calibcli.gate.sources import Part, RecordedOutputs
from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.registry import MetricTraits, reads_scores
from calibcli.scores.predictions import Floats, Ints
from calibcli.watch._bets import WatchedRule, tables

MOST_SLICES = 100  # each keeps a stream of its own in the state


def watched(gate: Gate, source: RecordedOutputs, cap: float, begins: bool = True) -> WatchedRule:
    """Make a watched rule of a rule of a gate; `begins` says that no state has its slices yet.

    Raises:
        UsageError: its metric is neither a mean over rows of bounded range nor a calibration error with bins of equal
            width, or there are too many slices.
        InputError: the column of its slices is missing.
    """
    choice = source.judged(gate)
    rule = resolved(gate, source.better(gate), source.k)
    low, high, bins = _row_range(gate, choice, source, cap)
    values: Sequence[str] = ()
    if gate.by:
        parts = source.slices(gate)
        if isinstance(parts, str) and not gate.values:
            raise InputError(parts, "name a column of the rows, or write values = [...] beside by")
        values = gate.values or sorted(parts)
        if begins and len(values) > MOST_SLICES:
            problem = f"{gate.at}'{gate.by}' has {len(values)} values, and a state watches {MOST_SLICES}"
            raise UsageError(problem, "choose a coarser column, or name the values to watch: values = [...]")
    kind = f"each row at most {cap:g} nats" if _unbounded(choice, source) else judging.kind(choice)
    traits = choice.traits
    return WatchedRule(
        rule=rule.text,
        metric=choice.spec,
        side=rule.side,
        limit=rule.limit,
        low=low,
        high=high,
        bins=bins,
        by=gate.by,
        values=list(values),
        since=[1] * len(values) if any(values) and not gate.values else [],
        baseline=bool(gate.baseline),
        kind=kind,
        unit=traits.unit,
        better=traits.better,
    )


def _row_range(
    gate: Gate, choice: Choice[MetricTraits], source: RecordedOutputs, cap: float
) -> tuple[float, float, int]:
    """Return the range of a row's value, and the number of bins of a calibration error (0 for a mean)."""
    if gate.baseline:
        if not choice.traits.kept or choice.traits.rows == "cross_fitted":
            problem = f"{gate.at}{choice.name} is no mean over rows, and cannot be watched against a baseline"
            raise UsageError(problem, "choose from: accuracy, brier, nll (--margin nll=0.01)")
        most = cap if _unbounded(choice, source) else possible(choice.spec, source.k).high
        return -most, most, 0
    if choice.traits.table_bounds:
        return -1.0, 1.0, choice.options["bins"] + (choice.options["edges"] == "torchmetrics")
    statistic = None
    if not reads_scores(choice):
        statistic = choice(source.whole.sample(choice))
    if not isinstance(statistic, MeanOf):
        means = "ece, accuracy, nll, brier, brier_top, confidence_gap and other means over rows"
        raise UsageError(f"{gate.at}{choice.name} cannot be watched: it is no sum over rows", f"choose from: {means}")
    low, high = (0.0, cap) if _unbounded(choice, source) else statistic.range
    return float(low), float(high), 0


def _unbounded(choice: Choice[MetricTraits], source: RecordedOutputs) -> bool:
    """Return whether a metric has no largest value, so that a row counts for at most `cap` nats."""
    values = possible(choice.spec, source.k)
    return values.low >= 0 and math.isinf(values.high)


def gate_of(watched: WatchedRule, path: str = "") -> Gate:
    """Turn a watched rule back into the rule of a gate; `path` is tonight's baseline."""
    if watched.baseline:
        return Gate(metric=watched.metric, baseline=path, margin=abs(watched.limit))
    side = "limit" if watched.side == "zero" else watched.side
    keys: dict[str, Any] = {side: watched.limit, "by": watched.by, "values": tuple(watched.values)}
    return Gate(metric=watched.metric, **keys)


def evidence(
    watched: WatchedRule, source: RecordedOutputs, baselines: Any, path: str, cap: float
) -> dict[str, Any] | str:
    """Return by slice the wealth of the rows, (B, A, L) twice, and their sums (B, 2); or why the rule has none."""
    gate = gate_of(watched, path)
    if watched.baseline:
        rows = _differences(watched, source, baselines, gate, cap)
        return rows if isinstance(rows, str) else {"": _wealth_and_sums(watched, *rows)}
    parts = source.slices(gate)
    if isinstance(parts, str):
        return parts
    counted = [name for name in parts if not watched.by or name in watched.values]
    return {
        name: _wealth_and_sums(watched, *_rows(watched, source, gate, parts[name], cap))
        for name in extensions.with_progress(counted, lambda name: f"{watched.rule} {name}")
    }


def worst_evidence(watched: WatchedRule, source: RecordedOutputs, cap: float) -> dict[str, Any] | str:
    """Return the same of rows without labels, at the least that each bet may get of them; their sums are 0."""
    gate, labels = gate_of(watched), range(source.predictions.k)
    by_part = dict[str, list[Any]]()
    for label in labels:
        rows = dataclasses.replace(source.predictions, labels=np.full(source.predictions.n, label))
        every = RecordedOutputs(rows, source.config)
        parts = every.slices(gate)
        if isinstance(parts, str):
            return parts
        for name in parts if not watched.by else [one for one in parts if one in watched.values]:
            cell, value, weight, groups = _rows(watched, every, gate, parts[name], cap)
            here = by_part.setdefault(name, [cell, value, value, weight, groups])
            if len(here[0]) != len(cell) or (here[0] != cell).any():
                return "which rows it is about depends on their labels, so that it needs all of them (--labelled 1)"
            here[1:3] = np.minimum(here[1], value), np.maximum(here[2], value)
    return {
        name: _wealth_and_sums(watched, cell, low, weight, groups, high)
        for name, (cell, low, high, weight, groups) in by_part.items()
    }


def _rows(watched: WatchedRule, source: RecordedOutputs, gate: Gate, part: Part, cap: float) -> tuple[Any, ...]:
    """Return (cell, value, weight, group) of the rows of a part."""
    choice = source.judged(gate)
    sample = part.sample(choice)
    weights = sample.weights if sample.counts else None
    statistic = choice(sample)
    if watched.bins:
        return statistic.table.index.astype(np.int64), statistic.view.residual, weights, sample.columns.groups
    rows = statistic.rows
    values = rows.values.astype(np.float64)
    if _unbounded(choice, source):
        values = np.minimum(values, cap)
    return np.zeros(len(values), np.int64), values, rows.weights if sample.counts else None, rows.groups


def _differences(
    watched: WatchedRule, source: RecordedOutputs, baselines: Any, gate: Gate, cap: float
) -> tuple[Any, ...] | str:
    lookup = baselines(gate.baseline)
    if isinstance(lookup, str):
        return lookup
    new, base = lookup
    pairing = pair(new, base)
    if isinstance(pairing, Unpaired):
        return str(pairing)
    i, j = pairing.new, pairing.base
    if alone := new.n - len(i):
        fix = "write the scores of both models on the same rows"
        return f"{alone:,} of {new.n:,} rows are not in the baseline, which may be the ones that decide ({fix})"
    values = [keyed.column(watched.metric)[rows] for keyed, rows in ((new, i), (base, j))]
    if watched.high == cap:
        values = [np.minimum(column, cap) for column in values]
    weights, counts, groups = source.design
    weights, groups = (None if c is None else c[i] for c in (weights if counts else None, groups))
    return np.zeros(len(i), np.int64), values[0] - values[1], weights, groups


def _wealth_and_sums(
    watched: WatchedRule,
    cell: Ints,
    value: Floats,
    weight: Floats | None,
    groups: Ints | None,
    high: Floats | None = None,
) -> tuple[Floats, Floats, Floats]:
    if groups is not None:
        if high is not None:
            high = _one_row_per_group(watched, cell, high, weight, groups)[1]
        cell, value, weight = _one_row_per_group(watched, cell, value, weight, groups)
    value = np.clip(value, watched.low, watched.high)
    size = watched.size
    if high is not None:
        high = np.clip(high, watched.low, watched.high)
        return (*tables(watched, cell, value, weight, size, high), np.zeros((size, 2)))
    weights = [None, value] if weight is None else [weight, weight * value]
    sums = np.stack([np.bincount(cell, w, size) for w in weights], axis=-1).astype(np.float64)
    return (*tables(watched, cell, value, weight, size), sums)


def _one_row_per_group(
    watched: WatchedRule, cell: Ints, value: Floats, weight: Floats | None, groups: Ints
) -> tuple[Any, ...]:
    """Replace each group by its mean in every cell, weighted by the share of its rows there, so that it counts once.

    The wealth of a group is then a geometric mean over its cells. That is at most the arithmetic mean, which is the
    wealth of the group's mean, so its expectation is no larger.
    """
    w = np.ones(len(value)) if weight is None else weight
    names, member = np.unique(groups, return_inverse=True)
    codes, inverse = np.unique(member * watched.size + cell, return_inverse=True)
    mass = np.bincount(inverse, w)
    mean = np.bincount(inverse, w * value) / np.maximum(mass, 1e-300)
    group_mass = np.bincount(member, w, len(names))
    return codes % watched.size, mean, mass / np.maximum(group_mass[codes // watched.size], 1e-300)


def refuse_sampling_weights(source: RecordedOutputs) -> None:
    """Refuse sampling weights.

    Raises:
        InputError: the rows have weights that differ and are not counts.
    """
    weights, counts, _ = source.design
    if weights is not None and not counts and float(np.ptp(weights)) > 0:
        problem = "a watch takes rows that were drawn with equal chances, and these have sampling weights"
        raise InputError(problem, "draw them evenly, leave --weights out, or write --weight-kind count")
