"""Parts that the readers of evaluations share: scores of choices, the harness's verdict, and further columns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from calibcli.core.errors import InputError
from calibcli.scores.files.arrays import FileContents, Memory, column_of
from calibcli.scores.files.source import Source
from calibcli.scores.predictions import Array, Ints, Named

CHOICES = 100_000  # limit for one question
NEAR = 1e-6  # scores that differ by less may be in either order
DEPTH, COLUMNS, LETTERS = 4, 200, 100  # limits of further columns: levels of nesting, number, length of a text
SPARSE = 64  # cells of a padded table per number in it, at most
LETTERED = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
VERBALISED = "confidence"


class NestedColumns:
    """Collects short values of nested objects as columns of text, named by their path: `doc.subject`.

    What is long in one row, or a list, is no slice and no group, and is left out.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.texts: dict[str, list[str]] = {}
        self.left_out: set[str] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in _leaves(row, "", DEPTH):
            if name in self.left_out:
                continue
            text = value if isinstance(value, str) else _text(value)
            full = name not in self.texts and len(self.texts) == COLUMNS
            if len(text) > LETTERS or len(name) > LETTERS or full:
                self.texts.pop(name, None)
                if len(self.left_out) < 10 * COLUMNS:
                    self.left_out.add(name)
                continue
            if name not in self.texts:
                self.texts[name] = [""] * self.rows
            column = self.texts[name]
            if len(column) == self.rows:
                column.append(sys.intern(text))
        self.rows += 1
        for column in self.texts.values():
            if len(column) < self.rows:
                column.append("")

    def arrays(self) -> dict[str, Named]:
        """Return (N,) texts by path; "" where a row has no value."""
        return {name: Memory(column_of(column)) for name, column in self.texts.items()}

    def confidences(self) -> list[str]:
        """Return the paths whose last part names a confidence."""
        return [name for name in self.texts if VERBALISED in name.rpartition(".")[2].lower()]


@dataclass
class Questions:
    """The questions of an evaluation, as a reader collects them.

    Attributes:
        scores: of the choices of each question.  labels: the right choice.  ids: what names the question.
        columns: its further values.
    """

    scores: list[list[float]] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    columns: NestedColumns = field(default_factory=NestedColumns)

    def keep(self, scores: list[float], label: Any, name: object, further: Mapping[str, Any]) -> None:
        """Add a question: the scores of its choices, its label, what names it, and further values."""
        self.scores.append(scores)
        self.labels.append(label)
        self.ids.append(str(name)[:1000])
        self.columns.add(further)

    def contents(self, form: str, source: Source, names: Sequence[str], *values: Any, **fields: Any) -> FileContents:
        """Return the scores of the choices as logits, the labels, the ids, and the further columns.

        Args:
            names: of the scores, the labels ("" if there are none) and the ids.
            values: the table of scores (N, K), the labels (N,) and the ids, in this order.
            fields: further fields of `FileContents`.
        """
        named_arrays = {name: Memory(value) for name, value in zip(names, values, strict=True) if name}
        arrays = named_arrays | {
            name: array for name, array in self.columns.arrays().items() if name not in named_arrays
        }
        scores, labels, ids = names
        further = {"task": source.stem, **fields, "kinds": {scores: "logits"}}
        return FileContents(form, arrays, scores=scores, labels=labels, ids=ids, **further)


def _text(value: float) -> str:
    """Return the number or truth value as JSON writes it."""
    return ("false", "true")[value] if isinstance(value, bool) else repr(value)


