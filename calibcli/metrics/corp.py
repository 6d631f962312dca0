"""CORP: isotonic recalibration splits a proper score into miscalibration, discrimination and uncertainty.

Proofs of the bounds: docs/statistics/corp.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from calibcli.core.number_format import percent
from calibcli.core.options import Range
from calibcli.core.statistics import (
    TIE,
    Binomials,
    bisect,
    group_places,
    normal_quantile,
    normal_share,
    quantile,
    quantiles,
    scrambled,
    student_quantile,
    tie_ends,
    unseen_reach,
)
from calibcli.metrics._histogram_error import PlacedRows, unchanged
from calibcli.metrics.intervals import IMPOSSIBLE, WeightedMean, counted, one_sided, share_bounds
from calibcli.metrics.registry import METRICS, NATS, UNIT, Interval, Of, Sample, Statistic
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.scores.predictions import Floats, Ints

# Isotonic regression of outcomes on their probability, and its distribution for a calibrated model.

Score = Literal["brier", "log"]
DRAWS, CELLS = 400, 1000  # simulations of a calibrated model; runs of rows that each one draws
ROUNDS = 60  # rounds of pooling all violators at once, before the remaining ones are pooled one by one
FOLDS = 5


class Blocks(NamedTuple):
    """Blocks of equal fitted value, each (B,): start, weight and weighted hits."""

    start: Ints
    weight: Floats
    hits: Floats

    @property
    def value(self) -> Floats:
        """(B,) fitted value."""
        return np.asarray(self.hits / self.weight)

    def spread(self, n: int) -> Floats:
        """Return (n,) the fitted value of each entry."""
        return np.repeat(self.value, np.diff(np.append(self.start, n)))

    def knots(self, p: Floats) -> tuple[Floats, Floats]:
        """Return (2 B,) first and last of the (n,) rising `p` of each block, and its value."""
        last = np.append(self.start[1:], len(p)) - 1
        return np.stack([p[self.start], p[last]], 1).ravel(), np.repeat(self.value, 2)


def pool(weight: Floats, hits: Floats, first: npt.NDArray[np.bool_] | None = None) -> Blocks:
    """Fit the isotonic regression of `hits / weight` by pooling adjacent violators (Ayer et al. 1955).

    Neighbours that do not rise are in one block of the solution, so all of them may be pooled at once. That is repeated
    until all blocks rise, or for ROUNDS rounds. What is left then is pooled from left to right: each entry joins the
    block before it while that has no smaller mean.

    Args:
        weight: (n,) positive.  hits: (n,) weighted outcomes.
        first: (n,) whether a regression begins here, where several lie one after another.
    """
    start, begins = None, first
    for _ in range(ROUNDS):
        mean = hits / weight
        kept = np.ones(len(mean), np.bool_)
        np.greater(mean[1:], mean[:-1], out=kept[1:])
        del mean
        if begins is not None:
            kept |= begins
        heads = np.flatnonzero(kept)
        start = heads if start is None else start[heads]
        if len(heads) == len(weight):
            return Blocks(start, weight, hits)
        begins = None if begins is None else begins[heads]
        weight, hits = np.add.reduceat(weight, heads), np.add.reduceat(hits, heads)
    start, begins = np.asarray(start), np.zeros(len(weight), np.bool_) if begins is None else begins
    blocks: list[tuple[int, float, float, bool]] = []
    for block in zip(start.tolist(), weight.tolist(), hits.tolist(), begins.tolist(), strict=True):
        while blocks and not block[3] and blocks[-1][2] * block[1] >= block[2] * blocks[-1][1]:
            before = blocks.pop()
            block = before[0], before[1] + block[1], before[2] + block[2], before[3]
        blocks.append(block)
    starts, weights, sums, _ = zip(*blocks, strict=True)
    return Blocks(np.array(starts), np.array(weights), np.array(sums))


def weighted_order(view: BinaryOutcomes) -> Ints:
    """Return (n,) rows of positive weight by rising probability."""
    return view.order if view.weights is None else view.order[view.weights[view.order] > 0]


@dataclass(frozen=True, eq=False)
class Isotonic:
    """The isotonic regression of outcomes on their probability, in which rows of equal odds are one entry.

    Attributes:
        ends: (T + 1,) ends of the ties, in ranks of the rows of positive weight by rising probability.
        weight, hits, p: (T,) share of the rows, weighted hits and probability of each tie.
    """

    view: BinaryOutcomes
    ends: Ints
    weight: Floats
    hits: Floats
    p: Floats

    @classmethod
    def of(cls, view: BinaryOutcomes) -> Isotonic:
        """Fit the regression of some outcomes.

        Without weights the rows are taken from `view.ranked`, which has p and hit sorted by odds, and the ends of its
        ties: it is sorted faster than `view.order`, the numbers of the rows, which is not needed here.
        """
        copy = replace(view)  # `view` keeps this object, which must not refer to it: that would form a cycle
        if view.weights is None:
            ranked, ends = view.ranked, view.ranked.ends
            weight, starts = np.diff(ends).astype(np.float64), ends[:-1]
            hits, mean = np.add.reduceat(ranked.hit, starts, dtype=np.float64), np.add.reduceat(ranked.p, starts)
            mean /= weight
            weight /= view.n
            hits /= view.n
            return cls(copy, ends, weight, hits, mean)
        order = weighted_order(view)
        vars(copy)["order"] = view.order  # a cached property, which the copy would sort again
        p, share = view.p[order], view.shares[order]
        ends = tie_ends(p, view.complement[order])
        weight, hits, sums = (np.add.reduceat(share * v, ends[:-1]) for v in (1.0, view.hit[order], p))
        return cls(copy, ends, weight, hits, sums / weight)

    @cached_property
    def order(self) -> Ints:
        """(n,) rows of positive weight by rising probability."""
        return weighted_order(self.view)

    @cached_property
    def blocks(self) -> Blocks:
        """Blocks of equal recalibrated probability."""
        return pool(self.weight, self.hits)

    @cached_property
    def fitted(self) -> Floats:
        """(N,) recalibrated probability of each row; its own where it has no weight."""
        fitted = self.view.p.copy()
        fitted[self.order] = np.repeat(self.blocks.spread(len(self.p)), np.diff(self.ends))
        return fitted

    @property
    def knots(self) -> tuple[Floats, Floats]:
        """(2 B,) first and last probability of each block, and its value: the curve of a reliability diagram."""
        return self.blocks.knots(self.p)

    @cached_property
    def left_out(self) -> Floats:
        """(N,) recalibrated probability of each row by the rows of the other folds.

        Groups are not divided. Without groups the ranks by probability go to the folds in turn, within a tie in an
        order that does not depend on that of the rows. Between blocks the regression is interpolated. It is never 0 or
        1: the first block counts half a hit more, 0.5 / (rows + 1) if it has none, and the last one half a miss.
        """
        view, n = self.view, len(self.order)
        tie = np.repeat(np.arange(len(self.p)), np.diff(self.ends))
        share, hit = view.shares[self.order], view.hit[self.order]
        fold = np.arange(n) % FOLDS
        if view.groups is not None:
            fold = group_places(view.groups[self.order])[1] % FOLDS
        elif len(self.p) < n:  # rows of a tie are shuffled in a way that does not depend on their order
            alike = np.lexsort((share, hit, tie))
            fold[alike[np.lexsort((scrambled(np.arange(n, dtype=np.uint64)), tie))]] = np.arange(n) % FOLDS
        fitted = view.p.copy()
        size = np.diff(self.ends)
        for f in range(FOLDS):
            out = np.flatnonzero(fold == f)
            weight = self.weight - np.bincount(tie[out], share[out], len(size))  # (T,) of the other folds
            kept = (size > np.bincount(tie[out], minlength=len(size))) & (weight > 0)
            if not kept.any():
                continue
            hits = self.hits - np.bincount(tie[out], share[out] * hit[out], len(size))
            hits = np.where(hits < TIE, 0.0, np.where(weight - hits < TIE, weight, hits))  # undo rounding
            blocks, p = pool(weight[kept], hits[kept]), self.p[kept]
            rows = blocks.weight[[0, -1]] * view.effective
            low, high = 0.5 / (rows[0] + 1), 1 - 0.5 / (rows[1] + 1)
            x, y = blocks.knots(p)
            fitted[self.order[out]] = np.interp(self.p[tie[out]], x, np.clip(y, min(low, high), max(low, high)))
        return fitted

    @cached_property
    def cells(self) -> SimulationCells:
        """Runs of ties for the simulation of a calibrated model."""
        return SimulationCells.of(self)


@dataclass(frozen=True, eq=False)
class SimulationCells:
    """Runs of ties with about equal rows and variance, on which a calibrated model is simulated.

    Attributes:
        weight, p: (C,) share of the rows and mean probability.  rows: (C,) effective rows.
    """

    weight: Floats
    p: Floats
    rows: Ints
    seed: int

    @classmethod
    def of(cls, fit: Isotonic) -> SimulationCells:
        """Divide the ties of a regression into at most CELLS runs.

        Ties are placed by the sum, up to them, of their share of the rows and their share of Σ w p (1 - p). It rises
        from 0 to 2, and a new run begins wherever it passes a multiple of 2 / CELLS.
        """
        view, w, p = fit.view, fit.weight, fit.p
        heads = np.arange(len(p))
        if len(p) > CELLS:
            chance = 1 - p  # all steps reuse this memory: there may be millions of ties
            chance *= p
            chance *= w
            chance /= max(float(chance.sum()), 1e-300)
            chance += w
            place = np.cumsum(chance, out=chance)
            place *= CELLS * (1 - 1e-9) / 2
            np.floor(place, out=place)
            heads = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
        rows = fit.ends[:-1][heads]  # rank of the first row of each run
        weight, sums = np.add.reduceat(w, heads), np.add.reduceat(w * p, heads)
        if view.weights is None:
            effective = np.diff(np.append(rows, view.n)).astype(np.float64)
        else:
            share = view.shares[fit.order]
            effective = weight**2 / np.add.reduceat(share / view.total if view.counts else share**2, rows)
        return cls(weight, sums / weight, np.maximum(np.round(effective), 1).astype(np.int64), view.seed)

    @cached_property
    def drawn(self) -> tuple[Floats, Floats]:
        """(DRAWS, C) simulated shares of hits of a calibrated model, and their isotonic regression.

        All draws are pooled in one call, as regressions that lie one after another.
        """
        c, rng = len(self.p), np.random.default_rng([self.seed, 91])
        share = Binomials(self.rows, np.clip(self.p, 0, 1)).draw(DRAWS, rng) / self.rows
        first = np.zeros(DRAWS * c, np.bool_)
        first[::c] = True
        weight = np.tile(self.weight, DRAWS)
        return share, pool(weight, weight * share.ravel(), first).spread(DRAWS * c).reshape(DRAWS, c)

    def miscalibration(self, score: Score) -> Floats:
        """Return (DRAWS,) score of a calibrated model less that of its isotonic regression, by chance above 0.

        In a cell with the simulated share ȳ of hits the mean score of a probability q is (q - ȳ)² + ȳ (1 - ȳ), or
        -ȳ log q - (1 - ȳ) log(1 - q).
        """
        share, fitted = self.drawn
        if score == "brier":
            gain = (self.p - share) ** 2 - (fitted - share) ** 2
        else:
            gain = log_gain(share, fitted, self.p) + log_gain(1 - share, 1 - fitted, 1 - self.p)
        return np.asarray(gain @ self.weight)

    def band(self, level: float) -> tuple[Floats, Floats]:
        """Return the (C,) ends of the band where the regression of a calibrated model lies, pointwise, at `level`."""
        low, high = quantiles(self.drawn[1], [(1 - level) / 2, (1 + level) / 2])
        return low, high


def log_gain(share: Floats, fitted: Floats, p: Floats) -> Floats:
    """Return share · log(fitted / p), 0 where nothing came true."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(share > 0, share * (np.log(fitted) - np.log(p)), 0.0)


