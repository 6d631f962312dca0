"""Means over rows: accuracy, proper scores, confidence and entropy, and the share of very confident rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from calibcli.metrics.intervals import Mask, mean_interval, share_interval
from calibcli.metrics.sample import BRIER, METRICS, NATS, SIGNED, UNIT, Of, Sample, average
from calibcli.predictions import Floats
from calibcli.spec import Share

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
    return 0.0, 1.0 if sample.columns.k == 2 else 2.0


def _confident(sample: Sample) -> Range:
    return 1 / sample.columns.k, 1.0


def _over(sample: Sample) -> Range:
    return -1.0 if sample.columns.k == 2 else 1 / sample.columns.k - 1, 1.0  # of two classes, of the event


def high(values: Floats, quantile: float) -> float:
    """Quantile that may be infinite."""
    return float(np.quantile(values, quantile, method="higher"))


def _accuracy(sample: Sample) -> Column:
    return sample.columns.correct, None


@METRICS.add(values=UNIT, better="higher", unit="probability", rows=_accuracy, range=_share, interval=share_interval)
def accuracy(sample: Sample) -> float:
    """Share of rows whose predicted class is the label; ties of the scores go to the lowest class."""
    return average(*_weighted(sample, _accuracy(sample)))


def _nll(sample: Sample) -> Column:
    return sample.columns.nll, None


@METRICS.add(values=NATS, better="lower", unit="nats", rows=_nll, range=_cost, interval=mean_interval)
def nll(sample: Sample) -> float:
    """Negative log-likelihood, mean of -log p_y."""
    return average(*_weighted(sample, _nll(sample)))


def _brier(sample: Sample) -> Column:
    return sample.columns.brier, None


@METRICS.add(values=BRIER, better="lower", unit="", rows=_brier, range=_square, interval=mean_interval)
def brier(sample: Sample) -> float:
    """Brier score, mean of Σ_k (p_k - 1[k = y])², in [0, 2]; of two classes half of that, mean of (P(event) - y)².

    Brier (1950); as `brier_score_loss(scale_by_half="auto")` of scikit-learn.
    """
    return average(*_weighted(sample, _brier(sample)))


def _brier_top(sample: Sample) -> Column:
    return sample.top.residual**2, None


@METRICS.add(values=UNIT, better="lower", unit="", rows=_brier_top, range=_share, interval=mean_interval)
def brier_top(sample: Sample) -> float:
    """Brier score of the top label, mean of (confidence - correct)²."""
    if sample.weights is None:
        return float(sample.top.residual @ sample.top.residual) / len(sample.top.residual)
    return average(*_weighted(sample, _brier_top(sample)))


def _confidence(sample: Sample) -> Column:
    return sample.columns.confidence, None


@METRICS.add(values=UNIT, unit="probability", rows=_confidence, range=_confident, interval=mean_interval)
def mean_confidence(sample: Sample) -> float:
    """Mean probability of the predicted class."""
    return average(*_weighted(sample, _confidence(sample)))


def _gap(sample: Sample, of: Of) -> Column:
    return sample.view(of).residual, None


@METRICS.add(values=SIGNED, better="zero", unit="probability", rows=_gap, range=_over, interval=mean_interval)
def gap(sample: Sample, *, of: Of = "auto") -> float:
    """Mean confidence minus accuracy, positive when overconfident; of two classes mean P(event) minus its frequency.

    |gap| <= ece.
    """
    return average(*_weighted(sample, _gap(sample, of)))


def _entropy(sample: Sample) -> Column:
    return sample.columns.entropy, None


@METRICS.add(values=NATS, unit="nats", rows=_entropy, range=_cost_of_right, interval=mean_interval)
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


@METRICS.add(
    values=NATS, unit="nats", rows=_split("entropy", True), range=_cost_of_right, interval=mean_interval, empty=NO_RIGHT
)
def entropy_correct(sample: Sample) -> float:
    """Mean entropy over rows that are correct."""
    return average(sample.columns.entropy, sample.weights, sample.columns.correct)


@METRICS.add(
    values=NATS,
    unit="nats",
    rows=_split("entropy", False),
    range=_cost_of_right,
    interval=mean_interval,
    empty=NO_WRONG,
)
def entropy_wrong(sample: Sample) -> float:
    """Mean entropy over rows that are wrong."""
    return average(sample.columns.entropy, sample.weights, ~sample.columns.correct)


@METRICS.add(
    values=NATS,
    better="lower",
    unit="nats",
    rows=_split("nll", True),
    range=_cost_of_right,
    interval=mean_interval,
    empty=NO_RIGHT,
)
def nll_correct(sample: Sample) -> float:
    """Mean NLL over rows that are correct."""
    return average(sample.columns.nll, sample.weights, sample.columns.correct)


@METRICS.add(
    values=NATS,
    better="lower",
    unit="nats",
    rows=_split("nll", False),
    range=_cost_of_wrong,
    interval=mean_interval,
    empty=NO_WRONG,
)
def nll_wrong(sample: Sample) -> float:
    """Mean NLL over rows that are wrong."""
    return average(sample.columns.nll, sample.weights, ~sample.columns.correct)


def _s99(sample: Sample, tau: float) -> Column:
    return sample.columns.confidence >= tau, None


@METRICS.add(values=UNIT, unit="probability", rows=_s99, range=_share, interval=share_interval)
def s99(sample: Sample, *, tau: Share = 0.99) -> float:
    """|S99|, the share of rows with confidence >= tau (Mukhoti 2020)."""
    return average(*_weighted(sample, _s99(sample, tau)))


def _s99_accuracy(sample: Sample, tau: float) -> Column:
    return sample.columns.correct, sample.columns.confidence >= tau


@METRICS.add(
    values=UNIT,
    better="higher",
    unit="probability",
    rows=_s99_accuracy,
    range=_share,
    interval=share_interval,
    empty="no row is that confident",
)
def s99_accuracy(sample: Sample, *, tau: Share = 0.99) -> float:
    """Accuracy of the rows with confidence >= tau."""
    values, mask = _s99_accuracy(sample, tau)
    return average(values, sample.weights, mask)


def _weighted(sample: Sample, column: Column) -> tuple[Any, Floats | None]:
    values, _ = column
    return np.asarray(values), sample.weights
