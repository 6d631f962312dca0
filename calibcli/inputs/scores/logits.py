"""Recorded outputs: a file with scores and labels, recognised, checked in one pass, and read in blocks ever after."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from calibcli.errors import InputError, UsageError, did_you_mean
from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.readers import load_any
from calibcli.inputs.files.source import Source
from calibcli.inputs.scores import keys, other_files
from calibcli.inputs.scores.assemble import predictions
from calibcli.inputs.scores.reading import Reading
from calibcli.predictions import Predictions

__all__ = ["Reading", "load", "open_all", "predictions", "provenance", "read", "read_multilabel"]
Paths = str | Path | Sequence[str | Path]
Progress = Callable[[float, str], None]


def read(path: Paths, *, multilabel: bool = False, progress: Progress | None = None, **how: Any) -> Predictions:
    """Read recorded outputs.

    Args:
        path: a file (`-` is stdin), or several that are parts of one data set (`shards=True`).
        scores, labels: names of the arrays; `labels` may be a file of its own.
        classes: names of the classes in the order of the score columns, as a list, `a,b,c`, or a file.
        event: of two classes, the one that is measured; of one column, the class that it is the probability of.
        kind: `logits`, `probabilities` or `log_probabilities`, where recognition would be wrong.
        label_base: what the first class is called.  ignore_label: rows with this label are dropped.
        drop_nonfinite: drop rows with NaN or infinite scores.
        clip: raise probabilities to 1e-15, so that the NLL is finite.
        weights, ids, group, by: names of further arrays (N,).  weight_kind: `sampling` or `count`.
        need_labels: whether labels must be there and right; else, where they are not, a note says so, all labels are 0
            and `facts["labelled"]` is False.
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
    from calibcli.inputs.scores.multilabel import split

    reading = _reading(how)
    sources = open_all(path, reading.shards)
    return split([load(source) for source in sources], sources, reading, progress)


def provenance(found: Predictions) -> list[dict[str, Any]]:
    """Path and sha256 of each file that was read, for the provenance of a result."""
    return [dict(file) for file in found.facts["files"]]


def _reading(how: Mapping[str, Any]) -> Reading:
    known = {f.name for f in dataclasses.fields(Reading)}
    for name in how:
        if name not in known:
            raise UsageError(f"unknown option '{name}' of reading", did_you_mean(name, known))
    return Reading(**how)


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
    """As `load_any`, for files of recorded outputs.

    Raises:
        InputError: it is something else of calib's or of a model's.
    """
    found = other_files.before_reading(source)
    if found is None:
        contents = load_any(source)
        found = None if keys.candidates(contents) else other_files.after_reading(contents, source)
        if found is None:
            return contents
    raise found.refusal(source.name)
