"""Checkpoints: every container gives the same model, mismatches are named, and the caller's state is left alone."""

from __future__ import annotations

import argparse
import copy
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from calibcli.core.errors import InputError, UsageError
from calibcli.networks import checkpoint
from calibcli.networks.architectures import build
from calibcli.networks.checkpoint import _safe_unpickler as safe_unpickler

torch.set_num_threads(1)
SPEC = "cnn:widths=4/8,classes=5"
X = torch.linspace(-1, 1, 7 * 3 * 8 * 8).view(7, 3, 8, 8)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    model = build(SPEC)
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, 3, 8, 8))  # BatchNorm statistics that are not the default
    return model.eval()


def same(found: nn.Module, model: nn.Module) -> None:
    assert not any(m.training for m in found.modules() if not isinstance(m, torch.jit.ScriptModule))
    with torch.no_grad():
        for rows in (1, 4, 7):
            torch.testing.assert_close(found(X[:rows]), model(X[:rows]), rtol=1e-5, atol=1e-6)


@pytest.mark.regression
@pytest.mark.parametrize("name", ["digits.npz", "data.zip", "rows.csv", "cifar.tar.gz", "images", "model.bin"])
def test_a_data_set_in_the_place_of_the_model_is_told_where_it_goes(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "images":
        (path / "cat").mkdir(parents=True)
    elif name == "digits.npz":
        np.savez(path, x=np.zeros((2, 3)), y=np.zeros(2))
    elif name == "data.zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("train/a.txt", "a")
    else:
        path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError) as refused:
        checkpoint.load(path)
    assert (f"--data {path}" in refused.value.fix) == (name != "model.bin")


