"""Values of slices, and names of labels, models and arms, that look like something else are printed as they are.

A scope such as `visit=day before` was once taken apart as a text, so that two groups of patients stood in one row, as
*before* and *after* of a calibration that nobody had made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import html
import io
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli import render
from calibcli.cli.app import main
from calibcli.core.result import Check, Estimate, Result, results_of
from calibcli.core.scope import CHANGE, Scope
from calibcli.gate.check import check as judge
from calibcli.gate.config import Config, Gate
from calibcli.gate.sources import RecordedOutputs, Results
from calibcli.headlines import of as headline
from calibcli.headlines.metrics import compare as difference_words
from calibcli.metrics.ood import OodOptions, OodScores
from calibcli.metrics.ood import report as ood

PAIRS = {
    "phases": ("day after", "day before"),
    "bare phases": ("after", "before"),
    "a change": ("day", "day after minus"),
    "the change": (CHANGE, "day"),
    "lists": ("a, b", "c, d, "),
    "differences": ("minus baseline", "x - y"),
    "lists of differences": ("a, b - a", "c"),
    "parts": ("k=v", "loss=ce, k=1"),
    "more parts": ("=", "a=b=c"),
    "a mean": ("mean of tasks", "pooled"),
}
N = 600


@cache
def rows(values: tuple[str, str], column: str = "visit") -> calibcli.Predictions:
    """Rows of two slices, the first of which is overconfident."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=(N, 3))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    labels = (p.cumsum(1) < rng.random((N, 1))).sum(1)
    z *= np.where(np.arange(N) % 2, 1.0, 4.0)[:, None]
    return calibcli.from_arrays(z, labels, by={column: np.array(values)[np.arange(N) % 2]})


@cache
def many_labels(values: tuple[str, str]) -> Mapping[str, Any]:
    rng = np.random.default_rng(6)
    p = rng.random((N, 2)) * 0.98 + 0.01
    return {"probs": p, "labels": (p > rng.random((N, 2))).astype(int), "classes": values}


def without_time(result: Result) -> Result:
    return dataclasses.replace(result, provenance={})


@cache
def found(command: str, values: tuple[str, str]) -> Result:
    """A result in which the values of a slice are these."""
    if command == "metrics":
        return without_time(calibcli.measure(rows(values), "ece", "nll", "confidence_gap"))
    if command == "scale":
        return without_time(calibcli.scale(rows(values), metrics=["ece", "nll"]))
    assert command == "check"
    return without_time(check(rows(values)))


def check(scores: calibcli.Predictions | Result, **more: Any) -> Result:
    """Every slice against a limit that one of them breaks."""
    rule: dict[str, Any] = {"metric": "ece", "max": 0.2, "by": "visit", **more}
    config = Config(gates=(Gate(**rule),))
    source = Results(scores, "r.json") if isinstance(scores, Result) else RecordedOutputs(scores, config)
    return judge(source, config)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def plain(values: tuple[str, str]) -> tuple[str, str]:
    """Values that look like nothing, as long as these and in the same order."""
    first, second = sorted(values)
    names = {first: "Q" + "j" * (len(first) - 1), second: "Z" + "j" * (len(second) - 1)}
    a, b = (names[v] for v in values)
    return a, b


def bare(text: str) -> str:
    """Leave out what the width of a column, or a value that must be quoted, changes."""
    return re.sub(r"[\s\"'`\\|│─-]+|%2C(?=.)|,", "", html.unescape(text))


def as_written(result: Result, name: str) -> str:
    """What a format, or a screen, makes of a result, without figures: in a page they take long to draw."""
    result = dataclasses.replace(result, plots=())
    if name == "screen":
        with contextlib.redirect_stdout(io.StringIO()) as out:
            for detail in ("few", "asked"):
                render.module("table").show(result, detail)
        return out.getvalue()
    written = render.module(name).render(result)
    if name == "json":  # `where` says more where the text alone would mislead, and the checksum follows
        data = json.loads(written)
        for one in [*data["estimates"], *(check["estimate"] or {} for check in data["checks"])]:
            one.pop("where", None)
        return json.dumps({key: value for key, value in data.items() if key != "checksum"})
    return str(written)


