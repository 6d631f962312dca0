"""`calib watch`: a state that loses and repeats nothing, and refuses what is not its own."""

from __future__ import annotations

import datetime
import doctest
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import CalibError, InputError, UsageError
from calibcli.render import figure
from calibcli.watch import session, state_file

ROOT = Path(__file__).parent.parent
RULES = ("--max", "ece=0.1", "--min", "accuracy=0.85")
FILE = np.load(ROOT / "sample_data" / "test.npz")
Z, Y, IDS, INK = (FILE[name] for name in ("logits", "labels", "ids", "ink"))


def night(i: int) -> str:
    return f"2026-03-{i + 1:02}"


def part(path: Path, start: int, stop: int, **more: Any) -> Path:
    rows = slice(start, stop)
    np.savez(path, **{"logits": Z[rows], "labels": Y[rows], "ids": IDS[rows], "ink": INK[rows], **more})
    return path


@pytest.fixture
def nights(tmp_path: Path) -> list[Path]:
    """Four files of 200 rows."""
    return [part(tmp_path / f"n{i}.npz", 200 * i, 200 * (i + 1)) for i in range(4)]


def watch(state: Path, *argv: str | Path) -> int:
    return main(["watch", str(state), *map(str, argv), "-q"])


def read(state: Path) -> state_file.WatchState:
    return state_file.load(state)


def arrays(state: state_file.WatchState) -> dict[str, Any]:
    return {f"{key}.{name}": a for key, s in state.streams.items() for name, a in s.arrays().items()}


def same(one: state_file.WatchState, other: state_file.WatchState) -> None:
    assert (one.night, one.nights, one.rows) == (other.night, other.nights, other.rows)
    there = arrays(other)
    assert [s.night for s in one.streams.values()] == [s.night for s in other.streams.values()]
    for name, array in arrays(one).items():
        assert np.allclose(array, there[name], rtol=1e-10, equal_nan=True), name


