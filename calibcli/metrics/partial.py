"""What parts of the rows leave behind, so that metrics of all of them can be told from it: sums, and a sample.

Sums of cells of confidence (`columns.condense`) and class tables are those of all rows however these are split, in
whatever order the parts come together. What needs the scores gets a sample of the rows: those whose hash is smallest
(the bottom-k sketch of Cohen and Kaplan 2007), where a row's hash is that of its part and its place there. It is the
same sample in whatever order the parts come together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from calibcli.columns import ClassBins, ClassTable, Columns, into_cells
from calibcli.columns.condense import Cells
from calibcli.errors import InputError, UsageError
from calibcli.metrics.gain import FEWEST, SCORES
from calibcli.numerics import DOUBLE, scrambled
from calibcli.predictions import NEAR, Array, ArrayScores, Floats, Ints, Kind, Predictions, Progress, gather
from calibcli.spec import Range

TELLING = 100  # rows from which two parts that are alike are the same: fewer may be so by chance


@dataclass(frozen=True, kw_only=True)
class Problem:
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
    def of(cls, rows: Predictions) -> Problem:
        found = rows.facts.get("label_values")
        classes = None if rows.classes is None else [str(name) for name in rows.classes]
        values = None if found is None else [str(value) for value in found]
        return cls(k=rows.k, kind=rows.kind, top_only=rows.top_only, classes=classes, label_values=values)

    def refuse_other(self, other: Problem, name: str) -> None:
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
class Kept:
    """Rows with the smallest hashes, in their order: (n,) hashes, (n, K) scores, (n,) labels."""

    hashes: Array
    scores: Array
    labels: Ints

    def with_rows(self, other: Kept, most: int) -> Kept:
        hashes = np.concatenate([self.hashes, other.hashes])
        order = np.argsort(hashes, kind="stable")[:most]
        scores = np.concatenate([self.scores, other.scores])[order]
        return Kept(hashes[order], scores, np.concatenate([self.labels, other.labels])[order])


class _Fingerprint:
    """Passes columns on to cells, and takes a digest of them on the way: of scores that lie on a device, too."""

    def __init__(self, cells: Cells) -> None:
        self.cells, self.digest = cells, hashlib.sha256()

    def add(self, out: Mapping[str, Floats], predicted: Ints, labels: Ints) -> None:
        for column in (out["confidence"], out["nll"], out["entropy"], labels):
            self.digest.update(np.ascontiguousarray(column).data)
        self.cells.add(out, predicted, labels)


@dataclass(eq=False)
class State:
    """Sums over the rows seen so far, and a sample of them.

    Attributes:
        tables: class tables to fill.  parts, files, notes: as in `About`.
    """

    class_bins: Sequence[ClassBins]
    rows: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    files: list[File] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problem: Problem | None = None
    cells: Cells | None = None
    tables: dict[ClassBins, Floats] = field(default_factory=dict)
    kept: Kept | None = None

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
        problem = Problem.of(rows)
        part = State(self.class_bins, rows.n, problem=problem, cells=Cells(rows.k, rows.top_only))
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

    def merge(self, other: State, name: str = "") -> None:
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
            self.problem, self.cells = other.problem, Cells(other.problem.k, other.problem.top_only)
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


def _smallest(rows: Predictions, seed: int, most: int) -> Kept:
    """The rows of a part with the smallest hashes."""
    with np.errstate(over="ignore"):
        hashes = scrambled(scrambled(np.arange(rows.n, dtype=np.uint64) + np.uint64(seed)) ^ np.uint64(seed))
    index = np.argpartition(hashes, most)[:most] if most < rows.n else np.arange(rows.n)
    index = index[np.argsort(hashes[index])]
    scores = gather(rows.scores, index, NEAR)
    scores = scores if scores.dtype == np.float64 else scores.astype(np.float32)
    return Kept(hashes[index], np.ascontiguousarray(scores), np.asarray(rows.labels[index], np.int64))


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:59] + "…"
