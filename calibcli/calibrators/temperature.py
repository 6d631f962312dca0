"""Temperature scaling, softmax(z / T) (Guo et al. 2017), by NLL, Brier score or ECE; ensemble temperature scaling."""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibcli.calibrators import store
from calibcli.calibrators.calibrator import SCALERS, FitContext, FittedParameters, Form, Parameters
from calibcli.calibrators.fitting import raw_argmax, sample
from calibcli.calibrators.program import FAR, NumPy, Operations
from calibcli.calibrators.store import SHARE
from calibcli.core.figure_data import Curve, Plot
from calibcli.core.options import BINS, Count
from calibcli.core.result import Cell, Estimate
from calibcli.core.statistics import effective_groups, group_places, root, squares, student_quantile
from calibcli.metrics.binned import l1
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.likelihood import BetaFit, fit_beta, nll_rows
from calibcli.scores.likelihood.moments import Source, chunks, cumulants, shift, weighted
from calibcli.scores.predictions import Array, ArrayScores, Predictions

# The NLL and the Brier score of softmax(β z) as functions of β, over blocks of rows.


def block_source(predictions: Predictions) -> Source:
    """Return the rows in the form that `fit_beta` reads."""
    y, w = predictions.labels, predictions.weights
    if isinstance(predictions.scores, ArrayScores):
        block = (predictions.logits, y, w)
        return lambda: (block,)
    return lambda: (
        (z, y[start : start + len(z)], None if w is None else w[start : start + len(z)])
        for start, z in predictions.blocks()
    )


def nll(source: Source, beta: float) -> float:
    """Compute the weighted mean NLL of softmax(β z)."""
    total = weight = 0.0
    for z, y, w in weighted(source):
        total += float(nll_rows(z, y, beta) @ w)
        weight += float(w.sum())
    return total / weight


def nll_curve(source: Source, betas: Array) -> Array:
    """Compute the weighted mean NLL at each β in float32, which is exact enough for a figure."""
    total, weight = np.zeros(len(betas)), 0.0
    for z, y, w in weighted(source):
        d, label_score, axis = shift(z, y, np.float32)
        e = np.empty_like(d)
        for i, beta in enumerate(betas):
            np.multiply(d, np.float32(beta), out=e)
            sums = np.exp(e, out=e).sum(axis=axis)
            total[i] += float(w @ np.log(sums)) - beta * float(w @ label_score)
        weight += float(w.sum())
    return total / weight


def brier(source: Source, beta: float) -> tuple[float, float]:
    """Compute the mean Brier score (sum over classes) of softmax(β z) and its derivative in ln β."""
    total = slope = weight = 0.0
    for z, y, w in weighted(source):
        d, _, axis = shift(z, y, np.float64)
        d = np.maximum(d if axis == 0 else d.T, -1e5)
        p = np.exp(beta * d)
        p /= p.sum(axis=0)
        rate = beta * p * (d - (p * d).sum(axis=0))
        p[y, np.arange(len(y))] -= 1
        total += float((p * p).sum(axis=0) @ w)
        slope += 2 * float((p * rate).sum(axis=0) @ w)
        weight += float(w.sum())
    return total / weight, slope / weight


# The best temperature of a grid. Every point is either evaluated or excluded by a bound.
#
# ECE(T) >= |mean confidence(T) - accuracy| for any binning of all rows, and the confidence of every row falls with T.
# So the mean confidences at evaluated temperatures bound those between and beyond them, and with them the ECE there.
# With two classes the ECE is that of the event, whose mean probability need not fall with T: every point is evaluated.

SLACK = 1e-12  # bounds the rounding of sums over rows
ROUGH = 1e-5  # bounds the error of a mean confidence in float32
LABELS = {"nll": "NLL", "ece": "ECE", "adaece": "adaptive ECE", "brier": "Brier score"}
"""Objectives in titles."""


@dataclass(frozen=True)
class GridMinimum:
    """The best grid point.

    Attributes:
        temperature: the smallest T of the smallest objective.  value: the objective there.
        plateau: smallest and largest T within one null standard deviation of it.
        evaluated: number of grid points at which the objective was computed.
    """

    temperature: float
    value: float
    plateau: tuple[float, float]
    evaluated: int


