"""Probabilities with their outcomes, and reliability tables of them: bins of equal width, or of equal mass by rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from calibcli.core.errors import UsageError
from calibcli.core.options import Edges
from calibcli.core.statistics import (
    DOUBLE,
    Binomials,
    bin_index,
    counted,
    effective_rows,
    odds,
    parts,
    squares,
    tie_ends,
)
from calibcli.scores.predictions import Floats, Ints

T = TypeVar("T")
Equal = Literal["split-merge", "split", "mukhoti", "whole"]
Hits = npt.NDArray[np.bool_]
DRAWS = 2_000


Rowwise = Callable[[slice], npt.NDArray[Any]]


class Memoized:
    """An object that keeps results computed from it, as long as it lives."""

    def memoized(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return `function(self, *arguments)`, computed once."""
        kept: dict[Any, T] = self.__dict__.setdefault("_kept", {})
        key = (function, *arguments)
        if key not in kept:
            kept[key] = function(self, *arguments)
        return kept[key]

    def set_memoized(self, function: Callable[..., T], result: T) -> None:
        """Let `memoized` return this result of a function, which was computed in another way."""
        self.__dict__.setdefault("_kept", {})[(function,)] = result


@dataclass(frozen=True, eq=False)
class BinaryOutcomes(Memoized):
    """A probability for each row and whether it came true: of the predicted class, or of the event of two classes.

    Attributes:
        p: (N,).  complement: (N,) 1 - p with all its digits.  hit: (N,) bool.
        weights: (N,) or None.  counts: whether weights are frequencies.  groups: (N,) or None.
        values_only: whether what only intervals need is left out; the variances of tables are then 0.
        seed: of simulations.  precision: relative, of p.
    """

    p: Floats
    complement: Floats
    hit: npt.NDArray[np.bool_]
    weights: Floats | None
    counts: bool
    groups: Ints | None
    values_only: bool = False
    seed: int = 0
    precision: float = DOUBLE

    @property
    def n(self) -> int:
        return len(self.hit)

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
    def largest_moves(self) -> tuple[float, float]:
        """How far one row that was drawn, and one that was not, may move a sum of gaps.

        They are `seen` and `unseen` of `core.statistics.unseen_reach`. For gaps whose signs are not known the first is
        Σ |c|³ / Σ c², c = w (p - y) / W, and at least Σ w² / W², as small gaps say little about large ones. A row that
        was not drawn may have the largest weight, and the wrong label.
        """
        if self.weights is None or self.counts:
            return 1 / self.total, 1 / self.total
        c = np.abs(self.residual * self.shares)
        square = float(c @ c)
        drawn = float(c**2 @ c) / square if square > 0 else 0.0
        return max(drawn, 1 / self.effective), float(self.weights.max()) / self.total

    def at_least(self, tau: float) -> npt.NDArray[np.bool_]:
        """Return (N,) whether p >= tau, up to rounding: a probability of 0.99 counts after log and softmax."""
        return np.asarray(self.p >= tau * (1 - self.precision))

    @cached_property
    def residual(self) -> Floats:
        """p - y."""
        return residual(self.p, self.complement, self.hit)

    @cached_property
    def ranked(self) -> Ranked:
        order = None if self.weights is None else self.order
        return Ranked.of(self.p, self.complement, self.hit, self.weights, order)

    @cached_property
    def order(self) -> Ints:
        """Rows by odds, ties in any order."""
        return np.argsort(odds(self.p, self.complement))

    @cached_property
    def stable_order(self) -> Ints:
        """Rows by odds, ties in row order."""
        return np.argsort(odds(self.p, self.complement), kind="stable")

    @cached_property
    def shares(self) -> Floats:
        """(N,) w / W."""
        return np.broadcast_to(1 / self.total if self.weights is None else self.weights / self.total, (self.n,))

    def sums(
        self,
        index: Rowwise | npt.NDArray[Any],
        bins: int,
        values: Rowwise | npt.NDArray[Any] | None = None,
        power: int = 1,
    ) -> Floats:
        """Sum share^power · values in each bin (values None: 1); counts enter once whatever the power.

        `index` and `values` may be functions of a slice of the rows, which take no memory for all rows.
        """
        total = np.zeros(bins)
        for part in parts(self.n):
            w = None if self.weights is None else self.weights[part]
            if w is not None and power > 1 and not self.counts:
                w = w**power
            v = values(part) if callable(values) else None if values is None else values[part]
            weighted = v if w is None else w if v is None else w * v
            total += np.bincount(index(part) if callable(index) else index[part], weighted, bins)
        return total / self.total**power

    def mean(self, values: Floats, times: Floats) -> float:
        """Return Σ share · values · times."""
        return float(values @ times) / self.n if self.weights is None else float((self.shares * values) @ times)

    def width_bins(self, bins: int, edges: Edges) -> Bins:
        """Return the table of equal-width bins of [0, 1]."""
        return self.memoized(width_table, bins, edges)

    def mass_bins(self, bins: int, method: Equal) -> Bins:
        """Return the table of bins of equal weight; see `adaece` for the methods."""
        return self.memoized(mass_table, bins, method)

    def cuts(self, bins: int) -> Floats:
        """Return (bins + 1,) positions where equal-mass bins begin, in weight along `stable_order`.

        Rows and counts are not divided: where bins are uneven, the first are larger by 1.
        """
        return self.cut(np.arange(bins + 1), bins)

    def cut(self, which: Ints, bins: int) -> Floats:
        """Return some of `cuts`, by number."""
        if self.weights is None or self.counts:
            size, extra = divmod(round(self.total), bins)
            return np.asarray(which * size + np.minimum(which, extra), np.float64)
        return np.asarray(self.total * which / bins)


