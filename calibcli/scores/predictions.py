"""Predictions: scores and labels of N rows, checked once and then read in blocks by everything else."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from calibcli.core.errors import UsageError
from calibcli.core.problem import Problem
from calibcli.core.statistics import group_places
from calibcli.scores.reading_record import ReadingRecord, class_list

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Kind = Literal["logits", "probabilities", "log_probabilities"]
WRONG_OR_RIGHT = ("the prediction is wrong", "the prediction is right")  # the two classes if only confidences are known
OUTCOMES = (
    "needs a confidence, which samples that count as wrong do not have",
    "use accuracy, or --missing answers=drop for the others alone",
)
UNIT_LOW, UNIT_HIGH = -1e-6, 1 + 1e-3  # range of probabilities, with room for rounding
SHARE_OFF = 1e-3  # share of the rows that need not sum to one
CHUNK_BYTES = 1 << 23  # read from a file at once: large enough for the disk, small beside any memory
CHUNK_ROWS = 1 << 15
HELD = 1 << 26  # bytes up to which mapped scores are kept instead of being mapped at every use
NEAR = 1 << 16  # bytes between two rows up to which the gap is read too, as a second read costs more
TopOnly = bool | Literal["outcomes"]
"""Whether a confidence is all that is known of a prediction, beside its outcome; `outcomes`: not even that."""
Progress = Callable[[float, str], None]
"""Called as `progress(fraction, text)`; fraction in [0, 1]."""


class Named(Protocol):
    """An array of any shape that is read by rows."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def read(self, start: int, stop: int) -> Array:
        """Rows start..stop."""


class Scores(Named, Protocol):
    """(N, K) scores that are read piece by piece, e.g. from a file, as C-contiguous floats."""

    @property
    def shape(self) -> tuple[int, int]: ...


@dataclass(frozen=True, eq=False)
class ArrayScores:
    """Scores that lie in memory.

    Attributes:
        ends: class of the largest and the smallest score itself of each row, both (N,), where they are known and the
            array is nobody else's to change.
    """

    array: Array
    ends: tuple[Ints, Array] | None = None

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def read(self, start: int, stop: int) -> Array:
        return self.array[start:stop]


@dataclass(frozen=True, eq=False)
class PickedScores:
    """The rows `index` (ascending) of other scores, or of another array."""

    inner: Named
    index: Ints

    @property
    def shape(self) -> tuple[Any, ...]:
        return (len(self.index), *self.inner.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.inner.dtype

    def read(self, start: int, stop: int) -> Array:
        return gather(self.inner, self.index[start:stop], NEAR)


@dataclass(frozen=True, eq=False)
class DerivedScores:
    """Float64 scores made from those of another source, row by row."""

    inner: Scores

    @property
    def shape(self) -> tuple[int, int]:
        return self.inner.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)


