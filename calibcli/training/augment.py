"""Augmentation of whole image batches, on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from calibcli.errors import InputError
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
    chosen = choices(spec)
    if not chosen:
        return None
    if len(shape) != 3:
        raise InputError(f"--augment {spec} needs images, these rows have shape {shape}", "leave --augment out")

    def run(images: Tensor, generator: torch.Generator) -> Tensor:
        for choice in chosen:
            images = choice(images, generator)
        return images

    return run
