"""What a command may be given: declared once, and read by hand from a line that is plainly right.

Every option is a field of the dataclass that it becomes, or a parameter of the command. Typer reads the same
declaration (`cli.typed`) for help, and for any other line: it finds the words for what is wrong.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from calibcli import spec
from calibcli.errors import UsageError

COMPLETION = "_CALIB_COMPLETE"  # in the environment: a shell asks what a line may go on with


@dataclass(frozen=True)
class Option:
    """One option, or argument, of a command.

    Attributes:
        kind: type of one value, with its `Range` or choices.  many: given any number of times.
        default: `dataclasses.MISSING` of what is required.
        flags: how it is written; an argument without.
        panel: where the help shows it.  about: more for Typer, such as `metavar`.
    """

    name: str
    kind: Any
    many: bool
    default: Any
    flags: Sequence[str]
    argument: bool
    help: str
    panel: str | None
    about: Mapping[str, Any]

    @property
    def flag(self) -> bool:
        """Whether it stands without a value."""
        return self.kind is bool

    @property
    def plain(self) -> bool:
        """Whether any text is a value."""
        return self.kind in (str, Path)

    def parse(self, text: Any) -> Any:
        """One value.

        Raises:
            UsageError: the text is of another type, or out of range.
        """
        if self.plain:
            return self.kind(text)
        return spec.convert(str(text).strip(), self.kind, f"{self.flags[0]} ")


class Command:
    """A command with its options, in the order of its parameters; called with a value for each."""

    def __init__(self, function: Callable[..., int]) -> None:
        self.function = function

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        return get_type_hints(self.function, include_extras=True)

    @cached_property
    def _fields(self) -> dict[str, list[Option]]:
        parameters = inspect.signature(self.function).parameters.items()
        return {name: _declared(name, self._kinds[name], p.default) for name, p in parameters}

    @cached_property
    def options(self) -> dict[str, Option]:
        """By name."""
        return {one.name: one for held in self._fields.values() for one in held}

    def __call__(self, **given: Any) -> int:
        """`run` is made first: it knows where errors go."""
        plain = {key: tuple(value or ()) if self.options[key].many else value for key, value in given.items()}
        made = {}
        for name in sorted(self._fields, key=lambda name: name != "run"):
            kind, values = self._kinds[name], {one.name: plain[one.name] for one in self._fields[name]}
            made[name] = self._kinds[name](**values) if dataclasses.is_dataclass(kind) else values[name]
        return self.function(**made)


def takes(command: Callable[..., int]) -> Command:
    """Give a command its options.

    A parameter whose annotation is a dataclass stands for those of its fields that are an `option` or `argument`, and
    gets an instance; any other parameter has one of them for its default. Numbers lie in the `Range` of their
    annotation, words are among those of a `Literal`, and what is a tuple may be repeated.
    """
    return Command(command)


def _declared(name: str, kind: Any, default: Any) -> list[Option]:
    """What a parameter of a command is made of."""
    if not dataclasses.is_dataclass(kind):
        return [_option(name, kind, default, None)]
    hints, panel = get_type_hints(kind, include_extras=True), getattr(kind, "PANEL", None)
    return [_option(f.name, hints[f.name], f, panel) for f in dataclasses.fields(kind) if "help" in f.metadata]


def _option(name: str, kind: Any, field: dataclasses.Field[Any], panel: str | None) -> Option:
    about = dict(field.metadata)
    kind, help, flags = about.pop("kind", kind), about.pop("help"), about.pop("flags")
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not types.NoneType)
    many = get_origin(kind) is tuple
    return Option(
        name=name,
        kind=get_args(kind)[0] if many else kind,
        many=many,
        default=dataclasses.MISSING if field.default is ... else field.default,
        flags=flags or (f"--{name.replace('_', '-')}",),
        argument=about.pop("argument", False),
        help=help,
        panel=panel,
        about=about,
    )


def parsed(args: Sequence[str], options: Mapping[str, Option]) -> dict[str, Any] | None:
    """The value of every option on a line that is plainly right; None of any other, which Typer has to read.

    A value is whatever follows its option, `-1` and `--json` too, as Click has it; what follows `--` is no option.
    """
    written = {flag: one for one in options.values() if not one.argument for flag in one.flags}
    given: dict[str, list[str]] = {}
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            rest.extend(words)
        elif len(word) < 2 or not word.startswith("-"):
            rest.append(word)
        else:
            name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
            one = written.get(name)
            if one is None or (one.flag and equals):
                return None
            text = "" if one.flag else value if equals else next(words, None)
            if text is None:
                return None
            given.setdefault(one.name, []).append(text)
    return _values(given, rest, options)


def _values(given: dict[str, list[str]], rest: list[str], options: Mapping[str, Option]) -> dict[str, Any] | None:
    """Texts as values; None where one is wrong, missing, too many, or empty."""
    waiting = [one for one in options.values() if one.argument]
    while waiting:  # one that takes many gets what the others leave
        one = waiting.pop(0)
        count = max(0, len(rest) - len(waiting)) if one.many else 1
        if rest[:count]:
            given[one.name] = rest[:count]
            rest = rest[count:]
    values: dict[str, Any] = {}
    try:
        for name, one in options.items():
            texts = given.get(name)
            if one.flag and texts:
                values[name] = True
            elif texts:
                if "" in texts or (len(texts) > 1 and not one.many):
                    return None
                found = [one.parse(text) for text in texts]
                values[name] = tuple(found) if one.many else found[0]
            elif one.default is dataclasses.MISSING:
                return None
            else:
                values[name] = () if one.many else one.default
    except UsageError:
        return None
    return None if rest else values
