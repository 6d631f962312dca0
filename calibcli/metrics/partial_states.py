"""States of metrics on a part of the rows, which are merged into the metrics of all rows; their file format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from calibcli.core import validation
from calibcli.core.errors import InputError, UsageError, printable, refusing
from calibcli.core.options import Range
from calibcli.core.statistics import DOUBLE, scrambled
from calibcli.metrics.temperature_gain import FEWEST, SCORES
from calibcli.scores.columns import ClassBins, ClassTable, Columns, into_cells
from calibcli.scores.histogram import NAMES, HistogramCells, cell_count
from calibcli.scores.predictions import NEAR, Array, ArrayScores, Floats, Ints, Kind, Predictions, Progress, gather

# What parts of the rows leave behind, so that metrics of all of them can be told from it: sums, and a sample.
#
# Sums of cells of confidence (`columns.condense`) and class tables are those of all rows however these are split, in
# whatever order the parts come together. What needs the scores gets a sample of the rows: those whose hash is
# smallest
# (the bottom-k sketch of Cohen and Kaplan 2007), where a row's hash is that of its part and its place there. It is
# the
# same sample in whatever order the parts come together.

TELLING = 100  # rows from which two parts that are alike are the same: fewer may be so by chance


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """What rows must have in common to be measured together.

    Attributes:
        k, kind, classes, top_only: as in `Predictions`.
        label_values: what the labels were called, where that was found in the rows.
    """

    k: Annotated[int, Range(2)]
    kind: Kind
    top_only: bool = False
    classes: Sequence[str] | None = None
    label_values: Sequence[str] | None = None

    @classmethod
    def of(cls, rows: Predictions) -> SharedSettings:
        found = rows.facts.get("label_values")
        classes = None if rows.classes is None else [str(name) for name in rows.classes]
        values = None if found is None else [str(value) for value in found]
        return cls(k=rows.k, kind=rows.kind, top_only=rows.top_only, classes=classes, label_values=values)

    def refuse_other(self, other: SharedSettings, name: str) -> None:
        """Raises:
        InputError: rows of another problem.
        """
        for key, fix in (
            ("k", "measure models of different classes apart"),
            ("kind", f"pass kind='{self.kind}' (--kind) for every part, if that is what all hold"),
            ("top_only", "measure confidences and scores apart"),
            ("classes", "name the same classes, in the same order, for every part (--classes)"),
            ("label_values", "name the classes for every part (--classes)"),
        ):
            mine, its = getattr(self, key), getattr(other, key)
            if mine != its:
                what = key.replace("k", "number of classes", 1) if key == "k" else key.replace("_", " ")
                raise InputError(f"{name or 'a part'} has {what} {_short(its)}, those before it {_short(mine)}", fix)


@dataclass(frozen=True, kw_only=True)
class File:
    """A file that rows came from."""

    path: str
    sha256: str = ""


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Rows with the smallest hashes, in their order: (n,) hashes, (n, K) scores, (n,) labels."""

    hashes: Array
    scores: Array
    labels: Ints

    def with_rows(self, other: SampledRows, most: int) -> SampledRows:
        hashes = np.concatenate([self.hashes, other.hashes])
        order = np.argsort(hashes, kind="stable")[:most]
        scores = np.concatenate([self.scores, other.scores])[order]
        return SampledRows(hashes[order], scores, np.concatenate([self.labels, other.labels])[order])


class _Fingerprint:
    """Passes columns on to cells, and takes a digest of them on the way: of scores that lie on a device, too."""

    def __init__(self, cells: HistogramCells) -> None:
        self.cells, self.digest = cells, hashlib.sha256()

    def add(self, out: Mapping[str, Floats], predicted: Ints, labels: Ints) -> None:
        for column in (out["confidence"], out["nll"], out["entropy"], labels):
            self.digest.update(np.ascontiguousarray(column).data)
        self.cells.add(out, predicted, labels)


