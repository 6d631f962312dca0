"""Probabilities with what came true, and their reliability tables, of which binned errors are functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from calibcli.errors import UsageError
from calibcli.metrics.ranked import Ranked, residual
from calibcli.numerics import DOUBLE, bin_index, effective_rows, parts, ties
from calibcli.predictions import Floats, Ints
from calibcli.spec import Edges

Equal = Literal["split-merge", "split", "mukhoti", "whole"]
T = TypeVar("T")
Rowwise = Callable[[slice], npt.NDArray[Any]]
DRAWS = 2_000


class Once:
    """Keeps what was worked out from it."""

    def once(self, function: Callable[..., T], *arguments: Any) -> T:
        """`function(self, *arguments)`, called the first time only."""
        kept: dict[Any, T] = self.__dict__.setdefault("_kept", {})
        key = (function, *arguments)
        if key not in kept:
            kept[key] = function(self, *arguments)
        return kept[key]


@dataclass(frozen=True, eq=False)
class Bins:
    """A reliability table: one entry per bin, in shares of the total weight.

    Attributes:
        lower, upper: edges of the bins.
        rows: number of rows.
        weight: Σw / W.  p: Σ w p / W.  hit: Σ w y / W.  weighted_gap: d = Σ w (p - y) / W, the signed gap times the
            weight.
        weight_variance: variance of `weight` when rows are drawn: Σ w² / W² (Σ w / W² for counts).
        gap_variance: the same of d, about 0.
        null_variance: the same of d under perfect calibration, given the confidences.
        total: rows behind the shares (sum of the weights where they are counts).
        seed: of what is simulated.
        index: (N,) bin of each row, of equal-width bins.
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
        return _ratio(self.p, self.weight)

    @property
    def accuracy(self) -> Floats:
        return _ratio(self.hit, self.weight)

    @property
    def effective(self) -> Floats:
        """Effective rows per bin: (Σw)²/Σw²."""
        return _ratio(self.weight**2, self.weight_variance)

    @property
    def filled(self) -> npt.NDArray[np.bool_]:
        return self.weight > 0

    def simulated(self, draws: int, rng: np.random.Generator) -> Floats:
        """(draws, B) weighted gaps of a calibrated model: binomial hits, from mean confidence and effective rows."""
        n = np.maximum(np.round(self.effective), 0).astype(np.int64)
        p = self.confidence
        hits = rng.binomial(n, np.clip(p, 0, 1), size=(draws, len(n)))
        return np.where(n > 0, self.weight * (p - hits / np.maximum(n, 1)), 0.0)

    @cached_property
    def null_gaps(self) -> Floats:
        """(DRAWS, B) weighted gaps of a calibrated model: metrics of one table share them."""
        return self.simulated(DRAWS, np.random.default_rng([self.seed, len(self.weight)]))


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


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
    precision: float = DOUBLE  # of p, relative

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
        return residual(self.p, self.complement, self.hit)

    @cached_property
    def ranked(self) -> Ranked:
        order = None if self.weights is None else self.order
        return Ranked.of(self.p, self.complement, self.hit, self.weights, order)

    @cached_property
    def order(self) -> Ints:
        """Rows by confidence, ties in any order."""
        return np.argsort(self.p)

    @cached_property
    def stable_order(self) -> Ints:
        """Rows by confidence, ties in row order."""
        return np.argsort(self.p, kind="stable")

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
        """Σ share^power · values per bin (None: 1); counts enter once however large the power.

        Functions of a slice of the rows take no memory for all of them.
        """
        found = np.zeros(bins)
        for part in parts(self.n):
            w = None if self.weights is None else self.weights[part]
            if w is not None and power > 1 and not self.counts:
                w = w**power
            v = values(part) if callable(values) else None if values is None else values[part]
            both = v if w is None else w if v is None else w * v
            found += np.bincount(index(part) if callable(index) else index[part], both, bins)
        return found / self.total**power

    def mean(self, values: Floats, times: Floats) -> float:
        """Σ share · values · times."""
        return float(values @ times) / self.n if self.weights is None else float((self.shares * values) @ times)

    def width_bins(self, bins: int, edges: Edges) -> Bins:
        """Equal-width bins of [0, 1]."""
        return self.once(_width, bins, edges)

    def mass_bins(self, bins: int, method: Equal) -> Bins:
        """Bins of equal weight; see `adaece` for the methods."""
        if method == "split-merge" and self.weights is None:
            return self.once(_merged, bins)
        if method in ("split", "split-merge"):
            return self.once(_divided, bins, method)
        return self.once(_mukhoti if method == "mukhoti" else _whole, bins)

    def cuts(self, bins: int) -> Floats:
        """(bins + 1,) positions, in weight counted along `stable_order`, where equal-mass bins begin.

        Rows and counts are whole: the first of uneven bins are larger by 1.
        """
        return self.cut(np.arange(bins + 1), bins)

    def cut(self, which: Ints, bins: int) -> Floats:
        """Some of `cuts`, by number."""
        if self.weights is None or self.counts:
            size, extra = divmod(round(self.total), bins)
            return np.asarray(which * size + np.minimum(which, extra), np.float64)
        return np.asarray(self.total * which / bins)


