"""The NLL that a re-fitted temperature would save, measured on rows that it was not fitted on.

Derivations: docs/statistics/temperature.md.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from calibcli.core.statistics import group_places, root, scrambled, top_of
from calibcli.metrics.intervals import BOUNDLESS, IMPOSSIBLE, WeightedMean, average
from calibcli.metrics.means import cost
from calibcli.metrics.registry import ANY, METRICS, Interval, Sample, Statistic
from calibcli.scores.columns import columns
from calibcli.scores.likelihood import BetaFit, cross_fit_beta, fit_beta, nll_rows, spread
from calibcli.scores.likelihood.fit_temperature import in_float32, shifted
from calibcli.scores.likelihood.moments import cumulants, expectation, series
from calibcli.scores.predictions import Array, Floats, Ints, Predictions
from calibcli.scores.softmax import NARROW, Piece, least_of

FOLDS = 5
LEAST_BETA, MOST_BETA = 1e-4, 1e3  # range of 1/T, over the spread of the logits
FEWEST = 5_000  # rows that are always used; of more, as many as have SCORES scores
SCORES = 500_000
WIDENED = 1 << 20  # scores up to which derivatives are in float64
START, MOST_START = 1 << 15, 1 << 17  # scores of the rows that give the first guess of β: a quarter of all in between
NEAR = 0.02  # largest distance in ln β of the optimum from where derivatives are taken
PASSES = 4
REACH = 0.1  # distance in ln β from an optimum up to which the derivatives of the rows there are used
TOLERANCE = 1e-8  # of the ends before the last step of a secant, so that the order of summation does not show


def folds_of(predictions: Predictions, folds: int = FOLDS, nll: Floats | None = None) -> Ints:
    """Assign each row a fold (N,): by its group if there are groups, else by a hash of its id or of its rank by NLL.

    So neither the order of the rows nor that of the classes matters: labels and weights rank only rows of equal NLL.
    """
    if predictions.groups is not None:
        _, member = group_places(predictions.groups)
        return np.asarray(member % folds, dtype=np.int64)
    if predictions.ids is not None:
        return np.array([zlib.crc32(str(i).encode()) % folds for i in predictions.ids], dtype=np.int64)
    nll = _nll(predictions.logits, predictions.labels) if nll is None or len(nll) < predictions.n else nll
    keys = [predictions.labels, nll] if predictions.weights is None else [predictions.weights, predictions.labels, nll]
    fold = np.empty(predictions.n, dtype=np.int64)
    fold[np.lexsort(keys)] = scrambled(np.arange(predictions.n, dtype=np.uint64)) % np.uint64(folds)
    return fold


def gains(
    predictions: Predictions, folds: int = FOLDS, before: Floats | None = None, sample: Sample | None = None
) -> Gains:
    """Compute nll(z_i) - nll(z_i / T), T fitted on the other folds; all NaN where there is one fold.

    Args:
        before: (N,) nll(z_i), where it is known.
        sample: of all these rows, whose cross-fit is then shared.
    """
    fold = _without_gaps(folds_of(predictions, folds, before))
    if fold.max(initial=0) < 1:
        return Gains(np.full(predictions.n, np.nan), [])
    z, y, w = predictions.logits, predictions.labels, predictions.weights
    if predictions.n >= FEWEST:
        estimate = _leave_out(z, y, w, fold)
        if estimate is not None:
            betas, centre, near = estimate
            after = _near(near, (betas - centre)[fold]) if _known(near) else _nll(z, y, betas[fold])
            gain = (_nll(z, y) if before is None else before) - after
            return Gains(gain, (1 / betas).tolist(), centre, near)
    shared = None if sample is None else sample.memoized(crossed)
    gain, fits, _ = cross_fit_beta(z, y, fold, w) if shared is None else shared.fits
    return Gains(gain, [fit.temperature for fit in fits])


class Crossed(NamedTuple):
    """(N,) fold of each row, 0..F-1, and the result of `cross_fit_beta`."""

    fold: Ints
    fits: tuple[Floats, list[BetaFit], BetaFit]


def crossed(sample: Sample) -> Crossed | None:
    """Fit a temperature without each fold of all rows of a sample; None where there is one fold.

    Both the gain and the rows that a comparison keeps use them: `sample.acyclic.memoized(crossed)` computes them once.
    """
    rows = sample.predictions
    assert rows is not None
    fold = _without_gaps(folds_of(rows, nll=sample.columns.nll))
    if fold.max(initial=0) < 1:
        return None
    return Crossed(fold, cross_fit_beta(rows.logits, rows.labels, fold, rows.weights))


def _without_gaps(fold: Ints) -> Ints:
    """Number the folds that have rows from 0."""
    return np.asarray(np.cumsum(np.bincount(fold) > 0)[fold] - 1, np.int64)


class Gains(NamedTuple):
    """(N,) gain of each row in nats, T of each fold, and a β near the optimum with F' to F'''' of each row there."""

    gain: Floats
    temperatures: list[float]
    centre: float = 0.0
    near: Floats | None = None


def _nll(z: Array, y: Ints, beta: float | Floats = 1.0) -> Floats:
    """Return (N,) NLL of each row at β; of many scores by the blocked pass."""
    if z.size <= WIDENED:
        return nll_rows(z, y, beta)
    factor = np.asarray(beta, z.dtype)
    return columns(Predictions.of(z * (factor[:, None] if factor.ndim else factor), y), class_bins=()).nll


def _derivatives(z: Array, y: Ints, beta: float) -> Floats:
    """Return (5, N) F' to F'''' and F of each row, the last NaN where those of many scores do not give it."""
    return np.array(cumulants(z, y, beta, np.float64, nll=True)[1:] if z.size <= WIDENED else series(z, y, beta))


