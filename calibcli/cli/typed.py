"""Commands as Typer applications: help, completion, and what is wrong with a line. Only loaded for these."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from calibcli import __version__
from calibcli.cli.run import COMPLETION, Command, Option, with_values
from calibcli.core.errors import Exit, UsageError

ABOUT = "Measure, fix and gate the calibration of a classifier, and the curvature of its loss."
TAKES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH", bool: ""}
"""What the help shows beside an option of each type."""
PANELS = ("Measure", "Fix", "Gate", "Train", "Inspect")
WORK = ("logits", "metrics", "curvature", "scale", "apply", "check", "compare", "plan", "fit", "inspect", "list")
"""Panels, and the commands in them, in the order in which a user needs them."""
LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # environment variables with the line to complete, by shell
ALL = "--help-all"
WIDE = 16  # characters; longer lists of choices are not shown beside an option


def call(args: list[str], commands: Sequence[str]) -> int:
    """Build and run the command that these arguments name, and return its exit code."""
    completing = COMPLETION in os.environ
    brief = not completing and args[:1] in ([], ["--help"], ["-h"])
    line = next((os.environ[name] for name in LINES if name in os.environ), "").split()[1:] if completing else args
    names = [line[0]] if line and line[0] in commands else commands
    code = build(names, brief)(args or ["--help"], prog_name="calib", standalone_mode=False)
    return int(code or 0) if args else int(Exit.USAGE)


def in_order(names: Iterable[str]) -> list[str]:
    """Sort commands in the order of work: measure, fix, gate, train, inspect; new ones at the end of their panel."""
    panels = {name: importlib.import_module(f"calibcli.cli.{name}").PANEL for name in names}

    def place(name: str) -> tuple[int, int, str]:
        panel = panels[name]
        ranks = [known.index(one) if one in known else len(known) for known, one in ((PANELS, panel), (WORK, name))]
        return ranks[0], ranks[1], panel + name

    return sorted(panels, key=place)


def build(names: Sequence[str], brief: bool = False) -> typer.Typer:
    """Build the Typer application with these commands. A single command is built alone, which starts faster.

    Args:
        brief: only build their descriptions, without options.
    """
    app = typer.Typer(
        cls=CommandGroup,
        help=ABOUT,
        context_settings={"help_option_names": ["--help", "-h"]},
        add_completion=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def top(
        version: Annotated[
            bool, typer.Option("--version", "-V", help="Print the version and exit.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        """Options of calib itself."""

    for name in in_order(names):
        module = importlib.import_module(f"calibcli.cli.{name}")
        app.command(name, cls=StrictCommand, rich_help_panel=module.PANEL)(_function(module.command, brief))
    return app


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
        for one in params:
            if hasattr(one, "display_type"):  # older versions of Typer do not have it
                word = words.get(one.display_type(ctx), one.display_type(ctx))
                one.display_type = lambda ctx, word=word: word
        return params


class CommandGroup(HelpStyle, TyperGroup):
    """The group of all commands."""


class StrictCommand(HelpStyle, TyperCommand):
    """A command that refuses an option given twice, unless it is a list; Typer would silently use the last one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ALL in args:
            ctx.meta[ALL] = True
            args = ["--help"]
        args = with_values(args, importlib.import_module(f"calibcli.cli.{self.name}").command.options)
        seen: set[str] = set()
        values, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for given in order:
            if not isinstance(given, TyperOption) or given.multiple or given.is_flag:
                continue
            if given.opts[0] in seen:
                raise UsageError(f"{given.opts[0]} was given more than once", "pass it once")
            seen.add(given.opts[0])
        for one in importlib.import_module(f"calibcli.cli.{self.name}").command.options.values():
            value = values.get(one.name)
            if one.names_file and "" in (value if isinstance(value, list | tuple) else [value]):
                # "$X" with X empty must not mean the working folder
                shown = one.name.upper() if one.argument else one.flags[-1]
                raise UsageError(f"{shown} is empty", "name a file; is the variable that it comes from set?")
            for text in [] if one.plain or one.flag or value is None else value if one.many else [value]:
                one.parse(text)  # here, because Typer rewords a ValueError, which our errors are
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Hide the rare options of a panel unless --help-all was passed; the title of the panel says how many."""
        options = importlib.import_module(f"calibcli.cli.{self.name}").command.options
        rare: list[Any] = [one for one in self.params if options[one.name].rare and ALL not in ctx.meta]
        for one in rare:
            one.hidden = True
        for one in self.params:
            left = sum(options[other.name].panel == options[one.name].panel for other in rare)
            if left and isinstance(one, TyperOption):
                one.rich_help_panel = f"{options[one.name].panel} ({left} more: {ALL})"
        super().format_help(ctx, formatter)


def _version(asked: bool) -> None:
    if asked:
        print(f"calib {__version__}")
        raise typer.Exit


def _function(command: Command, brief: bool) -> Callable[..., int]:
    """Return a command as Typer takes it: a function whose signature is its options."""
    parameters = {} if brief else {name: _parameter(one) for name, one in command.options.items()}

    @functools.wraps(command.function)
    def function(**given: Any) -> int:
        return command(**given)

    function.__doc__ = _unwrapped(inspect.getdoc(command.function) or "")
    function.__signature__ = inspect.Signature([*parameters.values()], return_annotation=int)  # type: ignore[attr-defined]
    function.__annotations__ = {key: p.annotation for key, p in parameters.items()} | {"return": int}
    return function


def _unwrapped(text: str) -> str:
    """Join the lines of each paragraph of a docstring, so that help is wrapped to the width of the terminal."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


def _parameter(one: Option) -> inspect.Parameter:
    """Return an option as Typer reads it."""
    kind: Any = one.kind
    default, settings = one.default, dict(one.settings)
    if not (one.plain or one.flag):
        settings["parser"] = one.parse
        if get_origin(kind) is Literal:
            settings.setdefault("metavar", _choices(get_args(kind)))
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else str
    settings.setdefault("metavar", TAKES[kind])
    kind = list[kind] if one.many else kind
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    elif one.many or default is None:
        kind, default = Optional[kind], None  # noqa: UP045 (Typer reads it on every version)
    if listed := re.search(r"\(calib list (\w+)\)", one.help):
        settings["autocompletion"] = _entries(listed[1], "=" if "=" in settings["metavar"] else "")
    settings["readable"] = False  # the reader of the file refuses it, with exit code 4; Typer would exit with 2
    if one.argument:
        declared = typer.Argument(help=one.help, **settings | {"metavar": None})  # a metavar would replace the name
    else:
        declared = typer.Option(*one.flags, help=one.help, rich_help_panel=one.panel, **settings)
    annotation: Any = Annotated[kind, declared]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _entries(shelf: str, ending: str) -> Callable[[str], list[str]]:
    """Return a function that completes a spec by the entries of a shelf."""

    def complete(incomplete: str) -> list[str]:
        from calibcli.api import catalogue

        one = catalogue.SHELVES.get(shelf)
        names = (
            [entry.name for entry in one.shelf]
            if one is not None
            else [f.name for f in catalogue.formats() if f.way == "written"]
        )
        names = [name.replace("_", "-") if "-" in incomplete else name for name in names]
        return [name + ending for name in names if name.startswith(incomplete)]

    return complete


def _choices(words: Iterable[object]) -> str:
    """Return what the help shows beside an option with these choices."""
    shown = "|".join(map(str, words))
    return shown if len(shown) <= WIDE else TAKES[str]
