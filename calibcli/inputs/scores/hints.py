"""What to say where nothing in a file has a known name: its first row, and the options that would read it."""

from __future__ import annotations

import shlex

import numpy as np

from calibcli.inputs.files.arrays import Contents
from calibcli.inputs.files.text import is_number
from calibcli.predictions import Named

ROWS, SHOWN = 200, 6


def way(contents: Contents) -> tuple[str, str]:
    """(what the first row holds, the options that would read the file), each "" where it cannot be told."""
    scores, labels = [], []
    for name, array in contents.arrays.items():
        told = _looks_like(array)
        if told == "scores":
            scores.append(name)
        elif told == "labels":
            labels.append(name)
    for name in labels:
        values = {str(cell).strip() for cell in contents.arrays[name].read(0, ROWS).reshape(-1).tolist()}
        if len(named := [column for column in contents.arrays if column in values]) > 1:
            scores, labels = named, [name]
    wide = [name for name in scores if len(contents.arrays[name].shape) == 2]
    options = []
    if scores:
        options.append(f"--scores {shlex.quote(wide[0] if wide else ','.join(scores[:SHOWN]))}")
    if labels:
        options.append(f"--labels {shlex.quote(labels[-1])}")
    cells = [f"{name}={_cell(array)}" for name, array in contents.arrays.items() if contents.table]
    more = ", ..." if len(cells) > SHOWN else ""
    return f"; its first row: {', '.join(cells[:SHOWN])}{more}" if cells else "", " ".join(options)


def _cell(array: Named) -> str:
    return str(array.read(0, 1).reshape(-1)[0])[:24] if array.shape[0] else ""


def _looks_like(array: Named) -> str:
    """`scores`, numbers that are not all whole; `labels`, whole numbers or names that come again; "" neither."""
    if len(array.shape) == 2 and array.shape[1] > 1:
        return "scores" if array.dtype.kind == "f" else ""
    if len(array.shape) > 2 or not array.shape or not array.shape[0]:
        return ""
    cells = array.read(0, ROWS).reshape(-1)
    if array.dtype.kind in "USO":
        texts = [str(cell).strip() for cell in cells.tolist()]
        if not all(map(is_number, texts)):
            return "labels" if len(set(texts)) < max(2, len(texts) // 2) else ""
        cells = np.array([float(text) for text in texts])
    if array.dtype.kind == "f" or cells.dtype.kind == "f":
        cells = cells.astype(np.float64)
        if not np.array_equal(cells, np.floor(cells)):
            return "scores"
    return "labels" if len(np.unique(cells)) < max(2, len(cells) // 2) else ""