@dataclass(frozen=True, eq=False)
class Bins:
    """A reliability table: one entry per bin, in shares of the total weight.

    Attributes:
        lower, upper: edges of the bins.
        rows: number of rows.
        weight: Σw / W.  p: Σ w p / W.  hit: Σ w y / W.  weighted_gap: d = Σ w (p - y) / W, the signed gap times the
            weight.
        weight_variance: variance of `weight` when rows are drawn: Σ w² / W² (Σ w / W² for counts).
        gap_variance: variance of d about 0 when rows are drawn.
        null_variance: that of d under perfect calibration, given the confidences.
        total: rows behind the shares (sum of the weights where they are counts).
        seed: of simulations.
        index: (N,) bin of each row; for equal-width bins only.
        method: how ties are divided; for bins of equal mass only.
    """

    lower: Floats
    upper: Floats
    rows: Ints
    weight: Floats
    p: Floats
    hit: Floats
    weighted_gap: Floats
    weight_variance: Floats
    gap_variance: Floats
    null_variance: Floats
    total: float
    seed: int = 0
    index: npt.NDArray[np.integer] | None = None
    method: Equal | None = None

    @cached_property
    def gap(self) -> Floats:
        """Mean confidence minus accuracy per bin, 0 where empty."""
        return self.weighted_gap * self.inverse

    @cached_property
    def inverse(self) -> Floats:
        """1 / weight, 0 where empty."""
        return _ratio(np.ones_like(self.weight), self.weight)

    @property
    def confidence(self) -> Floats:
        """Mean probability per bin, 0 where empty."""
        return _ratio(self.p, self.weight)

    @property
    def accuracy(self) -> Floats:
        """Share of hits per bin, 0 where empty."""
        return _ratio(self.hit, self.weight)

    @property
    def effective(self) -> Floats:
        """Effective rows per bin: (Σw)²/Σw²."""
        return _ratio(self.weight**2, self.weight_variance)

    @property
    def filled(self) -> npt.NDArray[np.bool_]:
        """Whether a bin has weight."""
        return self.weight > 0

    @cached_property
    def _hits(self) -> tuple[Ints, Binomials]:
        """The bins with (effective) rows, and their hits of a calibrated model."""
        n = np.maximum(np.round(self.effective.round(9)), 0).astype(np.int64)
        chance = np.clip(self.confidence.round(12), 0, 1)  # the draws must not depend on how sums of rows were rounded
        some = np.flatnonzero(n)
        return some, Binomials(n[some], chance[some])

    def simulated(self, draws: int, rng: np.random.Generator) -> Floats:
        """Simulate (draws, B) weighted gaps of a calibrated model: binomial hits of the effective rows."""
        some, binomials = self._hits
        gaps = np.zeros((draws, len(self.weight)))
        gaps[:, some] = (self.confidence[some] - binomials.draw(draws, rng) / binomials.n) * self.weight[some]
        return gaps

    @cached_property
    def null_gaps(self) -> Floats:
        """(DRAWS, B) simulated gaps of a calibrated model, which all metrics of a table share."""
        return self.simulated(DRAWS, np.random.default_rng([self.seed, len(self.weight)]))


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


