"""Eigenvalues of G where the model has no second derivative: Jv by differences of the logits, against the dense G."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curvature_models import Focal, Once, Wrong, cnn
from test_curvature_refusals import NETS
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError
from calibcli.networks.curvature import measure
from calibcli.networks.losses import CrossEntropy

K, N = 3, 40
CE = CrossEntropy()
PLANS: tuple[dict[str, Any], ...] = ({"memory": "low"}, {"batch_size": 4})
Made = tuple[nn.Module, Tensor]


class Net(nn.Module):
    """Modules by name, and a function of them and the inputs."""

    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Straight(torch.autograd.Function):
    """Rounding, with a backward pass that passes over it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul(0.5)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def flash(m: nn.Module, x: Tensor) -> Tensor:
    """Attention that asks for the fused kernel itself, over 4 tokens of 4 features."""
    q, k, v = m.qkv(x.view(-1, 1, 4, 4)).chunk(3, 3)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return m.head(F.scaled_dot_product_attention(q, k, v).mean((1, 2)))


def grid(m: nn.Module, x: Tensor) -> Tensor:
    """A spatial transformer: pixels are read where a layer says."""
    where = torch.tanh(m.place(x.flatten(1))).view(-1, 3, 3, 2)
    return m.head(F.grid_sample(x.view(-1, 1, 4, 4), where, align_corners=False).flatten(1))


def through(function: Callable[[Tensor], Tensor]) -> Callable[[], Made]:
    return lambda: (
        Net(lambda m, x: m.last(function(m.first(x))), first=nn.Linear(4, 5), last=nn.Linear(5, K)),
        torch.randn(N, 4),
    )


