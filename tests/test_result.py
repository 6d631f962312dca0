"""Results as values: JSON and back without inf or nan, what a result says of itself, how its numbers are found."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from populations import drawn, softmax

import calibcli
from calibcli.cli.app import main
from calibcli.core import validation
from calibcli.core.errors import Exit, GateFailed, InputError
from calibcli.core.figure_data import Curve, Later, Plot
from calibcli.core.result import SCHEMA, Check, Estimate, Result, Table


def full() -> Result:
    ece = Estimate(
        name="ece", value=np.float64(0.05), low=0.01, high=0.09, level=0.9, sided="each", detail={"n_eff": 7}
    )
    return Result(
        command="metrics",
        estimates=[ece, Estimate(name="nll", value=float("inf"))],
        tables=[Table(name="bins", columns=["bin", "n"], rows=[[1, np.int64(4)], [2, float("nan")]])],
        plots=[
            Plot(name="r", curves=[Curve(label="m", kind="line", x=np.arange(3.0), y=[0.1, None, 0.3])], xlim=(0, 1))
        ],
        checks=[Check(rule="ece <= 0.1", outcome="pass", estimate=ece, limit=0.1)],
        notes=["a note"],
        facts={"n": np.int64(3), "shape": (3, 2)},
        provenance={"seconds": 0.1},
    )


def test_round_trip() -> None:
    result = full()
    again = Result.from_json(result.to_json())
    assert again == result
    assert again.to_json() == result.to_json()


def test_infinite_is_null_with_a_reason() -> None:
    data = json.loads(full().to_json(), parse_constant=lambda s: pytest.fail(f"JSON holds {s}"))
    assert data["schema"] == SCHEMA
    assert data["estimates"][1]["value"] is None
    assert data["estimates"][1]["reason"] == "value is infinite"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"command": 1}', '{"command": "x", "schema": 99}', "[" * 100_000]
)
def test_refuses_what_is_not_a_result(text: str) -> None:
    with pytest.raises(InputError):
        Result.from_json(text)


def test_get_names_what_is_missing() -> None:
    assert full()["ece"].high == 0.09
    with pytest.raises(KeyError, match="no estimate 'brier'"):
        full()["brier"]


@pytest.mark.parametrize("found", [True, False, 1.0, "1", None])
def test_a_whole_number_of_a_file_is_a_whole_number(found: object) -> None:
    """Python takes true for 1: a file that has it there was not written by calib."""
    with pytest.raises(InputError, match=r"the file is .*, not a whole number"):
        validation.read(found, int, "a.json", "write it again")
    assert validation.read(1, int, "a.json", "write it again") == 1
    with pytest.raises(InputError):
        validation.read(found, Literal[1, 2], "a.json", "write it again")
    assert validation.read(2, Literal[1, 2], "a.json", "write it again") == 2
    with pytest.raises(InputError, match="the file is 1, not true or false"):
        validation.read(1, bool, "a.json", "write it again")


def test_an_edited_result_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that was changed in the file decides no gate; other spellings of the same file do."""
    rows = np.load(Path(__file__).parent.parent / "sample_data" / "test.npz")
    path = tmp_path / "r.json"
    path.write_text(calibcli.measure(rows["logits"], rows["labels"], "ece", "accuracy").to_json())
    check = ["check", str(path), "--max", "ece=0.03", "-q"]
    assert main(check) == 1
    text, data = path.read_text(), json.loads(path.read_text())
    data["estimates"][0].update(value=0.01, low=0.005, high=0.02)
    path.write_text(json.dumps(data))
    assert main(check) == 4
    assert "its checksum does not fit" in capsys.readouterr().err
    for same in (json.dumps(dict(reversed(json.loads(text).items()))), text.replace(".0,", ",").replace(".0\n", "\n")):
        path.write_text(same)
        assert main(check) == 1
    again = json.loads(text)
    del again["checksum"]  # an earlier version wrote none
    path.write_text(json.dumps(again))
    assert main(check) == 1


def test_a_result_and_its_rows_give_one_number_of_rows_that_decide(tmp_path: Path) -> None:
    """How an ECE's bounds shrink is known of the rows alone: a result gives no number instead of a wrong one."""
    rows = np.load(Path(__file__).parent.parent / "sample_data" / "test.npz")
    limit = {"ece": 0.07}
    [of_rows] = calibcli.check(rows["logits"], rows["labels"], max=limit).checks
    [of_result] = calibcli.check(calibcli.measure(rows["logits"], rows["labels"], "ece"), max=limit).checks
    assert (of_rows.outcome, of_result.outcome) == ("inconclusive",) * 2
    assert of_rows.n_needed
    assert of_result.n_needed is None
    assert "pass the scores" in of_result.message


