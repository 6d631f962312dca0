"""Columns beside scores and labels: ids, weights, groups and slices of the rows that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from calibcli.errors import InputError, UsageError
from calibcli.inputs.files.arrays import Contents, Memory, distinct, texts_of, whole
from calibcli.inputs.files.names import IDS
from calibcli.inputs.files.source import Source
from calibcli.inputs.files.text import floats_of_text
from calibcli.inputs.opening import Reading
from calibcli.inputs.scores import keys
from calibcli.inputs.scores.keys import shape_text
from calibcli.inputs.scores.per_row import HELD
from calibcli.predictions import Array, Floats, Ints, Named


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
        parts: list[Named] = [keys.column(c, name, option, s.name) for c, s in zip(contents, sources)]
        array = parts[0] if len(parts) == 1 else Memory(np.concatenate([texts_of(whole(p)) for p in parts]))
        return _per_row(array, name, option, n, keep)

    def fits(array: Named) -> bool:
        return array.shape == (n,) and array.dtype.kind in "iuUSO"

    out: dict[str, Any] = {}
    ids = reading.ids
    if ids is None and len(contents) == 1 and n <= HELD:
        ids = contents[0].ids or keys.first_of(contents[0], IDS, fits)
        ids = None if ids in (score_name, label_name) else ids
    if ids:
        out["ids"] = column(ids, "--ids")
        unique = distinct(out["ids"])
        if unique < len(out["ids"]):
            notes.append(f"ids '{ids}': {len(out['ids']) - unique:,} rows repeat an earlier id")
    if reading.weights:
        if reading.weight_kind not in ("sampling", "count"):
            raise UsageError(f"--weight-kind {reading.weight_kind} is unknown", "choose sampling or count")
        out["weights"] = weights(column(reading.weights, "--weights"), reading.weights, reading.weight_kind)
        out["weight_kind"] = reading.weight_kind
    if group := reading.group or contents[0].groups:
        out["group_names"], codes = np.unique(column(group, "--group"), return_inverse=True)
        out["groups"] = codes.astype(np.int64)
    if reading.by:
        found = {name: column(name, "--by") for name in reading.by}
        kept = "fiu" if reading.numbers else ""
        out["slices"] = {name: a if a.dtype.kind in kept else texts_of(a) for name, a in found.items()}
    return out


def _per_row(array: Named, name: str, option: str, n: int, keep: Ints | None) -> Array:
    """One value per row, of the rows that are kept.

    Raises:
        InputError: another shape.
    """
    if len(array.shape) == 2 and array.shape[1] == 1:
        array = Memory(whole(array)[:, 0])
    if array.shape != (n,):
        raise InputError(f"{option} {name} has shape {shape_text(array)} for {n:,} rows", "pass one value per row")
    values = whole(array)
    return values if keep is None else values[keep]


def weights(values: Array, name: str, kind: str) -> Floats:
    """Finite weights >= 0 as float64.

    Raises:
        InputError: otherwise, or `count` weights that are not whole.
    """
    if values.dtype.kind in "USO":
        values = floats_of_text(values, name, "the weights")
    w = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~(np.isfinite(w) & (w >= 0)))
    if len(bad):
        raise InputError(f"weight {w[bad[0]]:g} in row {bad[0]} ('{name}')", "weights are finite and not negative")
    if not w.any():
        raise InputError(f"weights '{name}' are all 0", "pass weights that are not all 0")
    with np.errstate(over="ignore"):
        total = float(w.sum())
    if kind == "count" and total > 2**53:
        raise InputError(f"weights '{name}' count {total:.3g} rows", "use --weight-kind sampling")
    used = w[w > 0]
    if used.min() < 1e-100 or used.max() > 1e100:  # their squares are summed
        problem = f"weights '{name}' run from {used.min():.3g} to {used.max():.3g}"
        raise InputError(problem, "divide them by the largest of them")
    odd = np.flatnonzero(w != np.floor(w))
    if kind == "count" and len(odd):
        problem = f"weight {w[odd[0]]:g} in row {odd[0]} ('{name}') is not a count"
        raise InputError(problem, "use --weight-kind sampling")
    return w
