"""The shelf of networks, and the small choices that families share."""

from __future__ import annotations

from typing import Literal

from torch import nn

from calibcli.errors import UsageError
from calibcli.spec import Shelf

ARCHITECTURES = Shelf("architecture")

Activation = Literal["relu", "gelu", "silu", "tanh"]
Norm = Literal["batch", "group", "none"]


def activation(name: Activation) -> nn.Module:
    kinds: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}
    return kinds[name]()


def norm(name: Norm, channels: int) -> nn.Module:
    """Batch norm, group norm with at most 8 groups that divide the channels, or nothing."""
    if name == "batch":
        return nn.BatchNorm2d(channels)
    if name == "group":
        return nn.GroupNorm(max(g for g in range(1, 9) if channels % g == 0), channels)
    return nn.Identity()


def positive(**options: int | float) -> None:
    """Refuse sizes below 1.

    Raises:
        UsageError: an option is smaller than 1.
    """
    for name, value in options.items():
        if value < 1:
            raise UsageError(f"architecture option {name}={value} is below 1", f"pass {name}=1 or more")
