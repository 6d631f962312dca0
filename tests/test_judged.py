"""Few labels and many verdicts of a judge: the mean of both, what it refuses, and how often its interval misses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError

N, LABELS = 1200, 240
RNG = np.random.default_rng(7)
CONFIDENCE = RNG.uniform(0.4, 1, N).round(4)
RIGHT = RNG.random(N) < CONFIDENCE - 0.05
JUDGE = np.where(RNG.random(N) < 0.92, RIGHT, ~RIGHT)
HAS_LABEL = np.isin(np.arange(N), RNG.permutation(N)[:LABELS])
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(has_label: Any = HAS_LABEL, judge: Any = JUDGE, **more: Any) -> Path:
        cells = {
            "confidence": CONFIDENCE,
            "correct": np.where(has_label, (1 * RIGHT).astype(str), ""),
            "judge": judge if judge.dtype.kind == "U" else 1 * judge,
        }
        cells |= more
        lines = [",".join(cells), *(",".join(map(str, row)) for row in zip(*cells.values(), strict=True))]
        (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
        return tmp_path / "rows.csv"

    return written


def mean(y: Any, f: Any, rest: Any) -> tuple[float, float]:
    """The prediction-powered mean and its λ, by loops; each half takes λ from the other one."""
    total, trust = 0.0, []
    for half in (0, 1):
        other = [i for i in range(len(y)) if i % 2 != half]
        my, mf = (sum(v[i] for i in other) / len(other) for v in (y, f))
        variance = sum((f[i] - mf) ** 2 for i in other) / len(other)
        covariance = sum((y[i] - my) * (f[i] - mf) for i in other) / len(other)
        trust.append(min(1, max(0, covariance / ((1 + len(y) / len(rest)) * variance))))
    for i in range(len(y)):
        total += y[i] - trust[i % 2] * f[i] + trust[i % 2] * sum(rest) / len(rest)
    return total / len(y), sum(trust[i % 2] for i in range(len(y))) / len(y)


@pytest.mark.parametrize("metric", ["accuracy", "brier_top", "confidence_gap"])
def test_the_mean_is_that_of_loops(metric: str, write: Write) -> None:
    def rows(hit: Any) -> Any:
        return {"accuracy": 1.0 * hit, "brier_top": (CONFIDENCE - hit) ** 2, "confidence_gap": CONFIDENCE - hit}[metric]

    found = calibcli.measure(write(), None, metric, judge="judge")[metric]
    value, trust = mean(rows(RIGHT)[HAS_LABEL], rows(JUDGE)[HAS_LABEL], rows(JUDGE)[~HAS_LABEL])
    assert found.value == pytest.approx(value, abs=1e-12)
    assert found.detail["trust"] == pytest.approx(trust, abs=1e-12)
    assert found.detail["judge_alone"] == pytest.approx(float(np.mean(rows(JUDGE))), abs=1e-12)
    assert (found.n, found.detail["verdicts"]) == (LABELS, N)


def test_a_judge_that_names_classes_is_read_as_one_that_does(tmp_path: Path) -> None:
    """Beside a prediction and a label, its words are those of the labels: right is where it names the prediction."""
    rng = np.random.default_rng(5)
    said = rng.integers(0, 2, N)
    label, judge = (np.where(right, said, 1 - said) for right in (RIGHT, JUDGE))
    for words in (("0", "1"), ("no", "yes"), ("Consistent", "Not so")):
        name = np.array(words)
        columns = (name[said], CONFIDENCE, np.where(HAS_LABEL, name[label], ""), name[judge])
        lines = ["prediction,confidence,label,judge", *(",".join(map(str, row)) for row in zip(*columns, strict=True))]
        (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
        found = calibcli.measure(tmp_path / "a.csv", None, "accuracy", judge="judge")["accuracy"]
        assert found.detail["judge_alone"] == pytest.approx(JUDGE.mean(), abs=1e-12)
        verdicts = [line.rpartition(",")[0] + f",{int(one)}" for line, one in zip(lines[1:], JUDGE, strict=True)]
        if words != ("0", "1"):  # a judge that says whether the prediction is right
            (tmp_path / "b.csv").write_text("\n".join([lines[0], *verdicts]) + "\n")
            same = calibcli.measure(tmp_path / "b.csv", None, "accuracy", judge="judge")["accuracy"]
            assert same.value == found.value


@pytest.mark.parametrize("absent", ["", "-", "NA", "?"])
def test_cells_without_a_label_are_those_that_reading_leaves_out(absent: str, write: Write) -> None:
    path = write(correct=np.where(HAS_LABEL, np.where(RIGHT, "yes", "no"), absent), judge=np.where(JUDGE, "yes", "no"))
    found = calibcli.measure(path, None, "accuracy", judge="judge")["accuracy"]
    assert (found.n, found.detail["verdicts"]) == (LABELS, N)


def test_rows_without_a_verdict_are_not_dropped(write: Write) -> None:
    path = write(judge=np.where(np.arange(N) == 7, "", np.where(JUDGE, "1", "0")))
    for missing in (None, "drop"):
        with pytest.raises(InputError, match="without a verdict") as found:
            calibcli.measure(path, None, "accuracy", judge="judge", missing=missing)
        assert "give every row a verdict" in found.value.fix
        assert "drop leaves" not in found.value.fix


def test_labels_that_only_some_rows_of_json_have_are_a_column_with_gaps(tmp_path: Path) -> None:
    rows = [{"confidence": float(c), "judge": bool(j)} for c, j in zip(CONFIDENCE, JUDGE, strict=True)]
    for i in np.flatnonzero(HAS_LABEL):
        rows[i]["correct"] = bool(RIGHT[i])
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = calibcli.measure(tmp_path / "a.jsonl", None, "accuracy", judge="judge")["accuracy"]
    assert (found.n, found.detail["verdicts"]) == (LABELS, N)


def test_the_interval_is_shorter_than_that_of_the_labels_alone(write: Write) -> None:
    path = write()
    together = calibcli.measure(path, None, "accuracy", judge="judge")["accuracy"]
    alone = calibcli.measure(path, None, "accuracy", missing="labels=drop")["accuracy"]
    assert together.high - together.low < 0.8 * (alone.high - alone.low)
    assert together.low <= RIGHT.mean() <= together.high
    assert together.detail["worth_labels"] > 1.5 * LABELS


def test_a_judge_that_knows_nothing_is_not_trusted(write: Write) -> None:
    path = write(judge=np.random.default_rng(3).random(N) < 0.5)
    found = calibcli.measure(path, None, "accuracy", judge="judge")["accuracy"]
    assert 0 <= found.detail["trust"] < 0.2
    assert found.value == pytest.approx(RIGHT[HAS_LABEL].mean(), abs=0.02)


def test_groups_count_as_one_draw(write: Write) -> None:
    """Rows of a group, all with a label or all without: five equal rows each are one."""
    group = np.arange(N) // 5
    right, labelled = np.repeat(RIGHT[::5], 5), np.repeat(HAS_LABEL[::5], 5)
    judged = np.repeat(JUDGE[::5], 5)
    correct = np.where(labelled, (1 * right).astype(str), "")
    path = write(correct=correct, judge=1 * judged, site=group)
    rows = calibcli.measure(path, None, "accuracy", judge="judge")["accuracy"]
    groups = calibcli.measure(path, None, "accuracy", judge="judge", group="site")["accuracy"]
    assert groups.se == pytest.approx(rows.se * 5**0.5, rel=0.1)


def test_classes_are_judged_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    p = RNG.dirichlet([1, 1, 1], N).round(6)
    y = np.array([RNG.choice(3, p=row / row.sum()) for row in p])
    judge = np.where(RNG.random(N) < 0.9, y, RNG.integers(0, 3, N))
    names = np.array(["ant", "bee", "cat"])
    rows = [f"{a},{b},{c},{names[t] if h else ''},{names[j]}" for (a, b, c), t, h, j in zip(p, y, HAS_LABEL, judge)]
    Path("a.csv").write_text("\n".join(["p_ant,p_bee,p_cat,label,llm", *rows]) + "\n")
    assert main(["metrics", "a.csv", "--judge", "llm", "--json", "-q"]) == 0
    result = json.loads(capsys.readouterr().out)
    found = {e["name"]: e for e in result["estimates"]}
    assert {"accuracy", "nll", "brier"} <= {*found}
    assert "ece" not in found
    assert found["accuracy"]["low"] < (p.argmax(1) == y).mean() < found["accuracy"]["high"]
    assert found["nll"]["high"] is not None
    assert main(["metrics", "a.csv", "--judge", "llm", "-m", "ece", "--json", "-q"]) == 0
    [one] = json.loads(capsys.readouterr().out)["estimates"]
    assert one["value"] is None
    assert "no mean of rows" in one["reason"]


def test_rows_that_people_chose_are_refused(write: Write) -> None:
    chosen = HAS_LABEL & (~JUDGE | (RNG.random(N) < 0.4))
    with pytest.raises(InputError, match="did not draw them at random"):
        calibcli.measure(write(chosen), None, "accuracy", judge="judge")


@pytest.mark.parametrize(
    ("cells", "words", "problem"),
    [
        ({"judge": np.where(np.arange(N) == 5, "", "1")}, {}, "1 row has no|without a verdict"),
        ({"has_label": np.ones(N, bool)}, {}, "1,200 rows of 1,200 have a label"),
        ({}, {"judge": "nobody"}, "no such array"),
        ({}, {"by": ["judge"]}, "judge= with by="),
        ({}, {"per_class": True}, "judge= with per_class="),
    ],
)
def test_what_a_judge_cannot_do_is_refused(cells: Any, words: Any, problem: str, write: Write) -> None:
    with pytest.raises((InputError, UsageError), match=problem):
        calibcli.measure(write(**cells), None, **{"judge": "judge", **words})


def test_scores_that_are_no_file_have_no_judge() -> None:
    with pytest.raises(UsageError, match="no file"):
        calibcli.measure([[2.0, 0.0], [0.0, 1.0]], [0, 1], judge="judge")


def test_few_labels_give_no_interval(write: Write) -> None:
    few = np.isin(np.arange(N), np.flatnonzero(HAS_LABEL)[:12])
    found = calibcli.measure(write(few), None, "accuracy", judge="judge")["accuracy"]
    assert (found.low, found.high) == (None, None)
    assert "needs 20" in found.reason


def test_the_interval_keeps_its_level() -> None:
    """A short form of benchmarks/judged.py: 300 draws, of which 5 % may be missed on each side."""
    from calibcli.metrics import registry
    from calibcli.metrics.judged import JudgedMean
    from calibcli.metrics.registry import Sample

    choices, rng, missed = registry.choose(["accuracy"], 2, True), np.random.default_rng(11), np.zeros(2)

    def mean_of(hit: Any) -> Any:
        rows = calibcli.from_confidence(np.full(len(hit), 0.8), hit)
        return choices[0](Sample.of(registry.columns_of(rows, choices), rows).acyclic)

    for _ in range(300):
        right = rng.random(800) < 0.7
        judged, has_label = np.where(rng.random(800) < 0.9, right, ~right), np.arange(800) < 120
        found = JudgedMean(mean_of(right[has_label]), mean_of(judged), has_label).interval(0.90)
        missed += [found.high < 0.7, found.low > 0.7]
    assert (missed <= 27).all()  # 1 in 1,000 draws of Binomial(300, .05) is more


@pytest.mark.regression
@pytest.mark.parametrize("command", [["inspect"], ["threshold", "--max-risk", "0.1"], ["check", "--max", "ece=0.1"]])
def test_lines_name_the_judge_where_the_command_takes_one(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    right, sure = rng.random(400) < 0.7, rng.random(400).round(2)
    rows = [
        f"{c},{('yes' if y else 'no') if i % 4 == 0 else ''},{'yes' if y ^ (i % 9 == 0) else 'no'}"
        for i, (c, y) in enumerate(zip(sure, right, strict=True))
    ]
    Path("a.csv").write_text("\n".join(["confidence,human,llm", *rows]))
    assert main([command[0], "a.csv", *command[1:], "-q"]) == 4
    lines = capsys.readouterr().err
    assert "--correct human" in lines
    assert "--judge llm" not in lines
    assert main([command[0], "a.csv", *command[1:], "--confidence", "confidence", "--correct", "human", "-q"]) in (
        3,
        4,
        5,
    )
    said = capsys.readouterr()
    whole = "metrics a.csv --confidence confidence --correct human --judge llm"
    if command[0] == "inspect":
        assert f"calib {whole}, if it judges all rows" in said.err
    assert main([*whole.split(), "-q"]) == 0