@dataclass(eq=False)
class MetricState:
    """Sums over the rows seen so far, and a sample of them.

    Attributes:
        tables: class tables to fill.  parts, files, notes: as in `About`.
    """

    class_bins: Sequence[ClassBins]
    rows: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    files: list[File] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: SharedSettings | None = None
    cells: HistogramCells | None = None
    tables: dict[ClassBins, Floats] = field(default_factory=dict)
    kept: SampledRows | None = None

    @property
    def most(self) -> int:
        """Rows that are kept with their scores: as many as `temperature_gain` uses."""
        assert self.problem is not None
        return 0 if self.problem.top_only else max(FEWEST, SCORES // self.problem.k)

    def update(
        self, rows: Predictions, name: str = "", threads: int | None = 1, progress: Progress | None = None
    ) -> None:
        """Add the rows of a part; nothing is added where that is refused.

        Args:
            name: of the part; else what is in it tells whether it was there before.

        Raises:
            InputError: the part was added before, or is of another problem; it has groups, weights or slices.
        """
        _refuse_unmergeable(rows)
        problem = SharedSettings.of(rows)
        part = MetricState(self.class_bins, rows.n, problem=problem, cells=HistogramCells(rows.k, rows.top_only))
        taking = _Fingerprint(part.cells)  # type: ignore[arg-type]
        classes = into_cells(rows, taking, self.class_bins, threads, progress)
        part.tables = {how: np.array([t.count, t.sum_p, t.sum_y]) for how, t in classes.items()}
        digest = taking.digest.hexdigest()
        if name or rows.n >= TELLING:
            part.parts = {hashlib.sha256(name.encode()).hexdigest() if name else digest: rows.n}
        part.files = [File(path=f["path"], sha256=f.get("sha256", "")) for f in rows.facts.get("files", ())]
        part.files = [file for file in part.files if file.sha256]
        part.notes = [*rows.notes]
        part.kept = _smallest(rows, (int(digest[:16], 16) + self.rows) % (1 << 64), part.most)
        self.merge(part, name or rows.source)

    def merge(self, other: MetricState, name: str = "") -> None:
        """Add the rows of another state, which is left as it is.

        Raises:
            InputError: as `update`; or the other has no class table that this one has.
        """
        if other.problem is None:
            return
        if self.problem is not None:
            self.problem.refuse_other(other.problem, name)
        again = sum(other.parts[part] for part in other.parts.keys() & self.parts.keys())
        if again:
            where = f" ({name})" if name else ""
            problem = f"{again:,} rows{where} are those of a part that is there already"
            raise InputError(problem, "add each part once; parts that are alike get names: update(..., part=NAME)")
        if self.problem is not None and set(other.class_bins) != set(self.class_bins):
            raise InputError("the class tables of two states differ", "pass the same metrics (-m) for every part")
        if self.problem is None:
            self.problem, self.cells = other.problem, HistogramCells(other.problem.k, other.problem.top_only)
            self.tables = {how: np.zeros_like(table) for how, table in other.tables.items()}
            self.kept, self.class_bins = other.kept, other.class_bins
        else:
            assert self.kept is not None
            assert other.kept is not None
            self.kept = self.kept.with_rows(other.kept, self.most)
        assert self.cells is not None
        assert other.cells is not None
        self.cells.merge(other.cells)
        for how, table in other.tables.items():
            self.tables[how] = self.tables[how] + table
        self.rows += other.rows
        self.parts |= other.parts
        self.files += [file for file in other.files if file not in self.files]
        self.notes += [note for note in other.notes if note not in self.notes]

    def measured(self) -> tuple[Columns, Predictions]:
        """All rows as columns, and those kept with their scores as predictions.

        Raises:
            UsageError: there are no rows.
        """
        if self.problem is None or self.cells is None or self.kept is None or not self.rows:
            raise UsageError("no rows were added", "update it with scores and labels first")
        about = self.problem
        classes = {how: ClassTable(*table) for how, table in self.tables.items()}
        rows = Predictions(
            scores=ArrayScores(self.kept.scores),
            labels=self.kept.labels,
            kind=about.kind,
            classes=about.classes,
            top_only=about.top_only,
            notes=self.notes,
        )
        return Columns(**self.cells.columns(), classes=classes, precision=DOUBLE), rows


def _refuse_unmergeable(rows: Predictions) -> None:
    together = "measure the parts together: calib metrics --shards PART PART ..."
    if rows.groups is not None:
        problem = "groups cannot be merged: rows of one may lie in several parts, and intervals need each group whole"
        raise InputError(problem, together)
    if rows.weights is not None:
        problem = "weights cannot be merged: intervals need the weight of every row, of which cells keep only sums"
        raise InputError(problem, together)
    if rows.slices:
        raise InputError(f"slices by '{next(iter(rows.slices))}' cannot be merged", "make a state of each value's rows")


def _smallest(rows: Predictions, seed: int, most: int) -> SampledRows:
    """The rows of a part with the smallest hashes."""
    with np.errstate(over="ignore"):
        hashes = scrambled(scrambled(np.arange(rows.n, dtype=np.uint64) + np.uint64(seed)) ^ np.uint64(seed))
    index = np.argpartition(hashes, most)[:most] if most < rows.n else np.arange(rows.n)
    index = index[np.argsort(hashes[index])]
    scores = gather(rows.scores, index, NEAR)
    scores = scores if scores.dtype == np.float64 else scores.astype(np.float32)
    return SampledRows(hashes[index], np.ascontiguousarray(scores), np.asarray(rows.labels[index], np.int64))


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"


# The file of a state: arrays, of which one is a JSON header; whatever else is in it is refused.


HEADER, SCHEMA = "calib_state", 1
FIX = "write it again: this is not what calib metrics --partial writes"
FINITE = [i for i, name in enumerate(NAMES) if name not in ("nll", "most")]  # those are infinite at probability 0
Rows = Annotated[int, Range(0)]


@dataclass(frozen=True, kw_only=True)
class StateHeader:
    """The header of a state file.

    Attributes:
        tables: how class probabilities are binned.
        parts: rows of each part by its fingerprint.  files: where they came from.  notes: remarks of the reader.
        checksum: of all else in the file; "" of earlier versions.
    """

    schema: int
    rows: Rows
    problem_of: SharedSettings
    tables: Sequence[ClassBins]
    parts: Mapping[str, Rows]
    files: Sequence[File] = ()
    notes: Sequence[str] = ()
    checksum: str = ""

    def problem(self) -> str:
        """What cannot be."""
        if any(t.bins < 1 or t.bins > 1_000_000 or not -1 <= t.threshold <= 1 for t in self.tables):
            return "a class table has bins that cannot be"
        names = self.problem_of.classes
        if names is not None and len(names) != self.problem_of.k:
            return f"{len(names)} class names for {self.problem_of.k} classes"
        return "parts have more rows than there are" if sum(self.parts.values()) > self.rows else ""


def arrays_of(state: MetricState) -> dict[str, Array]:
    """A state as arrays, of which HEADER is JSON."""
    state.measured()
    assert state.problem is not None
    assert state.cells is not None
    assert state.kept is not None
    about = {
        "schema": SCHEMA,
        "rows": state.rows,
        "problem_of": vars(state.problem),
        "tables": [vars(how) for how in state.tables],
        "parts": state.parts,
        "files": [vars(file) for file in state.files],
        "notes": state.notes,
    }
    cells, count, sums = state.cells.arrays()
    arrays = {
        "cells": cells,
        "count": count,
        "sums": sums,
        "predicted": state.cells.predicted,
        **{f"table_{i}": table for i, table in enumerate(state.tables.values())},
        "kept_hashes": state.kept.hashes,
        "kept_rows": state.kept.scores,
        "kept_labels": state.kept.labels,
    }
    text = json.dumps({**about, "checksum": _checksum(about, arrays)})
    return {HEADER: np.frombuffer(text.encode(), np.uint8), **arrays}


def _checksum(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """SHA-256 of a header without its checksum and of all arrays, by name."""
    rest = {key: value for key, value in about.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(set(arrays) - {HEADER}):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.newbyteorder('<').str} {array.shape}".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def state_of(arrays: Mapping[str, Array], source: str) -> MetricState:
    """What `arrays_of` gave.

    Raises:
        InputError: it is no state, or not one that this version reads.
    """
    if HEADER not in arrays:
        raise InputError(f"{source} is no state", "pass what calib metrics --partial wrote")
    with refusing((ValueError, RecursionError), f"{source}: its header is not JSON", FIX):
        data = json.loads(arrays[HEADER].tobytes())
    if isinstance(data, dict) and data.get("schema") != SCHEMA:
        raise validation.wrong(data.get("schema"), f"{SCHEMA}, which this version reads", source, FIX, "schema")
    about: StateHeader = validation.read(data, StateHeader, source, FIX)
    problem = about.problem_of
    fault = _fault(arrays, about)
    if fault:
        raise InputError(f"{source}: {fault}", FIX)
    if about.checksum and about.checksum != _checksum(data, arrays):
        raise InputError(f"{source} was changed by something else than calib: its checksum does not fit", FIX)
    held = arrays["cells"].astype(np.int64), arrays["count"], arrays["sums"]
    cells = HistogramCells(problem.k, problem.top_only, arrays["predicted"].copy(), held)
    kept = SampledRows(arrays["kept_hashes"], arrays["kept_rows"], arrays["kept_labels"].astype(np.int64))
    tables = {how: arrays[f"table_{i}"] for i, how in enumerate(about.tables)}
    parts, files, notes = dict(about.parts), list(about.files), [printable(note) for note in about.notes]
    return MetricState(list(tables), about.rows, parts, files, notes, problem, cells, tables, kept)


def _fault(arrays: Mapping[str, Array], about: StateHeader) -> str:
    """What in the arrays of a state cannot be, or nothing."""
    k, most = about.problem_of.k, cell_count(about.problem_of.k)
    count, rows = (arrays[name].size if name in arrays else 0 for name in ("cells", "kept_hashes"))
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "cells": ((count,), "i"),
        "count": ((count,), "f"),
        "sums": ((2, len(NAMES), count), "f"),
        "predicted": ((3, k), "f"),
        **{f"table_{i}": ((3, k, how.bins + (how.edges == "torchmetrics")), "f") for i, how in enumerate(about.tables)},
        "kept_hashes": ((rows,), "u"),
        "kept_rows": ((rows, k), "f"),
        "kept_labels": ((rows,), "i"),
    }
    for name, (shape, kind) in shapes.items():
        if name not in arrays:
            return f"'{name}' is missing"
        found = arrays[name]
        if found.shape != shape or found.dtype.kind != kind or found.dtype.itemsize < 4:
            return f"'{name}' is {found.dtype} of shape {list(found.shape)}, not {list(shape)}"
        if np.isnan(found).any():
            return f"'{name}' holds NaN"
        some = found[:, FINITE] if name == "sums" else found
        if name != "kept_rows" and not np.isfinite(some).all():
            return f"'{name}' holds what is not a finite number"
        if name not in ("sums", "kept_rows") and found.min(initial=0) < 0:
            return f"'{name}' holds numbers below 0"
    cells, labels = arrays["cells"], arrays["kept_labels"]
    if count and (cells[0] < 0 or cells[-1] >= most or (np.diff(cells) <= 0).any()):
        return "'cells' are not in order"
    if arrays["count"].min(initial=1) < 1 or abs(float(arrays["count"].sum()) - about.rows) > 0.5:
        return f"'count' adds up to {float(arrays['count'].sum()):,.0f}, not to its {about.rows:,} rows"
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= k or rows > max(FEWEST, SCORES // k):
        return "'kept_labels' are not those of its classes"
    return "" if (np.diff(arrays["kept_hashes"].astype(np.float64)) >= 0).all() else "'kept_hashes' are not in order"
