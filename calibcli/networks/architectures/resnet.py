"""Residual networks: the 6n+2 family for CIFAR, ResNet-18/34/50, wide residual networks, and MobileNetV2."""

from __future__ import annotations

from typing import Annotated, Literal, cast

from torch import Tensor, nn
from torch.nn import functional as F

from calibcli.core.errors import UsageError
from calibcli.core.options import Range, Share
from calibcli.networks.architectures.registry import ARCHITECTURES, Depth, Factor, Init, Size, initialised

# Residual networks (He, Zhang, Ren & Sun 2016): the 6n+2 family for CIFAR, and ResNet-18/34/50 with three stems.

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
        # (n, channels, height, width): fewer places, and further channels of 0
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def shortcut(inputs: int, outputs: int, stride: int, option: str) -> nn.Module:
    """Make the path around a block: identity where shapes agree, else option A (padding) or B (1x1 convolution)."""
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


class ThreeConvolutions(nn.Module):
    """1x1 to `width` channels, 3x3 (which carries the stride), 1x1 to `outputs`, each with a norm."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)


class Bottleneck(ThreeConvolutions):
    """Three convolutions, the last with four times the width."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, option: str) -> None:
        outputs = self.expansion * width
        super().__init__(inputs, width, outputs, stride)
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

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("resnet:depth=20").parameters())
    269722

    Raises:
        UsageError: `depth` is not 6n+2.
    """
    n, remainder = divmod(depth - 2, 6)
    if remainder or n < 1:
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

    >>> from calibcli.networks.architectures import build
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

    >>> from calibcli.networks.architectures import build
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

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("resnet50").parameters())
    23520842

    Raises:
        UsageError: not four stages.
    """
    if len(blocks) != 4:
        raise UsageError(f"resnet50 with {len(blocks)} stages: it has four", "pass blocks=3/4/6/3")
    return ResNet(Bottleneck, blocks, four(width), channels=channels, classes=classes, stem=stem, init=init)


def four(width: float) -> tuple[int, ...]:
    """Compute the channels of the four stages, times `width`."""
    return tuple(round(width * w) for w in (64, 128, 256, 512))


# Wide residual networks (Zagoruyko & Komodakis 2016).


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

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("wide_resnet:depth=16,widen=4").parameters())
    2748890

    Args:
        depth: 6n+4 (10, 16, 22, 28, 40, ...), or 6n+2.  widen: factor on the channels.  classes: K.
        channels: of the images.  dropout: probability between the two convolutions of a block.

    Raises:
        UsageError: `depth` is not of the family, or dropout with `block=post`, which has none.
    """
    more = 4 if block == "pre" else 2
    n, remainder = divmod(depth - more, 6)
    if remainder or n < 1:
        near = max(6 + more, 6 * round((depth - more) / 6) + more)
        fix = f"pass depth={near}" + (",block=post for the one with ReLU last" if more == 4 and depth % 6 == 2 else "")
        raise UsageError(f"wide_resnet of depth {depth}: this family has depths 6n+{more}", fix)
    if block == "pre":
        return WideResNet(n, widen, classes, channels, dropout, init)
    if dropout:
        raise UsageError("wide_resnet with block=post has no dropout", "leave dropout out, or block=post")
    widths = (16 * widen, 32 * widen, 64 * widen)
    return ResNet(BasicBlock, (n, n, n), widths, channels=channels, classes=classes, init=init, first=16)


def _stage(inputs: int, outputs: int, blocks: int, stride: int, dropout: float) -> nn.Sequential:
    first = PreActivationBlock(inputs, outputs, stride, dropout)
    return nn.Sequential(first, *(PreActivationBlock(outputs, outputs, 1, dropout) for _ in range(blocks - 1)))


# Networks of depth-wise convolutions (Sandler, Howard, Zhu, Zhmoginov & Chen 2018), for images of 32 x 32.


STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, and stride of the first of them."""


class InvertedResidual(ThreeConvolutions):
    """1x1 to more channels, 3x3 in each by itself, 1x1 to few again; added to its input at stride 1."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        width = expansion * inputs
        super().__init__(inputs, width, outputs, stride, groups=width)
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

    >>> from calibcli.networks.architectures import build
    >>> sum(p.numel() for p in build("mobilenet").parameters())
    2296922
    """

    def __init__(self, *, width: Factor = 1, classes: Size = 10, channels: Size = 3, init: Init = "default") -> None:
        super().__init__()
        first, last = (max(1, round(width * full)) for full in (32, 1280))
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.blocks = nn.Sequential()
        channels_in = first
        for expansion, full, count, stride in STAGES:
            outputs = max(1, round(width * full))
            for i in range(count):
                self.blocks.append(InvertedResidual(channels_in, outputs, expansion, stride if i == 0 else 1))
                channels_in = outputs
        self.conv2 = nn.Conv2d(channels_in, last, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(last)
        self.linear = nn.Linear(last, classes)
        initialised(self, init)

    def forward(self, x: Tensor) -> Tensor:
        out = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return cast(Tensor, self.linear(F.relu(self.bn2(self.conv2(out))).mean((2, 3))))
