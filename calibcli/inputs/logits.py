"""Recorded outputs: a file with scores and labels, recognised, checked in one pass, and read in blocks ever after."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from calibcli.errors import UsageError, did_you_mean
from calibcli.inputs.assemble import predictions
from calibcli.inputs.readers import Paths, load, open_all
from calibcli.inputs.reading import Reading
from calibcli.predictions import Predictions

__all__ = ["Reading", "load", "open_all", "predictions", "provenance", "read", "read_multilabel"]
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
    from calibcli.inputs.multilabel import split

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
