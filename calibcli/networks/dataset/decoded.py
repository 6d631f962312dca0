"""Pictures that are decoded once, however often their rows are read, by several threads and a batch ahead."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from calibcli.networks import device as devices
from calibcli.networks.dataset._folder import Pictures
from calibcli.networks.dataset.library_preparation import Prepared
from calibcli.networks.dataset.rows import Dataset
from calibcli.scores.files.arrays import Converted
from calibcli.scores.predictions import Named

IN_MEMORY = 8  # part of the free memory that decoded pictures may take; where they are more, they lie in a file
ON_DISK = 2  # part of the free room of the temporary folder that this file may take, which may be memory too
AHEAD = 64 << 20  # bytes of pictures that are decoded before they are asked for
THREADS = 8  # at most: a device is fed by fewer


def decoded_once(data: Dataset, keep: bool = True) -> Dataset:
    """Return the data set with pictures that are decoded and resized once; other inputs are as they were.

    Args:
        keep: whether they are kept. Without, threads decode the next rows while a batch is worked on, and no more.
    """
    notes = list(data.notes)
    inputs = {
        name: Decoded(array, data.rows, keep, notes) if isinstance(array, Pictures | Prepared | Converted) else array
        for name, array in data.inputs.items()
    }
    return replace(data, inputs=inputs, notes=notes)


def undecoded(inputs: Mapping[str, Named]) -> dict[str, Named]:
    """Return the inputs as they are read each time anew, for a test of whether they stay the same."""
    return {name: array.source if isinstance(array, Decoded) else array for name, array in inputs.items()}


class Decoded:
    """The rows of an array of pictures, each read from it once.

    They are kept in memory, or in a file without a name in the temporary folder, which goes with the process. Values
    are those of the array, bit for bit.

    Args:
        source: pictures (N, ...).
        used: rows that will be read, in any order.
        keep: whether they are kept.
        notes: of the data set; told of a file, and where there is no room.
    """

    def __init__(self, source: Named, used: NDArray[np.int64], keep: bool, notes: list[str]) -> None:
        self.source, self.keep, self.notes = source, keep, notes
        self.shape, self.dtype = source.shape, source.dtype
        self.used = np.unique(used)
        self.row_bytes = int(np.prod(self.shape[1:])) * self.dtype.itemsize
        self.done = np.zeros(len(self.used), bool)
        self.kept, self.file = self._room() if keep else (None, None)
        self.ahead = max(1, AHEAD // max(1, self.row_bytes))
        self.waiting: dict[int, Future[NDArray[Any]]] = {}  # by place among the rows that are used
        self.threads: ThreadPoolExecutor | None = None
        self.process = 0  # that of the threads: one that was forked has none of them

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, here or in another process, decodes for itself: threads and files without a name cannot be sent."""
        return Decoded, (self.source, self.used, self.keep, [])

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self.rows(np.arange(start, min(stop, self.shape[0])))

    def rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return these rows, in this order; those after them, if they are consecutive, are begun."""
        places = np.searchsorted(self.used, rows)
        wanted = np.unique(places)
        missing = wanted[~self.done[wanted]].tolist()
        if isinstance(self.source, Pictures):  # a library's own preparation need not be safe in threads
            self._begin(missing)
            if len(wanted) and int(wanted[-1] - wanted[0]) < len(wanted):
                following = np.arange(wanted[-1] + 1, len(self.used))[: min(len(wanted), self.ahead)]
                self._begin(following[~self.done[following]].tolist())
        new = {p: self.waiting.pop(p).result() if p in self.waiting else self._decode(p) for p in missing}
        while len(self.waiting) > self.ahead:  # begun, and not asked for since
            self.waiting.pop(next(iter(self.waiting))).cancel()
        for place, value in new.items():
            self._store(place, value)
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for i, place in enumerate(places.tolist()):
            out[i] = new[place] if place in new else self.kept[place]  # type: ignore[index]
        return out

    def _decode(self, place: int) -> NDArray[Any]:
        row = int(self.used[place])
        picture: NDArray[Any] = self.source.read(row, row + 1)[0]
        return picture

    def _begin(self, places: list[int]) -> None:
        if self.threads is None or self.process != os.getpid():
            self.process, self.waiting = os.getpid(), {}
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            self.threads = ThreadPoolExecutor(min(THREADS, max(1, cores // devices.local_world())), "decoding")
        for place in places:
            if place not in self.waiting:
                self.waiting[place] = self.threads.submit(self._decode, place)

    def _room(self) -> tuple[NDArray[Any] | None, IO[bytes] | None]:
        """Make room for the rows: in memory, or in a file, which is larger than what will be written of it."""
        shape, size = (len(self.used), *self.shape[1:]), len(self.used) * self.row_bytes
        if size <= devices.free_for_each() // IN_MEMORY:
            return np.empty(shape, self.dtype), None
        folder = tempfile.gettempdir()
        try:
            if size > shutil.disk_usage(folder).free // ON_DISK:
                raise OSError
            file = tempfile.TemporaryFile()  # noqa: SIM115  # it is open as long as the rows are kept
            os.truncate(file.fileno(), size)
            self.notes.append(f"decoded pictures take up to {size / 2**30:.2g} GiB of {folder} until the end")
            return np.memmap(file, self.dtype, "r", shape=shape), file
        except OSError:
            self._say_no_room()
            return None, None

    def _store(self, place: int, value: NDArray[Any]) -> None:
        if self.kept is None or (self.file is not None and self.file.closed):
            return
        if self.file is None:
            self.kept[place] = value
        else:  # a write to the mapping itself would end the process where the disk is full
            try:
                if os.pwrite(self.file.fileno(), value.tobytes(), place * self.row_bytes) < self.row_bytes:
                    raise OSError
            except OSError:
                self.file.close()
                return self._say_no_room()
        self.done[place] = True

    def _say_no_room(self) -> None:
        size, folder = len(self.used) * self.row_bytes / 2**30, tempfile.gettempdir()
        problem = f"{size:.2g} GiB of decoded pictures have no room in memory or {folder}"
        self.notes.append(f"{problem}: they are decoded for every pass; TMPDIR names another folder")
