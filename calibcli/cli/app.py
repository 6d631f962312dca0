"""`main(argv)`: run a command in a process, and map its outcome to an exit code.

It handles signals and closed streams, and hides warnings of libraries. Slow imports are inside functions, so that the
handler of Ctrl-C is installed first.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from calibcli.cli import limits, version
from calibcli.core import files
from calibcli.core.errors import CalibError, Exit, UsageError, printable


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
        from calibcli.cli import mistakes  # here, as a command without a mistake starts without it

        return _say(error.problem, mistakes.of_command(error.fix, args), error.code)
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
        if type(error).__name__ == "Abort":
            return _say("interrupted", "", Exit.INTERRUPTED)
        return _bug(error)


def _out_of_memory() -> int:
    return _say("out of memory", "use a smaller input, or fewer rows at a time", Exit.REFUSED)


def call(args: list[str]) -> int:
    """Run the command that these arguments name and return its exit code."""
    if args in (["--version"], ["-V"]):  # asked by scripts, so answered at once
        return version.show()
    from calibcli.cli import typed

    answer = typed.read(args)
    return answer if isinstance(answer, int) else int(answer())


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
