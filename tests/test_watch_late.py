"""A watch whose labels come late, whose rows come again, and whose files are named by their night."""

from __future__ import annotations

import csv
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_watch import KILL, ROOT, arrays

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError
from calibcli.gate.config import Config, Gate
from calibcli.gate.sources import RecordedOutputs
from calibcli.watch import _rules as watching
from calibcli.watch import late, state_file
from calibcli.watch.state_file import WatchState

NIGHTS, ROWS, DRIFT = 12, 150, 6
LIMITS = ("--max", "ece=0.12", "--min", "accuracy=0.7")


def night(i: int) -> str:
    return f"2026-03-{i + 1:02}"


def outputs(i: int, rows: int = ROWS, k: int = 3) -> dict[str, Any]:
    """A night of a model that is calibrated; from night DRIFT on most labels have nothing to do with it."""
    rng = np.random.default_rng(i)
    z = rng.normal(size=(rows, k)) * 2
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    y = np.where((rng.random(rows) < 0.7) & (i >= DRIFT), rng.integers(0, k, rows), y)
    return {"logits": z, "labels": y, "ids": np.array([f"r{i}-{j}" for j in range(rows)])}


def table(path: Path, ids: Any, labels: Any, scores: Any = None) -> Path:
    """Write a CSV of ids and labels ("" where there is none), or of ids and scores (and labels)."""
    with open(path, "w", newline="") as file:
        names = [] if scores is None else [f"logit_{c}" for c in range(scores.shape[1])]
        writer = csv.writer(file)
        writer.writerow(["id", *names, *([] if labels is None else ["label"])])
        for j, one in enumerate(ids):
            more = [] if scores is None else [repr(float(v)) for v in scores[j]]
            writer.writerow([one, *more, *([] if labels is None else [labels[j]])])
    return path


def watch(state: Path, *argv: Any) -> int:
    return main(["watch", str(state), *map(str, argv), "-q"])


def equal(one: WatchState, other: WatchState) -> None:
    """The same state, to the last bit."""
    for name in ("night", "nights", "rows", "rows_tonight", "history", "batches", "ids_cut", "settings"):
        assert getattr(one, name) == getattr(other, name), name
    there = arrays(other)
    for name, array in arrays(one).items():
        assert np.array_equal(array, there[name]), name
    assert [s.crossed for s in one.streams.values()] == [s.crossed for s in other.streams.values()]
    assert np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.seen, other.seen)
    assert len(one.waiting) == len(other.waiting) == 0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> WatchState:
    """The state of a run in which all labels were there from the start."""
    folder = tmp_path_factory.mktemp("whole")
    for i in range(NIGHTS):
        one = outputs(i)
        table(folder / f"scores-{night(i)}.csv", one["ids"], one["labels"], one["logits"])
    assert watch(folder / "state.json", folder / "scores-*.csv", *LIMITS) == 1
    return state_file.load(folder / "state.json")


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.one_in(3)
def test_labels_of_a_week_later_give_the_state_of_labels_that_were_there(
    seed: int, whole: WatchState, tmp_path: Path, capsys: Any
) -> None:
    """70 % of the labels at once, the rest later, in any order, repeated, in two files; one folder, one command."""
    rng = np.random.default_rng(seed)
    state, exports, come = tmp_path / "state.json", tmp_path / "exports", tmp_path / "labels"
    exports.mkdir()
    come.mkdir()
    rest: list[tuple[str, int]] = []
    for i in range(NIGHTS):
        one = outputs(i)
        first = rng.random(ROWS) < 0.7
        known = [y if there else "" for y, there in zip(one["labels"].tolist(), first)]
        table(exports / f"scores-{night(i)}.csv", one["ids"], known, one["logits"])
        rest += [(a, b) for a, b, there in zip(one["ids"].tolist(), one["labels"].tolist(), first) if not there]
    assert watch(state, exports, "--labels", come, *LIMITS) == 0
    assert read_waiting(state) == [(night(i), ROWS) for i in range(NIGHTS)]
    order = rng.permutation(len(rest))
    parts = np.array_split(order, 3)
    for i, some in enumerate([*parts, parts[0]]):
        table(come / f"late-{i}.csv", *zip(*[rest[j] for j in some]))
        last = watch(state, exports, "--labels", come)
    assert last == 1
    assert watch(state, exports, "--labels", come) == 1  # again: nothing counts twice
    found = state_file.load(state)
    equal(found, whole)
    assert found.rows == NIGHTS * ROWS
    drifted = min(day for one in found.streams.values() for key, day in one.crossed.items() if key != "pass")
    assert night(DRIFT) <= drifted <= night(DRIFT + 2)


