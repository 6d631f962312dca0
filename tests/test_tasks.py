"""Several tasks of one evaluation in the commands that fix, compare and gate: as their rows by hand, or refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import evals_written as written
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError

TASKS = {"arc": (True, 120), "bool": (False, 90), "mmlu": (False, 100)}
COMMON = ["-q", "--json"]


def model(folder: Path, seed: int) -> list[Path]:
    """The samples of a model on three tasks, as lm-eval lays them out, beside the results that it writes too."""
    folder.mkdir()
    rng = random.Random(seed)
    paths = []
    for number, (name, (ragged, rows)) in enumerate(TASKS.items()):
        asked = written.questions(rows, ragged, seed=number)
        for q in asked:
            q.scores = [s + rng.gauss(0, 0.5) for s in q.scores]
        paths.append(folder / f"samples_{name}_2026-11-22T10-00-0{seed}.1.jsonl")
        paths[-1].write_bytes(written.lines(written.lm_eval(asked)))
    (folder / "results_2026-11-22T10-00-00.1.json").write_text("{}")
    return paths


@pytest.fixture
def models(tmp_path: Path) -> dict[str, list[Path]]:
    return {name: model(tmp_path / name, seed) for seed, name in enumerate("AB")}


def result(capsys: pytest.CaptureFixture[str], *argv: object, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    code = main([*map(str, argv), *COMMON])
    out, err = capsys.readouterr()
    assert code in codes, err
    return json.loads(out)  # type: ignore[no-any-return]


def refused(capsys: pytest.CaptureFixture[str], code: int, *argv: object) -> str:
    assert main([*map(str, argv), "-q"]) == code
    return capsys.readouterr().err


def nll(rows: Any, t: float) -> np.ndarray:
    """By hand, row by row, over the choices that a question has."""
    found = []
    for z, y in zip(rows.logits.astype(float), rows.labels):
        own = z[np.isfinite(z)] / t
        found.append(np.log(np.exp(own - own.max()).sum()) + own.max() - z[y] / t)
    return np.array(found)


def test_check(models: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = ["--max", "nll=3", "--min", "accuracy=0.3", "--min-n", "50"]
    found = result(capsys, "check", *models["A"], "--tasks", *rules, "--by", "task", codes=(0, 3))
    value = {(e["name"], e["scope"]): e["value"] for e in found["estimates"]}
    for path, name in zip(models["A"], TASKS):
        alone = calibcli.measure(path, None, "nll", "accuracy")
        for metric in ("nll", "accuracy"):
            assert value[metric, f"task={name}"] == pytest.approx(alone[metric].value, rel=1e-12)
    rows = calibcli.read(models["A"], tasks=True)
    assert value["nll", ""] == pytest.approx(nll(rows, 1.0).mean(), rel=1e-12)
    assert [i["path"] for i in found["provenance"]["inputs"]] == [str(p) for p in models["A"]]
    folder = result(capsys, "check", tmp_path / "A", "--tasks", *rules, "--by", "task", codes=(0, 3))
    assert {(e["name"], e["scope"]): e["value"] for e in folder["estimates"]} == value
    assert "--tasks" in refused(capsys, 4, "check", *models["A"], *rules)
    assert main(["check", *map(str, models["A"]), "--tasks", *rules, "-o", str(models["A"][1])]) == 2  # an input
    capsys.readouterr()


def test_check_against_a_baseline(
    models: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of rows kept before, and of scores: the same pairs, by task and id."""
    base = tmp_path / "base.json"
    assert (
        main(["check", *map(str, models["A"]), "--tasks", "--max", "nll=9", "--keep-rows", "-o", str(base), "-q"]) == 0
    )
    capsys.readouterr()
    margin = ["--margin", "accuracy=0.5"]
    found = [
        result(capsys, "check", *models["B"], "--tasks", "--baseline", given, *margin)
        for given in (base, tmp_path / "A")
    ]
    shown = [[(e["name"], e["value"], e["n"]) for e in one["estimates"]] for one in found]
    assert shown[0] == shown[1]
    a, b = (calibcli.read(models[m], tasks=True) for m in "AB")
    hits = [(p.logits.argmax(1) == p.labels).mean() for p in (a, b)]
    assert shown[0][0][1] == pytest.approx(hits[1] - hits[0], abs=1e-12)
    assert shown[0][0][2] == sum(n for _, n in TASKS.values())
    rule = ["--max", "nll=9", "--fitted-on"]
    assert "310 of 310 rows" in refused(capsys, 4, "check", *models["B"], "--tasks", *rule, tmp_path / "B")
    assert "has 4 classes, 3 tasks 5" in refused(capsys, 4, "check", *models["B"], "--tasks", *rule, models["A"][1])


