"""The same work on both devices: the CPU's numbers are what the device's are held against."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from calibcli.cli.app import main

CUDA = torch.device("cuda", 0)
K = 4
OPTIONS = {
    "focal": "gamma=2,alpha=1/1/1/2",
    "inverse_focal": "gamma=2",
    "dual_focal": "gamma=2",
    "proper_focal": "gamma=2",
    "focal_scheduled": "gammas=5/1,bounds=0.5",
    "trace": "weight=0.01",
}


def spec(name: str) -> str:
    """The entry of a registry with options that it needs, or that make it ask more of the device."""
    return f"{name}:{OPTIONS[name]}" if name in OPTIONS else name


def command(capsys: pytest.CaptureFixture[str], *argv: object, tolerance: float = 1e-5) -> list[dict[str, Any]]:
    """The results of a command that takes `--device` on the CPU and on the device; their estimates are the same."""
    found = []
    for device in ("cpu", "cuda"):
        assert main([*map(str, argv), "--device", device, "--json"]) == 0, capsys.readouterr().err
        found.append(json.loads(capsys.readouterr().out))
    one, other = ([(e["name"], e["scope"], e["value"]) for e in result["estimates"]] for result in found)
    assert [e[:2] for e in other] == [e[:2] for e in one]
    assert [e[2] for e in other] == pytest.approx([e[2] for e in one], rel=tolerance, abs=1e-12)
    return found


def images(n: int = 40, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, 3, size, size) rows and their labels, on the CPU."""
    x = torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(n) % K


def network(width: int = 6) -> nn.Module:
    """A small convolutional network with group norm and pooling."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(2, width), nn.SiLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(4 * width, K)),
    )
