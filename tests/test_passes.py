"""How often scores of many classes are read: what is counted is passes, as seconds depend on the machine."""

from __future__ import annotations

import numpy as np
import pytest

from calibcli import columns as reading
from calibcli.columns.condense import ClassSums
from calibcli.inputs.scores import mistakes
from calibcli.predictions import Predictions
from calibcli.scalers import before_after, objectives, temperature
from calibcli.scalers.ranking import Options

N, K = 60, 50_000


@pytest.fixture(scope="module")
def rows() -> Predictions:
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((N, K), dtype=np.float32), rng.integers(0, K, N)
    z[np.arange(N), y] += np.where(rng.random(N) < 0.6, np.float32(12), np.float32(0))
    return Predictions.of(z, y)


def test_scale_reads_the_rows_before_and_after_once_for_its_metrics(
    rows: Predictions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The differences come from the columns that the metrics were measured on."""
    read: list[int] = []
    plain = reading._read
    monkeypatch.setattr(
        reading, "_read", lambda work, *rest: (read.append(len(work.class_bins)), plain(work, *rest))[1]
    )
    before_after.report(rows, Options(specs=["nll", "classwise_ece"]))
    assert read == [1, 1]


def test_sums_by_class_of_few_rows_are_taken_once(rows: Predictions, monkeypatch: pytest.MonkeyPatch) -> None:
    """K x bins numbers for every piece that is read would cost more than the scores in it."""
    taken: list[int] = []
    plain = ClassSums.total
    monkeypatch.setattr(
        ClassSums, "total", lambda self, top, *rest: (taken.append(len(top)), plain(self, top, *rest))[1]
    )
    reading.columns(rows)
    assert taken == [N]


def test_the_curve_of_many_scores_has_fewer_points(rows: Predictions, monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[int] = []
    plain = objectives.nll_curve
    monkeypatch.setattr(
        temperature, "nll_curve", lambda source, betas: (points.append(len(betas)), plain(source, betas))[1]
    )
    before_after.fit("temperature", rows)
    before_after.fit("temperature", rows.take(np.arange(20)))
    assert points == [15, 41]


@pytest.mark.parametrize("seed", range(20))
def test_cycles_of_classes_are_found_from_their_mutual_moves(seed: int) -> None:
    """The same as of a search that begins at every class that moves."""
    rng = np.random.default_rng(seed)
    image = rng.permutation(12)
    mutual = {(int(r), int(image[r] if rng.random() < 0.6 else rng.integers(12))) for r in rng.permutation(12)[:8]}
    expected, seen = {}, set()
    for first in range(12):
        cycle, at = [], first
        while at not in seen:
            seen.add(at)
            cycle.append((at, int(image[at])))
            at = int(image[at])
        if len(cycle) > 1 and sum(move in mutual for move in cycle) > len(cycle) / 2:
            expected |= dict(cycle)
    assert mistakes._sound_cycles(image, mutual) == expected
