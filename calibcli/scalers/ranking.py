"""Methods side by side on rows that none of them was fitted on, with the uncertainty of their differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.columns import columns
from calibcli.errors import CalibError, UsageError
from calibcli.metrics import METRICS, Sample
from calibcli.metrics.paired import differences, worse
from calibcli.numerics import normal_quantile, weighted_mean
from calibcli.predictions import Predictions
from calibcli.result import Cell, Estimate, Table
from calibcli.scalers.fitting import cross_fit, part
from calibcli.scalers.scaler import Array, Progress

NONE = "none"  # the scores as they are
BEST = 3  # methods that a screen shows at first, beside those that every reader looks for
USUAL = ("temperature", NONE)


@dataclass(frozen=True, kw_only=True)
class Options:
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
class Ranking:
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
    specs: Sequence[str], predictions: Predictions, how: Options = Options(), progress: Progress | None = None
) -> Ranking:
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
    return Ranking(best.spec, recommended, best.after, estimates, table, notes)


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
    specs: Sequence[str], predictions: Predictions, how: Options, progress: Progress | None
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
