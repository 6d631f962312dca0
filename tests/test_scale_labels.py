"""`calib scale --multilabel`: a map for each label, one of all for those with few rows, and what is done with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.calibrators.per_label import fit_labels
from calibcli.calibrators.report import RankingOptions
from calibcli.cli.app import main
from calibcli.scores.predictions import Predictions

NAMES = ["cat", "dog/\nowl", "rare"]


def scores(n: int, rate: float, seed: int = 0, labels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """(n, L) log-odds twice as sure as they should be; the last label is as rare as `rate`."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, labels)) * 1.5
    z[:, -1] += np.log(rate / (1 - rate))
    return 2 * z, (rng.uniform(size=z.shape) < 1 / (1 + np.exp(-z))).astype(int)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    z, y = scores(600, 0.003)
    assert 0 < y[:, 2].sum() < 20 < y[:, 0].sum()
    np.savez("all.npz", logits=z, labels=y, classes=NAMES)
    np.savez("bare.npz", logits=z)
    return tmp_path


def result(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json", "-q"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_labels_are_fitted_saved_applied_and_exported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = result(capsys, "scale", "all.npz", "--multilabel", "--method", "platt", "--save", "maps")
    table = next(t for t in fit["tables"] if t["name"] == "maps")
    assert [row[:4] for row in table["rows"]][2] == [
        "rare",
        600,
        int(np.load("all.npz")["labels"][:, 2].sum()),
        "all labels",
    ]
    assert [row[3] for row in table["rows"]] == ["its own", "its own", "all labels"]
    assert all(row[5] < row[4] for row in table["rows"][:2])
    assert "1 of 3 labels have fewer than 20 rows" in fit["notes"][-1]
    assert fit["facts"]["headline"].startswith(
        "platt on 3 labels, 1 of them with a shared map: mean NLL over labels changed by -"
    )
    files = sorted(p.name for p in Path("maps").iterdir())
    assert files == ["000-cat.safetensors", "001-dog_owl.safetensors", "002-rare.safetensors"]
    for name in ("all.npz", "bare.npz"):
        result(capsys, "apply", "maps", name, "--multilabel", "--save", f"out-{name}")
    with np.load("out-all.npz") as out, np.load("out-bare.npz") as bare, np.load("all.npz") as data:
        p = out["probabilities"]
        assert np.array_equal(out["labels"], data["labels"])
        assert np.array_equal(p, bare["probabilities"])
        assert "labels" not in bare
        for i, file in enumerate(files):
            one = calibcli.load_scaler(f"maps/{file}")
            np.testing.assert_allclose(p[:, i], one.predict_proba(data["logits"][:, i])[:, 1], rtol=1e-6)
        own = calibcli.fit_scaler(data["logits"][:, 0], data["labels"][:, 0], "platt", kind="logits")
        np.testing.assert_allclose(p[:, 0], own.predict_proba(data["logits"][:, 0])[:, 1], rtol=1e-6)
        np.save("cat.npy", data["logits"][:, 0])
        calibcli.export("maps/000-cat.safetensors", "json", save="cat.json", data=data["logits"][:, 0], kind="logits")
    assert len(result(capsys, "metrics", "out-all.npz", "--multilabel", "-m", "ece")["tables"][0]["rows"]) == 4


def test_a_shared_map_is_cross_fitted_by_whole_rows() -> None:
    """Rows of the pool that are one row of the file share a fold, and each is mapped without itself."""
    z, y = scores(300, 0.01)
    rows = {n: Predictions.of(np.column_stack([0 * z[:, i], z[:, i]]), y[:, i]) for i, n in enumerate(NAMES)}
    made = fit_labels(rows, RankingOptions(methods=("platt",), folds=3))
    assert [one.shared for one in made.values()] == [False, False, True]
    assert not np.allclose(made["rare"].after.logits, made["rare"].scaler.map(rows["rare"].logits), atol=1e-4)
    assert made["rare"].after.n == 300


def test_one_map_for_labels_with_few_rows_is_better_than_one_each() -> None:
    """By the NLL of many new rows, on average over files; the shared map costs nothing here, as labels are alike."""
    gain = []
    for seed in range(8):
        z, y = scores(200, 0.03, seed, labels=2)
        new, truth = scores(4000, 0.03, seed + 100, labels=2)
        rows = {n: Predictions.of(np.column_stack([0 * z[:, i], z[:, i]]), y[:, i]) for i, n in enumerate("ab")}
        made = fit_labels(rows, RankingOptions(methods=("platt",), folds=2))
        assert made["b"].shared
        alone = calibcli.fit_scaler(rows["b"], spec="platt").scaler
        column = np.column_stack([0 * new[:, 1], new[:, 1]])
        nll = [-s.map(column)[np.arange(4000), truth[:, 1]].mean() for s in (made["b"].scaler, alone)]
        gain.append(nll[1] - nll[0])
    assert np.mean(gain) > 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["scale", "all.npz", "--multilabel", "--method", "all"], 2, "one method to every label"),
        (["scale", "all.npz", "--multilabel", "--save", "x.safetensors"], 2, "a new or empty folder"),
        (["scale", "all.npz", "--multilabel", "--save", "full"], 2, "a new or empty folder"),
        (["apply", "full", "all.npz", "--multilabel", "--save", "o.npz"], 4, "not a folder of calibrators"),
        (["apply", "maps", "two.npz", "--multilabel", "--save", "o.npz"], 4, "the calibrators are of cat"),
        (["apply", "maps", "all.npz", "--save", "o.npz"], 4, "is a folder"),
        (["export", "maps", "--to", "json", "--data", "all.npz", "-o", "c.json"], 2, "of one label, such as maps/000-"),
    ],
)
def test_refusals(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "a.txt").write_text("")
    if "maps" in arguments:
        assert main(["scale", "all.npz", "--multilabel", "--save", "maps", "-q"]) == 0
    with np.load("all.npz") as data:
        np.savez("two.npz", logits=data["logits"][:, :2], labels=data["labels"][:, :2], classes=NAMES[:2])
    capsys.readouterr()
    assert main(arguments) == code
    assert message in capsys.readouterr().err


def test_names_of_two_labels_are_not_those_of_yes_and_no(folder: Path) -> None:
    from calibcli.scores import from_arrays

    with np.load("all.npz") as data:
        np.savez("two.npz", logits=data["logits"][:, :2], labels=data["labels"][:, :2], classes=["cat", "dog"])
    found = from_arrays.read("two.npz")
    assert {name: rows.classes for name, rows in found.items()} == {"cat": None, "dog": None}
