"""Arrays as they are made into what is measured: (N, K) scores, their logarithms, and columns of one value per row."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.columns import SMALL
from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Converted, Lazy, Memory, Named, rows_of, whole
from calibcli.inputs.files.text import floats_of_text
from calibcli.inputs.scores.keys import shape_text
from calibcli.predictions import Array, ArrayScores, Floats, Ints, Kind, Scores, two_columns

CLIP = 1e-15
HOLD = 128 << 20  # bytes of scores that are read at once and kept; larger ones stay in the file


def two_dimensional(raw: Named, name: str, where: str, labels: int | None) -> Named:
    """`raw` as (N, K) real numbers; (N,) becomes (N, 1).

    Args:
        labels: how many labels there are, to recognise transposed scores.

    Raises:
        InputError: transposed, of another shape, text, or class numbers instead of scores.
    """
    if raw.dtype.kind in "USO":
        if len(raw.shape) != 1:
            raise InputError(f"'{name}' in {where} is text", "save the scores as float32")
        raw = Memory(floats_of_text(whole(raw), name, where))
    dims = len(raw.shape)
    if dims == 3 and raw.shape[1] == 1:
        middle = raw
        raw = Converted(middle, lambda block: block[:, 0], (middle.shape[2],), middle.dtype)
        dims = 2
    if dims not in (1, 2):
        raise InputError(
            f"scores '{name}' in {where} have shape {shape_text(raw)}",
            "pass one row per sample: shape (N, K); tokens or pixels: reshape to (N * T, K)",
        )
    if raw.shape[0] == 0 or (dims == 2 and raw.shape[1] == 0):
        raise InputError(f"scores '{name}' in {where} are empty: {shape_text(raw)}", "was the file written to the end?")
    if dims == 2 and labels is not None and raw.shape[0] != labels and raw.shape[1] == labels:
        raise InputError(f"scores '{name}' are {tuple(raw.shape)} with {labels:,} labels: transposed", f"save {name}.T")
    if dims == 2 and labels is not None and raw.shape[0] != labels:
        raise InputError(
            f"{raw.shape[0]:,} rows of scores ('{name}') but {labels:,} labels",
            "pass the labels of exactly these rows, in the same order",
        )
    if raw.dtype.kind == "b":
        raise InputError(f"scores '{name}' in {where} are true or false", "save the logits or probabilities")
    if raw.dtype.kind in "iu" and _hard(raw):
        raise InputError(
            f"scores '{name}' in {where} are predicted classes, not scores ({shape_text(raw)})",
            "save the logits or probabilities of every class",
        )
    if raw.dtype.kind in "iu" or raw.dtype.itemsize > 8:
        raw = Converted(raw, lambda block: block.astype(np.float64), raw.shape[1:], np.dtype(np.float64))
    if dims == 1:
        one = raw
        return Converted(one, lambda block: block[:, None], (1,), one.dtype)
    return raw


def as_scores(scores: Named, kind: Kind, clip: bool = False) -> Scores:
    """Logits or log-probabilities, read in blocks: (N, K) with K >= 2."""
    n, k = scores.shape
    wide = scores.dtype.itemsize > 4 or (n * k <= SMALL and (k == 1 or kind != "logits"))
    streamed = Streamed(scores, kind, np.dtype(np.float64 if wide else np.float32), clip)
    if isinstance(scores, Memory | Lazy) and kind == "logits" and k > 1:
        return ArrayScores(np.ascontiguousarray(whole(scores), dtype=streamed.dtype))
    if n * max(k, 2) * streamed.dtype.itemsize <= HOLD:
        return ArrayScores(streamed.read(0, n))
    return streamed


def held(array: Named) -> Named:
    """`array` in memory when it is small."""
    small = math.prod(array.shape) * array.dtype.itemsize <= HOLD
    return Memory(whole(array)) if small and not isinstance(array, Memory) else array


@dataclass(frozen=True, eq=False)
class Streamed:
    """Scores of a file as they are measured. Probabilities become logarithms, one column becomes two."""

    inner: Named
    kind: Kind
    dtype: np.dtype[Any]
    clip: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        n, k = self.inner.shape
        return n, max(k, 2)

    def read(self, start: int, stop: int) -> Array:
        block = self.inner.read(start, stop)
        wide = np.float64 if self.dtype.itemsize > 4 else np.float32
        block = np.ascontiguousarray(block, dtype=wide)
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.inner.shape[1] == 1:
                block = self._two(block[:, 0].astype(np.float64)).astype(wide)
            elif self.kind == "probabilities":
                block = np.log(np.maximum(block, CLIP if self.clip else 0))
            elif self.clip and self.kind == "log_probabilities":
                block = np.maximum(block, np.asarray(np.log(CLIP), wide))
        return block

    def _two(self, score: Floats) -> Floats:
        """(n, 2) scores of one column."""
        pair = two_columns(score, self.kind)
        return np.maximum(pair, np.log(CLIP)) if self.clip and self.kind != "logits" else pair


def per_row(array: Named, name: str, option: str, n: int, keep: Ints | None) -> Array:
    """One value per row, of the rows that are kept.

    Raises:
        InputError: another shape.
    """
    if len(array.shape) == 2 and array.shape[1] == 1:
        array = Memory(whole(array)[:, 0])
    if array.shape != (n,):
        raise InputError(f"{option} {name} has shape {shape_text(array)} for {n:,} rows", "pass one value per row")
    values = whole(array)
    return values if keep is None else values[keep]


def weights(values: Array, name: str, kind: str) -> Floats:
    """Finite weights >= 0 as float64.

    Raises:
        InputError: otherwise, or `count` weights that are not whole.
    """
    if values.dtype.kind in "USO":
        values = floats_of_text(values, name, "the weights")
    w = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~(np.isfinite(w) & (w >= 0)))
    if len(bad):
        raise InputError(f"weight {w[bad[0]]:g} in row {bad[0]} ('{name}')", "weights are finite and not negative")
    if not w.any():
        raise InputError(f"weights '{name}' are all 0", "pass weights that are not all 0")
    with np.errstate(over="ignore"):
        total = float(w.sum())
    if kind == "count" and total > 2**53:
        raise InputError(f"weights '{name}' count {total:.3g} rows", "use --weight-kind sampling")
    used = w[w > 0]
    if used.min() < 1e-100 or used.max() > 1e100:  # their squares are summed
        raise InputError(
            f"weights '{name}' run from {used.min():.3g} to {used.max():.3g}", "divide them by their largest"
        )
    odd = np.flatnonzero(w != np.floor(w))
    if kind == "count" and len(odd):
        raise InputError(
            f"weight {w[odd[0]]:g} in row {odd[0]} ('{name}') is not a count", "use --weight-kind sampling"
        )
    return w


def class_names(given: str | Sequence[str]) -> list[str]:
    """Class names from a list, from `a,b,c`, or from a file with one per line (or a JSON list).

    Raises:
        InputError: the file cannot be read.
    """
    if not isinstance(given, str):
        return [str(name) for name in given]
    if "," in given or not os.path.isfile(given):
        return [name.strip() for name in given.split(",")]
    path = Path(given)
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            import json

            return [str(name) for name in json.loads(text)]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read class names from {given} ({str(error)[:80]})", "one name per line") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def texts(values: Array) -> Array:
    """(N,) array of str; bytes are decoded."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "f":
        return np.array([f"{v:.12g}" for v in values.tolist()])
    return values.astype(str)


def distinct(values: Array) -> int:
    """Number of different values."""
    if values.dtype.kind == "O":
        return len(set(values.tolist()))
    ordered = np.sort(values)
    return int((ordered[1:] != ordered[:-1]).sum()) + 1 if len(ordered) else 0


def blocks(array: Named) -> Iterator[tuple[int, Array]]:
    step = rows_of(array)
    for start in range(0, array.shape[0], step):
        yield start, array.read(start, start + step)


def _hard(raw: Named) -> bool:
    """Whether integers are class numbers or one-hot rather than scores."""
    head = raw.read(0, min(raw.shape[0], 1000))
    if len(raw.shape) == 1 or raw.shape[1] == 1:
        return True
    return bool(((head == 0) | (head == 1)).all() and (head.sum(axis=1) == 1).all())
