"""Convolutional networks without residual blocks: a small one, VGG and DenseNet."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.networks.architectures.registry import (
    ACTIVATIONS,
    ARCHITECTURES,
    Activation,
    Factor,
    Init,
    Norm,
    Size,
    Sizes,
    initialised,
    norm,
)


@ARCHITECTURES.add("cnn")
class CNN(nn.Module):
    """3x3 convolutions with a norm, an activation and 2x2 max pooling each, a global mean, and a linear layer.

    Ours: the usual small network of such layers (LeCun et al. 1998) with batch norm (Ioffe and Szegedy 2015).

    >>> from calibcli.networks.architectures import build
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


# Networks of 3x3 convolutions alone (Simonyan & Zisserman 2015), for images of 32 x 32.


WIDTHS = (64, 128, 256, 512, 512)
BLOCKS = {"11": (1, 1, 2, 2, 2), "13": (2, 2, 2, 2, 2), "16": (2, 2, 3, 3, 3), "19": (2, 2, 4, 4, 4)}
"""Convolutions of each width, by depth."""


@ARCHITECTURES.add("vgg")
class VGG(nn.Module):
    """VGG of depth 11, 13, 16 or 19 with batch norm and one linear layer; max pooling halves the image five times;
    `width` multiplies the channels.

    Source: Simonyan and Zisserman (2015), with the one linear layer that networks for 32 x 32 have.

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("vgg:depth=19,classes=100").parameters())
    20086692
    """

    def __init__(
        self,
        *,
        depth: Literal["11", "13", "16", "19"] = "19",
        width: Factor = 1,
        classes: Size = 10,
        channels: Size = 3,
        init: Init = "default",
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for full, count in zip(WIDTHS, BLOCKS[depth]):
            for _ in range(count):
                outputs = round(width * full)
                layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(channels, classes)
        initialised(self, init)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.linear(self.features(x).mean((2, 3))))


# Densely connected networks (Huang, Liu, van der Maaten & Weinberger 2017), for images of 32 x 32.


SIZES = {
    "121": (32, (6, 12, 24, 16)),
    "161": (48, (6, 12, 36, 24)),
    "169": (32, (6, 12, 32, 32)),
    "201": (32, (6, 12, 48, 32)),
}
"""Growth rate, and layers of each dense block, by depth."""


class DenseLayer(nn.Module):
    """Norm, ReLU, 1x1 to four times the growth, norm, ReLU, 3x3 to the growth; put before its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        new = self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        return torch.cat([new, x], 1)


class Transition(nn.Module):
    """Norm, ReLU, 1x1 to half the channels, 2x2 mean."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


@ARCHITECTURES.add("densenet")
class DenseNet(nn.Module):
    """DenseNet-BC of depth 121, 161, 169 or 201 for images of 32 x 32; `width` multiplies the growth rate.

    A 3x3 stem, and four dense blocks with half of the channels, and of the image, between them.

    Source: Huang et al. (2017), with the stem of Mukhoti et al. (2020).

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("densenet:depth=121").parameters())
    6956298
    """

    def __init__(
        self,
        *,
        depth: Literal["121", "161", "169", "201"] = "121",
        width: Factor = 1,
        classes: Size = 10,
        channels: Size = 3,
        init: Init = "default",
    ) -> None:
        super().__init__()
        growth, blocks = SIZES[depth]
        growth = max(1, round(width * growth))
        features = 2 * growth
        self.conv1 = nn.Conv2d(channels, features, 3, padding=1, bias=False)
        self.blocks = nn.Sequential()
        for i, layers in enumerate(blocks):
            if i:
                self.blocks.append(Transition(features, features // 2))
                features //= 2
            self.blocks.extend(DenseLayer(features + growth * j, growth) for j in range(layers))
            features += growth * layers
        self.bn = nn.BatchNorm2d(features)
        self.linear = nn.Linear(features, classes)
        initialised(self, init)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.linear(F.relu(self.bn(self.blocks(self.conv1(x)))).mean((2, 3))))
