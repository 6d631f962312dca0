"""Cox's recalibration: slope and intercept of the regression of outcomes on the predicted log-odds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibcli.core.result import Cell
from calibcli.core.statistics import root, rows_at_once, student_quantile, unseen_reach
from calibcli.metrics.histogram_error import Bound, PlacedRows
from calibcli.metrics.intervals import WeightedMean
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.metrics.shelf import ANY, METRICS, NO_GATE, Interval, Of, Sample, Statistic
from calibcli.scores.predictions import Floats

DECIDING = 15
"""Deciding rows from which the Wald interval of the intercept covers and a gate on the slope holds (simulated)."""


@dataclass(frozen=True, eq=False)
class Cox:
    """A fit of Cox's regression.

    Attributes:
        beta: (2,) intercept and slope.  covariance: (2, 2), HC3.
        model: (2, 2) inverse of the mean information of a row, so that model / rows is the model's covariance.
        deciding: (2,) effective number of rows (or groups) that decide each.
        skew: (2,) Σ c³ / Σ c² of the influences c on each.
        pull: (2, 2, N) shift of each coefficient (second axis) down and up (first) per share of rows like this one.
    """

    beta: Floats
    covariance: Floats
    model: Floats
    deciding: Floats
    skew: Floats
    pull: Floats


def _condensed(coefficient: int) -> Bound:
    """Make the merge bound of a coefficient.

    It is the change of the score at the fit when the rows of each outcome of a cell stand at their mean, divided by the
    Hessian, times three, as the rows stand neither there nor where they are placed.
    """

    def bound(at: PlacedRows, options: Mapping[str, Any], value: float) -> float:
        view, fit = at.view, at.view.once(cox)
        assert fit is not None
        mass = np.maximum(np.bincount(at.outcome, view.shares), 1e-300)

        def scores(p: Floats, complement: Floats) -> tuple[Floats, Floats]:
            """Return (2, rows) regressors, and their products with the residual of the fit."""
            x = np.stack([np.ones(view.n), log_odds(p, complement)])
            return x, x * ((1 + np.tanh(fit.beta @ x / 2)) / 2 - view.hit)

        mean = [(np.bincount(at.outcome, view.shares * v) / mass)[at.outcome] for v in (view.p, view.complement)]
        x, score = scores(view.p, view.complement)
        change = view.shares * (score - scores(*mean)[1])
        moved = np.array([np.abs(np.bincount(at.outcome, row)).sum() for row in change])
        p = (1 + np.tanh(fit.beta @ x / 2)) / 2
        return float(3 * np.abs(np.linalg.inv((x * (view.shares * p * (1 - p))) @ x.T))[coefficient] @ moved)

    return bound


@METRICS.add(values=ANY, better="", unit="", condensed=_condensed(1), first_screen="two classes")
def cox_slope(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Slope of logit P(y) = a + b logit p (Cox 1958); 1 if calibrated, below 1 if overconfident.

    >>> round(calibcli.measure(logits, labels, "cox_slope")["cox_slope"].value, 4)
    0.3878
    """
    return Coefficient(sample.view(of), 1)


