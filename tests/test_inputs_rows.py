"""Fingerprints of rows: equal rows agree, other rows do not; overlap of two files; order of classes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError
from calibcli.scores.files.arrays import distinct
from calibcli.scores.input_mistakes import (
    BACKWARDS_Z,
    _repeats,
    auc_and_z,
    class_order,
    match_classes,
    refuse_overlap,
    row_hashes,
)
from calibcli.scores.predictions import Predictions

RNG = np.random.default_rng(2)


def predictions(z: np.ndarray, source: str = "a") -> Predictions:
    return Predictions.of(z, np.zeros(len(z), np.int64), source=source)


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=1, max_size=60))
def test_hashes_separate_exactly_the_different_rows(rows: list[list[int]]) -> None:
    z = np.array(rows, dtype=np.float32) / 4
    hashes = row_hashes(predictions(z))
    assert distinct(hashes.copy()) == len({tuple(row) for row in rows})
    for i in range(len(rows)):
        np.testing.assert_array_equal(hashes == hashes[i], (z == z[i]).all(axis=1))


def test_hashes_do_not_depend_on_type_or_block() -> None:
    z = RNG.normal(size=(5000, 700)).astype(np.float32)
    hashes = row_hashes(predictions(z))
    np.testing.assert_array_equal(hashes, row_hashes(predictions(z.astype(np.float64))))
    np.testing.assert_array_equal(hashes[17:20], row_hashes(predictions(z[17:20])))
    assert hashes.dtype == np.uint64
    assert distinct(hashes) == 5000
    z[:, 0] = 0.0
    a = row_hashes(predictions(z))
    z[:, 0] = -0.0
    np.testing.assert_array_equal(a, row_hashes(predictions(z)))


def test_overlap_counts_the_shared_rows() -> None:
    z = RNG.normal(size=(3000, 5)).astype(np.float32)
    fit, test = predictions(z[:2000], "fit.npz"), predictions(z[1990:], "test.npz")
    said = "10 of 1,010 rows of test.npz (1.0%) are also in fit.npz; 0.0% are expected by chance"
    assert said in refuse_overlap(fit, test)
    with pytest.raises(InputError, match="60 of 1,060 rows") as error:
        refuse_overlap(fit, predictions(z[1940:], "test.npz"))
    assert "--folds 5" in error.value.fix
    assert refuse_overlap(fit, predictions(z[2000:])) == ""


def test_ties_are_not_taken_for_overlap() -> None:
    """Probabilities with two decimals share most of their values; so do their rows, by chance, and nothing is said."""
    p = np.round(RNG.uniform(0.05, 0.95, (4000, 1)), 2)
    z = np.log(np.hstack([1 - p, p]))
    assert refuse_overlap(predictions(z[:2000]), predictions(z[2000:])) == ""


def test_repeats_of_a_model_of_few_values_are_no_copies() -> None:
    """Rows of 31 values repeat, each with a label of its own; copies of rows, of any model, have the label too."""
    rng = np.random.default_rng(0)
    p = np.round(rng.integers(1, 32, 1200) / 32, 3)
    y = (rng.uniform(size=1200) < p).astype(int)
    assert not repeats(p, y)
    assert not repeats(np.column_stack([1 - p, p]), y)
    z = rng.normal(size=(600, 3))
    y = np.where(rng.uniform(size=600) < 0.8, z.argmax(axis=1), rng.integers(0, 3, 600))
    twice = np.concatenate([np.arange(600), rng.integers(0, 600, 30)])
    assert not repeats(z, y)
    assert repeats(z[twice], y[twice]) == ["30 of 630 rows repeat an earlier row"]
    tenth = np.repeat(np.arange(60), 10)  # ten copies of each, of one column
    assert repeats(np.round(p, 2)[tenth], (rng.uniform(size=60) < p[:60]).astype(int)[tenth])


def test_marks_that_share_a_half_do_not_repeat() -> None:
    same = np.array([3, 1 << 40, 3 + (1 << 40)], np.uint64)
    assert _repeats([same]) == _repeats([np.empty(0, np.uint64)]) == _repeats([]) == 0
    assert _repeats([same, same[:1], same]) == 4


@pytest.mark.parametrize("columns", [1, 2])
def test_scores_of_two_classes_are_backwards_where_their_auc_is(columns: int) -> None:
    """Also where one threshold alone shows that they are not."""
    rng, seen = np.random.default_rng(7), set[bool]()
    for _ in range(60):
        y = (rng.random(200) < rng.uniform(0.1, 0.9)).astype(int)
        margin = rng.normal(size=200) * rng.choice([0.3, 3]) + rng.uniform(-0.6, 0.6) * (2 * y - 1) + rng.normal()
        p = 1 / (1 + np.exp(-margin))
        notes = calibcli.from_arrays(p if columns == 1 else np.column_stack([1 - p, p]), y).notes
        backwards = auc_and_z(margin, y)[1] <= -BACKWARDS_Z
        assert any("the classes may be in the wrong order" in note for note in notes) == backwards
        seen.add(backwards)
    assert seen == {True, False}


def repeats(scores: np.ndarray, labels: np.ndarray) -> list[str]:
    notes = calibcli.from_arrays(scores, labels).notes
    return [note.partition(" (")[0] for note in notes if "repeat an earlier row" in note]


def mislabelled(accuracy: float, n: int, k: int, image: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    right = rng.uniform(size=n) < accuracy
    return image[np.where(right, y, rng.integers(0, k, n))], y


@pytest.mark.parametrize(("accuracy", "n", "k"), [(0.9, 400, 10), (0.5, 2000, 10), (0.3, 5000, 10), (0.7, 20000, 1000)])
def test_permuted_classes_are_found(accuracy: float, n: int, k: int) -> None:
    image = np.random.default_rng(3).permutation(k)
    found = class_order(*mislabelled(accuracy, n, k, image, 1), k)
    assert found is not None
    moved, plain, renamed = found
    wanted = {int(image[c]): c for c in range(k) if image[c] != c}
    assert sum(moved.get(p) == c for p, c in wanted.items()) > 0.9 * len(wanted)
    assert renamed - plain > 0.8 * accuracy - 0.1


def test_honest_models_keep_their_order() -> None:
    """In 300 data sets of all qualities, no model is accused; nor one that prefers a class or is below chance."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        k, n = int(rng.integers(3, 30)), int(rng.integers(20, 3000))
        assert class_order(*mislabelled(rng.uniform(0, 1), n, k, np.arange(k), seed), k) is None
    y = np.random.default_rng(0).choice(3, 5000, p=[0.2, 0.6, 0.2])
    assert class_order(np.zeros(5000, np.int64), y, 3) is None
    assert class_order(np.where(y == 2, 2, 0), y, 3) is None


