"""Commands as Typer applications: Typer reads every command line, shows the help, and completes lines in a shell.

A line is only read here. The answer is a function that runs the command, so that Typer has no part in signals, closed
streams and errors of a command that runs. Typer gives each value as text, and the type of its option converts it, so
that errors come from one place. That also keeps the start short: from 0.29 on Typer would import pydantic to convert
values, which takes as long as to import NumPy. The module of a command is imported when a line names it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from calibcli.cli import COMMANDS, version
from calibcli.cli.run import Command, Option
from calibcli.core import options as spec
from calibcli.core.errors import Exit, UsageError

ABOUT = "Measure, fix and gate calibration; measure the curvature of the loss."
TAKES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH", bool: ""}
"""What the help shows beside an option of each type."""
SHARED = "Output and limits"
PANELS = ("Measure", "Fix and train", "Gate", "Look up")
WORK = (
    "logits",
    "metrics",
    "curvature",
    "scale",
    "apply",
    "init",
    "check",
    "compare",
    "plan",
    "fit",
    "inspect",
    "list",
)
"""Panels, and the commands in them, in the order in which a user needs them."""
ALL, ALL_NAME = "--help-all", "help_all"
WIDE = 16  # characters; longer lists of choices are not shown beside an option
Refused: type[Exception] = typer.BadParameter.__mro__[1]
"""The base of all errors by which Typer refuses a line. Of these it only exports `BadParameter`."""


def read(args: Sequence[str]) -> Callable[[], int] | int:
    """Return a function that runs the command which a line names, or the exit code if Typer has answered the line.

    Raises:
        UsageError: the line is wrong.
    """
    try:
        answer: Callable[[], int] | int | None = build_group()(list(args), prog_name="calib", standalone_mode=False)
    except Refused as error:  # for a word before the command
        raise mistake(error, args) from None
    return answer or int(Exit.OK)


def build_group() -> Any:
    """Build the Typer application. Its commands are built when Typer asks for them."""
    app = typer.Typer(
        cls=CommandGroup,
        help=ABOUT,
        context_settings={"help_option_names": ["--help", "-h"]},
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def top(
        version: Annotated[
            bool, typer.Option("--version", "-V", help="Print the version and exit.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        """Options of calib itself."""

    return typer.main.get_command(app)


def build_command(name: str, brief: bool = False) -> Any:
    """Build a command.

    Args:
        brief: only build its description, without options.
    """
    module = importlib.import_module(f"calibcli.cli.{name}")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name, cls=TextCommand, rich_help_panel=module.PANEL)(_function(module.command, brief))
    return typer.main.get_command(app)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort commands in the order of work: measure, fix and train, gate, look up; new ones at the end of their panel."""
    panels = {name: importlib.import_module(f"calibcli.cli.{name}").PANEL for name in names}

    def place(name: str) -> tuple[int, int, str]:
        panel = panels[name]
        ranks = [known.index(one) if one in known else len(known) for known, one in ((PANELS, panel), (WORK, name))]
        return ranks[0], ranks[1], panel + name

    return sorted(panels, key=place)


class HelpStyle:
    """Shows the types of arguments and flags, including --help, in the words of `TAKES`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help in styles that are legible on light and dark backgrounds: no yellow, no cyan."""
        from typer import rich_utils

        for name in ("OPTION", "SWITCH", "NEGATIVE_OPTION", "NEGATIVE_SWITCH", "COMMANDS_TABLE_FIRST_COLUMN"):
            setattr(rich_utils, f"STYLE_{name}", "bold")
        for name in ("TYPES", "METAVAR", "USAGE", "OPTION_ENVVAR"):  # TYPES was METAVAR in older versions
            setattr(rich_utils, f"STYLE_{name}", "italic")
        super().format_help(ctx, formatter)  # type: ignore[misc]

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        words = {"<path>": TAKES[Path], "<list[Path]>": TAKES[Path], "<bool>": TAKES[bool], "<str>": TAKES[str]}
        for param in params:
            if hasattr(param, "display_type"):  # older versions of Typer do not have it
                word = words.get(param.display_type(ctx), param.display_type(ctx))
                param.display_type = lambda ctx, word=word: word
        return params


