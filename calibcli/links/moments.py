"""One blocked pass over logits: cumulants of z under softmax(β z), row by row: derivatives of the NLL in β."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibcli.errors import InputError

Block = tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None]
Source = Callable[[], Iterable[Block]]
Array = NDArray[np.float64]

BLOCK = 1 << 15  # elements per block: a handful of temporaries stay in the second-level cache
VECDOT = getattr(np, "vecdot", None)  # NumPy 2: one BLAS dot per row
WIDE = 48  # classes from which rows are reduced along memory; narrower blocks are transposed first


def chunks(block: Block, elements: int = BLOCK) -> Iterator[Block]:
    """A block cut into row ranges of about `elements` logits (views, not copies)."""
    logits, labels, weights = block
    step = max(1, elements // logits.shape[1])
    for start in range(0, len(logits), step):
        rows = slice(start, start + step)
        yield logits[rows], labels[rows], None if weights is None else weights[rows]


@dataclass
class Sums:
    """Weighted sums over rows at one β.

    Attributes:
        rows, weight: number of rows and Σ w.
        excess: Σ w (max z - z_y); zero when no row is wrong.
        derivatives: Σ w (E z - z_y), Σ w κ2, Σ w κ3, Σ w κ4, cumulants of z under softmax(β z): F' to F''''.
        psi2: Σ w² (E z - z_y)².
    """

    rows: int = 0
    weight: float = 0.0
    excess: float = 0.0
    derivatives: Array = field(default_factory=lambda: np.zeros(4))
    psi2: float = 0.0

    def means(self) -> Array:
        return self.derivatives / self.weight


def evaluate(source: Source, beta: float, dtype: Any) -> Sums:
    """One pass at this β with the exponentials in `dtype`."""
    total = Sums()
    for whole in source():
        for logits, labels, weights in chunks(whole):
            excess, psi, *kappa = cumulants(logits, labels, beta, dtype)
            weights = np.ones(len(psi)) if weights is None else np.asarray(weights, np.float64)
            total.rows += len(psi)
            total.weight += float(weights.sum())
            total.excess += float(weights @ excess)
            total.derivatives += [weights @ psi, *(weights @ k for k in kappa)]
            wide = weights * psi
            total.psi2 += float(wide @ wide)
    return total


def cumulants(logits: NDArray[Any], labels: NDArray[Any], beta: float, dtype: Any) -> list[Array]:
    """Per row: max z - z_y, E z - z_y, κ2, κ3, κ4 of z under softmax(β z), each (n,) float64.

    Args:
        logits: (n, K).
        labels: (n,) integers.
        beta: 1/T > 0.
        dtype: of the exponentials and of the sums over classes.

    Raises:
        InputError: a true label has logit -inf.
    """
    shifted, own, axis = shift(logits, labels, dtype)
    powers = _powers(shifted, beta, axis)
    if not np.isfinite(powers[-1].sum()):  # -inf logits (or squares that overflow): they have probability zero
        if not np.all(np.isfinite(own)):
            problem = "a true label has probability zero, so no temperature makes the NLL finite"
            raise InputError(problem, "drop those rows or pass --clip")
        gone = np.exp(shifted * dtype(beta)) == 0
        powers = _powers(np.where(gone, dtype(0), shifted), beta, axis, keep=~gone)
    s0, s1, s2, s3, s4 = (p.astype(np.float64) for p in powers)
    m1, m2, m3, m4 = s1 / s0, s2 / s0, s3 / s0, s4 / s0
    square = m1 * m1
    k2 = m2 - square
    k3 = m3 - m1 * (3 * m2 - 2 * square)
    k4 = m4 - 4 * m3 * m1 - 3 * m2 * m2 + square * (12 * m2 - 6 * square)
    return [-own, m1 - own, k2, k3, k4]


def shift(logits: NDArray[Any], labels: NDArray[Any], dtype: Any) -> tuple[NDArray[Any], Array, int]:
    """Logits minus their row maximum as `dtype`, that of the label as float64, and the axis that holds the classes.

    The maximum is subtracted in the logits' own precision (at least `dtype`), so a common offset costs no digits.
    """
    wide = np.promote_types(logits.dtype if logits.dtype.kind == "f" else np.float64, dtype)
    z = np.asarray(logits, wide)
    rows = np.arange(len(z))
    if z.shape[1] < WIDE:
        z = z.T.copy()
        z -= z.max(axis=0)
        return z.astype(dtype, copy=False), z[labels, rows].astype(np.float64), 0
    z = z - z.max(axis=1)[:, None]
    return z.astype(dtype, copy=False), z[rows, labels].astype(np.float64), 1


def _powers(d: NDArray[Any], beta: float, axis: int, keep: NDArray[np.bool_] | None = None) -> list[NDArray[Any]]:
    """Σ e^{βd} d^k for k = 0..4 over the classes."""
    e = d * d.dtype.type(beta)
    np.exp(e, out=e)
    if keep is not None:
        e *= keep
    with np.errstate(invalid="ignore", over="ignore"):  # the caller looks at what comes out
        return _sums_of_powers(e, d, axis)


def _sums_of_powers(e: NDArray[Any], d: NDArray[Any], axis: int) -> list[NDArray[Any]]:
    squares = d * d
    if axis == 0:
        u = e * d
        s = [e.sum(axis=0), u.sum(axis=0)]
        e *= squares
        u *= squares
        squares *= e
        return [*s, e.sum(axis=0), u.sum(axis=0), squares.sum(axis=0)]
    s = [e.sum(axis=1), _dot(e, d)]
    e *= squares
    return [*s, e.sum(axis=1), _dot(e, d), _dot(e, squares)]


def _dot(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    result: NDArray[Any] = VECDOT(a, b) if VECDOT else np.einsum("ij,ij->i", a, b)
    return result
