"""Slices: every value judged and measured as if its rows were a file of their own, and read in few passes."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import calibcli
from calibcli.gate.config import Config, Gate
from calibcli.gate.judging import resolved
from calibcli.gate.sources import RecordedOutputs
from calibcli.metrics.report import ReportOptions, report
from calibcli.scores.columns import Columns, GatheredParts, columns, columns_by, rows_by
from calibcli.scores.histogram import CONFIDENCE, NAMES
from calibcli.scores.predictions import ArrayScores, PickedScores, Predictions

RNG = np.random.default_rng(5)
N, K = 900, 6
Y = RNG.integers(0, K, N)
Z = RNG.standard_normal((N, K)).astype(np.float32)
Z[np.arange(N), Y] += 2
SITE = np.array(["b", "", "10", "9", "é"])[RNG.integers(0, 5, N)]


class Stored:
    """Scores that are read, as from a file; `seen` counts them."""

    shape, dtype, seen = (N, K), Z.dtype, 0

    def read(self, start: int, stop: int) -> np.ndarray:
        Stored.seen += min(stop, N) - start
        return Z[start:stop]


def lazy(**fields: object) -> Predictions:
    return Predictions(scores=Stored(), labels=Y, **fields)  # type: ignore[arg-type]


def test_rows_by_is_unique_with_its_rows() -> None:
    for values in (SITE, Y, SITE[:1]):
        names, member = np.unique(values, return_inverse=True)
        found = rows_by(values)
        assert list(found) == names.tolist()
        for i, rows in enumerate(found.values()):
            np.testing.assert_array_equal(rows, np.flatnonzero(member == i))


@pytest.mark.parametrize("held", [1, 200 * K * 4, 1 << 27])
def test_parts_are_gathered_whatever_fits(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.scores.columns.HELD", held)
    parts = [*rows_by(SITE).values()]
    gathered = GatheredParts(lazy(weights=np.arange(N) + 1.0), parts)
    for i, rows in enumerate(parts):
        part = gathered.take(i)
        assert isinstance(part.scores, PickedScores if len(rows) * K * 4 > held else ArrayScores)
        np.testing.assert_array_equal(part.logits, Z[rows])
        np.testing.assert_array_equal(part.labels, Y[rows])
        np.testing.assert_array_equal(part.weights, rows + 1.0)


@pytest.mark.parametrize("names", [NAMES, NAMES[:-1], CONFIDENCE])
@pytest.mark.parametrize("most", [1, 250, 10_000])
def test_few_rows_are_measured_in_double_precision(
    most: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibcli.scores.columns.SMALL", N * K - 1)
    monkeypatch.setattr("calibcli.scores.columns.SMALL", 190 * K)
    monkeypatch.setattr("calibcli.scores.columns.ROWS", most)
    whole, parts = lazy(), [*rows_by(SITE).values()]
    measured = columns(whole, class_bins=(), names=names)
    sizes = {len(rows) <= 190 for rows in parts}
    assert sizes == {True, False}
    for rows, found in zip(parts, columns_by(whole, measured, parts), strict=True):
        if len(rows) <= 190:
            wanted = columns(whole.take(rows), class_bins=(), names=names, double=True)
            np.testing.assert_allclose(found.rest, wanted.rest, rtol=1e-13)
            assert found.numbers.keys() == {*names}
            for name in {"nll", "entropy"} & {*names}:
                np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-13)
            assert found.precision == wanted.precision < measured.precision
        else:
            np.testing.assert_array_equal(found.rest, measured.rest[rows])


def test_scores_are_read_twice_whatever_the_number_of_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calibcli.scores.columns.SMALL", N * K - 1)
    for count in (2, 90):
        for specs, passes in ((("ece", "nll"), 2), (("classwise_ece",), 2)):
            Stored.seen = 0
            report(lazy(slices={"site": (np.arange(N) % count).astype(str)}), ReportOptions(specs=specs, diagram=False))
            assert Stored.seen <= passes * N, (count, specs)


@pytest.mark.parametrize("metric", ["smece", "classwise_ece", "ece", "accuracy"])
def test_a_judged_slice_keeps_its_estimates_only(metric: str) -> None:
    source = RecordedOutputs(lazy(slices={"site": SITE}), Config())
    side = "min" if metric == "accuracy" else "max"
    gate = Gate(metric=metric, by="site", **{side: 0.3})  # type: ignore[arg-type]
    rule, parts = resolved(gate, source.better(gate), K), source.slices(gate)
    assert not isinstance(parts, str)
    for part in parts.values():
        source.claim(rule, part, 0.05, len(parts))
        assert not part.samples
        assert "columns" not in vars(part)


def test_a_check_leaves_no_columns_behind() -> None:
    """Memory that only the garbage collector finds is not there for the next call."""
    z, y = np.random.default_rng(0).normal(size=(500, 3)), np.arange(500) % 3
    calibcli.check(z, y, max={"ece": 0.5})
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, Columns) for one in gc.get_objects())
        calibcli.check(z, y, max={"ece": 0.5})
        assert sum(isinstance(one, Columns) for one in gc.get_objects()) == before
    finally:
        gc.enable()
