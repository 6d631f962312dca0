"""CORP: isotonic recalibration divides a proper score into miscalibration, discrimination and uncertainty (Dimitriadis
et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from calibcli.core.options import Range
from calibcli.core.statistics import (
    TIE,
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
from calibcli.metrics.intervals import (
    IMPOSSIBLE,
    Interval,
    Statistic,
    WeightedMean,
    counted,
    one_sided,
    percent,
    share_bounds,
)
from calibcli.metrics.shelf import METRICS, NATS, UNIT, BinaryOutcomes, Of, Sample
from calibcli.scores.predictions import Floats, Ints

# Isotonic regression of what came true on its probability, and what chance makes of it for a calibrated model.

Score = Literal["brier", "log"]
DRAWS, CELLS = 400, 1000  # of a calibrated model; runs of rows of which it is drawn
ROUNDS = 60  # of pooling at once, before what is left is pooled one by one
FOLDS = 5


class Blocks(NamedTuple):
    """(B,) where each block of equal fitted value begins, its weight and its weighted hits."""

    start: Ints
    weight: Floats
    hits: Floats

    @property
    def value(self) -> Floats:
        return np.asarray(self.hits / self.weight)

    def spread(self, n: int) -> Floats:
        """(n,) the value of each entry."""
        return np.repeat(self.value, np.diff(np.append(self.start, n)))

    def knots(self, p: Floats) -> tuple[Floats, Floats]:
        """(2 B,) first and last of the (n,) rising `p` of each block, and its value."""
        last = np.append(self.start[1:], len(p)) - 1
        return np.stack([p[self.start], p[last]], 1).ravel(), np.repeat(self.value, 2)


def pool(weight: Floats, hits: Floats, first: npt.NDArray[np.bool_] | None = None) -> Blocks:
    """Pool adjacent violators (Ayer et al. 1955): the blocks of the isotonic regression of `hits / weight`.

    Neighbours that do not rise are in one block of the solution, so all of them may be pooled at once.

    Args:
        weight: (n,) positive.  hits: (n,) weighted outcomes.
        first: (n,) where a regression begins, of several beside each other.
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
    found: list[tuple[int, float, float, bool]] = []
    for one in zip(start.tolist(), weight.tolist(), hits.tolist(), begins.tolist(), strict=True):
        while found and not one[3] and found[-1][2] * one[1] >= one[2] * found[-1][1]:
            before = found.pop()
            one = before[0], before[1] + one[1], before[2] + one[2], before[3]
        found.append(one)
    starts, weights, sums, _ = zip(*found, strict=True)
    return Blocks(np.array(starts), np.array(weights), np.array(sums))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """The regression of outcomes on their probability, rows of equal odds taken together.

    Attributes:
        ends: (T + 1,) where, among the rows of some weight by rising probability, another probability begins.
        weight, hits, p: (T,) share of the rows, weighted hits and probability of each tie.
    """

    view: BinaryOutcomes
    ends: Ints
    weight: Floats
    hits: Floats
    p: Floats

    @classmethod
    def of(cls, view: BinaryOutcomes) -> Isotonic:
        own = replace(view)  # not `view`, which keeps this
        if view.weights is None:
            ranked, ends = view.ranked, view.ranked.ends
            weight, starts = np.diff(ends).astype(np.float64), ends[:-1]
            hits, said = np.add.reduceat(ranked.hit, starts, dtype=np.float64), np.add.reduceat(ranked.p, starts)
            said /= weight
            weight /= view.n
            hits /= view.n
            return cls(own, ends, weight, hits, said)
        vars(own)["order"] = view.order
        order = view.order[view.weights[view.order] > 0]
        p, share = view.p[order], view.shares[order]
        ends = tie_ends(p, view.complement[order])
        weight, hits, said = (np.add.reduceat(share * v, ends[:-1]) for v in (1.0, view.hit[order], p))
        return cls(own, ends, weight, hits, said / weight)

    @cached_property
    def order(self) -> Ints:
        """(n,) rows by rising probability, without those of no weight."""
        order, weights = self.view.order, self.view.weights
        return order if weights is None else order[weights[order] > 0]

    @cached_property
    def blocks(self) -> Blocks:
        return pool(self.weight, self.hits)

    @cached_property
    def fitted(self) -> Floats:
        """(N,) recalibrated probability of each row; its own where it has no weight."""
        found = self.view.p.copy()
        found[self.order] = np.repeat(self.blocks.spread(len(self.p)), np.diff(self.ends))
        return found

    @property
    def knots(self) -> tuple[Floats, Floats]:
        """(2 B,) first and last probability of each block, and its value: the curve of a reliability diagram."""
        return self.blocks.knots(self.p)

    @cached_property
    def left_out(self) -> Floats:
        """(N,) recalibrated probability of each row by the rows of the other folds, groups whole; between blocks by
        interpolation. Never 0 or 1: the ends lie half a hit, or half a miss, within.
        """
        view, n = self.view, len(self.order)
        tie = np.repeat(np.arange(len(self.p)), np.diff(self.ends))
        share, hit = view.shares[self.order], view.hit[self.order]
        fold = np.arange(n) % FOLDS
        if view.groups is not None:
            fold = np.unique(view.groups[self.order], return_inverse=True)[1] % FOLDS
        elif len(self.p) < n:  # shuffled within ties, whatever the order of the rows
            alike = np.lexsort((share, hit, tie))
            fold[alike[np.lexsort((scrambled(np.arange(n, dtype=np.uint64)), tie))]] = np.arange(n) % FOLDS
        found = view.p.copy()
        size = np.diff(self.ends)
        for f in range(FOLDS):
            out = np.flatnonzero(fold == f)
            weight = self.weight - np.bincount(tie[out], share[out], len(size))
            there = (size > np.bincount(tie[out], minlength=len(size))) & (weight > 0)
            if not there.any():
                continue
            hits = self.hits - np.bincount(tie[out], share[out] * hit[out], len(size))
            hits = np.where(hits < TIE, 0.0, np.where(weight - hits < TIE, weight, hits))  # whatever was rounded
            blocks, p = pool(weight[there], hits[there]), self.p[there]
            rows = blocks.weight[[0, -1]] * view.effective
            low, high = 0.5 / (rows[0] + 1), 1 - 0.5 / (rows[1] + 1)
            x, y = blocks.knots(p)
            found[self.order[out]] = np.interp(self.p[tie[out]], x, np.clip(y, min(low, high), max(low, high)))
        return found

    @cached_property
    def cells(self) -> SimulationCells:
        return SimulationCells.of(self)


