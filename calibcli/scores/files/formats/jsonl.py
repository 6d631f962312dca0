"""JSON lines: one object per row with a list of scores and a label; samples of lm-eval; chats with log-probabilities.

JSON is defined in RFC 8259 (Bray 2017). Each layout of an evaluation has a file in `evals/`: samples of lm-eval (Gao
et al. 2021), and answers of servers. Logs of Inspect are one document or an archive: `formats/json`, `formats/eval`.

>>> lines = '{"logits": [2, -0.5], "label": 0}', '{"logits": [0, 1], "label": 1}'
>>> _ = (folder / "scores.jsonl").write_text("\\n".join(lines))
>>> calibcli.read(folder / "scores.jsonl").labels.tolist()
[0, 1]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from calibcli.core.errors import InputError, refusing
from calibcli.scores.files import nested, text_tables
from calibcli.scores.files.arrays import FileContents, Memory
from calibcli.scores.files.evals import chats, lm_eval
from calibcli.scores.files.source import Source, refuse_large
from calibcli.scores.files.text_tables import decimals_of, json_of

SUFFIXES = (".jsonl",)
LAYOUTS = (lm_eval, chats)  # of evaluations, recognised by their first row
LINE = 64 << 20  # longest line
EXPANSION = 16  # bytes of memory for each byte of text, roughly, in the worst case
HEAD = 1000  # rows whose digits after the point are counted


def guess(head: bytes) -> bool:
    """Return whether the file begins with an object or a list."""
    return head.lstrip()[:1] in (b"{", b"[")


def read(source: Source, grouped: bool = True) -> FileContents:
    """Read lists of numbers as (N, K) arrays, what is inside objects by its path, and other values as columns of text.

    Raises:
        InputError: not JSON lines, rows that differ in their keys, or samples without scores of each choice.
    """
    return of_rows(_rows(source), source, "jsonl", grouped, fast=True)


def of_rows(
    rows: Iterator[dict[str, Any]], source: Source, form: str, grouped: bool, fast: bool = False
) -> FileContents:
    """Read rows of JSON, of lines or of a document.

    Args:
        fast: the rows are the lines of the file.
    """
    first = next(rows, None)
    if first is None:
        raise InputError(f"{source.name} has no rows", "is the file truncated?")
    layout = next((layout for layout in LAYOUTS if layout.matches(first)), None)
    size = source.size * (layout.EXPANSION if layout else EXPANSION)
    refuse_large(size, f"{source.name} takes {size / 1e9:.3g} GB when decoded")
    if layout:
        contents: FileContents = layout.read(source, first, rows)
        return contents
    rows = itertools.chain([first], rows)
    head = list(itertools.islice(rows, HEAD))
    # plain lines, all like the first, are parsed many at a time, which pays for long files; None for others
    quick = text_tables.lines(source, first) if fast and len(head) == HEAD and not nested.may_be_codes(first) else None
    if quick is not None:
        # digits after the point: how exactly rows of probabilities can sum to one
        decimals = {key: _digits(row[key] for row in head) for key, array in quick.items() if array.ndim == 2}
        return FileContents(
            "jsonl", {key: Memory(array) for key, array in quick.items()}, decimals=decimals, table=grouped
        )
    contents = nested.of_rows(itertools.chain(head, rows), form, source.name)
    return text_tables.grouped_columns(contents, source) if grouped else replace(contents, table=False)


def _digits(rows: Iterable[list[Any]]) -> int:
    """Return the largest number of digits after the point."""
    return max(decimals_of(repr(v)) for row in rows for v in row)


def _rows(source: Source) -> Iterator[dict[str, Any]]:
    number, fix = 0, "write one JSON object per line"
    in_list = source.pread(min(source.size, 512), 0).lstrip().startswith(b"[")
    remark = " (a list in one file is not JSON lines)" if in_list else ""
    whole = source.pread(1, source.size - 1) in (b"\n", b"}")
    cut = "" if whole or in_list else "; is the file truncated, or still being written?"
    unreadable = refusing(
        (ValueError, RecursionError), lambda _: f"row {number} of {source.name} is not JSON", fix + remark + cut
    )
    with unreadable, source.reader() as file:
        while line := file.readline(LINE):
            if not line.strip():
                continue
            row = json_of(line, f"row {number} of {source.name}")
            if not isinstance(row, dict):
                raise InputError(f"row {number} of {source.name} is a JSON {type(row).__name__}", fix)
            yield row
            number += 1