def test_nights_go_into_one_state_without_rows(nights: list[Path], tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for i, path in enumerate(nights):
        assert watch(state, path, *(RULES if i == 0 else ()), "--night", night(i)) == 0
    found = read(state)
    assert (found.nights, found.rows, found.night) == (4, 800, night(3))
    assert len(found.history) == 4
    assert state.stat().st_size < 45_000
    text = state.read_text()
    assert not any(str(one) in text for one in IDS[:800].tolist())


def test_a_pass_is_of_all_nights_together(tmp_path: Path) -> None:
    """A gap of one sign in one night and of the other in the next cancel: the words claim no more than that."""
    rng, watched = np.random.default_rng(0), calibcli.Watch(max={"ece": 0.2})
    for i, sign in enumerate((1, -1)):
        p = rng.uniform(0.3, 0.7, 2000)
        y = (rng.random(2000) < p + 0.06 * sign).astype(int)
        found = watched.update(p, y, night=night(i))
    [check] = found.checks
    assert check.outcome == "pass"
    assert "within the limit, all nights together" in check.message


def test_python_and_the_command_keep_the_same_state(nights: list[Path], tmp_path: Path) -> None:
    watch(tmp_path / "a.json", nights[0], *RULES, "--night", night(0))
    watch(tmp_path / "a.json", nights[1], "--night", night(1))
    one = calibcli.Watch(tmp_path / "b.json", max={"ece": 0.1}, min={"accuracy": 0.85})
    for i in range(2):
        rows = slice(200 * i, 200 * i + 200)
        result = one.update(Z[rows], Y[rows], ids=IDS[rows], classes=FILE["classes"].tolist(), night=night(i))
    same(read(tmp_path / "b.json"), one._keeper.state)
    a, b = read(tmp_path / "a.json"), read(tmp_path / "b.json")
    assert [np.allclose(x, y, equal_nan=True) for x, y in zip(arrays(a).values(), arrays(b).values())]
    assert result.facts["n"] == 400


def test_two_watches_that_begin_one_state_lose_no_rows(nights: list[Path], tmp_path: Path) -> None:
    one, two = (calibcli.Watch(tmp_path / "state.json", min={"accuracy": 0.85}) for _ in range(2))
    rows = [w.update(path, night=f"2026-03-0{i}") for i, (w, path) in enumerate(zip((one, two), nights[:2]), 1)]
    assert [found.facts["n"] for found in rows] == [200, 400]


def test_parts_merge_in_any_order_to_what_one_stream_has(tmp_path: Path) -> None:
    whole, parts = calibcli.Watch(max={"ece": 0.1}, min={"accuracy": 0.85}), []
    whole.update(Z[:300], Y[:300], ids=IDS[:300], night=night(0))
    main_state = calibcli.Watch(max={"ece": 0.1}, min={"accuracy": 0.85})
    main_state.update(Z[:300], Y[:300], ids=IDS[:300], night=night(0))
    whole.update(Z[300:], Y[300:], ids=IDS[300:], night=night(1))
    for start, stop in ((300, 400), (400, 700), (700, 997)):
        one = calibcli.Watch(max={"ece": 0.1}, min={"accuracy": 0.85})
        one.update(Z[start:stop], Y[start:stop], ids=IDS[start:stop], night=night(1))
        parts.append(one)
    both = calibcli.Watch(max={"ece": 0.1}, min={"accuracy": 0.85})
    both.merge(parts[2])
    both.merge(parts[0])
    main_state.merge(parts[1])
    main_state.merge(both)
    same(main_state._keeper.state, whole._keeper.state)
    with pytest.raises(InputError, match="rows that the state has too"):
        main_state.merge(parts[0])


def test_states_with_nights_of_their_own_multiply(tmp_path: Path) -> None:
    watches = []
    for start in (0, 400):
        one = calibcli.Watch(min={"accuracy": 0.85})
        for i in range(2):
            rows = slice(start + 200 * i, start + 200 * (i + 1))
            one.update(Z[rows], Y[rows], ids=IDS[rows], night=night(i))
        watches.append(one)
    stream = [w._keeper.state.streams[0, ""] for w in watches]
    expected = stream[0].passed + stream[1].passed
    result = watches[0].merge(watches[1])
    assert np.allclose(watches[0]._keeper.state.streams[0, ""].passed, expected)
    assert result.facts["n"] == 800
    assert len(result.facts["history"]) == 2


KILL = """
import os, sys
real, where = os.replace, sys.argv.pop(1)
def replace(a, b):
    if where == "before": os.kill(os.getpid(), 9)
    real(a, b)
    os.kill(os.getpid(), 9)
def fsync(handle):
    os.kill(os.getpid(), 9)
if where == "writing": os.fsync = fsync
else: os.replace = replace
from calibcli.cli.app import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("where", ["writing", "before", "after"])
@pytest.mark.one_in(3)
def test_kill_9_loses_and_repeats_nothing(where: str, nights: list[Path], tmp_path: Path) -> None:
    """Killed while it writes, before the new state takes the place of the old, and after; then run again."""
    state, whole = tmp_path / "state.json", tmp_path / "whole.json"
    watch(state, nights[0], *RULES, "--night", night(0))
    before = state.read_bytes()
    line = ["watch", str(state), str(nights[1]), "--night", night(1), "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", KILL, where, *line], env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (state.read_bytes() == before) == (where != "after")
    assert main(line) == 0
    for i, path in enumerate(nights[:2]):
        watch(whole, path, *RULES, "--night", night(i))
    same(read(state), read(whole))


def test_rows_that_come_again_count_once_and_ids_that_come_twice_are_refused(
    nights: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    watch(state, nights[0], *RULES, "--night", night(0))
    assert main(["watch", str(state), str(nights[0]), "--night", night(0)]) == 0
    assert "in the state already, and count once" in capsys.readouterr().err
    assert read(state).rows == 200
    assert main(["watch", str(state), str(part(tmp_path / "mixed.npz", 150, 350)), "--night", night(1)]) == 0
    assert "50 of 200 rows are in the state already, and count once" in " ".join(capsys.readouterr().err.split())
    assert read(state).rows == 350
    twice = np.concatenate([np.arange(300, 400), [300]])
    np.savez(tmp_path / "twice.npz", logits=Z[twice], labels=Y[twice], ids=IDS[twice])
    before = state.read_bytes()
    assert watch(state, tmp_path / "twice.npz", "--night", night(1)) == 4
    assert "not unique" in capsys.readouterr().err
    assert state.read_bytes() == before


def test_repeated_rows_are_noticed_by_the_ids_that_are_kept_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 6,000 ids a state keeps 1,024, and here the last 2,000 rows: an earlier night among new rows is refused."""
    monkeypatch.setattr(state_file, "RECENT", 2000)
    rng = np.random.default_rng(0)
    watch = calibcli.Watch(min={"accuracy": 0.5})
    ids = np.arange(6000)
    c, hit = rng.uniform(0.5, 1, 6000), rng.random(6000) < 0.8
    for i in range(6):
        rows = slice(1000 * i, 1000 * (i + 1))
        watch.update(calibcli.from_confidence(c[rows], hit[rows], ids=ids[rows]), night=night(i))
    assert len(watch._keeper.state.ids) == state_file.IDS
    mixed = np.r_[2000:2100, 10_000:10_500]
    with pytest.raises(InputError, match="are in the state already, of the ids that a state keeps"):
        watch.update(calibcli.from_confidence(c[:600], hit[:600], ids=mixed), night=night(6))
    last = np.r_[5000:6000]
    with pytest.raises(InputError, match="id 5000 of arrays is in the state with other scores"):
        watch.update(calibcli.from_confidence(c[:1000], hit[last], ids=last), night=night(6))
    found = watch.update(calibcli.from_confidence(c[last], hit[last], ids=last), night=night(6))
    assert any("in the state already, and count once" in note for note in found.notes)
    assert found.facts["n"] == 6000


def test_rows_without_ids_are_said_to_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "rows.npz", logits=Z[:300], labels=Y[:300])
    main(["watch", str(tmp_path / "s.json"), str(tmp_path / "rows.npz"), *RULES])
    assert "rows have no ids" in capsys.readouterr().err


