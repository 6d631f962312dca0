"""Data sets as they are downloaded, in their archive or unpacked: known by what lies in them."""

from __future__ import annotations

from pathlib import Path

from calibcli.inputs.dataset.downloads import cifar, mnist, svhn, tiny_imagenet
from calibcli.inputs.dataset.downloads.members import Members, listed
from calibcli.inputs.dataset.keys import Found

LAYOUTS = (cifar, mnist, svhn, tiny_imagenet)


def of(path: Path) -> tuple[Members, list[str]] | None:
    """What lies in a folder or archive that holds a published data set, and its splits; None of any other."""
    there = listed(path)
    if there is None:
        return None
    return next(((there, splits) for layout in LAYOUTS if (splits := layout.splits(there))), None)


def read(path: Path, split: str) -> Found | None:
    """The split of a published data set; None where `path` is none.

    Raises:
        InputError: no such split, or damaged files.
    """
    there = listed(path)
    layout = next((layout for layout in LAYOUTS if there is not None and layout.splits(there)), None)
    return None if there is None or layout is None else layout.read(there, split)
