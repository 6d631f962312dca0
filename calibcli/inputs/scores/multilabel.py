"""Multi-label targets: (N, L) scores of independent labels and (N, L) targets of 0 and 1, as L binary data sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.errors import InputError, UsageError
from calibcli.inputs.files.arrays import Contents, Converted, Memory
from calibcli.inputs.files.roles import CLASSES
from calibcli.inputs.files.source import Source
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import keys
from calibcli.inputs.scores.recorded import Paths, classes_of, label_array, load, open_all, predictions, reading_of
from calibcli.predictions import Named, Predictions, Progress


def read(path: Paths, *, progress: Progress | None = None, **how: Any) -> dict[str, Predictions]:
    """Read (N, L) scores with (N, L) targets of 0 and 1: one binary data set per label, by its name.

    Arguments and errors as in `recorded.read`.
    """
    reading = reading_of(how)
    sources = open_all(path, reading)
    return split([load(source) for source in sources], sources, reading, progress)


def split(
    contents: Sequence[Contents], sources: Sequence[Source], reading: Reading, progress: Progress | None = None
) -> dict[str, Predictions]:
    """One binary data set per label, by its name.

    Raises:
        InputError: scores and targets differ in shape, or targets are not 0 and 1.
    """
    where = sources[0].name
    if len(contents) > 1:
        raise UsageError("--multilabel reads one file", "join the shards first")
    if reading.ignore_label is not None or reading.label_base is not None:
        raise UsageError("--ignore-label and --label-base are for class numbers", "targets of --multilabel are 0 and 1")
    if reading.event is not None:
        raise UsageError("--multilabel with --event: every label is measured", "leave it out")
    file = contents[0]
    score_name = keys.pick_scores(file, reading.scores, where)
    scores = file.arrays[score_name]
    label_name, targets, _ = label_array(contents, sources, reading, score_name, [])
    if targets is None and reading.need_labels:
        raise InputError(f"no targets in {where}: it holds {keys.describe(file)}", "choose them with --labels KEY")
    if len(scores.shape) != 2 or (targets is not None and scores.shape != targets.shape):
        raise InputError(
            f"--multilabel: scores '{score_name}' are {tuple(scores.shape)}, targets '{label_name}' "
            f"{tuple(() if targets is None else targets.shape)}",
            "both must be (N, L), one column per label",
        )
    count = scores.shape[1]
    names = classes_of(file, reading, score_name, count)[0] or [str(i) for i in range(count)]
    arrays = {name: array for name, array in file.arrays.items() if name not in CLASSES}  # of labels, not of yes and no
    out = {}
    for i, name in enumerate(names):
        one = Contents(
            file.format,
            {**arrays, score_name: _column(scores, i)} | ({} if targets is None else {label_name: _column(targets, i)}),
            kinds={score_name: keys.declared_kind(file, score_name)},
            decimals=file.decimals,
            ids=file.ids,
            about=file.about,
            scores=score_name,
            labels=label_name,
        )
        alone = dataclasses.replace(reading, classes=None, labels=label_name or None, scores=score_name)
        out[name] = predictions([one], sources, alone, progress)
    return out


def _column(array: Named, i: int) -> Named:
    if isinstance(array, Memory):
        return Memory(array.array[:, i])
    return Converted(array, lambda block: np.ascontiguousarray(block[:, i]), (), array.dtype)
