"""Registries, from which specs such as `name:key=value,key=value` choose.

A registry holds decorated functions or classes. Their keyword-only parameters are the options of the spec, their
docstring is the help, and the canonical spec names a choice everywhere (tables, JSON, rules). What else there is to
know of an entry are its traits: the fields of a dataclass, one for each registry, so that a word that is none of them
is refused where it is written, by mypy and by Python.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from calibcli.core import extensions
from calibcli.core.errors import UsageError, did_you_mean
from calibcli.core.options import convert, normal, spelled, within


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What an entry of any registry may say of itself. A registry whose entries say more has a subclass of it."""

    called: tuple[str, ...] = ()
    """Its names in other tools, which the error for an unknown name answers with the name here."""
    papers: bool = False
    """Only papers use it: `calib list` has it in a table apart."""

    def __post_init__(self) -> None:
        kind: Any = type(self)  # mypy takes a class whose instances are hashable for one that is not
        for name, (several, words) in _words(kind).items():
            value = getattr(self, name)
            if not (words.issuperset(value) if several else value in words):
                allowed = ", ".join(sorted(map(repr, words)))
                raise TypeError(f"{name}={value!r}: not {'all ' * several}of {allowed}")

    @property
    def gives(self) -> Sequence[str]:
        """What lists say of its value, beside what every entry of the registry gives."""
        return ()


@cache
def _words(kind: type) -> dict[str, tuple[bool, frozenset[str]]]:
    """Return which fields of a dataclass have words of a `Literal`, whether several in a tuple, and the words."""
    literals = {}
    for name, hint in get_type_hints(kind).items():
        several = get_origin(hint) is tuple
        word = get_args(hint)[0] if several else hint
        if get_origin(word) is Literal:
            literals[name] = several, frozenset(get_args(word))
    return literals


