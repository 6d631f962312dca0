"""Scores of tokens and pixels are measured position by position, and the positions of one row belong together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError
from calibcli.core.statistics import group_places
from calibcli.scores import array_names, positions
from calibcli.scores.files.arrays import InFile

N, T, V = 30, 8, 5
RNG = np.random.default_rng(0)
Z = (2 * RNG.normal(size=(N, T, V))).astype(np.float32)
Y = (Z + RNG.gumbel(size=Z.shape)).argmax(-1)
Y[:, 5:][RNG.random((N, 3)) < 0.5] = -100
ROWS = np.repeat(np.arange(N), (Y != -100).sum(1))
ZP, YP = np.moveaxis(Z.reshape(N, 2, 4, V), -1, 1), Y.reshape(N, 2, 4)  # pictures (N, V, 2, 4)
METRICS = ("accuracy", "nll", "brier", "ece", "classwise_ece", "cox_slope", "smece")


def same(found: Any, expected: Any) -> None:
    for estimate in expected.estimates:
        other = found[estimate.name]
        numbers = [(one.value, one.low, one.high) for one in (other, estimate)]
        np.testing.assert_allclose(*(np.array(n, float) for n in numbers), rtol=1e-12, atol=1e-14)


@pytest.fixture(scope="module")
def flat() -> Any:
    return calibcli.measure(Z[Y != -100], Y[Y != -100], *METRICS, group=ROWS)


SAVED: dict[str, Callable[[Path, np.ndarray, np.ndarray], Path]] = {
    "npz": lambda p, z, y: np.savez(p / "a.npz", logits=z, labels=y) or p / "a.npz",  # type: ignore[func-returns-value]
    "compressed": lambda p, z, y: np.savez_compressed(p / "a.npz", logits=z, labels=y) or p / "a.npz",  # type: ignore[func-returns-value]
    "fortran": lambda p, z, y: np.savez(p / "a.npz", logits=np.asfortranarray(z), labels=y) or p / "a.npz",  # type: ignore[func-returns-value]
    "npy": lambda p, z, y: (np.save(p / "a.labels.npy", y), np.save(p / "a.npy", z), p / "a.npy")[-1],
    "safetensors": lambda p, z, y: (
        save_file({"logits": np.ascontiguousarray(z), "labels": y}, p / "a.safetensors"),
        p / "a.safetensors",
    )[-1],
    "pt": lambda p, z, y: (
        torch.save({"logits": torch.tensor(z), "labels": torch.tensor(y)}, p / "a.pt"),
        p / "a.pt",
    )[-1],
}


@pytest.mark.parametrize("picture", [False, True])
def test_metrics_of_positions_are_those_of_the_flattened_ones_in_groups(picture: bool, flat: Any) -> None:
    same(calibcli.measure(*((ZP, YP) if picture else (Z, Y)), *METRICS), flat)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("picture", [False, True])
@pytest.mark.parametrize("form", SAVED)
def test_every_file_of_positions_gives_the_same_numbers(
    form: str, picture: bool, held: bool, tmp_path: Path, flat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not held:  # as where they are larger than what is kept in memory
        monkeypatch.setattr(array_names, "HOLD", 64)
        monkeypatch.setattr("calibcli.scores.predictions.CHUNK_BYTES", 300)
    path = SAVED[form](tmp_path, *((ZP, YP) if picture else (Z, Y)))
    rows = calibcli.read(path)
    assert (rows.n, rows.k, rows.group_count) == (len(ROWS), V, N)
    same(calibcli.measure(rows, *METRICS), flat)
    assert rows.described["group"] == "row_of_position"


def test_parts_of_positions_are_one_data_set(tmp_path: Path, flat: Any) -> None:
    for i, part in enumerate((slice(0, 11), slice(11, N))):
        np.savez(tmp_path / f"part{i}.npz", logits=ZP[part], labels=YP[part])
    rows = calibcli.read([tmp_path / "part0.npz", tmp_path / "part1.npz"], shards=True)
    same(calibcli.measure(rows, *METRICS), flat)


def test_labels_with_an_axis_of_length_one_and_two_classes_in_one_channel_are_read() -> None:
    z, y = ZP[:, :1], (YP > 2).astype(int)
    with_axis = calibcli.measure(z, y[:, None], "accuracy", "nll")
    same(with_axis, calibcli.measure(z.ravel(), y.ravel(), "accuracy", "nll", group=np.repeat(np.arange(N), T)))


def test_what_a_row_has_its_positions_have(tmp_path: Path) -> None:
    site, weight = np.arange(N) % 3, 1.0 + np.arange(N)
    np.savez(tmp_path / "a.npz", logits=Z, labels=Y, site=site, w=weight, name=np.arange(N), half=np.arange(N) // 2)
    rows = calibcli.read(tmp_path / "a.npz", weights="w", by=["site"], ids="name", group="half")
    np.testing.assert_array_equal(rows.weights, weight[ROWS])
    np.testing.assert_array_equal(rows.slices["site"], site[ROWS].astype(str))
    assert rows.group_count == N // 2
    assert rows.ids is not None
    assert rows.ids[:3].tolist() == ["0/0", "0/1", "0/2"]
    assert len(set(rows.ids.tolist())) == rows.n


def test_an_open_axis_is_refused_with_both_lines_and_each_works(tmp_path: Path, capsys: Any) -> None:
    z = Z[:, :V]
    y = np.where(Y[:, :V] < 0, 0, Y[:, :V])
    np.savez(tmp_path / "a.npz", logits=z, labels=y)
    with pytest.raises(InputError) as error:
        calibcli.read(tmp_path / "a.npz")
    assert "are the classes on axis 1, or on the last one?" in error.value.problem
    for axis, order in (("1", np.moveaxis(z, 1, -1)), ("last", z)):
        assert f"--class-axis {axis}" in error.value.fix
        rows = calibcli.read(tmp_path / "a.npz", class_axis=axis)
        np.testing.assert_array_equal(rows.logits, order.reshape(-1, V))
    assert main(["metrics", str(tmp_path / "a.npz")]) == 4
    assert "--class-axis 1 if they are (N, C, ...)" in capsys.readouterr().err
    assert main(["metrics", str(tmp_path / "a.npz"), "--class-axis", "last", "-m", "accuracy"]) == 0


def test_the_next_token_is_the_label_with_a_shift_and_its_absence_is_noticed() -> None:
    z = np.repeat(Z, 3, axis=0)
    following = np.concatenate([np.zeros((len(z), 1), int), (z + RNG.gumbel(size=z.shape)).argmax(-1)[:, :-1]], axis=1)
    with pytest.raises(InputError, match="label of the next one") as error:
        calibcli.measure(z, following)
    assert "shift=1" in str(error.value)
    shifted = calibcli.measure(z, following, *METRICS, shift=1)
    group = np.repeat(np.arange(len(z)), T - 1)
    same(shifted, calibcli.measure(z[:, :-1].reshape(-1, V), following[:, 1:].ravel(), *METRICS, group=group))
    assert calibcli.from_arrays(Z, Y, shift=0).n == len(ROWS)


@pytest.mark.parametrize(
    ("arrays", "how", "words"),
    [
        ((Z, Y[:, 0]), {}, "for one position of each row, save its scores alone"),
        ((Z, Y[:, :-1]), {}, "save labels of every position: (30, 8) if the classes are on the last axis"),
        ((Z, np.full_like(Y, -100)), {}, "all 240 labels are -100"),
        ((Z, np.where(Y < 0, 255, Y)), {}, "ignore_label=255"),
        ((ZP, YP), {"shift": 1}, "shift=1 is for sequences"),
        ((Z[:, 0], np.abs(Y[:, 0])), {"shift": 1}, "shift= is for scores of positions"),
        ((Z[:, :0], Y[:, :0]), {}, "empty"),
    ],
)
def test_what_is_no_scores_of_positions_is_refused_in_words(arrays: Any, how: Any, words: str) -> None:
    with pytest.raises((InputError, UsageError)) as error:
        calibcli.measure(*arrays, **how)
    assert words in str(error.value)


def test_another_label_may_be_the_one_that_is_not_counted(flat: Any) -> None:
    same(calibcli.measure(ZP, np.where(YP < 0, 255, YP).astype(np.uint8), *METRICS, ignore_label=255), flat)


def test_scores_of_positions_that_are_not_counted_may_be_anything(flat: Any) -> None:
    z = np.where((Y == -100)[..., None], np.nan, Z)
    same(calibcli.measure(z, Y, *METRICS), flat)


def test_a_calibrator_of_positions_writes_a_file_that_still_knows_its_rows(tmp_path: Path, capsys: Any) -> None:
    np.savez(tmp_path / "a.npz", logits=Z, labels=Y)
    scaled, out = str(tmp_path / "t.safetensors"), str(tmp_path / "out.npz")
    assert main(["scale", str(tmp_path / "a.npz"), "--save", scaled]) == 0
    assert f"{len(ROWS)} positions of {N} rows, which belong together" in capsys.readouterr().out
    assert main(["apply", scaled, str(tmp_path / "a.npz"), "--save", out]) == 0
    rows = calibcli.read(out)
    assert (rows.n, rows.group_count, rows.record.group) == (len(ROWS), N, "row_of_position")
    mapped = calibcli.load_scaler(scaled).predict_proba(Z[Y != -100])
    np.testing.assert_allclose(np.exp(rows.logits), mapped, rtol=1e-5)


def test_a_gate_that_was_written_for_positions_reads_them_so_again(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", logits=Z, labels=Y)
    assert main(["init", "a.npz"]) == 0
    capsys.readouterr()
    main(["check"])
    printed = capsys.readouterr()
    assert f"{len(ROWS)} positions of {N} rows" in printed.out
    assert "NOT RUN" not in printed.out, printed.out + printed.err


def test_a_large_vocabulary_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_names, "HOLD", 1 << 16)
    monkeypatch.setattr(positions, "LOOKED_AT", 1 << 16)
    monkeypatch.setattr("calibcli.scores.predictions.CHUNK_BYTES", 1 << 16)
    taken, read = list[int](), InFile.read
    monkeypatch.setattr(InFile, "read", lambda self, a, b: taken.append(b - a) or read(self, a, b))  # type: ignore[func-returns-value]
    z = RNG.normal(size=(16, 64, 500)).astype(np.float32)  # 2 MB, of which 33 positions are 64 KB
    np.savez(tmp_path / "a.npz", logits=z, labels=np.where(RNG.random((16, 64)) < 0.5, -100, 7))
    rows = calibcli.read(tmp_path / "a.npz")
    calibcli.measure(rows, "accuracy", "nll")
    assert max(taken[1:]) < 100, max(taken)  # after the labels, positions never reach a tenth of all
    before = z.copy()
    held = calibcli.from_arrays(z, np.full((16, 64), 7))
    assert np.shares_memory(held.logits, z)  # an array in memory is a view, not a copy
    np.testing.assert_array_equal(z, before)


@pytest.mark.parametrize("codes", [[], [3, 3, 3], [5, 0, 5, 2], [-1, 4, -1], [10**12, 0], [2**40, 2**40]])
def test_groups_are_counted_as_they_are_sorted(codes: list[int]) -> None:
    values = np.array(codes, np.int64)
    for found, expected in zip(group_places(values), np.unique(values, return_inverse=True), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("picture", [False, True])
def test_metrics_of_positions_are_those_of_scikit_learn_on_flattened_ones(picture: bool) -> None:
    peer = pytest.importorskip("sklearn.metrics")
    found = calibcli.measure(*((ZP, YP) if picture else (Z, Y)), "accuracy", "nll", "brier")
    p = np.exp(Z[Y != -100].astype(float))
    p, y = p / p.sum(1, keepdims=True), Y[Y != -100]
    expected = {
        "accuracy": peer.accuracy_score(y, p.argmax(1)),
        "nll": peer.log_loss(y, p, labels=range(V)),
        "brier": sum(peer.brier_score_loss(y == k, p[:, k]) for k in range(V)),
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=1e-12)
