"""Residual networks (He, Zhang, Ren & Sun 2016): the 6n+2 family for CIFAR, and ResNet-18/34/50 with three stems."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.architectures.shelf import ARCHITECTURES, Depth, Factor, Init, Size, initialised
from calibcli.errors import UsageError
from calibcli.spec import Range

Blocks = Annotated[tuple[int, ...], Range(1, 1000)]
Stem = Literal["cifar", "tiny", "imagenet"]


class PadShortcut(nn.Module):
    """Option A: every second pixel, new channels filled with zeros; no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def shortcut(inputs: int, outputs: int, stride: int, option: str) -> nn.Module:
    """The path around a block: identity where shapes agree, else option A (padding) or B (1x1 convolution)."""
    if stride == 1 and inputs == outputs:
        return nn.Sequential()
    if option == "A":
        return PadShortcut(inputs, outputs, stride)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, option: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = shortcut(inputs, width, stride, option)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride), 1x1 with four times the width."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, option: str) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride, option)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of residual blocks, `layer1`, `layer2`, ..., each after the first halving the image.

    Args:
        block: BasicBlock or Bottleneck.  blocks: blocks per stage.  widths: width per stage.
        channels: of the images.  classes: K.  option: shortcut A or B.
        stem: `cifar` (3x3), `imagenet` (7x7 of stride 2, then 3x3 max pooling of stride 2), or `tiny`: that of `cifar`,
            and means of each quarter of the image at the end, for images of 64 x 64.
        first: channels of the stem; None: the first of `widths`.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: tuple[int, ...],
        widths: tuple[int, ...],
        *,
        channels: int,
        classes: int,
        option: str = "B",
        stem: Stem = "cifar",
        init: Init = "fan_out",
        first: int | None = None,
    ) -> None:
        super().__init__()
        width = first or widths[0]
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False)
            self.pool: nn.Module = nn.MaxPool2d(3, 2, padding=1)
        else:
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            self.pool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        self.stages: list[str] = []
        for number, (count, width_) in enumerate(zip(blocks, widths), 1):
            stage = nn.Sequential()
            for i in range(count):
                stage.append(block(width, width_, 2 if i == 0 and number > 1 else 1, option))
                width = width_ * block.expansion
            self.stages.append(f"layer{number}")
            self.add_module(self.stages[-1], stage)
        self.corners = 2 if stem == "tiny" else 1
        self.linear = nn.Linear(width * self.corners**2, classes)
        initialised(self, init)

    def forward(self, x: Tensor) -> Tensor:
        out = self.pool(F.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            out = self.get_submodule(name)(out)
        means = F.adaptive_avg_pool2d(out, 2).flatten(1) if self.corners == 2 else out.mean((2, 3))
        return cast(Tensor, self.linear(means))


@ARCHITECTURES.add()
def resnet(
    *,
    depth: Depth = 20,
    width: Size = 16,
    classes: Size = 10,
    channels: Size = 3,
    shortcut: Literal["A", "B"] = "A",
    init: Init = "fan_out",
) -> ResNet:
    """CIFAR ResNet of depth 6n+2 (20, 32, 44, 56, 110, ...), three stages of `width`, 2x and 4x.

    Source: He et al. (2016), section 4.2.

    >>> from calibcli.architectures import build
    >>> sum(p.numel() for p in build("resnet:depth=20").parameters())
    269722

    Raises:
        UsageError: `depth` is not 6n+2.
    """
    n, rest = divmod(depth - 2, 6)
    if rest or n < 1:
        near = max(8, 6 * round((depth - 2) / 6) + 2)
        raise UsageError(f"resnet of depth {depth}: this family has depths 6n+2", f"pass depth={near}")
    widths = (width, 2 * width, 4 * width)
    return ResNet(BasicBlock, (n, n, n), widths, channels=channels, classes=classes, option=shortcut, init=init)


@ARCHITECTURES.add()
def resnet18(
    *, width: Factor = 1, classes: Size = 10, channels: Size = 3, stem: Stem = "cifar", init: Init = "fan_out"
) -> ResNet:
    """ResNet-18; `width` multiplies the channels (64 to 512); the stem is for 32x32 images unless told otherwise.

    Source: He et al. (2016).

    >>> from calibcli.architectures import build
    >>> sum(p.numel() for p in build("resnet18").parameters())
    11173962
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), four(width), channels=channels, classes=classes, stem=stem, init=init)


@ARCHITECTURES.add()
def resnet34(
    *, width: Factor = 1, classes: Size = 10, channels: Size = 3, stem: Stem = "cifar", init: Init = "fan_out"
) -> ResNet:
    """ResNet-34; options as in resnet18.

    Source: He et al. (2016).

    >>> from calibcli.architectures import build
    >>> sum(p.numel() for p in build("resnet34").parameters())
    21282122
    """
    return ResNet(BasicBlock, (3, 4, 6, 3), four(width), channels=channels, classes=classes, stem=stem, init=init)


@ARCHITECTURES.add()
def resnet50(
    *,
    width: Factor = 1,
    blocks: Blocks = (3, 4, 6, 3),
    classes: Size = 10,
    channels: Size = 3,
    stem: Stem = "cifar",
    init: Init = "fan_out",
) -> ResNet:
    """ResNet-50 (bottleneck blocks), or with `blocks=3/4/26/3` the ResNet-110 of Mukhoti et al. (2020).

    Their convolutions are drawn with `init=default`, and their stem for Tiny ImageNet is `tiny`.

    Source: He et al. (2016).

    >>> from calibcli.architectures import build
    >>> sum(p.numel() for p in build("resnet50").parameters())
    23520842

    Raises:
        UsageError: not four stages.
    """
    if len(blocks) != 4:
        raise UsageError(f"resnet50 with {len(blocks)} stages: it has four", "pass blocks=3/4/6/3")
    return ResNet(Bottleneck, blocks, four(width), channels=channels, classes=classes, stem=stem, init=init)


def four(width: float) -> tuple[int, ...]:
    """Channels of the four stages, times `width`."""
    return tuple(round(width * w) for w in (64, 128, 256, 512))
