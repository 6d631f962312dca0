"""Formats: each is one file with `render(result) -> str | bytes` and one line in `FORMATS`.

A renderer reads a `Result` and nothing else. stdout gets `--format NAME`; `-o FILE` goes by suffix.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from calibcli.errors import UsageError, did_you_mean
from calibcli.files import atomic, may_write
from calibcli.render import bins, csv, stream
from calibcli.result import Result


@dataclass(frozen=True)
class Format:
    """One output format: its module in this package, its file suffixes, and the name it has in a folder of reports."""

    name: str
    module: str
    suffixes: tuple[str, ...] = ()
    stdout: bool = True  # may go to stdout (pictures may not)
    report: str = ""  # file name in `-o DIR/`


FORMATS = {
    f.name: f
    for f in (
        Format("table", "table", (".txt",)),
        Format("json", "json", (".json",), report="result.json"),
        Format("markdown", "markdown", (".md",), report="summary.md"),
        Format("csv", "csv", (".csv",), report="estimates.csv"),
        Format("junit", "junit", (".xml",), report="junit.xml"),
        Format("github", "github"),
        Format("openmetrics", "openmetrics", (".prom",), report="metrics.txt"),
        Format("png", "figure", (".png",), stdout=False, report="figure.png"),
        Format("svg", "figure", (".svg",), stdout=False),
        Format("pdf", "figure", (".pdf",), stdout=False),
    )
}


def known_format(name: str) -> str:
    """`name`, if it is a format that stdout can take.

    Raises:
        UsageError: otherwise.
    """
    names = [f.name for f in FORMATS.values() if f.stdout]
    if name not in names:
        if name in FORMATS:
            raise UsageError(f"format '{name}' does not go to stdout", f"write a file: -o result.{name}")
        raise UsageError(f"unknown format '{name}'", did_you_mean(name, names))
    return name


def known_output(path: Path) -> Path:
    """`path`, if its suffix is a format and its folder exists (a path ending in `/` is a folder of reports).

    Raises:
        UsageError: otherwise.
    """
    if is_folder(path):
        return path
    found = _by_suffix(path)
    if found is None:
        known = sorted(s for f in FORMATS.values() for s in f.suffixes)
        raise UsageError(f"cannot tell the format of '{path}'", "use a suffix of: " + " ".join(known))
    if found.module == "figure" and importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"'{path}' is drawn by matplotlib, which is not installed", "pip install matplotlib")
    may_write([path])
    return path


def files(path: Path) -> list[Path]:
    """The files that `-o path` may write: itself, or in a folder the reports and any .csv that is there."""
    if not is_folder(path):
        return [path]
    reports = [path / f.report for f in FORMATS.values() if f.report]
    return [file for file in dict.fromkeys([*reports, *path.glob("*.csv")]) if file.exists()]


def text(result: Result, name: str) -> str:
    """`result` as the text of format `name`."""
    return cast(str, _render(result, FORMATS[name]))


def show(result: Result, name: str) -> None:
    """Print `result` to stdout; a format with a `show` of its own knows more about where it goes (colour, width)."""
    module = _module(FORMATS[name])
    if hasattr(module, "show"):
        module.show(result)
    else:
        stream.put(text(result, name), json=name == "json")


def write(result: Result, path: Path) -> None:
    """Write `result` to a file by its suffix, or every report to a folder; whole or not at all."""
    if is_folder(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the folder {path} ({error.strerror})", "name another folder") from None
        for format in FORMATS.values():
            if (
                format.report
                and (result.plots or format.module != "figure")
                and (result.checks or format.name != "junit")
            ):
                _save(_render(result, format), path / format.report)
        for table in filter(None, [bins.table(result), *result.tables]):
            name = re.sub(r"[^\w.-]+", "_", table.name).strip("._") or "table"
            _save(csv.table(table), path / f"{name}.csv")
        return
    found = _by_suffix(path)
    assert found is not None, path
    _save(_render(result, found), path)


def is_folder(path: Path) -> bool:
    return path.is_dir() or str(path).endswith(os.sep) or (path.suffix == "" and not path.exists())


def _save(content: str | bytes, path: Path) -> None:
    with atomic(path) as temporary:
        # a file name that is not UTF-8 arrives in lone surrogates: escaped, which in JSON says the same
        temporary.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))


def _by_suffix(path: Path) -> Format | None:
    """By suffix; `metrics.txt` is what a folder of reports calls OpenMetrics, other .txt files hold the table."""
    named = next((f for f in FORMATS.values() if f.report == path.name), None)
    return named or next((f for f in FORMATS.values() if path.suffix.lower() in f.suffixes), None)


def _module(format: Format) -> ModuleType:
    return importlib.import_module(f"calibcli.render.{format.module}")


def _render(result: Result, format: Format) -> str | bytes:
    module = _module(format)
    if format.module == "figure":
        return cast(bytes, module.render(result, format.name))
    return cast(str, module.render(result))
