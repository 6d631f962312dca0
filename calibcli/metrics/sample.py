"""What a metric is a function of: columns and weights, with what several metrics share worked out once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from calibcli.columns import Columns, Edges, bin_index
from calibcli.errors import UsageError
from calibcli.metrics.ranks import CHUNK, TIE, groups_by_rank, ties
from calibcli.metrics.reliability import Bins
from calibcli.numerics import effective_rows
from calibcli.predictions import Floats, Ints, Predictions
from calibcli.spec import Range, Shelf

Of = Literal["auto", "top", "positive"]
"""What a probability is of: the predicted class, or the event (class 1 of two). `auto` is the event of two classes, and
the predicted class of more."""
Equal = Literal["split-merge", "split", "mukhoti", "whole"]
METRICS = Shelf("metric")
UNIT, SIGNED, NATS, ANY, BRIER = Range(0, 1), Range(-1, 1), Range(0), Range(), Range(0, 2)
"""What a metric can be: its trait `values`."""


@dataclass(frozen=True, eq=False)
class View:
    """A probability per row and whether it came true: of the predicted class, or of the event of two classes."""

    p: Floats
    rest: Floats  # 1 - p with all its digits
    hit: npt.NDArray[np.bool_]
    weights: Floats | None
    counts: bool  # weights are frequencies
    groups: Ints | None
    values_only: bool = False  # leave out what only intervals need (`spread` and `null` of tables are then 0)
    cache: dict[Any, Bins] = field(default_factory=dict)

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
        return np.where(self.hit, -self.rest, self.p)

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

    def sums(self, index: Ints, bins: int, values: Any = 1.0, power: int = 1) -> Floats:
        """Σ share^power · values per bin; counts enter once however large the power."""
        if self.weights is None:
            plain: Floats = np.bincount(index, None if np.isscalar(values) else values, bins).astype(np.float64)
            return plain / self.total**power
        w = self.weights if power == 1 or self.counts else self.weights**power
        return np.bincount(index, w * values, bins).astype(np.float64) / self.total**power

    def width_bins(self, bins: int, edges: Edges) -> Bins:
        """Equal-width bins of [0, 1]."""
        key = (bins, edges)
        if key not in self.cache:
            size = bins + (edges == "torchmetrics")
            grid = np.append(np.arange(bins) / bins, [1.0, 1.0][: 1 + size - bins])
            self.cache[key] = self._table(
                lambda part: bin_index(self.p[part], bins, edges), grid[:size], grid[1 : size + 1]
            )
        return self.cache[key]

    def mass_bins(self, bins: int, method: Equal) -> Bins:
        """Bins of equal weight; see `adaece` for the methods."""
        key = (bins, method)
        if key not in self.cache:
            special = {"mukhoti": self._mukhoti, "whole": self._whole}.get(method)
            self.cache[key] = special(bins) if special else self._split(bins, method)
        return self.cache[key]

    def cuts(self, bins: int) -> Floats:
        """(bins + 1,) positions, in weight counted along `stable_order`, where equal-mass bins begin.

        Rows and counts are whole: the first of uneven bins are larger by 1.
        """
        if self.weights is None or self.counts:
            size, extra = divmod(round(self.total), bins)
            return np.append(0.0, np.cumsum([size + (b < extra) for b in range(bins)], dtype=np.float64))
        return self.total * np.arange(bins + 1) / bins

    def _split(self, bins: int, method: Equal) -> Bins:
        """Differences of cumulative sums at the cuts, so that a row with weight is divided where a cut meets it."""
        if method == "split-merge" and self.weights is None:
            return self._merged(bins)
        cuts, order = self.cuts(bins), self.stable_order if method == "split" else self.order
        p, hit = self.p[order], self.hit[order].astype(np.float64)
        w = None if self.weights is None else self.weights[order]
        position = None if w is None else np.append(0.0, np.cumsum(w))
        at = cuts if position is None else np.interp(cuts, position, np.arange(self.n + 1))
        w2 = None if w is None else w if self.counts else w**2
        if method == "split-merge":  # of ties, only those across a cut matter: their hits are shared, and their noise
            for tied in ties(p, p[np.clip(at[1:-1].astype(np.int64), 0, self.n - 1)]):
                if w is None or w[tied].sum() > 0:
                    hit[tied] = np.average(hit[tied], weights=None if w is None else w[tied])
                    if w is not None and w2 is not None:
                        w2[tied] = w[tied] * (w2[tied].sum() / w[tied].sum())
        first = np.minimum(np.round(at).astype(np.int64), self.n)

        def between(values: Floats | float, power: int = 1) -> Floats:
            """Σ share^power · values per bin."""
            if w is None or w2 is None or position is None:
                if isinstance(values, float):
                    return np.diff(first) / self.total**power
                sums = np.add.reduceat(values, np.minimum(first[:-1], self.n - 1))
                return np.where(np.diff(first) > 0, sums, 0.0) / self.total**power
            running = np.append(0.0, np.cumsum((w if power == 1 else w2) * values))
            return np.asarray(np.diff(np.interp(cuts, position, running)) / self.total**power)

        edge = p[np.minimum(first, self.n - 1)]
        mean, share = between(p), between(hit)
        spread = null = np.zeros(bins)
        if not self.values_only:
            rest = self.rest[order]
            null = between(p * rest, 2)
            square, rest = rest * rest * hit, p * p
            square += np.subtract(1, hit, out=hit) * rest
            spread = between(square, 2)
        return Bins(
            lower=edge[:-1],
            upper=edge[1:],
            rows=np.diff(first),
            weight=between(1.0),
            p=mean,
            hit=share,
            d=mean - share,
            square=between(1.0, 2),
            spread=spread,
            null=null,
            total=self.effective,
        )

    def _merged(self, bins: int) -> Bins:
        """Rows of equal weight by rank; of ties, only those across a cut matter: their hits are shared."""
        first = self.cuts(bins).astype(np.int64)
        group, rows, ranks = groups_by_rank(self.p, first)
        ordered = self.p[rows]
        edge = np.empty(bins + 1)
        edge[0], edge[-1] = self.p.min(), self.p.max()
        edge[1:-1] = ordered[np.searchsorted(ranks, np.minimum(first[1:-1], self.n - 1))]
        table = self._table(lambda part: group[part], edge[:-1], edge[1:])
        moved, change = np.zeros(bins), np.zeros(bins)
        for part in ties(ordered, edge[1:-1]):
            tied = rows[part]
            there, hit = group[tied], self.hit[tied]
            more = np.bincount(there, minlength=bins) * hit.mean() - np.bincount(there, hit, bins)
            moved += more
            value = float(self.p[tied[0]])
            change += more * ((1 - value) ** 2 - value**2)
        hits = moved / self.total
        spread = table.spread if self.values_only else table.spread + change / self.total**2
        return replace(table, hit=table.hit + hits, d=table.d - hits, spread=spread)

    def _whole(self, bins: int) -> Bins:
        """Rows of equal confidence (within 1e-12) stay together, in the bin where their middle falls."""
        order, cuts = self.order, self.cuts(bins)
        p = self.p[order]
        tie = np.cumsum(np.diff(p, prepend=p[:1]) > TIE)
        end = np.cumsum(np.bincount(tie, None if self.weights is None else self.weights[order]))
        middle = (end + np.append(0.0, end[:-1])) / 2
        index = np.empty(self.n, np.int64)
        index[order] = np.searchsorted(cuts[1:-1], middle, side="right")[tie]
        edge = p[np.searchsorted(tie, np.minimum(np.searchsorted(end, cuts, side="right"), tie[-1]))]
        return self._table(lambda part: index[part], edge[:-1], np.append(edge[1:-1], p[-1]))

    def _mukhoti(self, bins: int) -> Bins:
        if self.weights is not None:
            raise UsageError("method=mukhoti takes no weights", "use method=split-merge")
        ordered = self.p[self.order]
        edges = np.interp(np.linspace(0, self.n, bins + 1), np.arange(self.n), ordered)
        index = np.searchsorted(edges, self.p, side="left")  # (lo, hi]; 0: equal to the smallest, in no bin
        table = self._table(lambda part: np.minimum(index[part], bins), np.append(edges[0], edges[:-1]), edges)
        kept: dict[str, Any] = {k: v[1:] for k, v in vars(table).items() if isinstance(v, np.ndarray)}
        return replace(table, **kept)

    def _table(self, index_of: Callable[[slice], Ints], lower: Floats, upper: Floats) -> Bins:
        """Sums per bin, some rows at a time, so that what is in between stays in the cache."""
        size = len(lower)
        rows, sums = np.zeros(2 * size, np.int64), np.zeros((6, size))
        weight, hits, d, square, spread, null = sums
        for start in range(0, self.n, CHUNK):
            part = slice(start, start + CHUNK)
            index, hit, r = index_of(part), self.hit[part], self.residual[part]
            rows += np.bincount(2 * index + hit, minlength=2 * size)
            w = w2 = None if self.weights is None else self.weights[part]
            if w is not None:
                w2 = w if self.counts else w * w
                weight += np.bincount(index, w, size)
                hits += np.bincount(index, w * hit, size)
                square += np.bincount(index, w2, size)
            d += np.bincount(index, r if w is None else w * r, size)
            if not self.values_only:
                r = r * r
                spread += np.bincount(index, r if w2 is None else w2 * r, size)
                r = self.p[part] * self.rest[part]
                null += np.bincount(index, r if w2 is None else w2 * r, size)
        both = rows.reshape(size, 2)
        if self.weights is None:
            weight[:], hits[:], square[:] = both.sum(axis=1), both[:, 1], both.sum(axis=1)
        sums[:3] /= self.total
        sums[3:] /= self.total**2
        return Bins(
            lower=lower,
            upper=upper,
            rows=both.sum(axis=1),
            weight=weight,
            p=d + hits,
            hit=hits,
            d=d,
            square=square,
            spread=spread,
            null=null,
            total=self.effective,
        )


@dataclass(frozen=True, eq=False)
class Sample:
    """Columns with weights; `top` and `positive` are its views.

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
    memo: dict[Any, Any] = field(default_factory=dict)  # what one metric's interval found and another may use

    @classmethod
    def of(cls, columns: Columns, predictions: Predictions | None = None, seed: int = 0) -> Sample:
        """With the columns' own weights."""
        return cls(columns, columns.weights, columns.weight_kind == "count", predictions, seed)

    @property
    def n(self) -> int:
        return self.columns.condensed or self.columns.n

    @cached_property
    def top(self) -> View:
        c = self.columns
        return View(c.confidence, c.rest, c.correct, self.weights, self.counts, c.groups, self.values_only)

    @cached_property
    def positive(self) -> View:
        c = self.columns
        p, rest = c.positive, np.where(c.predicted == 1, c.rest, c.confidence)
        return View(p, rest, c.labels == 1, self.weights, self.counts, c.groups, self.values_only)

    def view(self, of: Of = "auto") -> View:
        """What every command measures: the one place where `auto` becomes the event or the top label."""
        return self.positive if of == "positive" or (of == "auto" and self.columns.k == 2) else self.top


def average(values: npt.NDArray[Any], weights: Floats | None, mask: npt.NDArray[np.bool_] | None = None) -> float:
    """Weighted mean over the masked rows; nan where no weight is left."""
    if mask is not None:
        values, weights = values[mask], None if weights is None else weights[mask]
    if weights is None:
        total = np.count_nonzero(values) if values.dtype == bool else float(values.sum())
        return total / len(values) if len(values) else math.nan
    total = float(weights.sum())
    return float(weights @ values) / total if total > 0 else math.nan
