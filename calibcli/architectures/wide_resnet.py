"""Wide residual networks (Zagoruyko & Komodakis 2016)."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.architectures.resnet import BasicBlock, ResNet
from calibcli.architectures.shelf import ARCHITECTURES, Depth, Init, Size, initialised
from calibcli.errors import UsageError
from calibcli.spec import Range, Share


class PreActivationBlock(nn.Module):
    """Norm, ReLU, convolution, twice, with dropout between; a 1x1 convolution around it where shapes differ."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        around = x if self.shortcut is None else self.shortcut(out)
        out = self.conv1(out)
        out = self.conv2(self.dropout(F.relu(self.bn2(out))))
        return cast(Tensor, out + around)


class WideResNet(nn.Module):
    """Three stages of n pre-activation blocks."""

    def __init__(self, n: int, widen: int, classes: int, channels: int, dropout: float, init: Init) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.layer1 = _stage(16, 16 * widen, n, 1, dropout)
        self.layer2 = _stage(16 * widen, 32 * widen, n, 2, dropout)
        self.layer3 = _stage(32 * widen, 64 * widen, n, 2, dropout)
        self.bn1 = nn.BatchNorm2d(64 * widen)
        self.linear = nn.Linear(64 * widen, classes)
        initialised(self, init)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return cast(Tensor, self.linear(F.relu(self.bn1(out)).mean((2, 3))))


@ARCHITECTURES.add()
def wide_resnet(
    *,
    depth: Depth = 28,
    widen: Annotated[int, Range(1, 10_000)] = 10,
    classes: Size = 10,
    channels: Size = 3,
    dropout: Share = 0.0,
    block: Literal["pre", "post"] = "pre",
    init: Init = "fan_out",
) -> WideResNet | ResNet:
    """Wide ResNet of depth 6n+4 with stages of 16, 32 and 64 channels times `widen` (WRN-28-10 by default).

    With `block=post` the blocks of ResNet-18 (ReLU last, a norm in the shortcut) and depth 6n+2: `depth=26,block=post`
    is the WRN-26-10 of Mukhoti et al. (2020). Source: Zagoruyko and Komodakis (2016).

    >>> from calibcli.architectures import build
    >>> sum(p.numel() for p in build("wide_resnet:depth=16,widen=4").parameters())
    2748890

    Args:
        depth: 6n+4 (10, 16, 22, 28, 40, ...), or 6n+2.  widen: factor on the channels.  classes: K.
        channels: of the images.  dropout: probability between the two convolutions of a block.

    Raises:
        UsageError: `depth` is not of the family, or dropout with `block=post`, which has none.
    """
    more = 4 if block == "pre" else 2
    n, rest = divmod(depth - more, 6)
    if rest or n < 1:
        near = max(6 + more, 6 * round((depth - more) / 6) + more)
        raise UsageError(
            f"wide_resnet of depth {depth}: this family has depths 6n+{more}",
            f"pass depth={near}" + (",block=post for the one with ReLU last" if more == 4 and depth % 6 == 2 else ""),
        )
    if block == "pre":
        return WideResNet(n, widen, classes, channels, dropout, init)
    if dropout:
        raise UsageError("wide_resnet with block=post has no dropout", "leave dropout out, or block=post")
    widths = (16 * widen, 32 * widen, 64 * widen)
    return ResNet(BasicBlock, (n, n, n), widths, channels=channels, classes=classes, init=init, first=16)


def _stage(inputs: int, outputs: int, blocks: int, stride: int, dropout: float) -> nn.Sequential:
    first = PreActivationBlock(inputs, outputs, stride, dropout)
    return nn.Sequential(first, *(PreActivationBlock(outputs, outputs, 1, dropout) for _ in range(blocks - 1)))
