"""Temperature scaling, softmax(z / T) (Guo et al. 2017), by the objective that one prefers."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from calibcli.links import BetaFit, fit_beta, log_softmax
from calibcli.links.moments import Source, chunks, shift
from calibcli.predictions import ArrayScores, Predictions
from calibcli.result import Curve, Estimate, Plot
from calibcli.scalers import search
from calibcli.scalers.scaler import SCALERS, Array, Fitted, Job, Parameters
from calibcli.spec import Count

Objective = Literal["nll", "ece", "adaece", "brier"]
Grid = Literal["mukhoti", "komisarenko"]
GRIDS: dict[str, Array] = {
    "mukhoti": np.arange(1, 101) / 10,  # 0.1, 0.2, ..., 10.0 (Mukhoti et al. 2020; their 0 cannot be divided by)
    "komisarenko": np.arange(1, 101) / 20,  # 0.05, 0.10, ..., 5.00 (Komisarenko & Kull 2024)
}
REASONS = {
    "separable": "no row is wrong, so the NLL falls for ever as T -> 0: no temperature is best",
    "anti_informative": "the scores point away from the labels: the best T is infinite (uniform probabilities)",
    "constant": "every row of scores is constant, so the temperature changes nothing",
    "bound": "T ran into the end of the search range, 1e-3 to 1e6 times the spread of the scores",
}


def apply(parameters: Parameters, logits: Array) -> Array:
    beta = float(parameters["beta"])
    if beta == 0:
        return np.where(np.isneginf(logits), -np.inf, -np.log(np.isfinite(logits).sum(axis=1, keepdims=True)))
    return log_softmax(beta * logits)


@SCALERS.add(preserves_accuracy=True, apply=apply)
def temperature(
    predictions: Predictions,
    job: Job,
    *,
    objective: Objective = "nll",
    grid: Grid | None = None,
    bins: Count = 15,
) -> Fitted:
    """Temperature scaling: softmax(z / T), one number, keeps every predicted class (Guo et al. 2017).

    `objective=nll` is exact (convex in 1/T); `ece` and `adaece` search `grid` (default mukhoti) and take the smallest
    T on ties; `brier` minimises the Brier score. `grid` also restricts nll and brier to its points.
    """
    source = block_source(predictions)
    if objective in ("ece", "adaece"):
        return _by_grid(predictions, job, objective, grid or "mukhoti", bins)
    exact = fit_beta(source)
    if exact.status != "ok":
        return degenerate(exact)
    if grid is not None:
        return _by_grid(predictions, job, objective, grid, bins)
    if objective == "brier":
        return _by_brier(source, exact)
    plots = [_curve(predictions, exact)] if job.report else []
    return Fitted({"beta": np.array(exact.beta)}, [interval(exact, job.level)], plots=plots, facts=facts(exact))


def block_source(predictions: Predictions) -> Source:
    """The rows as `fit_beta` reads them."""
    y, w = predictions.labels, predictions.weights
    if isinstance(predictions.scores, ArrayScores):
        whole = (predictions.logits, y, w)
        return lambda: (whole,)
    return lambda: (
        (z, y[start : start + len(z)], None if w is None else w[start : start + len(z)])
        for start, z in predictions.blocks()
    )


def interval(fit: BetaFit, level: float = 0.95) -> Estimate:
    """T with its interval: sandwich standard error of ln β, symmetric in ln T."""
    t = fit.temperature
    width = z_of(level) * fit.se / fit.beta if fit.se else math.nan
    return Estimate(
        name="temperature",
        value=t,
        low=t * math.exp(-width),
        high=t * math.exp(width),
        level=level,
        se=t * fit.se / fit.beta if fit.se else None,
        n=fit.n,
        how="minimises NLL (Newton in 1/T); interval: sandwich variance of ln T",
        reason="" if fit.se else "the NLL has no curvature here",
    )


def degenerate(fit: BetaFit) -> Fitted:
    """Scores for which no temperature is best: said, not returned as a number."""
    reason = REASONS[fit.status]
    does = {"anti_informative": "maps every row to uniform probabilities", "bound": f"uses T = {fit.temperature:.3g}"}
    note = f"temperature: {reason}; the calibrator {does.get(fit.status, 'leaves scores as they are')}"
    estimate = Estimate(name="temperature", value=None, reason=f"{fit.status}: {reason}", n=fit.n)
    return Fitted({"beta": np.array(fit.usable)}, [estimate], [note], facts=facts(fit))


def facts(fit: BetaFit) -> dict[str, str | int]:
    return {"temperature status": fit.status, "full passes": fit.passes}


def _by_grid(predictions: Predictions, job: Job, objective: Objective, grid: Grid, bins: int) -> Fitted:
    found = search.best_temperature(predictions, GRIDS[grid], objective, bins)
    name = f"{objective.upper()} on the {grid} grid"
    estimate = Estimate(
        name="temperature",
        value=found.temperature,
        n=predictions.n,
        how=f"smallest {name}, first of ties; {found.evaluated} of {len(GRIDS[grid])} points evaluated, "
        "the others excluded exactly",
        reason=f"{objective.upper()} is not smooth in T, so T has no valid interval"
        if objective in ("ece", "adaece")
        else "a grid point has no interval",
        detail={"objective": found.value, "plateau_low": found.plateau[0], "plateau_high": found.plateau[1]},
    )
    notes = []
    if found.plateau[1] > found.plateau[0]:
        low, high = found.plateau
        notes.append(f"T from {low:g} to {high:g} is within one null standard deviation of the smallest {name}")
    if found.temperature in (GRIDS[grid][0], GRIDS[grid][-1]):
        notes.append(f"T = {found.temperature:g} is an end of the {grid} grid")
    return Fitted({"beta": np.array(1 / found.temperature)}, [estimate], notes)


def _by_brier(source: Source, exact: BetaFit) -> Fitted:
    """Root of d Brier / d ln β in the valley of the best of 61 log-spaced points around the NLL's optimum."""
    points = math.log(exact.beta) + np.linspace(-math.log(30), math.log(30), 61)
    values = [_brier(source, math.exp(u))[0] for u in points]
    at = int(np.argmin(values))
    if at in (0, 60):
        estimate = Estimate(name="temperature", value=None, reason="bound: the Brier score has no minimum in T")
        return Fitted({"beta": np.array(math.exp(points[at]))}, [estimate], [f"temperature: {estimate.reason}"])
    u = search.root(lambda v: _brier(source, math.exp(v))[1], points[at - 1], points[at + 1])
    estimate = Estimate(
        name="temperature",
        value=math.exp(-u),
        n=exact.n,
        how="minimises the Brier score",
        reason="no interval is computed for this objective",
    )
    return Fitted({"beta": np.array(math.exp(u))}, [estimate])


