"""Isotonic regression of what came true on its probability, and what chance makes of it for a calibrated model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from calibcli.metrics.sample import BinaryOutcomes
from calibcli.numerics import TIE, quantiles, scrambled, tie_ends
from calibcli.predictions import Floats, Ints

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
    def cells(self) -> Cells:
        return Cells.of(self)


@dataclass(frozen=True, eq=False)
class Cells:
    """Runs of ties, each with about as many rows and as much chance, of which a calibrated model is drawn.

    Attributes:
        weight, p: (C,) share of the rows and mean probability.  rows: (C,) effective rows.
    """

    weight: Floats
    p: Floats
    rows: Ints
    seed: int

    @classmethod
    def of(cls, fit: Isotonic) -> Cells:
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
