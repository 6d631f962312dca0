"""The curvature engine on models and losses that users write, and what it must not leave behind."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curvature_models import dense, setup
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from calibcli.core.errors import InputError, UsageError
from calibcli.networks import losses
from calibcli.networks.curvature import measure
from calibcli.networks.curvature.loss import PlacedLoss
from calibcli.networks.losses import CrossEntropy

torch.set_num_threads(1)
SPECS = (
    "ce",
    "focal:gamma=2,alpha=1/2/0.5",
    "focal:gamma=2,alpha=1/2/0.5,smoothing=0.1",
    "focal_scheduled",
    "focal_sample",
    "FLSD-53",
    "FLA-53",
    "adafocal",
    "inverse_focal:gamma=2,alpha=1/2/0.5",
    "dual_focal:gamma=2,alpha=1/2/0.5",
    "label_smoothing",
    "brier",
)


def weighted(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5], dtype=dtype), reduction="none")


@pytest.mark.slow
@pytest.mark.regression("device 4")
def test_measure_leaves_no_tensor_behind() -> None:
    model, inputs, labels = setup("attention", n=7)

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(o, Tensor) for o in gc.get_objects())

    measure(model, (inputs, labels), "trace", "lambda_max")  # what is cached once
    before = tensors()
    measure(model, (inputs, labels), "trace", "lambda_max")
    assert tensors() == before


@pytest.mark.regression("device 2")
@pytest.mark.parametrize("spec", SPECS)
def test_what_a_loss_holds_follows_the_logits(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On pretended tensors, which compute nothing and refuse to mix devices: the loss stays where it was made."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # which knows real devices alone
    with FakeTensorMode():
        form, module = losses.final(spec), losses.objective(spec).loss
        z, y = torch.empty(4, 3, device="meta"), torch.zeros(4, device="meta", dtype=torch.long)
        for found in (form(z, y), form.pair_weights(z, y), module(z, y), module.gammas(z, y)):
            assert found is None or found.device.type == "meta"


@pytest.mark.regression("device 2")
def test_a_loss_is_called_where_the_model_is() -> None:
    """The engine asks for float64 numbers on the CPU; the loss sees its own device and its answer comes back."""

    class Away:
        def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
            assert logits.device == labels.device == torch.device("meta")
            return F.cross_entropy(logits, labels, reduction="none")

    placed = PlacedLoss(Away(), torch.device("meta"))
    z = torch.zeros(2, 3, device="meta", dtype=torch.float64)
    assert placed(z, torch.zeros(2, device="meta", dtype=torch.long)).dtype == torch.float64
    placed = PlacedLoss(weighted(), torch.device("meta"))
    assert placed.loss.weight.device == torch.device("meta")


@pytest.mark.slow
@pytest.mark.regression("device 8")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("module", [True, False])
def test_float32_class_weights(dtype: torch.dtype, module: bool) -> None:
    model, inputs, labels = setup("attention", n=7)
    model = model.to(dtype)
    weight = torch.tensor([1.0, 2.0, 0.5])
    loss: Any = weighted() if module else lambda z, y: F.cross_entropy(z, y, weight, reduction="none")
    found = measure(
        model, (inputs, labels), "lambda_max:tol=1e-6", "trace:exact=true", "trace_ggn:exact=true", loss=loss
    )
    h, g, _ = dense(model.double(), inputs, labels, weighted(torch.float64))
    assert found.get("trace:exact=true").value == pytest.approx(float(h.trace()), rel=1e-4)
    assert found.get("trace_ggn:exact=true").value == pytest.approx(float(g.trace()), rel=1e-4)
    assert found.estimates[0].value == pytest.approx(float(torch.linalg.eigvalsh(h)[-1]), rel=1e-4)


def test_a_loss_that_reduces_is_refused() -> None:
    model, inputs, labels = setup("attention", n=7)
    with pytest.raises(InputError, match=r"the loss gives shape \(\) for 4 rows"):
        measure(model, (inputs, labels), "trace", loss=nn.CrossEntropyLoss())


@pytest.mark.regression("device 10")
def test_a_tensor_on_another_device_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, labels = setup("attention", n=7)

    def astray(*_: Any) -> Tensor:
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices")

    with pytest.raises(InputError, match="tensors that did not move to cpu"):
        measure(model, (inputs, labels), "trace", loss=astray)


@pytest.mark.regression("device 10")
def test_labels_may_be_an_array() -> None:
    model, inputs, labels = setup("attention", n=7)
    assert measure(model, (inputs, labels.numpy()), "grad_norm").estimates == (
        measure(model, (inputs, labels), "grad_norm").estimates
    )


@pytest.mark.regression("1.21")
@pytest.mark.parametrize("spec", ["focal:gamma=3", "FLSD-53", "label_smoothing"])
def test_a_loss_by_its_spec(spec: str) -> None:
    model, inputs, labels = setup("attention", n=7)
    found = measure(model, (inputs, labels), "grad_norm", loss=spec, train_loss="ce")
    form = measure(model, (inputs, labels), "grad_norm", loss=losses.final(spec), train_loss="ce")
    assert found.estimates == form.estimates
    assert found.facts["losses"] == form.facts["losses"] == [losses.final(spec).spec, "ce"]


def test_a_misspelled_loss_is_a_usage_error() -> None:
    model, inputs, labels = setup("attention", n=7)
    with pytest.raises(UsageError, match="unknown loss 'fokal'"):
        measure(model, (inputs, labels), "trace", loss="fokal:gamma=3")


class Positions(nn.Module):
    """Tokens with learned positions, whose embedding runs on one row for all; windows of the row share a layer."""

    def __init__(self, windows: int = 1) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(6, 4), nn.Embedding(4, 4)
        self.norm, self.mix, self.head = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.windows = windows
        self.register_buffer("order", torch.arange(4)[None])

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.tokens(tokens) + self.places(self.order))
        x = torch.tanh(self.mix(x.reshape(len(x) * self.windows, -1, 4)).reshape(x.shape))
        return self.head(x.mean(1))  # type: ignore[no-any-return]


@pytest.mark.regression("models 1")
@pytest.mark.regression("4 trace of BERT-like models")
@pytest.mark.parametrize(("n", "windows"), [(1, 1), (1, 4), (2, 1), (2, 2), (7, 1), (20, 4)])
@pytest.mark.one_in(6)
def test_layers_that_do_not_see_rows(n: int, windows: int) -> None:
    torch.manual_seed(0)
    model = Positions(windows).double()
    inputs, labels = torch.randint(0, 6, (n, 4)), torch.arange(n) % 3
    h, g, _ = dense(model, inputs, labels, CrossEntropy())
    found = measure(model, (inputs, labels), "lambda_max:tol=1e-8", "trace:exact=true", "trace_ggn:exact=true")
    assert found.get("trace:exact=true").value == pytest.approx(float(h.trace()), rel=1e-9)
    assert found.get("trace_ggn:exact=true").value == pytest.approx(float(g.trace()), rel=1e-9)
    everything = measure(model, (inputs, labels))
    assert all(np.isfinite(e.value) for e in everything.estimates)


@pytest.mark.slow
@pytest.mark.regression("device 1")
def test_cudnn_settings_are_changed_by_name_alone() -> None:
    """`torch.backends.cudnn.flags` also switches off what is not named."""
    for path in (Path(__file__).parent.parent / "calibcli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node).endswith("cudnn.flags")), path


def switches() -> dict[str, bool]:
    names = ("enabled", "deterministic", "benchmark", "allow_tf32")
    return {name: getattr(torch.backends.cudnn, name) for name in names}


@pytest.mark.regression("device 1")
def test_cudnn_is_on_and_deterministic_within_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from calibcli.lab.training._loop import Trainer

    seen: list[dict[str, bool]] = []
    run: Callable[..., Any] = Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda self: (seen.append(switches()), run(self))[1])
    before = switches()
    assert before["enabled"]
    np.savez(tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(200, 3)), y=np.arange(200) % 2)
    from calibcli.cli.app import main

    assert main(["fit", "mlp:hidden=4", "--data", str(tmp_path / "d.npz"), "--epochs", "1", "-q"]) == 0
    assert seen == [before | {"deterministic": True, "benchmark": False}]
    assert switches() == before
