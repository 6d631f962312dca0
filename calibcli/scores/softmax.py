"""Compute extremes and softmax of blocks of scores, with the top class taken out, on the host or on a device."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from calibcli.core import extensions
from calibcli.core.array_likes import tensor_of
from calibcli.scores.predictions import Array, Floats, Ints, Kind

# Extremes and ties of rows, computed without the operations that NumPy is slow at on short rows.

LONG = 512  # classes from which rows are long
SHORT = 128  # classes up to which `argmax` of float32 loses most of its time to mispredicted branches
THREAD = threading.local()  # memory for keys, as new memory for each piece would cost 5 % of the time


def first_moment(z: Array, top: Ints) -> Floats:
    """Compute (n,) Σ p (z - z_top), where a class with probability 0 counts 0."""
    d = (z - np.take_along_axis(z, top[:, None], axis=1)).astype(np.float64)
    e = np.exp(d)
    moment: Floats = np.einsum("ij,ij->i", e, np.maximum(d, -1e4)) / e.sum(axis=1)
    return moment


def depth_of(z: Array) -> Floats:
    """Return (n,) the largest score minus the smallest finite one."""
    finite = np.isfinite(z)
    depth: Floats = np.where(finite, z, -np.inf).max(axis=1) - np.where(finite, z, np.inf).min(axis=1)
    return depth


def largest_of(z: Array) -> tuple[Ints, Array, Ints | None]:
    """Return (n,) the class of the largest score of each row (the first of equals), that score, and how many scores
    equal it; None if it is one in every row.
    """
    n, k = z.shape
    first, flat = np.arange(0, z.size, k), z.reshape(-1)
    candidates = _by_bits(flat, first, k) if z.dtype == np.float32 and k <= SHORT else None
    if candidates is not None:
        best, odd = candidates
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
    as_large = apply_by_row(np.equal, z, top)
    return best, top, None if np.count_nonzero(as_large) == n else np.count_nonzero(as_large, axis=1)


def _by_bits(flat: Array, first: Ints, k: int) -> tuple[Ints, Ints] | None:
    """Return (n,) the class of the largest score, and the rows in which another score is about as large; None if a row
    has no positive score.

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
    """Return (n,) the smallest score of each row: among negative numbers, the one whose bits are the largest
    integer.
    """
    first, bits = np.arange(0, z.size, z.shape[1]), z.view(f"u{z.itemsize}").reshape(-1)
    least: Array = np.maximum.reduceat(bits, first)
    signs = least.view(f"i{z.itemsize}") < 0
    if not signs.all():
        least = np.where(signs, least, np.minimum.reduceat(bits, first))
    return least.view(z.dtype)


def true_places(mask: npt.NDArray[np.bool_]) -> Ints:
    """Return the indices at which a sparse flat mask is true, by testing eight entries at once, faster than
    `nonzero`.
    """
    whole = len(mask) // 8 * 8
    words = mask[:whole].view(np.uint64)
    nonzero = (words != 0).nonzero()[0]
    hits = words[nonzero].view(np.bool_).nonzero()[0]
    return np.concatenate([nonzero[hits >> 3] * 8 + (hits & 7), mask[whole:].nonzero()[0] + whole])


def apply_by_row(ufunc: np.ufunc, z: Array, row: Array, out: Array | None = None) -> Array:
    """Apply `ufunc` to (n, K) scores and one number per row, (n,).

    NumPy copies such a number as often as its buffer has room, where that is longer than the row.
    """
    if z.shape[1] < LONG:
        return np.asarray(ufunc(z, row[:, None], out=out))
    size = np.setbufsize(16)
    try:
        return np.asarray(ufunc(z, row[:, None], out=out))
    finally:
        np.setbufsize(size)


# Softmax with the top class taken out.
#
# p_top = 1 / (1 + R) with R the sum of exp(z_j - z_top) over the other classes, so that 1 - p, the NLL and the
# entropy of a saturated row keep all their digits.


