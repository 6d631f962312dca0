"""What was asked of evaluations, and the files of a folder: seldom needed when files are opened."""

from __future__ import annotations

import json
from pathlib import Path

from calibcli.errors import InputError, UsageError, refusing
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.names import class_names
from calibcli.inputs.files.source import Source
from calibcli.inputs.opening import Asked, Reading

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


def parts(folder: Path, reading: Reading) -> list[Path]:
    """The files of a folder that `save_to_disk` made; the folder itself where it is none, for who opens it to refuse.

    Raises:
        InputError: a folder with several splits, or of another kind; several parts of one task.
    """
    if (folder / SPLITS).is_file():
        splits = sorted(p.parent.name for p in folder.glob(f"*/{STATE}"))
        fix = f"choose one: {folder / (splits or ['test'])[0]}"
        raise InputError(f"{folder} holds several splits: {', '.join(splits)}", fix)
    if not (folder / STATE).is_file():
        return [folder]
    with refusing((OSError, ValueError, RecursionError), f"{folder / STATE} is not JSON", "save the data set again"):
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    found = state.get("_data_files") if isinstance(state, dict) else None
    names = [part.get("filename") for part in found if isinstance(part, dict)] if isinstance(found, list) else []
    plain = [name for name in names if isinstance(name, str) and name == Path(name).name]
    if not names or len(plain) < len(names):
        raise InputError(f"{folder / STATE} names no parts in its folder", "save the data set again: save_to_disk")
    if state.get("_indices_data_files"):
        raise InputError(f"{folder} is a selection of rows kept as indices", "save it again after flatten_indices()")
    if len(names) > 1 and reading.tasks:
        raise InputError(f"{folder} consists of {len(names)} parts, --tasks takes a file each", "save it in one part")
    return [folder / name for name in plain]
