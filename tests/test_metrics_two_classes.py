"""Two classes: one event everywhere, named from the file, never by the alphabet."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import populations
import pytest

from calibcli.cli.app import main
from calibcli.core.errors import Exit
from calibcli.metrics.registry import METRICS
from calibcli.metrics.report import ReportOptions, report
from calibcli.scores.from_arrays import of_arrays
from calibcli.scores.predictions import Predictions
from calibcli.scores.recorded_outputs import read

N = 400


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def screening(seed: int = 0, n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Overconfident P(malignant), rounded as a file has it, whether it is, and the site."""
    rng = np.random.default_rng(seed)
    z = rng.normal(-1, 1.5, n)
    y = (rng.random(n) < 1 / (1 + np.exp(-z))).astype(int)
    return np.round(1 / (1 + np.exp(-1.7 * z)), 6), y, rng.integers(0, 2, n)


def table(path: str, p: np.ndarray, y: Any, site: np.ndarray, column: str = "p_malignant") -> str:
    with Path(path).open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "y_true", column, "site"])
        rows.writerows([f"r{i}", label, f"{q:.6f}", "AB"[s]] for i, (label, q, s) in enumerate(zip(y, p, site)))
    return path


def names(y: np.ndarray) -> list[str]:
    return [("benign", "malignant")[label] for label in y]


