"""Rows of scores: extremes, ties and the listed ones, taken without what makes NumPy slow on short rows."""

from __future__ import annotations

import threading
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from calibcli.predictions import Array, Floats, Ints

LONG = 512  # classes from which rows are long
SHORT = 128  # classes up to which `argmax` of float32 waits more often than it works
THREAD = threading.local()  # memory for keys, as new memory for each piece would cost a twentieth


def first_moment(z: Array, top: Ints) -> Floats:
    """(n,) Σ p (z - z_top); 0 for a class with probability 0."""
    d = (z - np.take_along_axis(z, top[:, None], axis=1)).astype(np.float64)
    e = np.exp(d)
    moment: Floats = np.einsum("ij,ij->i", e, np.maximum(d, -1e4)) / e.sum(axis=1)
    return moment


def deepest(z: Array) -> Floats:
    """(n,) the largest score minus the smallest that is finite."""
    there = np.isfinite(z)
    found: Floats = np.where(there, z, -np.inf).max(axis=1) - np.where(there, z, np.inf).min(axis=1)
    return found


def largest_of(z: Array) -> tuple[Ints, Array, Ints | None]:
    """(n,) class of the largest score of each row, the first of those that are as large; that score; and how many are,
    None: one in every row.
    """
    n, k = z.shape
    first, flat = np.arange(0, z.size, k), z.reshape(-1)
    found = _by_bits(flat, first, k) if z.dtype == np.float32 and k <= SHORT else None
    if found is not None:
        best, odd = found
        best[odd] = z[odd].argmax(axis=1)
        top = flat[first + best]
        close = np.count_nonzero(z[odd] == top[odd, None], axis=1)
        if not (close > 1).any():
            return best, top, None
        several = np.ones(n, np.int64)
        several[odd] = close
        return best, top, several
    best = z.argmax(axis=1)
    top = flat[first + best]
    as_large = with_each(np.equal, z, top)
    return best, top, None if np.count_nonzero(as_large) == n else np.count_nonzero(as_large, axis=1)


def _by_bits(flat: Array, first: Ints, k: int) -> tuple[Ints, Ints] | None:
    """(n,) class of the largest score, and the rows in which another one is about as large; None: a row has no positive
    score.

    Positive numbers of IEEE 754 are ordered as their bits. The last of them are replaced by the class, so that the
    largest tells it without the branches that `argmax` mispredicts.
    """
    bits = (1 << (k - 1).bit_length()) - 1
    if len(getattr(THREAD, "keys", ())) < len(flat):
        THREAD.keys = np.empty(len(flat), np.int32)
    keys = np.bitwise_or(flat.view(np.int32), np.int32(bits), out=THREAD.keys[: len(flat)])
    keys -= _classes(len(first), k)
    largest = np.maximum.reduceat(keys, first)
    if largest.min() <= bits:
        return None
    best = bits - (largest & bits).astype(np.int64)
    keys[first + best] = 0
    return best, np.flatnonzero(np.maximum.reduceat(keys, first) >= largest - bits)


@lru_cache(maxsize=2)  # of whole pieces, and the last
def _classes(n: int, k: int) -> npt.NDArray[np.int32]:
    return np.tile(np.arange(k, dtype=np.int32), n)


def least_of(z: Array) -> Array:
    """(n,) smallest score of each row: where one has a sign, that whose bits are the largest number."""
    first, bits = np.arange(0, z.size, z.shape[1]), z.view(f"u{z.itemsize}").reshape(-1)
    found: Array = np.maximum.reduceat(bits, first)
    signs = found.view(f"i{z.itemsize}") < 0
    if not signs.all():
        found = np.where(signs, found, np.minimum.reduceat(bits, first))
    return found.view(z.dtype)


def places_of(mask: npt.NDArray[np.bool_]) -> Ints:
    """Where a flat mask of few is true: NumPy goes through eight places at once faster, which are more often true."""
    whole = len(mask) // 8 * 8
    words = mask[:whole].view(np.uint64)
    there = (words != 0).nonzero()[0]
    at = words[there].view(np.bool_).nonzero()[0]
    return np.concatenate([there[at >> 3] * 8 + (at & 7), mask[whole:].nonzero()[0] + whole])


def with_each(ufunc: np.ufunc, z: Array, row: Array, out: Array | None = None) -> Array:
    """`ufunc` of (n, K) scores and one number of each row, (n,).

    NumPy copies such a number as often as its buffer has room, where that is longer than the row.
    """
    if z.shape[1] < LONG:
        return np.asarray(ufunc(z, row[:, None], out=out))
    size = np.setbufsize(16)
    try:
        return np.asarray(ufunc(z, row[:, None], out=out))
    finally:
        np.setbufsize(size)
