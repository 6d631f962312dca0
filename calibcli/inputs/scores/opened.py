"""What was asked of evaluations, and the files of a folder: seldom needed when files are opened."""

from __future__ import annotations

from pathlib import Path

from calibcli.errors import InputError, UsageError
from calibcli.inputs.files import disk
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.names import class_names
from calibcli.inputs.files.source import Source
from calibcli.inputs.opening import Asked, Reading


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
    if (folder / disk.PARTS).is_file():
        splits = sorted(p.parent.name for p in folder.glob(f"*/{disk.STATE}"))
        fix = f"choose one: {folder / (splits or ['test'])[0]}"
        raise InputError(f"{folder} holds several splits: {', '.join(splits)}", fix)
    if not (folder / disk.STATE).is_file():
        return [folder]
    found = disk.parts(folder)
    if len(found) > 1 and reading.tasks:
        raise InputError(f"{folder} consists of {len(found)} parts, --tasks takes a file each", "save it in one part")
    return found
