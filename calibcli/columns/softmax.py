"""Softmax of a block of rows with the top class taken out.

p_top = 1 / (1 + R) with R the sum of exp(z_j - z_top) over the other classes, so that 1 - p, the NLL and the entropy of
a saturated row keep all their digits.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from calibcli.predictions import Array, Floats, Ints

NARROW = 32  # classes
SAFE = 30.0  # exp(z)^2 summed over classes stays within float32 for |z_top| up to here


class Block:
    """Softmax of a block, top class taken out: `others` is exp(z_j - z_top) over j, and 0 at the top class.

    Up to NARROW classes it is worked on class by class, beyond that row by row, whichever keeps the long axis inside.
    """

    def __init__(self, z: Array, labels: Ints, buffer: Buffer) -> None:
        n, k = z.shape
        self.n, self.labels, self.narrow, self.buffer = n, labels, k <= NARROW, buffer
        self.rows = buffer.rows[:n]
        with np.errstate(invalid="ignore", under="ignore", divide="ignore"):
            r, squares, first, at_label, gap = (self._narrow if self.narrow else self._wide)(z)
            if not np.isfinite(first.sum()):  # 0 * -inf of a class with probability 0
                d = np.maximum(z - z.max(axis=1, keepdims=True), np.asarray(-1e4, z.dtype))
                others = self.others.T if self.narrow else self.others
                first = np.einsum("ij,ij->i", others, d).astype(np.float64) * self.scale
            self.confidence = 1 / (1 + r)
            self.rest = r * self.confidence
            self.p_label = at_label * self.confidence
            log_sum = np.log1p(r)
            self.nll = log_sum + gap
            self.entropy = log_sum - first * self.confidence
            squares *= self.confidence**2
            miss = np.flatnonzero(self.top != labels)
            self.brier = squares + self.rest**2
            self.brier[miss] = (squares + self.confidence**2 - 2 * self.p_label + 1)[miss]

    def _wide(self, z: Array) -> tuple[Floats, ...]:
        n, k = z.shape
        e = self.others = self.buffer.scores[: n * k].reshape(n, k)
        flat, here = e.reshape(-1), self.rows * k
        self.top = z.argmax(axis=1)
        at_top, at_label = here + self.top, here + self.labels
        z_flat = z.reshape(-1)
        z_top = z_flat[at_top]
        gap = z_top.astype(np.float64) - z_flat[at_label]
        if z_top.min() >= -SAFE and z_top.max() <= SAFE:
            shift, d = z_top.astype(np.float64), z  # exp(z) itself cannot overflow: spare the subtraction
        else:
            shift, d = np.zeros(n), z - z_top[:, None]
        np.exp(d, out=e)
        self.scale = 1 / flat[at_top].astype(np.float64)
        label = flat[at_label] * self.scale
        flat[at_top] = 0
        r = (e @ self.buffer.ones) * self.scale
        return r, np.vecdot(e, e) * self.scale**2, np.vecdot(e, d) * self.scale - shift * r, label, gap

    def _narrow(self, z: Array) -> tuple[Floats, ...]:
        n, k = z.shape
        d = np.array(z.T, order="C", copy=True)
        e = self.others = self.buffer.scores[: n * k].reshape(k, n)
        z_top, top = d[0].copy(), np.zeros(n, dtype=np.uint8)
        higher = self.buffer.mask[:n]
        for c in range(1, k):  # the last class above all before it is the first of the largest
            np.greater(d[c], z_top, out=higher)
            np.maximum(top, higher.view(np.uint8) * np.uint8(c), out=top)
            np.maximum(z_top, d[c], out=z_top)
        self.top = top.astype(np.int64)
        at_label = self.labels * n + self.rows
        d -= z_top
        gap = -d.reshape(-1)[at_label].astype(np.float64)
        np.exp(d, out=e)
        flat = e.reshape(-1)
        label = flat[at_label].astype(np.float64)
        flat[self.top * n + self.rows] = 0
        self.scale = np.ones(1)
        r = e.sum(axis=0).astype(np.float64)
        d *= e
        first = d.sum(axis=0).astype(np.float64)
        np.multiply(e, e, out=d)
        return r, d.sum(axis=0).astype(np.float64), first, label, gap

    def beyond(self, least: float) -> tuple[Ints, Ints, Floats]:
        """(row, class, probability) of all probabilities of about `least` and more, top classes excluded."""
        size, wide = self.others.size, self.confidence * self.scale
        limit = (least * (1 - 1e-5) / wide).astype(self.others.dtype)
        mask = self.buffer.mask[:size].reshape(self.others.shape)
        np.greater_equal(self.others, limit if self.narrow else limit[:, None], out=mask)
        found = np.flatnonzero(mask)
        k = self.others.shape[0 if self.narrow else 1]
        if self.narrow:
            spans = _spans(found, k, self.n)
            col = np.repeat(np.arange(k), [last - first for first, last in spans])
            row = found - col * self.n
        else:
            row = found // k
            col = found - row * k
        return row, col, self.others.reshape(-1)[found] * wide[row]

    def mass(self, weights: Floats | None) -> Floats:
        """(K,) weighted sum of the probabilities of each class, top classes excluded."""
        w = self.confidence * self.scale
        w = (w if weights is None else w * weights).astype(self.others.dtype)
        total: Floats = self.others @ w if self.narrow else w @ self.others
        return total


def _spans(found: Ints, k: int, n: int) -> list[tuple[int, int]]:
    """Where the sorted flat indices into (k, n) of each of the k rows begin and end."""
    edges = np.searchsorted(found, np.arange(k + 1) * n).tolist()
    return list(pairwise(edges))


class Buffer:
    """Memory that the blocks of one span reuse."""

    def __init__(self, rows: int, k: int, dtype: np.dtype[Any]) -> None:
        self.scores = np.empty(rows * k, dtype)
        self.mask = np.empty(rows * k, np.bool_)
        self.ones = np.ones(k, dtype)
        self.rows = np.arange(rows)