P = ParamSpec("P")
T = TypeVar("T", bound=Traits)
Target = TypeVar("Target", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry(Generic[T]):
    """One function or class in a registry, with its options (defaults and types) and its traits."""

    name: str
    target: Callable[..., Any]
    traits: T
    package: str = ""
    """The installed package that adds it; "" for an entry of calib."""

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
        """The options with their defaults, or their choices (default first): `bins=15,edges=right|left,tau`."""
        return ",".join(_brief(name, p) for name, p in self.options.items())


@dataclass(frozen=True)
class Choice(Generic[T]):
    """An entry with its options filled in; calling it calls the function or class with those options."""

    entry: Entry[T]
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def traits(self) -> T:
        return self.entry.traits

    @property
    def spec(self) -> str:
        """The canonical spec, with the options that differ from their defaults, in the order of the signature."""
        changed = [
            f"{key}={spelled(self.options[key])}"
            for key, p in self.entry.options.items()
            if key in self.options and self.options[key] != p.default
        ]
        return self.name + (":" + ",".join(changed) if changed else "")

    def __hash__(self) -> int:
        return hash(self.spec)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.entry.target(*args, **{**self.options, **kwargs})


_REGISTRIES: list[Registry[..., Any]] = []


def alike(spec: str, classes: int = 0) -> set[str]:
    """Find the specs equal to this one, in canonical form, with `classes` classes (0: unknown)."""
    specs = {spec}
    for registry in _REGISTRIES:
        if spec.partition(":")[0] in registry:
            try:
                choice = registry.choose(spec)
                specs |= {choice.spec, registry.shortest(choice, classes).spec if classes else choice.spec}
            except UsageError:
                continue
    return specs


class Registry(Generic[P, T]):
    """Named definitions of one kind (`metric`, `scaler`, `loss`, ...), chosen by spec string."""

    def __init__(
        self,
        kind: str,
        traits: Callable[P, T],
        joint: str = "_",
        package: str = "",
        first: Sequence[str] = (),
        usual: Sequence[str] = (),
        flag: str = "",
        elsewhere: Collection[str] = (),
    ) -> None:
        """
        Args:
            traits: the dataclass of what its entries say of themselves; `add` takes its fields.
            joint: the character between the words of a name in lists and messages.
            package: the package whose files hold the entries; they are imported when entries are first needed.
            first: the most used entries, which are listed first; the others follow by name.
            usual: files that are searched for an entry before all others are imported.
            flag: the repeatable option that takes a spec.
            elsewhere: names of other tools that no entry is: one that is spelled like them would be something else.
        """
        self.kind, self._traits = kind, traits
        self.joint, self._package, self._first = joint, package, list(first)
        self._flag, self._elsewhere = flag, elsewhere
        self._usual = [f"{package}.{file}" for file in usual]
        self.shortest: Callable[[Choice[T], int], Choice[T]] = lambda choice, classes: choice
        """Shorten a choice for a number of classes, on which the meaning of an option may depend."""
        _REGISTRIES.append(self)
        self._entries: dict[str, Entry[T]] = {}

    @property
    def entries(self) -> dict[str, Entry[T]]:
        """All entries by name: the most used first, the others sorted, whatever the order of imports."""
        if self._package:
            package, self._package = self._package, ""
            for file in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
                importlib.import_module(file.name)
            extensions.load_entries(self.kind)
            names = [*self._first, *sorted(self._entries.keys() - self._first)]
            self._entries = {name: self._entries[name] for name in names}
        return self._entries

    def entry(self, name: str) -> Entry[T] | None:
        """Return the entry with this name in any spelling, or None; imports as few files as possible."""
        if (entry := self._entries.get(name)) is not None:
            return entry
        key = normal(name)
        while key not in self._entries and self._usual:
            importlib.import_module(self._usual.pop(0))
        if (entry := self._entries.get(key) or self.entries.get(key)) is None and key.isidentifier():
            for _, package, load in extensions.packaged(self.kind, key):
                self._load_packaged(key, package, load)
            entry = self._entries.get(key)
        return entry

    def _load_packaged(self, key: str, package: str, load: Callable[[], Any]) -> None:
        """Import a module that an entry point called `key` names.

        Raises:
            UsageError: it cannot be imported, or does not add an entry of that name.
        """
        load()
        if key not in self._entries:
            problem = (
                f"{package} does not add its {self.kind} '{key}': the module of that entry point has none of that name"
            )
            raise UsageError(
                problem, f"name the entry point as the entry, or leave {package} out: pip uninstall {package}"
            )

    def load_packaged(self) -> list[UsageError]:
        """Add every entry of installed packages, for lists; return why some could not be added."""
        failed: list[UsageError] = []
        try:
            for key, package, load in extensions.packaged(self.kind):
                try:
                    if key not in self.entries:
                        self._load_packaged(key, package, load)
                except UsageError as error:
                    failed.append(error)
        except UsageError as error:  # two packages, one name
            failed.append(error)
        return failed

    def add(self, name: str = "", /, *args: P.args, **kwargs: P.kwargs) -> Callable[[Target], Target]:
        """Return a decorator that puts a function or class in the registry under `name` (default: its own name).

        Raises:
            TypeError: the registry has no such trait, one that it needs is missing, or has a word that it may not have.
        """
        traits = self._traits(*args, **kwargs)

        def put(target: Target) -> Target:
            key = normal(name or target.__name__)
            package = "" if target.__module__.startswith("calibcli.") else extensions.loading()
            if key in self._entries:
                other = self._entries[key].package or "calib"
                if package:
                    problem = f"{package} does not add its {self.kind} '{key}': {other} has one of that name"
                    raise UsageError(problem, f"pip uninstall {package}")
                raise ValueError(f"{self.kind} '{key}' is in the registry twice")
            self._entries[key] = Entry(key, target, traits, package)
            return target

        return put

    def __iter__(self) -> Iterator[Entry[T]]:
        return iter(self.entries.values())

    def __contains__(self, name: str) -> bool:
        return self.entry(name) is not None

    def called(self, name: str) -> str:
        """Return the name here of what other tools call `name`; "" if they call nothing so."""
        return next((entry.name for entry in self if name in entry.traits.called), "")

    def _unknown(self, spec: str) -> UsageError:
        """Make the error for a spec with an unknown name."""
        name, parts = spec.partition(":")[0], [part.strip() for part in spec.split(",")]
        problem = f"unknown {self.kind} '{name.strip()}'"
        if len(parts) > 1 and "=" in parts[1] and parts[0] in self:  # options after a comma
            return UsageError(problem, f"write {parts[0]}:{','.join(parts[1:])}")
        if len(parts) > 1 and all(part.partition(":")[0] in self for part in parts):
            each = " ".join(f"{self._flag} {part}" for part in parts) if self._flag else " or ".join(parts)
            return UsageError(problem, f"write {'each by itself' if self._flag else 'one of them'}: {each}")
        if normal(name) in self._elsewhere:
            return UsageError(problem, f"it is not measured here: calib list {self.kind}s has those that are")
        if called := self.called(normal(spec)):
            return UsageError(f"unknown {self.kind} '{spec.strip()}'", f"did you mean '{called}'?")
        if called := self.called(normal(name)):
            return UsageError(problem, f"did you mean '{called}'?")
        self.load_packaged()
        names = [entry.name.replace("_", self.joint) for entry in self]
        return UsageError(problem, did_you_mean(normal(name).replace("_", self.joint), names))

    def choose(self, spec: str, **defaults: Any) -> Choice[T]:
        """Parse `name:key=value,...` into a Choice.

        Args:
            spec: the spec string.
            defaults: options that apply if the spec does not set them and the entry has them.

        Raises:
            UsageError: a name or option is unknown, an option is there twice, or a value has the wrong type or range.
        """
        name, _, settings = spec.partition(":")
        entry = self.entry(name)
        if entry is None:
            raise self._unknown(spec)
        options = {k: p.default for k, p in entry.options.items() if p.default is not p.empty}
        given = {k: v for k, v in defaults.items() if k in entry.options and v is not None}
        for key, value in given.items():
            within(value, entry.options[key].annotation, f"{entry.name}:{key}=")
        options.update(given)
        written = set()
        for part in filter(None, (s.strip() for s in settings.split(","))):
            key, eq, text = part.partition("=")
            key = normal(key)
            if key not in entry.options:
                fix = did_you_mean(key, entry.options) if entry.options else f"'{entry.name}' takes no options"
                raise UsageError(f"{self.kind} '{entry.name}' has no option '{key}'", fix)
            if key in written:
                raise UsageError(f"option '{key}' of '{entry.name}' is there twice", "write it once")
            written.add(key)
            if not eq and entry.options[key].annotation is bool:
                text = "true"  # `trace:exact` means `trace:exact=true`
            elif not eq:
                raise UsageError(f"option '{key}' of '{entry.name}' has no value", f"write {entry.name}:{key}=VALUE")
            options[key] = convert(text.strip(), entry.options[key].annotation, f"{entry.name}:{key}=")
        missing = [k for k in entry.options if k not in options]
        if missing:
            fix = f"write {entry.name}:" + ",".join(f"{k}=..." for k in missing)
            raise UsageError(f"{self.kind} '{entry.name}' needs {', '.join(missing)}", fix)
        return Choice(entry, options)


def _brief(name: str, p: inspect.Parameter) -> str:
    kinds = [p.annotation, *(get_args(p.annotation) if get_origin(p.annotation) in (Union, types.UnionType) else ())]
    choices = [str(arg) for kind in kinds if get_origin(kind) is Literal for arg in get_args(kind)]
    if p.default is p.empty:
        return name
    first = "" if p.default is None or p.default == () else spelled(p.default)
    return f"{name}=" + "|".join([first, *(c for c in choices if c != first)])
