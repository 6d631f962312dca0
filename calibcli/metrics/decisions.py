"""What it is worth to act on a probability from a threshold on: net benefit, sensitivity and PPV."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

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


def _ends(options: Mapping[str, Any]) -> tuple[float, float]:
    """Return the least and the most that a row can add to a net benefit."""
    needless = odds(options["at"])
    return (-needless, 1.0) if options["against"] == "none" else (-1.0, needless)


@METRICS.add(
    values=Range(),
    narrowed=lambda k, options: Range(*_ends(options)),
    better="higher",
    unit="",
    two_classes=True,
    view="positive",
    condensed=_benefit_condensed,
    called=("nb", "dca", "decision_curve", "decision_curve_analysis", "clinical_utility"),
)
def net_benefit(sample: Sample, *, at: Threshold = AT, against: Literal["none", "all"] = "none") -> MeanOf:
    """Net benefit of acting if P(event) >= `at` = t, the mean of y - (1 - y) t / (1 - t) over those rows, else 0.

    Not to act has 0; `against=all` subtracts what acting on everybody has, which leaves the rows below t with the
    opposite sign. `--curve decision` draws both over t (Vickers & Elkin 2006).

    >>> round(calibcli.measure([0.9, 0.3, 0.2, 0.1], [1, 1, 0, 0], "net_benefit:at=0.2")["net_benefit:at=0.2"].value, 4)
    0.4375
    """
    value = np.where(sample.positive.hit, 1.0, -odds(at))
    acts, ends = sample.positive.at_least(at), _ends({"at": at, "against": against})
    return MeanOf(sample, np.where(acts, value, 0.0) if against == "none" else np.where(acts, 0.0, -value), ends=ends)


@dataclass(frozen=True, eq=False)
class DecisionCurve:
    """Net benefit over the threshold, of acting on the model, on all, and on none, which has 0.

    Attributes:
        t: (T,) thresholds, in steps of 0.01.  model, everybody: (T,) net benefits.
        low, high: (T,) interval of the model's, at each threshold by itself.
        better: (T,) whether the model is above both others.  surely: (T,) whether its differences from both have
            intervals above 0, at each threshold by itself.
        event: its name.  n: rows.  level: of the intervals.
    """

    t: Any
    model: Any
    everybody: Any
    low: Any
    high: Any
    better: npt.NDArray[np.bool_]
    surely: npt.NDArray[np.bool_]
    event: str
    n: int
    level: float

    @classmethod
    def of(cls, sample: Sample, event: str, level: float) -> DecisionCurve:
        """Compute the net benefit at each of the thresholds that some row reaches."""
        view = sample.positive
        t = np.arange(1, max(2, min(99, math.ceil(100 * view.p.max()))) + 1) / 100
        each = [[net_benefit(sample, at=at, against=other) for other in ("none", "all")] for at in t.tolist()]
        ends = [[one.interval(level) for one in both] for both in each]
        low = np.array([[math.nan if e.low is None else e.low for e in both] for both in ends])  # (T, 2)
        high = np.array([math.nan if none.high is None else none.high for none, _ in ends])
        model, gain = np.array([[one.value for one in both] for both in each]).T
        better: Any = (model > 1e-12) & (gain > 1e-12)
        surely: Any = (low > 0).all(axis=1)
        return cls(t, model, model - gain, low[:, 0], high, better, surely, event, view.n, level)

    @property
    def words(self) -> str:
        """The longest ranges of thresholds at which the model does better than acting on all or on none."""
        better, surely = (_longest(self.t, where) for where in (self.better, self.surely))
        return f"at thresholds {better}, surely at {surely}" if self.better.any() else f"at {better}"


def _longest(t: Any, where: npt.NDArray[np.bool_]) -> str:
    found = np.flatnonzero(where)
    run = max(np.split(found, np.flatnonzero(np.diff(found) > 1) + 1), key=len)
    return f"{t[run[0]]:.2f} to {t[run[-1]]:.2f}" if len(run) else "no threshold"


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
