"""Compare models in every metric: paired differences with intervals, tests of them, and a forest plot."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.core import extensions, number_format
from calibcli.core.errors import InputError, UsageError
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.registries import Choice
from calibcli.core.result import Estimate, Result, Screen, Table
from calibcli.core.scope import WHOLE
from calibcli.core.statistics import SMALLEST_P, normal_quantile, two_sided
from calibcli.gate import baseline
from calibcli.gate.baseline import Pairing, Unpaired, pair
from calibcli.gate.judging import at_level
from calibcli.metrics import DEFAULT, METRICS, Sample, choose, columns_of, estimates, known, paired, registry
from calibcli.metrics.paired import Paired, outside, shown
from calibcli.metrics.registry import MetricTraits, traits
from calibcli.scores.columns import Columns
from calibcli.scores.predictions import Array, Predictions, notes_of

# The forest plot: numbers with their intervals in their own units, one axis for each unit.

MOST = 40  # rows that a reader can still tell apart on a page


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a forest plot.

    Attributes:
        label: the name of the row; its number and interval are written behind it.
        estimate: the number; without a value or bounds it is not drawn.
        quantity: title of the panel, without the unit. Rows of the same quantity, unit and marks share a panel.
        axis: label of the axis.
        marks: values with a line across the rows: a limit, or 0 for a difference.
        verdict: text of the legend.  role: `good`, `bad`, `undecided` or `differs`, which choose the colour.
    """

    label: str
    estimate: Estimate
    quantity: str
    axis: str
    marks: tuple[float, ...] = (0.0,)
    verdict: str
    role: str

    @property
    def title(self) -> str:
        """Quantity and unit; a probability, and any other number without a unit, has none."""
        unit = self.estimate.unit
        unit = "" if unit == "probability" else number_format.UNITS.get(unit, unit).strip()
        return f"{self.quantity}, in {unit}" if unit else self.quantity


def forest(rows: Sequence[Row], *, name: str, line: str, role: str) -> list[Plot]:
    """Draw a row for every estimate that has a bound, in a panel per unit; no panel where none has.

    Args:
        name: how the names of the panels begin.
        line: label of the lines at the marks.  role: their role.
    """
    drawn = [row for row in rows if row.estimate.value is not None and number_format.has_interval(row.estimate)]
    panels: dict[object, list[Row]] = {}
    for row in drawn[:MOST]:
        panels.setdefault((row.title, row.axis, row.marks), []).append(row)
    plots = [_panel(shared, line, role) for shared in panels.values()]
    first = f" (first {MOST} of {len(drawn)} rows)" if len(drawn) > MOST else ""
    named = [dataclasses.replace(plot, name=f"{name}_{i}") for i, plot in enumerate(plots)]
    return [dataclasses.replace(plot, name=name, title=plot.title + first) for plot in plots[:1]] + named[1:]


def grouped(plots: Sequence[Plot], heading: str) -> list[Plot]:
    """Put several panels under one heading, in one figure; a single one stays as it is."""
    return [dataclasses.replace(plot, group=heading) for plot in plots] if len(plots) > 1 else list(plots)


def _panel(rows: Sequence[Row], line: str, role: str) -> Plot:
    """Draw rows of one unit."""
    curves = [Curve(label=line, kind="hline", role=role, y=rows[0].marks)]
    for verdict, colour in dict.fromkeys((row.verdict, row.role) for row in rows):
        points = [
            (float(i), row.estimate) for i, row in enumerate(rows) if (row.verdict, row.role) == (verdict, colour)
        ]
        x, values = [i for i, _ in points], [float(e) for _, e in points]
        low, high = [e.low for _, e in points], [e.high for _, e in points]
        curves.append(Curve(label=verdict, kind="points", role=colour, x=x, y=values, low=low, high=high))
    shown = [number_format.shown(row.estimate, row.marks[-1]) for row in rows]
    return Plot(
        name="",
        title=rows[0].title,
        ylabel=rows[0].axis,
        curves=curves,
        labels=[row.label for row in rows],
        texts=[f"{text.value} {text.interval}" for text in shown],
        flip=True,
    )


# The difference of two models in one metric, by the method that suits the metric.

LEVEL = 0.95


@dataclass(frozen=True, eq=False, kw_only=True)
class ComparedModel:
    """The predictions of one model for the shared rows."""

    name: str
    predictions: Predictions
    columns: Columns
    rows: baseline.BaselineRows
    sample: Sample


