"""The order of a dict, a set or a folder decides nothing: one answer for all of them."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibcli.cli.app import main
from calibcli.networks.architectures import build

ROOT = Path(__file__).parents[1]
ORDERS = int(os.environ.get("CALIB_ORDERS", "12"))
HASH_SEEDS = int(os.environ.get("CALIB_HASH_SEEDS", "4"))
SPEC = "mlp:inputs=3,hidden=4,classes=3"
WORDS = ["cat", "dog", "emu"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, 3, 60)
    z = rng.normal(size=(60, 3))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    states = [build(SPEC).state_dict() for _ in range(2)]
    return {
        "folder": tmp_path_factory.mktemp("orders"),
        "net": {"model": dict(states[0]), "ema": dict(states[1]), "epoch": 3, "optimizer": {"state": {}}},
        "rows": {"x": x, "y": y, "ids": np.arange(60)},
        "scores": {"logits": z, "probs": p, "labels": y, "ids": np.arange(60), "extra": rng.normal(size=60)},
        "table": {f"{a}_{w}": one[:, i] for a, one in (("p", p), ("z", z)) for i, w in enumerate(WORDS)}
        | {"label": np.array(WORDS)[y]},
    }


def shuffled(tree: Any, order: random.Random) -> Any:
    if not isinstance(tree, dict):
        return tree
    names = list(tree)
    order.shuffle(names)
    return {name: shuffled(tree[name], order) for name in names}


def answer(capsys: pytest.CaptureFixture[str], *line: str) -> Any:
    """Exit code and what is found; files that were written anew have other digests."""
    capsys.readouterr()
    code = main([*line, "--json", "-q"])
    said = capsys.readouterr()
    if code:
        return code, said.err
    found = json.loads(said.out)
    return code, found["facts"], found["estimates"], sorted(found["notes"])


@pytest.mark.slow
@settings(max_examples=ORDERS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**9))
def test_one_answer_for_all_orders(
    made: dict[str, Any], seed: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home, order = made["folder"], random.Random(seed)
    monkeypatch.chdir(home)

    def answers(change: Any) -> list[Any]:
        torch.save(change(made["net"]), "net.pt")
        np.savez("rows.npz", **change(made["rows"]))
        np.savez("scores.npz", **change(made["scores"]))
        plain = ["logits", "net.pt", "--arch", SPEC, "--data", "rows.npz", "--save", "o.npz", "--device", "cpu"]
        found = [answer(capsys, *plain), np.load("o.npz")["logits"].tolist()]
        for command in ("metrics", "inspect"):
            found += [answer(capsys, command, "scores.npz", "--scores", name) for name in ("probs", "logits")]
        return found

    if "wanted" not in made:
        made["wanted"] = answers(lambda tree: tree)
        assert made["wanted"][0][0] == 0
    assert answers(lambda tree: shuffled(tree, order)) == made["wanted"]


@pytest.mark.slow
@settings(max_examples=ORDERS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**9))
def test_one_answer_for_all_orders_of_a_folder(
    made: dict[str, Any], seed: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards in a folder, which the system lists as it likes."""
    home = made["folder"] / "shards"
    if not home.exists():
        home.mkdir()
        for i in range(3):
            np.savez(
                home / f"{i}.npz", **{k: v[20 * i : 20 * i + 20] for k, v in made["scores"].items() if k != "probs"}
            )
    plain, order = os.scandir, random.Random(seed)

    class Listing(list[Any]):
        def __enter__(self) -> Listing:
            return self

        def __exit__(self, *error: object) -> None: ...

        def close(self) -> None: ...

    def scandir(path: Any = ".") -> Any:
        entries = Listing(plain(path))
        order.shuffle(entries)
        return entries

    def listdir(path: Any = ".") -> list[str]:
        return [entry.name for entry in scandir(path)]

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made["folder"])
        if "shards" not in made:
            made["shards"] = [answer(capsys, command, "shards/*.npz") for command in ("metrics", "inspect")]
        patch.setattr(os, "scandir", scandir)
        patch.setattr(os, "listdir", listdir)
        assert [answer(capsys, command, "shards/*.npz") for command in ("metrics", "inspect")] == made["shards"]


@pytest.mark.slow
def test_one_answer_for_all_hash_seeds(made: dict[str, Any]) -> None:
    """Two groups of columns have the labels' names: which is read is no matter of chance."""
    table = made["table"]
    lines = [",".join(table), *(",".join(map(str, row)) for row in zip(*table.values()))]
    (made["folder"] / "t.csv").write_text("\n".join(lines) + "\n")
    answers = set()
    for seed in range(HASH_SEEDS):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed)}
        line = [sys.executable, "-m", "calibcli", "metrics", "t.csv", "-m", "nll", "--json", "-q"]
        done = subprocess.run(line, cwd=made["folder"], env=environment, capture_output=True, text=True, check=False)
        answers.add((done.returncode, done.stderr, json.dumps(json.loads(done.stdout or "{}").get("facts"))))
    assert len(answers) == 1
