"""Published data sets as they are downloaded, as an archive or unpacked, recognised by their files."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

from calibcli.networks.dataset._arrays import DatasetArrays
from calibcli.networks.dataset.downloads import _images as images
from calibcli.networks.dataset.downloads import _texts as texts
from calibcli.networks.dataset.downloads._members import MembersByName, listed

Reader = Callable[[MembersByName, str], DatasetArrays]
LAYOUTS: tuple[tuple[Callable[[MembersByName], list[str]], Reader], ...] = (
    (images.cifar_splits, images.read_cifar),
    (images.mnist_splits, images.read_mnist),
    (images.svhn_splits, images.read_svhn),
    (images.tiny_imagenet_splits, images.read_tiny_imagenet),
    (texts.sst_splits, texts.read_sst),
    (texts.newsgroups_splits, texts.read_newsgroups),
)
"""Of each data set: what lists the splits in a folder or archive, [] if it holds something else; what reads a split."""


def of(path: Path) -> tuple[Reader, MembersByName, list[str]] | None:
    """Recognise a published data set: its reader, its files and its splits; None for another folder or archive."""
    members = listed(path)
    if members is None:
        return None
    return next(((read, members, splits) for list_of, read in LAYOUTS if (splits := list_of(members))), None)


def read(path: Path, split: str) -> DatasetArrays | None:
    """Read a split of a published data set; None if `path` does not hold one.

    Raises:
        InputError: there is no such split, or files are damaged.
    """
    layout = of(path)
    with warnings.catch_warnings(action="ignore"):  # NumPy, SciPy and pickle warn about damaged files, which we refuse
        return None if layout is None else layout[0](layout[1], split)
