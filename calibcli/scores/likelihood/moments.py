"""One blocked pass over logits: cumulants of z under softmax(β z), row by row: derivatives of the NLL in β.

The NLL of a row is F_i(β) = ln Σ_k exp(β z_k) - β z_y. The logarithm is the cumulant-generating function of z under the
probabilities p_k = softmax(β z)_k, up to a constant. So with E and κ_j the mean and the cumulants of z under p,

    F_i' = E z - z_y,   F_i'' = κ2 (the variance),   F_i''' = κ3,   F_i'''' = κ4.

They are computed from the sums S_j = Σ_k exp(β z_k) z_k^j, j = 0..4, by way of the moments S_j / S_0. The derivatives
stay the same if one number is subtracted from all logits of a row. `logits` and `z` are (n, K), `labels` and `y` (n,).
Derivations: docs/statistics/temperature.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.core.errors import InputError
from calibcli.core.statistics import one_thread, top_of

Block = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]
Source = Callable[[], Iterable[Block]]
Array = NDArray[np.float64]

BLOCK = 1 << 15  # elements per block: a handful of temporaries stay in the second-level cache
FAST = 1 << 17  # elements per block of the form without a shift, which has three temporary arrays only
SPAN, ROWS = 1 << 21, 1 << 13  # elements and rows whose sums are turned into cumulants at once
TINY = 1e-30  # smallest usable sum of exponentials: smaller ones have lost digits in float32
WIDE = 48  # classes from which each row is summed along memory; narrower blocks are transposed first


def chunks(block: Block, elements: int = BLOCK) -> Iterator[Block]:
    """Cut a block into row ranges of about `elements` logits (views, not copies)."""
    logits, labels, weights = block
    step = max(1, elements // logits.shape[1])
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        yield logits[rows], labels[rows], None if weights is None else weights[rows]


def weighted(source: Source) -> Iterator[tuple[NDArray[Any], NDArray[Any], Array]]:
    """Yield the rows of a source in such blocks, each with weights, which are ones where there are none."""
    for whole in source():
        for z, y, w in chunks(whole):
            yield z, y, np.ones(len(y)) if w is None else w


@dataclass
class SumsAtBeta:
    """Weighted sums over rows at one β.

    Attributes:
        rows, weight: number of rows and Σ w.
        excess: Σ w (max z - z_y); zero when no row is wrong; NaN where it was not needed.
        derivatives: (4,) Σ w F_i' to Σ w F_i'''', that is Σ w (E z - z_y), Σ w κ2, Σ w κ3, Σ w κ4.
        psi2: Σ w² (E z - z_y)², for the sandwich variance.
    """

    rows: int = 0
    weight: float = 0.0
    excess: float = 0.0
    derivatives: Array = field(default_factory=lambda: np.zeros(4))
    psi2: float = 0.0

    def means(self) -> Array:
        """Return (4,) F' to F'''', the derivatives of the mean NLL."""
        return self.derivatives / self.weight


@one_thread()
def evaluate(source: Source, beta: float, dtype: Any) -> SumsAtBeta:
    """Make one pass at this β with the exponentials in `dtype`."""
    total = SumsAtBeta()
    for whole in source():
        for weights, numbers in _cumulants_by_part(whole, beta, dtype):
            add(total, weights, numbers)
    return total


@one_thread()
def each_row(block: Block, beta: float, dtype: Any) -> list[Array]:
    """Return the five arrays of `cumulants`, (n,) each, so that sums over some of the rows need no further pass."""
    return [
        np.concatenate(parts)
        for parts in zip(*(numbers for _, numbers in _cumulants_by_part(block, beta, dtype)), strict=True)
    ]


def _cumulants_by_part(whole: Block, beta: float, dtype: Any) -> Iterator[tuple[NDArray[Any] | None, list[Array]]]:
    """Yield weights and `cumulants` of each part of the rows; max z - z_y is NaN where `_Powers` computes them.

    That is where exponentials in float32 of float32 rows neither overflow nor vanish without a shift.
    """
    z = whole[0]
    unshifted: _Powers | None = None
    elements = BLOCK
    if dtype is np.float32 and z.dtype == np.float32 and z.flags.c_contiguous:
        unshifted, elements = _Powers(z.shape[1], beta), min(SPAN, ROWS * z.shape[1])
    for logits, labels, weights in chunks(whole, elements):
        numbers = unshifted(logits, labels) if unshifted else None
        yield weights, cumulants(logits, labels, beta, dtype) if numbers is None else numbers


