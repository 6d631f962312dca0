"""Files that hold a network more than once: which is meant is decided by a rule, or asked for, never by chance."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from calibcli.core.errors import InputError
from calibcli.networks import checkpoint
from calibcli.networks.architectures import build
from calibcli.networks.checkpoint import weights

ROOT = Path(__file__).parents[1]
ORDERS = int(os.environ.get("CALIB_ORDERS", "30"))
HASH_SEEDS = int(os.environ.get("CALIB_HASH_SEEDS", "2"))
SPEC = "mlp:inputs=3,hidden=4,classes=2"
State = dict[str, Tensor]


def state(seed: int) -> State:
    torch.manual_seed(seed)
    return dict(build(SPEC).state_dict())


A, B = state(1), state(2)


def under(**copies: State) -> State:
    return {
        f"{prefix.replace('__', '.')}.{name}": value for prefix, held in copies.items() for name, value in held.items()
    }


def loaded(path: Path, name: str = "") -> checkpoint.Checkpoint:
    return checkpoint.load(f"{path}#{name}" if name else path, arch=SPEC)


def holds(found: checkpoint.Checkpoint, wanted: State) -> bool:
    return all(torch.equal(value, wanted[name]) for name, value in found.model.state_dict().items())


CHOSEN: dict[str, tuple[Any, str]] = {
    "Lightning with averaged weights": ({"state_dict": under(model=A, ema=B)}, "model"),
    "averaged first and shorter": ({"state_dict": under(ema=B, network=A)}, "network"),
    "averaged inside a wrapper": (under(module__ema=B, module__net=A), "net"),
    "the plain ones without a prefix": ({**A, **under(ema=B)}, ""),
    "averaged alone": (under(module__ema=A), "ema"),
    "entries of a dict": ({"model": A, "model_ema": B, "optimizer": {"state": {0: torch.zeros(3)}}}, "model"),
    "other names of averages": ({"generator": A, "generator_ema": B, "swa_model": B}, "generator"),
    "equal copies": (under(student=A, teacher=A), "student"),
    "equal copies as entries": ({"last": A, "best": A}, "best"),
    "in wrappers of layers": (under(module___orig_mod=A), ""),
    "half of the names elsewhere": ({**under(net=A), "old.linear.weight": B["linear.weight"]}, "net"),
}  # fmt: skip


AVERAGED = (*list(CHOSEN)[:4], "entries of a dict", "other names of averages")


@pytest.mark.parametrize("case", CHOSEN)
def test_the_plain_network_is_loaded(tmp_path: Path, case: str) -> None:
    tree, prefix = CHOSEN[case]
    torch.save(tree, tmp_path / "m.pt")
    found = loaded(tmp_path / "m.pt")
    assert holds(found, A)
    assert found.prefix == prefix
    noted = any("averaged weights are in" in note for note in found.notes)
    assert noted == (case in AVERAGED)


AMBIGUOUS: dict[str, tuple[Any, list[str]]] = {
    "prefixes": (under(encoder_q=A, encoder_k=B), ["encoder_k", "encoder_q"]),
    "entries": ({"encoder_q": A, "encoder_k": B}, ["encoder_k", "encoder_q"]),
    "prefixes in an entry": ({"state_dict": under(student=A, teacher=B)}, ["student", "teacher"]),
    "entries of entries": ({"q": {"state_dict": A}, "k": {"state_dict": B}}, ["k", "q"]),
    "wrapped": (under(encoder_q__module=A, encoder_k__module___orig_mod=B), ["encoder_k", "encoder_q"]),
    "the usual entry and another": ({"state_dict": A, "best": B}, ["best"]),
    "averages alone": ({"ema": A, "swa": B}, ["ema", "swa"]),
}  # fmt: skip


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_two_networks_are_refused_with_their_names(tmp_path: Path, case: str) -> None:
    tree, names = AMBIGUOUS[case]
    path = tmp_path / "moco.pt"
    torch.save(tree, path)
    with pytest.raises(InputError, match="holds 2 networks that fit") as caught:
        loaded(path)
    assert " or ".join(f"{path}#{name}" for name in names) in caught.value.fix
    for name in names:
        found = loaded(path, name)
        assert found.prefix == name
        assert holds(found, A) != holds(found, B)
    with pytest.raises(InputError, match="no entry 'encoder'"):
        loaded(path, "encoder")
    with pytest.raises(InputError) as caught:  # where the architecture is guessed too
        checkpoint.load(path)
    assert SPEC in caught.value.fix
    assert all(f"{path}#{name}" in caught.value.fix for name in names)


def test_a_name_may_lie_deeper_and_be_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "m.ckpt"
    torch.save({"state_dict": under(model=A, ema=B)}, path)
    assert holds(loaded(path, "ema"), B)
    assert holds(loaded(path, "state_dict.ema"), B)
    assert loaded(path, "ema").prefix == "ema"
    torch.save({"a": {"net": A}, "b": {"net": B}}, path)
    with pytest.raises(InputError, match="holds 'net' 2 times") as caught:
        loaded(path, "net")
    assert caught.value.fix == f"pass {path}#a.net or {path}#b.net"
    assert holds(loaded(path, "b.net"), B)


def test_facts_and_headings_name_the_prefix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from calibcli.cli.app import main

    torch.save({"state_dict": under(model=A, ema=B)}, tmp_path / "m.ckpt")
    torch.save({"x": torch.randn(8, 3), "y": torch.arange(8) % 2}, tmp_path / "d.pt")
    line = [str(tmp_path / "m.ckpt"), "--arch", SPEC, "--data", str(tmp_path / "d.pt"), "--json", "-q"]
    assert main(["logits", *line, "--save", str(tmp_path / "l.npz")]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["prefix"] == "model"
    assert main(["curvature", *line, "-w", "grad_norm"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["prefix"] == "model"


class Twin(nn.Module):
    """A network with an averaged part of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.ema = nn.Linear(3, 2), nn.Linear(3, 2)