# The metrics. With S the mean score, S_c that of the isotonic regression on the probabilities and S_r that of the base
# rate, S = MCB - DSC + UNC, where MCB = S - S_c (miscalibration), DSC = S_r - S_c (discrimination) and UNC = S_r
# (uncertainty): exact, without bins, and each part at least 0 (Dimitriadis, Gneiting, Jordan 2021).
#
# MCB and DSC are gains: the mean, over the rows, of what a row's score loses by the regression (`Decomposed.gain`). The
# regression fits its own rows best, so both are too large, most where they are small, and resampling adds that once
# more. Bounds that hold: above, the regression that is best for the population is no better on these rows than their
# own, so only the noise of a mean is missing; below, a regression of the other rows is worse than the best one.

Part = Literal["mcb", "dsc", "unc"]
ROUNDED_MCB = 1e-12  # an MCB up to this is rounding
ROUNDED_VARIANCE = 1e-30  # a variance within cells up to this is rounding


def _recalibrated(blocks: Blocks, score: str) -> float:
    """Return the mean score of a regression, which is the uncertainty within its blocks.

    A block with the share w of the rows and the rate q of hits adds w q (1 - q), or -w (q log q + (1 - q) log(1 - q)).
    """
    rate = np.clip(blocks.hits / blocks.weight, 0.0, 1.0)
    if score == "brier":
        return float(blocks.weight @ (rate * (1 - rate)))
    inside = np.clip(rate, 1e-300, 1.0), np.clip(1 - rate, 1e-300, 1.0)
    return -float(blocks.weight @ (rate * np.log(inside[0]) + (1 - rate) * np.log(inside[1])))


