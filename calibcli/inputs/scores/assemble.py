"""The arrays of one or several files put together as one data set, and checked as one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.errors import InputError
from calibcli.inputs.files.arrays import Contents, Joined, Named, Picked, whole
from calibcli.inputs.files.names import CLASSES
from calibcli.inputs.files.readers import load_any
from calibcli.inputs.files.source import Digests, Source
from calibcli.inputs.scores import event, keys, per_row, shape
from calibcli.inputs.scores.labels import Labels, read_labels
from calibcli.inputs.scores.reading import Reading, kind_option
from calibcli.inputs.scores.scan import LARGE, Scan, scan
from calibcli.inputs.scores.validate import (
    decide_kind,
    evidence,
    refuse_class_order,
    refuse_double_softmax,
    refuse_empty,
    refuse_nonfinite,
    reversed_classes,
    ties,
)
from calibcli.predictions import Ints, Kind, Predictions

Progress = Callable[[float, str], None]


@np.errstate(all="ignore")  # what is not finite is counted and told
def predictions(
    contents: Sequence[Contents], sources: Sequence[Source], reading: Reading, progress: Progress | None = None
) -> Predictions:
    """Check the arrays of all files as one data set."""
    where = sources[0].name if len(sources) == 1 else f"{len(sources)} shards"
    first = contents[0]
    name = keys.pick_scores(first, reading.scores, sources[0].name)
    raw, ragged = _joined_scores(contents, sources, reading, name)
    label_name, raw_labels, label_file = label_array(contents, sources, reading, name)
    if raw_labels is None and reading.need_labels:
        raise InputError(
            f"no labels in {where}: it holds {keys.describe(first)}",
            "choose them with --labels KEY, or --labels FILE for a file of their own",
        )
    needed = raw_labels if reading.need_labels else None
    scores = shape.two_dimensional(raw, name, where, None if needed is None else needed.shape[0])
    scores = shape.held(scores)
    n, width = scores.shape
    if width == 1:
        keys.refuse_verdicts(name, label_name, where)
    k = max(width, 2)
    classes, confirmed = _classes(first, reading, name, k)
    notes: list[str] = [remark for c in contents for remark in c.about]
    try:
        of = event.two(reading, name, width, classes, raw_labels, label_name)
    except InputError as error:
        if reading.need_labels:
            raise
        notes.append(f"labels are not used: {error.problem}")
        of = event.two(reading, name, width, classes, None, "")
    classes, raw_labels = of.classes, of.labels
    with Digests([*sources, *label_file]) as digests:
        labels = _labels(raw_labels, label_name, scores, classes, reading, notes)
        rows, found, kind = _checked(scores, labels, first, name, reading, ragged, notes, progress)
        notes += _remarks(found, kind, reading, classes)
        if labels is not None and found.predicted:
            predicted, compared = np.concatenate(found.predicted), np.concatenate(found.compared)
            sure = (confirmed and not labels.names) or not reading.need_labels
            order = refuse_class_order(predicted, compared, k, classes, sure)
            notes += [order] if order else []
        if labels is not None and width <= 2:
            notes += reversed_classes(found, classes or ("y = 0", "y = 1"))
        further = per_row.columns(contents, sources, reading, n, rows.keep, name, label_name, notes)
        files = digests.files()
    read = Predictions(
        scores=shape.as_scores(rows.scores, kind, clip=reading.clip),
        labels=np.zeros(rows.scores.shape[0], np.int64) if rows.codes is None else rows.codes,
        kind=kind,
        source=where,
        classes=classes,
        notes=notes,
        sha256=files[0]["sha256"] if len(sources) == 1 else _joint(files),
        facts={
            "format": first.format,
            "scores": name,
            "labels": label_name,
            "labelled": labels is not None,
            "dtype": str(scores.dtype),
            "kind": kind,
            "why": "given by --kind" if kind_option(reading.kind) else evidence(found, kind),
            "columns": width,
            "class_rows": {} if labels is None else {str(c): count for c, count in labels.counts.items()},
            "repeated_rows": found.repeated,
            "files": files,
        },
        **further,
    )
    return event.swapped(read) if of.first else read


@dataclass(frozen=True)
class _Rows:
    """Scores and codes of the rows that are kept, and their indices in the file (None: all)."""

    scores: Named
    codes: Any
    keep: Ints | None = None

    def without(self, bad: Ints) -> _Rows:
        left = np.ones(self.scores.shape[0], bool)
        left[bad] = False
        index = np.flatnonzero(left)
        codes = None if self.codes is None else self.codes[index]
        return _Rows(Picked(self.scores, index), codes, index if self.keep is None else self.keep[index])


def _labels(
    raw: Named | None,
    name: str,
    scores: Named,
    classes: Sequence[str] | None,
    reading: Reading,
    notes: list[str],
) -> Labels | None:
    if raw is None:
        return None
    n, width = scores.shape
    try:
        return read_labels(
            raw,
            name,
            n=n,
            k=max(width, 2),
            columns=width,
            top=lambda rows: _top(scores, rows),
            classes=classes,
            label_base=reading.label_base,
            ignore_label=reading.ignore_label,
        )
    except InputError as error:
        if reading.need_labels:
            raise
        notes.append(f"labels are not used: {error.problem}")
        return None


def _checked(
    scores: Named,
    labels: Labels | None,
    contents: Contents,
    name: str,
    reading: Reading,
    ragged: bool,
    notes: list[str],
    progress: Progress | None,
) -> tuple[_Rows, Scan, Kind]:
    """The rows that are kept after one look at all of them, what was seen, and the kind of scores."""
    rows = _Rows(scores, None if labels is None else labels.codes)
    if labels is not None:
        notes += labels.notes
        rows = rows if labels.dropped is None else rows.without(np.flatnonzero(labels.dropped))
    decimals, drop = contents.decimals.get(name), reading.drop_nonfinite
    found = scan(rows.scores, rows.codes, decimals=decimals, collect=drop, progress=progress)
    half = scores.dtype.itemsize <= 2
    forced, declared = kind_option(reading.kind), keys.declared_kind(contents, name)
    masks = ragged or forced is not None
    if drop and not found.finite:
        raise InputError(f"all {found.n:,} rows hold NaN or infinite scores", "save the scores again, as float32")
    if drop:
        kind = decide_kind(found, declared, forced, name)
        bad: Ints = np.concatenate(found.bad) if found.bad else np.empty(0, np.int64)
        if found.masked and not masks and kind != "log_probabilities":
            bad = np.union1d(bad, _masked_rows(rows.scores))
        if len(bad) == found.n:
            refuse_nonfinite(found, kind, masks, half)
        if len(bad):
            rows = rows.without(bad)
            notes.append(f"{len(bad):,} of {found.n:,} rows with NaN or infinite scores dropped")
    else:
        if found.nan or found.infinite:
            refuse_nonfinite(found, "logits", masks, half)
        kind = decide_kind(found, declared, forced, name)
        refuse_nonfinite(found, kind, masks, half)
    refuse_empty(found, kind)
    return rows, found, kind


def _joined_scores(
    contents: Sequence[Contents], sources: Sequence[Source], reading: Reading, name: str
) -> tuple[Named, bool]:
    parts, ragged = [], False
    for c, source in zip(contents, sources):
        here = keys.pick_scores(c, reading.scores, source.name)
        parts.append(c.arrays[here])
        ragged |= here in c.ragged
    shapes = {p.shape[1:] for p in parts}
    if len(shapes) > 1 and not ragged:
        odd = next(i for i, p in enumerate(parts) if p.shape[1:] != parts[0].shape[1:])
        raise InputError(
            f"{sources[odd].name} has scores {tuple(parts[odd].shape)}, {sources[0].name} {tuple(parts[0].shape)}",
            "shards must have the same classes",
        )
    return (parts[0] if len(parts) == 1 else Joined(parts, fill=-np.inf if ragged else None)), ragged


def label_array(
    contents: Sequence[Contents], sources: Sequence[Source], reading: Reading, score_name: str
) -> tuple[str, Named | None, list[Source]]:
    """Name and array of the labels, of all files (None when there are none), and the file they have of their own."""
    wanted = reading.labels
    if wanted and wanted not in contents[0].arrays and os.path.isfile(wanted):
        source = Source(wanted)
        return wanted, _only(load_any(source), source), [source]
    beside = Path(sources[0].path).with_suffix(".labels.npy")
    if not wanted and len(sources) == 1 and contents[0].format == "npy" and os.path.isfile(beside):
        source = Source(beside)
        return beside.name, _only(load_any(source), source), [source]
    found = [(keys.pick_labels(c, wanted, score_name, s.name), c, s) for c, s in zip(contents, sources)]
    absent = [s.name for name, _, s in found if name is None]
    if absent and len(absent) < len(found):
        raise InputError(f"{absent[0]} has no labels, other shards have", "give every shard its labels")
    parts = [c.arrays[name] for name, c, _ in found if name is not None]
    if not parts:
        return "", None, []
    return str(found[0][0]), parts[0] if len(parts) == 1 else Joined(parts), []


def _only(contents: Contents, source: Source) -> Named:
    """The labels in a file of their own: its only array, or the one with a label's name."""
    names = list(contents.arrays)
    name = names[0] if len(names) == 1 else keys.pick_labels(contents, None, "", source.name)
    if name is None:
        raise InputError(f"no labels in {source.name}: it holds {keys.describe(contents)}", "name the array 'labels'")
    return contents.arrays[name]


