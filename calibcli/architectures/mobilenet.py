"""Networks of depth-wise convolutions (Sandler, Howard, Zhu, Zhmoginov & Chen 2018), for images of 32 x 32."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.architectures.resnet import shortcut
from calibcli.architectures.shelf import ARCHITECTURES, Factor, Init, Size, initialised

STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, and stride of the first of them."""


class InvertedResidual(nn.Module):
    """1x1 to more channels, 3x3 in each by itself, 1x1 to few again; added to its input at stride 1."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        width = expansion * inputs
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=width, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride, "B") if stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        out = self.bn3(self.conv3(out))
        return cast(Tensor, out if self.shortcut is None else out + self.shortcut(x))


@ARCHITECTURES.add("mobilenet")
class MobileNet(nn.Module):
    """MobileNetV2 for images of 32 x 32: the stem and the second stage keep the size, shortcuts may be convolutions;
    `width` multiplies the channels.

    Source: Sandler et al. (2018); strides, shortcuts and ReLU as in the networks of that name for CIFAR.

    >>> from calibcli.architectures import build
    >>> sum(p.numel() for p in build("mobilenet").parameters())
    2296922
    """

    def __init__(self, *, width: Factor = 1, classes: Size = 10, channels: Size = 3, init: Init = "default") -> None:
        super().__init__()
        first, last = (max(1, round(width * full)) for full in (32, 1280))
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.blocks = nn.Sequential()
        held = first
        for expansion, full, count, stride in STAGES:
            outputs = max(1, round(width * full))
            for i in range(count):
                self.blocks.append(InvertedResidual(held, outputs, expansion, stride if i == 0 else 1))
                held = outputs
        self.conv2 = nn.Conv2d(held, last, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(last)
        self.linear = nn.Linear(last, classes)
        initialised(self, init)

    def forward(self, x: Tensor) -> Tensor:
        out = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return cast(Tensor, self.linear(F.relu(self.bn2(self.conv2(out))).mean((2, 3))))
