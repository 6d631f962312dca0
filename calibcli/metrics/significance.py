"""Could a calibrated model have looked like this? Spiegelhalter's Z, the simulated test, and Cox's regression."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np

from calibcli.metrics.intervals import Ask, Interval, Rows
from calibcli.metrics.norms import debiased, l1
from calibcli.metrics.proper import UNSEEN, high
from calibcli.metrics.sample import ANY, METRICS, UNIT, Of, Sample, View
from calibcli.numerics import effective_groups, normal_quantile, normal_share, score_bound, student_quantile
from calibcli.predictions import Floats
from calibcli.spec import Count, Range

Cox = tuple[Floats, Floats, Floats, Floats]
"""Coefficients, their covariance, for each how many rows (or groups) of equal influence would decide it so, and how far
down and up (2, coefficients) a row of the other outcome would draw it, times the rows.
"""
DECIDING = 15  # from where its interval covers, by simulation


def spiegelhalter_interval(ask: Ask) -> Interval:
    z = normal_quantile(0.975)
    if not math.isfinite(ask.value):
        return Interval(reason="every confidence is 0, 1/2 or 1: the statistic has no variance")
    p = 2 * normal_share(-abs(ask.value))
    how = "normal under perfect calibration; |Z| beyond null_high happens to a calibrated model 5 % of the time"
    reason = "a test statistic: it has a p-value, not an interval"
    return Interval(reason=reason, how=how, null=0.0, null_high=z, detail={"p_value": p})


@METRICS.add(values=ANY, better="zero", unit="", interval=spiegelhalter_interval)
def spiegelhalter_z(sample: Sample, *, of: Of = "auto") -> float:
    """Spiegelhalter's Z (1986), Σ(y - p)(1 - 2p) / (Σ(1 - 2p)² p (1 - p))^½: the Brier score less its mean."""
    view = sample.view(of)
    tilt = view.rest - view.p
    w = np.ones(view.n) if view.weights is None else view.weights
    power = w if view.counts else w * w
    variance = float((power * tilt * tilt) @ (view.p * view.rest))
    return -float((w * view.residual) @ tilt) / math.sqrt(variance) if variance > 0 else math.nan


def p_value_interval(ask: Ask) -> Interval:
    if ask.sample.columns.groups is not None:
        return Interval(reason="rows belong to groups, and the test takes them to be independent")
    draws = ask.choice.options["draws"]
    error = math.sqrt(ask.value * (1 - ask.value) / (draws + 1))
    return Interval(
        reason="a p-value has no interval; simulation_error is that of the draws",
        how=f"{draws} draws of binomial hits per bin; not valid on the rows that a map was fitted on",
        detail={"simulation_error": error},
    )


@METRICS.add(values=UNIT, better="higher", unit="probability", interval=p_value_interval)
def calibration_p(
    sample: Sample,
    *,
    statistic: Literal["ece", "ece2_debiased", "mmce"] = "ece",
    bins: Count = 15,
    draws: Annotated[int, Range(1, 1_000_000)] = 9_999,
    of: Of = "auto",
) -> float:
    """p-value of perfect calibration: (1 + #{draws with a statistic as large}) / (draws + 1) (Widmann 2019).

    Hits are drawn as binomials with each bin's mean confidence; `mmce` uses 256 bins and its kernel of scale 0.4.
    """
    view = sample.view(of)
    cells = 256 if statistic == "mmce" else bins
    table = view.mass_bins(bins, "whole") if statistic == "ece2_debiased" else view.width_bins(cells, "right")
    n = np.round(table.effective).astype(np.int64)
    used = n > 0
    rng = np.random.default_rng([sample.seed, cells])
    simulated = np.empty(draws)
    observed = 0.0
    centre = table.confidence
    kernel = np.exp(-np.abs(centre[:, None] - centre) / 0.4)

    def value(d: Floats) -> Floats:
        if statistic == "mmce":
            return np.asarray(((d @ kernel) * d).sum(axis=-1))
        return debiased(table, d) if statistic == "ece2_debiased" else l1(table, d)

    observed = float(value(table.d))
    for start in range(0, draws, 2_000):
        size = min(2_000, draws - start)
        hits = rng.binomial(n, np.clip(centre, 0, 1), size=(size, len(n)))
        d = np.where(used, table.weight * (centre - hits / np.maximum(n, 1)), 0.0)
        simulated[start : start + size] = value(d)
    at_least = int((simulated >= observed * (1 - 1e-12)).sum()) if observed > 0 else int((simulated >= observed).sum())
    return (1 + at_least) / (draws + 1)