def _classes(contents: Contents, reading: Reading, scores: str, k: int) -> tuple[list[str] | None, bool]:
    """Names of the classes and whether the user gave them."""
    given = reading.classes
    names: list[str] | None = None
    if given is not None:
        names = shape.class_names(given)
    elif scores in contents.classes:
        names = list(contents.classes[scores])
    else:
        key = keys.first_of(contents, CLASSES, lambda a: a.shape == (k,) and a.dtype.kind in "USO")
        if key:
            names = [str(t) for t in shape.texts(whole(contents.arrays[key]))]
    if names is not None and len(names) != k:
        raise InputError(f"{len(names)} class names for {k} score columns", "name every column once, in order")
    if names is not None and len(set(names)) < k:
        raise InputError("two classes have the same name", "name every class differently")
    return names, given is not None


def _joint(files: Sequence[dict[str, str]]) -> str:
    """One fingerprint of several files."""
    return hashlib.sha256("".join(file["sha256"] for file in files).encode()).hexdigest()


def _top(scores: Named, rows: int) -> Ints:
    block = scores.read(0, rows)
    if block.shape[1] == 1:
        return (block[:, 0] > 0.5).astype(np.int64)
    return np.asarray(block.argmax(axis=1), dtype=np.int64)


def _masked_rows(scores: Named) -> Ints:
    return np.flatnonzero(np.concatenate([np.isneginf(b).any(axis=1) for _, b in shape.blocks(scores)]))


