"""The options of commands, and one run of a command: check the outputs, work, emit the result.

Every option is declared once, as a field of a dataclass or a parameter of the command. Typer reads the command line by
these declarations (`cli.typed`); what it finds for an option is a text, which is converted here.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from calibcli import __version__, headlines, render
from calibcli.cli import limits
from calibcli.core import extensions, files
from calibcli.core import options as spec
from calibcli.core.errors import CalibError, Exit, UsageError, as_options
from calibcli.core.options import Count, Edges, Level, Range, Style, option
from calibcli.core.result import Result
from calibcli.render import table_contents, terminal
from calibcli.scores.reading_options import Reading

Seconds = Annotated[float, Range(0.01, 1e7)]
Gigabytes = Annotated[float, Range(0.01, 1e6)]


def given_options(reading: Reading) -> dict[str, Any]:
    """Return the options of reading that differ from their defaults, as keywords of the Python API."""
    return {f.name: value for f in dataclasses.fields(reading) if (value := getattr(reading, f.name)) != f.default}


@dataclass(frozen=True)
class MetricOptions:
    """The options of what to measure."""

    metric: Sequence[str] = option(
        (),
        "Metric, such as ece:bins=30; also 'default' and 'all' (calib list metrics). Repeatable.",
        "--metric",
        "-m",
        kind=tuple[str, ...],
    )
    bins: Count | None = option(None, "Number of bins.")
    edges: Edges | None = option(None, "Edge that a bin includes: right, left, or as in torchmetrics.")
    level: Level = option(0.95, "Confidence level of two-sided intervals and of each one-sided bound.")
    per_class: bool = option(False, "Also report each class, with a table and a diagram.")

    @property
    def how(self) -> dict[str, Any]:
        """The options without the metrics, as keywords of the Python API."""
        return {"bins": self.bins, "edges": self.edges, "level": self.level, "per_class": self.per_class}


def is_main_process() -> bool:
    """Whether this is the main process under torchrun, or the only one; no other process prints or writes."""
    return os.environ.get("RANK", "0") == "0"


@dataclass
class CommandRun:
    """One run of a command: it checks the outputs first, and prints and writes the result last.

    Raises:
        UsageError: the format or suffix is unknown, or an output folder does not exist.
    """

    format: str = option("table", "Format of stdout: table, json, markdown, csv, ... (calib list formats).")
    json: bool = option(False, "Short for --format json.")
    output: Sequence[Path] = option(
        (),
        "Also write the result to this file; its suffix decides the format (calib list formats). Repeatable.",
        "--output",
        "-o",
        kind=tuple[Path, ...],
        writes="file",
    )
    style: Style = option("screen", "Figure style: screen, or paper (3.3 inches wide, 8 pt, no titles).")
    quiet: bool = option(False, "No progress and no notes on stderr.", "--quiet", "-q")
    verbose: bool = option(
        False, "Show everything that a file would hold, and how numbers were computed.", "--verbose", "-v"
    )

    time_limit: Seconds | None = option(
        None, "End after this many seconds, with exit code 4 and nothing half-written.", metavar="SECONDS"
    )
    memory_limit: Gigabytes | None = option(
        None, "End with exit code 4 where more memory than this is needed, in GB.", metavar="GB"
    )

    argv: ClassVar[Sequence[str]] = ()
    latest_code: ClassVar[int] = int(Exit.OK)  # of the last finished run; used if the reader of stdout closes it early

    def __post_init__(self) -> None:
        self.format = render.known_format("json" if self.json else self.format)
        self.outputs = [render.known_output(path) for path in self.output]
        self.quiet = self.quiet or not is_main_process()
        self.started = time.time()
        if self.time_limit is not None or self.memory_limit is not None:
            limits.start(self.time_limit, self.memory_limit)
        self.stdout, sys.stdout = sys.stdout, sys.stderr  # keeps what the user's own code prints out of the result

    @property
    def screen_alone(self) -> bool:
        """Whether the result is only shown on a screen, so that less needs to be computed."""
        return self.format == "table" and not self.outputs and not self.verbose

    def note(self, text: str) -> None:
        """Print a note on stderr."""
        if not self.quiet:
            print(terminal.fitted(f"note: {text}", sys.stderr), file=sys.stderr)

    def progress(self, title: str) -> Callable[[float, str], None]:
        """Return a callback that draws a progress bar on stderr, or does nothing if quiet or not on a terminal."""
        if self.quiet or not sys.stderr.isatty():
            return extensions.tell  # which remembers what the command is at
        extensions.register_progress(terminal.bar(title))  # also of loops that the command passes it to nowhere
        return extensions.tell

    def keep(self, result: Result, path: Path, role: str, otherwise: str) -> Result:
        """Write a result that passed its checks for later, as what `role` says; return it with a note or the path.

        Args:
            otherwise: why it is not written where its checks did not pass.
        """
        if result.exit_code:
            note = f"no {role} is written to {path}: {otherwise}"
            return dataclasses.replace(result, notes=[*result.notes, note])
        if is_main_process():
            render.write(self.stamped(result), path)
        return dataclasses.replace(result, artefacts={**result.artefacts, role: str(path)})

    def stamped(self, result: Result) -> Result:
        """Return the result with its headline and provenance."""
        inputs = [dict(entry) for entry in result.provenance.get("inputs", ())]
        provenance = {
            "version": __version__,
            "argv": list(self.argv),
            "inputs": inputs,
            **{key: value for key, value in result.provenance.items() if key != "inputs"},
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started, 3),
        }
        return headlines.headed(result, provenance=provenance)

    def finish(self, result: Result, asked: bool = False) -> int:
        """Add the provenance, write `-o` files, print to stdout, and return the exit code of the checks.

        Args:
            asked: the user named the numbers, so that a screen shows all of them.
        """
        terminal.close()  # which restores the streams
        sys.stdout = self.stdout
        if not is_main_process():
            return int(Exit.OK)
        stamped = self.stamped(result)
        code = stamped.exit_code
        failed: CalibError | None = None
        for path in self.outputs:
            self.progress(f"writing {path.name}")
            try:
                render.write(stamped, path, self.style)
            except CalibError as error:  # the other outputs are still written
                failed = failed or error
        CommandRun.latest_code = code if failed is None else int(failed.code)
        detail: table_contents.Detail = "all" if self.verbose else "asked" if asked else "few"
        terminal.close()
        for note in render.notes(result, self.format, detail):
            self.note(note)
        render.show(stamped, self.format, detail)
        if failed is not None:
            raise failed
        return code


@dataclass(frozen=True)
class Option:
    """An option or argument of a command.

    Attributes:
        kind: type of one value, with its `Range` or choices.  many: whether it can be repeated.
        default: `dataclasses.MISSING` if it is required.
        flags: its flags, `--name` and others.
        panel: of the help.  rare: only shown by --help-all.  settings: more for Typer, such as `metavar`.
        writes: what the command writes to the path that it names; None for any other option.
        alone: its value where it stands without one; None: it never does.
    """

    name: str
    kind: Any
    many: bool
    default: Any
    flags: Sequence[str]
    argument: bool
    help: str
    panel: str | None
    settings: Mapping[str, Any]
    writes: Literal["file", "folder", "either"] | None = None
    rare: bool = False
    alone: float | None = None

    @property
    def flag(self) -> bool:
        """Whether it takes no value."""
        return self.kind is bool

    @property
    def plain(self) -> bool:
        """Whether any text is a value."""
        return self.kind in (str, Path)

    @property
    def names_file(self) -> bool:
        """Whether a value is, or may be, the name of a file or folder."""
        return self.kind is Path or "FILE" in (self.settings.get("metavar") or "")

    def parse(self, text: str) -> Any:
        """Convert a text to a value.

        Raises:
            UsageError: the text has another type, or is out of range.
        """
        if self.plain:
            return self.kind(text)
        return spec.convert(text.strip(), self.kind, f"{self.flags[0]} ")

    def value(self, texts: Sequence[str]) -> Any:
        """Convert the texts that it is given in a command line to its value.

        Raises:
            UsageError: one of them is no value, or empty in place of the name of a file.
        """
        if self.names_file and "" in texts:  # "$X" with X empty must not mean the working folder
            shown = self.name.upper() if self.argument else self.flags[-1]
            raise UsageError(f"{shown} is empty", "name a file; is the variable that it comes from set?")
        values = [self.parse(text) for text in texts]
        return tuple(values) if self.many else values[0]


class Command:
    """A command with its options in the order of its parameters; it is called with a value for each option."""

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
        """The options by name."""
        return {one.name: one for options in self._fields.values() for one in options}

    def values(self, texts: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Convert the texts that a command line gives to options, by name, to the values of all options.

        Raises:
            UsageError: a text is no value of its option, or an option that is required has none.
        """
        values = {name: self.options[name].value(given) for name, given in texts.items()}
        for opt in sorted(self.options.values(), key=lambda one: not one.argument):
            if opt.name in values:
                continue
            if opt.default is dataclasses.MISSING:
                raise self._missing(opt)
            values[opt.name] = () if opt.many else opt.default
        return values

    def _missing(self, opt: Option) -> UsageError:
        from calibcli.cli import mistakes

        name = self.function.__module__.rpartition(".")[2]
        if opt.argument:
            fix = mistakes.instead_of_argument(self.function.__doc__ or "", name)
            return UsageError(f"missing argument '{opt.name}'", fix)
        flags = " / ".join(f"'{flag}'" for flag in opt.flags)
        return UsageError(f"missing option {flags}", mistakes.see_help(name))

    def __call__(self, **given: Any) -> int:
        """Run the command, and never write to a file that it reads."""
        try:
            with files.guarding(), as_options():
                return self._run(given)
        finally:
            extensions.register_progress(None)

    def _run(self, given: Mapping[str, Any]) -> int:
        plain = {key: tuple(value or ()) if self.options[key].many else value for key, value in given.items()}
        arguments = {}
        for name in sorted(self._fields, key=lambda name: name != "run"):  # `run` first: it redirects stdout
            kind, values = self._kinds[name], {one.name: plain[one.name] for one in self._fields[name]}
            arguments[name] = self._kinds[name](**values) if dataclasses.is_dataclass(kind) else values[name]
        for opt in self.options.values():  # before any work; files opened later are noted there
            files.reading(*(n for value in _values_of(opt, plain) for n in _inputs(opt, value)), pipes=True)
        for opt in self.options.values():
            for path in _values_of(opt, plain) if opt.writes else ():
                report = opt.name == "output"  # -o: a folder gets the report with its tables and figures as files
                either = not path.suffix if opt.writes == "either" else report and render.is_folder(path)
                files.claim(path, folder=opt.writes == "folder" or either)
                if report:
                    files.claim(*(file for file in render.files(path) if file != path))
        return self.function(**arguments)


