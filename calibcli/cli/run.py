"""Commands: their options, one run with its outputs checked before work starts, and the result emitted at its end.

Every option is defined once: a field of the dataclass that it becomes, or a parameter of the command.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import pkgutil
import sys
import time
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Optional, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from calibcli import __version__, cli, render, spec
from calibcli.errors import CalibError, Exit, UsageError
from calibcli.files import may_write
from calibcli.inputs.opening import Reading
from calibcli.result import Result
from calibcli.spec import option

ABOUT = "Measure, fix and gate the calibration of a classifier, and the curvature of its loss."
COMMANDS = sorted(m.name for m in pkgutil.iter_modules(cli.__path__) if m.name not in ("app", "run"))
TAKES = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH", bool: ""}
"""What the help shows beside an option, by its type."""
WIDE = 16  # letters of choices that are shown there


def call(args: list[str]) -> int:
    """Build and run the command that these arguments name; its exit code."""
    if not args:
        build()(["--help"], prog_name="calib", standalone_mode=False)
        return int(Exit.USAGE)
    names = [args[0]] if args[0] in COMMANDS else COMMANDS
    code = build(names)(args, prog_name="calib", standalone_mode=False)
    return int(code or 0)


def build(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The Typer application with these commands. One command is built alone, so that others cost no start-up."""
    app = typer.Typer(
        cls=Group,
        help=ABOUT,
        context_settings={"help_option_names": ["--help", "-h"]},
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def top(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        """Options of calib itself."""

    for name in names:
        module = importlib.import_module(f"calibcli.cli.{name}")
        app.command(name, cls=Command, rich_help_panel=module.PANEL)(module.command)
    return app


class Worded:
    """Shows types of arguments and flags, --help included, in the words of the options' (`TAKES`)."""

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


class Command(Worded, TyperCommand):
    """A command whose options are given once, unless they are lists: the last of two would win without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        seen: set[str] = set()
        for given in self.make_parser(ctx).parse_args(args=list(args))[2]:
            if not isinstance(given, TyperOption) or given.multiple or given.is_flag:
                continue
            if given.opts[0] in seen:
                raise UsageError(f"{given.opts[0]} was given more than once", "pass it once")
            seen.add(given.opts[0])
        return super().parse_args(ctx, args)


def _version(asked: bool) -> None:
    if asked:
        print(f"calib {__version__}")
        raise typer.Exit


def takes(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command its options, in the order of its parameters.

    A parameter whose annotation is a dataclass stands for those of its fields that are an `option` or `argument`, and
    gets an instance; any other parameter has one of them for its default. Numbers lie in the `Range` of their
    annotation, words are among those of a `Literal`, and what is a tuple may be repeated. `run` is made first: it knows
    where errors go.
    """
    hints = get_type_hints(command, include_extras=True)
    fields = {name: _fields(name, hints[name], p) for name, p in inspect.signature(command).parameters.items()}
    options = {key: _option(key, *about) for held in fields.values() for key, about in held.items()}

    @functools.wraps(command)
    def wrapper(**given: Any) -> int:
        plain = {key: tuple(v or ()) if _many(options[key]) else v for key, v in given.items()}
        made = {}
        for name in sorted(fields, key=lambda name: name != "run"):
            values = {key: plain[key] for key in fields[name]}
            made[name] = hints[name](**values) if dataclasses.is_dataclass(hints[name]) else values[name]
        return command(**made)

    wrapper.__signature__ = inspect.Signature([*options.values()], return_annotation=int)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {key: p.annotation for key, p in options.items()} | {"return": int}
    return wrapper


def _fields(name: str, kind: Any, parameter: inspect.Parameter) -> dict[str, tuple[Any, Any, Any]]:
    """What a parameter of a command is made of, by name: a type, a field, and the panel of the help."""
    if not dataclasses.is_dataclass(kind):
        return {name: (kind, parameter.default, None)}
    hints, panel = get_type_hints(kind, include_extras=True), getattr(kind, "PANEL", None)
    return {f.name: (hints[f.name], f, panel) for f in dataclasses.fields(kind) if "help" in f.metadata}


def _option(name: str, kind: Any, field: dataclasses.Field[Any], panel: str | None) -> inspect.Parameter:
    """One option as Typer reads it."""
    about = dict(field.metadata)
    kind, help = about.pop("kind", kind), about.pop("help")
    flags = about.pop("flags") or (f"--{name.replace('_', '-')}",)
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not types.NoneType)
    many, default = get_origin(kind) is tuple, field.default
    kind = get_args(kind)[0] if many else kind
    if get_origin(kind) in (Annotated, Literal):
        about["parser"] = _parser(kind, flags[0])
        if get_origin(kind) is Literal:
            about.setdefault("metavar", _choices(get_args(kind)))
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else str
    about.setdefault("metavar", TAKES[kind])
    kind = list[kind] if many else kind
    if default in (dataclasses.MISSING, ...):
        default = inspect.Parameter.empty
    elif many or default is None:
        kind, default = Optional[kind], None  # noqa: UP045 (Typer reads it on every version)
    about["readable"] = False  # a file's reader says that it cannot be read, exit 4 as for a missing one; Typer exits 2
    if about.pop("argument", False):
        made = typer.Argument(help=help, **about | {"metavar": None})  # it would replace the name
    else:
        made = typer.Option(*flags, help=help, rich_help_panel=panel, **about)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made])