def read_waiting(state: Path) -> list[tuple[str, int]]:
    return [(one, n) for one, (n, _) in state_file.load(state).nights_waiting.items()]


def test_a_complete_night_waits_for_the_one_before_and_the_screen_says_so(tmp_path: Path, capsys: Any) -> None:
    state, one = tmp_path / "s.json", outputs(0)
    table(tmp_path / "a-20260301.csv", one["ids"], None, one["logits"])
    two = outputs(1)
    table(tmp_path / "b-2026-03-02.csv", two["ids"], two["labels"], two["logits"])
    assert main(["watch", str(state), str(tmp_path / "a-20260301.csv"), *LIMITS]) == 0
    said = capsys.readouterr()
    assert "No night is counted yet. Waiting for labels: 2026-03-01 (0 of 150 rows)." in said.out.replace("\n", " ")
    assert main(["watch", str(state), str(tmp_path / "b-2026-03-02.csv")]) == 0
    out = capsys.readouterr().out.replace("\n", " ")
    assert "2026-03-01 (0 of 150 rows), 2026-03-02 (150 of 150 rows)" in out
    labels = table(tmp_path / "late.csv", one["ids"][::-1], one["labels"][::-1])
    assert watch(state, "--labels", labels) == 0
    found = state_file.load(state)
    assert (found.nights, found.rows, found.night) == (2, 300, night(1))
    assert [entry["night"] for entry in found.history] == [night(0), night(1)]
    assert not found.waiting


def test_a_night_before_those_that_wait_may_come_but_none_before_one_that_is_counted() -> None:
    watched = calibcli.Watch(min={"accuracy": 0.7})
    for i in (1, 0):
        one = outputs(i)
        watched.update(one["logits"], ids=one["ids"], night=night(i))
    watched.labels_for(outputs(1)["ids"], outputs(1)["labels"])
    assert watched.result().facts["nights"] == 0
    assert watched.labels_for(outputs(0)["ids"], outputs(0)["labels"]).facts["nights"] == 2
    with pytest.raises(InputError, match="is over"):
        watched.update(outputs(2)["logits"], ids=outputs(2)["ids"], night=night(0))


@pytest.mark.parametrize("form", ["counted", "waits"])
def test_a_label_or_score_that_differs_is_refused_with_its_row(form: str, tmp_path: Path) -> None:
    watched, one = calibcli.Watch(min={"accuracy": 0.5}), outputs(0)
    known = [None, *one["labels"][1:].tolist()] if form == "waits" else one["labels"]
    watched.update(one["logits"], known, ids=one["ids"], night=night(0))
    before = watched._keeper.state
    other = one["labels"].copy()
    other[7] = (other[7] + 1) % 3
    with pytest.raises(InputError, match=r"id r0-7 has the label . *, and . too; nothing was counted"):
        watched.labels_for(one["ids"], other)
    with pytest.raises(InputError, match="id r0-7 of arrays is in the state with another label"):
        watched.update(one["logits"], other, ids=one["ids"], night=night(0))
    moved = one["logits"].copy()
    moved[5] *= 1.5
    with pytest.raises(InputError, match="id r0-5 of arrays is in the state with other scores"):
        watched.update(moved, one["labels"], ids=one["ids"], night=night(0))
    with pytest.raises(InputError, match="the label '9' of id r0-3 is none of the 3 classes"):
        watched.labels_for(["r0-3"], [9])
    assert watched._keeper.state is before


