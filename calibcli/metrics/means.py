"""Metrics that are means over rows: accuracy, proper scores, confidence, entropy, and calibration in the large."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np

from calibcli.core.options import BINS, Count, Range, Share
from calibcli.core.result import Table
from calibcli.core.statistics import normal_quantile, normal_share, root, squares
from calibcli.metrics._histogram_error import PlacedRows, unchanged
from calibcli.metrics.binned import debiased, l1
from calibcli.metrics.intervals import Constant, Ends, MeanOf, WeightedMean, average
from calibcli.metrics.registry import ANY, BRIER, METRICS, NATS, SIGNED, UNIT, Interval, Of, Sample, Statistic
from calibcli.metrics.reliability import BinaryOutcomes, Bins
from calibcli.scores.columns import ClassBins
from calibcli.scores.histogram import CELLS, interval_of
from calibcli.scores.predictions import Floats

# Calibration in the large: how often an event happened against its mean probability.

FARTHEST = 1e6  # a ratio above which no upper bound is given


@METRICS.add(
    values=Range(0),
    better="",
    unit="",
    condensed=unchanged,
    first_screen="two classes",
    called=(
        "o:e",
        "oe",
        "o/e",
        "oe_ratio",
        "o_e",
        "observed_expected_ratio",
        "observed_to_expected",
        "calibration_ratio",
    ),
)
def observed_expected(sample: Sample, *, of: Of = "auto") -> Statistic:
    """O:E, observed frequency over mean probability; 1 if calibrated in the large (Debray et al. 2017).

    >>> round(calibcli.measure(logits, labels, "observed_expected")["observed_expected"].value, 4)
    0.9337
    """
    return Ratio(sample.view(of))


@dataclass(frozen=True, eq=False)
class Ratio(Statistic):
    """The θ at which the mean of y - θ p is 0; the interval holds every θ at which these rows do not refute that."""

    view: BinaryOutcomes

    @cached_property
    def value(self) -> float:
        expected = average(self.view.p, self.view.weights)
        return average(self.view.hit, self.view.weights) / expected if expected > 0 else math.nan

    def interval(self, level: float) -> Interval:
        """Return Fieller's interval, with the score form instead of the normal one."""
        if not math.isfinite(self.value):
            return Interval(reason="every probability is 0")
        if lacking := self._rows(self.value).lacking:
            return Interval(reason=lacking)
        tail = (1 - level) / 2

        def under(theta: float) -> float:
            return -self._rows(theta).bounds(tail, -theta, 1.0)[0]

        def over(theta: float) -> float:
            return -self._rows(theta).bounds(tail, -theta, 1.0)[1]

        low, far = root(under, 0.0, self.value, 1e-6), max(2 * self.value, 1.0)
        while over(far) < 0 and far < FARTHEST:
            far *= 4
        high = root(over, self.value, far, 1e-6) if far < FARTHEST else None
        reason = "" if high is not None else "no ratio is too large for so few rows"
        how = f"score form of y - θ p, solved for θ{self._rows(self.value).clustered}"
        return Interval(low=low, high=high, level=level, how=how, reason=reason, detail={"calibrated": 1.0})

    def _rows(self, theta: float) -> WeightedMean:
        view = self.view
        return WeightedMean(view.hit - theta * view.p, view.weights, view.counts, view.groups)


# Means over rows: accuracy, proper scores, confidence, entropy and the share of very confident rows. Two tests of
# calibration: Spiegelhalter's Z of the Brier score, and a simulated one.

STEEP = 10.0  # the most that the second derivative of (1 - 2p)² p (1 - p) can be
NO_RIGHT, NO_WRONG = "no row is correct", "no row is wrong"
UNSEEN_COST = (
    2  # times the mean NLL: the least that a row which was not drawn may cost, as equal rows tell nothing of it
)


