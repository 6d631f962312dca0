"""Tensors as an evaluation loop on a device has them, in the functions that take arrays; mixed devices fail."""

from __future__ import annotations

import pytest
import torch
from both import CUDA

import calibcli


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    return z, torch.arange(300) % 3


def test_the_device_refuses_what_cuda_refuses() -> None:
    z, y = rows()
    with pytest.raises(RuntimeError, match="same device"):
        z.to(CUDA) + z
    with pytest.raises(TypeError):
        z.to(CUDA).numpy()
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(3, device=CUDA, generator=torch.Generator())
    assert z.to(CUDA)[y.to(CUDA) == 1].device == CUDA


def test_the_functions_take_tensors_of_the_device() -> None:
    z, y = rows()
    there = z.to(CUDA), y.to(CUDA)
    assert calibcli.measure(*there)["ece"].value == calibcli.measure(z, y)["ece"].value
    assert calibcli.from_arrays(*there).n == 300
    assert calibcli.check(*there, max={"ece": 0.9}).checks[0].outcome == "pass"
    assert (calibcli.fit_scaler(*there).scaler(there[0]) == calibcli.fit_scaler(z, y).scaler(z)).all()