def calib(capsys: Any, *argv: str) -> tuple[int, dict[str, Any], str]:
    code = main([*argv, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.strip() else {}, err


def hand_ece(p: np.ndarray, y: np.ndarray, bins: int = 15) -> float:
    total = 0.0
    for b in range(bins):
        rows = (p > b / bins) & (p <= (b + 1) / bins) | ((p == 0) if b == 0 else False)
        total += abs(float((p[rows] - y[rows]).sum())) / len(p)
    return total


def values(result: dict[str, Any], scope: str = "") -> dict[str, Any]:
    return {e["name"]: e["value"] for e in result["estimates"] if e["scope"] == scope}


@pytest.mark.regression("1.4")
@pytest.mark.regression("1.5")
def test_tour_of_two_classes(capsys: Any) -> None:
    """One CSV through metrics, scale, check and compare: the event is named, no option is needed."""
    from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

    p, y, site = screening()
    table("a.csv", p, names(y), site)
    table("b.csv", np.round(p**1.1, 6), names(y), site)
    wanted = {
        "ece": pytest.approx(hand_ece(p, y), rel=1e-9),
        "brier": pytest.approx(brier_score_loss(y, p), rel=1e-9),
        "nll": pytest.approx(log_loss(y, p), rel=1e-9),
        "accuracy": pytest.approx(accuracy_score(y, p > 0.5)),
        "confidence_gap": pytest.approx(float((p - y).mean()), rel=1e-9),
    }
    code, result, _ = calib(capsys, "metrics", "a.csv")
    assert code == 0
    assert result["facts"]["event"] == "malignant"
    assert {name: values(result)[name] for name in wanted} == wanted
    assert result["plots"][0]["xlabel"] == "P(malignant)"
    [murphy] = [t for t in result["tables"] if t["name"] == "murphy"]
    assert "P(malignant)" in murphy["title"]
    assert murphy["rows"][0][murphy["columns"].index("brier")] == wanted["brier"]

    code, result, _ = calib(capsys, "scale", "a.csv", "--save", "t.safetensors")
    assert (code, result["facts"]["event"]) == (0, "malignant")
    assert {name: values(result, "before")[name] for name in wanted} == wanted
    assert values(result, "after")["ece"] < hand_ece(p, y)

    code, result, _ = calib(capsys, "check", "a.csv", "--max", "ece=0.5", "--by", "site", "--min-n", "50")
    assert (code, result["facts"]["event"]) == (0, "malignant")
    for check in result["checks"]:
        rows = site == "AB".index(check["scope"][-1]) if check["scope"] else slice(None)
        assert check["estimate"]["value"] == pytest.approx(hand_ece(p[rows], y[rows]), rel=1e-9)

    code, result, _ = calib(capsys, "compare", "a.csv", "b.csv")
    assert (code, result["facts"]["event"]) == (0, "malignant")
    [models] = [t for t in result["tables"] if t["name"] == "models"]
    cells = {row[0]: row[2:] for row in models["rows"]}
    assert cells["ece"] == [wanted["ece"], pytest.approx(hand_ece(np.round(p**1.1, 6), y), rel=1e-9)]
    assert cells["brier"] == [wanted["brier"], pytest.approx(brier_score_loss(y, np.round(p**1.1, 6)), rel=1e-9)]

    code, result, _ = calib(capsys, "plan", "--max", "ece=0.5", "--from", "a.csv")
    assert (code, result["facts"]["event"]) == (0, "malignant")
    code, _, _ = calib(capsys, "apply", "t.safetensors", "a.csv", "--save", "c.npz")
    assert code == 0
    assert calib(capsys, "metrics", "c.npz")[1]["facts"]["event"] == "malignant"


@pytest.mark.regression("1.4")
@pytest.mark.parametrize(
    ("column", "labels", "options", "event"),
    [
        ("p_malignant", "names", [], "malignant"),
        ("prob_malignant", "names", [], "malignant"),
        ("P_Malignant", "names", [], "malignant"),
        ("p_benign", "names", [], "benign"),  # what the column says, whichever comes first in the alphabet
        ("prob", "names", ["--event", "malignant"], "malignant"),
        ("prob", "names", ["--event", "benign"], "benign"),
        ("prob", "names", ["--classes", "benign,malignant"], "malignant"),
        ("prob", "names", ["--classes", "malignant,benign"], "benign"),
        ("prob", "0/1", [], "y = 1"),
        ("prob_1", "0/1", [], "y = 1"),
        ("p1", "0/1", [], "y = 1"),
        ("p_malignant", "0/1", [], "malignant"),
        ("prob", "0/1", ["--event", "1"], "y = 1"),
        ("prob", "0/1", ["--event", "0"], "0"),
        ("prob_0", "0/1", ["--event", "0"], "0"),
        ("prob", "0/1", ["--classes", "no,yes"], "yes"),
        ("prob", "1/2", ["--label-base", "1"], "2"),
        ("prob", "True/False", [], "True"),
    ],
)
@pytest.mark.one_in(5)
def test_event_of_one_column(capsys: Any, column: str, labels: str, options: list[str], event: str) -> None:
    p, y, site = screening()
    reads = {"names": names(y), "0/1": y, "1/2": y + 1, "True/False": [str(bool(v)) for v in y]}
    table("a.csv", p, reads[labels], site, column)
    code, result, err = calib(capsys, "metrics", "a.csv", *options)
    assert code == 0, err
    assert result["facts"]["event"] == event
    other = event in ("benign", "0")  # the column is taken for the probability of the other label
    hit = 1 - y if other else y
    assert values(result)["ece"] == pytest.approx(hand_ece(p, hit), rel=1e-9)
    assert values(result)["brier"] == pytest.approx(float(((p - hit) ** 2).mean()), rel=1e-9)
    assert ("wrong order" in err) == other


@pytest.mark.regression("1.4")
@pytest.mark.parametrize(
    ("column", "labels", "options", "word"),
    [
        ("prob", "names", [], "--event benign or --event malignant"),
        ("prob_positive", "names", [], "does not say which"),
        ("prob", "names", ["--event", "maligant"], "did you mean 'malignant'"),
        ("prob", "0/1", ["--event", "malignant"], "the classes are 0 and 1"),
        ("prob_0", "0/1", [], "--event 0"),
        ("p_benign", "names", ["--classes", "benign,malignant"], "--classes malignant,benign"),
        ("prob", "three", [], "3 names"),
        ("prob_max", "0/1", [], "no scores"),
    ],
)
def test_event_that_nothing_names_is_asked_for(
    capsys: Any, column: str, labels: str, options: list[str], word: str
) -> None:
    p, y, site = screening()
    three = [("benign", "malignant", "unsure")[i % 3] for i in range(N)]
    table("a.csv", p, {"names": names(y), "0/1": y, "three": three}[labels], site, column)
    for command in (["metrics"], ["scale"], ["check", "--max", "ece=0.1"]):
        assert main([*command, "a.csv", *options, "-q"]) == Exit.REFUSED
        assert word in capsys.readouterr().err


@pytest.mark.regression("1.4")
def test_event_may_be_the_other_class(capsys: Any) -> None:
    """--event turns what is named: P(benign) is 1 - P(malignant); scores that nothing depends on stay as they are."""
    p, y, site = screening()
    table("a.csv", p, names(y), site)
    np.savez("two.npz", probs=np.stack([1 - p, p], axis=1), labels=y, classes=np.array(["benign", "malignant"]))
    np.savez("plain.npz", logits=np.log(np.stack([1 - p, p], axis=1)), labels=y)
    found = {
        key: calib(capsys, "metrics", *argv)[1]
        for key, argv in {
            "a": ["a.csv"],
            "b": ["a.csv", "--event", "benign"],
            "two": ["two.npz", "--event", "benign"],
            "plain": ["plain.npz", "--event", "0"],
        }.items()
    }
    assert [found[key]["facts"]["event"] for key in found] == ["malignant", "benign", "benign", "0"]
    for key in ("b", "two", "plain"):
        for name in ("accuracy", "nll", "brier"):
            assert values(found[key])[name] == pytest.approx(values(found["a"])[name], rel=1e-9)
        assert values(found[key])["confidence_gap"] == pytest.approx(-values(found["a"])["confidence_gap"], rel=1e-9)
    assert calib(capsys, "metrics", "plain.npz", "--event", "2")[0] == Exit.REFUSED
    np.savez("ten.npz", logits=np.random.default_rng(0).normal(size=(50, 10)), labels=np.arange(50) % 10)
    assert calib(capsys, "metrics", "ten.npz", "--event", "1")[0] == Exit.USAGE


@pytest.mark.regression("1.4")
def test_models_of_different_events_are_not_compared(capsys: Any) -> None:
    p, y, site = screening()
    table("a.csv", p, names(y), site)
    table("b.csv", 1 - p, names(y), site, "p_benign")
    assert calib(capsys, "compare", "a.csv", "b.csv")[0] == Exit.REFUSED
    code, result, _ = calib(capsys, "compare", "a.csv", "b.csv", "--event", "malignant", "-m", "ece", "-m", "brier")
    assert code == 0
    assert [e["value"] for e in result["estimates"]] == pytest.approx([0, 0], abs=1e-9)
    for name in ("a", "b"):
        assert calib(capsys, "metrics", f"{name}.csv", "-o", f"{name}.json")[0] == 0
    assert calib(capsys, "compare", "a.json", "b.json")[0] == Exit.REFUSED


@pytest.mark.regression("1.4")
def test_limit_that_the_folded_error_passes_does_not_pass(capsys: Any) -> None:
    """P(event) too high by .15 throughout: folded at one half the two sides cancel."""
    rng = np.random.default_rng(3)
    n = 4000
    true = np.concatenate([rng.uniform(0.02, 0.3, n // 2), rng.uniform(0.52, 0.8, n // 2)])
    y = (rng.random(n) < true).astype(int)
    p = true + 0.17
    np.savez("a.npz", probs=np.stack([1 - p, p], axis=1), labels=y)
    _, result, _ = calib(capsys, "check", "a.npz", "--max", "ece=0.12")
    assert result["checks"][0]["outcome"] == "fail"
    assert result["checks"][0]["estimate"]["value"] == pytest.approx(hand_ece(p, y), rel=1e-9)
    both = calib(capsys, "metrics", "a.npz", "-m", "ece:of=positive", "-m", "ece", "-m", "ece:of=top")[1]
    assert list(values(both)) == ["ece", "ece:of=top"]
    c, hit = np.maximum(p, 1 - p), (p > 0.5) == y
    assert values(both)["ece:of=top"] == pytest.approx(hand_ece(c, hit), rel=1e-9)
    main(["metrics", "a.npz", "-m", "ece", "-m", "ece:of=top", "-q", "-o", "r.json"])
    capsys.readouterr()
    for rule in ("ece", "ece:of=positive", "ece:bins=15"):
        assert calib(capsys, "check", "r.json", "--max", f"{rule}=0.12")[1]["checks"][0]["outcome"] == "fail"


@pytest.mark.regression("1.4")
@pytest.mark.parametrize(
    "name",
    [e.name for e in METRICS if "of" in e.options and e.options["of"].default == "auto" and e.name != "calibration_p"],
)
def test_every_metric_of_two_classes_is_of_the_event(name: str) -> None:
    """As of (N, 2) so of (N,), and not as of the predicted class."""
    p, y, _ = screening(1)
    p = np.clip(p, 1e-4, 1 - 1e-4)
    two, one = (of_arrays(np.stack([1 - p, p], axis=1), y), of_arrays(p, y))
    found = [populations.values(q, [name])[name] for q in (two, one)]
    assert found[0] == pytest.approx(found[1], rel=1e-9)
    assert populations.values(one, [f"{name}:of=positive"])[f"{name}:of=positive"] == found[1]
    if name != "spiegelhalter_z":  # which is that of the Brier score, the same for both
        assert populations.values(one, [f"{name}:of=top"])[f"{name}:of=top"] != pytest.approx(found[0], rel=1e-3)


@pytest.mark.regression("1.5")
@pytest.mark.parametrize("k", [2, 10])
def test_one_brier_score_in_one_output(k: int) -> None:
    rng = np.random.default_rng(k)
    z = rng.normal(size=(500, k)) * 2
    y = rng.integers(0, k, 500)
    for weights in (None, rng.random(500)):
        found = report(Predictions.of(z, y, weights=weights), ReportOptions(specs=["brier", "brier_top"]))
        [parts] = [t for t in found.tables if t.name == "murphy"]
        named = dict(zip(parts.columns, parts.rows[0]))
        of = "brier" if k == 2 else "brier_top"
        assert named[of] == pytest.approx(found.get(of).value, rel=1e-12)
        assert ("brier" in named) == (k == 2)
        low, value, high = found.get("brier").low, found.get("brier").value, found.get("brier").high
        assert low is not None
        assert value is not None
        assert high is not None
        assert low < value < high


def test_condensed_columns_know_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    p, y, _ = screening(2, 3000)
    found = of_arrays(p, y)
    wanted = populations.values(found, ["ece", "brier", "confidence_gap", "ece:of=top"])
    monkeypatch.setattr("calibcli.scores.columns.MANY", 1000)
    got = populations.values(found, ["ece", "brier", "confidence_gap", "ece:of=top"])
    for name in wanted:
        assert got[name] == pytest.approx(wanted[name], abs=1e-4)


@pytest.mark.regression("1.4")
def test_labels_of_one_name_alone(capsys: Any) -> None:
    p, _, site = screening()
    table("a.csv", p, ["malignant"] * N, site)
    assert read("a.csv").event == "malignant"
    table("b.csv", p, ["benign"] * N, site, "prob")
    assert read("b.csv", event="malignant").event == "malignant"
    assert populations.values(read("b.csv", event="malignant"), ["confidence_gap"])["confidence_gap"] == pytest.approx(
        float(p.mean()), rel=1e-6
    )
    assert main(["metrics", "b.csv", "-q"]) == Exit.REFUSED
    assert "--event benign" in capsys.readouterr().err


@pytest.mark.regression("1.4")
def test_calibrators_know_their_event(capsys: Any) -> None:
    """A calibrator goes with files of its event, however the other class is called there, and with no others."""
    p, y, site = screening()
    table("fit.csv", p, names(y), site)
    table("numbers.csv", p, y, site)
    table("benign.csv", 1 - p, names(y), site, "p_benign")
    table("anonymous.csv", p, names(y), site, "prob")
    Path("new.csv").write_text("id,p_malignant\n" + "".join(f"r{i},{q:.6f}\n" for i, q in enumerate(p)))
    assert main(["scale", "fit.csv", "--save", "t.safetensors", "-q"]) == 0
    for path in ("fit.csv", "numbers.csv", "new.csv", "anonymous.csv"):
        assert main(["apply", "t.safetensors", path, "--save", f"{path}.npz", "-q"]) == 0, path
        with np.load(f"{path}.npz") as written, np.load("fit.csv.npz") as first:
            np.testing.assert_array_equal(written["probabilities"], first["probabilities"])
    capsys.readouterr()
    assert main(["apply", "t.safetensors", "benign.csv", "--save", "out.npz", "-q"]) == Exit.REFUSED
    assert main(["apply", "t.safetensors", "benign.csv", "--event", "malignant", "--save", "out.npz", "-q"]) == 0
    with np.load("out.npz") as written, np.load("fit.csv.npz") as first:
        np.testing.assert_allclose(written["probabilities"], first["probabilities"], atol=1e-6)
    capsys.readouterr()
    assert calib(capsys, "inspect", "fit.csv")[1]["facts"]["event"] == "malignant"
