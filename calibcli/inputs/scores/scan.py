"""One pass over the scores in small memory: what they are (logits, probabilities, ...) and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from calibcli.inputs.files.arrays import Named, rows_of
from calibcli.inputs.scores.fingerprints import Hashes, distinct, mix, multipliers
from calibcli.predictions import Array, Floats, Ints, Kind

UNIT_LOW, UNIT_HIGH = -1e-6, 1 + 1e-3  # probabilities lie here, rounding allowed for
SHARE_OFF = 1e-3  # rows that may miss a sum of one
LARGE = 6e4  # float16 ends at 65504
HASHED = 4_000_000  # duplicates are looked for in files of at most this many rows
MARKS = 8  # score columns that mark a row, beside the score of its label
PAIRS = 1_000_000  # rows that the comparison of predicted class and label looks at, at most about
Progress = Callable[[float, str], None]


@dataclass
class Scan:
    """What the rows look like. Rows that are not finite are counted apart and leave the other numbers alone.

    Attributes:
        n, k: shape.  low, high: range of the finite scores.
        nan, infinite, masked: rows with NaN, with +inf (or nothing but -inf), and with -inf beside finite scores.
        first_nan, first_infinite, first_masked: the first such rows, or -1.
        bad: indices of the rows with NaN or infinite, if asked to `collect` them.
        outside: rows with a value outside [0, 1].  off: rows in [0, 1] whose sum is not one; first_off and its sum.
        worst_sum: largest |sum - 1| seen in a row within [0, 1].
        positive: rows with a value above 0.  unnormalised: rows <= 0 whose |logsumexp| is beyond the tolerance.
        squashed: whether every probability lies where softmax of probabilities puts it.
        sum_tolerance, log_tolerance: what was allowed.
        spread: largest range of scores within a block.
        zeros: rows whose label has probability 0; first_zero.
        predicted, compared: argmax and label of a subset of the rows (every one when there are few).
        empty: rows of zeros among probabilities.
        tied: rows in which several scores are the largest.  tied_right: those where the label's is among them.
        right: rows whose label alone has the largest score.
        margins: of two classes, score of the second less that of the first (one column: that alone), of `compared`.
        marks: fingerprints of the labelled rows (empty for long files).
    """

    n: int
    k: int
    sum_tolerance: float
    log_tolerance: float
    collect: bool = False
    low: float = math.inf
    high: float = -math.inf
    nan: int = 0
    infinite: int = 0
    masked: int = 0
    first_nan: int = -1
    first_infinite: int = -1
    first_masked: int = -1
    bad: list[Ints] = field(default_factory=list)
    outside: int = 0
    off: int = 0
    first_off: int = -1
    first_off_sum: float = math.nan
    worst_sum: float = 0.0
    positive: int = 0
    unnormalised: int = 0
    squashed: bool = True
    spread: float = 0.0
    zeros: int = 0
    first_zero: int = -1
    predicted: list[Ints] = field(default_factory=list)
    compared: list[Ints] = field(default_factory=list)
    empty: int = 0
    first_empty: int = -1
    tied: int = 0
    tied_right: int = 0
    right: int = 0
    margins: list[Floats] = field(default_factory=list)
    marks: list[Hashes] = field(default_factory=list)

    @property
    def finite(self) -> int:
        return self.n - self.nan - self.infinite

    @property
    def repeated(self) -> int:
        """Rows that repeat an earlier one (scores and label); rows that are certain or constant do not count."""
        marks = np.concatenate(self.marks) if self.marks else np.empty(0, np.uint64)
        return len(marks) - distinct(marks)

    @property
    def in_unit(self) -> bool:
        """Every score lies in [0, 1]."""
        return self.low >= UNIT_LOW and self.high <= UNIT_HIGH and not self.masked

    @property
    def kind(self) -> Kind | None:
        """What the rows are, or None: in [0, 1] but not summing to one."""
        allowed = SHARE_OFF * self.finite
        if self.k > 1 and self.outside + self.off <= allowed:
            return "probabilities"
        if self.k == 1:
            return "probabilities" if self.in_unit else "logits"
        if self.positive == 0 and self.unnormalised == 0:
            return "log_probabilities"
        return None if self.in_unit else "logits"


def scan(
    scores: Named,
    labels: Array | None,
    *,
    decimals: int | None = None,
    collect: bool = False,
    progress: Progress | None = None,
) -> Scan:
    """Look at every row of (N, K) scores once.

    Args:
        scores: (N, K) real numbers.
        labels: (N,) int64 in [0, K), or None.
        decimals: digits after the point when the scores were text.
        collect: keep the indices of rows that are not finite, to drop them.
        progress: called with (fraction, text).
    """
    n, k = scores.shape
    step = rows_of(scores)
    coarse = _coarse(scores.read(0, min(n, 1000)), scores.dtype)
    tolerance = max(1e-4, coarse, 0.0 if not decimals else k * 0.5 * 10.0 ** -min(decimals, 300))
    found = Scan(n, k, tolerance, 1e-2 if coarse else 1e-3, collect)
    every = max(1, math.ceil(n / PAIRS))
    with np.errstate(all="ignore"):
        for number, start in enumerate(range(0, n, step)):
            block = scores.read(start, min(start + step, n))
            if block.dtype not in (np.float32, np.float64):
                block = block.astype(np.float32 if block.dtype.itemsize <= 2 else np.float64)
            part = None if labels is None else np.asarray(labels[start : start + len(block)])
            _block(found, block, part, start, compare=number % every == 0 or n <= PAIRS)
            if progress:
                progress(min(1.0, (start + step) / n), "checking scores")
    return found


def _block(found: Scan, block: Array, labels: Array | None, start: int, compare: bool) -> None:
    low, high = float(block.min()), float(block.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        keep = _finite_rows(found, block, start)
        block = block[keep]
        labels = None if labels is None else labels[keep]
        rows = np.flatnonzero(keep) + start
        if len(block) == 0:
            return
        finite = block[np.isfinite(block)]
        low, high = float(finite.min()), float(finite.max())
    else:
        rows = np.empty(0, np.int64)
    found.low, found.high = min(found.low, low), max(found.high, high)
    if found.k > 1:
        _kind(found, block, low, high, lambda i: int(rows[i]) if len(rows) else start + i)
    if labels is not None:
        if found.k > 1:
            at_label = block[np.arange(len(block)), labels]
        else:
            at_label = np.where(labels == 1, block[:, 0], 1 - block[:, 0])
        _ties(found, block, at_label)
        if low < 0 or high <= UNIT_HIGH:
            zero = np.flatnonzero((at_label == -np.inf) | ((at_label <= 0) & (low >= UNIT_LOW)))
            if len(zero) and found.first_zero < 0:
                found.first_zero = int(rows[zero[0]]) if len(rows) else start + int(zero[0])
            found.zeros += len(zero)
        if found.n <= HASHED:
            columns = np.unique(np.linspace(0, found.k - 1, MARKS).astype(np.int64))
            seen = block[:, columns]
            telling = (at_label != 1) & ((seen != seen[:, :1]).any(axis=1) | (found.k == 1))
            seen = np.column_stack([seen, at_label, labels])[telling]
            found.marks.append(mix(seen, multipliers(seen.shape[1])))
        if compare:
            top = block.argmax(axis=1) if found.k > 1 else (block[:, 0] > 0.5).astype(np.int64)
            found.predicted.append(top.astype(np.int64))
            found.compared.append(labels.astype(np.int64))
            if found.k <= 2:
                found.margins.append(np.asarray(block[:, -1] - (block[:, 0] if found.k == 2 else 0), np.float64))


def _ties(found: Scan, block: Array, at_label: Array) -> None:
    """Counts the rows whose predicted class is one of several; one column has its ties among the `margins`."""
    if found.k == 1:
        return
    top = block.max(axis=1)
    right = at_label == top
    several = np.zeros(len(block), bool)
    if np.count_nonzero(block == top[:, None]) > len(block):
        several = np.count_nonzero(block == top[:, None], axis=1) > 1
    found.tied += int(several.sum())
    found.tied_right += int((several & right).sum())
    found.right += int((right & ~several).sum())


def _finite_rows(found: Scan, block: Array, start: int) -> Array:
    """Mask of the rows that can be used; counts the others."""
    nan = np.isnan(block).any(axis=1)
    endless = ~nan & ((block == np.inf).any(axis=1) | (block == -np.inf).all(axis=1))
    masked = ~nan & ~endless & (block == -np.inf).any(axis=1)
    for name, rows in (("nan", nan), ("infinite", endless), ("masked", masked)):
        index = np.flatnonzero(rows)
        if len(index):
            if getattr(found, f"first_{name}") < 0:
                setattr(found, f"first_{name}", start + int(index[0]))
            setattr(found, name, getattr(found, name) + len(index))
    if found.collect:
        found.bad.append(np.flatnonzero(nan | endless) + start)
    return np.asarray(~(nan | endless))


def _kind(found: Scan, block: Array, low: float, high: float, row: Callable[[int], int]) -> None:
    """Counts that decide between probabilities, log-probabilities and logits; each given up once it is lost."""
    if found.outside + found.off <= SHARE_OFF * found.n or found.in_unit:
        inside = np.ones(len(block), bool)
        if low < UNIT_LOW or high > UNIT_HIGH:
            inside = (block.min(axis=1) >= UNIT_LOW) & (block.max(axis=1) <= UNIT_HIGH)
            found.outside += int((~inside).sum())
        sums = block.sum(axis=1, dtype=np.float64)
        gap = np.abs(sums - 1)
        off = np.flatnonzero(inside & (gap > found.sum_tolerance))
        if len(off) and found.first_off < 0:
            found.first_off, found.first_off_sum = row(int(off[0])), float(sums[off[0]])
        found.off += len(off)
        zero = np.flatnonzero(inside & (sums <= 0))
        if len(zero) and found.first_empty < 0:
            found.first_empty = row(int(zero[0]))
        found.empty += len(zero)
        if inside.any():
            found.worst_sum = max(found.worst_sum, float(gap[inside].max()))
        least, most = 1 / (math.e + found.k - 1), math.e / (math.e + found.k - 1)
        slack = 1e-6 + found.sum_tolerance * 0.01
        found.squashed &= low >= least - slack and high <= most + slack
        found.spread = max(found.spread, high - low)
    else:
        found.squashed = False
    if found.positive == 0 and found.unnormalised == 0:
        if high > 0:
            found.positive += int((block > 0).any(axis=1).sum())
        if found.positive == 0:
            top = block.max(axis=1)
            lse = top + np.log(np.exp(block - top[:, None]).sum(axis=1, dtype=np.float64))
            off = np.flatnonzero(~(np.abs(lse) <= found.log_tolerance))
            found.unnormalised += len(off)


def _coarse(block: Array, dtype: np.dtype[np.generic]) -> float:
    """Tolerance of a sum of probabilities stored in half precision (also when widened since), else 0."""
    if dtype.itemsize <= 2 and dtype.kind == "f":
        return 5e-3
    if dtype != np.float32 or block.size == 0:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        if bool((block.astype(np.float16).astype(np.float32) == block).all()):
            return 5e-3
    if bool((np.ascontiguousarray(block).view(np.uint32) & 0xFFFF == 0).all()):  # bfloat16
        return 1e-2
    return 0.0
