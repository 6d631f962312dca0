"""`main(argv)`: finds the command, runs it, and owns the mapping from what happened to an exit code."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from calibcli import __version__, cli, files
from calibcli.cli.process import ENDS, Terminated, surroundings
from calibcli.cli.run import TAKES, Run
from calibcli.errors import CalibError, Exit, UsageError

NOT_COMMANDS = {"app", "process", "run"}
COMMANDS = sorted(m.name for m in pkgutil.iter_modules(cli.__path__) if m.name not in NOT_COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `calib` with these arguments and return its exit code. Never raises, never leaves a traceback."""
    args = list(sys.argv[1:] if argv is None else argv)
    Run.argv = args
    with surroundings():
        return _outcome(args)


def _outcome(args: list[str]) -> int:
    try:
        code = _run(args)
        if code == Exit.INTERRUPTED:  # what Typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code
    except SystemExit:  # what Typer's Click makes of a reader that went away while it wrote
        return Run.latest_code
    except BrokenPipeError:  # the reader went away (`calib ... | head`): not an error
        _forget_stdout()
        return Run.latest_code
    except (KeyboardInterrupt, Terminated) as end:
        said, code = ENDS[type(end)]
        return _say(said, "", code)
    except CalibError as error:
        return _say(error.problem, error.fix, error.code)
    except MemoryError:
        return _say("out of memory", "use a smaller input, or fewer rows at a time", Exit.REFUSED)
    except ModuleNotFoundError as error:  # of an installation without everything
        missing = (error.name or "calibcli").partition(".")[0]
        if missing == "calibcli":
            return _bug(error)
        return _say(f"this needs {missing}, which is not installed", f"pip install {missing}", Exit.USAGE)
    except OSError as error:
        reason = files.no_room(error)
        if reason is None:
            return _bug(error)
        _forget_stdout()
        return _say(f"cannot write to stdout ({reason})", "free some space, or write elsewhere", Exit.USAGE)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's usage errors, whichever Click it carries
            return _say(_lower(error.format_message()), _usage_fix(error), Exit.USAGE)
        if type(error).__name__ == "Abort":
            return _say("interrupted", "", Exit.INTERRUPTED)
        return _bug(error)


def _forget_stdout() -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the interpreter flushes it at exit)


class Worded:
    """Shows types of arguments and flags, --help included, in the words of the options' (`run.TAKES`)."""

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
        for option in self.make_parser(ctx).parse_args(args=list(args))[2]:
            if not isinstance(option, TyperOption) or option.multiple or option.is_flag:
                continue
            if option.opts[0] in seen:
                raise UsageError(f"{option.opts[0]} was given more than once", "pass it once")
            seen.add(option.opts[0])
        return super().parse_args(ctx, args)


def build(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The Typer application with these commands. One command is built alone, so that others cost no start-up."""
    app = typer.Typer(
        cls=Group,
        help=cli_help(),
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
        app.command(name, cls=Command, rich_help_panel=module.PANEL)(_readers_tell(module.command))
    return app


def cli_help() -> str:
    return "Measure, fix and gate the calibration of a classifier, and the curvature of its loss."


def _readers_tell(command: Callable[..., int]) -> Callable[..., int]:
    """Leave it to a file's reader to say that it cannot be read, exit 4 as for a missing one; Typer would exit 2."""
    for hint in get_type_hints(command, include_extras=True).values():
        for about in getattr(hint, "__metadata__", ()):
            if hasattr(about, "readable"):
                about.readable = False
    return command


def _version(asked: bool) -> None:
    if asked:
        print(f"calib {__version__}")
        raise typer.Exit


def _run(args: list[str]) -> int:
    if not args:
        build()(["--help"], prog_name="calib", standalone_mode=False)
        return int(Exit.USAGE)
    names = [args[0]] if args and args[0] in COMMANDS else COMMANDS
    code = build(names)(args, prog_name="calib", standalone_mode=False)
    return int(code or 0)


def _bug(error: Exception) -> int:
    if os.environ.get("CALIB_TRACEBACK"):
        raise error
    fix = "this is a bug in calib; set CALIB_TRACEBACK=1 for the traceback and report it"
    return _say(f"{type(error).__name__}: {error}", fix, Exit.BUG)


def _usage_fix(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", None) or "calib"
    return f"see {path} --help"


def _lower(text: str) -> str:
    return (text[:1].lower() + text[1:]).rstrip(".")


def _say(problem: str, fix: str, code: Exit) -> int:
    print(f"error: {problem}" + (f"\n  fix: {fix}" if fix else ""), file=sys.stderr)
    return int(code)
