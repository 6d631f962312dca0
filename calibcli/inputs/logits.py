"""Recorded outputs: a file with scores and labels, recognised, checked in one pass, and read in blocks ever after.

An input format is one reader and one line in READERS.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibcli.errors import InputError, UsageError, did_you_mean
from calibcli.files import sha256
from calibcli.inputs import keys, shape
from calibcli.inputs.arrays import Contents, Joined, Memory, Named, Picked, whole
from calibcli.inputs.labels import Labels, read_labels
from calibcli.inputs.scan import LARGE, Scan, scan
from calibcli.inputs.source import Source
from calibcli.inputs.validate import (
    decide_kind,
    evidence,
    refuse_class_order,
    refuse_double_softmax,
    refuse_empty,
    refuse_nonfinite,
)
from calibcli.predictions import Array, Ints, Kind, Predictions
from calibcli.spec import normal

READERS = {
    "npz": "npz:read_npz",
    "npy": "npz:read_npy",
    "csv": "text:read_csv",
    "tsv": "text:read_tsv",
}
KINDS: tuple[Kind, ...] = ("logits", "probabilities", "log_probabilities")
Progress = Callable[[float, str], None]
Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read; each field is an option of the command line. See `read`."""

    scores: str | None = None
    labels: str | None = None
    classes: str | Sequence[str] | None = None
    kind: str | None = None
    label_base: int | None = None
    ignore_label: int | None = None
    drop_nonfinite: bool = False
    clip: bool = False
    weights: str | None = None
    weight_kind: str = "sampling"
    ids: str | None = None
    group: str | None = None
    by: Sequence[str] = ()
    shards: bool = False
    need_labels: bool = True


def read(path: Paths, *, multilabel: bool = False, progress: Progress | None = None, **how: Any) -> Predictions:
    """Read recorded outputs.

    Args:
        path: a file (`-` is stdin), or several that are parts of one data set (`shards=True`).
        scores, labels: names of the arrays; `labels` may be a file of its own.
        classes: names of the classes in the order of the score columns, as a list, `a,b,c`, or a file.
        kind: `logits`, `probabilities` or `log_probabilities`, where recognition would be wrong.
        label_base: what the first class is called.  ignore_label: rows with this label are dropped.
        drop_nonfinite: drop rows with NaN or infinite scores.
        clip: raise probabilities to 1e-15, so that the NLL is finite.
        weights, ids, group, by: names of further arrays (N,).  weight_kind: `sampling` or `count`.
        need_labels: whether labels must be there; without any, all are 0 and `facts["labelled"]` is False.
        progress: called with (fraction, text).

    Returns:
        Predictions whose scores are read from the file in blocks. Probabilities become their logarithms there.

    Raises:
        InputError: the file, or what is in it, is refused (exit 4).
        UsageError: an option has a value that cannot be.
    """
    if multilabel:
        raise UsageError("--multilabel gives one data set per label", "call read_multilabel")
    reading = _reading(how)
    sources = open_all(path, reading.shards)
    contents = [load(source) for source in sources]
    return predictions(contents, sources, reading, progress)


def read_multilabel(path: Paths, *, progress: Progress | None = None, **how: Any) -> dict[str, Predictions]:
    """Read (N, L) scores with (N, L) targets of 0 and 1: one binary data set per label, by its name.

    Arguments and errors as in `read`.
    """
    from calibcli.inputs.multilabel import split

    reading = _reading(how)
    sources = open_all(path, reading.shards)
    return split([load(source) for source in sources], sources, reading, progress)