@METRICS.add(values=ANY, better="zero", unit="", condensed=_condensed(0), first_screen="two classes")
def cox_intercept(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Intercept of logit P(y) = a + b logit p (Cox 1958); 0 if calibrated.

    >>> round(calibcli.measure(logits, labels, "cox_intercept")["cox_intercept"].value, 4)
    -0.4352
    """
    return Coefficient(sample.view(of), 0)


@dataclass(frozen=True, eq=False)
class Coefficient(Statistic):
    """The intercept (0) or the slope (1) of Cox's regression."""

    view: BinaryOutcomes
    at: int

    @property
    def value(self) -> float:
        fit = self.view.once(cox)
        return math.nan if fit is None else float(fit.beta[self.at])

    def interval(self, level: float) -> Interval:
        view, fit = self.view, self.view.once(cox)
        if fit is None:
            return Interval(
                reason="no maximum likelihood: every row is right, or wrong, or the confidences separate them"
            )
        rows = WeightedMean(view.p, view.weights, view.counts, view.groups)
        if rows.lacking:
            return Interval(reason=rows.lacking)
        if rows.units <= 2:
            return Interval(reason=f"{rows.units:.1f} effective rows, and two coefficients are fitted")
        if not (view.p.all() and view.complement.all()):
            return Interval(reason="a probability is 0 or 1: its log-odds are infinite, and where they are cut decides")
        if self.at == 1:
            return _slope_interval(view, fit, rows, level)
        if few := _few(view, fit, 0):
            return Interval(reason=few)
        units = min(rows.units, float(fit.deciding[0]))
        se = math.sqrt(_variance(fit, rows, 0) * units / (units - 2))
        t = student_quantile(1 - (1 - level) / 2, units - 2)
        down, up = (
            unseen_reach(t, se * se, max(sign * fit.skew[0], 0.0), rows.dearest(fit.pull[end, 0]))
            for end, sign in enumerate((-1, 1))
        )
        how = f"maximum likelihood; sandwich variance (HC3) and outcomes not seen, {units:.0f} deciding"
        low, high, detail = self.value - down, self.value + up, {"calibrated": 0.0}
        return Interval(low=low, high=high, level=level, se=se, how=how, detail=detail)


def _variance(fit: Cox, rows: WeightedMean, at: int) -> float:
    """Return HC3's variance or the model's, the larger: HC3 misses that of few wrong rows at nearly one confidence."""
    return max(float(fit.covariance[at, at]), float(fit.model[at, at]) / rows.effective)


def _few(view: BinaryOutcomes, fit: Cox, at: int) -> str:
    """Return the reason why too few rows decide a coefficient; "" where enough do."""
    if fit.deciding[at] >= DECIDING:
        return ""
    what = "rows" if view.groups is None else "groups"
    return f"{fit.deciding[at]:.1f} {what} decide it (few are wrong, or few at such confidences); it takes {DECIDING}"


def _slope_interval(view: BinaryOutcomes, fit: Cox, rows: WeightedMean, level: float) -> Interval:
    """Return the interval of the slope by profile likelihood, widened for outcomes that were not drawn.

    The profile follows the skewness that few wrong rows give the slope, where a Wald interval does not cover. Its
    cut-off is multiplied by HC3's variance over the model's where that is larger, so that it holds where the regression
    is not the true model, or rows come in groups.
    """
    tail = 1 - (1 - level) / 2
    t = student_quantile(tail, rows.units - 2)
    variance = _variance(fit, rows, 1)
    ends = []
    for end, side in enumerate((-1, 1)):
        distance = _profile_end(view, fit, t * t * variance / float(fit.model[1, 1]), side)
        ends.append(side * math.hypot(distance, _undrawn(view, fit, rows, end, rows_at_once(t))))
    low, high = (float(fit.beta[1]) + end for end in ends)
    how = f"profile likelihood, widened by HC3{rows.clustered}; outcomes not seen"
    detail: dict[str, Cell] = {"calibrated": 1.0}
    if few := _few(view, fit, 1):  # one row too many in the sample could make a gate wrong
        detail[NO_GATE] = few
    return Interval(low=low, high=high, level=level, se=math.sqrt(variance), how=how, detail=detail)


def _undrawn(view: BinaryOutcomes, fit: Cox, rows: WeightedMean, end: int, count: float) -> float:
    """Return how far down (end 0) or up (1) `count` rows that were not drawn would move the slope.

    Each is the row of the file that moves it most, with the outcome that does; the regression is fitted with them.
    """
    linear = count * rows.dearest(fit.pull[end, 1])
    at = int(np.argmax(fit.pull[end, 1] if view.weights is None or view.counts else fit.pull[end, 1] * view.weights))
    share = linear / float(fit.pull[end, 1, at])
    x = log_odds(view.p, view.complement)
    rises = float(fit.model[1, 0] + fit.model[1, 1] * x[at]) > 0  # whether an outcome of 1 there moves the slope up
    design = np.stack([np.ones(view.n + 1), np.append(x, x[at])])
    y = np.append(view.hit, rises == (end == 1)).astype(np.float64)
    refit = _newton(design, y, np.append(view.shares, share), fit.beta)
    return linear if refit is None else min(linear, abs(float(refit[0][1] - fit.beta[1])))


def _profile_end(view: BinaryOutcomes, fit: Cox, drop: float, side: int) -> float:
    """Find the distance from the slope, down (-1) or up (1), at which twice the mean log-likelihood is lower by `drop`.

    The signed root of the fall is nearly a line in the slope, so a secant needs few steps; at each slope the intercept
    is fitted by Newton's steps δ cut to ln(1 + |δ|), which never pass the optimum, as |g''| <= g' for the logistic g.
    """
    x, y, w = log_odds(view.p, view.complement), view.hit.astype(np.float64), view.shares
    best = _mean_loss(fit.beta[0] + fit.beta[1] * x, y, w)
    along = float(fit.model[1, 0] / fit.model[1, 1])  # change of the intercept per change of the slope, approximately
    at = [0.0]

    def past(distance: float) -> float:
        offset = (fit.beta[1] + side * distance) * x
        at[0] = float(fit.beta[0]) + side * distance * along  # start near: the damped steps are short
        for _ in range(100):
            p = 0.5 * (1 + np.tanh((at[0] + offset) / 2))
            delta = float(w @ (p - y)) / max(float(w @ (p * (1 - p))), 1e-300)
            at[0] -= math.copysign(math.log1p(abs(delta)), delta)
            if abs(delta) < 1e-7:
                break
        return math.sqrt(max(2 * (_mean_loss(at[0] + offset, y, w) - best), 0.0)) - math.sqrt(drop)

    far = math.sqrt(drop * float(fit.model[1, 1]))
    while past(far) < 0:
        far *= 2
    return root(past, 0.0, far, 1e-7)


def _mean_loss(m: Floats, y: Floats, w: Floats) -> float:
    return float(w @ (np.logaddexp(0, m) - y * m))


def _newton(x: Floats, y: Floats, w: Floats, beta: Floats) -> tuple[Floats, Floats, Floats] | None:
    """Fit (2,) coefficients of x (2, N) by maximum likelihood; return them, (N,) P(y) and the (2, 2) mean information.

    Returns None where there is no maximum.
    """
    loss, step = math.inf, np.zeros(2)
    for _ in range(100):
        m = beta @ x
        now = _mean_loss(m, y, w)
        if now > loss + 1e-12 * abs(loss):
            step = step / 2
            beta = beta - step
            if np.abs(step).max() < 1e-14:
                return None
            continue
        loss = now
        p = 0.5 * (1 + np.tanh(m / 2))
        gradient = x @ (w * (p - y))
        hessian = (x * (w * p * (1 - p))) @ x.T
        (a, b), (_, c) = hessian.tolist()  # of two by two, where NumPy's functions take longer than the rows
        largest, determinant = (a + c + math.hypot(a - c, 2 * b)) / 2, a * c - b * b
        if not largest * largest < 1e14 * determinant or np.abs(beta).max() > 1e6:  # its condition number
            return None
        step = np.array([b * gradient[1] - c * gradient[0], b * gradient[0] - a * gradient[1]]) / determinant
        beta = beta + step
        if np.abs(step).max() <= 1e-10 * max(1.0, np.abs(beta).max()):
            break
    return beta, p, hessian


def log_odds(p: Floats, complement: Floats) -> Floats:
    """Return log p / (1 - p), about -690 for a probability of 0."""
    return np.asarray(np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(complement, 1e-300)))


