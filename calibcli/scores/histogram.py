"""Compress rows: to sums by class and bin of probability, and, where memory cannot hold the columns of all rows, to two
weighted rows for each cell of a fine histogram of the confidence.

A cell holds the rows of one outcome whose confidence lies in one of CELLS equal intervals or on an edge between two;
where the rest, 1 - confidence, is below 2**-FIRST, also in one of STEPS parts of an octave of it, so that rows of a
saturated model lie apart. Its two rows stand so that sums and sums of squares of every column over any union of cells
are those of all its rows. CELLS is a multiple of every usual number of bins, so that no bin edge cuts a cell; what is
lost is the place of a row within its cell, less than 1 / CELLS in confidence. Cells are sums, so those of parts of the
rows add up to those of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

import numpy as np

from calibcli.core.options import BINS, Edges
from calibcli.core.statistics import bin_index
from calibcli.scores.predictions import Array, Floats, Ints
from calibcli.scores.softmax import SoftmaxBlock

CELLS = 25_200
FIRST, STEPS, OCTAVES = 9, 32, 512  # from where the octaves of the rest are divided, into how many parts, up to where
PLACES = 2 * (CELLS + STEPS * (OCTAVES - FIRST) + 1)  # inside an interval, and on an edge
ColumnName = Literal["confidence", "rest", "nll", "most", "brier", "entropy"]
NAMES: tuple[ColumnName, ...] = get_args(ColumnName)
CONFIDENCE = NAMES[:2]  # the columns that binned metrics of one probability need
FOLD = 1 << 16  # rows that are summed at once
ROUNDING = 1e-11  # relative variance up to which a variance is rounding
SKEW = 1e3  # largest ratio of the distances of two rows from their mean


@dataclass(frozen=True)
class ClassBins:
    """How class probabilities are binned; see `bin_index` for `edges`. Only p > `threshold` counts."""

    bins: int = BINS
    edges: Edges = "right"
    threshold: float = 0.0

    @property
    def width(self) -> int:
        """Bins of a table: `edges=torchmetrics` has one more than `bins`, for probabilities of 1."""
        return self.bins + (self.edges == "torchmetrics")


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Sums over rows per class and bin: (K, width) weights, weighted probabilities and weighted hits."""

    count: Floats
    sum_p: Floats
    sum_y: Floats


def least_listed(bins: ClassBins) -> float:
    """Return the probability below which all are in the first bin, or count for nothing."""
    return 1 / bins.bins if bins.threshold <= 0 else min(bins.threshold, 1 / bins.bins)


class ClassSums:
    """Sums the class table of one span; it is sparse, as at most M probabilities of a row lie beyond the first of M
    bins.
    """

    def __init__(self, bins: ClassBins, k: int, precision: float) -> None:
        self.how, self.k, self.precision = bins, k, precision
        self.width = bins.width
        self.mass = np.zeros(k)
        self.listed: list[tuple[Ints, Floats, Floats | None]] = []
        self.missed: list[tuple[Ints, Floats, Floats | None]] = []

    def add(self, block: SoftmaxBlock, weights: Floats | None) -> None:
        """Add the probabilities that a block lists, and its labels that are not the top class."""
        for row, col, p in block.listed:
            self.listed.append((col, p, None if weights is None else weights[row]))
        miss = block.miss
        self.missed.append((block.labels[miss], block.p_label, None if weights is None else weights[miss]))
        self.mass += block.mass

    def total(self, top: Ints, confidence: Floats, hit: Array, weights: Floats | None) -> Floats:
        """Return (3, K, width) sums of weights, probabilities and hits. Without a threshold, the first bin gets the
        remainder of the totals.

        Args:
            top, confidence, hit, weights: (n,) of the span; the top class, its probability, whether it is the label.
        """
        col, p, w = _joined([(top, confidence, weights), *self.listed])
        flat = self._flat(col, p)
        weighted = p if w is None else w * p
        count, sum_p = self._sums(flat, w), self._sums(flat, weighted)
        sum_y = self._sums(flat[: len(top)], hit if weights is None else weights * hit)
        col, p, w = _joined(self.missed)
        sum_y += self._sums(self._flat(col, p), w)
        if self.how.threshold <= 0:
            rows = len(top) if weights is None else weights.sum()
            mass = self.mass + np.bincount(top, weighted[: len(top)], self.k)
            count[:, 0] = rows - count[:, 1:].sum(axis=1)
            sum_p[:, 0] = np.maximum(mass - sum_p[:, 1:].sum(axis=1), 0.0)
        return np.stack([count, sum_p, sum_y])  # (3, K, width)

    def _flat(self, col: Ints, p: Floats) -> Ints:
        """Return the cell of each probability; those that do not count are in one beyond the last."""
        flat = col * self.width
        flat += bin_index(p, self.how.bins, self.how.edges, self.precision)
        if self.how.threshold > 0:
            flat[p <= self.how.threshold] = self.k * self.width
        return flat

    def _sums(self, flat: Ints, values: Floats | None) -> Floats:
        sums = np.bincount(flat, values, self.k * self.width + 1)
        return np.asarray(sums[:-1], np.float64).reshape(self.k, self.width)