def best_temperature(predictions: Predictions, grid: Array, objective: str, bins: int = BINS) -> GridMinimum:
    """Minimise `nll`, `brier`, `ece` or `adaece` over an increasing grid of temperatures.

    Args:
        predictions: labelled scores.
        grid: (G,) increasing temperatures > 0.
        objective: what to minimise; ties go to the smallest temperature.
        bins: of ece (equal width, (lo, hi]) and adaece (equal mass, equal confidences share their accuracy).
    """
    if objective in ("ece", "adaece"):
        return _best_ece(predictions, grid, objective, bins)
    source = block_source(predictions)
    function = nll if objective == "nll" else (lambda s, b: brier(s, b)[0])
    values = [function(source, 1 / t) for t in grid]
    best = int(np.argmin(values))
    return GridMinimum(float(grid[best]), values[best], (float(grid[best]), float(grid[best])), len(grid))


def _best_ece(predictions: Predictions, grid: Array, objective: str, bins: int) -> GridMinimum:
    w = predictions.weights
    accuracy = float(np.average(raw_argmax(predictions) == predictions.labels, weights=w))
    error = BinnedObjective(predictions, objective, bins)
    values: dict[int, float] = {}
    means: dict[int, tuple[float, float]] = {}  # grid point to bounds of the mean confidence
    spread: dict[int, float] = {}
    following: int | None = _guess(predictions, grid, accuracy)
    while following is not None:
        if values and following not in means and predictions.k > 2:  # a cheap bound may make the evaluation needless
            mean = float(np.average(confidence(predictions, grid[following], np.float32), weights=w))
            means[following] = (mean - ROUGH, mean + ROUGH)
        else:
            c = confidence(predictions, grid[following])
            values[following], spread[following] = error(c), null_deviation(c, w, predictions.weight_kind == "count")
            mean = float(np.average(c, weights=w))
            means[following] = (mean, mean)
        best = min(values, key=lambda i: (values[i], i))
        limit = values[best] + spread[best] + SLACK  # points of the plateau are evaluated, too
        low = np.zeros(len(grid)) if predictions.k == 2 else _lower_bounds(means, len(grid), accuracy)
        candidates = [i for i in range(len(grid)) if i not in values and low[i] <= limit]
        following = min(candidates, key=lambda i: (abs(i - best), i), default=None)
    plateau = [i for i in values if values[i] <= values[best] + spread[best]]
    ends = float(grid[min(plateau)]), float(grid[max(plateau)])
    return GridMinimum(float(grid[best]), values[best], ends, len(values))


def _guess(predictions: Predictions, grid: Array, accuracy: float) -> int:
    """Bisect for the grid point where the mean confidence of some rows is closest to the accuracy."""
    few = sample(predictions, 2000)

    def excess(i: int) -> float:
        return float(np.average(confidence(few, grid[i]), weights=few.weights)) - accuracy

    low = bisect_left(range(len(grid) - 1), True, key=lambda i: excess(i) <= 0)
    return low - 1 if low and excess(low - 1) < -excess(low) else low


def _lower_bounds(means: dict[int, tuple[float, float]], size: int, accuracy: float) -> Array:
    """Bound |mean confidence - accuracy| from below at each grid point, as the confidence falls with T."""
    computed = sorted(means)
    index = np.arange(size)
    left = np.searchsorted(computed, index, side="right") - 1
    right = np.searchsorted(computed, index, side="left")
    least, most = np.array([means[i] for i in computed]).T
    highest = np.where(left >= 0, most[np.maximum(left, 0)], 1.0)  # of a smaller T
    lowest = np.where(right < len(computed), least[np.minimum(right, len(computed) - 1)], 0.0)
    return np.maximum(np.maximum(lowest - accuracy, accuracy - highest), 0.0)


