"""Rows without an answer, a known class or a label: left out, counted as wrong, refused; and gates at both ends.

Every number is computed again in NumPy; the public reports are named at the tests that rebuild them in small.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import evals_written as written
import numpy as np
import pytest
from benchmark_scripts import script

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import Exit, InputError, UsageError
from calibcli.scores.from_arrays import checked
from calibcli.scores.reading_options import fates_of

N, K, NAMES = 300, 3, ["cat", "dog", "fox"]
RNG = np.random.default_rng(5)
Z = 1.5 * RNG.normal(size=(N, K))
P = np.exp(Z) / np.exp(Z).sum(axis=1, keepdims=True)
Y = (Z + RNG.gumbel(size=Z.shape)).argmax(axis=1)
ODD = np.sort(RNG.choice(N, 23, replace=False))
KNOWN = np.delete(np.arange(N), ODD)
CONFIDENCE, HIT = P.max(axis=1), P.argmax(axis=1) == Y


def ece(confidence: np.ndarray, hit: np.ndarray, bins: int = 15) -> float:
    where = np.ceil(confidence * bins).clip(1) - 1
    return sum(abs((confidence - hit)[where == b].sum()) for b in range(bins)) / len(hit)


def brier(p: np.ndarray, y: np.ndarray) -> float:
    return float(((p - np.eye(p.shape[1])[y]) ** 2).sum(axis=1).mean())


def table(path: Path, labels: Any, header: str = "label,prob_cat,prob_dog,prob_fox") -> Path:
    rows = [header, *(",".join(map(repr, row)) for row in P.tolist())]
    named = [rows[0], *(f"{label},{row}" for label, row in zip(labels, rows[1:]))]
    path.write_text("\n".join([*named, ""]))
    return path


def texts(odd: str, names: list[str] = NAMES) -> list[str]:
    return [odd if i in ODD else names[y] for i, y in enumerate(Y)]


def npz(folder: Path, labels: np.ndarray) -> Path:
    np.savez(folder / "a.npz", probs=P, labels=labels)
    return folder / "a.npz"


def asked() -> list[Any]:
    """The questions of an evaluation with the model's own scores."""
    return [written.Question(z.tolist(), [f"text {c}" for c in range(K)], int(y)) for z, y in zip(np.log(P), Y)]


def inspect(folder: Path) -> Path:
    samples = written.inspect_samples(asked())
    for i in ODD:
        samples[i] |= {"output": {"choices": []}, "scores": {}, "error": {"message": "timeout"}}
    (folder / "a.json").write_bytes(written.json_log(samples))
    return folder / "a.json"


def batch(folder: Path) -> Path:
    rows = written.chats(asked(), batch=True)
    for i, row in enumerate(rows):
        row["target"] = "ABC"[Y[i]]
        if i in ODD:
            row |= {"response": None, "error": {"code": "timeout"}}
    (folder / "a.jsonl").write_bytes(written.lines(rows))
    return folder / "a.jsonl"


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sure(folder: Path, confidence: str = "{c!r}", correct: str = "{y}") -> Path:
    odd = [(confidence, correct) if i in ODD else ("{c!r}", "{y}") for i in range(N)]
    rows = [f"{a},{b}".format(c=float(c), y=int(y)) for (a, b), c, y in zip(odd, CONFIDENCE, HIT)]
    (folder / "a.csv").write_text("\n".join(["confidence,correct", *rows, ""]))
    return folder / "a.csv"


class Kind(NamedTuple):
    cause: str
    write: Callable[[Path], Path]
    options: str = ""
    scores: bool = True  # whether those of every class are known


