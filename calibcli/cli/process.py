"""The process around a command: signals, streams that may be gone, warnings that are no words of ours, its rank.

Imported before anything slow, so that Ctrl-C never meets a Python that has no handler yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from calibcli.errors import Exit


class Terminated(BaseException):
    """SIGTERM arrived; long runs save what they have on the way out."""


class HungUp(Terminated):
    """SIGHUP arrived: the terminal is gone."""


ENDS: dict[type[BaseException], tuple[str, Exit]] = {
    KeyboardInterrupt: ("interrupted", Exit.INTERRUPTED),
    Terminated: ("terminated", Exit.TERMINATED),
    HungUp: ("the terminal is gone", Exit.HUNG_UP),
}
SIGNALS: dict[int, type[BaseException]] = {
    getattr(signal, name): kind
    for name, kind in (("SIGINT", KeyboardInterrupt), ("SIGTERM", Terminated), ("SIGHUP", HungUp))
    if hasattr(signal, name)
}


def speaks() -> bool:
    """Whether this is the first of the processes that torchrun started, or the only one: no other has a say."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """What a command runs in; all as before on the way out.

    Signals raise what `SIGNALS` says, or end the process at once where it is only importing. What is written to a
    closed stream, or to a stderr that takes no more, goes nowhere. Warnings of libraries are kept back unless Python
    was asked for them (`-W`, `PYTHONWARNINGS`).
    """
    before = {number: handler for number in SIGNALS if (handler := _take(number)) is not None}
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`calib ... >&-`)
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until the interpreter ends)
    stdout, stderr = sys.stdout, sys.stderr
    sys.stderr = Forgiving(stderr)
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            yield
    finally:
        if sys.stdout is sys.stderr:  # of a run that did not finish
            sys.stdout = stdout
        sys.stderr = stderr
        for number, handler in before.items():
            signal.signal(number, handler)


class Forgiving:
    """A stream whose words may be lost: a full disk or a closed terminal behind stderr changes no exit code."""

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
    """The former handler of a signal; None where the caller owns it or a script's background job ignores it."""
    if signal.getsignal(number) is signal.SIG_IGN:
        return None
    try:
        return signal.signal(number, _act) or signal.SIG_DFL
    except ValueError:  # not the main thread
        return None


def _act(number: int, frame: FrameType | None) -> NoReturn:
    kind = SIGNALS[number]
    if _importing(frame):  # an exception there comes out as another, or as "Exception ignored in ..."
        said, code = ENDS[kind]
        with contextlib.suppress(OSError):
            os.write(2, f"error: {said}\n".encode())
        os._exit(code)
    raise kind


def _importing(frame: FrameType | None) -> bool:
    """Whether an import is under way that a command of calib began."""
    while frame is not None and not (frame.f_code.co_name == "main" and "calibcli" in frame.f_code.co_filename):
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False
