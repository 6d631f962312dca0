"""Types of options, with the ranges of numbers; conversion of text to them, and checks of values against them."""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from calibcli.core.errors import UsageError, check_keywords, did_you_mean

P = ParamSpec("P")
T = TypeVar("T")


@functools.lru_cache(maxsize=1 << 12)  # the same names in each of many files
def normal(name: str) -> str:
    """Return `name` in lower case with `_` for `-`: both are the same in every spec."""
    return name.strip().lower().replace("-", "_")


def whole(text: str) -> int:
    """Parse a whole number in decimal digits; `1_0`, which `int` reads as 10, is refused.

    Raises:
        ValueError: the text is no such number, or has more digits than Python converts.
    """
    return int(_plain(text))


def real(text: str) -> float:
    """Parse a number, without underscores like `whole`; `nan` and `inf` are numbers.

    Raises:
        ValueError: the text is no number.
    """
    return float(_plain(text))


def _plain(text: str) -> str:
    if "_" in text:
        raise ValueError(f"'{text[:40]}' has an underscore")
    return text


@dataclass(frozen=True)
class Range:
    """The range of numbers that an option takes, in its annotation: `bins: Annotated[int, Range(1, 100_000)] = 15`.

    Attributes:
        low, high: ends, included unless `open_low` or `open_high`; infinities are never included.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        if not -math.inf < value < math.inf:  # nan too; a whole number of 401 digits is no float
            return False
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        """Describe the range: `at least 1`, `more than 0`, `from 0 to 1`, `at least 0 and less than 1`."""
        low, high = (text if len(text := f"{end:.15g}") <= 12 else f"{end:.4g}" for end in (self.low, self.high))
        ends = [] if math.isinf(self.low) else [f"{'more than' if self.open_low else 'at least'} {low}"]
        ends += [] if math.isinf(self.high) else [f"{'less than' if self.open_high else 'at most'} {high}"]
        if len(ends) == 2 and not (self.open_low or self.open_high):
            return f"from {low} to {high}"
        return " and ".join(ends) or "finite"


Share = Annotated[float, Range(0, 1)]
Cut = Annotated[float, Range(1e-300, 0.5, open_high=True)]  # a probability that smaller ones are raised to
CUT = 1e-15  # of `--clip` without a value
NotNegative = Annotated[float, Range(0, 1e9)]
Positive = Annotated[float, Range(1e-9, 1e9)]
Edges = Literal["right", "left", "torchmetrics"]  # the end of a bin that belongs to it
Style = Literal["screen", "paper"]  # figure style: for a page of its own, or for the column of a paper
Drawn = Literal["corp", "bars", "smooth", "decision"]
"""What a reliability diagram draws: isotonic regression, bins, a smooth curve, or bins and a decision curve below."""
Count = Annotated[int, Range(1, 1_000)]  # of bins; bounded, since bounds need a matrix of bins by bins
BINS = 15  # of all binned metrics, unless asked; as in Guo et al. (2017)
Alpha = Annotated[float, Range(1e-6, 0.25)]  # below, 1 - alpha / claims has no normal quantile in float64
Level = Annotated[float, Range(0.5, 1 - 1e-12)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Power = Annotated[float, Range(0.5, 0.999)]
Accuracy = Annotated[float, Range(0.05, 1, open_high=True)]
Classes = Annotated[int, Range(2, 100_000)]
Folds = Annotated[int, Range(2, 1_000)]
Limit = Annotated[float, Range(-1e9, 1e9)]
Rows = Annotated[int, Range(1, 10**9)]
Seeds = Annotated[int, Range(1, 10_000)]  # of an experiment, which runs once for each
Jobs = Annotated[int, Range(1, 1_000)]  # processes at once
OrNone = Annotated[int, Range(0, 10**9)]  # 0 means none, never or all
Epochs = Annotated[int, Range(1, 1_000_000)]
LearningRate = Annotated[float, Range(0, 1e30, open_low=True)]
Warmup = Annotated[float, Range(0, 1, open_high=True)]
Depth = Annotated[int, Range(1, 3)]  # conditions that a slice may combine
PerYear = Annotated[float, Range(1e-6, 1)]
Nats = Annotated[float, Range(0.7, 100)]
Label = Annotated[int, Range(-(2**31), 2**31)]
Shift = Annotated[int, Range(0, 1_000)]  # positions
Part = Annotated[float, Range(1e-6, 1.0)]  # of positions, of which some are left


def argument(help: str, default: Any = MISSING, **settings: Any) -> Any:
    """Declare a positional argument; see `option`."""
    return option(default, help, argument=True, **settings)


def option(default: Any, help: str, *flags: str, **settings: Any) -> Any:
    """Declare an option of a command: the default of a dataclass field or of a parameter.

    Args:
        help: what the option does.
        flags: its names on the command line; by default `--name-of-the-field`.
        settings: `metavar`; `kind`, the type on the command line if it is narrower than that of the field; `writes`,
            for a path that the command writes to: `file`, `folder`, or `either` (a file if it has a suffix); `alone`,
            the value of an option of a number that may also stand without one.
    """
    return field(default=default, metadata={"help": help, "flags": flags, **settings})


def named(options: Callable[P, Any]) -> Callable[[Callable[[Any], T]], Callable[P, T]]:
    """Let a function of a dataclass take its fields as keywords, also for help, editors and type checkers."""

    def give(function: Callable[[Any], T]) -> Callable[P, T]:
        signature = inspect.signature(options)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            check_keywords(kwargs, signature.parameters, function.__name__)
            return function(options(*args, **kwargs))

        returned = get_type_hints(function)["return"]
        call.__signature__ = signature.replace(return_annotation=returned)  # type: ignore[attr-defined]
        return call

    return give


def spelled(value: Any) -> str:
    """Write a value as in a spec."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, tuple):
        return "/".join(spelled(v) for v in value)
    return str(value)


