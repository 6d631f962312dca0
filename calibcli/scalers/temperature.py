"""Temperature scaling, softmax(z / T) (Guo et al. 2017), by the objective that one prefers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np

from calibcli.links import BetaFit, fit_beta
from calibcli.links.moments import Source, chunks, cumulants
from calibcli.numerics import effective_groups, root, student_quantile
from calibcli.plots import Curve, Plot
from calibcli.predictions import Predictions
from calibcli.result import Cell, Estimate
from calibcli.scalers import parameters, search
from calibcli.scalers.objectives import block_source, brier, nll_curve
from calibcli.scalers.program import FAR, Operations
from calibcli.scalers.scaler import SCALERS, Array, Fitted, Job, Parameters
from calibcli.scalers.subsets import sample
from calibcli.spec import Count

Objective = Literal["nll", "ece", "adaece", "brier"]
Grid = Literal["mukhoti", "komisarenko"]
GRIDS: dict[str, Array] = {
    "mukhoti": np.arange(1, 101) / 10,  # 0.1, 0.2, ..., 10.0 (Mukhoti et al. 2020; their 0 cannot be divided by)
    "komisarenko": np.arange(1, 101) / 20,  # 0.05, 0.10, ..., 5.00 (Komisarenko & Kull 2024)
}
SHOWN = 500_000  # scores that a figure is of
FEWEST = 3  # effective rows or groups below which an interval is not given
WIDEST = 100.0  # of ln T: beyond, an interval says nothing, and ends are soon no numbers
REASONS = {
    "separable": "no row is wrong, so the NLL falls for ever as T -> 0: no temperature is best",
    "anti_informative": "the scores point away from the labels: the best T is infinite (uniform probabilities)",
    "constant": "every row of scores is constant, so the temperature changes nothing",
    "bound": "T ran into the end of the search range, 1e-3 to 1e6 times the spread of the scores",
}


def tempered(o: Operations, given: Parameters, z: Any) -> Any:
    """z / T."""
    beta = float(given["beta"])
    if beta == 0:  # classes of probability 0 stay
        return o.where(z < -FAR, o.neg_inf(), 0.0)
    return z if beta == 1 else z * o.const(given["beta"])


def scaled(o: Operations, given: Parameters, z: Any) -> Any:
    """softmax(z / T)."""
    return o.normalised(tempered(o, given, z))


@SCALERS.add(preserves_accuracy=True, map=scaled, form=parameters.temperature())
def temperature(
    predictions: Predictions, job: Job, *, objective: Objective = "nll", grid: Grid | None = None, bins: Count = 15
) -> Fitted:
    """Temperature scaling: softmax(z / T), one number, keeps every predicted class (Guo et al. 2017).

    `objective=nll` is exact (convex in 1/T); `ece` and `adaece` search `grid` (default mukhoti) and take the smallest
    T on ties; `brier` minimises the Brier score. `grid` also restricts nll and brier to its points.

    >>> round(calibcli.fit_scaler(logits, labels)["temperature"].value, 3)
    2.813
    """
    source = block_source(predictions)
    if objective in ("ece", "adaece"):
        return _by_grid(predictions, objective, grid or "mukhoti", bins)
    exact = fit_beta(source, start=job.memory.get("temperature"))
    if exact.status != "ok":
        return degenerate(exact)
    if grid is not None:
        return _by_grid(predictions, objective, grid, bins)
    if objective == "brier":
        return _by_brier(source, exact)
    parameters = {"beta": np.array(exact.beta)}
    if job.rows is not None:  # of a part: nobody reads its interval
        return Fitted(parameters, [_value(exact)], facts=facts(exact))
    job.memory["temperature"] = exact.beta
    plots = [_curve(predictions, exact)] if job.report else []
    return Fitted(parameters, [interval(exact, predictions, job.level)], plots=plots, facts=facts(exact))


def _value(fit: BetaFit) -> Estimate:
    return Estimate(name="temperature", value=fit.temperature, n=fit.n, how="minimises NLL (Newton in 1/T)")


def interval(fit: BetaFit, predictions: Predictions, level: float = 0.95) -> Estimate:
    """T with its interval, symmetric in ln T: a jackknife over rows, or over groups where rows belong to groups.

    Without unit g, ln β moves by S_g / (β (H - H_g)), S_g and H_g its sums of dNLL/dβ and d²NLL/dβ² (one Newton step;
    the sandwich variance with the correction CR3, Bell & McCaffrey 2002). Student's t has (Σ m²)² / Σ m⁴ - 1 degrees of
    freedom, m = H_g for groups and H_i^½ for rows: a few rows that are not certain may hold all there is to know.
    """
    t = fit.temperature
    common = _value(fit)
    if not fit.se:
        return dataclasses.replace(common, reason="the NLL has no curvature here")
    score, bend, times = per_unit(predictions, fit.beta)
    se, units = jackknife(score / fit.beta, bend, times, grouped=predictions.groups is not None)
    what = "groups" if predictions.groups is not None else "rows"
    detail: dict[str, Cell] = {f"effective {what}": units}
    if units < FEWEST or not math.isfinite(se):
        reason = f"{units:.3g} effective {what} tell T, fewer than {FEWEST}: their spread is not known"
        return dataclasses.replace(common, reason=reason, detail=detail)
    width = student_quantile((1 + level) / 2, units - 1) * se
    if width > WIDEST:
        reason = f"{units:.3g} effective {what} tell next to nothing of T: its logarithm is known to ± {width:.3g}"
        return dataclasses.replace(common, reason=reason, detail=detail)
    ends = {"low": t * math.exp(-width), "high": t * math.exp(width), "level": level, "se": t * se}
    how = f"{common.how}; interval: jackknife of ln T over {what}, Student's t"
    return dataclasses.replace(common, **ends, how=how, detail=detail)  # type: ignore[arg-type]


def per_unit(predictions: Predictions, beta: float) -> tuple[Array, Array, Array]:
    """Sums over each row or group of dNLL/dβ and d²NLL/dβ² (E z - z_y, and the variance of z under p), and how often
    each is there: (G,) each.
    """
    score, bend = np.empty(predictions.n), np.empty(predictions.n)
    for start, block in predictions.blocks():
        for z, y, _ in chunks((block, predictions.labels[start : start + len(block)], None)):
            here = slice(start, start + len(z))
            _, score[here], bend[here], *_ = cumulants(z, y, beta, np.float64)
            start = here.stop
    (score, times), (bend, _) = units_of(predictions, score), units_of(predictions, bend)
    return score, bend, times


def units_of(predictions: Predictions, values: Array) -> tuple[Array, Array]:
    """Weighted sums of (N,) values over groups, or the rows where there are none; and how often each is there."""
    w = predictions.weights
    if w is not None and predictions.weight_kind == "count" and predictions.groups is None:
        return values, w
    values = values if w is None else w * values
    if predictions.groups is not None:
        _, member = np.unique(predictions.groups, return_inverse=True)
        values = np.bincount(member, values).astype(np.float64)
    return values, np.ones(len(values))


def jackknife(score: Array, bend: Array, times: Array, *, grouped: bool) -> tuple[float, float]:
    """Standard error of a parameter from each unit's sums of first and second derivatives, and effective units."""
    left = float(bend @ times) - bend
    count = float(times.sum())
    if count < 2 or not np.all(left > 0):
        return math.nan, 0.0
    moved = score / left
    centre = float(moved @ times) / count
    se = math.sqrt((count - 1) / count * float(times @ (moved - centre) ** 2))
    return se, effective_units(bend, times, grouped)