def cox(view: BinaryOutcomes) -> Cox | None:
    """Fit P(y) = sigmoid(intercept + slope log-odds) by maximum likelihood, with its sandwich covariance (HC3).

    Returns None where there is no maximum: the hits are separable, or the log-odds constant.
    """
    predicted = log_odds(view.p, view.complement)
    if view.hit.all() or not view.hit.any() or np.ptp(predicted) == 0:
        return None
    w = view.shares
    y = view.hit.astype(np.float64)
    x = np.stack([np.ones(view.n), predicted])
    solved = _newton(x, y, w, np.array([0.0, 1.0]))
    if solved is None:
        return None
    beta, p, hessian = solved
    bread = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
    counts = view.weights if view.counts else None
    each = w if counts is None else 1 / view.total  # weight of one of the rows that a count stands for
    leverage = each * p * (1 - p) * np.einsum("in,ij,jn->n", x, bread, x)
    score: Floats = x * (w * (p - y) / np.maximum(1 - leverage, 0.1))  # HC3: few rows may decide the slope
    if view.groups is not None:
        _, member = np.unique(view.groups, return_inverse=True)
        score = np.array([np.bincount(member, s) for s in score])
    influence = bread @ score
    times = np.ones(influence.shape[1])
    if counts is not None and view.groups is None:
        times = np.maximum(counts, 1e-300)
    square = (influence / np.abs(influence).max(axis=1, keepdims=True)) ** 2 / times
    deciding = square.sum(axis=1) ** 2 / (square**2 / times).sum(axis=1)
    each = influence / times
    skew = (each**3 @ times) / (each**2 @ times)
    pull = bread @ x
    ends = [np.where(pull > 0, pull * one, pull * other) for one, other in ((-p, 1 - p), (1 - p, -p))]
    return Cox(beta, each @ influence.T, bread, deciding, skew, np.array([-ends[0], ends[1]]))