@dataclass(frozen=True)
class Difference:
    """The metric of a later model (`against`) minus that of the first, with its p-value."""

    against: str
    estimate: Estimate
    p: float | None = None


def difference(
    first: ComparedModel, second: ComparedModel, choice: Choice[MetricTraits], values: Sequence[Estimate]
) -> Difference:
    """Compare two models in one metric on the rows that both have, paired where the metric allows.

    Where it does not, the difference comes from the two intervals. A number that is missing in one model ends the
    comparison, but for a metric whose rows depend on a fit to others (`cross_fitted`): it is known row by row anyway.
    """
    common: dict[str, Any] = {"name": choice.spec, "unit": values[1].unit, "better": values[1].better}
    common |= WHOLE.minus(second.name, first.name).fields
    if any(e.value is None for e in values) and choice.traits.rows != "cross_fitted":
        return combined(values[0], values[1], second.name, first.name)
    change = _paired(first, second, choice)
    if change is None:
        return combined(values[0], values[1], second.name, first.name)
    if isinstance(change, str):  # why there is no interval; if no row changes, there is no difference to state either
        value = float(values[1].value or 0) - float(values[0].value or 0)
        stated = value if math.isfinite(value) and change != paired.SAME else None
        return Difference(second.name, Estimate(**common, value=stated, reason=change, n=first.predictions.n))
    estimate = change.estimate(LEVEL, **common, se=change.se, n=first.predictions.n)
    return Difference(second.name, estimate, change.p if change.bounded else None)


def _paired(first: ComparedModel, second: ComparedModel, choice: Choice[MetricTraits]) -> Paired | str | None:
    """Compare row by row as a gate against a baseline does, where it does, so that both give the same numbers.

    A gate compares the metrics whose rows a baseline keeps (trait `kept`): how far the difference of a row may go
    (`ends`) is then computed from the kept rows, which are rounded. Returns the reason where there is no difference,
    and None where rows of the metric cannot be compared.
    """
    p = first.predictions
    every = np.arange(p.n)
    pairing = Pairing(new=every, base=every, how="")
    counts = p.weight_kind == "count"
    if choice.traits.rows == "cross_fitted":
        gain = baseline.difference(second.rows, first.rows, pairing, choice.name, p.weights, counts, p.groups)
        return gain if isinstance(gain, str) else gain.paired(LEVEL)
    kept = choice.traits.kept
    ends = baseline.difference_range(second.rows, first.rows, pairing, choice.name) if kept else None
    return paired.difference(first.sample, second.sample, choice, LEVEL, ends)


def combined(a: Estimate, b: Estimate, model: str, against: str) -> Difference:
    """Return b - a from their two intervals: each end adds the distances of its two parts in quadrature.

    `model` and `against` are the names of both. Method of variance estimates recovery, MOVER (Zou and Donner 2008).
    """
    common: dict[str, Any] = {"name": b.name, "unit": b.unit, "better": b.better, "n": b.n if a.n == b.n else None}
    common |= b.where.minus(model, against).fields
    if a.value is None or b.value is None:
        return Difference(model, Estimate(**common, value=None, reason=a.reason or b.reason or "no value"))
    value = b.value - a.value
    ends = [_ends(e) for e in (a, b)]
    if None in ends:
        reason = a.reason or b.reason or "one of them has no interval"
        return Difference(model, Estimate(**common, value=value, reason=reason))
    (low_a, high_a), (low_b, high_b) = ends  # type: ignore[misc]
    down, up = math.hypot(b.value - low_b, high_a - a.value), math.hypot(high_b - b.value, a.value - low_a)
    estimate = Estimate(
        **common, value=value, low=value - down, high=value + up, level=LEVEL, how="from the intervals of both (MOVER)"
    )
    reach = down if value > 0 else up
    z = normal_quantile((1 + LEVEL) / 2)
    p = 1.0 if value == 0 else SMALLEST_P if reach == 0 else two_sided(abs(value) / reach * z)
    return Difference(model, estimate, p)


def _ends(e: Estimate) -> tuple[float, float] | None:
    """Return the two-sided interval of an estimate at LEVEL; None where an end is missing.

    An interval of a higher level is taken as it is, one of a lower level is widened in proportion to normal quantiles.
    A one-sided bound has no other end.
    """
    low, high = at_level(e, (1 - LEVEL) / 2, widen=True)
    return None if low is None or high is None else (low, high)


