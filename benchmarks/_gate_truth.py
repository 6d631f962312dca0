"""The true values of a population, and rules with these values as limits.

The truth of a metric is its value on the whole population, for what the sample's number estimates: the debiased square
without the noise of bins (every row counts as a million), the recalibration gain at the population's own temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from _populations import Pair, Population, values
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from calibcli.core.errors import UsageError
from calibcli.gate.config import Gate, limit_rule
from calibcli.gate.judging import resolved
from calibcli.metrics import METRICS
from calibcli.metrics.registry import known
from calibcli.scores.predictions import Predictions

NO_BOUND = ("mce", "ece_sweep", "kde_ece", "calibration_p", "spiegelhalter_z")
"""Metrics that are NOT RUN, whatever the data: asked a few times in every cell, to see that this stays so."""
COMPARED = ("temperature_gain", "nll", "brier", "accuracy")
"""Metrics that a gate compares to a baseline."""
ROUNDING = 1e-9


def gain(p: Population) -> float:
    """NLL that the best temperature of the whole population saves; inf where a label has probability 0."""
    z = p.scores - p.scores.max(axis=1, keepdims=True)
    own = z[np.arange(p.n), p.labels].astype(np.float64)
    if not np.isfinite(own).all():
        return math.inf

    def nll(t: float) -> float:
        beta = math.exp(t)
        return float(np.average(logsumexp(z * z.dtype.type(beta), axis=1) - beta * own, weights=p.weights))

    best = minimize_scalar(nll, bounds=(-9, 4), method="bounded", options={"xatol": 1e-7})
    return nll(0.0) - min(float(best.fun), math.log(p.k))  # an infinite temperature leaves no score


def truths(p: Population, specs: Sequence[str] | None = None) -> dict[str, float]:
    """The population value of these metrics, or of every one; any number for those that have no bound."""
    wanted = known(METRICS.entries, top_only=False, k=p.k) if specs is None else specs
    apart = ("temperature_gain", *NO_BOUND)
    found = plain(p, [spec for spec in wanted if spec not in apart and "debiased" not in spec])
    if debiased := [spec for spec in wanted if "debiased" in spec]:
        weights = np.ones(p.n) if p.weights is None else p.weights / p.weights.mean()
        many = Predictions.of(p.scores, p.labels, kind=p.kind, weights=1e6 * weights, weight_kind="count")
        found = {**found, **values(many, debiased)}
    if "temperature_gain" in wanted:
        found["temperature_gain"] = gain(p)
    return {**found, **{spec: 0.5 for spec in wanted if spec in NO_BOUND}}


def plain(p: Population, wanted: Sequence[str]) -> dict[str, float]:
    return values(Predictions.of(p.scores, p.labels, kind=p.kind, weights=p.weights), wanted)


def gates(truth: dict[str, float], finite: dict[str, float], **keys: Any) -> dict[str, Gate]:
    """Every rule that a metric accepts, with its limit at the truth, by a name such as `nll max`.

    A truth that is infinite has the limit far above what is usual: every PASS there is wrong.
    """
    found: dict[str, Gate] = {}
    for metric, value in truth.items():
        better = METRICS.entries[metric.partition(":")[0]].traits.better
        limit = 2 * finite.get(metric, 1.0) if math.isinf(value) else value
        if not math.isfinite(limit):  # there is none, as of rows that are confident where no row is
            continue
        if abs(limit) < ROUNDING:  # a bound of exactly 0 is not above what is 0 but for rounding
            limit = ROUNDING
        for side in {"lower": ("max",), "higher": ("min",)}.get(better, ("max", "min")):
            try:
                found[f"{metric} {side}"] = limit_rule(f"{metric}={limit!r}", side, **keys)
            except UsageError:  # outside the metric's range: such a limit can be asked of nobody
                continue
        if better == "zero":
            found[f"{metric} zero"] = Gate(metric=metric, limit=abs(limit), **keys)
    return found


def of_population(p: Population, specs: Sequence[str] | None = None) -> dict[str, Gate]:
    """Every rule about a population, or those of some specs."""
    finite = {}
    truth = truths(p, specs)
    if not math.isfinite(truth.get("nll", 0.0)):
        possible = np.isfinite(p.scores[np.arange(p.n), p.labels])
        finite = truths(Population(p.scores[possible], p.labels[possible], p.kind))
    return {name: gate for name, gate in gates(truth, finite).items() if can_be_asked(gate, p.k)}


def can_be_asked(gate: Gate, k: int) -> bool:
    """Whether a gate takes the rule: it refuses a limit at the end of the metric's range, which no sample can break."""
    better = METRICS.entries[gate.metric.partition(":")[0]].traits.better
    try:
        resolved(gate, better, k)
    except UsageError:
        return False
    return True


def margins(pair: Pair, path: str) -> dict[str, Gate]:
    """The four rules against a baseline, each with its margin at the true difference."""
    base, new = ({**plain(p, COMPARED[1:]), "temperature_gain": gain(p)} for p in (pair.base, pair.new))
    worse = {metric: new[metric] - base[metric] for metric in COMPARED}
    worse["accuracy"] *= -1
    return {f"{m} margin": Gate(metric=m, baseline=path, margin=worse[m]) for m in COMPARED}
