"""One JSON document: a table with `columns` and `data` (Weights & Biases, MLflow, pandas), rows, or a log of Inspect.

JSON is RFC 8259 (Bray 2017). A table of `wandb.Table` and one of `mlflow.log_table` (pandas with orient="split") look
the same. Rows are the longest list of objects in the document. What holds no rows is read as JSON lines.

>>> table = '{"columns": ["logit_0", "logit_1", "label"], "data": [[2, -0.5, 0], [0, 1, 1]]}'
>>> _ = (folder / "table.json").write_text(table)
>>> calibcli.read(folder / "table.json").labels.tolist()
[0, 1]
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from calibcli.core.errors import CalibError, InputError
from calibcli.scores.files import nested
from calibcli.scores.files.arrays import FileContents
from calibcli.scores.files.evals import inspect_ai
from calibcli.scores.files.formats import jsonl
from calibcli.scores.files.source import Source, refuse_large
from calibcli.scores.files.text_tables import grouped_columns, json_of, score_groups

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
        return _document(source, grouped)
    refuse_large(source.size * EXPANSION, f"{source.name} takes {source.size * EXPANSION / 1e9:.3g} GB when decoded")
    try:
        value = json_of(source.pread(source.size, 0), source.name)
    except CalibError:
        raise
    except (ValueError, RecursionError):
        lines = source.pread(source.size, 0).count(b"\n") > 0 and LOG.match(head) is None
        if lines and b"columns" not in head:
            return jsonl.read(source, grouped)
        raise InputError(f"{source.name} is not JSON", "is the file truncated?") from None
    if LOG.match(head):
        samples = value.get("samples")
        if not isinstance(samples, list) or not samples:
            problem = f"{source.name} is a log of Inspect without samples"
            raise InputError(problem, "log them: inspect eval --log-samples")
        return inspect_ai.contents("json, log of Inspect", value, samples, source)
    return _table(value, source, grouped)


def _document(source: Source, grouped: bool) -> FileContents:
    """Read the rows in a document of JSON, or the lines of a file that is no document."""
    refuse_large(source.size * EXPANSION, f"{source.name} takes {source.size * EXPANSION / 1e9:.3g} GB when decoded")
    document = None
    with contextlib.suppress(ValueError, RecursionError):
        document = json_of(source.pread(source.size, 0), source.name)
    rows = None if document is None else nested.rows_in(document, source.name)
    return jsonl.read(source, grouped) if rows is None else jsonl.of_rows(iter(rows), source, "json", grouped)


def _table(value: Mapping[str, Any], source: Source, grouped: bool) -> FileContents:
    names, rows = value.get("columns"), value.get("data")
    if not isinstance(names, list) or not isinstance(rows, list) or not rows:
        if set(value) <= {"columns", "data", "index"}:
            raise InputError(f"{source.name} has no lists `columns` and `data` with rows", "write the table again")
        return _document(source, grouped)
    header = [str(name) for name in names]
    odd = next((i for i, row in enumerate(rows) if not isinstance(row, list) or len(row) != len(header)), None)
    if odd is not None:
        count = len(rows[odd]) if isinstance(rows[odd], list) else "no"
        raise InputError(f"row {odd} of {source.name} has {count} cells, the header {len(header)}", "write it again")
    score_groups(header, source.name, grouped)  # two columns of one name would become one
    cells = dict(zip(header, (list(column) for column in zip(*rows))))
    return grouped_columns(nested.of_columns(cells, "json, table", source.name), source, grouped)