CACHED = 1 << 17  # scores of few classes per piece: about what the second-level cache holds
NARROW = 32  # classes up to which scores are processed class by class
PIECE = 1 << 18  # float32 scores per piece: more would wait for memory, fewer would spend the time in calls
OF_LONG = 1 << 20  # scores per piece of long rows, whose memory is prefetched in time
ROWS = 1 << 15  # rows per block, at most
ALIKE = 2  # ratio of the mean to the least limit of some rows, up to which the least is used for all of them
SAFE = 30.0  # exp(z)^2 summed over classes stays within float32 for |z_top| up to here
Sparse = tuple[Ints, Ints, Floats]  # row, class, probability


class SoftmaxBlock:
    """Computes the columns of some rows into `out`; class tables are made from `mass` and `listed`.

    Up to NARROW classes it is worked on class by class, beyond that row by row in pieces, whichever keeps the long axis
    inside.

    Attributes:
        top: (n,) class of the largest score.  miss: rows where that is not the label.
        p_label: its probability there.  known: `top` and the least score of each row, or nothing.
        confidence_only: nothing but `confidence` and `rest`, or nothing but `top`, is asked for.
        entropy: it is asked for.
        listed: (row, class, probability) of all probabilities of about `least` and more, top classes excluded; rows are
            of no meaning without weights.
        mass: (K,) weighted sum of the probabilities of each class, top classes excluded.
    """

    def __init__(
        self,
        z: Array,
        labels: Ints,
        buffer: Buffer,
        out: Mapping[str, Floats],
        weights: Floats | None,
        masked: bool = True,
        known: Sequence[Array] = (),
    ) -> None:
        self.known = known
        self.labels, self.buffer, self.weights, self.n = labels, buffer, weights, len(z)
        self.listed: list[Sparse] = []
        self.mass = np.zeros(z.shape[1])
        self.confidence_only, self.entropy = "nll" not in out, "entropy" in out
        self.least, self.masked = buffer.least, masked
        if not out:
            self.top = known[0] if known else Piece(z).best
            return
        with np.errstate(invalid="ignore", under="ignore", divide="ignore", over="ignore"):
            r, squares, first, gap, deep = self._sums(z)
            if self.confidence_only:
                np.divide(1, r + 1, out=out["confidence"])
                np.multiply(r, out["confidence"], out=out["rest"])
                self._label(gap, out["confidence"])
                return
            if self.entropy:
                odd = np.flatnonzero(~np.isfinite(first))
                if len(odd):  # 0 * -inf of a class with probability 0
                    first[odd] = first_moment(z[odd].astype(self.buffer.dtype), self.top[odd])
            without = np.flatnonzero(~np.isfinite(deep))
            if masked and len(without):
                deep[without] = depth_of(z[without].astype(self.buffer.dtype))
            self._columns(r, squares, first, gap, deep, out)

    def _sums(self, z: Array) -> tuple[Floats, ...]:
        """Return sums over the other classes, as `_columns` takes them, and the distances from the top score to that of
        the label and to the smallest.
        """
        return (self._narrow if self.buffer.narrow else self._wide)(z)

    def _columns(
        self, r: Floats, squares: Floats, first: Floats, gap: Floats, deep: Floats, out: Mapping[str, Floats]
    ) -> None:
        """Fill the columns from the sums over the other classes: of exp(z - z_top), of p² and of p (z - z_top)."""
        confidence, complement, brier = out["confidence"], out["rest"], out["brier"]
        total = r + 1
        np.divide(1, total, out=confidence)
        np.multiply(r, confidence, out=complement)
        log_sum = np.log(total)
        total -= 1
        np.subtract(r, total, out=total)  # what 1 + r has lost of r: log1p(r) = log(1 + r) + that / (1 + r)
        total *= confidence
        log_sum += total
        np.add(log_sum, gap, out=out["nll"])
        np.add(log_sum, deep, out=out["most"])
        if self.entropy:
            np.subtract(log_sum, first, out=out["entropy"])
        np.multiply(complement, complement, out=brier)
        brier += squares
        top = self._label(gap, confidence)
        brier[self.miss] = squares[self.miss] + top * top - 2 * self.p_label + 1

    def _label(self, gap: Floats, confidence: Floats) -> Floats:
        """Find the rows whose label is not the top class and its probability there; return the probability of their top
        class.
        """
        self.miss = np.flatnonzero(self.top != self.labels)
        top = confidence[self.miss]
        self.p_label = np.exp(-gap[self.miss].astype(self.buffer.dtype, copy=False)) * top
        return top

    def _wide(self, z: Array) -> tuple[Floats, ...]:
        n, k = z.shape
        self.top = self.known[0] if self.known else np.empty(n, np.int64)
        sums, gap, deep = np.empty((5, n), z.dtype), np.empty(n), np.empty(n)
        listed: list[tuple[Ints, Array]] = []
        for start in range(0, n, self.buffer.step):
            rows = slice(start, start + self.buffer.step)
            listed += self._piece(z[rows], start, sums[:, rows], self.top[rows], gap[rows], deep[rows])
        r, squares, first, exp_top, shift = sums.astype(np.float64)
        r /= exp_top
        scale = 1 / (exp_top * (1 + r))
        if not self.confidence_only:
            squares *= scale * scale
        if self.entropy:
            first *= scale
            first -= shift * r / (1 + r)
        if listed:
            indices, p = np.concatenate([part[0] for part in listed]), np.concatenate([part[1] for part in listed])
            row = indices // k
            self.listed.append((row, indices - row * k, p * scale[row]))
        return r, squares, first, gap, deep

    def _piece(
        self, z: Array, start: int, sums: Array, top: Ints, gap: Floats, deep: Floats
    ) -> list[tuple[Ints, Array]]:
        """Fill the sums of the rows from `start` on, and return the flat indices and values of the probabilities that
        are listed.
        """
        n, k = z.shape
        buffer, rows = self.buffer, slice(start, start + n)
        e = buffer.scores[: n * k].reshape(n, k)
        flat, z_flat, here = e.reshape(-1), z.reshape(-1), buffer.starts[:n]
        r, squares, first, exp_top, shift = sums
        if early := buffer.safe:  # as exp keeps up with the memory that z comes from
            np.exp(z, out=e)
        if not self.known:
            np.argmax(z, axis=1, out=top)
        at_top = here + top
        z_top = z_flat[at_top]
        np.subtract(z_top, z_flat[here + self.labels[rows]], out=gap, dtype=np.float64)
        buffer.safe = bool(z_top.min() >= -SAFE and z_top.max() <= SAFE)
        if buffer.safe:
            shift[:], d = z_top, z  # exp(z) itself cannot overflow: spare the subtraction
        else:
            shift[:], d = 0, apply_by_row(np.subtract, z, z_top)
        if not (early and buffer.safe):
            np.exp(d, out=e)
        exp_top[:] = flat[at_top]
        flat[at_top] = 0
        np.dot(e, buffer.ones, out=r)
        if not self.confidence_only:
            least = self.known[1][rows] if self.known else least_of(z)
            np.subtract(z_top, least, out=deep, dtype=np.float64)
            np.vecdot(e, e, out=squares)
        if self.entropy:
            np.vecdot(e, d, out=first)
        if not buffer.least:
            return []
        total = r + exp_top
        limit = total * buffer.least
        lowest, mask = limit.min(), buffer.mask[: n * k]
        if limit.sum() <= ALIKE * n * lowest:  # one number is compared three times as fast as one per row
            np.greater_equal(flat, lowest, out=mask)
        else:
            apply_by_row(np.greater_equal, e, limit, mask.reshape(n, k))
        places = true_places(mask)
        np.divide(1 if self.weights is None else self.weights[rows], total, out=limit, casting="same_kind")
        self.mass += limit @ e
        return [(places + start * k, flat[places])]

    def _narrow(self, z: Array) -> tuple[Floats, ...]:
        n, k = z.shape
        buffer = self.buffer
        d, e = (memory[: n * k].reshape(k, n) for memory in (buffer.differences, buffer.scores))
        np.copyto(d, z.T)
        z_top, top, higher = d[0].copy(), np.zeros(n, dtype=np.uint8), buffer.mask[:n]
        for c in range(1, k):  # the last class above all before it is the first of the largest
            np.greater(d[c], z_top, out=higher)
            np.maximum(top, higher.view(np.uint8) * np.uint8(c), out=top)
            np.maximum(z_top, d[c], out=z_top)
        self.top = top.astype(np.int64)
        d -= z_top
        rows = buffer.rows[:n]
        gap = -d.reshape(-1)[self.labels * n + rows].astype(np.float64)
        deep = gap if self.confidence_only else -d.min(axis=0).astype(np.float64)
        np.exp(d, out=e)
        e.reshape(-1)[self.top * n + rows] = 0
        r = (buffer.ones @ e).astype(np.float64)
        if self.confidence_only and not buffer.least:
            return r, r, r, gap, deep
        confidence = 1 / (1 + r)
        e *= confidence.astype(e.dtype)
        if buffer.least:
            self._tables(e)
        first = r
        if self.entropy:
            d *= e
            first = (buffer.ones @ d).astype(np.float64)
        np.multiply(e, e, out=d)
        return r, (buffer.ones @ d).astype(np.float64), first, gap, deep

    def _tables(self, p: Array) -> None:
        k, n = p.shape
        mask = self.buffer.mask[: n * k]
        np.greater_equal(p.reshape(-1), self.buffer.least, out=mask)
        places = true_places(mask)
        edges = np.searchsorted(places, np.arange(k + 1) * n).tolist()
        col = np.repeat(np.arange(k), [last - first for first, last in pairwise(edges)])
        row = places if self.weights is None else places - col * n
        self.listed.append((row, col, p.reshape(-1)[places].astype(np.float64)))
        self.mass += p @ (self.buffer.ones_rows[:n] if self.weights is None else self.weights.astype(p.dtype))