# Differences between models, on the same rows or between results, and which are significant after Holm's correction.


def scores(
    inputs: Sequence[Predictions], names: Sequence[str], specs: Sequence[str] | None = None, alpha: float = 0.05
) -> Result:
    """Compare each later model with the first in every metric, on the rows they share.

    Accuracy: McNemar's exact test. Means over rows: the score form for the row differences. Binned errors (ece,
    adaece): differences of signed gaps by row. Others: from the two intervals (Zou and Donner 2008), which are then
    wider than necessary, as that ignores that the rows are the same. The p-value is always that of the statistic whose
    interval is shown.

    Raises:
        InputError: the rows are not the same.
    """
    first = inputs[0]
    default = [name for name in DEFAULT if traits(name).compared]  # differences of the others say nothing
    choices = choose(known(default, first.top_only) if specs is None else specs, first.k, first.top_only)
    models, pairing = _aligned(inputs, names, choices)
    values = [estimates(m.sample, choices, level=LEVEL) for m in extensions.with_progress(models, lambda m: m.name)]
    compared = [
        (model, choice, two_estimates)
        for model, later_values in zip(models[1:], values[1:], strict=True)
        for choice, *two_estimates in zip(choices, values[0], later_values, strict=True)
    ]
    each = extensions.with_progress(compared, lambda one: f"difference of {one[1].spec}")
    differences = [difference(models[0], *one) for one in each]
    facts = {"n": models[0].columns.n, **inputs[0].event_fact}
    changes = [d.estimate for d in differences]
    # the last are of differences whose interval does not hold that of the two numbers
    notes = [pairing, *notes_of(*inputs), *outside(changes)]
    return _result(differences, values, names, alpha, notes, facts)


def results(inputs: Sequence[Result], names: Sequence[str], alpha: float = 0.05) -> Result:
    """Compare the numbers that results share, unpaired, as if from independent data.

    Raises:
        InputError: the results share no number.
    """
    first = {(e.name, e.scope): e for e in inputs[0].estimates}
    shared = [key for key in first if all(any((e.name, e.scope) == key for e in r.estimates) for r in inputs[1:])]
    if not shared:
        problem = f"{names[0]} and {names[1]} have no number in common"
        raise InputError(problem, "compare results of the same command and options")
    event, *others = (r.predicted.event for r in inputs)
    for name, other in zip(names[1:], others, strict=True):
        if other != event:
            problem = f"{names[0]} is about {event or 'no event'}, {name} about {other or 'none'}"
            raise InputError(problem, "measure both for the same class: --event NAME")
    values = [[r[key] for key in shared] for r in inputs]
    differences = [
        combined(a, b, name, names[0])
        for name, later_values in zip(names[1:], values[1:], strict=True)
        for a, b in zip(values[0], later_values, strict=True)
    ]
    paired = "pass the scores of the same rows for paired, narrower intervals"
    why = "they keep no number of each row" if all(r.command == "curvature" for r in inputs) else paired
    notes = [f"results are compared as independent: {why}"]
    losses = [next(iter(r.facts.get("losses") or []), None) for r in inputs]
    if len(set(losses)) > 1 and not all("loss" in first[key].where.parts for key in shared):
        each = ", ".join(f"{loss} ({name})" for loss, name in zip(losses, names, strict=True))
        notes.append(f"the losses differ: {each}; differences of their curvature are not of the models alone")
    return _result(differences, values, names, alpha, notes, {"pairing": "unpaired"})


def _aligned(
    inputs: Sequence[Predictions], names: Sequence[str], choices: Sequence[Choice[MetricTraits]]
) -> tuple[list[ComparedModel], str]:
    """Restrict the models to their shared rows, in the order of the first; also return how rows were paired."""
    first = inputs[0]
    for p, name in zip(inputs, names, strict=True):
        if p.k != first.k:
            raise InputError(f"{name} has {p.k} classes, {names[0]} {first.k}", "compare models of the same classes")
        if p.event != first.event:
            raise InputError(f"{names[0]} is about {first.event}, {name} about {p.event}", "pass --event NAME")
    keys = [baseline.keys(p) for p in inputs]
    kept: list[Array] = [np.arange(first.n)] * len(inputs)
    paired_by = ""
    for i in range(1, len(inputs)):
        pairing = pair(keys[i], keys[0], (names[i], names[0]))
        if isinstance(pairing, Unpaired):
            problem = f"{names[i]} and {names[0]} do not pair: {pairing.problem}"
            raise InputError(problem, f"{pairing.fix}, or compare their result.json unpaired")
        paired_by = pairing.how
        rank = np.full(first.n, -1)
        rank[pairing.base] = pairing.new
        kept[i] = rank
    shared = np.flatnonzero(np.all([k >= 0 for k in kept], axis=0))
    if len(shared) < 2:
        raise InputError("the models share fewer than 2 rows", "compare models of the same rows")
    models = []
    for p, name, rows in extensions.with_progress([*zip(inputs, names, kept, strict=True)], lambda model: model[1]):
        index = rows[shared]
        part = p if len(index) == p.n and np.array_equal(index, np.arange(p.n)) else p.take(index)
        columns = columns_of(part, choices)
        sample = Sample.of(columns, part)
        kept_rows = baseline.rows(part, columns, "compare", sample)
        models.append(ComparedModel(name=name, predictions=part, columns=columns, rows=kept_rows, sample=sample))
    return models, paired_by


