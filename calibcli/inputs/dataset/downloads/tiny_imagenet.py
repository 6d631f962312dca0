"""Tiny ImageNet (Le and Yang 2015), `tiny-imagenet-200.zip` or its folder, classes in one order."""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath
from typing import cast

import numpy as np

from calibcli.errors import InputError, refusing
from calibcli.inputs.dataset.downloads.members import Members
from calibcli.inputs.dataset.folder import Pictures, decode, fingerprint
from calibcli.inputs.dataset.keys import Found
from calibcli.inputs.files.source import Source

CLASSES, ANNOTATIONS = "wnids.txt", "val_annotations.txt"
Place = Path | zipfile.Path


def splits(there: Members) -> list[str]:
    """`train` and `val`, where the list of classes lies there; `val` of the folder with the annotations itself."""
    if there.kind == "folder" and ANNOTATIONS in there.paths and (there.path.parent / CLASSES).is_file():
        return ["val"]
    whole = there.kind in ("folder", "zip") and CLASSES in there.paths
    return ["train", "val"] if whole else []


def read(there: Members, split: str) -> Found:
    """Pictures of a split; classes in the order of their names, as in a folder of folders.

    Raises:
        InputError: no such split, or pictures without a class.
    """
    name = there.split(split, splits(there))
    inside = CLASSES in there.paths
    listed = there.read([CLASSES])[CLASSES] if inside else (there.path.parent / CLASSES).read_bytes()
    classes = sorted(listed.decode(errors="replace").split())
    with refusing((OSError, ValueError, KeyError, UnicodeDecodeError), f"{there.path} is damaged", "download it again"):
        pairs = _train(there, classes) if name == "train" else _val(there)
    number = {label: i for i, label in enumerate(classes)}
    odd = next((place.name for place, label in pairs if label not in number), None)
    if odd is not None or not pairs:
        problem = f"{there.path}: {odd or name} has no class of {CLASSES}" if odd else f"{there.path}: {name} is empty"
        raise InputError(problem, "download it again")
    paths = [place for place, _ in pairs]
    grey_or_not = decode(paths[0], grey=False)
    return Found(
        inputs={"": Pictures(paths, (len(paths), *grey_or_not.shape))},
        labels=np.array([number[label] for _, label in pairs]),
        sha256=Source(there.path).sha256() if there.kind == "zip" else fingerprint(paths, there.path),
        ids=np.array([place.name for place in paths]),
        classes=classes,
        notes=[f"Tiny ImageNet, {name}: {len(paths):,} pictures of {len(classes)} classes"],
    )


def _val(there: Members) -> list[tuple[Place, str]]:
    """(picture, class) by `val_annotations.txt`: the name of a picture, its class and a box, parted by tabs."""
    if there.kind == "zip":
        root: Place = cast("zipfile.Path", zipfile.Path(there.path, there.paths[ANNOTATIONS]).parent)
        text = there.read([ANNOTATIONS])[ANNOTATIONS]
    else:
        root = there.path if ANNOTATIONS in there.paths else there.path / "val"
        text = (root / ANNOTATIONS).read_bytes()
    rows = [line.split("\t")[:2] for line in text.decode().splitlines() if line.strip()]
    pairs = [(root / "images" / PurePosixPath(name).name, label) for name, label in rows]
    if missing := [place.name for place, _ in pairs if not place.exists()]:
        raise KeyError(missing[0])
    return pairs


def _train(there: Members, known: list[str]) -> list[tuple[Place, str]]:
    """(picture, class) by folder: `train/CLASS/images/NAME`."""
    if there.kind == "zip":
        archive = zipfile.ZipFile(there.path)
        root = PurePosixPath(there.paths[CLASSES]).parent
        found: list[tuple[Place, str]] = []
        for name in sorted(archive.namelist()):
            parts = PurePosixPath(name).parts
            if parts[-2:-1] == ("images",) and parts[-4:-3] == ("train",) and PurePosixPath(*parts[:-4]) == root:
                found.append((zipfile.Path(archive, name), parts[-3]))
        return found
    return [(path, label) for label in known for path in sorted((there.path / "train" / label / "images").iterdir())]
