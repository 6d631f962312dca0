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

from calibcli.hessian import QUANTITIES, measure
from calibcli.losses import LOSSES
from calibcli.result import Result

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
