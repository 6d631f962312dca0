"""What a re-fitted temperature would save, measured on rows that it was not fitted on."""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt

from calibcli.columns import columns
from calibcli.links import cross_fit_beta, fit_beta
from calibcli.links.moments import Block, Source, evaluate
from calibcli.metrics.intervals import IMPOSSIBLE, Ask, Interval, Rows, student
from calibcli.metrics.sample import METRICS, Sample
from calibcli.predictions import Array, Floats, Ints, Predictions

FOLDS = 5
KAPPA = 0.6  # share of the squared cost of fitting that the folds have in common, by simulation
FEWEST = 5_000  # rows that are always used; beyond, as many as hold SCORES scores
SCORES = 500_000
WIDENED = 1 << 20  # scores up to which derivatives are in float64
START = 1 << 18  # scores of the rows whose optimum is the first guess
NEAR = 0.05  # |ln β| from where the derivatives are to the optimum
PASSES = 4


def folds_of(predictions: Predictions, folds: int = FOLDS) -> Ints:
    """(N,) fold of each row: by group if there are groups, else by a hash of the id, else of the position."""
    if predictions.groups is not None:
        _, member = np.unique(predictions.groups, return_inverse=True)
        return np.asarray(member % folds, dtype=np.int64)
    if predictions.ids is not None:
        return np.array([zlib.crc32(str(i).encode()) % folds for i in predictions.ids], dtype=np.int64)
    return np.asarray(_scrambled(np.arange(predictions.n, dtype=np.uint64)) % np.uint64(folds), dtype=np.int64)


