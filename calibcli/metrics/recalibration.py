"""Cox's recalibration: slope and intercept of the regression of outcomes on the predicted log-odds, and the intercept
where the slope is held at 1.

In all of this file row i has the regressors x_i = (1, ℓ_i) with ℓ_i = log(p_i / (1 - p_i)), the outcome y_i, and the
share s_i of the total weight. β = (a, b) are intercept and slope, m_i = βᵀx_i, and π_i = 1 / (1 + exp(-m_i)) is the
regression's probability. β̂ minimises the mean loss

    F(β) = Σ s_i [log(1 + exp(m_i)) - y_i m_i],  ∇F = Σ s_i (π_i - y_i) x_i,  ∇²F = H = Σ s_i π_i (1 - π_i) x_i x_iᵀ.

A row (x, y) that is added with a small share s moves β̂ by s H⁻¹x (y - π), as ∇F = 0 has to hold again.

Derivations: docs/statistics/cox.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from calibcli.core.result import Cell
from calibcli.core.statistics import group_places, root, rows_at_once, student_quantile, unseen_reach
from calibcli.metrics._histogram_error import Bound, PlacedRows
from calibcli.metrics.intervals import WeightedMean
from calibcli.metrics.registry import ANY, METRICS, NO_GATE, UNIT, Interval, Of, Sample, Statistic
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.predictions import Floats

DECIDING = 15
"""Deciding rows from which the Wald interval of the intercept covers and a gate on the slope holds (simulated)."""
LEAST_REMAINING = 0.1
"""Least 1 - leverage by which HC3 divides: a row that decides the fit alone counts tenfold and not without limit."""
SMALLEST = 1e-300
"""Takes the place of 0, so that logarithms are finite and quotients defined."""
STEPS = 100
"""Newton steps at most, of a fit and at each slope of the profile; a few are usual."""
LARGEST = 1e6
"""A coefficient beyond it grows without end: the rows are separable."""
NO_MAXIMUM = "no maximum likelihood: every row is right, or wrong, or the confidences separate them"
SINGULAR = 1e14
"""Condition number from which two of the sixteen digits of a float64 are left in H⁻¹."""


@dataclass(frozen=True, eq=False)
class Cox:
    """A fit of Cox's regression. Arrays of two have the intercept first, then the slope.

    Attributes:
        beta: (2,) β̂.  covariance: (2, 2) of β̂, by HC3 (see `cox`).
        model: (2, 2) H⁻¹. If the regression is true, the covariance of β̂ from n rows is H⁻¹ / n.
        deciding: (2,) effective number of rows (or groups) that decide each coefficient.
        skew: (2,) Σ c³ / Σ c² of the rows' c = s H⁻¹x (π - y), minus what they add to each coefficient.
        down, up: (2, N) how far a row like this one, per share, moves each coefficient down or up, with the outcome
            that moves it most.
    """

    beta: Floats
    covariance: Floats
    model: Floats
    deciding: Floats
    skew: Floats
    down: Floats
    up: Floats


def _condensed(coefficient: int) -> Bound:
    """Make the merge bound of a coefficient: 3 Σ_j |H⁻¹_cj| Σ_o |Δ_oj|, c the coefficient, o an outcome of a cell.

    Δ_o (2,) is the change of Σ s (π - y) x over the rows of o when they are all put at their mean p. By one Newton step
    a change Δ of ∇F moves β̂ by -H⁻¹Δ. In a cell the rows as they were, and the two rows that stand for them, have the
    same mean and variance of p. So either are away from their mean by about the same Δ_o, which the variance decides.
    The true Δ_o is taken to be at most twice that of the two rows; the distance of the one from the other is then at
    most 1 + 2 = 3 times the latter.
    """

    def bound(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
        view, fit = placed.view, placed.view.memoized(cox)
        assert fit is not None
        outcome = placed.outcome  # (N,) the number o of each row's outcome of a cell

        def scores(p: Floats, complement: Floats) -> tuple[Floats, Floats]:
            """Return x (2, N) at these probabilities, and (π - y) x (2, N)."""
            x = _design(p, complement)
            return x, x * (_sigmoid(fit.beta @ x) - view.hit)

        x, score = scores(view.p, view.complement)
        change = view.shares * (score - scores(*_means(placed))[1])  # (2, N)
        moved = np.array([np.abs(np.bincount(outcome, row)).sum() for row in change])  # (2,) Σ_o |Δ_o|
        pi = _sigmoid(fit.beta @ x)
        hessian = (x * (view.shares * pi * (1 - pi))) @ x.T
        return float(3 * np.abs(np.linalg.inv(hessian))[coefficient] @ moved)

    return bound


def _means(placed: PlacedRows) -> tuple[Floats, Floats]:
    """Return p and 1 - p (N,) where each row has the mean of the rows of its outcome in its cell."""
    view, outcome = placed.view, placed.outcome
    share_of = np.maximum(np.bincount(outcome, view.shares), SMALLEST)  # (outcomes,)
    p, complement = (
        (np.bincount(outcome, view.shares * part) / share_of)[outcome] for part in (view.p, view.complement)
    )
    return p, complement


def _sigmoid(m: Floats) -> Floats:
    """Compute 1 / (1 + exp(-m)) = (1 + tanh(m / 2)) / 2."""
    return np.asarray((1 + np.tanh(m / 2)) / 2)


def _design(p: Floats, complement: Floats) -> Floats:
    """Return x, (2, N)."""
    return np.stack([np.ones(len(p)), log_odds(p, complement)])


@METRICS.add(
    values=ANY,
    better="",
    unit="",
    condensed=_condensed(1),
    first_screen="two classes",
    called=("slope", "calibration_slope", "cal_slope", "logistic_slope"),
)
def cox_slope(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Slope of logit P(y) = a + b logit p (Cox 1958); 1 if calibrated, below 1 if overconfident.

    >>> round(calibcli.measure(logits, labels, "cox_slope")["cox_slope"].value, 4)
    0.3878
    """
    return Coefficient(sample.view(of), 1)