def _leaves(row: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            if depth > 1:
                yield from _leaves(value, f"{path}{key}.", depth - 1)
        elif value is None or isinstance(value, str | int | float):
            yield f"{path}{key}", "" if value is None else value


def padded(rows: Sequence[Sequence[float]], where: str) -> Array:
    """Return (N, K) float64 from rows of scores that may differ in length; missing scores are -inf, probability 0.

    Raises:
        InputError: a few long rows among many short ones.
    """
    width = width_of(rows)
    if width is None:
        sizes = [*map(len, rows)]
        problem = f"has {max(sizes):,} choices, the mean is {sum(sizes) / len(rows):.3g}"
        raise InputError(f"row {sizes.index(max(sizes))} of {where} {problem}", "leave it out")
    return filled(rows, width, -np.inf)


def width_of(rows: Sequence[Sequence[Any]]) -> int | None:
    """Return the width of a table of these rows, or None if the table would be almost all padding."""
    width = max(map(len, rows))
    return width if len(rows) * width <= SPARSE * sum(map(len, rows)) + 1_000_000 else None


def filled(rows: Sequence[Sequence[Any]], width: int, fill: float) -> Array:
    """Return (N, width) float64 from rows that may be shorter, padded with `fill`."""
    out = np.full((len(rows), width), fill)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out


def note_on_lengths(rows: Sequence[Sequence[float]]) -> list[str]:
    """Return a note if the questions differ in their number of choices, else []."""
    least, most = min(map(len, rows)), max(map(len, rows))
    return [f"{least} to {most} choices per question: the others have probability 0"] if least < most else []


def check_verdicts(table: Array, labels: Ints, verdicts: Sequence[Any], metric: str, where: str) -> None:
    """Check scores and labels against the harness's own verdict on whether the best choice is the right one.

    Args:
        table: (N, K) scores as the harness compared them.  labels: (N,) as they were read.
        verdicts: 1, 0, or None where it has none.  metric: what it calls them.

    Raises:
        InputError: a verdict is a share, or one contradicts a row whose two best scores differ by more than 1e-6.
    """
    share = next((i for i, v in enumerate(verdicts) if _number(v) and v not in (0, 1)), None)
    if share is not None:
        raise InputError(
            f"row {share} of {where} has {metric} {verdicts[share]:.4g}, a share: several choices are right "
            "(as in truthfulqa_mc2)",
            "calibration needs one right choice: use a task that has one (truthfulqa_mc1)",
        )
    verdict = np.array([float(v) if _number(v) else np.nan for v in verdicts])
    top = np.where(np.isnan(table), -np.inf, table)
    best = top.argmax(axis=1)
    two = np.partition(top, top.shape[1] - 2, axis=1)[:, -2:]
    with np.errstate(invalid="ignore"):
        clear = two[:, 1] - two[:, 0] > NEAR
    comparable = clear & ~np.isnan(verdict) & ~np.isnan(table).any(axis=1)
    wrong = np.flatnonzero(comparable & ((best == labels) != (verdict == 1)))
    if len(wrong):
        i = int(wrong[0])
        label_score = f"{table[i, labels[i]]:.6g}" if 0 <= labels[i] < table.shape[1] else "none"
        raise InputError(
            f"row {i} of {where} has {metric} {verdict[i]:g}, but its target reads as choice {labels[i]} "
            f"(score {label_score}) and its best is choice {best[i]} (score {table[i, best[i]]:.6g}): "
            f"{len(wrong):,} of {len(labels):,} rows disagree",
            "was the file changed? Else save the scores as logits and the index of the right choice as label",
        )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and value == value


def contents_without_scores(
    form: str, columns: NestedColumns, why: str, fix: str, notes: Sequence[str] = (), correct: Sequence[str] = ()
) -> FileContents:
    """Return contents without scores, which say why there are none and what would help.

    Args:
        why: with the name of the file.  correct: columns that may say whether an answer was right.
    """
    confidences = columns.confidences()
    if confidences:
        right = next((name for name in correct if name in columns.texts), "KEY")
        why += f", only a confidence that the model stated ('{confidences[0]}')"
        fix = f"--confidence {confidences[0]} --correct {right}"
    return FileContents(form, columns.arrays(), notes=notes, lacking=(why, fix))
