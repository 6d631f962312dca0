"""What was asked of evaluations, and the files of a folder: seldom needed when files are opened."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from calibcli.errors import InputError, UsageError
from calibcli.files import reading as reading_from
from calibcli.inputs.files import places
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.names import class_names
from calibcli.inputs.files.source import FORMATS, Source, by_suffix, suffixes
from calibcli.inputs.opening import Asked, Reading

MEANS_MORE = frozenset("*?[:")  # in a path that may be a pattern or an address


def asked_of(reading: Reading) -> Asked:
    """What readers of evaluations are to know.

    Raises:
        UsageError: choices that are too few or the same.
    """
    choices = tuple(class_names(reading.choices)) if reading.choices else ()
    if choices and (len(set(choices)) < max(len(choices), 2) or not all(choices)):
        raise UsageError(f"--choices {','.join(choices)[:40]}", "name two or more different ones: --choices A,B,C,D")
    return Asked(reading.lm_norm or "", choices, reading.unlisted or "", reading.no_header)


def unused(contents: Contents, source: Source) -> None:
    """Refuse what was asked of an evaluation where the file is none, or one of another kind.

    Raises:
        InputError: --lm-norm, --choices or --unlisted would have no effect.
    """
    if source.asked.no_header and contents.format not in ("csv", "tsv"):
        raise InputError(f"--no-header is for text tables; {source.name} is read as {contents.format}", "leave it out")
    for name in ("lm_norm", "choices", "unlisted"):
        if getattr(source.asked, name) and name not in contents.used and not contents.lacking:
            flag = f"--{name.replace('_', '-')}"
            of = "log-likelihoods of lm-eval or LightEval" if name == "lm_norm" else "log-probabilities of tokens"
            raise InputError(f"{flag} is for {of}; {source.name} is read as {contents.format}", "leave it out")


def sources(paths: Sequence[str | Path], reading: Reading) -> list[Source]:
    """The files, opened, those in a folder too; the parts of one data set know their folder.

    Raises:
        InputError: as `parts` and `tasks_in`.
    """
    asked, found = asked_of(reading), []
    for path in paths:
        for file in files_of(path, reading):
            found.append(Source(file, asked=asked))
            found[-1].folder = str(path) if saved(path) else ""
    return found


def files_of(path: str | Path, reading: Reading) -> list[str | Path]:
    """The files that a path stands for: itself, those of a pattern, or what is in a folder or at an address.

    Raises:
        InputError: there are none; else as `parts` and `tasks_in`.
    """
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        reading_from(path)
    if saved(path):
        return [*parts(Path(path))]
    if os.path.isdir(path) and reading.tasks:
        return [*tasks_in(Path(path))]
    if os.path.isdir(path) or MEANS_MORE & set(str(path)):
        return places.found(path, [suffix for name in FORMATS for suffix in suffixes(name)])
    return [path]


def saved(path: str | Path) -> bool:
    """Whether this is a folder that `save_to_disk` made."""
    return any(os.path.isfile(os.path.join(path, name)) for name in (places.STATE, places.PARTS))


def tasks_in(folder: Path) -> list[Path]:
    """The files of a folder that a harness wrote, one for each task.

    Raises:
        InputError: none, or two runs of one task.
    """
    from calibcli.inputs.files.evals.lm_eval import task_of

    found = sorted(p for p in folder.iterdir() if known(p) and not p.name.startswith((".", "results")))
    if not found:
        raise InputError(f"no evaluations in {folder}", "name the files, or the folder that they lie in")
    runs = Counter(task_of(p.name) for p in found)
    twice = next((task for task, count in runs.items() if count > 1), None)
    if twice is not None:
        problem = f"{folder} holds {runs[twice]} runs of the task {twice}"
        raise InputError(problem, "name the files, one of each task")
    return found


def known(path: Path) -> bool:
    """Whether its suffix is of a format, compressed or not."""
    return path.is_file() and bool(by_suffix(places.suffix(path.name)))


def parts(folder: Path) -> list[Path]:
    """The files of a folder that `save_to_disk` made.

    Raises:
        InputError: a folder with several splits, or of another kind.
    """
    if (folder / places.PARTS).is_file():
        splits = sorted(p.parent.name for p in folder.glob(f"*/{places.STATE}"))
        fix = f"choose one: {folder / (splits or ['test'])[0]}"
        raise InputError(f"{folder} holds several splits: {', '.join(splits)}", fix)
    return places.saved(folder)
