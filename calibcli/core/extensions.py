"""What modules that need PyTorch add to those that stand on NumPy alone.

A module is imported by name and when what it adds is first used, so that this costs nothing at `import calibcli`.
`calibcli/__init__.py` fills it, as the one module that is imported before all others and knows all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

_DEVICE_SCORES: list[Callable[[Any], Any]] = []
_FORMAT_PACKAGES: list[Callable[[], ModuleType]] = []
_DISPLAY: list[Callable[[], ModuleType]] = []
_SHELF_FILES: dict[str, list[Callable[[], ModuleType]]] = {}


def register_device_scores(make: Callable[[Any], Any]) -> None:
    """`make(tensor)` gives a `columns.on_device.DeviceScores`, or None where NumPy reads the tensor better."""
    _DEVICE_SCORES.append(make)


def register_formats(package: Callable[[], ModuleType]) -> None:
    """`package()` is a package whose files are input formats, beside those of `inputs/files/formats`."""
    _FORMAT_PACKAGES.append(package)


def register_display(module: Callable[[], ModuleType]) -> None:
    """`module()` shows values as text, HTML, Markdown, data frame or picture, and writes them to files."""
    _DISPLAY.append(module)


def register_entries(kind: str, file: Callable[[], ModuleType]) -> None:
    """`file()` imports a module that puts entries on the shelf of this kind, beside those of the shelf's own folder."""
    _SHELF_FILES.setdefault(kind, []).append(file)


def device_scores(tensor: Any) -> Any:
    """The first of what is registered that takes the tensor, or None."""
    return next(filter(None, (make(tensor) for make in _DEVICE_SCORES)), None)


def format_packages() -> list[ModuleType]:
    """The packages that are registered."""
    return [package() for package in _FORMAT_PACKAGES]


def load_entries(kind: str) -> None:
    """Import what is registered for the shelf of this kind."""
    for file in _SHELF_FILES.get(kind, ()):
        file()


def display() -> Any:
    """The module that shows values."""
    return _DISPLAY[-1]()