@METRICS.add(values=ANY, better="zero", unit="", condensed=_condensed(0), called=("logistic_intercept",))
def cox_intercept(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Intercept of logit P(y) = a + b logit p, fitted with the slope (Cox 1958); 0 if calibrated, `citl` for the level.

    >>> round(calibcli.measure(logits, labels, "cox_intercept")["cox_intercept"].value, 4)
    -0.4352
    """
    return Coefficient(sample.view(of), 0)


# Calibration in the large: the intercept where the slope is held at 1, so that the level of the risks alone is judged.

INFINITE = "no intercept is best: no row, or every one, is the event, or all are certain (probabilities of 0 or 1)"
FARTHEST = 32.0  # an intercept beyond it is infinite
PLATEAU = 1e-9  # Σ s π (1 - π) below which every row is certain and right, whatever a is


def _citl_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging, 3 Σ_o |Δ_o| / H as in `_condensed`: Δ_o of Σ s (π - y), H = Σ s π (1 - π)."""
    view, outcome = placed.view, placed.outcome
    pi, pi_of_mean = (_sigmoid(value + log_odds(*pair)) for pair in ((view.p, view.complement), _means(placed)))
    moved = np.abs(np.bincount(outcome, view.shares * (pi - pi_of_mean))).sum()
    return float(3 * moved / max(float(view.shares @ (pi * (1 - pi))), SMALLEST))


@METRICS.add(
    values=ANY,
    better="zero",
    unit="",
    condensed=_citl_condensed,
    first_screen="two classes",
    label="calibration in the large",
    called=(
        *("intercept", "calibration_intercept", "cal_intercept", "calibration_in_the_large", "cal_in_the_large"),
        *("mean_calibration", "cil"),
    ),
)
def citl(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Calibration in the large, a of logit P(y) = a + logit p; 0 if calibrated, above 0 if p is too low (Cox 1958).

    The slope is held at 1, as for the intercept of TRIPOD and of `val.prob` (Steyerberg 2010).

    >>> round(calibcli.measure(logits, labels, "citl")["citl"].value, 4)
    -2.453
    """
    return InTheLarge(sample.view(of))


@dataclass(frozen=True, eq=False)
class InTheLarge(Statistic):
    """The a at which the mean of y - σ(a + ℓ) is 0; the interval holds every a at which these rows do not refute that.

    It is the interval of O:E for recalibrated probabilities (`means.Ratio`): Student's t, a sandwich's variance, skew,
    and rows that were not drawn.
    """

    view: BinaryOutcomes

    @cached_property
    def value(self) -> float:
        a = _crossing(lambda a: -self._rows(_sigmoid(a + self._log_odds)).value, 0.0, 0.25)
        return a if self._curvature(_sigmoid(a + self._log_odds)) > PLATEAU else math.nan

    def interval(self, level: float) -> Interval:
        """Return the interval by score bounds; where an outcome is rare, it may lack an end."""
        if not math.isfinite(self.value):
            return Interval(reason=INFINITE)
        pi, tail = _sigmoid(self.value + self._log_odds), (1 - level) / 2
        rows = self._rows(pi)
        if rows.lacking:
            return Interval(reason=rows.lacking)
        se = rows.se / self._curvature(pi)

        def beyond(a: float, end: int) -> float:
            pi = _sigmoid(a + self._log_odds)  # a row y - π lies in [-π, 1 - π]
            return -self._rows(pi).bounds(tail, -pi, 1 - pi)[end]

        low, high = (_crossing(functools.partial(beyond, end=end), self.value, max(3 * se, 1e-6)) for end in (0, 1))
        ends = [end if math.isfinite(end) else None for end in (low, high)]
        reason = "no intercept is too far from 0 for so few rows of an outcome" if None in ends else ""
        how = f"score form of y - σ(a + logit p), solved for a{rows.clustered}"
        return Interval(
            low=ends[0], high=ends[1], level=level, how=how, se=se, reason=reason, detail={"calibrated": 0.0}
        )

    @cached_property
    def _log_odds(self) -> Floats:
        return log_odds(self.view.p, self.view.complement)

    def _curvature(self, pi: Floats) -> float:
        return float(self.view.shares @ (pi * (1 - pi)))

    def _rows(self, pi: Floats) -> WeightedMean:
        return WeightedMean(self.view.hit - pi, self.view.weights, self.view.counts, self.view.groups)


def _crossing(increasing: Callable[[float], float], start: float, step: float) -> float:
    """Return where an increasing function is 0, searched in steps that double; ±inf if no step is within FARTHEST."""
    side = 1.0 if increasing(start) < 0 else -1.0
    while step <= FARTHEST and side * increasing(start + side * step) < 0:
        step *= 2
    if step > FARTHEST:
        return side * math.inf
    return root(increasing, min(start, start + side * step), max(start, start + side * step), 1e-8)


# Distances between the probabilities and the curve of the regression.

# the level if calibrated is simulated by draws of β̂, on at most so many rows at equal shares of rising ℓ
DRAWS, PLACES = 500, 2_000
CUT_DECIDES = "a probability is 0 or 1: its log-odds are infinite, and where they are cut decides (--clip)"
distance = functools.partial(METRICS.add, values=UNIT, better="lower", unit="probability", compared=False)


@distance(called=("integrated_calibration_index", "eavg", "e_avg", "mean_absolute_calibration_error"))
def ici(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Integrated calibration index, mean |p - π|, π on the curve logit π = a + b logit p (Austin & Steyerberg 2019).

    Chance makes it positive: compare it with the level if calibrated. R's default curve is loess, which adapts more.

    >>> round(calibcli.measure(logits, labels, "ici")["ici"].value, 4)
    0.0646
    """
    return CurveDistance(sample.view(of), None)


@distance(called=("median_calibration_error",))
def e50(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Median of |p - π|, π as in `ici` (Austin & Steyerberg 2019).

    >>> round(calibcli.measure(logits, labels, "e50")["e50"].value, 4)
    0.0124
    """
    return CurveDistance(sample.view(of), 0.5)


@distance()
def e90(sample: Sample, *, of: Of = "auto") -> Statistic:
    """90 % quantile of |p - π|, π as in `ici` (Austin & Steyerberg 2019).

    >>> round(calibcli.measure(logits, labels, "e90")["e90"].value, 4)
    0.235
    """
    return CurveDistance(sample.view(of), 0.9)


@distance(called=("e_max",))
def emax(sample: Sample, *, of: Of = "auto") -> Statistic:
    """Largest |p - π| of a row, π as in `ici` (Harrell 2015).

    >>> round(calibcli.measure(logits, labels, "emax")["emax"].value, 4)
    0.2973
    """
    return CurveDistance(sample.view(of), 1.0)


@dataclass(frozen=True, eq=False)
class CurveDistance(Statistic):
    """The mean (quantile None) or a quantile of |p - π| over the rows, with the level that chance gives it."""

    view: BinaryOutcomes
    quantile: float | None

    @cached_property
    def value(self) -> float:
        fit, view = self.view.memoized(cox), self.view
        if fit is None or not (view.p.all() and view.complement.all()):
            return math.nan
        return float(self._of(np.abs(view.p - _sigmoid(fit.beta @ _design(view.p, view.complement))), view.shares))

    def interval(self, level: float) -> Interval:
        """Return the mean and the 95 % quantile if calibrated: β̂ is then normal around (0, 1).

        Its covariance is the model's of rows that count the same, else HC3's.
        """
        fit, view = self.view.memoized(cox), self.view
        if fit is None:
            return Interval(reason=NO_MAXIMUM)
        if not math.isfinite(self.value):
            return Interval(reason=CUT_DECIDES)
        x, shares, covariance = _design(view.p, view.complement), view.shares, fit.covariance
        if (view.weights is None or view.counts) and view.groups is None:
            information = (x * (shares * view.p * view.complement)) @ x.T * view.total
            covariance = np.asarray(np.linalg.inv(information), np.float64)
        if view.n > PLACES:
            order = np.argsort(x[1])
            middle = (np.arange(PLACES) + 0.5) / PLACES
            x = x[:, order[np.minimum(np.searchsorted(np.cumsum(shares[order]), middle), view.n - 1)]]
            shares = np.full(PLACES, 1 / PLACES)
        rng = np.random.default_rng([view.seed, DRAWS])
        p, betas = _sigmoid(x[1]), rng.multivariate_normal([0.0, 1.0], covariance, DRAWS)
        drawn = [self._of(np.abs(p - _sigmoid(beta @ x)), shares) for beta in betas]
        how = f"against a logistic curve; level if calibrated from {DRAWS} draws of its coefficients"
        reason = "a distance that chance makes positive has no interval here (ece and citl have bounds)"
        return Interval(reason=reason, how=how, null=float(np.mean(drawn)), null_high=float(np.quantile(drawn, 0.95)))

    def _of(self, gap: Floats, shares: Floats) -> float:
        if self.quantile is None:
            return float(shares @ gap)
        order = np.argsort(gap)
        below = np.searchsorted(np.cumsum(shares[order]), self.quantile - 1e-12)
        return float(gap[order[min(int(below), len(gap) - 1)]])


@dataclass(frozen=True, eq=False)
class Coefficient(Statistic):
    """The intercept (coefficient 0) or the slope (1) of Cox's regression."""

    view: BinaryOutcomes
    coefficient: int

    @property
    def value(self) -> float:
        fit = self.view.memoized(cox)
        return math.nan if fit is None else float(fit.beta[self.coefficient])

    def interval(self, level: float) -> Interval:
        """Refuse what has no interval; return that of the slope by `_slope_interval`, else that of the intercept."""
        view, fit = self.view, self.view.memoized(cox)
        if fit is None:
            return Interval(reason=NO_MAXIMUM)
        rows = WeightedMean(view.p, view.weights, view.counts, view.groups)
        if rows.lacking:
            return Interval(reason=rows.lacking)
        if rows.units <= 2:
            return Interval(reason=f"{rows.units:.1f} effective rows, and two coefficients are fitted")
        if not (view.p.all() and view.complement.all()):
            return Interval(reason="a probability is 0 or 1: its log-odds are infinite, and where they are cut decides")
        if self.coefficient == 1:
            return _slope_interval(view, fit, rows, level)
        return _intercept_interval(view, fit, rows, level)


def _intercept_interval(view: BinaryOutcomes, fit: Cox, rows: WeightedMean, level: float) -> Interval:
    """Return the interval â - h_down, â + h_up, each h as that of a mean with rows too seldom, or not, drawn.

    Each h is `unseen_reach(t, se², seen, unseen)`, the distance that allows for the noise t se, for rows that were
    drawn too seldom, and for rows of a kind that was not drawn at all.
    - t is Student's quantile with u - 2 degrees of freedom, where u rows decide and two coefficients are fitted; for
      these two also se² is multiplied by u / (u - 2).
    - `seen` is the skew of the rows' influences, where it lengthens that side. With few hits each hit moves â far up,
      but the population's a may lie farther below â than above it: it would be -∞ if hits could not occur. So the side
      is opposite to that of the rows that move â far, and `Cox.skew` has the sign of the side.
    - `unseen` is what the worst row (or group) of the file would move â: the largest share times movement
      (`largest_contribution`).
    """
    if few := _few(view, fit, 0):
        return Interval(reason=few)
    units = min(rows.units, float(fit.deciding[0]))
    se = math.sqrt(_variance(fit, rows, 0) * units / (units - 2))
    t = student_quantile(1 - (1 - level) / 2, units - 2)
    down = unseen_reach(t, se * se, max(-float(fit.skew[0]), 0.0), rows.largest_contribution(fit.down[0]))
    up = unseen_reach(t, se * se, max(float(fit.skew[0]), 0.0), rows.largest_contribution(fit.up[0]))
    how = f"maximum likelihood; sandwich variance (HC3) and outcomes not seen, {units:.0f} deciding"
    intercept = float(fit.beta[0])
    low, high, detail = intercept - down, intercept + up, {"calibrated": 0.0}
    return Interval(low=low, high=high, level=level, se=se, how=how, detail=detail)


def _variance(fit: Cox, rows: WeightedMean, coefficient: int) -> float:
    """Return HC3's variance or the model's, the larger: HC3 misses that of few wrong rows at nearly one confidence."""
    return max(
        float(fit.covariance[coefficient, coefficient]), float(fit.model[coefficient, coefficient]) / rows.effective
    )


def _few(view: BinaryOutcomes, fit: Cox, coefficient: int) -> str:
    """Return the reason why too few rows decide a coefficient; "" where enough do."""
    deciding = fit.deciding[coefficient]
    if deciding >= DECIDING:
        return ""
    what = "rows" if view.groups is None else "groups"
    return f"{deciding:.1f} {what} decide it (few are wrong, or few at such confidences); it takes {DECIDING}"


def _slope_interval(view: BinaryOutcomes, fit: Cox, rows: WeightedMean, level: float) -> Interval:
    """Return the slopes b at which 2 [min_a F(a, b) - F(β̂)] <= t² V / (H⁻¹)_bb, widened for rows not drawn.

    If the regression is true, n times the left side is a χ² of one degree of freedom, whose limit is t². V is the
    variance of b̂: HC3's, where that is larger than the model's (H⁻¹)_bb / n. The limit is multiplied by their ratio
    n V / (H⁻¹)_bb, so that the interval holds where the regression is not true, or rows come in groups; n cancels.
    The profile follows the skewness that few wrong rows give the slope, where a Wald interval does not cover.

    The movement by rows that were not drawn is added as a square. That all of them are missing and noise hides it is
    rare, so less than the sum is enough: squares err in no more than α (see `unseen_reach`, which adds cubes).
    """
    t = student_quantile(1 - (1 - level) / 2, rows.units - 2)
    variance = _variance(fit, rows, 1)
    limit = t * t * variance / float(fit.model[1, 1])
    missing = rows_at_once(t)  # max(t², -ln α): how many rows of one kind a sample may lack by chance
    slope = float(fit.beta[1])
    low = slope - math.hypot(_profile_end(view, fit, limit, -1), _undrawn(view, fit, rows, missing, -1))
    high = slope + math.hypot(_profile_end(view, fit, limit, 1), _undrawn(view, fit, rows, missing, 1))
    how = f"profile likelihood, widened by HC3{rows.clustered}; outcomes not seen"
    detail: dict[str, Cell] = {"calibrated": 1.0}
    if few := _few(view, fit, 1):  # one row too many in the sample could make a gate wrong
        detail[NO_GATE] = few
    return Interval(low=low, high=high, level=level, se=math.sqrt(variance), how=how, detail=detail)


def _undrawn(view: BinaryOutcomes, fit: Cox, rows: WeightedMean, count: float, side: int) -> float:
    """Return how far down (side -1) or up (1) `count` rows that were not drawn would move the slope.

    Each is the row of the file that moves the slope most to that side, with the outcome that does. `linear` is count
    times the largest product of share and movement per share (`largest_contribution`). The true movement is mostly
    less, as added rows change H too: the regression is fitted anew with one row of the share linear / (movement per
    share).
    """
    movement = fit.up[1] if side == 1 else fit.down[1]  # (N,) of the slope, per share
    linear = count * rows.largest_contribution(movement)
    if view.weights is None or view.counts:
        worst = int(np.argmax(movement))  # rows that a count stands for have equal weight
    else:
        worst = int(np.argmax(movement * view.weights))
    share = linear / float(movement[worst])
    log_odds_of = log_odds(view.p, view.complement)
    # an outcome of 1 moves β̂ by s H⁻¹x (1 - π), that is the slope by the sign of the second entry of H⁻¹x
    raised_by_hit = float(fit.model[1, 0] + fit.model[1, 1] * log_odds_of[worst]) > 0
    x = np.stack([np.ones(view.n + 1), np.append(log_odds_of, log_odds_of[worst])])
    y = np.append(view.hit, raised_by_hit == (side == 1)).astype(np.float64)
    refit = _newton(x, y, np.append(view.shares, share), fit.beta)
    return linear if refit is None else min(linear, abs(float(refit[0][1] - fit.beta[1])))


def _profile_end(view: BinaryOutcomes, fit: Cox, limit: float, side: int) -> float:
    """Find d > 0 with 2 [min_a F(a, b̂ + side d) - F(β̂)] = limit: the profile's end below (-1) or above (1) b̂.

    The root of the left side is nearly a line in d, so a secant needs few steps. At each slope a is found by Newton
    steps δ = F' / F'' in a, which are shortened to ln(1 + |δ|). Such a step never passes the optimum: the logistic
    function g has |g''| <= g', so over a step of length r F'' grows by a factor exp(r) at most, and F' changes by
    F'' (exp(r) - 1) at most, which reaches |F'| only at r = ln(1 + |δ|).
    """
    log_odds_of, y, s = log_odds(view.p, view.complement), view.hit.astype(np.float64), view.shares
    least = _mean_loss(fit.beta[0] + fit.beta[1] * log_odds_of, y, s)
    follows = float(fit.model[1, 0] / fit.model[1, 1])  # da / db along the profile at β̂

    def beyond(distance: float) -> float:
        """Return the root of the left side less that of the limit: negative inside, positive outside."""
        offset = (fit.beta[1] + side * distance) * log_odds_of  # (N,) b ℓ
        intercept = float(fit.beta[0]) + side * distance * follows  # near the optimum: the steps are shortened
        for _ in range(STEPS):
            pi = _sigmoid(intercept + offset)
            delta = float(s @ (pi - y)) / max(float(s @ (pi * (1 - pi))), SMALLEST)
            intercept -= math.copysign(math.log1p(abs(delta)), delta)
            if abs(delta) < 1e-7:  # what is left, δ² F'' / 2, is rounding of F
                break
        return math.sqrt(max(2 * (_mean_loss(intercept + offset, y, s) - least), 0.0)) - math.sqrt(limit)

    far = math.sqrt(limit * float(fit.model[1, 1]))  # the end if F were a parabola
    while beyond(far) < 0:
        far *= 2
    return root(beyond, 0.0, far, 1e-7)


def _mean_loss(m: Floats, y: Floats, s: Floats) -> float:
    """Return F = Σ s [log(1 + exp(m)) - y m]."""
    return float(s @ (np.logaddexp(0, m) - y * m))


def _newton(x: Floats, y: Floats, s: Floats, beta: Floats) -> tuple[Floats, Floats, Floats] | None:
    """Minimise F by Newton steps -H⁻¹∇F, halved while F rises; return β̂ (2,), π (N,) and H (2, 2), or None without one.

    There is none if the rows are separable (a coefficient grows beyond LARGEST, or steps shrink to nothing), or if all
    log-odds are nearly equal (H is singular). H is 2 × 2 with entries (h_aa, h_ab; h_ab, h_bb): its inverse and its
    condition number λ_max / λ_min = λ_max² / det H are written out, as NumPy's functions take longer than the rows.

    Args:
        x: (2, N).  y, s: (N,).  beta: (2,) to start from.
    """
    loss, step = math.inf, np.zeros(2)
    for _ in range(STEPS):
        m = beta @ x
        loss_here = _mean_loss(m, y, s)
        if loss_here > loss + 1e-12 * abs(loss):  # a rise that is no rounding: go back half of the last step
            step = step / 2
            beta = beta - step
            if np.abs(step).max() < 1e-14:
                return None
            continue
        loss = loss_here
        pi = _sigmoid(m)
        gradient = x @ (s * (pi - y))
        hessian = (x * (s * pi * (1 - pi))) @ x.T
        (h_aa, h_ab), (_, h_bb) = hessian.tolist()
        largest = (h_aa + h_bb + math.hypot(h_aa - h_bb, 2 * h_ab)) / 2
        determinant = h_aa * h_bb - h_ab * h_ab
        if not largest * largest < SINGULAR * determinant or np.abs(beta).max() > LARGEST:
            return None
        step = np.array([h_ab * gradient[1] - h_bb * gradient[0], h_ab * gradient[0] - h_aa * gradient[1]])
        step = step / determinant
        beta = beta + step
        if np.abs(step).max() <= 1e-10 * max(1.0, np.abs(beta).max()):
            break
    return beta, pi, hessian


def log_odds(p: Floats, complement: Floats) -> Floats:
    """Return ℓ = log p / (1 - p), about -690 for a probability of 0."""
    return np.asarray(np.log(np.maximum(p, SMALLEST)) - np.log(np.maximum(complement, SMALLEST)))


def cox(view: BinaryOutcomes) -> Cox | None:
    """Fit β by maximum likelihood; its covariance is HC3's sandwich Σ c_i c_iᵀ (MacKinnon & White 1985).

    c_i = H⁻¹x_i s_i (π_i - y_i) / (1 - h_i) is about what β̂ loses by row i: without the row it would be β̂ + c_i. The
    leverage h_i = s_i π_i (1 - π_i) x_iᵀH⁻¹x_i is the part of H that the row gives itself, by which its residual was
    made too small; few rows may decide the slope. The c of a group is the sum over its rows. A row that counts for t
    rows has c_i = t e_i, e_i of each of them, and enters sums t times: Σ t e² = Σ c² / t, Σ t e⁴ = Σ c⁴ / t³.

    The effective number of rows (or groups) that decide a coefficient is (Σ t e²)² / Σ t e⁴: the variance Σ t e² is as
    noisy as one from so many equal rows (Satterthwaite 1946).

    Returns None where there is no maximum: the hits are separable, or the log-odds constant.
    """
    predicted = log_odds(view.p, view.complement)
    if view.hit.all() or not view.hit.any() or np.ptp(predicted) == 0:
        return None
    s = view.shares
    y = view.hit.astype(np.float64)
    x = np.stack([np.ones(view.n), predicted])
    solved = _newton(x, y, s, np.array([0.0, 1.0]))
    if solved is None:
        return None
    beta, pi, hessian = solved
    inverse = np.asarray(np.linalg.inv(hessian), dtype=np.float64)
    counts = view.weights if view.counts else None
    share_of_one = s if counts is None else 1 / view.total  # of one of the rows that a count stands for
    leverage = share_of_one * pi * (1 - pi) * np.einsum("in,ij,jn->n", x, inverse, x)
    score: Floats = x * (s * (pi - y) / np.maximum(1 - leverage, LEAST_REMAINING))  # (2, N)
    if view.groups is not None:
        _, member = group_places(view.groups)
        score = np.array([np.bincount(member, of_coefficient) for of_coefficient in score])  # (2, groups)
    influence = inverse @ score  # c, (2, rows or groups)
    times = np.ones(influence.shape[1])  # t, of each row; groups occur once
    if counts is not None and view.groups is None:
        times = np.maximum(counts, SMALLEST)
    square = (influence / np.abs(influence).max(axis=1, keepdims=True)) ** 2 / times  # t e², of any scale
    deciding = square.sum(axis=1) ** 2 / (square**2 / times).sum(axis=1)
    influence_of_one = influence / times  # e
    skew = (influence_of_one**3 @ times) / (influence_of_one**2 @ times)
    # a row (x, y) moves β̂ per share by H⁻¹x (y - π): the more of its two outcomes, to either side
    residual_influence = inverse @ x  # (2, N)
    down = np.maximum(residual_influence * pi, residual_influence * (pi - 1))
    up = np.maximum(residual_influence * (1 - pi), -residual_influence * pi)
    return Cox(beta, influence_of_one @ influence.T, inverse, deciding, skew, down, up)
