"""What it is worth to act on a probability from a threshold on: net benefit, sensitivity and PPV."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from calibcli.core.options import Range
from calibcli.metrics._histogram_error import PlacedRows
from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.registry import METRICS, UNIT, Sample
from calibcli.scores.histogram import CELLS

Threshold = Annotated[float, Range(0, 1, open_low=True, open_high=True)]
AT = 0.5  # from which on the event is the more probable class


def odds(at: float) -> float:
    """Return t / (1 - t): how many needless actions weigh as much as one event that is missed."""
    return at / (1 - at)


def _cut(placed: PlacedRows, at: float) -> float:
    """Return the share of rows in the cells next to the threshold, which merging may carry across it."""
    near = np.abs(placed.view.p - at) <= 1 / CELLS
    return float(placed.view.shares[near].sum())


def _benefit_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    return max(1.0, odds(options["at"])) * _cut(placed, options["at"])


def _share_condensed(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change of a share of some rows: those that cross, twice, over the rows that surely belong to them."""
    cut, view = _cut(placed, options["at"]), placed.view
    least = min(float(view.shares[rows].sum()) for rows in (view.hit, ~view.hit, view.p > options["at"] + 1 / CELLS))
    return min(2 * cut / least, 1.0) if least > 0 else float(cut > 0)


share_of_rows = functools.partial(
    METRICS.add,
    values=UNIT,
    better="higher",
    unit="probability",
    two_classes=True,
    view="positive",
    condensed=_share_condensed,
)


@METRICS.add(
    values=Range(high=1),
    narrowed=lambda k, options: Range(-odds(options["at"]), 1),
    better="higher",
    unit="",
    two_classes=True,
    view="positive",
    condensed=_benefit_condensed,
    called=("nb", "dca", "decision_curve", "decision_curve_analysis", "clinical_utility"),
)
def net_benefit(sample: Sample, *, at: Threshold = AT) -> MeanOf:
    """Net benefit of acting if P(event) >= `at` = t, the mean of y - (1 - y) t / (1 - t) over those rows, else 0.

    Not to act has 0. `--curve decision` draws it over t, beside acting on everybody (Vickers & Elkin 2006).

    >>> round(calibcli.measure([0.9, 0.3, 0.2, 0.1], [1, 1, 0, 0], "net_benefit:at=0.2")["net_benefit:at=0.2"].value, 4)
    0.4375
    """
    value = np.where(sample.positive.hit, 1.0, -odds(at))
    return MeanOf(sample, np.where(sample.positive.at_least(at), value, 0.0), ends=(-odds(at), 1.0))


@share_of_rows(
    called=("recall", "recall_score", "tpr", "true_positive_rate", "hit_rate", "sens"),
)
def sensitivity(sample: Sample, *, at: Threshold = AT) -> MeanOf:
    """Share of the events with P(event) >= `at`, the sensitivity or recall (Yerushalmy 1947).

    >>> calibcli.measure([0.9, 0.3, 0.2, 0.1], [1, 1, 0, 0], "sensitivity")["sensitivity"].value
    0.5
    """
    return MeanOf(sample, sample.positive.at_least(at), sample.positive.hit, share=True, empty="no row is the event")


@share_of_rows(
    called=("precision", "precision_score", "positive_predictive_value", "prec"),
)
def ppv(sample: Sample, *, at: Threshold = AT) -> MeanOf:
    """Positive predictive value, the share of events among rows with P(event) >= `at` (Vecchio 1966).

    >>> round(calibcli.measure([0.9, 0.3, 0.2, 0.1], [1, 1, 0, 0], "ppv:at=0.2")["ppv:at=0.2"].value, 4)
    0.6667
    """
    return MeanOf(
        sample, sample.positive.hit, sample.positive.at_least(at), share=True, empty="no row is that probable"
    )