def test_labels_for_nobody_are_noted(tmp_path: Path) -> None:
    watched, one = calibcli.Watch(min={"accuracy": 0.5}), outputs(0)
    watched.update(one["logits"], ids=one["ids"], night=night(0))
    found = watched.labels_for(["x", "r0-0", "r0-0"], [1, one["labels"][0], one["labels"][0]])
    assert any("1 of 3 labels" in note for note in found.notes)
    assert found.facts["waiting"] == [{"night": night(0), "rows": ROWS, "labelled": 1}]


def test_rows_that_were_seen_are_skipped_and_counted_in_a_note(tmp_path: Path) -> None:
    """An export of the last nights: the rows that are new count, once."""
    watched, every = calibcli.Watch(min={"accuracy": 0.5}), [outputs(i, 100) for i in range(4)]
    logits, labels, ids = (np.concatenate([one[name] for one in every]) for name in ("logits", "labels", "ids"))
    for i in range(3):
        rows = slice(max(0, 100 * (i - 1)), 100 * (i + 1))
        found = watched.update(logits[rows], labels[rows], ids=ids[rows], night=night(i))
        assert any("100 of 200 rows are in the state already, and count once" in n for n in found.notes) == (i > 0)
    assert found.facts["n"] == 300
    plain = calibcli.Watch(min={"accuracy": 0.5})
    for i in range(3):
        rows = slice(100 * i, 100 * (i + 1))
        plain.update(logits[rows], labels[rows], ids=ids[rows], night=night(i))
    equal_evidence(watched, plain)


def equal_evidence(one: Any, other: Any) -> None:
    there = arrays(other._keeper.state)
    for name, array in arrays(one._keeper.state).items():
        assert np.array_equal(array, there[name]), name


def test_a_share_of_labels_counts_the_rest_at_the_worst_case(tmp_path: Path) -> None:
    """E of every claim is at most that with the true labels, whatever these are; and near it where few are missing."""
    for missing in (3, 15):
        one = outputs(0, 300)
        hidden = np.random.default_rng(missing).permutation(300)[:missing]
        known = [None if j in hidden else int(y) for j, y in enumerate(one["labels"])]
        rules = {"max": {"ece": 0.12, "nll": 1.2, "brier": 0.7}, "min": {"accuracy": 0.6}}
        full = calibcli.Watch(**rules).update(one["logits"], one["labels"], ids=one["ids"], night=night(0))
        worst = calibcli.Watch(**rules, labelled=0.95).update(one["logits"], known, ids=one["ids"], night=night(0))
        assert worst.facts["n"] == 300
        assert any(f"{missing} of 300 rows of {night(0)} have no label" in note for note in worst.notes)
        for a, b in zip(worst.checks, full.checks, strict=True):
            assert a.estimate.n == 300 - missing
            for claim in ("e_fail", "e_pass", "e_drift"):
                assert a.estimate.detail[claim] <= b.estimate.detail[claim] * (1 + 1e-9), claim
        assert worst.checks[0].estimate.detail["e_pass"] > 0
    waits = calibcli.Watch(**rules, labelled=0.96).update(one["logits"], known, ids=one["ids"], night=night(0))
    assert waits.facts["n"] == 0


