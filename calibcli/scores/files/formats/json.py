"""One JSON document: a table with `columns` and `data` (Weights & Biases, MLflow, pandas), or a log of Inspect.

JSON is RFC 8259 (Bray 2017). A table of `wandb.Table` and one of `mlflow.log_table` (pandas with orient="split") look
the same. Any other document is read as JSON lines.

>>> table = '{"columns": ["logit_0", "logit_1", "label"], "data": [[2, -0.5, 0], [0, 1, 1]]}'
>>> _ = (folder / "table.json").write_text(table)
>>> calibcli.read(folder / "table.json").labels.tolist()
[0, 1]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibcli.core.errors import CalibError, InputError, refusing
from calibcli.scores.files.arrays import FileContents, Memory, column_of
from calibcli.scores.files.evals import inspect_ai
from calibcli.scores.files.formats import jsonl
from calibcli.scores.files.source import Source, refuse_large
from calibcli.scores.files.text_tables import decimals_of, json_of, score_groups
from calibcli.scores.predictions import Array, Named

SUFFIXES = (".json",)
EXPANSION = 16  # bytes of memory for each byte of text, roughly, in the worst case
TABLE = re.compile(rb'\s*\{\s*"(columns|index|data)"\s*:\s*\[')
LOG = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')


def signature(head: bytes, size: int) -> bool:
    """Return whether the file begins as a table or a log does."""
    return bool(TABLE.match(head) or LOG.match(head))


def read(source: Source, grouped: bool = True) -> FileContents:
    """Read columns by name, with a group of score columns as one (N, K) array; or the samples of a log.

    Raises:
        InputError: not JSON, larger than memory, no such table or log, or samples that cannot be measured.
    """
    head = source.pread(min(source.size, 512), 0)
    if not signature(head, source.size):
        return jsonl.read(source)
    refuse_large(source.size * EXPANSION, f"{source.name} takes {source.size * EXPANSION / 1e9:.3g} GB when decoded")
    try:
        value = json_of(source.pread(source.size, 0), source.name)
    except CalibError:
        raise
    except (ValueError, RecursionError):
        lines = source.pread(source.size, 0).count(b"\n") > 0 and LOG.match(head) is None
        if lines and b"columns" not in head:
            return jsonl.read(source)
        raise InputError(f"{source.name} is not JSON", "is the file truncated?") from None
    if LOG.match(head):
        samples = value.get("samples")
        if not isinstance(samples, list) or not samples:
            problem = f"{source.name} is a log of Inspect without samples"
            raise InputError(problem, "log them: inspect eval --log-samples")
        return inspect_ai.contents("json, log of Inspect", value, samples, source)
    return _table(value, source, grouped)


def _table(value: Mapping[str, Any], source: Source, grouped: bool) -> FileContents:
    names, rows = value.get("columns"), value.get("data")
    if not isinstance(names, list) or not isinstance(rows, list) or not rows:
        if set(value) <= {"columns", "data", "index"}:
            raise InputError(f"{source.name} has no lists `columns` and `data` with rows", "write the table again")
        return jsonl.read(source)
    header = [str(name) for name in names]
    groups, others, fields = score_groups(header, source.name, grouped)
    odd = next((i for i, row in enumerate(rows) if not isinstance(row, list) or len(row) != len(header)), None)
    if odd is not None:
        count = len(rows[odd]) if isinstance(rows[odd], list) else "no"
        raise InputError(f"row {odd} of {source.name} has {count} cells, the header {len(header)}", "write it again")
    cells = dict(zip(header, (list(column) for column in zip(*rows))))
    arrays: dict[str, Named] = {}
    decimals: dict[str, int] = {}
    for name, members in groups.items():
        columns = [_numbers(cells[header[i]], header[i], source) for i in members]
        arrays[name] = Memory(np.column_stack(columns))
        decimals[name] = max(decimals_of(repr(v)) for i in members for v in cells[header[i]][:1000])
    for name in (header[i] for i in others):
        array = _column(cells[name], name, source)
        arrays[name] = Memory(array)
        if array.dtype.kind == "f":
            flat = (v for cell in cells[name][:1000] for v in (cell if isinstance(cell, list) else [cell]))
            decimals[name] = max(decimals_of(repr(v)) for v in flat)
    return FileContents("json, table", arrays, decimals=decimals, **fields)


def _numbers(cells: list[Any], name: str, source: Source) -> Array:
    """Return (N,) float64; null becomes NaN.

    Raises:
        InputError: a cell is no number; its row is named.
    """
    for i, cell in enumerate(cells):
        if cell is not None and (isinstance(cell, bool) or not isinstance(cell, int | float)):
            problem = f"row {i} of column '{name}' in {source.name} is {str(cell)[:40]!r}, not a number"
            raise InputError(problem, "write it as a number, or leave the column out")
    with refusing(OverflowError, f"column '{name}' in {source.name} holds a number beyond any float", "write it again"):
        return np.array([np.nan if cell is None else float(cell) for cell in cells])


def _column(cells: list[Any], name: str, source: Source) -> Array:
    """Return a column of numbers, of lists of numbers (N, K), or of text.

    Raises:
        InputError: lists of numbers that differ in length.
    """
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds == {list} and None not in cells and {type(v) for cell in cells for v in cell} <= {int, float}:
        if len({len(cell) for cell in cells}) > 1:
            problem = f"lists in column '{name}' of {source.name} differ in length"
            raise InputError(problem, "write one score per class")
        parts = [_numbers(list(part), name, source) for part in zip(*cells)]
        return np.column_stack(parts or [np.zeros((len(cells), 0))])
    if kinds and kinds <= {int, float}:
        numbers = _numbers(cells, name, source)
        whole = kinds == {int} and None not in cells and np.abs(numbers).max() < 2**53
        return numbers.astype(np.int64) if whole else numbers
    return column_of(["" if c is None else c if isinstance(c, str) else json.dumps(c)[:10_000] for c in cells])
