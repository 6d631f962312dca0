"""Means over rows: accuracy, proper scores, confidence and entropy, and the share of very confident rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
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
    """NLL that a row may have: the scores tell it for every label, of which these rows show one each.

    At least twice the mean, as rows that are all alike tell nothing of others.
    """
    if "cost" not in sample.memo:
        most = high(sample.columns.most, UNSEEN)
        sample.memo["cost"] = 0.0, max(most, 2 * average(sample.columns.nll, sample.weights))
    cost: Range = sample.memo["cost"]
    return cost


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


def _mean(**traits: Any) -> Callable[[Callable[..., Column]], Callable[..., float]]:
    """Puts the mean of a column on the shelf: its value and, by the trait `rows`, interval and paired differences."""

    def put(rows: Callable[..., Column]) -> Callable[..., float]:
        @METRICS.add(rows=rows, **{"interval": mean_interval, **traits})
        @wraps(rows)
        def metric(sample: Sample, **options: Any) -> float:
            values, mask = rows(sample, **options)
            return average(values, sample.weights, mask)

        return metric  # type: ignore[no-any-return]

    return put


@_mean(values=UNIT, better="higher", unit="probability", range=_share, interval=share_interval)
def accuracy(sample: Sample) -> Column:
    """Share of rows whose predicted class is the label; ties of the scores go to the lowest class."""
    return sample.columns.correct, None


@_mean(values=NATS, better="lower", unit="nats", range=_cost)
def nll(sample: Sample) -> Column:
    """Negative log-likelihood, mean of -log p_y."""
    return sample.columns.nll, None


@_mean(values=BRIER, better="lower", unit="", range=_square)
def brier(sample: Sample) -> Column:
    """Brier score, mean of Σ_k (p_k - 1[k = y])², in [0, 2]; of two classes half of that, mean of (P(event) - y)².

    Brier (1950); as `brier_score_loss(scale_by_half="auto")` of scikit-learn.
    """
    return sample.columns.brier, None


@_mean(values=UNIT, better="lower", unit="", range=_share)
def brier_top(sample: Sample) -> Column:
    """Brier score of the top label, mean of (confidence - correct)²."""
    return sample.top.residual**2, None


@_mean(values=UNIT, unit="probability", range=_confident)
def mean_confidence(sample: Sample) -> Column:
    """Mean probability of the predicted class."""
    return sample.columns.confidence, None


@_mean(values=SIGNED, better="zero", unit="probability", range=_over)
def gap(sample: Sample, *, of: Of = "auto") -> Column:
    """Mean confidence minus accuracy, positive when overconfident; of two classes mean P(event) minus its frequency.

    |gap| <= ece.
    """
    return sample.view(of).residual, None


@_mean(values=NATS, unit="nats", range=_cost_of_right)
def entropy(sample: Sample) -> Column:
    """Mean entropy of the predicted distribution."""
    return sample.columns.entropy, None


NO_RIGHT, NO_WRONG = "no row is correct", "no row is wrong"


@_mean(values=NATS, unit="nats", range=_cost_of_right, empty=NO_RIGHT)
def entropy_correct(sample: Sample) -> Column:
    """Mean entropy over rows that are correct."""
    return sample.columns.entropy, sample.columns.correct


@_mean(values=NATS, unit="nats", range=_cost_of_right, empty=NO_WRONG)
def entropy_wrong(sample: Sample) -> Column:
    """Mean entropy over rows that are wrong."""
    return sample.columns.entropy, ~sample.columns.correct


@_mean(values=NATS, better="lower", unit="nats", range=_cost_of_right, empty=NO_RIGHT)
def nll_correct(sample: Sample) -> Column:
    """Mean NLL over rows that are correct."""
    return sample.columns.nll, sample.columns.correct


@_mean(values=NATS, better="lower", unit="nats", range=_cost_of_wrong, empty=NO_WRONG)
def nll_wrong(sample: Sample) -> Column:
    """Mean NLL over rows that are wrong."""
    return sample.columns.nll, ~sample.columns.correct


@_mean(values=UNIT, unit="probability", range=_share, interval=share_interval)
def s99(sample: Sample, *, tau: Share = 0.99) -> Column:
    """|S99|, the share of rows with confidence >= tau (Mukhoti 2020)."""
    return sample.columns.confidence >= tau, None


@_mean(
    values=UNIT,
    better="higher",
    unit="probability",
    range=_share,
    interval=share_interval,
    empty="no row is that confident",
)
def s99_accuracy(sample: Sample, *, tau: Share = 0.99) -> Column:
    """Accuracy of the rows with confidence >= tau."""
    return sample.columns.correct, sample.columns.confidence >= tau
