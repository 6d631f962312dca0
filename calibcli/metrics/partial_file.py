"""The file of a state: arrays, of which one is a JSON header; whatever else is in it is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from calibcli import wellformed
from calibcli.columns import ClassBins
from calibcli.columns.condense import NAMES, Cells, places
from calibcli.errors import InputError, printable, refusing
from calibcli.metrics.gain import FEWEST, SCORES
from calibcli.metrics.partial import File, Kept, Problem, State
from calibcli.predictions import Array
from calibcli.spec import Range

HEADER, SCHEMA = "calib_state", 1
FIX = "write it again: this is not what calib metrics --partial writes"
FINITE = [i for i, name in enumerate(NAMES) if name not in ("nll", "most")]  # those are infinite at probability 0
Rows = Annotated[int, Range(0)]


@dataclass(frozen=True, kw_only=True)
class About:
    """The header of a state file.

    Attributes:
        tables: how class probabilities are binned.
        parts: rows of each part by its fingerprint.  files: where they came from.  notes: remarks of the reader.
        checksum: of all else in the file; "" of earlier versions.
    """

    schema: int
    rows: Rows
    problem_of: Problem
    tables: Sequence[ClassBins]
    parts: Mapping[str, Rows]
    files: Sequence[File] = ()
    notes: Sequence[str] = ()
    checksum: str = ""

    def problem(self) -> str:
        """What cannot be."""
        if any(t.bins < 1 or t.bins > 1_000_000 or not -1 <= t.threshold <= 1 for t in self.tables):
            return "a class table has bins that cannot be"
        names = self.problem_of.classes
        if names is not None and len(names) != self.problem_of.k:
            return f"{len(names)} class names for {self.problem_of.k} classes"
        return "parts have more rows than there are" if sum(self.parts.values()) > self.rows else ""


def arrays_of(state: State) -> dict[str, Array]:
    """A state as arrays, of which HEADER is JSON."""
    state.measured()
    assert state.problem is not None
    assert state.cells is not None
    assert state.kept is not None
    about = {
        "schema": SCHEMA,
        "rows": state.rows,
        "problem_of": vars(state.problem),
        "tables": [vars(how) for how in state.tables],
        "parts": state.parts,
        "files": [vars(file) for file in state.files],
        "notes": state.notes,
    }
    cells, count, sums = state.cells.arrays()
    arrays = {
        "cells": cells,
        "count": count,
        "sums": sums,
        "predicted": state.cells.predicted,
        **{f"table_{i}": table for i, table in enumerate(state.tables.values())},
        "kept_hashes": state.kept.hashes,
        "kept_rows": state.kept.scores,
        "kept_labels": state.kept.labels,
    }
    text = json.dumps({**about, "checksum": _checksum(about, arrays)})
    return {HEADER: np.frombuffer(text.encode(), np.uint8), **arrays}


def _checksum(about: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """SHA-256 of a header without its checksum and of all arrays, by name."""
    rest = {key: value for key, value in about.items() if key != "checksum"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(set(arrays) - {HEADER}):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.newbyteorder('<').str} {array.shape}".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def state_of(arrays: Mapping[str, Array], source: str) -> State:
    """What `arrays_of` gave.

    Raises:
        InputError: it is no state, or not one that this version reads.
    """
    if HEADER not in arrays:
        raise InputError(f"{source} is no state", "pass what calib metrics --partial wrote")
    with refusing((ValueError, RecursionError), f"{source}: its header is not JSON", FIX):
        data = json.loads(arrays[HEADER].tobytes())
    if isinstance(data, dict) and data.get("schema") != SCHEMA:
        raise wellformed.wrong(data.get("schema"), f"{SCHEMA}, which this version reads", source, FIX, "schema")
    about: About = wellformed.read(data, About, source, FIX)
    problem = about.problem_of
    fault = _fault(arrays, about)
    if fault:
        raise InputError(f"{source}: {fault}", FIX)
    if about.checksum and about.checksum != _checksum(data, arrays):
        raise InputError(f"{source} was changed by something else than calib: its checksum does not fit", FIX)
    held = arrays["cells"].astype(np.int64), arrays["count"], arrays["sums"]
    cells = Cells(problem.k, problem.top_only, arrays["predicted"].copy(), held)
    kept = Kept(arrays["kept_hashes"], arrays["kept_rows"], arrays["kept_labels"].astype(np.int64))
    tables = {how: arrays[f"table_{i}"] for i, how in enumerate(about.tables)}
    parts, files, notes = dict(about.parts), list(about.files), [printable(note) for note in about.notes]
    return State(list(tables), about.rows, parts, files, notes, problem, cells, tables, kept)


def _fault(arrays: Mapping[str, Array], about: About) -> str:
    """What in the arrays of a state cannot be, or nothing."""
    k, most = about.problem_of.k, places(about.problem_of.k)
    count, rows = (arrays[name].size if name in arrays else 0 for name in ("cells", "kept_hashes"))
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "cells": ((count,), "i"),
        "count": ((count,), "f"),
        "sums": ((2, len(NAMES), count), "f"),
        "predicted": ((3, k), "f"),
        **{f"table_{i}": ((3, k, how.bins + (how.edges == "torchmetrics")), "f") for i, how in enumerate(about.tables)},
        "kept_hashes": ((rows,), "u"),
        "kept_rows": ((rows, k), "f"),
        "kept_labels": ((rows,), "i"),
    }
    for name, (shape, kind) in shapes.items():
        if name not in arrays:
            return f"'{name}' is missing"
        found = arrays[name]
        if found.shape != shape or found.dtype.kind != kind or found.dtype.itemsize < 4:
            return f"'{name}' is {found.dtype} of shape {list(found.shape)}, not {list(shape)}"
        if np.isnan(found).any():
            return f"'{name}' holds NaN"
        some = found[:, FINITE] if name == "sums" else found
        if name != "kept_rows" and not np.isfinite(some).all():
            return f"'{name}' holds what is not a finite number"
        if name not in ("sums", "kept_rows") and found.min(initial=0) < 0:
            return f"'{name}' holds numbers below 0"
    cells, labels = arrays["cells"], arrays["kept_labels"]
    if count and (cells[0] < 0 or cells[-1] >= most or (np.diff(cells) <= 0).any()):
        return "'cells' are not in order"
    if arrays["count"].min(initial=1) < 1 or abs(float(arrays["count"].sum()) - about.rows) > 0.5:
        return f"'count' adds up to {float(arrays['count'].sum()):,.0f}, not to its {about.rows:,} rows"
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= k or rows > max(FEWEST, SCORES // k):
        return "'kept_labels' are not those of its classes"
    return "" if (np.diff(arrays["kept_hashes"].astype(np.float64)) >= 0).all() else "'kept_hashes' are not in order"