def cox(view: View, log_odds: Floats) -> Cox | None:
    """Maximum likelihood of P(y) = sigmoid(intercept + slope log-odds) by Newton, and its sandwich covariance.

    None where there is none: the hits are separable, or the log-odds constant.
    """
    if view.hit.all() or not view.hit.any() or np.ptp(log_odds) == 0:
        return None
    w = np.broadcast_to(view.share(), (view.n,))
    y = view.hit.astype(np.float64)
    x = np.stack([np.ones(view.n), log_odds])
    beta: Floats = np.array([0.0, 1.0])
    loss = math.inf
    step: Floats = np.zeros(2)
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
    leverage = w * p * (1 - p) * np.einsum("in,ij,jn->n", x, bread, x)
    score: Floats = x * (w * (p - y) / np.maximum(1 - leverage, 0.1))  # HC3: few rows may decide the slope
    if view.groups is not None:
        _, member = np.unique(view.groups, return_inverse=True)
        score = np.array([np.bincount(member, s) for s in score])
    elif view.counts and view.weights is not None:
        score = score / np.sqrt(np.maximum(view.weights, 1e-300))
    influence = bread @ score
    pull = bread @ x
    ends = [np.where(pull > 0, pull * one, pull * other) for one, other in ((-p, 1 - p), (1 - p, -p))]
    reach = np.array([[high(-ends[0][at], UNSEEN), high(ends[1][at], UNSEEN)] for at in (0, 1)]).T
    return beta, influence @ influence.T, np.array([effective_groups(one) for one in influence]), reach


def _cox(sample: Sample, of: Of) -> Cox | None:
    key = ("cox", of)
    if key not in sample.memo:
        view = sample.view(of)
        odds = np.log(np.maximum(view.p, 1e-300)) - np.log(np.maximum(view.rest, 1e-300))
        sample.memo[key] = cox(view, odds)
    fit: Cox | None = sample.memo[key]
    return fit


def cox_interval(ask: Ask) -> Interval:
    fit = _cox(ask.sample, ask.choice.options["of"])
    if fit is None:
        return Interval(reason="no maximum likelihood: every row is right, or wrong, or the confidences separate them")
    at = 1 if ask.choice.name == "cox_slope" else 0
    view = ask.sample.view(ask.choice.options["of"])
    rows = Rows(view.p, view.weights, view.counts, view.groups)
    if rows.lacking:
        return Interval(reason=rows.lacking)
    if not (view.p.all() and view.rest.all()):
        return Interval(reason="a probability is 0 or 1: its log-odds are infinite, and where they are cut decides")
    deciding = float(fit[2][at])
    if deciding < DECIDING:
        what = "rows" if view.groups is None else "groups"
        return Interval(
            reason=f"{deciding:.1f} {what} decide it (few are wrong, or few at such confidences), of {DECIDING}"
        )
    units = min(rows.units, deciding)
    se = math.sqrt(fit[1][at, at] * units / (units - 2))
    t = student_quantile(1 - ask.tail, units - 2)
    down, up = (score_bound(0.0, t, rows.unseen * reach, se * se) for reach in fit[3][:, at])
    return Interval(
        low=ask.value - down,
        high=ask.value + up,
        level=ask.level,
        se=se,
        how=f"maximum likelihood; sandwich variance (HC3) and outcomes not seen, {units:.0f} deciding",
        detail={"calibrated": float(at)},
    )


@METRICS.add(values=ANY, better="", unit="", interval=cox_interval)
def cox_slope(sample: Sample, *, of: Of = "auto") -> float:
    """Slope of logit P(y) = a + b logit p (Cox 1958); 1 if calibrated, below 1 if overconfident."""
    fit = _cox(sample, of)
    return float(fit[0][1]) if fit is not None else math.nan


@METRICS.add(values=ANY, better="zero", unit="", interval=cox_interval)
def cox_intercept(sample: Sample, *, of: Of = "auto") -> float:
    """Intercept of logit P(y) = a + b logit p (Cox 1958); 0 if calibrated."""
    fit = _cox(sample, of)
    return float(fit[0][0]) if fit is not None else math.nan
