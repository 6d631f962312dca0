"""Files of recorded outputs, opened and recognised: one, the parts of one data set, the tasks of an evaluation."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from calibcli.errors import InputError, UsageError, refusing
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.names import class_names
from calibcli.inputs.files.source import Asked, Source, load_any
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import confidence, keys, other_files
from calibcli.spec import check_options

Paths = str | Path | Sequence[str | Path]
STATE, SPLITS = "state.json", "dataset_dict.json"  # of Hugging Face's `save_to_disk`


def open_all(path: Paths, reading: Reading) -> list[Source]:
    """The files, opened; of a folder that `save_to_disk` made, those that it consists of.

    Raises:
        InputError: several files without `shards` or `tasks`.
    """
    check_options(reading)
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise UsageError("no input file", "name a file with scores and labels, or - for stdin")
    if reading.shards and reading.tasks:
        raise UsageError("--shards and --tasks", "pass one: parts of one data set, or tasks of one evaluation")
    if len(paths) > 1 and not (reading.shards or reading.tasks):
        problem = f"{len(paths)} files: parts of one data set, several models, or tasks of one evaluation?"
        shown = " ".join(str(p) for p in paths[:3])
        raise InputError(problem, f"parts: --shards; tasks: --tasks; models: calib compare {shown}")
    asked = asked_of(reading)
    return [Source(file, asked=asked) for one in paths for file in _files(one, reading)]


def asked_of(reading: Reading) -> Asked:
    """What readers of evaluations are to know.

    Raises:
        UsageError: choices that are too few or the same.
    """
    choices = tuple(class_names(reading.choices)) if reading.choices else ()
    if choices and (len(set(choices)) < max(len(choices), 2) or not all(choices)):
        raise UsageError(f"--choices {','.join(choices)[:40]}", "name two or more different ones: --choices A,B,C,D")
    return Asked(reading.lm_norm or "", choices)


def load(source: Source) -> Contents:
    """As `load_any`, for files of recorded outputs.

    Raises:
        InputError: it is something else of calib's or of a model's; or it has no use for what was asked.
    """
    try:
        contents = load_any(source)
        unused(contents, source)
        if keys.candidates(contents) or contents.lacking or confidence.columns(contents):
            return contents
        contents = keys.by_label_names(contents, source.name)
        if contents.scores:
            return contents
    except InputError:
        other_files.refuse(other_files.before_reading(source), source)
        raise
    other_files.refuse(other_files.before_reading(source) or other_files.after_reading(contents, source), source)
    return contents


def unused(contents: Contents, source: Source) -> None:
    """Refuse what was asked of an evaluation where the file is none, or one of another kind.

    Raises:
        InputError: --lm-norm or --choices would have no effect.
    """
    for name in ("lm_norm", "choices"):
        if getattr(source.asked, name) and name not in contents.used and not contents.lacking:
            flag = f"--{name.replace('_', '-')}"
            of = "log-likelihoods of lm-eval or LightEval" if name == "lm_norm" else "log-probabilities of tokens"
            raise InputError(f"{flag} is for {of}; {source.name} is read as {contents.format}", "leave it out")


def _files(path: str | Path, reading: Reading) -> list[str | Path]:
    """A file itself; of a folder the parts of its data set.

    Raises:
        InputError: a folder with several splits, or of another kind; several parts of one task.
    """
    if not os.path.isdir(path):
        return [path]
    folder = Path(path)
    if (folder / SPLITS).is_file():
        found = sorted(p.parent.name for p in folder.glob(f"*/{STATE}"))
        raise InputError(
            f"{path} holds several splits: {', '.join(found)}", f"choose one: {folder / (found or ['test'])[0]}"
        )
    if not (folder / STATE).is_file():
        return [path]  # whoever opens it says that it is a folder
    with refusing((OSError, ValueError, RecursionError), f"{folder / STATE} is not JSON", "save the data set again"):
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
    parts = state.get("_data_files") if isinstance(state, dict) else None
    names = [part.get("filename") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    plain = [name for name in names if isinstance(name, str) and name == Path(name).name]
    if not names or len(plain) < len(names):
        raise InputError(f"{folder / STATE} names no parts in its folder", "save the data set again: save_to_disk")
    if state.get("_indices_data_files"):
        raise InputError(f"{path} is a selection of rows kept as indices", "save it again after flatten_indices()")
    if len(names) > 1 and reading.tasks:
        raise InputError(f"{path} consists of {len(names)} parts, --tasks takes a file each", "save it in one part")
    return [folder / name for name in plain]
