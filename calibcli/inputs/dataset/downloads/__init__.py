"""Data sets as they are downloaded, in their archive or unpacked: known by what lies in them."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import ModuleType

from calibcli.inputs.dataset.downloads import cifar, mnist, newsgroups, sst, svhn, tiny_imagenet
from calibcli.inputs.dataset.downloads.members import Members, listed
from calibcli.inputs.dataset.keys import Found

LAYOUTS = (cifar, mnist, svhn, tiny_imagenet, sst, newsgroups)


def of(path: Path) -> tuple[ModuleType, Members, list[str]] | None:
    """The layout of a folder or archive that holds a published data set, what lies there, and its splits; None of any
    other.
    """
    there = listed(path)
    if there is None:
        return None
    return next(((layout, there, splits) for layout in LAYOUTS if (splits := layout.splits(there))), None)


def read(path: Path, split: str) -> Found | None:
    """The split of a published data set; None where `path` is none.

    Raises:
        InputError: no such split, or damaged files.
    """
    known = of(path)
    with warnings.catch_warnings(action="ignore"):  # what NumPy, SciPy and pickle say about odd bytes is no result
        return None if known is None else known[0].read(known[1], split)
