"""Whether a change of the code has changed what a command line means: thousands of lines, right and wrong.

    python benchmarks/command_lines.py record before.json     # on the code before
    python benchmarks/command_lines.py compare before.json    # on the code after; exit 1 if a line means something else

No command runs. Of each line the answer is what its command would be called with, or the error; with the exit code and
all that is printed. Lines are made from the declarations of the options, so that a new option has its lines at once:
every option of every command in each spelling (long, with `=`, short, glued, glued behind `-q`, twice, misspelt,
without a value, with an empty one, behind `--`), with values right and wrong, and arguments in every number and place.
What several commands have in the same form has all its lines in the first of them. `tests/test_options.py`
holds a part of the lines against `Line.given` and `Line.refused`, which follow from how a line was spelled.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from calibcli.cli import COMMANDS, app, limits
from calibcli.cli.run import Command, Option

TEXTS = (
    "a",
    " ",
    "-",
    "--",
    "-1",
    "-x",
    "--json",
    "--level=0.9",
    "a=b",
    "=",
    "ü",
    "a b",
    "-m",
    "none",
    "x.png",
    "\udcff",
)
NUMBERS = (
    "1",
    "2",
    "3",
    "0",
    "0.6",
    ".5",
    "1e-3",
    "-1",
    "-0.5",
    "+3",
    " 3 ",
    "1_0",
    "1.0",
    "nan",
    "inf",
    "x",
    "9" * 30,
)
BARE = """
--help | -h | --version | -V | --version metrics | -V list | help | help help | help -h | help --help |
metrcs a.npz | a.npz | -- metrics a.npz | --json metrics a.npz | -q | -x | --no-such | --help metrics |
metrics --version | metrics -V | completion | completion bash | completion zsh | completion fish |
completion powershell | completion bsh | completion bash zsh | METRICS a.npz | help metrcs | help --json |
metrics -- --help | metrics --bins --help | metrics -m --help | metrics --bins x --help | metrics -qvh
"""
"""Lines of no command, or of one, separated by |."""
CLIP = """
--clip | a --clip | --clip a | a --clip 1e-3 | a --clip=1e-3 | --clip 1e-3 a | --clip --clip 5e-4 | -- --clip |
a --clip -- | a --clip -1 | a --clip x | a --clip --json | --clip -- a | --by --clip a
"""
"""Lines of an option that may stand without its value, in any command."""


@dataclass(frozen=True)
class Line:
    """A command line.

    Attributes:
        given: the options that it sets, with their values, where these follow from its spelling.
        refused: the start of its error message, where that follows from its spelling.
    """

    words: tuple[str, ...]
    given: Mapping[str, Any] | None = None
    refused: str = ""


@functools.cache
def options(command: str) -> Mapping[str, Option]:
    """Return the options of a command by name."""
    found: Mapping[str, Option] = importlib.import_module(f"calibcli.cli.{command}").command.options
    return found


def needed(command: str, but: str = "") -> tuple[list[str], dict[str, Any]]:
    """Return the words that a command requires, and what they set; `but`: an option that is left out."""
    words: list[str] = []
    given: dict[str, Any] = {}
    for one in options(command).values():
        if one.default is not MISSING or one.name == but:
            continue
        text = str(get_args(one.kind)[0]) if get_origin(one.kind) is Literal else f"{one.name}.npz"
        words += [text] if one.argument else [one.flags[0], text]
        value = one.kind(text) if one.kind in (str, Path) else text
        given[one.name] = (value,) if one.many else value
    return words, given


def right(one: Option) -> dict[str, Any]:
    """Return texts that an option takes, with the value that each of them is."""
    if get_origin(one.kind) is Literal:
        words = {str(word): word for word in get_args(one.kind)}
        first = next(iter(words))
        return words | {f" {first} ": words[first], first.upper(): words[first], first.replace("_", "-"): words[first]}
    if get_origin(one.kind) is Annotated:
        number, limit = get_args(one.kind)
        ends = ((limit.low, limit.open_low), (limit.high, limit.open_high))
        texts = [repr(number(end)) for end, is_open in ends if not is_open]
        texts += [f" {text} " for text in texts[:1]]
        return {text: number(text) for text in texts}
    return {text: one.kind(text) for text in TEXTS}


def wrong(one: Option) -> dict[str, str]:
    """Return texts that an option refuses, with the message."""
    if get_origin(one.kind) is Literal:
        return {text: f"{one.flags[0]} {text} is not a choice" for text in ("no such word", "1_0", "-")}
    if get_origin(one.kind) is Annotated:
        number, limit = get_args(one.kind)
        noun = "a whole number" if number is int else "a number"
        beyond = [limit.high * 2 + 1, limit.low - 1] if number is int else [limit.high * 2, -abs(limit.low) * 2 - 1]
        texts = {repr(number(value)): "out of range" for value in beyond}
        texts |= dict.fromkeys(("x", "1_0", "1 0", *(("1.5",) if number is int else ())), f"not {noun}")
        return {text: f"{one.flags[0]} {text} is {said}" for text, said in texts.items()}
    return {}


def spelled(command: str, one: Option, fully: bool, values: bool) -> Iterator[Line]:
    """Make the lines of one option of a command; `fully`: in every spelling; `values`: with every value."""
    rest, base = needed(command, one.name)

    def line(*words: str, given: Any = None, refused: str = "", first: bool = False) -> Line:
        there = [*words, *rest] if first else [*rest, *words]
        sets = None if given is None else {**base, one.name: given}
        return Line((command, *there), sets, refused)

    for flag in one.flags:
        long = flag.startswith("--")
        if one.flag:
            yield line(flag, given=True)
            yield line(flag, flag, given=True, first=True)
            yield line(f"{flag}=1" if long else f"{flag}1")
            yield line(f"{flag}=")
        else:
            good, bad = right(one), wrong(one)
            some = list(good.items()) if values else list(good.items())[:2]
            for i, (text, value) in enumerate(some):
                value = (value,) if one.many else value
                glued = f"{flag}={text}" if long else f"{flag}{text}"
                yield line(flag, text, given=value, first=True) if i % 2 else line(glued, given=value)
            for text, message in list(bad.items())[: None if values else 1]:
                if one.alone is None:  # else the word that follows may be a file
                    yield line(flag, text, refused=message)
                yield line(f"{flag}={text}" if long else f"{flag}{text}", "--json", refused=message, first=True)
            text, value = some[0]
            twice = line(flag, text, flag, text, given=(value, value)) if one.many else None
            yield twice or line(flag, text, flag, text, refused=f"{one.flags[0]} was given more than once")
            yield line(flag)
            yield line(flag, "")
            if not long:
                yield line(f"-q{flag[1]}{text}")
                yield line(f"-{flag[1]}q{text}")
            if fully:
                yield line(flag, text, f"{one.flags[0]}={text}")
                yield line(f"{flag}=")
                yield line("--", flag, text)
                for other in (*NUMBERS, *TEXTS) if values else ():
                    yield line(flag, other)
        yield line(f"{flag}x", "1", first=True)
        if fully:
            yield line(flag[:-1], "1")
            yield line(f"-q{flag.strip('-')}")
            yield line(f"-q{flag.strip('-')}", "1")
            yield line(flag.upper(), "1")
            yield line(f"-{flag}", "1")
            yield line(f"--no-{flag.strip('-')}")


def placed(command: str) -> Iterator[Line]:
    """Make the lines of the arguments of a command, and of what it does not know."""
    rest, base = needed(command)
    yield Line((command, *rest), base)
    for asked in ("--help", "-h", "--help-all"):
        yield Line((command, asked))
        yield Line((command, *rest, "-q", asked))
    yield Line(("help", command))
    yield Line(("help", command, *rest))
    for count in range(5):
        names = [f"{i}.npz" for i in range(count)]
        yield Line((command, *names))
        yield Line((command, "--", *names))
        yield Line((command, "--json", *names, "-q"))
        yield Line((command, *names[:1], "--quiet", *names[1:], "--", "-x", "--json"))
    for word in (
        "",
        " ",
        "-",
        "--",
        "-1",
        "ü",
        "a=b",
        "digits.npz#test",
        "net.py:make",
        "\udcff",
        "*.npz",
        "=",
        "x" * 300,
    ):
        yield Line((command, word))
        yield Line((command, *rest, word))
        yield Line((command, word, *rest))
        yield Line((command, "--", *rest, word))
    for word in ("--no-such", "--no-such=3", "-Z", "-qZ", "-q-v", "-qq", "---", "-=", "--=", "--=x", "--max=ece=0.1",
                 "--min", "--with", "--gamma=3", "--metrics", "--formt", "--deployed", "-vv", "-qv"):  # fmt: skip
        yield Line((command, *rest, word))
        yield Line((command, *rest, word, "1"))
    for words in CLIP.split("|"):
        yield Line((command, *words.split()))


def lines() -> list[Line]:
    """Make all lines, each once."""
    made = [Line(()), *(Line(tuple(words.split())) for words in BARE.split("|"))]
    seen: set[str] = set()
    for command in COMMANDS:
        made += placed(command)
        for one in options(command).values():
            if not one.argument:
                kind = repr((one.kind, one.many))
                made += spelled(command, one, fully=repr(one) not in seen, values=kind not in seen)
                seen |= {repr(one), kind}
    return list({line.words: line for line in reversed(made)}.values())[::-1]


@contextlib.contextmanager
def not_running(calls: list[list[str]]) -> Iterator[None]:
    """Keep what commands would be called with instead of running them, in an empty folder."""
    functions = {}

    def kept(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def keep(**arguments: Any) -> int:
            shown = {name: re.sub(r" at 0x[0-9a-f]+", "", repr(value)) for name, value in arguments.items()}
            calls.append([f"{name}={value}" for name, value in sorted(shown.items())])
            return 0

        return keep

    for name in COMMANDS:
        command: Command = importlib.import_module(f"calibcli.cli.{name}").command
        functions[name] = command, command.function
        command.function = kept(command.function)
    start, limits.start = limits.start, lambda seconds, gigabytes: None
    before = os.getcwd()
    try:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            yield
    finally:
        os.chdir(before)
        limits.start = start
        for command, function in functions.values():
            command.function = function


def answers(made: Sequence[Line]) -> dict[str, Any]:
    """Say what each line means: exit code, calls, and what it prints."""
    calls: list[list[str]] = []
    found = {}
    with not_running(calls):
        for line in made:
            calls.clear()
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = app.main(line.words)
            printed = [text.getvalue().splitlines() for text in (out, err)]
            found[repr(line.words)] = {"code": code, "calls": list(calls), "stdout": printed[0], "stderr": printed[1]}
    return found


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Describe each line that does not mean what it meant."""
    for words in [*before, *(words for words in after if words not in before)]:
        was, now = before.get(words), after.get(words)
        if was is None or now is None:
            yield f"{words}: {'no longer made' if now is None else 'not made before'}"
        elif was != now:
            parts = [f"    {key}: {was[key]}\n    now:  {now[key]}" for key in was if was[key] != now[key]]
            yield "\n".join([words, *parts])


def main() -> int:
    """Record what the lines mean to this code, or compare it with what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    path = given.file.resolve()
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    found = answers(lines())
    if given.task == "record":
        path.write_text(json.dumps(found, indent=1))
        print(
            f"recorded: {len(found)} lines, of which {sum(bool(one['calls']) for one in found.values())} call a command"
        )
        return 0
    changed = list(differences(json.loads(path.read_text()), found))
    print(*changed, f"{len(found)} lines: {len(changed)} differ", sep="\n")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
