"""Extremes, ties and listed places of rows, against NumPy's own words for them."""

from __future__ import annotations

import numpy as np
import pytest

import calibcli
from calibcli.core.statistics import top_of
from calibcli.scores.from_arrays import checked
from calibcli.scores.softmax import SHORT, Piece, largest_of, least_of, true_places

KINDS = ("normal", "tied", "positive", "negative", "near", "odd", "zeros")


def rows(kind: str, k: int, dtype: str) -> np.ndarray:
    """Some rows that are hard for what goes by the bits of a number."""
    z = np.random.default_rng(k).standard_normal((300, k)).astype(dtype)
    if kind == "tied":
        z = np.round(z, 1)
    elif kind in ("positive", "negative"):
        z = np.abs(z) * (1 if kind == "positive" else -1)
    elif kind == "near":  # the largest differ in the last bits alone
        z[:, -1] = z.max(axis=1)
        z[::2, -1] = np.nextafter(z[::2, -1], np.asarray(np.inf, dtype))
        z[1::4, -1] = np.nextafter(z[1::4, -1], np.asarray(-np.inf, dtype))
    elif kind == "odd":
        z[3, 5], z[4, 6] = np.nan, np.copysign(np.nan, -1)
        z[5, 2], z[6, 4], z[7], z[8] = -np.inf, np.inf, -np.abs(z[7]), np.abs(z[8])
    elif kind == "zeros":
        z[::2] = 0
        z[1::2] = -np.abs(z[1::2])
        z[::3, k // 2], z[1::4, 1] = -0.0, 0.0
    return z


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [33, 64, 100, SHORT, SHORT + 1, 600])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_extremes_are_those_of_numpy(kind: str, k: int, dtype: str) -> None:
    z = rows(kind, k, dtype)
    best, top, several = largest_of(z)
    np.testing.assert_array_equal(best, z.argmax(axis=1))
    np.testing.assert_array_equal(top, z[np.arange(len(z)), best])
    same = np.count_nonzero(z == top[:, None], axis=1)
    tied = same > 1
    assert tied.any() == (kind in ("tied", "near", "zeros"))
    if several is None:
        assert not tied.any()
    else:
        np.testing.assert_array_equal(several[tied], same[tied])
        assert (several[~tied] <= 1).all()
    np.testing.assert_array_equal(top_of(z), z.max(axis=1))
    if kind != "odd":  # NaN is told by the largest or by the least
        np.testing.assert_array_equal(least_of(z), z.min(axis=1))
    else:
        assert not (np.isfinite(top) & np.isfinite(least_of(z)))[3:7].any()


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 1003, 8000])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 1.0])
def test_places_are_where_the_mask_is_true(n: int, share: float) -> None:
    mask = np.random.default_rng(n).random(n) < share
    np.testing.assert_array_equal(true_places(mask), mask.nonzero()[0])


@pytest.mark.parametrize("n", [0, 1, 2, 500])
def test_a_piece_knows_its_rows(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.scores.softmax.PIECE", 7 * 40)
    z = np.round(np.random.default_rng(0).standard_normal((n, 40)), 2).astype("f4")
    piece = Piece(z, (0, 39))
    np.testing.assert_array_equal(piece.best, z.argmax(axis=1) if n else [])
    np.testing.assert_array_equal(piece.least, z.min(axis=1) if n else [])
    for c in ((0, 39), (3,)):
        np.testing.assert_array_equal(piece.columns(c), z[:, c].T)
    same = np.count_nonzero(z == piece.top[:, None], axis=1)
    assert piece.largest is None if (same <= 1).all() else (piece.largest == same).all()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_what_the_checks_saw_of_rows_goes_to_the_pass(dtype: str) -> None:
    z = np.random.default_rng(0).standard_normal((200, 50)).astype(dtype)
    y = z.argmax(axis=1)
    ends = getattr(checked(z, y, {}).scores, "ends", None)
    assert ends is not None
    np.testing.assert_array_equal(ends[0], y)
    np.testing.assert_array_equal(ends[1], z.min(axis=1))
    mine = calibcli.from_arrays(z, y)
    assert getattr(mine.scores, "ends", None) is None  # whoever holds them may change them
    z[3, 4] = np.nan
    kept = checked(z, y, {"drop_nonfinite": True})
    assert kept.n == 199
    assert getattr(kept.scores, "ends", None) is None