def _known(near: Floats) -> bool:
    """Return whether F of each row is among its derivatives."""
    return bool(np.isfinite(near[4]).all())


def _near(near: Floats, step: float | Floats) -> Floats:
    """Expand F of each row (N,) at a small step from where `near` has F and its derivatives."""
    slope, curve, third, fourth, value = near
    return np.asarray(value + step * (slope + step * (curve / 2 + step * (third / 6 + step * fourth / 24))))


def _leave_out(z: Array, y: Ints, w: Floats | None, fold: Ints) -> tuple[Floats, float, Floats] | None:
    """Fit β without each fold; also return the β of the expansion, with the derivatives of each row there.

    Returns None where a few passes over all rows do not find them. The fits come from the first four derivatives of
    each fold's NLL, at a β so near to all of them (the optimum of some rows, or the previous step) that what the
    expansion leaves out, its fourth power, is negligible beside the noise of the rows.
    """
    some = slice(None, None, max(1, min(z.size // START, 4), z.size // MOST_START))  # evenly spread rows
    fit = fit_beta(z[some], y[some], None if w is None else w[some])
    if fit.status != "ok":
        return None
    beta = fit.beta
    for _ in range(PASSES):
        near = _derivatives(z, y, beta)
        each = np.array([np.bincount(fold, row if w is None else w * row) for row in near[:4]]).T
        step = _root(each.sum(axis=0))
        if abs(step) <= NEAR * beta:
            betas = np.array([beta + _root(derivatives) for derivatives in each.sum(axis=0) - each])
            if np.all(np.abs(betas / beta - 1) <= 2 * NEAR):
                return betas, beta, near
        beta *= math.exp(min(max(step / beta, -1.0), 1.0))
    return None


def _root(f: Floats) -> float:
    """Find by Newton the root of the cubic that these derivatives give."""
    step = 0.0
    for _ in range(20):
        slope, curve = shifted(f, step)
        step -= float(slope / curve)
    return step


def _gains(sample: Sample) -> tuple[Predictions, WeightedMean, Gains, Floats]:
    """Return the rows used (all, or one drawn from each of equal stretches of the file), their gains and NLL."""
    subset, nll = sample.predictions, sample.columns.nll
    assert subset is not None
    most = max(FEWEST, SCORES // subset.k)
    if not np.isfinite(nll).all():
        return subset, WeightedMean(np.full(1, np.nan), None, False, None), Gains(nll, [1.0]), nll
    nll = nll[:0] if sample.columns.condensed else nll  # those of cells do not serve
    if subset.n > most:
        rng = np.random.default_rng([sample.seed, 5])
        rows = ((np.arange(most) + rng.random(most)) * (subset.n / most)).astype(np.int64)
        subset, nll = subset.take(rows), nll[rows] if len(nll) else nll
    same = subset is sample.predictions and len(nll) == subset.n
    nll = nll if len(nll) else _nll(subset.logits, subset.labels)
    fitted = gains(subset, before=nll, sample=sample if same else None)
    return subset, WeightedMean(fitted.gain, subset.weights, sample.counts, subset.groups), fitted, nll


@METRICS.add(
    values=ANY,
    better="lower",
    unit="nats",
    reads=("nll", "most"),
    needs_scores=True,
    label="gain of a temperature",
    kept="gain",
    rows="cross_fitted",
    first_screen="one model",
)
def temperature_gain(sample: Sample) -> Statistic:
    """NLL per row that a re-fitted temperature would save, by 5-fold cross-fitting.

    mean of nll(z_i) - nll(z_i / T_{-k(i)}); slightly negative where T = 1 is best. Beyond 500,000 scores (and 5,000
    rows) a sample of rows is used.

    In nats. Ours: the gain of temperature scaling (Guo et al. 2017) on rows that it was not fitted on.

    >>> round(calibcli.measure(logits, labels, "temperature_gain")["temperature_gain"].value, 3)
    0.199
    """
    return Gain(sample)


@dataclass(frozen=True, eq=False)
class Gain(Statistic):
    """The gain of a temperature, bounded over every temperature that these rows do not refute.

    G = F(1) - F(β*), F the mean NLL at β = 1/T. As F'(β*) = 0 it is the Bregman divergence
    D(1, β) = F(1) - F(β) - F'(β)(1 - β) at β*, which holds no label: it has little noise of its own and grows with the
    distance of β from 1. β is refuted where the mean of ψ = E z - z_y, which is 0 at β*, is not within its bounds: the
    score form, in which rows that were not drawn may have any label. So there are bounds where no row is wrong, too.
    """

    sample: Sample

    @property
    def value(self) -> float:
        return self.sample.memoized(_gains)[1].value

    def interval(self, level: float) -> Interval:
        subset, rows, fitted, nll = self.sample.memoized(_gains)
        temperatures = fitted.temperatures
        if not math.isfinite(self.value):
            return Interval(reason=IMPOSSIBLE if temperatures else "needs at least 2 folds with rows")
        if rows.lacking:
            return Interval(reason=rows.lacking)
        if np.isinf(self.sample.memoized(cost)[1]).any():
            return Interval(reason=BOUNDLESS)
        ends = _Profile(subset, rows, (1 - level) / 2, fitted, nll).ends()
        if ends[1] <= 0:
            return Interval(reason="no temperature changes these probabilities: each class is as likely in every row")
        how = f"Bregman divergence over the 1/T that are not refuted{rows.clustered}; value: {FOLDS} folds"
        if rows.n < self.sample.n:
            how += f"; {rows.n} of {self.sample.n} rows, drawn evenly"
        return Interval(
            low=min(self.value, ends[0]),  # the parameter is >= 0, a cross-fitted estimate need not be
            high=max(self.value, ends[1]),
            level=level,
            how=how,
            se=rows.se,
            n=rows.n,
            null=0.0,
            detail={"temperature_low": min(temperatures), "temperature_high": max(temperatures)},
        )


class _Profile:
    """The β that rows do not refute, each end at error `alpha`, and the divergences between them.

    Near an optimum F and ψ of the rows come from the derivatives there; elsewhere they are computed anew.

    Args:
        nll: (N,) NLL of each row at β = 1.
    """

    def __init__(self, data: Predictions, rows: WeightedMean, alpha: float, fitted: Gains, nll: Floats) -> None:
        z = data.logits
        self.z, self.y, self.rows, self.alpha = in_float32(z) if z.size > WIDENED else z, data.labels, rows, alpha
        self.nll, self.one = nll, average(nll, rows.weights)
        if fitted.near is None:
            temperature = sorted(fitted.temperatures)[len(fitted.temperatures) // 2]
            self.centre = 1 / temperature if 0 < temperature < math.inf else 1.0
            self.near = _derivatives(self.z, self.y, self.centre)
        else:
            self.centre, self.near = fitted.centre, fitted.near
        top, least = _ends(self.z)
        z_y = self.z[np.arange(len(self.y)), self.y].astype(np.float64)
        self.up, self.down = z_y - least, z_y - top  # distances of z_y from the smallest and the largest logit
        self.points = [(self.centre, self.near)]  # where the derivatives of the rows are known
        self.scale = max(spread(self.z), 1e-12)
        self.by_beta: dict[float, tuple[WeightedMean, float, float]] = {}
        self.slopes: dict[tuple[float, float], tuple[float, float, float]] = {}

    def _psi(self, beta: float) -> Floats:
        """Return (N,) E z - z_y; of many scores by derivatives near β, which are kept."""
        if self._step(beta) is None and self.z.size <= WIDENED:
            return self._expectation(beta)
        origin, near = min(self.points, key=lambda point: abs(math.log(beta / point[0])))
        if abs(math.log(beta / origin)) > REACH * (1 + 1e-9):
            origin, near = beta, _derivatives(self.z, self.y, beta)
            self.points.append((origin, near))
        return np.asarray(shifted(near[:4], beta - origin)[0])

    @cached_property
    def _expectation(self) -> Callable[[float], Floats]:
        return expectation(self.z, self.y)

    def _step(self, beta: float) -> float | None:
        """Return the step from the centre to β; None where it is too long for the derivatives there."""
        return beta - self.centre if abs(math.log(beta / self.centre)) <= REACH * (1 + 1e-9) else None

    def slope(self, beta: float, share: float = 1.0) -> tuple[float, float, float]:
        """Return F'(β) and its bounds, each at error `share` of alpha."""
        if beta not in self.by_beta:
            psi = self._psi(beta)
            mean = dataclasses.replace(self.rows, values=psi)
            steps = (
                mean.largest_contribution(mean.value - psi - self.down),
                mean.largest_contribution(psi + self.up - mean.value),
            )
            self.by_beta[beta] = mean, *steps
        if (beta, share) not in self.slopes:
            mean, down, up = self.by_beta[beta]
            below, above = mean.bound_distances(share * self.alpha, down, up)
            self.slopes[beta, share] = mean.value, mean.value - below, mean.value + above
        return self.slopes[beta, share]

    def ends(self) -> tuple[float, float]:
        """Return the smallest and the largest divergence, each at error alpha.

        The gain at the true β is understated on one side of 1 only, but a gain near 0 is overstated by β on either
        side: there each side has half of alpha.
        """
        low, high = self._root(2, 0.5), self._root(1, 0.5)
        least = 0.0 if low <= 1 <= high else min(self._divergence(beta) for beta in (low, high))
        ends = self._root(2, near=low), self._root(1, near=high)
        return least, max(max(self._divergence(beta), self._saved(beta)) for beta in ends)

    def _saved(self, beta: float) -> float:
        """Return an upper bound of F(1) - F(β)."""
        gain = dataclasses.replace(self.rows, values=self.nll - _nll(self.z, self.y, beta))
        worst = gain.values + (1 - beta) * (self.up if beta < 1 else self.down)  # if the label were the worst one
        return gain.value + gain.bound_distances(self.alpha, 0.0, gain.largest_contribution(worst - gain.value))[1]

    def _root(self, bound: int, share: float = 1.0, near: float = 0.0) -> float:
        """Find β where a bound of F' passes 0 (F' rises with β), or the end of the range where it does not.

        Args:
            near: a β beyond it, where one is known.
        """

        def rises(t: float) -> float:
            return self.slope(math.exp(t), share)[bound]

        log_beta = math.log(self.centre)
        value, slope = rises(log_beta), self.centre * average(self.near[1], self.rows.weights)
        most = REACH if self.z.size > WIDENED else 1.0  # few rows cost as little where no derivatives are known
        step = -math.copysign(min(1.2 * abs(value) / slope, most) if slope > 0 else most, value)
        ends = math.log(LEAST_BETA / self.scale), math.log(MOST_BETA / self.scale)
        beyond = min(max(math.log(near) if near else log_beta + step, ends[0]), ends[1])
        while rises(beyond) * value > 0 and beyond not in ends:
            log_beta, step = beyond, 2 * step
            beyond = min(max(log_beta + step, ends[0]), ends[1])
        return math.exp(root(rises, min(log_beta, beyond), max(log_beta, beyond), TOLERANCE))

    @cached_property
    def _means(self) -> list[float]:
        """F and its first four derivatives at the centre."""
        nll = self.near[4] if _known(self.near) else _nll(self.z, self.y, self.centre)
        return [average(rows, self.rows.weights) for rows in (nll, *self.near[:4])]

    def _divergence(self, beta: float) -> float:
        step = self._step(beta)
        if step is None:
            value = average(_nll(self.z, self.y, beta), self.rows.weights)
        else:
            value = sum(mean * step**n / math.factorial(n) for n, mean in enumerate(self._means))
        return max(self.one - value - self.slope(beta)[0] * (1 - beta), 0.0)


def _ends(z: Array) -> tuple[Array, Array]:
    """Return (N,) largest and smallest score of each row, without -inf, which masks a class."""
    narrow = Piece(z) if z.shape[1] <= NARROW else None  # a wider piece would compute more than its ends
    top, least = (top_of(z), least_of(z)) if narrow is None else (narrow.top, narrow.least)
    if not np.isfinite(least.min()):
        least = np.fmin.reduce(np.where(np.isfinite(z), z, np.nan), axis=1)
    return top, least
