"""Join several tasks of one evaluation to one data set, in which each row has its task and any number of choices."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from calibcli.core.errors import InputError
from calibcli.core.number_format import first_few
from calibcli.scores.array_names import HOLD
from calibcli.scores.files.arrays import FileContents, Joined, column_of, read_all
from calibcli.scores.files.source import Source, fingerprint
from calibcli.scores.predictions import Array, ArrayScores, LeftOut, Predictions

TASK = "task"


def names_of(names: Sequence[str]) -> list[str]:
    """Return the names of tasks, with numbers behind those that occur twice."""
    count = Counter(names)
    return [name if count[name] == 1 else f"{name} ({i})" for i, name in enumerate(names)]


def files_of(
    contents: Sequence[FileContents], sources: Sequence[Source]
) -> list[tuple[list[FileContents], list[Source]]]:
    """Return the files of each task: one file, or the parts in one folder."""
    places = [source.folder or str(i) for i, source in enumerate(sources)]
    return [
        ([contents[i] for i in rows], [sources[i] for i in rows])
        for place in dict.fromkeys(places)
        for rows in [[i for i, other in enumerate(places) if other == place]]
    ]


def refuse_several(tasks: Iterable[str]) -> None:
    """Refuse files of several tasks where a folder or a pattern stands for one data set.

    Args:
        tasks: the task of each file, or "".

    Raises:
        InputError: they are evaluations of several tasks.
    """
    names = sorted({*tasks} - {""})
    if len(names) > 1:
        problem = f"files of {len(names)} tasks: {first_few(names, 4)}"
        raise InputError(problem, "tasks of one evaluation: --tasks; parts of one data set: --shards")


def join_tasks(parts: Sequence[Predictions], names: Sequence[str]) -> Predictions:
    """Join the rows of all tasks, with the slice `task`; choices that a task does not have get probability 0.

    Args:
        parts: each read and checked by itself.  names: of the tasks.

    Raises:
        InputError: some hold a confidence alone.
    """
    if len({bool(p.top_only) for p in parts}) > 1:
        odd = next(name for p, name in zip(parts, names) if p.top_only)
        problem = f"task {odd} holds a confidence alone, others the scores of every choice"
        raise InputError(problem, "measure it by itself")
    k = max(p.k for p in parts)
    rows = Joined([p.scores for p in parts], fill=-np.inf)
    files = [file for p in parts for file in p.record.files]
    widest = next(p for p in parts if p.k == k)
    common = widest.classes and all(p.classes and list(p.classes) == list(widest.classes)[: p.k] for p in parts)
    first, counts = parts[0], sum((Counter(p.record.class_rows) for p in parts), Counter[str]())
    slices = {key: np.concatenate([p.slices[key] for p in parts]) for key in first.slices}
    slices[TASK] = np.concatenate([np.full(p.n, name, dtype=object) for p, name in zip(parts, names)]).astype(str)
    weighted = any(p.weights is not None for p in parts)
    weights = [np.ones(p.n) if p.weights is None else p.weights for p in parts]
    small = math.prod(rows.shape) * rows.dtype.itemsize <= HOLD
    varied = any(p.k < k or p.record.choices_vary for p in parts)
    guess_nll, guess_accuracy = _guess(parts) if varied else (0.0, 0.0)
    return Predictions(
        scores=ArrayScores(read_all(rows)) if small else rows,  # type: ignore[arg-type]
        labels=np.concatenate([np.asarray(p.labels[:]) for p in parts]),
        kind=first.kind if len({p.kind for p in parts}) == 1 else "logits",
        source=f"{len(parts)} tasks" if len(parts) > 1 else first.source,
        classes=widest.classes if common else None,
        top_only="outcomes" if any(p.top_only == "outcomes" for p in parts) else first.top_only,
        left=_left(parts, names),
        ids=_ids(parts, names),
        weights=np.concatenate(weights) if weighted else None,
        weight_kind=first.weight_kind,
        **_groups(parts, names),
        slices=slices,
        notes=_notes(parts, names, k),
        sha256=fingerprint(files),
        record=dataclasses.replace(
            first.record,
            tasks=list(names),
            columns=k,
            choices_vary=varied,
            guess_nll=guess_nll,
            guess_accuracy=guess_accuracy,
            label_values=list(range(k)),
            class_rows=dict(sorted(counts.items(), key=lambda pair: int(pair[0]))),
            repeated_rows=sum(p.record.repeated_rows for p in parts),
            copies=sum(p.record.copies for p in parts),
            left_out=dict(sum((Counter(p.record.left_out) for p in parts), Counter[str]())),
            labelled=all(p.record.labelled for p in parts),
            files=files,
        ),
    )


def _left(parts: Sequence[Predictions], names: Sequence[str]) -> LeftOut | None:
    """Return what was left out of all tasks, with the task of each row."""
    some = [(p.left, name) for p, name in zip(parts, names) if p.left is not None]
    if not some:
        return None
    rows = [(left.rows, name) for left, name in some if left.rows is not None]
    return LeftOut(
        causes=np.concatenate([left.causes for left, _ in some]),
        rows=join_tasks([p for p, _ in rows], [name for _, name in rows]) if rows else None,
        lost=sum(left.lost for left, _ in some),
        slices={TASK: column_of([name for left, name in some for _ in range(left.lost)])},
    )


def _guess(parts: Sequence[Predictions]) -> tuple[float, float]:
    """Return the NLL and the accuracy of guessing, over the rows of all tasks."""
    rows = [p.n for p in parts]
    nll = [p.record.guess_nll or math.log(p.k) for p in parts]
    accuracy = [p.record.guess_accuracy or 1 / p.k for p in parts]
    return float(np.average(nll, weights=rows)), float(np.average(accuracy, weights=rows))


def _ids(parts: Sequence[Predictions], names: Sequence[str]) -> Array | None:
    """Return `task/id` of every row, or None if a task has no ids."""
    if len(parts) == 1:
        return parts[0].ids
    if any(p.ids is None for p in parts):
        return None
    return column_of([f"{name}/{i}" for p, name in zip(parts, names) for i in np.asarray(p.ids).tolist()])


def _groups(parts: Sequence[Predictions], names: Sequence[str]) -> dict[str, Array]:
    """Return the groups of all tasks, kept apart as `task/group`; in a task without groups each row is its own."""
    if all(p.groups is None for p in parts):
        return {}
    codes, names_of_groups, first = [], list[str](), 0
    for p, name in zip(parts, names):
        groups = np.arange(p.n) if p.groups is None else p.groups
        called = np.arange(p.n) if p.group_names is None else p.group_names
        codes.append(groups + first)
        names_of_groups += [f"{name}/{one}" for one in called.tolist()]
        first += len(called)
    return {"groups": np.concatenate(codes).astype(np.int64), "group_names": column_of(names_of_groups)}


def _notes(parts: Sequence[Predictions], names: Sequence[str], k: int) -> list[str]:
    """Return the notes of all tasks; notes that differ only in numbers appear once."""
    seen: dict[str, list[tuple[str, str]]] = {}
    for p, name in zip(parts, names):
        for note in p.notes:
            seen.setdefault(re.sub(r"[\d.,%]+|'[^']*'", "#", note), []).append((name, note))
    notes = []
    for alike in seen.values():
        name, note = alike[0]
        others = "1 more task says" if len(alike) == 2 else f"{len(alike) - 1} more tasks say"
        more = f"; {others} the same" if len(alike) > 1 else ""
        notes.append(f"{name}: {note}{more}")
    least = min(p.k for p in parts)
    if least < k:
        notes.append(f"tasks of {least} to {k} choices: the others have probability 0")
    return notes