def _brier(source: Source, beta: float) -> tuple[float, float]:
    """Mean Brier score (sum over classes) of softmax(β z) and its derivative in ln β."""
    total = slope = weight = 0.0
    for whole in source():
        for z, y, w in chunks(whole):
            d, _, axis = shift(z, y, np.float64)
            d = np.maximum(d if axis == 0 else d.T, -1e5)
            p = np.exp(beta * d)
            p /= p.sum(axis=0)
            rate = beta * p * (d - (p * d).sum(axis=0))
            p[y, np.arange(len(y))] -= 1
            w = np.ones(len(y)) if w is None else w
            total += float((p * p).sum(axis=0) @ w)
            slope += 2 * float((p * rate).sum(axis=0) @ w)
            weight += float(w.sum())
    return total / weight, slope / weight


def _curve(predictions: Predictions, fit: BetaFit) -> Plot:
    """NLL over T around the optimum, on at most 5,000 rows."""
    from calibcli.scalers.rows import sample

    rows = sample(predictions, 5000)
    source = block_source(rows)
    factors = np.exp(np.linspace(-1, 1, 41))
    values = [nll(source, fit.beta / f) for f in factors]
    t = fit.temperature * factors
    return Plot(
        name="nll_over_t",
        title=f"NLL over temperature, n = {rows.n:,}",
        xlabel="temperature T",
        ylabel="NLL (nats)",
        xscale="log",
        curves=[
            Curve(label="NLL", kind="line", role="model", x=list(t), y=values),
            Curve(label=f"T = {fit.temperature:.4g}", kind="vline", role="best", x=[fit.temperature]),
            Curve(label="T = 1", kind="vline", role="before", x=[1.0]),
        ],
    )


def nll(source: Source, beta: float) -> float:
    """Weighted mean NLL of softmax(β z)."""
    from calibcli.links import nll_rows

    total = weight = 0.0
    for z, y, w in source():
        rows = nll_rows(z, y, beta)
        total += float(rows.sum() if w is None else rows @ w)
        weight += float(len(rows) if w is None else w.sum())
    return total / weight


def z_of(level: float) -> float:
    """Two-sided normal quantile."""
    from statistics import NormalDist

    return NormalDist().inv_cdf((1 + level) / 2)