def write_state(model: nn.Module, path: Path, kind: str) -> None:
    state = model.state_dict()
    trees: dict[str, Any] = {
        "plain": state,
        "nested": {"epoch": 3, "state_dict": state, "best": 0.9, "optimizer": {"state": {0: torch.zeros(2)}}},
        "twice": {"model": {"state_dict": state}},
        "ema": {"ema": state},
        "ddp": {"state_dict": {f"module.{k}": v for k, v in state.items()}},
        "compiled": {f"_orig_mod.{k}": v for k, v in state.items()},
        "lightning": {
            "state_dict": {**{f"model.{k}": v for k, v in state.items()}, "loss.weight": torch.ones(5)},
            "pytorch-lightning_version": "2.4",
            "epoch": 1,
        },
        "ddp_compiled": {f"module._orig_mod.{k}": v for k, v in state.items()},
        "profiled": {**state, "total_ops": torch.zeros(1), "features.0.total_params": torch.zeros(1)},
        "no_counters": {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")},
    }
    torch.save(trees[kind], path, _use_new_zipfile_serialization=path.suffix != ".tar")


KINDS = ["plain", "nested", "twice", "ema", "ddp", "compiled", "lightning", "ddp_compiled", "profiled", "no_counters"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["model.pt", "model.pth.tar", "model.ckpt"])
def test_state_dicts(model: nn.Module, tmp_path: Path, kind: str, name: str) -> None:
    write_state(model, tmp_path / name, kind)
    found = checkpoint.load(tmp_path / name, arch=SPEC)
    same(found.model, model)
    assert found.architecture == SPEC
    assert found.container == ("legacy pt state dict" if name.endswith("tar") else "pt state dict")
    assert len(found.sha256) == 64
    if kind == "lightning":
        assert "1 tensors outside 'model.' were left out" in found.notes


def test_named_entry_of_a_nested_dict(model: nn.Module, tmp_path: Path) -> None:
    average = copy.deepcopy(model)
    nn.init.zeros_(average.get_submodule("linear").weight)
    torch.save({"model": model.state_dict(), "ema": average.state_dict()}, tmp_path / "m.pt")
    found = checkpoint.load(tmp_path / "m.pt", arch=SPEC)
    same(found.model, model)
    assert any("averaged weights" in note for note in found.notes)
    same(checkpoint.load(f"{tmp_path}/m.pt#ema", arch=SPEC).model, average)
    with pytest.raises(InputError, match="no entry 'emo'"):
        checkpoint.load(f"{tmp_path}/m.pt#emo", arch=SPEC)


def test_safetensors_plain_and_sharded(model: nn.Module, tmp_path: Path) -> None:
    state = model.state_dict()
    save_file(state, tmp_path / "m.safetensors")
    same(checkpoint.load(tmp_path / "m.safetensors", arch=SPEC).model, model)
    names = list(state)
    weight_map = {}
    for i, part in enumerate((names[:5], names[5:])):
        file = f"model-{i + 1}-of-2.safetensors"
        save_file({k: state[k] for k in part}, tmp_path / file)
        weight_map |= dict.fromkeys(part, file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    for path in (index, tmp_path):
        found = checkpoint.load(path, arch=SPEC)
        same(found.model, model)
        assert found.container == "sharded safetensors (2 files)"
    (tmp_path / "model-2-of-2.safetensors").unlink()
    with pytest.raises(InputError, match="is missing"):
        checkpoint.load(index, arch=SPEC)
    index.write_text(json.dumps({"weight_map": {"a": "../m.safetensors"}}))
    with pytest.raises(InputError, match="outside its folder"):
        checkpoint.load(index, arch=SPEC)


def test_half_precision_is_widened(model: nn.Module, tmp_path: Path) -> None:
    save_file(copy.deepcopy(model).to(torch.bfloat16).state_dict(), tmp_path / "m.safetensors")
    found = checkpoint.load(tmp_path / "m.safetensors", arch=SPEC)
    assert {p.dtype for p in found.model.parameters()} == {torch.float32}
    assert found.notes == ["weights stored as bfloat16 were converted to float32"]


def containers(model: nn.Module, folder: Path) -> dict[str, Path]:
    """Every container that holds the network itself."""
    x = X[:4]
    rows = torch.export.Dim("rows", min=2, max=5)
    torch.export.save(torch.export.export(model, (x,)), folder / "fixed.pt2")
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: rows},)), folder / "bounded.pt2")
    torch.jit.trace(model, x).save(str(folder / "traced.pt"))
    torch.save(model, folder / "pickled.pt")
    torch.save({"model": model, "epoch": 1}, folder / "pickled_in_dict.pt")
    torch.save(model, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    return {p.name: p for p in folder.iterdir()}


def hvp(model: nn.Module, x: Tensor) -> Tensor:
    weights = list(model.parameters())
    loss = nn.functional.cross_entropy(model(x), torch.arange(len(x)) % 5)
    first = torch.autograd.grad(loss, weights, create_graph=True)
    dot = sum((g * torch.cos(torch.arange(g.numel(), dtype=g.dtype)).view_as(g)).sum() for g in first)
    return torch.cat([g.flatten() for g in torch.autograd.grad(dot, weights)])


@pytest.mark.filterwarnings("ignore")
def test_networks_in_files_need_trust_and_equal_the_model(model: nn.Module, tmp_path: Path) -> None:
    precise = copy.deepcopy(model).double()
    for name, path in containers(model, tmp_path).items():
        with pytest.raises(InputError, match="nothing was executed") as caught:
            checkpoint.load(path)
        assert "--trust" in caught.value.fix
        found = checkpoint.load(path, trust=True)
        same(found.model, model)
        assert [k for k, _ in found.model.named_parameters()] == [k for k, _ in model.named_parameters()], name
        # a copy in another precision is a proper module too: leaf parameters, exact second derivatives
        double = copy.deepcopy(found.model).double()
        assert all(p.is_leaf and p.dtype == torch.float64 for p in double.parameters())
        torch.testing.assert_close(hvp(double, X.double()), hvp(precise, X.double()), rtol=1e-10, atol=1e-12)
        same(found.model, model)
        # and the weights alone can go into a named architecture, those of a pickle without trust
        if name.startswith(("pickled", "legacy")):
            same(checkpoint.load(path, arch=SPEC).model, model)
        same(checkpoint.load(path, trust=True, arch=SPEC).model, model)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_ours_round_trip(model: nn.Module, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    metadata = {
        "architecture": SPEC,
        "preprocess": {"layout": "NHWC", "scale": 0.0627, "mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]},
        "classes": list("abcde"),
        "data": {"test": "digits.npz#test"},
        "training": {"loss": "focal:gamma=3", "epochs": 2},
        "data_sha256": "0" * 64,
    }
    checkpoint.save(path, model, metadata)
    found = checkpoint.load(path)
    same(found.model, model)
    assert found.metadata == {"schema": 1, **metadata}
    assert found.data == {"test": str(tmp_path / "digits.npz#test")}
    assert (found.architecture, found.classes) == (SPEC, list("abcde"))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(UsageError, match="cannot write a checkpoint"):
        checkpoint.save(tmp_path / "model.onnx", model, metadata)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"architecture": "os:system"}, "which is not built in"),
        ({"architecture": "torchvision.resnet18"}, "which is not built in"),
        ({"data": {"test": "/etc/passwd"}}, "not a relative path"),
        ({"data": {"test": "os:listdir"}}, "not a relative path"),
        ({"schema": 2}, "has schema 2"),
        ({"classes": "abc"}, "classes is 'abc', not a list"),
        ({"split": {"how": "halves", "seed": 0, "share": 0.1}}, "split.how is 'halves', not 'stratified' or 'mukhoti'"),
        ({"split": {"how": "mukhoti", "seed": -1, "share": 0.1}}, "split.seed is -1"),
        ({"split": {"how": "mukhoti"}}, "split.seed"),
        ({"preprocess": {"scale": "1/255"}}, "preprocess 'scale' is '1/255'"),
        ({"preprocess": {"mean": [0.1, None]}}, "preprocess 'mean' is"),
    ],
)
def test_metadata_may_not_name_code(model: nn.Module, tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    metadata = {"schema": 1, "architecture": SPEC, **change}
    save_file(model.state_dict(), tmp_path / "m.safetensors", {"calib": json.dumps(metadata)})
    torch.save({"state_dict": model.state_dict(), "calib": metadata}, tmp_path / "m.pt")
    for name in ("m.safetensors", "m.pt"):
        with pytest.raises(InputError, match=problem):
            checkpoint.load(tmp_path / name)


def test_mismatches_are_named_with_the_nearest(model: nn.Module, tmp_path: Path) -> None:
    state = dict(model.state_dict())
    state["linear.wieght"] = state.pop("linear.weight")
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(InputError) as caught:
        checkpoint.load(tmp_path / "m.pt", arch=SPEC)
    assert "missing linear.weight (nearest: linear.wieght)" in caught.value.problem
    assert "unexpected linear.wieght (nearest: linear.weight)" in caught.value.problem
    torch.save(model.state_dict(), tmp_path / "m.pt")
    with pytest.raises(InputError, match=r"first 'linear.weight': \(5, 8\) in the file, \(7, 8\) in the model"):
        checkpoint.load(tmp_path / "m.pt", arch="cnn:widths=4/8,classes=7")
    with pytest.raises(InputError, match="does not fit resnet"):
        checkpoint.load(tmp_path / "m.pt", arch="resnet")
    with pytest.raises(InputError, match="does not say which architecture"):
        checkpoint.load(tmp_path / "m.pt")


def test_weights_that_are_not_finite(model: nn.Module, tmp_path: Path) -> None:
    state = {k: v.clone() for k, v in model.state_dict().items()}
    state["linear.bias"][2] = torch.nan
    state["features.1.1.running_var"][0] = torch.inf
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(InputError, match="2 of 14 tensors hold NaN or infinity"):
        checkpoint.load(tmp_path / "m.pt", arch=SPEC)


def test_torchvisions_names_of_a_resnet(tmp_path: Path) -> None:
    spec = "resnet18:width=0.0625,classes=5"
    model = build(spec).eval()
    renamed = {
        k.replace("linear.", "fc.").replace("shortcut.", "downsample."): v for k, v in model.state_dict().items()
    }
    torch.save({"state_dict": {f"module.{k}": v for k, v in renamed.items()}}, tmp_path / "m.pt")
    same(checkpoint.load(tmp_path / "m.pt", arch=spec).model, model)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"", "m.pt"),
        (b"PK\x03\x04nonsense", "m.pt"),
        (b"\x80\x02nonsense", "m.pt"),
        (b"\x00" * 64, "m.safetensors"),
        (b"hello world, this is text", "m.pt"),
        (b"\x89HDF\r\n", "m.h5"),
        (b"{}", "model.safetensors.index.json"),
        (b"[1", "model.safetensors.index.json"),
    ],
)
def test_files_that_are_no_checkpoints(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    for trust in (False, True):
        with pytest.raises(InputError):
            checkpoint.load(tmp_path / name, arch=SPEC, trust=trust)
    with pytest.raises(InputError, match="cannot read"):
        checkpoint.load(tmp_path / "nowhere.pt", arch=SPEC)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("name", ["m.pt", "m.tar", "m.safetensors"])
def test_truncated_files(model: nn.Module, tmp_path: Path, name: str, share: float) -> None:
    path = tmp_path / name
    if name.endswith(".safetensors"):
        save_file(model.state_dict(), path)
    else:
        write_state(model, path, "plain")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(InputError):
        checkpoint.load(path, arch=SPEC)


@pytest.mark.parametrize(
    "spec",
    [
        "mlp:inputs=7,hidden=5/4,classes=3",
        "cnn:channels=1,widths=4/8,classes=3,norm=group",
        "resnet:depth=14,width=4,classes=3,shortcut=B",
        "resnet:classes=100",
        "resnet18:width=0.125",
        "resnet50:width=0.0625,classes=7,stem=imagenet",
        "wide_resnet:depth=10,widen=2,classes=3",
    ],
)
@pytest.mark.one_in(3)
def test_an_unnamed_architecture_is_suggested(tmp_path: Path, spec: str) -> None:
    state = build(spec).state_dict()
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path / "m.pt")
    with pytest.raises(InputError) as caught:
        checkpoint.load(tmp_path / "m.pt")
    suggested = caught.value.fix.split()[4].removesuffix(":")
    made = checkpoint.load(tmp_path / "m.pt", arch=suggested)
    assert made.architecture == suggested
    assert {k: v.shape for k, v in made.model.state_dict().items()} == {k: v.shape for k, v in state.items()}