def cost(sample: Sample) -> tuple[float, Floats]:
    """Return the range of the NLL of each row over all labels, of which the rows show one each.

    The upper end prices a row that was not drawn, and is at least `UNSEEN_COST` times the mean NLL.
    """
    return 0.0, np.maximum(sample.columns.most, UNSEEN_COST * average(sample.columns.nll, sample.weights))


def _nats(sample: Sample) -> Ends:
    """Return the range of the entropy of a row, which is also that of the NLL of a correct row."""
    return 0.0, math.log(sample.columns.k)


def _up_to_log_k(k: int | None, options: Mapping[str, Any]) -> Range:
    return Range(0, math.log(k)) if k else NATS


def _cost_of_wrong(sample: Sample) -> tuple[float, Floats]:
    """Return the range of the NLL of a wrong row, whose label is not the most probable class."""
    return math.log(2), np.maximum(sample.memoized(cost)[1], math.log(2))


@METRICS.add(
    values=UNIT,
    better="higher",
    unit="probability",
    called=("acc", "accuracy_score", "top1", "top_1_accuracy", "multiclass_accuracy"),
    proper=True,  # of the ranking of classes
    reads=(),
    rows="zero_one",
    kept="correct",
    named=3,
    first_screen="always",
)
def accuracy(sample: Sample) -> MeanOf:
    """Share of rows whose predicted class is the label; ties of the scores go to the lowest class.

    A share from 0 to 1; its interval is that of Clopper and Pearson (1934).

    >>> round(calibcli.measure(logits, labels, "accuracy")["accuracy"].value, 4)
    0.9107
    """
    return MeanOf(sample, sample.columns.correct, share=True)


@METRICS.add(
    values=NATS,
    better="lower",
    unit="nats",
    reads=("nll", "most"),
    label="NLL",
    called=(
        "log_loss",
        "logloss",
        "cross_entropy",
        "ce",
        "nll_loss",
        "negative_log_likelihood",
        "neg_log_loss",
        "log_score",
    ),
    proper=True,
    kept="nll",
    rows="log_loss",
    named=1,
    first_screen="always",
)
def nll(sample: Sample) -> MeanOf:
    """Negative log-likelihood, mean of -log p_y.

    In nats: the logarithmic score of Good (1952).

    >>> round(calibcli.measure(logits, labels, "nll")["nll"].value, 4)
    0.4637
    """
    return MeanOf(sample, sample.columns.nll, ends=cost)


@METRICS.add(
    values=BRIER,
    narrowed=lambda k, options: Range(0, 1 if k == 2 else 2),
    better="lower",
    unit="",
    reads=("brier",),
    label="Brier score",
    called=("brier_score", "brier_score_loss", "mse", "brier_loss", "neg_brier_score", "quadratic_score"),
    of_top="brier_top",
    proper=True,
    parts=True,
    kept="brier",
    named=4,
    first_screen="two classes",
)
def brier(sample: Sample) -> MeanOf:
    """Brier score, mean of Σ_k (p_k - 1[k = y])², in [0, 2]; of two classes half of that, mean of (P(event) - y)².

    Brier (1950); as `brier_score_loss(scale_by_half="auto")` of scikit-learn.

    >>> round(calibcli.measure(logits, labels, "brier")["brier"].value, 4)
    0.1487
    """
    return MeanOf(sample, sample.columns.brier, ends=(0.0, 1.0 if sample.columns.k == 2 else 2.0))


@METRICS.add(
    values=UNIT,
    better="lower",
    unit="",
    label="Brier score of the top label",
    parts=True,
    named=5,
    first_screen="confidence",
)
def brier_top(sample: Sample) -> MeanOf:
    """Brier score of the top label, mean of (confidence - correct)².

    In [0, 1]: the score of Brier (1950) for the event that the prediction is correct.

    >>> round(calibcli.measure(logits, labels, "brier_top")["brier_top"].value, 4)
    0.0712
    """
    return MeanOf(sample, sample.top.residual**2)