def confidence(predictions: Predictions, temperature: float, dtype: Any = np.float64) -> Array:
    """Compute the top probability of softmax(z / T), (N,), with exponentials in `dtype` (float32: within 1e-5)."""
    out, start = np.empty(predictions.n, dtype), 0
    beta = dtype(1 / temperature)
    for z, y, _ in weighted(block_source(predictions)):
        d, _, axis = shift(z, y, dtype)
        d *= beta
        np.exp(d, out=d)
        d.sum(axis=axis, out=out[start : start + len(z)])
        start += len(z)
    return np.asarray(1 / out)


class BinnedObjective:
    """ECE or adaptive ECE of rows as a function of their confidences.

    It is the number that `calib metrics` prints; with two classes, that of the event.
    """

    def __init__(self, predictions: Predictions, objective: str, bins: int) -> None:
        self.objective, self.bins = objective, bins
        self.weights, self.counts = predictions.weights, predictions.weight_kind == "count"
        top, two = raw_argmax(predictions), predictions.k == 2
        self.flip = top == 0 if two else None
        self.hit = np.asarray(predictions.labels == (1 if two else top))

    def __call__(self, confidence: Array) -> float:
        p, complement = confidence, 1 - confidence
        if self.flip is not None:  # the first class is on top: the confidence is 1 - P(event)
            p, complement = np.where(self.flip, complement, p), np.where(self.flip, p, complement)
        view = BinaryOutcomes(
            p=p,
            complement=complement,
            hit=self.hit,
            weights=self.weights,
            counts=self.counts,
            groups=None,
            values_only=True,  # without what only an interval needs
        )
        if self.objective == "ece":
            return float(l1(view.width_bins(self.bins, "right")))  # ((b - 1) / M, b / M]
        return float(l1(view.mass_bins(self.bins, "split-merge")))  # a tie is split between bins, with one accuracy


def null_deviation(c: Array, w: Array | None, counts: bool = False) -> float:
    """Return the standard deviation of a calibrated model's ECE at these confidences: sqrt((1 - 2/π) Σ_b var_b).

    Args:
        c: (N,) confidences.  w: (N,) weights, or None for 1.  counts: whether they are numbers of independent rows.
    """
    total = len(c) if w is None else w.sum()
    variance = c * (1 - c) if w is None else squares(w, counts) * c * (1 - c)
    return math.sqrt((1 - 2 / math.pi) * float(np.sum(variance))) / float(total)


# The method `temperature`.

Objective = Literal["nll", "ece", "adaece", "brier"]
Grid = Literal["mukhoti", "komisarenko"]
GRIDS: dict[str, Array] = {
    "mukhoti": np.arange(1, 101) / 10,  # 0.1, 0.2, ..., 10.0 (Mukhoti et al. 2020; their 0 cannot be divided by)
    "komisarenko": np.arange(1, 101) / 20,  # 0.05, 0.10, ..., 5.00 (Komisarenko & Kull 2024)
}
SHOWN = 500_000  # most scores that a figure is computed from
FEWEST = 3  # effective rows or groups below which no interval is given
WIDEST = 100.0  # half-width of ln T beyond which an interval says nothing; exp of its ends would soon overflow
REASONS = {
    "separable": "no row is wrong, so the NLL falls for ever as T -> 0: no temperature is best",
    "anti_informative": "the scores point away from the labels: the best T is infinite (uniform probabilities)",
    "constant": "every row of scores is constant, so the temperature changes nothing",
    "bound": "T ran into the end of the search range, 1e-3 to 1e6 times the spread of the scores: no temperature fits",
}


