"""The sentence that every result opens with: of many situations, in every format, and never beyond its intervals."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import headline_cases as cases
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import calibcli
from calibcli import headlines, render
from calibcli.api import measuring
from calibcli.cli import COMMANDS
from calibcli.cli.app import main
from calibcli.core import number_format
from calibcli.core.result import Check, Estimate, Result, Table
from calibcli.lab.study import report
from calibcli.lab.study.claims import ClaimVerdict
from calibcli.networks.deploy import verify
from calibcli.ship.target import Compared
from calibcli.slices import find
from calibcli.watch import report as told

GOLDEN = Path(__file__).parent / "golden" / "headlines.txt"
SAMPLE = Path(__file__).parent.parent / "sample_data"
TEST, VALIDATION, MODEL = (str(SAMPLE / name) for name in ("test.npz", "validation.npz", "model.safetensors"))


def test_golden() -> None:
    """CALIB_GOLDEN=write writes the file again; read the difference before committing it."""
    found = "".join(
        f"{name}\n{textwrap.fill(headlines.of(r), 110, initial_indent='    ', subsequent_indent='    ')}\n\n"
        for name, r in cases.situations().items()
    )
    if os.environ.get("CALIB_GOLDEN") == "write":
        GOLDEN.write_text(found, encoding="utf-8")
    assert found == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", cases.situations())
def test_one_to_three_sentences_on_one_line(name: str) -> None:
    said = headlines.of(cases.situations()[name])
    assert said == " ".join(said.split())
    assert 0 < len(said) <= 420
    assert 1 <= len(re.findall(r"\.(?= |$)", said)) <= 3
    assert not [odd for odd in ("None", "()", "..", "nan", ": :", "  ") if odd in said]


@pytest.mark.parametrize("format", ["table", "markdown", "github", "junit", "json"])
@pytest.mark.parametrize("name", ["overconfident", "scaled", "FAIL", "better", "curvature", "calibrator"])
def test_every_format_opens_with_it(name: str, format: str) -> None:
    result = headlines.headed(cases.situations()[name])
    text = render.text(result, format)
    if format == "json":
        assert json.loads(text)["facts"]["headline"] == headlines.of(result)
    first = re.sub(r"[\\`]|&\w+;", "", " ".join(text.split()))
    assert re.sub(r"[<>]", "", headlines.of(result))[:40] in re.sub(r"[<>]", "", first)


def test_every_command_has_one_of_its_own_or_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = {
        "metrics": [TEST],
        "scale": [VALIDATION, "--test", TEST, "--save", str(tmp_path / "t.safetensors")],
        "apply": [str(tmp_path / "t.safetensors"), TEST, "--save", str(tmp_path / "new.npz")],
        "check": [TEST, "--max", "ece=0.2"],
        "compare": [TEST, str(tmp_path / "new.npz")],
        "plan": ["--max", "ece=0.05"],
        "ood": [TEST, VALIDATION],
        "threshold": [TEST, "--max-risk", "0.05"],
        "inspect": [TEST],
        "init": [TEST, "--save", str(tmp_path / "calib.toml")],
    }
    saved, state = str(tmp_path / "t.safetensors"), str(tmp_path / "state.npz")
    own = {  # which the command writes
        "export": [saved, "--to", "json", "--data", TEST, "-o", str(tmp_path / "t.json")],
        "verify": [str(tmp_path / "new.npz"), "--with", saved, "--data", TEST],
        "watch": [str(tmp_path / "nights.json"), TEST, "--max", "ece=0.2"],
        "slices": [TEST, "--min-n", "100"],
        "merge": [state],
    }
    calibcli.Accumulator().update(np.load(TEST)["logits"], np.load(TEST)["labels"]).save(state)
    for name, argv in {**lines, **own}.items():
        main([name, *argv, *([] if name == "export" else ["--json"]), "-q"])
        if name == "export":
            assert capsys.readouterr().out.count("max|dp|") >= 1
            continue
        result = Result.from_json(capsys.readouterr().out)
        assert result.command == name
        assert result.facts["headline"], name
        assert name in own or result.facts["headline"] == headlines.of(result), name
    others = {
        "curvature",
        "fit",
        "logits",
        "study",
        "report",
        "list",
        "demo",
        "completion",
    }  # in files of their own; no result
    assert {*lines, *own, *others} == {*COMMANDS}


def test_python_results_have_it_and_a_command_may_write_its_own() -> None:
    found = calibcli.measure([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 1, 1])
    assert found.facts["headline"] == headlines.of(found)
    own = Result(command="metrics", facts={"headline": "Said by the command."})
    assert headlines.headed(own).facts["headline"] == "Said by the command."
    assert "headline" not in headlines.headed(Result(command="unheard of")).facts


def test_a_hostile_name_in_it_commands_no_runner() -> None:
    e = cases.differs("nll", 0.1, 0.05, 0.2, "::error::x - y")
    text = render.text(headlines.headed(cases.compare((e, "::error::x is worse"))), "github")
    assert not any(line.startswith("::") for line in text.splitlines())


# no claim beyond its interval: an own reading of the sentence, against the estimates

SIZES = st.floats(-3, 3, allow_nan=False).map(lambda x: round(x, 4))


@st.composite
def estimate(draw: Any, name: str, scope: str = "", least: float = -3.0, **more: Any) -> Estimate:
    low, value, high = sorted(max(least, draw(SIZES)) for _ in range(3))
    bounds = draw(st.sampled_from(["both", "both", "both", "upper", "lower", "none"]))
    ends = {"low": low if bounds in ("both", "lower") else None, "high": high if bounds in ("both", "upper") else None}
    level = {"level": 0.95} if bounds != "none" else {}
    kept = draw(st.sampled_from([value, value, value, None]))
    return Estimate(name=name, value=kept, scope=scope, **ends, **level, **more)


def above(e: Estimate | None, of: float = 0.0) -> bool:
    return e is not None and e.value is not None and e.low is not None and e.low > of


def under(e: Estimate | None, of: float = 0.0) -> bool:
    return e is not None and e.value is not None and e.high is not None and e.high < of


def numbers_of(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+\.\d+", text)]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_metrics_claims_no_more_than_its_intervals(data: Any) -> None:
    null = data.draw(st.sampled_from([None, 0.01, 0.5, 2.0]))
    found = {
        "ece": data.draw(estimate("ece", least=0.0, null=null, null_high=null, better="lower", n=500)),
        "gap": data.draw(estimate("confidence_gap", better="zero")),
        "gain": data.draw(estimate("temperature_gain", unit="nats")),
        "slope": data.draw(estimate("cox_slope")),
        "accuracy": data.draw(estimate("accuracy", least=0.0)),
        "nll": data.draw(estimate("nll", least=0.0, unit="nats")),
    }
    kept = [e for key, e in found.items() if data.draw(st.booleans(), label=key)]
    event = data.draw(st.sampled_from([{}, {"event": "y = 1"}, {"event": "right", "kind": "confidence"}]))
    by = {e.name: e for e in kept}
    said = headlines.of(Result(command="metrics", estimates=kept, facts={"classes": 10, **event})).lower()
    gap, ece = by.get("confidence_gap"), by.get("ece")
    if re.search(r"overconfident|too high", said):
        assert above(gap)
    if re.search(r"underconfident|too low", said):
        assert under(gap)
    beyond = ece is not None and ece.value is not None and null is not None and ece.value > null
    bent = above(by.get("cox_slope"), 1.0) or under(by.get("cox_slope"), 1.0)
    ways = [above(gap), under(gap), bent, above(by.get("temperature_gain"))]
    if "miscalibrated" in said:
        assert any(ways) or (above(ece) and (beyond or null is None))
    if "no miscalibration shown" in said:
        assert not any([*ways, above(ece), beyond])
    if "undecided" in said:  # of two tests at one level each, one says so
        assert not any(ways)
        assert above(ece) != beyond
    if "too extreme" in said:
        assert under(by.get("cox_slope"), 1.0)
    if "too moderate" in said:
        assert above(by.get("cox_slope"), 1.0)
    if "would save" in said:
        assert above(by.get("temperature_gain"))
    if "below that of a guess" in said:
        assert under(by.get("accuracy"), 0.1)
    if "worse than that of a guess" in said:
        assert above(by.get("nll"), 2.302585)
    assert not re.search(r"(is|well) calibrated", said)
    known = {0.1, 2.3, *(x for e in kept for t in number_format.shown(e) for x in numbers_of(t))}
    known |= {x for e in kept for v in (e.value, null) if v is not None for x in numbers_of(number_format.number(v, 3))}
    known |= {
        x
        for e in kept
        for end in (e.high, e.null_high)
        if end is not None
        for x in numbers_of(number_format.number(end, 2))
    }
    assert {*numbers_of(said)} <= known


def without_intervals(result: Result) -> Result:
    """The same values, as metrics without an interval, or results of other programs, have them."""
    bare = [
        dataclasses.replace(e, low=None, high=None, level=None, null=None, null_high=None, detail={})
        for e in result.estimates
    ]
    tables = [
        dataclasses.replace(table, rows=[[*row[:-1], "not shown"] for row in table.rows])
        if table.name == "differences"
        else table
        for table in result.tables
    ]
    return dataclasses.replace(result, estimates=bare, tables=tables)


CLAIMS = "shown|undecided|distinguish|calibrated|better|worse|higher|larger|smaller|overlap"


@pytest.mark.regression
@pytest.mark.parametrize("name", cases.situations())
def test_without_an_interval_nothing_is_shown_or_not_shown(name: str) -> None:
    """It said "no difference shown", though nothing had been looked at that could show one."""
    result = cases.situations()[name]
    if result.command in ("metrics", "ood", "compare", "scale", "fit", "curvature") and not result.predicted.unrelated:
        said = headlines.of(without_intervals(result))
        assert said, name
        assert not re.search(CLAIMS, said), said


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_scale_claims_no_more_than_its_intervals(data: Any) -> None:
    words = {"nll": "NLL", "ece": "ECE", "brier": "Brier score", "accuracy": "accuracy"}
    changes = {}
    for name in words:
        better = "higher" if name == "accuracy" else "lower"
        changes[name] = data.draw(estimate(name, "after minus before", better=better))
    ends = [Estimate(name=name, value=1.0, scope=s) for name in words for s in ("before", "after")]
    keeps = data.draw(st.booleans())
    facts = {"method": "vector", "keeps predicted classes": keeps}
    said = headlines.of(Result(command="scale", estimates=[*ends, *changes.values()], facts=facts))
    for part in re.split(r"(?<=[.;]) ", said):
        named = [key for key, word in words.items() if word in part]
        if part.lower().startswith("lower "):
            assert all(under(changes[key]) for key in named) > (not named)
        elif part.lower().startswith("worse: accuracy"):
            assert under(changes["accuracy"])
        elif part.lower().startswith("worse: "):
            assert all(above(changes[key]) for key in named) > (not named)
        elif part.lower().startswith("higher accuracy"):
            assert above(changes["accuracy"])
        elif "no difference shown" in part:
            assert not any(above(changes[key]) or under(changes[key]) for key in named)
        elif part.lower().startswith("no gain shown"):
            assert not any(above(changes[key]) or under(changes[key]) for key in ("nll", "ece", "brier"))
    assert "predicted classes unchanged" not in said.lower() or keeps


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_compare_claims_no_more_than_its_intervals(data: Any) -> None:
    words = {"nll": "NLL", "ece": "ECE", "accuracy": "accuracy"}
    verdicts = ["b is better", "b is worse", "not shown", "unknown", "real"]
    found = {}
    for name in words:
        e = data.draw(estimate(name, "b - a", better="higher" if name == "accuracy" else "lower"))
        found[name] = (e, data.draw(st.sampled_from(verdicts)))
    said = headlines.of(cases.compare(*found.values()))
    for part in said.split("; "):
        for name, word in words.items():
            e, verdict = found[name]
            if word not in part:
                continue
            wins, loses = (above(e), under(e)) if e.better == "higher" else (under(e), above(e))
            if "better in" in part:
                assert wins > (verdict in ("not shown", "unknown"))
            elif "worse in" in part:
                assert loses > (verdict in ("not shown", "unknown"))
            elif "no difference shown" in part:
                assert verdict in ("not shown", "unknown") or not (wins or loses)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_curvature_and_fit_claim_no_more_than_their_intervals(data: Any) -> None:
    a, b = (data.draw(estimate("lambda_max", scope)) for scope in ("", "loss=focal"))
    said = headlines.of(cases.curvature(a, b, losses=("ce", "focal")))
    if "do not overlap" in said:
        assert None not in (a.value, b.value)
        assert above(b, a.high) if ": larger" in said else under(b, a.low)  # type: ignore[arg-type]
    elif "no difference shown" in said:
        assert a.high is None or not above(b, a.high)
        assert a.low is None or not under(b, a.low)
    bottom = data.draw(estimate("lambda_min"))
    assert ("Negative curvature" in headlines.of(cases.curvature(a, bottom))) <= under(bottom)
    runs = {loss: data.draw(estimate("nll", f"{loss} after", unit="nats")) for loss in ("x", "y")}
    said = headlines.of(cases.fit(("x", "y"), *runs.values()))
    if "do not overlap" in said:
        best = re.findall(r"losses, one run of each, (\w) has", said)[0]
        assert above(runs["y" if best == "x" else "x"], runs[best].high)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_check_says_the_verdict_and_no_other(data: Any) -> None:
    outcomes = data.draw(st.lists(st.sampled_from(["pass", "fail", "inconclusive", "not_run"]), min_size=1, max_size=4))
    checks = [
        Check(
            rule=f"ece <= 0.0{i + 1}",
            outcome=outcome,
            estimate=data.draw(st.one_of(st.none(), estimate("ece", least=0.0))),
            limit=(i + 1) / 100,
            message=data.draw(st.sampled_from(["", "why"])),
            n_needed=data.draw(st.sampled_from([None, 5, 10**6])),
            fatal=data.draw(st.booleans()),
        )
        for i, outcome in enumerate(outcomes)
    ]
    result = cases.check(*checks)
    said = headlines.of(result)
    words = {"pass": "PASS", "fail": "FAIL", "inconclusive": "INCONCLUSIVE", "not_run": "NOT RUN"}
    assert said.startswith(words[str(result.verdict)])
    worst = [c for c in checks if c.outcome == result.verdict]
    assert any(c.rule in said for c in worst)
    if "all" in said.split() and result.verdict == "pass":
        assert len(worst) == len(checks)
    for word in words.values():
        there = {words[c.outcome] for c in checks}
        assert (word in re.findall(r"INCONCLUSIVE|NOT RUN|PASS|FAIL", said)) <= (word in there)


@settings(max_examples=100, deadline=None)
@given(outcomes=st.lists(st.sampled_from(["pass", "fail", "inconclusive", "not_run"]), max_size=5))
def test_watch_claims_what_its_verdicts_do(outcomes: list[Any]) -> None:
    checks = [
        Check(rule=f"ece <= 0.{i}", outcome=o, scope=f"site={i}", message="since then") for i, o in enumerate(outcomes)
    ]
    said = told.headline(cast(Any, SimpleNamespace(nights=3, rows=300, history=[])), checks)
    failed = [c for c in checks if c.outcome == "fail"]
    assert said.startswith("Alarm" if failed else "No alarm")
    told_open = said.partition("Undecided so far: ")[2]
    undecided = {c.rule for c in checks if c.outcome == "inconclusive" and not failed}
    assert {c.rule for c in checks if c.rule in told_open} <= undecided
    assert told_open.count("<=") == min(len(undecided), 3)
    claimed = {c.rule for c in checks if c.rule in said.removesuffix(told_open)}
    assert claimed <= {c.rule for c in failed or checks if c.outcome in ("fail", "pass")}
    assert bool(claimed) == bool(failed or "pass" in outcomes)


@settings(max_examples=100, deadline=None)
@given(real=st.lists(st.booleans(), max_size=6), find_what=st.sampled_from(["gap", "error"]), everywhere=st.booleans())
def test_slices_claims_what_was_confirmed(real: list[bool], find_what: Any, everywhere: bool) -> None:
    shown = {"value": 0.1, "low": 0.05, "high": 0.15, "level": 0.95, "n": 300}
    detail, better = {"p_adjusted": 0.03, "other_rows": 0.066, "of": 300}, "zero" if find_what == "gap" else "lower"
    found = [
        Estimate(name="confidence_gap", scope=f"c{i}", **shown, better=better, detail={**detail, "confirmed": r})
        for i, r in enumerate(real)
    ]
    said = find._headline(found, find.Search(find=find_what), 0.05, (0.2, 0.05), 1000, everywhere)
    assert said.startswith("Surely") == any(real)
    assert said.startswith("Everywhere alike") == (everywhere and not any(real))
    named = [e.scope for e in found if f"{e.scope} (" in said]
    assert named == [e.scope for e in found if e.detail["confirmed"]][:3]
    assert ("p = 0.03" in said) == (bool(named) and find_what == "error")
    assert ("against 0.066" in said) == (bool(named) and find_what == "error")
    assert ("too high" in said) == (bool(named) and find_what == "gap")
    assert any(real) or not any(e.scope in said for e in found)


@settings(max_examples=100, deadline=None)
@given(words=st.lists(st.sampled_from([*report.OUTCOMES]), max_size=6), seeds=st.integers(1, 9))
def test_study_counts_its_verdicts(words: list[Any], seeds: int) -> None:
    judged = {str(i): ClaimVerdict(word) for i, word in enumerate(words)}
    said = report._headline(cast(Any, SimpleNamespace(seeds=seeds)), judged)
    for word in report.OUTCOMES:
        n, many = words.count(word), "hold" if word == "holds" and words.count(word) > 1 else word
        assert (f" {n} {many} (" in said) == (n > 0), said


@settings(max_examples=50, deadline=None)
@given(most=st.floats(0, 2e-6), changed=st.integers(0, 3))
def test_verify_claims_what_was_measured(most: float, changed: int) -> None:
    compared = Compared(n=100, most=most, row=0, limit=1e-6, changed=changed)
    scaler = SimpleNamespace(choice=SimpleNamespace(name="platt"), spec="platt")
    job = SimpleNamespace(path=Path("new.npz"), scaler=scaler, calibrator="", read=(), data=None)
    said = str(verify._result(cast(Any, job), compared).facts["headline"])
    assert ("does not give" in said) == (most > 1e-6)
    assert ("no predicted class" in said) == (changed == 0)
    assert "100 rows" in said


def test_merge_says_what_metrics_says(tmp_path: Path) -> None:
    z, y = (np.load(TEST)[key] for key in ("logits", "labels"))
    for i in range(2):
        calibcli.Accumulator().update(z[i::2], y[i::2]).save(tmp_path / f"{i}.npz")
    found = measuring.merged([tmp_path / "0.npz", tmp_path / "1.npz"])
    said = headlines.of(dataclasses.replace(found, command="metrics"))
    assert found.facts["headline"] == f"{said} Merged from 2 state files, 997 rows."
    assert said.startswith("Overconfident: ECE 0.06")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_result_is_too_odd_for_a_sentence(data: Any) -> None:
    command = data.draw(st.sampled_from([*COMMANDS, "strange"]))
    names = ["ece", "nll:x=1", "", "n", "accuracy", "temperature", "lambda_max"]
    scopes = ["", "before", "site=A", "site=", "a - b", "=", "loss=x", "mean of tasks"]
    found = {}
    for _ in range(data.draw(st.integers(0, 5))):
        name, scope = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(scopes))
        found[name, scope] = data.draw(estimate(name, scope))
    odd = st.sampled_from([None, "", 0, 1, -3, "x", [], [1], {}, [{"loss": "x"}], 2.5])
    keys = ["classes", "event", "runs", "losses", "what", "rows", "kind", "min_n", "n", "predicted classes changed"]
    facts = {key: data.draw(odd) for key in keys}
    tables = [Table(name="differences", columns=["a"], rows=[["x"], [None]])]
    headlines.headed(Result(command=command, estimates=list(found.values()), facts=facts, tables=tables))
