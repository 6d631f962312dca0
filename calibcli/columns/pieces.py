"""Some rows of scores at a time: the extremes of each, and what only some classes show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from calibcli.predictions import Array, Floats, Ints

CACHED = 1 << 17  # scores looked at together: about what the second-level cache holds
LONG = 512  # classes from which rows are long
NARROW = 32  # classes up to which scores are looked at class by class


class Piece:
    """A piece of scores, (n, K), whose numbers per row are taken along the long axis: over few classes class by class,
    else row by row, some rows at a time, so that they are read from memory once.

    Attributes:
        z: (n, K).  by_class: (K, n), contiguous where K is small.
        top: (n,) largest score of each row.  low: the smallest score, NaN where one is.
    """

    def __init__(self, z: Array) -> None:
        n, k = z.shape
        self.n, self.k = int(n), int(k)
        self.z, self.narrow = z, k <= NARROW
        self.by_class = np.ascontiguousarray(z.T) if self.narrow else z.T
        if self.narrow:
            self.top, self.low = self.by_class.max(axis=0), float(self.by_class.min(initial=math.inf))
            return
        self.top, self._best, self._several = np.empty(n, z.dtype), np.empty(n, np.int64), np.ones(n, np.int64)
        step, low = max(1, CACHED // k), []
        same = np.empty((min(step, n), k), np.bool_)
        for start in range(0, n, step):
            rows, part = slice(start, start + step), z[start : start + step]
            best = part.argmax(axis=1, out=self._best[rows])
            self.top[rows] = top = part.reshape(-1)[np.arange(0, part.size, k) + best]
            low.append(part.min())
            here = with_each(np.equal, part, top, same[: len(part)])
            if np.count_nonzero(here) != len(part):
                self._several[rows] = np.count_nonzero(here, axis=1)
        self.low = float(np.min(low, initial=math.inf))

    def __len__(self) -> int:
        return self.n

    def columns(self, which: Sequence[int]) -> list[Array]:
        """(n,) the scores of each of these classes."""
        if self.narrow:
            return [self.by_class[c] for c in which]
        return [*np.ascontiguousarray(self.z[:, which].T)]

    @property
    def log_sums(self) -> Floats:
        """(n,) float64 logarithm of the sum of exponentials."""
        return np.asarray(self.top + np.log(np.exp(self.z - self.top[:, None]).sum(axis=1, dtype=np.float64)))

    @property
    def range(self) -> tuple[float, float]:
        """Of all scores; NaN where one is."""
        return self.low, float(self.top.max())

    @property
    def best(self) -> Ints:
        """(n,) class of the largest score, the first of those that are as large."""
        if not self.narrow:
            return self._best
        found, last = np.zeros(len(self), np.uint8), self.k - 1
        for c in range(last):
            np.maximum(found, (self.by_class[c] == self.top).view(np.uint8) * np.uint8(last - c), out=found)
        return last - found.astype(np.int64)

    @property
    def least(self) -> Array:
        """(n,) smallest score of each row."""
        if self.narrow:
            return np.asarray(self.by_class.min(axis=0))
        return least_of(self.z)

    @property
    def sums(self) -> Floats:
        """(n,) float64."""
        scores, axis = (self.by_class, 0) if self.narrow else (self.z, 1)
        return np.asarray(scores.sum(axis=axis, dtype=np.float64))

    @property
    def largest(self) -> Ints | None:
        """(n,) how many scores of each row are as large as the largest; None: one in every row."""
        if not self.narrow:
            return self._several if self._several.max(initial=1) > 1 else None
        same = self.by_class == self.top
        return None if np.count_nonzero(same) <= len(self) else np.count_nonzero(same, axis=0)

    def at(self, labels: Ints) -> Array:
        """(n,) the score of the label; of one column the probability of it."""
        if self.k > 1:
            return np.asarray(self.z.reshape(-1)[np.arange(0, self.z.size, self.k) + labels])
        return np.where(labels == 1, self.z[:, 0], 1 - self.z[:, 0])


def with_each(ufunc: np.ufunc, z: Array, row: Array, out: Array | None = None) -> Array:
    """`ufunc` of (n, K) scores and one number of each row, (n,).

    NumPy copies such a number as often as its buffer has room, where that is longer than the row.
    """
    size = np.setbufsize(16 if z.shape[1] >= LONG else np.getbufsize())
    try:
        return np.asarray(ufunc(z, row[:, None], out=out))
    finally:
        np.setbufsize(size)


def least_of(z: Array) -> Array:
    """(n,) smallest score of each row.

    Where every row has a score with a sign, it is that whose bits are the largest number. Numbers are compared without
    the branches that `argmin` mispredicts.
    """
    found: Array = z.view(f"u{z.itemsize}").max(axis=1).view(z.dtype)
    if np.signbit(found).all():
        return found
    return np.asarray(z.reshape(-1)[np.arange(0, z.size, z.shape[1]) + z.argmin(axis=1)])