@pytest.mark.regression("1.12")
def test_a_result_is_neither_true_nor_false() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(800, 3)) * 2
    y = drawn(softmax(z / 1.5), rng)
    good = calibcli.check(z, y, max={"nll": 5.0})
    bad = calibcli.check(z, y, max={"nll": 0.1, "ece": 0.99})
    for result in (good, bad):
        with pytest.raises(TypeError, match="raise_if_failed"):
            bool(result)
        with pytest.raises(TypeError, match="passed"):
            assert result
    assert (good.verdict, good.exit_code, good.passed) == ("pass", 0, True)
    assert good.raise_if_failed() is good
    assert (bad.verdict, bad.exit_code, bad.passed) == ("fail", 1, False)
    with pytest.raises(GateFailed, match=r"FAIL nll <= 0\.1") as error:
        bad.raise_if_failed()
    assert error.value.code == Exit.FAIL
    few = calibcli.check(z[:50], y[:50], max={"nll": 5.0})
    assert (few.verdict, few.exit_code, few.passed) == ("not_run", 5, False)
    with pytest.raises(ValueError, match="judges nothing"):
        _ = Result(command="metrics").passed
    assert Result(command="metrics").verdict is None


@pytest.mark.regression("1.12")
def test_exit_code_is_of_the_checks_that_count() -> None:
    def of(*checks: tuple[str, bool]) -> Result:
        made = [Check(rule="ece <= 1", outcome=o, fatal=fatal) for o, fatal in checks]  # type: ignore[arg-type]
        return Result(command="check", checks=made)

    assert of(("pass", True), ("inconclusive", False)).exit_code == 0
    assert of(("pass", True), ("inconclusive", False)).passed
    assert of(("pass", True), ("inconclusive", False)).verdict == "pass"
    assert of(("not_run", False), ("inconclusive", True)).verdict == "inconclusive"
    assert of(("not_run", False), ("inconclusive", False)).verdict == "not_run"
    assert of(("inconclusive", True), ("not_run", True)).exit_code == 5
    assert of(("fail", True), ("not_run", True)).exit_code == 1
    assert of(("inconclusive", True)).exit_code == 3


@pytest.mark.regression("1.21")
def test_result_is_asked_by_name_or_any_spelling() -> None:
    def of(*names: str) -> Result:
        return Result(command="metrics", estimates=[Estimate(name=n, value=float(i)) for i, n in enumerate(names)])

    assert of("lambda_max:tol=0.01")["lambda_max"].value == 0
    assert of("lambda_max:tol=0.01")["lambda-max"].value == 0
    assert of("ece", "ece:bins=30")["ece:bins=15"].value == 0
    assert of("ece", "ece:bins=30")["ece:edges=right,bins=30"].value == 1
    for result, name in ((of("ece"), "ece:bins=30"), (of("a:b=1", "a:b=2"), "a"), (of("ece"), "nll"), (of(), "ece")):
        with pytest.raises(KeyError, match=f"no estimate '{name}'"):
            result[name]


def test_plots_are_made_when_they_are_asked_for() -> None:
    """And are plots like any others: in copies, files, comparisons and other processes."""
    made = []

    def make() -> list[Plot]:
        made.append(1)
        return [Plot(name="one", curves=[Curve(label="a", kind="line", x=np.arange(2.0), y=np.array([1, np.nan]))])]

    later = dataclasses.replace(Result(command="watch", plots=Later(make)), notes=["a note"])
    assert not made
    now = dataclasses.replace(later, plots=make())
    assert (later, later.to_json()) == (now, now.to_json())
    assert pickle.loads(pickle.dumps(later)) == now
    assert later.plots[0].curves[0].y == [1.0, None]
    none: list[Plot] = []
    assert later.plots + none == none + later.plots == now.plots


@pytest.mark.regression
@pytest.mark.parametrize(
    ("key", "value"), [*(("inputs", value) for value in (True, 5, "x", {"a": 1}, [1], [["a"]])), ("seconds", "x")]
)
def test_inputs_of_a_result_that_are_no_files_are_refused(key: str, value: Any) -> None:
    data = {"command": "metrics", "schema": SCHEMA, "provenance": {key: value}}
    with pytest.raises(InputError, match=f"provenance.{key} is no"):
        Result.from_json(json.dumps(data))
