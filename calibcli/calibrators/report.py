"""Make the result of `calib scale`: methods compared, and every metric before and after on rows that were not fitted
on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.calibrators.calibrator import SCALERS, Array, Progress, Scaler
from calibcli.calibrators.fitting import applicable, apply, cross_fit, fit, part
from calibcli.core.errors import CalibError, UsageError
from calibcli.core.figure_data import first_alone
from calibcli.core.result import CHANGE, Cell, Estimate, Result, Screen, Table
from calibcli.core.statistics import normal_quantile, weighted_mean
from calibcli.metrics import METRICS, Sample, shelf
from calibcli.metrics import report as measuring
from calibcli.metrics.paired import differences, outside, worse
from calibcli.scores.columns import Columns, columns
from calibcli.scores.predictions import Predictions, notes_of

# Methods side by side on rows that none of them was fitted on, with the uncertainty of their differences.

NONE = "none"  # the scores as they are
BEST = 3  # methods that a screen shows at first, beside those that every reader looks for
USUAL = ("temperature", NONE)


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """How to fit and to report.

    Attributes:
        methods: specs; more than one, or `all`, are ranked and the first is reported.
        specs: metrics measured before and after, or None for the default set.
        folds: of cross-fitting.
        level: confidence level.
        split_seed: of the folds.  seed: of what is random.  threads: workers.
    """

    methods: Sequence[str] = ("temperature",)
    specs: Sequence[str] | None = None
    folds: int = 5
    level: float = 0.95
    split_seed: int = 0
    seed: int = 0
    threads: int | None = 1


@dataclass(frozen=True)
class MethodRanking:
    """Methods from the lowest cross-fitted NLL to the highest.

    Attributes:
        best: spec of the first method that makes nothing worse beyond chance (of all, where each does; never `none`).
        recommended: `best`, or `none` where that is at least as good, or each method makes something worse.
        after: the cross-fitted rows of `best`.
        estimates: `nll_difference` of each method to the first, of `method=SPEC`, with its interval.
        table: rank, method, NLL, difference with interval, ECE, accuracy, and what is worse than before beyond chance.
        notes: what could not be fitted, and what cannot be told from the first.
    """

    best: str
    recommended: str
    after: Predictions
    estimates: Sequence[Estimate]
    table: Table
    notes: Sequence[str]


def rank(
    specs: Sequence[str],
    predictions: Predictions,
    how: RankingOptions = RankingOptions(),
    progress: Progress | None = None,
) -> MethodRanking:
    """Cross-fit every method and order them by NLL. Differences are paired over rows.

    Raises:
        UsageError: no method could be fitted.
    """
    tried, notes = _cross_fitted(specs, predictions, how, progress)
    weights = predictions.weights
    nll = {m.spec: float(np.average(m.nll, weights=weights)) for m in tried}
    order = sorted(tried, key=lambda m: (nll[m.spec], m.spec != NONE))
    methods = [m for m in order if m.spec != NONE]
    if not methods:
        raise UsageError("no method could be fitted", "pass other methods, or more rows")
    best = next((m for m in methods if not m.worse), methods[0])
    recommended = next((m.spec for m in order if m.spec == NONE or not m.worse), NONE)
    notes += _notes(best, recommended, methods)
    z = normal_quantile((1 + how.level) / 2)
    said: dict[str, Any] = {"name": "nll_difference", "level": how.level, "unit": "nats", "better": "lower"}
    said["how"] = f"NLL minus that of {best.spec}, rows held out in {how.folds} folds, paired normal interval"
    said["tier"] = "all"  # the table says it
    estimates: list[Estimate] = []
    rows: list[list[Cell]] = []
    for place, m in enumerate(order, 1):
        with np.errstate(
            invalid="ignore"
        ):  # infinite values that are equal do not differ, nor do those apart by rounding
            alike = np.isclose(m.nll, best.nll, rtol=1e-12, atol=1e-12)
            mean, se = weighted_mean(np.where(alike, 0.0, m.nll - best.nll), weights)
        low, high = (mean - z * se, mean + z * se) if m is not best else (None, None)
        rows.append([place, m.spec, nll[m.spec], mean, low, high, m.ece, m.accuracy, ", ".join(m.worse)])
        if m is not best:
            scope = f"method={m.spec}"
            estimates.append(Estimate(**said, value=mean, low=low, high=high, se=se, scope=scope, n=predictions.n))
    close = [e.scope.removeprefix("method=") for e in estimates if None not in (e.low, e.high) and e.low <= 0 <= e.high]  # type: ignore[operator]
    if close:
        notes.append(f"not told from {best.spec} on these rows: {', '.join(close)}")
    title = f"Methods by NLL on held-out rows ({how.folds} folds, n = {predictions.n:,})"
    heads = ["rank", "method", "nll", "difference", "low", "high", "ece", "accuracy", "made worse"]
    best_rows = [i for i, row in enumerate(rows) if i < BEST or row[1] in USUAL]
    few = best_rows if len(rows) > BEST + len(USUAL) else ()
    table = Table(name="ranking", columns=heads, rows=rows, title=title, few=few)
    return MethodRanking(best.spec, recommended, best.after, estimates, table, notes)


@dataclass(frozen=True, eq=False)
class Tried:
    """A method's cross-fitted rows, what is measured on them, and what is worse than before beyond chance."""

    spec: str
    after: Predictions
    nll: Array
    ece: float
    accuracy: float
    worse: Sequence[str]


