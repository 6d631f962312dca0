"""`main(argv)`: run a command in a process, and map its outcome to an exit code.

It finds commands by name, handles signals and closed streams, and hides warnings of libraries. Slow imports are inside
functions, so that the handler of Ctrl-C is installed first.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import pkgutil
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from calibcli import __version__, cli
from calibcli.cli import limits
from calibcli.core import files
from calibcli.core.errors import CalibError, Exit, UsageError, printable

OTHERS = ("app", "limits", "run", "typed")  # files that are not commands
COMMANDS = sorted(m.name for m in pkgutil.iter_modules(cli.__path__) if m.name not in OTHERS)


class Terminated(BaseException):
    """SIGTERM arrived; long runs save their state before they end."""


class HungUp(Terminated):
    """SIGHUP arrived: the terminal was closed."""


class TimedOut(Terminated):
    """SIGALRM arrived: the time of `--time-limit` has passed."""


ENDS: dict[type[BaseException], tuple[str, Exit]] = {
    KeyboardInterrupt: ("interrupted", Exit.INTERRUPTED),
    Terminated: ("terminated", Exit.TERMINATED),
    HungUp: ("the terminal is gone", Exit.HUNG_UP),
    TimedOut: ("the time limit has passed", Exit.REFUSED),
}
SIGNALS: dict[int, type[BaseException]] = {
    getattr(signal, name): kind
    for name, kind in zip(("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM"), ENDS)
    if hasattr(signal, name)
}

RARELY = 20_000, 20, 20  # objects between two searches for cycles: by default (700) a sixth of the time of many files
CURSOR = "\r\x1b[2K\x1b[?25h"  # takes a progress bar away and shows the cursor again


def main(argv: Sequence[str] | None = None) -> int:
    """Run `calib` with these arguments and return its exit code. Never raises, never leaves a traceback."""
    with surroundings():
        return _outcome(list(sys.argv[1:] if argv is None else argv))


def _outcome(args: list[str]) -> int:
    from calibcli.cli.run import CommandRun

    CommandRun.argv = args
    try:
        if any("\0" in word for word in args):
            raise UsageError("a word of the command line has a NUL character", "leave it out")
        code = call(args)
        if code == Exit.INTERRUPTED:  # as Typer reports Ctrl-C
            raise KeyboardInterrupt
        sys.stdout.flush()
        return code
    except SystemExit:  # as Click reports that the reader of stdout closed it
        return CommandRun.latest_code
    except BrokenPipeError:  # the reader closed stdout (`calib ... | head`): not an error
        _forget_stdout()
        return CommandRun.latest_code
    except TimedOut:
        return _say(limits.passed(), limits.FIX, Exit.REFUSED)
    except (KeyboardInterrupt, Terminated) as end:
        message, code = ENDS[type(end)]
        return _say(message, "", code)
    except CalibError as error:
        return _say(error.problem, error.fix, error.code)
    except MemoryError:
        return _out_of_memory()
    except ModuleNotFoundError as error:  # an optional package is not installed
        missing = (error.name or "calibcli").partition(".")[0]
        if missing == "calibcli":
            return _bug(error)
        return _say(f"this needs {missing}, which is not installed", f"pip install {missing}", Exit.USAGE)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return _say(f"the name '{printable(str(error.filename), 80)}' is too long", "shorten it", Exit.USAGE)
        reason = files.no_room(error)
        if reason is None:
            return _bug(error)
        _forget_stdout()
        return _say(f"cannot write to stdout ({reason})", "free some space, or write elsewhere", Exit.USAGE)
    except Exception as error:
        if "can't allocate memory" in str(error):  # torch's RuntimeError
            return _out_of_memory()
        if hasattr(error, "format_message"):  # typer's usage errors, whichever Click it carries
            message, command = error.format_message().rstrip("."), getattr(error, "ctx", None)
            path = getattr(command, "command_path", None) or "calib"
            return _say(message[:1].lower() + message[1:], _usage_fix(message, path, args), Exit.USAGE)
        if type(error).__name__ == "Abort":
            return _say("interrupted", "", Exit.INTERRUPTED)
        return _bug(error)


def _out_of_memory() -> int:
    return _say("out of memory", "use a smaller input, or fewer rows at a time", Exit.REFUSED)


def _usage_fix(message: str, path: str, args: list[str]) -> str:
    """Return what would work in place of a line that Typer refuses: the nearest command or option, else the help."""
    import re
    import shlex

    from calibcli.core.errors import nearest

    if message.startswith("No such command") and args:
        near = nearest(args[0], COMMANDS)
        if os.path.exists(args[0]):
            return f"name a command first: calib metrics {shlex.join(args)}"
        return f"did you mean: calib {shlex.join([near, *args[1:]])}" if near else f"see {path} --help"
    wrong = re.match(r"No such option: (\S+).*?(?:\(Possible options: (.*)\)|Did you mean (.*?)\??)$", message)
    if message.startswith("Missing argument") and args and args[0] in COMMANDS:
        about = importlib.import_module(f"calibcli.cli.{args[0]}").command.function.__doc__ or ""
        if example := re.search(r"Example: (.*)", about):
            return f"for example: {example[1]}"
    if wrong and (spec := _spec_with(wrong[1], args)):
        return f"it is an option of a spec: {spec}"
    if wrong and (elsewhere := _command_with(wrong[1], args)):
        return elsewhere
    if wrong:
        near = nearest(wrong[1], re.findall(r"--?[\w-]+", wrong[2] or wrong[3]))
        return f"did you mean {near}? see {path} --help" if near else f"see {path} --help"
    return f"see {path} --help"


def _spec_with(flag: str, args: list[str]) -> str:
    """Return `--loss focal:gamma=3` for the line `--loss focal --gamma 3`; "" if no entry named has that option."""
    import itertools

    from calibcli.api.catalogue import SHELVES
    from calibcli.core.options import normal

    name = flag.lstrip("-")
    words = [part for word in args for part in (word.split("=", 1) if word.startswith(f"{flag}=") else [word])]
    value = next((after for word, after in itertools.pairwise(words) if word == flag), "VALUE")
    for option, spec in itertools.pairwise(args):
        for one in SHELVES.values():
            if (
                f" {option}" in f" {one.option}"
                and spec in one.shelf
                and normal(name) in one.shelf.entries[normal(spec)].options
            ):
                return f"{option} {spec}:{normal(name)}={value}"
    return ""


def _command_with(flag: str, args: list[str]) -> str:
    """Return the commands that have an option which this one lacks; "" if there are none. `calib check` comes first: it
    decides about limits. Only its line is given, after one file: an option may mean something else in other commands.
    """
    first = sorted(COMMANDS, key=lambda name: name != "check")
    known = {name: _flags(name) for name in first}
    owners = [name for name in first if flag in known[name]]
    if not owners:
        return ""
    import shlex

    given = {word.split("=", 1)[0] for word in args if word.startswith("-")}
    one_file = not args[1].startswith("-") and args[2].startswith("-") if len(args) > 2 else False
    works = owners[0] == "check" and one_file and given <= known["check"]
    line = f"calib {shlex.join([owners[0], *args[1:]])}" if works else f"see calib {owners[0]} --help"
    return f"{flag} is an option of calib {', '.join(owners)}: {line}"


def _flags(command: str) -> set[str]:
    """Return the flags of a command's options, as `--max` and `-o`."""
    options = importlib.import_module(f"calibcli.cli.{command}").command.options
    return {flag for one in options.values() if not one.argument for flag in one.flags}


