"""The named arrays of a file, which every reader returns and which are read piece by piece."""

from __future__ import annotations

import bisect
import inspect
import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.core.errors import InputError, printable, refusing
from calibcli.core.files import reading
from calibcli.core.options import normal
from calibcli.scores.files.source import Source, format_of, module
from calibcli.scores.predictions import NEAR, Array, ArrayScores, Named, gather, reusing, rows_of

DIMENSIONS = 32  # the most that every version of NumPy allows
LONGEST = 1 << 48
NAME = 100  # longest name of an array that is shown whole


@dataclass(frozen=True, eq=False)
class FileContents:
    """The named arrays of a file, and what its format says about them.

    Attributes:
        format: name of the format, with what matters for memory (`npz, uncompressed`).
        arrays: by name, in the file's order.
        kinds: kind of scores that a name stands for by its convention (a column group `logit_0..`).
        decimals: digits after the point of text, by name.
        ragged: names of scores whose rows are padded with -inf because they differ in length.
        classes: names of the score columns where the file tells them.
        scores, labels, ids, groups: names that this format's convention fixes.
        members: of arrays that are several columns of the file, the names of these.
        table: every array is a column of a table.  inside: names of columns that lie within objects of JSON.
        notes: what a user should be told.  metadata: of the file.
        facts: how an evaluation was read, for the result.  task: its name.
        lacking: why there are no scores, and what would work, where the format tells.
        used: fields of `ReaderOptions` that took effect.
        left_out: samples that are no rows of the arrays, by cause: `answers` that were not given, such as failed ones,
            and those that `--unlisted drop` leaves out.
        read_alike: from a list of further files, reads the first ones that have the header of this one and are as
            plain, all in one go, and returns their contents, without `decimals`; the list may go on with others. None
            where each file is read by itself.
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
    groups: str = ""
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)
    table: bool = False
    inside: frozenset[str] = frozenset()
    notes: Sequence[str] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    task: str = ""
    lacking: tuple[str, str] | None = None
    used: frozenset[str] = frozenset()
    left_out: Mapping[str, int] = field(default_factory=dict)
    read_alike: Callable[[Sequence[Source]], list[FileContents]] | None = None


@dataclass(frozen=True)
class Role:
    """The purpose of an array or column; `name in role` asks whether a name stands for it.

    Attributes:
        names: that say so.
        weak: that say so where no array has one of `names`.
        dtypes: kinds of NumPy dtypes that it may hold ("biufUSO": anything).
    """

    names: tuple[str, ...]
    weak: tuple[str, ...] = ()
    dtypes: str = "biufUSO"

    @property
    def all(self) -> tuple[str, ...]:
        """Strong and weak names."""
        return (*self.names, *self.weak)

    def __contains__(self, name: str) -> bool:
        return normal(name) in self.names

    def first(self, arrays: Mapping[str, Named], shape: tuple[int, ...]) -> str | None:
        """Return the first array with one of `names`, of this shape and of a dtype that the role may hold."""
        fitting = (name for name, a in arrays.items() if a.shape == shape and a.dtype.kind in self.dtypes)
        return next((name for name in fitting if name in self), None)


class Memory(ArrayScores):
    """An array of any shape in memory."""


class RowsOf(Memory):
    """The rows start..stop of an array in memory that several files share."""

    whole: Array
    start: int
    stop: int

    def __init__(self, whole: Array, start: int, stop: int) -> None:
        super().__init__(whole[start:stop])
        self.__dict__.update(whole=whole, start=start, stop=stop)


class EncodedPictures(Memory):
    """A column of pictures, each in the bytes of its own format (PNG, JPEG, ...)."""


@dataclass(frozen=True, eq=False)
class Lazy:
    """An array whose header is known and whose bytes are decoded when it is first read (compressed members)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[], Array]

    @cached_property
    def array(self) -> Array:
        return self.load()

    def read(self, start: int, stop: int) -> Array:
        return self.array[start:stop]