KINDS = {
    "NaN": Kind("labels", lambda d: npz(d, np.where(np.isin(np.arange(N), ODD), np.nan, Y))),
    "empty": Kind("labels", lambda d: table(d / "a.csv", texts(""))),
    "NA": Kind("labels", lambda d: table(d / "a.csv", texts("NA"))),
    "None": Kind("labels", lambda d: table(d / "a.csv", texts("None"))),
    "question mark": Kind("labels", lambda d: table(d / "a.csv", texts("?"))),
    "blank among numbers": Kind("labels", lambda d: table(d / "a.csv", texts("", ["0", "1", "2"]))),
    "null": Kind(
        "labels",
        lambda d: lines(
            d / "a.jsonl",
            [{"probs": p, "label": None if i in ODD else int(y)} for i, (p, y) in enumerate(zip(P.tolist(), Y))],
        ),
    ),
    "no verdict": Kind("labels", lambda d: sure(d, correct=""), scores=False),
    "unknown name": Kind("classes", lambda d: table(d / "a.csv", texts("wolf"))),
    "unknown number": Kind("classes", lambda d: npz(d, np.where(np.isin(np.arange(N), ODD), 7, Y))),
    "unknown number in a text": Kind("classes", lambda d: table(d / "a.csv", texts("7", ["0", "1", "2"]))),
    "given classes": Kind(
        "classes", lambda d: table(d / "a.csv", texts("wolf"), "label,p0,p1,p2"), "--classes cat,dog,fox"
    ),
    "Inspect": Kind("answers", inspect),
    "batch": Kind("answers", batch, "--choices A,B,C"),
    "no confidence": Kind("answers", lambda d: sure(d, confidence=""), scores=False),
    "null confidence": Kind("answers", lambda d: sure(d, confidence="null"), scores=False),
}


def numbers(path: Path, out: Path, *options: str) -> dict[str, tuple[float, int]]:
    """The values and numbers of rows that a command line gives."""
    assert main(["metrics", str(path), *options, "-o", str(out), "-q"]) == Exit.OK
    return {e["name"]: (e["value"], e["n"]) for e in json.loads(out.read_text())["estimates"] if not e.get("scope")}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_with_every_option(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, out = KINDS[name], tmp_path / "result.json"
    path, how = kind.write(tmp_path), KINDS[name].options.split()
    fixes = {"drop"}
    if kind.cause != "answers":  # refused, with the number of rows, the first of them and the options that help
        assert main(["metrics", str(path), *how, "-q"]) == Exit.REFUSED
        said = " ".join(capsys.readouterr().err.split())
        assert "23 rows" in said
        assert re.search(rf"row {ODD[0]}\b", said), said
        fixes = {*re.findall(r"--missing (\w+)", said)}
        assert fixes == ({"drop", "wrong"} if kind.cause == "classes" else {"drop"})
    for fix in fixes:
        assert main(["metrics", str(path), *how, "--missing", fix, "-q"]) == Exit.OK
    every = [] if kind.scores else ["--metric", "accuracy", "--metric", "ece"]
    found = numbers(path, out, *how, *every, "--missing", "drop")
    assert found["accuracy"] == (pytest.approx(HIT[KNOWN].mean()), N - 23)
    confidence = CONFIDENCE[KNOWN]
    if kind.cause == "answers" and kind.scores:  # the log has the scores that its writer makes of ours
        z = calibcli.read(path, **({"choices": "A,B,C"} if how else {})).logits
        confidence = (np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)).max(axis=1)
    assert found["ece"] == (pytest.approx(ece(confidence, HIT[KNOWN]), abs=1e-7), N - 23)
    if kind.scores and kind.cause != "answers":
        assert found["brier"][0] == pytest.approx(brier(P[KNOWN], Y[KNOWN]), abs=1e-7)
    by_cause = numbers(path, out, *how, *every, "--missing", f"{kind.cause}=drop")
    assert by_cause == found
    options: dict[str, Any] = {"choices": "A,B,C"} if "--choices" in how else {}
    options |= {"classes": "cat,dog,fox"} if "--classes" in how else {}
    assert calibcli.read(path, missing="drop", **options).record.left_out == {kind.cause: 23}
    assert main(["metrics", str(path), *how, "--missing", "refuse", "-q"]) == Exit.REFUSED
    assert main(["metrics", str(path), *how, "--missing", f"{kind.cause}=refuse", "-q"]) == Exit.REFUSED
    capsys.readouterr()
    if kind.cause == "labels":
        assert main(["metrics", str(path), *how, "--missing", "wrong", "-q"]) == Exit.REFUSED
        assert main(["metrics", str(path), *how, "--missing", "labels=wrong", "-q"]) == Exit.USAGE
        assert "neither right nor wrong" in capsys.readouterr().err
        return
    right = HIT & np.isin(np.arange(N), KNOWN)
    found = numbers(path, out, *how, "--missing", "wrong")
    assert found["accuracy"] == (pytest.approx(right.sum() / N), N)
    if kind.cause == "classes":
        assert found["ece"] == (pytest.approx(ece(CONFIDENCE, right), abs=1e-7), N)
        assert found["brier_top"][0] == pytest.approx(((CONFIDENCE - right) ** 2).mean(), abs=1e-7)
    else:
        assert set(found) == {"accuracy"}, "no confidence is made up"
    for metric in ("nll", "ece")[: 2 if kind.cause == "answers" else 1]:
        assert main(["metrics", str(path), *how, "--missing", "wrong", "-m", metric, "-q"]) == Exit.USAGE
        assert metric in capsys.readouterr().err


