"""Hessian-vector products from gradients alone: against double backward, also of models that lack it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curvature_models import dense, setup
from test_curvature_differences import ONCE, TWICE, Made, Net, rereading, through, trained
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import calibcli
from calibcli.cli.app import main
from calibcli.core.errors import InputError, UsageError
from calibcli.networks import checkpoint
from calibcli.networks.curvature import measure
from calibcli.networks.losses import CrossEntropy

CE = CrossEntropy()
ALONE: dict[str, Any] = {"products": "gradients", "loss": CE}


class Bag(nn.Module):
    """`nn.EmbeddingBag` of its mean or largest elements, in operations that can be differentiated twice."""

    def __init__(self, bag: nn.EmbeddingBag) -> None:
        super().__init__()
        self.weight, self.padding, self.mode = bag.weight, bag.padding_idx, bag.mode

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight[x]  # (n, words, width)
        if self.mode == "max":
            return rows.max(1).values
        count = (x != self.padding)[:, :, None]
        return (rows * count).sum(1) / count.sum(1).clamp(min=1)


def math(m: nn.Module, x: Tensor) -> Tensor:
    """`flash` of the other tests, without its fused kernel."""
    q, k, v = m.qkv(x.view(-1, 1, 4, 4)).chunk(3, 3)
    with sdpa_kernel(SDPBackend.MATH):
        return m.head(F.scaled_dot_product_attention(q, k, v).mean((1, 2)))


def far(m: nn.Module, x: Tensor) -> Tensor:
    """Distances to the centres of classes: (n, 1, 4) - (K, 4), over the 4 features."""
    return -(m.first(x)[:, None] - m.centres).square().sum(2).sqrt()


def cubed(x: Tensor) -> Tensor:
    return torch.tanh(x) ** 3


TWINS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "custom function": lambda m, x: m.last(cubed(m.first(x))),
    "wrong second derivative": lambda m, x: m.last(m.first(x) ** 2),
    "flash attention": math,
    "distances": far,
    "a second derivative that is not finite": lambda m, x: m.last(F.relu(torch.tanh(m.first(x))).square()),
    "kinks in a part without gradients": lambda m, x: far(m, F.relu(x).clamp(max=2)),
}
"""What those that can be differentiated once compute, in operations that can be differentiated twice."""


def twin(name: str, model: nn.Module) -> nn.Module:
    """The same network with second derivatives that are right."""
    other = copy.deepcopy(model)
    if name in TWINS:
        other.function = TWINS[name]
    elif name in ONCE:
        other[0] = Bag(other[0])  # type: ignore[index, operator]
    return other


class Encoder(nn.Module):
    """A small BERT: words and places, layers of attention, the first place to classes."""

    def __init__(self, width: int = 16, words: int = 20, places: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width, padding_idx=0), nn.Parameter(torch.randn(places, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x) + self.places)[:, 0])


def encoder() -> Made:
    return Encoder(), torch.randint(20, (40, 6))


def residual(depth: int = 20, size: int = 8) -> Made:
    return checkpoint.build(f"resnet:depth={depth},classes=3"), torch.randn(40, 3, size, size)


TRAINED: dict[str, Callable[[], Made]] = {**ONCE, **{name: TWICE[name] for name in list(TWICE) if "whole" not in name}}
TRAINED |= {"encoder": encoder, "residual network": residual}


def fitted(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    """The trained network with its rows; larger ones are trained for a few steps, as they would know all rows."""
    if name not in ("encoder", "residual network"):
        return trained(TRAINED[name], dtype)
    torch.manual_seed(1)
    model, x = TRAINED[name]()
    y = torch.randint(3, (len(x),))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(10):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.to(dtype).eval(), x.to(dtype) if x.is_floating_point() else x, y


def both(name: str, tol: float = 1e-4) -> tuple[float, Any]:
    """λmax by double backward in float64, and as an estimate from gradients alone in float32."""
    model, x, y = fitted(name)
    plain = {"dtype": torch.float64, "loss": CE}
    true = measure(twin(name, model), (x, y), "lambda_max:tol=1e-7", **plain).estimates[0].value  # type: ignore[arg-type]
    return float(true or 0), measure(model, (x, y), f"lambda_max:tol={tol}", dtype=torch.float32, **ALONE).estimates[0]


OFTEN = "flash attention", "distances", "relu in place", "encoder"
CASES = [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in TRAINED if n != "residual network"]


@pytest.mark.parametrize("name", CASES)
def test_the_bound_covers_the_error_against_double_backward(name: str) -> None:
    true, e = both(name)
    assert abs(e.value - true) <= min(1e-3 * true, float(e.detail["residual"]))
    assert ("from symmetry" if name in ONCE else "from double backward on 2 rows") in e.how
    assert abs(e.value - true) <= (1e-5 * true if name == "encoder" else 1)


@pytest.mark.slow
def test_a_residual_network_with_its_choices_frozen() -> None:
    true, e = both("residual network")
    assert abs(e.value - true) <= min(1e-4 * true, float(e.detail["residual"]))


def test_weights_state_and_padding_stay_as_they_are() -> None:
    model, x, y = fitted("encoder", torch.float32)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    model.train()
    h = calibcli.hessian(model, (x, y), products="gradients", device="cpu")
    v = torch.randn(h.shape[1])
    product, other = h @ v, torch.randn(h.shape[1])
    assert not product[h.slices["words.weight"]].view(20, 16)[0].any()
    assert torch.dot(other, product).item() == pytest.approx(torch.dot(v, h @ other).item(), rel=1e-2)
    exact = calibcli.hessian(model, (x, y), device="cpu") @ v
    assert (product - exact).norm() <= 1e-3 * exact.norm()
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    torch.set_rng_state(state)


@pytest.mark.slow
def test_everything_else_that_gradients_give() -> None:
    """Trace, density, smallest and further eigenvalues, relative coordinates, against the dense matrix."""
    model, x, y = setup("mlp")
    h = dense(model, x, y, CE)[0]
    values = torch.linalg.eigvalsh(h)
    specs = "lambda_min", "top:k=2", "trace:probes=3", "density:steps=10", "adaptive_lambda", "grad_norm"
    found = measure(model, (x, y), *specs, **ALONE)
    assert found["lambda_min"].value == pytest.approx(float(values[0]), rel=1e-3)
    assert found["top:k=2", "k=2"].value == pytest.approx(float(values[-2]), rel=1e-3)
    trace = found["trace:probes=3"]
    half = float(trace.detail["estimator_high"]) - trace.value
    assert abs(trace.value - float(h.trace())) <= 2 * half
    exact = measure(model, (x, y), *specs, loss=CE)
    for name in ("adaptive_lambda", "grad_norm", "negative_fraction:steps=10"):
        assert found[name].value == pytest.approx(exact[name].value, rel=1e-3)
    assert found.facts["products"] == "gradients"


class Kinked(nn.Module):
    """A ReLU that is made of comparisons, whose choices cannot be noted."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 200), nn.Linear(200, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.last(torch.where((h * 4000).floor() % 2 > 0, 1.5 * h, h))