TEXTS = ["screen"] + [name for name in render.NAMES if name not in ("png", "svg", "pdf")]


OF_CHECKS = ("badge", "github", "junit", "toml")


@pytest.mark.regression
@pytest.mark.one_in(4)
@pytest.mark.parametrize("values", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("command", ["metrics", "scale", "check"])
def test_values_are_printed_as_they_are_in_every_format(command: str, values: tuple[str, str]) -> None:
    neutral = plain(values)
    results = [found(command, values), found(command, neutral)]
    for pair in (results, [Result.from_json(one.to_json()) for one in results]):
        for name in TEXTS:
            if command == "check" or name not in OF_CHECKS:
                one, other = (bare(as_written(result, name)) for result in pair)
                assert one == with_values(other, values), name


def with_values(text: str, values: tuple[str, str]) -> str:
    """Put the values into a text that was written with `plain` ones."""
    return re.sub("|".join(plain(values)), lambda token: bare(values[plain(values).index(token[0])]), text)


@pytest.mark.regression
@pytest.mark.one_in(4)
@pytest.mark.parametrize("values", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("command", ["metrics", "scale", "check"])
def test_pictures_have_the_same_panels(command: str, values: tuple[str, str]) -> None:
    from calibcli.render.figure.panel import ece_lines

    pairs = (found(command, values), found(command, plain(values)))
    lines = [[ece_lines(plot, result.estimates) for plot in result.plots] for result in pairs]
    assert lines[0] == lines[1]
    assert len({plot.name for plot in pairs[0].plots}) == len(pairs[0].plots)


@pytest.mark.regression
def test_two_groups_of_a_file_are_two_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p = rows(PAIRS["phases"])
    lines = [",".join(["logit_0", "logit_1", "logit_2", "label", "visit"])]
    for z, label, visit in zip(p.logits, p.labels, p.slices["visit"], strict=True):
        lines.append(",".join([*(f"{v:.6f}" for v in z), str(label), str(visit)]))
    Path("d.csv").write_text("\n".join(lines) + "\n")
    assert main(["metrics", "d.csv", "--by", "visit", "-v", "-o", "r.json"]) == 0
    out = capsys.readouterr().out
    assert "visit=day before" in out
    assert "visit=day after" in out
    assert not re.search(r"(?m)^metric\s+scope\s+before", out)
    Path("calib.toml").write_text(
        "".join(
            f"[[gate]]\nmetric = 'nll'\nmax = 1.05\nby = '{by}'\n"
            for by in ("visit", 'visit="day before"', 'visit="day after"')
        )
    )
    assert main(["check", "d.csv", "-o", "c.json"]) == 1
    verdicts = {c.scope: c.outcome for c in Result.from_json(Path("c.json").read_bytes()).checks}
    slices = {"visit=day before": "pass", "visit=day after": "fail"}
    assert verdicts == {**slices, 'visit="day before"': "pass", 'visit="day after"': "fail"}
    Path("calib.toml").write_text("[[gate]]\nmetric = 'nll'\nmax = 1.05\nby = 'visit'\nvalues = ['day after']\n")
    assert main(["check", "r.json", "-o", "c.json"]) == 1
    assert {c.scope: c.outcome for c in Result.from_json(Path("c.json").read_bytes()).checks} == slices
    assert main(["compare", "r.json", "c.json", "-o", "both.json", "-q"]) == 0
    assert main(["report", "r.json", "c.json", "both.json", "-o", "all.json"]) == 0
    inside = dict(results_of(Result.from_json(Path("all.json").read_bytes())))
    for name, model in (("r", ""), ("c", ""), ("both", "c")):
        of = {(e.where.parts["visit"], e.where.phase, e.where.model) for e in inside[name].estimates if e.where.parts}
        assert of == {("day before", "", model), ("day after", "", model)}


# Numbers that are stored and read back: in comparisons, gates, reports, and through other commands.


@pytest.mark.regression
@pytest.mark.one_in(4)
@pytest.mark.parametrize("values", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("command", ["metrics", "scale", "check"])
def test_a_file_has_the_scopes_that_were_measured(command: str, values: tuple[str, str]) -> None:
    result = found(command, values)
    again = Result.from_json(result.to_json())
    assert again == result
    of_slices = [e.where for e in again.estimates if e.where.parts]
    assert {where.parts["visit"] for where in of_slices} == {*values}
    assert {where.phase for where in of_slices} == ({"before", "after"} if command == "scale" else {""})
    assert not any(where.against for where in of_slices)


@pytest.mark.regression
@pytest.mark.parametrize("values", PAIRS.values(), ids=PAIRS)
def test_a_stored_result_is_gated_slice_by_slice(values: tuple[str, str]) -> None:
    stored = Result.from_json(found("metrics", values).to_json())
    for scores in (rows(values), stored):
        judged = check(scores, values=[*values, "absent"], metric="nll", max=1.05)
        outcomes = {c.scope: c.outcome for c in judged.checks}
        first, second = values
        assert outcomes == {"visit=absent": "not_run", f"visit={first}": "fail", f"visit={second}": "pass"}


@pytest.mark.regression
@pytest.mark.parametrize("values", PAIRS.values(), ids=PAIRS)
def test_a_slice_of_a_stored_result_is_named_by_its_scope(values: tuple[str, str]) -> None:
    for value in values:
        judged = calibcli.check(found("metrics", values), max={"nll": 100}, scope=f"visit={value}")
        assert [c.outcome for c in judged.checks] == ["pass"], judged.checks


@pytest.mark.regression
@pytest.mark.parametrize("values", PAIRS.values(), ids=PAIRS)
def test_conditions_choose_the_rows_of_a_value(values: tuple[str, str]) -> None:
    by = f"visit={json.dumps(values[0])}"
    judged = check(rows(values), by=by, max=0.01)
    assert [c.outcome for c in judged.checks] == ["fail"]
    assert judged.estimates[0].n == N // 2
    assert judged.checks[0].scope == by
    again = Result.from_json(judged.to_json())
    assert again == judged
    for name in TEXTS:
        as_written(again, name)


@pytest.mark.regression
@pytest.mark.one_in(3)
@pytest.mark.parametrize("values", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("command", ["metrics", "scale"])
def test_stored_results_are_compared_slice_by_slice(command: str, values: tuple[str, str]) -> None:
    results = [found(command, values), found(command, plain(values))]
    compared = [calibcli.compare(one, one, names=["a", "b"]) for one in results]
    for name in TEXTS:
        if name not in OF_CHECKS:
            one, other = (bare(as_written(without_time(result), name)) for result in compared)
            assert one == with_values(other, values), name


@pytest.mark.regression
def test_a_report_has_a_row_for_each_slice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.json").write_text(found("metrics", PAIRS["phases"]).to_json())
    assert main(["report", "r.json", "-o", "page.html"]) == 0
    page = html.unescape(Path("page.html").read_text())
    assert "visit=day before" in page
    assert "visit=day after" in page
    assert not re.search(r"<th scope=col>before<", page)


@pytest.mark.regression
@pytest.mark.parametrize("values", [("", "x"), (" ", "x"), ("x ", "x")], ids=["empty", "blank", "ends in a blank"])
def test_values_that_look_empty(values: tuple[str, str]) -> None:
    result = found("metrics", values)
    again = Result.from_json(result.to_json())
    assert again == result
    assert {e.where.parts["visit"] for e in again.estimates if e.where.parts} == {*values}
    scaled = found("scale", values)
    for value in values:
        before, after, whole = (
            next(e for e in scaled.estimates if e.name == "nll" and (dict(e.where.parts), e.where.phase) == of)
            for of in (({"visit": value}, "before"), ({"visit": value}, "after"), ({}, "before"))
        )
        assert len({before.value, after.value, whole.value}) == 3
        assert before.scope == f"visit={value} before"
    shown = check(result, metric="nll", max=100)
    assert {c.scope for c in shown.checks} == {f"visit={value}" for value in values}


@pytest.mark.regression
def test_a_watch_has_the_slices_as_they_are(folder: Path) -> None:
    for values in PAIRS.values():
        watch = calibcli.Watch(max={"brier": 0.9})
        watch.update(rows(values), night="2024-01-01")
        result = watch.result()
        assert {c.scope for c in result.checks} == {"", *(f"visit={value}" for value in values)}
        assert [e.where.parts for e in result.estimates] == [{}, *({"visit": value} for value in sorted(values))]
        assert Result.from_json(result.to_json()).estimates == result.estimates


# Neighbours: other names that are written by users and stand in a scope.


@pytest.mark.regression
def test_columns_that_hold_signs() -> None:
    """A column `k=v` was called `k`, and shared its values with a column `k`."""
    for column in ("k=v", "a, b", "x - y", "loss", "after", "score"):
        result = calibcli.measure(rows(("left", "right"), column), "ece", "nll", "confidence_gap")
        assert f"of {column} shown" in headline(result)
        assert {e.where.parts.get(column) for e in result.estimates} == {None, "left", "right"}
        stored = Result.from_json(result.to_json())
        judged = check(stored, by=column, metric="nll", max=100)
        assert {c.scope for c in judged.checks} == {f"{column}=left", f"{column}=right"}
        assert f"By {column}" in render.module("html").render(stored)


@pytest.mark.regression
def test_two_columns_with_one_scope() -> None:
    """Of `a` the value `b=c`, and of `a=b` the value `c`: a stored result was refused as if edited."""
    p = rows(("left", "right"))
    half = p.slices["visit"] == "left"
    p = dataclasses.replace(p, slices={"a": np.where(half, "b=c", "d"), "a=b": np.where(half, "e", "c")})
    result = calibcli.measure(p, "nll")
    stored = Result.from_json(result.to_json())
    both = [e for e in stored.estimates if e.scope == "a=b=c"]
    assert [dict(e.where.parts) for e in both] == [{"a": "b=c"}, {"a=b": "c"}]
    one, other = (check(stored, by=by, metric="nll", max=100) for by in ("a", "a=b"))
    assert {c.scope: c.estimate and c.estimate.value for c in one.checks} == {
        "a=b=c": both[0].value,
        "a=d": both[1].value,
    }
    assert {c.scope: c.estimate and c.estimate.value for c in other.checks} == {
        "a=b=c": both[1].value,
        "a=b=e": both[0].value,
    }


@pytest.mark.regression
@pytest.mark.one_in(3)
@pytest.mark.parametrize("values", PAIRS.values(), ids=PAIRS)
def test_labels_of_many(values: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """`--multilabel`: metrics, and before, after and their difference of each label."""
    np.savez("labels.npz", **many_labels(values))
    assert main(["metrics", "labels.npz", "--multilabel", "-o", "m.json", "-q"]) == 0
    stored = Result.from_json(Path("m.json").read_bytes())
    assert {e.where.parts["label"] for e in stored.estimates} == {*values}
    assert {e.where.phase for e in stored.estimates} == {""}
    assert main(["scale", "labels.npz", "--multilabel", "-o", "s.json", "-q"]) == 0
    stored = Result.from_json(Path("s.json").read_bytes())
    of_labels = [e.where for e in stored.estimates if e.where.parts]
    assert {(where.parts["label"], where.phase) for where in of_labels} == {
        (value, phase) for value in values for phase in ("before", "after", CHANGE)
    }
    # a difference of two phases is no value of the metric: the file was refused where it is negative
    parts = Results(stored, "s.json").slices(Gate(metric="nll", max=1, by="label"))
    assert {*parts} == {f"{value} {phase}" for value in values for phase in ("before", "after")}


@pytest.mark.regression
@pytest.mark.parametrize(
    "names",
    [("x - y", "b"), ("b", "x - y"), ("a", "b - a"), ("a, b", "c, d"), ("lr=0.1", "lr=0.2"), ("before", "after")],
)
def test_names_of_models(names: tuple[str, str]) -> None:
    first, second = (calibcli.from_arrays(rows(("l", "r")).logits * t, rows(("l", "r")).labels) for t in (1, 0.5))
    compared = without_time(calibcli.compare(first, second, names=list(names)))
    like = without_time(calibcli.compare(first, second, names=[("Q" * len(names[0])), "Z" * len(names[1])]))
    for one, other in ((compared, like), [Result.from_json(r.to_json()) for r in (compared, like)]):
        assert all((e.where.model, e.where.against) == names[::-1] for e in one.estimates)
        said = difference_words(one)
        assert said.startswith(f"{names[1]} against {names[0]}: "), said
        shown, wanted = (bare(as_written(r, "screen")) for r in (one, other))
        for name, letter in zip(names, "QZ", strict=True):
            wanted = wanted.replace(letter * len(name), bare(name))
        assert shown == wanted
        judged = calibcli.check(one, max={"nll": 100}, scope=one.estimates[0].scope)
        assert [c.outcome for c in judged.checks] == ["not_run"]


@pytest.mark.regression
def test_the_model_whose_name_ends_like_another() -> None:
    """Of the models `a`, `b` and `c, b`, the last was shown in the rows of the second."""
    models = [calibcli.from_arrays(rows(("l", "r")).logits * t, rows(("l", "r")).labels) for t in (1, 0.5, 0.2)]
    compared = calibcli.compare(*models, names=["a", "b", "c, b"], metrics=["nll"])
    lines = [line for line in as_written(compared, "screen").splitlines() if line.startswith("nll ")][:2]
    values = [f"{calibcli.measure(one, 'nll')['nll'].value:.3f}"[:4] for one in models]
    assert ["c, b" in line for line in lines] == [False, True]
    for line, value in zip(lines, values[1:], strict=True):
        assert value in line, (line, values)


@pytest.mark.regression
def test_models_whose_scores_are_compared() -> None:
    """`calib ood` with a model called `k=v`: its difference was judged by a gate as if it were the metric."""
    rng = np.random.default_rng(1)
    files = [calibcli.from_arrays(rng.normal(size=(300, 3)) * s, rng.integers(0, 3, 300)) for s in (3, 1)]
    models = [OodScores(name, *files) for name in ("first", "k=v, x - y")]
    result = ood(models, OodOptions(scores=("confidence",)))
    for one in (result, Result.from_json(result.to_json())):
        own, other, *changes = (e for e in one.estimates if e.name == "auroc")
        assert own.where.parts == {"score": "confidence"}
        assert other.where.parts == {"score": "confidence", "model": "k=v, x - y"}
        assert [e.scope for e in changes] == ["confidence: k=v, x - y - first"]
        judged = calibcli.check(one, min={"auroc": -1}, scope=changes[0].scope)
        assert [c.outcome for c in judged.checks] == ["not_run"]
        assert "differences of auroc" in judged.checks[0].message
        judged = calibcli.check(one, min={"auroc": 0.1}, scope=other.scope)
        assert [c.outcome for c in judged.checks] == ["pass"]
        assert "confidence of k=v, x - y" in str(as_written(one, "table")) + headline(one) or "k=v, x - y" in headline(
            one
        )


@pytest.mark.regression
def test_tasks_of_an_evaluation() -> None:
    """Names of tasks, beside their mean: `mean of tasks` may itself be a task."""
    values = ("mean of tasks", "k=v, day before")
    p = rows(values, "task")
    p = dataclasses.replace(p, record=dataclasses.replace(p.record, tasks=list(values)))
    result = calibcli.measure(p, "accuracy", "ece")
    stored = Result.from_json(result.to_json())
    assert {e.where.parts.get("task", e.where.subject) for e in stored.estimates} == {"", "mean of tasks", *values}
    assert not {e.where.phase for e in stored.estimates} - {""}
    judged = check(stored, by="task", metric="accuracy", min=0.01, max=None)
    assert {c.scope for c in judged.checks} == {f"task={value}" for value in values}


def numbers(scope: str, value: float = 0.5) -> list[Estimate]:
    return [
        Estimate(name=name, scope=scope, value=value, low=value / 2, high=0.9, level=0.9, n=999)
        for name in ("nll", "ece")
    ]


@pytest.mark.regression
def test_a_gate_takes_the_loss_of_a_run_for_no_difference() -> None:
    """Of several runs, `ce after` was taken for a difference, and `focal:gamma=2 after` not."""
    scopes = [f"{loss} {phase}" for loss in ("ce", "focal:gamma=2") for phase in ("before", "after", CHANGE)]
    result = Result(command="fit", estimates=[e for scope in scopes for e in numbers(scope)])
    for scope in scopes:
        judged = calibcli.check(result, max={"nll": 2}, scope=scope)
        assert [c.outcome for c in judged.checks] != ["not_run"] or CHANGE in scope, judged.checks
        if CHANGE in scope:
            assert "differences" in judged.checks[0].message


@pytest.mark.regression
@pytest.mark.parametrize("arm", ["FL, after", "CE - LS", "gamma=2", "long before", "minus baseline"])
def test_arms_of_studies(arm: str) -> None:
    e = Estimate(name="nll", value=1.0, **Scope(subject=arm).fields)
    assert e.scope == arm
    [again] = Result.from_json(Result(command="study", estimates=[e]).to_json()).estimates
    assert (again.where.subject, again.where.parts, again.where.phase, again.where.against) == (arm, {}, "", "")


def test_rows_of_older_files_are_read_as_they_were() -> None:
    """Files without `where`: the text is read as it always was."""
    known: dict[str, dict[str, Any]] = {
        "": {},
        "before": {"phase": "before"},
        CHANGE: {"phase": CHANGE},
        "before the flood": {"subject": "before the flood"},
        "ce after": {"subject": "ce", "phase": "after"},
        f"focal:gamma=2 {CHANGE}": {"parts": {"focal:gamma": "2"}, "phase": CHANGE},
        "site=A": {"parts": {"site": "A"}},
        "site=A, B": {"parts": {"site": "A, B"}},
        "site=18 - 30": {"parts": {"site": "18 - 30"}},
        "site=A before": {"parts": {"site": "A"}, "phase": "before"},
        "site=A, b - a": {"parts": {"site": "A"}, "model": "b", "against": "a"},
        "b - a": {"model": "b", "against": "a"},
        "after, b - a": {"phase": "after", "model": "b", "against": "a"},
        "minus baseline": {"against": "baseline"},
        "minus baseline, b - a": {"subject": "minus baseline", "model": "b", "against": "a"},
        "loss=focal, k=1": {"parts": {"loss": "focal", "k": "1"}},
        "score=energy, model=x": {"parts": {"score": "energy", "model": "x"}},
        "mean of tasks": {"subject": "mean of tasks"},
        "ece <= 0.02": {"subject": "ece <= 0.02"},
    }
    for text, parts in known.items():
        where = Estimate(name="ece", value=1.0, scope=text).where
        empty = {"parts": {}, "subject": "", "phase": "", "model": "", "against": ""}
        assert vars(where) == {**empty, **parts}, text
        assert str(where) == text


@pytest.mark.parametrize("seed", range(20))
def test_what_is_read_is_written_to_the_letter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = [
        "a",
        "b",
        " ",
        ", ",
        " - ",
        "=",
        "before",
        " after",
        CHANGE,
        " minus ",
        "minus baseline",
        "loss=",
        ": ",
        "",
    ]
    for _ in range(300):
        text = "".join(rng.choice(pieces, rng.integers(0, 7)))
        assert str(Estimate(name="ece", value=1.0, scope=text).where) == text


def test_a_file_that_contradicts_itself_is_read_by_its_text() -> None:
    data = json.loads(found("metrics", PAIRS["phases"]).to_json())
    del data["checksum"]
    [first, *_] = [e for e in data["estimates"] if "where" in e]
    first["where"]["parts"] = {"visit": "day"}
    read = Result.from_json(json.dumps(data))
    assert next(e.where for e in read.estimates if e.scope == first["scope"]) == Scope.read(first["scope"])
    first["where"]["parts"] = {"visit": 7}
    with pytest.raises(calibcli.CalibError, match="a text"):
        Result.from_json(json.dumps(data))


def test_a_scope_that_is_replaced_is_read_anew() -> None:
    e = found("metrics", PAIRS["phases"]).estimates[-1]
    assert dataclasses.replace(e, scope="site=A").where.parts == {"site": "A"}
    assert dataclasses.replace(e, scope="").where.parts == {}
    assert Check(rule="ece <= 1", outcome="pass", estimate=e).estimate == e