@dataclass(frozen=True, eq=False)
class SimulationCells:
    """Runs of ties, each with about as many rows and as much chance, of which a calibrated model is drawn.

    Attributes:
        weight, p: (C,) share of the rows and mean probability.  rows: (C,) effective rows.
    """

    weight: Floats
    p: Floats
    rows: Ints
    seed: int

    @classmethod
    def of(cls, fit: Isotonic) -> SimulationCells:
        view, w, p = fit.view, fit.weight, fit.p
        at = np.arange(len(p))
        if len(p) > CELLS:
            chance = 1 - p  # and in the same memory what comes of it: there may be millions
            chance *= p
            chance *= w
            chance /= max(float(chance.sum()), 1e-300)
            chance += w
            place = np.cumsum(chance, out=chance)
            place *= CELLS * (1 - 1e-9) / 2
            np.floor(place, out=place)
            at = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
        rows = fit.ends[:-1][at]
        weight, said = np.add.reduceat(w, at), np.add.reduceat(w * p, at)
        if view.weights is None:
            effective = np.diff(np.append(rows, view.n)).astype(np.float64)
        else:
            share = view.shares[fit.order]
            effective = weight**2 / np.add.reduceat(share / view.total if view.counts else share**2, rows)
        return cls(weight, said / weight, np.maximum(np.round(effective), 1).astype(np.int64), view.seed)

    @cached_property
    def drawn(self) -> tuple[Floats, Floats]:
        """(DRAWS, C) shares that came true of a calibrated model, and their isotonic regression."""
        c, rng = len(self.p), np.random.default_rng([self.seed, 91])
        share = rng.binomial(self.rows, np.clip(self.p, 0, 1), size=(DRAWS, c)) / self.rows
        first = np.zeros(DRAWS * c, np.bool_)
        first[::c] = True
        weight = np.tile(self.weight, DRAWS)
        return share, pool(weight, weight * share.ravel(), first).spread(DRAWS * c).reshape(DRAWS, c)

    def miscalibration(self, score: Score) -> Floats:
        """(DRAWS,) score of a calibrated model less that of its isotonic regression: what chance makes of 0."""
        share, fitted = self.drawn
        if score == "brier":
            gain = (self.p - share) ** 2 - (fitted - share) ** 2
        else:
            gain = log_gain(share, fitted, self.p) + log_gain(1 - share, 1 - fitted, 1 - self.p)
        return np.asarray(gain @ self.weight)

    def band(self, level: float) -> tuple[Floats, Floats]:
        """(C,) where the regression of a calibrated model lies, pointwise, with chance `level`."""
        low, high = quantiles(self.drawn[1], [(1 - level) / 2, (1 + level) / 2])
        return low, high