def open_all(path: Paths, shards: bool) -> list[Source]:
    """The files, opened.

    Raises:
        InputError: several files without `shards`.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not paths:
        raise UsageError("no input file", "name a file with scores and labels, or - for stdin")
    if len(paths) > 1 and not shards:
        raise InputError(
            f"{len(paths)} files: parts of one data set, or several models?",
            "parts: --shards; models: calib compare " + " ".join(str(p) for p in paths[:3]),
        )
    return [Source(p) for p in paths]


def load(source: Source) -> Contents:
    """The arrays of a file by the reader of its format."""
    module, _, function = READERS[source.format()].partition(":")
    contents: Contents = getattr(importlib.import_module(f"calibcli.inputs.{module}"), function)(source)
    return contents


def predictions(
    contents: Sequence[Contents], sources: Sequence[Source], reading: Reading, progress: Progress | None = None
) -> Predictions:
    """Check the arrays of all files as one data set."""
    where = sources[0].name if len(sources) == 1 else f"{len(sources)} shards"
    first = contents[0]
    score_name = keys.pick_scores(first, reading.scores, sources[0].name)
    raw, ragged = _joined_scores(contents, sources, reading, score_name)
    label_name, raw_labels = label_array(contents, sources, reading, score_name)
    n_labels = None if raw_labels is None else raw_labels.shape[0]
    scores = shape.held(shape.two_dimensional(raw, score_name, where, n_labels))
    n, width = scores.shape
    k = max(width, 2)
    notes: list[str] = [remark for c in contents for remark in c.about]
    classes, confirmed = _classes(first, reading, score_name, k)

    labels: Labels | None = None
    if raw_labels is not None:
        labels = read_labels(
            raw_labels,
            label_name,
            n=n,
            k=k,
            columns=width,
            top=lambda rows: _top(scores, rows),
            classes=classes,
            label_base=reading.label_base,
            ignore_label=reading.ignore_label,
        )
        notes += labels.notes
    elif reading.need_labels:
        raise InputError(
            f"no labels in {where}: it holds {keys.describe(first)}",
            "choose them with --labels KEY, or --labels FILE for a file of their own",
        )
    keep = None if labels is None or labels.dropped is None else np.flatnonzero(~labels.dropped)
    codes: Any = None if labels is None else labels.codes
    if keep is not None:
        scores, codes = Picked(scores, keep), codes[keep]

    found = scan(scores, codes, decimals=first.decimals.get(score_name), progress=progress)
    half = scores.dtype.itemsize <= 2
    forced = _kind_option(reading.kind)
    masks = ragged or forced is not None
    bad: Ints = np.concatenate(found.bad) if found.bad else np.empty(0, np.int64)
    if reading.drop_nonfinite:
        if len(bad) == found.n:
            raise InputError(f"all {found.n:,} rows of '{score_name}' hold NaN or infinite scores", "save them again")
        declared = keys.declared_kind(first, score_name)
        kind = decide_kind(found, declared, forced, score_name)
        if found.masked and not masks and kind != "log_probabilities":
            bad = np.union1d(bad, _masked_rows(scores))
        if len(bad):
            keep, scores, codes = _without(bad, keep, scores, codes)
            notes.append(f"{len(bad):,} of {found.n:,} rows with NaN or infinite scores dropped")
    else:
        if found.finite == 0 or found.nan or found.infinite:
            refuse_nonfinite(found, "logits", masks, half)
        kind = decide_kind(found, keys.declared_kind(first, score_name), forced, score_name)
        refuse_nonfinite(found, kind, masks, half)
    refuse_empty(found, kind)
    notes += _remarks(found, kind, forced is not None, reading, width)
    if labels is not None and found.predicted:
        order = refuse_class_order(
            np.concatenate(found.predicted), np.concatenate(found.compared), k, classes, confirmed
        )
        notes += [order] if order else []
    further = _further(contents, sources, reading, n, keep, score_name, label_name, notes)
    return Predictions(
        scores=shape.as_scores(scores, kind, clip=reading.clip),
        labels=np.zeros(scores.shape[0], np.int64) if codes is None else codes,
        kind=kind,
        source=where,
        classes=classes,
        notes=notes,
        sha256=sources[0].sha256() if len(sources) == 1 else "",
        facts={
            "format": first.format,
            "scores": score_name,
            "labels": label_name,
            "labelled": labels is not None,
            "dtype": str(scores.dtype),
            "kind": kind,
            "why": "given by --kind" if forced else evidence(found, kind),
            "columns": width,
            "class_rows": {} if labels is None else {str(c): count for c, count in labels.counts.items()},
            "repeated_rows": found.repeated,
        },
        **further,
    )


def provenance(path: Paths, found: Predictions) -> list[dict[str, Any]]:
    """Path and sha256 of each input file, for the provenance of a result."""
    paths = [path] if isinstance(path, str | Path) else list(path)
    if len(paths) == 1:
        return [{"path": str(paths[0]), "sha256": found.sha256}]
    return [{"path": str(p), "sha256": sha256(p)} for p in paths]


def _reading(how: Mapping[str, Any]) -> Reading:
    known = {f.name for f in dataclasses.fields(Reading)}
    for name in how:
        if name not in known:
            raise UsageError(f"unknown option '{name}' of reading", did_you_mean(name, known))
    return Reading(**how)


def changed(reading: Reading, **fields: Any) -> Reading:
    """The same reading with other fields."""
    return dataclasses.replace(reading, **fields)


def _kind_option(kind: str | None) -> Kind | None:
    if kind is None or normal(kind) == "auto":
        return None
    for known in KINDS:
        if normal(kind) in (known, {"probabilities": "probs", "log_probabilities": "log_probs"}.get(known)):
            return known
    raise UsageError(f"--kind {kind} is not a kind of scores", did_you_mean(normal(kind), KINDS))


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
) -> tuple[str, Named | None]:
    """Name and array of the labels, of all files; the array is None when there are none."""
    wanted = reading.labels
    if wanted and wanted not in contents[0].arrays and Path(wanted).is_file():
        return wanted, _from_file(wanted)
    found = [(keys.pick_labels(c, wanted, score_name, s.name), c, s) for c, s in zip(contents, sources)]
    absent = [s.name for name, _, s in found if name is None]
    if absent and len(absent) < len(found):
        raise InputError(f"{absent[0]} has no labels, other shards have", "give every shard its labels")
    parts = [c.arrays[name] for name, c, _ in found if name is not None]
    if not parts:
        return "", None
    return str(found[0][0]), parts[0] if len(parts) == 1 else Joined(parts)


def _from_file(path: str) -> Named:
    """The labels in a file of their own: its only array, or the one with a label's name."""
    source = Source(path)
    contents = load(source)
    names = list(contents.arrays)
    name = names[0] if len(names) == 1 else keys.pick_labels(contents, None, "", source.name)
    if name is None:
        raise InputError(f"no labels in {path}: it holds {keys.describe(contents)}", "name the array 'labels'")
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
        key = keys.first_of(contents, keys.CLASSES, lambda a: a.shape == (k,) and a.dtype.kind in "USO")
        if key:
            names = [str(t) for t in shape.texts(whole(contents.arrays[key]))]
    if names is not None and len(names) != k:
        raise InputError(f"{len(names)} class names for {k} score columns", "name every column once, in order")
    if names is not None and len(set(names)) < k:
        raise InputError("two classes have the same name", "name every class differently")
    return names, given is not None