@METRICS.add(values=UNIT, narrowed=lambda k, options: Range(1 / k if k else 0, 1), unit="probability")
def mean_confidence(sample: Sample) -> MeanOf:
    """Mean probability of the predicted class.

    A probability; the confidence of Guo et al. (2017).

    >>> round(calibcli.measure(logits, labels, "mean_confidence")["mean_confidence"].value, 4)
    0.9754
    """
    return MeanOf(sample, sample.columns.confidence, ends=(sample.columns.floor, 1.0))


def _gap(k: int | None, options: Mapping[str, Any]) -> Range:
    """Narrow the range: the confidence is at least 1 / k."""
    return Range(-1 if k in (None, 2) else 1 / k - 1, 1)


@METRICS.add(values=SIGNED, narrowed=_gap, better="zero", unit="probability", first_screen="confidence")
def confidence_gap(sample: Sample, *, of: Of = "auto") -> MeanOf:
    """Mean confidence minus accuracy, positive when overconfident; of two classes mean P(event) minus its frequency.

    Its absolute value is at most that of `ece`.

    A difference of probabilities: calibration in the large (Cox 1958).

    >>> round(calibcli.measure(logits, labels, "confidence_gap")["confidence_gap"].value, 4)
    0.0646
    """
    least = -1.0 if sample.columns.k == 2 else 1 / sample.columns.k - 1  # of two classes, of the event
    return MeanOf(sample, sample.view(of).residual, ends=(least, 1.0))


@METRICS.add(values=NATS, narrowed=_up_to_log_k, unit="nats", reads=("entropy",))
def entropy(sample: Sample) -> MeanOf:
    """Mean entropy of the predicted distribution.

    In nats (Shannon 1948).

    >>> round(calibcli.measure(logits, labels, "entropy")["entropy"].value, 4)
    0.0634
    """
    return MeanOf(sample, sample.columns.entropy, ends=_nats)


@METRICS.add(values=NATS, narrowed=_up_to_log_k, unit="nats", reads=("entropy",), papers=True)
def entropy_correct(sample: Sample) -> MeanOf:
    """Mean entropy over rows that are correct.

    In nats (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "entropy_correct")["entropy_correct"].value, 4)
    0.0371
    """
    return MeanOf(sample, sample.columns.entropy, sample.columns.correct, _nats, empty=NO_RIGHT)


@METRICS.add(values=NATS, narrowed=_up_to_log_k, unit="nats", reads=("entropy",), papers=True)
def entropy_wrong(sample: Sample) -> MeanOf:
    """Mean entropy over rows that are wrong.

    In nats (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "entropy_wrong")["entropy_wrong"].value, 4)
    0.3319
    """
    return MeanOf(sample, sample.columns.entropy, ~sample.columns.correct, _nats, empty=NO_WRONG)


@METRICS.add(values=NATS, narrowed=_up_to_log_k, better="lower", unit="nats", reads=("nll",), papers=True)
def nll_correct(sample: Sample) -> MeanOf:
    """Mean NLL over rows that are correct.

    In nats (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "nll_correct")["nll_correct"].value, 4)
    0.0154
    """
    return MeanOf(sample, sample.columns.nll, sample.columns.correct, _nats, empty=NO_RIGHT)


@METRICS.add(
    values=NATS,
    narrowed=lambda k, options: Range(math.log(2) if k else 0),  # p_y of a wrong row is at most 1/2
    better="lower",
    unit="nats",
    reads=("nll", "most"),
    papers=True,
)
def nll_wrong(sample: Sample) -> MeanOf:
    """Mean NLL over rows that are wrong.

    In nats (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "nll_wrong")["nll_wrong"].value, 4)
    5.0368
    """
    return MeanOf(sample, sample.columns.nll, ~sample.columns.correct, _cost_of_wrong, empty=NO_WRONG)


