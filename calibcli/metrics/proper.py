"""Means over rows: accuracy, proper scores, confidence and entropy, and the share of very confident rows."""

from __future__ import annotations

import math

import numpy as np

from calibcli.metrics.intervals import Ends, MeanOf
from calibcli.metrics.sample import BRIER, METRICS, NATS, SIGNED, UNIT, Of, Sample, average
from calibcli.predictions import Floats
from calibcli.spec import Share

UNSEEN = 0.95  # quantile over rows of what their worst label would cost
NO_RIGHT, NO_WRONG = "no row is correct", "no row is wrong"


def high(values: Floats, quantile: float) -> float:
    """Quantile that may be infinite."""
    return float(np.quantile(values, quantile, method="higher"))


def _cost(sample: Sample) -> Ends:
    """NLL that a row may have: the scores tell it for every label, of which these rows show one each.

    At least twice the mean, as rows that are all alike tell nothing of others.
    """
    return 0.0, max(high(sample.columns.most, UNSEEN), 2 * average(sample.columns.nll, sample.weights))


def _nats(sample: Sample) -> Ends:
    """Entropy that a row may have; the NLL of a row that is correct."""
    return 0.0, math.log(sample.columns.k)


def _cost_of_wrong(sample: Sample) -> Ends:
    return math.log(2), max(sample.once(_cost)[1], math.log(2))


@METRICS.add(values=UNIT, better="higher", unit="probability")
def accuracy(sample: Sample) -> MeanOf:
    """Share of rows whose predicted class is the label; ties of the scores go to the lowest class.

    A share from 0 to 1; its interval is that of Clopper and Pearson (1934).

    >>> round(calibcli.measure(logits, labels, "accuracy")["accuracy"].value, 4)
    0.9107
    """
    return MeanOf(sample, sample.columns.correct, share=True)


@METRICS.add(values=NATS, better="lower", unit="nats")
def nll(sample: Sample) -> MeanOf:
    """Negative log-likelihood, mean of -log p_y.

    In nats: the logarithmic score of Good (1952).

    >>> round(calibcli.measure(logits, labels, "nll")["nll"].value, 4)
    0.4637
    """
    return MeanOf(sample, sample.columns.nll, ends=_cost)


@METRICS.add(values=BRIER, better="lower", unit="")
def brier(sample: Sample) -> MeanOf:
    """Brier score, mean of Σ_k (p_k - 1[k = y])², in [0, 2]; of two classes half of that, mean of (P(event) - y)².

    Brier (1950); as `brier_score_loss(scale_by_half="auto")` of scikit-learn.

    >>> round(calibcli.measure(logits, labels, "brier")["brier"].value, 4)
    0.1487
    """
    return MeanOf(sample, sample.columns.brier, ends=(0.0, 1.0 if sample.columns.k == 2 else 2.0))


@METRICS.add(values=UNIT, better="lower", unit="")
def brier_top(sample: Sample) -> MeanOf:
    """Brier score of the top label, mean of (confidence - correct)².

    In [0, 1]: the score of Brier (1950) for the event that the prediction is correct.

    >>> round(calibcli.measure(logits, labels, "brier_top")["brier_top"].value, 4)
    0.0712
    """
    return MeanOf(sample, sample.top.residual**2)


@METRICS.add(values=UNIT, unit="probability")
def mean_confidence(sample: Sample) -> MeanOf:
    """Mean probability of the predicted class.

    A probability; the confidence of Guo et al. (2017).

    >>> round(calibcli.measure(logits, labels, "mean_confidence")["mean_confidence"].value, 4)
    0.9754
    """
    return MeanOf(sample, sample.columns.confidence, ends=(1 / sample.columns.k, 1.0))


@METRICS.add(values=SIGNED, better="zero", unit="probability")
def confidence_gap(sample: Sample, *, of: Of = "auto") -> MeanOf:
    """Mean confidence minus accuracy, positive when overconfident; of two classes mean P(event) minus its frequency.

    Its absolute value is at most that of `ece`.

    A difference of probabilities: calibration in the large (Cox 1958).

    >>> round(calibcli.measure(logits, labels, "confidence_gap")["confidence_gap"].value, 4)
    0.0646
    """
    least = -1.0 if sample.columns.k == 2 else 1 / sample.columns.k - 1  # of two classes, of the event
    return MeanOf(sample, sample.view(of).residual, ends=(least, 1.0))


@METRICS.add(values=NATS, unit="nats")
def entropy(sample: Sample) -> MeanOf:
    """Mean entropy of the predicted distribution.

    In nats (Shannon 1948).

    >>> round(calibcli.measure(logits, labels, "entropy")["entropy"].value, 4)
    0.0634
    """
    return MeanOf(sample, sample.columns.entropy, ends=_nats)


@METRICS.add(values=NATS, unit="nats")
def entropy_correct(sample: Sample) -> MeanOf:
    """Mean entropy over rows that are correct.

    In nats (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "entropy_correct")["entropy_correct"].value, 4)
    0.0371
    """
    return MeanOf(sample, sample.columns.entropy, sample.columns.correct, _nats, empty=NO_RIGHT)


@METRICS.add(values=NATS, unit="nats")
def entropy_wrong(sample: Sample) -> MeanOf:
    """Mean entropy over rows that are wrong.

    In nats (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "entropy_wrong")["entropy_wrong"].value, 4)
    0.3319
    """
    return MeanOf(sample, sample.columns.entropy, ~sample.columns.correct, _nats, empty=NO_WRONG)


@METRICS.add(values=NATS, better="lower", unit="nats")
def nll_correct(sample: Sample) -> MeanOf:
    """Mean NLL over rows that are correct.

    In nats (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "nll_correct")["nll_correct"].value, 4)
    0.0154
    """
    return MeanOf(sample, sample.columns.nll, sample.columns.correct, _nats, empty=NO_RIGHT)


@METRICS.add(values=NATS, better="lower", unit="nats")
def nll_wrong(sample: Sample) -> MeanOf:
    """Mean NLL over rows that are wrong.

    In nats (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "nll_wrong")["nll_wrong"].value, 4)
    5.0368
    """
    return MeanOf(sample, sample.columns.nll, ~sample.columns.correct, _cost_of_wrong, empty=NO_WRONG)


@METRICS.add(values=UNIT, unit="probability")
def high_confidence_share(sample: Sample, *, tau: Share = 0.99) -> MeanOf:
    """|S99|, the share of rows with confidence >= tau (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "high_confidence_share:tau=0.9")["high_confidence_share"].value, 4)
    0.9228
    """
    return MeanOf(sample, sample.columns.confidence >= tau, share=True)


@METRICS.add(values=UNIT, better="higher", unit="probability")
def high_confidence_accuracy(sample: Sample, *, tau: Share = 0.99) -> MeanOf:
    """Accuracy of the rows with confidence >= tau.

    A share of those rows, from 0 to 1 (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "high_confidence_accuracy:tau=0.9")["high_confidence_accuracy"].value, 4)
    0.9478
    """
    confident = sample.columns.confidence >= tau
    return MeanOf(sample, sample.columns.correct, confident, share=True, empty="no row is that confident")
