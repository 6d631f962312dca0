"""Rows that were added more than once are noticed in what is merged, and rows that only look alike are not accused."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from benchmark_scripts import script

import calibcli
from calibcli import Accumulator
from calibcli.cli.app import main
from calibcli.core.errors import Exit
from calibcli.metrics._repeated_rows import KEPT, RowMarks, of_ids
from calibcli.metrics.partial_states import _checksum


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return script("repeated_parts")


@pytest.fixture(scope="module")
def rows(bench: ModuleType) -> Any:
    return bench.drawn(640, 4, np.random.default_rng(1))


@pytest.mark.regression
def test_no_way_of_repeating_rows_is_silent(bench: ModuleType, rows: Any) -> None:
    """Every third of the fifty ways; the benchmark tries all."""
    found = []
    for name, parts, batch, ids, tree in [*bench.ways(640)][1::3]:
        outcome, said = bench.verdict(bench.merged(*rows, parts, max(batch, 32), ids, tree), max={"ece": 0.06})
        assert outcome == "not_run" or said, name
        found.append(outcome)
    assert found.count("not_run") >= len(found) - 2


@pytest.mark.regression
def test_a_gate_on_repeated_rows_is_not_run_and_says_why(bench: ModuleType, rows: Any) -> None:
    """Four ranks without a sampler, as in examples/merge/with_torch.py."""
    once, four = (bench.merged(*rows, [np.arange(640)] * ranks, 64) for ranks in (1, 4))
    assert not once._state.repeated()[0]
    limit = sum(state.result("ece")["ece"].high for state in (once, four)) / 2
    assert bench.verdict(once, max={"ece": limit})[0] == "inconclusive"
    result = calibcli.Result.from_json(four.result("ece").to_json())
    assert any("about 75 % of the rows are copies" in note for note in result.notes)
    check = calibcli.check(result, max={"ece": limit}).checks[0]
    assert check.outcome == "not_run"
    assert "give each row to one part only" in check.message
    assert bench.verdict(four, silent=True, max={"ece": limit})[0] == "pass"  # which the marks prevent


@pytest.mark.slow
def test_at_the_limit_repeated_rows_pass_no_gate(bench: ModuleType) -> None:
    found = bench.at_limit(24)
    assert found["merged"] == [0, 0]
    assert sum(found["unnoticed"]) > 0


@pytest.mark.slow
@pytest.mark.regression
def test_rows_that_look_alike_by_chance_are_not_accused(bench: ModuleType) -> None:
    said: list[str] = []
    assert bench.accused(28, said.append)[0] == 0, said


@pytest.mark.regression
@pytest.mark.parametrize("kind", ["int", "text", "noisy"])
def test_ids_tell_rows_again(rows: Any, kind: str) -> None:
    """Overlapping ranks, and samples that are scored twice with other noise."""
    z, y = rows
    ids: Any = np.arange(640)
    ids = np.array([f"q{i}" for i in ids]) if kind == "text" else ids
    noise = 0.5 * np.random.default_rng(0).normal(size=z.shape) * (kind == "noisy")
    a = Accumulator().update(z[:400], y[:400], ids=ids[:400])
    b = Accumulator().update(
        z[360:] + noise[360:], y[360:], ids=ids[360:].astype(np.int32) if kind == "int" else ids[360:]
    )
    result = pickle.loads(pickle.dumps(a)).merge(b).result("accuracy")
    assert "5.9 % of the rows with ids have the id of another row" in result.facts["repeated"]
    assert not a._state.repeated()[0]  # type: ignore[union-attr]


def test_parts_that_number_their_rows_anew_are_not_accused(rows: Any, tmp_path: Path) -> None:
    """An id column that nobody named counts only together with what its row holds."""
    z, y = rows
    state = Accumulator()
    for i, part in enumerate((slice(0, 320), slice(320, 640))):
        np.savez(tmp_path / f"p{i}.npz", logits=z[part], labels=y[part], ids=np.arange(320))
        state.update(tmp_path / f"p{i}.npz")
    assert state._state.repeated() == ([], False)  # type: ignore[union-attr]
    np.savez(tmp_path / "p2.npz", logits=z[300:420], labels=y[300:420], ids=np.r_[300:320, 0:100])
    assert state.update(tmp_path / "p2.npz")._state.repeated()[1]  # type: ignore[union-attr]


@pytest.mark.regression
def test_files_that_share_rows_are_noticed_on_the_command_line(bench: ModuleType, tmp_path: Path, capsys: Any) -> None:
    z, y = bench.drawn(1600, 3, np.random.default_rng(4))
    for name, part in (("a", np.arange(1000)), ("b", np.r_[1200:1600, 1000:1200, 600:1000][::-1])):
        text = "\n".join(",".join([*map(repr, map(float, z[i])), str(y[i])]) for i in part)
        (tmp_path / f"{name}.csv").write_text(f"logit_0,logit_1,logit_2,label\n{text}\n")
        assert main(["metrics", str(tmp_path / f"{name}.csv"), "--partial", str(tmp_path / f"{name}.npz"), "-q"]) == 0
    states, out = [str(tmp_path / f"{name}.npz") for name in "ab"], str(tmp_path / "all.json")
    assert main(["merge", *states, "-o", out]) == 0
    assert "of the rows are copies of others" in capsys.readouterr().err
    assert main(["check", out, "--max", "ece=0.5"]) == Exit.NOT_RUN
    assert main(["merge", states[0], "-o", out, "-q"]) == 0
    assert main(["check", out, "--max", "ece=0.5", "-q"]) == 0


@pytest.mark.regression
def test_copies_in_a_file_are_not_run_in_its_result_too(tmp_path: Path) -> None:
    z, y = np.random.default_rng(0).normal(size=(300, 3)), np.random.default_rng(1).integers(0, 3, 300)
    np.savez(tmp_path / "f.npz", logits=np.tile(z, (3, 1)), labels=np.tile(y, 3))
    for name in ("f.npz", "r.json"):
        assert main(["metrics", str(tmp_path / "f.npz"), "-o", str(tmp_path / "r.json"), "-q"]) == 0
        assert main(["check", str(tmp_path / name), "--max", "ece=0.9", "-q"]) == Exit.NOT_RUN


@pytest.mark.regression
def test_a_state_of_the_version_before_is_read(bench: ModuleType, rows: Any, tmp_path: Path) -> None:
    """It has no marks: that is said where it is merged with others."""
    z, y = rows
    for name, part in (("old", slice(0, 320)), ("new", slice(320, 640))):
        Accumulator(kind="logits").update(z[part], y[part]).save(tmp_path / f"{name}.npz")
    with np.load(tmp_path / "old.npz") as file:
        arrays = {key: file[key] for key in file if not key.startswith(("marks_", "ids_"))}
    header = {**json.loads(arrays["calib_state"].tobytes()), "schema": 1}
    header = {key: value for key, value in header.items() if key not in ("unmarked", "checksum")}
    header["checksum"] = _checksum(header, arrays)
    arrays["calib_state"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(tmp_path / "old.npz", **arrays)
    old = Accumulator.load(tmp_path / "old.npz")
    assert old.result("ece")["ece"].value == pytest.approx(calibcli.measure(z[:320], y[:320], "ece")["ece"].value)
    old.merge(Accumulator.load(tmp_path / "new.npz")).save(tmp_path / "both.npz")
    result = Accumulator.load(tmp_path / "both.npz").result("ece")
    assert any("320 rows are of states of an earlier version" in note for note in result.notes)


def test_ids_of_any_dtype_are_told_apart_and_known_again() -> None:
    numbers = np.arange(5000)
    for ids in (numbers, numbers.astype(str), np.array([f"a{i}" for i in numbers], object), numbers / 7):
        hashes = of_ids(ids)
        assert len(np.unique(hashes)) == 5000
        wide = {"i": np.int16, "U": "U50", "O": "U50", "f": np.float64}[ids.dtype.kind]
        np.testing.assert_array_equal(of_ids(ids.astype(wide)), hashes)  # type: ignore[call-overload]
        assert np.histogram(hashes.astype(float), 10, (0, 2.0**64))[0].min() > 400
    assert (of_ids(np.array(["a", "aa"])) != of_ids(np.array(["aa", "a"]))).all()


def test_the_sample_of_distinct_rows_is_that_of_all_rows() -> None:
    """However they are split: the same hashes with the same counts, and no more than are kept."""
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**63, 9000).astype(np.uint64)[rng.integers(0, 9000, 30_000)]
    wrong, rest = rng.random(30_000) < 0.3, rng.random(30_000).astype(np.float32)
    whole = RowMarks.of(hashes, wrong, rest)
    parts = np.array_split(rng.permutation(30_000), [100, 101, 5000, 20_000])
    joined = RowMarks.none()
    for part in parts:
        joined = joined.with_rows(RowMarks.of(hashes[part], wrong[part], rest[part]))
    names, counts = np.unique(hashes, return_counts=True)
    for one in (whole, joined):
        assert (one.hashes == names[:KEPT]).all()
        assert (one.rows == counts[:KEPT]).all()
        assert (one.wrong == [wrong[hashes == name].sum() for name in names[:KEPT]]).all()


@pytest.mark.parametrize("mean", [0.05, 0.3, 1.0, 4.0])
def test_poisson_counts_are_no_copies_and_doubled_ones_are(mean: float) -> None:
    rng = np.random.default_rng(0)

    def share(counts: Any) -> float:
        counts = counts[counts > 0]
        return RowMarks(
            np.arange(len(counts), dtype=np.uint64), counts, 0 * counts, np.zeros(len(counts), np.float32)
        ).copies()

    means = mean * rng.gamma(2.0, 0.5, 4000)
    assert max(share(rng.poisson(means)) for _ in range(50)) == 0
    assert share(2 * rng.poisson(means)) > 0.2
    assert math.isclose(share(np.full(500, 4)), 0.75, rel_tol=0.02)
