"""Cox's recalibration: the regression of what came true on the log-odds that were said."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibcli.metrics.intervals import Interval, Rows, Statistic
from calibcli.metrics.proper import UNSEEN, high
from calibcli.metrics.sample import ANY, METRICS, BinaryOutcomes, Of, Sample
from calibcli.numerics import score_bound, student_quantile
from calibcli.predictions import Floats

Cox = tuple[Floats, Floats, Floats, Floats]
"""Coefficients, their covariance, for each how many rows (or groups) of equal influence would decide it so, and how far
down and up (2, coefficients) a row of the other outcome would draw it, times the rows.
"""
DECIDING = 15  # from where its interval covers, by simulation


@METRICS.add(values=ANY, better="", unit="")
def cox_slope(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Slope of logit P(y) = a + b logit p (Cox 1958); 1 if calibrated, below 1 if overconfident.

    >>> round(calibcli.measure(logits, labels, "cox_slope")["cox_slope"].value, 4)
    0.3878
    """
    return Coefficient(sample.view(of), 1)


@METRICS.add(values=ANY, better="zero", unit="")
def cox_intercept(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Intercept of logit P(y) = a + b logit p (Cox 1958); 0 if calibrated.

    >>> round(calibcli.measure(logits, labels, "cox_intercept")["cox_intercept"].value, 4)
    -0.4352
    """
    return Coefficient(sample.view(of), 0)


@dataclass(frozen=True, eq=False)
class Coefficient(Statistic):
    """The intercept (0) or the slope (1) of Cox's regression; what each is if calibrated."""

    view: BinaryOutcomes
    at: int

    @property
    def value(self) -> float:
        fit = self.view.once(cox)
        return math.nan if fit is None else float(fit[0][self.at])

    def interval(self, level: float) -> Interval:
        view, fit = self.view, self.view.once(cox)
        if fit is None:
            reason = "no maximum likelihood: every row is right, or wrong, or the confidences separate them"
            return Interval(reason=reason)
        rows = Rows(view.p, view.weights, view.counts, view.groups)
        if rows.lacking:
            return Interval(reason=rows.lacking)
        if not (view.p.all() and view.complement.all()):
            return Interval(reason="a probability is 0 or 1: its log-odds are infinite, and where they are cut decides")
        deciding = float(fit[2][self.at])
        if deciding < DECIDING:
            what = "rows" if view.groups is None else "groups"
            few = f"{deciding:.1f} {what} decide it (few are wrong, or few at such confidences); it takes {DECIDING}"
            return Interval(reason=few)
        units = min(rows.units, deciding)
        se = math.sqrt(fit[1][self.at, self.at] * units / (units - 2))
        t = student_quantile(1 - (1 - level) / 2, units - 2)
        down, up = (score_bound(0.0, t, rows.unseen * reach, se * se) for reach in fit[3][:, self.at])
        how = f"maximum likelihood; sandwich variance (HC3) and outcomes not seen, {units:.0f} deciding"
        return Interval(
            low=self.value - down,
            high=self.value + up,
            level=level,
            se=se,
            how=how,
            detail={"calibrated": float(self.at)},
        )


def log_odds(p: Floats, complement: Floats) -> Floats:
    """log p / (1 - p), of a probability of 0 about -690."""
    return np.asarray(np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(complement, 1e-300)))


def cox(view: BinaryOutcomes) -> Cox | None:
    """Maximum likelihood of P(y) = sigmoid(intercept + slope log-odds) by Newton, and its sandwich covariance.

    None where there is none: the hits are separable, or the log-odds constant.
    """
    said = log_odds(view.p, view.complement)
    if view.hit.all() or not view.hit.any() or np.ptp(said) == 0:
        return None
    w = view.shares
    y = view.hit.astype(np.float64)
    x = np.stack([np.ones(view.n), said])
    beta: Floats = np.array([0.0, 1.0])
    loss, step = math.inf, np.zeros(2)
    for _ in range(100):
        m = beta @ x
        now = float(w @ (np.logaddexp(0, m) - y * m))
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
        if not np.linalg.cond(hessian) < 1e14 or np.abs(beta).max() > 1e6:
            return None
        step = np.asarray(-np.linalg.solve(hessian, gradient), dtype=np.float64)
        beta = beta + step
        if np.abs(step).max() <= 1e-10 * max(1.0, np.abs(beta).max()):
            break
    bread = np.linalg.inv(hessian)
    counts = view.weights if view.counts else None
    each = w if counts is None else 1 / view.total  # of one of the rows that a row stands for
    leverage = each * p * (1 - p) * np.einsum("in,ij,jn->n", x, bread, x)
    score: Floats = x * (w * (p - y) / np.maximum(1 - leverage, 0.1))  # HC3: few rows may decide the slope
    if view.groups is not None:
        _, member = np.unique(view.groups, return_inverse=True)
        score = np.array([np.bincount(member, s) for s in score])
    influence = bread @ score
    there = np.ones(influence.shape[1])
    if counts is not None and view.groups is None:
        there = np.maximum(counts, 1e-300)
    square = (influence / np.abs(influence).max(axis=1, keepdims=True)) ** 2 / there
    deciding = square.sum(axis=1) ** 2 / (square**2 / there).sum(axis=1)
    pull = bread @ x
    ends = [np.where(pull > 0, pull * one, pull * other) for one, other in ((-p, 1 - p), (1 - p, -p))]
    reach = np.array([[high(end, UNSEEN, counts) for end in (-ends[0][at], ends[1][at])] for at in (0, 1)]).T
    return beta, (influence / there) @ influence.T, deciding, reach