def call(args: list[str]) -> int:
    """Run the command that these arguments name and return its exit code. Typer is only loaded if it is needed."""
    from calibcli.cli.run import COMPLETION, parsed

    if args in (["--version"], ["-V"]):
        return _version()
    if args[:1] == ["help"]:  # `calib help metrics`, as in git
        args = [*args[1:], "--help"]
    if args and args[0] in COMMANDS and COMPLETION not in os.environ:
        command = importlib.import_module(f"calibcli.cli.{args[0]}").command
        given = parsed(args[1:], command.options)
        if given is not None:
            return int(command(**given))
    from calibcli.cli import typed

    return typed.call(args, COMMANDS)


def _version() -> int:
    """Print the version, and how calib is installed where two ways get in each other's way."""
    from importlib.metadata import PackageNotFoundError, distribution

    print(f"calib {__version__}")
    try:
        distribution("calibcli-core")
        apart = any(one.startswith("calibcli-core") for one in distribution("calibcli").requires or ())
    except PackageNotFoundError:  # the usual case: one of them
        return int(Exit.OK)
    if not apart:
        note = "calibcli of a clone and calibcli-core are both installed, and hold the same files"
        print(f"note: {note}; leave one: pip uninstall calibcli calibcli-core, then install it again", file=sys.stderr)
    return int(Exit.OK)


def _forget_stdout() -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (the interpreter flushes it at exit)


def _bug(error: Exception) -> int:
    if os.environ.get("CALIB_TRACEBACK"):
        raise error
    fix = "this is a bug in calib; set CALIB_TRACEBACK=1 for the traceback and report it"
    return _say(f"{type(error).__name__}: {error}", fix, Exit.BUG)


def _say(problem: str, fix: str, code: Exit) -> int:
    text = f"error: {problem}" + (f"\n  fix: {fix}" if fix else "")
    if sys.stderr.isatty():
        from calibcli.render import terminal

        terminal.close()
        text = terminal.fitted(text, sys.stderr)
    print(text, file=sys.stderr)
    return int(code)


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """Set up signals, streams and warnings for a command, and restore them afterwards.

    Signals raise the exceptions of `SIGNALS`, or end the process at once during an import. Output to a closed stream,
    or to a stderr that cannot be written, is discarded. Warnings of libraries are hidden unless the user asked Python
    for them (`-W`, `PYTHONWARNINGS`).
    """
    before = {number: handler for number in SIGNALS if (handler := _take(number)) is not None}
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`calib ... >&-`)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until the interpreter ends)
    stdout, stderr = sys.stdout, sys.stderr
    sys.stderr = LossyStream(stderr)
    threshold = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            yield
    finally:
        if sys.stdout is sys.stderr:  # the run did not finish
            sys.stdout = stdout
        sys.stderr = stderr
        gc.set_threshold(*threshold)
        limits.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


class LossyStream:
    """A stream that ignores errors of writing: a full disk or a closed terminal behind stderr changes no exit code."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def _take(number: int) -> Any:
    """Install our handler of a signal and return the former one; None if the signal is left alone.

    Background jobs of scripts ignore Ctrl-C, and outside the main thread the caller decides.
    """
    if signal.getsignal(number) is signal.SIG_IGN:
        return None
    try:
        return signal.signal(number, _act) or signal.SIG_DFL
    except ValueError:  # not the main thread
        return None


def _act(number: int, frame: FrameType | None) -> NoReturn:
    kind = SIGNALS[number]
    if _importing(frame):  # an exception during an import may become another, or "Exception ignored in ..."
        message, code = ENDS[kind]
        with contextlib.suppress(OSError):
            os.write(2, f"{CURSOR if os.isatty(2) else ''}error: {message}\n".encode())
        os._exit(code)
    raise kind


def _importing(frame: FrameType | None) -> bool:
    """Whether an import by a command of calib is in progress."""
    while frame is not None and not (frame.f_code.co_name == "main" and "calibcli" in frame.f_code.co_filename):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
