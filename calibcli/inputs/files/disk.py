"""Folders that Hugging Face's `save_to_disk` writes: which files a data set consists of."""

from __future__ import annotations

import json
from pathlib import Path

from calibcli.errors import InputError, refusing

STATE, PARTS = "state.json", "dataset_dict.json"


def parts(folder: Path) -> list[Path]:
    """The files that the folder of one data set names.

    Raises:
        InputError: none in the folder, or rows that are kept as indices.
    """
    fix = "save the data set again: save_to_disk"
    with refusing((OSError, ValueError, RecursionError), f"{folder / STATE} is not JSON", fix):
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    found = state.get("_data_files") if isinstance(state, dict) else None
    names = [part.get("filename") for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    plain = [name for name in names if isinstance(name, str) and name == Path(name).name]
    if not names or len(plain) < len(names):
        raise InputError(f"{folder / STATE} names no parts in its folder", fix)
    if state.get("_indices_data_files"):
        raise InputError(f"{folder} is a selection of rows kept as indices", "save it again after flatten_indices()")
    return [folder / name for name in plain]
