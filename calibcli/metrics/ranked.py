"""Outcomes in order of their probability, of which equal-mass bins are stretches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from calibcli.numerics import TIE
from calibcli.predictions import Floats, Ints

Hits = npt.NDArray[np.bool_]
HIGHEST = 1e300  # odds


@dataclass(frozen=True, eq=False)
class Ranked:
    """Outcomes by rising p, each (N,), rows of equal p in any order."""

    p: Floats
    complement: Floats
    hit: Hits
    weights: Floats | None

    @classmethod
    def of(cls, p: Floats, complement: Floats, hit: Hits, weights: Floats | None, order: Ints | None) -> Ranked:
        """Rows without weights are sorted by their odds, which keep the digits of both p and 1 - p, with the outcome as
        the last bit: several times as fast as an order of the rows and what lies in that order.

        Args:
            p, complement, hit, weights: (N,) in any order.  order: that of p, where there are weights.
        """
        if weights is not None:
            return cls(p[order], complement[order], hit[order], weights[order])
        with np.errstate(divide="ignore", over="ignore"):
            odds = np.minimum(np.divide(p, complement), HIGHEST)
        bits = odds.view(np.int64)
        bits &= -2
        bits |= hit
        bits.sort()
        rest = odds + 1
        np.divide(1, rest, out=rest)
        return cls(odds * rest, rest, (bits & 1).astype(np.bool_), None)

    @cached_property
    def residual(self) -> Floats:
        """p - y."""
        return residual(self.p, self.complement, self.hit)

    def before(self, ranks: Ints) -> Floats:
        """Weight of the rows before each of these ranks."""
        if self.weights is None:
            return ranks.astype(np.float64)
        return np.append(0.0, np.cumsum(self.weights))[ranks]

    @cached_property
    def ends(self) -> Ints:
        """Where rows of another p begin (by more than TIE than the row before), from 0 to N."""
        return np.concatenate([[0], np.flatnonzero(np.diff(self.p) > TIE) + 1, [len(self.p)]])


def residual(p: Floats, complement: Floats, hit: Hits) -> Floats:
    """p - y, from 1 - p where y is 1: as a sum, several times as fast as a choice by row."""
    found: Floats = p * ~hit
    found -= complement * hit
    return found
