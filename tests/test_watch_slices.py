"""A watch of slices: those that come after the first night, and the error probability that all of them share."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError
from calibcli.watch import state_file
from calibcli.watch._bets import Stream, WatchedRule, tables, thresholds
from calibcli.watch._rules import MOST_SLICES


def night(i: int) -> str:
    return f"2026-03-{i + 1:02}"


def outputs(sites: dict[str, tuple[int, float]], seed: int) -> dict[str, Any]:
    """Rows of some sites, each with its number of rows and its accuracy, at P of .9 for one of two classes."""
    rng = np.random.default_rng(seed)
    site = np.concatenate([[name] * n for name, (n, _) in sites.items()])
    right = np.concatenate([rng.random(n) < accuracy for n, accuracy in sites.values()])
    y = rng.integers(0, 2, len(site))
    p = np.where((y == 1) == right, 0.9, 0.1) + rng.uniform(-0.02, 0.02, len(site))
    return {"p": np.column_stack([1 - p, p]), "labels": y, "site": site, "ids": np.arange(len(y)) + 10_000 * seed}


def saved(path: Path, rows: dict[str, Any]) -> str:
    np.savez(path, probs=rows["p"], **{name: rows[name] for name in ("labels", "site", "ids")})
    return str(path)


RULE = ("--max", "brier=0.25", "--max", "ece=0.2", "--by", "site", "-q")
OLD = {"a": (150, 0.9), "b": (150, 0.9)}


@pytest.mark.regression
def test_a_slice_that_comes_on_the_second_night_raises_its_alarm(tmp_path: Path) -> None:
    """It has a stream for each rule, also after the state was read again; the history of the others stays theirs."""
    state, before = tmp_path / "s.json", list[Any]()
    for i in range(8):
        rows = outputs(OLD if not i else {**OLD, "c": (130, 0.55)}, i)
        code = main(["watch", str(state), saved(tmp_path / f"{i}.npz", rows), *RULE, "--night", night(i)])
        if not i:
            assert code == 0
            before = calibcli.Watch(state).result().facts["history"]
    assert code == 1
    result = calibcli.Watch(state).result()
    outcomes = {(c.rule, c.scope): c.outcome for c in result.checks}
    assert {scope for (_, scope), outcome in outcomes.items() if outcome == "fail"} == {"site=c"}
    assert outcomes["brier <= 0.25", "site=a"] == "pass"
    entries = [one for one in result.facts["history"] if one["night"] == night(0)]
    assert [one for one in entries if one["scope"] != "site=c"] == list(before)
    assert [one["value"] for one in entries if one["scope"] == "site=c"] == [None, None]
    assert state_file.load(state).settings.rules[2].since == [1, 1, 2]


@pytest.mark.regression
def test_the_rows_of_a_new_slice_count_once_and_parts_with_other_new_slices_merge(tmp_path: Path) -> None:
    first = saved(tmp_path / "0.npz", outputs(OLD, 0))
    for name in "xy":
        state = str(tmp_path / f"{name}.json")
        assert main(["watch", state, first, *RULE, "--night", night(0)]) == 0
    for i, (name, site) in enumerate((("x", "c"), ("y", "d"), ("y", "c")), 1):
        rows = saved(tmp_path / f"{i}.npz", outputs({"a": (50, 0.9), site: (60, 0.9)}, i))
        assert main(["watch", str(tmp_path / f"{name}.json"), rows, "-q", "--night", night(i)]) == 0
        assert main(["watch", str(tmp_path / f"{name}.json"), rows, "-q", "--night", night(i)]) == 0  # once
    one, other = (state_file.load(tmp_path / f"{name}.json") for name in "xy")
    assert one.settings.digest == other.settings.digest
    assert other.rows == 300 + 110 + 110
    from calibcli.watch.session import _same_slices

    pair = _same_slices(one, other)
    for state in pair:
        assert state.settings.rules[2].values == ["a", "b", "d", "c"]
        assert state.settings.rules[2].since == [1, 1, 2, 3]
        assert all(len(entry["streams"]) == len(state.streams) for entry in state.history)
    assert list(pair[0].streams) == list(pair[1].streams)


def test_slices_that_were_fixed_stay_fixed(tmp_path: Path, capsys: Any) -> None:
    """Named values share all of α, and so do those of states that were begun by earlier versions."""
    (tmp_path / "calib.toml").write_text('[[gate]]\nmetric = "brier"\nmax = 0.25\nby = "site"\nvalues = ["a", "b"]\n')
    named, older = tmp_path / "named.json", tmp_path / "older.json"
    files = [saved(tmp_path / f"{i}.npz", outputs(sites, i)) for i, sites in enumerate((OLD, {"c": (20, 0.9), **OLD}))]
    line = ["--config", str(tmp_path / "calib.toml"), "-q", "--night"]
    assert main(["watch", str(named), files[0], *line, night(0)]) == 0
    assert main(["watch", str(older), files[0], *RULE, "--night", night(0)]) == 0
    data = json.loads(older.read_text())
    digest = state_file.load(older).settings.digest
    for rule in data["settings"]["rules"]:
        del rule["since"]
    data["checksum"] = state_file.checksum(data)
    older.write_text(json.dumps(data))
    assert state_file.load(older).settings.digest == digest  # ids are known by it
    for state in (named, older):
        assert main(["watch", str(state), files[1], "--night", night(1)]) == 0
        assert "site = c came later and is not watched: its slices were fixed" in capsys.readouterr().err
        rule = state_file.load(state).settings.rules[-1]
        assert list(rule.values) == ["a", "b"]
        assert rule.family("a") == rule.family("b") == 2


def test_a_state_of_too_many_slices_says_which_it_does_not_watch(tmp_path: Path, capsys: Any) -> None:
    state, many = tmp_path / "s.json", {f"s{i:03}": (2, 1.0) for i in range(MOST_SLICES)}
    for i, sites in enumerate((many, {**many, "t": (5, 1.0)})):
        assert (
            main(
                ["watch", str(state), saved(tmp_path / f"{i}.npz", outputs(sites, i)), *RULE[:-1], "--night", night(i)]
            )
            == 0
        )
    assert "site = t came later and is not watched: a state watches 100" in capsys.readouterr().err


def test_shares_of_all_slices_are_at_most_alpha() -> None:
    rule = WatchedRule(
        rule="r", metric="brier", side="max", limit=0.2, low=0, high=1, by="site", values=["a", "b"], since=[1, 1]
    )
    rng = np.random.default_rng(0)
    for update in range(60):
        limits = [thresholds(rule, 0.05, 0.01, value) for value in rule.values]
        for key, alpha in (("fail", 0.05), ("drift", 0.01)):
            assert sum(math.exp(-one[key]) for one in limits) <= alpha * (1 + 1e-12)
        assert all(one["pass"] == math.log(20) for one in limits)  # each claim for itself
        rule = rule.widened([f"{update}-{i}" for i in range(rng.integers(1, 6))])


@pytest.mark.regression
def test_no_slice_raises_a_false_alarm_in_more_than_alpha_of_all_runs() -> None:
    """One more slice every night, all at the limit: the alarms on any of them, in 300 runs of 25 nights."""
    rng, runs, alpha = np.random.default_rng(1), 300, 0.3
    rule = WatchedRule(
        rule="r", metric="accuracy", side="min", limit=0.7, low=0, high=1, by="site", values=["0"], since=[1]
    )
    streams: dict[str, Stream] = {}
    first = {"shared": np.zeros(runs, bool), "each": np.zeros(runs, bool)}
    for number in range(25):
        rule = rule.widened([str(number)]) if number else rule
        streams[str(number)] = Stream.begin(rule, runs)
        streams[str(number)].night = number + 1
        for name, stream in streams.items():
            hit = (rng.random((runs, 40)) < 0.7).astype(float)
            cell = np.repeat(np.arange(runs), 40)
            fail, passed = (table[:, None] for table in tables(rule, cell, hit.ravel(), None, runs))
            stream.add(fail, passed, np.zeros((runs, 1, 2)))
            e = stream.log_evidence()["fail"]
            first["shared"] |= e >= thresholds(rule, alpha, alpha, name)["fail"]
            first["each"] |= e >= math.log(1 / alpha)
            stream.close()
    assert first["shared"].mean() < alpha
    assert first["each"].mean() > 1.5 * alpha


@pytest.mark.regression
def test_a_slice_column_that_the_state_knows_may_be_named_again(tmp_path: Path, capsys: Any) -> None:
    state = str(tmp_path / "s.json")
    files = [saved(tmp_path / f"{i}.npz", outputs(OLD, i)) for i in range(3)]
    assert main(["watch", state, files[0], *RULE, "--night", night(0)]) == 0
    assert main(["watch", state, files[1], "--by", "site", "-q", "--night", night(1)]) == 0
    assert main(["watch", state, files[2], "--by", "ids", "-q", "--night", night(2)]) == 2
    assert "watches slices by site" in capsys.readouterr().err
    assert state_file.load(state).rows == 600


@pytest.mark.regression
def test_a_file_that_no_state_can_be_as_large_as_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.json"
    with open(path, "wb") as file:
        file.write(b'{"format": "calib-watch", "schema": ' + b"[" * 100)
        file.truncate(10**9)
    with pytest.raises(InputError, match="none has more than 512 MB"):
        state_file.load(path)


@pytest.mark.regression
def test_the_ids_of_requests_are_ids(tmp_path: Path, capsys: Any) -> None:
    rows = outputs(OLD, 0)
    np.savez(tmp_path / "n.npz", probs=rows["p"], labels=rows["labels"], request_id=rows["ids"])
    assert main(["watch", str(tmp_path / "s.json"), str(tmp_path / "n.npz"), "--max", "brier=0.3"]) == 0
    assert "have no ids" not in capsys.readouterr().err
    np.savez(tmp_path / "m.npz", probs=rows["p"], labels=rows["labels"], request=rows["ids"])
    assert main(["watch", str(tmp_path / "t.json"), str(tmp_path / "m.npz"), "--max", "brier=0.3"]) == 0
    assert "name them with --ids" in capsys.readouterr().err
