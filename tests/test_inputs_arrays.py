"""Arrays that stay in their file answer as arrays do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.core.errors import InputError
from calibcli.scores.files.arrays import FileColumn, Memory
from calibcli.scores.predictions import gather


@pytest.mark.parametrize("piece", [8, 1000, 1 << 23])
def test_a_column_is_indexed_like_an_array(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.scores.predictions.CHUNK_BYTES", piece)
    array = np.arange(2000) * 3
    column = FileColumn(Memory(array))
    rng = np.random.default_rng(0)
    forwards = slice(10, 20), slice(None, None, 7), rng.integers(-2000, 2000, 500), array % 2 == 0, np.array(5), 7
    for index in (*forwards, slice(None, None, -1), slice(1500, 20, -7), slice(5, 5, -2)):
        np.testing.assert_array_equal(column[index], array[index])
    np.testing.assert_array_equal(np.asarray(column), array)


def test_picking_rows_never_reads_more_than_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.scores.predictions.CHUNK_BYTES", 800)
    read: list[int] = []

    class Watched:
        shape, dtype = (10_000,), np.dtype(np.int64)

        def read(self, start: int, stop: int) -> np.ndarray:
            read.append(stop - start)
            return np.arange(start, stop)

    rows = np.array([9_999, 5, 3, 250, 120, 5])
    assert FileColumn(Watched())[rows].tolist() == rows.tolist()
    assert max(read) <= 100
    assert len(read) <= 4
    read.clear()
    assert gather(Watched(), rows).tolist() == rows.tolist()
    assert sorted(read) == [1] * 5  # nothing beside the rows


class Foreign:
    """An array of another library: only the protocol DLPack reads it."""

    def __init__(self, values: Any, device: bool = False) -> None:
        self.values, self.device = values, device

    def __dlpack__(self, **how: Any) -> Any:
        if self.device:
            raise BufferError("the array lies on a device")
        return self.values.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return (2, 0) if self.device else self.values.__dlpack_device__()


def test_arrays_of_other_libraries_and_sparse_ones() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(200, 3)), rng.integers(3, size=200)
    wanted = calibcli.measure(z, y, "ece")["ece"].value
    assert calibcli.measure(Foreign(z), Foreign(y), "ece")["ece"].value == wanted
    with pytest.raises(InputError, match="the array lies on a device") as refused:
        calibcli.measure(Foreign(z, device=True), y)
    assert "copy it to the host first" in refused.value.fix
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(InputError, match="is a sparse matrix") as refused:
        calibcli.measure(sparse.csr_matrix(z), y)
    assert "matrix.toarray()" in refused.value.fix
