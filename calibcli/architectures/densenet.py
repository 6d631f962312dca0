"""Densely connected networks (Huang, Liu, van der Maaten & Weinberger 2017), for images of 32 x 32."""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.architectures.shelf import ARCHITECTURES, Factor, Init, Size, initialised

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

    >>> from calibcli.architectures import build
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
        held = 2 * growth
        self.conv1 = nn.Conv2d(channels, held, 3, padding=1, bias=False)
        self.blocks = nn.Sequential()
        for i, layers in enumerate(blocks):
            if i:
                self.blocks.append(Transition(held, held // 2))
                held //= 2
            self.blocks.extend(DenseLayer(held + growth * j, growth) for j in range(layers))
            held += growth * layers
        self.bn = nn.BatchNorm2d(held)
        self.linear = nn.Linear(held, classes)
        initialised(self, init)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.linear(F.relu(self.bn(self.blocks(self.conv1(x)))).mean((2, 3))))
