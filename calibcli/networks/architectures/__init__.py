"""Networks a study needs no code for. Each family is one file; a spec such as `resnet:depth=20` builds one.

Every network maps a float batch, (n, channels, height, width) or (n, inputs), to logits (n, classes), and ends in a
linear layer. Weights are drawn from torch's global generator: seed it before building.
"""

from __future__ import annotations

from typing import cast

from torch import nn

from calibcli.networks.architectures.shelf import ARCHITECTURES

__all__ = ["ARCHITECTURES", "build"]


def build(spec: str, **defaults: object) -> nn.Module:
    """A fresh network from its spec; `defaults` fill options on which the spec is silent.

    Raises:
        UsageError: unknown name or option, or a value that makes no network.
    """
    return cast(nn.Module, ARCHITECTURES.choose(spec, **defaults)())
