"""What `calib scale` says: the fit, and every metric before and after on rows that were not fitted on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calibcli.metrics import report as measuring
from calibcli.predictions import Predictions, notes_of
from calibcli.result import Estimate, Result, Table
from calibcli.scalers.fitting import apply, check_classes, cross_fit, fit
from calibcli.scalers.ranking import applicable, rank
from calibcli.scalers.scaler import SCALERS, Progress, Scaler


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to fit and to report.

    Attributes:
        methods: specs; more than one, or `all`, are ranked and the first is reported.
        specs: metrics measured before and after, or None for the default set.
        folds: of cross-fitting.
        level: confidence level.
        seed, threads: of what is random; worker threads.
    """

    methods: Sequence[str] = ("temperature",)
    specs: Sequence[str] | None = None
    folds: int = 5
    level: float = 0.95
    seed: int = 0
    threads: int | None = 1


def report(
    predictions: Predictions,
    options: Options,
    test: Predictions | None = None,
    progress: Progress | None = None,
) -> tuple[Result, Scaler]:
    """Fit on `predictions`; measure before and after on `test`, or by cross-fitting where there is none.

    Raises:
        UsageError: unknown method, option or metric.
        InputError: data that cannot be fitted, or a test set of other classes.
    """
    methods = known_methods(options.methods, predictions.k)
    estimates: list[Estimate] = []
    tables: list[Table] = []
    notes: list[str] = []
    method = methods[0]
    if len(methods) > 1:
        ranking = rank(
            methods,
            predictions,
            folds=options.folds,
            seed=options.seed,
            level=options.level,
            threads=options.threads,
            progress=progress,
        )
        method = ranking.best
        estimates += ranking.estimates
        tables.append(ranking.table)
        notes += [f"{method} has the lowest NLL on held-out rows; the numbers below are of it", *ranking.notes]
    done = fit(method, predictions, seed=options.seed, level=options.level, progress=progress)
    if test is not None:
        check_classes(done.scaler, test)
        before, after = test, apply(done.scaler, test)
        where = f"{test.n:,} rows of {test.source}, fitted on {predictions.n:,} rows of {predictions.source}"
    else:
        before, after = predictions, cross_fit(method, predictions, options.folds, options.seed)
        where = f"{predictions.n:,} rows, each mapped by a fit that did not see it ({options.folds} folds)"
    first, second = _measure(before, options, "before"), _measure(after, options, "after")
    facts: dict[str, Any] = {
        "method": method,
        "keeps predicted classes": done.scaler.preserves_accuracy,
        "after": where,
        "kind": predictions.kind,
        "n": predictions.n,
        "classes": predictions.k,
        **predictions.event_fact,
        **done.facts,
    }
    return Result(
        command="scale",
        estimates=[*done.estimates, *estimates, *first.estimates, *second.estimates],
        tables=[*tables, *done.tables, *first.tables, *second.tables],
        plots=[*first.plots, *second.plots, *done.plots],
        notes=[*notes_of(predictions, *([] if test is None else [test])), *notes, *done.notes, *second.notes],
        facts=facts,
    ), done.scaler


def known_methods(methods: Sequence[str], k: int) -> list[str]:
    """Canonical specs, each once; `all` stands for every method for k classes.

    Raises:
        UsageError: unknown method or option.
    """
    found: list[str] = []
    for method in methods:
        for spec in applicable(k) if method.strip().lower() == "all" else [method]:
            canonical = SCALERS.choose(spec).spec
            if canonical not in found:
                found.append(canonical)
    return found


def _measure(rows: Predictions, options: Options, of: str) -> Result:
    """What `calib metrics` says of these rows, marked as before or after."""
    how = measuring.Options(specs=options.specs, level=options.level, seed=options.seed, threads=options.threads)
    found = measuring.report(rows, how)
    return dataclasses.replace(
        found,
        estimates=[dataclasses.replace(e, of=f"{e.of} {of}".lstrip()) for e in found.estimates],
        tables=[dataclasses.replace(t, name=f"{t.name}_{of}", title=f"{t.title}, {of}") for t in found.tables],
        plots=[
            dataclasses.replace(
                p, name=f"{p.name}_{of}", under=p.under and f"{p.under}_{of}", title=p.title and f"{p.title}, {of}"
            )
            for p in found.plots
        ],
        notes=[f"{of}: {note}" for note in found.notes if note not in rows.notes],
    )
