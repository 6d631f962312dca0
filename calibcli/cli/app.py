"""`main(argv)`: finds the command, runs it, and owns the mapping from what happened to an exit code."""

from __future__ import annotations

import errno
import importlib
import os
import pkgutil
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from calibcli import __version__, cli
from calibcli.cli.run import Run
from calibcli.errors import CalibError, Exit

NOT_COMMANDS = {"app", "loading", "options", "reading", "run"}
COMMANDS = sorted(m.name for m in pkgutil.iter_modules(cli.__path__) if m.name not in NOT_COMMANDS)


class Terminated(BaseException):
    """SIGTERM arrived; long runs save what they have on the way out."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `calib` with these arguments and return its exit code. Never raises, never leaves a traceback."""
    args = list(sys.argv[1:] if argv is None else argv)
    Run.argv = args
    _open_closed_streams()
    stdout, previous = sys.stdout, _on_sigterm()
    try:
        code = _run(args)
        if code == Exit.INTERRUPTED:  # what Typer makes of Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code
    except SystemExit:  # what Typer's Click makes of a reader that went away while it wrote
        return Run.latest_code
    except BrokenPipeError:  # the reader went away (`calib ... | head`): not an error
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the interpreter flushes it at exit)
        return Run.latest_code
    except KeyboardInterrupt:
        return _say("interrupted", "", Exit.INTERRUPTED)
    except Terminated:
        return _say("terminated", "", Exit.TERMINATED)
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
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            return _bug(error)
        return _say(f"cannot write ({_lower(str(error.strerror))})", "free some space, or write elsewhere", Exit.USAGE)
    except Exception as error:
        if hasattr(error, "format_message"):  # typer's usage errors, whichever Click it carries
            return _say(_lower(error.format_message()), _usage_fix(error), Exit.USAGE)
        if type(error).__name__ == "Abort":
            return _say("interrupted", "", Exit.INTERRUPTED)
        return _bug(error)
    finally:
        if sys.stdout is sys.stderr:  # of a run that did not finish
            sys.stdout = stdout
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def build(names: Sequence[str] = COMMANDS) -> typer.Typer:
    """The Typer application with these commands. One command is built alone, so that others cost no start-up."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=cli_help())

    @app.callback()
    def top(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
        ] = False,
    ) -> None:
        """Options of calib itself."""

    for name in names:
        module = importlib.import_module(f"calibcli.cli.{name}")
        app.command(name, rich_help_panel=module.PANEL)(module.command)
    return app


def cli_help() -> str:
    return "Measure, fix and gate the calibration of a classifier, and the curvature of its loss."


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


def _open_closed_streams() -> None:
    """A closed stdout or stderr (`calib ... >&-`) is None in Python: what is written there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until the interpreter ends)


def _on_sigterm() -> Any:
    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    try:
        return signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not the main thread: the caller owns the signals
        return None


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