def effective_units(bend: Array, times: Array, grouped: bool) -> float:
    """(Σ m²)² / Σ m⁴ with m what a unit tells: its second derivative for groups, the root of it for rows."""
    if grouped:
        return effective_groups(bend)
    square = np.maximum(bend, 0.0)
    power = float(times @ square**2)
    return float(times @ square) ** 2 / power if power > 0 else 0.0


def degenerate(fit: BetaFit) -> Fitted:
    """Scores for which no temperature is best: said, not returned as a number."""
    reason = REASONS[fit.status]
    does = {"anti_informative": "maps every row to uniform probabilities", "bound": f"uses T = {fit.temperature:.3g}"}
    note = f"temperature: {reason}; the calibrator {does.get(fit.status, 'leaves scores as they are')}"
    estimate = Estimate(name="temperature", value=None, reason=f"{fit.status}: {reason}", n=fit.n)
    return Fitted({"beta": np.array(fit.usable)}, [estimate], [note], facts=facts(fit))


def facts(fit: BetaFit) -> dict[str, str | int]:
    return {"temperature status": fit.status, "full passes": fit.passes}


def _by_grid(predictions: Predictions, objective: Objective, grid: Grid, bins: int) -> Fitted:
    best = search.best_temperature(predictions, GRIDS[grid], objective, bins)
    label, (low, high) = search.LABELS[objective], best.plateau
    name, smooth = f"{label} on the {grid} grid", objective not in ("ece", "adaece")
    points = f"{best.evaluated} of {len(GRIDS[grid])} points evaluated, the others excluded exactly"
    estimate = Estimate(
        name="temperature",
        value=best.temperature,
        n=predictions.n,
        how=f"smallest {name}, first of ties; {points}",
        reason="a grid point has no interval" if smooth else f"{label} is not smooth in T, so T has no valid interval",
        detail={"objective": best.value, "plateau_low": low, "plateau_high": high},
    )
    notes = []
    if high > low:
        notes.append(f"T from {low:g} to {high:g} is within one null standard deviation of the smallest {name}")
    if best.temperature in (GRIDS[grid][0], GRIDS[grid][-1]):
        notes.append(f"T = {best.temperature:g} is an end of the {grid} grid")
    return Fitted({"beta": np.array(1 / best.temperature)}, [estimate], notes)


