"""The result of `calib scale`: methods compared, and every metric before and after, on rows outside of the fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.calibrators.calibrator import SCALERS, Array, Progress, Scaler
from calibcli.calibrators.fitting import FOLDS, NONE, FoldedScores, HeldOutRows, applicable, apply, fit
from calibcli.core import extensions
from calibcli.core.errors import CalibError, UsageError
from calibcli.core.figure_data import first_alone
from calibcli.core.result import Cell, Estimate, Result, Screen, Table
from calibcli.core.scope import CHANGE, Phase, Scope
from calibcli.metrics import METRICS, Sample, registry
from calibcli.metrics import report as measuring
from calibcli.metrics.paired import differences, outside, worse
from calibcli.scores.columns import Columns, columns
from calibcli.scores.predictions import Predictions, notes_of

# Methods are compared on rows that none of them was fitted on, with the uncertainty of their differences.

BEST = 3  # methods that a screen shows first, with those of USUAL
USUAL = ("temperature", NONE)  # every reader looks for them


@dataclass(frozen=True, kw_only=True)
class RankingOptions:
    """Options of a fit and of its report.

    Attributes:
        methods: specs; several, or `all`, are ranked and the best is reported.
        specs: metrics measured before and after, or None for the default set.
        folds: of cross-fitting.
        level: confidence level.
        split_seed: of the folds.  seed: of what is random in a fit.  threads: number of workers.
    """

    methods: Sequence[str] = ("temperature",)
    specs: Sequence[str] | None = None
    folds: int = FOLDS
    level: float = 0.95
    split_seed: int = 0
    seed: int = 0
    threads: int | None = 1

    def held_out(self, predictions: Predictions) -> HeldOutRows:
        """Return the folds in which methods are compared."""
        return HeldOutRows(predictions, self.folds, self.seed, self.split_seed, self.threads)

    @property
    def measured(self) -> measuring.ReportOptions:
        """Options of the metrics before and after."""
        return measuring.ReportOptions(specs=self.specs, level=self.level, seed=self.seed, threads=self.threads)


@dataclass(frozen=True)
class MethodRanking:
    """Methods from the lowest cross-fitted NLL to the highest.

    Those that may be recommended make nothing worse beyond chance, and are not at the end of a range. Of these, the one
    of the lowest NLL is compared with those of fewer parameters.

    Attributes:
        best: spec of the simplest that is not shown to be worse than it; else of the first method; never `none`.
        recommended: `best`, or `none` where that has no higher NLL, or where no method may be recommended.
        after: the cross-fitted rows of `best`.
        estimates: `nll_difference` of each method to `best`, of scope `method=SPEC`, with its interval.
        table: rank, method, NLL, difference with interval, ECE, accuracy, and the metrics made worse beyond chance.
        notes: methods that could not be fitted, and those that do not differ from `best` beyond chance.
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
    options: RankingOptions = RankingOptions(),
    progress: Progress | None = None,
    held_out: HeldOutRows | None = None,
) -> MethodRanking:
    """Cross-fit every method and order them by NLL. Differences are paired over rows, or groups.

    Raises:
        UsageError: no method could be fitted.
    """
    held_out = held_out or options.held_out(predictions)
    candidates, notes = _cross_fitted(specs, held_out, options, progress)
    weights = predictions.weights
    nll = {method.spec: float(np.average(method.nll, weights=weights)) for method in candidates}
    order = sorted(candidates, key=lambda method: (nll[method.spec], method.spec != NONE))
    fitted_methods = [method for method in order if method.spec != NONE]
    if not fitted_methods:
        raise UsageError("no method could be fitted", "pass other methods, or more rows")
    sound = [method for method in order if method.spec == NONE or not (method.worse or method.at_bound)]
    lowest = next((method for method in sound if method.spec != NONE), None)
    best = fitted_methods[0] if lowest is None else _simplest(lowest, sound, held_out, options.level)
    recommended = best.spec if lowest is not None and nll[best.spec] < nll.get(NONE, np.inf) else NONE
    notes += _notes(best, lowest, recommended, fitted_methods)
    common: dict[str, Any] = {"name": "nll_difference", "unit": "nats", "better": "lower"}
    common["how"] = f"NLL minus that of {best.spec}, rows held out in {options.folds} folds, paired"
    common["tier"] = "all"  # the table says it
    estimates: list[Estimate] = []
    rows: list[list[Cell]] = []
    for position, method in enumerate(order, 1):
        change = held_out.difference(method.spec, best.spec, options.level) if method is not best else {"value": 0.0}
        ends, made_worse = (change.get("low"), change.get("high")), ", ".join(method.worse)
        rows.append(
            [position, method.spec, nll[method.spec], change["value"], *ends, method.ece, method.accuracy, made_worse]
        )
        if method is not best:
            where = Scope(parts={"method": method.spec})
            estimates.append(Estimate(**common, **change, **where.fields, n=predictions.n))
    close = [e.where.parts["method"] for e in estimates if None not in (e.low, e.high) and e.low <= 0 <= e.high]  # type: ignore[operator]
    if close:
        notes.append(f"not distinguishable from {best.spec} on these rows: {', '.join(close)}")
    title = f"Methods by NLL on held-out rows ({options.folds} folds, n = {predictions.n:,})"
    heads = ["rank", "method", "nll", "difference", "low", "high", "ece", "accuracy", "made worse"]
    best_rows = [i for i, row in enumerate(rows) if i < BEST or row[1] in USUAL]
    few = best_rows if len(rows) > BEST + len(USUAL) else ()
    table = Table(name="ranking", columns=heads, rows=rows, title=title, few=few)
    return MethodRanking(best.spec, recommended, best.after, estimates, table, notes)