def _joined(parts: list[tuple[Ints, Floats, Floats | None]]) -> tuple[Ints, Floats, Floats | None]:
    col, p = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    given = [part[2] for part in parts if part[2] is not None]
    return col, p, np.concatenate(given) if given else None


def interval_of(confidence: Floats) -> Ints:
    """Return (n,) in [0, CELLS): the interval of confidence that each row lies in."""
    return bin_index(confidence, CELLS)


def place_of(confidence: Floats, complement: Floats) -> Ints:
    """Return (n,) in [0, PLACES): the interval or edge of confidence that each row lies in, and its part of an octave.

    Both rise with the confidence, so that their sum tells them apart.
    """
    below, above = interval_of(confidence), bin_index(confidence, CELLS, "torchmetrics")
    with np.errstate(divide="ignore"):
        fine = np.clip(-STEPS * np.log2(complement), STEPS * FIRST, STEPS * OCTAVES).astype(np.int64) - STEPS * FIRST
    places: Ints = fine + np.where(below == above, below, PLACES // 2 + above - 1)
    return places


Sums = tuple[Ints, Floats, Floats]
"""Occupied cells, their rows, and (2, columns, cells) sums and sums of squares: of the confidence, of what it is beyond
where its interval begins.
"""


def cell_count(k: int) -> int:
    """Return the number of cells for k classes. Of two, the label and the prediction together tell the event."""
    return PLACES * (4 if k == 2 else 2)


@cache
def _starts() -> Ints:
    """Return (CELLS,) the first place of each interval of confidence; the places of its octaves follow."""
    complement = 1 - np.arange(CELLS) / CELLS
    octave = np.floor(-STEPS * np.log2(complement)).astype(np.int64) - STEPS * FIRST
    starts: Ints = np.arange(CELLS) + np.maximum(octave, 0)
    return starts


class HistogramCells:
    """Sums counts, values and squares per cell, span by span; the cells of parts of the rows can be added.

    Attributes:
        predicted: (3, K) rows predicted as each class, how many of them are right, and their summed confidence.
    """

    def __init__(self, k: int, top_only: bool = False, predicted: Floats | None = None, occupied: Sums | None = None):
        self.k, self.top_only = k, top_only
        self.predicted = np.zeros((3, k)) if predicted is None else predicted
        self._parts = [occupied] if occupied else []
        self._waiting: list[tuple[Ints, list[Floats]]] = []
        self._waiting_rows = 0
        self._dense: tuple[Floats, Floats] | None = None

    @property
    def size(self) -> int:
        """Number of cells, empty ones included."""
        return cell_count(self.k)

    def add(self, out: Mapping[str, Floats], predicted: Ints, labels: Ints) -> None:
        """Add the rows of one span."""
        hit = predicted == labels
        side = 2 * labels + predicted if self.k == 2 else hit.astype(np.int64)
        for i, values in enumerate((None, hit, out["confidence"])):
            self.predicted[i] += np.bincount(predicted, values, self.k)
        beyond = out["confidence"] - interval_of(out["confidence"]) / CELLS  # keeps the digits of a variance
        cell = place_of(out["confidence"], out["rest"]) + PLACES * side
        self._waiting.append((cell, [beyond, *(out[name] for name in NAMES[1:])]))
        self._waiting_rows += len(cell)
        if self._waiting_rows >= FOLD:
            self._fold()

    def merge(self, other: HistogramCells) -> None:
        """Add the rows of `other`, which is left unchanged."""
        self.predicted += other.predicted
        self._waiting += other._waiting
        self._waiting_rows += other._waiting_rows
        self._parts += other._parts
        if other._dense is not None:
            self._parts.append(_occupied(*other._dense))
        if self._waiting_rows >= FOLD or len(self._parts) > 1:
            self._fold()

    def _fold(self) -> tuple[Floats, Floats]:
        """Add the waiting rows and the waiting cells to the dense sums."""
        count, sums = self._dense or (np.zeros(self.size), np.zeros((2, len(NAMES), self.size)))  # as in `Sums`
        for used, more, values in self._parts:
            count[used] += more
            sums[:, :, used] += values  # (2, columns, used cells)
        if self._waiting:
            cell = np.concatenate([cell for cell, _ in self._waiting])
            count += np.bincount(cell, minlength=self.size)
            for i, parts in enumerate(zip(*(columns for _, columns in self._waiting), strict=True)):
                column = np.concatenate(parts)
                sums[0, i] += np.bincount(cell, column, self.size)
                sums[1, i] += np.bincount(cell, column * column, self.size)
        self._parts, self._waiting, self._waiting_rows, self._dense = [], [], 0, (count, sums)
        return self._dense

    def arrays(self) -> Sums:
        """Return the occupied cells with their sums."""
        if len(self._parts) == 1 and self._dense is None and not self._waiting:
            return self._parts[0]
        return _occupied(*self._fold())

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the occupied cells alone."""
        return {**vars(self), "_parts": [self.arrays()], "_waiting": [], "_waiting_rows": 0, "_dense": None}

    def columns(self) -> dict[str, Any]:
        """Return one or two rows per occupied cell, weighted by their counts, as the fields of `Columns` without class
        tables.
        """
        used, count, (sums, squares) = self.arrays()
        means, squares = sums / count, squares / count
        with np.errstate(invalid="ignore"):  # inf - inf where the NLL is infinite
            variance = squares - means * means
            spread = np.sqrt(np.where(variance > ROUNDING * squares, variance, 0.0))
        place = used % PLACES
        lower = (np.searchsorted(_starts(), place % (PLACES // 2), side="right") - 1) / CELLS
        means[0] += lower
        spread[:, count == 1] = 0.0
        spread[:2, place >= PLACES // 2] = 0.0
        tilt, single = _tilt(lower, means[1], spread[1]), ~spread.any(axis=0)
        upper = count / (1 + tilt * tilt)
        rows = np.concatenate([np.arange(len(used)), np.flatnonzero(~single)])
        first = np.arange(len(rows)) < len(used)
        spread[1] *= -1  # the rest falls as the confidence rises
        values = means[:, rows] + spread[:, rows] * np.where(first, -1 / tilt[rows], tilt[rows])
        values[:2] = np.clip(values[:2], 0.0, 1.0)
        side = used[rows] // PLACES
        if self.k == 2:
            predicted_rows, labels = side % 2, side // 2
        else:
            predicted_rows, labels = np.zeros_like(side), 1 - side
        return {
            "numbers": dict(zip(NAMES, values, strict=True)),
            "predicted": predicted_rows,
            "labels": labels,
            "correct": predicted_rows == labels,
            "k": self.k,
            "top_only": self.top_only,
            "weights": np.where(first, np.where(single, count, count - upper)[rows], upper[rows]),
            "weight_kind": "count",
            "condensed": round(float(count.sum())),
            "place": used[rows] % PLACES,
            "by_predicted": self.predicted,
        }


def _occupied(count: Floats, sums: Floats) -> Sums:
    used = np.flatnonzero(count)
    return used, count[used], sums[:, :, used]  # the last is (2, columns, used cells)


def _tilt(lower: Floats, complement: Floats, spread: Floats) -> Floats:
    """Return how far above the mean the upper of two rows stands, in standard deviations; the lower stands at the
    inverse below it. This is 1, or as far as the cell reaches (its interval begins at `lower`), so that both rows lie
    within the cell.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        octave = np.floor(-STEPS * np.log2(complement))
        fine = octave >= STEPS * FIRST
        least = np.maximum(1 - lower - 1 / CELLS, np.where(fine, 2 ** (-(octave + 1) / STEPS), 0.0))
        most = np.minimum(1 - lower, np.where(fine, 2 ** (-octave / STEPS), 1.0))
        above, below = (complement - least) / spread, (most - complement) / spread
    tilt = np.where(above < 1, above, np.where(below < 1, 1 / below, 1.0))
    limited: Floats = np.clip(np.nan_to_num(tilt, nan=1.0, posinf=1.0), 1 / SKEW, SKEW)
    return limited
