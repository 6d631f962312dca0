"""Named arrays of a file, read piece by piece: what every reader returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.files.source import Source
from calibcli.predictions import Array, Ints

PIECE = 1 << 23  # bytes read at once
DIMENSIONS = 32  # most that every NumPy holds
LONGEST = 1 << 48


class Named(Protocol):
    """An array of any shape that is read by rows."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def read(self, start: int, stop: int) -> Array:
        """Rows start..stop."""


@dataclass(frozen=True, eq=False)
class Contents:
    """What a reader found.

    Attributes:
        format: name of the format, with what matters for memory (`npz, uncompressed`).
        arrays: by name, in the file's order.
        kinds: kind of scores that a name stands for by its convention (a column group `logit_0..`).
        decimals: digits after the point of text, by name.
        ragged: names of scores whose rows are padded with -inf because they differ in length.
        classes: names of the score columns where the file tells them.
        scores, labels, ids: names that this format's convention fixes.
        about: remarks.  metadata: of the file.
    """

    format: str
    arrays: Mapping[str, Named]
    kinds: Mapping[str, str] = field(default_factory=dict)
    decimals: Mapping[str, int] = field(default_factory=dict)
    ragged: frozenset[str] = frozenset()
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scores: str = ""
    labels: str = ""
    ids: str = ""
    about: Sequence[str] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Memory:
    """An array in memory."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def read(self, start: int, stop: int) -> Array:
        return self.array[start:stop]


@dataclass(frozen=True, eq=False)
class Lazy:
    """An array whose header is known and whose bytes are decoded when it is first read (compressed members)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[], Array]
    held: list[Array] = field(default_factory=list)

    def read(self, start: int, stop: int) -> Array:
        if not self.held:
            self.held.append(self.load())
        return self.held[0][start:stop]


@dataclass(frozen=True, eq=False)
class InFile:
    """An uncompressed array inside a file, read at its offset. `bfloat16` is stored as uint16 and widened by hand."""

    source: Source
    offset: int
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    fortran: bool = False
    bfloat16: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.bfloat16 else self.stored.newbyteorder("=")

    def read(self, start: int, stop: int) -> Array:
        stop = min(stop, self.shape[0])
        start = min(start, stop)
        tail = self.shape[1:]
        row, size = math.prod(tail), self.stored.itemsize
        if self.fortran and row > 1:
            return self._columns(start, stop, row)
        raw = self.source.pread((stop - start) * row * size, self.offset + start * row * size)
        return self._native(np.frombuffer(raw, self.stored).reshape(stop - start, *tail))

    def _columns(self, start: int, stop: int, row: int) -> Array:
        """Rows of an array stored column after column: one piece of each column."""
        out = np.empty((stop - start, row), self.stored)
        size = self.stored.itemsize
        for k in range(row):
            raw = self.source.pread((stop - start) * size, self.offset + (k * self.shape[0] + start) * size)
            out[:, k] = np.frombuffer(raw, self.stored)
        return self._native(out.reshape((stop - start, *self.shape[1:]), order="F"))

    def _native(self, block: Array) -> Array:
        if self.bfloat16:
            return (block.astype(np.uint32) << 16).view(np.float32)
        return block.astype(self.dtype, copy=False)


@dataclass(frozen=True, eq=False)
class Joined:
    """Several arrays one after the other (shards). Narrower ones are padded with `fill` on the right."""

    parts: Sequence[Named]
    fill: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        tails = [p.shape[1:] for p in self.parts]
        return (sum(p.shape[0] for p in self.parts), *max(tails))

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*(p.dtype for p in self.parts))

    def read(self, start: int, stop: int) -> Array:
        found, first = [], 0
        for part in self.parts:
            last = first + part.shape[0]
            if first < stop and start < last:
                found.append(self._wide(part.read(max(start, first) - first, min(stop, last) - first)))
            first = last
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _wide(self, block: Array) -> Array:
        block = block.astype(self.dtype, copy=False)
        width = self.shape[1] if len(self.shape) == 2 else 0
        if self.fill is not None and block.ndim == 2 and block.shape[1] < width:
            return np.pad(block, ((0, 0), (0, width - block.shape[1])), constant_values=self.fill)
        return block


