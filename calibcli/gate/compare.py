"""Differences between models, on the same rows or between results, and which of them are real after multiplicity."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.errors import InputError, UsageError
from calibcli.gate import baseline
from calibcli.gate.differences import LEVEL, Difference, Model, combined, difference
from calibcli.gate.forest import Row, forest
from calibcli.gate.pairing import Unpaired, pair
from calibcli.gate.pairing import keys as keys_of
from calibcli.metrics import DEFAULT, METRICS, Sample, choose, columns_of, estimates, first_screen, known
from calibcli.metrics.paired import outside, shown
from calibcli.metrics.sample import traits
from calibcli.plots import Plot, first_alone
from calibcli.predictions import Array, Predictions, notes_of
from calibcli.result import Estimate, Result, Screen, Table
from calibcli.shelves import Choice


def scores(
    inputs: Sequence[Predictions], names: Sequence[str], specs: Sequence[str] | None = None, alpha: float = 0.05
) -> Result:
    """Paired differences of every metric between each later model and the first, on the rows they share.

    Accuracy: McNemar's exact test. Means over rows: the score form for the row differences. Binned errors (ece,
    adaece): differences of signed gaps by row. Others: from the two intervals (Zou and Donner 2008), wider than they
    must be as that leaves out that the rows are the same. The p-value is always that of the statistic whose interval
    is shown.

    Raises:
        InputError: the rows are not the same.
    """
    first = inputs[0]
    usual = [name for name in DEFAULT if traits(name).get("compared", True)]
    choices = choose(known(usual, first.top_only) if specs is None else specs, first.k, first.top_only)
    models, how = _aligned(inputs, names, choices)
    values = [estimates(m.sample, choices, level=LEVEL) for m in models]
    differences = [
        difference(models[0], model, choice, both)
        for model, own in zip(models[1:], values[1:], strict=True)
        for choice, *both in zip(choices, values[0], own, strict=True)
    ]
    facts = {"n": models[0].columns.n, **inputs[0].event_fact}
    notes = [how, *notes_of(*inputs), *outside([d.estimate for d in differences])]
    return _result(differences, values, names, alpha, notes, facts)


def results(inputs: Sequence[Result], names: Sequence[str], alpha: float = 0.05) -> Result:
    """Differences of the numbers that results share, as if from independent data: unpaired.

    Raises:
        InputError: the results share no number.
    """
    first = {(e.name, e.scope): e for e in inputs[0].estimates}
    shared = [key for key in first if all(any((e.name, e.scope) == key for e in r.estimates) for r in inputs[1:])]
    if not shared:
        problem = f"{names[0]} and {names[1]} have no number in common"
        raise InputError(problem, "compare results of the same command and options")
    event, *others = (r.facts.get("event") for r in inputs)
    for name, other in zip(names[1:], others, strict=True):
        if other != event:
            problem = f"{names[0]} is about {event or 'no event'}, {name} about {other or 'none'}"
            raise InputError(problem, "measure both for the same class: --event NAME")
    values = [[r[key] for key in shared] for r in inputs]
    differences = [
        combined(a, b, f"{name} - {names[0]}", name)
        for name, own in zip(names[1:], values[1:], strict=True)
        for a, b in zip(values[0], own, strict=True)
    ]
    notes = ["results are compared as independent: pass the scores of the same rows for paired, narrower intervals"]
    losses = [next(iter(r.facts.get("losses") or []), None) for r in inputs]
    if len(set(losses)) > 1 and not all("loss=" in scope for _, scope in shared):
        each = ", ".join(f"{loss} ({name})" for loss, name in zip(losses, names, strict=True))
        notes.append(f"the losses differ: {each}; differences of their curvature are not of the models alone")
    return _result(differences, values, names, alpha, notes, {"pairing": "unpaired"})


def _aligned(inputs: Sequence[Predictions], names: Sequence[str], choices: Sequence[Choice]) -> tuple[list[Model], str]:
    """The models on their shared rows, in the order of the first."""
    first = inputs[0]
    for p, name in zip(inputs, names, strict=True):
        if p.k != first.k:
            raise InputError(f"{name} has {p.k} classes, {names[0]} {first.k}", "compare models of the same classes")
        if p.event != first.event:
            raise InputError(f"{names[0]} is about {first.event}, {name} about {p.event}", "pass --event NAME")
    keys = [keys_of(p) for p in inputs]
    kept: list[Array] = [np.arange(first.n)] * len(inputs)
    how = ""
    for i in range(1, len(inputs)):
        pairing = pair(keys[i], keys[0], (names[i], names[0]))
        if isinstance(pairing, Unpaired):
            problem = f"{names[i]} and {names[0]} do not pair: {pairing.problem}"
            raise InputError(problem, f"{pairing.fix}, or compare their result.json unpaired")
        how = pairing.how
        rank = np.full(first.n, -1)
        rank[pairing.base] = pairing.new
        kept[i] = rank
    shared = np.flatnonzero(np.all([k >= 0 for k in kept], axis=0))
    if len(shared) < 2:
        raise InputError("the models share fewer than 2 rows", "compare models of the same rows")
    models = []
    for p, name, rows in zip(inputs, names, kept, strict=True):
        index = rows[shared]
        part = p if len(index) == p.n and np.array_equal(index, np.arange(p.n)) else p.take(index)
        columns = columns_of(part, choices)
        sample = Sample.of(columns, part)
        kept_rows = baseline.rows(part, columns, "compare", sample)
        models.append(Model(name=name, predictions=part, columns=columns, rows=kept_rows, sample=sample))
    return models, how


def _result(
    differences: Sequence[Difference],
    values: Sequence[Sequence[Estimate]],
    names: Sequence[str],
    alpha: float,
    notes: Sequence[str],
    facts: dict[str, Any],
) -> Result:
    verdicts = shown([(d.estimate, d.p) for d in differences], alpha)
    rows = [
        [*row, f"{d.against} is {said}" if said in ("better", "worse") else said]
        for d, (*row, said) in zip(differences, verdicts.rows, strict=True)
    ]
    measured = [[e.name, e.scope, *(own[i].value for own in values)] for i, e in enumerate(values[0])]
    changes = [d.estimate for d in differences]
    result = Result(
        command="compare",
        estimates=changes,
        tables=[
            Table(name="models", title="Models", columns=["metric", "scope", *names], rows=measured),
            dataclasses.replace(verdicts, rows=rows),
        ],
        plots=first_alone(_forest(differences, [str(row[-1]) for row in verdicts.rows])),
        notes=notes,
        facts={**facts, "alpha": alpha, "comparisons": sum(d.p is not None for d in differences)},
        screen=Screen(pairs="models", hidden=("alpha", "comparisons"), one_page=True),
    )
    if not any(e.name.partition(":")[0] in METRICS for e in changes):
        return result

    def few(e: Estimate) -> bool:
        shown = first_screen.trait(e.name, "on_compare_screen", "=" not in e.scope)
        return first_screen.decides(e.name, result.facts) and shown

    return dataclasses.replace(result, estimates=first_screen.tiered(changes, few))


def _forest(differences: Sequence[Difference], verdicts: Sequence[str]) -> list[Plot]:
    """A panel for each later model, with a row for every metric."""
    roles = {"better": "good", "worse": "bad"}
    words = {"real": "differs", "not shown": "not shown (Holm)", "unknown": "no test"}
    models = dict.fromkeys(d.against for d in differences)
    plots = []
    for i, model in enumerate(models):
        rows = [
            Row(
                label=d.estimate.name,
                estimate=d.estimate,
                verdict=words.get(verdict, verdict),
                role=roles.get(verdict, "undecided"),
            )
            for d, verdict in zip(differences, verdicts, strict=True)
            if d.against == model
        ]
        scope = next(d.estimate.scope for d in differences if d.against == model)
        plots += forest(
            rows,
            name=f"differences_{i}" if i else "differences",
            title=f"Differences {scope}" if len(models) == 1 else scope,
            axis="difference / half its 95 % interval",
            line="no difference",
            group="Differences between models" if len(models) > 1 else "",
        )
    return plots


def names_of(inputs: Sequence[Any]) -> list[str]:
    """Short names that tell the inputs apart: of files, numbers of what else there is.

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
