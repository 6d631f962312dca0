"""Registry of what higher packages, such as those that need PyTorch, add to packages that need NumPy alone.

`calibcli/__init__.py` fills it with functions that import a module. They are called when the module is first needed, so
registering costs nothing at `import calibcli`. A command that runs registers its progress bar, which loops in any room
move (`steps`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any, TypeVar

from calibcli.core.errors import UsageError
from calibcli.core.options import normal

_DEVICE_SCORES: list[Callable[[Any], Any]] = []
_FORMAT_PACKAGES: list[Callable[[], ModuleType]] = []
_DISPLAY: list[Callable[[], ModuleType]] = []
_REGISTRY_FILES: dict[str, list[Callable[[], ModuleType]]] = {}
_Item = TypeVar("_Item")
_Report = Callable[[float, str], None]
_Span = tuple[_Report, float, float]
_doing = ""  # what was told last
_SPAN: ContextVar[_Span | None] = ContextVar("span", default=None)
"""The report of the command that runs, and the ends of the part of it that is on."""


def register_device_scores(make: Callable[[Any], Any]) -> None:
    """Register `make(tensor)`, which returns scores on a device, or None if NumPy should read the tensor."""
    _DEVICE_SCORES.append(make)


def register_formats(package: Callable[[], ModuleType]) -> None:
    """Register `package()`, a package whose files are input formats, beside those of `scores/files/formats`."""
    _FORMAT_PACKAGES.append(package)


def register_display(module: Callable[[], ModuleType]) -> None:
    """Register `module()`, which shows results as text, HTML, Markdown, data frame or picture, and writes files."""
    _DISPLAY.append(module)


def register_progress(report: _Report | None) -> None:
    """Register `report(fraction, text)`, the progress of the command that runs, or that none runs any more."""
    _SPAN.set(report and (report, 0.0, 1.0))


def tell(fraction: float, text: str = "") -> None:
    """Tell the command that runs, if any, which fraction of the step that it is at is done.

    A fraction that falls begins another step.
    """
    global _doing
    _doing = text or _doing
    if span := _SPAN.get():
        say, low, high = span
        say(low + (high - low) * fraction, text)


def doing() -> str:
    """Return what was told last: what a command that has to end was at."""
    return _doing


@contextlib.contextmanager
def reporting(report: _Report | None) -> Iterator[None]:
    """Let what is told inside the block go to `report`; without one, where it went before."""
    outer = _SPAN.get()

    def say(fraction: float, text: str) -> None:
        assert report is not None
        inner = _SPAN.get()
        _SPAN.set(outer)  # `report` may itself tell
        try:
            report(fraction, text)
        finally:
            _SPAN.set(inner)

    with _at((say, 0.0, 1.0) if report else outer):
        yield


@contextlib.contextmanager
def _at(span: _Span | None) -> Iterator[None]:
    """Let what is told inside the block move this span. A loop that an error left may end long after its command."""
    outer = _SPAN.get()
    _SPAN.set(span)
    try:
        yield
    finally:
        if _SPAN.get() is span:
            _SPAN.set(outer)


def with_progress(
    items: Sequence[_Item], text: Callable[[_Item], str] = str, report: _Report | None = None
) -> Iterator[_Item]:
    """Yield items, and before each tell `report`, or the command that runs, the fraction done and its text.

    Steps inside a step, and what is told there, move the bar within the part of that step, and never back. A single
    item is no step, so that those inside it are.
    """
    global _doing
    with reporting(report):
        outer = _SPAN.get()
        if outer is None or len(items) < 2:
            for item in items:
                _doing = text(item)
                yield item
            return
        report_to, low, high = outer
        reached = low

        def say(fraction: float, text: str) -> None:
            nonlocal reached
            reached = max(reached, fraction)
            report_to(reached, text)

        for i, item in enumerate(items):
            start, end = (low + (high - low) * at / len(items) for at in (i, i + 1))
            say(start, text(item))
            with _at((say, start, end)):
                yield item
        say(high, "")


def register_entries(kind: str, file: Callable[[], ModuleType]) -> None:
    """Register `file()`, which imports a module with further entries of the registry of this kind."""
    _REGISTRY_FILES.setdefault(kind, []).append(file)


GROUPS = {
    "metric": "calibcli.metrics",
    "scaler": "calibcli.scalers",
    "loss": "calibcli.losses",
    "architecture": "calibcli.architectures",
    "curvature quantity": "calibcli.quantities",
    "target": "calibcli.targets",
    "format": "calibcli.formats",
}
"""The groups of entry points by which installed packages add entries: to a registry, by its kind, or input formats."""
_LOADING: ContextVar[str] = ContextVar("_LOADING", default="")


def loading() -> str:
    """Return the name of the installed package whose entries are being imported, or "" for those of calib itself."""
    return _LOADING.get()


def packaged(kind: str, name: str = "") -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield the entries that installed packages add: name, package, and what imports it.

    They are looked up where a name is unknown, and for lists, so that nobody else waits for it.

    Args:
        kind: of the registry.  name: only entries of this name; "" for all.

    Raises:
        UsageError: two packages add entries of one name.
    """
    if kind not in GROUPS:
        return
    seen: dict[str, str] = {}
    points = _entry_points().select(group=GROUPS[kind])
    for point in sorted(points, key=lambda point: (normal(point.name), str(point.dist and point.dist.name))):
        key, package = normal(point.name), point.dist.name if point.dist else "an installed package"
        if name in ("", key) and seen.setdefault(key, package) != package:
            problem = f"{package} does not add its {kind} '{key}': {seen[key]} has one of that name"
            raise UsageError(problem, f"pip uninstall {package}")
        if name in ("", key):
            yield key, package, functools.partial(_imported, point.load, kind, key, package)


def unknown_groups() -> list[str]:
    """Tell of entry points of installed packages whose group looks like one of calib and is none: a line each."""
    points = _entry_points()
    near = sorted(group for group in points.groups if group.partition(".")[0] == "calibcli")
    odd = [(group, point) for group in near if group not in GROUPS.values() for point in points.select(group=group)]
    known = f"the groups are {', '.join(GROUPS.values())}"
    packages = {(group, point.dist.name if point.dist else "an installed package"): None for group, point in odd}
    return [f"{package} adds nothing by its entry points '{group}': {known}" for group, package in packages]


@functools.cache
def _entry_points() -> Any:
    """Read those of all installed packages once: results are searched for many names that no registry has."""
    from importlib.metadata import entry_points

    return entry_points()


def _imported(load: Callable[[], Any], kind: str, name: str, package: str) -> Any:
    """Import an entry of an installed package, whose mistakes are no bug of calib."""
    token = _LOADING.set(package)
    try:
        return load()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        problem = f"{package} does not add its {kind} '{name}': {type(error).__name__}: {error}"
        raise UsageError(problem, f"update it, or leave it out: pip uninstall {package}") from None
    finally:
        _LOADING.reset(token)


def device_scores(tensor: Any) -> Any:
    """Return the scores of the first registered maker that takes the tensor, or None."""
    return next(filter(None, (make(tensor) for make in _DEVICE_SCORES)), None)


def format_packages() -> list[ModuleType]:
    """Return the registered packages of input formats."""
    return [package() for package in _FORMAT_PACKAGES]


def load_entries(kind: str) -> None:
    """Import the modules registered for the registry of this kind."""
    for file in _REGISTRY_FILES.get(kind, ()):
        file()


def display() -> Any:
    """Return the module that shows results."""
    return _DISPLAY[-1]()
