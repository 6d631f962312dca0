"""Weights under other names than the model's: what `load_state_dict` takes, pruned files, surplus buffers, chains."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, weight_norm

import calibcli
from calibcli.core.errors import InputError, UsageError
from calibcli.networks import checkpoint

torch.set_num_threads(1)
CODE = """
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8, bias=BIAS), nn.Tanh(), nn.Linear(8, 3))
    def forward(self, x):
        return self.net(x)

class Hooked(Net):
    def _load_from_state_dict(self, state, prefix, *rest):
        for name in [n for n in state if n.startswith(prefix + "old.")]:
            state[prefix + "net." + name[len(prefix) + 4:]] = state.pop(name)
        super()._load_from_state_dict(state, prefix, *rest)

def normed():
    model = Net()
    weight_norm(model.net[0])
    return model

def normed_before():
    model = Net()
    torch.nn.utils.weight_norm(model.net[0])
    return model

def pruned():
    model = Net()
    torch.nn.utils.prune.identity(model.net[0], "weight")
    return model

def odd():
    model = Net()
    model.register_buffer("kept", torch.arange(3))
    return model
"""


def network(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(CODE.replace("BIAS", "True"))
    return tmp_path / "net.py"


def prefixed(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {f"{prefix}.{name}": tensor for name, tensor in state.items()}


def loaded(folder: Path, state: dict[str, Any], factory: str) -> checkpoint.Checkpoint:
    torch.save(state, folder / "model.pt")
    return checkpoint.load(folder / "model.pt", arch_file=f"{folder}/net.py:{factory}")


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))


def same(found: nn.Module, true: nn.Module) -> bool:
    with torch.no_grad():
        return torch.allclose(found(X), true.eval()(X), atol=1e-6)


@pytest.mark.regression
def test_the_old_weight_norm_loads_into_the_new(tmp_path: Path, code: Path) -> None:
    model = network()
    with warnings.catch_warnings(action="ignore"):
        weight_norm(model[0])
    read = loaded(tmp_path, prefixed(model.state_dict(), "net"), "normed")
    assert same(read.model, model)
    assert any("load_state_dict" in note for note in read.notes)


@pytest.mark.regression
def test_the_new_weight_norm_loads_into_the_old(tmp_path: Path, code: Path) -> None:
    model = network()
    with warnings.catch_warnings(action="ignore"):
        parametrizations.weight_norm(model[0])
        read = loaded(tmp_path, prefixed(model.state_dict(), "net"), "normed_before")
        assert same(read.model, model)
        assert any("old names: net.0.weight_g" in note for note in read.notes)
        with pytest.raises(InputError, match="does not fit"):
            loaded(tmp_path, {"net.0.weight": torch.zeros(8, 4)}, "normed_before")


@pytest.mark.regression
def test_hooks_that_rename_are_followed_and_a_wrong_shape_is_still_refused(tmp_path: Path, code: Path) -> None:
    model = network()
    assert same(loaded(tmp_path, prefixed(model.state_dict(), "old"), "Hooked").model, model)
    state = prefixed(model.state_dict(), "old")
    state["old.0.weight"] = torch.zeros(8, 5)
    with pytest.raises(InputError, match="does not fit"):
        loaded(tmp_path, state, "Hooked")


@pytest.mark.regression
@pytest.mark.parametrize("prefix", ["net", "module.net"])
def test_pruned_weights_are_the_product_with_their_mask(prefix: str, tmp_path: Path, code: Path) -> None:
    model = network()
    for layer in (model[0], model[2]):
        prune.l1_unstructured(layer, "weight", amount=0.5)
    read = loaded(tmp_path, prefixed(model.state_dict(), prefix), "Net")
    assert same(read.model, model)
    assert any("weight_orig times weight_mask" in note for note in read.notes)
    state = prefixed(model.state_dict(), prefix)
    del state[f"{prefix}.0.weight_mask"]
    with pytest.raises(InputError, match="does not fit"):
        loaded(tmp_path, state, "Net")


@pytest.mark.regression
def test_surplus_whole_numbers_are_left_out_and_surplus_weights_are_not(tmp_path: Path, code: Path) -> None:
    state = prefixed(network().state_dict(), "net")
    read = loaded(tmp_path, {**state, "position_ids": torch.arange(9)}, "Net")
    assert same(read.model, network())
    assert any("position_ids" in note for note in read.notes)
    assert loaded(tmp_path, {**state, "kept": torch.tensor([5, 6, 7])}, "odd").model.kept.tolist() == [5, 6, 7]
    with pytest.raises(InputError, match="unexpected scale"):
        loaded(tmp_path, {**state, "scale": torch.ones(2)}, "Net")
    plain = loaded(tmp_path, state, "Net")
    assert not any("load_state_dict" in note or "left out" in note for note in plain.notes)


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(4, 8), nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.fc2(self.fc1(x).relu()).relu())


def sequence(*widths: int, between: type[nn.Module] | None = nn.ReLU) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), *([between()] if between else [])]
    return nn.Sequential(*(layers[:-1] if between else layers))


CHAINS = [
    ("two", lambda: sequence(4, 8, 3), "mlp:inputs=4,hidden=8,classes=3,activation=relu"),
    ("three", lambda: sequence(4, 8, 5, 3), "mlp:inputs=4,hidden=8/5,classes=3,activation=relu"),
    ("many", lambda: sequence(4, *[8] * 6, 3), "mlp:inputs=4,hidden=8/8/8/8/8/8,classes=3,activation=relu"),
    ("one column", lambda: sequence(4, 8, 1), "mlp:inputs=4,hidden=8,classes=1,activation=relu"),
    ("names", Perceptron, "mlp:inputs=4,hidden=8/5,classes=3,activation=relu"),
]


@pytest.mark.regression
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize(("make", "spec"), [c[1:] for c in CHAINS], ids=[c[0] for c in CHAINS])
def test_a_chain_of_linear_layers_is_a_perceptron(make: Any, spec: str, suffix: str, tmp_path: Path) -> None:
    model, path = make(), tmp_path / f"model{suffix}"
    save_file(model.state_dict(), path) if suffix == ".safetensors" else torch.save(model.state_dict(), path)
    for command in (lambda: calibcli.curvature(path), lambda: calibcli.logits(path, save=tmp_path / "z.npz")):
        with pytest.raises(InputError) as refusal:
            command()
        assert "nor its data" in refusal.value.problem
        assert f"--arch {spec}:" not in refusal.value.fix
        assert spec in refusal.value.fix
        assert "tanh" in refusal.value.fix
        assert "data" in refusal.value.fix
    read = checkpoint.load(path, arch=spec)
    assert same(read.model, model)
    assert any("taken in their order" in note for note in read.notes)
    data = (X.repeat(8, 1).numpy(), np.arange(40) % 2)
    assert calibcli.curvature(path, data, "grad_norm", arch=spec, device="cpu").estimates


@pytest.mark.regression
def test_other_chains_are_no_perceptron(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    direct = sequence(4, 8, 3, between=None).state_dict()  # no activation between 0 and 1
    apart = {
        "a.weight": torch.ones(8, 4),
        "a.bias": torch.ones(8),
        "b.weight": torch.ones(3, 7),
        "b.bias": torch.ones(3),
    }
    normed = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).state_dict()
    for state in (direct, apart, normed):
        torch.save(state, path)
        with pytest.raises(InputError) as refusal:
            checkpoint.load(path)
        assert "mlp:" not in refusal.value.fix
        with pytest.raises((InputError, UsageError)):
            checkpoint.load(path, arch="mlp:inputs=4,hidden=8,classes=3")


def test_a_model_that_prunes_itself_loads_its_own_names(tmp_path: Path, code: Path) -> None:
    model = network()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    read = loaded(tmp_path, prefixed(model.state_dict(), "net"), "pruned")
    assert same(read.model, model)
    assert not any("weight_mask" in note for note in read.notes)


NAMES = ["model.pth.tar", "model.tar", "model.tgz", "model.ckpt", "model.zip", "model.npz", "model"]


@pytest.mark.regression
@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", NAMES)
def test_the_content_of_a_checkpoint_decides_not_its_name(name: str, old: bool, tmp_path: Path) -> None:
    state = {"epoch": 3, "state_dict": network().state_dict(), "best": 0.7}
    torch.save(state, tmp_path / name, _use_new_zipfile_serialization=not old)
    assert calibcli.inspect(tmp_path / name).facts["what"] == "a checkpoint"
    spec = "mlp:inputs=4,hidden=8,classes=3,activation=tanh"
    assert same(checkpoint.load(tmp_path / name, arch=spec).model, network())


@pytest.mark.regression
@pytest.mark.parametrize(
    "beside", [np.float64(0.7), np.arange(3), {"a": np.int64(2)}, Path("x")], ids=["scalar", "array", "nested", "path"]
)
def test_what_lies_beside_weights_is_left_out_alike_and_export_says_first_that_it_cannot(
    beside: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"state_dict": network().state_dict(), "beside": beside}, tmp_path / "model.pt")
    found = calibcli.inspect(tmp_path / "model.pt")
    assert found.facts["what"] == "a checkpoint"
    assert found.facts["tensors"] == 4
    assert any("left out, not executed" in note for note in found.notes)
    spec = "mlp:inputs=4,hidden=8,classes=3,activation=tanh"
    assert same(checkpoint.load(tmp_path / "model.pt", arch=spec).model, network())
    monkeypatch.setattr("calibcli.networks.deploy.checkpoint_export.opened", lambda job: pytest.fail("it was run"))
    fit = calibcli.fit_scaler(np.random.default_rng(0).standard_normal((90, 3)), np.arange(90) % 3)
    data = {"data": (X.numpy(), np.arange(5) % 3), "arch": spec}
    with pytest.raises(InputError, match="more than tensors"):
        calibcli.export(fit, "checkpoint", model=tmp_path / "model.pt", save=tmp_path / "out.pt", **data)


@pytest.mark.regression
@pytest.mark.parametrize("name", ["net.pt", "net.safetensors", "net.pth.tar", "net.onnx", "net.h5"])
def test_a_pointer_of_git_lfs_is_no_damaged_checkpoint(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1327\n")
    with pytest.raises(InputError, match="pointer of Git LFS") as refused:
        checkpoint.load(tmp_path / name)
    assert "git lfs pull" in str(refused.value.fix)
