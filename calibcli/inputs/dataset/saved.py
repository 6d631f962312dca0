"""Folders of tables: what Hugging Face's `save_to_disk` writes, and the parquet files of a data set of its hub."""

from __future__ import annotations

import re
from pathlib import Path

from calibcli.errors import InputError
from calibcli.inputs.files import places
from calibcli.inputs.files.places import PARTS, STATE
from calibcli.inputs.files.roles import SPLITS

PART = re.compile(r"(?P<split>[A-Za-z_]+)(-\d+-of-\d+|-\d+)?(-[0-9a-f]{16})?\.parquet")  # train-00000-of-00002.parquet


def names(folder: Path) -> list[str]:
    """Of the splits that lie there; [] of a folder of another kind."""
    if (folder / PARTS).is_file():
        return sorted(path.parent.name for path in folder.glob(f"*/{STATE}"))
    return sorted(_files(folder))


def splits(folder: Path) -> list[str]:
    """Which of train, validation and test lie there."""
    roles = {_role(name) for name in names(folder)}
    return [role for role in SPLITS if role in roles]


def of(folder: Path, split: str) -> list[Path]:
    """The tables of a split, in their order; [] of a folder of another kind.

    Raises:
        InputError: no such split, several and none chosen, or a description that is damaged.
    """
    if (folder / PARTS).is_file():
        return of(folder / _chosen(folder, names(folder), split), "")
    if (folder / STATE).is_file():
        return places.saved(folder)
    files = _files(folder)
    if not files:
        return []
    if set(map(len, files.values())) == {1} and not {_role(name) for name in files} & set(SPLITS):
        return [path for paths in files.values() for path in paths]  # parts that are numbered in their own way
    return files[_chosen(folder, list(files), split)]


def _files(folder: Path) -> dict[str, list[Path]]:
    """Parquet files by their split, in the folder or in `data` there."""
    files: dict[str, list[Path]] = {}
    place = folder if any(folder.glob("*.parquet")) else folder / "data"
    for path in sorted(place.glob("*.parquet")):
        found = PART.fullmatch(path.name)
        files.setdefault(found["split"] if found else path.stem, []).append(path)
    return files


def _role(name: str) -> str:
    return next((role for role, words in SPLITS.items() if name.lower() in words), name)


def _chosen(folder: Path, there: list[str], split: str) -> str:
    wanted = [name for name in sorted(there) if split and (name == split or _role(name) == _role(split))]
    if wanted or (len(there) == 1 and not split):
        return (wanted or there)[0]
    listed = ", ".join(sorted(there))
    problem = f"{folder} has no split '{split}'" if split else f"{folder} holds the splits {listed}"
    raise InputError(problem, f"choose one: {folder}#{(sorted(there) or ['test'])[0]}")
