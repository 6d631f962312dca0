"""Built-in networks, for which a study needs no code. A spec such as `resnet:depth=20` builds one.

Every network maps a float batch, (n, channels, height, width) or (n, inputs), to logits (n, classes), and ends in a
linear layer. Weights are drawn from torch's global generator: seed it before building.
"""

from __future__ import annotations

from typing import cast

from torch import nn

from calibcli.networks.architectures.registry import ARCHITECTURES

__all__ = ["ARCHITECTURES", "build"]


def build(spec: str, **defaults: object) -> nn.Module:
    """Build a fresh network from its spec; `defaults` fill options that the spec leaves out.

    Raises:
        UsageError: unknown name or option, or a value that fits no network.
    """
    return cast(nn.Module, ARCHITECTURES.choose(spec, **defaults)())
