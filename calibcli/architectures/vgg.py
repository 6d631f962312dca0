"""Networks of 3x3 convolutions alone (Simonyan & Zisserman 2015), for images of 32 x 32."""

from __future__ import annotations

from typing import Literal, cast

from torch import Tensor, nn

from calibcli.architectures.shelf import ARCHITECTURES, Factor, Init, Size, initialised

WIDTHS = (64, 128, 256, 512, 512)
BLOCKS = {"11": (1, 1, 2, 2, 2), "13": (2, 2, 2, 2, 2), "16": (2, 2, 3, 3, 3), "19": (2, 2, 4, 4, 4)}
"""Convolutions of each width, by depth."""


@ARCHITECTURES.add("vgg")
class VGG(nn.Module):
    """VGG of depth 11, 13, 16 or 19 with batch norm and one linear layer; max pooling halves the image five times;
    `width` multiplies the channels.

    Source: Simonyan and Zisserman (2015), with the one linear layer that networks for 32 x 32 have.

    >>> from calibcli.architectures import build
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
