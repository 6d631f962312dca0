"""Confidence files: how sure each prediction was and whether it was right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli import metrics
from calibcli.calibrators import SCALERS
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError
from calibcli.metrics import METRICS
from calibcli.scores import histogram
from calibcli.scores.predictions import WRONG_OR_RIGHT

REFUSED = {
    "auc", "brier", "classwise_ece", "entropy", "entropy_correct", "entropy_wrong", "nll", "nll_correct", "nll_wrong",
    "temperature_gain", "net_benefit", "ppv", "sensitivity", "margin_tail",
}  # fmt: skip


def rows(n: int = 500, seed: int = 0) -> tuple[Any, Any]:
    """Confidences of any size, well below one half too, and verdicts that are rarer than they say."""
    rng = np.random.default_rng(seed)
    c = np.minimum(1.05 * rng.beta(2, 1.5, n), 0.995)
    return c, rng.uniform(size=n) < c**1.3


def text(c: Any, y: Any, heads: str = "id,confidence,correct") -> str:
    return "\n".join([heads, *(f"r{i},{a},{b}" for i, (a, b) in enumerate(zip(c, y, strict=True)))]) + "\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_values_are_those_of_a_hand_computation() -> None:
    c, y = rows()
    found = calibcli.measure(
        calibcli.from_confidence(c, y), "accuracy", "mean_confidence", "confidence_gap", "brier_top", "ece:bins=10",
        "mce", "oce", "uce", "adaece:bins=5", "high_confidence_share:tau=0.9", "spiegelhalter_z", "mmce",
    )  # fmt: skip
    bins = np.ceil(c * 10).astype(int)
    gaps = np.array([(c - y)[bins == b].sum() / len(c) for b in range(1, 11)])
    fifteen = np.ceil(c * 15).astype(int)
    held = [fifteen == b for b in range(1, 16) if (fifteen == b).any()]
    signed = np.array([(c - y)[b].sum() / len(c) for b in held])
    fifths = [(c - y)[part].sum() / len(c) for part in np.array_split(np.argsort(c), 5)]
    r = c - y
    expected = {
        "accuracy": y.mean(),
        "mean_confidence": c.mean(),
        "confidence_gap": c.mean() - y.mean(),
        "brier_top": np.mean(r**2),
        "ece:bins=10": np.abs(gaps).sum(),
        "mce": max(abs((c - y)[b].mean()) for b in held),
        "oce": np.maximum(signed, 0).sum(),
        "uce": np.maximum(-signed, 0).sum(),
        "adaece:bins=5": np.abs(fifths).sum(),
        "high_confidence_share:tau=0.9": np.mean(c >= 0.9),
        "spiegelhalter_z": -np.sum(r * (1 - 2 * c)) / np.sqrt(np.sum((1 - 2 * c) ** 2 * c * (1 - c))),
        "mmce": np.sqrt(np.sum(np.outer(r, r) * np.exp(-np.abs(c[:, None] - c) / 0.4))) / len(c),
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("name", METRICS.entries)
def test_every_metric_is_that_of_the_event_or_refused_by_name(name: str) -> None:
    """The event "the prediction is right" of two classes has the same numbers, where confidence is not folded."""
    c, y = rows()
    alone = calibcli.from_confidence(c, y)
    if name in REFUSED:
        with pytest.raises(UsageError, match=f"{name} needs the probabilities of every class"):
            calibcli.measure(alone, name)
        return
    (found,) = calibcli.measure(alone, name).estimates
    options = METRICS.entries[name].options
    if "of" in options and options["of"].default == "auto":
        (event,) = calibcli.measure(c, y.astype(int), name).estimates
        assert found.value == pytest.approx(event.value, abs=1e-12)
        assert (found.low, found.high) == (pytest.approx(event.low), pytest.approx(event.high))
    else:
        assert found.value is not None


def test_refused_metrics_are_left_out_of_all_and_of_the_default_set() -> None:
    alone = calibcli.from_confidence(*rows())
    everything = {e.name for e in calibcli.measure(alone, "all").estimates}
    assert everything == set(METRICS.entries) - REFUSED
    assert {e.name for e in calibcli.measure(alone).estimates} == {
        {"brier": "brier_top"}.get(name, name) for name in metrics.DEFAULT
    } - REFUSED


@pytest.mark.parametrize(
    "verdict", ["1 0", "1.0 0.0", "true false", "True False", "yes no", "Correct Incorrect", "C I"]
)
@pytest.mark.parametrize("heads", ["id,confidence,correct", "id,max_prob,is_correct", "doc_id,conf,acc"])
def test_files_are_known_by_their_names(folder: Path, heads: str, verdict: str) -> None:
    c, y = rows(60)
    right, wrong = verdict.split()
    Path("a.csv").write_text(text(c, np.where(y, right, wrong), heads))
    read = calibcli.read("a.csv")
    assert read.top_only
    assert read.classes == WRONG_OR_RIGHT
    assert read.labels.tolist() == y.tolist()
    assert calibcli.measure(read, "mean_confidence")["mean_confidence"].value == pytest.approx(c.mean(), abs=1e-12)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "npz", "tsv"])
def test_formats_and_options(folder: Path, suffix: str) -> None:
    c, y = rows(60)
    name = f"a.{suffix}"
    if suffix == "npz":
        np.savez(name, how_sure=c, ok=y)
    elif suffix == "jsonl":
        lines = [json.dumps({"how_sure": a, "ok": bool(b)}) for a, b in zip(c, y, strict=True)]
        Path(name).write_text("\n".join(lines))
    else:
        table = text(c, y, "row,how_sure,ok")
        Path(name).write_text(table if suffix == "csv" else table.replace(",", "\t"))
    read = calibcli.read(name, confidence="how_sure", correct="ok")
    assert read.labels.tolist() == y.tolist()
    assert np.exp(read.logits[:, 1]) == pytest.approx(c, abs=1e-15)
    with pytest.raises(InputError, match="no such array"):
        calibcli.read(name, confidence="how_sure", correct="okay")


def test_right_is_where_prediction_and_label_are_equal(folder: Path) -> None:
    Path("a.csv").write_text("confidence,y_pred,y_true\n.9,cat,cat\n.8,dog,cat\n.7,1,1.0\n")
    read = calibcli.read("a.csv")
    assert read.labels.tolist() == [1, 0, 1]
    assert "right is where 'y_pred' equals 'y_true'" in read.notes


@pytest.mark.parametrize(
    ("cells", "how", "expected"),
    [
        ("90% 55% 100%", {}, [0.9, 0.55, 1.0]),
        ("90% 55 100%", {"confidence_scale": "percent"}, [0.9, 0.55, 1.0]),
        ("90 55 100", {"confidence_scale": "100"}, [0.9, 0.55, 1.0]),
        ("9 5.5 10", {"confidence_scale": "10"}, [0.9, 0.55, 1.0]),
        ("0.9 .55 1.0000001", {}, [0.9, 0.55, 1.0]),
    ],
)
def test_scales(folder: Path, cells: str, how: Any, expected: list[float]) -> None:
    Path("a.csv").write_text(text(cells.split(), [1, 0, 1]))
    assert np.exp(calibcli.read("a.csv", **how).logits[:, 1]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("cells", "right", "how", "said"),
    [
        ("90 55 100", "1 0 1", {}, "--confidence-scale 100"),
        ("9 5 10", "1 0 1", {}, "--confidence-scale 10"),
        ("90% .5 .7", "1 0 1", {}, "percentages, the others not"),
        (".9 .5 .7", "1 0 1", {"confidence_scale": "100"}, "leave --confidence-scale out"),
        ("90 55 101", "1 0 1", {"confidence_scale": "100"}, r"row 2 \('confidence'\) is 101"),
        ("-.1 .5 .7", "1 0 1", {}, r"row 0 \('confidence'\) is -0.1"),
        ("sure .5 .7", "1 0 1", {}, "'sure', not a number"),
        (".9 .5 .7", "1 0 .5", {}, "row 2 of 'correct'.* neither right nor wrong"),
        (".9 .5 .7", "1 0 maybe", {}, "neither right nor wrong"),
        ("nan nan null", "1 0 1", {}, "no row of .* holds a confidence"),
        (".9 .5 .7", "1 0 1", {"event": "x"}, "--event is for scores of classes"),
        (".9 .5 .7", "1 0 1", {"kind": "logits"}, "--kind is for scores of classes"),
        (".9 .5 .7", "1 0 1", {"multilabel": True}, "--multilabel"),
    ],
)
def test_refusals(folder: Path, cells: str, right: str, how: Any, said: str) -> None:
    Path("a.csv").write_text(text(cells.split(), right.split()))
    with pytest.raises((InputError, UsageError), match=said):
        calibcli.read("a.csv", **how)


def test_rows_without_a_confidence_are_counted_and_told(folder: Path) -> None:
    Path("a.csv").write_text(text([".9", "", "null", ".6"], [1, 0, 1, 0]).replace("id,", "site,"))
    read = calibcli.read("a.csv", by=["site"])
    assert read.labels.tolist() == [1, 0]
    assert read.slices["site"].tolist() == ["r0", "r3"]
    assert read.record.left_out == {"answers": 2}
    assert any("2 of 4 rows hold no confidence and are left out: 50.0% of them" in note for note in read.notes)


def test_rows_that_nobody_checked_are_mended(folder: Path) -> None:
    """A few rows have verdicts, from which the map is; all of them get better confidences."""
    c, y = rows(200)
    verdict = np.where(np.arange(200) < 100, np.where(y, "yes", "no"), "")
    Path("a.csv").write_text(text(c, verdict))
    fit = calibcli.fit_scaler("a.csv", None, "platt", missing="drop")
    found = calibcli.apply(fit, "a.csv", confidence="confidence", correct="correct", save="b.csv")
    assert len(Path("b.csv").read_text().split()) == 201
    assert any("100 of 200 rows have no verdict" in note for note in found.notes)


@pytest.mark.parametrize("method", [entry.name for entry in SCALERS])
def test_scalers_of_a_confidence(folder: Path, method: str) -> None:
    c, y = rows()
    alone = calibcli.from_confidence(c, y)
    if method not in ("platt", "beta", "isotonic", "histogram"):
        with pytest.raises(InputError, match=f"{method} needs the scores of every class"):
            calibcli.fit_scaler(alone, None, method)
        return
    fit = calibcli.fit_scaler(alone, None, method)
    two = calibcli.fit_scaler(c, y.astype(int), method)
    assert fit.predict_proba(c) == pytest.approx(two.predict_proba(c), abs=1e-12)
    Path("a.csv").write_text(text(c, y))
    for name in ("b.csv", "b.npz"):
        calibcli.apply(fit, "a.csv", save=name, dtype="float64")
        again = calibcli.read(name)
        assert again.top_only
        assert np.exp(again.logits[:, 1]) == pytest.approx(two.predict_proba(c)[:, 1], abs=1e-9)
    with pytest.raises(InputError, match="scores of every class"):
        calibcli.apply(fit, np.column_stack([1 - c, c]), save="c.npz")
    with pytest.raises(InputError, match="confidences"):
        calibcli.apply(two, "a.csv", save="c.npz")


def test_every_command_takes_a_confidence_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    c, y = rows(2000)
    other, right = np.minimum(1, c * 1.1), rows(2000, 1)[1]
    Path("a.csv").write_text(text(c, y))
    Path("b.csv").write_text(text(other, right))
    Path("new.csv").write_text("id,confidence\nx,.5\ny,.7\n")
    assert main(["metrics", "a.csv", "--by", "correct", "-q"]) == 0
    assert main(["check", "a.csv", "--max", "ece=.3", "--min", "accuracy=.3", "-q"]) == 0
    assert main(["check", "a.csv", "--max", "nll=.3"]) == 2
    assert "nll needs the probabilities of every class" in capsys.readouterr().err
    assert main(["compare", "a.csv", "b.csv", "-q"]) == 0
    assert main(["scale", "a.csv", "--method", "all", "--save", "s.safetensors", "-q"]) == 0
    assert main(["apply", "s.safetensors", "new.csv", "--confidence", "confidence", "--save", "n.csv", "-q"]) == 0
    assert Path("n.csv").read_text().startswith("confidence,")
    assert main(["inspect", "a.csv"]) == 0
    assert "the prediction is right" in capsys.readouterr().out
    assert main(["plan", "--from", "a.csv", "--max", "ece=.02", "-q"]) == 0
    assert main(["metrics", "a.csv", "--per-class"]) == 2
    capsys.readouterr()
    assert main(["scale", "a.csv", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["method"] == "platt"
    assert main(["scale", "a.csv", "--method", "temperature"]) == 4
    assert "choose among beta, histogram, isotonic, platt" in capsys.readouterr().err


def test_models_pair_by_id_though_they_are_right_on_different_rows(folder: Path) -> None:
    c, y = rows(300)
    right = rows(300, 1)[1]
    ids = np.arange(300)
    a, b = calibcli.from_confidence(c, y, ids=ids), calibcli.from_confidence(c, right, ids=ids)
    found = calibcli.compare(a, b, metrics=["accuracy"])
    assert found.estimates[0].value == pytest.approx(right.mean() - y.mean(), abs=1e-12)
    with pytest.raises(InputError, match="have no ids"):
        calibcli.compare(calibcli.from_confidence(c, y), calibcli.from_confidence(c, right))


def test_many_rows_are_condensed_to_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    c, y = rows(3000)
    specs = ("accuracy", "mean_confidence", "confidence_gap", "ece", "brier_top", "oce")
    whole = calibcli.measure(calibcli.from_confidence(c, y), *specs)
    monkeypatch.setattr("calibcli.scores.columns.MANY", 100)
    cells = calibcli.measure(calibcli.from_confidence(c, y), *specs)
    assert histogram.CELLS == 25_200
    for spec in specs:
        assert cells[spec].value == pytest.approx(whole[spec].value, abs=1e-9), spec
        assert cells[spec].low == pytest.approx(whole[spec].low, abs=1e-3), spec
