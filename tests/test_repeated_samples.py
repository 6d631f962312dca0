"""Rows that are several looks at one sample: a gate has no verdict on them, and every other file keeps its own."""

from __future__ import annotations

import csv
import dataclasses
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from populations import drawn, softmax

import calibcli
from calibcli.cli.app import main

Columns = dict[str, Any]
Made = tuple[list[Columns], list[str]]
"""The tables of one evaluation, a file each, and the options that they are read with."""
Rng = np.random.Generator


def logits(n: int, k: int, rng: Rng, scale: float = 0.0) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Scores of a model that is calibrated or overconfident, with its labels."""
    z = (scale or rng.uniform(1, 4)) * rng.normal(size=(n, k))
    return z * rng.choice([1.0, 1.5]), drawn(softmax(z), rng)


def table(z: npt.NDArray[np.float64], y: Any, **more: Any) -> Columns:
    p = softmax(z)
    decimals = 9 if more.pop("decimals", None) is None else 2
    names = [f"p_{i}" for i in range(p.shape[1])]
    shown = p.round(decimals) if decimals > 2 else p
    return {**dict(zip(names, shown.T, strict=True)), "label": y, **more}


def sizes(rng: Rng, most: int = 1500) -> tuple[int, int]:
    return int(np.exp(rng.uniform(np.log(120), np.log(most)))), int(rng.choice([2, 2, 3, 10]))


def named(kind: Any, n: int) -> list[str]:
    return [f"{kind}-{i:05}" for i in range(n)]


# files in which every row is a sample of its own


def own_ids(rng: Rng) -> Made:
    n, k = sizes(rng)
    name = str(rng.choice(["id", "ids", "rowIndex", "request_id", "sampleId", "image", "uuid", "question"]))
    return [table(*logits(n, k, rng), **{name: rng.permutation(named("x", n))})], []


def folds(rng: Rng) -> Made:
    n, k = sizes(rng)
    name, count = str(rng.choice(["id", "fold_id", "index", "site_id", "key"])), int(rng.choice([2, 5, 10, 20]))
    return [table(*logits(n, k, rng), **{name: [f"Fold{i % count:02}" for i in range(n)]})], []


def sites(rng: Rng) -> Made:
    """Sites that differ in how often each class occurs: rows of one are alike, and no sample comes twice."""
    n, _ = sizes(rng)
    site = rng.integers(0, 12, n)
    z = np.column_stack([np.zeros(n), 2 * rng.normal(size=n) + rng.normal(size=12)[site]])
    return [table(z, drawn(softmax(z), rng), **{str(rng.choice(["id", "hospital_id"])): site})], []


def classes(rng: Rng) -> Made:
    n, k = sizes(rng)
    z, y = logits(n, k, rng)
    columns = {"class_id": y, "label_idx": y, "pred_id": z.argmax(1)}
    name = str(rng.choice([*columns]))
    return [table(z, y, **{name: columns[name]})], []


def finer_classes(rng: Rng) -> Made:
    """Breeds of cats and dogs, some of which are harder than others."""
    n, k = sizes(rng, 4000)
    z, y = logits(n, k, rng, 2.0)
    breed = y * 15 + rng.integers(0, 15, n)
    hard = rng.uniform(0.6, 1.4, 15 * k)
    return [table(z * hard[breed][:, None], y, breed_id=breed)], []


def visits(rng: Rng) -> Made:
    n, k = sizes(rng)
    who = str(rng.choice(["id", "patient_id"]))
    return [table(*logits(n, k, rng), **{who: rng.integers(0, n // 3, n)})], []


def choices(rng: Rng) -> Made:
    """Each choice of a question is a row: one of four is right."""
    n = sizes(rng)[0] // 4 * 4 + 80
    z = 2 * rng.normal(size=(n // 4, 4))
    right = drawn(softmax(z), rng)
    score = z.ravel()
    y = (np.arange(4) == right[:, None]).astype(int).ravel()
    question = {str(rng.choice(["doc_id", "question_id"])): np.repeat(np.arange(n // 4), 4)}
    return [table(np.column_stack([np.zeros(n), score]), y, **question)], []


def parts(rng: Rng) -> Made:
    """Two files that number their rows anew."""
    n, k = sizes(rng)
    return [table(*logits(n, k, rng), id=np.arange(n)) for _ in range(2)], ["--shards"]


def restarted(rng: Rng) -> Made:
    n, k = sizes(rng)
    number = str(rng.choice(["id", "index"]))
    return [table(*logits(3 * n, k, rng), **{number: np.tile(np.arange(n), 3)})], []


def some_without(rng: Rng) -> Made:
    n, k = sizes(rng)
    ids = np.array(named("x", n), dtype=object)
    ids[rng.random(n) < 0.3] = rng.choice(["", "NA"])
    return [table(*logits(n, k, rng), id=ids)], []


def grouped(rng: Rng) -> Made:
    (made,), _ = passes(rng)
    name = list(made)[-1]
    return [made], ["--group", name]


def confidences(rng: Rng) -> Made:
    n = sizes(rng)[0]
    c = rng.beta(5, 2, n)
    name = str(rng.choice(["id", "question", "user_id"]))
    user = rng.integers(0, 40, n) if name == "user_id" else np.arange(n)
    return [{"confidence": c, "correct": (rng.random(n) < c).astype(int), name: user}], []


HONEST: dict[str, Callable[[Rng], Made]] = {
    f.__name__: f
    for f in (own_ids, folds, sites, classes, finer_classes, visits, choices, parts, restarted, some_without, grouped,
              confidences)
}  # fmt: skip


# files in which samples come twice, with other scores


def passes(rng: Rng) -> Made:
    """Every sample several times, with dropout left on, or with augmented inputs."""
    n, k = sizes(rng, 500)
    many, noise = int(rng.choice([2, 3, 5, 10])), rng.uniform(0.02, 0.5)
    z, y = logits(n, k, rng)
    who = np.tile(np.arange(n), many) if rng.random() < 0.5 else np.repeat(np.arange(n), many)
    z = z[who] + noise * z.std() * rng.normal(size=(len(who), k))
    name = str(rng.choice(["id", "ids", "rowIndex", "image_id", "sample", "question", "doc_id", ".row", "request-id"]))
    return [table(z, y[who], **{name: who})], []


def bootstrap(rng: Rng) -> Made:
    n, k = sizes(rng)
    z, y = logits(n, k, rng)
    who = rng.integers(0, n, n)
    return [table(z[who] + 1e-3 * rng.normal(size=(n, k)), y[who], rowIndex=who)], []


def padded(rng: Rng) -> Made:
    """A sampler that fills the last batch: few rows come again, under the ids that they had."""
    n, k = sizes(rng)
    z, y = logits(n, k, rng)
    who = np.append(np.arange(n), np.arange(int(rng.uniform(0.01, 0.2) * n) + 1))
    return [table(z[who] + 0.1 * rng.normal(size=(len(who), k)), y[who], id=who)], []


def overlapping(rng: Rng) -> Made:
    """Two workers whose parts share samples."""
    n, k = sizes(rng)
    z, y = logits(n, k, rng)
    halves = np.arange(int(0.7 * n)), np.arange(int(0.3 * n), n)
    return [table(z[w] + 0.1 * rng.normal(size=(len(w), k)), y[w], id=w) for w in halves], ["--shards"]


def sampled_answers(rng: Rng) -> Made:
    """Several answers to a question, each with its own confidence, right in most cases or in few."""
    n = sizes(rng, 400)[0]
    hard = rng.beta(3, 1, n)
    who = np.repeat(np.arange(n), 5)
    c = np.clip(hard[who] + 0.05 * rng.normal(size=len(who)), 0.01, 0.99)
    right = (np.where(rng.random(len(who)) < 0.1, rng.random(len(who)), rng.random(n)[who]) < c).astype(int)
    return [{"confidence": c, "correct": right, str(rng.choice(["id", "question"])): who}], []


BROKEN: dict[str, Callable[[Rng], Made]] = {
    f.__name__: f for f in (passes, bootstrap, padded, overlapping, sampled_answers)
}


def said(made: Made, folder: Path) -> tuple[bool, str]:
    """Whether a gate on these files says that samples repeat; and the option that it names."""
    tables, options = made
    paths = []
    for i, columns in enumerate(tables):
        paths.append(str(folder / f"{i}.csv"))
        with open(paths[-1], "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
    how: dict[str, Any] = {"shards": True} if "--shards" in options else {}
    how |= {"group": options[1]} if "--group" in options else {}
    rows = calibcli.read(paths, **how)
    result = calibcli.check(rows, max={"brier_top" if rows.top_only else "brier": 0.9}, min_n=10)
    result = dataclasses.replace(result, notes=rows.notes)
    (found,) = result.checks
    repeats = [note for note in result.notes if "counts the rows of one name as one" in note]
    assert bool(repeats) == ("counts the rows of one name as one" in found.message), (found, result.notes)
    return bool(repeats), found.message


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_of_200_honest_files_none_is_said_to_repeat_samples(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        kind = [*HONEST][seed % len(HONEST)]
        found, why = said(HONEST[kind](np.random.default_rng(seed)), tmp_path)
        assert not found, (kind, seed, why)


@pytest.mark.slow
def test_of_200_files_that_repeat_samples_nearly_all_are_said(tmp_path: Path) -> None:
    found = {}
    for seed in range(200):
        kind = [*BROKEN][seed % len(BROKEN)]
        found[kind, seed] = said(BROKEN[kind](np.random.default_rng(seed)), tmp_path)[0]
    assert sum(found.values()) >= 190, [case for case, yes in found.items() if not yes]


@pytest.mark.regression
@pytest.mark.parametrize("kind", HONEST)
def test_a_file_whose_rows_are_samples_of_their_own_keeps_its_verdict(kind: str, tmp_path: Path) -> None:
    assert not said(HONEST[kind](np.random.default_rng(1)), tmp_path)[0]


@pytest.mark.regression
@pytest.mark.parametrize("kind", BROKEN)
def test_samples_that_come_twice_are_no_rows(kind: str, tmp_path: Path) -> None:
    assert said(BROKEN[kind](np.random.default_rng(1)), tmp_path)[0]


@pytest.mark.regression
def test_the_line_that_a_gate_names_decides_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """400 samples, each five times with noise: as 2,000 rows they would show what 400 cannot."""
    rng = np.random.default_rng(4)
    z, y = logits(400, 3, rng, 2.5)
    who = np.tile(np.arange(400), 5)
    noisy = z[who] + 0.3 * rng.normal(size=(2000, 3))
    path, right = str(tmp_path / "passes.npz"), float((noisy.argmax(1) == y[who]).mean())
    for name in ("id", "rowIndex", "request id"):
        np.savez(path, **{"logits": noisy, "labels": y[who], name: who})
        rule = ["check", path, "--min", f"accuracy={right - 0.02}"]
        assert main([*rule, "-q"]) == 5
        said = " ".join(capsys.readouterr().out.split())
        assert f"1,600 of 2,000 rows repeat a sample (named by '{name}')" in said
        option = shlex.split(said[said.index("--group") :])[:2]
        assert option == ["--group", name]
        assert main([*rule, *option, "-q"]) == 3
        assert "groups: 400" in capsys.readouterr().out
        assert main(["metrics", path]) == 0
        assert "so that intervals are too narrow; --group" in capsys.readouterr().err
    in_python = calibcli.check(noisy, y[who], ids=who, min={"accuracy": 0.5}).checks[0]
    assert in_python.outcome == "not_run"
    assert "group=ids" in in_python.message
    assert calibcli.check(noisy, y[who], ids=who, group=who, min={"accuracy": 0.5}).passed
    counts = {"weights": np.ones(400), "weight_kind": "count"}
    assert calibcli.check(z, y, ids=np.arange(400) // 2, min={"accuracy": 0.5}, **counts).passed  # type: ignore[arg-type]


@pytest.mark.regression
def test_groups_that_share_samples_do_not_make_them_one() -> None:
    """Twenty folds of three repeats: each sample lies in three of these groups, which are then not independent."""
    rng = np.random.default_rng(5)
    z, y = logits(300, 2, rng, 2.5)
    who = np.tile(np.arange(300), 3)
    fold = np.array([f"Fold{i % 20}.Rep{k}" for k in range(3) for i in range(300)])
    noisy = z[who] + 0.2 * rng.normal(size=(900, 2))
    made = calibcli.check(noisy, y[who], ids=who, group=fold, min={"accuracy": 0.5}).checks[0]
    assert made.outcome == "not_run"
    assert "in several groups" in made.message


@pytest.mark.regression
def test_a_watch_refuses_samples_that_come_twice_and_names_the_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(6)
    z, y = logits(300, 3, rng, 2.5)
    who = np.tile(np.arange(300), 3)
    noisy = z[who] + 0.2 * rng.normal(size=(900, 3))
    rows, state = tmp_path / "night.npz", tmp_path / "state.json"
    line = ["watch", str(state), str(rows), "--min", "accuracy=0.5", "--night", "2026-11-20"]
    for name in ("id", "rowIndex"):
        np.savez(rows, **{"logits": noisy, "labels": y[who], name: who})
        assert main(line) == 4
        assert f"--group {name}" in capsys.readouterr().err
        assert not state.exists()
    assert main([*line, "--group", "rowIndex"]) == 0
    state.unlink()
    capsys.readouterr()
    np.savez(rows, logits=z, labels=y, image=np.arange(300))
    assert main(line) == 0
    assert "a whole batch does; --ids image if that names them" in capsys.readouterr().err
    state.unlink()
    assert main([*line, "--ids", "image"]) == 0
    assert "a whole batch does" not in capsys.readouterr().err
