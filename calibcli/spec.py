"""The grammar `name:key=value,key=value` and the shelves it picks from.

A shelf holds decorated functions or classes. Their keyword-only parameters are the options of the spec, their
docstring is the help, and the canonical spec string is the identity of a choice everywhere (table, JSON, rule).
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from calibcli.errors import UsageError, did_you_mean


def normal(name: str) -> str:
    """`-` and `_` are the same in every spec."""
    return name.strip().lower().replace("-", "_")


def whole(text: str) -> int:
    """A whole number in decimal digits; Python alone also reads `1_0`, as 10.

    Raises:
        ValueError: it is none, or has more digits than Python converts.
    """
    return int(_plain(text))


def real(text: str) -> float:
    """A number in decimal digits, as `whole`; `nan` and `inf` are numbers.

    Raises:
        ValueError: it is none.
    """
    return float(_plain(text))


def _plain(text: str) -> str:
    if "_" in text:
        raise ValueError(f"'{text[:40]}' has an underscore")
    return text


@dataclass(frozen=True)
class Range:
    """Numbers that an option may be, in its annotation: `bins: Annotated[int, Range(1, 100_000)] = 15`.

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
        """In words: `at least 1`, `more than 0`, `from 0 to 1`, `at least 0 and less than 1`."""
        low, high = f"{self.low:.15g}", f"{self.high:.15g}"
        if math.isinf(self.high):
            return "finite" if math.isinf(self.low) else f"more than {low}" if self.open_low else f"at least {low}"
        if math.isinf(self.low):
            return f"less than {high}" if self.open_high else f"at most {high}"
        if not (self.open_low or self.open_high):
            return f"from {low} to {high}"
        return (
            (f"more than {low}" if self.open_low else f"at least {low}")
            + " and "
            + (f"less than {high}" if self.open_high else f"at most {high}")
        )


