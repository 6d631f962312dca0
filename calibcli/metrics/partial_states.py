"""States of metrics on parts of the rows, which are merged to measure all rows, and their file format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from calibcli.core import validation
from calibcli.core.errors import InputError, UsageError, printable, refusing
from calibcli.core.options import Range
from calibcli.core.statistics import DOUBLE, scrambled
from calibcli.metrics import _repeated_rows as repeated_rows
from calibcli.metrics._repeated_rows import KEPT, Marking, RowMarks
from calibcli.metrics.temperature_gain import FEWEST, SCORES
from calibcli.scores.columns import ClassBins, ClassTable, Columns, into_cells
from calibcli.scores.histogram import NAMES, HistogramCells, cell_count
from calibcli.scores.predictions import NEAR, Array, ArrayScores, Floats, Ints, Kind, Predictions, Progress, gather

# A state keeps sums and a sample. Sums over cells of confidence (`scores.histogram`) and class tables add up to those
# of all rows, however these are split and in whatever order parts are merged. Metrics that need scores use a sample:
# the rows with the smallest hashes (the bottom-k sketch of Cohen and Kaplan 2007), where the hash of a row is that of
# its part, of its place there, and of the number of rows in the state when the part was added: without that, equal rows
# of two small parts would have equal hashes. So the sample does not depend on the order in which states are merged, but
# on that of `update`. Other hashes, of what the rows hold and of their ids, tell rows that were added more than once
# (`repeated_rows`).

TELLING = 100  # rows from which equal contents mean the same part: fewer may be equal by chance


@dataclass(frozen=True, kw_only=True)
class SharedSettings:
    """Settings that rows must have in common to be measured together.

    Attributes:
        k, kind, classes, top_only: as in `Predictions`.
        label_values: names of the labels, where they were read from the rows.
    """

    k: Annotated[int, Range(2)]
    kind: Kind
    top_only: bool = False
    classes: Sequence[str] | None = None
    label_values: Sequence[str] | None = None

    @classmethod
    def of(cls, rows: Predictions) -> SharedSettings:
        """Read the settings of some rows."""
        labels = rows.record.label_values
        classes = None if rows.classes is None else [str(name) for name in rows.classes]
        values = None if labels is None else [str(value) for value in labels]
        return cls(k=rows.k, kind=rows.kind, top_only=bool(rows.top_only), classes=classes, label_values=values)

    def refuse_other(self, other: SharedSettings, name: str) -> None:
        """Refuse rows with other settings.

        Raises:
            InputError: a setting differs.
        """
        for key, fix in (
            ("k", "measure models of different classes apart"),
            ("kind", f"say what all parts hold: --kind {self.kind} or --kind {other.kind}"),
            ("top_only", "measure confidences and scores apart"),
            ("classes", "name the same classes, in the same order, for every part (--classes)"),
            ("label_values", "name the classes for every part (--classes)"),
        ):
            mine, its = getattr(self, key), getattr(other, key)
            if mine != its:
                what = "number of classes" if key == "k" else key.replace("_", " ")
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

    def __len__(self) -> int:
        return len(self.hashes)

    def with_rows(self, other: SampledRows, most: int) -> SampledRows:
        """Return the rows of both with the smallest hashes, at most `most`."""
        hashes = np.concatenate([self.hashes, other.hashes])
        order = np.argsort(hashes, kind="stable")[:most]
        scores = np.concatenate([self.scores, other.scores])[order]
        return SampledRows(hashes[order], scores, np.concatenate([self.labels, other.labels])[order])


class _Fingerprint:
    """Passes columns on to cells and computes digests of them, also where the scores lie on a device.

    Attributes:
        digest: of all columns.  marking: marks of single rows.
        ids: (n,) hashes of the ids, where what tells a row is its id together with what it holds.
    """

    def __init__(self, cells: HistogramCells, ids: Array | None = None) -> None:
        self.cells, self.digest, self.marking = cells, hashlib.sha256(), Marking(cells.k, cells.top_only)
        self.ids, self.seen = ids, 0

    def add(self, out: Mapping[str, Floats], predicted: Ints, labels: Ints) -> None:
        """Add the columns of a block."""
        for column in (out["confidence"], out["nll"], out["entropy"], labels):
            self.digest.update(np.ascontiguousarray(column).data)
        marks = self.marking.add(out, predicted, labels)
        if self.ids is not None:
            self.ids[self.seen : self.seen + len(marks)] ^= marks
        self.seen += len(marks)
        self.cells.add(out, predicted, labels)


@dataclass(eq=False)
class MetricState:
    """Sums over the rows so far, and a sample of them.

    Attributes:
        class_bins: class tables to fill.  parts, files, notes: as in `StateHeader`.
        sampled: samples of some parts each; that of all rows is `kept`.
        marked, named: by `repeated_rows`, marks of what rows hold, and of their ids, of some parts each. Of each mark
            they have the number of rows, how many of these are wrong, and 1 - confidence of one of them (`RowMarks`).
        unmarked: rows of states of a version that kept no marks.
    """

    class_bins: Sequence[ClassBins]
    rows: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    files: dict[File, None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    problem: SharedSettings | None = None
    cells: HistogramCells | None = None
    tables: dict[ClassBins, Floats] = field(default_factory=dict)
    sampled: list[SampledRows] = field(default_factory=list)
    marked: list[RowMarks] = field(default_factory=list)
    named: list[RowMarks] = field(default_factory=list)
    unmarked: int = 0

    @property
    def kept(self) -> SampledRows:
        """The sample of all rows."""
        self._join(whole=True)
        return self.sampled[0]

    @property
    def marks(self) -> tuple[RowMarks, RowMarks]:
        """The marks of all rows, and of their ids."""
        self._join(whole=True)
        none = [RowMarks.none()]
        return (self.marked or none)[0], (self.named or none)[0]

    def repeated(self) -> tuple[list[str], bool]:
        """Say which rows were added more than once; and whether they are so many that no gate can judge the rest."""
        text, many = repeated_rows.said(*self.marks)
        older = f"{self.unmarked:,} rows are of states of an earlier version: whether they repeat others is not known"
        return [text] * bool(text) + [older] * bool(self.unmarked and self.unmarked < self.rows), many

    @property
    def most(self) -> int:
        """Number of rows that are kept with their scores: as many as `temperature_gain` uses."""
        assert self.problem is not None
        return 0 if self.problem.top_only else max(FEWEST, SCORES // self.problem.k)

    def update(
        self,
        rows: Predictions,
        name: str = "",
        threads: int | None = 1,
        progress: Progress | None = None,
        sure_ids: bool = False,
    ) -> None:
        """Add the rows of a part; a part that is refused adds nothing.

        Args:
            name: of the part, by which a second one is recognised; without it, by its contents.
            sure_ids: equal ids are the same row in all parts. Else each part may number its rows anew, and only rows
                that look alike, too, are the same.

        Raises:
            InputError: the part was added before, or is of another problem; it has groups, weights or slices.
        """
        _refuse_unmergeable(rows)
        problem = SharedSettings.of(rows)
        part = MetricState(self.class_bins, rows.n, problem=problem, cells=HistogramCells(rows.k, bool(rows.top_only)))
        ids = None if rows.ids is None else repeated_rows.of_ids(np.asarray(rows.ids))
        fingerprint = _Fingerprint(part.cells, None if sure_ids else ids)  # type: ignore[arg-type]
        classes = into_cells(rows, fingerprint, self.class_bins, threads, progress)
        part.tables = {bins: np.array([t.count, t.sum_p, t.sum_y]) for bins, t in classes.items()}
        digest = fingerprint.digest.hexdigest()
        if name or rows.n >= TELLING:
            part.parts = {hashlib.sha256(name.encode()).hexdigest() if name else digest: rows.n}
        files = [File(path=f["path"], sha256=f.get("sha256", "")) for f in rows.record.files]
        part.files = dict.fromkeys(file for file in files if file.sha256)
        part.notes = dict.fromkeys(rows.notes)
        seed = (int(digest[:16], 16) + self.rows) % (1 << 64)  # another one for each of several equal small parts
        part.sampled = [_smallest(rows, seed, part.most)]
        part.marked, part.named = [fingerprint.marking.marks], [] if ids is None else [RowMarks.of(ids)]
        self.merge(part, name or rows.source)

    def merge(self, other: MetricState, name: str = "") -> None:
        """Add the rows of another state, which is not changed.

        Raises:
            InputError: as `update`; or the two have other class tables.
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
        assert other.cells is not None
        if self.problem is None:
            self.problem, self.cells = other.problem, HistogramCells(other.problem.k, other.problem.top_only)
            self.tables, self.class_bins = other.tables, other.class_bins
        elif set(other.class_bins) != set(self.class_bins):
            raise InputError("the class tables of two states differ", "pass the same metrics (-m) for every part")
        else:
            self.tables = {bins: table + other.tables[bins] for bins, table in self.tables.items()}
        assert self.cells is not None
        self.cells.merge(other.cells)
        self.sampled = [*self.sampled, other.kept]
        marked, named = other.marks
        self.marked, self.named = [*self.marked, marked], [*self.named, named]
        self._join()
        self.unmarked += other.unmarked
        self.rows += other.rows
        self.parts |= other.parts
        self.files |= other.files
        self.notes |= other.notes

    def _join(self, whole: bool = False) -> None:
        """Join samples of about equal size, or all: a row is moved when their number doubles, not for every part."""
        while len(self.sampled) > 1 and (whole or 2 * len(self.sampled[-1]) >= len(self.sampled[-2])):
            self.sampled[-2:] = [self.sampled[-2].with_rows(self.sampled[-1], self.most)]
        for marks in (self.marked, self.named):
            while len(marks) > 1 and (whole or 2 * len(marks[-1]) >= len(marks[-2])):
                marks[-2:] = [marks[-2].with_rows(marks[-1])]

    def measured(self) -> tuple[Columns, Predictions]:
        """Return all rows as columns, and those kept with their scores as predictions.

        Raises:
            UsageError: there are no rows.
        """
        if self.problem is None or self.cells is None or not self.rows:
            raise UsageError("no rows were added", "update it with scores and labels first")
        settings = self.problem
        classes = {bins: ClassTable(*table) for bins, table in self.tables.items()}
        rows = Predictions(
            scores=ArrayScores(self.kept.scores),
            labels=self.kept.labels,
            kind=settings.kind,
            classes=settings.classes,
            top_only=settings.top_only,
            notes=[*self.notes, *self.repeated()[0]],
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
    """Return the rows of a part with the smallest hashes."""
    with np.errstate(over="ignore"):
        hashes = scrambled(scrambled(np.arange(rows.n, dtype=np.uint64) + np.uint64(seed)) ^ np.uint64(seed))
    index = np.argpartition(hashes, most)[:most] if most < rows.n else np.arange(rows.n)
    index = index[np.argsort(hashes[index])]
    scores = gather(rows.scores, index, NEAR)
    scores = scores if scores.dtype == np.float64 else scores.astype(np.float32)
    return SampledRows(hashes[index], np.ascontiguousarray(scores), np.asarray(rows.labels[index], np.int64))


def _short(value: Any) -> str:
    return printable(", ".join(map(str, value)) if isinstance(value, list) else str(value), 60)


# The file of a state: arrays, one of which is a JSON header. Anything else in it is refused.

HEADER, SCHEMA = "calib_state", 2
UNMARKED = 1  # the schema of states that have no marks of rows
MARKS = {"hashes": np.uint64, "rows": np.int64, "wrong": np.int64, "rest": np.float32}
FIX = "write it again: this is not what calib metrics --partial writes"
FINITE = [i for i, name in enumerate(NAMES) if name not in ("nll", "most")]  # these are infinite at probability 0
Rows = Annotated[int, Range(0)]


@dataclass(frozen=True, kw_only=True)
class StateHeader:
    """The header of a state file.

    Attributes:
        tables: how class probabilities are binned.
        parts: rows of each part by its fingerprint.  files: that the rows came from.  notes: remarks of the reader.
        unmarked: rows without marks.
        checksum: of everything else in the file; "" in files of earlier versions.
    """

    schema: int
    rows: Rows
    problem_of: SharedSettings
    tables: Sequence[ClassBins]
    parts: Mapping[str, Rows]
    files: Sequence[File] = ()
    notes: Sequence[str] = ()
    unmarked: Rows = 0
    checksum: str = ""

    def problem(self) -> str:
        """Report values that contradict each other, or ""."""
        # a threshold below 0 leaves nothing out, as 0 does; of the options, -1 was replaced by 1/K
        if any(t.bins < 1 or t.bins > 1_000_000 or not -1 <= t.threshold <= 1 for t in self.tables):
            return "a class table has bins that cannot be"
        names = self.problem_of.classes
        if names is not None and len(names) != self.problem_of.k:
            return f"{len(names)} class names for {self.problem_of.k} classes"
        return "parts have more rows than there are" if sum(self.parts.values()) > self.rows else ""


def arrays_of(state: MetricState) -> dict[str, Array]:
    """Convert a state to arrays, of which HEADER is JSON."""
    state.measured()
    assert state.problem is not None
    assert state.cells is not None
    header = {
        "schema": SCHEMA,
        "rows": state.rows,
        "problem_of": vars(state.problem),
        "tables": [vars(bins) for bins in state.tables],
        "parts": state.parts,
        "files": [vars(file) for file in state.files],
        "notes": [*state.notes],
        "unmarked": state.unmarked,
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
        **_marks_arrays(state.marks),
    }
    text = json.dumps({**header, "checksum": _checksum(header, arrays)})
    return {HEADER: np.frombuffer(text.encode(), np.uint8), **arrays}


def _marks_arrays(marks: Sequence[RowMarks]) -> dict[str, Array]:
    parts = zip(("marks", "ids"), marks, strict=True)
    return {f"{name}_{key}": getattr(one, key) for name, one in parts for key in MARKS}


def _checksum(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """Compute SHA-256 of a header without its checksum and of all arrays, by name."""
    fields = {key: value for key, value in header.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    for name in sorted(set(arrays) - {HEADER}):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.newbyteorder('<').str} {array.shape}".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def state_of(arrays: Mapping[str, Array], source: str) -> MetricState:
    """Convert the arrays of `arrays_of` back to a state.

    Raises:
        InputError: they are no state, or not one that this version reads.
    """
    if HEADER not in arrays:
        raise InputError(f"{source} is no state", "pass what calib metrics --partial wrote")
    with refusing((ValueError, RecursionError), f"{source}: its header is not JSON", FIX):
        data = json.loads(arrays[HEADER].tobytes())
    if isinstance(data, dict) and data.get("schema") not in (UNMARKED, SCHEMA):
        schemas = f"{UNMARKED} or {SCHEMA}, which this version reads"
        raise validation.wrong(data.get("schema"), schemas, source, FIX, "schema")
    header: StateHeader = validation.read(data, StateHeader, source, FIX)
    problem = header.problem_of
    if header.schema == UNMARKED:
        header = replace(header, unmarked=header.rows)
    every = arrays if header.schema == SCHEMA else {**_marks_arrays([RowMarks.none()] * 2), **arrays}
    fault = _fault(every, header)
    if fault:
        raise InputError(f"{source}: {fault}", FIX)
    if header.checksum and header.checksum != _checksum(data, arrays):
        raise InputError(f"{source} was changed by something else than calib: its checksum does not fit", FIX)
    sums = arrays["cells"].astype(np.int64), arrays["count"], arrays["sums"]
    cells = HistogramCells(problem.k, problem.top_only, arrays["predicted"].copy(), sums)
    kept = SampledRows(arrays["kept_hashes"], arrays["kept_rows"], arrays["kept_labels"].astype(np.int64))
    tables = {bins: arrays[f"table_{i}"] for i, bins in enumerate(header.tables)}
    files, notes = dict.fromkeys(header.files), dict.fromkeys(map(printable, header.notes))
    marked, named = (
        [RowMarks(*(every[f"{name}_{key}"].astype(MARKS[key]) for key in MARKS))] for name in ("marks", "ids")
    )
    sums_and_sample = dict(header.parts), files, notes, problem, cells, tables, [kept], marked, named
    return MetricState(list(tables), header.rows, *sums_and_sample, unmarked=header.unmarked)


def _fault(arrays: Mapping[str, Array], header: StateHeader) -> str:
    """Report an array of a state with a wrong shape or impossible values, or ""."""
    k, most = header.problem_of.k, cell_count(header.problem_of.k)
    sized = ("cells", "kept_hashes", "marks_hashes", "ids_hashes")
    count, rows, *marked = (arrays[name].size if name in arrays else 0 for name in sized)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "cells": ((count,), "i"),
        "count": ((count,), "f"),
        "sums": ((2, len(NAMES), count), "f"),  # sums and sums of squares, as `Sums` of `scores.histogram`
        "predicted": ((3, k), "f"),  # rows, right ones and summed confidence, as `HistogramCells.predicted`
        **{f"table_{i}": ((3, k, bins.width), "f") for i, bins in enumerate(header.tables)},  # as `ClassTable`
        "kept_hashes": ((rows,), "u"),
        "kept_rows": ((rows, k), "f"),
        "kept_labels": ((rows,), "i"),
        **{
            f"{name}_{key}": ((size,), np.dtype(dtype).kind)
            for name, size in zip(("marks", "ids"), marked, strict=True)
            for key, dtype in MARKS.items()
        },
    }
    for name, (shape, kind) in shapes.items():
        if name not in arrays:
            return f"'{name}' is missing"
        array = arrays[name]
        if array.shape != shape or array.dtype.kind != kind or array.dtype.itemsize < 4:
            return f"'{name}' is {array.dtype} of shape {list(array.shape)}, not {list(shape)}"
        if np.isnan(array).any():
            return f"'{name}' holds NaN"
        finite = array[:, FINITE] if name == "sums" else array
        if name != "kept_rows" and not np.isfinite(finite).all():
            return f"'{name}' holds what is not a finite number"
        if name not in ("sums", "kept_rows") and array.min(initial=0) < 0:
            return f"'{name}' holds numbers below 0"
    cells, labels = arrays["cells"], arrays["kept_labels"]
    if count and (cells[0] < 0 or cells[-1] >= most or (np.diff(cells) <= 0).any()):
        return "'cells' are not in order"
    if arrays["count"].min(initial=1) < 1 or abs(float(arrays["count"].sum()) - header.rows) > 0.5:
        return f"'count' adds up to {float(arrays['count'].sum()):,.0f}, not to its {header.rows:,} rows"
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= k or rows > max(FEWEST, SCORES // k):
        return "'kept_labels' are not those of its classes"
    for name in ("marks", "ids"):
        counts, wrong, hashes = (arrays[f"{name}_{key}"] for key in ("rows", "wrong", "hashes"))
        if len(counts) > KEPT or counts.min(initial=1) < 1 or (wrong > counts).any() or counts.sum() > header.rows:
            return f"'{name}_rows' are not those of its {header.rows:,} rows"
        if (hashes[1:] <= hashes[:-1]).any():
            return f"'{name}_hashes' are not in order"
    return "" if (np.diff(arrays["kept_hashes"].astype(np.float64)) >= 0).all() else "'kept_hashes' are not in order"
