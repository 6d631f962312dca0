"""How often scores of many classes are read: what is counted is passes, as seconds depend on the machine."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import calibcli
from calibcli.calibrators import report, temperature
from calibcli.calibrators.calibrator import Scaler
from calibcli.calibrators.report import RankingOptions
from calibcli.gate import compare
from calibcli.metrics.temperature_gain import FOLDS
from calibcli.scores import columns as reading
from calibcli.scores import input_mistakes
from calibcli.scores.histogram import ClassSums
from calibcli.scores.likelihood import fit_temperature
from calibcli.scores.predictions import Predictions

N, K = 60, 50_000


@pytest.fixture(scope="module")
def rows() -> Predictions:
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((N, K), dtype=np.float32), rng.integers(0, K, N)
    z[np.arange(N), y] += np.where(rng.random(N) < 0.6, np.float32(12), np.float32(0))
    return Predictions.of(z, y)


@pytest.mark.slow
def test_scale_reads_the_rows_before_and_after_once_for_its_metrics(
    rows: Predictions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The differences come from the columns that the metrics were measured on."""
    read: list[int] = []
    plain = reading._read
    monkeypatch.setattr(
        reading, "_read", lambda work, *rest: (read.append(len(work.class_bins)), plain(work, *rest))[1]
    )
    report.report(rows, RankingOptions(specs=["nll", "classwise_ece"]))
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


@pytest.mark.slow
def test_compare_fits_the_folds_of_a_model_once(rows: Predictions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gain and the rows that are compared are of the same fits: one to all rows and one without each fold."""
    fits: list[int] = []
    plain = fit_temperature._Run.fit
    monkeypatch.setattr(
        fit_temperature._Run, "fit", lambda run, *how, **more: (fits.append(run.n), plain(run, *how, **more))[1]
    )
    other = Predictions.of(rows.logits * np.float32(1.5), rows.labels)
    compare.scores([rows, other], ["a", "b"], ["nll", "temperature_gain"])
    assert len(fits) == 2 * (1 + FOLDS)


@pytest.mark.slow
def test_scale_maps_the_rows_once_and_takes_one_interval(rows: Predictions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fits to folds begin where that to all rows ended, and nobody reads their intervals."""
    mapped, starts, taken = list[int](), list[float | None](), list[int]()
    plain_map, plain_fit, plain_interval = Scaler.map, temperature.fit_beta, temperature.interval
    monkeypatch.setattr(Scaler, "map", lambda one, z: (mapped.append(len(z)), plain_map(one, z))[1])
    monkeypatch.setattr(
        temperature, "fit_beta", lambda source, start=None: (starts.append(start), plain_fit(source, start=start))[1]
    )
    monkeypatch.setattr(
        temperature, "interval", lambda fit, p, *level: (taken.append(p.n), plain_interval(fit, p, *level))[1]
    )
    _, scaler = report.report(rows, RankingOptions(specs=["nll", "temperature_gain"]))
    assert sum(mapped) == N
    assert taken == [N]
    assert starts == [None, *[scaler.parameters["beta"]] * 5]


def test_a_state_does_not_compress_scores_of_many_digits(rows: Predictions, tmp_path: Path) -> None:
    calibcli.Accumulator("nll").update(rows).save(tmp_path / "state.npz")
    with zipfile.ZipFile(tmp_path / "state.npz") as file:
        packed = {member.filename for member in file.infolist() if member.compress_type == zipfile.ZIP_DEFLATED}
    assert "kept_rows.npy" not in packed
    assert "predicted.npy" in packed
    assert calibcli.Accumulator.load(tmp_path / "state.npz").rows == N


def test_the_curve_of_many_scores_has_fewer_points(rows: Predictions, monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[int] = []
    plain = temperature.nll_curve
    monkeypatch.setattr(
        temperature, "nll_curve", lambda source, betas: (points.append(len(betas)), plain(source, betas))[1]
    )
    report.fit("temperature", rows)
    report.fit("temperature", rows.take(np.arange(20)))
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
    assert input_mistakes._sound_cycles(image, mutual) == expected
