"""What was asked of evaluations, and the files of a folder: seldom needed when files are opened."""

from __future__ import annotations

import json
import os
from pathlib import Path

from calibcli.errors import InputError, UsageError, refusing
from calibcli.inputs.files import places
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.names import class_names
from calibcli.inputs.files.source import NAMES, Source, suffixes
from calibcli.inputs.opening import Asked, Reading

MEANS_MORE = frozenset("*?[:")  # in a path that may be a pattern or an address
STATE, SPLITS = "state.json", "dataset_dict.json"  # of Hugging Face's `save_to_disk`


def asked_of(reading: Reading) -> Asked:
    """What readers of evaluations are to know.

    Raises:
        UsageError: choices that are too few or the same.
    """
    choices = tuple(class_names(reading.choices)) if reading.choices else ()
    if choices and (len(set(choices)) < max(len(choices), 2) or not all(choices)):
        raise UsageError(f"--choices {','.join(choices)[:40]}", "name two or more different ones: --choices A,B,C,D")
    return Asked(reading.lm_norm or "", choices, reading.no_header)


def unused(contents: Contents, source: Source) -> None:
    """Refuse what was asked of an evaluation where the file is none, or one of another kind.

    Raises:
        InputError: --lm-norm or --choices would have no effect.
    """
    if source.asked.no_header and contents.format not in ("csv", "tsv"):
        raise InputError(f"--no-header is for text tables; {source.name} is read as {contents.format}", "leave it out")
    for name in ("lm_norm", "choices"):
        if getattr(source.asked, name) and name not in contents.used and not contents.lacking:
            flag = f"--{name.replace('_', '-')}"
            of = "log-likelihoods of lm-eval or LightEval" if name == "lm_norm" else "log-probabilities of tokens"
            raise InputError(f"{flag} is for {of}; {source.name} is read as {contents.format}", "leave it out")


def files_of(path: str | Path, reading: Reading) -> list[str | Path]:
    """The files that a path stands for: itself, those of a pattern, or the parts in a folder or at an address.

    Raises:
        InputError: there are none, or several where each is a task.
    """
    if os.path.isfile(path):
        return [path]
    found: list[str | Path] = [path]
    if saved(path):
        found = [*parts(Path(path), reading)]
    elif os.path.isdir(path) or MEANS_MORE & set(str(path)):
        found = places.found(path, [suffix for name in NAMES for suffix in suffixes(name)])
    if len(found) > 1 and reading.tasks and os.path.isdir(path):
        raise InputError(f"{path} consists of {len(found)} parts, --tasks takes a file each", "save it in one part")
    return found


def saved(path: str | Path) -> bool:
    """Whether this is a folder that `save_to_disk` made."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (STATE, SPLITS))


def parts(folder: Path, reading: Reading) -> list[Path]:
    """The files of a folder that `save_to_disk` made.

    Raises:
        InputError: a folder with several splits, or of another kind; several parts of one task.
    """
    if (folder / SPLITS).is_file():
        splits = sorted(p.parent.name for p in folder.glob(f"*/{STATE}"))
        fix = f"choose one: {folder / (splits or ['test'])[0]}"
        raise InputError(f"{folder} holds several splits: {', '.join(splits)}", fix)
    with refusing((OSError, ValueError, RecursionError), f"{folder / STATE} is not JSON", "save the data set again"):
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    found = state.get("_data_files") if isinstance(state, dict) else None
    names = [part.get("filename") for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    plain = [name for name in names if isinstance(name, str) and name == Path(name).name]
    if not names or len(plain) < len(names):
        raise InputError(f"{folder / STATE} names no parts in its folder", "save the data set again: save_to_disk")
    if state.get("_indices_data_files"):
        raise InputError(f"{folder} is a selection of rows kept as indices", "save it again after flatten_indices()")
    return [folder / name for name in plain]
