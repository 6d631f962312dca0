"""The error that compressing rows to a histogram of confidence makes in each metric: 0, a bound, or unknown.

Within a cell the rows of one outcome keep their number, mean and variance (see `scores.histogram`). So means, binned
errors whose bins are unions of cells, and whatever is quadratic in the confidence do not change. For other metrics the
bound is over all places in their cell where these rows could lie. With shares s of the rows, residuals r = p - y,
bins b with d_b = Σ s r, and mean m and variance v of p over the rows of one outcome in a cell:

    a cell that a bin edge cuts     Σ|d_b| changes by at most 2 ρ, ρ = Σ s|r| over the rows of the cell: those that move
                                    take at most ρ from one bin to another. The shares of the bins change by at most 2 μ
                                    in all, where μ is that of the cell.
    a smooth function h of p        Σ s h(p) changes by at most Σ s v max|h''|: it is Σ s [h(m) + h''(ξ) (p - m)² / 2],
                                    as the first order vanishes at the mean, and h'' lies between ± max|h''|.
    a Lipschitz function h of p     Σ s h(p) changes by at most 2 Σ s √v max|h'|: in either place of the rows it is away
                                    from Σ s h(m) by at most max|h'| Σ s |p - m|, and Σ s |p - m| <= Σ s √v.

A metric has its bound in its trait `condensed`. Without one, sums over classes are exact, metrics that read the scores
again have the number of rows read in their interval, and a mean (`MeanOf`) is exact if it stays the same wherever in
their cells the rows are placed. Proofs: docs/statistics/merged-rows.md.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from calibcli.core.registries import Choice
from calibcli.core.result import Estimate
from calibcli.metrics.intervals import MeanOf
from calibcli.metrics.registry import MetricTraits, Of, Sample, reads_scores
from calibcli.scores.columns import Columns
from calibcli.scores.histogram import CELLS, NAMES, PLACES, SKEW, interval_of
from calibcli.scores.predictions import Floats, Ints

ERROR = "cell_error"  # key of `Estimate.detail`
UNKNOWN = "rows that are kept as sums over cells of confidence do not tell it: measure up to 5,000,000 of them together"
SAME = 1e-12  # relative difference of two sums of the same rows that is rounding
SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (-1, -1, 1, 1))
"""Whether NLL, `most`, Brier score and entropy rise or fall with the confidence within a cell, in three trials (see
`_moved_rows`).
"""


class PlacedRows:
    """The rows of a condensed sample in their cells, with sums over each cell.

    Attributes:
        sample, view: the sample, and the probabilities p with their hits y that are measured.
        cell: (N,) the number of the cell of each row.
        outcome: (N,) the number of the outcome of the cell: rows of one cell, one label and one predicted class.
        mass, weight: (cells,) share of the rows μ, and Σ s|r|.
        variance, deviation: Σ s v and Σ s √v over all outcomes of cells.
    """

    def __init__(self, sample: Sample, of: Of) -> None:
        columns = sample.columns
        assert columns.place is not None
        self.sample, self.view = sample, sample.view(of)
        # a place is an interval of confidence; if p is that of the event, it is the confidence or 1 minus it
        event = columns.k == 2 and self.view is sample.positive
        side = columns.predicted if event else 0 * columns.predicted
        _, self.cell = np.unique(columns.place + PLACES * side, return_inverse=True)
        share, size = self.view.shares, int(self.cell.max()) + 1
        self.mass = np.bincount(self.cell, share, size)
        self.weight = np.bincount(self.cell, share * np.abs(self.view.residual), size)
        # labels and predicted classes of condensed rows are 0 or 1; of more classes these say only right or wrong
        code = 4 * self.cell + 2 * columns.labels + columns.predicted
        outcomes, self.outcome = np.unique(code, return_inverse=True)
        outcome_share = np.bincount(self.outcome, share)  # (outcomes,)
        mean = np.bincount(self.outcome, share * self.view.p) / outcome_share
        square = np.bincount(self.outcome, share * (self.view.p - mean[self.outcome]) ** 2, len(outcomes))  # s v
        self.variance, self.deviation = float(square.sum()), float(np.sqrt(square * outcome_share).sum())

    def cut_by_width(self, bins: int) -> tuple[Floats, Floats]:
        """Return (bins - 1,) ρ = Σ s|r| and the share μ of the cell that each inner edge of equal-width bins cuts.

        Edge j / bins lies in the interval ⌊j CELLS / bins⌋ of confidence, and cuts it if the division leaves a rest;
        else both are 0.
        """
        edge = np.arange(1, bins)
        interval_of_edge = (edge * CELLS) // bins
        cuts = (edge * CELLS) % bins != 0
        index = interval_of(self.view.p)  # (N,) in [0, CELLS)
        rho = np.bincount(index, self.view.shares * np.abs(self.view.residual), CELLS)[interval_of_edge]
        mass = np.bincount(index, self.view.shares, CELLS)[interval_of_edge]
        return np.where(cuts, rho, 0.0), np.where(cuts, mass, 0.0)

    def cut_by_mass(self, bins: int) -> tuple[float, float]:
        """Return Σ s|r| and the share of rows of the cells in which cuts between bins of equal mass fall.

        A cut stands where so much weight lies before it, along rows by rising p. Rows of equal p, which a cut may
        divide, are all in one cell.
        """
        view, order = self.view, self.view.order
        assert view.weights is not None
        inner_cuts = view.cuts(bins)[1:-1]  # (bins - 1,) weight before the cut, of all rows together view.total
        row = np.minimum(np.searchsorted(np.cumsum(view.weights[order]), inner_cuts), view.n - 1)
        cells = np.unique(self.cell[order][row])
        return float(self.weight[cells].sum()), float(self.mass[cells].sum())

    def in_order(self) -> tuple[Floats, Floats]:
        """Return (cells,) misses and hits as shares of the rows, cells by rising odds of their mean p."""
        view = self.view
        p = np.bincount(self.cell, view.shares * view.p)  # (cells,)
        complement = np.bincount(self.cell, view.shares * view.complement)
        hits = np.bincount(self.cell, view.shares * view.hit)
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
            e = Estimate(name=e.name, value=None, unit=e.unit, better=e.better, n=e.n, reason=UNKNOWN, **e.where.fields)
        elif error > 0:
            e = dataclasses.replace(e, detail={**e.detail, ERROR: error})
        checked.append(e)
    return checked


def _error(sample: Sample, choice: Choice[MetricTraits], value: float) -> float | None:
    """Return the largest error of a metric of condensed rows; None where it is unknown.

    It is that of the metric's own bound. Without one, a metric that reads the scores of rows again has no error. A mean
    has none if it stays the same when the rows are moved within their cells in three ways (`_moved_rows`).
    """
    bound: Bound | None = choice.traits.condensed
    if bound is not None:
        view = choice.options.get("of", choice.traits.view)
        return bound(sample.memoized(PlacedRows, view), choice.options, value)
    if reads_scores(choice):
        return 0.0
    if not isinstance(choice(sample), MeanOf):
        return None
    with np.errstate(all="ignore"):  # a moved probability may lie beyond 1
        moved = [float(choice(other)) for other in sample.memoized(_moved_rows)]
    return 0.0 if all(abs(other - value) <= SAME * max(abs(value), 1.0) for other in moved) else None


def _moved_rows(sample: Sample) -> list[Sample]:
    """Place the rows elsewhere in their cells, with the same number, mean and variance of every column, in three ways.

    Each outcome of a cell gets two rows (`_placed`). In the first way the upper one stands at the upper end of the cell
    of confidence, in the second the lower one at its lower end, in the third they are as far from the mean as each
    other: a threshold within the cell then changes the value. The columns rise or fall together as `SIGNS` has it,
    which reveals products of columns; and predicted classes, which are not kept, are changed.
    """
    columns, placed = sample.columns, sample.memoized(PlacedRows, "auto")
    assert columns.weights is not None
    first = np.unique(placed.outcome, return_index=True)[1]  # (outcomes,) a row of each
    count = np.bincount(placed.outcome, columns.weights).astype(np.float64)  # (outcomes,)
    values = np.stack([columns.numbers[name] for name in NAMES])  # (6, N): confidence, rest, then those of SIGNS
    with np.errstate(invalid="ignore"):  # inf - inf where the NLL is infinite
        mean = np.stack([np.bincount(placed.outcome, columns.weights * row) for row in values]) / count
        square = (values - mean[:, placed.outcome]) ** 2
        spread = np.sqrt(np.stack([np.bincount(placed.outcome, columns.weights * row) for row in square]) / count)
    spread = np.nan_to_num(spread, nan=0.0, posinf=0.0)  # (6, outcomes)
    lower = interval_of(mean[0]) / CELLS  # where the interval of confidence begins; it is 1 / CELLS wide
    with np.errstate(divide="ignore", invalid="ignore"):
        to_upper_end = (lower + 1 / CELLS - mean[0]) / spread[0]
        to_lower_end = spread[0] / (mean[0] - lower)
    tilts = (to_upper_end, to_lower_end, np.ones(len(count)))
    moved = []
    for trial in range(3):
        # at a larger ratio than SKEW one of the two rows has less than a millionth of the weight, and shows in no sum
        tilt = np.clip(np.nan_to_num(tilts[trial], nan=1.0), 1 / SKEW, SKEW)
        direction = np.array([1, -1, *SIGNS[trial]])[:, None]  # (6, 1); the rest falls as the confidence rises
        moved.append(Sample.of(_placed(columns, first, count, mean, spread * direction, tilt, trial)))
    return moved


def _placed(
    columns: Columns, first: Ints, count: Floats, mean: Floats, spread: Floats, tilt: Floats, shift: int
) -> Columns:
    """Make two rows for each outcome of a cell, `tilt` standard deviations above the mean and 1 / tilt below it.

    The upper row has the weight count / (1 + tilt²), the lower one the rest, count tilt² / (1 + tilt²). So the mean of
    both is the mean, and their variance is spread².

    Args:
        first, count: (outcomes,) index of a row of each, and the number of its rows.
        mean, spread: (6, outcomes) of the columns `NAMES`; the spread is negative for a column that falls.
        tilt: (outcomes,).
        shift: added to the predicted class, of more than two.
    """
    upper = count / (1 + tilt * tilt)
    predicted, labels = np.tile(columns.predicted[first], 2), np.tile(columns.labels[first], 2)
    correct = predicted == labels
    if columns.k > 2:
        predicted = (predicted + shift + np.arange(len(predicted))) % columns.k
        labels = np.where(correct, predicted, (predicted + 1) % columns.k)
    numbers = np.concatenate([mean - spread / tilt, mean + spread * tilt], axis=1)  # (6, 2 outcomes)
    return dataclasses.replace(
        columns,
        numbers=dict(zip(NAMES, numbers, strict=True)),
        weights=np.concatenate([count - upper, upper]),
        predicted=predicted,
        labels=labels,
        correct=correct,
        place=None,
    )


def unchanged(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound of functions of means, numbers and variances within cells: no change."""
    return 0.0


def of_root(change: float, value: float) -> float:
    """Bound the change of value = √q in [0, 1] when q changes by at most `change`: |√q' - √q| <= √change, change / √q.

    The second, as √q' - √q = (q' - q) / (√q' + √q).
    """
    return min(math.sqrt(change), change / value if value > 0 else math.inf, 1.0)
