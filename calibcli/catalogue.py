"""What can be chosen by name: every shelf and every file format, read from the code that defines them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass

from calibcli.errors import UsageError, did_you_mean
from calibcli.result import Cell, Result, Table
from calibcli.spec import Entry, Shelf, normal, spelled, values

FORMATS = "formats"


@dataclass(frozen=True)
class Catalogued:
    """A shelf by the name that users know it by: where it is, and which option takes its specs."""

    module: str
    attribute: str
    option: str

    @property
    def shelf(self) -> Shelf:
        found: Shelf = getattr(importlib.import_module(self.module), self.attribute)
        return found


SHELVES = {
    "metrics": Catalogued("calibcli.metrics", "METRICS", "calib metrics -m, calib check --max"),
    "methods": Catalogued("calibcli.scalers", "SCALERS", "calib scale --method"),
    "quantities": Catalogued("calibcli.curvature", "QUANTITIES", "calib curvature --what"),
    "losses": Catalogued("calibcli.losses", "LOSSES", "calib fit --loss"),
    "penalties": Catalogued("calibcli.losses", "PENALTIES", "calib fit --loss LOSS+PENALTY"),
    "architectures": Catalogued("calibcli.architectures", "ARCHITECTURES", "--arch"),
    "optimizers": Catalogued("calibcli.train.recipe", "OPTIMIZERS", "calib fit --optimizer"),
    "schedules": Catalogued("calibcli.train.recipe", "SCHEDULES", "calib fit --schedule"),
    "augmentations": Catalogued("calibcli.train.augment", "AUGMENTATIONS", "calib fit --augment"),
}
"""The order is that of the list."""


def overview() -> Result:
    """One line for each kind of thing that has names."""
    rows: list[list[Cell]] = [[name, len(one.shelf.entries), one.option] for name, one in SHELVES.items()]
    rows.append([FORMATS, len(_formats().rows), "input files, --format, -o"])
    return Result(command="list", tables=[Table(name="shelves", columns=["name", "entries", "used by"], rows=rows)])


def listing(name: str) -> Result:
    """The entries of the shelf `name`, one line each; or everything about the entry `name`.

    Raises:
        UsageError: neither a shelf nor an entry.
    """
    if name == FORMATS:
        return Result(command="list", tables=[_formats()])
    if name in SHELVES:
        return Result(command="list", tables=[table(name)], facts={"used by": SHELVES[name].option})
    found = list(_entries(name))
    if not found:
        known = [*SHELVES, FORMATS, *(e.name.replace("_", "-") for one in SHELVES.values() for e in one.shelf)]
        raise UsageError(f"nothing is called '{name}'", did_you_mean(name, known))
    return Result(command="list", tables=[part for where, entry in found for part in _about(where, entry)])


def table(name: str) -> Table:
    """A shelf as a table: spec, what it is, options."""
    rows = [[entry.name, entry.summary.rstrip("."), entry.signature] for entry in SHELVES[name].shelf]
    return Table(name=name, columns=["name", "definition", "options"], rows=rows)


def _entries(name: str) -> Iterator[tuple[str, Entry]]:
    for where, one in SHELVES.items():
        if name in one.shelf:
            yield where, one.shelf.entries[normal(name)]


def _about(where: str, entry: Entry) -> Iterator[Table]:
    """The docstring, and the options with what they take."""
    title = f"{entry.name} ({where}; {SHELVES[where].option})"
    lines: list[list[str]] = [[line] for line in entry.about.splitlines() if line.strip()]
    yield Table(name=f"{where}_{entry.name}", title=title, columns=["definition"], rows=lines)
    if entry.options:
        rows = [
            [name, "" if p.default is p.empty else spelled(p.default), values(p.annotation)]
            for name, p in entry.options.items()
        ]
        yield Table(name=f"{where}_{entry.name}_options", columns=["option", "default", "takes"], rows=rows)


def _formats() -> Table:
    """What is read and what is written, by format."""
    from calibcli import render
    from calibcli.inputs.files import readers

    rows: list[list[str]] = [[name, " ".join(readers.suffixes(name)), "read"] for name in readers.NAMES]
    for name in render.NAMES:
        rows.append(
            [name, " ".join(render.suffixes(name)), "written" if render.to_stdout(name) else "written to a file"]
        )
    return Table(name=FORMATS, columns=["name", "suffix", "is"], rows=rows)
