"""What a metric is a function of: columns and weights, and of each row a probability and whether it came true."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.columns import Columns, Edges, bin_index
from calibcli.errors import UsageError
from calibcli.metrics.reliability import CHUNK, TIE, Bins, Once, groups_by_rank, ties
from calibcli.numerics import effective_rows
from calibcli.predictions import Floats, Ints, Predictions
from calibcli.shelves import Shelf
from calibcli.spec import Range

Equal = Literal["split-merge", "split", "mukhoti", "whole"]


@dataclass(frozen=True, eq=False)
class BinaryOutcomes(Once):
    """A probability per row and whether it came true: of the predicted class, or of the event of two classes."""

    p: Floats
    complement: Floats  # 1 - p with all its digits
    hit: npt.NDArray[np.bool_]
    weights: Floats | None
    counts: bool  # weights are frequencies
    groups: Ints | None
    values_only: bool = False  # leave out what only intervals need (the variances of tables are then 0)
    seed: int = 0  # of what is simulated

    @property
    def n(self) -> int:
        return len(self.p)

    @cached_property
    def total(self) -> float:
        return float(self.n if self.weights is None else self.weights.sum())

    @property
    def effective(self) -> float:
        """(Σw)²/Σw², or the sum of counts."""
        if self.weights is None or self.counts:
            return self.total
        return effective_rows(self.weights)

    @cached_property
    def residual(self) -> Floats:
        """p - y."""
        return np.where(self.hit, -self.complement, self.p)

    @cached_property
    def order(self) -> Ints:
        """Rows by confidence, ties in any order."""
        return np.argsort(self.p)

    @cached_property
    def stable_order(self) -> Ints:
        """Rows by confidence, ties in row order."""
        return np.argsort(self.p, kind="stable")

    def share(self) -> Floats | float:
        """w / W."""
        return 1 / self.total if self.weights is None else np.asarray(self.weights / self.total)

    @cached_property
    def shares(self) -> Floats:
        """(N,) w / W."""
        return np.broadcast_to(self.share(), (self.n,))

    def sums(self, index: npt.NDArray[np.integer], bins: int, values: Any = 1.0, power: int = 1) -> Floats:
        """Σ share^power · values per bin; counts enter once however large the power."""
        if self.weights is None:
            plain: Floats = np.bincount(index, None if np.isscalar(values) else values, bins).astype(np.float64)
            return plain / self.total**power
        w = self.weights if power == 1 or self.counts else self.weights**power
        return np.bincount(index, w * values, bins).astype(np.float64) / self.total**power

    def width_bins(self, bins: int, edges: Edges) -> Bins:
        """Equal-width bins of [0, 1]."""
        return self.once(_width, bins, edges)

    def mass_bins(self, bins: int, method: Equal) -> Bins:
        """Bins of equal weight; see `adaece` for the methods."""
        if method == "split-merge" and self.weights is None:
            return self.once(_merged, bins)
        if method in ("split", "split-merge"):
            return self.once(_split if self.weights is None else _divided, bins, method)
        return self.once(_mukhoti if method == "mukhoti" else _whole, bins)

    def cuts(self, bins: int) -> Floats:
        """(bins + 1,) positions, in weight counted along `stable_order`, where equal-mass bins begin.

        Rows and counts are whole: the first of uneven bins are larger by 1.
        """
        if self.weights is None or self.counts:
            size, extra = divmod(round(self.total), bins)
            return np.append(0.0, np.cumsum([size + (b < extra) for b in range(bins)], dtype=np.float64))
        return self.total * np.arange(bins + 1) / bins


def _width(view: BinaryOutcomes, bins: int, edges: Edges) -> Bins:
    size = bins + (edges == "torchmetrics")
    grid = np.append(np.arange(bins) / bins, [1.0, 1.0][: 1 + size - bins])
    index = np.empty(view.n, np.int32)
    for start in range(0, view.n, CHUNK):
        part = slice(start, start + CHUNK)
        index[part] = bin_index(view.p[part], bins, edges)
    return replace(_table(view, index, grid[:size], grid[1 : size + 1]), index=index)


def _split(view: BinaryOutcomes, bins: int, _: Equal) -> Bins:
    """Rows of equal weight in the order of the file where confidences are equal."""
    cuts, p = view.cuts(bins), view.p[view.stable_order]
    index = np.empty(view.n, np.int64)
    index[view.stable_order] = np.searchsorted(cuts, np.arange(view.n), side="right") - 1
    edge = p[np.minimum(cuts.astype(np.int64), view.n - 1)]
    return _table(view, index, edge[:-1], edge[1:])


def _merged(view: BinaryOutcomes, bins: int) -> Bins:
    """Rows of equal weight by rank; of ties, only those across a cut matter: their hits are shared."""
    first = view.cuts(bins).astype(np.int64)
    group, rows, ranks = groups_by_rank(view.p, first)
    ordered = view.p[rows]
    edge = np.empty(bins + 1)
    edge[0], edge[-1] = view.p.min(), view.p.max()
    edge[1:-1] = ordered[np.searchsorted(ranks, np.minimum(first[1:-1], view.n - 1))]
    table = _table(view, group, edge[:-1], edge[1:])
    moved, change = np.zeros(bins), np.zeros(bins)
    for part in ties(ordered, edge[1:-1]):
        tied = rows[part]
        there, hit = group[tied], view.hit[tied]
        more = np.bincount(there, minlength=bins) * hit.mean() - np.bincount(there, hit, bins)
        moved += more
        value = float(view.p[tied[0]])
        change += more * ((1 - value) ** 2 - value**2)
    hits = moved / view.total
    variance = table.gap_variance if view.values_only else table.gap_variance + change / view.total**2
    return replace(table, hit=table.hit + hits, weighted_gap=table.weighted_gap - hits, gap_variance=variance)


def _divided(view: BinaryOutcomes, bins: int, method: Equal) -> Bins:
    """Differences of cumulative sums at the cuts, so that a row with weight is divided where a cut meets it."""
    assert view.weights is not None
    cuts, order = view.cuts(bins), view.stable_order if method == "split" else view.order
    p, hit, w = view.p[order], view.hit[order].astype(np.float64), view.weights[order]
    w2 = w if view.counts else w**2
    position = np.append(0.0, np.cumsum(w))
    at = np.interp(cuts, position, np.arange(view.n + 1))
    if method == "split-merge":  # of ties, only those across a cut matter: their hits are shared, and their noise
        for tied in ties(p, p[np.clip(at[1:-1].astype(np.int64), 0, view.n - 1)]):
            if w[tied].sum() > 0:
                hit[tied] = np.average(hit[tied], weights=w[tied])
                w2[tied] = w[tied] * (w2[tied].sum() / w[tied].sum())
    first = np.minimum(np.round(at).astype(np.int64), view.n)

    def between(values: Floats) -> Floats:
        """Sums per bin."""
        return np.diff(np.interp(cuts, position, np.append(0.0, np.cumsum(values))))

    weight, mean, share = (between(w * values) / view.total for values in (1.0, p, hit))
    weight_variance, gap_variance, null_variance = between(w2) / view.total**2, np.zeros(bins), np.zeros(bins)
    if not view.values_only:
        complement = view.complement[order]
        square = complement * complement * hit + (1 - hit) * (p * p)
        gap_variance, null_variance = (between(w2 * v) / view.total**2 for v in (square, p * complement))
    edge, rows, d = p[np.minimum(first, view.n - 1)], np.diff(first), mean - share
    variances = weight_variance, gap_variance, null_variance
    return Bins(edge[:-1], edge[1:], rows, weight, mean, share, d, *variances, view.effective, view.seed)


def _whole(view: BinaryOutcomes, bins: int) -> Bins:
    """Rows of equal confidence (within 1e-12) stay together, in the bin where their middle falls."""
    order, cuts = view.order, view.cuts(bins)
    p = view.p[order]
    tie = np.cumsum(np.diff(p, prepend=p[:1]) > TIE)
    end = np.cumsum(np.bincount(tie, None if view.weights is None else view.weights[order]))
    middle = (end + np.append(0.0, end[:-1])) / 2
    index = np.empty(view.n, np.int64)
    index[order] = np.searchsorted(cuts[1:-1], middle, side="right")[tie]
    edge = p[np.searchsorted(tie, np.minimum(np.searchsorted(end, cuts, side="right"), tie[-1]))]
    return _table(view, index, edge[:-1], np.append(edge[1:-1], p[-1]))


def _mukhoti(view: BinaryOutcomes, bins: int) -> Bins:
    if view.weights is not None:
        raise UsageError("method=mukhoti takes no weights", "use method=split-merge")
    edges = np.interp(np.linspace(0, view.n, bins + 1), np.arange(view.n), view.p[view.order])
    index = np.searchsorted(edges, view.p, side="left")  # (lo, hi]; 0: equal to the smallest, in no bin
    table = _table(view, np.minimum(index, bins), np.append(edges[0], edges[:-1]), edges)
    kept: dict[str, Any] = {k: v[1:] for k, v in vars(table).items() if isinstance(v, np.ndarray)}
    return replace(table, **kept)


def _table(view: BinaryOutcomes, index: npt.NDArray[np.integer], lower: Floats, upper: Floats) -> Bins:
    """Sums per bin, some rows at a time, so that what is in between stays in the cache."""
    size = len(lower)
    rows, sums = np.zeros(2 * size, np.int64), np.zeros((6, size))
    weight, hits, gap, weight_variance, gap_variance, null_variance = sums
    for start in range(0, view.n, CHUNK):
        part = slice(start, start + CHUNK)
        here, hit, r = index[part], view.hit[part], view.residual[part]
        rows += np.bincount(2 * here + hit, minlength=2 * size)
        w = w2 = None if view.weights is None else view.weights[part]
        if w is not None:
            w2 = w if view.counts else w * w
            weight += np.bincount(here, w, size)
            hits += np.bincount(here, w * hit, size)
            weight_variance += np.bincount(here, w2, size)
        gap += np.bincount(here, r if w is None else w * r, size)
        if not view.values_only:
            r = r * r
            gap_variance += np.bincount(here, r if w2 is None else w2 * r, size)
            r = view.p[part] * view.complement[part]
            null_variance += np.bincount(here, r if w2 is None else w2 * r, size)
    both = rows.reshape(size, 2)
    if view.weights is None:
        weight[:], hits[:], weight_variance[:] = both.sum(axis=1), both[:, 1], both.sum(axis=1)
    sums[:3] /= view.total
    sums[3:] /= view.total**2
    p, variances = gap + hits, (weight_variance, gap_variance, null_variance)
    return Bins(lower, upper, both.sum(axis=1), weight, p, hits, gap, *variances, view.effective, view.seed)


Of = Literal["auto", "top", "positive"]
"""What a probability is of: the predicted class, or the event (class 1 of two). `auto` is the event of two classes, and
the predicted class of more."""
METRICS = Shelf("metric", package="calibcli.metrics")
UNIT, SIGNED, NATS, ANY, BRIER = Range(0, 1), Range(-1, 1), Range(0), Range(), Range(0, 2)
"""What a metric can be: its trait `values`."""


@dataclass(frozen=True, eq=False)
class Sample(Once):
    """Columns with weights; `top` and `positive` are the outcomes that its metrics are of.

    Attributes:
        columns: what the blocked pass found.
        weights: (N,) float64, or None for equal weights.
        counts: whether weights are frequencies.
        predictions: the scores, for metrics that need to read them again.
        seed: of what is simulated.  values_only: values alone are wanted, no intervals.
    """

    columns: Columns
    weights: Floats | None = None
    counts: bool = False
    predictions: Predictions | None = None
    seed: int = 0
    values_only: bool = False

    @classmethod
    def of(cls, columns: Columns, predictions: Predictions | None = None, seed: int = 0) -> Sample:
        """With the columns' own weights."""
        return cls(columns, columns.weights, columns.weight_kind == "count", predictions, seed)

    @property
    def n(self) -> int:
        return self.columns.condensed or self.columns.n

    @cached_property
    def top(self) -> BinaryOutcomes:
        return self.outcomes(self.columns.confidence, self.columns.rest, self.columns.correct)

    @cached_property
    def positive(self) -> BinaryOutcomes:
        c = self.columns
        return self.outcomes(c.positive, np.where(c.predicted == 1, c.rest, c.confidence), c.labels == 1)

    def outcomes(self, p: Floats, complement: Floats, hit: npt.NDArray[np.bool_]) -> BinaryOutcomes:
        """A probability of each row, 1 - p, and whether it came true."""
        return BinaryOutcomes(
            p, complement, hit, self.weights, self.counts, self.columns.groups, self.values_only, self.seed
        )

    def view(self, of: Of = "auto") -> BinaryOutcomes:
        """What every command measures: the one place where `auto` becomes the event or the top label."""
        return self.positive if of == "positive" or (of == "auto" and self.columns.k == 2) else self.top


def average(values: npt.NDArray[Any], weights: Floats | None) -> float:
    """Weighted mean; nan where no weight is left."""
    if weights is None:
        total = np.count_nonzero(values) if values.dtype == bool else float(values.sum())
        return total / len(values) if len(values) else math.nan
    total = float(weights.sum())
    return float(weights @ values) / total if total > 0 else math.nan