def test_every_class_has_its_scores_where_only_labels_are_unknown() -> None:
    """Two causes at once, each with its own fate, and what other options leave out beside them."""
    labels = Y.astype(float)
    labels[:5], labels[5:9], labels[9:12] = np.nan, 9, -100
    p = P.copy()
    p[20] = np.nan
    how: dict[str, Any] = {"ignore_label": -100, "drop_nonfinite": True}
    rows = calibcli.from_arrays(p, labels, missing="labels=drop,classes=drop", **how)
    assert rows.record.left_out == {"nonfinite": 1, "ignored": 3, "classes": 4, "labels": 5}
    assert rows.n == N - 13
    kept = calibcli.from_arrays(p, labels, missing="labels=drop,classes=wrong", **how)
    hit = np.append(HIT[np.r_[12:20, 21:N]], np.zeros(4))
    assert calibcli.measure(kept, "accuracy")["accuracy"].value == pytest.approx(hit.mean())
    with pytest.raises(InputError, match="4 rows"):
        calibcli.from_arrays(p, labels, missing="labels=drop", **how)


def test_weights_groups_and_slices_go_with_their_rows() -> None:
    labels = np.where(np.isin(np.arange(N), ODD), 7, Y)
    w, site = RNG.uniform(0.5, 2, N), np.where(np.arange(N) % 3 == 0, "a", "b")
    how: dict[str, Any] = {"weights": w, "by": {"site": site}, "ids": np.arange(N), "group": np.arange(N) // 2}
    rows = calibcli.from_arrays(P, labels, missing="wrong", **how)
    order = np.append(KNOWN, ODD)
    np.testing.assert_array_equal(rows.weights, w[order])
    np.testing.assert_array_equal(rows.slices["site"], site[order])
    np.testing.assert_array_equal(np.asarray(rows.ids).astype(int), order)
    np.testing.assert_array_equal(rows.groups, (np.arange(N) // 2)[order])
    right = HIT & np.isin(np.arange(N), KNOWN)
    found = calibcli.measure(rows, "accuracy")
    assert found["accuracy"].value == pytest.approx(np.average(right, weights=w))
    assert found["accuracy", "site=a"].value == pytest.approx(np.average(right[site == "a"], weights=w[site == "a"]))


def test_what_the_option_takes() -> None:
    assert fates_of("wrong") == {"answers": "wrong", "classes": "wrong"}
    assert fates_of("answers=wrong, labels=drop") == {"answers": "wrong", "labels": "drop"}
    for text in ("none", "answers", "answers=", "rows=drop", "answers=drop,answers=wrong", "drop,wrong", ","):
        with pytest.raises(UsageError, match="is no choice"):
            calibcli.read("nothing.csv", missing=text)


@pytest.mark.parametrize("labels", [[1, 2, 3] * 100, ["no", "yes", "wolf"] * 100, ["a", "b", "c"] * 100])
def test_labels_that_may_all_be_wrong_are_no_missing_ones(labels: list[Any]) -> None:
    """Numbers from 1 to K, names of other classes, or of none: no option hides that the labels are read wrongly."""
    with pytest.raises(InputError):
        calibcli.from_arrays(P, labels, missing="drop", classes=NAMES if labels[0] == "a" else None)


def test_none_and_na_may_be_classes(tmp_path: Path) -> None:
    names = ["none", "na", "mild"]
    path = table(tmp_path / "a.csv", texts("", names), "label,prob_none,prob_na,prob_mild")
    assert calibcli.read(path, missing="drop").n == N - 23


def test_other_commands_take_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table(tmp_path / "a.csv", texts("wolf"))
    other = tmp_path / "b.csv"
    other.write_bytes(path.read_bytes())
    save = ["--save", str(tmp_path / "t.safetensors")]
    for line in (
        ["compare", str(path), str(other)],
        ["scale", str(path), *save],
        ["plan", "--min", "accuracy=0.5", "--from", str(path)],
        ["watch", str(tmp_path / "w.json"), str(path), "--min", "accuracy=0.5"],
    ):
        assert main([*line, "-q"]) == Exit.REFUSED
        assert "--missing drop" in " ".join(capsys.readouterr().err.split())
        assert main([*line, "--missing", "drop", "-q"]) in (Exit.OK, Exit.INCONCLUSIVE), line


# Gates: the smallest and the largest value that the rows allow.


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("missing")


def few(kind: str, k: int, m: int = 7, n: int = 60) -> tuple[np.ndarray, np.ndarray, Any]:
    """Rows of which the last m are missing, and what a gate reads of them."""
    p, y = P[:n, :k] / P[:n, :k].sum(axis=1, keepdims=True), Y[:n] % k
    labels = y.astype(float)
    labels[-m:] = np.nan if kind == "labels" else k + 2
    return p, y[:-m], checked(p, labels, {}, judged=True)


@pytest.mark.parametrize("metric", ["accuracy", "ece", "brier", "nll", "brier_top", "confidence_gap", "ece:bins=4"])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.one_in(4)
def test_both_ends_are_those_of_all_possible_labels(bench: ModuleType, metric: str, k: int) -> None:
    p, known, rows = few("labels", k)
    every = (
        [
            calibcli.measure(p, np.append(known, labels), metric)[metric].value
            for labels in itertools.product(range(k), repeat=7)
        ]
        if k == 2
        else None
    )
    low, high = bench.ends(rows, metric)
    if every is None:  # rows are independent of each other but in bins, where right or wrong is all that counts
        top, least = p.argmax(axis=1)[-7:], p.argmin(axis=1)[-7:]
        pairs = itertools.product(*zip(top, least))
        every = [calibcli.measure(p, np.append(known, labels), metric)[metric].value for labels in pairs]
    assert (low, high) == pytest.approx((min(every), max(every)), abs=1e-9)


def test_rows_without_scores_move_an_error_by_their_share(bench: ModuleType) -> None:
    confidence = np.where(np.isin(np.arange(N), ODD), np.nan, CONFIDENCE)
    e, m = ece(CONFIDENCE[KNOWN], HIT[KNOWN]), len(ODD)
    rows = calibcli.from_confidence(confidence, HIT)
    assert bench.ends(rows, "ece") == pytest.approx(
        (max(0, (len(KNOWN) * e - m) / N), (len(KNOWN) * e + m) / N), abs=1e-9
    )
    hits = HIT[KNOWN].sum()
    assert bench.ends(rows, "accuracy") == pytest.approx((hits / N, (hits + m) / N))
    total = ((CONFIDENCE - HIT)[KNOWN] ** 2).sum()
    assert bench.ends(rows, "brier_top") == pytest.approx((total / N, (total + m) / N))


def test_weights_and_groups_at_both_ends(bench: ModuleType) -> None:
    labels = np.where(np.isin(np.arange(N), ODD), np.nan, Y)
    w = RNG.uniform(0.5, 2, N)
    rows = checked(P, labels, {"weights": w, "group": np.arange(N) // 3}, judged=True)
    right = HIT & np.isin(np.arange(N), KNOWN)
    most = right | np.isin(np.arange(N), ODD)
    assert bench.ends(rows, "accuracy") == pytest.approx((np.average(right, weights=w), np.average(most, weights=w)))
    low, high = bench.ends(rows, "ece")
    own, apart = w[KNOWN].sum(), w[ODD].sum()
    plain = calibcli.measure(P[KNOWN], Y[KNOWN], "ece", weights=w[KNOWN])["ece"].value
    assert high == pytest.approx((own * plain + apart) / w.sum())
    assert low == pytest.approx(max(0, (own * plain - apart) / w.sum()))


def test_metrics_without_known_ends_are_not_run_with_the_reason() -> None:
    labels = np.where(np.isin(np.arange(N), ODD), np.nan, Y)
    for metric in ("adaece", "smece", "temperature_gain", "classwise_ece"):
        [check] = calibcli.check(P, labels, max={metric: 0.3}).checks
        assert check.outcome == "not_run"
        assert f"23 of 300 rows have no label, and {metric} has no smallest and largest value" in check.message
        assert "missing drop" in check.message.replace("=", " ")
        assert calibcli.check(P, labels, max={metric: 0.3}, missing="drop").checks[0].outcome != "not_run"
    odd = np.where(np.isin(np.arange(N), ODD), 7, Y)
    [check] = calibcli.check(P, odd, max={"nll": 2}).checks
    assert "nll is not defined for a class that the model does not know" in check.message
    confidence = np.where(np.isin(np.arange(N), ODD), np.nan, CONFIDENCE)
    rows = calibcli.from_confidence(confidence, HIT, weights=RNG.uniform(1, 2, N))
    assert calibcli.check(rows, min={"accuracy": 0.3}).checks[0].outcome == "pass"


def test_a_gate_says_what_decides_and_its_lines_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, right = inspect(tmp_path), HIT[KNOWN].sum()
    limit = right / len(KNOWN) - 0.055
    assert main(["check", str(path), "--min", f"accuracy={limit}"]) == Exit.NOT_RUN
    said = " ".join(capsys.readouterr().out.split())
    assert "23 of 300 samples have no answer and decide it" in said
    assert f"accuracy {right / len(KNOWN):.4g}" in said
    assert f"{right / N:.4g} if all of them were wrong" in said
    lines = re.findall(r"--missing (\w+)", said)
    assert {*lines} >= {"drop", "wrong"}
    codes = {fix: main(["check", str(path), "--min", f"accuracy={limit}", "--missing", fix, "-q"]) for fix in lines}
    assert codes == {"drop": Exit.OK, "wrong": Exit.INCONCLUSIVE}
    (tmp_path / "calib.toml").write_text(
        f'[data]\neval = "{path}"\nmissing = "answers=drop"\n[[gate]]\nmetric = "accuracy"\nmin = {limit}\n'
    )
    assert main(["check", "--config", str(tmp_path / "calib.toml"), "-q"]) == Exit.OK
    assert main(["check", str(path), "--min", "accuracy=0.3"]) == Exit.OK
    assert "which cannot change that" in " ".join(capsys.readouterr().out.split())


def test_a_result_that_left_answers_out_is_not_judged(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    assert main(["metrics", str(inspect(tmp_path)), "-o", str(out), "-q"]) == Exit.OK
    [check] = calibcli.check(out, min={"accuracy": 0.3}).checks
    assert check.outcome == "not_run"
    assert "23 of 300 samples have no answer" in check.message
    assert main(["metrics", str(tmp_path / "a.json"), "--missing", "drop", "-o", str(out), "-q"]) == Exit.OK
    assert calibcli.check(out, min={"accuracy": 0.3}).checks[0].outcome == "pass"


def test_slices_have_their_own_missing_rows() -> None:
    labels, site = np.where(np.isin(np.arange(N), ODD), np.nan, Y), np.where(np.isin(np.arange(N), ODD), "a", "b")
    site[KNOWN[:210]] = "a"
    site[ODD[:3]] = "c"
    found = calibcli.check(P, labels, min={"accuracy": 0.3}, by={"site": site}, min_n=50).checks
    by = {check.scope: check for check in found}
    assert "20 of 230 rows have no label" in by["site=a"].message
    assert by["site=b"].message == ""
    assert (by["site=c"].outcome, by["site=c"].message) == ("not_run", "every row of it was left out")
    confidence = np.where(np.isin(np.arange(N), ODD), np.nan, CONFIDENCE)
    rows = calibcli.from_confidence(confidence, HIT, by={"site": site})
    by = {check.scope: check for check in calibcli.check(rows, min={"accuracy": 0.3}, min_n=50).checks}
    assert "20 of 230 samples have no answer" in by["site=a"].message
    assert by["site=c"].outcome == "not_run"


def test_failed_samples_may_belong_to_any_slice(tmp_path: Path) -> None:
    path = inspect(tmp_path)
    found = calibcli.check(path, min={"accuracy": 0.3}, by="metadata.subject", min_n=10).checks
    assert len(found) > 2
    assert all("23 of" in check.message for check in found)


def test_each_task_counts_its_own_failures(tmp_path: Path) -> None:
    right, paths = {}, []
    for name, failed in (("a", 20), ("b", 0)):
        questions = written.questions(150, ragged=False, seed=ord(name))
        samples = written.inspect_samples(questions)
        for sample in samples[:failed]:
            sample |= {"output": {"choices": []}, "scores": {}, "error": {"message": "timeout"}}
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_bytes(written.json_log(samples))
        right[name] = sum(q.best == q.right for q in questions[failed:])
    how: dict[str, Any] = {"tasks": True, "by": "task", "min": {"accuracy": 0.4}, "min_n": 50}
    every, one, two = calibcli.check(paths, **how).checks
    assert "20 of 300 samples" in every.message
    assert "20 of 150 samples" in one.message
    assert two.message == ""
    found = [check.estimate for check in calibcli.check(paths, missing="wrong", **how).checks]
    assert [(e.value, e.n) for e in found if e is not None] == [
        (pytest.approx(sum(right.values()) / 300), 300),
        (pytest.approx(right["a"] / 150), 150),
        (pytest.approx(right["b"] / 150), 150),
    ]
    joined = calibcli.read(paths, shards=True, ids="sample", missing="answers=drop")
    assert joined.record.left_out == {"answers": 20}


def test_a_baseline_pairs_with_no_row_that_is_missing(tmp_path: Path) -> None:
    path, base = table(tmp_path / "a.csv", texts("wolf")), table(tmp_path / "b.csv", texts("wolf"))
    [check] = calibcli.check(path, baseline=base, margin={"brier": 0.5}).checks
    assert check.outcome == "not_run"
    assert "pair with no row of the baseline" in check.message
    assert calibcli.check(path, baseline=base, margin={"brier": 0.5}, missing="drop").checks[0].outcome == "pass"


def test_both_sides_of_zero(bench: ModuleType) -> None:
    """A gap that may be far above or far below 0 may also be 0."""
    p = np.full((400, 2), 0.5)
    p[:, 0], p[:, 1] = 0.5 - 1e-3, 0.5 + 1e-3
    labels = np.where(np.arange(400) < 220, np.arange(400) % 2, np.nan)
    assert bench.ends(checked(p, labels, {}, judged=True), "confidence_gap")[0] < -0.2
    [check] = calibcli.check(p, labels, max={"confidence_gap": 0.1}).checks
    assert check.outcome == "not_run"


def test_several_labels_count_what_is_not_known() -> None:
    targets = (RNG.random((N, 2)) < 0.5).astype(float)
    targets[ODD, 0] = np.nan
    found = calibcli.scores.from_arrays.of_labels(RNG.random((N, 2)), targets)
    one, two = found.values()
    assert one.record.left_out == {"labels": 23}
    assert two.record.left_out == {}
    [check] = calibcli.check(one, max={"brier": 0.5}).checks
    assert "23 of 300 rows have no label, which cannot change that" in check.message


@pytest.mark.parametrize("number", range(24))
def test_what_is_missing_by_the_outcome_is_held_by_both_ends(bench: ModuleType, number: int) -> None:
    found, _, _ = bench.faults(np.random.default_rng(number), number)
    assert found == []


# Public reports of other tools, each in small: what went wrong there must be refused, counted or said here.


@pytest.mark.parametrize(
    ("asked_for", "failed", "right", "report"),
    [
        (100, 10, 80, "UKGovernmentBEIS/inspect_ai#3707: 80 of 90, not of 100"),
        (8, 2, 2, "UKGovernmentBEIS/inspect_ai#2914: two errors of eight look like another right one"),
        (1000, 60, 700, "UKGovernmentBEIS/inspect_ai#4286: errors vanish from the denominator"),
        (80, 5, 40, "instructlab/eval#39: a score of -1 is filtered out and nobody is told"),
        (44, 6, 30, "TonicAI/tonic_validate#36: an error and a score of 0 are not the same"),
    ],
)
def test_reports_of_failed_samples(asked_for: int, failed: int, right: int, report: str) -> None:
    confidence = np.append(np.full(asked_for - failed, 0.8), np.full(failed, np.nan))
    correct = np.arange(asked_for) < right
    rows = calibcli.from_confidence(confidence, correct)
    assert rows.record.left_out == {"answers": failed}
    assert calibcli.measure(rows, "accuracy")["accuracy"].value == pytest.approx(right / (asked_for - failed))
    wrong = calibcli.from_confidence(confidence, correct, missing="wrong")
    assert calibcli.measure(wrong, "accuracy")["accuracy"].value == pytest.approx(right / asked_for), report
    limit = right / (asked_for - failed) - 0.005
    [check] = calibcli.check(rows, min={"accuracy": limit}, min_n=1).checks
    assert check.outcome in ("not_run", "inconclusive")
    assert f"{failed} of {asked_for:,} samples have no answer" in check.message


def test_reports_of_unknown_classes() -> None:
    """lightgbm-org/LightGBM#4626 (an unseen label is a wrong prediction), EducationalTestingService/skll#279 and
    sentinel-hub/eo-learn#82 (evaluation ends with an error of the label encoder).
    """
    p = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.8, 0.1, 0.1]])
    labels = np.array(["foo", "bar", "baz", "qux"])
    with pytest.raises(InputError, match=r"'qux'.*is not one of the 3 classes") as found:
        calibcli.measure(p, labels, "accuracy", classes=["foo", "bar", "baz"])
    assert "missing='wrong'" in found.value.fix
    how: dict[str, Any] = {"classes": ["foo", "bar", "baz"]}
    assert calibcli.measure(p, labels, "accuracy", missing="wrong", **how)["accuracy"].value == 0.75
    assert calibcli.measure(p, labels, "accuracy", missing="drop", **how)["accuracy"].value == 1.0


@pytest.mark.parametrize("absent", [None, np.nan, "nan"])
def test_reports_of_labels_that_are_not_there(absent: Any) -> None:
    """autogluon/autogluon#621, alteryx/evalml#2063 (an error at NaN) and whylabs/whylogs#1373 (every NaN a class)."""
    labels = np.array([absent if i in ODD else int(y) for i, y in enumerate(Y)], object)
    with pytest.raises(InputError, match="23 rows have no label"):
        calibcli.measure(P, labels, "nll")
    nll = calibcli.measure(P, labels, "nll", missing="drop")["nll"]
    assert (nll.value, nll.n) == (pytest.approx(-np.log(P[KNOWN, Y[KNOWN]]).mean()), N - 23)


def test_reports_of_an_index_to_ignore() -> None:
    """Lightning-AI/torchmetrics#304 and #1691: -100 is left out of every number, and said."""
    labels = np.where(np.isin(np.arange(N), ODD), -100, Y)
    with pytest.raises(InputError, match="negative") as found:
        calibcli.measure(P, labels, missing="drop")
    assert "ignore_label=-100" in found.value.fix
    rows = calibcli.from_arrays(P, labels, ignore_label=-100)
    assert rows.record.left_out == {"ignored": 23}
    assert calibcli.measure(rows, "accuracy")["accuracy"].value == pytest.approx(HIT[KNOWN].mean())