def test_the_worst_case_is_the_least_over_all_labels() -> None:
    """By brute force over the labels of three rows, for each bet of each metric."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=(3, 4)) * 2
    for metric, side in {
        "ece": "max",
        "accuracy": "min",
        "nll": "max",
        "brier": "max",
        "confidence_gap": "limit",
    }.items():
        rows = calibcli.from_arrays(z, [0, 1, 2])
        gate = Gate(metric=metric, **{side: 0.3})
        source = RecordedOutputs(rows, Config(gates=(gate,)))
        watched = watching.watched(gate, source, 10.0)
        found = watching.worst_evidence(watched, source, 10.0)[""]
        every = []
        for labels in itertools.product(range(4), repeat=3):
            one = RecordedOutputs(calibcli.from_arrays(z, labels), Config(gates=(gate,)))
            every.append(watching.evidence(watched, one, None, "", 10.0)[""])
        for i in range(2):
            assert np.allclose(found[i], np.min([e[i] for e in every], axis=0)), metric
        assert not found[2].any()


def test_a_number_whose_rows_depend_on_labels_needs_all_of_them() -> None:
    one = outputs(0)
    known = [None, *one["labels"][1:].tolist()]
    watched = calibcli.Watch(max={"nll_wrong": 3}, labelled=0.9)
    with pytest.raises(InputError, match="needs all of them"):
        watched.update(one["logits"], known, ids=one["ids"], night=night(0))


def test_groups_and_slices_wait_too() -> None:
    one = outputs(0, 300)
    group, site = [f"g{j // 3}" for j in range(300)], ["a" if j % 2 else "b" for j in range(300)]
    how = {"ids": one["ids"], "group": group, "by": {"site": site}, "night": night(0)}
    rules = {"max": {"ece": 0.3}, "min": {"accuracy": 0.5}}
    full, waits = calibcli.Watch(**rules), calibcli.Watch(**rules)
    full.update(one["logits"], one["labels"], **how)
    waits.update(one["logits"], **how)
    waits.labels_for(one["ids"], one["labels"])
    equal(waits._keeper.state, full._keeper.state)
    share = calibcli.Watch(**rules, labelled=0.9)
    known = [None, *one["labels"][1:].tolist()]
    found = share.update(one["logits"], known, **how)
    assert any("3 of 300 rows" in note for note in found.notes)  # those of its group
    new = {**how, "ids": [f"new{j}" for j in range(300)]}
    with pytest.raises(InputError, match="groups of"):
        waits.update(one["logits"] * 1.01, one["labels"], **new)


@pytest.mark.parametrize(
    ("names", "said", "fix"),
    [
        (["a.csv", "b.csv"], "2 files, and a.csv, b.csv have no date in their names", "--shards"),
        (["a-2026-03-01.csv", "b.csv"], "2 files, and b.csv has no date in its name", "--night"),
        (["2026-03-01_2026-03-07.csv"], "has 2 dates, 2026-03-01 and 2026-03-07", "--night 2026-03-01"),
        (["a-20260301-20260302.csv", "c.csv"], "has 2 dates", "--night"),
    ],
)
def test_names_that_do_not_say_one_night_are_refused(
    names: Sequence[str], said: str, fix: str, tmp_path: Path, capsys: Any
) -> None:
    for i, name in enumerate(names):
        one = outputs(i)
        table(tmp_path / name, one["ids"], one["labels"], one["logits"])
    files = [tmp_path / name for name in names]
    assert main(["watch", str(tmp_path / "s.json"), *map(str, files), *LIMITS]) == 4
    err = " ".join(capsys.readouterr().err.split())
    assert said in err
    assert fix in err
    assert not (tmp_path / "s.json").exists()
    assert watch(tmp_path / "s.json", *files, *LIMITS, "--night", night(0)) == 0
    assert state_file.load(tmp_path / "s.json").rows == ROWS * len(names)


@pytest.mark.parametrize(
    ("name", "dates"),
    [
        ("scores-2026-11-28.csv", ["2026-11-28"]),
        ("20261128.npz", ["2026-11-28"]),
        ("model_v2_20261128T0300.parquet", ["2026-11-28"]),
        ("2026-11-28_20261128.csv", ["2026-11-28"]),
        ("run-12345678.csv", []),
        ("20261328.csv", []),
        ("20261128030000.csv", []),
        ("2026-11.csv", []),
    ],
)
def test_dates_in_names(name: str, dates: list[str]) -> None:
    assert late.dates_in(name) == dates


def test_shards_are_parts_of_one_night(tmp_path: Path) -> None:
    for i in range(2):
        table(tmp_path / f"part-{i}.csv", *(outputs(i)[name] for name in ("ids", "labels", "logits")))
    assert watch(tmp_path / "s.json", tmp_path / "part-0.csv", tmp_path / "part-1.csv", "--shards", *LIMITS) == 0
    assert (state_file.load(tmp_path / "s.json").nights, state_file.load(tmp_path / "s.json").rows) == (1, 2 * ROWS)


def test_a_file_that_is_refused_takes_back_those_before_it(tmp_path: Path) -> None:
    for i in range(2):
        one = outputs(i)
        table(tmp_path / f"{night(i)}.csv", one["ids"], one["labels"] + 9 * i, one["logits"])
    watched = calibcli.Watch(min={"accuracy": 0.5})
    with pytest.raises(InputError):
        watched.update(tmp_path)
    with pytest.raises(UsageError, match="not there yet"):
        watched.result()


CASES = {
    "probabilities": ("prob_0,prob_1,prob_2", [0, 1, 2]),
    "names": ("p_cat,p_dog,p_fox", ["cat", "dog", "fox"]),
    "one column": ("prob", [0, 1]),
    "one column, named": ("p_churn", [0, 1]),
    "one column, event 0": ("prob", [0, 1]),
    "two columns": ("p_No,p_Yes", ["No", "Yes"]),
}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_scores_waits_and_gives_the_same_numbers(case: str, tmp_path: Path) -> None:
    header, classes = CASES[case]
    names, rng = header.split(","), np.random.default_rng(1)
    p = rng.dirichlet([1] * max(2, len(names)), 400)
    y = (p.cumsum(axis=1) > rng.random((400, 1))).argmax(axis=1)
    more = ("--event", "0") if "event 0" in case else ()
    if "event 0" in case:
        p = p[:, ::-1]
    columns = p[:, -1:] if len(names) == 1 else p
    for name, labels in (("whole", True), ("bare", False)):
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *names, *(["label"] if labels else [])])
            for j in range(400):
                writer.writerow([j, *map(repr, columns[j].tolist()), *([classes[y[j]]] if labels else [])])
    table(tmp_path / "late.csv", range(400), [classes[c] for c in y])
    line = ("--max", "ece=0.2", "--max", "brier=0.9", "--night", night(0), *more)
    assert watch(tmp_path / "a.json", tmp_path / "whole.csv", *line) == 0
    assert watch(tmp_path / "b.json", tmp_path / "bare.csv", *line) == 0
    assert state_file.load(tmp_path / "b.json").rows == 0
    assert watch(tmp_path / "b.json", "--labels", tmp_path / "late.csv") == 0
    a, b = state_file.load(tmp_path / "a.json"), state_file.load(tmp_path / "b.json")
    there = {name.split(".")[1] + name[:6]: value for name, value in arrays(b).items()}
    for name, value in arrays(a).items():
        assert np.array_equal(value, there[name.split(".")[1] + name[:6]]), name


def test_names_that_the_scores_do_not_have_are_refused_with_the_fix(tmp_path: Path, capsys: Any) -> None:
    rng = np.random.default_rng(0)
    with open(tmp_path / "bare.csv", "w") as file:
        file.write("id,prob\n" + "".join(f"{j},{rng.random():.4f}\n" for j in range(50)))
    table(tmp_path / "late.csv", range(50), ["fraud" if j % 2 else "legit" for j in range(50)])
    state = tmp_path / "s.json"
    assert watch(state, tmp_path / "bare.csv", "--max", "ece=0.2", "--labels", tmp_path / "late.csv") == 4
    assert "--classes A,B" in capsys.readouterr().err
    assert not state.exists()
    argv = ("--labels", tmp_path / "late.csv", "--classes", "legit,fraud")
    assert watch(state, tmp_path / "bare.csv", "--max", "ece=0.9", *argv) == 0
    assert state_file.load(state).rows == 50


def test_rows_without_ids_cannot_wait(tmp_path: Path, capsys: Any) -> None:
    one = outputs(0)
    np.savez(tmp_path / "bare.npz", logits=one["logits"])
    assert watch(tmp_path / "s.json", tmp_path / "bare.npz", *LIMITS) == 4
    assert "have no ids, by which a label finds its row" in " ".join(capsys.readouterr().err.split())


def test_labels_by_position_still_do(tmp_path: Path) -> None:
    one = outputs(0)
    np.save(tmp_path / "z.npy", one["logits"])
    np.save(tmp_path / "y.npy", one["labels"])
    assert watch(tmp_path / "s.json", tmp_path / "z.npy", "--labels", tmp_path / "y.npy", *LIMITS) == 0
    assert state_file.load(tmp_path / "s.json").rows == ROWS


@pytest.mark.parametrize("where", ["writing", "before", "after"])
def test_kill_9_while_labels_come_loses_nothing(where: str, tmp_path: Path) -> None:
    state, one = tmp_path / "state.json", outputs(0)
    bare = table(tmp_path / f"{night(0)}.csv", one["ids"], None, one["logits"])
    labels = table(tmp_path / "late.csv", one["ids"], one["labels"])
    assert watch(state, bare, *LIMITS) == 0
    before = state.read_bytes()
    line = ["watch", str(state), "--labels", str(labels), "-q"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"}
    done = subprocess.run([sys.executable, "-c", KILL, where, *line], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (state.read_bytes() == before) == (where != "after")
    assert main(line) == 0
    assert (state_file.load(state).rows, state_file.load(state).waiting) == (ROWS, [])


def test_parts_that_wait_are_merged(tmp_path: Path) -> None:
    one, parts = outputs(0, 300), []
    for rows in (slice(0, 100), slice(100, 300)):
        parts.append(calibcli.Watch(max={"ece": 0.3}))
        parts[-1].update(one["logits"][rows], ids=one["ids"][rows], night=night(0))
    found = parts[0].merge(parts[1])
    assert found.facts["waiting"] == [{"night": night(0), "rows": 300, "labelled": 0}]
    with pytest.raises(InputError, match="rows that the state has too"):
        parts[0].merge(parts[1])
    assert parts[0].labels_for(one["ids"], one["labels"]).facts["n"] == 300
    two = outputs(1)
    ahead = calibcli.Watch(max={"ece": 0.3})
    ahead.update(two["logits"], two["labels"], ids=two["ids"], night=night(1))
    with pytest.raises(InputError, match="which waits for labels, is over in the other state"):
        ahead.merge(parts[1])


def test_a_state_of_schema_1_is_read_and_goes_on(tmp_path: Path) -> None:
    state, one = tmp_path / "s.json", outputs(0)
    rows = table(tmp_path / "a.csv", one["ids"], one["labels"], one["logits"])
    assert watch(state, rows, *LIMITS, "--night", night(0)) == 0
    data = json.loads(state.read_text())
    for name in ("waiting", "seen"):
        del data[name]
    data["schema"] = 1
    state.write_text(json.dumps({**data, "checksum": state_file.checksum(data)}))
    assert state_file.load(state).rows == ROWS
    two = outputs(1)
    assert watch(state, table(tmp_path / "b.csv", two["ids"], None, two["logits"]), "--night", night(1)) == 0
    assert watch(state, "--labels", table(tmp_path / "late.csv", two["ids"], two["labels"])) == 0
    assert state_file.load(state).rows == 2 * ROWS
    mixed = table(tmp_path / "c.csv", one["ids"][:50], one["labels"][:50], one["logits"][:50])
    assert watch(state, mixed, "--night", night(1)) == 4  # it does not know what they held


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.update(data="AAAA"),
        lambda w: w.update(night="x"),
        lambda w: w.update(night=3),
        lambda w: w["arrays"][0].__setitem__(2, 10**12),
        lambda w: w["arrays"][0].__setitem__(2, -1),
        lambda w: w["arrays"][1].__setitem__(1, "|O"),
        lambda w: w.update(arrays=[]),
        lambda w: w.pop("kind"),
        lambda w: w.update(classes=3),
    ],
)
def test_a_damaged_night_that_waits_is_refused(change: Any, tmp_path: Path) -> None:
    state, one = tmp_path / "s.json", outputs(0)
    assert watch(state, table(tmp_path / "a.csv", one["ids"], None, one["logits"]), *LIMITS, "--night", night(0)) == 0
    data = json.loads(state.read_text())
    change(data["waiting"][0])
    state.write_text(json.dumps({**data, "checksum": state_file.checksum(data)}))
    with pytest.raises(InputError):
        state_file.load(state)


def alarms(naive: bool, runs: int, nights: int = 30, rows: int = 60) -> int:
    """Runs in which a calibrated model, whose events are labelled after 1 day and others after 8, raises an alarm."""
    count = 0
    for run in range(runs):
        rng = np.random.default_rng(run)
        watched = calibcli.Watch(max={"ece": 0.05})
        p = rng.uniform(0.02, 0.3, (nights, rows))
        y = (rng.random((nights, rows)) < p).astype(int)
        found = None
        for today in range(nights + 8):
            if today < nights and not naive:
                ids = [f"{today}-{j}" for j in range(rows)]
                watched.update(p[today], ids=ids, night=night_of(today), kind="probabilities")
            come = [
                (d, j)
                for d, wait in ((today - 1, 1), (today - 8, 0))
                if 0 <= d < nights
                for j in range(rows)
                if y[d, j] == wait
            ]
            if come and naive:
                at = tuple(np.array(come).T)
                found = watched.update(p[at], y[at], kind="probabilities", night=night_of(today))
            elif come:
                found = watched.labels_for([f"{d}-{j}" for d, j in come], [int(y[d, j]) for d, j in come])
            if found is not None and found.verdict == "fail":
                count += 1
                break
    return count


def night_of(i: int) -> str:
    return str(np.datetime64("2026-01-01") + i)


def test_a_delay_that_depends_on_the_outcome_raises_no_false_alarm() -> None:
    """Counted in the night of the prediction no run of 6 has an alarm; in that of the label each of 3 has one."""
    assert alarms(naive=True, runs=3) == 3
    assert alarms(naive=False, runs=6) == 0


def test_a_folder_is_skipped_by_the_digests_of_its_files_where_the_ids_are_forgotten(
    whole: WatchState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files with and without labels, counted before, whose rows are not among the last: each counts once."""
    monkeypatch.setattr(state_file, "RECENT", 100)
    state, exports = tmp_path / "state.json", tmp_path / "exports"
    exports.mkdir()
    for i in range(NIGHTS):
        one = outputs(i)
        table(exports / f"{night(i)}.csv", one["ids"], None if i % 2 else one["labels"], one["logits"])
        if i % 2:
            table(tmp_path / f"labels-{i}.csv", one["ids"], one["labels"])
        assert watch(state, exports, *LIMITS) in (0, 1)
    for i in range(1, NIGHTS, 2):
        watch(state, "--labels", tmp_path / f"labels-{i}.csv")
    watch(state, exports)
    found = state_file.load(state)
    assert (found.rows, found.nights, found.waiting) == (NIGHTS * ROWS, NIGHTS, [])
    there = arrays(whole)
    for name, array in arrays(found).items():
        assert np.array_equal(array, there[name]), name


