"""Methods side by side on rows that none of them was fitted on, with the uncertainty of their differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from calibcli import metrics
from calibcli.columns import Columns, columns
from calibcli.errors import CalibError, UsageError
from calibcli.predictions import Predictions
from calibcli.result import Estimate, Table
from calibcli.scalers.fitting import cross_fit
from calibcli.scalers.scaler import SCALERS, Array, Progress

NONE = "none"  # the scores as they are


@dataclass(frozen=True)
class Ranking:
    """Methods from the lowest cross-fitted NLL to the highest.

    Attributes:
        best: spec of the first method (never `none`).
        estimates: `nll_difference` of each method to the first, of `method=SPEC`, with its interval.
        table: rank, method, NLL, difference with interval, ECE, accuracy.
        notes: what could not be fitted, and what cannot be told from the first.
    """

    best: str
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
    notes = []
    for done, spec in enumerate((NONE, *specs)):
        if progress:
            progress(done / (len(specs) + 1), spec)
        try:
            out = predictions if spec == NONE else cross_fit(spec, predictions, folds, seed)
            table = columns(out, class_bins=(), threads=threads)
        except CalibError as error:
            notes.append(f"{spec} is left out: {error.problem}")
            continue
        nlls[spec], about[spec] = table.nll, (_ece(table), _mean(table.correct.astype(np.float64), table.weights))
    order = sorted(nlls, key=lambda s: (_mean(nlls[s], predictions.weights), s != NONE))
    best = next((s for s in order if s != NONE), None)
    if best is None:
        raise UsageError("no method could be fitted", "pass other methods, or more rows")
    z = NormalDist().inv_cdf((1 + level) / 2)
    estimates, rows = [], []
    for place, spec in enumerate(order, 1):
        mean, se = _difference(nlls[spec], nlls[best], predictions.weights)
        low, high = (mean - z * se, mean + z * se) if spec != best else (None, None)
        rows.append([place, spec, _mean(nlls[spec], predictions.weights), mean, low, high, *about[spec]])
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
    close = [e.of.removeprefix("method=") for e in estimates if e.low is not None and e.low <= 0]
    if close:
        notes.append(f"not told from {best} on these rows: {', '.join(close)}")
    title = f"Methods by NLL on held-out rows ({folds} folds, n = {predictions.n:,})"
    heads = ["rank", "method", "nll", "difference", "low", "high", "ece", "accuracy"]
    return Ranking(best, estimates, Table(name="ranking", columns=heads, rows=rows, title=title), notes)


def _difference(a: Array, b: Array, weights: Array | None) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):
        d = np.where(a == b, 0.0, a - b)
        w = np.ones(len(d)) if weights is None else weights
        mean = float(np.average(d, weights=w))
        return mean, math.sqrt(float(np.sum((w * (d - mean)) ** 2))) / float(w.sum())


def _mean(values: Array, weights: Array | None) -> float:
    return float(np.average(values, weights=weights))


def _ece(table: Columns) -> float:
    sample = metrics.Sample.of(table)
    return float(metrics.METRICS.choose("ece")(sample))