def test_kinks_that_are_not_known_are_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(InputError, match=r"change by .* of their size at every step") as caught:
        measure(Kinked(), (torch.randn(40, 4), torch.arange(40) % 3), "lambda_max", **ALONE)
    assert "lambda_max_ggn" in caught.value.fix


def test_another_order_of_calls_is_refused() -> None:
    calls = iter(range(10**6))

    def turning(m: nn.Module, x: Tensor) -> Tensor:
        h = m.first(x)
        return m.last(F.relu(h) if next(calls) % 5 else F.relu6(h))

    model = Net(turning, first=nn.Linear(4, 5), last=nn.Linear(5, 3))
    with pytest.raises(InputError, match="calls other functions at weights nearby"):
        measure(model, (torch.randn(40, 4) / 9, torch.arange(40) % 3), "lambda_max", **ALONE)


def test_layers_that_are_computed_again_are_refused() -> None:
    """There a ReLU would be on another side than it was."""
    model, x, y = trained(through(rereading))
    with pytest.raises(InputError, match="calls other functions at weights nearby") as caught:
        measure(model, (x, y), "lambda_max", **ALONE)
    assert "checkpointing" in caught.value.fix


@pytest.mark.parametrize("spec", ["fisher_rao", "trace:exact=true", "lambda_max after"])
def test_what_cannot_be_had_is_refused_with_what_can(spec: str) -> None:
    model, x, y = setup("mlp")
    with pytest.raises(UsageError, match="cannot be had of products from gradients alone") as caught:
        measure(model, (x, y), spec, **ALONE)
    assert "lambda_max" in caught.value.fix
    with pytest.raises(UsageError, match="unknown products 'both'"):
        calibcli.curvature(model, (x, y), products="both", device="cpu")