Share = Annotated[float, Range(0, 1)]
NotNegative = Annotated[float, Range(0, 1e9)]
Positive = Annotated[float, Range(1e-9, 1e9)]
Count = Annotated[int, Range(1, 1_000)]  # bins; bounds keep a matrix of bins by bins
Alpha = Annotated[float, Range(1e-6, 0.25)]  # below, 1 - alpha / claims has no normal quantile in float64
Level = Annotated[float, Range(0.5, 1 - 1e-12)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
Power = Annotated[float, Range(0.5, 0.999)]
Accuracy = Annotated[float, Range(0.05, 1, open_high=True)]
Classes = Annotated[int, Range(2, 100_000)]
Folds = Annotated[int, Range(2, 1_000)]
Limit = Annotated[float, Range(-1e9, 1e9)]
Rows = Annotated[int, Range(1, 10**9)]
OrNone = Annotated[int, Range(0, 10**9)]  # 0 stands for none, never or all
Epochs = Annotated[int, Range(1, 1_000_000)]
LearningRate = Annotated[float, Range(0, 1e30, open_low=True)]
Warmup = Annotated[float, Range(0, 1, open_high=True)]
Label = Annotated[int, Range(-(2**31), 2**31)]


@dataclass(frozen=True)
class Entry:
    """One definition on a shelf: its target, its options with defaults and types, and its traits."""

    name: str
    target: Callable[..., Any]
    traits: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """Keyword-only parameters by name, with annotations resolved to types."""
        source = self.target.__init__ if inspect.isclass(self.target) else self.target
        hints = get_type_hints(source, include_extras=True)
        return {
            p.name: p.replace(annotation=hints.get(p.name, str))
            for p in inspect.signature(self.target).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }

    @property
    def about(self) -> str:
        """The docstring."""
        return inspect.getdoc(self.target) or ""

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return self.about.split("\n", 1)[0]

    @property
    def signature(self) -> str:
        """`bins=15,edges=right|left,tau`: options with their defaults, or their choices, the default first."""
        return ",".join(_brief(name, p) for name, p in self.options.items())


@dataclass(frozen=True)
class Choice:
    """An entry with its options filled in. Calling it calls the entry's target with those options."""

    entry: Entry
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def traits(self) -> Mapping[str, Any]:
        return self.entry.traits

    @property
    def spec(self) -> str:
        """Canonical spec: only options that differ from their defaults, in signature order."""
        changed = [
            f"{key}={spelled(self.options[key])}"
            for key, p in self.entry.options.items()
            if key in self.options and self.options[key] != p.default
        ]
        return self.name + (":" + ",".join(changed) if changed else "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.entry.target(*args, **{**self.options, **kwargs})


_SHELVES: list[Shelf] = []


def alike(spec: str) -> set[str]:
    """Specs that say the same as this one: its canonical form on every shelf that has it."""
    found = {spec}
    for shelf in _SHELVES:
        if spec.partition(":")[0] in shelf:
            try:
                found.add(shelf.choose(spec).spec)
            except UsageError:
                continue
    return found


class Shelf:
    """Named definitions of one kind (`metric`, `scaler`, `loss`, ...), chosen by spec string."""

    def __init__(self, kind: str, joint: str = "_") -> None:
        """joint: what stands between the words of a name where names are listed, as the docs spell them."""
        self.kind, self.joint = kind, joint
        _SHELVES.append(self)
        self.entries: dict[str, Entry] = {}

    def add(self, name: str = "", **traits: Any) -> Callable[[Any], Any]:
        """Decorator: put a function or class on the shelf under `name` (default: its own name)."""

        def put(target: Any) -> Any:
            key = normal(name or target.__name__)
            if key in self.entries:
                raise ValueError(f"{self.kind} '{key}' is on the shelf twice")
            self.entries[key] = Entry(key, target, traits)
            return target

        return put

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __contains__(self, name: str) -> bool:
        return normal(name) in self.entries

    def _names_like(self, name: str) -> str:
        spelled = [entry.replace("_", self.joint) for entry in self.entries]
        return did_you_mean(normal(name).replace("_", self.joint), spelled)

    def choose(self, spec: str, **defaults: Any) -> Choice:
        """Parse `name:key=value,...` into a Choice.

        Args:
            spec: the spec string.
            defaults: options to use where the spec is silent and the entry has an option of that name.

        Raises:
            UsageError: unknown name, unknown option, an option twice, or a value of the wrong type or out of range.
        """
        name, _, rest = spec.partition(":")
        entry = self.entries.get(normal(name))
        if entry is None:
            raise UsageError(f"unknown {self.kind} '{name.strip()}'", self._names_like(name))
        options = {k: p.default for k, p in entry.options.items() if p.default is not p.empty}
        given = {k: v for k, v in defaults.items() if k in entry.options and v is not None}
        for key, value in given.items():
            within(value, entry.options[key].annotation, f"{entry.name}:{key}=")
        options.update(given)
        written = set()
        for part in filter(None, (s.strip() for s in rest.split(","))):
            key, eq, text = part.partition("=")
            key = normal(key)
            if key not in entry.options:
                fix = did_you_mean(key, entry.options) if entry.options else f"'{entry.name}' takes no options"
                raise UsageError(f"{self.kind} '{entry.name}' has no option '{key}'", fix)
            if key in written:
                raise UsageError(f"option '{key}' of '{entry.name}' is there twice", "write it once")
            written.add(key)
            if not eq and entry.options[key].annotation is bool:
                text = "true"  # `trace:exact` says enough
            elif not eq:
                raise UsageError(f"option '{key}' of '{entry.name}' has no value", f"write {entry.name}:{key}=VALUE")
            options[key] = convert(text.strip(), entry.options[key].annotation, f"{entry.name}:{key}=")
        missing = [k for k in entry.options if k not in options]
        if missing:
            raise UsageError(
                f"{self.kind} '{entry.name}' needs {', '.join(missing)}",
                f"write {entry.name}:" + ",".join(f"{k}=..." for k in missing),
            )
        return Choice(entry, options)


def spelled(value: Any) -> str:
    """A value as a spec spells it."""
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
    """Text to the annotated type: bool, int, float, str, Literal, tuple[T, ...] (with /), X | None; a number with a
    `Range` in its `Annotated` lies in it.

    Args:
        text: what the user wrote.
        kind: the annotation.
        where: what it was written behind, `ece:bins=` or `--alpha `.
        needs: what a number has to be, in words; worked out from `kind`.

    Raises:
        UsageError: the text is not of that type, or out of range.
    """
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        value = convert(text, args[0], where, " ".join(filter(None, (_noun(args[0]), str(_range(kind) or "")))))
        within(value, kind, where, text)
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(text, args, where)
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


def _convert_union(text: str, kinds: tuple[Any, ...], where: str) -> Any:
    if type(None) in kinds and text.lower() in ("none", ""):
        return None
    problems = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return convert(text, kind, where)
            except UsageError as error:
                problems.append(error)
    raise next((p for p in problems if isinstance(p, OutOfRange)), problems[-1])


class OutOfRange(UsageError):
    """A number of the right type that its `Range` does not hold."""


def within(value: Any, kind: Any, where: str, text: str = "") -> None:
    """Refuse a number outside the `Range` of its annotation.

    Raises:
        OutOfRange: it, or one of a tuple, is.
    """
    if get_origin(kind) in (Union, types.UnionType):
        for arg in get_args(kind):
            within(value, arg, where, text)
        return
    bounds = _range(kind)
    if bounds is None:
        return
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int | float) and number not in bounds:
            raise OutOfRange(f"{where}{_short(text or spelled(value))} is out of range", f"pass {_noun(kind)} {bounds}")


def _range(kind: Any) -> Range | None:
    return (
        next((a for a in get_args(kind)[1:] if isinstance(a, Range)), None) if get_origin(kind) is Annotated else None
    )


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} characters)"


def values(kind: Any) -> str:
    """What an option of this annotation takes, in words: `a whole number from 1 to 100000`, `right, left`."""
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


def _brief(name: str, p: inspect.Parameter) -> str:
    kinds = [p.annotation, *(get_args(p.annotation) if get_origin(p.annotation) in (Union, types.UnionType) else ())]
    choices = [str(arg) for kind in kinds if get_origin(kind) is Literal for arg in get_args(kind)]
    if p.default is p.empty:
        return name
    first = "" if p.default is None or p.default == () else spelled(p.default)
    return f"{name}=" + "|".join([first, *(c for c in choices if c != first)])


def _noun(kind: Any) -> str:
    """A type in words."""
    for part in (kind, *get_args(kind)):
        if part in (int, float):
            return "a whole number" if part is int else "a number"
        if get_args(part) and part is not kind:
            return _noun(part)
    return f"a {getattr(kind, '__name__', kind)}"
