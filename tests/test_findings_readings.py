"""Files and arrays that were read as something else, each with the number that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli

N, NAMES = 400, ["ant", "bee", "cat", "dog"]
RNG = np.random.default_rng(7)
Z = RNG.normal(size=(N, 4)) * 2
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
Y = (Z + RNG.gumbel(size=Z.shape)).argmax(1)
RIGHT = float(np.mean(P.argmax(1) == Y))


def accuracy(scores: Any, labels: Any = None, **how: Any) -> float:
    value = calibcli.measure(scores, labels, "accuracy", **how)["accuracy"].value
    assert value is not None
    return value


def table(path: Path, scores: np.ndarray, labels: Any, header: list[str]) -> Path:
    rows = [",".join([*map(str, row), str(label)]) for row, label in zip(scores, labels, strict=True)]
    path.write_text("\n".join([",".join([*header, "label"]), *rows, ""]))
    return path


@pytest.mark.parametrize("names", [[3, 5, 7, 9], [1, 2, 3, 4], [1, 0, 3, 2], [-2, -1, 1, 2], [0.0, 2.0, 5.0, 1.0]])
@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint64, object, str])
def test_labels_that_are_numbers_are_the_names_that_classes_gives(tmp_path: Path, names: list[Any], dtype: Any) -> None:
    """`classes` of scikit-learn: an array and a table give the same number, whatever the labels are held as."""
    if min(names) < 0 and dtype is np.uint64:
        return
    labels = np.array([int(name) for name in names])[Y]
    held = labels.astype(np.int64).astype(dtype)
    held = np.char.add(held, ".0") if dtype is str else held
    order = [str(int(name)) for name in names]
    assert accuracy(P, held, classes=names) == accuracy(P, held, classes=order) == RIGHT
    assert accuracy(table(tmp_path / "a.csv", P, labels, [f"p{i}" for i in range(4)]), classes=order) == RIGHT
    np.savez(tmp_path / "a.npz", probs=P, labels=labels, classes=np.array([int(name) for name in names]))
    assert accuracy(tmp_path / "a.npz") == RIGHT


def test_labels_minus_one_and_one_with_the_fix_that_is_offered() -> None:
    event = Y == 0
    with pytest.raises(calibcli.CalibError, match="negative") as found:
        calibcli.measure(P[:, 0], np.where(event, 1, -1))
    assert "classes='-1,1'" in found.value.fix
    right = calibcli.measure(P[:, 0], event, "brier")["brier"].value
    assert calibcli.measure(P[:, 0], np.where(event, 1, -1), "brier", classes="-1,1")["brier"].value == right


@pytest.mark.parametrize("absent", ["", "nan", "NaN", "NA", "null"])
@pytest.mark.parametrize("header", [NAMES, [f"p{i}" for i in range(4)], [f"prob_{name}" for name in NAMES]])
@pytest.mark.parametrize("numbers", [False, True])
def test_a_row_without_a_label_is_said_by_its_number(
    tmp_path: Path, absent: str, header: list[str], numbers: bool
) -> None:
    labels = [str(i) if numbers else NAMES[i] for i in Y]
    labels[5] = absent
    path = table(tmp_path / "a.csv", P, labels, header)
    with pytest.raises(calibcli.CalibError) as found:
        calibcli.measure(path, classes=None if header[0] != "p0" or numbers else NAMES)
    if header != NAMES or (absent == "" and not numbers):
        assert "1 rows have no label" in found.value.problem and "row 5" in found.value.problem


@pytest.mark.parametrize("absent", ["", "NaN", "NA"])
def test_a_row_without_a_label_is_no_third_class_of_one_column(tmp_path: Path, absent: str) -> None:
    for true in ("1", "malignant"):
        for false in ("0", "benign"):
            labels = np.where(Y == 0, true, false).astype(object)
            labels[9] = absent
            path = table(tmp_path / "a.csv", P[:, :1], labels, ["p_malignant"])
            with pytest.raises(calibcli.CalibError, match="1 rows have no label.*row 9"):
                calibcli.measure(path)


def test_an_empty_label_is_not_the_other_class(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", P[:, :1], np.where(Y == 0, "malignant", ""), ["p_malignant"])
    with pytest.raises(calibcli.CalibError, match="have no label"):
        calibcli.measure(path)


def test_a_class_may_be_called_none(tmp_path: Path) -> None:
    names = ["none", "na", "mild", "severe"]
    path = table(tmp_path / "a.csv", P, [names[i] for i in Y], names)
    assert accuracy(path) == RIGHT
