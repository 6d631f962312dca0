"""What becomes of rows that cannot be measured as they are: left out, counted as wrong, or kept aside for a gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibcli.core.errors import InputError, UsageError
from calibcli.scores.columns import MANY, columns
from calibcli.scores.files.arrays import column_of
from calibcli.scores.histogram import CONFIDENCE
from calibcli.scores.predictions import WRONG_OR_RIGHT, Array, ArrayScores, Ints, LeftOut, Predictions, two_columns
from calibcli.scores.reading_options import Reading

WORDS = {
    "answers": ("has no answer", "have no answer"),
    "classes": ("is of a class that the model does not know", "are of a class that the model does not know"),
    "labels": ("has no label", "have no label"),
}


def said(counts: Mapping[str, int], others: int) -> str:
    """Say how many rows were left out beside `others`, and why: `138 of 500 samples have no answer`."""
    n = others + sum(counts.values())
    return " and ".join(
        f"{count:,} of {n:,} {'samples' if cause == 'answers' else 'rows'} {WORDS[cause][count > 1]}"
        for cause, count in counts.items()
        if count
    )


def options(counts: Mapping[str, int]) -> str:
    """Return the options that decide about these rows."""
    return "--missing drop" if counts.get("labels") else "--missing drop, or --missing wrong"


def decided(
    read: Predictions, aside: Predictions | None, causes: Array, lost: LeftOut, reading: Reading
) -> Predictions:
    """Return the rows with what `--missing` makes of the others.

    Args:
        read: the rows that can be measured.
        aside: those that have scores, but no label that is one of the classes.  causes: (n,) why, of each of them.
        lost: those without scores.

    Raises:
        InputError: there are rows that `--missing` refuses.
        UsageError: rows are to count as wrong whose weights, groups or slices are not known.
    """
    counts = dataclasses.replace(lost, causes=causes).counts
    if not counts:
        return read
    notes = [*read.notes]
    fates, total = {cause: reading.fate(cause) for cause in counts}, read.n + sum(counts.values())
    for cause, fate in fates.items():
        if fate == "refuse":
            raise InputError(
                f"{said({cause: counts[cause]}, total - counts[cause])} in {read.source}", options({cause: 1})
            )
        if fate == "wrong" or cause != "answers":  # the reader of the file says what it left out
            becomes = "counted as wrong" if fate == "wrong" else "left out"
            notes.append(f"{said({cause: counts[cause]}, total - counts[cause])}: {becomes}")
        if (cause, fate) == ("answers", "wrong"):
            notes = [note.removesuffix(": left out") for note in notes[:-1]] + notes[-1:]
    undecided = np.array([fates[cause] == "" for cause in causes.tolist()], bool)
    open_rows = aside.take(undecided) if aside is not None and undecided.any() else None
    wrong = [aside.take(causes == "classes")] if aside is not None and fates.get("classes") == "wrong" else []
    wrong += [_without_scores(lost, read)] if fates.get("answers") == "wrong" else []
    if wrong:
        read = joined(
            [outcomes(read), *(dataclasses.replace(outcomes(p), labels=np.zeros(p.n, np.int64)) for p in wrong)]
        )
        open_rows = None if open_rows is None else outcomes(open_rows)
    left = {cause: count for cause, count in counts.items() if fates[cause] != "wrong"}
    record = dataclasses.replace(read.record, left_out={**read.record.left_out, **left})
    kept = lost if fates.get("answers") == "" else LeftOut()
    kept = dataclasses.replace(kept, rows=open_rows, causes=causes[undecided])
    return dataclasses.replace(read, notes=notes, record=record, left=kept if kept.counts else None)


def outcomes(rows: Predictions) -> Predictions:
    """Return (confidence, right) of every row, as a file with confidences alone has them.

    Raises:
        UsageError: they are more than fit in memory.
    """
    if rows.top_only:
        return rows
    if rows.n > MANY:
        raise UsageError(f"--missing wrong of {rows.n:,} rows, more than {MANY:,}", "measure parts of them")
    c = columns(rows, class_bins=(), names=CONFIDENCE, double=True)
    counts = {str(code): int(count) for code, count in enumerate(np.bincount(c.correct)) if count}
    return dataclasses.replace(
        rows,
        scores=ArrayScores(two_columns(c.confidence, "probabilities")),
        labels=c.correct.astype(np.int64),
        kind="probabilities",
        classes=WRONG_OR_RIGHT,
        predicted=None,
        top_only=True,
        record=dataclasses.replace(rows.record, class_rows=counts, label_values=None),
    )


def alike(parts: Sequence[Predictions]) -> list[Predictions]:
    """Return tasks of which some were made to outcomes, where rows count as wrong, all in that form."""
    return [outcomes(p) for p in parts] if any(p.top_only for p in parts) else [*parts]


def _without_scores(lost: LeftOut, like: Predictions) -> Predictions:
    """Return rows of which nothing but a wrong outcome is known.

    Raises:
        UsageError: their weights, groups or slices are not known, and those of the others are.
    """
    asked = {"--weights": like.weights is not None and lost.weights is None}
    asked |= {
        "groups": like.groups is not None and lost.groups is None,
        "--by": bool(set(like.slices) - {*lost.slices}),
    }
    if unknown := [name for name, missing in asked.items() if missing]:
        problem = f"samples without an answer cannot count as wrong with {unknown[0]}: theirs are not known"
        raise UsageError(problem, "--missing answers=drop, or leave that out")
    return dataclasses.replace(
        like,
        scores=ArrayScores(np.full((lost.lost, 2), np.nan)),
        labels=np.zeros(lost.lost, np.int64),
        ids=None,
        weights=lost.weights,
        groups=lost.groups,
        slices={name: lost.slices[name] for name in like.slices},
        predicted=None,
        top_only="outcomes",
        left=None,
    )


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Join rows of the same kind; without ids where some have none."""
    first = parts[0]

    def column(name: str) -> Any:
        columns = [getattr(p, name) for p in parts]
        return None if any(c is None for c in columns) else np.concatenate(columns)

    top_only = "outcomes" if any(p.top_only == "outcomes" for p in parts) else first.top_only
    labels = np.concatenate([np.asarray(p.labels[:]) for p in parts])
    counts = {str(code): int(count) for code, count in enumerate(np.bincount(labels)) if count}
    return dataclasses.replace(
        first,
        scores=ArrayScores(np.concatenate([p.scores.read(0, p.n) for p in parts])),
        labels=labels,
        top_only=top_only,
        slices={name: column_of([v for p in parts for v in p.slices[name].tolist()]) for name in first.slices},
        record=dataclasses.replace(first.record, class_rows=counts),
        **{name: column(name) for name in ("ids", "weights", "groups")},
    )


def split_fields(further: Mapping[str, Any], rows: Ints | slice) -> dict[str, Any]:
    """Return the per-row fields of `Predictions` for some of the rows."""
    per_row = {name: further[name][rows] for name in ("ids", "weights", "groups") if name in further}
    more = {name: further[name] for name in ("weight_kind", "group_names") if name in further}
    slices = {name: column[rows] for name, column in further.get("slices", {}).items()}
    return {**per_row, **more, **({"slices": slices} if "slices" in further else {})}
