"""What calls from Python get that commands do not: errors that name keywords (`label_base=1` instead of `--label-base
1`), and the logger `calibcli`, to which notes go at level INFO and progress at level DEBUG.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from calibcli.core import extensions
from calibcli.core.errors import COMMAND, CalibError

DEBUG = 10  # the level of `logging`
F = TypeVar("F", bound=Callable[..., Any])
OPTION = re.compile(r"calib [a-z]+ [^;,)]*|--([a-z][a-z0-9-]*)(?:[ =]([^\s;)]+))?")
NAMES = {
    "method": "spec",
    "as": "kind_out",
    "from": "pilot",
    "confidence-scale": "scale",
}  # options whose keyword has another name
VALUE = re.compile(r"-?\d[\w.,]*|[A-Z][A-Z_|,.]*|'[^']*'|\"[^\"]*\"|\S+[=/:#_]\S*\w|\w+(?:,\w+)+")
CHOICES = {
    "logits",
    "probabilities",
    "log_probabilities",
    "cpu",
    "cuda",
    "float32",
    "float64",
    "count",
    "sampling",
    "drop",
    "wrong",
    "sum",
    "percent",
}
LIMITS = ("max", "min", "margin")
NAMED = ("to", "event", "confidence")  # options that are always followed by a value, never by prose


QUOTES = "'\""
COLUMNS = ("labels", "scores", "predicted")
"""Keywords whose value is a name in the file, where the option ends the advice or another option follows."""


def in_python(function: F, name: str = "", made_by: Callable[..., Any] | None = None) -> F:
    """Wrap a public function so that its errors name its keywords; `help`, editors and pickles see no difference.

    Of a method, errors may name those of the function that its object was `made_by` instead.
    """
    parameters = inspect.signature(made_by or function).parameters

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if COMMAND.get():
                return function(*args, **kwargs)
            logger = _logger()
            with extensions.reporting(_progress) if logger.isEnabledFor(DEBUG) else contextlib.nullcontext():
                result = function(*args, **kwargs)
            for note in getattr(result, "notes", ()):
                logger.info("%s", note)
            return result
        except CalibError as error:
            if not COMMAND.get():
                error.problem, error.fix = (keywords(text, parameters) for text in (error.problem, error.fix))
            raise

    if "." not in function.__qualname__:
        call.__module__, call.__name__ = "calibcli", name or function.__name__  # where pickle looks it up
        call.__qualname__ = call.__name__
    return call  # type: ignore[return-value]


@functools.cache
def _logger() -> Any:
    """Return the logger; a program that uses calib decides what is shown. Commands do without this import."""
    import logging

    logger = logging.getLogger("calibcli")
    logger.addHandler(logging.NullHandler())
    return logger


def _progress(fraction: float, text: str) -> None:
    _logger().debug("%3.0f %% %s", 100 * fraction, text)


def keywords(text: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """Replace the options in `text` that a function has as keywords; other options stay.

    >>> known = inspect.signature(calibcli.measure).parameters
    >>> keywords("pass --label-base 1, or --drop-nonfinite (or --test FILE)", known)
    'pass label_base=1, or drop_nonfinite=True (or --test FILE)'
    """

    def keyword(match: re.Match[str]) -> str:
        if not match[1]:  # a whole command line, which is run as it is
            return match[0]
        name, after = match[1].replace("-", "_"), match[2] or ""
        name = name if name in parameters else NAMES.get(match[1], name)
        if name not in parameters or (name != "scores" and parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY):
            return match[0]
        value = after.rstrip(".,:")
        punctuation = after[len(value) :]
        kind = str(parameters[name].annotation)
        if "bool" in kind and not ("float" in kind and VALUE.fullmatch(value)):
            return f"{name}=True" + match[0][len(match[1]) + 2 :]
        after = match.string[match.end() :]
        last = name in COLUMNS and (after[:1] in (";", ")", "") or after.startswith((" --", " or --", " if ")))
        choice = last or f"'{value}'" in kind or f'"{value}"' in kind
        if not value or not (choice or name in NAMED or VALUE.fullmatch(value) or value in CHOICES):
            return f"{name}=" + match[0][len(match[1]) + 2 :]
        return f"{name}={repr(value) if choice and value[0] not in QUOTES else _literal(name, value)}{punctuation}"

    return OPTION.sub(keyword, text)


def _literal(name: str, value: str) -> str:
    if name in LIMITS and "=" in value:
        metric, _, limit = value.rpartition("=")
        return f"{{'{metric}': {limit}}}"
    if value[0] in QUOTES or re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", value):
        return value
    return repr(value)
