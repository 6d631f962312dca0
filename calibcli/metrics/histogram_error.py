"""What condensing rows to cells does to a metric: nothing, no more than is said here, or what cannot be said.

Within a cell the rows of one outcome keep their number, mean and variance (see `columns.condense`), so that means,
binned errors whose bins the cells divide, and whatever is quadratic in the confidence stay as they are. Of others, the
bound is what these rows could do wherever in their cell they lay. With shares s of the rows, residuals r = p - y:

    a cell that a bin edge cuts     Σ|d_b| changes by at most 2 ρ, ρ = Σ s|r| over its rows (and their share by 2 μ)
    a smooth function h of p        Σ s h(p) changes by at most Σ s variance · max|h''| over the cells
    a Lipschitz function h of p     Σ s h(p) changes by at most 2 Σ s deviation · max|h'|

A metric says its bound in its trait `condensed`. Without one, sums over classes are those of all rows, what reads the
scores again says of how many rows in its interval, and a mean (`MeanOf`) is exact where it stays the same wherever in
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
from calibcli.metrics.shelf import Of, Sample, reads_scores
from calibcli.scores.columns import Columns
from calibcli.scores.histogram import CELLS, NAMES, PLACES, SKEW, interval_of
from calibcli.scores.predictions import Floats, Ints

ERROR = "cell_error"  # key of `Estimate.detail`
UNKNOWN = "rows that are kept as sums over cells of confidence do not tell it: measure up to 5,000,000 of them together"
SAME = 1e-12  # relative difference of two sums of the same rows that is rounding
SIGNS = ((1, 1, 1, 1), (1, -1, 1, -1), (-1, -1, 1, 1))  # of NLL, most, Brier score and entropy, as confidence rises


class PlacedRows:
    """Rows of a sample of cells, with what each cell holds of a view.

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
        own = np.bincount(self.outcome, share)
        mean = np.bincount(self.outcome, share * self.view.p) / own
        square = np.bincount(self.outcome, share * (self.view.p - mean[self.outcome]) ** 2, len(outcomes))
        self.variance, self.deviation = float(square.sum()), float(np.sqrt(square * own).sum())

    def cut_by_width(self, bins: int) -> tuple[Floats, Floats]:
        """(bins - 1,) Σ s|r| and the share of the rows of the cell that each inner edge of equal-width bins cuts."""
        edge = np.arange(1, bins)
        at, cuts = (edge * CELLS) // bins, (edge * CELLS) % bins != 0
        index = interval_of(self.view.p)
        of = (self.view.shares * np.abs(self.view.residual), self.view.shares)
        rho, mass = (np.where(cuts, np.bincount(index, values, CELLS)[at], 0.0) for values in of)
        return rho, mass

    def cut_by_mass(self, bins: int) -> tuple[float, float]:
        """Σ s|r| and the share of the rows of the cells that cuts between bins of equal mass fall in.

        Cells lie apart, so that no tie reaches from one to another.
        """
        view, order = self.view, self.view.order
        assert view.weights is not None
        at = np.minimum(np.searchsorted(np.cumsum(view.weights[order]), view.cuts(bins)[1:-1]), view.n - 1)
        cells = np.unique(self.cell[order][at])
        return float(self.weight[cells].sum()), float(self.mass[cells].sum())

    def in_order(self) -> tuple[Floats, Floats]:
        """(cells,) misses and hits as shares of the rows, cells by rising odds."""
        view = self.view
        p, complement, hits = (np.bincount(self.cell, view.shares * v) for v in (view.p, view.complement, view.hit))
        with np.errstate(divide="ignore"):
            order = np.argsort(np.log(p) - np.log(complement), kind="stable")
        return np.maximum(self.mass - hits, 0.0)[order], np.asarray(hits[order], np.float64)


Bound = Callable[[PlacedRows, Mapping[str, Any], float], float | None]
"""The most that condensing may have changed a metric by, from the cells, its options and its value; None: not known."""


def stated(sample: Sample, choices: Sequence[Choice], estimates: Sequence[Estimate]) -> list[Estimate]:
    """Estimates of condensed rows with the most that condensing may have changed them by, in `detail`; without a value
    where that is not known.
    """
    checked = []
    for choice, e in zip(choices, estimates, strict=True):
        error = 0.0 if e.value is None else _error(sample, choice, e.value)
        if error is None:
            e = Estimate(name=e.name, value=None, scope=e.scope, unit=e.unit, better=e.better, n=e.n, reason=UNKNOWN)
        elif error > 0:
            e = dataclasses.replace(e, detail={**e.detail, ERROR: error})
        checked.append(e)
    return checked


def _error(sample: Sample, choice: Choice, value: float) -> float | None:
    """The most that condensing may have changed a metric by; None where that is not known."""
    bound: Bound | None = choice.traits.get("condensed")
    if bound is not None:
        of = choice.options.get("of", choice.traits.get("view", "auto"))
        return bound(sample.once(PlacedRows, of), choice.options, value)
    if reads_scores(choice):
        return 0.0
    if not isinstance(choice(sample), MeanOf):
        return None
    with np.errstate(all="ignore"):  # a probability may lie beyond 1 there
        moved = [float(choice(other)) for other in sample.once(_elsewhere)]
    return 0.0 if all(abs(other - value) <= SAME * max(abs(value), 1.0) for other in moved) else None


def _elsewhere(sample: Sample) -> list[Sample]:
    """The same cells with their rows elsewhere: number, mean and variance of every column as they were.

    One of the two rows of an outcome at either end of its cell, so that a threshold within the cell is seen; columns
    rise or fall together in other ways, so that their products are; predicted classes, which are not kept, are others.
    """
    columns, at = sample.columns, sample.once(PlacedRows, "auto")
    assert columns.weights is not None
    first = np.unique(at.outcome, return_index=True)[1]
    count = np.bincount(at.outcome, columns.weights).astype(np.float64)
    values = np.stack([getattr(columns, name) for name in NAMES])
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
    """Two rows for each outcome of a cell, `tilt` standard deviations above the mean and the inverse of that below it.

    Args:
        first: (outcomes,) a row of each.  shift: which class is predicted, of more than two.
    """
    upper = count / (1 + tilt * tilt)
    predicted, labels = (np.tile(column[first], 2) for column in (columns.predicted, columns.labels))
    correct = predicted == labels
    if columns.k > 2:
        predicted = (predicted + shift + np.arange(len(predicted))) % columns.k
        labels = np.where(correct, predicted, (predicted + 1) % columns.k)
    return dataclasses.replace(
        columns,
        **dict(zip(NAMES, np.concatenate([mean - spread / tilt, mean + spread * tilt], axis=1), strict=True)),
        weights=np.concatenate([count - upper, upper]),
        predicted=predicted,
        labels=labels,
        correct=correct,
        place=None,
    )


def unchanged(at: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Of functions of means, numbers and variances within cells."""
    return 0.0


def of_root(change: float, value: float) -> float:
    """Of a root whose square changes by so much."""
    return min(math.sqrt(change), change / value if value > 0 else math.inf, 1.0)