def test_parts_of_a_network_are_no_networks(tmp_path: Path) -> None:
    """A part that is called `ema`, and a head whose names are those of a whole."""
    expected = Twin().state_dict()
    found = weights.network({"": expected}, expected, "m.pt")
    assert found.tensors.keys() == expected.keys()
    with pytest.raises(InputError, match="2 networks that fit"):  # a linear model in a file of two layers
        weights.network(
            {"": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).state_dict()}, nn.Linear(2, 2).state_dict(), "m.pt"
        )


@pytest.mark.filterwarnings("ignore")
def test_pickled_networks_follow_the_same_rule(tmp_path: Path) -> None:
    one, other = build(SPEC), build(SPEC)
    one.load_state_dict(A)
    other.load_state_dict(B)
    path = tmp_path / "m.pt"
    torch.save({"ema": other, "model": one}, path)
    assert holds(checkpoint.load(path, trust=True), A)
    assert "averaged weights" in checkpoint.load(path, trust=True).notes[0]
    assert holds(checkpoint.load(f"{path}#ema", trust=True), B)
    torch.save({"generator": one, "critic": other}, path)
    with pytest.raises(InputError, match="2 networks") as caught:
        checkpoint.load(path, trust=True)
    assert f"{path}#critic or {path}#generator" in caught.value.fix
    assert holds(checkpoint.load(f"{path}#critic", trust=True), B)


def shuffled(tree: Any, order: random.Random) -> Any:
    if not isinstance(tree, dict):
        return tree
    items = list(tree.items())
    order.shuffle(items)
    return {name: shuffled(value, order) for name, value in items}


ANY = {**CHOSEN, **AMBIGUOUS}


@settings(max_examples=ORDERS, deadline=None, derandomize=True)
@given(case=st.sampled_from(sorted(ANY)), order=st.randoms(use_true_random=False))
def test_the_order_of_a_dict_decides_nothing(case: str, order: random.Random) -> None:
    expected = build(SPEC).state_dict()

    def answer(tree: Any) -> tuple[Any, ...]:
        try:
            found = weights.network(weights.tables(tree, "m.pt"), expected, "m.pt")
        except InputError as error:
            return str(error), ()
        return found.prefix, tuple(found.notes), {name: id(value) for name, value in found.tensors.items()}

    tree = copy.copy(ANY[case][0])
    assert answer(shuffled(tree, order)) == answer(tree)


@pytest.mark.slow
def test_one_answer_for_all_hash_seeds(tmp_path: Path) -> None:
    """Sets of strings are walked in another order in every process."""
    torch.save(under(encoder_q=A, encoder_k=B), tmp_path / "two.pt")
    torch.save({"state_dict": under(model=A, ema=B)}, tmp_path / "lit.pt")
    code = f"""
from calibcli.core.errors import InputError
from calibcli.networks import checkpoint
for name in ("two.pt", "two.pt#encoder_k", "lit.pt"):
    try:
        found = checkpoint.load(name, arch={SPEC!r})
        print(found.prefix, found.notes, *(float(v.sum()) for v in found.model.state_dict().values()))
    except InputError as error:
        print(error)
"""
    answers = set()
    for seed in range(HASH_SEEDS):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        answers.add((done.returncode, done.stdout, done.stderr))
    assert len(answers) == 1
    code_and_text = answers.pop()
    assert code_and_text[0] == 0
    assert "pass two.pt#encoder_k or two.pt#encoder_q" in code_and_text[1]
