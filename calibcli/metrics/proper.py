"""Means over rows: accuracy, proper scores, confidence and entropy, and the share of very confident rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from calibcli.metrics.intervals import Mask, mean_interval, share_interval
from calibcli.metrics.sample import METRICS, Sample, average
from calibcli.predictions import Floats

Range = tuple[float, float]
Column = tuple[Any, Mask | None]  # values, and the rows that the mean is over


UNSEEN = 0.95  # quantile over rows of what their worst label would cost


def _share(sample: Sample) -> Range:
    return 0.0, 1.0


def _cost(sample: Sample) -> Range:
    """NLL that a row may have: the scores tell it for every label, of which these rows show one each."""
    if "cost" not in sample.memo:
        sample.memo["cost"] = 0.0, high(sample.columns.most, UNSEEN)
    found: Range = sample.memo["cost"]
    return found


def _cost_of_right(sample: Sample) -> Range:
    return 0.0, math.log(sample.columns.k)


def _cost_of_wrong(sample: Sample) -> Range:
    return math.log(2), max(_cost(sample)[1], math.log(2))


def _square(sample: Sample) -> Range:
    return 0.0, 2.0


def _confident(sample: Sample) -> Range:
    return 1 / sample.columns.k, 1.0


def _over(sample: Sample) -> Range:
    return 1 / sample.columns.k - 1, 1.0


def high(values: Floats, quantile: float) -> float:
    """Quantile that may be infinite."""
    return float(np.quantile(values, quantile, method="higher"))


def _accuracy(sample: Sample) -> Column:
    return sample.columns.correct, None


@METRICS.add(better="higher", unit="probability", rows=_accuracy, range=_share, interval=share_interval)
def accuracy(sample: Sample) -> float:
    """Share of rows whose predicted class is the label; ties of the scores go to the lowest class."""
    return average(*_weighted(sample, _accuracy(sample)))


def _nll(sample: Sample) -> Column:
    return sample.columns.nll, None


@METRICS.add(better="lower", unit="nats", rows=_nll, range=_cost, interval=mean_interval)
def nll(sample: Sample) -> float:
    """Negative log-likelihood, mean of -log p_y."""
    return average(*_weighted(sample, _nll(sample)))


def _brier(sample: Sample) -> Column:
    return sample.columns.brier, None


@METRICS.add(better="lower", unit="", rows=_brier, range=_square, interval=mean_interval)
def brier(sample: Sample) -> float:
    """Brier score summed over classes, mean of Σ_k (p_k - 1[k = y])², in [0, 2] (twice the binary form)."""
    return average(*_weighted(sample, _brier(sample)))


def _brier_top(sample: Sample) -> Column:
    return sample.top.residual**2, None


@METRICS.add(better="lower", unit="", rows=_brier_top, range=_share, interval=mean_interval)
def brier_top(sample: Sample) -> float:
    """Brier score of the top label, mean of (confidence - correct)²."""
    if sample.weights is None:
        return float(sample.top.residual @ sample.top.residual) / len(sample.top.residual)
    return average(*_weighted(sample, _brier_top(sample)))


def _confidence(sample: Sample) -> Column:
    return sample.columns.confidence, None


@METRICS.add(unit="probability", rows=_confidence, range=_confident, interval=mean_interval)
def mean_confidence(sample: Sample) -> float:
    """Mean probability of the predicted class."""
    return average(*_weighted(sample, _confidence(sample)))


def _gap(sample: Sample) -> Column:
    return sample.top.residual, None


@METRICS.add(better="zero", unit="probability", rows=_gap, range=_over, interval=mean_interval)
def gap(sample: Sample) -> float:
    """Mean confidence minus accuracy: positive when overconfident; |gap| <= ece."""
    return average(*_weighted(sample, _gap(sample)))


def _entropy(sample: Sample) -> Column:
    return sample.columns.entropy, None


@METRICS.add(unit="nats", rows=_entropy, range=_cost_of_right, interval=mean_interval)
def entropy(sample: Sample) -> float:
    """Mean entropy of the predicted distribution."""
    return average(*_weighted(sample, _entropy(sample)))


def _split(column: str, right: bool) -> Any:
    def rows(sample: Sample) -> Column:
        correct = sample.columns.correct
        values: Floats = getattr(sample.columns, column)
        return values, correct if right else ~correct

    return rows


NO_RIGHT, NO_WRONG = "no row is correct", "no row is wrong"


@METRICS.add(unit="nats", rows=_split("entropy", True), range=_cost_of_right, interval=mean_interval, empty=NO_RIGHT)
def entropy_correct(sample: Sample) -> float:
    """Mean entropy over rows that are correct."""
    return average(sample.columns.entropy, sample.weights, sample.columns.correct)


@METRICS.add(unit="nats", rows=_split("entropy", False), range=_cost_of_right, interval=mean_interval, empty=NO_WRONG)
def entropy_wrong(sample: Sample) -> float:
    """Mean entropy over rows that are wrong."""
    return average(sample.columns.entropy, sample.weights, ~sample.columns.correct)


@METRICS.add(
    better="lower", unit="nats", rows=_split("nll", True), range=_cost_of_right, interval=mean_interval, empty=NO_RIGHT
)
def nll_correct(sample: Sample) -> float:
    """Mean NLL over rows that are correct."""
    return average(sample.columns.nll, sample.weights, sample.columns.correct)


@METRICS.add(
    better="lower", unit="nats", rows=_split("nll", False), range=_cost_of_wrong, interval=mean_interval, empty=NO_WRONG
)
def nll_wrong(sample: Sample) -> float:
    """Mean NLL over rows that are wrong."""
    return average(sample.columns.nll, sample.weights, ~sample.columns.correct)


def _s99(sample: Sample, tau: float) -> Column:
    return sample.columns.confidence >= tau, None


@METRICS.add(unit="probability", rows=_s99, range=_share, interval=share_interval)
def s99(sample: Sample, *, tau: float = 0.99) -> float:
    """|S99|, the share of rows with confidence >= tau (Mukhoti 2020)."""
    return average(*_weighted(sample, _s99(sample, tau)))


def _s99_accuracy(sample: Sample, tau: float) -> Column:
    return sample.columns.correct, sample.columns.confidence >= tau


@METRICS.add(
    better="higher",
    unit="probability",
    rows=_s99_accuracy,
    range=_share,
    interval=share_interval,
    empty="no row is that confident",
)
def s99_accuracy(sample: Sample, *, tau: float = 0.99) -> float:
    """Accuracy of the rows with confidence >= tau."""
    values, mask = _s99_accuracy(sample, tau)
    return average(values, sample.weights, mask)


def _weighted(sample: Sample, column: Column) -> tuple[Any, Floats | None]:
    values, _ = column
    return np.asarray(values), sample.weights