def test_rows_that_can_never_count_do_not_wait() -> None:
    one, group = outputs(0), [f"g{j // 3}" for j in range(ROWS)]
    watched = calibcli.Watch(min={"accuracy": 0.5})
    with pytest.raises(InputError, match="sampling weights"):
        watched.update(one["logits"], ids=one["ids"], weights=np.arange(1.0, ROWS + 1), night=night(0))
    watched.update(one["logits"], ids=one["ids"], group=group, night=night(0))
    other = outputs(1)
    with pytest.raises(InputError, match="groups of arrays are in the state already"):
        watched.update(other["logits"], ids=other["ids"], group=group, night=night(1))
    lone, base = calibcli.Watch(margin={"accuracy": 0.1}), str(ROOT / "sample_data" / "test.npz")
    with pytest.raises(InputError, match="baseline cannot wait"):
        lone.update(one["logits"], ids=one["ids"], baseline=base, night=night(0))


def test_scores_that_come_again_under_other_ids_do_not_count_when_their_labels_come() -> None:
    one, watched = outputs(0), calibcli.Watch(min={"accuracy": 0.5})
    watched.update(one["logits"], one["labels"], ids=one["ids"], night=night(0))
    again = [f"again-{j}" for j in range(ROWS)]
    watched.update(one["logits"], ids=again, night=night(1))
    found = watched.labels_for(again, one["labels"])
    assert (found.facts["n"], found.facts["waiting"]) == (ROWS, [])
    assert any("under other ids, and do not count again" in note for note in found.notes)


