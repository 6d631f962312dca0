"""What can go wrong, said in one place: the problem, the fix, and the exit code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from enum import IntEnum
from typing import Any

MOST_NAMES = 10_000  # of a folder in which a name is looked for
LIKE = 5  # names that are suggested for another
WORD = 3  # letters from which on a name is looked for within others


COMMAND = ContextVar("COMMAND", default=False)  # whether a command runs, and not a function of Python


@contextlib.contextmanager
def as_options() -> Iterator[None]:
    """Errors of public functions keep the words of the command line as long as the block, a command, runs."""
    token = COMMAND.set(True)
    try:
        yield
    finally:
        COMMAND.reset(token)


class Exit(IntEnum):
    """Exit codes of `calib`. 70, 2 and 4 abort at once; otherwise the worst of 1 > 5 > 3 > 0."""

    OK = 0
    FAIL = 1  # a gate said FAIL; nothing else exits 1
    USAGE = 2  # the request was wrong
    INCONCLUSIVE = 3  # a gate could not decide and its rule says that fails
    REFUSED = 4  # an input was refused
    NOT_RUN = 5  # a gate could not run, or none was configured
    BUG = 70  # a bug in calib
    HUNG_UP = 129  # SIGHUP
    INTERRUPTED = 130  # Ctrl-C
    TERMINATED = 143  # SIGTERM


class CalibError(Exception):
    """A problem the user can act on.

    >>> try:
    ...     calibcli.measure(logits, labels, "eec")
    ... except calibcli.CalibError as error:
    ...     error.fix
    "did you mean 'ece'?"

    Args:
        problem: what was found, in lower case and without a full stop.
        fix: what would work instead.
    """

    code: Exit = Exit.REFUSED

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(problem)
        self.problem = printable(problem)
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}" if self.fix else self.problem


class UsageError(CalibError, ValueError):
    """The request itself was wrong: an option, a spec, a configuration file (exit 2). In Python, a `ValueError` too."""

    code = Exit.USAGE


class WriteError(UsageError):
    """A file could not be written: no room, or a medium that takes none (exit 2). Nothing of it is left behind."""


class InputError(CalibError, ValueError):
    """An input was read and refused (exit 4). In Python, a `ValueError` too."""

    code = Exit.REFUSED


class NoRows(InputError):
    """A file that is whole has no rows."""


@contextlib.contextmanager
def refusing(
    errors: type[BaseException] | tuple[type[BaseException], ...], problem: str | Callable[[Any], str], fix: str
) -> Iterator[None]:
    """What other code raises inside the block, as an `InputError`; `problem` may be a function of the error.

    Raises:
        InputError: one of `errors` was raised.
    """
    try:
        yield
    except errors as error:
        ours = tuple(one for one in (errors if isinstance(errors, tuple) else (errors,)) if issubclass(one, CalibError))
        if isinstance(error, CalibError) and not isinstance(error, ours):  # it says what is wrong already
            raise
        raise InputError(problem if isinstance(problem, str) else problem(error), fix) from None


class GateFailed(CalibError):
    """A gate did not pass; `code` is what the command would exit with."""

    code = Exit.FAIL


def printable(text: str, most: int = 800) -> str:
    """`text` without control characters, which could come from a file and steer a terminal, and of bounded length."""
    clean = "".join(c if c.isprintable() or c == "\n" else "?" for c in text[: most + 1])
    return clean[: most - 1] + "…" if len(clean) > most else clean


def like(name: str, known: Iterable[str]) -> list[str]:
    """The known names that a name may stand for, at most `LIKE`.

    The one that differs by a letter or so; else those that it is a whole word of, the shortest first; else the one
    closest in spelling; else those that hold it within a word.
    """
    import difflib
    import re

    known = list(known)
    within = [one for one in known if len(name) >= WORD and name.casefold() in one.casefold()]
    word = re.compile(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", re.IGNORECASE)  # words end at an underscore too
    whole = [one for one in within if word.search(one)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.85) or whole
    close = close or difflib.get_close_matches(name, known, n=1, cutoff=0.5) or within
    return sorted(close, key=len)[:LIKE]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is likeliest meant by `name`, or None when none is like it."""
    return next(iter(like(name, known)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A fix for a name that is not known: those like it, else the whole list."""
    known = list(known)
    *others, last = [f"'{one}'" for one in like(name, known)] or [""]
    if not last:
        return "choose from: " + ", ".join(known)
    return f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"


def check_path(path: object) -> str:
    """Return the fix for a file that cannot be read: where it is not there, the name in its folder that is nearest."""
    import itertools
    import os

    folder, name = os.path.split(str(path))
    if not name or "\0" in folder or os.path.lexists(str(path)):
        return "check the path"
    try:
        with os.scandir(folder or os.curdir) as entries:
            near = nearest(name, (entry.name for entry in itertools.islice(entries, MOST_NAMES)))
    except OSError:
        return "check the path"
    return f"did you mean '{printable(os.path.join(folder, near))}'?" if near else "check the path"


def check_keywords(given: Iterable[str], known: Collection[str], function: str) -> None:
    """Refuse keywords that a function of the Python API does not take.

    Raises:
        TypeError: there is one; says the nearest that it takes.
    """
    for name in given:
        if name not in known:
            near = did_you_mean(name, sorted(known))
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}': {near}")