def test_the_option_that_a_refusal_names_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    from test_curvature_refusals import NETS

    Path("nets.py").write_text(NETS)
    torch.manual_seed(0)
    torch.save(nn.Linear(4, 3).state_dict(), "linear.pt")
    np.savez("data.npz", x=np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), y=np.arange(20) % 3)
    line = ["curvature", "linear.pt", "--arch-file", "nets.py:once", "--data", "data.npz", "--trust", "--json"]
    line += ["-w", "lambda_max"]
    assert main(line) == 4
    assert "--products gradients" in capsys.readouterr().err
    assert main([*line, "--products", "gradients"]) == 0
    (e,) = json.loads(capsys.readouterr().out)["estimates"]
    assert e["value"] > 0
    assert "by differences of gradients" in e["how"]


SHARDED = """
import json, os, sys, torch, calibcli
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
sys.path.insert(0, sys.argv[1])
from test_curvature_gradients import fitted

torch.set_num_threads(1)
distributed.init_process_group("gloo")
model, x, y = fitted("encoder", torch.float32)
for layer in model.layers.layers:
    fully_shard(layer, mesh=(mesh := init_device_mesh("cpu", (2,))))
fully_shard(model, mesh=mesh).train()
before = [p.to_local().clone() for p in model.parameters()]
found = calibcli.curvature(model, (x[:9], y[:9]), "lambda_max", "grad_norm", products="gradients", device="cpu")
assert model.training and all(p.grad is None for p in model.parameters())
assert all(torch.equal(p.to_local(), b) for p, b in zip(model.parameters(), before))
values = [[e.value, e.detail["estimator_low"], e.detail["estimator_high"]] for e in found.estimates]
every = [None, None]
distributed.all_gather_object(every, values)
if distributed.get_rank() == 0:
    print(json.dumps(every), flush=True)
distributed.barrier()
os._exit(0)  # threads of gloo may abort a process that ends
"""


@pytest.mark.slow
def test_two_processes_that_share_the_weights_find_what_one_does(tmp_path: Path) -> None:
    """9 rows, of which one process has more than the other."""
    script = tmp_path / "sharded.py"
    script.write_text(SHARDED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(calibcli.__file__).parent.parent)}
    done = subprocess.run(
        [*command, str(Path(__file__).parent)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    one, other = json.loads(done.stdout.splitlines()[-1])
    assert one == other
    model, x, y = fitted("encoder", torch.float32)
    plain = measure(model, (x[:9], y[:9]), "lambda_max:tol=1e-6", "grad_norm", loss=CE).estimates
    (top, low, high), (slope, *_) = one
    assert low <= plain[0].value <= high
    assert abs(top - plain[0].value) <= 1e-3 * plain[0].value
    assert slope == pytest.approx(plain[1].value, rel=1e-5)