def test_ids_of_other_names_and_a_label_that_means_none(tmp_path: Path, capsys: Any) -> None:
    one, state = outputs(0), tmp_path / "s.json"
    rows, late_file = tmp_path / f"{night(0)}.csv", tmp_path / "late.csv"
    table(rows, one["ids"], None, one["logits"])
    table(late_file, one["ids"], [-1, *one["labels"][1:].tolist()])
    for path in (rows, late_file):
        path.write_text(path.read_text().replace("id,", "inferenceId,", 1))
    how = ("--ids", "inferenceId", "--ignore-label", "-1")
    assert watch(state, rows, *LIMITS, *how, "--labels", tmp_path / "none-yet-*.csv") == 0
    assert watch(state, "--labels", late_file, *how) == 0
    assert state_file.load(state).nights_waiting == {night(0): (ROWS, ROWS - 1)}
    assert watch(state, "--labels", late_file, *how, "--labelled", "0.99") == 0
    assert state_file.load(state).rows == ROWS
    capsys.readouterr()
    assert watch(state, "--labels", tmp_path / "gone.csv") == 2
    assert "no labels by id in" in capsys.readouterr().err
    with pytest.raises(InputError, match="one label, a class, for each id"):
        calibcli.Watch(state).labels_for(["a", "b"], [1])


