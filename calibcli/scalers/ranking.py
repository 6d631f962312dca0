"""Methods side by side on rows that none of them was fitted on, with the uncertainty of their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from calibcli.columns import columns
from calibcli.errors import CalibError, UsageError
from calibcli.metrics import METRICS, Sample
from calibcli.metrics.paired import differences, worse
from calibcli.numerics import normal_quantile
from calibcli.predictions import Predictions
from calibcli.result import Estimate, Table
from calibcli.scalers.fitting import cross_fit, part
from calibcli.scalers.scaler import SCALERS, Array, Progress

NONE = "none"  # the scores as they are


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


def applicable(k: int) -> list[str]:
    """Names of the methods for k classes."""
    return [entry.name for entry in SCALERS if k == 2 or not entry.traits.get("binary")]


def rank(
    specs: Sequence[str],
    predictions: Predictions,
    *,
    folds: int = 5,
    seed: int = 0,
    level: float = 0.95,
    threads: int | None = 1,
    progress: Progress | None = None,
) -> Ranking:
    """Cross-fit every method and order them by NLL. Differences are paired over rows.

    Raises:
        UsageError: no method could be fitted.
    """
    nlls: dict[str, Array] = {}
    about: dict[str, tuple[float, float]] = {}
    bad: dict[str, list[str]] = {}
    mapped: dict[str, Predictions] = {}
    notes = []
    before: Sample | None = None
    for done, spec in enumerate((NONE, *specs)):
        here = part(progress, done, len(specs) + 1, spec)
        try:
            out = predictions if spec == NONE else cross_fit(spec, predictions, folds, seed, here)
            sample = Sample.of(columns(out, class_bins=(), threads=threads))
        except CalibError as error:
            notes.append(f"{spec} is left out: {error.problem}")
            continue
        before = before or sample
        mapped[spec], nlls[spec] = out, sample.columns.nll
        about[spec] = (_value("ece", sample), _value("accuracy", sample))
        changed = differences(before, sample, level=level) if spec != NONE else []
        bad[spec] = [e.name for e in worse(changed)]
    order = sorted(nlls, key=lambda s: (_mean(nlls[s], predictions.weights), s != NONE))
    methods = [s for s in order if s != NONE]
    if not methods:
        raise UsageError("no method could be fitted", "pass other methods, or more rows")
    fit = [s for s in methods if not bad[s]]
    best = fit[0] if fit else methods[0]
    recommended = next((s for s in order if s == NONE or not bad[s]), NONE)
    notes += _notes(best, recommended, methods, bad)
    z = normal_quantile((1 + level) / 2)
    estimates, rows = [], []
    for place, spec in enumerate(order, 1):
        mean, se = _difference(nlls[spec], nlls[best], predictions.weights)
        low, high = (mean - z * se, mean + z * se) if spec != best else (None, None)
        found = ", ".join(bad[spec])
        rows.append([place, spec, _mean(nlls[spec], predictions.weights), mean, low, high, *about[spec], found])
        if spec != best:
            estimates.append(
                Estimate(
                    name="nll_difference",
                    value=mean,
                    low=low,
                    high=high,
                    level=level,
                    se=se,
                    of=f"method={spec}",
                    unit="nats",
                    better="lower",
                    n=predictions.n,
                    how=f"NLL minus that of {best}, rows held out in {folds} folds, paired normal interval",
                )
            )
    close = [e.of.removeprefix("method=") for e in estimates if None not in (e.low, e.high) and e.low <= 0 <= e.high]  # type: ignore[operator]
    if close:
        notes.append(f"not told from {best} on these rows: {', '.join(close)}")
    title = f"Methods by NLL on held-out rows ({folds} folds, n = {predictions.n:,})"
    heads = ["rank", "method", "nll", "difference", "low", "high", "ece", "accuracy", "made worse"]
    table = Table(name="ranking", columns=heads, rows=rows, title=title)
    return Ranking(best, recommended, mapped[best], estimates, table, notes)


def _notes(best: str, recommended: str, methods: Sequence[str], bad: Mapping[str, Sequence[str]]) -> list[str]:
    notes = []
    passed = [f"{s} ({', '.join(bad[s])})" for s in methods if bad[s]]
    if passed:
        notes.append(f"not recommended, as they make worse beyond chance what stands beside them: {'; '.join(passed)}")
    if recommended == NONE:
        why = f"{best} makes {', '.join(bad[best])} worse" if bad[best] else "no method has a lower NLL"
        notes.append(f"no method is recommended: {why}; the scores as they are do as well")
    return notes


def _difference(a: Array, b: Array, weights: Array | None) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):
        d = np.where(a == b, 0.0, a - b)
        w = np.ones(len(d)) if weights is None else weights
        mean = float(np.average(d, weights=w))
        return mean, math.sqrt(float(np.sum((w * (d - mean)) ** 2))) / float(w.sum())


def _mean(values: Array, weights: Array | None) -> float:
    return float(np.average(values, weights=weights))


def _value(name: str, sample: Sample) -> float:
    return float(METRICS.choose(name)(sample))
