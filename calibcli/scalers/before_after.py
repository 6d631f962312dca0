"""What `calib scale` says: the fit, and every metric before and after on rows that were not fitted on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from calibcli.columns import Columns, columns
from calibcli.metrics import Sample, first_screen
from calibcli.metrics import report as measuring
from calibcli.metrics.paired import differences, outside, worse
from calibcli.plots import first_alone
from calibcli.predictions import Predictions, notes_of
from calibcli.result import CHANGE, Estimate, Result, Screen, Table
from calibcli.scalers.fitting import applicable, apply, cross_fit, fit, part
from calibcli.scalers.ranking import Options, rank
from calibcli.scalers.scaler import SCALERS, Progress, Scaler

HIDDEN = (
    *("n", "classes", "kind", "event", "full passes", "keeps predicted classes", "recommended"),
    *("lambda", "mu", "largest other weight", "norm of other weights"),
)
"""Facts that a screen shows with `-v` alone: settings, and how far a fit went."""


def report(
    predictions: Predictions, options: Options, test: Predictions | None = None, progress: Progress | None = None
) -> tuple[Result, Scaler]:
    """Fit on `predictions`; measure before and after on `test`, or by cross-fitting where there is none.

    Raises:
        UsageError: unknown method, option or metric.
        InputError: data that cannot be fitted, or a test set of other classes.
    """
    methods = known_methods(options.methods, predictions)
    method, crossed, recommended, notes = methods[0], None, dict[str, str](), list[str]()
    estimates: Sequence[Estimate] = ()
    tables: list[Table] = []
    ranked = len(methods) > 1
    parts = 2 if ranked or test is None else 1
    if ranked:
        ranking = rank(methods, predictions, options, part(progress, 0, 2))
        method, crossed, recommended = ranking.best, ranking.after, {"recommended": ranking.recommended}
        estimates, tables = ranking.estimates, [ranking.table]
        notes = [f"{method} is the method that the numbers below are of", *ranking.notes]
    here, memory = part(progress, int(ranked), parts), dict[str, Any]()
    done = fit(method, predictions, seed=options.seed, level=options.level, progress=here, memory=memory)
    if recommended.get("recommended") == method and done.facts.get("recommended") == "temperature":
        recommended = {}  # it does not earn its further parameter
    if test is not None:
        before, after = test, apply(done.scaler, test)
        where = f"{test.n:,} rows of {test.source}, fitted on {predictions.n:,} rows of {predictions.source}"
    else:
        before = predictions
        after = crossed or cross_fit(
            method, predictions, options.folds, options.seed, part(progress, 1, 2), memory, options.split_seed
        )
        where = f"{predictions.n:,} rows, each mapped by a fit that did not see it ({options.folds} folds)"
    after = after.held()
    if progress:
        progress(1.0, "measuring")
    (first, was), (second, now) = _measure(before, options, "before"), _measure(after, options, "after")
    changed = differences(Sample.of(was), Sample.of(now), level=options.level)
    facts: dict[str, Any] = {
        "method": method,
        "keeps predicted classes": done.scaler.preserves_accuracy,
        "after": where,
        "n": predictions.n,
        **predictions.problem,
    }
    result = Result(
        command="scale",
        estimates=[*done.estimates, *estimates, *first.estimates, *second.estimates, *changed],
        tables=[*tables, *(_after_ranking(done.tables, tables)), *first.tables, *second.tables],
        plots=[*first.plots, *second.plots, *done.plots],
        notes=[
            *notes_of(*filter(None, [predictions, test])),
            *notes,
            *done.notes,
            *_harm(changed),
            *outside(changed),
            *second.notes,
        ],
        facts={**facts, **done.facts, **recommended},
    )
    return screened(result, ranked), done.scaler


def screened(result: Result, ranked: bool = False) -> Result:
    """What a screen shows first: the fit, what it changed, and the diagram of after.

    Args:
        ranked: several methods were fitted: which is best is what a reader wants to know.
    """

    def few(e: Estimate) -> bool:
        fitted_or_changed = not e.scope or e.scope.endswith(CHANGE)
        compared = not ranked or first_screen.trait(e.name, "compared", True)
        return compared and (fitted_or_changed or first_screen.decides(e.name, result.facts))

    fine = [key for key, value in result.facts.items() if key.endswith(" status") and value == "ok"]
    return dataclasses.replace(
        result,
        estimates=[
            e if e.tier == "all" else one
            for e, one in zip(result.estimates, first_screen.tiered(result.estimates, few))
        ],
        plots=first_alone(
            [dataclasses.replace(p, tier="few") for p in result.plots], lambda plot: plot.name.endswith("_after")
        ),
        screen=Screen(pairs="change", hidden=(*HIDDEN, *fine), one_page=True, bins=10),
    )


def _after_ranking(parameters: Sequence[Table], ranking: Sequence[Table]) -> list[Table]:
    """The parameters of the first of many methods, which a screen does not show at first."""
    many = any(table.few for table in ranking)
    return [dataclasses.replace(table, tier="asked") if many else table for table in parameters]


def _harm(changed: Sequence[Estimate]) -> list[str]:
    """What is worse than before beyond chance."""
    bad = [f"{e.name} by {abs(e.value or 0):.3g} [{e.low:+.3g}, {e.high:+.3g}]" for e in worse(changed)]
    return [f"after is worse than before beyond chance: {', '.join(bad)}"] if bad else []


def on_top(rows: Predictions) -> list[str]:
    """That the model has a calibrator in it already, where `calib logits` wrote so."""
    said = rows.facts.get("folded", "")
    return [f"{said}: this one goes on top of it; of the model before, pass its logits"] if said else []


def known_methods(methods: Sequence[str], predictions: Predictions) -> list[str]:
    """Canonical specs, each once; `all` stands for every method for these predictions; of none the usual one.

    Raises:
        UsageError: unknown method or option.
    """
    every = applicable(predictions.k, predictions.top_only)
    usual = ("platt" if predictions.top_only else "temperature",)
    asked = (every if method.strip().lower() == "all" else [method] for method in methods or usual)
    return [*dict.fromkeys(SCALERS.choose(spec).spec for specs in asked for spec in specs)]


def _measure(rows: Predictions, options: Options, scope: str) -> tuple[Result, Columns]:
    """What `calib metrics` says of these rows, marked as before or after; and their columns, read once for both."""
    how = measuring.Options(specs=options.specs, level=options.level, seed=options.seed, threads=options.threads)
    found = measuring.read(rows, how)
    said = scoped(measuring.of_columns(rows, found, how), scope, rows.notes)
    return said, found if len(found.nll) else columns(rows, class_bins=(), threads=options.threads)


def scoped(measured: Result, scope: str, known: Sequence[str]) -> Result:
    """A result with all its parts marked as before or after, less the notes that are known."""
    return dataclasses.replace(
        measured,
        estimates=[dataclasses.replace(e, scope=f"{e.scope} {scope}".lstrip()) for e in measured.estimates],
        tables=[dataclasses.replace(t, name=f"{t.name}_{scope}", title=f"{t.title}, {scope}") for t in measured.tables],
        plots=[
            dataclasses.replace(
                p,
                name=f"{p.name}_{scope}",
                under=p.under and f"{p.under}_{scope}",
                title=p.title and f"{p.title}, {scope}",
                about=None if p.about is None else f"{p.about} {scope}".lstrip(),
            )
            for p in measured.plots
        ],
        notes=[f"{scope}: {note}" for note in measured.notes if note not in known],
    )