class Root(torch.autograd.Function):
    """The square of a ReLU, whose slope is a root of outputs of which some are 0: as libraries have entmax."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(out := F.relu(x).square())
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g * ctx.saved_tensors[0].sqrt()


def frozen(m: nn.Module, x: Tensor) -> Tensor:
    """Distances of features that a part without gradients makes."""
    with torch.no_grad():
        h = F.relu(x).clamp(max=2)
    return -torch.cdist(m.first(h), m.centres)


ONCE: dict[str, Callable[[], Made]] = {
    "custom function": through(lambda x: Once.apply(torch.tanh(x))),
    "wrong second derivative": through(Wrong.apply),
    "flash attention": lambda: (Net(flash, qkv=nn.Linear(4, 12), head=nn.Linear(4, K)), torch.randn(N, 16)),
    "distances": lambda: (
        Net(
            lambda m, x: -torch.cdist(m.first(x), m.centres),
            first=nn.Linear(4, 4),
            centres=nn.Parameter(torch.randn(K, 4)),
        ),
        torch.randn(N, 4),
    ),
    "a second derivative that is not finite": through(lambda x: Root.apply(torch.tanh(x))),
    "kinks in a part without gradients": lambda: (
        Net(frozen, first=nn.Linear(4, 4), centres=nn.Parameter(torch.randn(K, 4))),
        torch.randn(N, 4),
    ),
    "bags of words": lambda: (
        nn.Sequential(nn.EmbeddingBag(7, 4, padding_idx=0), nn.Tanh(), nn.Linear(4, K)),
        torch.randint(7, (N, 5)),
    ),
    "bags of words, largest": lambda: (
        nn.Sequential(nn.EmbeddingBag(7, 4, mode="max"), nn.Tanh(), nn.Linear(4, K)),
        torch.randint(7, (N, 5)),
    ),
}
TWICE: dict[str, Callable[[], Made]] = {
    "tanh": through(torch.tanh),
    "relu in place": through(lambda x: F.relu(x, inplace=True)),
    "leaky, largest": through(lambda x: F.leaky_relu(x) + x.max(1, keepdim=True)[0] + x.max(dim=1).values[:, None]),
    "whole numbers between": through(lambda x: F.relu(x) * x.detach().long().clamp(0, 1).to(x) + x.abs()),
    "pooled": lambda: (cnn(), torch.randn(N, 2, 6, 6)),
}


def trained(make: Callable[[], Made], dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    model, x = make()
    model, y = model.to(dtype), torch.randint(K, (N,))
    x = x.to(dtype) if x.is_floating_point() else x
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval(), x, y


def dense(model: nn.Module, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
    """G from the Jacobian of every row, a backward pass for each logit, and the Hessian of its loss in the logits."""
    tensors, z = list(model.parameters()), model(x)
    g = torch.zeros(sum(t.numel() for t in tensors), sum(t.numel() for t in tensors), dtype=z.dtype)
    for row, label in zip(z, y):
        grads = [torch.autograd.grad(c, tensors, retain_graph=True, materialize_grads=True) for c in row]
        j = torch.stack([torch.cat([p.flatten() for p in of_class]) for of_class in grads])  # (K, P)
        a = torch.autograd.functional.hessian(lambda r: (loss or CE)(r[None], label[None]).sum(), row.detach())  # noqa: B023
        g += j.T @ a @ j / len(x)
    return g


def rereading(x: Tensor) -> Tensor:
    """A layer whose values are computed again in the backward pass."""
    h: Tensor = checkpoint(lambda x: F.relu(x) + F.relu6(x), x, use_reentrant=False)
    return h


@pytest.mark.parametrize("name", [*ONCE, *TWICE])
@pytest.mark.one_in(4)
def test_against_the_dense_matrix(name: str) -> None:
    """Values and bounds; the weights stay as they are, to the last bit."""
    model, x, y = trained((ONCE | TWICE)[name])
    before = copy.deepcopy(model.state_dict())
    spectrum = torch.linalg.eigvalsh(dense(model, x, y)).flip(0)
    specs = "lambda_max_ggn:tol=1e-6,by=differences", "top_ggn:k=3,tol=1e-6,by=differences"
    found = measure(model, (x, y), *specs, loss=CE)
    assert ("first derivatives alone" in " ".join(found.notes)) == (name in ONCE)
    for e, true in zip(found.estimates, spectrum[[0, 0, 1, 2]].tolist()):
        assert e.value is not None
        assert abs(e.value - true) <= 1e-8 * true
        assert e.detail["estimator_low"] <= true <= e.detail["estimator_high"]
        assert e.detail["residual"] < 1e-5 * true
        assert e.detail["sampling_se"] > 0
        assert "by differences of the logits" in e.how
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("name", [*ONCE, *TWICE])
def test_the_bound_covers_rounding(name: str) -> None:
    """In float32, against the dense matrix in float64."""
    model, x, y = trained((ONCE | TWICE)[name])
    true = float(torch.linalg.eigvalsh(dense(model, x, y))[-1])
    (e,) = measure(model, (x, y), "lambda_max_ggn:tol=1e-5,by=differences", dtype=torch.float32, loss=CE).estimates
    assert abs(e.value - true) <= min(1e-4 * true, e.detail["residual"])
    assert e.detail["residual"] < 2e-3 * true


def test_double_backward_where_the_model_has_it() -> None:
    model, x, y = trained(TWICE["pooled"])
    both = measure(
        model, (x, y), "lambda_max_ggn:tol=1e-8", "lambda_max_ggn:tol=1e-8,by=differences", loss=CE
    ).estimates
    assert both[0].value == pytest.approx(both[1].value, rel=1e-9)
    assert "differences" not in both[0].how
    assert both[0].detail["sampling_se"] == pytest.approx(both[1].detail["sampling_se"], rel=1e-6)


def test_kinks_that_are_not_known_are_in_the_bound() -> None:
    """Pixels that are read between others: the bound tells of the kinks that a step crosses."""
    torch.manual_seed(1)
    model, x, y = trained(lambda: (Net(grid, place=nn.Linear(16, 18), head=nn.Linear(9, K)), torch.randn(N, 16)))
    (e,) = measure(model, (x, y), "lambda_max_ggn:by=differences", loss=CE).estimates
    true = float(torch.linalg.eigvalsh(dense(model, x, y))[-1])
    assert abs(e.value - true) <= e.detail["residual"]
    assert e.detail["residual"] > 1e-2 * true
    assert "kinks that are not known" in e.reason


def test_blocks_plans_losses_and_layers() -> None:
    """`params`, small batches, a loss that is not convex, one with weights, and layers that are computed again."""
    model, x, y = trained(ONCE["distances"])
    g = dense(model, x, y)
    block = measure(model, (x, y), "lambda_max_ggn:tol=1e-8", loss=CE, params="first.*").estimates[0]
    assert block.value == pytest.approx(float(torch.linalg.eigvalsh(g[12:, 12:])[-1]), rel=1e-8)
    whole = [measure(model, (x, y), "lambda_max_ggn:tol=1e-8", loss=CE, **plan).estimates[0] for plan in PLANS]
    assert whole[0].value == pytest.approx(float(torch.linalg.eigvalsh(g)[-1]), rel=1e-8)
    assert whole[1].value == pytest.approx(whole[0].value, rel=1e-9)
    estimate = measure(model, (x, y), "lambda_max_ggn:tol=1e-6,bound=estimate", loss=CE).estimates[0]
    assert estimate.value == pytest.approx(whole[0].value, rel=1e-6)
    for loss in (Focal(2.0), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]).double(), reduction="none")):
        true = float(torch.linalg.eigvalsh(dense(model, x, y, loss))[-1])
        found = measure(model, (x, y), "lambda_max_ggn:tol=1e-8", loss=loss).estimates[0]
        assert found.value == pytest.approx(true, rel=1e-8)
    model, x, y = trained(through(rereading))
    (e,) = measure(model, (x, y), "lambda_max_ggn:tol=1e-8,by=differences", loss=CE).estimates
    assert e.value == pytest.approx(float(torch.linalg.eigvalsh(dense(model, x, y))[-1]), rel=1e-8)


def test_what_else_needs_no_second_derivative() -> None:
    model, x, y = trained(ONCE["flash attention"])
    g = dense(model, x, y)
    found = measure(model, (x, y), "trace_ggn:exact=true", "grad_norm", "top_ggn:k=2", loss=CE)
    assert found["trace_ggn"].value == pytest.approx(float(g.trace()), rel=1e-9)
    gradients = torch.autograd.grad(F.cross_entropy(model(x), y), [*model.parameters()])
    assert found["grad_norm"].value == pytest.approx(
        float(torch.cat([p.flatten() for p in gradients]).norm()), rel=1e-9
    )
    assert found["top_ggn", "k=2"].value == pytest.approx(float(torch.linalg.eigvalsh(g)[-2]), rel=1e-3)


def test_as_an_operator() -> None:
    model, x, y = trained(ONCE["bags of words"])
    h = calibcli.hessian(model, (x, y), loss=CE, matrix="ggn", dtype="float64", device="cpu")
    v = torch.randn(h.shape[1], 2, dtype=torch.float64)
    assert torch.allclose(h @ v, dense(model, x, y) @ v, rtol=1e-7, atol=1e-9)
    assert torch.equal(copy.deepcopy(h) @ v, h @ v)
    for tensor, before in zip(h._problem.tensors, model.parameters()):
        assert torch.equal(tensor, before)
    (top,) = h.top()
    assert top.value == pytest.approx(float(torch.linalg.eigvalsh(dense(model, x, y))[-1]), rel=1e-3)
    with pytest.raises(InputError, match="no second derivative"):
        calibcli.hessian(model, (x, y), dtype="float64", device="cpu")


def test_a_wrong_first_derivative_is_refused() -> None:
    """A backward pass that is not of the forward pass, as of what is rounded straight through."""
    model, x = through(Straight.apply)()
    for spec, said in (("lambda_max_ggn", "gradient disagrees"), ("lambda_max", "second derivative disagrees")):
        with pytest.raises(InputError, match=said) as caught:
            measure(model, (x, torch.arange(N) % K), spec)
        assert "lambda_max_ggn" not in caught.value.fix


def test_the_fix_works_when_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """What is refused names the option that works for this very model."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    torch.save(nn.Linear(4, 3).state_dict(), "linear.pt")
    np.savez("data.npz", x=np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), y=np.arange(20) % 3)
    line = ["curvature", "linear.pt", "--arch-file", "nets.py:once", "--data", "data.npz", "--trust", "--json"]
    assert main(line) == 4
    fix = re.search(r"-w (\w+)", capsys.readouterr().err.partition("fix:")[2])
    assert fix is not None
    assert main([*line, *fix[0].split()]) == 0
    (e,) = json.loads(capsys.readouterr().out)["estimates"]
    assert e["name"] == "lambda_max_ggn"
    assert e["value"] > 0