@dataclass(frozen=True, eq=False)
class CrossFittedMethod:
    """A method's cross-fitted rows, with its metrics and the names of those made worse beyond chance.

    `at_bound`: whether most of its fits are at the end of a range.
    """

    spec: str
    after: Predictions
    nll: Array
    ece: float
    accuracy: float
    worse: Sequence[str]
    at_bound: bool

    @property
    def parameters(self) -> float:
        """Number of parameters of the map; infinite for curves, which have as many as the rows decide."""
        form, k = SCALERS.choose(self.spec).traits.form, self.after.k
        return float(sum(one.size(k) for one in form.values() if not one.optional))


def _simplest(
    lowest: CrossFittedMethod, sound: Sequence[CrossFittedMethod], held_out: HeldOutRows, level: float
) -> CrossFittedMethod:
    """Return the method of the fewest parameters that is not worse than `lowest` beyond chance, in NLL, ECE, Brier
    score or accuracy.
    """
    fewer = [m for m in sound if m.spec != NONE and m.parameters < lowest.parameters and np.isfinite(m.nll).all()]
    reference = Sample.of(held_out.columns(lowest.spec)) if fewer else None
    for method in sorted(fewer, key=lambda m: m.parameters):
        if reference and not worse(differences(reference, Sample.of(held_out.columns(method.spec)), level=level)):
            return method
    return lowest


def _at_bound(spec: str, rows: Predictions) -> bool:
    """Return whether most of the fits of a method are at the end of the range of a parameter that was fitted."""
    choice, scores = SCALERS.choose(spec), rows.scores
    fitted = {name: ends for name, ends in choice.traits.ends.items() if choice.options.get(name) is None}
    if not isinstance(scores, FoldedScores) or not fitted:
        return False
    at_end = [any(float(s.parameters[name]) in ends for name, ends in fitted.items()) for s in scores.scalers]
    return sum(at_end) > len(at_end) / 2


def _cross_fitted(
    specs: Sequence[str], held_out: HeldOutRows, options: RankingOptions, progress: Progress | None
) -> tuple[list[CrossFittedMethod], list[str]]:
    """Cross-fit `none` and every method that can be fitted; return them, with notes on the others."""
    candidates, notes = [], []
    before: Sample | None = None
    for spec in extensions.with_progress((NONE, *specs), report=progress):
        try:
            after, sample = held_out.rows(spec), Sample.of(held_out.columns(spec))
        except CalibError as error:
            notes.append(f"{spec} is left out: {error.problem}")
            continue
        before = before or sample
        changed = worse(differences(before, sample, level=options.level)) if spec != NONE else []
        ece, accuracy = float(METRICS.choose("ece")(sample)), float(METRICS.choose("accuracy")(sample))
        bound, names = spec != NONE and _at_bound(spec, after), [e.name for e in changed]
        candidates.append(CrossFittedMethod(spec, after, sample.columns.nll, ece, accuracy, names, bound))
    return candidates, notes


