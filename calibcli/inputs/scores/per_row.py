"""Weights, ids, groups and slices: further arrays with one value per row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.errors import UsageError
from calibcli.inputs.files.arrays import Contents, Memory, Named, whole
from calibcli.inputs.files.names import IDS
from calibcli.inputs.files.source import Source
from calibcli.inputs.scores import keys, shape
from calibcli.inputs.scores.labels import HELD
from calibcli.inputs.scores.reading import Reading
from calibcli.predictions import Array, Ints


def columns(
    contents: Sequence[Contents],
    sources: Sequence[Source],
    reading: Reading,
    n: int,
    keep: Ints | None,
    score_name: str,
    label_name: str,
    notes: list[str],
) -> dict[str, Any]:
    """The fields of `Predictions` that are asked for, or found (ids), of the rows that are kept."""

    def column(name: str, option: str) -> Array:
        parts: list[Named] = [c.arrays[keys.named(c, name, option, s.name)] for c, s in zip(contents, sources)]
        array = parts[0] if len(parts) == 1 else Memory(np.concatenate([shape.texts(whole(p)) for p in parts]))
        return shape.per_row(array, name, option, n, keep)

    def fits(array: Named) -> bool:
        return array.shape == (n,) and array.dtype.kind in "iuUSO"

    out: dict[str, Any] = {}
    ids = reading.ids
    if ids is None and len(contents) == 1 and n <= HELD:
        ids = contents[0].ids or keys.first_of(contents[0], IDS, fits)
        ids = None if ids in (score_name, label_name) else ids
    if ids:
        out["ids"] = column(ids, "--ids")
        unique = shape.distinct(out["ids"])
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
