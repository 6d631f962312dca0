"""Means over rows: accuracy, proper scores, confidence and entropy, and the share of very confident rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibcli.metrics.intervals import Mask, mean_interval, outcome_interval, share_interval
from calibcli.metrics.sample import METRICS, Sample, average
from calibcli.predictions import Floats
from calibcli.spec import Share

Column = tuple[Any, Mask | None]  # values, and the rows that the mean is over


def _accuracy(sample: Sample) -> Column:
    return sample.columns.correct, None


@METRICS.add(better="higher", unit="probability", rows=_accuracy, interval=share_interval)
def accuracy(sample: Sample) -> float:
    """Share of rows whose predicted class is the label; ties of the scores go to the lowest class."""
    return average(*_weighted(sample, _accuracy(sample)))


def _nll(sample: Sample) -> Column:
    return sample.columns.nll, None


@METRICS.add(better="lower", unit="nats", rows=_nll, interval=outcome_interval)
def nll(sample: Sample) -> float:
    """Negative log-likelihood, mean of -log p_y."""
    return average(*_weighted(sample, _nll(sample)))


def _brier(sample: Sample) -> Column:
    return sample.columns.brier, None


def _brier_if_none(sample: Sample) -> tuple[float, float]:
    square = average(sample.columns.confidence**2, sample.weights)
    return average(sample.columns.rest**2, sample.weights), 1 + square  # the most that wrong rows could cost


@METRICS.add(better="lower", unit="", rows=_brier, interval=outcome_interval, if_none=_brier_if_none)
def brier(sample: Sample) -> float:
    """Brier score summed over classes, mean of Σ_k (p_k - 1[k = y])², in [0, 2] (twice the binary form)."""
    return average(*_weighted(sample, _brier(sample)))


def _brier_top(sample: Sample) -> Column:
    return sample.top.residual**2, None


def _brier_top_if_none(sample: Sample) -> tuple[float, float]:
    columns = sample.columns
    return average(columns.rest**2, sample.weights), average(columns.confidence**2, sample.weights)


@METRICS.add(better="lower", unit="", rows=_brier_top, interval=outcome_interval, if_none=_brier_top_if_none)
def brier_top(sample: Sample) -> float:
    """Brier score of the top label, mean of (confidence - correct)²."""
    if sample.weights is None:
        return float(sample.top.residual @ sample.top.residual) / len(sample.top.residual)
    return average(*_weighted(sample, _brier_top(sample)))


def _confidence(sample: Sample) -> Column:
    return sample.columns.confidence, None


@METRICS.add(unit="probability", rows=_confidence, interval=mean_interval)
def mean_confidence(sample: Sample) -> float:
    """Mean probability of the predicted class."""
    return average(*_weighted(sample, _confidence(sample)))


def _gap(sample: Sample) -> Column:
    return sample.top.residual, None


def _gap_if_none(sample: Sample) -> tuple[float, float]:
    columns = sample.columns
    return -average(columns.rest, sample.weights), average(columns.confidence, sample.weights)


@METRICS.add(
    better="zero", unit="probability", rows=_gap, interval=outcome_interval, if_none=_gap_if_none, positive=False
)
def gap(sample: Sample) -> float:
    """Mean confidence minus accuracy: positive when overconfident; |gap| <= ece."""
    return average(*_weighted(sample, _gap(sample)))


def _entropy(sample: Sample) -> Column:
    return sample.columns.entropy, None


@METRICS.add(unit="nats", rows=_entropy, interval=mean_interval)
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


@METRICS.add(unit="nats", rows=_split("entropy", True), interval=mean_interval, empty=NO_RIGHT)
def entropy_correct(sample: Sample) -> float:
    """Mean entropy over rows that are correct."""
    return average(sample.columns.entropy, sample.weights, sample.columns.correct)


@METRICS.add(unit="nats", rows=_split("entropy", False), interval=mean_interval, empty=NO_WRONG)
def entropy_wrong(sample: Sample) -> float:
    """Mean entropy over rows that are wrong."""
    return average(sample.columns.entropy, sample.weights, ~sample.columns.correct)


@METRICS.add(better="lower", unit="nats", rows=_split("nll", True), interval=mean_interval, empty=NO_RIGHT)
def nll_correct(sample: Sample) -> float:
    """Mean NLL over rows that are correct."""
    return average(sample.columns.nll, sample.weights, sample.columns.correct)


@METRICS.add(better="lower", unit="nats", rows=_split("nll", False), interval=mean_interval, empty=NO_WRONG)
def nll_wrong(sample: Sample) -> float:
    """Mean NLL over rows that are wrong."""
    return average(sample.columns.nll, sample.weights, ~sample.columns.correct)


def _s99(sample: Sample, tau: float) -> Column:
    return sample.columns.confidence >= tau, None


@METRICS.add(unit="probability", rows=_s99, interval=share_interval)
def s99(sample: Sample, *, tau: Share = 0.99) -> float:
    """|S99|, the share of rows with confidence >= tau (Mukhoti 2020)."""
    return average(*_weighted(sample, _s99(sample, tau)))


def _s99_accuracy(sample: Sample, tau: float) -> Column:
    return sample.columns.correct, sample.columns.confidence >= tau


@METRICS.add(
    better="higher", unit="probability", rows=_s99_accuracy, interval=share_interval, empty="no row is that confident"
)
def s99_accuracy(sample: Sample, *, tau: Share = 0.99) -> float:
    """Accuracy of the rows with confidence >= tau."""
    values, mask = _s99_accuracy(sample, tau)
    return average(values, sample.weights, mask)


def _weighted(sample: Sample, column: Column) -> tuple[Any, Floats | None]:
    values, _ = column
    return np.asarray(values), sample.weights