def test_compare(models: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder for each model; rows pair by task and id."""
    found = result(capsys, "compare", tmp_path / "A", tmp_path / "B", "--tasks", "-m", "nll")
    a, b = (calibcli.read(models[m], tasks=True) for m in "AB")
    [difference] = found["estimates"]
    assert difference["scope"] == "B - A"
    assert difference["value"] == pytest.approx((nll(b, 1.0) - nll(a, 1.0)).mean(), abs=1e-12)
    single = [
        result(capsys, "compare", models["A"][0], models["B"][0], *more, "-m", "nll") for more in ([], ["--tasks"])
    ]
    assert single[0]["estimates"] == single[1]["estimates"]
    renamed = models["B"][0].rename(tmp_path / "other.jsonl")  # one file is one task, whatever it is called
    again = result(capsys, "compare", models["A"][0], renamed, "--tasks", "-m", "nll")
    assert again["estimates"][0]["value"] == single[0]["estimates"][0]["value"]
    models["A"][1].unlink()
    models["A"][0].rename(tmp_path / "A" / "wino.jsonl")
    assert "B has 4 classes, A 5" in refused(capsys, 4, "compare", tmp_path / "A", tmp_path / "B", "--tasks")


def test_scale(models: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One T of all tasks; choices that a question has not stay out of it, of its bounds and of what is mapped."""
    out = tmp_path / "t.safetensors"
    test = [a for path in models["B"] for a in ("--test", path)]
    found = result(capsys, "scale", *models["A"], "--tasks", *test, "-m", "nll", "--save", out)
    value = {(e["name"], e["scope"]): e for e in found["estimates"]}
    rows, others = (calibcli.read(models[m], tasks=True) for m in "AB")
    best = minimize_scalar(lambda t: nll(rows, t).mean(), bounds=(0.5, 50), method="bounded", options={"xatol": 1e-10})
    assert value["temperature", ""]["value"] == pytest.approx(best.x, rel=1e-6)
    after = value["nll", "after"]
    assert after["value"] == pytest.approx(nll(others, best.x).mean(), rel=1e-9)
    assert after["value"] < after["high"] < 10  # what a worst label would cost is over the choices there are
    first = others.slices["task"] == "arc"
    assert value["nll", "task=arc after"]["value"] == pytest.approx(nll(others, best.x)[first].mean(), rel=1e-9)
    folder = result(capsys, "scale", tmp_path / "A", "--tasks", "--test", tmp_path / "B", "-m", "nll")
    assert [e["value"] for e in folder["estimates"]] == [e["value"] for e in found["estimates"]]

    wrong = refused(capsys, 4, "scale", *models["A"], "--tasks", "--method", "vector")
    assert "vector maps every choice by itself, and the questions of 3 tasks differ in theirs" in wrong
    ranked = result(capsys, "scale", *models["A"], "--tasks", "--method", "all", "-m", "nll", "--folds", "2")
    left = [note.split(" is left out")[0] for note in ranked["notes"] if "is left out" in note]
    assert {"vector", "isotonic", "histogram", "matrix"} <= set(left)
    even = result(capsys, "scale", *models["A"][1:], "--tasks", "--method", "vector", "-m", "nll")
    assert even["facts"]["method"] == "vector"
    full = tmp_path / "v.safetensors"
    result(capsys, "scale", *models["A"][1:], "--tasks", "--method", "vector", "-m", "nll", "--save", full)
    wrong = refused(capsys, 4, "apply", full, models["A"][0], "--save", tmp_path / "o.npz")
    assert "vector maps every choice by itself" in wrong


def test_a_folder_of_tasks(models: dict[str, list[Path]], tmp_path: Path) -> None:
    found = calibcli.read(tmp_path / "A", tasks=True)
    assert found.record.tasks == list(TASKS)
    again = tmp_path / "A" / "samples_arc_2026-11-23T10-00-00.1.jsonl"
    again.write_bytes(models["A"][0].read_bytes())
    with pytest.raises(InputError, match="holds 2 runs of the task arc"):
        calibcli.read(tmp_path / "A", tasks=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no evaluations in"):
        calibcli.read(tmp_path / "empty", tasks=True)
    with pytest.raises(InputError, match=r"several formats: \.json, \.jsonl") as error:
        calibcli.read(tmp_path / "B")
    pattern = f"{tmp_path / 'B'}/*.jsonl"
    assert pattern in error.value.fix
    with pytest.raises(InputError, match="files of 3 tasks: arc, bool, mmlu") as error:
        calibcli.read(pattern)
    assert "--tasks" in error.value.fix
    assert calibcli.read(pattern, tasks=True).record.tasks == list(TASKS)
    (tmp_path / "B" / "results_2026-11-22T10-00-00.1.json").unlink()
    with pytest.raises(InputError, match="files of 3 tasks"):
        calibcli.read(tmp_path / "B")


def test_parts_of_one_task_are_no_tasks(tmp_path: Path) -> None:
    """Whatever their names: nothing but a name that a harness gave them tells tasks apart."""
    asked = written.questions(60, False)
    for name in ("part-{}", "samples_arc_2026-11-22T10-00-0{}.1"):
        folder = tmp_path / name.format("x")
        folder.mkdir()
        for i in range(2):
            (folder / f"{name.format(i)}.jsonl").write_bytes(
                written.lines(written.lm_eval(asked[i * 30 : i * 30 + 30]))
            )
        assert calibcli.read(folder).labels.tolist() == [q.right for q in asked]


def test_a_task_in_several_parts(tmp_path: Path) -> None:
    """A folder of `save_to_disk` is one task, whatever the number of its files."""
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    folder = tmp_path / "first"
    folder.mkdir()
    for number, rows in enumerate(np.array_split(np.arange(30), 3)):
        lines = ["logit_0,logit_1,logit_2,label", *(",".join(map(repr, z[i].tolist())) + f",{y[i]}" for i in rows)]
        (folder / f"data-{number}.csv").write_text("\n".join(lines) + "\n")
    state = {"_data_files": [{"filename": f"data-{number}.csv"} for number in range(3)]}
    (folder / "state.json").write_text(json.dumps(state))
    np.savez(tmp_path / "second.npz", logits=z[:12], labels=y[:12])
    found = calibcli.read([folder, tmp_path / "second.npz"], tasks=True)
    assert found.record.tasks == ["first", "second"]
    np.testing.assert_array_equal(found.logits, np.concatenate([z, z[:12]]))
    assert found.slices["task"].tolist() == ["first"] * 30 + ["second"] * 12
    np.testing.assert_array_equal(calibcli.read(folder, tasks=True).logits, z)
