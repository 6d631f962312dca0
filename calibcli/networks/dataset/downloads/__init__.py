"""Published data sets as they are downloaded, as an archive or unpacked, recognised by their files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from calibcli.networks.dataset.arrays import DatasetArrays
from calibcli.networks.dataset.downloads import images, texts
from calibcli.networks.dataset.downloads.members import MembersByName, listed


class PublishedDataset(NamedTuple):
    """A published data set.

    Attributes:
        splits: lists the splits in a folder or archive; [] if it holds something else.
        read: reads a split.
    """

    splits: Callable[[MembersByName], list[str]]
    read: Callable[[MembersByName, str], DatasetArrays]


LAYOUTS = (
    PublishedDataset(images.cifar_splits, images.read_cifar),
    PublishedDataset(images.mnist_splits, images.read_mnist),
    PublishedDataset(images.svhn_splits, images.read_svhn),
    PublishedDataset(images.tiny_imagenet_splits, images.read_tiny_imagenet),
    PublishedDataset(texts.sst_splits, texts.read_sst),
    PublishedDataset(texts.newsgroups_splits, texts.read_newsgroups),
)


def of(path: Path) -> tuple[PublishedDataset, MembersByName, list[str]] | None:
    """Recognise a published data set: its layout, its files and its splits; None for another folder or archive."""
    members = listed(path)
    if members is None:
        return None
    return next(((layout, members, splits) for layout in LAYOUTS if (splits := layout.splits(members))), None)


def read(path: Path, split: str) -> DatasetArrays | None:
    """Read a split of a published data set; None if `path` does not hold one.

    Raises:
        InputError: there is no such split, or files are damaged.
    """
    known = of(path)
    with warnings.catch_warnings(action="ignore"):  # NumPy, SciPy and pickle warn about damaged files, which we refuse
        return None if known is None else known[0].read(known[1], split)
