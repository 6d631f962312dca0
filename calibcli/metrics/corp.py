"""CORP: isotonic recalibration splits a proper score into miscalibration, discrimination and uncertainty."""

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
    normal_quantile,
    normal_share,
    quantile,
    quantiles,
    scrambled,
    student_quantile,
    tie_ends,
    unseen_reach,
)
from calibcli.metrics.histogram_error import PlacedRows, unchanged
from calibcli.metrics.intervals import IMPOSSIBLE, WeightedMean, counted, one_sided, share_bounds
from calibcli.metrics.reliability import BinaryOutcomes
from calibcli.metrics.shelf import METRICS, NATS, UNIT, Interval, Of, Sample, Statistic
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

    Neighbours that do not rise are in one block of the solution, so all of them may be pooled at once.

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
        at = np.flatnonzero(kept)
        start = at if start is None else start[at]
        if len(at) == len(weight):
            return Blocks(start, weight, hits)
        begins = None if begins is None else begins[at]
        weight, hits = np.add.reduceat(weight, at), np.add.reduceat(hits, at)
    start, begins = np.asarray(start), np.zeros(len(weight), np.bool_) if begins is None else begins
    blocks: list[tuple[int, float, float, bool]] = []
    for one in zip(start.tolist(), weight.tolist(), hits.tolist(), begins.tolist(), strict=True):
        while blocks and not one[3] and blocks[-1][2] * one[1] >= one[2] * blocks[-1][1]:
            before = blocks.pop()
            one = before[0], before[1] + one[1], before[2] + one[2], before[3]
        blocks.append(one)
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
        """Fit the regression of some outcomes."""
        own = replace(view)  # a copy: `view` keeps this object, which would form a cycle
        if view.weights is None:
            ranked, ends = view.ranked, view.ranked.ends
            weight, starts = np.diff(ends).astype(np.float64), ends[:-1]
            hits, mean = np.add.reduceat(ranked.hit, starts, dtype=np.float64), np.add.reduceat(ranked.p, starts)
            mean /= weight
            weight /= view.n
            hits /= view.n
            return cls(own, ends, weight, hits, mean)
        vars(own)["order"], order = view.order, weighted_order(view)
        p, share = view.p[order], view.shares[order]
        ends = tie_ends(p, view.complement[order])
        weight, hits, sums = (np.add.reduceat(share * v, ends[:-1]) for v in (1.0, view.hit[order], p))
        return cls(own, ends, weight, hits, sums / weight)

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

        Groups are not divided. Between blocks it is interpolated. It is never 0 or 1: the outer blocks count half a
        hit, or half a miss, more.
        """
        view, n = self.view, len(self.order)
        tie = np.repeat(np.arange(len(self.p)), np.diff(self.ends))
        share, hit = view.shares[self.order], view.hit[self.order]
        fold = np.arange(n) % FOLDS
        if view.groups is not None:
            fold = np.unique(view.groups[self.order], return_inverse=True)[1] % FOLDS
        elif len(self.p) < n:  # rows of a tie are shuffled in a way that does not depend on their order
            alike = np.lexsort((share, hit, tie))
            fold[alike[np.lexsort((scrambled(np.arange(n, dtype=np.uint64)), tie))]] = np.arange(n) % FOLDS
        fitted = view.p.copy()
        size = np.diff(self.ends)
        for f in range(FOLDS):
            out = np.flatnonzero(fold == f)
            weight = self.weight - np.bincount(tie[out], share[out], len(size))
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
        """Divide the ties of a regression into at most CELLS runs."""
        view, w, p = fit.view, fit.weight, fit.p
        at = np.arange(len(p))
        if len(p) > CELLS:
            chance = 1 - p  # all steps reuse this memory: there may be millions of ties
            chance *= p
            chance *= w
            chance /= max(float(chance.sum()), 1e-300)
            chance += w
            place = np.cumsum(chance, out=chance)
            place *= CELLS * (1 - 1e-9) / 2
            np.floor(place, out=place)
            at = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
        rows = fit.ends[:-1][at]
        weight, sums = np.add.reduceat(w, at), np.add.reduceat(w * p, at)
        if view.weights is None:
            effective = np.diff(np.append(rows, view.n)).astype(np.float64)
        else:
            share = view.shares[fit.order]
            effective = weight**2 / np.add.reduceat(share / view.total if view.counts else share**2, rows)
        return cls(weight, sums / weight, np.maximum(np.round(effective), 1).astype(np.int64), view.seed)

    @cached_property
    def drawn(self) -> tuple[Floats, Floats]:
        """(DRAWS, C) simulated shares of hits of a calibrated model, and their isotonic regression."""
        c, rng = len(self.p), np.random.default_rng([self.seed, 91])
        share = Binomials(self.rows, np.clip(self.p, 0, 1)).draw(DRAWS, rng) / self.rows
        first = np.zeros(DRAWS * c, np.bool_)
        first[::c] = True
        weight = np.tile(self.weight, DRAWS)
        return share, pool(weight, weight * share.ravel(), first).spread(DRAWS * c).reshape(DRAWS, c)

    def miscalibration(self, score: Score) -> Floats:
        """Return (DRAWS,) score of a calibrated model less that of its isotonic regression, by chance above 0."""
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
# The regression fits its own rows best, so both MCB and DSC are too large, most where they are small, and resampling
# adds that once more. Bounds that hold: above, the regression that is best for the population is no better on these
# rows than their own, so only the noise of a mean is missing; below, a regression of the other rows is worse than the
# best one.

Part = Literal["mcb", "dsc", "unc"]
ROUNDED_MCB = 1e-12  # an MCB up to this is rounding
ROUNDED_VARIANCE = 1e-30  # a variance within cells up to this is rounding


def _recalibrated(blocks: Blocks, score: str) -> float:
    """Return the mean score of a regression, which is the uncertainty within its blocks."""
    rate = np.clip(blocks.hits / blocks.weight, 0.0, 1.0)
    if score == "brier":
        return float(blocks.weight @ (rate * (1 - rate)))
    inside = np.clip(rate, 1e-300, 1.0), np.clip(1 - rate, 1e-300, 1.0)
    return -float(blocks.weight @ (rate * np.log(inside[0]) + (1 - rate) * np.log(inside[1])))


def _isotonic(at: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """Bound the change by merging.

    The regression scores best where the misses of every cell lie below its hits, and worst where all are tied.
    """
    misses, hits = at.in_order()
    apart = np.stack([misses, hits], 1).ravel()
    some, filled = apart > 0, misses + hits > 0
    best = pool(apart[some], np.stack([0 * hits, hits], 1).ravel()[some])
    worst = pool((misses + hits)[filled], hits[filled])
    own = _recalibrated(at.view.once(Isotonic.of).blocks, options["score"])
    return max(abs(_recalibrated(blocks, options["score"]) - own) for blocks in (best, worst))


def _miscalibration(at: PlacedRows, options: Mapping[str, Any], value: float) -> float | None:
    """Bound the change of the miscalibration by merging.

    A mean Brier score does not change. The mean log score of two classes is the NLL, whose sum is kept; of more classes
    it is known where rows of one outcome share no cell.
    """
    error = _isotonic(at, options, value)
    if options["score"] == "brier":
        return error
    if at.sample.columns.k > 2 or at.sample.columns.top_only:
        return error if at.variance < ROUNDED_VARIANCE else None
    view = at.view
    with np.errstate(divide="ignore"):
        own = -np.log(np.where(view.hit, view.p, view.complement))
    moved = float(view.shares @ own) - float(view.shares @ at.sample.columns.nll)
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
        return self.view.once(Isotonic.of)

    @cached_property
    def base(self) -> float:
        """The base rate."""
        return float(self.view.shares @ self.view.hit)

    def gain(self, fitted: Floats | float, base: Floats | float, hit: Any = None) -> Floats:
        """Return (N,) the gain of each row by a recalibration, over its own probability or over the base rate."""
        view = self.view
        hit = view.hit if hit is None else hit
        own = (view.p, view.complement) if self.part == "mcb" else (base, 1 - base)
        with np.errstate(invalid="ignore"):
            return counted(scored(self.score, hit, *own) - scored(self.score, hit, fitted, 1 - fitted), view.shares)

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
        """Bound the gain: from above that by the regression on all rows, which is too large, from below that by the
        rows of other folds, which is too small.

        Rows that were not drawn gain what their probabilities allow for either outcome
        (`core.statistics.unseen_reach`); above, over the base rate, all that it costs there, as a few rows may have all
        discrimination. Above, the base rate is that of the other rows, whose score is no smaller than that of the true
        one; below that of all rows, whose score is no larger.
        """
        view, n = self.view, max(rows.effective, 2.0)
        others = np.clip((self.base - view.hit / n) * n / (n - 1), 0.5 / n, 1 - 0.5 / n)
        # where the rows say 0 or 1, the population may be this far inside
        edge = min(0.5, -math.log(alpha) * rows.largest_share)
        inside = np.clip(self.fit.fitted, edge, 1 - edge)
        ends = []
        for fitted, best, base, sign in (
            (self.fit.left_out, (self.fit.left_out, self.fit.left_out), self.base, -1),
            (self.fit.fitted, (0.0, 1.0) if self.part == "dsc" else (inside, inside), others, 1),
        ):
            gain = replace(rows, values=self.gain(fitted, base))
            either = np.maximum(*(sign * self.gain(best[hit], base, hit) for hit in (False, True)))
            undrawn = max(gain.dearest(either - sign * gain.value), 0.0)
            growth = max(sign * gain.skew, 0.0) + (self._curvature(gain) if sign > 0 and self.part == "mcb" else 0.0)
            t = student_quantile(1 - alpha, gain.units - 1)
            ends.append(gain.value + sign * unseen_reach(t, gain.se**2, growth, undrawn))
        return ends[0], ends[1]

    def _curvature(self, gain: WeightedMean) -> float:
        """Return 2κ / n, κ = variance / 4 MCB of one row, for √MCB <= √(MCB of these rows) + z √(κ / n).

        Near a calibrated model the gain and its variance are 0 together, so that where these rows happen to look
        calibrated their variance says too little. But between their own probabilities p and the best ones g, which gain
        G, lie those of p + s (g - p), monotone too. With noise ε, on these rows they gain 2 s (G + ε √G) - s² G, at the
        best s (√G + ε)²: no regression gains less than that.
        """
        if gain.value > ROUNDED_MCB:
            return gain.se**2 / (2 * gain.value)
        fitted = self.fit.fitted
        spread = 0.5 if self.score == "log" else float(self.view.shares @ (fitted * (1 - fitted)))
        return 2 * gain.largest_share * spread

    def _of_rate(self, rows: WeightedMean, level: float) -> Interval:
        """Bound the uncertainty by bounds of the base rate: it falls with the distance of the rate from one half.

        An estimated rate near one half may be too far from it on either side: above, both tails share the level.
        """
        alpha = (1 - level) / 2
        low, up = share_bounds(rows, alpha) or (0.0, 1.0)
        least = min(self.uncertainty(low), self.uncertainty(up))
        far = abs(self.base - 0.5)

        def nearest(tail: float) -> float:
            """Return the signed distance from one half of the bound on its side, at this level."""
            low, up = share_bounds(rows, tail) or (0.0, 1.0)
            return low - 0.5 if self.base > 0.5 else 0.5 - up

        def remaining(tail: float) -> float:
            """Return what is left of alpha for the other side."""
            near, z = nearest(tail), normal_quantile(1 - tail)
            return alpha - tail - normal_share(-z * (far + near) / max(far - near, 1e-12)) if near > 0 else 1.0

        tail = bisect(remaining, alpha / 2, alpha, 20)[0]
        most = self.uncertainty(0.5 + max(nearest(tail), 0.0))
        how = f"bounds of the base rate{rows.clustered}"
        return Interval(low=least, high=max(most, self.value), level=level, how=how)