def log_gain(share: Floats, fitted: Floats, p: Floats) -> Floats:
    """share · log(fitted / p), 0 where nothing came true."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(share > 0, share * (np.log(fitted) - np.log(p)), 0.0)


# CORP: a proper score in parts, of which recalibration by isotonic regression tells one from the other.
#
# With S the mean score, S_c that of the isotonic regression on the probabilities and S_r that of the base rate,
# S = MCB - DSC + UNC, where MCB = S - S_c (miscalibration), DSC = S_r - S_c (discrimination), UNC = S_r
# (uncertainty):
# without bins, exact, and each part at least 0 (Dimitriadis, Gneiting, Jordan 2021).
#
# The regression fits its own rows best, so both MCB and DSC are too large, most where they are small, and resampling
# adds
# that once more. What holds: above, the regression that is best for all rows is no better on these than theirs, so
# what
# is missing is the noise of a mean; below, one of the other rows is worse than the best.


Part = Literal["mcb", "dsc", "unc"]
NOTHING = 1e-12  # an MCB of rounding
ALONE = 1e-30  # variance within cells that is rounding


def _recalibrated(blocks: Blocks, score: str) -> float:
    """Mean score of a regression, which is the uncertainty within its blocks."""
    rate = np.clip(blocks.hits / blocks.weight, 0.0, 1.0)
    if score == "brier":
        return float(blocks.weight @ (rate * (1 - rate)))
    inside = np.clip(rate, 1e-300, 1.0), np.clip(1 - rate, 1e-300, 1.0)
    return -float(blocks.weight @ (rate * np.log(inside[0]) + (1 - rate) * np.log(inside[1])))


def _isotonic(at: PlacedRows, options: Mapping[str, Any], value: float) -> float:
    """The regression scores best where the misses of every cell lie below its hits, and worst where all are tied."""
    misses, hits = at.in_order()
    apart = np.stack([misses, hits], 1).ravel()
    some, there = apart > 0, misses + hits > 0
    best = pool(apart[some], np.stack([0 * hits, hits], 1).ravel()[some])
    worst = pool((misses + hits)[there], hits[there])
    own = _recalibrated(at.view.once(Isotonic.of).blocks, options["score"])
    return max(abs(_recalibrated(blocks, options["score"]) - own) for blocks in (best, worst))


def _miscalibration(at: PlacedRows, options: Mapping[str, Any], value: float) -> float | None:
    """The mean of a Brier score stays as it is. That of a logarithm is the NLL of two classes, whose sum is kept; of
    more classes it is known where rows of one outcome share no cell.
    """
    error = _isotonic(at, options, value)
    if options["score"] == "brier":
        return error
    if at.sample.columns.k > 2 or at.sample.columns.top_only:
        return error if at.variance < ALONE else None
    view = at.view
    with np.errstate(divide="ignore"):
        own = -np.log(np.where(view.hit, view.p, view.complement))
    moved = float(view.shares @ own) - float(view.shares @ at.sample.columns.nll)
    return error + abs(moved) if math.isfinite(moved) else None


def _of_base_rate(k: int | None, options: Mapping[str, Any]) -> Range:
    """At most the score of the base rate 1/2."""
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
    """Score of a probability p where it comes true (`hit`) or not."""
    if score == "brier":
        return np.asarray(np.where(hit, complement, p) ** 2)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(np.where(hit, p, complement)))


@dataclass(frozen=True, eq=False)
class Decomposed(Statistic):
    """One part of the score."""

    view: BinaryOutcomes
    score: Score
    part: Part

    @property
    def fit(self) -> Isotonic:
        return self.view.once(Isotonic.of)

    @cached_property
    def base(self) -> float:
        return float(self.view.shares @ self.view.hit)

    def gain(self, fitted: Floats | float, base: Floats | float, hit: Any = None) -> Floats:
        """(N,) what each row gains by a recalibration: over its own probability, or over the base rate."""
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
        """Score of a constant, were it right."""
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
        """Of the gain by the regression on all rows, which is too large, above; of that by the rows of other folds,
        which is too small, below. Rows that were not drawn gain what their probabilities tell of either outcome
        (`core.statistics.unseen_reach`); above, over the base rate, all that it costs there, as few rows may hold all
        discrimination.

        Above, the base rate is that of the other rows, whose score is no smaller than that of the true one; below that
        of all, whose score is no larger.
        """
        view, n = self.view, max(rows.effective, 2.0)
        others = np.clip((self.base - view.hit / n) * n / (n - 1), 0.5 / n, 1 - 0.5 / n)
        edge = min(0.5, -math.log(alpha) * rows.largest_share)  # what a regression of 0 or 1 may be for all rows
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
        """2κ / n, κ = variance / 4 MCB of one row, with √MCB <= √(MCB of these rows) + z √(κ / n).

        Near a calibrated model the gain and its variance are 0 together, so that where these rows happen to look
        calibrated their variance says too little. But between their own probabilities p and the best ones g, which gain
        G, lie those of p + s (g - p), monotone too. With noise ε, on these rows they gain 2 s (G + ε √G) - s² G, at the
        best s (√G + ε)²: no regression gains less than that.
        """
        if gain.value > NOTHING:
            return gain.se**2 / (2 * gain.value)
        fitted = self.fit.fitted
        return (
            2 * gain.largest_share * (0.5 if self.score == "log" else float(self.view.shares @ (fitted * (1 - fitted))))
        )

    def _of_rate(self, rows: WeightedMean, level: float) -> Interval:
        """Bounds of the base rate, through the score, which falls with the distance from one half.

        A rate near one half may come out too far from it on either side: above, both tails share the level.
        """
        alpha = (1 - level) / 2
        low, up = share_bounds(rows, alpha) or (0.0, 1.0)
        least = min(self.uncertainty(low), self.uncertainty(up))
        far = abs(self.base - 0.5)

        def nearest(tail: float) -> float:
            """Signed distance from one half of the bound on its side, at this level."""
            low, up = share_bounds(rows, tail) or (0.0, 1.0)
            return low - 0.5 if self.base > 0.5 else 0.5 - up

        def left(tail: float) -> float:
            """Of alpha, where this much is on the one side."""
            near, z = nearest(tail), normal_quantile(1 - tail)
            return alpha - tail - normal_share(-z * (far + near) / max(far - near, 1e-12)) if near > 0 else 1.0

        tail = bisect(left, alpha / 2, alpha, 20)[0]
        most = self.uncertainty(0.5 + max(nearest(tail), 0.0))
        how = f"bounds of the base rate{rows.clustered}"
        return Interval(low=least, high=max(most, self.value), level=level, how=how)
