"""The shelf of networks, and the small choices that families share."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import nn

from calibcli.shelves import Shelf
from calibcli.spec import Range

ARCHITECTURES = Shelf("architecture", package="calibcli.architectures")

Activation = Literal["relu", "gelu", "silu", "tanh"]
Norm = Literal["batch", "group", "none"]
Init = Literal["fan_out", "default"]
Size = Annotated[int, Range(1, 10_000_000)]
Sizes = Annotated[tuple[int, ...], Range(1, 10_000_000)]
Depth = Annotated[int, Range(1, 10_000)]
Factor = Annotated[float, Range(1 / 64, 1000)]  # of 64 channels: at least one is left


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh}


def initialised(model: nn.Module, init: Init) -> None:
    """Draw its convolutions from N(0, 2 / (k² outputs)) (He et al. 2015), or leave them as PyTorch draws them."""
    for module in model.modules() if init == "fan_out" else ():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def norm(name: Norm, channels: int) -> nn.Module:
    """Batch norm, group norm with at most 8 groups that divide the channels, or nothing."""
    if name == "batch":
        return nn.BatchNorm2d(channels)
    if name == "group":
        return nn.GroupNorm(max(g for g in range(1, 9) if channels % g == 0), channels)
    return nn.Identity()