@dataclass(frozen=True, eq=False)
class InFile:
    """An uncompressed array inside a file, read at its offset. `bfloat16` is stored as uint16 and widened by hand.

    `memory`: that all readings share, or none.
    """

    source: Source
    offset: int
    shape: tuple[int, ...]
    stored: np.dtype[Any]
    fortran: bool = False
    bfloat16: bool = False
    memory: list[Array] | None = None

    def reusing(self) -> InFile:
        """Return this array for a reader that is done with a block before it reads the next; reusing memory halves the
        time.
        """
        return replace(self, memory=[])

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
        length, buffers = (stop - start) * row * size, [] if self.memory is None else self.memory
        if not buffers or len(buffers[0]) < length:
            buffers[:] = [np.empty(length, np.uint8)]
        raw = buffers[0][:length]
        self.source.pread_into(raw.data, self.offset + start * row * size)
        return self._native(raw.view(self.stored).reshape(stop - start, *tail))

    def _columns(self, start: int, stop: int, row: int) -> Array:
        """Read rows of an array that is stored column after column, one piece of each column."""
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

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each part, and the number of all rows."""
        return list(itertools.accumulate((part.shape[0] for part in self.parts), initial=0))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        return (self.starts[-1], *max(part.shape[1:] for part in self.parts))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*dict.fromkeys(part.dtype for part in self.parts))

    def read(self, start: int, stop: int) -> Array:
        first = bisect.bisect_right(self.starts, start, hi=len(self.parts)) - 1
        last = max(first + 1, bisect.bisect_left(self.starts, stop, hi=len(self.parts)))
        blocks = [
            self._wide(part.read(max(start - begin, 0), min(stop - begin, part.shape[0])))
            for part, begin in zip(self.parts[first:last], self.starts[first:last], strict=True)
        ]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)

    def _wide(self, block: Array) -> Array:
        block = texts_of(block) if self.dtype.kind == "U" else block.astype(self.dtype, copy=False)
        width = self.shape[1] if len(self.shape) == 2 else 0
        if self.fill is not None and block.ndim == 2 and block.shape[1] < width:
            return np.pad(block, ((0, 0), (0, width - block.shape[1])), constant_values=self.fill)
        return block


def joined(parts: Sequence[Named], fill: float | None = None) -> Named:
    """Return arrays one after the other as one; `fill` is that of `Joined`.

    Those that follow one another in one array become one.
    """
    whole: list[Named] = []
    for part in parts:
        end = whole[-1] if whole else None
        if isinstance(part, RowsOf) and isinstance(end, RowsOf) and part.whole is end.whole and part.start == end.stop:
            whole[-1] = RowsOf(part.whole, end.start, part.stop)
        else:
            whole.append(part)
    return whole[0] if len(whole) == 1 else Joined(whole, fill)


@dataclass(frozen=True, eq=False)
class Converted:
    """Another array passed through a function block by block; the result may have another width and dtype.

    `ends`: of scores, class of the largest and the smallest one itself of each row, both (N,), or None.
    """

    inner: Named
    function: Callable[[Array], Array]
    tail: tuple[int, ...]
    dtype: np.dtype[Any]
    ends: tuple[Array, Array] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.inner.shape[0], *self.tail)

    def reusing(self) -> Converted:
        """Return this array for a reader that is done with a block before it reads the next; see `InFile.reusing`."""
        return replace(self, inner=reusing(self.inner))

    def read(self, start: int, stop: int) -> Array:
        return self.function(self.inner.read(start, stop)).astype(self.dtype, copy=False)


class FileColumn:
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
            index = np.arange(start, stop, step)
        rows = np.asarray(index)
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows % len(self)
        return gather(self.inner, rows.reshape(-1), NEAR).reshape(rows.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return read_all(self.inner).astype(dtype or self.dtype, copy=False)


def blocks(array: Named) -> Iterator[tuple[int, Array]]:
    """Yield (first row, rows) in order, piece by piece."""
    step = rows_of(array)
    for start in range(0, array.shape[0], step):
        yield start, array.read(start, start + step)


def texts_of(values: Array) -> Array:
    """Convert values to an (N,) array of str; bytes are decoded.

    Of floats, whole numbers keep the 16 digits that integers below 2^53 may have, so that ids stay distinct; others are
    rounded to 12, so that 0.1 + 0.2 is the text of 0.3.
    """
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "f":
        return np.array([f"{v:.{16 if v.is_integer() else 12}g}" for v in values.tolist()])
    return values.astype(str)


def distinct(values: Array) -> int:
    """Count the different values; numbers are sorted, which is several times faster here than a hash table."""
    if values.dtype.kind == "O":
        return len(set(values.tolist()))
    ordered = np.sort(values)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + 1 if len(ordered) else 0


def column_of(texts: Sequence[Any]) -> Array:
    """Return the objects of a list as an (N,) array."""
    return np.fromiter(texts, dtype=object, count=len(texts))


def read_all(array: Named) -> Array:
    """Read all rows into memory."""
    return np.ascontiguousarray(array.read(0, array.shape[0]))


def load_any(source: Source, columns: bool = False) -> FileContents:
    """Read the arrays of a file by its format; of tables return every column, or the score columns as one array."""
    read = module(format_of(source)).read
    read = partial(read, grouped=False) if columns and "grouped" in inspect.signature(read).parameters else read
    # warnings of NumPy and torch about odd headers would stand beside the result
    with warnings.catch_warnings(action="ignore"):
        contents: FileContents = read(source)
    if all(name.isprintable() and len(name) <= NAME for name in contents.arrays):
        return contents
    arrays = {printable(name.replace("\n", "?"), NAME): array for name, array in contents.arrays.items()}
    if len(arrays) < len(contents.arrays):
        raise InputError(f"{source.name} holds arrays whose names begin alike", f"give them names below {NAME} letters")
    return replace(contents, arrays=arrays, read_alike=None)


def known_shape(shape: Sequence[int], name: str, where: str) -> tuple[int, ...]:
    """Return `shape` if NumPy can hold such an array.

    Raises:
        InputError: too many dimensions, or too long.
    """
    if len(shape) > DIMENSIONS or any(size > LONGEST for size in shape):
        text = f"{len(shape)} dimensions" if len(shape) > DIMENSIONS else f"a dimension of {max(shape):.3g} numbers"
        raise InputError(f"array '{name[:40]}' in {where} has {text}", "save scores as (N, K), labels as (N,)")
    return tuple(shape)


def known_dtype(dtype: np.dtype[Any], name: str, where: str) -> np.dtype[Any]:
    """Return `dtype` unless it needs a pickle or its numbers have no order.

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


# What users write to name classes and parts of files.


TARS = (".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz")
DOWNLOADED = (*TARS, ".zip", ".mat", "-ubyte", "-ubyte.gz")
"""How files end that may be a published data set: archives, and files that are one, or half of one, alone."""


def class_names(given: str | Sequence[str]) -> list[str]:
    """Read class names from a list, from `a,b,c`, or from a file with one per line (or a JSON list).

    Raises:
        InputError: the file cannot be read.
    """
    if not isinstance(given, str):
        return [str(name) for name in given]
    if "," in given or not os.path.isfile(given):
        return [name.strip() for name in given.split(",")]
    reading(given)
    errors = (OSError, ValueError, RecursionError)
    with refusing(errors, lambda e: f"cannot read class names from {given} ({str(e)[:80]})", "write one name per line"):
        text = Path(given).read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            import json

            return [str(name) for name in json.loads(text)]
    return [line.strip() for line in text.splitlines() if line.strip()]


def split_part(name: str) -> tuple[Path, str]:
    """Split `FILE#PART` into the file and the part; the part is "" where `#` belongs to the name of the file."""
    file, _, part = name.rpartition("#")
    return (Path(file), part) if file and not os.path.exists(name) else (Path(name), "")
