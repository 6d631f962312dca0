"""Validation of JSON that calib wrote, against the annotations of a dataclass; and reading of TOML.

Types, choices and ranges are in the annotations; conditions between fields are in the dataclass's own `problem()`.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from calibcli.core.errors import InputError, UsageError, printable
from calibcli.core.options import Range

FINITE = Range()
LISTS = (Sequence, list, tuple)
FLOATS = (float, float | None)
NAMES = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", Any: "anything"}


DEEPEST = 16  # most levels of lists and tables inside one another in a TOML file


def toml(text: str, source: str) -> dict[str, Any]:
    """Parse TOML from an untrusted file.

    Args:
        text: contents of the file.  source: its name, for messages.

    Returns:
        The tables. Whole numbers have at most 64 bits, texts no NUL, and nesting is at most `DEEPEST` deep.

    Raises:
        UsageError: the text is not TOML, or has a value that no option can have.
    """
    import tomllib  # needed only when a file of TOML is read

    try:
        tables: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        raise UsageError(f"{source} is not TOML ({problem[:1].lower()}{problem[1:]})", "correct that line") from None
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError:  # Python refuses to convert numbers of more than 4,300 digits
        raise _too_large(source) from None
    _check_toml(tables, source, DEEPEST)
    return tables


def _check_toml(value: Any, source: str, depth: int) -> None:
    if isinstance(value, dict | list):
        if not depth:
            raise _too_deep(source)
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_toml(part, source, depth - 1)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise _too_large(source)
    elif isinstance(value, str) and "\0" in value:
        raise UsageError(f"{source} has a text with a NUL character", "leave it out")


def _too_deep(source: str) -> UsageError:
    return UsageError(f"{source} is nested too deeply", "write tables and lists with fewer brackets")


def _too_large(source: str) -> UsageError:
    return UsageError(f"{source} has a whole number of more than 64 bits", "write a smaller one")


def read(data: Any, kind: Any, source: str, fix: str, key: str = "") -> Any:
    """Convert plain data to `kind`: a mapping to a dataclass (unknown keys are ignored), lists, choices, numbers.

    Args:
        data: the output of `json.loads`, or the plain data of a state.
        kind: a type or annotation: dataclass, Sequence[T], tuple[T, ...], Mapping[str, T], Literal, X | None, Annotated
            with a Range, bool, int, float, str, Any. Sequences of numbers may have gaps (None).
        source: name of the file, for messages.
        fix: the fix that errors have.
        key: the place of `data` in the file, `estimates[3].low`.

    Raises:
        InputError: the data do not fit; the message has the file, the key, the value and what would fit.
    """
    origin, args = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(data, kind, source, fix, key)
    if origin in (Union, types.UnionType):
        if data is None and type(None) in args:
            return None
        fitting = [arg for arg in args if arg is not type(None) and _fits(data, arg)]
        return read(data, (fitting or [a for a in args if a is not type(None)])[0], source, fix, key)
    if not _fits(data, kind) or (origin is Annotated and any(isinstance(a, Range) and data not in a for a in args)):
        raise wrong(data, words(kind), source, fix, key)
    if origin in LISTS:
        every = {*map(type, data)}  # thousands of texts, or of finite numbers, at once
        if every <= {str} if args[0] is str else args[0] in FLOATS and every <= {float} and sum(map(abs, data)) < 1e308:
            return list(data)
        return [
            None if v is None and args[0] is float else read(v, args[0], source, fix, f"{key}[{i}]")
            for i, v in enumerate(data)
        ]
    if origin in (Mapping, dict):
        return {k: read(v, args[1], source, fix, f"{key}.{k}" if key else str(k)) for k, v in data.items()}
    return data


def wrong(value: Any, wanted: str, source: str, fix: str, key: str) -> InputError:
    """Make the error for one value."""
    shown = printable(repr(value), 60) if not isinstance(value, int) or abs(value) < 10**40 else "a very large number"
    return InputError(f"{source}: {printable(key, 80) or 'the file'} is {shown}, not {wanted}", fix)


def words(kind: Any) -> str:
    """Describe the values of an annotation."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = next((str(a) for a in args[1:] if isinstance(a, Range)), "")
        return f"{words(args[0]).replace('finite ', '')} {limits}"
    if origin is Literal:
        return " or ".join(repr(arg) for arg in args)
    if origin in LISTS:
        return "a list"
    return NAMES.get(kind, "a table of keys and values")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _dataclass(data: Any, kind: Any, source: str, fix: str, key: str) -> Any:
    if not isinstance(data, Mapping):
        raise wrong(data, "a table of keys and values", source, fix, key)
    hints = _hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        place = f"{key}.{field.name}" if key else field.name
        if field.name in data:
            values[field.name] = read(data[field.name], hints[field.name], source, fix, place)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InputError(f"{source}: {place} is missing", fix)
    instance = kind(**values)
    problem = instance.problem() if hasattr(instance, "problem") else ""
    if problem:
        raise InputError(f"{source}: {key + ': ' if key else ''}{problem}", fix)
    return instance


def _fits(data: Any, kind: Any) -> bool:
    """Whether `data` has the type, without regard to its items."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is Annotated:
        return _fits(data, args[0])
    if origin is Literal:
        return any(type(data) is type(arg) and data == arg for arg in args)
    if kind is float:
        return isinstance(data, int | float) and not isinstance(data, bool) and data in FINITE and abs(data) < 1.7e308
    if kind is int:
        return isinstance(data, int) and not isinstance(data, bool)
    if origin in LISTS:
        return isinstance(data, list | tuple)
    if origin in (Mapping, dict) or dataclasses.is_dataclass(kind):
        return isinstance(data, Mapping) and all(isinstance(k, str) for k in data)
    return isinstance(data, kind)
