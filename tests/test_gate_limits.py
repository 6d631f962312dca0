"""Limits of a gate: which number a rule judges, limits that cannot fail, stored numbers that are impossible."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from populations import drawn, softmax

from calibcli.cli.app import main
from calibcli.core.errors import Exit
from calibcli.core.result import Estimate, Result
from calibcli.metrics import METRICS

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def scores(name: str, n: int = 2000, factor: float = 1.0, seed: int = 0, **more: Any) -> str:
    rng = np.random.default_rng(seed)
    z = rng.normal(0, 2, (n, 4))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    y = (p.cumsum(1) > rng.random((n, 1))).argmax(1)
    np.savez(name, logits=factor * z, labels=y, **more)
    return name


def written(name: str, *estimates: Estimate, command: str = "check") -> str:
    Path(name).write_text(Result(command=command, estimates=estimates).to_json())
    return name


def ece(**fields: Any) -> Estimate:
    given = {"name": "ece", "value": 0.02, "low": 0.01, "high": 0.03, "level": 0.95, "n": 1000, "sided": "each"}
    return Estimate(**{**given, **fields})


def two_classes(path: str) -> None:
    """The first two of the classes of a file, in two.npz."""
    with np.load(path) as file:
        np.savez("two.npz", logits=file["logits"][:, :2], labels=file["labels"] % 2)


@pytest.mark.regression("3.1")
def test_a_comparison_is_not_judged_as_the_metric(capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = scores("bad.npz", factor=4.0), scores("good.npz")
    assert main(["compare", bad, good, "-o", "c.json", "-q"]) == 0
    [found] = [e for e in json.loads(Path("c.json").read_text())["estimates"] if e["name"] == "ece"]
    assert found["value"] < -0.05
    for more in ([], ["--scope", found["scope"]], ["--scope", "after"]):
        assert main(["check", "c.json", "--max", "ece=0.05", *more, "-q"]) == Exit.NOT_RUN
    assert "not the metric itself" in capsys.readouterr().out


@pytest.mark.regression("3.1")
@pytest.mark.parametrize("scope", ["minus baseline", "b - a", "anything"])
def test_a_lone_difference_is_not_judged_as_the_metric(scope: str, capsys: pytest.CaptureFixture[str]) -> None:
    written("r.json", ece(name="nll", value=-0.1, low=-0.2, high=0.0, scope=scope))
    for more in ([], ["--scope", scope]):
        assert main(["check", "r.json", "--max", "nll=0.9", *more, "-q"]) == Exit.NOT_RUN


@pytest.mark.regression("3.1")
def test_before_and_after_are_judged_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    written("r.json", ece(scope="before", value=0.2, low=0.1, high=0.3), ece(scope="after"))
    assert main(["check", "r.json", "--max", "ece=0.05", "--scope", "after", "-q"]) == 0
    assert main(["check", "r.json", "--max", "ece=0.05", "--scope", "before", "-q"]) == 1
    assert main(["check", "r.json", "--max", "ece=0.05", "-q"]) == Exit.USAGE
    written("k.json", ece(scope="after"))  # one number of a part is not the whole
    assert main(["check", "k.json", "--max", "ece=0.05", "-q"]) == Exit.USAGE


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    code = main([*argv, "-q"])
    found = capsys.readouterr()
    assert code == Exit.USAGE, found
    return found.err


@pytest.mark.regression("3.3")
@pytest.mark.parametrize("command", [["check", "t.npz"], ["plan"], ["check", "r.json"]])
@pytest.mark.parametrize(
    ("rule", "fix"),
    [
        (["--max", "ece=3"], "3 % is 0.03"),
        (["--max", "ece=5"], "5 % is 0.05"),
        (["--max", "ece=0_05"], "pass a number"),
        (["--max", "ece=-0.1"], "from 0 to 1"),
        (["--max", "ece=1000"], "from 0 to 1"),
        (["--min", "ece=.05"], "--max ece=0.05"),
        (["--max", "accuracy=.9"], "--min accuracy=0.9"),
        (["--min", "accuracy=90"], "90 % is 0.9"),
        (["--min", "nll=0.3"], "--max nll=0.3"),
        (["--max", "brier=3"], "3 % is 0.03"),
    ],
)
def test_a_limit_that_cannot_fail_is_refused(
    command: list[str], rule: list[str], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scores("t.npz", 300)
    written("r.json", ece(), *(ece(name=name, value=0.5, low=0.4, high=0.6) for name in ("accuracy", "nll", "brier")))
    assert fix in refused(capsys, *command, *rule)


@pytest.mark.slow
@pytest.mark.regression("3.3")
def test_every_metric_refuses_limits_outside_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    two_classes(scores("t.npz", 300))
    for entry in METRICS:
        values, better = entry.traits.values, entry.traits.better
        file = "two.npz" if entry.traits.two_classes else "t.npz"
        for side in ("--max", "--min"):
            for limit in (values.low - 1e-6, values.high + 1e-6):
                if np.isfinite(limit):
                    assert "never lies there" in refused(capsys, "check", file, side, f"{entry.name}={limit!r}")
            if {"--max": "higher", "--min": "lower"}[side] == better:
                usual = {"nll_wrong": 1, "corp_dsc": 0.2}.get(entry.name, 0.5)
                assert "is better" in refused(capsys, "check", file, side, f"{entry.name}={usual}")
    for side in ("max", "min", "limit"):
        Path("calib.toml").write_text(f'[[gate]]\nmetric = "ece"\n{side} = 3\n')
        assert "3 % is 0.03" in refused(capsys, "check", "t.npz")
    assert "3 % is 0.03" in refused(capsys, "check", "t.npz", "--baseline", "b", "--margin", "accuracy=3")
    assert "3 % is 0.03" in refused(capsys, "plan", "--margin", "accuracy=3")


@pytest.mark.parametrize("command", [["check", "t.npz"], ["plan", "--from", "t.npz"]])
def test_a_limit_at_the_end_of_what_a_metric_can_be_is_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every model keeps `ece <= 1`; one hair inside it is a limit."""
    two_classes(scores("t.npz", 300))
    for entry in METRICS:
        values, better = entry.traits.values, entry.traits.better
        here = [part.replace("t.npz", "two.npz") if entry.traits.two_classes else part for part in command]
        for side, limit, bad in (("--max", values.high, "higher"), ("--min", values.low, "lower")):
            if np.isfinite(limit) and better != bad:
                said = refused(capsys, *here, side, f"{entry.name}={limit!r}")
                assert "cannot fail" in said or "never lies there" in said, said
    for side in ("max", "limit"):
        Path("calib.toml").write_text(f'[[gate]]\nmetric = "ece"\n{side} = 1\n')
        said = refused(capsys, "check", "t.npz")
        assert "calib.toml:1: ece <= 1 cannot fail: ece is from 0 to 1" in said
        assert "write a limit below 1" in said
    Path("calib.toml").unlink()
    assert "write a limit above 0" in refused(capsys, "check", "t.npz", "--min", "accuracy=0")
    written("r.json", ece())
    assert "cannot fail" in refused(capsys, "check", "r.json", "--max", "ece=1")
    assert main(["check", "t.npz", "--max", "ece=0.999999", "--min", "accuracy=1e-6", "-q"]) == 0


