"""Checkpoints as people save them: loaded as they were meant, or refused by name. Never exit 70."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from calibcli.cli.app import main
from calibcli.core.errors import InputError
from calibcli.networks import checkpoint, dataset, inference
from calibcli.networks.checkpoint import weights
from calibcli.networks.curvature import measure

torch.set_num_threads(1)
CODE = """
import torch
from torch import nn
def mlp():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
def mixed():
    net = mlp()
    net[0] = torch.compile(net[0], backend="eager")
    return net
def on_meta():
    with torch.device("meta"):
        return mlp()
def quantised():
    return torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear})
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(3, 4), nn.Linear(4, 3, bias=False)
        self.head.weight = self.table.weight
    def forward(self, x):
        return self.head(self.table(x).mean(1))
class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
    def forward(self, x):
        return self.net(x @ self.mask.softmax(1).T)
class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp().double()
    def forward(self, x):
        return self.net(x.double())
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that the networks are in; the working folder holds its file and 12 rows."""
    monkeypatch.chdir(tmp_path)
    Path("habits.py").write_text(CODE)
    made: dict[str, Any] = {}
    exec(CODE, made)
    stream = np.random.default_rng(0)
    np.savez("rows.npz", x=stream.normal(size=(12, 4)).astype(np.float32), y=np.arange(12) % 3)
    torch.manual_seed(0)
    return type("Module", (), {k: staticmethod(v) if callable(v) else v for k, v in made.items()})


def load(name: str, factory: str = "mlp") -> checkpoint.Checkpoint:
    return checkpoint.load(name, arch_file=f"habits.py:{factory}")


@pytest.mark.regression
def test_what_wrappers_of_layers_leave_in_names(net: Any) -> None:
    """As where single layers were compiled or checkpointed."""
    torch.save(net.mixed().state_dict(), "mixed.pt")
    assert "0._orig_mod.weight" in torch.load("mixed.pt")
    torch.save({f"module.{k}": v for k, v in torch.load("mixed.pt").items()}, "both.pt")
    for name in ("mixed.pt", "both.pt"):
        found = load(name)
        torch.testing.assert_close(found.model[0].weight, torch.load("mixed.pt")["0._orig_mod.weight"])  # type: ignore[index]
        assert any("_orig_mod" in note for note in found.notes)


@pytest.mark.regression
def test_shared_weights_that_are_stored_once(net: Any) -> None:
    """As safetensors.torch.save_model does."""
    from safetensors.torch import save_model

    model = net.Tied()
    save_model(model, "tied.safetensors")
    found = load("tied.safetensors", "Tied").model
    torch.testing.assert_close(found.state_dict(), model.state_dict())
    torch.save({"table.weight": torch.ones(3, 4)}, "other.pt")
    with pytest.raises(InputError, match=r"missing 0\.weight"):
        load("other.pt")


@pytest.mark.regression
def test_masks_may_be_infinite_and_weights_may_not(net: Any) -> None:
    model = net.Masked()
    torch.save(model.state_dict(), "masked.pt")
    assert load("masked.pt", "Masked").model.state_dict()["mask"].isinf().any()
    for name, value in (("mask", torch.nan), ("net.0.bias", torch.inf)):
        torch.save({**model.state_dict(), name: model.state_dict()[name] + value}, "wrong.pt")
        with pytest.raises(InputError, match=f"NaN or infinity, first '{name}'"):
            load("wrong.pt", "Masked")
    norm = nn.BatchNorm1d(3)
    assert norm.running_var is not None
    norm.running_var.fill_(torch.inf)
    with pytest.raises(InputError, match="running_var"):
        weights.finite(norm, "norm")


@pytest.mark.regression
@pytest.mark.parametrize("command", ["logits", "curvature"])
@pytest.mark.parametrize(
    ("file", "factory", "problem", "fix"),
    [
        ("plain.pt", "on_meta", "is on the device meta", "on the CPU"),
        ("plain.pt", "quantised", "its layers are quantised", "before quantisation"),
        ("sparse.pt", "mlp", "tensor '0.weight' is sparse", "to_dense()"),
        ("doubled.pt", "Doubled", "does not run in float32", "--dtype float64"),
    ],
)
def test_refused_by_name(
    net: Any, capsys: pytest.CaptureFixture[str], command: str, file: str, factory: str, problem: str, fix: str
) -> None:
    plain = net.mlp().state_dict()
    torch.save(plain, "plain.pt")
    torch.save({k: v.to_sparse() if v.ndim == 2 else v for k, v in plain.items()}, "sparse.pt")
    torch.save({f"net.{k}": v for k, v in plain.items()}, "doubled.pt")
    line = [file, "--data", "rows.npz", "--arch-file", f"habits.py:{factory}", "-q", "--threads", "1"]
    line += ["--save", "out.npz"] if command == "logits" else ["-w", "lambda_max"]
    assert main([command, *line]) == 4
    said = capsys.readouterr().err
    assert problem in said
    assert fix in said
    if factory == "Doubled":
        assert main([command, *line, "--dtype", "float64"]) == 0


@pytest.mark.regression
def test_a_quantised_network_has_logits_and_no_curvature(net: Any) -> None:
    model = net.quantised().eval()
    weights.finite(model, "quantised")
    with pytest.raises(InputError, match="layers of the network are quantised"):
        measure(model, (torch.randn(6, 4), torch.arange(6) % 3), "lambda_max")


class Turned(nn.Module):
    """Complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.w.dtype) @ self.w).abs() - 1


@pytest.mark.regression
def test_complex_weights_stay_complex_in_another_precision(net: Any) -> None:
    data, model = dataset.load("rows.npz"), Turned().train()
    with torch.no_grad():
        expected = model(torch.from_numpy(np.load("rows.npz")["x"]))
    for dtype in (torch.float32, torch.float64):
        (found,) = inference.predict(model, data, dtype=dtype)
        torch.testing.assert_close(found.float(), expected)


@pytest.mark.regression
def test_noise_that_was_left_on_is_refused(net: Any) -> None:
    rows = dataset.load("rows.npz")
    with pytest.raises(InputError, match="change from call to call"):
        inference.check(rows, nn.Sequential(nn.Linear(4, 3), Noise()))
    assert inference.check(rows, nn.Linear(4, 3)) == 3


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, training=True)