def _cross_fitted(
    specs: Sequence[str], predictions: Predictions, how: RankingOptions, progress: Progress | None
) -> tuple[list[Tried], list[str]]:
    """The scores as they are and every method that can be fitted; and notes on the others."""
    tried, notes = [], []
    before: Sample | None = None
    for done, spec in enumerate((NONE, *specs)):
        here = part(progress, done, len(specs) + 1, spec)
        try:
            out = (
                predictions
                if spec == NONE
                else cross_fit(spec, predictions, how.folds, how.seed, here, split_seed=how.split_seed)
            )
            sample = Sample.of(columns(out, class_bins=(), threads=how.threads))
        except CalibError as error:
            notes.append(f"{spec} is left out: {error.problem}")
            continue
        before = before or sample
        changed = worse(differences(before, sample, level=how.level)) if spec != NONE else []
        ece, accuracy = float(METRICS.choose("ece")(sample)), float(METRICS.choose("accuracy")(sample))
        tried.append(Tried(spec, out, sample.columns.nll, ece, accuracy, [e.name for e in changed]))
    return tried, notes


def _notes(best: Tried, recommended: str, methods: Sequence[Tried]) -> list[str]:
    notes = []
    passed = [f"{m.spec} ({', '.join(m.worse)})" for m in methods if m.worse]
    if passed:
        notes.append(f"not recommended, as they make worse beyond chance what stands beside them: {'; '.join(passed)}")
    if recommended == NONE:
        why = f"{best.spec} makes {', '.join(best.worse)} worse" if best.worse else "no method has a lower NLL"
        notes.append(f"no method is recommended: {why}; the scores as they are do as well")
    return notes


# What `calib scale` says: the fit, and every metric before and after on rows that were not fitted on.


HIDDEN = (
    *("n", "classes", "kind", "event", "full passes", "keeps predicted classes", "recommended"),
    *("lambda", "mu", "largest other weight", "norm of other weights"),
)
"""Facts that a screen shows with `-v` alone: settings, and how far a fit went."""


def report(
    predictions: Predictions, options: RankingOptions, test: Predictions | None = None, progress: Progress | None = None
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
        compared = not ranked or shelf.trait(e.name, "compared", True)
        return compared and (fitted_or_changed or shelf.decides(e.name, result.facts))

    fine = [key for key, value in result.facts.items() if key.endswith(" status") and value == "ok"]
    return dataclasses.replace(
        result,
        estimates=[
            e if e.tier == "all" else one for e, one in zip(result.estimates, shelf.tiered(result.estimates, few))
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


def _measure(rows: Predictions, options: RankingOptions, scope: str) -> tuple[Result, Columns]:
    """What `calib metrics` says of these rows, marked as before or after; and their columns, read once for both."""
    how = measuring.ReportOptions(specs=options.specs, level=options.level, seed=options.seed, threads=options.threads)
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