def add(total: SumsAtBeta, weights: NDArray[Any] | None, numbers: list[Array]) -> None:
    """Add rows to `total`; `numbers` are the five arrays of `cumulants`, (n,) each, and `weights` (n,) or None."""
    excess, psi, *kappa = numbers
    sum_of: Callable[[Array], Any] = np.add.reduce if weights is None else weights.__matmul__  # Σ w v
    weighted_psi = psi if weights is None else weights * psi
    total.rows += len(psi)
    total.weight += len(psi) if weights is None else float(weights.sum())
    total.excess += float(sum_of(excess))
    total.derivatives += [*map(sum_of, (psi, *kappa))]
    total.psi2 += float(weighted_psi @ weighted_psi)


class _Powers:
    """Computes cumulants of contiguous float32 rows without subtracting the row maximum, in memory that blocks reuse.

    Where exponentials overflow or vanish it returns None, and `cumulants` subtracts the maximum instead.

    An offset c that all logits of a row share costs digits: E z is off by about 1e-7 |c|, and κ_j by 1e-7 |c|^j. This
    is allowed, since a fit needs κ2 to κ4 for its steps only, and compares F' with float64 on some rows before it ends
    (`fit_temperature`).

    Attributes:
        sums: (5, n) S_0 to S_4 of the last rows.
        e, q: memory for exponentials, and for squares or transposed logits, of `rows` rows.
    """

    def __init__(self, k: int, beta: float) -> None:
        self.k, self.beta = k, np.float32(beta)
        self.rows = max(1, FAST // k)
        self.e, self.q = np.empty((2, self.rows * k), np.float32)
        self.ones = np.ones(k, np.float32)
        self.sums = np.empty((5, 0), np.float32)

    def __call__(self, z: NDArray[Any], labels: NDArray[Any]) -> list[Array] | None:
        """Return NaN in place of max z - z_y, then E z - z_y, κ2, κ3, κ4, (n,) each; None where the sums are no use."""
        n = len(z)
        if self.sums.shape[1] != n:
            self.sums = np.empty((5, n), np.float32)
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for start in range(0, n, self.rows):
                rows = slice(start, start + self.rows)
                (self._narrow if self.k < WIDE else self._wide)(z[rows], self.sums[:, rows])
            s0, s1, s2, s3, s4 = self.sums.astype(np.float64)
            if not (np.isfinite(s4.sum()) and s0.min() > TINY):
                return None
        label_score = z.reshape(-1)[np.arange(n) * self.k + labels].astype(np.float64)
        return [np.full(n, np.nan), *_from_powers(s0, s1, s2, s3, s4, label_score)]

    def _wide(self, z: NDArray[Any], out: NDArray[Any]) -> None:
        """Write S_0 to S_4 (5, rows) of many classes, each row summed along memory."""
        e, q = (buffer[: z.size].reshape(z.shape) for buffer in (self.e, self.q))
        np.multiply(z, self.beta, out=e)
        np.exp(e, out=e)
        np.dot(e, self.ones, out=out[0])
        out[1] = np.vecdot(e, z)
        np.multiply(z, z, out=q)
        e *= q  # exp(β z) z²
        np.dot(e, self.ones, out=out[2])
        out[3] = np.vecdot(e, z)
        out[4] = np.vecdot(e, q)

    def _narrow(self, z: NDArray[Any], out: NDArray[Any]) -> None:
        """Write S_0 to S_4 (5, rows) of few classes, from a transposed copy: loops over rows are then the long ones."""
        d, e = (buffer[: z.size].reshape(z.shape[::-1]) for buffer in (self.q, self.e))
        np.copyto(d, z.T)
        np.multiply(d, self.beta, out=e)
        np.exp(e, out=e)
        np.dot(self.ones, e, out=out[0])
        for power in range(1, 5):
            e *= d  # exp(β z) z^power
            np.dot(self.ones, e, out=out[power])


def cumulants(logits: NDArray[Any], labels: NDArray[Any], beta: float, dtype: Any, nll: bool = False) -> list[Array]:
    """Compute max z - z_y, E z - z_y, κ2, κ3, κ4 of z under softmax(β z) for each row, each (n,) float64.

    Args:
        logits: (n, K).
        labels: (n,) integers.
        beta: 1/T > 0.
        dtype: of the exponentials and of the sums over classes.
        nll: also return the NLL, as the last one.

    Raises:
        InputError: a true label has logit -inf.
    """
    return by_rows(lambda z, y: _cumulants(z, y, beta, dtype, nll), logits, labels)


@one_thread()
def by_rows(
    function: Callable[[NDArray[Any], NDArray[Any]], list[Array]],
    logits: NDArray[Any],
    labels: NDArray[Any],
    elements: int = BLOCK,
) -> list[Array]:
    """Compute numbers per row on few rows at a time, so that they stay in the cache."""
    parts = [function(z, y) for z, y, _ in chunks((logits, labels, None), elements)]
    return parts[0] if len(parts) == 1 else [np.concatenate(blocks) for blocks in zip(*parts, strict=True)]


def _cumulants(logits: NDArray[Any], labels: NDArray[Any], beta: float, dtype: Any, nll: bool = False) -> list[Array]:
    """Compute `cumulants` from logits minus their row maximum, so that no sum of exponentials overflows or vanishes.

    A logit of -inf has probability 0 and would enter the sums as 0 · inf; it is taken out of them.
    """
    shifted, label_score, axis = shift(logits, labels, dtype)  # z - max z, and z_y - max z
    powers = _powers(shifted, beta, axis)
    if not np.isfinite(powers[-1].sum()):  # -inf logits, or powers that overflow: they have probability zero
        if not np.all(np.isfinite(label_score)):
            problem = "a true label has probability zero, so no temperature makes the NLL finite"
            raise InputError(problem, "drop those rows or pass --clip")
        gone = np.exp(shifted * dtype(beta)) == 0
        powers = _powers(np.where(gone, dtype(0), shifted), beta, axis, keep=~gone)
    s0, s1, s2, s3, s4 = (p.astype(np.float64) for p in powers)
    last = [np.log(s0) - beta * label_score] if nll else []
    return [-label_score, *_from_powers(s0, s1, s2, s3, s4, label_score), *last]


def _from_powers(s0: Array, s1: Array, s2: Array, s3: Array, s4: Array, label_score: Array) -> list[Array]:
    """Compute E z - z_y and the cumulants 2 to 4 from the sums S_j, (n,) each. With the moments m_j = S_j / S_0,

        κ2 = m2 - m1²,   κ3 = m3 - 3 m1 m2 + 2 m1³,   κ4 = m4 - 4 m1 m3 - 3 m2² + 12 m1² m2 - 6 m1⁴.

    Args:
        label_score: z_y, of the logits that were summed (shifted or not).
    """
    inverse = 1 / s0
    m1, m2, m3, m4 = s1 * inverse, s2 * inverse, s3 * inverse, s4 * inverse
    square = m1 * m1
    k2 = m2 - square
    k3 = m3 - m1 * (3 * m2 - 2 * square)
    k4 = m4 - 4 * m3 * m1 - 3 * m2 * m2 + square * (12 * m2 - 6 * square)
    return [m1 - label_score, k2, k3, k4]


def expectation(logits: NDArray[Any], labels: NDArray[Any]) -> Callable[[float], Array]:
    """Return a function of β that computes E z - z_y of each row under softmax(β z), in float64.

    The logits are shifted once, however many β are asked for.
    """
    blocks = [shift(z, y, np.float64) for z, y, _ in chunks((logits, labels, None))]
    masked = any(np.isneginf(d).any() for d, _, _ in blocks)

    def of_block(beta: float, d: NDArray[Any], label_score: Array, axis: int) -> Array:
        e = np.exp(d * beta)
        d = np.where(e > 0, d, 0.0) if masked else d  # 0 · -inf would be NaN
        return np.asarray(np.einsum("ij,ij->j" if axis == 0 else "ij,ij->i", e, d) / e.sum(axis=axis) - label_score)

    return lambda beta: np.concatenate([of_block(beta, *block) for block in blocks])


def series(logits: NDArray[Any], labels: NDArray[Any], beta: float) -> list[Array]:
    """Compute E z - z_y, κ2, κ3, κ4 and the NLL of each row, with the same rounding as a float32 pass over a file.

    The NLL is NaN where exponentials need a shift.
    """
    unshifted = _Powers(logits.shape[1], beta) if logits.dtype == np.float32 else None

    def of_block(z: NDArray[Any], y: NDArray[Any]) -> list[Array]:
        numbers = unshifted(np.ascontiguousarray(z), y) if unshifted else None
        if unshifted is None or numbers is None:
            return [*_cumulants(z, y, beta, np.float32)[1:], np.full(len(z), np.nan)]
        return [*numbers[1:], np.log(unshifted.sums[0], dtype=np.float64) - beta * z[np.arange(len(z)), y]]

    return by_rows(of_block, logits, labels, min(SPAN, ROWS * logits.shape[1]))


def shift(logits: NDArray[Any], labels: NDArray[Any], dtype: Any) -> tuple[NDArray[Any], Array, int]:
    """Return logits minus their row maximum as `dtype`, that of the label as float64, and the axis that holds the
    classes.

    The maximum is subtracted in the logits' own precision (at least `dtype`), so a common offset costs no digits. Of
    few classes the result is transposed, (K, n) with axis 0, else (n, K) with axis 1: the inner loop is the longer one.
    """
    wide = np.promote_types(logits.dtype if logits.dtype.kind == "f" else np.float64, dtype)
    z = np.asarray(logits, wide)
    rows = np.arange(len(z))
    if z.shape[1] < WIDE:
        z = z.T.copy()
        z -= z.max(axis=0)
        return z.astype(dtype, copy=False), z[labels, rows].astype(np.float64), 0
    z = z - top_of(z)[:, None]
    return z.astype(dtype, copy=False), z[rows, labels].astype(np.float64), 1


def _powers(d: NDArray[Any], beta: float, axis: int, keep: NDArray[np.bool_] | None = None) -> list[NDArray[Any]]:
    """Compute S_j = Σ exp(β d) d^j for j = 0..4 over the classes, (n,) each.

    Args:
        d: (K, n) or (n, K), logits minus their row maximum.
        axis: of the classes.
        keep: of the shape of d, which of them to sum; None is all.
    """
    if d.shape[axis] > BLOCK:  # a row that the cache does not hold is summed in halves, at twice the speed
        left, right = np.array_split(d, 2, axis)
        keep_left, keep_right = (None, None) if keep is None else np.array_split(keep, 2, axis)
        sums = zip(_powers(left, beta, axis, keep_left), _powers(right, beta, axis, keep_right), strict=True)
        return [of_left + of_right for of_left, of_right in sums]
    e = d * d.dtype.type(beta)
    np.exp(e, out=e)
    if keep is not None:
        e *= keep
    with np.errstate(invalid="ignore", over="ignore"):  # the caller looks at what comes out
        return _sums_of_powers(e, d, axis)


def _sums_of_powers(e: NDArray[Any], d: NDArray[Any], axis: int) -> list[NDArray[Any]]:
    """Compute Σ e d^j for j = 0..4 over the classes, (n,) each; e, which holds exp(β d), is overwritten."""
    squares = d * d
    if axis == 0:
        u = e * d
        first_two = [e.sum(axis=0), u.sum(axis=0)]
        e *= squares  # e d²
        u *= squares  # e d³
        squares *= e  # e d⁴
        return [*first_two, e.sum(axis=0), u.sum(axis=0), squares.sum(axis=0)]
    first_two = [e.sum(axis=1), np.vecdot(e, d)]
    e *= squares
    return [*first_two, e.sum(axis=1), np.vecdot(e, d), np.vecdot(e, squares)]
