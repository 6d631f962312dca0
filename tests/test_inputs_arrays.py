"""Arrays that stay in their file answer as arrays do."""

from __future__ import annotations

import numpy as np
import pytest

from calibcli.scores.files.arrays import FileColumn, Memory
from calibcli.scores.predictions import gather


@pytest.mark.parametrize("piece", [8, 1000, 1 << 23])
def test_a_column_is_indexed_like_an_array(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.scores.predictions.CHUNK_BYTES", piece)
    array = np.arange(2000) * 3
    column = FileColumn(Memory(array))
    rng = np.random.default_rng(0)
    for index in (slice(10, 20), slice(None, None, 7), rng.integers(-2000, 2000, 500), array % 2 == 0, np.array(5), 7):
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