def test_the_order_of_very_many_classes_costs_a_pass_over_them() -> None:
    """A model that errs on 50 rows of 100,000 classes: searching a list of the free labels took seven seconds."""
    predicted, labels = np.random.default_rng(0).integers(0, 100_000, (2, 50))
    begin = time.process_time()
    assert class_order(predicted, labels, 100_000) is None
    assert time.process_time() - begin < 1.0


def test_classes_without_a_partner_take_their_own_label_or_the_least_free_one() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        k = int(rng.integers(3, 40))
        rows, columns = rng.integers(0, k, (2, int(rng.integers(1, k))))
        image: dict[int, int] = {}
        for r, c in zip(rows.tolist(), columns.tolist(), strict=True):
            if r not in image and c not in image.values():
                image[r] = c
        for r in range(k):
            if r not in image:
                free = [c for c in range(k) if c not in image.values()]
                image[r] = r if r in free else free[0]
        assert match_classes(rows.tolist(), columns.tolist(), k) == [image[r] for r in range(k)]


THREE = np.tile(np.arange(3), 2)
ARRAYS: dict[str, tuple[dict[str, np.ndarray], list[str], str]] = {
    "all ignored": ({"labels": np.full(6, -100)}, ["--ignore-label", "-100"], "all 6 labels are -100"),
    "three dimensions": ({"labels": np.zeros((6, 2, 2), int)}, [], "pass one label per row"),
    "soft targets": ({"labels": np.full((6, 3), 1 / 3)}, [], "row 0 is not one-hot"),
    "numbers of classes": ({"labels": np.full((6, 3), 2)}, [], "neither one-hot nor 0/1"),
    "several classes": ({"labels": np.ones((6, 3), int)}, [], "add --multilabel"),
    "NaN": ({"labels": np.where(THREE == 2, np.nan, THREE)}, [], "2 rows have no label ('labels' is NaN in row 2)"),
    "halves": ({"labels": THREE + 0.5}, [], "row 0 has 0.5"),
    "no weight": ({"w": np.zeros(6)}, ["--weights", "w"], "weights 'w' are all 0"),
    "a weight below 0": ({"w": -np.ones(6)}, ["--weights", "w"], "weight -1 in row 0"),
    "weights of all sizes": ({"w": np.r_[1e-300, [1e300] * 5]}, ["--weights", "w"], "divide them by the largest"),
    "no count": ({"w": np.full(6, 1.5)}, ["--weights", "w", "--weight-kind", "count"], "is not a count"),
    "two weights a row": ({"w": np.ones((6, 2))}, ["--weights", "w"], "pass one value per row"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, options, said = ARRAYS[name]
    np.savez(tmp_path / "a.npz", **{"logits": RNG.normal(size=(6, 3)), "labels": THREE, **arrays})
    assert main(["metrics", str(tmp_path / "a.npz"), *options]) == Exit.REFUSED
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "labels", [THREE[:, None], THREE[None], THREE.astype(np.uint64), np.eye(3)[THREE], THREE.astype(float)]
)
def test_labels_in_other_forms(labels: np.ndarray) -> None:
    z = RNG.normal(size=(6, 3))
    found = calibcli.measure(z, labels, "nll", weights=np.ones((6, 1)))
    assert found["nll"].value == calibcli.measure(z, THREE, "nll")["nll"].value


@pytest.mark.parametrize("missing", [None, float("nan"), "", "NA"])
def test_rows_without_a_group_are_noted(missing: Any) -> None:
    z = RNG.normal(size=(60, 3))
    groups = [missing] * 3 + [f"patient {i // 3}" for i in range(57)]
    found = calibcli.measure(z, np.tile(THREE, 10), "nll", group=groups)
    assert "group 'group': 3 rows have none; they count as rows of one group" in found.notes
    assert found["nll"].detail["effective_groups"] == pytest.approx(20)


@pytest.mark.regression
def test_a_table_of_very_many_columns_takes_time_in_proportion(tmp_path: Path) -> None:
    """Of 30,000 columns: 40 CPU seconds where each is compared with all others."""
    k = 30_000
    header = ",".join([*(f"logit_{i}" for i in range(k)), "label"])
    rows = [",".join([*(f"0.{(i + row) % 7}" for i in range(k)), str(row)]) for row in range(3)]
    (tmp_path / "wide.csv").write_text("\n".join([header, *rows, ""]))
    start = time.process_time()
    assert calibcli.read(tmp_path / "wide.csv", kind="logits").k == k
    assert time.process_time() - start < 6