def _top(scores: Named, rows: int) -> Ints:
    block = scores.read(0, rows)
    if block.shape[1] == 1:
        return (block[:, 0] > 0.5).astype(np.int64)
    return np.asarray(block.argmax(axis=1), dtype=np.int64)


def _masked_rows(scores: Named) -> Ints:
    return np.flatnonzero(np.concatenate([np.isneginf(b).any(axis=1) for _, b in shape.blocks(scores)]))


def _without(bad: Ints, keep: Ints | None, scores: Named, codes: Any) -> tuple[Ints, Named, Any]:
    left = np.ones(scores.shape[0], bool)
    left[bad] = False
    index = np.flatnonzero(left)
    return (index if keep is None else keep[index]), Picked(scores, index), None if codes is None else codes[index]


def _remarks(found: Scan, kind: Kind, forced: bool, reading: Reading, width: int) -> list[str]:
    notes = []
    if width == 1:
        what = {"logits": "log-odds", "log_probabilities": "log P"}.get(kind, "P")
        notes.append(f"one score per row: read as {what} of class 1")
    twice = refuse_double_softmax(found, kind, forced)
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


def _further(
    contents: Sequence[Contents],
    sources: Sequence[Source],
    reading: Reading,
    n: int,
    keep: Ints | None,
    score_name: str,
    label_name: str,
    notes: list[str],
) -> dict[str, Any]:
    """Weights, ids, groups and slices of the rows that are kept."""

    def column(name: str, option: str) -> Array:
        parts: list[Named] = [c.arrays[keys.named(c, name, option, s.name)] for c, s in zip(contents, sources)]
        array = parts[0] if len(parts) == 1 else Memory(np.concatenate([shape.texts(whole(p)) for p in parts]))
        return shape.per_row(array, name, option, n, keep)

    def fits(array: Named) -> bool:
        return array.shape == (n,) and array.dtype.kind in "iuUSO"

    out: dict[str, Any] = {}
    ids = reading.ids
    if ids is None and len(contents) == 1:
        ids = contents[0].ids or keys.first_of(contents[0], keys.IDS, fits)
        ids = None if ids in (score_name, label_name) else ids
    if ids:
        out["ids"] = column(ids, "--ids")
        unique = len(np.unique(out["ids"]))
        if unique < len(out["ids"]):
            notes.append(f"ids '{ids}': {len(out['ids']) - unique:,} rows repeat an earlier id")
    if reading.weights:
        if reading.weight_kind not in ("sampling", "count"):
            raise UsageError(f"--weight-kind {reading.weight_kind} is unknown", "choose sampling or count")
        out["weights"] = shape.weights(column(reading.weights, "--weights"), reading.weights, reading.weight_kind)
        out["weight_kind"] = reading.weight_kind
    if reading.group:
        out["groups"] = np.unique(column(reading.group, "--group"), return_inverse=True)[1].astype(np.int64)
    if reading.by:
        out["slices"] = {name: shape.texts(column(name, "--by")) for name in reading.by}
    return out
