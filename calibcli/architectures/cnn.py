"""Small convolutional network."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from calibcli.architectures.shelf import ACTIVATIONS, ARCHITECTURES, Activation, Norm, Size, Sizes, norm


@ARCHITECTURES.add("cnn")
class CNN(nn.Module):
    """3x3 convolutions with a norm, an activation and 2x2 max pooling each, a global mean, and a linear layer.

    Ours: the usual small network of such layers (LeCun et al. 1998) with batch norm (Ioffe and Szegedy 2015).

    >>> from calibcli.architectures import build
    >>> sum(p.numel() for p in build("cnn").parameters())
    24346

    Args:
        channels: of the images.  widths: output channels of the convolutions.  classes: K.
        norm: batch, group or none.  activation: relu, gelu, silu or tanh.
    """

    def __init__(
        self,
        *,
        channels: Size = 3,
        widths: Sizes = (16, 32, 64),
        classes: Size = 10,
        norm: Norm = "batch",
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        sizes = (channels, *widths)
        self.features = nn.Sequential(*(_stage(a, b, norm, activation) for a, b in pairwise(sizes)))
        self.linear = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.linear(self.features(x).mean((2, 3))))


def _stage(inputs: int, outputs: int, norm_name: Norm, activation_name: Activation) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm_name == "none"),
        norm(norm_name, outputs),
        ACTIVATIONS[activation_name](),
        nn.MaxPool2d(2, ceil_mode=True),
    )