def even_height(n: int, k: int, size: int) -> int:
    """Return the height of pieces of about `size` scores that divides n rows without a small remainder."""
    return max(1, -(-n // max(1, round(n * k / size))))


class Buffer:
    """Memory that the blocks of one span reuse.

    `height`: rows of a block; `step`: of a piece. `least`: probabilities from about which classes are listed; 0 where
    no class table is asked for. `safe`: whether the last scores were so small that exp does not overflow.
    """

    safe = True

    def __init__(self, rows: int, k: int, dtype: np.dtype[Any], least: float) -> None:
        self.narrow, self.dtype = k <= NARROW, dtype
        piece = (OF_LONG if k >= LONG else PIECE) // (1 if dtype.itemsize <= 4 else 4)
        self.height = self.step = min(rows, max(1, piece // k) if self.narrow else ROWS)
        if not self.narrow:
            self.step = even_height(self.height, k, piece)
        size = self.step * k
        self.least = least * (1 - 1e-5)
        self.scores = np.empty(size, dtype)
        self.differences = np.empty(size if self.narrow else 0, dtype)
        self.mask = np.empty(size, np.bool_)
        self.rows = np.arange(self.height)
        self.ones, self.ones_rows = np.ones(k, dtype), np.ones(self.height, dtype)
        self.starts = self.rows * k


class Piece:
    """Some rows of scores, (n, K), whose numbers per row are taken along the longer axis: class by class if classes are
    few, else some rows at a time, so that they are read from memory once.

    Attributes:
        z: (n, K).  by_class: (K, n), contiguous where K is small.
        top: (n,) largest score of each row.  low: the smallest score, NaN where one is.
        best: (n,) class of that, the first of those that are as large.  least: (n,) smallest score of each row.

    Args:
        which: classes whose scores will be asked for, taken on the way where there are many.
        ends: memory for `best` and `least` of many classes.
    """

    def __init__(self, z: Array, which: Sequence[int] = (), ends: tuple[Ints, Array] | None = None) -> None:
        n, k = z.shape
        self.n, self.k = int(n), int(k)
        self.z, self.narrow = z, k <= NARROW
        self.by_class = np.ascontiguousarray(z.T) if self.narrow else z.T
        if self.narrow:
            self.top, self.low = self.by_class.max(axis=0), float(self.by_class.min(initial=math.inf))
            return
        self._best, self._least = ends or (np.empty(n, np.int64), np.empty(n, z.dtype))
        self.top, self._several, step = np.empty(n, z.dtype), None, even_height(n, k, PIECE)
        self.which, self._taken = tuple(which), np.empty((len(which), n), z.dtype)
        for start in range(0, n, step):
            rows, part = slice(start, start + step), z[start : start + step]
            self._least[rows] = least_of(part)
            if self.which:
                self._taken[:, rows] = part[:, self.which].T
            self._best[rows], self.top[rows], several = largest_of(part)
            if several is not None:
                self._several = np.ones(n, np.int64) if self._several is None else self._several
                self._several[rows] = several
        self.low = float(self._least.min(initial=math.inf))

    def __len__(self) -> int:
        return self.n

    def columns(self, which: Sequence[int]) -> list[Array]:
        """Return (n,) the scores of each of these classes."""
        if self.narrow:
            return [self.by_class[c] for c in which]
        if tuple(which) == self.which:
            return [*self._taken]
        return [*np.ascontiguousarray(self.z[:, which].T)]

    @property
    def log_sums(self) -> Floats:
        """(n,) float64 logarithm of the sum of exponentials."""
        return np.asarray(self.top + np.log(np.exp(self.z - self.top[:, None]).sum(axis=1, dtype=np.float64)))

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest of all scores; NaN if one is."""
        return self.low, float(self.top.max())

    @cached_property
    def best(self) -> Ints:
        """(n,) class of the largest score, the first of equals."""
        if not self.narrow:
            return self._best
        last, largest = self.k - 1, (self.by_class == self.top).view(np.uint8)
        classes: Ints = last - (largest * np.arange(last, -1, -1, dtype=np.uint8)[:, None]).max(axis=0).astype(np.int64)
        return classes

    @property
    def least(self) -> Array:
        """(n,) smallest score of each row."""
        if self.narrow:
            return np.asarray(self.by_class.min(axis=0))
        return self._least

    @property
    def sums(self) -> Floats:
        """(n,) float64 sum of the scores of each row."""
        scores, axis = (self.by_class, 0) if self.narrow else (self.z, 1)
        return np.asarray(scores.sum(axis=axis, dtype=np.float64))

    @property
    def largest(self) -> Ints | None:
        """(n,) number of scores of each row that equal the largest; None if it is one in every row."""
        if not self.narrow:
            return self._several
        same = self.by_class == self.top
        return None if np.count_nonzero(same) <= len(self) else np.count_nonzero(same, axis=0)

    def at(self, labels: Ints) -> Array:
        """Return (n,) the score of the label; for a single column, the probability of the label."""
        if self.k > 1:
            return np.asarray(self.z.reshape(-1)[np.arange(0, self.z.size, self.k) + labels])
        return np.where(labels == 1, self.z[:, 0], 1 - self.z[:, 0])


# Scores on a device (a GPU). `networks/device_scores.py` implements this interface for torch tensors.


class DeviceScores(ABC):
    """(N, K) scores that are processed where they lie; only numbers per row come to the host.

    Attributes:
        block: the kind of block that works on what `part` gives.
    """

    block: ClassVar[type[SoftmaxBlock]]
    dtype: np.dtype[Any]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]: ...

    @property
    @abstractmethod
    def height(self) -> int:
        """Rows that are processed together."""

    @abstractmethod
    def part(self, rows: slice, wide: bool = False) -> Any:
        """Return rows on the device, in float64 if `wide`, else in the dtype that is read."""

    @abstractmethod
    def piece(self, start: int, stop: int) -> Piece:
        """Return rows start..stop, to be checked for mistakes."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Array:
        """Return rows start..stop on the host."""

    @abstractmethod
    def left_out(self, depth: float) -> DeviceScores:
        """Return these scores with -inf for those that lie `depth` or more below the largest of their row."""

    @abstractmethod
    def measured(self, kind: Kind, dtype: np.dtype[Any], least: float) -> DeviceScores:
        """Return these scores as they are measured: logits or log-probabilities, raised to `least` as a probability."""


def on_device(scores: Any) -> DeviceScores | None:
    """Wrap a tensor as scores that are processed on its device; None for what NumPy reads better."""
    tensor = tensor_of(scores)
    if tensor is None:
        return None
    wrapped: DeviceScores | None = extensions.device_scores(tensor)
    return wrapped