def _width(view: BinaryOutcomes, bins: int, edges: Edges) -> Bins:
    size = bins + (edges == "torchmetrics")
    grid = np.append(np.arange(bins) / bins, [1.0, 1.0][: 1 + size - bins])
    index = np.empty(view.n, np.int32)
    for part in parts(view.n):
        index[part] = bin_index(view.p[part], bins, edges, view.precision)
    return replace(_table(view, index, grid[:size], grid[1 : size + 1]), index=index)


def _merged(view: BinaryOutcomes, bins: int) -> Bins:
    """Rows of equal weight by rank; of ties, only those across a cut matter: their hits are shared."""
    ranked, first = view.ranked, view.cuts(bins).astype(np.int64)
    edge = ranked.p[np.minimum(first, view.n - 1)]
    table = _stretches(view, first, edge)
    moved, change = np.zeros(bins), np.zeros(bins)
    for tied in ties(ranked.p, edge[1:-1]):
        hit = ranked.hit[tied]
        there = np.searchsorted(first, np.arange(tied.start, tied.stop), side="right") - 1
        more = np.bincount(there, minlength=bins) * hit.mean() - np.bincount(there, hit, bins)
        moved += more
        value = float(ranked.p[tied.start])
        change += more * ((1 - value) ** 2 - value**2)
    hits = moved / view.total
    variance = table.gap_variance if view.values_only else table.gap_variance + change / view.total**2
    return replace(table, hit=table.hit + hits, weighted_gap=table.weighted_gap - hits, gap_variance=variance)


def _divided(view: BinaryOutcomes, bins: int, method: Equal) -> Bins:
    """Differences of cumulative sums at the cuts, so that a row with weight is divided where a cut meets it."""
    cuts, order = view.cuts(bins), view.stable_order if method == "split" else view.order
    p, hit = view.p[order], view.hit[order].astype(np.float64)
    w = np.ones(view.n) if view.weights is None else view.weights[order]
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
    ranked, cuts, ends = view.ranked, view.cuts(bins), view.ranked.ends
    position, last = ranked.position, len(ends) - 1
    inner = np.clip(ranked.find(cuts[1:-1], "left"), 1, last)
    inner -= (position[inner - 1] + position[inner]) / 2 >= cuts[1:-1]
    first = ends[np.concatenate([[0], inner, [last]])]
    at = np.minimum(ranked.find(cuts, "right") - 1, last - 1)
    return _stretches(view, first, np.append(ranked.p[ends[at[:-1]]], ranked.p[-1]))


def _stretches(view: BinaryOutcomes, first: Ints, edge: Floats) -> Bins:
    """Sums over the rows by rank from each of `first` to the next; (bins + 1,) edges."""
    ranked, total = view.ranked, view.total
    rows = np.diff(first)
    found = np.zeros((6, len(rows)))
    for b in np.flatnonzero(rows):
        part = slice(first[b], first[b + 1])
        gap, hit = ranked.residual(part), ranked.hit[part]
        squares = () if view.values_only else ((gap, gap), (ranked.p[part], ranked.complement[part]))
        if ranked.weights is None:
            sums = [rows[b], np.count_nonzero(hit), gap.sum(), rows[b], *(x @ y for x, y in squares)]
        else:
            w = ranked.weights[part]
            w2 = w if view.counts else w * w
            sums = [w.sum(), w @ hit, w @ gap, w2.sum(), *((w2 * x) @ y for x, y in squares)]
        found[: len(sums), b] = sums
    found[:3] /= total
    found[3:] /= total**2
    weight, hits, gap, weight_variance, gap_variance, null_variance = found
    variances = weight_variance, gap_variance, null_variance
    return Bins(edge[:-1], edge[1:], rows, weight, gap + hits, hits, gap, *variances, view.effective, view.seed)


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
    for part in parts(view.n):
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
