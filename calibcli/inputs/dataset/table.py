"""Tabular data: a CSV or TSV file of numbers with a header and a label column."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from calibcli.errors import InputError, did_you_mean
from calibcli.inputs.dataset.arrays import Held
from calibcli.inputs.dataset.keys import IDS, LABELS, Found
from calibcli.inputs.dataset.labels import from_names
from calibcli.inputs.files.source import Source
from calibcli.spec import real


def read(path: Path, label_column: str | None) -> Found:
    """Features (N, D) float64 in the order of the columns, labels, and ids where a column has that name.

    Raises:
        InputError: no label column, a ragged row, or a cell that is not a number.
    """
    try:
        source = Source(path)
        with io.TextIOWrapper(source.reader(), newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            mark = "\t" if path.suffix == ".tsv" else ";" if ";" in first and "," not in first else ","
            header, *rows = [row for row in csv.reader(file, delimiter=mark) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path} ({error})", "save it as UTF-8 text") from None
    except ValueError:
        raise InputError(f"{path} is empty", "pass a header and rows") from None
    header = [name.strip() for name in header]
    label = _label_column(path, header, label_column)
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            problem = f"{path} line {number} has {len(row)} cells, the header has {len(header)}"
            raise InputError(problem, "quote cells that hold the separator")
    columns = dict(zip(header, zip(*rows))) if rows else {}
    labels, classes = from_names([name.strip() for name in columns.get(label, ())])
    ids = next((name for name in header if name.lower() in IDS and name != label), None)
    features = [name for name in header if name not in (label, ids)]
    values = np.empty((len(rows), len(features)))
    for i, name in enumerate(features):
        try:
            if any("_" in cell for cell in columns[name]):  # NumPy reads 1_0 as 10
                raise ValueError
            values[:, i] = columns[name]
        except (ValueError, KeyError):
            values[:, i] = [_number(cell, path, line, name) for line, cell in enumerate(columns.get(name, ()), 2)]
        if not np.isfinite(values[:, i]).all():
            line = int(np.flatnonzero(~np.isfinite(values[:, i]))[0]) + 2
            raise InputError(f"{path} line {line}: column '{name}' is not finite", "fill or drop such rows")
    return Found(
        inputs={"": Held(values)},
        labels=labels,
        sha256=source.sha256(),
        ids=np.array(columns[ids]) if ids and rows else None,
        classes=classes,
        notes=[f"{len(features)} feature columns, labels in '{label}'"],
    )


def _label_column(path: Path, header: list[str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in header:
            raise InputError(f"{path} has no column '{wanted}'", did_you_mean(wanted, header))
        return wanted
    found = [name for name in header if name.lower() in (*LABELS, "class")]
    if len(found) != 1:
        what = f"columns {' and '.join(found)} could be the label" if found else "no column is named label"
        raise InputError(f"{path}: {what}", f"pass --label-column, one of: {', '.join(header)[:300]}")
    return found[0]


def _number(cell: str, path: Path, line: int, name: str) -> float:
    try:
        return real(cell)
    except ValueError:
        problem = f"{path} line {line}: column '{name}' holds '{cell}', not a number"
        raise InputError(problem, "encode the column as numbers, or leave it out") from None
