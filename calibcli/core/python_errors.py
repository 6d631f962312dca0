"""Errors as Python says them: `label_base=1` where the command line has `--label-base 1`."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from calibcli.core.errors import COMMAND, CalibError

F = TypeVar("F", bound=Callable[..., Any])
OPTION = re.compile(r"calib [a-z]+ [^;,)]*|--([a-z][a-z0-9-]*)(?:[ =]([^\s;)]+))?")
NAMES = {
    "method": "spec",
    "as": "kind_out",
    "from": "pilot",
    "confidence-scale": "scale",
}  # options that Python calls otherwise
VALUE = re.compile(r"-?\d[\w.,]*|[A-Z][A-Z_|,.]*|'[^']*'|\"[^\"]*\"|\S+[=/:#_]\S*\w|\w+(?:,\w+)+")
CHOICES = {"logits", "probabilities", "log_probabilities", "cpu", "cuda", "float32", "float64", "count", "sampling"}
LIMITS = ("max", "min", "margin")
NAMED = ("to", "event", "confidence")  # options that are followed by a name, never by prose


def in_python(function: F, name: str = "") -> F:
    """`function` by its public name, whose errors name its keywords; the same to `help`, editors and pickles."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except CalibError as error:
            if not COMMAND.get():
                error.problem, error.fix = (keywords(text, parameters) for text in (error.problem, error.fix))
            raise

    if "." not in function.__qualname__:
        call.__module__, call.__name__ = "calibcli", name or function.__name__  # where a pickle finds it
        call.__qualname__ = call.__name__
    return call  # type: ignore[return-value]


def keywords(text: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    """`text` with the options that a function has as keywords; others stay as they are.

    >>> known = inspect.signature(calibcli.measure).parameters
    >>> keywords("pass --label-base 1, or --drop-nonfinite (or --test FILE)", known)
    'pass label_base=1, or drop_nonfinite=True (or --test FILE)'
    """

    def said(found: re.Match[str]) -> str:
        if not found[1]:  # a whole command
            return found[0]
        name, after = found[1].replace("-", "_"), found[2] or ""
        name = name if name in parameters else NAMES.get(found[1], name)
        if name not in parameters or (name != "scores" and parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY):
            return found[0]
        value = after.rstrip(".,:")
        rest = after[len(value) :]
        kind = str(parameters[name].annotation)
        if "bool" in kind:
            return f"{name}=True" + found[0][len(found[1]) + 2 :]
        last = name in ("labels", "scores") and found.string[found.end() :][:1] in (";", ")", "")
        choice = last or f"'{value}'" in kind or f'"{value}"' in kind
        if not value or not (choice or name in NAMED or VALUE.fullmatch(value) or value in CHOICES):
            return f"{name}=" + found[0][len(found[1]) + 2 :]
        return f"{name}={repr(value) if choice else _literal(name, value)}{rest}"

    return OPTION.sub(said, text)


def _literal(name: str, value: str) -> str:
    if name in LIMITS and "=" in value:
        metric, _, limit = value.rpartition("=")
        return f"{{'{metric}': {limit}}}"
    if value[0] in "'\"" or re.fullmatch(r"-?\d+(\.\d+)?(e-?\d+)?", value):
        return value
    return repr(value)