def _by_brier(source: Source, exact: BetaFit) -> Fitted:
    """Root of d Brier / d ln β in the valley of the best of 61 log-spaced points around the NLL's optimum."""
    points = math.log(exact.beta) + np.linspace(-math.log(30), math.log(30), 61)
    values = [brier(source, math.exp(u))[0] for u in points]
    at = int(np.argmin(values))
    if at in (0, 60):
        estimate = Estimate(name="temperature", value=None, reason="bound: the Brier score has no minimum in T")
        return Fitted({"beta": np.array(math.exp(points[at]))}, [estimate], [f"temperature: {estimate.reason}"])
    u = root(lambda v: brier(source, math.exp(v))[1], points[at - 1], points[at + 1])
    how, reason = "minimises the Brier score", "no interval is computed for this objective"
    estimate = Estimate(name="temperature", value=math.exp(-u), n=exact.n, how=how, reason=reason)
    return Fitted({"beta": np.array(math.exp(u))}, [estimate])


def _curve(predictions: Predictions, fit: BetaFit) -> Plot:
    """NLL over T around the optimum, on at most 5,000 rows, fewer of many classes."""
    rows = sample(predictions, min(5000, max(500, SHOWN // predictions.k)))
    factors = np.exp(np.linspace(-1, 1, 41 if rows.n * rows.k <= 5 * SHOWN else 15))  # a pass over the scores each
    values = nll_curve(block_source(rows), fit.beta / factors)
    t = fit.temperature * factors
    return Plot(
        name="nll_over_t",
        title=f"NLL over temperature, n = {rows.n:,}",
        xlabel="temperature T",
        ylabel="NLL (nats)",
        xscale="log",
        curves=[
            Curve(label="NLL", kind="line", role="model", x=list(t), y=list(values)),
            Curve(label=f"T = {fit.temperature:.4g}", kind="vline", role="best", x=[fit.temperature]),
            Curve(label="T = 1", kind="vline", role="before", x=[1.0]),
        ],
    )