def _choices(words: Iterable[object]) -> str:
    """What the help shows beside an option that takes one of a few words."""
    shown = "|".join(map(str, words))
    return shown if len(shown) <= WIDE else TAKES[str]


def _parser(kind: Any, flag: str) -> Callable[[Any], Any]:
    def parse(text: Any) -> Any:  # a function with a name, which older versions of Click ask for
        return spec.convert(str(text).strip(), kind, f"{flag} ")

    return parse


def _many(option: inspect.Parameter) -> bool:
    kind = get_args(option.annotation)[0]
    return any(get_origin(part) is list for part in (kind, *get_args(kind)))


def asked(reading: Reading) -> dict[str, Any]:
    """The options of reading that are not as they are by default, as keywords of the Python API."""
    return {f.name: value for f in dataclasses.fields(reading) if (value := getattr(reading, f.name)) != f.default}


def named(reading: Reading) -> list[str]:
    """Files that the options of reading may name, beside those that hold the scores."""
    return [
        name
        for name in (reading.labels, reading.classes, reading.choices)
        if isinstance(name, str) and os.path.isfile(name)
    ]


def speaks() -> bool:
    """Whether this is the first of the processes that torchrun started, or the only one: no other has a say."""
    return os.environ.get("RANK", "0") == "0"


@dataclass
class Run:
    """What every command opens first and finishes last.

    Raises:
        UsageError: unknown format or suffix, or an output folder that does not exist.
    """

    format: str = option("table", "Format of stdout: table, json, markdown, csv, ... (calib list formats).")
    json: bool = option(False, "Short for --format json.")
    output: Sequence[Path] = option(
        (),
        "Also write the result here; the suffix decides the format. Repeatable.",
        "--output",
        "-o",
        kind=tuple[Path, ...],
    )
    quiet: bool = option(False, "No progress and no notes on stderr.", "--quiet", "-q")

    argv: ClassVar[Sequence[str]] = ()
    latest_code: ClassVar[int] = int(Exit.OK)  # of the last finished run, for a reader that went away early

    def __post_init__(self) -> None:
        self.format = render.known_format("json" if self.json else self.format)
        self.outputs = [render.known_output(path) for path in self.output]
        self.quiet = self.quiet or not speaks()
        self.started = time.time()
        self.stdout, sys.stdout = sys.stdout, sys.stderr  # what a user's own code prints is no result

    def claim(self, inputs: Iterable[str | Path | None], *targets: Path) -> None:
        """Refuse outputs, and the further files `targets`, that would replace or fall into an input.

        Raises:
            UsageError: as `files.may_write`.
        """
        may_write([*targets, *(file for path in self.outputs for file in render.files(path))], inputs)

    def note(self, text: str) -> None:
        """A remark on stderr."""
        if not self.quiet:
            print(f"note: {text}", file=sys.stderr)

    def progress(self, title: str) -> Callable[[float, str], None]:
        """A progress callback drawn on stderr (nothing when quiet or not a terminal)."""
        if self.quiet or not sys.stderr.isatty():
            return lambda *_: None
        from calibcli.render.progress import bar

        return bar(title)

    def finish(self, result: Result) -> int:
        """Stamp provenance, write `-o` files, print to stdout; the exit code that the checks ask for."""
        sys.stdout = self.stdout
        if not speaks():
            return int(Exit.OK)
        inputs = [dict(entry) for entry in result.provenance.get("inputs", ())]
        stamped = dataclasses.replace(
            result,
            provenance={
                "version": __version__,
                "argv": list(self.argv),
                "inputs": inputs,
                **{key: value for key, value in result.provenance.items() if key != "inputs"},
                "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
                "seconds": round(time.time() - self.started, 3),
            },
        )
        if not (self.format == "table" and sys.stdout.isatty()):  # there the table ends with them
            for note in result.notes:
                self.note(note)
        code = stamped.exit_code
        failed: CalibError | None = None
        for path in self.outputs:
            try:
                may_write(render.files(path), [entry["path"] for entry in inputs])  # also those found on the way
                render.write(stamped, path)
            except CalibError as error:  # the other places still get the result
                failed = failed or error
        Run.latest_code = code if failed is None else int(failed.code)
        render.show(stamped, self.format)
        if failed is not None:
            raise failed
        return code