def test_few_distinct_confidences_are_not_taken_for_the_same_rows() -> None:
    """Ten rows of confidence 1 that are right may come every night: they are no repetition."""
    watch = calibcli.Watch(min={"accuracy": 0.5})
    for _ in range(3):
        watch.update(calibcli.from_confidence([1.0] * 10, [True] * 10), night=night(0))
    assert watch.result().facts["n"] == 30


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_a_night_without_rows_is_noted_and_changes_no_evidence(form: str, tmp_path: Path, capsys: Any) -> None:
    state, nothing, files = tmp_path / "state.json", tmp_path / f"none.{form}", []
    for i in range(2):
        files.append(part(tmp_path / f"n{i}.npz", 200 * i, 200 * (i + 1)))
    if form == "npz":
        part(nothing, 0, 0)
    else:
        nothing.write_text(",".join(["id", *(f"p{c}" for c in range(10)), "label"]) + "\n")
    assert watch(state, nothing, *RULES) == 4  # a state is begun with rows
    assert not state.exists()
    assert watch(state, files[0], *RULES, "--night", night(0)) == 0
    before = read(state)
    capsys.readouterr()
    assert main(["watch", str(state), str(nothing), "--night", night(2)]) == 0
    assert "a night of 0 rows changes nothing" in capsys.readouterr().err
    after = read(state)
    same(before, after)
    assert (after.night, after.nights, after.rows) == (before.night, before.nights, before.rows)
    assert [(one["night"], one["rows"]) for one in after.history] == [(night(0), 200), (night(2), 0)]
    assert watch(state, files[1], "--night", night(1)) == 0  # rows of a night before it may still come
    assert [(one["night"], one["rows"]) for one in read(state).history] == [
        (night(i), (200, 200, 0)[i]) for i in range(3)
    ]
    assert watch(state, part(tmp_path / "n2.npz", 400, 600), "--night", night(2), "-o", tmp_path / "nights.png") == 0
    assert [one["rows"] for one in read(state).history] == [200, 200, 200]


