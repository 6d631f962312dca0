"""The error that compressing rows to a histogram of confidence makes in each metric: 0, a bound, or unknown.

Within a cell the rows of one outcome keep their number, mean and variance (see `scores.histogram`). So means, binned
errors whose bins are unions of cells, and whatever is quadratic in the confidence do not change. For other metrics the
bound is over all places in their cell where these rows could lie. With shares s of the rows and residuals r = p - y:

    a cell that a bin edge cuts     Σ|d_b| changes by at most 2 ρ, ρ = Σ s|r| over its rows (and their share by 2 μ)
    a smooth function h of p        Σ s h(p) changes by at most Σ s variance · max|h''| over the cells
    a Lipschitz function h of p     Σ s h(p) changes by at most 2 Σ s deviation · max|h'|

A metric has its bound in its trait `condensed`. Without one, sums over classes are exact, metrics that read the scores
again have the number of rows read in their interval, and a mean (`MeanOf`) is exact if it stays the same wherever in
their cells the rows are placed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from calibcli.core.result import Estimate
from calibcli.core.shelves import Choice
from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.shelf import MetricTraits, Of, Sample, reads_scores
from calibcli.scores.columns import Columns
from calibcli.scores.histogram import CELLS, NAMES, PLACES, SKEW, interval_of
from calibcli.scores.predictions import Floats, Ints

ERROR = "cell_error"  # key of `Estimate.detail`
UNKNOWN = "rows that are kept as sums over cells of confidence do not tell it: measure up to 5,000,000 of them together"
SAME = 1e-12  # relative difference of two sums of the same rows that is rounding
SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (-1, -1, 1, 1))
"""Whether NLL, `most`, Brier score and entropy rise or fall with the confidence within a cell, in three trials."""


class PlacedRows:
    """The rows of a condensed sample in their cells, with sums over each cell.

    Attributes:
        mass, weight: (cells,) share of the rows and Σ s|r|.
        variance, deviation: Σ s (p - mean)² and Σ s times the standard deviation, over cells and outcomes.
    """

    def __init__(self, sample: Sample, of: Of) -> None:
        columns = sample.columns
        assert columns.place is not None
        self.sample, self.view = sample, sample.view(of)
        side = columns.predicted if columns.k == 2 and self.view is sample.positive else 0 * columns.predicted
        _, self.cell = np.unique(columns.place + PLACES * side, return_inverse=True)
        share, size = self.view.shares, int(self.cell.max()) + 1
        self.mass = np.bincount(self.cell, share, size)
        self.weight = np.bincount(self.cell, share * np.abs(self.view.residual), size)
        outcomes, self.outcome = np.unique(4 * self.cell + 2 * columns.labels + columns.predicted, return_inverse=True)
        outcome_share = np.bincount(self.outcome, share)
        mean = np.bincount(self.outcome, share * self.view.p) / outcome_share
        square = np.bincount(self.outcome, share * (self.view.p - mean[self.outcome]) ** 2, len(outcomes))
        self.variance, self.deviation = float(square.sum()), float(np.sqrt(square * outcome_share).sum())

    def cut_by_width(self, bins: int) -> tuple[Floats, Floats]:
        """Return (bins - 1,) Σ s|r| and the share of rows of the cell that each inner edge of equal-width bins cuts."""
        edge = np.arange(1, bins)
        at, cuts = (edge * CELLS) // bins, (edge * CELLS) % bins != 0
        index = interval_of(self.view.p)
        of = (self.view.shares * np.abs(self.view.residual), self.view.shares)
        rho, mass = (np.where(cuts, np.bincount(index, values, CELLS)[at], 0.0) for values in of)
        return rho, mass

    def cut_by_mass(self, bins: int) -> tuple[float, float]:
        """Return Σ s|r| and the share of rows of the cells in which cuts between bins of equal mass fall.

        No tie reaches from one cell to another.
        """
        view, order = self.view, self.view.order
        assert view.weights is not None
        at = np.minimum(np.searchsorted(np.cumsum(view.weights[order]), view.cuts(bins)[1:-1]), view.n - 1)
        cells = np.unique(self.cell[order][at])
        return float(self.weight[cells].sum()), float(self.mass[cells].sum())

    def in_order(self) -> tuple[Floats, Floats]:
        """Return (cells,) misses and hits as shares of the rows, cells by rising odds."""
        view = self.view
        p, complement, hits = (np.bincount(self.cell, view.shares * v) for v in (view.p, view.complement, view.hit))
        with np.errstate(divide="ignore"):
            order = np.argsort(np.log(p) - np.log(complement), kind="stable")
        return np.maximum(self.mass - hits, 0.0)[order], np.asarray(hits[order], np.float64)


Bound = Callable[[PlacedRows, Mapping[str, Any], float], float | None]
"""Maps the rows in cells, options and value of a metric to the largest change by merging; None where it is unknown."""


def stated(sample: Sample, choices: Sequence[Choice[MetricTraits]], estimates: Sequence[Estimate]) -> list[Estimate]:
    """Add to estimates of condensed rows their largest error, in `detail`; remove the value where it is unknown."""
    checked = []
    for choice, e in zip(choices, estimates, strict=True):
        error = 0.0 if e.value is None else _error(sample, choice, e.value)
        if error is None:
            e = Estimate(name=e.name, value=None, scope=e.scope, unit=e.unit, better=e.better, n=e.n, reason=UNKNOWN)
        elif error > 0:
            e = dataclasses.replace(e, detail={**e.detail, ERROR: error})
        checked.append(e)
    return checked


def _error(sample: Sample, choice: Choice[MetricTraits], value: float) -> float | None:
    """Return the largest error of a metric of condensed rows; None where it is unknown."""
    bound: Bound | None = choice.traits.condensed
    if bound is not None:
        of = choice.options.get("of", choice.traits.view)
        return bound(sample.once(PlacedRows, of), choice.options, value)
    if reads_scores(choice):
        return 0.0
    if not isinstance(choice(sample), MeanOf):
        return None
    with np.errstate(all="ignore"):  # a moved probability may lie beyond 1
        moved = [float(choice(other)) for other in sample.once(_moved_rows)]
    return 0.0 if all(abs(other - value) <= SAME * max(abs(value), 1.0) for other in moved) else None


def _moved_rows(sample: Sample) -> list[Sample]:
    """Place the rows elsewhere in their cells, with the same number, mean and variance of every column.

    Each outcome of a cell gets two rows. In turn either lies at the end of the cell, which reveals a threshold within
    it; columns rise or fall together in other ways, which reveals products; and predicted classes, which are not kept,
    are changed.
    """
    columns, at = sample.columns, sample.once(PlacedRows, "auto")
    assert columns.weights is not None
    first = np.unique(at.outcome, return_index=True)[1]
    count = np.bincount(at.outcome, columns.weights).astype(np.float64)
    values = np.stack([columns.numbers[name] for name in NAMES])
    with np.errstate(invalid="ignore"):  # inf - inf where the NLL is infinite
        mean = np.stack([np.bincount(at.outcome, columns.weights * row) for row in values]) / count
        square = (values - mean[:, at.outcome]) ** 2
        spread = np.sqrt(np.stack([np.bincount(at.outcome, columns.weights * row) for row in square]) / count)
    spread = np.nan_to_num(spread, nan=0.0, posinf=0.0)
    lower = interval_of(mean[0]) / CELLS
    with np.errstate(divide="ignore", invalid="ignore"):
        up, down = (lower + 1 / CELLS - mean[0]) / spread[0], spread[0] / (mean[0] - lower)
    tilts = (np.clip(np.nan_to_num(tilt, nan=1.0), 1 / SKEW, SKEW) for tilt in (up, down, np.ones(len(count))))
    return [
        Sample.of(_placed(columns, first, count, mean, spread * np.array([1, -1, *signs])[:, None], tilt, shift))
        for shift, (signs, tilt) in enumerate(zip(SIGNS, tilts, strict=True))
    ]


def _placed(
    columns: Columns, first: Ints, count: Floats, mean: Floats, spread: Floats, tilt: Floats, shift: int
) -> Columns:
    """Make two rows for each outcome of a cell, `tilt` standard deviations above the mean and 1 / tilt below it.

    Args:
        first: (outcomes,) index of a row of each.  shift: added to the predicted class, of more than two.
    """
    upper = count / (1 + tilt * tilt)
    predicted, labels = (np.tile(column[first], 2) for column in (columns.predicted, columns.labels))
    correct = predicted == labels
    if columns.k > 2:
        predicted = (predicted + shift + np.arange(len(predicted))) % columns.k
        labels = np.where(correct, predicted, (predicted + 1) % columns.k)
    return dataclasses.replace(
        columns,
        numbers=dict(zip(NAMES, np.concatenate([mean - spread / tilt, mean + spread * tilt], axis=1), strict=True)),
        weights=np.concatenate([count - upper, upper]),
        predicted=predicted,
        labels=labels,
        correct=correct,
        place=None,
    )


def unchanged(at: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound of functions of means, numbers and variances within cells: no change."""
    return 0.0


def of_root(change: float, value: float) -> float:
    """Bound the change of a root whose square changes by so much."""
    return min(math.sqrt(change), change / value if value > 0 else math.inf, 1.0)