def _result(
    differences: Sequence[Difference],
    values: Sequence[Sequence[Estimate]],
    names: Sequence[str],
    alpha: float,
    notes: Sequence[str],
    facts: dict[str, Any],
) -> Result:
    verdicts = shown([(d.estimate, d.p) for d in differences], alpha)  # a table; the last cell of a row is its verdict
    rows = [
        [*row, f"{d.against} is {verdict}" if verdict in ("better", "worse") else verdict]
        for d, (*row, verdict) in zip(differences, verdicts.rows, strict=True)
    ]
    measured = [[e.name, e.scope, *(model_values[i].value for model_values in values)] for i, e in enumerate(values[0])]
    changes = [d.estimate for d in differences]
    result = Result(
        command="compare",
        estimates=changes,
        tables=[
            Table(name="models", title="Models", columns=["metric", "scope", *names], rows=measured),
            dataclasses.replace(verdicts, rows=rows),
        ],
        plots=_forest(differences, [str(row[-1]) for row in verdicts.rows]),
        notes=notes,
        facts={**facts, "alpha": alpha, "comparisons": sum(d.p is not None for d in differences)},
        screen=Screen(pairs="models", hidden=("alpha", "comparisons"), one_page=True),
    )
    if not any(e.name.partition(":")[0] in METRICS for e in changes):
        return result

    def few(e: Estimate) -> bool:
        """Whether a screen shows a difference first: of all rows rather than of a part, if its metric allows it."""
        shown = traits(e.name).first_screen != "one model" and not e.where.parts
        return registry.decides(e.name, result.predicted) and shown

    return dataclasses.replace(result, estimates=registry.tiered(changes, few))


def _forest(differences: Sequence[Difference], verdicts: Sequence[str]) -> list[Plot]:
    """Draw the panels of each later model, with a row for every metric; a screen shows those of the first."""
    roles = {"better": "good", "worse": "bad", "real": "differs"}
    words = {"real": "differs", "not shown": "not shown (Holm)", "unknown": "no test"}
    models = dict.fromkeys(d.against for d in differences)
    plots = []
    for i, model in enumerate(models):
        scope = next(d.estimate.scope for d in differences if d.against == model)
        rows = [
            Row(
                label=d.estimate.name,
                estimate=d.estimate,
                quantity=f"Differences {scope}",
                axis="difference",
                verdict=words.get(verdict, verdict),
                role=roles.get(verdict, "undecided"),
            )
            for d, verdict in zip(differences, verdicts, strict=True)
            if d.against == model
        ]
        panels = forest(rows, name=f"differences_model_{i}" if i else "differences", line="no difference", role="ideal")
        plots += [dataclasses.replace(panel, tier="all") for panel in panels] if i else panels
    return grouped(plots, "Differences between models")


def names_of(inputs: Sequence[Any]) -> list[str]:
    """Return short names that tell the inputs apart: of files their stems, of Python objects their numbers.

    Raises:
        UsageError: fewer than two, or the same one twice.
    """
    texts = [str(one) if isinstance(one, str | Path) else f"model {n}" for n, one in enumerate(inputs, 1)]
    if len(texts) < 2:
        raise UsageError("one input to compare", "name two or more: calib compare a.npz b.npz")
    if len(set(texts)) < len(texts):
        raise UsageError("the same input twice", "name different files")
    stems = [t.rsplit("/", 1)[-1].rsplit(".", 1)[0] for t in texts]
    return stems if len(set(stems)) == len(stems) else texts
