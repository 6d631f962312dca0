"""Output formats, one file of `formats/` each: `--format NAME` prints to stdout, `-o FILE` goes by the suffix.

A file of `formats/` has `render(result) -> str | bytes`, which reads a `Result` and nothing else. It may also have

    SUFFIXES = (".csv",)          suffixes of the files that it writes
    TO_STDOUT = False             it is written to files only, as pictures are
    NEEDS = ("matplotlib",)       libraries that a minimal installation may lack
    REPORT = "estimates.csv"      its file name in a folder of reports (`-o DIR/`)
    OF_CHECKS = True              it is in a folder only if the result has checks
    figures(result, style)        for pictures: {name: content} of each figure; `render` then takes the style too
    FIGURES = True                each figure is in a folder
    NUMBERS = True                it holds only numbers and verdicts, so results that are lists of names are refused
    LISTS_OF = ("inspect",)       but for those of these commands
    show(result, detail)          prints to stdout, for formats that depend on the terminal (colour, width)
    notes(result, detail)         the notes on what `show` shows
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import cast

from calibcli.core.errors import UsageError, did_you_mean
from calibcli.core.files import atomic, target
from calibcli.core.options import Style
from calibcli.core.result import Result
from calibcli.render import formats, table_contents, terminal
from calibcli.render.table_contents import Detail

NAMES = sorted(m.name for m in pkgutil.iter_modules(formats.__path__))


@cache
def module(name: str) -> ModuleType:
    """Import the file of the format `name`."""
    return importlib.import_module(f"calibcli.render.formats.{name}")


def suffixes(name: str) -> tuple[str, ...]:
    """Return the suffixes of the files that the format `name` writes."""
    return cast(tuple[str, ...], getattr(module(name), "SUFFIXES", ()))


def to_stdout(name: str) -> bool:
    """Whether the format `name` may go to stdout."""
    return bool(getattr(module(name), "TO_STDOUT", True))


def known_format(name: str) -> str:
    """Return `name` if it is a format that can go to stdout.

    Raises:
        UsageError: it is not.
    """
    if name not in NAMES:
        raise UsageError(f"unknown format '{name}'", did_you_mean(name, filter(to_stdout, NAMES)))
    if not to_stdout(name):
        raise UsageError(f"format '{name}' does not go to stdout", f"write a file: -o result.{name}")
    return name


def known_output(path: Path) -> Path:
    """Return `path` if its suffix names a format and its folder exists, or if it is a folder of reports.

    Raises:
        UsageError: the path cannot be written, or the format needs a library that is not installed.
    """
    if is_folder(path):
        return path
    format_name = _by_suffix(path)
    if not format_name:
        choices = sorted(s for name in NAMES for s in suffixes(name))
        raise UsageError(f"cannot tell the format of '{path}'", "use a suffix of: " + " ".join(choices))
    if needed := _lacks(module(format_name)):
        raise UsageError(f"'{path}' is drawn by {needed}, which is not installed", f"pip install {needed}")
    target(path)
    return path


def files(path: Path) -> list[Path]:
    """List existing files that `-o path` may replace: the file, or the reports, tables and figures in a folder."""
    if not is_folder(path):
        return [path]
    reports = [path / one.REPORT for one in map(module, NAMES) if hasattr(one, "REPORT")]
    others = [file for suffix in ("csv", "png") for file in path.glob(f"*.{suffix}")]
    return [file for file in dict.fromkeys([*reports, *others]) if file.exists()]


def text(result: Result, name: str) -> str:
    """Render `result` as text in format `name`."""
    return cast(str, module(name).render(result))


def show(result: Result, name: str, detail: Detail = "few") -> None:
    """Print `result` to stdout in format `name`; `detail` is how much a screen shows.

    Raises:
        UsageError: the format holds only numbers and verdicts, and the result has none.
    """
    _holds(result, name)
    if hasattr(module(name), "show"):
        module(name).show(result, detail)
    else:
        terminal.put(text(result, name), json=name == "json")


def notes(result: Result, name: str, detail: Detail = "few") -> Sequence[str]:
    """Return the notes on what `show` prints."""
    format_notes = getattr(module(name), "notes", None)
    return result.notes if format_notes is None else list(format_notes(result, detail))


def write(result: Result, path: Path, style: Style = "screen") -> None:
    """Write `result` to a file by its suffix, or every report and figure to a folder; whole or not at all.

    Args:
        style: figure style.

    Raises:
        UsageError: as for `show`, or the folder cannot be created.
    """
    if not is_folder(path):
        renderer = module(_holds(result, _by_suffix(path)))
        _save(renderer.render(result, style) if hasattr(renderer, "figures") else renderer.render(result), path)
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path} ({error.strerror})", "name another folder") from None
    for renderer in map(module, NAMES):
        judged = not getattr(renderer, "OF_CHECKS", False) or result.checks
        if hasattr(renderer, "REPORT") and judged and not _lacks(renderer):
            _save(renderer.render(result), path / renderer.REPORT)
    for renderer in map(module, NAMES):
        if hasattr(renderer, "FIGURES") and result.plots and not _lacks(renderer):
            for name, content in renderer.figures(result, style).items():
                _save(content, path / f"{name}{renderer.SUFFIXES[0]}")
    for table in filter(None, [table_contents.bins_table(result), *result.tables]):
        _save(module("csv").table(table), path / f"{terminal.file_name(table.name, 'table')}.csv")


def _holds(result: Result, name: str) -> str:
    """Return `name` if that format can hold the result."""
    listed = any(t.rows for t in result.tables) and not (result.estimates or result.checks or result.artefacts)
    listing = result.command in getattr(module(name), "LISTS_OF", ())
    if listed and getattr(module(name), "NUMBERS", False) and not listing:
        others = ", ".join(one for one in filter(to_stdout, NAMES) if not getattr(module(one), "NUMBERS", False))
        raise UsageError(
            f"format '{name}' holds numbers and verdicts, and calib {result.command} has none", f"use {others}"
        )
    return name


def _lacks(renderer: ModuleType) -> str:
    """Return a library that a format needs and that is not installed, or ""."""
    return next((name for name in getattr(renderer, "NEEDS", ()) if importlib.util.find_spec(name) is None), "")


def is_folder(path: Path) -> bool:
    return path.is_dir() or str(path).endswith(os.sep) or (path.suffix == "" and not path.exists())


def _save(content: str | bytes, path: Path) -> None:
    with atomic(path) as temporary:
        # file names that are not UTF-8 arrive as lone surrogates, which UTF-8 cannot encode: they are escaped
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))


def _by_suffix(path: Path) -> str:
    """Find the format of a path by its name in a folder of reports (`metrics.txt` is OpenMetrics) or its suffix."""
    report = next((name for name in NAMES if getattr(module(name), "REPORT", "") == path.name), "")
    return report or next((name for name in NAMES if path.suffix.lower() in suffixes(name)), "")