@pytest.mark.regression
def test_a_watch_whose_labels_do_not_come_is_not_run_and_the_line_that_helps_counts_them(
    tmp_path: Path, capsys: Any
) -> None:
    state, out = tmp_path / "state.json", tmp_path / "out"
    for i in range(9):
        x = outputs(i)
        table(tmp_path / f"scores-{night(i)}.csv", x["ids"], None, x["logits"])
        table(tmp_path / f"labels-{night(i)}.csv", x["ids"][3 * (i == 1) :], x["labels"][3 * (i == 1) :])
    scores, labels = str(tmp_path / "scores-*.csv"), str(tmp_path / "labels-*.csv")
    assert watch(state, scores, *LIMITS, "-o", out) == 0  # nights that wait are no fault, as labels may be late
    assert len((out / "waiting.csv").read_text().splitlines()) == 10
    assert watch(state, "--most-waiting", 8) == 5
    assert "pass its labels (--labels FILE)" in " ".join(capsys.readouterr().out.split())
    assert watch(state, "--labels", labels) == 5
    said = " ".join(capsys.readouterr().out.split())
    assert f"8 nights wait, the oldest is {night(1)} with labels for 147 of 150 rows; --labelled 0.98 counts it" in said
    assert watch(state, "--labels", labels, "--labelled", "0.98", "-o", out) in (0, 1)
    assert calibcli.Watch(state).result().facts["nights"] == 9
    assert (out / "waiting.csv").read_text().split() == ["night,rows,labelled"]
    assert "Nights that wait" not in capsys.readouterr().out.rpartition("calib watch")[2]


@pytest.mark.regression
def test_an_alarm_says_since_when_nights_are_bad_and_their_file_has_all_of_them(tmp_path: Path, capsys: Any) -> None:
    state, out = tmp_path / "state.json", tmp_path / "out"
    for i in range(12):
        x = outputs(i)
        table(tmp_path / f"scores-{night(i)}.csv", x["ids"], x["labels"], x["logits"])
    assert watch(state, str(tmp_path / "scores-*.csv"), "--min", "accuracy=0.7", "-o", out) == 1
    screen = " ".join(capsys.readouterr().out.split())
    assert f"bad since about {night(DRIFT)}, {12 - DRIFT} of these {12 - DRIFT} nights beyond it" in screen
    assert "10 of 12, all with -v or -o" in screen
    assert len((out / "nights.csv").read_text().splitlines()) == 13
