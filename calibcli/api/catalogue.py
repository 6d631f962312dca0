"""List everything that can be chosen by name: every registry and every file format, read from the code."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from calibcli.core import extensions
from calibcli.core.errors import UsageError, did_you_mean
from calibcli.core.options import normal, spelled, values
from calibcli.core.registries import Entry, Registry
from calibcli.core.result import Cell, Result, Table

FORMATS = "formats"


@dataclass(frozen=True)
class Catalogued:
    """A registry as users know it: where it is, which option takes its specs, and what its entries take and give."""

    place: str
    option: str
    takes: str
    gives: str

    @property
    def registry(self) -> Registry[..., Any]:
        module, _, name = self.place.rpartition(".")
        entries: Registry[..., Any] = getattr(importlib.import_module(module), name)
        return entries

    @property
    def needs_torch(self) -> bool:
        """Whether the registry lies in a package that needs PyTorch, which may not be installed."""
        return self.place.split(".")[1] in ("networks", "lab")


SCORES = "scores (N, K) of float16 to float64, labels (N,) of integers"
LOGITS = "logits (N, K) of floats, labels (N,) of int64"
NETWORK = "a network; inputs (N, ...), labels (N,) of integers"
REGISTRIES = {
    "metrics": Catalogued("calibcli.metrics.METRICS", "calib metrics -m, calib check --max", SCORES, "an estimate"),
    "methods": Catalogued(
        "calibcli.calibrators.SCALERS", "calib scale --method", SCORES, "probabilities (n, K) of float64"
    ),
    "targets": Catalogued(
        "calibcli.ship.TARGETS",
        "calib export --to",
        "a calibrator; scores (n, K) of float16 to float64 to compare on, or a model and its inputs (n, ...)",
        "a file, and how far it is from the calibrator",
    ),
    "quantities": Catalogued(
        "calibcli.networks.curvature.QUANTITIES", "calib curvature --quantity", NETWORK, "an estimate"
    ),
    "losses": Catalogued("calibcli.networks.losses.LOSSES", "calib fit --loss", LOGITS, "(N,) of float32 or float64"),
    "penalties": Catalogued(
        "calibcli.networks.losses.PENALTIES",
        "calib fit --loss LOSS+PENALTY",
        f"the network; {LOGITS}",
        "a scalar, nats",
    ),
    "architectures": Catalogued(
        "calibcli.networks.architectures.ARCHITECTURES",
        "--arch",
        "images (n, channels, height, width) or rows (n, inputs) of floats",
        "logits (n, classes) of their dtype",
    ),
    "optimizers": Catalogued(
        "calibcli.lab.training.recipes.OPTIMIZERS", "calib fit --optimizer", "gradients of the parameters", "steps"
    ),
    "schedules": Catalogued(
        "calibcli.lab.training.recipes.SCHEDULES", "calib fit --schedule", "the step of the run", "a factor of --lr"
    ),
    "augmentations": Catalogued(
        "calibcli.lab.training.recipes.AUGMENTATIONS",
        "calib fit --augment",
        "images (n, channels, height, width) of floats",
        "as many of the same shape and dtype",
    ),
    "changes": Catalogued(
        "calibcli.lab.training.recipes.CHANGES",
        "calib study, change of an arm",
        "a trained network and inputs (n, ...) of floats, or labels (n,)",
        "the network, changed in place, or other labels (n,)",
    ),
    "claims": Catalogued(
        "calibcli.lab.study.claims.KINDS",
        "calib study, [[claim]]",
        "numbers (n,) of floats of arms, by seed",
        "a verdict",
    ),
}
"""Registries in the order of `calib list`."""
NAMED = "in Python; logits, labels: those of sample_data/test.npz; model: sample_data/model.pt"
RESULT = 'in Python; result: calibcli.measure(logits, labels, "accuracy")'
WAYS = {
    "read": ("a file", f"arrays by name, such as {SCORES}", f"{NAMED.partition('; model')[0]}; folder: an empty one"),
    "written": ("a result", "text", RESULT),
    "written to a file": ("a result", "bytes", RESULT),
}
"""What formats take and give, and what the names in their examples stand for."""


@dataclass(frozen=True)
class Format:
    """A file format: the module that reads or writes it."""

    name: str
    suffixes: tuple[str, ...]
    way: str
    module: ModuleType
    package: str = ""

    @property
    def added(self) -> str:
        """The installed package that it comes from, where it is not one of calib."""
        return f" (added by {self.package})" if self.package else ""

    @property
    def about(self) -> str:
        """The docstring of its module."""
        return inspect.cleandoc(self.module.__doc__ or "")


def formats() -> list[Format]:
    """List the formats that are read, then those that are written."""
    from calibcli import render
    from calibcli.scores.files import source

    source.load_packaged()
    listed = [
        Format(name, source.suffixes(name), "read", source.module(name), source.PACKAGED.get(name, ""))
        for name in source.FORMATS
    ]
    for name in render.NAMES:
        way = "written" if render.to_stdout(name) else "written to a file"
        listed.append(Format(name, render.suffixes(name), way, render.module(name)))
    return listed


def overview() -> Result:
    """List the registries, one line each."""
    notes = [*_packaged(_installed()), *extensions.unknown_groups(), *_without_torch()]
    rows: list[list[Cell]] = [[name, len(one.registry.entries), one.option] for name, one in _installed().items()]
    rows.append([FORMATS, len(formats()), "input files, --format, -o"])
    columns, title = ["name", "entries", "used by"], "What can be chosen by name"
    table = Table(name="registries", columns=columns, rows=rows, title=title)
    return Result(command="list", tables=[table], notes=notes)


def _installed() -> dict[str, Catalogued]:
    """Return the registries that can be opened: those of networks need PyTorch."""
    has_torch = importlib.util.find_spec("torch") is not None
    return {name: one for name, one in REGISTRIES.items() if has_torch or not one.needs_torch}


def _packaged(names: Iterable[str]) -> list[str]:
    """Load what installed packages add to these registries; return a note on each entry that could not be added."""
    return [
        str(error).replace("\n  fix:", ":") for name in names for error in REGISTRIES[name].registry.load_packaged()
    ]


def _without_torch() -> list[str]:
    installed = _installed()
    left_out = [name for name in REGISTRIES if name not in installed]
    return [f"not listed without PyTorch: {', '.join(left_out)} (pip install torch)"] if left_out else []


def listing(name: str) -> Result:
    """List the entries of the registry `name`, one line each, or describe the entry `name`.

    Raises:
        UsageError: `name` is neither a registry nor an entry.
    """
    if name == FORMATS:
        rows = [
            [one.name, " ".join(one.suffixes), one.way, one.about.partition("\n")[0].rstrip(".") + one.added]
            for one in formats()
        ]
        columns = ["name", "suffix", "is", "definition"]
        return Result(command="list", tables=[Table(name=FORMATS, columns=columns, rows=rows)])
    if name in REGISTRIES:
        notes = [*_packaged([name]), *extensions.unknown_groups()]
        return Result(command="list", tables=tables(name), facts={"used by": REGISTRIES[name].option}, notes=notes)
    if f"{name}s" in (*REGISTRIES, FORMATS):
        raise UsageError(f"nothing is called '{name}'", did_you_mean(name, [f"{name}s"]))
    if normal(name) in ("study", "studies", "recipe", "recipes"):  # studies are files of the user, not entries
        fix = "calib study lists those that come with calib, and calib list all other names"
        raise UsageError(f"nothing is called '{name}'", fix)
    parts = [
        part
        for where, one in _installed().items()
        if name in one.registry
        for part in _about(where, one.registry.entries[normal(name)])
    ]
    parts += [part for one in formats() if one.name == normal(name) for part in _about_format(one)]
    if not parts:
        if called := next(filter(None, (one.registry.called(normal(name)) for one in _installed().values())), ""):
            raise UsageError(f"nothing is called '{name}'", f"did you mean '{called}'?")
        names = [
            *REGISTRIES,
            FORMATS,
            *(e.name.replace("_", "-") for one in _installed().values() for e in one.registry),
        ]
        raise UsageError(f"nothing is called '{name}'", did_you_mean(name, [*names, *(one.name for one in formats())]))
    return Result(command="list", tables=parts)


def tables(name: str) -> list[Table]:
    """Return a registry as a table: name, definition, options. Entries that only papers use have another table."""
    rows: dict[bool, list[list[Cell]]] = {False: [], True: []}
    for entry in REGISTRIES[name].registry:
        about = entry.summary.rstrip(".") + (f" (added by {entry.package})" if entry.package else "")
        rows[entry.traits.papers].append([entry.name, about, entry.signature])
    columns, title = ["name", "definition", "options"], f"{name} that only papers use"
    apart = Table(name=f"{name}_of_papers", title=title, columns=columns, rows=rows[True])
    return [Table(name=name, columns=columns, rows=rows[False]), *([apart] if rows[True] else [])]


def example(doc: str) -> list[str]:
    """Return the lines of a docstring from the first `>>>` to the next blank line."""
    lines = doc.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith(">>>")), len(lines))
    stop = next((i for i in range(start, len(lines)) if not lines[i].strip()), len(lines))
    return lines[start:stop]


def _about(where: str, entry: Entry[Any]) -> Iterator[Table]:
    """Describe an entry: its docstring, what it takes and gives, its options, and its example."""
    catalogued, name = REGISTRIES[where], f"{where}_{entry.name}"
    yield _definition(name, f"{entry.name} ({where}; {catalogued.option})", entry.about)
    gives = ", ".join(filter(None, [catalogued.gives, *entry.traits.gives]))
    yield Table(name=f"{name}_use", columns=["takes", "gives"], rows=[[catalogued.takes, gives]])
    if entry.options:
        rows = [
            [option, "" if p.default is p.empty else spelled(p.default), values(p.annotation)]
            for option, p in entry.options.items()
        ]
        yield Table(name=f"{name}_options", columns=["option", "default", "takes"], rows=rows)
    yield Table(name=f"{name}_example", columns=[NAMED], rows=[[line] for line in example(entry.about)])


def _about_format(fmt: Format) -> Iterator[Table]:
    """Describe a format likewise."""
    name, (takes, gives, named) = f"{FORMATS}_{fmt.way}_{fmt.name}".replace(" ", "_"), WAYS[fmt.way]
    yield _definition(name, f"{fmt.name} ({FORMATS}; {' '.join([fmt.way, *fmt.suffixes])})", fmt.about)
    yield Table(name=f"{name}_use", columns=["takes", "gives"], rows=[[takes, gives]])
    yield Table(name=f"{name}_example", columns=[named], rows=[[line] for line in example(fmt.about)])


def _definition(name: str, title: str, doc: str) -> Table:
    shown = example(doc)
    lines: list[list[str]] = [[line] for line in doc.splitlines() if line.strip() and line not in shown]
    return Table(name=name, title=title, columns=["definition"], rows=lines)