@dataclass(frozen=True, eq=False)
class Picked:
    """The rows `index` (ascending) of another array."""

    inner: Named
    index: Ints

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.index), *self.inner.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.inner.dtype

    def read(self, start: int, stop: int) -> Array:
        index = self.index[start:stop]
        if len(index) == 0:
            return self.inner.read(0, 0)
        out = np.empty((len(index), *self.inner.shape[1:]), self.dtype)
        step = rows_of(self.inner)
        done = 0
        while done < len(index):  # rows may lie far apart: never read more than a piece at once
            first = int(index[done])
            last = int(np.searchsorted(index, first + step))
            block = self.inner.read(first, int(index[last - 1]) + 1)
            out[done:last] = block[index[done:last] - first]
            done = last
        return out


@dataclass(frozen=True, eq=False)
class Converted:
    """Another array passed through a function block by block; the result may have another width and dtype."""

    inner: Named
    function: Callable[[Array], Array]
    tail: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.inner.shape[0], *self.tail)

    def read(self, start: int, stop: int) -> Array:
        return self.function(self.inner.read(start, stop)).astype(self.dtype, copy=False)


class Column:
    """A (N,) array too long to hold: sliced like an array, each slice read from the file."""

    def __init__(self, inner: Named) -> None:
        self.inner = inner
        self.shape, self.dtype, self.ndim = inner.shape, inner.dtype, 1

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step > 0:
                return self.inner.read(start, max(start, stop))[::step]
        rows = np.asarray(index)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows % len(self)
        shape, rows = rows.shape, rows.reshape(-1)
        order = np.argsort(rows, kind="stable")
        out, step = np.empty(len(rows), self.dtype), rows_of(self.inner)
        for start in range(0, len(self), step):  # piece by piece: all of it may be more than memory
            first, last = np.searchsorted(rows, (start, start + step), sorter=order)
            if first < last:
                where = order[first:last]
                out[where] = self.inner.read(start, min(start + step, len(self)))[rows[where] - start]
        return out.reshape(shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return whole(self.inner).astype(dtype or self.dtype, copy=False)


def rows_of(array: Named) -> int:
    """Rows that make up a piece."""
    return max(1, PIECE // max(1, math.prod(array.shape[1:]) * array.dtype.itemsize))


def whole(array: Named) -> Array:
    """All of it in memory."""
    return np.ascontiguousarray(array.read(0, array.shape[0]))


def known_shape(shape: Sequence[int], name: str, where: str) -> tuple[int, ...]:
    """`shape`, unless NumPy has no such arrays.

    Raises:
        InputError: too many dimensions, or too long.
    """
    if len(shape) > DIMENSIONS or any(size > LONGEST for size in shape):
        text = f"{len(shape)} dimensions" if len(shape) > DIMENSIONS else f"a dimension of {max(shape):.3g} numbers"
        raise InputError(f"array '{name[:40]}' in {where} has {text}", "save scores as (N, K), labels as (N,)")
    return tuple(shape)


def known_dtype(dtype: np.dtype[Any], name: str, where: str) -> np.dtype[Any]:
    """`dtype`, unless it is one that needs a pickle or has no order of numbers.

    Raises:
        InputError: object and structured arrays.
    """
    if dtype.hasobject:
        raise InputError(
            f"array '{name}' in {where} holds Python objects, which only a pickle could restore",
            "save plain arrays: np.savez(path, logits=np.stack(rows).astype('float32'), labels=labels)",
        )
    if dtype.kind not in "biufUSO":
        raise InputError(f"array '{name}' in {where} has dtype {dtype}", "save numbers, e.g. as float32")
    return dtype