@pytest.mark.parametrize(
    ("k", "rule"),
    [
        (2, ["--max", "brier=1"]),  # of two classes half the sum
        (4, ["--max", "classwise_ece=0.5"]),  # Σ_k |p_k - y_k| is at most 2
        (8, ["--max", "classwise_ece:norm=l2=0.5"]),
        (4, ["--min", "mean_confidence=0.25"]),
        (4, ["--max", "uce=0.75"]),
        (4, ["--min", "confidence_gap=-0.75"]),
        (4, ["--max", "confidence_gap=1"]),  # a distance from 0
        (8, ["--max", f"entropy={math.log(8)!r}"]),
        (8, ["--max", f"nll_correct={math.log(8)!r}"]),
        (4, ["--baseline", "b.json", "--margin", "accuracy=1"]),
        (4, ["--baseline", "b.json", "--margin", "brier=2"]),
        (2, ["--baseline", "b.json", "--margin", "brier=1"]),
    ],
)
def test_the_number_of_classes_says_which_limits_cannot_fail(
    k: int, rule: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    np.savez("t.npz", logits=rng.normal(0, 9, (300, k)), labels=rng.integers(0, k, 300))
    assert "cannot fail" in refused(capsys, "check", "t.npz", *rule)


@pytest.mark.parametrize("k", [2, 3, 8])
def test_no_predictions_are_beyond_what_is_said_to_be_possible(k: int) -> None:
    """The worst there is: sure and wrong, sure and right, and even."""
    from calibcli.gate.judging import possible
    from calibcli.metrics import known, measure
    from calibcli.scores.predictions import Predictions

    rng = np.random.default_rng(k)
    labels = rng.integers(0, k, 400)
    for z in (60 * np.eye(k)[labels], 60 * np.eye(k)[(labels + 1) % k], rng.normal(0, 1e-9, (400, k))):
        logs = [f"corp_{part}:score=log" for part in ("mcb", "dsc", "unc")]
        specs = [*known(METRICS.entries, False, k), "classwise_ece:norm=l2", *logs]
        for found in measure(Predictions.of(z, labels), specs):
            values = possible(found.name, k)
            if found.value is not None:
                assert values.low - 1e-9 <= found.value <= values.high + 1e-9, (found.name, found.value)


def test_a_margin_of_nothing_has_no_sign(capsys: pytest.CaptureFixture[str]) -> None:
    scores("t.npz", 300)
    assert (
        main(["check", "t.npz", "--baseline", "t.npz", "--margin", "accuracy=0", "--max", "confidence_gap=-0", "-q"])
        == 3
    )
    out = capsys.readouterr().out
    assert "accuracy - baseline >= 0 " in out
    assert "-0 " not in out


@pytest.mark.regression("3.3")
def test_every_value_that_is_measured_lies_in_its_trait() -> None:
    from calibcli import measure

    rng = np.random.default_rng(0)
    for k in (2, 3, 50):
        z = rng.normal(0, 5, (400, k))
        for found in measure(z, rng.integers(0, k, 400), "all").values():
            values = METRICS.entries[found.name.partition(":")[0]].traits.values
            assert found.value is None or found.value in values, found.name


@pytest.mark.regression("3.5")
def test_options_that_would_be_ignored_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("calib.toml").write_text('[[gate]]\nmetric = "ece"\nlimit = 0.05\nvalues = ["C"]\n')
    assert "values without by" in refused(capsys, "check", scores("t.npz", 300))
    Path("calib.toml").unlink()
    written("r.json", ece())
    for option in (["--bins", "30"], ["--bounds", "sharp"], ["--fitted-on", "t.npz"], ["--weights", "w"], ["--clip"]):
        assert "no effect on a stored result" in refused(capsys, "check", "r.json", "--max", "ece=0.05", *option)


@pytest.mark.regression("3.5")
def test_which_end_is_better_comes_from_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    written("r.json", ece(better="higher"))
    assert "--max ece" in refused(capsys, "check", "r.json", "--min", "ece=0.01")
    Path("calib.toml").write_text('[[gate]]\nmetric = "ece"\nlimit = 0.015\n')
    assert main(["check", "r.json", "-q"]) == Exit.INCONCLUSIVE  # a smallest ECE of .015 would have passed more
    Path("calib.toml").write_text('[[gate]]\nmetric = "ece"\nlimit = 0.005\n')
    assert main(["check", "r.json", "-q"]) == Exit.FAIL


@pytest.mark.regression("3.6")
def test_the_example_does_what_its_comments_say(capsys: pytest.CaptureFixture[str]) -> None:
    """First night: no baseline; a site of 66 rows. Second night: with the baseline that the comment writes."""
    shutil.copy(ROOT / "examples/ci/calib.toml", "calib.toml")
    Path("out").mkdir()
    Path("baseline").mkdir()
    n = 20_066
    rng = np.random.default_rng(1)
    p = rng.uniform(0.93, 0.999, n)
    z = np.stack([np.log(p / (1 - p)), np.zeros(n), np.full(n, -20.0)], axis=1)
    labels = np.where(rng.random(n) < p, 0, 1)
    site = np.repeat(["north", "south", "tiny"], [10_000, 10_000, 66])
    np.savez("out/test.npz", logits=z, labels=labels, site=site, patient_id=np.arange(n))
    assert main(["check", "-o", "first.json", "-q"]) == 0
    first = json.loads(Path("first.json").read_text())["checks"]
    warned = [(c["rule"], c["scope"], c["fatal"]) for c in first if c["outcome"] == "not_run"]
    assert warned == [("ece <= 0.1", "site=tiny", False), ("brier - baseline <= 0.01", "", False)]
    assert "NOT RUN (warns)" in capsys.readouterr().out
    write = re.search(r"calib (check out/test.npz .*)", (ROOT / "examples/ci/calib.toml").read_text())
    assert write is not None
    assert main([*write[1].split(), "-q"]) == 0
    assert main(["check", "-o", "second.json", "-q"]) == 0
    second = {c["rule"]: c["outcome"] for c in json.loads(Path("second.json").read_text())["checks"]}
    assert second["brier - baseline <= 0.01"] == "pass"


@pytest.mark.regression
@pytest.mark.parametrize(("n", "off"), [(1_000, 1.0), (4_000, 1.5)])
def test_the_example_passes_its_second_night_with_an_unchanged_model(
    n: int, off: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its margin has to be one that as many rows as people have can show, calibrated or overconfident."""
    shutil.copy(ROOT / "examples/ci/calib.toml", "calib.toml")
    Path("out").mkdir()
    Path("baseline").mkdir()
    rng = np.random.default_rng(0)
    z = 9 * rng.normal(size=(n, 3))
    labels = drawn(softmax(z), rng)
    np.savez("out/test.npz", logits=off * z, labels=labels, site=np.array(["north", "south"])[np.arange(n) % 2])
    assert main(["check", "-q"]) == 0
    first = capsys.readouterr().out
    assert first.splitlines()[1].startswith("PASS: 4 rules hold, ece <= 0.05 at")
    assert "NOT RUN (a warning, which fails no run): brier - baseline <= 0.01" in " ".join(first.split())
    assert main(["check", "out/test.npz", "--save-baseline", "baseline/result.json", "-q"]) == 0
    capsys.readouterr()
    assert main(["check", "-q"]) == 0
    second = capsys.readouterr().out
    assert second.splitlines()[1].startswith("PASS: all 5 rules hold")
    assert second.splitlines()[-1] == "PASS: 5 pass"


@pytest.mark.regression("3.6")
@pytest.mark.parametrize(
    ("gate", "code"),
    [
        ('limit = 0.5\non_not_run = "warn"', 0),
        ("limit = 0.5", 5),
        ('limit = 0.5\nby = "site"\non_not_run = "warn"', 5),  # no such column: nothing of the gate was looked at
        ('margin = 0.5\nbaseline = { file = "none.json", missing = "warn" }', 0),
        ('margin = 0.5\nbaseline = { file = "none.json" }', 5),
        ('margin = 0.5\nbaseline = "none.json"\non_not_run = "warn"', 5),
        ('margin = 0.5\nbaseline = { file = "plain.json", missing = "warn" }', 5),  # there, but of no use
        ('margin = 0.5\nbaseline = { missing = "warn" }', 2),
        ('margin = 0.5\nbaseline = { file = "none.json", mising = "warn" }', 2),
        ('limit = 0.5\non_not_run = "pass"', 2),
    ],
)
def test_what_is_not_run_may_warn(gate: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    written("plain.json", ece())
    Path("calib.toml").write_text(f'[[gate]]\nmetric = "nll"\n{gate}\n')
    assert main(["check", scores("t.npz", 66), "-q"]) == code


@pytest.mark.regression("3.7")
def test_a_light_install_names_what_is_missing() -> None:
    scores("t.npz", 300)
    code = (
        "import sys; sys.modules['matplotlib'] = None; from calibcli.cli.app import main; sys.exit(main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", code, "check", "t.npz", "--max", "ece=0.3", "-o", "r.png"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "matplotlib" in done.stderr
    assert "pip install matplotlib" in done.stderr


def test_every_page_names_the_action_of_this_major_version() -> None:
    from calibcli import __version__

    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    asked = [found for p in pages if p.suffix in (".md", ".yml") for found in re.findall(r"calib@(\w+)", p.read_text())]
    assert len(asked) >= 2
    assert set(asked) == {f"v{__version__.partition('.')[0]}"}


@pytest.mark.regression("3.7")
def test_the_pipelines_ask_for_the_versions_that_are_needed() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    floors = {name: floor for d in needed if (m := re.match(r"([\w-]+)>=([\d.]+)", d)) for name, floor in [m.groups()]}
    assert floors
    for path in ("action.yml", "examples/ci/gitlab-ci.yml"):  # which take them from the metadata of the checkout
        text = (ROOT / path).read_text()
        assert "release/distributions.py" in text
        assert not re.findall(r'"([\w-]+)>=([\d.]+)"', text), path