def tempered(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Compute z / T."""
    beta = float(parameters["beta"])
    if beta == 0:  # classes of probability 0 keep it
        return o.where(z < -FAR, o.neg_inf(), 0.0)
    return z if beta == 1 else z * o.const(parameters["beta"])


def scaled(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Compute softmax(z / T)."""
    return o.normalised(tempered(o, parameters, z))


@SCALERS.add(preserves_accuracy=True, map=scaled, form=store.temperature(), cuts=True)
def temperature(
    predictions: Predictions,
    context: FitContext,
    *,
    objective: Objective = "nll",
    grid: Grid | None = None,
    bins: Count = BINS,
) -> FittedParameters:
    """Temperature scaling: softmax(z / T), one number, keeps every predicted class (Guo et al. 2017).

    `objective=nll` is exact (convex in 1/T); `ece` and `adaece` search `grid` (default mukhoti) and take the smallest
    T on ties; `brier` minimises the Brier score. `grid` also restricts nll and brier to its points.

    >>> round(calibcli.fit_scaler(logits, labels)["temperature"].value, 3)
    2.813
    """
    source = block_source(predictions)
    if objective in ("ece", "adaece"):
        return _by_grid(predictions, objective, grid or "mukhoti", bins)
    exact = fit_beta(source, start=context.memory.get("temperature"))
    if exact.status != "ok":
        return degenerate(exact)
    if grid is not None:
        return _by_grid(predictions, objective, grid, bins)
    if objective == "brier":
        return _by_brier(source, exact)
    parameters = {"beta": np.array(exact.beta)}
    if context.rows is not None:  # in a fit to a part of the rows nobody reads the interval
        return FittedParameters(parameters, [_value(exact)], facts=facts(exact))
    context.memory["temperature"] = exact.beta
    plots = [_curve(predictions, exact)] if context.report else []
    return FittedParameters(parameters, [interval(exact, predictions, context.level)], plots=plots, facts=facts(exact))


def _value(fit: BetaFit) -> Estimate:
    return Estimate(name="temperature", value=fit.temperature, n=fit.n, how="minimises NLL (Newton in 1/T)")


def interval(fit: BetaFit, predictions: Predictions, level: float = 0.95) -> Estimate:
    """Estimate T with an interval, symmetric in ln T, by a jackknife over rows, or over groups where there are any.

    Without unit g, ln β moves by S_g / (β (H - H_g)), S_g and H_g its sums of dNLL/dβ and d²NLL/dβ² (one Newton step;
    the sandwich variance with the correction CR3, Bell & McCaffrey 2002). Student's t has (Σ m²)² / Σ m⁴ - 1 degrees of
    freedom, m = H_g for groups and H_i^½ for rows: a few uncertain rows may hold nearly all information on T.
    """
    t = fit.temperature
    common = _value(fit)
    if not fit.se:
        return dataclasses.replace(common, reason="the NLL has no curvature here")
    score, curvature, times = per_unit(predictions, fit.beta)
    se, units = jackknife(score / fit.beta, curvature, times, grouped=predictions.groups is not None)
    units_name = "groups" if predictions.groups is not None else "rows"
    detail: dict[str, Cell] = {f"effective {units_name}": units}
    if units < FEWEST or not math.isfinite(se):
        return dataclasses.replace(common, reason=too_few(units, units_name), detail=detail)
    width = student_quantile((1 + level) / 2, units - 1) * se
    if width > WIDEST:
        reason = f"{units:.3g} effective {units_name} hardly determine T: ln T is known only to ± {width:.3g}"
        return dataclasses.replace(common, reason=reason, detail=detail)
    ends = {"low": t * math.exp(-width), "high": t * math.exp(width), "level": level, "se": t * se}
    how = f"{common.how}; interval: jackknife of ln T over {units_name}, Student's t"
    return dataclasses.replace(common, **ends, how=how, detail=detail)  # type: ignore[arg-type]


def too_few(units: float, name: str) -> str:
    """Return why so few effective rows, or groups, give no interval of T."""
    return f"{units:.3g} effective {name} determine T, fewer than {FEWEST}: its variance is unknown"


def per_unit(predictions: Predictions, beta: float) -> tuple[Array, Array, Array]:
    """Sum dNLL/dβ = E z - z_y and d²NLL/dβ² = Var z (under p) over each row or group.

    Returns:
        Both sums, and how often each row or group occurs: (G,) each.
    """
    score, curvature = np.empty(predictions.n), np.empty(predictions.n)
    for start, block in predictions.blocks():
        for z, y, _ in chunks((block, predictions.labels[start : start + len(block)], None)):
            rows = slice(start, start + len(z))
            _, score[rows], curvature[rows], *_ = cumulants(z, y, beta, np.float64)
            start = rows.stop
    (score, times), (curvature, _) = units_of(predictions, score), units_of(predictions, curvature)
    return score, curvature, times


def units_of(predictions: Predictions, values: Array) -> tuple[Array, Array]:
    """Sum (N,) values with their weights over each group, or row without groups; and return how often each occurs."""
    w = predictions.weights
    if w is not None and predictions.weight_kind == "count" and predictions.groups is None:
        return values, w
    values = values if w is None else w * values
    if predictions.groups is not None:
        _, member = group_places(predictions.groups)
        values = np.bincount(member, values).astype(np.float64)
    return values, np.ones(len(values))


def jackknife(score: Array, curvature: Array, times: Array, *, grouped: bool) -> tuple[float, float]:
    """Return the standard error of a parameter, from each unit's sums of derivatives, and the effective units.

    Args:
        score, curvature: (G,) first and second derivatives of the NLL, summed over each row or group.
        times: (G,) how often each occurs.
        grouped: whether the units are groups.
    """
    remaining = float(curvature @ times) - curvature
    count = float(times.sum())
    if count < 2 or not np.all(remaining > 0):
        return math.nan, 0.0
    moved = score / remaining
    centre = float(moved @ times) / count
    se = math.sqrt((count - 1) / count * float(times @ (moved - centre) ** 2))
    return se, effective_units(curvature, times, grouped)


def effective_units(curvature: Array, times: Array, grouped: bool) -> float:
    """Return (Σ m²)² / Σ m⁴, with m the second derivative of a group, or the root of that of a row."""
    if grouped:
        return effective_groups(curvature)
    square = np.maximum(curvature, 0.0)
    power = float(times @ square**2)
    return float(times @ square) ** 2 / power if power > 0 else 0.0


def degenerate(fit: BetaFit) -> FittedParameters:
    """Return a harmless map, and the reason, for scores of which no temperature is best."""
    reason = REASONS[fit.status]
    uniform = fit.status == "anti_informative"
    does = "maps every row to uniform probabilities" if uniform else "leaves scores as they are"
    note = f"temperature: {reason}; the calibrator {does}"
    estimate = Estimate(name="temperature", value=None, reason=f"{fit.status}: {reason}", n=fit.n)
    return FittedParameters({"beta": np.array(0.0 if uniform else 1.0)}, [estimate], [note], facts=facts(fit))


def facts(fit: BetaFit) -> dict[str, str | int]:
    return {"temperature status": fit.status, "full passes": fit.passes}


def _by_grid(predictions: Predictions, objective: Objective, grid: Grid, bins: int) -> FittedParameters:
    best = best_temperature(predictions, GRIDS[grid], objective, bins)
    label, (low, high) = LABELS[objective], best.plateau
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
    return FittedParameters({"beta": np.array(1 / best.temperature)}, [estimate], notes)


def _by_brier(source: Source, exact: BetaFit) -> FittedParameters:
    """Minimise the Brier score: the root of its slope next to the best of 61 points around the optimum of the NLL."""
    points = math.log(exact.beta) + np.linspace(-math.log(30), math.log(30), 61)
    values = [brier(source, math.exp(u))[0] for u in points]
    best = int(np.argmin(values))
    if best in (0, 60):
        estimate = Estimate(name="temperature", value=None, reason="bound: the Brier score has no minimum in T")
        note = f"temperature: {estimate.reason}; the calibrator leaves scores as they are"
        return FittedParameters({"beta": np.array(1.0)}, [estimate], [note])
    u = root(lambda v: brier(source, math.exp(v))[1], points[best - 1], points[best + 1])
    how, reason = "minimises the Brier score", "no interval is computed for this objective"
    estimate = Estimate(name="temperature", value=math.exp(-u), n=exact.n, how=how, reason=reason)
    return FittedParameters({"beta": np.array(math.exp(u))}, [estimate])


def _curve(predictions: Predictions, fit: BetaFit) -> Plot:
    """Plot the NLL over T around the optimum, from at most 5,000 rows (fewer for many classes)."""
    rows = sample(predictions, min(5000, max(500, SHOWN // predictions.k)))
    # each factor costs a pass over the scores
    factors = np.exp(np.linspace(-1, 1, 41 if rows.n * rows.k <= 5 * SHOWN else 15))
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


# Ensemble temperature scaling: a weighted mean of tempered, plain and uniform probabilities.

PARTS = ("tempered", "plain", "uniform")
BARRIERS = tuple(10.0**-e for e in range(2, 15, 2))  # weights of the log barrier, one after another
NEGLIGIBLE = 1e-9  # nats; small shares become exactly 0 where that costs no more


def components(o: Operations, parameters: Parameters, z: Any) -> list[Any]:
    """Return softmax(z / T), softmax(z), and uniform probabilities that leave classes of probability 0 out: (n, K)."""
    present = o.number(z > -FAR)
    return [o.softmax(tempered(o, parameters, z)), o.softmax(z), present / o.sum(present)]


def mixed(o: Operations, parameters: Parameters, z: Any) -> Any:
    """Compute the mean of the components, weighted by their shares."""
    parts = zip(PARTS, components(o, parameters, z), strict=True)
    p, q, even = (part * o.const(parameters[name]) for name, part in parts)
    return o.log(p + q + even)


@SCALERS.add(preserves_accuracy=True, map=mixed, form={"beta": Form(low=0, high=1e12), **dict.fromkeys(PARTS, SHARE)})
def ensemble_temperature(predictions: Predictions, context: FitContext) -> FittedParameters:
    """Ensemble temperature scaling: a softmax(z / T) + b softmax(z) + c / K, shares of sum 1 (Zhang et al. 2020).

    T minimises the NLL as in `temperature`, then the shares do; c bounds the loss of a certain row that is wrong.

    >>> calibcli.fit_scaler(logits, labels, "ensemble_temperature").predict_proba(logits)[0].round(2)
    array([0.  , 0.  , 0.  , 0.01, 0.  , 0.06, 0.  , 0.  , 0.  , 0.93])
    """
    beta = fit_beta(block_source(predictions)).usable
    rows = np.arange(predictions.n)
    z = np.asarray(predictions.logits, np.float64)
    parts = components(NumPy(predictions.k), {"beta": np.array(beta)}, z)
    p_label = np.stack([part[rows, predictions.labels] for part in parts], axis=1)
    shares = mixture(p_label, np.ones(predictions.n) if predictions.weights is None else predictions.weights)
    return FittedParameters({"beta": np.array(beta), **dict(zip(PARTS, map(np.array, shares), strict=True))})


def mixture(p: Array, w: Array) -> Array:
    """Find shares s of sum 1 that minimise -Σ w ln(p s), for p (n, parts), by Newton with a falling log barrier.

    The minimum of the mean NLL + Σ s over s >= 0 has sum 1 by itself: scaling s by t lowers the NLL by ln t.
    """
    w = w / w.sum()

    def nll(s: Array) -> float:
        with np.errstate(divide="ignore"):
            return float(-(w @ np.log(p @ s)) + s.sum())

    s = np.full(p.shape[1], 1 / p.shape[1])
    for barrier in BARRIERS:
        for _ in range(50):
            r = p / (p @ s)[:, None]
            g = 1 - w @ r - barrier / s
            step = np.linalg.solve((r * w[:, None]).T @ r + np.diag(barrier / s**2), g)
            length = min(1.0, 0.99 / max(float((step / s).max()), 1e-300))
            value = nll(s) - barrier * float(np.log(s).sum())
            while length > 1e-12 and nll(s - length * step) - barrier * np.log(s - length * step).sum() > value:
                length /= 2
            s = s - length * step
            if float(g @ step) < 1e-15:
                break
    without = np.where(s < 1e-5, 0.0, s)
    s = without if nll(without / without.sum()) <= nll(s / s.sum()) + NEGLIGIBLE else s
    return np.asarray(s / s.sum())