def _share_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging: the share of rows in the cell that the threshold cuts."""
    tau = options["tau"]
    if abs(tau * CELLS - round(tau * CELLS)) < 1e-9:
        return 0.0
    p = placed.view.p
    cut = float(placed.view.shares[interval_of(p) == int(tau * CELLS)].sum())
    return min(cut, 1.0)


@METRICS.add(values=UNIT, unit="probability", condensed=_share_condensed)
def high_confidence_share(sample: Sample, *, tau: Share = 0.99, of: Of = "top") -> MeanOf:
    """|S99|, the share of rows with confidence, or probability of the event, >= tau (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "high_confidence_share:tau=0.9")["high_confidence_share"].value, 4)
    0.9228
    """
    return MeanOf(sample, sample.view(of).at_least(tau), share=True)


def _accuracy_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    cut = _share_condensed(placed, options, value)
    beyond = float(placed.view.shares[placed.view.p >= options["tau"]].sum()) - cut
    return min(2 * cut / beyond, 1.0) if beyond > 0 else float(cut > 0)


@METRICS.add(values=UNIT, better="higher", unit="probability", condensed=_accuracy_condensed)
def high_confidence_accuracy(sample: Sample, *, tau: Share = 0.99, of: Of = "top") -> MeanOf:
    """Accuracy of the rows with confidence >= tau; with of=positive the share of events where P(event) >= tau.

    A share of those rows, from 0 to 1 (Mukhoti et al. 2020).

    >>> round(calibcli.measure(logits, labels, "high_confidence_accuracy:tau=0.9")["high_confidence_accuracy"].value, 4)
    0.9478
    """
    rows = sample.view(of).at_least(tau)
    return MeanOf(sample, sample.view(of).hit, rows, share=True, empty="no row is that confident")


def _z_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging: of the variance under the root, a quartic of p; the numerator is kept."""
    view = placed.view
    variance = float(view.shares @ ((view.complement - view.p) ** 2 * view.p * view.complement))
    lost = STEEP * placed.variance / variance
    rounding = 1e-12 * math.sqrt(view.total)  # sums of N rows over the root of N
    return abs(value) * (1 / math.sqrt(1 - lost) - 1) + rounding if lost < 1 else math.inf


@METRICS.add(values=ANY, better="zero", unit="", condensed=_z_condensed, compared=False)
def spiegelhalter_z(sample: Sample, *, of: Of = "auto") -> Constant:
    """Spiegelhalter's Z (1986), Σ(y - p)(1 - 2p) / (Σ(1 - 2p)² p (1 - p))^½: is the Brier score that of calibration?

    >>> round(calibcli.measure(logits, labels, "spiegelhalter_z")["spiegelhalter_z"].value, 2)
    22.24
    """
    view = sample.view(of)
    tilt = view.complement - view.p
    w = np.ones(view.n) if view.weights is None else view.weights
    power = squares(w, view.counts)
    variance = float((power * tilt * tilt) @ (view.p * view.complement))
    if not variance > 0:
        return Constant(math.nan, Interval(reason="every confidence is 0, 1/2 or 1: the statistic has no variance"))
    z = -float((w * view.residual) @ tilt) / math.sqrt(variance)
    how = "normal under perfect calibration; |Z| beyond null_high happens to a calibrated model 5 % of the time"
    reason = "a test statistic: it has a p-value, not an interval (gate brier, ece or cox_slope)"
    detail = {"p_value": 2 * normal_share(-abs(z))}
    return Constant(z, Interval(reason=reason, how=how, null=0.0, null_high=normal_quantile(0.975), detail=detail))


def _p_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float | None:
    """Return 0 where merging keeps the table of bins, and so the draws."""
    if options["statistic"] != "ece" or placed.cut_by_width(options["bins"])[1].any():
        return None
    return 0.0


