"""What would work in place of a word of the command line that is refused: the fix of the error."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shlex
from collections.abc import Sequence

from calibcli.cli import COMMANDS
from calibcli.core.errors import nearest
from calibcli.core.options import normal


def see_help(command: str = "") -> str:
    """Return the help of a command, or of calib."""
    return f"see {f'calib {command}'.rstrip()} --help"


def instead_of_command(args: Sequence[str]) -> str:
    """Return the line with the nearest command in place of the first word, which is none."""
    if os.path.exists(args[0]):
        return f"name a command first: calib metrics {shlex.join(args)}"
    near = nearest(args[0], COMMANDS)
    return f"did you mean: calib {shlex.join([near, *args[1:]])}" if near else see_help()


def instead_of_argument(about: str, command: str) -> str:
    """Return the example in the docstring of a command that lacks an argument."""
    example = re.search(r"Example: (.*)", about)
    return f"for example: {example[1]}" if example else see_help(command)


def instead_of_option(option: str, near: Sequence[str], args: Sequence[str], command: str) -> str:
    """Return what may be meant by an option that a command has not.

    Args:
        near: options of the command with a similar name.
        args: the words after the command.
        command: its name; "" for an option before the command.
    """
    if spec := _spec_with(option, args):
        return f"it is an option of a spec: {spec}"
    if elsewhere := _command_with(option, args, command):
        return elsewhere
    likely = nearest(option, near)
    return f"did you mean {likely}? {see_help(command)}" if likely else see_help(command)


def _spec_with(flag: str, args: Sequence[str]) -> str:
    """Return `--loss focal:gamma=3` for the line `--loss focal --gamma 3`; "" if no entry named has that option."""
    from calibcli.api.catalogue import REGISTRIES

    name = flag.lstrip("-")
    words = [part for word in args for part in (word.split("=", 1) if word.startswith(f"{flag}=") else [word])]
    value = next((after for word, after in itertools.pairwise(words) if word == flag), "VALUE")
    for option, spec in itertools.pairwise(args):
        for catalogued in REGISTRIES.values():
            if (
                f" {option}" in f" {catalogued.option}"
                and spec in catalogued.registry
                and normal(name) in catalogued.registry.entries[normal(spec)].options
            ):
                return f"{option} {spec}:{normal(name)}={value}"
    return ""


def _command_with(flag: str, args: Sequence[str], command: str) -> str:
    """Return the commands that have an option which this one lacks; "" if there are none. `calib check` comes first: it
    decides about limits. Only its line is given, after one file: an option may mean something else in other commands.
    """
    first = sorted(COMMANDS, key=lambda name: name != "check")
    flags_of = {name: _flags(name) for name in first}
    owners = [name for name in first if flag in flags_of[name]]
    if not owners:
        return ""
    given = {word.split("=", 1)[0] for word in args if word.startswith("-")}
    one_file = bool(command) and len(args) > 1 and not args[0].startswith("-") and args[1].startswith("-")
    works = owners[0] == "check" and one_file and given <= flags_of["check"]
    line = f"calib {shlex.join([owners[0], *args])}" if works else see_help(owners[0])
    return f"{flag} is an option of calib {', '.join(owners)}: {line}"


def of_command(fix: str, args: Sequence[str]) -> str:
    """Return a fix for the command of a line: `--judge COLUMN` of a line of options is left out where the command lacks
    it, as all commands read recorded outputs alike and propose the same lines; the lines that are left still read them.
    """
    command = next((word for word in args if word in COMMANDS), "")
    if not command or " --judge " not in fix or "--judge" in _flags(command):
        return fix
    line = r"(calib metrics [^;]*)?(--correct \S+) --judge \S+"
    kept = re.sub(line, lambda found: found[0] if found[1] else found[2], fix)
    return kept if kept == fix else f"{kept} (calib metrics also takes --judge)"


def _flags(command: str) -> set[str]:
    """Return the flags of a command's options, as `--max` and `-o`."""
    options = importlib.import_module(f"calibcli.cli.{command}").command.options
    return {flag for one in options.values() if not one.argument for flag in one.flags}