def _values_of(opt: Option, given: Mapping[str, Any]) -> Sequence[Any]:
    """Return the values that an option was given, as a sequence even if it cannot be repeated."""
    value = given[opt.name]
    return value if opt.many else [] if value is None else [value]


def _inputs(opt: Option, value: Any) -> list[str]:
    """List the files that a value names: itself, or the file of `digits.npz#test` and `net.py:factory`."""
    if opt.writes or opt.kind not in (Path, str) or isinstance(value, bool):
        return []
    text = str(value)
    code = text.rpartition(":")[0]
    names = (text, text.partition("#")[0], code if code.endswith(".py") else "")
    return [name for name in names if os.path.isfile(name) or (opt.kind is Path and os.path.isdir(name))]


def takes(command: Callable[..., int]) -> Command:
    """Turn a function into a command.

    A parameter whose annotation is a dataclass gets an instance; those of its fields that are an `option` or `argument`
    are options of the command. The default of any other parameter is an `option` or `argument`. Numbers lie in the
    `Range` of their annotation, words are those of a `Literal`, and an option that is a tuple can be repeated.
    """
    return Command(command)


def _declared(name: str, kind: Any, default: Any) -> list[Option]:
    """Return the options that a parameter of a command stands for, those that are used most first."""
    if not dataclasses.is_dataclass(kind):
        return [_option(name, kind, default)]
    hints, panel = get_type_hints(kind, include_extras=True), getattr(kind, "PANEL", None)
    often = getattr(kind, "OFTEN", None)
    made = [
        _option(f.name, hints[f.name], f, panel, rare=often is not None and f.name not in often)
        for f in dataclasses.fields(kind)
        if "help" in f.metadata
    ]
    return sorted(made, key=lambda one: often.index(one.name) if often and not one.rare else len(made))


def _option(
    name: str, kind: Any, field: dataclasses.Field[Any], panel: str | None = None, rare: bool = False
) -> Option:
    settings = dict(field.metadata)
    kind, help, flags = settings.pop("kind", kind), settings.pop("help"), settings.pop("flags")
    writes, alone = settings.pop("writes", None), settings.pop("alone", None)
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not types.NoneType)
    many = get_origin(kind) is tuple
    return Option(
        name=name,
        kind=get_args(kind)[0] if many else kind,
        many=many,
        default=dataclasses.MISSING if field.default is ... else field.default,
        flags=flags or (f"--{name.replace('_', '-')}",),
        argument=(argument := settings.pop("argument", False)),
        help=help,
        panel=None if argument else panel,
        settings=settings,
        writes=writes,
        rare=rare,
        alone=alone,
    )