@dataclass(frozen=True, eq=False)
class Ranked:
    """Outcomes by rising p, each (N,), rows of equal p in any order."""

    p: Floats
    complement: Floats
    hit: Hits
    weights: Floats | None

    @classmethod
    def of(cls, p: Floats, complement: Floats, hit: Hits, weights: Floats | None, order: Ints | None) -> Ranked:
        """Sort outcomes by p.

        Without weights the odds, which keep the digits of both p and 1 - p, are sorted with the outcome as their last
        bit: several times as fast as argsort and taking rows in that order. Afterwards the bit is cleared, as it is no
        part of the odds: odds of exactly 0 would be two values, one for each outcome, and ties would be split by it.

        Args:
            p, complement, hit, weights: (N,) in any order.  order: that of p, needed with weights.
        """
        if weights is not None:
            return cls(p[order], complement[order], hit[order], weights[order])
        sure = odds(p, complement)
        bits, outcome = sure.view(np.int64), np.empty(len(p), np.bool_)
        for part in parts(len(p)):
            bits[part] &= -2
            bits[part] |= hit[part]
        bits.sort()
        sorted_complement = sure + 1
        for part in parts(len(p)):
            outcome[part] = bits[part] & 1
            bits[part] &= -2
            np.divide(1, sorted_complement[part], out=sorted_complement[part])
            sure[part] *= sorted_complement[part]
        return cls(sure, sorted_complement, outcome, None)

    @cached_property
    def residual(self) -> Floats:
        """p - y."""
        return residual(self.p, self.complement, self.hit)

    @cached_property
    def ends(self) -> Ints:
        """Ends of ties, from 0 to N: see `core.statistics.tie_ends`."""
        return tie_ends(self.p, self.complement)

    def across(self, cuts: Ints) -> list[slice]:
        """Return the ties that one of these ranks divides."""
        divided = np.unique(np.searchsorted(self.ends, cuts, side="right")) - 1
        divided = divided[(divided >= 0) & (divided < len(self.ends) - 1)]
        return [
            slice(low, high)
            for low, high in zip(self.ends[divided].tolist(), self.ends[divided + 1].tolist(), strict=True)
        ]

    @cached_property
    def position(self) -> npt.NDArray[np.int64 | np.float64]:
        """Weight of the rows before each of `ends`."""
        return self.ends if self.weights is None else np.append(0.0, np.cumsum(self.weights))[self.ends]

    def find(self, position: Floats, side: Literal["left", "right"]) -> Ints:
        """Search positions as `np.searchsorted` does, without a copy of `self.position`."""
        if self.weights is None:
            position = (np.ceil if side == "left" else np.floor)(position).astype(np.int64)
        return np.searchsorted(self.position, position, side)

    def residuals_before(self, position: Floats) -> Floats:
        """Sum the weighted residuals of the rows before positions in (0, total); within a tie in proportion."""
        upper = np.clip(self.find(position, "left"), 1, len(self.ends) - 1)
        low, high = self.position[upper - 1], self.position[upper]
        ranks = counted(self.ends[np.append(upper - 1, upper)])[0]
        starts, last = np.append(0, ranks)[:-1], ranks.max(initial=0)  # of no position there are none
        rows = self.residual[:last] if self.weights is None else self.weights[:last] * self.residual[:last]
        sums = np.cumsum(np.where(ranks > starts, np.add.reduceat(rows, starts), 0.0))
        below, above = (sums[np.searchsorted(ranks, self.ends[end])] for end in (upper - 1, upper))
        share = np.divide(position - low, high - low, out=np.zeros(len(upper)), where=high > low)
        return np.asarray(below + share * (above - below))