def _notes(
    best: CrossFittedMethod, lowest: CrossFittedMethod | None, recommended: str, methods: Sequence[CrossFittedMethod]
) -> list[str]:
    notes = []
    if lowest is not None and best is not lowest:
        notes.append(f"{lowest.spec} has the lowest NLL; {best.spec} is not shown to be worse, with fewer parameters")
    if ends := [m.spec for m in methods if m.at_bound]:
        notes.append(f"not recommended, as its fits are at the end of its range: {', '.join(ends)}")
    passed = "; ".join(f"{m.spec} ({', '.join(m.worse)})" for m in methods if m.worse)
    if passed:
        notes.append(f"not recommended, as each makes the metrics named beside it worse beyond chance: {passed}")
    if recommended == NONE:
        why = f"{best.spec} makes {', '.join(best.worse)} worse" if best.worse else f"{best.spec} has no lower NLL"
        notes.append(f"no method is recommended: {why}; the scores as they are do as well")
    return notes


# The whole result: the fit, then every metric before and after.

HIDDEN = (
    *("n", "classes", "kind", "event", "full passes", "keeps predicted classes", "recommended"),
    *("lambda", "mu", "largest other weight", "norm of other weights"),
)
"""Facts that a screen shows only with `-v`: settings and details of the fit."""


def report(
    predictions: Predictions, options: RankingOptions, test: Predictions | None = None, progress: Progress | None = None
) -> tuple[Result, Scaler]:
    """Fit on `predictions`, and measure before and after on `test`, or by cross-fitting without one.

    Raises:
        UsageError: a method, option or metric is unknown.
        InputError: the data cannot be fitted, or the test set has other classes.
    """
    methods = known_methods(options.methods, predictions)
    method, crossed, recommended, notes = methods[0], None, dict[str, str](), list[str]()
    estimates: Sequence[Estimate] = ()
    tables: list[Table] = []
    ranked, held_out = len(methods) > 1, options.held_out(predictions)
    if ranked:
        ranking = rank(methods, predictions, options, progress, held_out)
        method, crossed, recommended = ranking.best, ranking.after, {"recommended": ranking.recommended}
        estimates, tables = ranking.estimates, [ranking.table]
        notes = [f"the numbers below are those of {method}", *ranking.notes]
    memory = dict[str, Any]()
    fitted = fit(
        method, predictions, seed=options.seed, level=options.level, progress=progress, memory=memory, held_out=held_out
    )
    if recommended.get("recommended") == method and "recommended" in fitted.facts:
        recommended = {}  # the same comparison may show no gain from its further parameter
    if test is not None:
        before, after = test, apply(fitted.scaler, test)
        where = f"{test.n:,} rows of {test.source}, fitted on {predictions.n:,} rows of {predictions.source}"
    else:
        before = predictions
        after = crossed or held_out.rows(method, progress, memory)
        where = f"{predictions.n:,} rows, each mapped by a fit that did not see it ({options.folds} folds)"
    after = after.held()
    before_result, before_columns = _measure(before, options, "before")
    after_result, after_columns = _measure(after, options, "after")
    changed = differences(Sample.of(before_columns), Sample.of(after_columns), level=options.level)
    harm = [f"{e.name} by {abs(e.value or 0):.3g} [{e.low:+.3g}, {e.high:+.3g}]" for e in worse(changed)]
    notes += [*fitted.notes, *([f"after is worse than before beyond chance: {', '.join(harm)}"] if harm else [])]
    if method.partition(":")[0] == "temperature" and any(e.name == "temperature_gain" for e in before_result.estimates):
        of = "T fitted on other rows" if test is not None else "the folds of --split-seed"
        notes.append(
            f"temperature_gain is what T saves that is fitted anew in folds by id (else by rank), as in calib metrics; "
            f"the change of nll is by {of}: two estimates of one saving, which need not be equal"
        )
    parameters = fitted.tables
    if any(table.few for table in tables):  # below a long ranking a screen hides them until they are asked for
        parameters = [dataclasses.replace(table, tier="asked") for table in parameters]
    facts: dict[str, Any] = {
        "method": method,
        "keeps predicted classes": fitted.scaler.preserves_accuracy,
        "after": where,
        "n": predictions.n,
        **predictions.problem.facts,
    }
    result = Result(
        command="scale",
        estimates=[*fitted.estimates, *estimates, *before_result.estimates, *after_result.estimates, *changed],
        tables=[*tables, *parameters, *before_result.tables, *after_result.tables],
        plots=[*before_result.plots, *after_result.plots, *fitted.plots],
        notes=[*notes_of(*filter(None, [predictions, test])), *notes, *outside(changed), *after_result.notes],
        facts={**facts, **fitted.facts, **recommended},
    )
    return screened(result, ranked), fitted.scaler


