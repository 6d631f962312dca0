"""Lines that an error proposes: find them in its text, and run them as somebody does who copies them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from calibcli.cli.app import main
from calibcli.cli.metrics import command

OPTIONS = {flag: one for one in command.options.values() if not one.argument for flag in one.flags}
PLACEHOLDERS = {"KEY", "FILE", "NAME", "VALUE", "KEY|FILE", "[VALUE]", "A,B,..", "A,B,..|FILE", "..."}
RIVALS = (
    {"--scores", "--event", "--classes", "--kind"},
    {"--confidence", "--predicted", "--correct", "--confidence-scale"},
)
"""Options that say what the scores are: a line with one of these replaces those of the other kind."""
ASKED = ("-m", "accuracy", "-m", "ece", "--json")
TOKEN = re.compile(r"""\s*((?:'[^']*'|"[^"]*"|[^\s'"])+)""")


@dataclass
class Done:
    """What a command did."""

    argv: list[str]
    code: int
    error: str
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[float | None, float | None]:
        """Accuracy and ECE of all rows."""
        found = {e["name"]: e["value"] for e in reversed(self.result.get("estimates", ()))}
        return found.get("accuracy"), found.get("ece")

    @property
    def notes(self) -> list[str]:
        return [str(note) for note in self.result.get("notes", ())]


class Calib:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *argv: str) -> Done:
        self.capsys.readouterr()
        code = main(list(argv))
        out, error = self.capsys.readouterr()
        try:
            return Done([*argv], code, error, json.loads(out))
        except ValueError:
            return Done([*argv], code, error)

    def metrics(self, *words: str) -> Done:
        return self("metrics", *words, *ASKED)

    def fixed(self, words: Sequence[str], line: Sequence[str]) -> Done:
        """Run `calib metrics` with a line in place of what it replaces in the words that came before."""
        return self.metrics(*mended(words, line))


def lines_of(error: str) -> list[list[str]]:
    """Return the lines of options that an error proposes and that can be copied: without `KEY` or `FILE`.

    A line is a command, `calib metrics FILE --scores p`, or options that follow each other with nothing between but
    spaces: `--scores p --labels y`. Words of a command that are not options (its file) are left out.
    """
    _, _, fix = error[error.rfind("error: ") :].partition("\n  fix: ")
    found = [line for line in _runs(_words(fix)) if not PLACEHOLDERS & set(line)]
    return [line for i, line in enumerate(found) if line not in found[:i]]


def _words(text: str) -> list[str]:
    """Return the words of a text, parted as the shell does, also where quotes are not closed."""
    return [match[1] for match in TOKEN.finditer(text)]


def _runs(words: Sequence[str]) -> Iterator[list[str]]:
    run: list[str] = []
    i = 0
    while i < len(words):
        word, end = _bare(words[i])
        flag, equals, value = word.partition("=")
        option = OPTIONS.get(flag.lstrip("("))
        if option is None or not flag.lstrip("(").startswith("-"):
            if run:
                yield run
            run = []
            i += 1
            continue
        run.append(flag.lstrip("("))
        if equals:
            run.append(shlex.split(value)[0] if value else "")
        elif not option.flag and not end and i + 1 < len(words) and not _optional(option, words[i + 1]):
            i += 1
            value, end = _bare(words[i])
            run.append("".join(shlex.split(value)))
        elif not option.flag and option.alone is None:  # an option that is only spoken of: "check --label-base"
            run.append("KEY")
        if end:
            yield run
            run = []
        i += 1
    if run:
        yield run


def _optional(option: Any, word: str) -> bool:
    """Whether an option stands alone before this word, which is no number."""
    return option.alone is not None and not re.match(r"[\d.]+(e-?\d+)?[,;:)]?$", word)


def _bare(word: str) -> tuple[str, bool]:
    """Return a word without the punctuation of the sentence behind it, and whether there was some."""
    bare = re.sub(r"(?<=.)[.,;:)?]+$", "", word)
    if bare.count("(") != bare.count(")"):  # `P(a)`
        bare = word[: len(bare) + 1]
    return bare, bare != word


def mended(words: Sequence[str], line: Sequence[str]) -> list[str]:
    """Return the words of a command with the options of a line, in place of those that they replace."""
    flags = {word for word in line if word in OPTIONS}
    for a, b in (RIVALS, RIVALS[::-1]):
        flags |= b if flags & a and not flags & b else set()
    kept, i = [], 0
    while i < len(words):
        taken = 1 if words[i] not in OPTIONS or OPTIONS[words[i]].flag else 2
        if words[i] not in flags:
            kept += words[i : i + taken]
        i += taken
    return [*kept, *line]


def of_a_file(word: str, folder: Path) -> bool:
    """Whether a word is the name of a file there, which an error need not know."""
    return (folder / word).is_file()