def residual(p: Floats, complement: Floats, hit: Hits) -> Floats:
    """Return p - y, from 1 - p where y is 1: written as a sum, which is several times as fast as np.where."""
    difference = np.empty(len(p))
    for part in parts(len(p)):
        np.multiply(p[part], ~hit[part], out=difference[part])
        difference[part] -= complement[part] * hit[part]
    return difference


def width_table(view: BinaryOutcomes, bins: int, edges: Edges) -> Bins:
    """Tabulate outcomes in equal-width bins of [0, 1]."""
    grid = np.append(np.arange(bins) / bins, [1.0, 1.0] if edges == "torchmetrics" else [1.0])
    index = np.empty(view.n, np.int32)
    for part in parts(view.n):
        index[part] = bin_index(view.p[part], bins, edges, view.precision)
    return replace(_table(view, index, grid[:-1], grid[1:]), index=index)


def mass_table(view: BinaryOutcomes, bins: int, method: Equal) -> Bins:
    """Tabulate outcomes in bins of equal weight; see `adaece` for the methods."""
    if method == "split-merge" and view.weights is None:
        table = _merged(view, bins)
    elif method in ("split", "split-merge"):
        table = _divided(view, bins, method)
    else:
        table = _mukhoti(view, bins) if method == "mukhoti" else _whole(view, bins)
    return replace(table, method=method)


def _merged(view: BinaryOutcomes, bins: int) -> Bins:
    """Cut rows of equal weight by rank; the rows of a tie that a cut divides share their hits."""
    ranked, first = view.ranked, view.cuts(bins).astype(np.int64)
    edge = ranked.p[np.minimum(first, view.n - 1)]
    table = _stretches(view, first, edge)
    moved, change = np.zeros(bins), np.zeros(bins)
    for tied in ranked.across(first[1:-1]):
        hit = ranked.hit[tied]
        row_bins = np.searchsorted(first, np.arange(tied.start, tied.stop), side="right") - 1
        more = np.bincount(row_bins, minlength=bins) * hit.mean() - np.bincount(row_bins, hit, bins)
        moved += more
        value = float(ranked.p[tied.start])
        change += more * ((1 - value) ** 2 - value**2)
    hits = moved / view.total
    variance = table.gap_variance if view.values_only else table.gap_variance + change / view.total**2
    return replace(table, hit=table.hit + hits, weighted_gap=table.weighted_gap - hits, gap_variance=variance)


def _divided(view: BinaryOutcomes, bins: int, method: Equal) -> Bins:
    """Take differences of cumulative sums at the cuts, which divide the weight of a row that they meet."""
    cuts, order = view.cuts(bins), view.stable_order if method == "split" else view.order
    p, hit = view.p[order], view.hit[order].astype(np.float64)
    w = np.ones(view.n) if view.weights is None else view.weights[order]
    w2 = squares(w, view.counts)
    position = np.append(0.0, np.cumsum(w))
    cut_rows = np.interp(cuts, position, np.arange(view.n + 1))
    if method == "split-merge":  # a tie that a cut divides shares its hits and its noise
        for tied in view.ranked.across(np.clip(cut_rows[1:-1].astype(np.int64), 0, view.n - 1)):
            if w[tied].sum() > 0:
                hit[tied] = np.average(hit[tied], weights=w[tied])
                w2[tied] = w[tied] * (w2[tied].sum() / w[tied].sum())
    first = np.minimum(np.round(cut_rows).astype(np.int64), view.n)

    def between(values: Floats) -> Floats:
        """Sum values per bin."""
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
    """Put all rows of a tie into the bin where their middle falls."""
    ranked, cuts, ends = view.ranked, view.cuts(bins), view.ranked.ends
    position, last = ranked.position, len(ends) - 1
    inner = np.clip(ranked.find(cuts[1:-1], "left"), 1, last)
    inner -= (position[inner - 1] + position[inner]) / 2 >= cuts[1:-1]
    first = ends[np.concatenate([[0], inner, [last]])]
    cut_ties = np.minimum(ranked.find(cuts, "right") - 1, last - 1)
    return _stretches(view, first, np.append(ranked.p[ends[cut_ties[:-1]]], ranked.p[-1]))


