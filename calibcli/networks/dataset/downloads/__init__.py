"""Data sets as they are downloaded, in their archive or unpacked: known by what lies in them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from calibcli.networks.dataset.array_names import ArraysOfDataset
from calibcli.networks.dataset.downloads import images, texts
from calibcli.networks.dataset.downloads.members import MembersByName, listed


class PublishedDataset(NamedTuple):
    """A published data set.

    Attributes:
        splits: the splits that are among some members; none where the members are of something else.
        read: a split of it.
    """

    splits: Callable[[MembersByName], list[str]]
    read: Callable[[MembersByName, str], ArraysOfDataset]


LAYOUTS = (
    PublishedDataset(images.cifar_splits, images.read_cifar),
    PublishedDataset(images.mnist_splits, images.read_mnist),
    PublishedDataset(images.svhn_splits, images.read_svhn),
    PublishedDataset(images.tiny_imagenet_splits, images.read_tiny_imagenet),
    PublishedDataset(texts.sst_splits, texts.read_sst),
    PublishedDataset(texts.newsgroups_splits, texts.read_newsgroups),
)


def of(path: Path) -> tuple[PublishedDataset, MembersByName, list[str]] | None:
    """The layout of a folder or archive that holds a published data set, what lies there, and its splits; None of any
    other.
    """
    there = listed(path)
    if there is None:
        return None
    return next(((layout, there, splits) for layout in LAYOUTS if (splits := layout.splits(there))), None)


def read(path: Path, split: str) -> ArraysOfDataset | None:
    """The split of a published data set; None where `path` is none.

    Raises:
        InputError: no such split, or damaged files.
    """
    known = of(path)
    with warnings.catch_warnings(action="ignore"):  # what NumPy, SciPy and pickle say about odd bytes is no result
        return None if known is None else known[0].read(known[1], split)
