"""Errors that a user can act on: each has the problem, a fix and an exit code; and suggestions for misspelt names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from enum import IntEnum
from typing import Any

MOST_NAMES = 10_000  # files of a folder that are compared with a misspelt name
LIKE = 5  # names that are suggested at most
WORD = 3  # letters: shorter texts occur in almost any name


COMMAND = ContextVar("COMMAND", default=False)  # true inside a command, false in a call from Python


@contextlib.contextmanager
def as_options() -> Iterator[None]:
    """Let errors name options (`--label-base 1`) instead of keywords while the block, a command, runs."""
    token = COMMAND.set(True)
    try:
        yield
    finally:
        COMMAND.reset(token)


class Exit(IntEnum):
    """Exit codes of `calib`. 70, 2 and 4 abort at once; otherwise the worst of 1 > 5 > 3 > 0."""

    OK = 0
    FAIL = 1  # a gate failed; nothing else exits with 1
    USAGE = 2  # the request was wrong
    INCONCLUSIVE = 3  # a gate could not decide, and its rule counts that as a failure
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
    """A file could not be written, because the disk is full or read-only (exit 2). No partial file is left behind."""


class InputError(CalibError, ValueError):
    """An input was read and refused (exit 4). In Python, a `ValueError` too."""

    code = Exit.REFUSED


class NoRows(InputError):
    """A file is complete and readable but has no rows."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error of other code, cut; its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0][:100]


@contextlib.contextmanager
def refusing(
    errors: type[BaseException] | tuple[type[BaseException], ...], problem: str | Callable[[Any], str], fix: str
) -> Iterator[None]:
    """Turn errors that other code raises inside the block into an `InputError`.

    Args:
        errors: types of errors that mean that the input is wrong; a `CalibError` passes unless it is listed here.
        problem: what is wrong, or a function of the error that says it.
        fix: what would work instead.

    Raises:
        InputError: one of `errors` was raised in the block.
    """
    try:
        yield
    except errors as error:
        ours = tuple(one for one in (errors if isinstance(errors, tuple) else (errors,)) if issubclass(one, CalibError))
        if isinstance(error, CalibError) and not isinstance(error, ours):  # has a problem and a fix of its own
            raise
        raise InputError(problem if isinstance(problem, str) else problem(error), fix) from None


class GateFailed(CalibError):
    """A gate did not pass; `code` is the exit code of the command."""

    code = Exit.FAIL


def printable(text: str, most: int = 800) -> str:
    """Replace control characters, which come from files and could steer a terminal, and cut `text` at `most`."""
    clean = "".join(c if c.isprintable() or c == "\n" else "?" for c in text[: most + 1])
    return clean[: most - 1] + "…" if len(clean) > most else clean


def like(name: str, names: Iterable[str]) -> list[str]:
    """Find the known names that a misspelt name may stand for, at most `LIKE`.

    The first rule that finds any decides: the name that differs by a letter or so; names that have it as a whole word,
    the shortest first; the name closest in spelling; names that contain it.
    """
    import difflib
    import re

    names = list(names)
    within = [one for one in names if len(name) >= WORD and name.casefold() in one.casefold()]
    word = re.compile(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", re.IGNORECASE)  # words end at an underscore too
    whole = [one for one in within if word.search(one)]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.85) or whole
    close = close or difflib.get_close_matches(name, names, n=1, cutoff=0.5) or within
    return sorted(close, key=len)[:LIKE]


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the known name most similar to `name`, or None if no name is similar."""
    return next(iter(like(name, names)), None)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Write the fix for an unknown name: similar names, else all of them."""
    names = list(names)
    *others, last = [f"'{one}'" for one in like(name, names)] or [""]
    if not last:
        return "choose from: " + ", ".join(names)
    return f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"


def check_path(path: object) -> str:
    """Write the fix for a file that cannot be read; if there is none of that name, suggest the most similar one."""
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


def check_keywords(given: Iterable[str], accepted: Collection[str], function: str) -> None:
    """Refuse keywords that a function of the Python API does not take.

    Raises:
        TypeError: there is such a keyword; the message suggests a known one.
    """
    for name in given:
        if name not in accepted:
            near = did_you_mean(name, sorted(accepted))
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}': {near}")
