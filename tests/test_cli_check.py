"""`calib check` from end to end: inputs, rules, slices, baselines, results, configuration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibcli.cli.app import main
from calibcli.core.result import Estimate, Result


def softmax(z: Any) -> Any:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)


def model(n: int = 2000, factor: float = 1.0, seed: int = 0, name: str = "t.npz", **columns: Any) -> str:
    """Logits of 4 classes, calibrated when factor is 1, saved with further columns; its name."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 4)) * 2
    y = (softmax(z).cumsum(1) < rng.random((n, 1))).sum(1)
    np.savez(name, logits=z * factor, labels=y, **columns)
    return name


def check(capsys: Any, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of `calib check`."""
    code = main(["check", *arguments, "--json", "-q"])
    out, err = capsys.readouterr()
    assert not err, err
    return code, json.loads(out)


def refused(capsys: Any, *arguments: str) -> tuple[int, str]:
    """Exit code and error of `calib check`; stdout is empty."""
    code = main(["check", *arguments, "-q"])
    out, err = capsys.readouterr()
    assert out == ""
    return code, err


def outcomes(result: dict[str, Any]) -> dict[str, str]:
    return {c["scope"] or c["rule"]: c["outcome"] for c in result["checks"]}


@pytest.mark.parametrize(
    ("n", "m", "value", "lower", "upper", "floor"),
    [
        (2000, 1.0, 0.00611, 0.0, 0.02188, 0.01994),
        (2000, 0.9, 0.07650, 0.0430, 0.09405, 0.01994),
        (20000, 0.9, 0.07490, 0.0643, 0.08028, 0.00630),
    ],
)
def test_vector(n: int, m: float, value: float, lower: float, upper: float, floor: float, capsys: Any) -> None:
    i = np.arange(n)
    c = 0.5 + 0.5 * (i + 0.5) / n
    y = ((7919 * i) % n + 0.5) / n < m * c
    np.savez("v.npz", probs=np.stack([1 - c, c], 1), labels=y.astype(int))
    _, result = check(capsys, "v.npz", "--max", "ece=0.05", "--bounds", "score")
    e = result["checks"][0]["estimate"]
    assert [round(e[key], 5) for key in ("value", "high", "null")] == [value, upper, floor]
    assert e["low"] == pytest.approx(lower, abs=2e-4)
    assert (e["level"], e["sided"], e["n"]) == (0.9, "each", n)


def test_verdicts_and_rows_that_decide(capsys: Any) -> None:
    code, result = check(capsys, model(), "--max", "ece=0.05", "--max", "ece=0.015", "--min", "accuracy=0.9")
    assert code == 1
    assert outcomes(result) == {"ece <= 0.05": "pass", "ece <= 0.015": "inconclusive", "accuracy >= 0.9": "fail"}
    needed = result["checks"][1]["n_needed"]
    assert 3000 < needed < 30000
    model(needed * 2, seed=5, name="more.npz")
    assert check(capsys, "more.npz", "--max", "ece=0.015")[0] == 0


def test_every_metric_can_be_gated(capsys: Any) -> None:
    """Each metric of the registry gets a verdict; NOT RUN only where it has no valid bound, with the reason."""
    from calibcli.gate.judging import possible
    from calibcli.metrics import METRICS

    model(600)
    rng = np.random.default_rng(3)
    for entry in METRICS:
        values, higher = possible(entry.name, 4), entry.traits.better == "higher"
        side, limit = ("--min", max(values.low, -1e9) + 1e-3) if higher else ("--max", 0.999 * min(values.high, 1e9))
        if entry.traits.two_classes:
            np.savez("two.npz", logits=rng.normal(size=(600, 2)), labels=rng.integers(0, 2, 600))
        _, result = check(capsys, "two.npz" if entry.traits.two_classes else "t.npz", side, f"{entry.name}={limit}")
        [verdict] = result["checks"]
        assert verdict["outcome"] in ("pass", "not_run"), entry.name
        if verdict["outcome"] == "not_run":
            assert verdict["message"], entry.name


def test_slices(capsys: Any) -> None:
    rng = np.random.default_rng(1)
    site = np.where(np.arange(3000) < 1400, "A", np.where(np.arange(3000) < 2900, "B", "tiny"))
    model(3000, 2.2, site=site, sex=rng.choice(["f", "m"], 3000))
    Path("calib.toml").write_text(
        '[data]\nslices = ["sex"]\n[[gate]]\nmetric = "ece"\nby = "site"\nlimit = 0.05\nvalues = ["A", "gone"]\n'
        '[[gate]]\nmetric = "ece"\nby = "none"\nlimit = 0.99\n'
    )
    code, result = check(capsys, "t.npz")
    assert code == 1
    assert outcomes(result) == {
        "site=gone": "not_run",
        "site=A": "fail",
        "site=B": "fail",
        "site=tiny": "not_run",
        "ece <= 0.99": "not_run",
    }
    messages = [c["message"] for c in result["checks"]]
    assert any("100 rows, fewer than min_n = 200" in m for m in messages)
    assert any("no column 'none'" in m for m in messages)
    assert {c["line"] for c in result["checks"]} == {3, 8}
    [table] = result["tables"]
    assert table["name"] == "by_sex"
    assert main(["check", "t.npz", "--max", "ece=0.06", "--by", "site", "-q"]) == 1
    assert "95 % for PASS, 97.5 % for FAIL" in capsys.readouterr().out  # A and B share α
    code, result = check(capsys, "t.npz", "--max", "ece=0.05", "--by", "site", "--min-n", "50")
    assert "site=tiny" in outcomes(result)
    assert outcomes(result)["site=tiny"] != "not_run"
    assert outcomes(result)["ece <= 0.05"] == "fail"


def test_slice_fails_at_a_shared_level(capsys: Any) -> None:
    """A slice that would FAIL on its own needs more to FAIL among forty; PASS needs no correction."""
    model(8000, 4.0, site=np.arange(8000) % 40)
    _, together = check(capsys, "t.npz", "--max", "ece=0.001", "--by", "site", "--min-n", "100")
    low = next(c["estimate"] for c in together["checks"] if c["scope"] == "site=0")
    with np.load("t.npz") as data:
        rows = data["site"] == 0
        np.savez("one.npz", logits=data["logits"][rows], labels=data["labels"][rows])
    _, alone = check(capsys, "one.npz", "--max", "ece=0.001", "--min-n", "100")
    single = alone["checks"][0]["estimate"]
    assert low["high"] == pytest.approx(single["high"], rel=1e-12)
    assert low["low"] < single["low"] - 0.01


def test_by_predicted_class(capsys: Any) -> None:
    _, result = check(capsys, model(), "--max", "ece=0.2", "--min-n", "50", "--config", write_by_class())
    assert [c["scope"] for c in result["checks"]] == [""]
    _, result = check(capsys, "t.npz", "--config", write_by_class())
    assert {c["scope"] for c in result["checks"]} == {f"class={k}" for k in range(4)}


def write_by_class() -> str:
    Path("by.toml").write_text('[[gate]]\nmetric = "ece"\nby = "class"\nlimit = 0.2\n')
    return "by.toml"


def test_groups_cost_rows(capsys: Any) -> None:
    n = 2000
    rng = np.random.default_rng(2)
    z = np.repeat(rng.normal(size=(n // 10, 4)) * 2, 10, axis=0)
    y = np.repeat((softmax(z[::10]).cumsum(1) < rng.random((n // 10, 1))).sum(1), 10)
    z += 0.01 * rng.normal(size=z.shape)  # ten images of a patient, no copies of one
    np.savez("t.npz", logits=z, labels=y, patient=np.repeat(np.arange(n // 10), 10))
    plain = check(capsys, "t.npz", "--max", "ece=0.5")[1]["checks"][0]["estimate"]
    grouped = check(capsys, "t.npz", "--max", "ece=0.5", "--group", "patient")[1]["checks"][0]["estimate"]
    assert grouped["value"] == plain["value"]
    assert grouped["high"] - grouped["value"] > 2 * (plain["high"] - plain["value"])
    assert grouped["detail"]["groups"] == n // 10
    rng = np.random.default_rng(3)
    model(w=rng.pareto(3, 2000) + 0.1, name="w.npz")
    weighted = check(capsys, "w.npz", "--max", "ece=0.5", "--weights", "w")[1]
    assert 200 < weighted["facts"]["n_eff"] < 1900
    assert weighted["checks"][0]["estimate"]["detail"]["n_eff"] == weighted["facts"]["n_eff"]


# --- results of other commands ------------------------------------------------------------------------------------


def stored(name: str = "r.json") -> str:
    def e(metric: str, value: float, **fields: Any) -> Estimate:
        given = {"low": value * 0.9, "high": value * 1.1, "level": 0.95, "n": 100, **fields}
        return Estimate(name=metric, value=value, **given)

    result = Result(
        command="curvature",
        estimates=[
            e("trace:probes=64", 50.0),
            e("lambda_max", 9.0, better="lower"),
            e("temperature", 1.5),
            e("ece", 0.09, scope="before", better="lower", n=5000),
            e("ece", 0.02, scope="after", better="lower", n=5000),
            e("trace_ggn", 3.0, scope="layer=conv1"),
            e("trace_ggn", 9.0, scope="layer=conv2"),
            Estimate(name="grad_norm", value=1.0),
        ],
    )
    Path(name).write_text(result.to_json())
    return name


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--max", "trace=55.1"], 0),
        (["--max", "trace=50"], 3),
        (["--max", "trace=40"], 1),
        (["--max", "trace:probes=64=55.1"], 0),
        (["--max", "lambda_max=9.95"], 0),
        (["--max", "temperature=1.66", "--min", "temperature=1.3"], 0),
        (["--min", "temperature=1.7"], 1),
        (["--max", "ece=0.03", "--scope", "after"], 0),
        (["--max", "ece=0.03", "--scope", "before"], 1),
        (["--max", "ece=0.03", "--max", "temperature=1.66", "--scope", "after"], 0),
        (["--max", "ece=0.03", "--scope", "never"], 5),
        (["--max", "brier=1"], 5),
        (["--max", "grad_norm=2"], 5),
        (["--max", "ece=0.03"], 2),
        (["--max", "tracee=1"], 2),
        (["--max", "trace=55.1", "--keep-rows"], 2),
        (["--baseline", "other.json"], 5),
    ],
)
def test_gates_on_results(arguments: list[str], code: int, capsys: Any) -> None:
    assert main(["check", stored(), *arguments, "-q"]) == code
    capsys.readouterr()


def test_results_by_layer_and_without_direction(capsys: Any) -> None:
    Path("calib.toml").write_text(
        '[[gate]]\nmetric = "trace_ggn"\nby = "layer"\nlimit = 5\n[[gate]]\nmetric = "lambda_max"\nlimit = 20\n'
    )
    code, result = check(capsys, stored())
    assert (code, outcomes(result)) == (
        1,
        {"layer=conv1": "pass", "layer=conv2": "fail", "lambda_max <= 20": "pass"},
    )
    Path("calib.toml").write_text('[[gate]]\nmetric = "temperature"\nlimit = 5\n')
    code, error = refused(capsys, stored())
    assert code == 2
    assert "calib.toml:1: neither end of temperature is better" in error
    assert "write max or min" in error


def test_a_result_of_check_can_be_checked(capsys: Any) -> None:
    assert main(["check", model(), "--max", "ece=0.2", "-q", "-o", "r.json"]) == 0
    assert main(["check", "r.json", "--max", "ece=0.05", "-q"]) == 0
    assert main(["check", "r.json", "--max", "ece=0.001", "-q"]) == 3
    capsys.readouterr()


# --- baselines ----------------------------------------------------------------------------------------------------


def keep(capsys: Any, name: str, out: str) -> None:
    assert main(["check", name, "--max", "ece=0.99", "--keep-rows", "-q", "-o", out]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("ids", [True, False])
def test_baseline(ids: bool, capsys: Any) -> None:
    columns = {"ids": np.array([f"r{i}" for i in range(2000)])} if ids else {}
    model(**columns)
    model(factor=1.6, name="off.npz", **columns)
    keep(capsys, "t.npz", "base.json")
    code, result = check(capsys, "off.npz", "--baseline", "base.json")
    [verdict] = result["checks"]
    assert (code, verdict["outcome"], verdict["rule"]) == (1, "fail", "temperature_gain - baseline <= 0")
    assert ("by id" if ids else "by position") in verdict["message"]
    assert verdict["estimate"]["low"] > 0
    assert check(capsys, "off.npz", "--baseline", "t.npz")[1]["checks"][0]["estimate"]["value"] == pytest.approx(
        verdict["estimate"]["value"], rel=1e-5
    )
    keep(capsys, "off.npz", "worse.json")
    assert check(capsys, "t.npz", "--baseline", "worse.json")[0] == 0
    margins = ["--margin", "nll=0", "--margin", "brier=0", "--margin", "accuracy=0", "--margin", "temperature_gain=0"]
    code, result = check(capsys, "t.npz", "--baseline", "base.json", *margins)
    assert code == 3  # the same predictions, of which rows that were not drawn may still differ
    assert {c["estimate"]["value"] for c in result["checks"]} == {0.0}
    assert all("the same predictions" in c["message"] and c["estimate"]["high"] > 0 for c in result["checks"])
    roomy = ["--margin", "nll=0.1", "--margin", "accuracy=0.01"]
    assert check(capsys, "t.npz", "--baseline", "base.json", *roomy)[0] == 0
    code, result = check(capsys, "off.npz", "--baseline", "base.json", *margins)
    assert outcomes(result).popitem()[1] == "fail"
    assert [c["outcome"] for c in result["checks"]] == ["fail", "fail", "inconclusive", "fail"]
    assert check(capsys, "off.npz", "--baseline", "base.json", "--margin", "temperature_gain=0.2")[0] == 0


def test_baseline_that_cannot_be_used(capsys: Any) -> None:
    model()
    keep(capsys, "t.npz", "base.json")
    model(n=1900, name="fewer.npz")
    model(seed=1, name="other.npz")
    main(["check", "t.npz", "--max", "ece=0.99", "-q", "-o", "norows.json"])
    capsys.readouterr()
    for input, base, why in (
        ("fewer.npz", "base.json", "numbers differ"),
        ("other.npz", "base.json", "label sequences differ"),
        ("t.npz", "missing.json", "no baseline at missing.json"),
        ("t.npz", "norows.json", "--keep-rows"),
    ):
        code, result = check(capsys, input, "--baseline", base)
        assert (code, result["checks"][0]["outcome"]) == (5, "not_run")
        assert why in result["checks"][0]["message"]
    Path("bad.json").write_text("{")
    assert refused(capsys, "t.npz", "--baseline", "bad.json")[0] == 4
    data = json.loads(Path("base.json").read_text())
    data["facts"]["rows"]["nll"] = "AAAA"
    del data["checksum"]
    Path("bad.json").write_text(json.dumps(data))
    code, error = refused(capsys, "t.npz", "--baseline", "bad.json")
    assert (code, "damaged" in error) == (4, True)


def test_probability_zero_on_a_label_is_not_run(capsys: Any) -> None:
    rng = np.random.default_rng(0)
    p = softmax(rng.normal(size=(600, 3)))
    y = (p.cumsum(1) < rng.random((600, 1))).sum(1)
    hard = p.copy()
    hard[:5] = np.eye(3)[(y[:5] + 1) % 3]
    np.savez("p.npz", probs=p, labels=y)
    np.savez("hard.npz", probs=hard, labels=y)
    _, result = check(
        capsys, "hard.npz", "--max", "nll=9", "--max", "temperature_gain=9", "--max", "brier=1.99", "--keep-rows"
    )
    assert [c["outcome"] for c in result["checks"]] == ["not_run", "not_run", "pass"]
    margins = ["--margin", "nll=9", "--margin", "temperature_gain=9", "--margin", "brier=1"]
    _, result = check(capsys, "hard.npz", "--baseline", "p.npz", *margins)
    assert [c["outcome"] for c in result["checks"]] == ["not_run", "not_run", "pass"]
    assert "probability 0" in result["checks"][0]["message"]


def test_positive_class_of_a_binary_problem(capsys: Any) -> None:
    rng = np.random.default_rng(0)
    p = rng.beta(1, 3, 2000)
    np.savez("b.npz", probs=np.stack([1 - p, p], 1), labels=(rng.random(2000) < p).astype(int))
    _, result = check(capsys, "b.npz", "--max", "ece=0.1", "--max", "ece:of=top=0.1")
    from populations import ece_bounds

    with np.load("b.npz") as data:
        bounds = ece_bounds(data["probs"][:, 1], data["labels"])
    e = result["checks"][0]["estimate"]
    assert (e["value"], e["high"]) == pytest.approx((bounds.value, bounds.upper), rel=1e-9)
    assert e["value"] != result["checks"][1]["estimate"]["value"]


def test_baseline_in_the_configuration(capsys: Any) -> None:
    model()
    model(factor=1.6, name="off.npz")
    keep(capsys, "t.npz", "base.json")
    Path("ci").mkdir()
    Path("ci/gates.toml").write_text(
        '[data]\neval = "../off.npz"\n[[gate]]\nmetric = "temperature_gain"\nbaseline = "../base.json"\nmargin = 0.5\n'
        '[[gate]]\nmetric = "nll"\nbaseline = "../none.json"\n'
    )
    code, result = check(capsys, "--config", "ci/gates.toml")
    assert (code, [c["outcome"] for c in result["checks"]]) == (5, ["pass", "not_run"])
    code, result = check(capsys, "--config", "ci/gates.toml", "--baseline", "base.json")
    assert (code, [c["outcome"] for c in result["checks"]]) == (1, ["pass", "fail"])


# --- configuration ------------------------------------------------------------------------------------------------


def test_command_line_beats_the_file(capsys: Any) -> None:
    model()
    model(factor=2, name="off.npz")
    Path("calib.toml").write_text(
        '[data]\neval = "off.npz"\n[stats]\nalpha = 0.2\nbins = 5\n[[gate]]\nmetric = "ece"\nlimit = 0.05\n'
    )
    code, result = check(capsys)
    assert code == 1
    assert result["checks"][0]["estimate"]["level"] == pytest.approx(0.6)
    assert result["checks"][0]["estimate"]["name"] == "ece:bins=5"
    assert {i["path"] for i in result["provenance"]["inputs"]} == {"off.npz", "calib.toml"}
    code, result = check(capsys, "t.npz", "--alpha", "0.01", "--bins", "20", "--max", "brier=1.99")
    assert code == 0
    assert outcomes(result) == {"brier <= 1.99": "pass"}
    assert result["checks"][0]["estimate"]["level"] == pytest.approx(0.98)
    assert check(capsys, "t.npz", "--bins", "20")[1]["checks"][0]["estimate"]["name"] == "ece:bins=20"


@pytest.mark.regression
def test_the_kind_of_weights_of_the_command_line_beats_the_file(capsys: Any) -> None:
    """Also where it is the default, which the file overrode."""
    model(w=np.random.default_rng(0).integers(1, 9, 2000))
    Path("calib.toml").write_text('[data]\nweights = "w"\nweight_kind = "count"\n')
    for kind in ((), ("--weight-kind", "count"), ("--weight-kind", "sampling")):
        facts = check(capsys, "t.npz", "--max", "brier=1", *kind)[1]["facts"]
        assert ("n_eff" in facts) == ("sampling" in kind), kind
    Path("calib.toml").write_text('[data]\nweights = "w"\n')
    assert "n_eff" in check(capsys, "t.npz", "--max", "brier=1")[1]["facts"]
    assert "n_eff" not in check(capsys, "t.npz", "--max", "brier=1", "--weight-kind", "count")[1]["facts"]


def test_overlap_with_the_fitted_file_is_refused(capsys: Any) -> None:
    model()
    code, error = refused(capsys, "t.npz", "--max", "ece=0.99", "--fitted-on", "t.npz")
    assert "--folds" not in error
    assert code == 4
    assert "are also in" in error
    model(seed=3, name="val.npz")
    assert check(capsys, "t.npz", "--max", "ece=0.99", "--fitted-on", "val.npz")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--max", "eec=0.1"], "did you mean 'ece'"),
        (["--max", "ece:bin=3=0.1"], "did you mean 'bins'"),
        (["--max", "trace=1"], "result.json"),
        (["--max", "ece"], "METRIC=NUMBER"),
        (["--max", "ece=0.99", "--scope", "after"], "leave it out"),
        (["--max", "ece=0.99", "--alpha", "0.7"], "to 0.25"),
        (["--max", "ece=0.99", "--on-inconclusive", "no"], "fail, warn"),
        (["--margin", "nll=0"], "--baseline"),
        (["--baseline", "x.json", "--margin", "ece=0"], "row by row"),
        (["--max", "ece:of=positive=1"], "two classes"),
        (["--min", "confidence_gap=-1", "--multilabel"], "one label per row"),
    ],
)
def test_wrong_requests(arguments: list[str], said: str, capsys: Any) -> None:
    model(300)
    code, error = refused(capsys, "t.npz", *arguments)
    assert code == 2
    assert said in error


def test_options_have_effects(capsys: Any) -> None:
    model(2000, 1.5)

    def judged(*options: str) -> dict[str, Any]:
        found: dict[str, Any] = check(capsys, "t.npz", "--max", "ece=0.5", *options)[1]["checks"][0]["estimate"]
        return found

    base, seeded = judged("--bounds", "score"), judged("--bounds", "score", "--seed", "1")
    assert seeded["low"] != base["low"]
    assert seeded["high"] == base["high"]
    for bounds in ("score", "sharp"):
        base, stricter = judged("--bounds", bounds), judged("--bounds", bounds, "--alpha", "0.01")
        assert stricter["low"] < base["low"]
        assert stricter["high"] > base["high"]


def test_sharp_bounds_are_an_option_and_the_default(capsys: Any) -> None:
    model(8000, 1.5)
    plain = check(capsys, "t.npz", "--max", "ece=0.5", "--bounds", "score")[1]["checks"][0]["estimate"]
    sharp = check(capsys, "t.npz", "--max", "ece=0.5", "--bounds", "sharp")[1]["checks"][0]["estimate"]
    assert sharp["value"] == plain["value"]
    assert sharp["high"] <= plain["high"]
    assert sharp["low"] > plain["low"]
    assert "sharp" in sharp["how"]
    assert check(capsys, "t.npz", "--max", "ece=0.5")[1]["checks"][0]["estimate"] == sharp
    Path("calib.toml").write_text('[stats]\nbounds = "score"\n')
    assert check(capsys, "t.npz", "--max", "ece=0.5")[1]["checks"][0]["estimate"] == plain
    assert refused(capsys, "t.npz", "--max", "ece=0.5", "--bounds", "shrp")[0] == 2


def test_annotations_of_forty_failing_slices(capsys: Any) -> None:
    model(12000, 2.5, site=np.arange(12000) % 40)
    Path("calib.toml").write_text('\n[[gate]]\nmetric = "ece"\nby = "site"\nlimit = 0.01\n')
    assert main(["check", "t.npz", "--format", "github", "-q", "-o", "summary.md", "-o", "junit.xml"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert len(lines) == 10
    assert all(line.startswith("::error file=calib.toml,line=2,title=") for line in lines[:9])
    assert "31 more" in lines[9]
    assert Path("summary.md").stat().st_size <= 60_000
    assert Path("junit.xml").read_text().count("<failure") == 40


def test_starts_without_torch_and_its_like() -> None:
    model(500)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "calibcli", "check", "t.npz", "--max", "ece=0.5"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parent.parent), "PATH": "/usr/bin:/bin"},
        check=True,
    )
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert not loaded & {"torch", "matplotlib", "pandas", "sklearn", "scipy"}


def test_slices_without_a_rule_are_refused(capsys: Any) -> None:
    model(site=np.arange(2000) % 2)
    Path("calib.toml").write_text('[[gate]]\nmetric = "ece"\nlimit = 0.05\n')
    code, error = refused(capsys, "t.npz", "--by", "site")
    assert code == 2
    assert "--by without --max or --min" in error


def test_the_null_level_is_that_of_metrics(capsys: Any) -> None:
    model()
    [judged] = check(capsys, "t.npz", "--max", "ece=0.05")[1]["checks"]
    assert main(["metrics", "t.npz", "-m", "ece", "--json", "-q"]) == 0
    [measured] = json.loads(capsys.readouterr().out)["estimates"]
    for key in ("value", "low", "high", "null", "null_high"):
        assert measured[key] == pytest.approx(judged["estimate"][key], rel=1e-12), key


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_copies_of_rows_are_not_judged(noise: float, capsys: Any) -> None:
    """A third of the rows are copies, also with noise; groups and counts say so, and honest repeats are no copies."""
    with np.load(model(1000)) as held:
        z, y = held["logits"], held["labels"]
    rng = np.random.default_rng(1)
    index = np.concatenate([np.arange(1000), rng.permutation(1000)[:500]])
    again = z[index] + noise * rng.normal(size=(1500, 4))
    for scores in (again, softmax(again)):
        np.savez("c.npz", scores=scores, labels=y[index], row=index, one=np.ones(1500))
        code, result = check(capsys, "c.npz", "--scores", "scores", "--max", "ece=0.2", "--min", "accuracy=0.1")
        assert (code, {*outcomes(result).values()}) == (5, {"not_run"})
        assert "of 1,500 rows are copies of others" in result["checks"][0]["message"]
        for known in (["--group", "row"], ["--weights", "one", "--weight-kind", "count"]):
            assert check(capsys, "c.npz", "--scores", "scores", "--max", "ece=0.2", *known)[0] == 0
    certain = softmax(30 * z).astype(np.float32)
    rounded = np.round(softmax(3 * z), 2)
    np.savez("d.npz", probs=np.tile(rounded, (3, 1)), labels=np.tile(y, 3))
    result = check(capsys, "d.npz", "--kind", "probabilities", "--max", "ece=0.9")[1]
    assert "2,000 of 3,000 rows are copies of others" in result["checks"][0]["message"]
    levels = rng.integers(1, 32, 1000) / 31
    for scores, labels in (
        (certain, y),
        (softmax(30 * z[:, :2]).astype(np.float32), y % 2),
        (levels, (rng.random(1000) < levels).astype(int)),
        (levels * 0.3, (levels > 0.5).astype(int)),
    ):
        np.savez("h.npz", p=scores, labels=labels)
        rule = ["--scores", "p", "--kind", "probabilities", "--clip", "--max", "ece=0.9"]
        assert set(outcomes(check(capsys, "h.npz", *rule)[1]).values()) == {"pass"}