@METRICS.add(values=UNIT, better="higher", unit="probability", condensed=_p_condensed, compared=False)
def calibration_p(
    sample: Sample,
    *,
    statistic: Literal["ece", "ece2_debiased", "mmce"] = "ece",
    bins: Count = BINS,
    draws: Annotated[int, Range(1, 1_000_000)] = 9_999,
    of: Of = "auto",
) -> Constant:
    """p-value of perfect calibration: (1 + #{draws with a statistic as large}) / (draws + 1) (Widmann et al. 2019).

    Hits are drawn as binomials with each bin's mean confidence; `mmce` uses 256 bins and its kernel of scale 0.4.

    >>> round(calibcli.measure(logits, labels, "calibration_p:draws=999")["calibration_p"].value, 3)
    0.001
    """
    view = sample.view(of)
    cells = 256 if statistic == "mmce" else bins
    table = view.mass_bins(bins, "whole") if statistic == "ece2_debiased" else view.width_bins(cells, "right")
    rng = np.random.default_rng([sample.seed, cells])
    kernel = np.exp(-np.abs(table.confidence[:, None] - table.confidence) / 0.4)

    def value(d: Floats) -> Floats:
        if statistic == "mmce":
            return np.asarray(((d @ kernel) * d).sum(axis=-1))
        return debiased(table, d) if statistic == "ece2_debiased" else l1(table, d)

    observed = float(value(table.weighted_gap))
    least = observed * (1 - 1e-12) if observed > 0 else observed
    pieces = (value(table.simulated(min(2_000, draws - start), rng)) for start in range(0, draws, 2_000))
    p = (1 + sum(int((piece >= least).sum()) for piece in pieces)) / (draws + 1)
    if view.groups is not None:
        reason = "rows belong to groups, and the test takes them to be independent (ece has bounds for groups)"
        return Constant(p, Interval(reason=reason))
    how = f"{draws} draws of binomial hits per bin; not valid on the rows that a map was fitted on"
    reason = "a p-value has no interval, only simulation_error (ece has bounds)"
    error = math.sqrt(p * (1 - p) / (draws + 1))
    return Constant(p, Interval(reason=reason, how=how, detail={"simulation_error": error}))


def brier_parts(sample: Sample, shown: ClassBins, event: str) -> Table:
    """Tabulate the exact decomposition (Murphy 1973; Stephenson 2008) of `brier` for two classes, else `brier_top`."""
    view = sample.view()
    parts = murphy(view, view.width_bins(shown.bins, shown.edges))
    what = f"brier, of P({event})," if event else "brier_top, of the top label,"
    title = f"{what} = reliability - resolution + uncertainty + within-bin variance - covariance"
    heads = ["brier" if event else "brier_top", *list(parts)[1:]]
    return Table(name="murphy", title=title, columns=heads, rows=[list(parts.values())], tier="asked")


def murphy(view: BinaryOutcomes, bins: Bins) -> dict[str, float]:
    """Split mean (p - y)² = reliability - resolution + uncertainty + within-bin variance - within-bin covariance.

    With shares w_b, mean probability p_b and frequency y_b: Σ w (p_b - y_b)², Σ w (y_b - ȳ)², ȳ (1 - ȳ), the variance
    of p within bins, and twice its covariance with y. The last two are left out of many decompositions, which then do
    not add up.
    """
    p, y = bins.confidence, bins.accuracy
    base, square = float(bins.hit.sum()), view.mean(view.p, view.p)
    brier = view.mean(view.residual, view.residual)
    product = (square + base - brier) / 2  # mean of p y
    return {
        "brier": brier,
        "reliability": float((bins.weight * bins.gap**2).sum()),
        "resolution": float((bins.weight * (y - base) ** 2).sum()),
        "uncertainty": base * (1 - base),
        "variance": square - float((bins.weight * p**2).sum()),
        "covariance": 2 * (product - float((bins.weight * p * y).sum())),
    }
