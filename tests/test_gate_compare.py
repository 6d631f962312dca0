"""`calib compare`: paired differences, their coverage and multiplicity; unpaired results; refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from calibcli.cli.app import main
from calibcli.core.result import Estimate, Result
from calibcli.gate import compare
from calibcli.gate.check import rules_plot
from calibcli.scores.predictions import Predictions


def softmax(z: Any) -> Any:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def pair(n: int, seed: int) -> tuple[Any, Any, Any]:
    """Logits of two calibrated models of the same rows, the second sharper, and the labels.

    The first knows the probabilities only up to a swap of two classes, so its probabilities are their average.
    """
    rng = np.random.default_rng(seed)
    p = softmax(rng.normal(size=(n, 4)) * 2)
    y = (p.cumsum(1) < rng.random((n, 1))).sum(1)
    vague = (p + p[:, [1, 0, 2, 3]]) / 2
    return np.log(vague), np.log(p), y


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(n: int = 1500, seed: int = 0, **columns: Any) -> None:
    a, b, y = pair(n, seed)
    np.savez("a.npz", logits=a, labels=y, **columns)
    np.savez("b.npz", logits=b, labels=y, **columns)
    np.savez("c.npz", logits=b * 1.5, labels=y, **columns)


def compared(capsys: Any, *arguments: str) -> dict[str, Any]:
    assert main(["compare", *arguments, "--json", "-q"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_differences_against_their_definition(capsys: Any) -> None:
    saved()
    found = compared(capsys, "a.npz", "b.npz")
    a, b, y = pair(1500, 0)
    delta = -b[np.arange(1500), y] + a[np.arange(1500), y]
    e = next(e for e in found["estimates"] if e["name"] == "nll")
    se, t = delta.std(ddof=1) / 1500**0.5, stats.t.ppf(0.975, 1499)
    assert e["se"] == pytest.approx(se)
    most = max(np.quantile(-b.min(1), 0.95), 0) + 3  # what a row may cost more, about
    a_term = t * t / 1500 * most
    assert t * se < e["high"] - e["value"] < (a_term + (a_term**2 + 4 * (t * se) ** 2) ** 0.5) / 2
    assert t * se < e["value"] - e["low"]
    assert e["scope"] == "b - a"
    verdicts = {row[0]: row[-1] for row in found["tables"][1]["rows"]}
    assert verdicts["nll"] == "b is better"
    assert verdicts["ece"] == "not shown"
    measured = {row[0]: row[2:] for row in found["tables"][0]["rows"]}
    for e in found["estimates"]:
        if e["name"] != "temperature_gain":
            assert e["value"] == pytest.approx(measured[e["name"]][1] - measured[e["name"]][0], abs=1e-9), e["name"]


def test_three_models_and_a_figure(capsys: Any) -> None:
    saved()
    found = compared(capsys, "a.npz", "b.npz", "c.npz", "-m", "nll", "-m", "ece:bins=10", "-o", "d.svg", "-o", "d.md")
    assert [(e["name"], e["scope"]) for e in found["estimates"]] == [
        ("nll", "b - a"),
        ("ece:bins=10", "b - a"),
        ("nll", "c - a"),
        ("ece:bins=10", "c - a"),
    ]
    assert found["facts"]["comparisons"] == 4
    assert [(p["title"], p["labels"], p["group"]) for p in found["plots"]] == [
        ("Differences b - a, in nats", ["nll"], "Differences between models"),
        ("Differences b - a", ["ece:bins=10"], "Differences between models"),
        ("Differences c - a, in nats", ["nll"], "Differences between models"),
        ("Differences c - a", ["ece:bins=10"], "Differences between models"),
    ]
    assert len({p["name"] for p in found["plots"]}) == 4
    assert Path("d.svg").stat().st_size > 5000


@pytest.mark.regression
def test_differences_are_drawn_in_their_units(capsys: Any) -> None:
    """A panel for each unit has value and bounds as they are, with 0 marked, in the colour of the verdict."""
    saved()
    found = compared(capsys, "a.npz", "b.npz", "-m", "nll", "-m", "ece", "-m", "brier")
    nats, plain = found["plots"]
    verdicts = {row[0]: row[-1] for row in found["tables"][1]["rows"]}
    assert (verdicts["nll"], verdicts["ece"], verdicts["brier"]) == ("b is better", "not shown", "b is better")
    assert (nats["title"], nats["labels"]) == ("Differences b - a, in nats", ["nll"])
    assert (plain["title"], plain["labels"]) == ("Differences b - a", ["ece", "brier"])
    measured = {e["name"]: e for e in found["estimates"]}
    widths = set()
    for plot in (nats, plain):
        line, *curves = plot["curves"]
        assert (line["kind"], line["y"]) == ("hline", [0.0])
        for curve in curves:
            for i, *drawn in zip(curve["x"], curve["low"], curve["y"], curve["high"], strict=True):
                e = measured[plot["labels"][int(i)]]
                assert drawn == [e["low"], e["value"], e["high"]]
                assert plot["texts"][int(i)].startswith(f"{e['value']:.3f}"[:5])
                widths.add(round(drawn[2] - drawn[0], 6))
        assert {c["role"] for c in curves} <= {"good", "undecided"}
    assert len(widths) == 3  # no two intervals are equally wide


@pytest.mark.regression
def test_rules_are_drawn_in_their_units_with_their_limits(capsys: Any) -> None:
    """Rules share an axis only with the same metric and limit; a rule about a distance from 0 has two limits."""
    saved()
    rules = ["--max", "ece=.1", "--min", "accuracy=.3", "--max", "confidence_gap=.05", "--max", "nll=1.5"]
    main(["check", "a.npz", *rules, "--json", "-q"])
    checks = Result.from_json(capsys.readouterr().out).checks
    panels = {p.labels[0]: p for p in rules_plot(checks)}
    limits = {name: p.curves[0].y for name, p in panels.items()}
    assert limits == {
        "ece <= 0.1": [0.1],
        "accuracy >= 0.3": [0.3],
        "|confidence_gap| <= 0.05": [-0.05, 0.05],
        "nll <= 1.5": [1.5],
    }
    for check in checks:
        e, (point,) = check.estimate, panels[check.rule].curves[1:]
        assert e is not None
        assert (point.low, point.y, point.high) == ([e.low], [e.value], [e.high])
    assert panels["nll <= 1.5"].title == "nll, in nats"
    sides = {name: p.ylabel.partition(" ")[0] for name, p in panels.items()}
    assert sides == {
        "ece <= 0.1": "left",
        "accuracy >= 0.3": "right",
        "|confidence_gap| <= 0.05": "between",
        "nll <= 1.5": "left",
    }


def test_rows_pair_by_id_in_any_order(capsys: Any) -> None:
    names = np.array([f"r{i}" for i in range(1500)])
    saved(id=names)
    plain = compared(capsys, "a.npz", "b.npz")
    order = np.random.default_rng(1).permutation(1500)
    with np.load("b.npz") as data:
        np.savez("b.npz", **{key: data[key][order] for key in data})
    shuffled = compared(capsys, "a.npz", "b.npz")
    assert any("by id" in note for note in shuffled["notes"])
    for one, two in zip(plain["estimates"], shuffled["estimates"]):
        assert one["value"] == pytest.approx(two["value"], abs=1e-9)
        assert one["low"] == (None if two["low"] is None else pytest.approx(two["low"], abs=1e-6))
    with np.load("b.npz") as data:
        np.savez("b.npz", **{key: data[key][:1000] for key in data})
    part = compared(capsys, "a.npz", "b.npz")
    assert part["facts"]["n"] == 1000
    assert any("1000 in both" in note for note in part["notes"])


def test_groups_widen_the_interval(capsys: Any) -> None:
    a, b, y = pair(300, 0)
    repeat = np.repeat(np.arange(300), 5)
    for name, z in (("a", a), ("b", b)):
        np.savez(f"{name}.npz", logits=z[repeat], labels=y[repeat], patient=repeat)
    plain = compared(capsys, "a.npz", "b.npz", "-m", "nll")["estimates"][0]
    grouped = compared(capsys, "a.npz", "b.npz", "-m", "nll", "--group", "patient")["estimates"][0]
    assert grouped["value"] == plain["value"]
    assert grouped["se"] == pytest.approx(plain["se"] * 5**0.5, rel=0.01)


def test_results_are_compared_unpaired(capsys: Any) -> None:
    def result(value: float, half: float) -> str:
        e = Estimate(name="trace", value=value, low=value - half, high=value + half, level=0.95, better="lower", n=10)
        other = Estimate(name="nll", value=1.0, scope="after")
        return Result(command="curvature", estimates=[e, other]).to_json()

    Path("a.json").write_text(result(10.0, 3.0))
    Path("b.json").write_text(result(4.0, 4.0))
    found = compared(capsys, "a.json", "b.json")
    e = found["estimates"][0]
    assert (e["value"], e["low"], e["high"]) == pytest.approx((-6.0, -11.0, -1.0))
    assert any("independent" in note for note in found["notes"])
    assert found["estimates"][1]["value"] == 0
    assert found["estimates"][1]["low"] is None
    assert [row[-1] for row in found["tables"][1]["rows"]] == ["b is better", "unknown"]


def test_results_under_other_losses_are_compared_with_a_note() -> None:
    def result(*losses: str) -> Result:
        scopes = ["", *(f"loss={loss}" for loss in losses[1:])]
        estimates = [Estimate(name="lambda_max", value=5.0, low=4.0, high=7.0, level=0.95, scope=s) for s in scopes]
        return Result(command="curvature", estimates=estimates, facts={"losses": list(losses)})

    ce, focal, both = result("ce"), result("focal:gamma=2"), result("ce", "focal:gamma=2")
    for others, differ in (((ce, ce), False), ((ce, both), False), ((ce, focal), True), ((focal, both, ce), True)):
        notes = compare.results(others, [f"model {i}" for i in range(len(others))]).notes
        assert any("losses differ" in note for note in notes) == differ
    [note] = [n for n in compare.results((ce, focal), ["a", "b"]).notes if "losses" in n]
    assert "ce (a), focal:gamma=2 (b)" in note


def test_refusals(capsys: Any) -> None:
    saved()
    a, b, y = pair(1500, 0)
    np.savez("fewer.npz", logits=b[:900], labels=y[:900])
    np.savez("other.npz", logits=np.roll(b, 1, axis=0), labels=np.roll(y, 1))
    np.savez("three.npz", logits=b[:, :3], labels=np.minimum(y, 2))
    ids = np.arange(1500)
    np.savez("id.npz", logits=a, labels=y, id=ids)
    np.savez("id2.npz", logits=np.roll(b, 1, axis=0), labels=np.roll(y, 1), id=ids)
    Path("r.json").write_text(Result(command="x", estimates=[Estimate(name="m", value=1.0)]).to_json())
    Path("r2.json").write_text(Path("r.json").read_text())
    Path("s.json").write_text(Result(command="x", estimates=[Estimate(name="k", value=1.0)]).to_json())
    for arguments, code, said in (
        (["a.npz", "fewer.npz"], 4, "numbers differ"),
        (["a.npz", "other.npz"], 4, "label sequences differ"),
        (["a.npz", "three.npz"], 4, "3 classes"),
        (["id.npz", "id2.npz"], 4, "another label"),
        (["r.json", "s.json"], 4, "no number in common"),
        (["r.json", "r2.json", "-m", "m"], 2, "compared as they are"),
        (["a.npz"], 2, "one input"),
        (["a.npz", "a.npz"], 2, "same input twice"),
        (["a.npz", "r.json"], 2, "scores and results"),
        (["a.npz", "b.npz", "-m", "eec"], 2, "did you mean"),
        (["a.npz", "b.npz", "--alpha", "0.9"], 2, "to 0.25"),
        (["a.npz", "none.npz"], 4, "none.npz"),
        (["a.npz", "b.npz", "--by", "site"], 2, "--by splits them"),
        (["a.npz", "b.npz", "--multilabel"], 2, "one label per row"),
    ):
        assert main(["compare", *arguments, "-q"]) == code, arguments
        out, err = capsys.readouterr()
        assert out == ""
        assert said in err, err


@pytest.mark.slow
def test_no_false_difference_between_calibrated_models() -> None:
    """Sharpness alone is no difference in calibration, and the same model twice none at all."""
    real = {"ece": 0, "temperature_gain": 0}
    runs = 25
    for seed in range(runs):
        a, b, y = pair(400, seed)
        inputs = [Predictions.of(a, y), Predictions.of(b, y)]
        found = compare.scores(inputs, ["a", "b"], ["ece", "temperature_gain"])
        for row in found.tables[1].rows:
            real[str(row[0])] += row[2] is not None and float(row[2]) <= 0.05
    assert max(real.values()) <= 4
    a, _, y = pair(600, 0)
    same = compare.scores([Predictions.of(a, y)] * 2, ["a", "b"])
    assert {e.value for e in same.estimates if e.value is not None} == {0.0}
    assert {row[-1] for row in same.tables[1].rows} <= {"not shown", "unknown"}


def test_every_command_refuses_what_compare_refuses(capsys: Any) -> None:
    """Rows of the same ids whose labels differ are other rows."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 1200)
    z = rng.normal(size=(1200, 10)) + 2.0 * np.eye(10)[y]
    wrong = y.copy()
    wrong[:833] = (y[:833] + 1 + np.arange(833) % 9) % 10
    np.savez("old.npz", logits=z, labels=y, id=np.arange(1200))
    np.savez("new.npz", logits=z, labels=wrong, id=np.arange(1200))
    assert main(["check", "old.npz", "--max", "nll=9", "--keep-rows", "-q", "-o", "old.json"]) == 0
    capsys.readouterr()
    for base in ("old.npz", "old.json"):
        assert main(["check", "new.npz", "--baseline", base, "--margin", "nll=5", "--json"]) == 5
        [verdict] = json.loads(capsys.readouterr().out)["checks"]
        assert (verdict["outcome"], "another label" in verdict["message"]) == ("not_run", True)
        night = ["watch", "w.json", "new.npz", "--baseline", base, "--margin", "nll=5", "-q"]
        assert main(night) == 4
        assert "another label" in capsys.readouterr().err
        assert not Path("w.json").exists()
    assert main(["compare", "old.npz", "new.npz", "-q"]) == 4
    assert "833 of 1,200 rows of the same id have another label" in capsys.readouterr().err
    ood = ["ood", "old.npz", "old.npz", "--against", "new.npz", "--against", "new.npz", "-q"]
    assert main(ood) == 4
    assert "another label" in capsys.readouterr().err


def test_columns_of_every_file_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    for name in ("a", "b"):
        p = np.clip(0.6 * y + rng.uniform(0, 0.4, 200), 0.01, 0.99).round(4)
        rows = "\n".join(f"{risk},{died}" for risk, died in zip(p, y, strict=True))
        (tmp_path / f"{name}.csv").write_text(f"risk,died\n{rows}\n")
    files = [str(tmp_path / f"{name}.csv") for name in ("a", "b")]
    assert main(["compare", *files, "--scores", "risk", "--labels", "died"]) == 0
    assert "brier" in capsys.readouterr().out
