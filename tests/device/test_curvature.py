"""Curvature on a device: every quantity and every loss has the CPU's numbers, and nothing is left behind."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from both import CUDA, K, command, images, network, spec
from torch import nn
from torch.nn import functional as F

from calibcli.core.errors import UsageError
from calibcli.core.result import Result
from calibcli.networks.curvature import QUANTITIES, measure, operator
from calibcli.networks.curvature.per_row_gradients import RowNorms
from calibcli.networks.curvature.problem import CurvatureProblem
from calibcli.networks.losses import LOSSES

SAMPLE = Path(__file__).parents[2] / "sample_data"
Given = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None


def same(*quantities: str, loss: Given = None, dtype: torch.dtype = torch.float64) -> None:
    found: list[Result] = [
        measure(network(), images(), *quantities, loss=loss, device=device, dtype=dtype) for device in ("cpu", CUDA)
    ]
    one, other = ([(e.name, e.scope, e.value, e.low, e.high) for e in result.estimates] for result in found)
    rel = 1e-7 if dtype == torch.float64 else 1e-3
    for a, b in zip(one, other, strict=True):
        assert b[:2] == a[:2]
        assert [v for v in b[2:] if v is not None] == pytest.approx([v for v in a[2:] if v is not None], rel=rel)


@pytest.mark.parametrize("quantity", [entry.name for entry in QUANTITIES])
def test_every_quantity(quantity: str) -> None:
    same(quantity)


@pytest.mark.parametrize("loss", [spec(entry.name) for entry in LOSSES])
def test_every_loss(loss: str) -> None:
    same("lambda_max:bound=estimate", "trace:precision=0.3", loss=loss)


def test_a_loss_of_the_user_with_weights_on_the_cpu() -> None:
    weight = torch.linspace(0.5, 2, K)
    same(
        "lambda_max:bound=estimate",
        "trace:precision=0.3",
        loss=lambda z, y: F.cross_entropy(z, y, weight.to(z), reduction="none"),
    )
    same(
        "lambda_max:bound=estimate",
        "trace:precision=0.3",
        loss=nn.CrossEntropyLoss(weight=weight, reduction="none"),
        dtype=torch.float32,
    )


def test_the_command_with_its_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    one, _ = command(capsys, "curvature", SAMPLE / "model.safetensors")
    assert {e["name"].partition(":")[0] for e in one["estimates"]} >= {"lambda_max", "trace", "grad_norm"}


@pytest.mark.parametrize("memory", ["low", "high"])
def test_plans_of_memory(capsys: pytest.CaptureFixture[str], memory: str) -> None:
    command(capsys, "curvature", SAMPLE / "model.safetensors", "-w", "trace", "--memory", memory, "--dtype", "float64")


def test_nothing_is_left_on_the_device() -> None:
    """A second and a third call hold no more than the first: neither tensors nor bytes."""
    model, (x, y) = network().to(CUDA), images()
    rows = (x.to(CUDA), y.to(CUDA))

    def held() -> tuple[int, int]:
        measure(copy.deepcopy(model), rows, "lambda_max", "trace", "trace_ggn", "grad_norm")
        gc.collect()
        alive = sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())
        return alive, torch.cuda.memory_allocated()

    first = held()
    assert [held(), held()] == [first, first]


class Choosy(nn.Module):
    """A network that `vmap` does not run: it looks at a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(-x if float(x.detach().abs().sum()) < 0 else x)  # type: ignore[no-any-return]


class Otherwise(Choosy):
    """A network that `vmap` runs, and gets wrong."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(2 * x if torch._C._functorch.is_functorch_wrapped_tensor(x) else x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", [Choosy, Otherwise])
@pytest.mark.parametrize("what", [("lambda_max", "grad_norm", "trace:probes=3"), ("grad_norm", "lambda_max")])
def test_a_model_that_is_not_mapped(model: type[Choosy], what: tuple[str, ...]) -> None:
    one, other = (measure(model(), images(), *what, device=device, dtype=torch.float64) for device in ("cpu", CUDA))
    for a, b in zip(one.estimates, other.estimates, strict=True):
        assert [b.value, b.low, b.high] == pytest.approx([a.value, a.low, a.high], rel=1e-7)


@pytest.mark.parametrize("n", [2, 3, 40, 290])
def test_ragged_groups_and_cells(n: int) -> None:
    found = [
        measure(network(), images(n), "lambda_max", "grad_norm", "trace:probes=3", device=d, dtype=torch.float64)
        for d in ("cpu", CUDA)
    ]
    for a, b in zip(*(result.estimates for result in found), strict=True):
        assert [b.value, b.low, b.high] == pytest.approx([a.value, a.low, a.high], rel=1e-6)


def test_tf32_is_on_for_krylov_products_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for certificates, traces or gradients; and as before outside."""
    seen: dict[str, set[tuple[bool, bool]]] = {"matvec": set(), "mapped": set(), "norms": set()}

    def flags() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    def watched(owner: object, name: str, place: str) -> None:
        real = getattr(owner, name)

        def call(*args: object, **options: object) -> object:
            seen[place].add(flags())
            return real(*args, **options)

        monkeypatch.setattr(owner, name, call)

    watched(CurvatureProblem, "product", "matvec")
    watched(operator, "mapped", "mapped")
    watched(RowNorms, "__call__", "norms")
    what = ("lambda_max", "trace", "grad_norm")
    before = flags()
    plain = measure(network(), images(), *what, device=CUDA)
    assert not any(any(pair) for pairs in seen.values() for pair in pairs)
    for pairs in seen.values():
        pairs.clear()
    found = measure(network(), images(), *what, device=CUDA, tf32=True)
    assert (True, True) in seen["matvec"]
    assert seen["mapped"] == seen["norms"] == {(False, False)}
    assert flags() == before
    assert found.facts["tf32"]
    assert "tf32" not in plain.facts
    assert any("TF32" in note for note in found.notes)
    assert [e.value for e in found.estimates] == pytest.approx([e.value for e in plain.estimates], rel=1e-2)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), (CUDA, torch.float64)])
def test_tf32_is_refused_where_there_is_none(device: torch.device, dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match="TF32 is for float32 on a CUDA device"):
        measure(network(), images(), "grad_norm", device=device, dtype=dtype, tf32=True)