class CommandGroup(HelpStyle, TyperGroup):
    """The group of all commands, which are built when Typer asks for them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return in_order(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """Return the description of a command, which is all that the list of commands shows."""
        return build_command(name, brief=True) if name in COMMANDS else None

    def get_params(self, ctx: Any) -> list[Any]:
        params = super().get_params(ctx)
        for param in params:
            # of Typer's own flags; it would import pydantic to convert None
            if param.is_flag and param.default is None:
                param.default = False
            # `calib completion` does the same as Typer's, and says how; who reads the help knows how to ask for it
            if str(param.name).endswith("_completion") or param.name == "help":
                param.hidden = True
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command. `calib` alone shows the help; `calib help metrics` is as in git."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), color=ctx.color)
            raise typer.Exit(Exit.USAGE)
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name of a command, the command, and its words."""
        try:
            name, description, words = super().resolve_command(ctx, args)
        except Refused as error:
            from calibcli.cli import mistakes

            raise UsageError(_message(error), mistakes.instead_of_command(args)) from None
        return name, description and build_command(str(description.name)), words


class TextCommand(HelpStyle, TyperCommand):
    """A command whose line Typer splits into texts, which the types of the options convert."""

    @property
    def command(self) -> Command:
        """What is declared and run."""
        declared: Command = importlib.import_module(f"calibcli.cli.{self.name}").command
        return declared

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # a shell completes a line, which may lack words
            return super().parse_args(ctx, args)
        options = self.command.options
        try:
            parsed, extra, order = self.make_parser(ctx).parse_args(args=with_values(args, options))
        except Refused as error:
            raise mistake(error, args, str(self.name)) from None
        given = [one.name for one in order]
        if "help" in given or ALL_NAME in given:
            ctx.meta[ALL] = ALL_NAME in given
            typer.echo(ctx.get_help(), color=ctx.color)
            raise typer.Exit
        for name in given:
            if given.count(name) > 1 and not (options[name].many or options[name].flag):  # Typer would take the last
                raise UsageError(f"{options[name].flags[0]} was given more than once", "pass it once")
        ctx.params = self.command.values({name: texts for name in given if (texts := _texts(parsed[name]))})
        if extra:
            raise UsageError(f"got unexpected extra argument(s) ({' '.join(extra)})", f"see calib {self.name} --help")
        return []

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Hide the rare options of a panel unless --help-all was passed; the title of the panel says how many.

        Typer shows options without a panel first. Where all that a command has of its own lie in panels, those that
        every command has get one, too, so that they come last.
        """
        options = self.command.options
        declared: list[Any] = [one for one in self.params if one.name in options]
        rare = [one for one in declared if options[one.name].rare and not ctx.meta.get(ALL)]
        for option in rare:
            option.hidden = True
        for option in declared:
            left = sum(options[other.name].panel == options[option.name].panel for other in rare)
            if left and isinstance(option, TyperOption):
                option.rich_help_panel = f"{options[option.name].panel} ({left} more: {ALL})"
        own = [one for one in options.values() if not one.argument]
        if own and own[0].panel:
            for one in self.get_params(ctx):
                if getattr(one, "rich_help_panel", None) is None and one.param_type_name == "option":
                    one.rich_help_panel = SHARED
        super().format_help(ctx, formatter)


def _texts(value: Any) -> list[str]:
    """Return the texts that Typer found for an option: a flag is `true`, an argument that is not given has none."""
    if value is True:
        return ["true"]
    return [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []


def with_values(args: Sequence[str], options: Mapping[str, Option]) -> list[str]:
    """Give each option that may stand alone its value, as `--clip=1e-15`; a number after it is its value.

    Typer has no option whose value may be left out.

    >>> from calibcli.cli.metrics import command
    >>> with_values(["--clip", "a.csv", "--clip", "5e-4"], command.options)
    ['--clip=1e-15', 'a.csv', '--clip=5e-4']
    """
    alone = {flag: one.alone for one in options.values() if one.alone is not None for flag in one.flags}
    words, out = list(args), list[str]()
    while words:
        word = words.pop(0)
        if word == "--":
            return [*out, word, *words]
        if word not in alone:
            out.append(word)
            continue
        try:
            spec.real(words[0] if words else "")
        except ValueError:  # another option, or a file
            out.append(f"{word}={alone[word]}")
        else:
            out.append(f"{word}={words.pop(0)}")
    return out


def mistake(error: Any, args: Sequence[str], command: str = "") -> UsageError:
    """Return an error by which Typer refuses a line as one of ours, with its fix.

    Args:
        args: the words that Typer read.
        command: the command whose words they are; "" for the whole line.
    """
    from calibcli.cli import mistakes

    if hasattr(error, "possibilities"):  # there is no such option
        fix = mistakes.instead_of_option(error.option_name, error.possibilities or (), args, command)
    else:
        fix = mistakes.see_help(command)
    return UsageError(_message(error), fix)


def _message(error: Any) -> str:
    """Return what Typer says of a line, as our messages are written."""
    text: str = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]


def _version(asked: bool) -> None:
    if asked:
        raise typer.Exit(version.show())


def _function(command: Command, brief: bool) -> Callable[..., Callable[[], int]]:
    """Return a command as Typer takes it: a function whose signature is its options."""
    parameters = {} if brief else {name: _parameter(one) for name, one in command.options.items()}
    if not brief:
        shown = typer.Option(ALL, hidden=True, help="Show all options and exit.")
        parameters[ALL_NAME] = inspect.Parameter(
            ALL_NAME, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, shown]
        )

    @functools.wraps(command.function)
    def function(**given: Any) -> Callable[[], int]:
        del given[ALL_NAME]
        return functools.partial(command, **given)

    function.__doc__ = _unwrapped(inspect.getdoc(command.function) or "")
    function.__signature__ = inspect.Signature([*parameters.values()])  # type: ignore[attr-defined]
    function.__annotations__ = {key: p.annotation for key, p in parameters.items()}
    return function


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph of a docstring, so that help is wrapped to the width of the terminal."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


def _parameter(option: Option) -> inspect.Parameter:
    """Return an option as Typer reads it: a flag, a path, which a shell completes, or a text."""
    default, settings = option.default, dict(option.settings)
    if get_origin(option.kind) is Literal:
        settings.setdefault("metavar", _choices(get_args(option.kind)))
    number = get_args(option.kind)[0] if get_origin(option.kind) is Annotated else str
    kind: Any = option.kind if option.plain or option.flag else str
    settings.setdefault("metavar", TAKES[kind if option.plain or option.flag else number])
    kind = list[kind] if option.many else kind
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    elif option.many or default is None:
        kind, default = Optional[kind], None  # noqa: UP045 (Typer reads it on every version)
    if listed := re.search(r"\(calib list (\w+)\)", option.help):
        settings["autocompletion"] = _entries(listed[1], "=" if "=" in settings["metavar"] else "")
    if option.argument:
        declared = typer.Argument(help=option.help, **settings | {"metavar": None})  # a metavar would replace the name
    else:
        declared = typer.Option(*option.flags, help=option.help, rich_help_panel=option.panel, **settings)
    annotation: Any = Annotated[kind, declared]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _entries(registry: str, ending: str) -> Callable[[str], list[str]]:
    """Return a function that completes a spec by the entries of a registry."""

    def complete(incomplete: str) -> list[str]:
        from calibcli.api import catalogue

        catalogued = catalogue.REGISTRIES.get(registry)
        names = (
            [entry.name for entry in catalogued.registry]
            if catalogued is not None
            else [f.name for f in catalogue.formats() if f.way == "written"]
        )
        names = [name.replace("_", "-") if "-" in incomplete else name for name in names]
        return [name + ending for name in names if name.startswith(incomplete)]

    return complete


def _choices(words: Iterable[object]) -> str:
    """Return what the help shows beside an option with these choices."""
    shown = "|".join(map(str, words))
    return shown if len(shown) <= WIDE else TAKES[str]