@dataclass(frozen=True, eq=False)
class MappedScores(DerivedScores):
    """Scores passed through a function, block by block."""

    function: Callable[[Array], Array]

    def read(self, start: int, stop: int) -> Array:
        return np.ascontiguousarray(self.function(self.inner.read(start, stop)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictions:
    """Scores and labels of N rows and K >= 2 classes.

    >>> rows = calibcli.from_arrays(logits, labels)
    >>> rows.n, rows.k, rows.kind
    (997, 10, 'logits')

    Attributes:
        scores: (N, K) logits or log-probabilities, finite except that -inf is probability 0. Their softmax is what
            is measured; adding a constant to a row changes nothing.
        labels: (N,) int64 in [0, K).
        kind: what the source held; probabilities arrive here as their logarithms.
        source: file name or other description.
        classes: K names.
        ids: (N,) names of rows.
        weights: (N,) float64 >= 0.  weight_kind: `sampling` (inverse inclusion probability) or `count` (frequency).
        groups: (N,) int64 codes of rows that belong together (patients, documents).  group_names: their names, by code.
        slices: column name to (N,) str, for `--by`.
        predicted: (N,) int64 predicted classes where they are not the argmax of `scores`: an accuracy-preserving
            map keeps those of the raw logits, which rounding could otherwise change at a tie.
        top_only: how sure a prediction was and whether it was right is all that is known: the classes are
            WRONG_OR_RIGHT, and every row is predicted to be right, however small its confidence. `outcomes`: some rows
            have no confidence either; all scores are nan.
        notes: of the reader, for the user.  sha256: of the source file, or "".
        record: what the input was taken for.
        left: what is left out of these rows though nobody said so, which a gate counts at its best and at its worst.
    """

    scores: Scores
    labels: Ints
    kind: Kind = "logits"
    source: str = "array"
    classes: Sequence[str] | None = None
    ids: Array | None = None
    weights: Floats | None = None
    weight_kind: Literal["sampling", "count"] = "sampling"
    groups: Ints | None = None
    group_names: Array | None = None
    slices: Mapping[str, Array] = field(default_factory=dict)
    predicted: Ints | None = None
    top_only: TopOnly = False
    notes: Sequence[str] = ()
    sha256: str = ""
    record: ReadingRecord = field(default_factory=ReadingRecord)
    left: LeftOut | None = None

    @classmethod
    def of(cls, logits: npt.ArrayLike, labels: npt.ArrayLike, **fields: Any) -> Predictions:
        """Make predictions of arrays: (N, K) finite logits and (N,) labels. `calibcli.from_arrays` also checks them.

        >>> Predictions.of([[2.0, 0.0], [0.0, 1.0]], [0, 1]).logits.dtype
        dtype('float64')
        """
        z = np.asarray(logits)
        if z.dtype not in (np.float32, np.float64):
            z = z.astype(np.float32 if z.dtype == np.float16 else np.float64)
        return cls(scores=ArrayScores(np.ascontiguousarray(z)), labels=np.asarray(labels, dtype=np.int64), **fields)

    def __repr__(self) -> str:
        return f"Predictions({self.n:,} rows of {self.k:,} classes, {kind_words(self.kind)}, from {self.source})"

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.scores.shape[0]

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.scores.shape[1]

    @property
    def event(self) -> str:
        """What two classes are measured for: the name of class 1, `y = 1` where it has none; "" of more classes."""
        if self.k != 2:
            return ""
        return "y = 1" if self.classes is None else str(self.classes[1])

    @property
    def problem(self) -> Problem:
        """What is predicted and how: classes, the event of two, the kind of scores."""
        if self.top_only:
            return Problem(event=self.event, kind="confidence")
        unrelated, guess = self.record.unrelated, (self.record.guess_nll, self.record.guess_accuracy)
        kind = kind_words(self.kind)
        return Problem(
            classes=self.k,
            event=self.event,
            kind=kind,
            unrelated=unrelated,
            guess_nll=guess[0],
            guess_accuracy=guess[1],
        )

    @property
    def described(self) -> dict[str, Any]:
        """What was read as plain data: what a result keeps of each input, and what `[data]` of calib.toml pins."""
        record = self.record
        named = record.label_values or range(self.k) if self.classes is None else self.classes
        classes = [*map(str, named)]
        parts = {
            "scores": ",".join(record.members) or record.scores,
            "kind": "confidences" if self.top_only else self.kind,
            "why": record.why,
            "labels": record.labels,
            "predicted": record.predicted,
            "classes": None if self.top_only else class_list(classes),
            "event": "" if self.top_only else self.event and classes[1],
            "rows": self.n,
            "group": record.group,
            "ids": record.ids,
            "weights": record.weights,
            "repeats": "" if record.repeats is None else record.repeats.column,
            "groups": self.group_count,
            "left_out": dict(record.left_out),
            "unused": list(record.unused),
            "rivals": list(record.rivals),
            "grounds": dict(record.grounds),
            "assumed": list(record.assumed),
            "stated": dict(record.stated),
        }
        return {name: value for name, value in parts.items() if value}

    @property
    def group_count(self) -> int:
        """Number of groups that have rows; 0 without groups."""
        return 0 if self.groups is None else len(group_places(self.groups)[0])

    @property
    def event_fact(self) -> dict[str, str]:
        """The event as a fact of a result; empty of more than two classes."""
        return {"event": self.event} if self.event else {}

    @property
    def plain(self) -> Predictions:
        """These predictions without weights that are all equal, and without groups of one row each, which change
        nothing.
        """
        weights, groups = self.weights, self.groups
        if weights is not None and self.weight_kind == "sampling" and self.n and weights[0] > 0 and not np.ptp(weights):
            weights = None
        if groups is not None and len(group_places(groups)[0]) == len(groups):
            groups = None
        same = weights is self.weights and groups is self.groups
        return self if same else dataclasses.replace(self, weights=weights, groups=groups)

    @property
    def logits(self) -> Array:
        """All scores as one array in memory (for methods that need them so)."""
        self.refuse_outcomes("this")
        if isinstance(self.scores, ArrayScores):
            return self.scores.array
        parts = [block for _, block in self.blocks()]
        return np.concatenate(parts) if parts else np.empty((0, self.k))

    def blocks(self, rows: int | None = None) -> Iterator[tuple[int, Array]]:
        """Yield (first row, scores of the next rows) in order; float16 is widened to float32. About 8 MB each by
        default.

        >>> [(first, block.shape) for first, block in calibcli.from_arrays(logits, labels).blocks(600)]
        [(0, (600, 10)), (600, (397, 10))]
        """
        self.refuse_outcomes("this")
        rows = rows or chunk_rows(self.scores)
        for start in range(0, self.n, rows):
            yield start, read(self.scores, start, min(start + rows, self.n))

    def refuse_outcomes(self, what: str) -> None:
        """Refuse rows of which some have no confidence.

        >>> calibcli.from_arrays(logits, labels).refuse_outcomes("ece") is None
        True

        Raises:
            UsageError: they are such rows.
        """
        if self.top_only == "outcomes":
            raise UsageError(f"{what} {OUTCOMES[0]}", OUTCOMES[1])

    def take(self, rows: Ints) -> Predictions:
        """Return the given rows (indices, or a boolean mask of length N), in memory.

        >>> calibcli.from_arrays(logits, labels).take(labels == 3).labels[:4].tolist()
        [3, 3, 3, 3]
        """
        index = np.flatnonzero(rows) if rows.dtype == bool else np.asarray(rows)
        return self.with_rows(index, ArrayScores(np.ascontiguousarray(gather(self.scores, index, NEAR))))

    def with_rows(self, index: Ints, scores: Scores) -> Predictions:
        """Return the rows `index` of everything per row, with `scores` that already hold these rows.

        >>> rows = calibcli.from_arrays(logits, labels)
        >>> rows.with_rows(np.array([5, 2]), ArrayScores(rows.logits[[5, 2]])).n
        2
        """

        def pick(column: Array | None) -> Array | None:
            return None if column is None else column[index]

        return dataclasses.replace(
            self,
            scores=scores,
            labels=self.labels[index],
            ids=pick(self.ids),
            weights=pick(self.weights),
            groups=pick(self.groups),
            predicted=pick(self.predicted),
            slices={name: column[index] for name, column in self.slices.items()},
        )

    def mapped(self, function: Callable[[Array], Array], predicted: Ints | None = None) -> Predictions:
        """Return the same rows with `function` applied to every block of scores (n, K) -> (n, K), lazily.

        >>> rows = calibcli.from_arrays(logits, labels).mapped(lambda block: block / 2)
        >>> bool((rows.logits == logits / 2).all())
        True
        """
        left = self.left
        if left is not None and left.rows is not None:
            left = dataclasses.replace(left, rows=left.rows.mapped(function))
        return dataclasses.replace(self, scores=MappedScores(self.scores, function), predicted=predicted, left=left)

    def held(self) -> Predictions:
        """Return these predictions with their scores in memory if they are few, so that a mapping runs once.

        >>> halved = calibcli.from_arrays(logits, labels).mapped(lambda z: z / 2)
        >>> type(halved.scores).__name__, type(halved.held().scores).__name__
        ('MappedScores', 'ArrayScores')
        """
        if isinstance(self.scores, ArrayScores) or self.n * self.k * max(self.scores.dtype.itemsize, 4) > HELD:
            return self
        return dataclasses.replace(self, scores=ArrayScores(self.logits))


@dataclass(frozen=True, eq=False, kw_only=True)
class LeftOut:
    """Rows that were left out though nobody said so.

    Attributes:
        rows: those with scores; their labels, all 0, are not known.  causes: (n,) `classes` or `labels`, why.
        lost: number of the others, of which a confidence is not known either.
        weights, groups, slices: (lost,) of these, as in `Predictions`, where they are known.
    """

    rows: Predictions | None = None
    causes: Array = field(default_factory=lambda: np.empty(0, str))
    lost: int = 0
    weights: Floats | None = None
    groups: Ints | None = None
    slices: Mapping[str, Array] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows there are, by cause (`reading_options.CAUSES`)."""
        classes, labels = (int((self.causes == cause).sum()) for cause in ("classes", "labels"))
        counts = {"answers": self.lost, "classes": classes, "labels": labels}
        return {cause: count for cause, count in counts.items() if count}


def notes_of(*inputs: Predictions) -> list[str]:
    """Collect the notes of all inputs, each once; if there are several inputs, with the files that it is about."""
    sources_by_note: dict[str, list[str]] = {}
    for data in inputs:
        for note in data.notes:
            sources_by_note.setdefault(note, []).append(data.source)
    if len(inputs) == 1:
        return list(sources_by_note)
    return [f"{', '.join(dict.fromkeys(sources))}: {note}" for note, sources in sources_by_note.items()]


def same_rows(n: int, what: str) -> str:
    """Return the note that all rows have the same scores."""
    return f"all {n:,} rows have the same {what}: the model, or what prepared its inputs, does not tell them apart"


def kind_words(kind: str) -> str:
    """Spell a kind of scores as people write it: `log-probabilities`."""
    return kind.replace("_", "-")


def two_columns(score: Floats, kind: Kind) -> Floats:
    """Return (n, 2) scores from the log-odds, the probability or the log-probability of class 1, (n,)."""
    if kind == "logits":
        return np.column_stack([np.zeros_like(score), score])
    p = np.exp(score) if kind == "log_probabilities" else np.clip(score, 0, 1)
    with np.errstate(divide="ignore"):
        return np.column_stack([np.log1p(-p), np.log(p)])


def logits_of(scores: Array, kind: Kind) -> Array:
    """Turn scores (n, K), or one column (n, 1), into logits or log-probabilities (n, K); see `two_columns`."""
    if scores.shape[1] == 1:
        return two_columns(scores[:, 0].astype(np.float64), kind)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.maximum(scores, 0))) if kind == "probabilities" else scores


def rows_of(array: Named, size: int = 0) -> int:
    """Return how many rows make up a piece to read, or `size` bytes."""
    return max(1, (size or CHUNK_BYTES) // max(1, math.prod(array.shape[1:]) * array.dtype.itemsize))


def gather(array: Named, rows: Ints, near: int = 1, memory: Array | None = None) -> Array:
    """Read the given rows in any order, never more than a piece at once.

    Args:
        near: rows that lie less than so many bytes apart are read with what is between them.
        memory: where they are written to, with at least as many rows; None: new memory.
    """
    if isinstance(array, ArrayScores):
        return np.asarray(array.array[rows])
    if hasattr(array, "rows"):  # that picks them itself
        return np.asarray(array.rows(rows))
    out = np.empty((len(rows), *array.shape[1:]), array.dtype) if memory is None else memory[: len(rows)]
    order, most, done = np.argsort(rows, kind="stable"), rows_of(array), 0
    sorted_rows = np.asarray(rows)[order]
    gaps = np.flatnonzero(np.diff(sorted_rows) > rows_of(array, near)) + 1
    for end in (*gaps.tolist(), len(sorted_rows)):
        while done < end:
            first = int(sorted_rows[done])
            last = min(end, int(np.searchsorted(sorted_rows, first + most)))
            out[order[done:last]] = array.read(first, int(sorted_rows[last - 1]) + 1)[sorted_rows[done:last] - first]
            done = last
    return out


def reusing(array: Named) -> Named:
    """Return `array` for one reader that is done with a block before it reads the next, which may overwrite it."""
    return cast(Named, array.reusing()) if hasattr(array, "reusing") else array


def chunk_rows(scores: Scores) -> int:
    """Return the number of rows in about CHUNK_BYTES, and few enough that per-row arrays stay in the cache."""
    return min(CHUNK_ROWS, max(1, CHUNK_BYTES // (scores.shape[1] * max(scores.dtype.itemsize, 4))))


def read(scores: Scores, start: int, stop: int) -> Array:
    """Read rows of scores as contiguous float32 or float64."""
    block = scores.read(start, stop)
    if block.dtype not in (np.float32, np.float64):
        block = block.astype(np.float32 if block.dtype.itemsize <= 2 else np.float64)
    return np.ascontiguousarray(block)