def _scrambled(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64 finaliser: a fixed permutation that looks random, so that no period of the rows matters."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def gains(predictions: Predictions, folds: int = FOLDS) -> tuple[Floats, list[float]]:
    """(N,) nll(z_i) - nll(z_i / T), T fitted on the other folds, in nats; and the T of each fold.

    NaN throughout where a fold would be empty.
    """
    found, temperatures, _ = cross_fit(predictions, folds)
    return found, temperatures


def cross_fit(predictions: Predictions, folds: int = FOLDS) -> tuple[Floats, list[float], float]:
    """As `gains`, and the NLL that fitting T to chance costs, times 2: V / (n F''), V the variance of F' per row."""
    fold = folds_of(predictions, folds)
    present, fold = np.unique(fold, return_inverse=True)
    if len(present) < 2:
        return np.full(predictions.n, np.nan), [], 0.0
    z, y, w = predictions.logits, predictions.labels, predictions.weights
    if predictions.n >= FEWEST:
        found = _leave_out(z, y, w, fold)
        if found is not None:
            betas, cost = found
            return _nll(z, y) - _nll(z * betas[fold].astype(z.dtype)[:, None], y), (1 / betas).tolist(), cost
    gain, fits = cross_fit_beta(z, y, fold, w)
    costs = [0.0 if fit.se is None else fit.se**2 * fit.hessian * fit.n / predictions.n for fit in fits]
    return gain, [fit.temperature for fit in fits], float(np.mean(costs))


def _nll(z: Array, y: Ints) -> Floats:
    return columns(Predictions.of(z, y), class_bins=()).nll


def _leave_out(z: Array, y: Ints, w: Floats | None, fold: Ints) -> tuple[Floats, float] | None:
    """β fitted without each fold, and the cost of fitting; None where a few passes over all rows do not find them.

    From the first four derivatives of each fold's NLL, at a β so near to all of them (the optimum of some rows, or the
    previous step) that what the expansion leaves out, its fourth power, is nothing beside the noise of the rows.
    """
    some = slice(None, None, max(1, len(y) * z.shape[1] // START))
    fit = fit_beta(z[some], y[some], None if w is None else w[some])
    if fit.status != "ok":
        return None
    parts = [np.flatnonzero(fold == k) for k in range(int(fold.max()) + 1)]
    data = [(z[rows], y[rows], None if w is None else w[rows]) for rows in parts]
    beta = fit.beta
    for _ in range(PASSES):
        sums = [evaluate(_source(part), beta, np.float64 if z.size <= WIDENED else z.dtype.type) for part in data]
        each = np.array([part.derivatives for part in sums])
        step = _root(each.sum(axis=0))
        if abs(step) <= NEAR * beta:
            betas = np.array([beta + _root(rest) for rest in each.sum(axis=0) - each])
            if np.all(np.abs(betas / beta - 1) <= 2 * NEAR):
                return betas, sum(part.psi2 for part in sums) / each.sum(axis=0)[1] / sum(part.weight for part in sums)
        beta *= math.exp(min(max(step / beta, -1.0), 1.0))
    return None


def _source(block: Block) -> Source:
    return lambda: (block,)


def _root(f: Floats) -> float:
    """By Newton, the root of the cubic that these derivatives give."""
    slope, curve, third, fourth = f
    step = 0.0
    for _ in range(20):
        value = slope + step * (curve + step * (third / 2 + step * fourth / 6))
        step -= float(value / (curve + step * (third + step * fourth / 2)))
    return step


def _subset(sample: Sample) -> tuple[Predictions, Ints | None]:
    """The rows used: all, or one drawn from each of equal stretches of the file."""
    predictions = sample.predictions
    assert predictions is not None
    most = max(FEWEST, SCORES // predictions.k)
    if predictions.n <= most:
        return predictions, None
    rng = np.random.default_rng([sample.seed, 5])
    rows = ((np.arange(most) + rng.random(most)) * (predictions.n / most)).astype(np.int64)
    return predictions.take(rows), rows


def _gain_rows(sample: Sample) -> tuple[Rows, list[float], float]:
    if "gain" not in sample.memo and not np.isfinite(sample.columns.nll).all():
        sample.memo["gain"] = Rows(np.full(1, np.nan), None, False, None), [1.0], 0.0
    if "gain" not in sample.memo:
        subset, _ = _subset(sample)
        found, temperatures, cost = cross_fit(subset)
        sample.memo["gain"] = Rows(found, subset.weights, sample.counts, subset.groups), temperatures, cost
    rows: tuple[Rows, list[float], float] = sample.memo["gain"]
    return rows


def gain_interval(ask: Ask) -> Interval:
    """Student's t over rows, at the folds' temperatures, with the share of the noise that these have in common.

    Where T = 1 is best, the gain is of the size of what fitting T to chance costs, and as each fold's T is fitted on
    the rows of the others, their gains vary together by about that much.
    """
    rows, temperatures, cost = _gain_rows(ask.sample)
    if not math.isfinite(ask.value):
        nothing = "needs at least 2 folds with rows" if not temperatures else IMPOSSIBLE
        return Interval(reason=nothing)
    se = math.sqrt(rows.se() ** 2 + KAPPA * cost**2)
    if not math.isfinite(se):
        return Interval(reason="one row has no spread", n=rows.n)
    half = student(ask.level, rows.degrees) * se
    how = f"{FOLDS} folds; Student's t over rows, at the folds' temperatures"
    if rows.n < ask.sample.n:
        how += f"; {rows.n} of {ask.sample.n} rows, drawn evenly"
    detail = {"temperature_low": min(temperatures), "temperature_high": max(temperatures)}
    return Interval(
        low=ask.value - half, high=ask.value + half, level=ask.level, how=how, se=se, n=rows.n, null=0.0, detail=detail
    )


@METRICS.add(better="lower", unit="nats", needs_scores=True, interval=gain_interval)
def recal_gain(sample: Sample) -> float:
    """Recalibration gain: NLL per row that a re-fitted temperature would save, by 5-fold cross-fitting.

    mean of nll(z_i) - nll(z_i / T_{-k(i)}); slightly negative where T = 1 is best. Beyond 500,000 scores (and 5,000
    rows) a sample of rows is used.
    """
    return _gain_rows(sample)[0].mean()
