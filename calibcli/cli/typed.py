"""Commands as Typer has them: help, and the words for a line that is wrong. Loaded for these alone."""

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
from calibcli.cli.run import COMPLETION, Command, Option
from calibcli.core.errors import Exit, UsageError

ABOUT = "Measure, fix and gate the calibration of a classifier, and the curvature of its loss."
TAKES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH", bool: ""}
"""What the help shows beside an option, by its type."""
PANELS = ("Inspect", "Measure", "Fix", "Gate", "Train")
WORK = ("inspect", "list", "logits", "metrics", "curvature", "scale", "apply", "check", "compare", "plan", "fit")
"""Panels, and commands in them, in the order in which they are needed."""
LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # and what that line is, by shell
ALL = "--help-all"
WIDE = 16  # letters of choices that are shown there


def call(args: list[str], commands: Sequence[str]) -> int:
    """Build and run the one of the commands that these arguments name; its exit code."""
    completing = COMPLETION in os.environ
    about = not completing and args[:1] in ([], ["--help"], ["-h"])
    line = next((os.environ[name] for name in LINES if name in os.environ), "").split()[1:] if completing else args
    names = [line[0]] if line and line[0] in commands else commands
    code = build(names, about)(args or ["--help"], prog_name="calib", standalone_mode=False)
    return int(code or 0) if args else int(Exit.USAGE)


def in_order(names: Iterable[str]) -> list[str]:
    """Names of commands in the order of work: look, measure, fix, gate, train; new ones at the end of their panel."""
    panels = {name: importlib.import_module(f"calibcli.cli.{name}").PANEL for name in names}

    def place(name: str) -> tuple[int, int, str]:
        panel = panels[name]
        ranks = [known.index(one) if one in known else len(known) for known, one in ((PANELS, panel), (WORK, name))]
        return ranks[0], ranks[1], panel + name

    return sorted(panels, key=place)


def build(names: Sequence[str], about: bool = False) -> typer.Typer:
    """The Typer application with these commands. One command is built alone, so that others cost no start-up.

    Args:
        about: only what is said about each, without its options.
    """
    app = typer.Typer(
        cls=Group,
        help=ABOUT,
        context_settings={"help_option_names": ["--help", "-h"]},
        add_completion=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def top(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        """Options of calib itself."""

    for name in in_order(names):
        module = importlib.import_module(f"calibcli.cli.{name}")
        app.command(name, cls=Strict, rich_help_panel=module.PANEL)(_function(module.command, about))
    return app


class Worded:
    """Shows types of arguments and flags, --help included, in the words of the options' (`TAKES`)."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """In styles that are read on a light and on a dark ground: no yellow, no cyan."""
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
            if hasattr(one, "display_type"):  # older versions of Typer have words of their own
                word = words.get(one.display_type(ctx), one.display_type(ctx))
                one.display_type = lambda ctx, word=word: word
        return params


class Group(Worded, TyperGroup):
    """All commands."""


class Strict(Worded, TyperCommand):
    """A command whose options are given once, unless they are lists: the last of two would win without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ALL in args:
            ctx.meta[ALL] = True
            args = ["--help"]
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
                what = one.name.upper() if one.argument else one.flags[-1]  # "$X" with X empty is no working folder
                raise UsageError(f"{what} is empty", "name a file; is the variable that it comes from set?")
            for text in [] if one.plain or one.flag or value is None else value if one.many else [value]:
                one.parse(text)  # here, as Typer has words of its own for a ValueError, which our refusals are too
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Without the rare options of a panel, unless --help-all asks for them; its title says how many there are."""
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


def _function(command: Command, about: bool) -> Callable[..., int]:
    """A command as Typer takes one: a function whose signature is its options."""
    parameters = {} if about else {name: _parameter(one) for name, one in command.options.items()}

    @functools.wraps(command.function)
    def function(**given: Any) -> int:
        return command(**given)

    function.__doc__ = _unwrapped(inspect.getdoc(command.function) or "")
    function.__signature__ = inspect.Signature([*parameters.values()], return_annotation=int)  # type: ignore[attr-defined]
    function.__annotations__ = {key: p.annotation for key, p in parameters.items()} | {"return": int}
    return function


def _unwrapped(text: str) -> str:
    """A docstring with each paragraph on one line, which is wrapped to the width of the terminal then."""
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in text.split("\n\n"))


def _parameter(one: Option) -> inspect.Parameter:
    """One option as Typer reads it."""
    kind: Any = one.kind
    default, about = one.default, dict(one.about)
    if not (one.plain or one.flag):
        about["parser"] = one.parse
        if get_origin(kind) is Literal:
            about.setdefault("metavar", _choices(get_args(kind)))
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else str
    about.setdefault("metavar", TAKES[kind])
    kind = list[kind] if one.many else kind
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    elif one.many or default is None:
        kind, default = Optional[kind], None  # noqa: UP045 (Typer reads it on every version)
    if listed := re.search(r"\(calib list (\w+)\)", one.help):
        about["autocompletion"] = _entries(listed[1], "=" if "=" in about["metavar"] else "")
    about["readable"] = False  # a file's reader says that it cannot be read, exit 4 as for a missing one; Typer exits 2
    if one.argument:
        made = typer.Argument(help=one.help, **about | {"metavar": None})  # it would replace the name
    else:
        made = typer.Option(*one.flags, help=one.help, rich_help_panel=one.panel, **about)
    annotation: Any = Annotated[kind, made]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _entries(shelf: str, ending: str) -> Callable[[str], list[str]]:
    """What a spec may begin with, for a shell that completes it."""

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
    """What the help shows beside an option that takes one of a few words."""
    shown = "|".join(map(str, words))
    return shown if len(shown) <= WIDE else TAKES[str]
