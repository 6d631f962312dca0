"""Augmentation of whole batches, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from calibcli.errors import InputError, UsageError
from calibcli.shelves import Choice, Shelf
from calibcli.spec import Range

AUGMENTATIONS = Shelf("augmentation")
Augment = Callable[[Tensor, torch.Generator], Tensor]


@AUGMENTATIONS.add()
def crop(images: Tensor, generator: torch.Generator, *, pad: Annotated[int, Range(0, 10_000)] = 4) -> Tensor:
    """A crop of the image's own size from the image with `pad` zeros around it, at a place of its own per image.

    Zeros are meant after normalisation, so the border has the mean colour.

    Source: He et al. (2016), section 4.2.

    >>> import torch
    >>> from calibcli.training.augment import pipeline
    >>> pipeline("crop:pad=2", (3, 8, 8))(torch.ones(5, 3, 8, 8), torch.Generator()).shape
    torch.Size([5, 3, 8, 8])
    """
    n, _, height, width = images.shape
    padded = F.pad(images, (pad, pad, pad, pad))
    top = torch.randint(2 * pad + 1, (n, 1), generator=generator, device=images.device)
    left = torch.randint(2 * pad + 1, (n, 1), generator=generator, device=images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + torch.arange(width, device=images.device)
    image = torch.arange(n, device=images.device)[:, None, None]
    # advanced indices around a slice put the channels last
    return padded[image, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


@AUGMENTATIONS.add()
def flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2.

    Source: Krizhevsky et al. (2012).

    >>> import torch
    >>> from calibcli.training.augment import pipeline
    >>> pipeline("flip", (1, 2, 2))(torch.ones(5, 1, 2, 2), torch.Generator()).shape
    torch.Size([5, 1, 2, 2])
    """
    chosen = torch.rand(len(images), generator=generator, device=images.device) < 0.5
    return torch.where(chosen[:, None, None, None], images.flip(3), images)


class Mixup:
    """Rows mixed with others of their batch, and the labels of both with the shares that the loss gives them."""

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def __call__(
        self, inputs: Any, labels: Tensor, generator: torch.Generator, key: tuple[int, int]
    ) -> tuple[Any, list[tuple[float, Tensor]]]:
        """Mixed inputs, and (share, labels) of the rows themselves and of those they are mixed with.

        Args:
            key: seed and step, which decide the share: the same in every process, and after a run goes on.

        Raises:
            InputError: the rows are not one array of floats.
        """
        if not (isinstance(inputs, Tensor) and inputs.is_floating_point()):
            raise InputError("--augment mixup needs rows of numbers", "leave mixup out")
        share = 1.0 if self.alpha == 0 else float(np.random.default_rng(key).beta(self.alpha, self.alpha))
        order = torch.randperm(len(inputs), generator=generator, device=inputs.device)
        parts = [(share, labels), (1 - share, labels[order])]
        return share * inputs + (1 - share) * inputs[order], [part for part in parts if part[0]]


@AUGMENTATIONS.add()
def mixup(*, alpha: Annotated[float, Range(0, 1e6)] = 0.2) -> Mixup:
    """Rows `λx + (1-λ)x'` with the loss `λL(y) + (1-λ)L(y')`, x' another row of the batch, λ of Beta(α, α) a step.

    Of images or any rows of numbers, after the other augmentations; α = 0 leaves them. Source: Zhang et al. (2018).

    >>> import torch
    >>> from calibcli.training.augment import mixing
    >>> mixed, parts = mixing("mixup:alpha=1")(torch.eye(2), torch.tensor([0, 1]), torch.Generator(), (0, 0))
    >>> bool(torch.allclose(mixed.sum(1), torch.ones(2))), round(sum(share for share, _ in parts), 6)
    (True, 1.0)
    """
    return Mixup(alpha)


def mixing(spec: str) -> Mixup | None:
    """The mixup of a spec.

    Raises:
        UsageError: unknown name or option, or two of them.
    """
    found: list[Mixup] = [choice() for choice in choices(spec) if choice.name == "mixup"]
    if len(found) > 1:
        raise UsageError(f"--augment {spec} has mixup twice", "pass it once")
    return found[0] if found else None


def choices(spec: str) -> list[Choice]:
    """The augmentations of `crop:pad=4+flip`, in order; none for "".

    Raises:
        UsageError: unknown name or option.
    """
    return [AUGMENTATIONS.choose(part) for part in spec.split("+")] if spec.strip() else []


def pipeline(spec: str, shape: tuple[int, ...]) -> Augment | None:
    """The function of a spec for rows of this shape, or None for "".

    Raises:
        InputError: the rows are not images.
    """
    chosen = [choice for choice in choices(spec) if choice.name != "mixup"]
    if not chosen:
        return None
    if len(shape) != 3:
        raise InputError(f"--augment {spec} needs images, these rows have shape {shape}", "leave --augment out")

    def run(images: Tensor, generator: torch.Generator) -> Tensor:
        for choice in chosen:
            images = choice(images, generator)
        return images

    return run