def _isotonic(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change of S_c, the score of the regression, by merging the rows of a cell.

    Merging keeps the misses and the hits of each cell and the order of the cells, but not the order within a cell. The
    regression scores best where the misses of every cell lie below its hits, and worst where all of a cell are tied. So
    S_c of the rows of the file lies between these two, and the distance of the farther one is the bound.
    """
    misses, hits = placed.in_order()  # (cells,) shares of the rows, cells by rising odds
    apart = np.stack([misses, hits], 1).ravel()  # (2 cells,) misses and hits of each cell as two entries
    some, filled = apart > 0, misses + hits > 0
    best = pool(apart[some], np.stack([0 * hits, hits], 1).ravel()[some])
    worst = pool((misses + hits)[filled], hits[filled])
    merged = _recalibrated(placed.view.memoized(Isotonic.of).blocks, options["score"])
    return max(abs(_recalibrated(blocks, options["score"]) - merged) for blocks in (best, worst))


def _miscalibration(placed: PlacedRows, options: Mapping[str, Any], value: float) -> float | None:
    """Bound the change of MCB = S - S_c by merging: that of S_c, and that of the mean score S.

    A mean Brier score does not change, as merging keeps mean and variance of p. The mean log score of two classes is
    the NLL, whose sum over all rows is kept beside p: S of the merged rows is off by its distance from that. Of more
    classes the NLL is not the log score of the top label, of which nothing is known but where nothing was moved: where
    the p of the rows of one outcome in a cell do not vary. `placed.variance` is that variance within cells, over all of
    them.
    """
    error = _isotonic(placed, options, value)
    if options["score"] == "brier":
        return error
    if placed.sample.columns.k > 2 or placed.sample.columns.top_only:
        return error if placed.variance < ROUNDED_VARIANCE else None
    view = placed.view
    with np.errstate(divide="ignore"):
        scores = -np.log(np.where(view.hit, view.p, view.complement))
    moved = float(view.shares @ scores) - float(view.shares @ placed.sample.columns.nll)
    return error + abs(moved) if math.isfinite(moved) else None


def _of_base_rate(k: int | None, options: Mapping[str, Any]) -> Range:
    """Narrow the range: at most the score of the base rate 1/2."""
    return Range(0, math.log(2) if options["score"] == "log" else 0.25)


def _of_score(k: int | None, options: Mapping[str, Any]) -> Range:
    return NATS if options["score"] == "log" else UNIT


@METRICS.add(values=NATS, narrowed=_of_score, better="lower", unit="", condensed=_miscalibration)
def corp_mcb(sample: Sample, *, score: Score = "brier", of: Of = "auto") -> Statistic:
    """Miscalibration, the part of a score that isotonic recalibration takes away (Dimitriadis et al. 2021).

    `score`: `brier`, (p - y)²; `log`, -log of the probability of what happened, in nats. Of the event of two classes,
    else of the top label; `corp_mcb` - `corp_dsc` + `corp_unc` is the score (`brier` of two classes, else `brier_top`).

    >>> round(calibcli.measure(logits, labels, "corp_mcb")["corp_mcb"].value, 4)
    0.0148
    """
    return Decomposed(sample.view(of), score, "mcb")


@METRICS.add(values=NATS, narrowed=_of_base_rate, better="higher", unit="", condensed=_isotonic)
def corp_dsc(sample: Sample, *, score: Score = "brier", of: Of = "auto") -> Statistic:
    """Discrimination, what recalibrated probabilities score better than the base rate (Dimitriadis et al. 2021).

    `score` as for `corp_mcb`.

    >>> round(calibcli.measure(logits, labels, "corp_dsc")["corp_dsc"].value, 4)
    0.0248
    """
    return Decomposed(sample.view(of), score, "dsc")


@METRICS.add(values=NATS, narrowed=_of_base_rate, unit="", condensed=unchanged)
def corp_unc(sample: Sample, *, score: Score = "brier", of: Of = "auto") -> Statistic:
    """Uncertainty, the score of the base rate: ȳ (1 - ȳ), or the entropy of ȳ in nats (Dimitriadis et al. 2021).

    `score` as for `corp_mcb`.

    >>> round(calibcli.measure(logits, labels, "corp_unc")["corp_unc"].value, 4)
    0.0813
    """
    return Decomposed(sample.view(of), score, "unc")


def scored(score: Score, hit: Any, p: Any, complement: Any) -> Floats:
    """Return the score of a probability p where it comes true (`hit`) or not."""
    if score == "brier":
        return np.asarray(np.where(hit, complement, p) ** 2)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(np.where(hit, p, complement)))


@dataclass(frozen=True, eq=False)
class Decomposed(Statistic):
    """One part of a score, with its bounds."""

    view: BinaryOutcomes
    score: Score
    part: Part

    @property
    def fit(self) -> Isotonic:
        """The isotonic regression of the outcomes."""
        return self.view.memoized(Isotonic.of)

    @cached_property
    def base(self) -> float:
        """The base rate."""
        return float(self.view.shares @ self.view.hit)

    def gain(self, fitted: Floats | float, base: Floats | float, hit: Any = None) -> Floats:
        """Return (N,) what each row's score loses by a recalibration, from that of its own p (mcb) or of the base rate.

        Infinite gains of rows without weight are replaced by 0 (`counted`), as a product with their weight is no
        number.

        Args:
            fitted: recalibrated probability of each row, or one of all.  base: the base rate, or one for each row.
            hit: outcome of all rows (True or False); None: the outcomes that they have.
        """
        view = self.view
        hit = view.hit if hit is None else hit
        before, complement = (view.p, view.complement) if self.part == "mcb" else (base, 1 - base)
        with np.errstate(invalid="ignore"):
            gain = scored(self.score, hit, before, complement) - scored(self.score, hit, fitted, 1 - fitted)
            return counted(gain, view.shares)

    @property
    def value(self) -> float:
        if self.part == "unc":
            return self.uncertainty(self.base)
        mean = float(self.view.shares @ self.gain(self.fit.fitted, self.base))
        return max(mean, 0.0) if math.isfinite(mean) else mean

    def uncertainty(self, rate: float) -> float:
        """Return the expected score of a rate that is true."""
        if self.score == "brier":
            return rate * (1 - rate)
        return -sum(q * math.log(q) for q in (rate, 1 - rate) if q > 0)

    def interval(self, level: float) -> Interval:
        view = self.view
        rows = WeightedMean(view.hit, view.weights, view.counts, view.groups)
        null: dict[str, Any] = {}
        if self.part == "mcb" and view.groups is None:
            cells: SimulationCells = self.fit.cells
            draws = cells.miscalibration(self.score)
            null = {"null": float(draws.mean()), "null_high": quantile(draws, 0.95)}
        null["detail"] = {"blocks": len(self.fit.blocks.start)} if self.part != "unc" else {}
        if not math.isfinite(self.value):
            return Interval(reason=IMPOSSIBLE)
        if rows.lacking:
            return Interval(reason=rows.lacking, **null)
        if self.part == "unc":
            return self._of_rate(rows, level)
        low, up = self._bounds(rows, 1 - level)
        how = f"one-sided bounds, each {percent(level)}: the best recalibration above, {FOLDS}-fold cross-fitting below"
        how += rows.clustered + ("; simulated null level" if self.part == "mcb" else "")
        return one_sided(level, min(max(0.0, low), self.value), max(self.value, up), how, **null)

    def _bounds(self, rows: WeightedMean, alpha: float) -> tuple[float, float]:
        """Return one-sided bounds of the mean gain by the best monotone recalibration g of the population.

        Below: a map that was fitted to other rows gains no more than g in expectation. So the mean gain by the
        regression of the other folds, less its noise, is a lower bound. Above: of all monotone maps the regression on
        all rows gains most on these rows, at least as much as g. So its mean gain, plus the noise of the gain by g, is
        an upper bound.

        For DSC = S_r - S_c the base rate is estimated, too. Below, it is that of all rows, whose score on them is no
        larger than that of the true rate. Above, it is for each row that of the other rows, whose expected score is no
        smaller.

        `unseen_reach` allows for rows that were not drawn: `undrawn` is the most that one row may move the mean, with
        either outcome (`WeightedMean.largest_contribution`: the largest product of share and distance from the mean).
        A row may lose what the left-out regression loses. It may gain what the regression gains, for MCB, with fitted
        probabilities that are kept off 0 and 1. For DSC it may gain all that the base rate costs there, as a few rows
        may have all discrimination.
        """
        fitted = self.fit.left_out
        gain = replace(rows, values=self.gain(fitted, self.base))
        most_lost = np.maximum(-self.gain(fitted, self.base, False), -self.gain(fitted, self.base, True))
        undrawn = max(gain.largest_contribution(most_lost + gain.value), 0.0)
        t = student_quantile(1 - alpha, gain.units - 1)
        low = gain.value - unseen_reach(t, gain.se**2, max(-gain.skew, 0.0), undrawn)

        n = max(rows.effective, 2.0)
        others = np.clip((self.base - self.view.hit / n) * n / (n - 1), 0.5 / n, 1 - 0.5 / n)  # (N,) base rates
        gain = replace(rows, values=self.gain(self.fit.fitted, others))
        if self.part == "dsc":
            best_of_miss: Floats | float = 0.0
            best_of_hit: Floats | float = 1.0
        else:
            edge = min(0.5, -math.log(alpha) * rows.largest_share)  # where the rows say 0, the population may say this
            best_of_miss = best_of_hit = np.clip(self.fit.fitted, edge, 1 - edge)
        most_gained = np.maximum(self.gain(best_of_miss, others, False), self.gain(best_of_hit, others, True))
        undrawn = max(gain.largest_contribution(most_gained - gain.value), 0.0)
        growth = max(gain.skew, 0.0) + (self._curvature(gain) if self.part == "mcb" else 0.0)
        t = student_quantile(1 - alpha, gain.units - 1)
        return low, gain.value + unseen_reach(t, gain.se**2, growth, undrawn)

    def _curvature(self, gain: WeightedMean) -> float:
        """Return 2κ / n, the rate at which the variance of the gain grows with it; κ = (variance of a row) / 4 MCB.

        Near a calibrated model the gain and its variance are 0 together, so that where these rows happen to look
        calibrated their variance says too little. But between their own probabilities p and the best ones g, which gain
        G in the population, lie those of p + s (g - p), monotone too. On these rows, with noise ε of variance κ / n,
        they gain 2 s (G + ε √G) - s² G, at the best s (√G + ε)²: the regression gains no less than that. So with
        M the gain on these rows √G <= √M + z √(κ / n), and

            G - M <= 2 z √(M κ / n) + z² κ / n = z se + z² κ / n,   as 4 M κ / n = se².

        The score form h² = z² se² + a h of `unseen_reach`, a = z² · 2κ / n, has h >= z se + a / 2, which is that.

        Where M is 0 the ratio is replaced by its limit for small e = g - p. A Brier score gains e² + 2 e (y - g), of
        mean e² and variance 4 e² g (1 - g): κ = g (1 - g), its mean over the rows. A log score gains e² / (2 g (1 - g))
        with twice that as its variance: κ = 1/2. The largest share of a row, or group, stands for 1 / n.
        """
        if gain.value > ROUNDED_MCB:
            return gain.se**2 / (2 * gain.value)
        fitted = self.fit.fitted
        kappa = 0.5 if self.score == "log" else float(self.view.shares @ (fitted * (1 - fitted)))
        return 2 * gain.largest_share * kappa

    def _of_rate(self, rows: WeightedMean, level: float) -> Interval:
        """Bound the uncertainty u(π) by bounds of the base rate π: it falls with the distance |π - 1/2|.

        Below: the smaller u of the two bounds of π, each at α = (1 - level) / 2.

        Above: u at the bound of π that is nearer to 1/2, or u(1/2) if that bound is beyond it. Let the estimate be
        `far` and the bound `near` from 1/2, the bound at the chance `tail`. It errs if |π - 1/2| < near, in two ways:
        from a rate at that distance the estimate came out as far as `far` on the same side, with the chance `tail`, or
        on the other side. The deviation of the estimate is about (far - near) / z, z the normal quantile of 1 - tail,
        so that the second chance is Φ(-z (far + near) / (far - near)). The largest `tail` is taken whose sum with it is
        at most α; it is between α / 2 and α.
        """
        alpha = (1 - level) / 2
        low, up = share_bounds(rows, alpha) or (0.0, 1.0)
        least = min(self.uncertainty(low), self.uncertainty(up))
        far = abs(self.base - 0.5)

        def nearest(tail: float) -> float:
            """Return the distance from one half of the bound on its side; below 0 if it is beyond one half."""
            low, up = share_bounds(rows, tail) or (0.0, 1.0)
            return low - 0.5 if self.base > 0.5 else 0.5 - up

        def remaining(tail: float) -> float:
            """Return what `tail` and the chance of the other side leave of α; 1 where the bound is beyond one half."""
            near, z = nearest(tail), normal_quantile(1 - tail)
            return alpha - tail - normal_share(-z * (far + near) / max(far - near, 1e-12)) if near > 0 else 1.0

        tail = bisect(remaining, alpha / 2, alpha, 20)[0]  # the lower end, where something remains
        most = self.uncertainty(0.5 + max(nearest(tail), 0.0))
        how = f"bounds of the base rate{rows.clustered}"
        return Interval(low=least, high=max(most, self.value), level=level, how=how)
