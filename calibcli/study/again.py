"""The command that makes a study again."""

from __future__ import annotations

import dataclasses
import shlex

from calibcli.errors import UsageError
from calibcli.study import parsing
from calibcli.study.experiment import Study, built_in, text_of

GIVEN = ("seeds", "arch", *parsing.MACHINE)
WORDS = ("question", "paper", "bibtex", "cost", "differs")


def command(study: Study) -> str:
    """Of one that comes along, with what it was given in place of its own; else of the recipe that its folder has."""
    more = ["--trust"] if parsing.named_code(study) else []
    for data in ("", study.train.removesuffix("#train")) if study.name in built_in() else ():
        try:
            own = parsing.parse(*text_of(study.name), size=study.size, data=data, trust=True)
        except UsageError:  # this size has no rows of its own
            continue
        if dataclasses.replace(own, **{name: getattr(study, name) for name in (*GIVEN, *WORDS)}) == study:
            words = ["calib", "study", study.name, "--size", study.size, *(["--data", data] if data else [])]
            words += [word for arch in study.arch if study.arch != own.arch for word in ("--arch", arch)]
            return shlex.join([*words, *(["--seeds", str(study.seeds)] if study.seeds != own.seeds else []), *more])
    return shlex.join(["calib", "study", parsing.FILE, *more])