def _remarks(found: Scan, kind: Kind, reading: Reading, classes: Sequence[str] | None) -> list[str]:
    notes = []
    if found.k == 1:
        what = {"logits": "log-odds", "log_probabilities": "log P"}.get(kind, "P")
        notes.append(f"one score per row: read as {what} of {classes[1] if classes else 'class 1'}")
    notes += ties(found, kind, bool(reading.weights))
    twice = refuse_double_softmax(found, kind, kind_option(reading.kind) is not None)
    if twice:
        notes.append(twice)
    if kind == "logits" and max(abs(found.low), abs(found.high)) >= LARGE:
        notes.append(f"scores reach {max(found.low, found.high, key=abs):.4g}, close to the end of float16 (65504)")
    if found.masked:
        notes.append(f"-inf in {found.masked:,} rows: probability 0 of those classes")
    impossible = found.zeros if kind == "probabilities" or found.masked else 0
    if impossible:
        cure = "clipped to 1e-15" if reading.clip else "their NLL is infinite; --clip makes it finite"
        notes.append(f"{impossible:,} rows give their label probability 0 (first row {found.first_zero}): {cure}")
    if found.repeated > 0.01 * found.n:
        notes.append(
            f"{found.repeated:,} of {found.n:,} rows repeat an earlier row (scores and label): if they are the same "
            f"samples, the intervals are too narrow"
        )
    return notes