def _stretches(view: BinaryOutcomes, first: Ints, edge: Floats) -> Bins:
    """Sum over the rows by rank from each of `first` to the next.

    Args:
        edge: (bins + 1,) edges of the bins.
    """
    ranked, total = view.ranked, view.total
    rows = np.diff(first)
    table = np.zeros((6, len(rows)))
    for b in np.flatnonzero(rows):
        part = slice(first[b], first[b + 1])
        gap, hit = ranked.residual[part], ranked.hit[part]
        products = () if view.values_only else ((gap, gap), (ranked.p[part], ranked.complement[part]))
        if ranked.weights is None:
            sums = [rows[b], np.count_nonzero(hit), gap.sum(), rows[b], *(x @ y for x, y in products)]
        else:
            w = ranked.weights[part]
            w2 = squares(w, view.counts)
            sums = [w.sum(), w @ hit, w @ gap, w2.sum(), *((w2 * x) @ y for x, y in products)]
        table[: len(sums), b] = sums
    table[:3] /= total
    table[3:] /= total**2
    weight, hits, gap, weight_variance, gap_variance, null_variance = table
    variances = weight_variance, gap_variance, null_variance
    return Bins(edge[:-1], edge[1:], rows, weight, gap + hits, hits, gap, *variances, view.effective, view.seed)


def _mukhoti(view: BinaryOutcomes, bins: int) -> Bins:
    """Bin as the released code of Mukhoti et al. (2020), by interpolated edges."""
    if view.weights is not None:
        raise UsageError("method=mukhoti takes no weights", "use method=split-merge")
    edges = np.interp(np.linspace(0, view.n, bins + 1), np.arange(view.n), view.p[view.order])
    index = np.searchsorted(edges, view.p, side="left")  # (lo, hi]; 0: equal to the smallest, in no bin
    table = _table(view, np.minimum(index, bins), np.append(edges[0], edges[:-1]), edges)
    kept: dict[str, Any] = {k: v[1:] for k, v in vars(table).items() if isinstance(v, np.ndarray)}
    return replace(table, **kept)


def _table(view: BinaryOutcomes, index: npt.NDArray[np.integer], lower: Floats, upper: Floats) -> Bins:
    """Sum per bin, some rows at a time, so that intermediate arrays stay in the cache."""
    size = len(lower)
    rows, sums = np.zeros(2 * size, np.int64), np.zeros((6, size))
    weight, hits, gap, weight_variance, gap_variance, null_variance = sums
    for part in parts(view.n):
        bin_, hit, r = index[part], view.hit[part], view.residual[part]
        rows += np.bincount(2 * bin_ + hit, minlength=2 * size)
        w = w2 = None if view.weights is None else view.weights[part]
        if w is not None:
            w2 = squares(w, view.counts)
            weight += np.bincount(bin_, w, size)
            hits += np.bincount(bin_, w * hit, size)
            weight_variance += np.bincount(bin_, w2, size)
        gap += np.bincount(bin_, r if w is None else w * r, size)
        if not view.values_only:
            r = r * r
            gap_variance += np.bincount(bin_, r if w2 is None else w2 * r, size)
            r = view.p[part] * view.complement[part]
            null_variance += np.bincount(bin_, r if w2 is None else w2 * r, size)
    counts = rows.reshape(size, 2)
    if view.weights is None:
        weight[:], hits[:], weight_variance[:] = counts.sum(axis=1), counts[:, 1], counts.sum(axis=1)
    sums[:3] /= view.total
    sums[3:] /= view.total**2
    p, variances = gap + hits, (weight_variance, gap_variance, null_variance)
    return Bins(lower, upper, counts.sum(axis=1), weight, p, hits, gap, *variances, view.effective, view.seed)