def convert(text: str, kind: Any, where: str, needs: str = "") -> Any:
    """Convert text to the annotated type, and check the `Range` of numbers.

    Types are bool, int, float, str, Literal, tuple[T, ...] (separated by /), X | None, and Annotated with a Range.

    Args:
        text: what the user wrote.
        kind: the annotation.
        where: what stands before it in messages, `ece:bins=` or `--alpha `.
        needs: a description of the values allowed, by default that of `kind`.

    Raises:
        UsageError: the text has another type, or the number is out of range.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        value = convert(text, args[0], where, " ".join(filter(None, (_noun(args[0]), str(_range(kind) or "")))))
        within(value, kind, where, text)
        return value
    if origin in (Union, types.UnionType):
        if type(None) in args and text.lower() in ("none", ""):
            return None
        problems = []
        for arg in args:
            if arg is not type(None):
                try:
                    return convert(text, arg, where)
                except UsageError as error:
                    problems.append(error)
        raise next((p for p in problems if isinstance(p, OutOfRange)), problems[-1])
    if origin is Literal:
        for arg in args:
            if normal(str(arg)) == normal(text):
                return arg
        raise UsageError(f"{where}{_short(text)} is not a choice", did_you_mean(normal(text), map(str, args)))
    if origin is tuple:
        return tuple(convert(t, args[0], where, needs) for t in text.split("/"))
    if kind is bool:
        if text.lower() in ("true", "yes", "1", "false", "no", "0"):
            return text.lower() in ("true", "yes", "1")
        raise UsageError(f"{where}{_short(text)} is not true or false", f"write {where}true")
    try:
        return {int: whole, float: real}.get(kind, kind)(text)
    except (ValueError, OverflowError):
        fix = f"pass {needs or _noun(kind)}"
        raise UsageError(f"{where}{_short(text)} is not {_noun(kind)}", fix) from None


class OutOfRange(UsageError):
    """A number has the right type but is outside its `Range`."""


def within(value: Any, kind: Any, where: str, text: str = "") -> None:
    """Refuse a number outside the `Range` of its annotation.

    Raises:
        OutOfRange: the number, or one of a tuple, is outside.
    """
    if get_origin(kind) in (Union, types.UnionType):
        for arg in get_args(kind):
            within(value, arg, where, text)
        return
    bounds = _range(kind)
    if bounds is None:
        return
    for number in value if isinstance(value, tuple | list) else (value,):
        if isinstance(number, int | float) and number not in bounds:
            raise OutOfRange(f"{where}{_short(text or spelled(value))} is out of range", f"pass {_noun(kind)} {bounds}")


def exclusive(meaning: str = "", **given: bool) -> None:
    """Refuse options that exclude each other.

    Args:
        meaning: what each of them stands for, in their order, if that is not plain.
        given: whether each was passed.

    Raises:
        UsageError: more than one was.
    """
    flags = [f"--{name.replace('_', '-')}" for name, passed in given.items() if passed]
    if len(flags) > 1:
        raise UsageError(
            f"{' and '.join(flags)} exclude each other", f"pass one of them{': ' * bool(meaning)}{meaning}"
        )


def check_options(given: Any) -> None:
    """Check the fields of a dataclass: numbers against their range, words against their choices.

    Raises:
        UsageError: a value is not allowed; the message names its option.
    """
    for name, kind, words, default in _fields(given.__class__):
        value = getattr(given, name)
        if value is default:
            continue
        flag = f"--{name.replace('_', '-')} "
        within(value, kind, flag)
        for item in value if isinstance(value, tuple | list) else (value,):
            if words and item is not None and item not in words:
                raise UsageError(f"{flag}{_short(str(item))} is not a choice", did_you_mean(str(item), words))


def in_tuples(given: Any) -> None:
    """Turn a single value or a list into a tuple in each field of a dataclass that holds a tuple.

    Otherwise a single text would later be read as a sequence of letters.
    """
    for name, kind, _, _ in _fields(given.__class__):
        value = getattr(given, name)
        plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if value is None or get_origin(plain) is not tuple or isinstance(value, tuple):
            continue
        object.__setattr__(given, name, tuple(value) if isinstance(value, list | range) else (value,))


@functools.lru_cache
def _fields(kind: type) -> list[tuple[str, Any, list[Any], Any]]:
    """List name, annotation, choices and default of each field of a dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    described = []
    for f in fields(kind):
        hint = hints[f.name]
        words = [a for part in (hint, *get_args(hint)) if get_origin(part) is Literal for a in get_args(part)]
        described.append((f.name, hint, words, f.default))
    return described


def _range(kind: Any) -> Range | None:
    return next((a for a in get_args(kind) if isinstance(a, Range)), None)


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} characters)"


def values(kind: Any) -> str:
    """Describe the values of an annotation: `a whole number from 1 to 100000`, `right, left`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return " ".join([values(args[0]), *(str(bounds) for bounds in args[1:] if isinstance(bounds, Range))])
    if origin in (Union, types.UnionType):
        return " or ".join("none" if arg is type(None) else values(arg) for arg in args)
    if origin is Literal:
        return ", ".join(map(str, args))
    if origin is tuple:
        return f"{_noun(args[0]).removeprefix('a ')}s with / between, each"
    return "true or false" if kind is bool else _noun(kind)


def _noun(kind: Any) -> str:
    """Name a type: `a whole number`."""
    for part in (kind, *get_args(kind)):
        if part in (int, float):
            return "a whole number" if part is int else "a number"
        if get_args(part) and part is not kind:
            return _noun(part)
    return f"a {getattr(kind, '__name__', kind)}"