def screened(result: Result, ranked: bool = False) -> Result:
    """Choose what a screen shows first: the fit, what it changed, and the diagram of after.

    Their columns are laid out in `render/_side_by_side`.

    Args:
        ranked: whether several methods were fitted, so that the reader asks which is best.
    """

    def few(e: Estimate) -> bool:
        fitted_or_changed = e.where.whole or e.where.phase == CHANGE
        compared = not ranked or registry.traits(e.name).compared
        return compared and (fitted_or_changed or registry.decides(e.name, result.predicted))

    fine = [key for key, value in result.facts.items() if key.endswith(" status") and value == "ok"]
    pairs = zip(result.estimates, registry.tiered(result.estimates, few), strict=True)
    plots = [dataclasses.replace(plot, tier="few") for plot in result.plots]
    return dataclasses.replace(
        result,
        estimates=[e if e.tier == "all" else tiered for e, tiered in pairs],
        plots=first_alone(plots, lambda plot: plot.name.endswith("_after")),
        screen=Screen(pairs="change", hidden=(*HIDDEN, *fine), one_page=True, bins=10),
    )


def on_top(rows: Predictions) -> list[str]:
    """Return a note where `calib logits` has recorded that the model contains a calibrator already."""
    folded = rows.record.folded
    return [f"{folded}: this one goes on top of it; of the model before, pass its logits"] if folded else []


def known_methods(methods: Sequence[str], predictions: Predictions) -> list[str]:
    """Return canonical specs, each once. `all` stands for every applicable method; without any, the usual one is used.

    Raises:
        UsageError: a method or option is unknown.
    """
    predictions.refuse_outcomes("a fit")
    every = applicable(bool(predictions.top_only))
    usual = ("platt" if predictions.top_only else "temperature",)
    asked = (every if method.strip().lower() == "all" else [method] for method in methods or usual)
    return [*dict.fromkeys(SCALERS.choose(spec).spec for specs in asked for spec in specs)]


def _measure(rows: Predictions, options: RankingOptions, phase: Phase) -> tuple[Result, Columns]:
    """Return the result of `calib metrics` on these rows, marked as before or after, and their columns."""
    asked = options.measured
    choices = measuring.chosen(rows, asked)
    measured = measuring.read(rows, asked, choices)
    result = scoped(measuring.of_columns(rows, measured, asked, choices), phase, rows.notes)
    return result, measured if measured.has("nll") else columns(rows, class_bins=(), threads=options.threads)


def scoped(measured: Result, phase: Phase, known_notes: Sequence[str]) -> Result:
    """Mark all parts of a result as before or after, and drop the notes that are known."""
    return dataclasses.replace(
        measured,
        estimates=[dataclasses.replace(e, **e.where.at(phase).fields) for e in measured.estimates],
        tables=[dataclasses.replace(t, name=f"{t.name}_{phase}", title=f"{t.title}, {phase}") for t in measured.tables],
        plots=[
            dataclasses.replace(
                p,
                name=f"{p.name}_{phase}",
                under=p.under and f"{p.under}_{phase}",
                title=p.title and f"{p.title}, {phase}",
                about=None if p.about is None else " ".join(filter(None, [p.about, phase])),
            )
            for p in measured.plots
        ],
        notes=[f"{phase}: {note}" for note in measured.notes if note not in known_notes],
    )