def test_rows_with_a_label_to_ignore_are_dropped_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """-1 in half of the rows is no class, and stands for "no label yet" nowhere: those that wait have an empty cell."""
    labels = Y[:200].copy()
    labels[100:] = -1
    late = part(tmp_path / "late.npz", 0, 200, labels=labels)
    state = tmp_path / "state.json"
    assert watch(state, late, *RULES, "--night", night(0)) == 4
    assert "--ignore-label -1" in capsys.readouterr().err
    assert not state.exists()
    assert main(["watch", str(state), str(late), *RULES, "--night", night(0), "--ignore-label", "-1"]) == 0
    assert "100 rows" in capsys.readouterr().err
    assert read(state).rows == 100


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(rows=1), "its checksum does not fit"),
        (lambda d: d["streams"][0].update(arrays=d["streams"][1]["arrays"]), "its checksum does not fit"),
        (lambda d: d.update(schema=3), "has schema 3, this version reads 1 to 2"),
        (lambda d: d.update(format="other"), "is not the state of a watch"),
        (lambda d: d.update(rows=-1, checksum=""), "checksum"),
    ],
    ids=["rows", "streams", "schema", "format", "number"],
)
def test_what_something_else_changed_is_refused(
    change: Callable[[dict[str, Any]], None], said: str, nights: list[Path], tmp_path: Path, capsys: Any
) -> None:
    state = tmp_path / "state.json"
    watch(state, nights[0], *RULES, "--night", night(0))
    data = json.loads(state.read_text())
    change(data)
    state.write_text(json.dumps(data, indent=0))
    assert watch(state, nights[1]) == 4
    assert said in capsys.readouterr().err
    assert json.loads(state.read_text()) == data


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(rows=-1),
        lambda d: d.update(ids="?"),
        lambda d: d.update(history="AAAA"),
        lambda d: d["streams"][0].update(arrays="AAAA"),
        lambda d: d["streams"][0].update(rule=7),
        lambda d: d["streams"][0].pop("arrays"),
        lambda d: d.pop("night"),
        lambda d: d["settings"].update(alpha=2),
    ],
)
def test_a_damaged_state_with_a_right_checksum_is_refused_all_the_same(
    change: Callable[[dict[str, Any]], Any], nights: list[Path], tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    watch(state, nights[0], *RULES, "--night", night(0))
    data = json.loads(state.read_text())
    change(data)
    state.write_text(json.dumps({**data, "checksum": state_file.checksum(data)}, indent=0))
    with pytest.raises(InputError):
        state_file.load(state)


def test_a_state_from_the_future_and_a_night_that_is_over(
    nights: list[Path], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, other = tmp_path / "state.json", tmp_path / "other.json"
    with monkeypatch.context() as clock:
        clock.setattr(session, "today", lambda: "2999-01-01")
        assert watch(state, nights[0], *RULES) == 0
    assert watch(state, nights[1]) == 4
    assert "has not come yet" in capsys.readouterr().err
    assert watch(state, nights[1], "--night", night(1)) == 4
    assert "is over" in capsys.readouterr().err
    assert watch(state, nights[1], "--night", "tomorrow") == 2
    assert read(state).rows == 200
    assert watch(other, nights[1], *RULES, "--night", night(0)) == 0
    before = other.read_bytes()
    assert watch(other, state) == 4  # it would close this state too
    assert "which has not come yet" in capsys.readouterr().err
    assert watch(tmp_path / "new.json", state) == 4
    assert other.read_bytes() == before


def test_a_night_after_tomorrow_is_refused(nights: list[Path], tmp_path: Path, capsys: Any) -> None:
    """It would close the state to every night before it; tomorrow has come where the clock is ahead of UTC."""
    state = tmp_path / "state.json"
    after = datetime.date.fromisoformat(session.tomorrow()) + datetime.timedelta(days=1)
    for date in ("2999-01-01", after.isoformat()):
        assert watch(state, nights[0], *RULES, "--night", date) == 2
        assert "has not come yet" in capsys.readouterr().err
        assert not state.exists()
    assert watch(state, nights[0], *RULES, "--night", session.tomorrow()) == 0


def test_files_that_come_on_one_day_are_one_night_and_a_note_says_so(
    nights: list[Path], tmp_path: Path, capsys: Any
) -> None:
    state = tmp_path / "state.json"
    note = "has 200 rows already"
    assert main(["watch", str(state), str(nights[0]), *RULES]) == 0
    assert note not in capsys.readouterr().err
    assert main(["watch", str(state), str(nights[1])]) == 0
    assert note in capsys.readouterr().err
    assert read(state).nights == 1
    today = read(state).night
    assert main(["watch", str(state), str(nights[2]), "--night", today]) == 0  # said, so that it is meant
    assert "rows already" not in capsys.readouterr().err
    parts = ["watch", str(tmp_path / "parts.json"), *map(str, nights[:2]), *RULES, "--shards"]
    assert main(parts) == 0  # parts of one night
    assert "rows already" not in capsys.readouterr().err


def test_other_rules_start_a_new_state_only_where_that_is_asked_for(
    nights: list[Path], tmp_path: Path, capsys: Any
) -> None:
    state = tmp_path / "state.json"
    watch(state, nights[0], *RULES, "--night", night(0))
    old = state.read_bytes()
    for argv in (("--max", "ece=0.2"), (*RULES, "--alpha", "0.1"), (*RULES, "--per-year", "0.5"), ("--max", "nll=1")):
        assert watch(state, nights[1], *argv, "--night", night(1)) == 2, argv
        assert "--restart" in capsys.readouterr().err
        assert state.read_bytes() == old
    assert watch(state, nights[1], "--max", "ece=0.2", "--night", night(1), "--restart") == 0
    assert read(state).rows == 200
    [kept] = tmp_path.glob("state.before-*.json")
    assert kept.read_bytes() == old


def test_another_model_is_refused(nights: list[Path], tmp_path: Path, capsys: Any) -> None:
    state = tmp_path / "state.json"
    watch(state, nights[0], *RULES, "--night", night(0), "--name", "mlp")
    assert watch(state, nights[1], "--night", night(1), "--name", "vit") == 4
    assert "belongs to another model: model mlp there, vit here" in capsys.readouterr().err
    np.savez(tmp_path / "three.npz", logits=Z[:200, :3], labels=Y[:200] % 3)
    assert watch(state, tmp_path / "three.npz", "--night", night(1)) == 4
    assert "classes 10 there, 3 here" in capsys.readouterr().err
    other = tmp_path / "other.json"
    watch(other, nights[1], "--max", "ece=0.1", "--night", night(0))
    assert watch(state, other, "--night", night(0)) == 4
    assert read(state).rows == 200


def test_a_slice_that_comes_later_is_watched_and_a_missing_column_is_said(
    nights: list[Path], tmp_path: Path, capsys: Any
) -> None:
    state = tmp_path / "state.json"
    assert watch(state, nights[0], "--min", "accuracy=0.5", "--by", "ink", "--night", night(0)) == 0
    result = calibcli.Watch(state).result()
    assert [c.scope for c in result.checks] == ["", "ink=heavy", "ink=light"]
    new = part(tmp_path / "new.npz", 200, 400, ink=np.array(["none"] * 50 + ["light"] * 150))
    assert main(["watch", str(state), str(new), "--night", night(1)]) == 0
    assert "ink = none: watched from now on; an alarm on each needs E of 120" in capsys.readouterr().err
    assert [c.scope for c in calibcli.Watch(state).result().checks] == ["", "ink=heavy", "ink=light", "ink=none"]
    np.savez(tmp_path / "bare.npz", logits=Z[:100], labels=Y[:100])
    rows = read(state).rows
    assert watch(state, tmp_path / "bare.npz", "--night", night(2)) == 4
    assert "no column 'ink'" in capsys.readouterr().err
    assert read(state).rows == rows
    many = part(tmp_path / "many.npz", 0, 200, ink=np.arange(200).astype(str))
    assert watch(tmp_path / "m.json", many, "--min", "accuracy=0.5", "--by", "ink") == 2
    assert "200 values" in capsys.readouterr().err


METRICS = {
    "accuracy": "min",
    "nll": "max",
    "brier": "max",
    "brier_top": "max",
    "confidence_gap": "max",
    "mean_confidence": "max",
    "high_confidence_share": "min",
    "high_confidence_accuracy": "min",
    "entropy": "max",
    "nll_wrong": "max",
    "ece": "max",
    "ece:bins=30": "max",
    "ece:edges=torchmetrics": "max",
}


@pytest.mark.parametrize("k", [10, 2])
@pytest.mark.parametrize("metric", METRICS)
def test_the_number_is_that_of_the_metric(metric: str, k: int) -> None:
    """Of all nights together: what `measure` says of the same rows (rows of few nats)."""
    z, y = (Z, Y) if k == 10 else (Z[:, :2] / 4, (Z[:, 0] < Z[:, 1]).astype(int) ^ (Y == 3))
    limit = 5 if metric == "nll_wrong" else 0.5
    side = {METRICS[metric]: {metric: limit}}
    watch = calibcli.Watch(**side, nll_cap=100)  # type: ignore[arg-type]
    for i in range(3):
        rows = slice(300 * i, 300 * (i + 1))
        result = watch.update(z[rows], y[rows], kind="logits", night=night(i))
    expected = calibcli.measure(z[:900], y[:900], metric, kind="logits")
    [estimate] = result.estimates
    assert estimate.value == pytest.approx(expected[metric].value, abs=1e-9)
    assert estimate.n == expected[metric].n or "nll_w" in metric or "high_confidence_a" in metric


@pytest.mark.parametrize(
    "metric", ["adaece", "smece", "temperature_gain", "classwise_ece", "ece2_debiased", "mce", "calibration_p", "oce"]
)
def test_what_is_no_sum_over_rows_is_refused_by_name(metric: str) -> None:
    side = {"min" if metric == "calibration_p" else "max": {metric: 0.1}}
    with pytest.raises(UsageError, match="cannot be watched"):
        calibcli.Watch(**side).update(Z, Y)  # type: ignore[arg-type]


def test_groups_count_as_one_row_each() -> None:
    groups = np.repeat(np.arange(100), 9)
    watch = calibcli.Watch(min={"accuracy": 0.5}, max={"ece": 0.3})
    result = watch.update(Z[:900], Y[:900], group=groups, night=night(0))
    assert [c.estimate.n for c in result.checks] == [100, 100]
    right = (Z[:900].argmax(1) == Y[:900]).reshape(100, 9).mean(axis=1)
    assert result["accuracy"].value == pytest.approx(right.mean())


def test_a_group_that_comes_again_is_refused() -> None:
    """Its rows are not independent of those before, with ids of their own or without; one whole night is."""
    groups = [f"p{i // 9}" for i in range(900)]
    for ids in (None, IDS[:900]):
        watch = calibcli.Watch(min={"accuracy": 0.5})
        for rows in (slice(0, 450), slice(450, 720)):
            own = None if ids is None else ids[rows]
            watch.update(Z[rows], Y[rows], group=groups[rows], ids=own, night=night(rows.start // 450))
        with pytest.raises(InputError, match=r"2 groups of .* in the state already; nothing was counted"):
            watch.update(Z[702:900], Y[702:900], group=groups[702:900], night=night(2))
        assert watch.result().checks[0].estimate.n == 80


def test_counts_are_rows_and_sampling_weights_are_refused() -> None:
    w = np.random.default_rng(0).integers(1, 4, 500)
    watch = calibcli.Watch(min={"accuracy": 0.5}, max={"ece": 0.3})
    one = watch.update(Z[:500], Y[:500], weights=w, weight_kind="count", night=night(0))
    again = calibcli.Watch(min={"accuracy": 0.5}, max={"ece": 0.3})
    at = np.repeat(np.arange(500), w)
    other = again.update(Z[at], Y[at], night=night(0))
    for a, b in zip(one.checks, other.checks, strict=True):
        assert a.estimate.n == b.estimate.n == w.sum()
        assert a.estimate.detail == pytest.approx(b.estimate.detail)
    with pytest.raises(InputError, match="sampling weights"):
        calibcli.Watch(min={"accuracy": 0.5}).update(Z[:500], Y[:500], weights=w)


def test_a_baseline_is_of_the_same_rows(tmp_path: Path) -> None:
    """The new model is worse by 30 points of accuracy: the alarm comes, and the margin of .5 is kept."""
    worse = Z.copy()
    worse[::3] = -worse[::3]
    for name, z in (("new", worse), ("old", Z)):
        np.savez(tmp_path / f"{name}.npz", logits=z, labels=Y, ids=IDS)
    argv = ("--baseline", tmp_path / "old.npz", "--margin")
    assert watch(tmp_path / "a.json", tmp_path / "new.npz", *argv, "accuracy=0.1") == 1
    assert watch(tmp_path / "b.json", tmp_path / "new.npz", *argv, "accuracy=0.5", "--margin", "nll=20") == 0
    result = calibcli.Watch(tmp_path / "b.json").result()
    assert result.checks[0].outcome == "pass"
    right = (worse.argmax(1) == Y).mean() - (Z.argmax(1) == Y).mean()
    assert result["accuracy", "minus baseline"].value == pytest.approx(right)
    assert watch(tmp_path / "b.json", tmp_path / "new.npz") == 2
    assert watch(tmp_path / "c.json", tmp_path / "new.npz", *argv, "temperature_gain=0.1") == 2


def test_an_alarm_exits_1_and_stays_until_a_restart(nights: list[Path], tmp_path: Path, capsys: Any) -> None:
    state = tmp_path / "state.json"
    assert watch(state, nights[0], "--min", "accuracy=0.99", "--night", night(0)) == 1
    said = capsys.readouterr().out
    assert "Alarm after 1 night and 200 rows" in said
    assert "surely beyond the limit, known on 2026-03-01" in said
    assert watch(state) == 1
    assert watch(state, nights[1], "--night", night(1)) == 1
    assert watch(state, nights[1], "--min", "accuracy=0.5", "--night", night(1), "--restart") == 0


@pytest.mark.slow
def test_history_is_drawn_and_goes_into_openmetrics(nights: list[Path], tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    for i, path in enumerate(nights):
        watch(state, path, *RULES, "--night", night(i), "-o", str(tmp_path / "out.prom"), "-o", str(tmp_path / "o.png"))
    text = (tmp_path / "out.prom").read_text()
    samples = re.findall(r'(?m)^calib_watch_log10_e_fail\{rule="ece <= 0.1",scope=""\} (\S+) (\d+)$', text)
    assert len(samples) == 4
    assert [int(at) for _, at in samples] == sorted(int(at) for _, at in samples)
    assert (tmp_path / "o.png").stat().st_size > 1000
    result = calibcli.Watch(state).result()
    assert [(p.ylabel, len(p.curves[0].x)) for p in result.plots[:2]] == [("ece", 4), ("log10 of E / E needed", 4)]
    assert [(p.title, p.group, p.xscale) for p in result.plots[:2]] == [
        ("ece <= 0.1, each night", "ece <= 0.1", "date"),
        ("ece <= 0.1, evidence so far", "ece <= 0.1", "date"),
    ]
    with figure.drawn(result) as drawn:
        drawn.canvas.draw()
        ticks = {label.get_text() for label in drawn.axes[0].get_xticklabels()}
    assert {night(i) for i in range(4)} & ticks
    assert f"{night(0)} " in str(result)
    last = [h for h in result.facts["history"] if h["rule"] == "ece <= 0.1"][-1]
    assert 10 ** last["log10_e_fail"] == pytest.approx(result.checks[0].estimate.detail["e_fail"], rel=0.02)


def test_rules_come_from_the_file_of_check(nights: list[Path], tmp_path: Path, capsys: Any) -> None:
    """What cannot be watched is said and left out; a file without anything else is refused."""
    config = tmp_path / "rules.toml"
    config.write_text('[[gate]]\nmetric = "ece"\nlimit = 0.1\n[[gate]]\nmetric = "adaece"\nlimit = 0.1\n')
    state = tmp_path / "state.json"
    assert main(["watch", str(state), str(nights[0]), "--config", str(config)]) == 0
    assert "not watched" in capsys.readouterr().err
    assert [r.rule for r in read(state).settings.rules] == ["ece <= 0.1"]
    config.write_text('[[gate]]\nmetric = "adaece"\nlimit = 0.1\n')
    assert watch(tmp_path / "t.json", nights[0], "--config", str(config)) == 2
    capsys.readouterr()
    config.write_text('[[gate]]\nmetric = "accuracy"\nmin = 0.5\nby = "ink"\n')
    many = part(tmp_path / "many.npz", 0, 200, ink=np.array([f"u{i}" for i in range(200)]))
    assert watch(tmp_path / "t.json", many, "--config", str(config)) == 2
    said = capsys.readouterr().err
    assert "'ink' has 200 values, and a state watches 100" in said
    assert "choose a coarser column" in said
    assert not (tmp_path / "t.json").exists()


def test_no_rules_and_no_state() -> None:
    with pytest.raises(UsageError, match="no rule to watch"):
        calibcli.Watch().update(Z, Y)
    with pytest.raises(UsageError, match="not there yet"):
        calibcli.Watch(max={"ece": 0.1}).result()


def test_a_state_is_no_output_and_no_input(nights: list[Path], tmp_path: Path) -> None:
    before = nights[0].read_bytes()
    assert watch(nights[0], nights[0], *RULES) in (2, 4)
    assert nights[0].read_bytes() == before
    state = tmp_path / "state.json"
    watch(state, nights[0], *RULES, "--night", night(0))
    kept = state.read_bytes()
    assert watch(state, nights[1], "-o", str(state), "--night", night(1)) == 2
    assert state.read_bytes() == kept
    assert watch(state, state, *RULES) == 2
    assert state.read_bytes() == kept


def test_many_rows_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = calibcli.Watch(max={"ece": 0.1})
    whole.update(Z, Y, ids=IDS, night=night(0))
    monkeypatch.setattr(session, "BLOCK", 100)
    blocks = calibcli.Watch(max={"ece": 0.1})
    blocks.update(Z, Y, ids=IDS, night=night(0))
    same(blocks._keeper.state, whole._keeper.state)


@pytest.mark.slow
def test_two_processes_wait_for_each_other(nights: list[Path], tmp_path: Path) -> None:
    """Neither update is lost."""
    state = tmp_path / "state.json"
    watch(state, nights[0], *RULES, "--night", night(0))
    line = [sys.executable, "-m", "calibcli", "watch", str(state), "--night", night(1), "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen([*line, str(path)], env=environment, stdout=subprocess.DEVNULL) for path in nights[1:]]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert read(state).rows == 800


def test_an_update_that_is_refused_changes_nothing() -> None:
    watch = calibcli.Watch(max={"ece": 0.1})
    watch.update(Z[:500], Y[:500], ids=IDS[:500], night=night(0))
    before = session.copied(watch._keeper.state)
    with pytest.raises(CalibError):
        watch.update(Z[400:600] * 1.01, Y[400:600], ids=IDS[400:600], night=night(1))
    same(watch._keeper.state, before)


@pytest.mark.docs
def test_the_page_is_true() -> None:
    page = (ROOT / "docs" / "watch-special-cases.md").read_text(encoding="utf-8").replace("```", "")
    names = {"calibcli": calibcli, "logits": Z, "labels": Y, "file": FILE}
    example = doctest.DocTestParser().get_doctest(page, names, "watch-special-cases.md", None, None)
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example).failed == 0


@pytest.mark.parametrize("wrong", [{"per_year": 5}, {"per_year": 0.0}, {"nll_cap": 0.01}])
def test_a_watch_is_not_begun_with_numbers_that_its_state_may_not_have(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="out of range"):
        calibcli.Watch(min={"accuracy": 0.5}, **wrong)


def test_several_files_are_counted_in_one_update(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", logits=rng.normal(size=(300, 3)), labels=rng.integers(0, 3, 300))
    watch = calibcli.Watch(min={"accuracy": 0.1})
    assert watch.update([tmp_path / "a.npz", tmp_path / "b.npz"], shards=True).facts["n"] == 600


@pytest.mark.parametrize("ids", [True, False])
def test_last_nights_rows_under_new_ids_are_noticed(ids: bool) -> None:
    """The same scores and labels, in another order and under other ids, count no second time."""
    order = np.random.default_rng(0).permutation(len(Y))
    named = [{"ids": np.array([f"{day}-{i}" for i in range(len(Y))])} if ids else {} for day in "ab"]
    watch = calibcli.Watch(max={"ece": 0.2})
    watch.update(Z, Y, night=night(0), **named[0])
    with pytest.raises(InputError, match="in another order or under other ids"):
        watch.update(Z[order], Y[order], night=night(1), **named[1])
    assert watch.result().facts["n"] == len(Y)
    changed = Z[order] + np.random.default_rng(1).normal(size=Z.shape) / 10
    assert watch.update(changed, Y[order], night=night(1), **named[1]).facts["n"] == 2 * len(Y)