class Config(dict):  # type: ignore[type-arg]
    """Like Lightning's AttributeDict: a dict with an attribute."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.extra = {1, 2}


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_beside_other_objects_are_read_without_building_those(
    model: nn.Module, tmp_path: Path, zipped: bool
) -> None:
    path = tmp_path / "m.pt"
    half = copy.deepcopy(model).half()
    tree = {
        "state_dict": {f"module.{k}": v for k, v in model.state_dict().items()},
        "model_ema": half.state_dict(),
        "args": argparse.Namespace(lr=0.1, path=Path("x")),
        "best": np.float64(0.9),
        "history": [np.arange(3), Config(a=1)],
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1).state_dict(),
    }
    torch.save(tree, path, _use_new_zipfile_serialization=zipped)
    found = checkpoint.load(path, arch=SPEC)
    same(found.model, model)
    assert "not executed" in found.notes[0]
    assert "multiarray.scalar" in found.notes[0]
    assert "Namespace" not in found.notes[0]
    same(checkpoint.load(f"{path}#model_ema", arch=SPEC).model, copy.deepcopy(half).float())
    # a pickled module's tensors too, without trust
    torch.save({"epoch": 3, "model": model}, path, _use_new_zipfile_serialization=zipped)
    same(checkpoint.load(path, arch=SPEC).model, model)
    with pytest.raises(InputError, match="nothing was executed"):
        checkpoint.load(path)
    if zipped:
        path.write_bytes(path.read_bytes()[:-2000])
        with pytest.raises(InputError):
            checkpoint.load(path, arch=SPEC)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_inert_reading_equals_torch(tmp_path: Path, dtype: torch.dtype) -> None:
    base = torch.arange(24).to(dtype)
    tree = {"a": base.view(4, 6).t()[1:4, ::2], "b": base[5:9], "c": base[:0], "p": nn.Parameter(torch.ones(2)), "n": 3}
    for zipped in (True, False):
        torch.save(tree, tmp_path / "m.pt", _use_new_zipfile_serialization=zipped)
        found, unknown = safe_unpickler.read(tmp_path / "m.pt")
        assert unknown == []
        assert found["n"] == 3
        for key in "abcp":
            wanted: Any = tree[key]
            assert torch.equal(found[key], wanted)
            assert found[key].dtype == wanted.dtype


def test_loading_draws_nothing_from_the_random_state(model: nn.Module, tmp_path: Path) -> None:
    torch.save(model.state_dict(), tmp_path / "m.pt")
    (tmp_path / "net.py").write_text(
        f"from calibcli.networks.architectures import build\ndef make(): return build('{SPEC}')\n"
    )
    before = torch.get_rng_state()
    checkpoint.load(tmp_path / "m.pt", arch=SPEC)
    checkpoint.load(tmp_path / "m.pt", arch_file=f"{tmp_path}/net.py:make")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.regression
def test_batch_norm_without_counters_is_guessed(model: nn.Module, tmp_path: Path) -> None:
    """PyTorch before 1.0 kept no `num_batches_tracked`."""
    state = {k: v for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "m.pt")
    with pytest.raises(InputError) as caught:
        checkpoint.load(tmp_path / "m.pt")
    assert f"--arch {SPEC}" in caught.value.fix
    checkpoint.load(tmp_path / "m.pt", arch=SPEC)


@pytest.mark.regression
def test_a_pickle_whose_module_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    gone = types.ModuleType("gone_net")
    exec("from torch import nn\nclass Net(nn.Linear): pass", gone.__dict__)
    monkeypatch.setitem(sys.modules, "gone_net", gone)
    torch.save(gone.Net(2, 2), tmp_path / "m.pt")
    monkeypatch.delitem(sys.modules, "gone_net")
    with pytest.raises(InputError, match="No module named 'gone_net'") as caught:
        checkpoint.load(tmp_path / "m.pt", trust=True)
    assert "PYTHONPATH" in caught.value.fix
    assert "--arch without --trust" in caught.value.fix
